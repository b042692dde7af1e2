//! What the server has of a hold. Holds of this process that follow each other may pass it on in memory, and readers
//! may have one together.
//!
//! The server continues to see the first of these holds, by the id of its acquisition. One request at a time, or a few
//! if the server is far away, asks whether it still does. As long as it does, nobody else can have had the lock, so the
//! answer holds for every hold that gave the lock back before that request was sent.
//!
//! The life of a record: it is made with the hold that asks for it; [`enter`](Record::enter) and
//! [`leave`](Record::leave) count the holds that have it; [`passed_on`](Record::passed_on) and
//! [`next_unlocks`](Record::next_unlocks) carry the question whether it stands; [`releases`](Record::releases) and
//! [`released`](Record::released) end it.
//!
//! # Invariants
//!
//! 1. At most one hold that has not ended has the record, or several that read. Neither passing the record on nor
//!    joining it moves a deadline: the next hold starts with what the last request confirmed.
//! 2. Only the last hold releases the record. A hold that passed it on, or left others with it, owes the server
//!    nothing.
//! 3. Of the requests that were sent for a record that is passed on, a late copy changes at most the hold count, or
//!    raises the lease; a release takes away all of it.
//! 4. Each call in `waiting` is told once: what came of the first request that was sent after the call gave the lock
//!    back, or of the release.
//!
//! The record keeps the field and the id of the hold that took the lock. If each handoff relabelled it, nobody
//! would know after a request without an answer which label stands, and a renewal by the old one would end a hold
//! that stands.

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

/// How long readers join a record after the server was asked, and said that the record stands and which writer waits.
/// They join for twice the time that it takes to ask, if that is longer.
const SEEN_FOR: Duration = Duration::from_millis(10);
/// The longest that asking is taken to last. If it took longer, this process or the server was stopped meanwhile.
const LONGEST_TRIP: Duration = Duration::from_millis(100);
/// Beyond this round trip, several requests about a record may be on their way, one behind the other. A call that gives
/// the lock back then waits for little more than one of them.
const FAR: Duration = Duration::from_micros(500);
/// How many at most.
const MOST_ASKERS: u32 = 4;

/// Whether a lock still stood when it was given back, as far as the server has said. `false` if it was gone, unless an
/// earlier send of the release went unanswered and may have removed it.
pub(crate) type Outcome = Result<bool, Error>;

/// The turn to send a request that changes the hold count, until dropped.
pub(crate) type Turn = OwnedMutexGuard<()>;

/// The server's record of one lock, shared by the holds that pass it on.
#[derive(Debug)]
pub(crate) struct Record {
    /// Name, owner field and acquisition id, as the server has them. Never changes, whoever has the record here.
    pub(crate) key: HoldKey,
    /// Held while a request that changes the hold count is on its way.
    ///
    /// So the server sees the changes in the order in which they were decided. Passing on and joining only try it: a
    /// request in flight may cut the lease or release the record, and nobody can tell yet. Where others may wait for
    /// it, it is kept by a task of the client: a call that has it may not be polled.
    turn: Arc<tokio::sync::Mutex<()>>,
    state: Mutex<State>,
}

/// What is known of a record, under one mutex. Nothing else is locked inside.
#[derive(Debug)]
struct State {
    /// The calls that gave the lock back and have yet to be told whether it was still held.
    waiting: Vec<oneshot::Sender<Outcome>>,
    /// It was passed on since the last request was sent that asks about it.
    ///
    /// Taken by the next such request. If it is not set, there is nobody to ask for.
    was_passed: bool,
    /// How many tasks send such requests.
    askers: u32,
    /// When the last such request was sent.
    ///
    /// Several askers spread their requests by it.
    asked: BootInstant,
    /// Whether a hold that is given back may leave the record to the next one here. Never becomes `true` again.
    can_pass: bool,
    /// How far the release of the record has come.
    release: Release,
    /// A release was sent and not answered, whichever hold it was for: the server may have carried it out, and then
    /// the lock was held until that.
    is_in_doubt: bool,
    /// How often a call has had the turn, and since when the last one has it.
    turns: u64,
    turned: Option<BootInstant>,
    /// How many holds that have not ended have it.
    holders: u32,
    /// Several holds have had it at once: the server counts one level for all of them.
    was_joined: bool,
    /// As many replicas as the client asks for have it.
    is_acknowledged: bool,
    /// All holds that have it were told that it is gone.
    is_loss_told: bool,
    /// A message said that it was released by force.
    is_forced: bool,
    /// How long the last request took that told of it.
    trip: Duration,
    /// What the server said last about readers. Only of a read lock, whose record others may join.
    seen: Option<Seen>,
}

