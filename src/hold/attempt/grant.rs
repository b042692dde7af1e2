//! The grant of an attempt, wherever it comes from, and how it becomes a hold with a guard.
//!
//! A grant comes in one of three ways: as the answer to a request of this call; by a release or a sign of life of this
//! process that moved a fair lock to this hold; or as a handoff, the record of a hold that was given back here and left
//! for this call.
//!
//! # Invariants
//!
//! 1. Between the entry of the hold in the local lock and the guard nothing is awaited; the hold enters the watchdog's
//!    registry in between. A future can be dropped only before or after all of that.
//! 2. The `Undo` is disarmed last. A client that closes waits while something is owed, so the hold has an owner at all
//!    times.
//! 3. A hold that waits in a server queue is granted once, though its grant may become known in two ways, and the hold
//!    may be given up in between. Only the code that takes it out of the session's `Grants` acts on it.

use std::sync::Arc;
use std::time::Duration;

use tracing::debug;

use crate::clock::BootInstant;
use crate::error::{Error, ErrorKind};
use crate::hold::attempt::{Attempt, Attempted};
use crate::hold::guard::LockGuard;
use crate::hold::request::Terms;
use crate::loss::LossReason;
use crate::protocol::acquired::Tokens;
use crate::protocol::fair;
use crate::session::grants::GrantNews;
use crate::session::left::Handoff;
use crate::session::share::{Asking, LeftHere};

/// From this age on, a grant is checked: it may have been read so late because nobody polled its call.
const OLD: Duration = Duration::from_millis(500);

