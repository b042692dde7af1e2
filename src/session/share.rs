//! What a server may have in excess of a hold, and the `Undo` that takes it away.
//!
//! The life of a [`Share`]: it is armed before a request that may leave too much of a hold on the server, or when a
//! level was taken off here. It ends disarmed, if an answer shows that nothing is owed or if the level is a guard's;
//! run, by an `unlock`; or posted, when it is dropped: the release is then written at once if the connection takes it,
//! and an [`Unanswered`] waits for the answer in the background.
//!
//! Much of the session is generic in what is owed (`D`), for tests. The types that ship are named here.

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

/// A lock left in its local queue, with the release that is owed for it.
pub(crate) type LeftHere = Handoff<Undo<Share>>;

/// The local lock of a name, with what is left there.
pub(crate) type LocalLockRef = local_lock::LocalLockRef<Undo<Share>>;

/// The place of a call in the local queue.
pub(crate) type Place<'a> = place::Place<'a, Undo<Share>>;

/// The turn to ask the server for an owner's first level.
pub(crate) type Asking<'a> = asking::Asking<'a, Undo<Share>>;

/// A release that is on its way.
pub(super) type Sending = asking::Sending<Undo<Share>>;

/// What the server may record for a hold beyond the levels that the hold has here.
///
/// How much that is, is worked out when the release is sent. So several of these for one hold owe one release together,
/// and the first that is sent pays for all.
#[derive(Debug)]
pub(crate) struct Share {
    /// Keeps the hold for the release, though no guard may be left.
    hold: Arc<Hold>,
    /// Keeps the local lock in use, so that acquisitions of the name find the release on its way.
    local: LocalLockRef,
    /// The release need not be written at once: a try has failed, or code may still work under the hold.
    ///
    /// A `Drop` then writes nothing itself.
    can_wait: bool,
    /// What sends it. Shared, since this may outlive the session's handles.
    releaser: Arc<Releaser>,
    /// Has a client that closes wait for this.
    owing: TaskTrackerToken,
}

impl Releaser {
    /// Arms an `Undo` before a request is sent that could leave too much of a hold on the server.
    ///
    /// Nothing is noted in the local lock yet: only a release that is being sent stands in the way of acquisitions.
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
    /// Marks the release as on its way from now on.
    fn sending(&self) -> Sending {
        Sending::new(self.local.clone(), self.hold.owner.clone())
    }
}

impl Owed for Share {
    /// Whether the hold still stood when it was given back.
    type Answer = bool;

    /// Sends the release and waits for the answer. If it fails, the drop that follows leaves it to the background,
    /// which pauses between tries.
    async fn run(&mut self) -> Result<bool, Error> {
        let (releaser, hold, sending) = (self.releaser.clone(), self.hold.clone(), self.sending());
        let release = async move {
            releaser
                .release(&hold, Some(&sending), None, Duration::ZERO)
                .await
        };
        let holds = std::slice::from_ref(&self.hold);
        let was_held = self.releaser.polled(release, holds).await;
        self.can_wait |= was_held.is_err();
        was_held
    }

    /// Writes the release, if that is possible without waiting, and gives the rest to the background.
    ///
    /// Called from `drop`, perhaps outside of any runtime, perhaps as the last thing that this process does. What the
    /// socket has taken is still carried out.
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
    ///
    /// Only those can be in one request: the script takes one owner field for all of its locks. Nor can a hold of
    /// which other processes may have taken levels over: the script does not compare what is known of that.
    pub(crate) fn goes_with(&self, other: &Self) -> bool {
        let [one, other] = [self, other].map(|undo| &undo.owed.hold);
        let [ours, theirs] = [one, other].map(|hold| hold.key());
        ours.field() == theirs.field()
            && ours.acquisition_field() == theirs.acquisition_field()
            && [one, other]
                .iter()
                .all(|hold| hold.target().known.is_none())
    }

    /// Runs several undos now, for holds of one server that are given back by one request, and returns whether each
    /// hold still stood. What cannot be undone stays owed, and goes to the background.
    ///
    /// If this future is dropped, each `Undo` posts its own release.
    pub(crate) async fn run_all(undos: Vec<Self>) -> Result<Vec<bool>, Error> {
        let Some(releaser) = undos.first().map(|undo| undo.owed.releaser.clone()) else {
            return Ok(Vec::new());
        };
        let sendings: Vec<_> = undos.iter().map(|undo| undo.owed.sending()).collect();
        let holds: Vec<_> = undos.iter().map(|undo| undo.owed.hold.clone()).collect();
        let (this, released) = (releaser.clone(), holds.clone());
        let release = async move {
            let were_held = this.release_all(&released).await;
            // Before the `Undo`s: an acquisition that waits for these releases can go.
            drop(sendings);
            were_held
        };
        let were_held = releaser.polled(release, &holds).await?;
        undos.into_iter().for_each(Self::disarm);
        Ok(were_held)
    }
}

/// A release that the background task sends until it is answered, or is worth nothing any more.
#[derive(Debug)]
struct Unanswered {
    /// The hold that it is for. How much to release is worked out at each try.
    hold: Arc<Hold>,
    /// Keeps acquisitions of the name behind what is owed for it.
    ///
    /// Given up once the server has refused: nobody knows how long it will.
    sending: Option<Sending>,
    /// The first try, if a `Drop` has made it: its answer is still to come.
    written: Option<Written>,
    /// From then on the server has dropped the hold by itself.
    ///
    /// Counted from when it was posted, by the longest lease that was ever asked for.
    end: BootInstant,
    releaser: Arc<Releaser>,
    /// Has a client that closes wait for this.
    _owing: TaskTrackerToken,
}

impl Owing for Unanswered {
    /// Several releases of one hold stand in the ledger once.
    fn hold(&self) -> Option<u64> {
        Some(self.hold.id)
    }
}

impl Background for Unanswered {
    fn send<'a>(&'a mut self, _: &'a Backend) -> BoxFuture<'a, Result<(), Error>> {
        let written = self.written.take();
        // No lease runs out behind this. Within the time of a request for a short lease, a server that is far away would
        // never answer, and the acquisitions of the name would wait for that.
        let patience = self.releaser.command_timeout;
        let release = self
            .releaser
            .release(&self.hold, self.sending.as_ref(), written, patience);
        Box::pin(release.map(|released| released.map(drop)))
    }

    /// In a cluster the slot may have moved, so the server is looked up when this is asked.
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
