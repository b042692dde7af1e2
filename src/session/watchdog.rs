//! Renews every lease that asked for it, and reports the holds that were lost, from one task.
//!
//! A hold is entered when it is granted, under the instant at which something is next due for it. The task takes out
//! the holds that are due, asks [`Schedule`](crate::protocol::renewal::Schedule) what to do, and sends one request for
//! many holds. Each answer moves the deadlines of its holds, and they are entered again. Records that were passed on in
//! memory are checked separately ([`Watchdog::confirm`]).
//!
//! # Invariants
//!
//! 1. A watched hold that has not ended is in the registry, or its request is in flight and ends before its deadline.
//!    So no deadline passes unnoticed. While its request waits for room at the server, it is in the registry under its
//!    deadline.
//! 2. A hold leaves the registry before its release is sent. A later answer finds it ended, and has no effect.
//! 3. A loss is reported once, by whoever ends the hold.
//! 4. The registry's mutex is locked last, under a hold's state if both are needed.

mod attention;
mod confirmation;
mod report;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, SemaphorePermit};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::{debug, warn};

use super::backend::{Disruption, Disruptions, Node};
use super::hold::{Hold, HoldState, Remainder};
use super::outage_log::OutageLog;
use super::record::Record;
use super::releaser::Releaser;
use super::share::{LocalLockRef, Share};
use super::tally::Tally;
use super::undo::Undo;
use crate::clock::BootInstant;
use crate::error::Error;
use crate::loss::LossReason;
use crate::options::LeaseTime;
use crate::pace::Pace;
use crate::protocol::hold_key::{Shape, numeral};
use crate::protocol::renewal::RenewalAction;

/// The longest sleep. Timers stop while the machine is suspended, but the clock does not. So the task reads the clock
/// this often.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);
/// The shortest time between two warnings that renewals fail. The outcome is logged separately.
const FAILURES_APART: Duration = Duration::from_secs(5);
/// The shortest time between two warnings about a possible deadlock.
const WAITS_APART: Duration = Duration::from_secs(60);
/// The most holds in one script.
const BATCH: usize = 100;

/// The registry of holds with something due.
#[derive(Debug)]
pub(crate) struct Watchdog {
    /// The holds by the instant at which something is due.
    registry: Mutex<Registry>,
    /// Signals that something is due before the task meant to wake.
    woken: Notify,
    /// How many disruptions have made holds doubtful.
    doubts: AtomicU64,
    releaser: Arc<Releaser>,
    /// Decides what to log about outages and losses: a thousand locks that are lost with one server make a few lines.
    outages: OutageLog,
    /// The limit for warnings that a server refuses renewals.
    failures: Pace,
    /// The limit for warnings of calls that wait for longer than a lease.
    waits: Pace,
}

/// The holds with something due, and when the task wakes next.
#[derive(Debug)]
struct Registry {
    /// By instant, then by the hold's id: two holds may be due at the same time.
    due: BTreeMap<(BootInstant, u64), Arc<Hold>>,
    /// Since when the first of them is held that was entered after there were none.
    since: BootInstant,
    /// When the task wakes by its timer.
    ///
    /// [`NEVER`](BootInstant::NEVER) while nothing is due: the next hold that is entered then wakes it.
    wakes: BootInstant,
}

/// A kind of request about many holds.
///
/// A round is one request for each group of holds that are asked about alike: see [`Watchdog::serve`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum RenewalRound {
    /// Raise the lease to what the guards ask for.
    Renew,
    /// Say whether the hold stands, and change nothing.
    Check,
}

/// A request about many holds that the server refused. One of the holds may be the reason, or a slot that is being
/// moved, with some of its keys on each server.
///
/// The task then asks about each hold separately, so that the others get their answers in time.
#[derive(Debug)]
struct Refused {
    round: RenewalRound,
    shape: Shape,
    holds: Vec<Due>,
    budget: Duration,
}

