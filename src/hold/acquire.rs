//! Drives one acquisition to a hold, a refusal or a deadline; undoes it if dropped.

use std::cell::LazyCell;
use std::future::pending;
use std::pin::pin;

use futures_util::FutureExt;
use futures_util::future::OptionFuture;
use tokio::sync::{RwLockReadGuard, RwLockWriteGuard};
use tokio::time::{sleep, timeout};
use tracing::{Instrument, debug, debug_span};

use super::attempt::{Attempt, Attempted};
use super::guard::LockGuard;
use super::order::{Order, Terms};
use crate::clock::Moment;
use crate::error::Error;
use crate::options::Limit;
use crate::protocol::answer::{Standing, Ttl};
use crate::protocol::lock::{self, Take};
use crate::protocol::read_write::MARK;
use crate::protocol::wait::{Alarm, Step, Wait};
use crate::session::Queue;
use crate::session::handoff::Handoff;
use crate::session::hub::Subscription;
use crate::session::queue;
use crate::session::reaper::Debt;
use crate::session::sync::SemaphorePermit;

/// How standing in line ended.
enum Turn<'a> {
    Front(Front<'a>),
    /// The line is on the server.
    Queue {
        priority: i32,
    },
    Granted(LockGuard),
    /// The owner holds the lock by now, through another call.
    Reenter,
    GaveUp,
}

/// What stands at the front has, until dropped.
enum Front<'a> {
    Alone {
        _front: SemaphorePermit<'a>,
        /// Of a read-write lock.
        _gate: Option<RwLockWriteGuard<'a, ()>>,
    },
    /// A reader; without the gate where it need not wait for those before.
    Beside(Option<Passage<'a>>),
}

/// Of a reader that has not asked so far: the writers behind it wait.
struct Passage<'a> {
    line: &'a Queue,
    _gate: RwLockReadGuard<'a, ()>,
}

/// A place in line here. With the last one to go, this process also gives up its place in line on the server.
struct InLine<'a> {
    order: &'a Order,
    queue: &'a Queue,
    place: Option<queue::InLine<'a, Handoff<Debt>>>,
}

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        drop(self.place.take());
        let Terms { anchor, name, .. } = &**self.order;
        // If it is not sent, or lost, others leave the lock to this process once.
        let leave = || drop(anchor.backend.post(&lock::leave(name, &anchor.client_id)));
        self.queue.give_up_place(leave);
    }
}

/// How the front of the line was left.
pub(crate) enum Outcome {
    Granted(LockGuard),
    Reenter,
    GaveUp,
}

impl Order {
    /// Takes the lock, or takes it again. None if it was busy until the limit.
    pub(crate) async fn acquire(&self, limit: Limit) -> Result<Option<LockGuard>, Error> {
        let span = debug_span!("acquire", lock = %self.name.key(), owner = %self.owner);
        self.anchor.ensure_open()?;
        self.take(limit).instrument(span).await
    }

    async fn take(&self, limit: Limit) -> Result<Option<LockGuard>, Error> {
        let wait = Wait::new(Moment::now(), limit, self.patience(), self.alarm);
        let mut wait = wait.attempts(self.attempts);
        let queue = self.queue();
        // A single attempt stands in none.
        let line = match wait.is_single_attempt() {
            true => None,
            false => self.common_line(),
        };
        let mut in_line = None;
        loop {
            while let Some(hold) = self.own(&queue) {
                match Box::pin(self.reenter(&queue, &hold)).await {
                    Ok(Some(guard)) => return Ok(Some(guard)),
                    // The hold has ended; perhaps there is a newer one.
                    Ok(None) => {}
                    Err(error) => {
                        Box::pin(self.anchor.pause(self.name.key(), &mut wait, error)).await?;
                    }
                }
            }
            if self.is_upgrade() {
                // Before standing in line: who is at its front may wait for this owner.
                return Err(self.upgrade());
            }
            let turn = if wait.is_single_attempt() {
                None
            } else if let Alarm::Queue { priority, .. } = self.alarm {
                Some(Turn::Queue { priority })
            } else {
                // From now on, a hold that is given back here may be left for us.
                in_line.get_or_insert_with(|| InLine {
                    order: self,
                    queue: &queue,
                    place: Some(queue.stand()),
                });
                Some(if self.kind.is_shared() {
                    self.behind_writers(&queue, line.as_ref(), &wait).await?
                } else {
                    self.stand_in_line(&queue, line.as_ref(), &wait).await?
                })
            };
            let outcome = match turn {
                None => Box::pin(self.ask_once(&queue)).await?,
                Some(Turn::Queue { priority }) => {
                    Box::pin(self.in_queue(&queue, &mut wait, priority)).await?
                }
                Some(Turn::Front(front)) => self.at_front(&queue, &mut wait, front).await?,
                Some(Turn::Granted(guard)) => Outcome::Granted(guard),
                Some(Turn::Reenter) => Outcome::Reenter,
                Some(Turn::GaveUp) => Outcome::GaveUp,
            };
            match outcome {
                Outcome::Granted(guard) => {
                    debug!(waited = ?wait.waited(Moment::now()), "acquired");
                    return Ok(Some(guard));
                }
                Outcome::Reenter => {}
                Outcome::GaveUp => return Ok(None),
            }
        }
    }

