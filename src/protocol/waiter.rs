//! Decides what a waiting call does next: asks, asks again at once, parks, pauses or gives up.
//!
//! A pure machine: the driver in `wait` tells it what happened and what time it is, and carries out what it answers.
//!
//! # Rules
//!
//! 1. **Look again before parking.** Whatever may have told the call something while its request was on its way (a
//!    message, or the acknowledgement of its subscription) has it ask again at once: a release between the refusal and the
//!    acknowledgement was told to nobody.
//! 2. **Every park ends**: by the limit, the holder's lease, the poll cap, the time to remind others of this call; and
//!    soon as long as a subscription is not acknowledged.
//! 3. **A hold of this process spares the question** while it stands, since its end is signalled here. But only until the
//!    first wake-up, which may mean that the server has given the lock to others.
//! 4. **Whoever is not told by name** listens where everybody is told too.

use std::time::Duration;

use super::answer::Ttl;
use super::policy::Policy;
use super::wait::{Step as Time, Wait};
use crate::clock::BootInstant;

/// While a subscription is not acknowledged, a waiter asks this often.
pub(crate) const UNCONFIRMED_POLL: Duration = Duration::from_secs(1);

/// What a call knows of a channel.
#[derive(Clone, Copy, Debug, Default, Hash, PartialEq, Eq)]
pub(crate) enum Listening {
    #[default]
    No,
    /// Messages may not arrive: the subscription is not acknowledged yet, or not any more.
    Unconfirmed,
    /// All that is published arrives; so many messages have.
    Confirmed(u64),
}

impl Listening {
    pub(crate) fn is_confirmed(self) -> bool {
        matches!(self, Self::Confirmed(_))
    }

    /// Whether something may have been told since it was like `before`.
    fn is_told_since(self, before: Self) -> bool {
        self.is_confirmed() && self != before
    }
}

/// What a call listens to.
#[derive(Clone, Copy, Debug, Default, Hash, PartialEq, Eq)]
pub(crate) struct Channels {
    /// The channel that this call is told on.
    pub(crate) own: Listening,
    /// The one that everybody is told on, if that is another.
    pub(crate) common: Listening,
}

/// What this process knows without asking the server.
pub(crate) trait Local {
    /// A hold of this process stands, and was not left to this call.
    fn is_held(&self) -> bool {
        false
    }

    /// That hold is renewed, so that its loss is noticed without being looked for.
    fn is_renewed(&self) -> bool {
        false
    }

    /// This process has had the lock often enough in a row: it is the turn of others.
    fn has_had_its_share(&self) -> bool {
        false
    }
}

/// What was answered to a call that does not get what it asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refusal {
    /// Perhaps it does when this time has passed.
    pub(crate) ttl: Ttl,
    /// Nobody tells this call by name.
    pub(crate) is_told_with_all: bool,
    /// After this time others forget that this call waits.
    pub(crate) remind_in: Option<Duration>,
}

impl From<Ttl> for Refusal {
    fn from(ttl: Ttl) -> Self {
        Self {
            ttl,
            is_told_with_all: false,
            remind_in: None,
        }
    }
}

/// How a round begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// The server is asked.
    Ask,
    /// Nobody is asked: a hold of this process stands.
    Spare,
    /// Nobody is asked: others go first.
    Yield,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Ask,
    /// Subscribe to the call's channel, and to the common one only if so; then see what is heard, and park for this time
    /// if it is nothing new.
    Listen {
        common: bool,
        at_most: Duration,
    },
    /// Ask again when something happens, or after this time.
    Park(Duration),
    /// Ask again after this time, whatever happens.
    Pause(Duration),
    GiveUp,
}

/// One call that waits.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub(crate) struct Waiter {
    policy: Policy,
    trusts_local_holds: bool,
    /// A hold of this process was waited for.
    is_in_succession: bool,
    is_woken: bool,
    /// What was heard before the last request.
    before: Channels,
    /// Its own channel was not heard when it parked.
    was_unconfirmed: bool,
}

impl Waiter {
    pub(crate) fn new(policy: Policy) -> Self {
        Self {
            policy,
            trusts_local_holds: policy.trusts_local_holds,
            is_in_succession: false,
            is_woken: false,
            before: Channels::default(),
            was_unconfirmed: false,
        }
    }

    pub(crate) fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Whether a hold of this process was waited for.
    pub(crate) fn is_in_succession(&self) -> bool {
        self.is_in_succession
    }

    /// Whether to ask for a place in line: whoever stands there has to hear when it is its turn.
    pub(crate) fn is_in_turn(&self) -> bool {
        self.policy.takes_turns && self.before.own.is_confirmed()
    }

