//! How a level is given back, from its guard down to all calls that wait for the answer. From top to bottom:
//!
//! 1. The level is taken off its hold. If other holds here have the record, nothing is owed.
//! 2. The last level is left to the call that waits for the lock here,
//! 3. or the server's record is brought to what is left: by a release that a `Drop` writes, or by one that is sent;
//! 4. the server answers the release,
//! 5. and every call that gave the lock back under this record is told the outcome.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::task::yield_now;
use tokio::time::timeout;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::Session;
use super::asking;
use super::backend::{Answer, Backend, Posted};
use super::hold::{Hold, Left, Release};
use super::ledger::{self, Owing};
use super::left::Handoff;
use super::local_lock;
use super::place;
use super::reaper::Background;
use super::record::Outcome;
use super::releaser::Releaser;
use super::sync::oneshot;
use super::undo::{Owed, Undo};
use crate::clock::BootInstant;
use crate::error::{Error, ErrorKind};
use crate::name::LockName;
use crate::options::LeaseMode;
use crate::protocol::answer::Released;
use crate::protocol::batch::{self, AllReleased};
use crate::protocol::hold_key::Kind;

/// How many request timeouts an `unlock` waits for an outcome that it did not ask for itself. The handoff that it left
/// may lie for a while, and another request may be on its way before the one that tells.
const UNCONFIRMED: u32 = 3;

/// A lock left in its local queue, with the release that is owed for it.
pub(crate) type LeftHere = Handoff<Undo<Share>>;

/// The local lock of a name, with what is left there.
pub(crate) type LocalLockRef = local_lock::LocalLockRef<Undo<Share>>;

/// The place of a call in the local queue.
pub(crate) type Place<'a> = place::Place<'a, Undo<Share>>;

/// The turn to ask the server for an owner's first level.
pub(crate) type Asking<'a> = asking::Asking<'a, Undo<Share>>;

/// A release that is on its way.
type Sending = asking::Sending<Undo<Share>>;

/// A release written by a `Drop`, and how many messages had come in on the lock's channel before it.
type Written = (Posted, u64);

/// A level that was given back.
#[derive(Debug)]
#[must_use = "dropping it has the level released in the background"]
pub(crate) enum GivenBack {
    Undo(Undo<Share>),
    /// Other holds here have the record.
    Shared(Arc<Hold>),
    /// It was left for a waiter here. The receiver is told once the server has said whether the record still stood.
    Left(Arc<Hold>, oneshot::Receiver<Outcome>),
}

impl Session {
    /// Gives back one level of a hold, with the guard that goes with it. Returns `None` if the hold has ended.
    pub(crate) fn give_back(
        &self,
        local: &LocalLockRef,
        hold: &Arc<Hold>,
        guard: Option<LeaseMode>,
    ) -> Option<GivenBack> {
        let left = hold.give_back(guard)?;
        if left == Left::Others {
            self.watchdog.unwatch(hold);
            local.forget(hold);
            return Some(GivenBack::Shared(hold.clone()));
        }
        let undo = self.releaser.undo(hold, local);
        if left == Left::Levels {
            return Some(GivenBack::Undo(undo));
        }
        self.watchdog.unwatch(hold);
        if !hold.record.can_pass() {
            local.forget(hold);
            return Some(GivenBack::Undo(undo));
        }
        Some(match local.leave(undo, hold, &self.releaser.runtime) {
            Ok(outcome) => GivenBack::Left(hold.clone(), outcome),
            Err(undo) => GivenBack::Undo(undo),
        })
    }

    /// Waits for the release of a level that was given back. Fails if the hold did not stand any more.
    pub(crate) async fn released(
        &self,
        given_back: GivenBack,
        name: &LockName,
    ) -> Result<(), Error> {
        let was_held = match given_back {
            GivenBack::Undo(undo) => undo.run().await?,
            // Readers do not wait to be told again what the server has just said.
            GivenBack::Shared(hold) | GivenBack::Left(hold, _)
                if hold.record.is_seen(BootInstant::now()) =>
            {
                true
            }
            GivenBack::Shared(hold) => {
                let outcome = hold.record.outcome();
                self.told(&hold, outcome, name).await?
            }
            GivenBack::Left(hold, outcome) => self.told(&hold, outcome, name).await?,
        };
        still_held(was_held, name)
    }

