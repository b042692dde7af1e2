//! The server's record of a hold. Successive holds of this process may pass it on in memory, and readers may share one.
//!
//! The server continues to see the first of these holds, by its acquisition id. One request at a time, or a few if the
//! server is far away, asks whether the record still stands. As long as it does, nobody else can have had the lock. So
//! the answer is true for every hold that gave the lock back before that request was sent.
//!
//! The life of a record: it is made with the hold that asks for it; [`enter`](Record::enter) and
//! [`leave`](Record::leave) count the holds that have it; [`passed_on`](Record::passed_on) and
//! [`next_unlocks`](Record::next_unlocks) carry the question whether it stands; [`releases`](Record::releases) and
//! [`released`](Record::released) end it.
//!
//! # Invariants
//!
//! 1. At most one live hold has the record, or several that read. Neither passing the record on nor joining it moves a
//!    deadline: the next hold starts with the one that the last request confirmed.
//! 2. Only the last hold releases the record. A hold that passed it on, or left others with it, owes the server
//!    nothing.
//! 3. A late copy of a request for a record that was passed on at most changes the hold count or raises the lease. A
//!    release takes away the whole record.
//! 4. Each call in `waiting` is told once: the outcome of the first request that was sent after it gave the lock back,
//!    or that of the release.
//!
//! The record keeps the field and the id of the hold that took the lock. If each handoff relabelled it, an unanswered
//! request would leave the label unknown, and a renewal under the old label would end a hold that stands.

use std::pin::pin;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;
use tokio::time::timeout;

use super::sync::{Mutex, MutexGuard, oneshot};
use crate::clock::BootInstant;
use crate::error::{Error, ErrorKind};
use crate::loss::LossReason;
use crate::options::Prefer;
use crate::protocol::hold_key::HoldKey;

/// For how long readers join a record, counted from the last request that confirmed it and told which writer waits. For
/// twice the round trip, if that is longer.
const SEEN_FOR: Duration = Duration::from_millis(10);
/// The longest round trip that counts. If one took longer, this process or the server was stopped in between.
const LONGEST_TRIP: Duration = Duration::from_millis(100);
/// From this round trip on, several requests about a record may be in flight, staggered. A call that gives the lock
/// back then waits for little more than one round trip.
const FAR: Duration = Duration::from_micros(500);
/// The most tasks that send such requests at the same time.
const MOST_ASKERS: u32 = 4;

/// Whether a lock was still held when it was given back, according to the server. `false` if it was gone, unless an
/// earlier, unanswered send of the release may have removed it.
pub(crate) type Outcome = Result<bool, Error>;

/// The turn to send a request that changes the hold count, until dropped.
pub(crate) type Turn = OwnedMutexGuard<()>;

/// The server's record of one lock, shared by the holds that pass it on.
#[derive(Debug)]
pub(crate) struct Record {
    /// Name, owner field and acquisition id, as on the server. Never changes, whichever hold has the record here.
    pub(crate) key: HoldKey,
    /// Locked while a request that changes the hold count is in flight.
    ///
    /// So the server sees the changes in the order in which they were decided. Passing on and joining only try to lock
    /// it, since a request in flight may cut the lease or release the record. If others may wait for it, a task of the
    /// client locks it, since nobody might poll a call that did.
    turn: Arc<tokio::sync::Mutex<()>>,
    state: Mutex<RecordState>,
}