    /// Begins a round.
    pub(crate) fn start(&mut self, channels: Channels, local: &impl Local) -> Start {
        self.before = channels;
        let is_held = self.trusts_local_holds && local.is_held();
        if is_held {
            self.is_in_succession = true;
            // One who hears no messages trusts a hold only if that is renewed: another is not known to be gone, if it
            // was freed by force elsewhere, before its lease ends.
            if self.policy.listens || local.is_renewed() {
                return Start::Spare;
            }
        } else if self.is_in_succession && local.has_had_its_share() {
            self.is_in_succession = false;
            return Start::Yield;
        }
        Start::Ask
    }

    /// The lock is busy, by the server's account.
    pub(crate) fn refused(
        &mut self,
        wait: &mut Wait,
        now: BootInstant,
        refusal: Refusal,
        jitter: f64,
    ) -> Step {
        // Without a place in line it is not told by name, however often it asks.
        let is_unplaced = self.policy.takes_turns && !self.is_in_turn() && self.is_woken;
        let common = is_unplaced || refusal.is_told_with_all;
        let step = wait.busy(now, refusal.ttl, jitter);
        self.wait_for(step, refusal.remind_in, common)
    }

    /// The lock is busy by a hold of this process, and nobody was asked.
    pub(crate) fn spared(
        &mut self,
        wait: &mut Wait,
        now: BootInstant,
        poll_cap: Duration,
        jitter: f64,
    ) -> Step {
        let step = match self.policy.listens {
            true => wait.busy(now, Ttl::Never, jitter),
            // No try was made, so that the next pause is no longer than this one.
            false => wait.clamp(now, poll_cap),
        };
        self.wait_for(step, None, false)
    }

    /// The lock was left to others.
    pub(crate) fn yielded(&mut self, wait: &mut Wait, now: BootInstant, jitter: f64) -> Step {
        if self.policy.listens {
            return Step::Ask;
        }
        // Others ask after pauses too.
        match wait.busy(now, Ttl::Never, jitter) {
            Time::Park(pause) => Step::Pause(pause),
            Time::GiveUp => Step::Ask,
        }
    }

    fn wait_for(&mut self, step: Time, remind_in: Option<Duration>, common: bool) -> Step {
        let Time::Park(at_most) = step else {
            return Step::GiveUp;
        };
        let at_most = remind_in.map_or(at_most, |soon| at_most.min(soon));
        match self.policy.listens {
            true => Step::Listen { common, at_most },
            false => Step::Park(at_most),
        }
    }

    /// It listens by now. How long to park; `None` to ask again at once, since it was told something meanwhile.
    pub(crate) fn listens(&mut self, channels: Channels, at_most: Duration) -> Option<Duration> {
        let Channels { own, common } = self.before;
        let looks_again = channels.own.is_told_since(own) || channels.common.is_told_since(common);
        if looks_again {
            // An acknowledgement says nothing of the holder; a message does.
            let is_message = |now: Listening, before: Listening| {
                before.is_confirmed() && now.is_told_since(before)
            };
            if is_message(channels.own, own) || is_message(channels.common, common) {
                self.is_woken = true;
                self.trusts_local_holds = false;
            }
            return None;
        }
        self.was_unconfirmed = !channels.own.is_confirmed();
        let is_unconfirmed = [channels.own, channels.common].contains(&Listening::Unconfirmed);
        Some(match is_unconfirmed {
            true => at_most.min(UNCONFIRMED_POLL),
            false => at_most,
        })
    }

    /// How long to let others go first that waited when this process had the lock, before asking for it again: none if
    /// they had their turn, which messages tell, or if there is no time for that.
    pub(crate) fn yields(
        &self,
        wait: &Wait,
        now: BootInstant,
        pause: Duration,
        is_over: bool,
    ) -> Option<Duration> {
        match wait.clamp(now, pause) {
            Time::Park(pause) if !is_over => Some(pause),
            Time::Park(_) | Time::GiveUp => None,
        }
    }

    /// What has come in by now was told before the request is sent.
    pub(crate) fn asks_behind(&mut self, own: Listening) {
        self.before.own = own;
    }

    /// Something has ended the park.
    pub(crate) fn woken(&mut self, own: Listening) {
        let is_acknowledged = self.was_unconfirmed && own.is_confirmed();
        self.is_woken |= self.policy.listens;
        // That messages arrive from now on says nothing of the holder.
        if self.policy.listens && !is_acknowledged {
            self.trusts_local_holds = false;
        }
    }
}

#[cfg(test)]
mod tests;