/// What the server said last of a record that readers may join.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// When the server was asked.
    sent: BootInstant,
    /// Readers that come later may not join: a writer waits, and goes before them.
    until: BootInstant,
}

impl State {
    /// Returns what the server said last, if that was recent, and no release was sent since.
    fn seen(&self, now: BootInstant) -> Option<Seen> {
        let counts = |seen: &Seen| seen.sent.until(now) < SEEN_FOR.max(self.trip * 2);
        let is_owned = matches!(self.release, Release::NotSent);
        self.seen.filter(|seen| is_owned && counts(seen))
    }

    fn is_open(&self, now: BootInstant, came: BootInstant) -> bool {
        self.can_pass && self.seen(now).is_some_and(|seen| came <= seen.until)
    }

    /// Notes that the server has said that the record is gone.
    ///
    /// Nobody here may have it from now on. The holds that have it learn of it by the watchdog.
    fn is_gone(&mut self) {
        self.can_pass = false;
        self.seen = None;
    }
}

/// How far the release of a record has come.
#[derive(Debug)]
enum Release {
    /// The record is ours: requests about it mean something.
    NotSent,
    /// It is on its way, or was left unanswered. A question that finds nothing may have come behind it.
    Sent,
    /// It was answered, or has failed for now. If it is sent again, the later outcome replaces this one.
    Ended(Outcome),
}

impl Record {
    pub(crate) fn new(key: HoldKey) -> Arc<Self> {
        // Other processes may share the name of a named owner.
        let can_pass = key.kind.is_passed_on() && !key.is_named();
        Arc::new(Self {
            key,
            turn: Arc::default(),
            state: Mutex::new(State {
                waiting: Vec::new(),
                was_passed: false,
                askers: 0,
                asked: BootInstant::NEVER,
                can_pass,
                release: Release::NotSent,
                is_in_doubt: false,
                turns: 0,
                turned: None,
                holders: 0,
                was_joined: false,
                is_acknowledged: false,
                is_loss_told: false,
                is_forced: false,
                trip: Duration::ZERO,
                seen: None,
            }),
        })
    }

    /// Returns the turn, unless a request is on its way.
    pub(crate) fn try_turn(&self) -> Option<Turn> {
        self.turn.clone().try_lock_owned().ok()
    }

    /// Waits for the turn. Fails if nobody before this call gives it up for as long as `limit`: a call that stands
    /// behind others waits for longer. Nothing was sent if it fails.
    pub(crate) async fn turn(&self, limit: Duration) -> Result<Turn, Error> {
        Ok(self.turn_since(limit).await?.0)
    }

