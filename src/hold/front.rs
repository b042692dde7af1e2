//! The wait of a call that is at the front of its process's line.

use std::cell::LazyCell;
use std::future::pending;

use tokio::time::{sleep, timeout};

use super::acquire::{Front, Outcome, Passage};
use super::attempt::{Attempt, Attempted};
use super::order::Order;
use crate::clock::Moment;
use crate::error::Error;
use crate::protocol::answer::{Standing, Ttl};
use crate::protocol::lock::{self, Take};
use crate::protocol::wait::{Alarm, Step, Wait};
use crate::session::Queue;
use crate::session::hub::Subscription;

impl Order {
    /// Asks for the lock until it is granted: subscribe, ask again, then wait for a message, the end of a hold in
    /// this process, the holder's lease or the poll cap. A kind that hears of no release pauses between its tries.
    pub(super) async fn at_front(
        &self,
        queue: &Queue,
        wait: &mut Wait,
        mut front: Front<'_>,
    ) -> Result<Outcome, Error> {
        let came = match front {
            Front::Alone { .. } => queue.behind_readers(wait.started()),
            Front::Beside(_) => wait.started(),
        };
        let mut attempt = Attempt::waiting(self, queue, came);
        let listens = matches!(self.alarm, Alarm::Messages { .. });
        let counts = listens && self.anchor.backend.counts_listeners();
        let mut subscription: Option<Subscription> = None;
        let turns = listens && self.kind.takes_turns();
        let channel = LazyCell::new(|| match turns {
            true => lock::turn_channel(&self.name, &self.anchor.client_id),
            false => self.name.channel().clone(),
        });
        // The channel that everybody is told on: Redisson tells nobody by name.
        let mut common: Option<Subscription> = None;
        // The end of a hold in this process is signalled here: no need to ask the server who has the lock. But
        // only until the first wake-up, which may mean that the server has given it to others; and not where the
        // server is told who waits. One who hears no messages trusts a hold only if that is renewed: another is not
        // known to be gone, if it was freed by force elsewhere, before its lease ends.
        let mut trust_holds_here = self.kind.sides().is_none();
        // Whether a hold of this process was waited for.
        let mut in_succession = false;
        loop {
            if self.own(queue).is_some() {
                return Ok(Outcome::Reenter);
            }
            let freed = queue.freed.notified();
            tokio::pin!(freed);
            if freed.as_mut().enable() {
                // A signal from before: what it tells of is seen below.
                freed.set(queue.freed.notified());
                freed.as_mut().enable();
            }
            let opened = queue.opened.notified();
            tokio::pin!(opened);
            opened.as_mut().enable();
            for subscription in [&mut subscription, &mut common].into_iter().flatten() {
                subscription.catch_up();
            }
            let hub = &self.anchor.hub;
            // As a rule this client listens to nothing, and the channel need not be named.
            let heard = match hub.len() {
                0 => None,
                _ => hub.reception(&channel),
            };
            if turns && heard.is_some() && subscription.is_none() {
                subscription = Some(hub.subscribe(&channel));
            }
            // Whoever stands in line has to hear when it is its turn.
            let in_turn = turns && subscription.as_ref().is_some_and(Subscription::is_heard);
            // Does a hold here that still stands spare the question? Not if one was given back, and the lock is left for us.
            let here = trust_holds_here && queue.is_held_here() && !queue.has_handoff();
            let spared = here && (listens || queue.is_renewed_here());
            in_succession |= here;
            let asked = Moment::now();
            let attempted = if spared {
                Ok(Attempted::Busy(Ttl::Never))
            } else if in_succession && !here && self.is_to_pause(queue) {
                in_succession = false;
                Ok(Attempted::Yielded)
            } else {
                let _asking = attempt.turn().await?;
                if self.own(queue).is_some() {
                    return Ok(Outcome::Reenter);
                }
                // Now, since a release that was on its way is done, and tells whether others wait.
                if listens && queue.courtesy().is_some() && !queue.has_handoff() {
                    Box::pin(self.give_way(queue, wait, &mut subscription)).await?;
                }
                let passed = if !self.kind.is_passed_on() || !queue.has_handoff() {
                    None
                } else if queue.may_pass(Moment::now(), self.anchor.settings.streak, counts) {
                    attempt.take_handoff()
                } else {
                    // It is the turn of others: dropped, the lock is released.
                    drop(queue.take_handoff());
                    queue.count_streak(false);
                    Some(Ok(Attempted::Yielded))
                };
                match passed {
                    Some(attempted) => attempted,
                    None => {
                        let take = match in_turn {
                            true => self.in_turn(queue),
                            false => Take::Free,
                        };
                        let attempted = attempt.send(take).await;
                        if matches!(attempted, Ok(Attempted::Granted(_))) {
                            // Who joins its owner elsewhere may keep it.
                            if !self.owner.is_named() {
                                queue.note_place(false);
                            }
                            queue.count_streak(in_succession && !self.kind.is_reentrant());
                        }
                        attempted
                    }
                }
            };
            let now = Moment::now();
            let step = match attempted {
                Ok(Attempted::Granted(guard)) => return Ok(Outcome::Granted(guard)),
                // Nobody was asked.
                Ok(Attempted::Busy(_)) if spared && !listens => {
                    wait.clamp(now, self.anchor.settings.poll_cap)
                }
                Ok(Attempted::Busy(ttl)) => wait.busy(now, ttl, fastrand::f64()),
                Ok(Attempted::Yielded) if listens => continue,
                Ok(Attempted::Yielded) => {
                    // Others ask after pauses too.
                    if let Step::Park(pause) = wait.busy(now, Ttl::Never, fastrand::f64()) {
                        Box::pin(self.anchor.unless_closed(sleep(pause))).await?;
                    }
                    continue;
                }
                Err(error) => {
                    Box::pin(self.anchor.pause(self.name.key(), wait, error)).await?;
                    continue;
                }
            };
            let Step::Park(at_most) = step else {
                return Ok(Outcome::GaveUp);
            };
            if !listens {
                let woken = async {
                    tokio::select! {
                        () = freed => {}
                        () = self.appeared(queue) => {}
                        () = sleep(at_most) => {}
                    }
                };
                Box::pin(self.anchor.unless_closed(woken)).await?;
                continue;
            }
            if let Front::Beside(passage) = &mut front
                && let Some(Passage { line, .. }) = passage.take()
            {
                // From here on the marks on the server keep the order. It dates this call by the time at which the
                // request came to it.
                line.readers_came(came.plus(asked.until(now)));
            }
            let fresh = subscription.is_none();
            let subscription = subscription.get_or_insert_with(|| hub.subscribe(&channel));
            let deaf = !subscription.is_heard();
            if fresh && !deaf && (turns && !spared || heard != Some(subscription.count())) {
                // What was told before is seen by asking again.
                continue;
            }
            // Who is not told by name listens where everybody is told.
            let standing = attempt.standing.filter(|_| !spared);
            let is_unplaced = turns && !spared && !in_turn && attempt.is_woken;
            if is_unplaced || standing.is_some_and(Standing::is_told_with_all) {
                let fresh = common.is_none();
                let subscribe = || hub.subscribe(self.name.channel());
                if common.get_or_insert_with(subscribe).is_heard() && fresh {
                    continue;
                }
            } else {
                common = None;
            }
            let ears = [&*subscription].into_iter().chain(&common);
            let at_most = ears.fold(at_most, |at_most, ear| ear.patience(at_most));
            let at_most = attempt.reminder().map_or(at_most, |soon| at_most.min(soon));
            let woken = async {
                tokio::select! {
                    () = subscription.news() => {}
                    () = news_of(&mut common) => {}
                    () = freed, if !self.kind.is_shared() => {}
                    () = opened => {}
                    () = self.appeared(queue) => {}
                    () = sleep(at_most) => {}
                }
            };
            Box::pin(self.anchor.unless_closed(woken)).await?;
            attempt.is_woken = true;
            // That messages arrive from now on says nothing of the holder.
            trust_holds_here &= deaf && subscription.is_heard();
        }
    }

