//! The releases of a lock that are in flight. An acquisition that overtook one would find the lock held by this process
//! itself.
//!
//! A release is entered before it is sent. It is `ahead` once it is written to the connection that acquisitions use:
//! the server then reads it first, so they need not wait for its answer. It is removed when it is answered or refused.
//! Calls that wait for the turn to ask stand in `blocked`, and are woken when a release is ahead or removed.

use std::collections::BTreeSet;

use super::local_queue::{Side, Ticket};
use crate::owner::Owner;

/// The releases of one local lock that are in flight, on both sides.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    last: u64,
    /// In the order of their numbers. There are few, one for each hold that was just given back.
    releases: Vec<Release>,
    /// The calls that wait for one of them.
    ///
    /// `place` adds and removes them.
    pub(super) blocked: BTreeSet<Ticket>,
}

/// A release in flight.
#[derive(Debug)]
struct Release {
    /// The number by which its `Sending` knows it.
    number: u64,
    side: Side,
    /// The owner of its hold. Calls of the same owner wait even where others need not.
    owner: Owner,
    /// Whether later requests come behind it.
    is_ahead: bool,
}

/// The releases that an acquisition has to wait for. With `Answered` or `Sent`, these include the same owner's releases
/// on the other side, until they are ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Barrier {
    /// All of this side, until they are answered. The answer says whether others wait.
    Answered,
    /// All of this side, until they are ahead on the connection.
    Sent,
    /// The owner's own of this side, until they are ahead. For calls that read.
    Own,
}

impl Outgoing {
    /// Enters a release, and returns its number.
    pub(super) fn begin(&mut self, side: Side, owner: Owner) -> u64 {
        self.last += 1;
        self.releases.push(Release {
            number: self.last,
            side,
            owner,
            is_ahead: false,
        });
        self.last
    }

    /// Removes a release.
    pub(super) fn end(&mut self, number: u64) {
        self.releases.retain(|release| release.number != number);
    }

    /// Notes whether the release is ahead of every later request; `false` if it has to be sent again.
    pub(super) fn is_ahead(&mut self, number: u64, is_ahead: bool) {
        let mut releases = self.releases.iter_mut();
        if let Some(release) = releases.find(|release| release.number == number) {
            release.is_ahead = is_ahead;
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.releases.is_empty()
    }

    /// Whether later requests come behind all of them.
    ///
    /// If so, a lock that is granted from now on is granted after all of them.
    pub(super) fn are_ahead(&self) -> bool {
        self.releases.iter().all(|release| release.is_ahead)
    }

    /// Whether one of them is in the way of this owner.
    ///
    /// On the other side, only the owner's own matter. The server orders those of other owners.
    pub(super) fn is_in_the_way(&self, side: Side, owner: &Owner, barrier: Barrier) -> bool {
        self.releases.iter().any(|release| {
            let is_own = || release.owner == *owner;
            match barrier {
                Barrier::Own => release.side == side && !release.is_ahead && is_own(),
                _ if release.side != side => !release.is_ahead && is_own(),
                Barrier::Answered => true,
                Barrier::Sent => !release.is_ahead,
            }
        })
    }
}