    /// Does the same, and returns since when it has waited for the call directly before it.
    pub(crate) async fn turn_since(&self, limit: Duration) -> Result<(Turn, BootInstant), Error> {
        let came = BootInstant::now();
        let mut turn = pin!(self.turn.clone().lock_owned());
        loop {
            let turns = self.turns();
            match timeout(limit, turn.as_mut()).await {
                Ok(turn) => {
                    let mut state = self.lock();
                    state.turns += 1;
                    let before = state.turned.replace(BootInstant::now());
                    return Ok((turn, before.map_or(came, |before| before.max(came))));
                }
                Err(_) if self.turns() != turns => {}
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

    /// Returns how often a call has waited for the turn and had it. While that rises, those that wait only stand behind
    /// others.
    pub(crate) fn turns(&self) -> u64 {
        self.lock().turns
    }

    /// Whether calls that passed it on have yet to be told whether it stood.
    pub(crate) fn is_awaited(&self) -> bool {
        !self.lock().waiting.is_empty()
    }

    /// Notes that a hold has the record from now on.
    ///
    /// At the grant, or when the record is passed on; [`join`](Self::join) counts by itself.
    pub(crate) fn enter(&self) {
        self.lock().holders += 1;
    }

    /// Notes that a hold that had the record has ended. Returns whether other holds still have it.
    ///
    /// The hold that leaves it last owes the release, or passes the record on.
    pub(crate) fn leave(&self) -> bool {
        let mut state = self.lock();
        state.holders = state.holders.saturating_sub(1);
        state.holders > 0
    }

    /// Whether as many replicas as the client asks for have it.
    pub(crate) fn is_acknowledged(&self) -> bool {
        self.lock().is_acknowledged
    }

    /// Notes that as many replicas as the client asks for have it.
    pub(crate) fn acknowledged(&self) {
        self.lock().is_acknowledged = true;
    }

    /// Whether a hold that has not ended has it.
    pub(crate) fn is_held(&self) -> bool {
        self.lock().holders > 0
    }

    /// Notes that the server has said that the record is gone. Returns whether the holds that have it are to be told,
    /// since that has not been done.
    ///
    /// So of several holds that learn of it at the same time, one tells the others.
    pub(crate) fn is_loss_to_be_told(&self) -> bool {
        let mut state = self.lock();
        state.is_gone();
        !std::mem::replace(&mut state.is_loss_told, true)
    }

    /// Notes that it was released by force, as a message says. Whether it was is for the server to say.
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

    /// Lets a reader that came at `came` have the record together with the others, unless that is for the server to
    /// decide.
    ///
    /// The server counts one level for all of them from the first join on.
    pub(crate) fn join(&self, now: BootInstant, came: BootInstant) -> bool {
        let mut state = self.lock();
        let may_join = state.holders > 0 && state.is_open(now, came);
        if may_join {
            state.holders += 1;
            state.was_joined = true;
        }
        may_join
    }

    /// Whether a call that came at `came` may have the record without a request, for a lock that is shared: no writer
    /// came before it.
    pub(crate) fn is_open(&self, now: BootInstant, came: BootInstant) -> bool {
        self.lock().is_open(now, came)
    }

    /// Whether the readers that follow need newer news from the server: by the time that an answer could be here, what
    /// it said last will have passed half of the time for which it counts.
    pub(crate) fn is_to_be_asked_about(&self, now: BootInstant) -> bool {
        let state = self.lock();
        let is_old = |seen: Seen| seen.sent.until(now) + state.trip >= SEEN_FOR / 2;
        state.seen.is_some_and(is_old)
    }

    /// Whether several holds have it, or had it. The server counts one level for all of them, whatever each of them
    /// has.
    ///
    /// Never becomes `false` again: a release that is owed late must not take the level from readers that came since.
    pub(crate) fn was_joined(&self) -> bool {
        self.lock().was_joined
    }

    /// Whether the server has said so recently that the record stands that a hold which leaves it to others need not
    /// ask. However far away the server is, that is no longer ago than [`SEEN_FOR`].
    pub(crate) fn is_seen(&self, now: BootInstant) -> bool {
        let seen = self.lock().seen(now);
        seen.is_some_and(|seen| seen.sent.until(now) < SEEN_FOR)
    }

    /// Notes what the server answered to a request sent at `sent`: that the record stands, and for how long a writer
    /// has waited, if one waits.
    ///
    /// `now` is an instant after the answer. Decides until when a reader must have come to join without a request:
    /// before the writer that waits, or at any time where readers go first.
    pub(crate) fn saw(&self, sent: BootInstant, now: BootInstant, writer: Option<Duration>) {
        let mut state = self.lock();
        state.trip = sent.until(now).min(LONGEST_TRIP);
        // The answers to two requests may be seen in the wrong order.
        // Otherwise an older answer could let readers past a writer that a newer one has told of.
        let is_old = state.seen.is_some_and(|seen| seen.sent > sent);
        if is_old || !self.key.kind.is_shared() {
            return;
        }
        let until = match (writer, self.key.kind.sides().map(|sides| sides.prefer)) {
            (None, _) | (_, Some(Prefer::Readers) | None) => BootInstant::NEVER,
            // Counted back from the answer, so the writer counts as come no earlier than it did.
            (Some(waited), Some(Prefer::Arrival)) => now.minus(waited),
            // No reader joins while a writer waits.
            (Some(_), Some(Prefer::Writers)) => now.minus(Duration::MAX),
        };
        state.seen = Some(Seen { sent, until });
    }

    /// Returns how long the last request about the record took, at most [`LONGEST_TRIP`]. Zero before the first.
    pub(crate) fn trip(&self) -> Duration {
        self.lock().trip
    }

    /// Whether a hold that is given back may pass the record on.
    ///
    /// Not once a release was sent, whatever became of it: a copy may arrive later and take the record from the next
    /// hold.
    pub(crate) fn can_pass(&self) -> bool {
        let state = self.lock();
        state.can_pass && matches!(state.release, Release::NotSent)
    }

    /// Makes the hold that has the record give it back to the server from now on. Several releases may be owed for a
    /// hold that has had a second level, and each of them gives back what is left.
    ///
    /// Cannot be undone. Called for a second level, for a reader whose owner writes too, after a question that failed,
    /// and before a release by force.
    pub(crate) fn stay(&self) {
        self.lock().can_pass = false;
    }

    /// Whether a request that raises the lease is on its way, or about to be sent.
    ///
    /// A call that would raise the lease itself can rely on that one.
    pub(crate) fn is_being_confirmed(&self) -> bool {
        self.lock().askers > 0
    }

    /// Returns the receiver that is told how the lock was given back, once the server has answered a request that is
    /// sent from now on.
    ///
    /// To be called before the record is passed on, so that the next request is sent for this call too.
    pub(crate) fn outcome(&self) -> oneshot::Receiver<Outcome> {
        let (sender, receiver) = oneshot::channel();
        let mut state = self.lock();
        match &state.release {
            Release::Ended(outcome) => drop(sender.send(outcome.clone())),
            _ => state.waiting.push(sender),
        }
        receiver
    }

    /// Notes that the record was passed on. Returns whether the caller has to ask the server about it: nobody does, or
    /// the server is far away and the request for earlier holds was sent some time ago.
    ///
    /// A caller that is told `true` counts as an asker, and goes on with [`next_unlocks`](Self::next_unlocks) until
    /// that returns `None`.
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

    /// Returns the calls that the answer to a request sent now is for. Returns `None` if there is nothing to ask: then
    /// the caller asks no more.
    ///
    /// To be called directly before the request is sent: calls that give the lock back later wait for the next answer.
    pub(crate) fn next_unlocks(&self, now: BootInstant) -> Option<Unlocks<'_>> {
        let mut state = self.lock();
        // Once a release is sent, its answer tells the calls that wait.
        let is_owned = matches!(state.release, Release::NotSent);
        if !is_owned || !std::mem::take(&mut state.was_passed) {
            // In the same step as the look, so that a record passed on right after this finds no asker and gets a new
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

    /// Notes that the release is about to be sent. A request that was sent before, and is sent again, may then find
    /// nothing.
    ///
    /// From here on no call is told `false` because a question found nothing.
    pub(crate) fn releases(&self) {
        self.lock().release = Release::Sent;
    }

    /// Notes that a release was sent, and that nobody has seen an answer.
    pub(crate) fn doubts_release(&self) {
        self.lock().is_in_doubt = true;
    }

    /// Whether a release that finds nothing may come behind one that was carried out.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.lock().is_in_doubt
    }

    /// Returns whether the lock was still held when it was released, once the server has said so. From then on no hold
    /// that had the record owes anything for it.
    pub(crate) fn was_held(&self) -> Option<bool> {
        match self.lock().release {
            Release::Ended(Ok(was_held)) => Some(was_held),
            _ => None,
        }
    }

    /// Notes how the release ended, and tells the calls that wait.
    ///
    /// If it failed, the calls are told that too: nobody knows by then whether the lock was held, and none waits for
    /// the next try.
    pub(crate) fn released(&self, outcome: &Outcome) {
        let waiting = {
            let mut state = self.lock();
            state.release = Release::Ended(outcome.clone());
            std::mem::take(&mut state.waiting)
        };
        // Outside the mutex: a receiver that is woken may look at the record at once.
        tell(waiting, outcome);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The calls that wait for the answer to one request.
///
/// Ends in one of its three methods, by what came of the request.
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

    /// Tells the calls that the record was gone. Returns `true` if it was lost: it was not our own release that took it
    /// away.
    ///
    /// Nobody is told `false` if a release was on its way: the question may have been carried out behind it.
    pub(crate) fn was_gone(self) -> bool {
        let mut state = self.record.lock();
        state.is_gone();
        let outcome = match &state.release {
            Release::NotSent => Ok(false),
            Release::Ended(outcome) => {
                let outcome = outcome.clone();
                drop(state);
                tell(self.waiting, &outcome);
                return false;
            }
            // A copy of the request may have run behind the release, whose answer tells the calls.
            Release::Sent => {
                state.waiting.extend(self.waiting);
                return false;
            }
        };
        drop(state);
        tell(self.waiting, &outcome);
        true
    }

    /// Tells the calls that the request went unanswered or was refused. The hold that has the record now gives it back
    /// to the server.
    ///
    /// They are not asked for again: an `unlock` that cannot say whether the lock was held says so.
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