    /// Whether to pause after a streak of this process, for a kind whose holds are not passed on: the streak of the
    /// others ends in another way.
    fn is_to_pause(&self, queue: &Queue) -> bool {
        !self.kind.is_reentrant() && queue.streak() >= self.anchor.settings.streak
    }

    /// Before asking for a free lock: lets others that wait go first, if this process had it before them.
    async fn give_way(
        &self,
        queue: &Queue,
        wait: &Wait,
        subscription: &mut Option<Subscription>,
    ) -> Result<(), Error> {
        while let Some(courtesy) = queue.courtesy() {
            let channel = self.name.channel();
            let subscription =
                subscription.get_or_insert_with(|| self.anchor.hub.subscribe(channel));
            let Step::Park(pause) = wait.clamp(Moment::now(), courtesy.pause) else {
                return Ok(());
            };
            if subscription.count() >= courtesy.last_message {
                return Ok(());
            }
            let news = timeout(pause, subscription.news());
            if self.anchor.unless_closed(news).await?.is_err() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Asks for the lock, or for a place in line that outlasts the time to the next ask.
    fn in_turn(&self, queue: &Queue) -> Take {
        queue.note_place(true);
        let lasts = self.anchor.settings.poll_cap * 2 + self.timeout();
        Take::InTurn { lasts }
    }
}

/// Waits for news on a channel, if it is listened to.
async fn news_of(subscription: &mut Option<Subscription>) {
    match subscription {
        Some(subscription) => subscription.news().await,
        None => pending().await,
    }
}