    /// Waits until the server has said whether a record that was left to others still stood.
    async fn told(
        &self,
        hold: &Hold,
        outcome: oneshot::Receiver<Outcome>,
        name: &LockName,
    ) -> Result<bool, Error> {
        // While others read by this record, its release may be far off: the server is asked now.
        if hold.record.was_joined() {
            self.watchdog.confirm(hold);
        }
        let at_most = hold.timeout * UNCONFIRMED;
        let told = timeout(at_most, self.unless_ended(outcome)).await;
        let outcome = told.map_err(|late| unconfirmed(name, at_most).caused_by(late))??;
        outcome.map_err(|_| Error::closed())?
    }
}

/// The error if the server has said nothing of a lock that was left to a waiter here.
fn unconfirmed(name: &LockName, waited: Duration) -> Error {
    let name = name.key();
    let text =
        format!("it is not known after {waited:?} whether {name:?} was held until it was unlocked");
    Error::new(ErrorKind::Timeout, text).unanswered()
}

/// What the caller is told of a level that was given back.
pub(crate) fn still_held(was_held: bool, name: &LockName) -> Result<(), Error> {
    if was_held {
        return Ok(());
    }
    let name = name.key();
    Err(Error::lost(format!(
        "{name:?} was no longer held when it was unlocked"
    )))
}

/// What the server may record for a hold beyond the levels that the hold has here.
#[derive(Debug)]
pub(crate) struct Share {
    hold: Arc<Hold>,
    local: LocalLockRef,
    /// The release need not be written at once: a try has failed, or code may still work under the hold.
    can_wait: bool,
    releaser: Arc<Releaser>,
    owing: TaskTrackerToken,
}

impl Releaser {
    /// Arms an `Undo` before a request is sent that could leave too much of a hold on the server.
    pub(crate) fn undo(self: &Arc<Self>, hold: &Arc<Hold>, local: &LocalLockRef) -> Undo<Share> {
        Undo::arm(Share {
            hold: hold.clone(),
            local: local.clone(),
            can_wait: false,
            releaser: self.clone(),
            owing: self.reaper.owing(),
        })
    }
}

impl Share {
    fn sending(&self) -> Sending {
        Sending::new(self.local.clone(), self.hold.owner.clone())
    }
}

impl Owed for Share {
    /// Whether the hold still stood when it was given back.
    type Answer = bool;

    async fn run(&mut self) -> Result<bool, Error> {
        let sending = self.sending();
        let was_held = self
            .releaser
            .release(&self.hold, Some(&sending), None)
            .await;
        self.can_wait |= was_held.is_err();
        was_held
    }

    fn post(&mut self) {
        let sending = self.sending();
        let written = match self.can_wait {
            true => None,
            false => self.releaser.write(&self.hold, &sending),
        };
        self.releaser.reaper.take(Unanswered {
            end: BootInstant::now().plus(self.hold.longest_kept()),
            hold: self.hold.clone(),
            sending: Some(sending),
            written,
            releaser: self.releaser.clone(),
            _owing: self.owing.clone(),
        });
    }
}

impl Undo<Share> {
    /// Leaves the undo to the background, so that code that works under the hold learns of the loss before the lock is
    /// free.
    pub(super) fn unhurried(mut self) -> Self {
        self.owed.can_wait = true;
        self
    }

    /// Whether the server has both under the name of one owner. A record that was passed on stays under the owner that
    /// acquired it.
    pub(crate) fn goes_with(&self, other: &Self) -> bool {
        self.owed.hold.key().acquisition_field() == other.owed.hold.key().acquisition_field()
    }

    /// Runs several undos now, for holds of one server that are given back by one request, and returns whether each
    /// hold still stood. What cannot be undone stays owed, and goes to the background.
    pub(crate) async fn run_all(undos: Vec<Self>) -> Result<Vec<bool>, Error> {
        let Some(releaser) = undos.first().map(|undo| undo.owed.releaser.clone()) else {
            return Ok(Vec::new());
        };
        let sendings: Vec<_> = undos.iter().map(|undo| undo.owed.sending()).collect();
        let holds: Vec<_> = undos.iter().map(|undo| &*undo.owed.hold).collect();
        let were_held = releaser.release_all(&holds).await?;
        drop(sendings);
        undos.into_iter().for_each(Self::disarm);
        Ok(were_held)
    }
}

/// What a server has in excess for a hold, released in the background.
#[derive(Debug)]
struct Unanswered {
    hold: Arc<Hold>,
    /// Keeps acquisitions of the name behind what is owed for it.
    sending: Option<Sending>,
    written: Option<Written>,
    /// From then on the server has dropped the hold by itself.
    end: BootInstant,
    releaser: Arc<Releaser>,
    _owing: TaskTrackerToken,
}

