//! A share is what the hold count on a server may have in excess of a hold here. This file has the `Undo` that releases
//! it.
//!
//! The life of a [`Share`]: it is armed before a request that may leave too much of a hold on the server, or when a
//! level is taken off here. It ends in one of three ways. It is disarmed, if an answer shows that nothing is owed or if
//! a guard takes over the level. It is run, by an `unlock`. Or it is posted, when it is dropped: the release is written
//! at once if the connection takes it, and an [`Unanswered`] waits for the answer in the background.
//!
//! Much of the session is generic over what is owed (`D`), for tests. The aliases here name the concrete types.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::asking;
use super::backend::Backend;
use super::hold::Hold;
use super::ledger::{self, Owing};
use super::left::Handoff;
use super::local_lock;
use super::place;
use super::reaper::Background;
use super::release_request::Written;
use super::releaser::Releaser;
use super::undo::{Owed, Undo};
use crate::clock::BootInstant;
use crate::error::Error;
use crate::protocol::hold_key::Kind;

/// A lock left for the next waiter, with the release that is owed for it.
pub(crate) type LeftHere = Handoff<Undo<Share>>;

/// The local lock of a name.
pub(crate) type LocalLockRef = local_lock::LocalLockRef<Undo<Share>>;

/// The place of a call in the local queue.
pub(crate) type Place<'a> = place::Place<'a, Undo<Share>>;

/// The turn to ask the server for an owner's first level.
pub(crate) type Asking<'a> = asking::Asking<'a, Undo<Share>>;

/// A release in flight.
pub(super) type Sending = asking::Sending<Undo<Share>>;

/// What the server may record for a hold beyond the levels that the hold has here.
///
/// How much that is, is worked out when the release is sent. So several of these for one hold owe one release together,
/// which the first one to be sent covers.
#[derive(Debug)]
pub(crate) struct Share {
    /// Keeps the hold for the release, though no guard may be left.
    hold: Arc<Hold>,
    /// Keeps the local lock in use, so that acquisitions of the name find the release in flight.
    local: LocalLockRef,
    /// Whether the release need not be written at once: a try has failed, or code may still work under the hold.
    ///
    /// A `Drop` then writes nothing itself.
    can_wait: bool,
    /// Whether the background has it.
    is_handed_on: bool,
    /// Sends it. Shared, since this may outlive the session's handles.
    releaser: Arc<Releaser>,
    /// Has a client that closes wait for this.
    owing: TaskTrackerToken,
}

impl Releaser {
    /// Arms an `Undo` before a request is sent that could leave too much of a hold on the server.
    ///
    /// Notes nothing in the local lock yet, since only a release in flight blocks acquisitions.
    pub(crate) fn undo(self: &Arc<Self>, hold: &Arc<Hold>, local: &LocalLockRef) -> Undo<Share> {
        Undo::arm(Share {
            hold: hold.clone(),
            local: local.clone(),
            can_wait: false,
            is_handed_on: false,
            releaser: self.clone(),
            owing: self.reaper.owing(),
        })
    }
}

impl Share {
    /// Marks the release as in flight from now on.
    fn sending(&self) -> Sending {
        Sending::new(self.local.clone(), self.hold.owner.clone())
    }
}

impl Owed for Share {
    /// Whether the hold still stood when it was given back.
    type Answer = bool;

    /// Sends the release and waits for the answer. If it fails, it goes to the background, which pauses between tries.
    async fn run(&mut self) -> Result<bool, Error> {
        let (releaser, hold, sending) = (self.releaser.clone(), self.hold.clone(), self.sending());
        let owing = self.owing.clone();
        let release = Box::pin(async move {
            let released = releaser.release(&hold, Some(&sending), None, Duration::ZERO);
            let released = released.await;
            if released.is_err() {
                // Here, since nobody may poll the caller.
                Unanswered::begin(releaser, hold, sending, None, owing);
            }
            Ok(released)
        });
        let are_ahead = || {
            let (kind, now) = (&self.hold.key().kind, BootInstant::now());
            // The answer may name a call of this process that has the lock now.
            let stands = || self.releaser.grants.standing(&self.hold.key().local_key()) > 0;
            let is_told = matches!(kind, Kind::Fair(_)) && stands();
            let local = self.local.lock();
            // The next writer waits for the answer, which says whether others go first.
            let is_awaited = matches!(kind, Kind::Write(_)) && local.turns.is_wanted_elsewhere(now);
            local.outgoing.are_ahead() && !is_awaited && !is_told
        };
        let holds = std::slice::from_ref(&self.hold);
        let released = self.releaser.polled(release, holds, are_ahead).await;
        // An error of the task, which has handed nothing on.
        self.can_wait |= released.is_err();
        let was_held = released?;
        self.is_handed_on = was_held.is_err();
        was_held
    }

