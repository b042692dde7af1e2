//! A request for a lock: the lock, the owner and the terms.
//!
//! A handle makes a request for each call. The request outlives the call in the guard, which releases, extends and
//! re-enters on the same terms. It never changes, and has no state of the acquisition, which is in the attempt, the
//! place and the hold.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use tracing::Span;

use crate::clock::BootInstant;
use crate::error::{Error, ErrorKind};
use crate::label;
use crate::name::LockName;
use crate::options::{LeaseMode, Prefer, SHORTEST_TIMEOUT};
use crate::owner::Owner;
use crate::protocol::hold_key::Kind;
use crate::protocol::red::EPOCH_KEY;
use crate::protocol::wait::WakeSource;
use crate::session::hold::{Hold, Successor};
use crate::session::local_queue::Role;
use crate::session::place::UNPOLLED;
use crate::session::tally::OpenCall;
use crate::session::{ClientHandle, LocalLock};
use crate::stats::Counted;

/// What one call asks for, checked as far as possible without the server. Cheap to clone, since each guard has a copy.
#[derive(Clone, Debug)]
pub(crate) struct AcquireRequest(Arc<Terms>);

/// Which lock is wanted, by which owner, and on which terms.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) client: Arc<ClientHandle>,
    pub(crate) name: LockName,
    pub(crate) kind: Kind,
    /// Determined before the first await of the call, since by default it is the task that polls first.
    pub(crate) owner: Owner,
    /// Whether the lease is renewed, and its length. Holds are passed on only to a request with the same length.
    pub(crate) lease_mode: LeaseMode,
    /// What makes a waiting call ask again, in addition to events in this process.
    pub(crate) wake_source: WakeSource,
    /// How many times the lock may be found busy. `None` sets no limit but that of time.
    pub(crate) attempts: Option<u32>,
    /// The span that the call was made in, if the client traces holds. Not the span of the call itself, which ends
    /// sooner.
    pub(crate) caller: Option<Span>,
    /// How much of the lease must be left when the guard is handed out. A grant that comes later than that is given
    /// back.
    pub(crate) min_validity: Duration,
}

impl Deref for AcquireRequest {
    type Target = Terms;

    fn deref(&self) -> &Terms {
        &self.0
    }
}

impl AcquireRequest {
    pub(crate) fn new(terms: Terms) -> Self {
        Self(Arc::new(terms))
    }

    /// Returns the hold that this call would re-enter. `None` for a plain lock, which no owner has twice.
    pub(crate) fn own(&self, local: &LocalLock) -> Option<Arc<Hold>> {
        match self.kind.is_reentrant() {
            true => local.live(&self.owner),
            false => None,
        }
    }

    /// Waits until there is a hold that this call would re-enter.
    pub(crate) async fn appeared(&self, local: &LocalLock) {
        match self.kind.is_reentrant() {
            true => local.appeared(&self.owner).await,
            false => std::future::pending().await,
        }
    }