impl Owing for Unanswered {
    fn hold(&self) -> Option<u64> {
        Some(self.hold.id)
    }
}

impl Background for Unanswered {
    fn send<'a>(&'a mut self, _: &'a Backend) -> BoxFuture<'a, Result<(), Error>> {
        let written = self.written.take();
        let release = self
            .releaser
            .release(&self.hold, self.sending.as_ref(), written);
        Box::pin(release.map(|released| released.map(drop)))
    }

    fn place(&self, backend: &Backend) -> ledger::Place {
        let home = backend.home(self.hold.key().name.key());
        home.map(|node| node.id())
    }

    fn is_posted(&self) -> bool {
        self.written.is_some()
    }

    /// Once the lease has passed, a server that answers has nothing left of the hold. A server that does not answer may
    /// still take the lock, by a request that it has not read yet.
    fn has_ended(&self, error: &Error) -> bool {
        error.is_refusal() && BootInstant::now() >= self.end
    }

    fn keep_nobody_waiting(&mut self) {
        self.sending = None;
    }
}

impl Releaser {
    /// Writes the release of a hold that has ended, if the connection takes it at once and nothing else is on its way
    /// for the hold. What is left of a hold that others here share is released in the background, in its turn.
    fn write(&self, hold: &Hold, sending: &Sending) -> Option<Written> {
        // A `Drop` cannot wait for the turn: a request in flight leaves this release to the background.
        let _turn = hold.record.turn.try_lock().ok()?;
        if !hold.is_surely_ours() {
            return None;
        }
        let release = self.next(hold).filter(|release| release.keep == 0)?;
        let posted = self.backend.post(&hold.key().release(release.keep))?;
        Self::is_ahead(hold, sending);
        Some((posted, release.heard))
    }

    /// Brings the server's record of a hold to the levels that the hold has here, and returns whether the hold still
    /// stood. The first try may have been `written` already.
    async fn release(
        self: &Arc<Self>,
        hold: &Hold,
        sending: Option<&Sending>,
        written: Option<Written>,
    ) -> Result<bool, Error> {
        let _turn = hold.record.turn.lock().await;
        if written.is_none() && !hold.is_surely_ours() {
            // Another process may hold the lock by the same value. Whatever may be left of this hold ends by its lease.
            return Ok(false);
        }
        let Some(mut release) = self.next(hold) else {
            return Ok(true);
        };
        release.is_on_its_way = true;
        let call = hold.key().release(release.keep);
        let answered = if let Some((posted, heard)) = written {
            release.heard = heard;
            Box::pin(self.backend.conclude(posted, &call, hold.timeout)).await
        } else {
            let mut request = pin!(self.backend.run(&call, hold.timeout));
            // The first poll sends the request, unless there is no connection.
            let answered = request.as_mut().now_or_never();
            if let Some(sending) = sending
                && self.backend.silence(hold.key().name.key()).is_none()
            {
                Self::is_ahead(hold, sending);
            }
            match answered {
                Some(answered) => answered,
                None => request.await,
            }
        };
        if let (Err(_), Some(sending)) = (&answered, sending) {
            // It is sent again later, so requests from now on would overtake it.
            sending.is_ahead(false);
        }
        release.is_on_its_way = false;
        let answer = answered.inspect_err(|error| release.failed(error))?;
        let released =
            Released::decode(&answer.reply).inspect_err(|error| release.failed(error))?;
        let was_moved = matches!(released, Released::Moved { .. });
        let was_held = self.answered(&release, released, &answer);
        if was_moved {
            // Lets the next holder go on first: at best its release is sent ahead of what this caller asks for now, and
            // the server works on the second while the answer to the first travels.
            yield_now().await;
        }
        Ok(was_held)
    }