/// A hold that is due.
#[derive(Debug)]
struct Due {
    hold: Arc<Hold>,
    lease: LeaseTime,
    since: BootInstant,
}

impl Watchdog {
    /// Makes a watchdog that does nothing until [`run`](Self::run) is polled.
    pub(crate) fn new(releaser: Arc<Releaser>) -> Arc<Self> {
        let registry = Registry {
            due: BTreeMap::new(),
            since: BootInstant::NEVER,
            wakes: BootInstant::NEVER,
        };
        Arc::new(Self {
            registry: Mutex::new(registry),
            woken: Notify::new(),
            doubts: AtomicU64::new(0),
            releaser,
            outages: OutageLog::default(),
            failures: Pace::new(FAILURES_APART),
            waits: Pace::new(WAITS_APART),
        })
    }

    /// Watches a hold, or updates when it is due.
    ///
    /// Must be called after each change of its schedule, such as another guard.
    pub(crate) fn watch(&self, hold: &Arc<Hold>) {
        self.place(hold, &mut hold.lock(), BootInstant::now());
    }

    /// Does the same with the state already locked: with a hundred thousand holds, locking each costs more than the
    /// work itself.
    ///
    /// Wakes the task only if the hold is due before the task would wake by itself.
    fn place(&self, hold: &Arc<Hold>, state: &mut HoldState, now: BootInstant) {
        let mut registry = self.lock();
        if registry.due.is_empty() {
            registry.since = state.since;
        }
        if let Some(at) = state.watched.take() {
            registry.due.remove(&(at, hold.id));
        }
        if state.has_ended() {
            return;
        }
        let at = match state.schedule.next_action(now) {
            RenewalAction::Rest(at) => at,
            RenewalAction::Expire | RenewalAction::Renew | RenewalAction::Check => now,
        };
        state.watched = Some(at);
        registry.due.insert((at, hold.id), hold.clone());
        if at < registry.wakes {
            self.woken.notify_one();
        }
    }

    /// Returns how many disruptions have made holds doubtful. A hold whose grant is not accepted yet is not found and
    /// checked then, so its call compares this number.
    pub(crate) fn doubts(&self) -> u64 {
        self.doubts.load(Ordering::Relaxed)
    }

    /// Stops watching a hold. Always called before its release is sent, so that no renewal follows the release.
    ///
    /// The caller has ended the hold, so that it cannot be entered again.
    pub(crate) fn unwatch(&self, hold: &Arc<Hold>) {
        let mut state = hold.lock();
        if let Some(at) = state.watched.take() {
            self.lock().due.remove(&(at, hold.id));
        }
    }

    /// Ends a hold whose lease can no longer be trusted. Returns the release that is owed for it, if any. Dropping that
    /// sends it in the background. Returns `None` if the hold had ended before.
    ///
    /// Called by the task when a deadline has passed or the server has denied the hold, by a guard that notices first,
    /// and by calls that displace the hold, release it by force, or close the client.
    pub(crate) fn lose(&self, hold: &Arc<Hold>, loss: LossReason) -> Option<Undo<Share>> {
        // A client that closes passes over a hold that has ended. So this comes before, until the `Undo` has its own.
        let _owing = self.releaser.reaper.owing();
        // The server says only that the hold is gone. A message may have said why.
        let (left, guarded) = hold.end(match loss {
            LossReason::Gone => hold.record.why_gone(),
            _ => loss,
        })?;
        self.tally().hold_ended(hold);
        // The hold has ended before this, so an answer that comes now cannot enter it again.
        self.unwatch(hold);
        let local = self.releaser.local_locks.enter(hold.key().local_key());
        local.forget(hold);
        // The record is gone for all its holds. The first that is lost ends the others.
        if loss == LossReason::Gone && hold.record.is_loss_to_be_told() {
            self.lose_all(&local, &hold.record);
        }
        // A hold without guards was detached, and lives until its lease ends. That is now, unless others renewed it.
        let was_renewed = left == Remainder::Nothing && hold.record.was_joined();
        if !guarded && !was_renewed {
            return None;
        }
        if guarded {
            let reason = match loss {
                // When the client closes, an earlier expiry is not reported.
                LossReason::Closed => loss,
                _ => hold.loss().unwrap_or(loss),
            };
            self.tally().lost(hold, reason);
            self.tell_loss(hold, reason);
        }
        // What the server may still have, and what can be released without taking anything from others.
        let owes = left != Remainder::Others
            && match loss {
                // If Java freed a read-write lock by force, the keys of the levels are left.
                LossReason::Gone => hold.key().kind.sides().is_some(),
                LossReason::Closed => true,
                // The server may now have another hold that the key does not distinguish from this one.
                _ => hold.key().is_told_apart(),
            };
        let undo = || self.releaser.undo(hold, &local);
        owes.then(|| match loss {
            LossReason::Expired => undo().unhurried(),
            _ => undo(),
        })
    }

