//! Decides what a waiting call does next: asks, asks again at once, parks, pauses or gives up.
//!
//! This is a pure machine. The driver in `wait` tells it what happened and what time it is, and carries out its
//! decisions.
//!
//! # Rules
//!
//! 1. **Look again before parking.** If a message or the acknowledgement of the subscription came while the request was
//!    in flight, the call asks again at once: nobody was told of a release between the refusal and the acknowledgement.
//! 2. **Every park ends**: at the limit, at the end of the holder's lease, at the poll cap, or when it is time to
//!    remind others of this call. As long as a subscription is not acknowledged, it ends within a second.
//! 3. **A hold of this process spares the question** while it stands, because its end is signalled here. This applies
//!    only until the first wake-up, which may mean that the server has given the lock to others. Without messages, it
//!    applies for one poll cap at a time.
//! 4. **A call that is not told by name** also listens to the channel on which everybody is told.

use std::time::Duration;

use super::answer::Ttl;
use super::policy::Policy;
use super::wait::{Step, Wait};
use crate::clock::BootInstant;

/// After this time, a waiter asks again as long as a subscription is not acknowledged.
pub(crate) const UNCONFIRMED_POLL: Duration = Duration::from_secs(1);

/// What a call knows of its subscription to a channel.
#[derive(Clone, Copy, Debug, Default, Hash, PartialEq, Eq)]
pub(crate) enum Listening {
    #[default]
    No,
    /// Messages may not arrive: the subscription is not acknowledged yet, or not any more.
    Unconfirmed,
    /// All published messages arrive. This many have arrived so far.
    Confirmed(u64),
}

impl Listening {
    pub(crate) fn is_confirmed(self) -> bool {
        matches!(self, Self::Confirmed(_))
    }

    /// Returns whether a message may have come since the state `before`.
    fn is_told_since(self, before: Self) -> bool {
        self.is_confirmed() && self != before
    }
}

/// What a call listens to.
#[derive(Clone, Copy, Debug, Default, Hash, PartialEq, Eq)]
pub(crate) struct CallChannels {
    /// The channel with messages for this call.
    pub(crate) own: Listening,
    /// The channel with messages for everybody, if it is a different one.
    pub(crate) common: Listening,
}

/// What this process knows without a request to the server.
pub(crate) trait Local {
    /// Returns whether a hold of this process stands that is not a handoff for this call.
    fn is_held(&self) -> bool {
        false
    }

    /// Returns whether that hold is renewed, so that its loss is noticed without a request from this call.
    fn is_renewed(&self) -> bool {
        false
    }

    /// Returns whether this process has had the lock so often in a row that others go first.
    fn has_had_its_share(&self) -> bool {
        false
    }
}

/// The answer to a call that does not get what it asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BusyAnswer {
    /// After this time, the call may get it.
    pub(crate) ttl: Ttl,
    /// Whether the call is not told by name.
    pub(crate) is_told_with_all: bool,
    /// After this time others forget that the call waits.
    pub(crate) remind_in: Option<Duration>,
}

impl From<Ttl> for BusyAnswer {
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
    /// The call asks the server.
    Ask,
    /// The call does not ask, because a hold of this process stands.
    Spare,
    /// The call does not ask, because others go first.
    Yield,
}

/// What the call does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaiterStep {
    Ask,
    /// Subscribe to the call's channel, and to the common channel if `common`. Then pass what was received to
    /// [`Waiter::listens`], and park for at most `at_most` if it is nothing new.
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

/// The machine of one call that waits.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub(crate) struct Waiter {
    policy: Policy,
    trusts_local_holds: bool,
    /// A call without messages asks at this time at the latest, even if a hold of this process stands.
    spared_until: Option<BootInstant>,
    /// Whether the call has waited for a hold of this process.
    is_in_succession: bool,
    /// Whether a park has ended or a message has arrived. Only set for kinds that listen.
    is_woken: bool,
    /// The state of the subscriptions before the last request.
    before: CallChannels,
    /// Whether the subscription to its own channel was not acknowledged when the call parked.
    was_unconfirmed: bool,
}

impl Waiter {
    pub(crate) fn new(policy: Policy) -> Self {
        Self {
            policy,
            trusts_local_holds: policy.trusts_local_holds,
            spared_until: None,
            is_in_succession: false,
            is_woken: false,
            before: CallChannels::default(),
            was_unconfirmed: false,
        }
    }

    pub(crate) fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns whether the call has waited for a hold of this process.
    pub(crate) fn is_in_succession(&self) -> bool {
        self.is_in_succession
    }