    /// Releases several holds of one server with one request, as `release` does for one.
    async fn release_all(self: &Arc<Self>, holds: &[&Hold]) -> Result<Vec<bool>, Error> {
        let mut turns = Vec::with_capacity(holds.len());
        // All tasks that wait for several turns take them in one order, so that no two wait for each other.
        let mut in_order = holds.to_vec();
        in_order.sort_by_key(|hold| Arc::as_ptr(&hold.record));
        for hold in in_order {
            turns.push(hold.record.turn.lock().await);
        }
        let mut were_held = vec![true; holds.len()];
        let mut releases: Vec<_> = holds
            .iter()
            .zip(&mut were_held)
            .filter_map(|(hold, was_held)| Some((self.next(hold)?, was_held)))
            .collect();
        let timeout = releases.iter().map(|(release, _)| release.hold.timeout);
        let Some(timeout) = timeout.min() else {
            return Ok(were_held);
        };
        let keys = releases
            .iter()
            .map(|(release, _)| (release.hold.key(), release.keep));
        let keys: Vec<_> = keys.collect();
        let call = batch::release(&keys);
        for (release, _) in &mut releases {
            release.is_on_its_way = true;
        }
        let answered = self.backend.run(&call, timeout).await;
        for (release, _) in &mut releases {
            release.is_on_its_way = false;
        }
        let answer = answered.inspect_err(|error| {
            for (release, _) in &releases {
                release.failed(error);
            }
        })?;
        let AllReleased(outcomes) = AllReleased::decode(&answer.reply, releases.len())?;
        for ((release, was_held), released) in releases.into_iter().zip(outcomes) {
            *was_held = self.answered(&release, released, &answer);
        }
        Ok(were_held)
    }

    /// Returns what to ask the server for; the caller has the hold's turn. Returns `None` if nothing is owed any more.
    fn next<'a>(&self, hold: &'a Hold) -> Option<Releasing<'a>> {
        // Guards dropped at the same time owe one release, and the first of them sends it for all. A hold that passed
        // its record on owes none. A hold that was never granted here may have been asked for again since, so it is
        // released again.
        if hold.release() == Release::Done && hold.was_granted() {
            return None;
        }
        let keep = hold.share();
        // A record that several holds have counts as one level, which the last of them owes.
        let is_held = || keep > 0 || hold.record.is_held();
        if hold.was_granted() && hold.record.was_joined() && is_held() {
            return None;
        }
        if keep == 0 {
            hold.record.releases();
        }
        Some(Releasing {
            hold,
            keep,
            is_on_its_way: false,
            heard: self.hub.heard_on(hold.key().name.channel()),
        })
    }

    /// Notes that a release is on its way, and that what is asked from now on comes behind it. That holds on one
    /// connection, but not for the releases of plain locks, which may be transactions.
    fn is_ahead(hold: &Hold, sending: &Sending) {
        if !matches!(hold.key().kind, Kind::Plain(_)) {
            sending.is_ahead(true);
        }
    }

    /// Handles the server's answer. Returns whether the hold still stood.
    fn answered(
        self: &Arc<Self>,
        release: &Releasing<'_>,
        released: Released,
        answer: &Answer,
    ) -> bool {
        let hold = release.hold;
        let is_done = !matches!(released, Released::Absent | Released::Taken);
        match is_done {
            true => release.note(Release::Done),
            false if answer.repeated => release.note(Release::InDoubt),
            false => {}
        }
        match released {
            Released::Freed { told } => self.yield_lock(hold, told, release.heard, answer.sent),
            Released::Moved { number } => self.granted(number.into(), answer.sent),
            // Any owner that has the lock by now took it after this hold.
            Released::Kept | Released::Absent | Released::Taken => {}
        }
        // An earlier send may have gone unanswered. The lease had not run out when the hold was given back, so the
        // server had the hold then, and this release removed it.
        let was_held = is_done || answer.repeated || hold.release() == Release::InDoubt;
        release.tell(&Ok(was_held));
        was_held
    }
}

/// A release that is about to be sent.
#[derive(Debug)]
struct Releasing<'a> {
    hold: &'a Hold,
    keep: u32,
    /// If it is dropped while this is set, nobody sees the answer: the next release may find that this one was carried
    /// out.
    is_on_its_way: bool,
    /// How many messages had come in on the lock's channel before.
    heard: u64,
}

impl Releasing<'_> {
    fn note(&self, release: Release) {
        if self.keep == 0 {
            self.hold.note_release(release);
        }
    }

    fn failed(&self, error: &Error) {
        if error.is_unanswered() {
            self.note(Release::InDoubt);
        }
        self.tell(&Err(error.clone()));
    }

    /// Tells every call that passed the record on before.
    fn tell(&self, outcome: &Outcome) {
        if self.keep == 0 {
            self.hold.record.released(outcome);
        }
    }
}

impl Drop for Releasing<'_> {
    fn drop(&mut self) {
        if self.is_on_its_way {
            self.note(Release::InDoubt);
        }
    }
}