    /// Ends all holds of a record that the server no longer has.
    ///
    /// Skips those that have ended before.
    fn lose_all(&self, local: &LocalLockRef, record: &Arc<Record>) {
        for hold in local.having(record) {
            drop(self.lose(&hold, LossReason::Gone));
        }
    }

    /// Serves the registry until the future is dropped. An error never ends the schedule.
    ///
    /// Ends when the backend is gone.
    pub(crate) async fn run(self: Arc<Self>, mut disruptions: Disruptions) {
        let mut requests = JoinSet::new();
        loop {
            let pause = self.serve(&mut requests);
            let pause = self.attend(pause);
            self.tell_gathered();
            let told = self
                .outages
                .next_due()
                .map(|due| BootInstant::now().until(due));
            let pause = [pause, told].into_iter().flatten().min();
            tokio::select! {
                () = sleep(pause.unwrap_or(LONGEST_SLEEP)), if pause.is_some() => {}
                () = self.woken.notified() => {}
                Some(ended) = requests.join_next() => match ended {
                    Ok(None) => {}
                    Ok(Some(refused)) => for hold in refused.holds {
                        // Each hold by itself, so that the refused one does not keep the others from their answers.
                        let Refused { round, shape, budget, .. } = refused;
                        requests.spawn(self.clone().ask(round, shape, vec![hold], budget));
                    },
                    Err(error) => {
                        // Otherwise it was cancelled, because its runtime ends.
                        if error.is_panic() {
                            warn!(%error, "a renewal ended early");
                        }
                        // Its holds may not have been entered again, but their deadlines still count.
                        self.releaser.local_locks.holds().iter().for_each(|hold| self.watch(hold));
                    }
                },
                disruption = disruptions.recv() => match disruption {
                    Some(disruption) => {
                        self.tell_outage(&disruption);
                        self.check(&disruption);
                    }
                    None => return,
                },
            }
        }
    }