    /// Describes this call, which came at `came`, to a hold of this process whose record it may take over or join.
    pub(super) fn successor(&self, came: BootInstant) -> Successor<'_> {
        Successor {
            owner: &self.owner,
            lease_mode: self.lease_mode,
            min_validity: self.min_validity,
            max_hold: self.client.settings.max_hold,
            came,
        }
    }

    /// Returns the local lock: the waiters and holds of this lock in this process. It exists as long as somebody refers
    /// to it or an owner holds the lock, so a call keeps its reference as long as it runs.
    pub(crate) fn local(&self) -> LocalLock {
        self.client
            .local_locks
            .enter(self.kind.local_key(&self.name))
    }

    /// Returns how this call stands in the local queue: among the calls of its side in the order of arrival, and
    /// towards the other side of a read-write lock by its preference. With [`Prefer::Arrival`] both sides keep one
    /// order; with [`Prefer::Writers`] readers let all writers go first; with [`Prefer::Readers`] neither waits for the
    /// other here.
    pub(super) fn role(&self) -> Role {
        match self.kind.sides().map(|sides| sides.prefer) {
            // A named owner may already read in another process, and the calls before this one may wait for that.
            Some(_) if self.kind.is_shared() && self.owner.is_named() => Role::Beside,
            Some(Prefer::Arrival) => Role::InOrder,
            Some(Prefer::Writers) if self.kind.is_shared() => Role::Behind,
            _ => Role::InQueue,
        }
    }

    /// Returns whether this owner reads and asks to write. Detects this only for a hold of this process; otherwise, the
    /// server refuses the request.
    pub(crate) fn is_upgrade(&self, local: &LocalLock) -> bool {
        matches!(self.kind, Kind::Write(_)) && local.has_other_side(&self.owner)
    }

    /// Returns the owner as people read it.
    pub(crate) fn shown_owner(&self) -> impl fmt::Display {
        label::shown(self.client.label(), &self.owner)
    }

    /// Counts a call to acquire this lock, which begins now.
    pub(super) fn counted(&self) -> OpenCall<'_> {
        let kind = Counted::from(&self.kind);
        self.client.tally.call(kind, self.name.key())
    }

    /// Returns the error of an `unlock` on a handle whose owner has no level, here or on the server.
    pub(crate) fn not_held(&self) -> Error {
        let (name, owner) = (self.name.key(), self.shown_owner());
        Error::new(
            ErrorKind::NotHeld,
            format!("the owner {owner} does not hold {name:?}: nothing to unlock"),
        )
    }

    /// Returns the error for a grant that is given back because too little of its lease is left.
    pub(crate) fn too_late(&self) -> Error {
        let (name, least) = (self.name.key(), self.min_validity);
        Error::too_late(format!(
            "{name:?} was granted with less than {least:?} of its lease left, and was released"
        ))
    }

    /// Returns `Err` if the owner holds the name as a lock of another kind, since the call would wait for itself.
    pub(crate) fn ensure_kind(&self, hold: &Hold) -> Result<(), Error> {
        if hold.key().kind.is(&self.kind) {
            return Ok(());
        }
        let (name, owner) = (self.name.key(), self.shown_owner());
        Err(Error::new(
            ErrorKind::WrongKind,
            format!(
                "the owner {owner} already holds {name:?} as a lock of another kind: release that first, or use that kind"
            ),
        ))
    }

    pub(crate) fn not_reentrant(&self) -> Error {
        let (name, title) = (self.name.key(), self.kind.title());
        Error::new(
            ErrorKind::Refused,
            format!("{name:?} is {title}, which its owner cannot acquire again"),
        )
    }

    pub(crate) fn exhausted(&self) -> Error {
        let (name, most) = (self.name.key(), self.kind.most_levels());
        Error::new(
            ErrorKind::Refused,
            format!("this owner holds {name:?} {most} times, the most that can be counted"),
        )
    }

    /// Returns the error for an owner that reads and asks to write: it would wait for its own read to end.
    pub(crate) fn upgrade(&self) -> Error {
        let (name, owner) = (self.name.key(), self.shown_owner());
        Error::new(
            ErrorKind::Refused,
            format!(
                "the owner {owner} holds {name:?} for reading and cannot write until it has released that: \
                 unlock the read guard first, or begin with write()"
            ),
        )
    }

    pub(crate) fn spent(&self) -> Error {
        let name = self.name.key();
        Error::new(
            ErrorKind::Refused,
            format!("the tokens of {name:?} have reached 2^53, the highest that Lua can count"),
        )
    }

    /// Adds to an error which lock it is about.
    pub(crate) fn blame(&self, error: Error) -> Error {
        error.about(self.name.key())
    }

    /// Returns the key of the server epoch on the server of this lock. The epoch decides whether it votes on a lock
    /// over several servers.
    pub(crate) fn epoch_key(&self) -> Cow<'static, str> {
        // In a cluster, the slot of a lock may move to another server, so the epoch has a key in the same slot.
        match self.client.backend.is_clustered() {
            true => self.name.beside(EPOCH_KEY).into(),
            false => EPOCH_KEY.into(),
        }
    }

    /// Returns how long one request for this lock may take: several of them must fit into a lease.
    pub(crate) fn timeout(&self) -> Duration {
        self.client.settings.timeout(self.lease_mode.lease())
    }

    /// Does the work of a call, or fails once it has taken longer than what is `left` and the time of one request.
    ///
    /// Not an async function: its future would reserve space for the work in addition to the box.
    pub(super) fn within<T>(
        &self,
        left: Duration,
        work: impl Future<Output = Result<T, Error>>,
    ) -> impl Future<Output = Result<T, Error>> {
        let mut work = Box::pin(work);
        // A little more, so that a request that goes unanswered says so itself.
        let more = self.client.settings.command_timeout + SHORTEST_TIMEOUT;
        async move {
            let mut left = left.saturating_add(more);
            loop {
                let began = BootInstant::now();
                let late = match timeout(left, work.as_mut()).await {
                    Ok(done) => return done,
                    Err(late) => late,
                };
                if began.until(BootInstant::now()) < left.saturating_add(UNPOLLED) {
                    let text = "the servers did not answer within the time of one request";
                    let error = Error::new(ErrorKind::Timeout, text).unanswered();
                    return Err(error.about(self.name.key()).caused_by(late));
                }
                // Nobody polled the call meanwhile, so it may begin again.
                left = more;
            }
        }
    }

    /// Returns how long the server may be silent before a wait without a limit gives up. With a fixed lease, which may
    /// be very short or very long, this is the client's lease for renewal.
    pub(crate) fn patience(&self) -> Duration {
        match self.lease_mode {
            LeaseMode::Renewed(lease) => lease.get(),
            LeaseMode::Fixed(_) => self.client.settings.watchdog_lease,
        }
    }
}