    /// Returns whether to ask for a place in the turn order. A process with a place has to receive the message that its
    /// turn has come, so the subscription comes first.
    pub(crate) fn is_in_turn(&self) -> bool {
        self.policy.takes_turns && self.before.own.is_confirmed()
    }

    /// Begins a round: decides whether to ask the server.
    pub(crate) fn start(
        &mut self,
        now: BootInstant,
        channels: CallChannels,
        local: &impl Local,
    ) -> Start {
        self.before = channels;
        let is_due = self.spared_until.is_some_and(|until| now >= until);
        let is_held = self.trusts_local_holds && local.is_held();
        if is_held {
            self.is_in_succession = true;
            // A call without messages trusts a hold only if the hold is renewed. Without renewals, nobody here notices
            // a forced release elsewhere before the lease ends.
            if self.policy.listens || local.is_renewed() && !is_due {
                return Start::Spare;
            }
        } else if self.is_in_succession && local.has_had_its_share() {
            self.is_in_succession = false;
            return Start::Yield;
        }
        self.spared_until = None;
        Start::Ask
    }

    /// Handles the server's answer that the lock is busy.
    pub(crate) fn refused(
        &mut self,
        wait: &mut Wait,
        now: BootInstant,
        refusal: BusyAnswer,
        jitter: f64,
    ) -> WaiterStep {
        // Without a place in the turn order, this call is not told by name, however often it asks.
        let is_unplaced = self.policy.takes_turns && !self.is_in_turn() && self.is_woken;
        let common = is_unplaced || refusal.is_told_with_all;
        let step = wait.busy(now, refusal.ttl, jitter);
        self.wait_for(step, refusal.remind_in, common)
    }

    /// Handles a round in which the server was not asked, because a hold of this process stands.
    pub(crate) fn spared(
        &mut self,
        wait: &mut Wait,
        now: BootInstant,
        poll_cap: Duration,
        jitter: f64,
    ) -> WaiterStep {
        let step = match self.policy.listens {
            true => wait.busy(now, Ttl::Never, jitter),
            // No attempt was made, so the next pause must not grow.
            false => {
                let until = *self.spared_until.get_or_insert_with(|| now.plus(poll_cap));
                wait.clamp(now, now.until(until))
            }
        };
        self.wait_for(step, None, false)
    }

    /// Handles a round in which the lock was left to others.
    pub(crate) fn yielded(&mut self, wait: &mut Wait, now: BootInstant, jitter: f64) -> WaiterStep {
        if self.policy.listens {
            return WaiterStep::Ask;
        }
        // Others ask after pauses too.
        match wait.busy(now, Ttl::Never, jitter) {
            Step::Park(pause) => WaiterStep::Pause(pause),
            Step::GiveUp => WaiterStep::Ask,
        }
    }

    fn wait_for(&mut self, step: Step, remind_in: Option<Duration>, common: bool) -> WaiterStep {
        let Step::Park(at_most) = step else {
            return WaiterStep::GiveUp;
        };
        let at_most = remind_in.map_or(at_most, |soon| at_most.min(soon));
        match self.policy.listens {
            true => WaiterStep::Listen { common, at_most },
            false => WaiterStep::Park(at_most),
        }
    }

    /// Decides how long to park, once the call is subscribed. Returns `None` to ask again at once, because the call was
    /// told something since its last request.
    pub(crate) fn listens(
        &mut self,
        channels: CallChannels,
        at_most: Duration,
    ) -> Option<Duration> {
        let CallChannels { own, common } = self.before;
        let looks_again = channels.own.is_told_since(own) || channels.common.is_told_since(common);
        if looks_again {
            // An acknowledgement says nothing about the holder; a message does.
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

    /// Returns how long the call lets others go first that waited while this process had the lock. Returns `None` if
    /// they have had their turn according to messages (`is_over`), or if no time is left for a pause.
    pub(crate) fn yields(
        &self,
        wait: &Wait,
        now: BootInstant,
        pause: Duration,
        is_over: bool,
    ) -> Option<Duration> {
        match wait.clamp(now, pause) {
            Step::Park(pause) if !is_over => Some(pause),
            Step::Park(_) | Step::GiveUp => None,
        }
    }

    /// Marks the messages received so far as earlier than the next request.
    pub(crate) fn asks_behind(&mut self, own: Listening) {
        self.before.own = own;
    }

    /// Handles the end of a park.
    pub(crate) fn woken(&mut self, own: Listening) {
        let is_acknowledged = self.was_unconfirmed && own.is_confirmed();
        self.is_woken |= self.policy.listens;
        // An acknowledgement that messages arrive from now on says nothing about the holder.
        if self.policy.listens && !is_acknowledged {
            self.trusts_local_holds = false;
        }
    }
}

#[cfg(test)]
mod tests;