/// The state of a record, under one mutex. Nothing else is locked inside.
#[derive(Debug)]
struct RecordState {
    /// The calls that gave the lock back, and wait to learn whether it was still held.
    waiting: Vec<oneshot::Sender<Outcome>>,
    /// Whether it was passed on since the last request about it was sent.
    ///
    /// The next such request clears it. If it is not set, nobody needs a request.
    was_passed: bool,
    /// How many tasks send such requests.
    askers: u32,
    /// When the last such request was sent.
    ///
    /// Several askers spread their requests by it.
    asked: BootInstant,
    /// Whether a hold that is given back may pass the record on. Never becomes `true` again.
    can_pass: bool,
    /// How far the release of the record has come.
    release: RecordRelease,
    /// Whether a release was sent and not answered, for any of the holds. If the server carried it out, the lock was
    /// held until then.
    is_in_doubt: bool,
    /// The number of calls that have had the turn, and since when the last one has it.
    turns: u64,
    turned: Option<BootInstant>,
    /// The number of live holds that have it.
    holders: u32,
    /// Whether several holds have had it at once. The server then counts one level for all of them.
    was_joined: bool,
    /// Whether as many replicas as the client asks for have it.
    is_acknowledged: bool,
    /// Whether its server gave it as a vote, which a server that may have forgotten others does not.
    is_vote: bool,
    /// Whether all its holds were told that it is gone.
    is_loss_told: bool,
    /// Whether a message said that it was released by force.
    is_forced: bool,
    /// The round trip of the last request about it.
    trip: Duration,
    /// What the server last said about a record of readers, which others may join.
    seen: Option<Seen>,
}

/// What the server last said about a record that readers may join.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// When the server was asked.
    sent: BootInstant,
    /// Readers that come later may not join, since a writer waits that goes first.
    until: BootInstant,
}

impl RecordState {
    /// Returns what the server last said, if that was recent and no release has been sent since.
    fn seen(&self, now: BootInstant) -> Option<Seen> {
        let counts = |seen: &Seen| seen.sent.until(now) < SEEN_FOR.max(self.trip * 2);
        let is_owned = matches!(self.release, RecordRelease::NotSent);
        self.seen.filter(|seen| is_owned && counts(seen))
    }

    fn is_open(&self, now: BootInstant, came: BootInstant) -> bool {
        self.can_pass && self.seen(now).is_some_and(|seen| came <= seen.until)
    }

    /// Notes that the server has said that the record is gone.
    ///
    /// No other hold may get it from now on. The watchdog tells the holds that have it.
    fn is_gone(&mut self) {
        self.can_pass = false;
        self.seen = None;
    }
}

/// How far the release of a record has come.
#[derive(Debug)]
enum RecordRelease {
    /// The record is ours, and the answers about it count.
    NotSent,
    /// It is in flight, or went unanswered. A question that finds nothing may have run behind it.
    Sent,
    /// It was answered, or has failed for now. If it is sent again, the new outcome replaces this one.
    Ended(Outcome),
}

impl Record {
    pub(crate) fn new(key: HoldKey) -> Arc<Self> {
        // Other processes may use the same owner name.
        let can_pass = key.kind.is_passed_on() && !key.is_named();
        Arc::new(Self {
            key,
            turn: Arc::default(),
            state: Mutex::new(RecordState {
                waiting: Vec::new(),
                was_passed: false,
                askers: 0,
                asked: BootInstant::NEVER,
                can_pass,
                release: RecordRelease::NotSent,
                is_in_doubt: false,
                turns: 0,
                turned: None,
                holders: 0,
                was_joined: false,
                is_acknowledged: false,
                is_vote: false,
                is_loss_told: false,
                is_forced: false,
                trip: Duration::ZERO,
                seen: None,
            }),
        })
    }

    /// Returns the turn, unless a request is in flight.
    pub(crate) fn try_turn(&self) -> Option<Turn> {
        self.turn.clone().try_lock_owned().ok()
    }

    /// Waits for the turn. Fails if one call keeps it for as long as `limit`. A call behind several others may wait for
    /// longer, while the server `answers` them. If it fails, nothing was sent.
    ///
    /// Also returns since when it has waited for the last call before it; or since it came, if the server does not
    /// answer: then each call before this one took the time of a request, and they count together.
    pub(crate) async fn turn_since(
        &self,
        limit: Duration,
        answers: impl Fn() -> bool,
    ) -> Result<(Turn, BootInstant), Error> {
        let came = BootInstant::now();
        let mut turn = pin!(self.turn.clone().lock_owned());
        loop {
            let turns = self.turns();
            match timeout(limit, turn.as_mut()).await {
                Ok(turn) => {
                    let mut state = self.lock();
                    state.turns += 1;
                    let before = state.turned.replace(BootInstant::now());
                    drop(state);
                    let before = before.filter(|_| answers());
                    return Ok((turn, before.map_or(came, |before| before.max(came))));
                }
                Err(_) if self.turns() != turns && answers() => {}
                Err(late) => {
                    let text = format!(
                        "an earlier request of this owner was not answered within {limit:?}"
                    );
                    let error = Error::new(ErrorKind::Timeout, text).unsent();
                    return Err(error.about(self.key.name.key()).caused_by(late));
                }
            }
        }
    }

