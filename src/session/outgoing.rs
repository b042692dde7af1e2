//! The releases of a lock that are on their way. An acquisition that overtook one would find the lock held by this
//! process itself.
//!
//! A release is entered before it is sent. It is `ahead` once it is written to the connection on which acquisitions go:
//! the server then reads it first, so they need not wait for its answer. It leaves with its answer, or when the server
//! has refused it. Calls that wait for the turn to ask stand in `blocked`, and are woken when a release is ahead or gone.

use std::collections::BTreeSet;

use super::local_queue::{Side, Ticket};
use crate::owner::Owner;

/// The releases of one local lock that are on their way, of both sides.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    last: u64,
    /// In the order of their numbers. There are few: one for each hold that was just given back.
    releases: Vec<Release>,
    /// The calls that wait for one of them.
    ///
    /// Kept by `place`, which adds and removes them.
    pub(super) blocked: BTreeSet<Ticket>,
}

/// A release on its way.
#[derive(Debug)]
struct Release {
    /// What its `Sending` knows it by.
    number: u64,
    side: Side,
    /// The owner of its hold: calls of the same owner wait also where others need not.
    owner: Owner,
    /// What is asked from now on comes behind it.
    is_ahead: bool,
}

/// Which releases on their way are in the way of an acquisition. Of the other side, with `Answered` or `Sent`, only
/// those of the same owner that are not ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Barrier {
    /// All of this side, until they are answered, which tells whether others wait.
    Answered,
    /// All of this side, until they are ahead on the connection.
    Sent,
    /// The owner's own of this side, until they are ahead: for calls that read.
    Own,
}

impl Outgoing {
    /// Notes a release that is on its way. Returns the number that it is known by.
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

    /// Notes that a release is no longer on its way.
    pub(super) fn end(&mut self, number: u64) {
        self.releases.retain(|release| release.number != number);
    }

    /// Notes whether the release is ahead of everything that is asked from now on; `false` if it has to be sent again.
    pub(super) fn is_ahead(&mut self, number: u64, is_ahead: bool) {
        let mut releases = self.releases.iter_mut();
        if let Some(release) = releases.find(|release| release.number == number) {
            release.is_ahead = is_ahead;
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.releases.is_empty()
    }

    /// Whether everything that is asked from now on comes behind all of them.
    ///
    /// A lock that is granted from now on was then granted after all of them.
    pub(super) fn are_ahead(&self) -> bool {
        self.releases.iter().all(|release| release.is_ahead)
    }

    /// Whether one of them is in the way of this owner.
    ///
    /// Of the other side only the owner's own matter; what other owners release there is for the server to order.
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