    /// Waits behind the other waiters of this process.
    async fn stand_in_line<'a>(
        &self,
        queue: &'a Queue,
        line: Option<&'a Queue>,
        wait: &Wait,
    ) -> Result<Turn<'a>, Error> {
        // The places in line and at the gate are had from here on, and in one step: of two writers, none may be first
        // in line while the other is first at the gate.
        let mut gate = pin!(OptionFuture::from(line.map(|line| line.gate.write())));
        let mut front = pin!(queue.front.acquire());
        let (passed, first) =
            queue.in_one_step(|| (gate.as_mut().now_or_never(), front.as_mut().now_or_never()));
        let at_front = async |front| {
            let passed = match passed {
                Some(passed) => passed,
                // Of the readers before it, one that has not asked so far may be polled by nobody.
                None => timeout(MARK, gate).await.ok().flatten(),
            };
            Turn::Front(Front::Alone {
                _front: front,
                _gate: passed,
            })
        };
        if let Some(Ok(front)) = first {
            return Ok(at_front(front).await);
        }
        // A named owner may hold the lock through another process; then this is a re-entry, and never queues.
        if self.owner.is_named() && self.kind.is_reentrant() {
            let mut attempt = Attempt::new(self, queue);
            let _asking = attempt.turn().await?;
            if self.own(queue).is_some() {
                return Ok(Turn::Reenter);
            }
            match Box::pin(attempt.send(Take::JoinOnly)).await {
                Ok(Attempted::Granted(guard)) => return Ok(Turn::Granted(guard)),
                Err(error) if !error.is_passing() => return Err(error),
                Ok(Attempted::Busy(_) | Attempted::Yielded) | Err(_) => {}
            }
        }
        let appeared = self.appeared(queue);
        let turn = async {
            tokio::select! {
                front = front => match front {
                    Ok(front) => at_front(front).await,
                    Err(_) => Turn::GaveUp,
                },
                () = appeared => Turn::Reenter,
            }
        };
        let turn = Box::pin(self.anchor.in_line(self.name.key(), wait, turn)).await?;
        Ok(turn.unwrap_or(Turn::GaveUp))
    }

    /// Of one that reads: waits behind the writers of this process that came before.
    async fn behind_writers<'a>(
        &self,
        queue: &Queue,
        line: Option<&'a Queue>,
        wait: &Wait,
    ) -> Result<Turn<'a>, Error> {
        let Some(line) = line else {
            return Ok(Turn::Front(Front::Beside(None)));
        };
        let passed = |gate| Turn::Front(Front::Beside(Some(Passage { line, _gate: gate })));
        if let Ok(gate) = line.gate.try_read() {
            return Ok(passed(gate));
        }
        let turn = async {
            tokio::select! {
                gate = line.gate.read() => passed(gate),
                // By another call; whoever is before it may wait for that.
                () = line.appeared(&self.owner) => Turn::Front(Front::Beside(None)),
                () = self.appeared(queue) => Turn::Reenter,
                // One that is before it may be polled by nobody. The server keeps the order too.
                () = sleep(MARK) => Turn::Front(Front::Beside(None)),
            }
        };
        let turn = Box::pin(self.anchor.in_line(self.name.key(), wait, turn)).await?;
        // It has not asked so far.
        Ok(turn.unwrap_or(Turn::Front(Front::Beside(None))))
    }

    /// One attempt, which stands in no line.
    async fn ask_once(&self, queue: &Queue) -> Result<Outcome, Error> {
        let mut attempt = Attempt::new(self, queue);
        let _asking = attempt.turn().await?;
        if self.own(queue).is_some() {
            return Ok(Outcome::Reenter);
        }
        match attempt.send(Take::Free).await? {
            Attempted::Granted(guard) => {
                queue.count_streak(false);
                Ok(Outcome::Granted(guard))
            }
            Attempted::Busy(_) | Attempted::Yielded => Ok(Outcome::GaveUp),
        }
    }

    /// Asks for the lock until it is granted: subscribe, ask again, then wait for a message, the end of a hold in
    /// this process, the holder's lease or the poll cap. A kind that hears of no release pauses between its tries.
    async fn at_front(
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