    /// Returns how many calls have had the turn. While that rises, waiting calls are merely behind others.
    pub(crate) fn turns(&self) -> u64 {
        self.lock().turns
    }

    /// Whether calls that passed it on still wait to learn whether it stood.
    pub(crate) fn is_awaited(&self) -> bool {
        !self.lock().waiting.is_empty()
    }

    /// Notes that a hold has the record from now on.
    ///
    /// Called at the grant, or when the record is passed on; [`join`](Self::join) counts by itself.
    pub(crate) fn enter(&self) {
        self.lock().holders += 1;
    }

    /// Notes that a hold that had the record has ended. Returns whether other holds still have it.
    ///
    /// The last hold to leave it owes the release, or passes the record on.
    pub(crate) fn leave(&self) -> bool {
        let mut state = self.lock();
        state.holders = state.holders.saturating_sub(1);
        state.holders > 0
    }

    /// Whether the server gave it as a vote for a lock over several servers.
    pub(crate) fn is_vote(&self) -> bool {
        self.lock().is_vote
    }

    /// Notes that its server has voted, or would have.
    pub(crate) fn voted(&self) {
        self.lock().is_vote = true;
    }

    /// Whether as many replicas as the client asks for have it.
    pub(crate) fn is_acknowledged(&self) -> bool {
        self.lock().is_acknowledged
    }

    /// Notes that as many replicas as the client asks for have it.
    pub(crate) fn acknowledged(&self) {
        self.lock().is_acknowledged = true;
    }

    /// Notes that the server has said that the record is gone. Returns `true` if its holds have yet to be told.
    ///
    /// So if several holds learn of it at the same time, one of them tells the others.
    pub(crate) fn is_loss_to_be_told(&self) -> bool {
        let mut state = self.lock();
        state.is_gone();
        !std::mem::replace(&mut state.is_loss_told, true)
    }

    /// Notes that a message says that it was released by force. Only the server knows whether it was.
    pub(crate) fn note_forced(&self) {
        self.lock().is_forced = true;
    }

    /// Returns why the server no longer has it.
    pub(crate) fn why_gone(&self) -> LossReason {
        match self.lock().is_forced {
            true => LossReason::Forced,
            false => LossReason::Gone,
        }
    }

    /// Lets a reader that came at `came` share the record, unless only the server can decide that.
    ///
    /// From the first join on, the server counts one level for all of them.
    pub(crate) fn join(&self, now: BootInstant, came: BootInstant) -> bool {
        let mut state = self.lock();
        let may_join = state.holders > 0 && state.is_open(now, came);
        if may_join {
            state.holders += 1;
            state.was_joined = true;
        }
        may_join
    }

    /// Whether a call that came at `came` may have the record without a request. For shared locks: no writer came
    /// before it.
    pub(crate) fn is_open(&self, now: BootInstant, came: BootInstant) -> bool {
        self.lock().is_open(now, came)
    }

    /// Whether to ask the server again, on behalf of later readers: by the time the answer is here, what it last said
    /// will be past half of its validity.
    pub(crate) fn is_to_be_asked_about(&self, now: BootInstant) -> bool {
        let state = self.lock();
        let is_old = |seen: Seen| seen.sent.until(now) + state.trip >= SEEN_FOR / 2;
        state.seen.is_some_and(is_old)
    }

    /// Whether several holds have it, or had it. The server counts one level for all of them, however many each has.
    ///
    /// Never becomes `false` again: a late release must not take the level from readers that came since.
    pub(crate) fn was_joined(&self) -> bool {
        self.lock().was_joined
    }