impl Attempt<'_> {
    /// Registers the hold before it enters a server queue: from now on a release of this process may grant it. Must
    /// come before the first request, since a grant without a waiter counts as that of a waiter that has left.
    ///
    /// A place may last for long, so single attempts of this owner stop waiting for the turn to ask. Its calls that
    /// queue still wait.
    pub(crate) fn expect_grant(&mut self, asking: &Asking<'_>) {
        self.expected = Some(self.request.client.releaser.grants.expect(&self.hold));
        asking.stands_in_server_queue(self.hold.key().numeral());
    }

    /// Notes that the call is polled while it does not wait for news: it is about to send a request, or to pause.
    pub(crate) fn is_alive(&self) {
        if let Some(expected) = &self.expected {
            expected.is_alive(BootInstant::now().plus(self.hold.timeout));
        }
    }

    /// Returns whether the hold was granted, not accepted, and is being released. It must not be requested again: the
    /// release has the same acquisition id, and would take away the new grant.
    pub(crate) fn is_given_up(&self) -> bool {
        let expected = self.expected.as_ref();
        expected.is_some_and(|expected| !expected.stands())
    }

    /// Waits until the lock is moved to this hold, which stands in a server queue. Returns `None` if the server has to
    /// be asked. Without [`expect_grant`](Self::expect_grant), waits forever.
    ///
    /// If the future is dropped, a later grant stays noted, and the next call returns it. If nobody takes it, it is
    /// released after a second.
    pub(crate) async fn told(&mut self) -> Result<Option<Attempted>, Error> {
        let Some(expected) = &self.expected else {
            return std::future::pending().await;
        };
        match expected.told().await {
            GrantNews::Granted(sent) => self.go_on(sent, 1, None).map(Some),
            GrantNews::Ask => Ok(None),
        }
    }

    /// Returns the channel on which Redisson's clients announce that the owner is first in the queue and the lock is
    /// free, if any of them may do so.
    pub(crate) fn channel(&self) -> Option<Arc<str>> {
        self.is_foreign.then(|| fair::channel(self.hold.key()))
    }

    /// Accepts a hold that the server granted by a request sent at `sent`, unless the hold was given up here in the
    /// meantime.
    pub(super) fn go_on(
        &mut self,
        sent: BootInstant,
        count: u64,
        tokens: Option<Tokens>,
    ) -> Result<Attempted, Error> {
        // Either this waiter or the code that gives it up takes the hold out of the map, and only that one may act on
        // the grant.
        if self
            .expected
            .take()
            .is_some_and(|expected| !expected.claim())
        {
            return Ok(Attempted::Yielded);
        }
        if self.is_second() {
            return Ok(Attempted::Yielded);
        }
        debug!(count, "granted");
        self.commit(sent, tokens).map(Attempted::Granted)
    }

    /// Whether the owner has another hold here. A read-write lock is granted to its owner under a second acquisition id
    /// too, if one of two calls of that owner was not polled for long. This one then gives its level back, and takes one
    /// of the other's hold instead.
    pub(super) fn is_second(&self) -> bool {
        self.request.kind.sides().is_some() && self.request.own(self.local).is_some()
    }

    /// Takes over a handoff, if there is one. Returns `None` if the lock has to be requested. A handoff that does not
    /// fit is released ahead of that request.
    ///
    /// For the call at the front only, which has the turn to ask. `pass` runs under the mutex of the local lock, so it
    /// tries the record's turn and does not wait for it.
    pub(crate) fn take_handoff(&mut self) -> Option<Result<Attempted, Error>> {
        let Terms {
            client,
            name,
            kind,
            owner,
            ..
        } = &**self.request;
        let pass = |handoff: &LeftHere| {
            let old = &handoff.hold;
            // Other processes may know a named owner and look for it, so it needs a record of its own.
            let is_fit = *kind == old.key().kind && !owner.is_named();
            let came = self.mark.map_or_else(BootInstant::now, |(_, came)| came);
            is_fit.then(|| old.pass_to(&self.request.successor(came)))?
        };
        let (Handoff { undo, .. }, passed) = self.local.take_over(pass)?;
        self.follows = true;
        // If nothing was passed on, the `Undo` is dropped here, and its release goes out ahead of this call's request.
        // This attempt may have its own `Undo`, from an earlier request. That is for another acquisition id and stays
        // as it is.
        let hold = passed?;
        let guard = self.request.hand_out(self.local, &hold);
        // From here on the guard owes the release, and closing the client waits for that.
        undo.disarm();
        // Called after the hold is handed out, so that the server's answer applies to this hold.
        client.watchdog.confirm(&hold);
        match guard {
            // Too little of the lease was left after all, or the server has just denied the hold. The guard was dropped
            // with that error, and the lock is requested like any other.
            Err(error) if error.kind() == ErrorKind::LeaseLost => None,
            Err(error) => Some(Err(error)),
            Ok(guard) => {
                client.tally.handed_over(kind.into(), name.key());
                Some(Ok(Attempted::Granted(guard)))
            }
        }
    }

    /// Commits a hold that the server has granted by a request sent at `sent`. Registering the hold, handing out its
    /// guard and disarming the `Undo` are one step without an await, so that nothing can come in between.
    ///
    /// Fails if too little of the lease is left, if the client was closed, or if the answer lacked a token. In each
    /// case, the guard, which is dropped here, or the `Undo` gives the hold back.
    pub(crate) fn commit(
        &mut self,
        sent: BootInstant,
        tokens: Option<Tokens>,
    ) -> Result<LockGuard, Error> {
        let Terms {
            client, lease_mode, ..
        } = &**self.request;
        if tokens.is_none() && self.is_fenced() {
            // The `Undo` stays armed, so that this grant is released.
            let name = self.request.name.key();
            let text = format!("the server granted {name:?} without a token");
            return Err(Error::new(ErrorKind::Protocol, text));
        }
        let now = BootInstant::now();
        let age = sent.until(now);
        if age >= lease_mode.lease().get() {
            // Nobody polled this call until the lease had passed, and others may have the lock now. The `Undo` stays
            // armed.
            return Err(self.request.too_late());
        }
        self.hold
            .granted(sent, *lease_mode, client.settings.max_hold, tokens);
        // What was told of the lock meanwhile, such as its release by force here, found no such hold.
        let mut is_doubtful = age >= OLD;
        for displaced in self.local.install(&self.hold) {
            // The lock was freed by force, and the answers to the two grants may have come in the wrong order.
            is_doubtful |= displaced.is_live();
            drop(client.watchdog.lose(&displaced, LossReason::Displaced));
        }
        if is_doubtful || client.watchdog.doubts() != self.doubts {
            self.hold.lock().schedule.check(BootInstant::now());
        }
        let guard = self.request.hand_out(self.local, &self.hold);
        // Not earlier: by now, even a guard that is dropped at once owes the release, and a client that closes waits
        // while something is owed.
        if let Some(undo) = self.undo.take() {
            undo.disarm();
        }
        guard
    }
}
