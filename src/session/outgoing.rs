//! The releases of a lock that are on their way. An acquisition that overtook one would find the lock busy by ourselves.

use std::collections::BTreeSet;

use super::local_queue::{Side, Ticket};
use crate::owner::Owner;

#[derive(Debug, Default)]
pub(super) struct Outgoing {
    last: u64,
    releases: Vec<Release>,
    /// The calls that wait for one of them.
    pub(super) blocked: BTreeSet<Ticket>,
}

#[derive(Debug)]
struct Release {
    number: u64,
    side: Side,
    owner: Owner,
    /// What is asked from now on comes behind it.
    is_ahead: bool,
}

/// Whose releases are in the way of an acquisition while they are on their way: of the other side, those of the same owner that
/// are not ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Barrier {
    /// Until they are answered, which tells who waits.
    Answered,
    /// Until they are ahead on the connection.
    Sent,
    /// The same for the owner's own, of those that read.
    Own,
}

impl Outgoing {
    /// Returns by which number it is known.
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

    pub(super) fn end(&mut self, number: u64) {
        self.releases.retain(|release| release.number != number);
    }

    /// It is ahead of all that is asked from now on, or has to be sent again.
    pub(super) fn is_ahead(&mut self, number: u64, is_ahead: bool) {
        let mut releases = self.releases.iter_mut();
        if let Some(release) = releases.find(|release| release.number == number) {
            release.is_ahead = is_ahead;
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.releases.is_empty()
    }

    /// Whether what is asked from now on comes behind all of them.
    pub(super) fn are_ahead(&self) -> bool {
        self.releases.iter().all(|release| release.is_ahead)
    }

    /// Whether one of them is in the way of this owner.
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