    /// Whether the server confirmed the record within [`SEEN_FOR`], however far away it is. A hold that leaves the
    /// record to others then need not ask.
    pub(crate) fn is_seen(&self, now: BootInstant) -> bool {
        let seen = self.lock().seen(now);
        seen.is_some_and(|seen| seen.sent.until(now) < SEEN_FOR)
    }

    /// Notes the answer to a request sent at `sent`: the record stands, and a writer has waited for `writer`, if one
    /// waits.
    ///
    /// `now` is an instant after the answer. From this follows which readers may join without a request: those that
    /// came before the waiting writer, or all if readers go first.
    pub(crate) fn saw(&self, sent: BootInstant, now: BootInstant, writer: Option<Duration>) {
        let mut state = self.lock();
        state.trip = sent.until(now).min(LONGEST_TRIP);
        // Two answers may be handled in the wrong order. The older one must not let readers pass a writer that the
        // newer one has announced.
        let is_old = state.seen.is_some_and(|seen| seen.sent > sent);
        if is_old || !self.key.kind.is_shared() {
            return;
        }
        let until = match (writer, self.key.kind.sides().map(|sides| sides.prefer)) {
            (None, _) | (_, Some(Prefer::Readers) | None) => BootInstant::NEVER,
            // Counted back from the answer, so that the writer's arrival is not dated too early.
            (Some(waited), Some(Prefer::Arrival)) => now.minus(waited),
            // No reader joins while a writer waits.
            (Some(_), Some(Prefer::Writers)) => now.minus(Duration::MAX),
        };
        state.seen = Some(Seen { sent, until });
    }

    /// Returns the round trip of the last request about the record, at most [`LONGEST_TRIP`]. Zero before the first.
    pub(crate) fn trip(&self) -> Duration {
        self.lock().trip
    }

    /// Whether a hold that is given back may pass the record on.
    ///
    /// `false` once a release was sent, whatever became of it: a copy may arrive later and take the record from the
    /// next hold.
    pub(crate) fn can_pass(&self) -> bool {
        let state = self.lock();
        state.can_pass && matches!(state.release, RecordRelease::NotSent)
    }

    /// Keeps the record from being passed on from now on, so that it goes back to the server. For a hold that has had a
    /// second level, several releases may be owed, each of which gives back what is left.
    ///
    /// Permanent. Called for a second level, for a reader whose owner writes too, after a failed question, and before a
    /// release by force.
    pub(crate) fn stay(&self) {
        self.lock().can_pass = false;
    }

    /// Whether a request that raises the lease is in flight, or about to be sent.
    ///
    /// A call that would raise the lease itself can rely on it.
    pub(crate) fn is_being_confirmed(&self) -> bool {
        self.lock().askers > 0
    }

    /// Returns a receiver for the outcome of giving the lock back. It is told once the server has answered a request
    /// that is sent from now on.
    ///
    /// Called before the record is passed on, so that the next request is sent for this call too.
    pub(crate) fn outcome(&self) -> oneshot::Receiver<Outcome> {
        let (sender, receiver) = oneshot::channel();
        let mut state = self.lock();
        match &state.release {
            RecordRelease::Ended(outcome) => drop(sender.send(outcome.clone())),
            _ => state.waiting.push(sender),
        }
        receiver
    }

    /// Notes that the record was passed on. Returns whether the caller has to ask the server about it, because no task
    /// does, or because the server is far away and the last request was sent some time ago.
    ///
    /// On `true`, the caller counts as an asker and has to call [`next_unlocks`](Self::next_unlocks) until that returns
    /// `None`.
    pub(crate) fn passed_on(&self, now: BootInstant) -> bool {
        let mut state = self.lock();
        state.was_passed = true;
        let is_due = match state.askers {
            0 => true,
            MOST_ASKERS.. => false,
            // The requests are spread over one round trip.
            _ => state.trip >= FAR && state.asked.until(now) >= state.trip / MOST_ASKERS,
        };
        state.askers += u32::from(is_due);
        is_due
    }