    /// Does what is due: ends holds whose deadline has passed, and spawns the requests. Returns the time until
    /// something is due again, or `None` if nothing is.
    fn serve(self: &Arc<Self>, requests: &mut JoinSet<Option<Refused>>) -> Option<Duration> {
        let now = BootInstant::now();
        // A request has the holds of one slot. So no server waits for another, and no slot for one that is being moved.
        let mut rounds: BTreeMap<(RenewalRound, Shape, Duration, u16), Vec<Due>> = BTreeMap::new();
        for hold in self.take_due(now) {
            let mut state = hold.lock();
            let action = state.schedule.next_action(now);
            let round = match action {
                RenewalAction::Expire => {
                    drop(state);
                    drop(self.lose(&hold, LossReason::Expired));
                    continue;
                }
                RenewalAction::Renew => Some(RenewalRound::Renew),
                RenewalAction::Check => Some(RenewalRound::Check),
                // Its schedule has changed since it was entered.
                RenewalAction::Rest(_) => None,
            };
            if round.is_some() {
                state.schedule.asked(action == RenewalAction::Renew);
            }
            let since = state.watched.unwrap_or(now);
            // The hold is entered again once its request is answered or has failed. Until then, it is entered only for
            // a deadline that may come first.
            let answered = now.plus(hold.timeout * 2);
            match round.is_some() && state.schedule.deadline() > answered {
                true => state.watched = None,
                false => self.place(&hold, &mut state, now),
            }
            let lease = state.schedule.lease();
            drop(state);
            if let Some(round) = round {
                let shape = hold.key().kind.shape();
                let group = self.releaser.backend.group(hold.key().name.key());
                rounds
                    .entry((round, shape, hold.timeout, group))
                    .or_default()
                    .push(Due { hold, lease, since });
            }
        }
        for ((round, shape, budget, _), mut holds) in rounds {
            while !holds.is_empty() {
                let batch = holds.split_off(holds.len().saturating_sub(BATCH));
                requests.spawn(self.clone().ask(round, shape, batch, budget));
            }
        }

        let mut registry = self.lock();
        let longest = now.plus(LONGEST_SLEEP);
        registry.wakes = match registry.due.keys().next() {
            Some((at, _)) => longest.min(*at),
            // Holds may come and go faster than this task is polled, so it is not woken for each.
            None if registry.wakes > now => longest,
            None => BootInstant::NEVER,
        };
        (registry.wakes != BootInstant::NEVER).then(|| BootInstant::now().until(registry.wakes))
    }

    /// Takes out all holds that are due at `now`.
    fn take_due(&self, now: BootInstant) -> Vec<Arc<Hold>> {
        let mut registry = self.lock();
        let later = registry.due.split_off(&(now, u64::MAX));
        std::mem::replace(&mut registry.due, later)
            .into_values()
            .collect()
    }

    /// Sends one request about many holds, and enters each of them again according to the answer. Returns them instead
    /// if the server refuses the request.
    async fn ask(
        self: Arc<Self>,
        round: RenewalRound,
        shape: Shape,
        mut holds: Vec<Due>,
        budget: Duration,
    ) -> Option<Refused> {
        let node = holds.first().and_then(|due| self.node(&due.hold));
        let _room = match &node {
            Some(node) => self.room(&node.room, round, &mut holds).await,
            None => None,
        };
        if holds.is_empty() {
            return None;
        }
        let sent = BootInstant::now();
        if round == RenewalRound::Renew {
            self.tally().renewals.requests.add(1);
            for due in &holds {
                let lag = due.since.until(sent);
                self.tally().renewals.worst_lag.note(lag);
            }
        }
        let call = match round {
            RenewalRound::Renew => shape.renew(holds.iter().map(|due| (due.hold.key(), due.lease))),
            RenewalRound::Check => shape.check(holds.iter().map(|due| due.hold.key())),
        };
        let answered = match self.releaser.backend.run(&call, budget).await {
            Ok(answer) => answer
                .reply
                .standing(holds.len())
                .map_err(|error| call.blame(error))
                .map(|standing| (answer.sent, standing)),
            Err(error) => Err(error),
        };
        drop(call);
        match answered {
            Ok((sent, standing)) => self.answered(round, &holds, &standing, sent),
            Err(error) if holds.len() > 1 && error.is_refusal() => {
                debug!(holds = holds.len(), ?round, %error, "refused together; sending each hold by itself");
                return Some(Refused {
                    round,
                    shape,
                    holds,
                    budget,
                });
            }
            Err(error) => self.unanswered(round, &holds, &error, sent),
        }
        None
    }