    /// Writes the release, if that is possible without waiting, and gives the rest to the background.
    ///
    /// Called from `drop`, perhaps outside of any runtime, perhaps as the last act of this process. The server still
    /// carries out what the socket has taken.
    fn post(&mut self) {
        if self.is_handed_on {
            return;
        }
        let sending = self.sending();
        let written = match self.can_wait {
            true => None,
            false => self.releaser.write(&self.hold, &sending),
        };
        let (releaser, hold) = (self.releaser.clone(), self.hold.clone());
        Unanswered::begin(releaser, hold, sending, written, self.owing.clone());
    }
}

impl Undo<Share> {
    /// Leaves the undo to the background, so that code that works under the hold learns of the loss before the lock is
    /// free.
    pub(super) fn unhurried(mut self) -> Self {
        self.owed.can_wait = true;
        self
    }

    /// Whether one request can release both: the server has them under the same owner. A record that was passed on
    /// stays under the owner that acquired it.
    ///
    /// The script takes one owner field for all of its locks. It does not compare known levels, so a hold whose levels
    /// other processes may have taken over does not fit either.
    pub(crate) fn goes_with(&self, other: &Self) -> bool {
        let [one, other] = [self, other].map(|undo| &undo.owed.hold);
        let [ours, theirs] = [one, other].map(|hold| hold.key());
        ours.field() == theirs.field()
            && ours.acquisition_field() == theirs.acquisition_field()
            && [one, other]
                .iter()
                .all(|hold| hold.target().known.is_none())
    }

    /// Runs several undos now, with one request for holds of one server, and returns whether each hold still stood.
    /// What cannot be undone stays owed, and goes to the background.
    ///
    /// If this future is dropped, each `Undo` posts its own release.
    pub(crate) async fn run_all(undos: Vec<Self>) -> Result<Vec<bool>, Error> {
        let Some(releaser) = undos.first().map(|undo| undo.owed.releaser.clone()) else {
            return Ok(Vec::new());
        };
        let sendings: Vec<_> = undos.iter().map(|undo| undo.owed.sending()).collect();
        let holds: Vec<_> = undos.iter().map(|undo| undo.owed.hold.clone()).collect();
        let (this, released) = (releaser.clone(), holds.clone());
        let release = Box::pin(async move {
            let were_held = this.release_all(&released).await;
            // Dropped before the `Undo`s, so that acquisitions that wait for these releases can go on.
            drop(sendings);
            were_held
        });
        let were_held = releaser.polled(release, &holds, || false).await?;
        undos.into_iter().for_each(Self::disarm);
        Ok(were_held)
    }
}

/// A release that the background task sends until it is answered or pointless.
#[derive(Debug)]
struct Unanswered {
    /// Its hold. How much to release is worked out at each try.
    hold: Arc<Hold>,
    /// Keeps acquisitions of the name behind what is owed for it.
    ///
    /// Dropped once the server has refused, since it may refuse for a long time.
    sending: Option<Sending>,
    /// The first try, if a `Drop` has made it and its answer is still to come.
    written: Option<Written>,
    /// By then, the server has dropped the hold by itself.
    ///
    /// The longest lease ever requested, counted from when this was posted.
    end: BootInstant,
    releaser: Arc<Releaser>,
    /// Has a client that closes wait for this.
    _owing: TaskTrackerToken,
}

impl Unanswered {
    /// Hands a release to the background.
    fn begin(
        releaser: Arc<Releaser>,
        hold: Arc<Hold>,
        sending: Sending,
        written: Option<Written>,
        owing: TaskTrackerToken,
    ) {
        releaser.clone().reaper.take(Self {
            end: BootInstant::now().plus(hold.longest_kept()),
            hold,
            sending: Some(sending),
            written,
            releaser,
            _owing: owing,
        });
    }
}

impl Owing for Unanswered {
    /// Several releases of one hold share an entry in the retry queue.
    fn hold(&self) -> Option<u64> {
        Some(self.hold.id)
    }
}

impl Background for Unanswered {
    fn send<'a>(&'a mut self, _: &'a Backend) -> BoxFuture<'a, Result<(), Error>> {
        let written = self.written.take();
        // No lease depends on this, so it may take long. Within the time of a request for a short lease, a distant
        // server would never answer, and the acquisitions of the name would wait for that.
        let patience = self.releaser.command_timeout;
        let release = self
            .releaser
            .release(&self.hold, self.sending.as_ref(), written, patience);
        Box::pin(release.map(|released| released.map(drop)))
    }

    /// In a cluster the slot may have moved, so each call looks up the server.
    fn place(&self, backend: &Backend) -> ledger::Place {
        let home = backend.home(self.hold.key().name.key());
        home.map(|node| node.id())
    }

    fn is_posted(&self) -> bool {
        self.written.is_some()
    }

    /// Once the lease has passed, a server that answers has nothing left of the hold. A silent server may still take
    /// the lock, by a request that it has not read yet.
    fn has_ended(&self, error: &Error) -> bool {
        error.is_refusal() && BootInstant::now() >= self.end
    }

    fn keep_nobody_waiting(&mut self) {
        self.sending = None;
    }
}
