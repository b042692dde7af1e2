//! The policy table: one entry for each kind of lock, with how it waits and how it is handed off.

use super::hold_key::Kind;

/// What the calls of a kind may do.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(crate) struct Policy {
    /// Whether messages announce a release. Otherwise, a call asks after pauses.
    pub(crate) listens: bool,
    /// Whether the waiting processes have places in a turn order on the server, which tells the first of them by name
    /// if it listens.
    pub(crate) takes_turns: bool,
    /// Whether calls ask the server nothing while a hold of this process stands, because the end of that hold is
    /// signalled here. Not set for kinds that tell the server who waits.
    pub(crate) trusts_local_holds: bool,
    /// Whether a hold may be handed off to a waiter of this process, ahead of the waiters of other processes. If owners
    /// share the lock, only to a waiter that came before those.
    pub(crate) passes_on: bool,
    /// Whether several owners may hold the lock at the same time. Those of one process share a record.
    pub(crate) shares: bool,
    /// Whether an owner may re-enter the lock.
    pub(crate) reenters: bool,
}

/// The policy of calls that ask, then wait for a message that the answer may have changed.
pub(crate) const COUNTER: Policy = Policy {
    listens: true,
    takes_turns: false,
    trusts_local_holds: false,
    passes_on: false,
    shares: false,
    reenters: false,
};

/// The policy of calls that ask several servers. The servers whose messages count differ from round to round.
pub(crate) const MAJORITY: Policy = Policy {
    listens: false,
    ..COUNTER
};

impl Kind {
    pub(crate) fn policy(&self) -> Policy {
        let lock = Policy {
            reenters: true,
            ..COUNTER
        };
        match self {
            Self::Reentrant | Self::Fenced(_) => Policy {
                takes_turns: true,
                trusts_local_holds: true,
                passes_on: true,
                ..lock
            },
            Self::Spin => Policy {
                listens: false,
                takes_turns: true,
                trusts_local_holds: true,
                passes_on: true,
                ..lock
            },
            Self::Plain(_) => Policy {
                listens: false,
                trusts_local_holds: true,
                reenters: false,
                ..lock
            },
            Self::Write(_) | Self::Fair(_) => lock,
            Self::Read(_) => Policy {
                passes_on: true,
                shares: true,
                ..lock
            },
        }
    }

    /// Returns whether several owners may hold the lock at the same time.
    pub(crate) fn is_shared(&self) -> bool {
        self.policy().shares
    }

    /// Returns whether a hold may be handed off to a waiter of this process, ahead of the waiters of other processes.
    pub(crate) fn is_passed_on(&self) -> bool {
        self.policy().passes_on
    }

    /// Returns whether the waiting processes take turns: they have places in a turn order on the server, and the first
    /// is told.
    pub(crate) fn takes_turns(&self) -> bool {
        self.policy().takes_turns
    }

    /// Returns whether an owner may take the lock again.
    pub(crate) fn is_reentrant(&self) -> bool {
        self.policy().reenters
    }
}