    /// Waits until a server has room for a request about these holds. Drops those that need no request any more.
    ///
    /// The time limit of the request begins after this wait. Otherwise, a request in a long queue at the server would
    /// time out before its answer, and its connection would be replaced. All the server's work would then be lost.
    async fn room<'a>(
        &self,
        room: &'a Semaphore,
        round: RenewalRound,
        holds: &mut Vec<Due>,
    ) -> Option<SemaphorePermit<'a>> {
        // At most `BATCH`, and so less than the whole room.
        let wanted = holds.len() as u32;
        if let Ok(permit) = room.try_acquire_many(wanted) {
            return Some(permit);
        }
        holds.iter().for_each(|due| self.watch(&due.hold));
        let permit = room.acquire_many(wanted).await.ok();
        holds.retain_mut(|due| {
            let state = due.hold.lock();
            due.lease = state.schedule.lease();
            !state.has_ended() && (round == RenewalRound::Check || state.renewed > 0)
        });
        permit
    }

    /// Enters again each hold that the server has, and ends the others.
    fn answered(&self, round: RenewalRound, holds: &[Due], standing: &[bool], sent: BootInstant) {
        let now = BootInstant::now();
        let mut gone = 0;
        for (Due { hold, lease, .. }, stands) in holds.iter().zip(standing) {
            if !stands {
                gone += 1;
                drop(self.lose(hold, LossReason::Gone));
                continue;
            }
            let mut state = hold.lock();
            if round == RenewalRound::Renew {
                state.renewed(sent, *lease);
            }
            state.look_after(hold.key(), sent);
            self.place(hold, &mut state, now);
        }
        if round == RenewalRound::Renew {
            // Comes last, so that none of the holds waits for it.
            holds.iter().for_each(|due| self.tell_wait(&due.hold));
            let renewals = &self.tally().renewals;
            renewals.renewed.add((holds.len() - gone) as u64);
            renewals.gone.add(gone as u64);
        }
        debug!(holds = holds.len(), ?round, took = ?sent.until(now), "confirmed");
    }

    /// Schedules another try for holds whose request failed. Their deadlines stay as they were.
    fn unanswered(&self, round: RenewalRound, holds: &[Due], error: &Error, sent: BootInstant) {
        let now = BootInstant::now();
        let (count, after) = (holds.len(), sent.until(now));
        if round == RenewalRound::Renew {
            self.tally().renewals.failed.add(count as u64);
        }
        // A server that does not answer is logged once, as an outage.
        let node = holds.first().and_then(|due| self.node(&due.hold));
        let is_outage = node.is_none_or(|node| node.is_outage());
        match (!is_outage).then(|| self.failures.tell()).flatten() {
            Some(untold) => {
                warn!(target: "redlatch", holds = count, ?round, ?after, %error, untold, "renewal failed");
            }
            None => {
                debug!(target: "redlatch", holds = count, ?round, ?after, %error, "renewal failed");
            }
        }
        for Due { hold, .. } in holds {
            let mut state = hold.lock();
            state.unanswered(now, round == RenewalRound::Renew);
            self.place(hold, &mut state, now);
        }
    }

    /// Schedules an immediate check of every hold that a disruption makes doubtful.
    ///
    /// The answers show whether they still stand. Until then, they are trusted as before.
    fn check(&self, disruption: &Disruption) {
        // Whether a server answers says nothing about the holds that it has.
        if matches!(
            disruption,
            Disruption::Unreachable(_) | Disruption::Silent { .. } | Disruption::Answers(_)
        ) {
            return;
        }
        // Ahead of the search: a hold that it misses is installed later, and its call reads the number after that.
        self.doubts.fetch_add(1, Ordering::Relaxed);
        let now = BootInstant::now();
        for hold in self.releaser.local_locks.holds() {
            let key = hold.key();
            match disruption {
                Disruption::Forced(number) if numeral(number) == Some(key.numeral()) => {
                    hold.record.note_forced();
                }
                _ if self.releaser.backend.concerns(disruption, key.name.key()) => {}
                _ => continue,
            }
            let mut state = hold.lock();
            state.schedule.check(now);
            self.place(&hold, &mut state, now);
        }
    }

    /// Returns the server of a hold, if it is known.
    fn node(&self, hold: &Hold) -> Option<Arc<Node>> {
        self.releaser.backend.home(hold.key().name.key())
    }

    fn tally(&self) -> &Tally {
        &self.releaser.tally
    }

    fn lock(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