    /// Returns the calls that a request sent now will answer. Returns `None` if there is nothing to ask; the caller is
    /// then no longer an asker.
    ///
    /// Called directly before the request is sent. Calls that give the lock back later wait for the next answer.
    pub(crate) fn next_unlocks(&self, now: BootInstant) -> Option<Unlocks<'_>> {
        let mut state = self.lock();
        // Once a release is sent, its answer tells the waiting calls.
        let is_owned = matches!(state.release, RecordRelease::NotSent);
        if !is_owned || !std::mem::take(&mut state.was_passed) {
            // In one step with the check, so that a record passed on right after this finds no asker and gets a new
            // one.
            state.askers -= 1;
            return None;
        }
        state.asked = now;
        Some(Unlocks {
            record: self,
            waiting: std::mem::take(&mut state.waiting),
        })
    }

    /// Notes that the release is about to be sent. An earlier question that is sent again may then find nothing.
    ///
    /// So from here on, no call is told `false` because a question found nothing.
    pub(crate) fn releases(&self) {
        self.lock().release = RecordRelease::Sent;
    }

    /// Notes that a release was sent, and that its answer was not seen.
    pub(crate) fn doubts_release(&self) {
        self.lock().is_in_doubt = true;
    }

    /// Whether a release that finds nothing may be a repetition of one that was carried out.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.lock().is_in_doubt
    }

    /// Returns whether the lock was still held when it was released, once the server has said. From then on, no hold of
    /// the record owes anything.
    pub(crate) fn was_held(&self) -> Option<bool> {
        match self.lock().release {
            RecordRelease::Ended(Ok(was_held)) => Some(was_held),
            _ => None,
        }
    }

    /// Notes how the release ended, and tells the waiting calls.
    ///
    /// A failure is told too: whether the lock was held is then unknown, and no call waits for the next try.
    pub(crate) fn released(&self, outcome: &Outcome) {
        let waiting = {
            let mut state = self.lock();
            state.release = RecordRelease::Ended(outcome.clone());
            std::mem::take(&mut state.waiting)
        };
        // Sent outside the mutex: a woken receiver may look at the record at once.
        tell(waiting, outcome);
    }

    fn lock(&self) -> MutexGuard<'_, RecordState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The calls that wait for the answer to one request.
///
/// Consumed by one of its three methods, according to the outcome.
#[derive(Debug)]
#[must_use = "whoever waits is told nothing if it is dropped"]
pub(crate) struct Unlocks<'a> {
    record: &'a Record,
    waiting: Vec<oneshot::Sender<Outcome>>,
}

impl Unlocks<'_> {
    /// Tells the calls that the record stood when the request ran.
    pub(crate) fn stood(self) {
        tell(self.waiting, &Ok(true));
    }

    /// Tells the calls that the record was gone. Returns `true` if it was lost, and not taken away by our own release.
    ///
    /// If a release was in flight, tells nobody `false`, since the question may have run behind it.
    pub(crate) fn was_gone(self) -> bool {
        let mut state = self.record.lock();
        state.is_gone();
        let outcome = match &state.release {
            RecordRelease::NotSent => Ok(false),
            RecordRelease::Ended(outcome) => {
                let outcome = outcome.clone();
                drop(state);
                tell(self.waiting, &outcome);
                return false;
            }
            // The request may have run behind the release, whose answer tells the calls.
            RecordRelease::Sent => {
                state.waiting.extend(self.waiting);
                return false;
            }
        };
        drop(state);
        tell(self.waiting, &outcome);
        true
    }

    /// Tells the calls that the request went unanswered or was refused. The present hold then gives the record back to
    /// the server.
    ///
    /// No other request is sent for them: their `unlock` returns the error.
    pub(crate) fn failed(self, error: Error) {
        self.record.stay();
        tell(self.waiting, &Err(error));
    }
}

fn tell(waiting: Vec<oneshot::Sender<Outcome>>, outcome: &Outcome) {
    for unlock in waiting {
        // The receiver may be gone.
        unlock.send(outcome.clone()).ok();
    }
}
