//! How the kinds of lock differ in waiting and in being handed on: a table, an entry a kind.

use super::hold_key::Kind;

/// What the calls of a kind may do.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(crate) struct Policy {
    /// Messages tell of a release. Otherwise a call asks after pauses.
    pub(crate) listens: bool,
    /// The processes that wait stand in line on the server, which tells the first of them by name.
    pub(crate) takes_turns: bool,
    /// While a hold of this process stands nobody is asked, since its end is signalled here. Not where the server is told
    /// who waits.
    pub(crate) trusts_local_holds: bool,
    /// A hold that is given back may be left to a waiter of this process, past those of others. If owners share the lock, to
    /// one that came before those.
    pub(crate) passes_on: bool,
    /// Owners hold the lock next to each other, those of one process by one record.
    pub(crate) shares: bool,
    /// An owner may take the lock again.
    pub(crate) reenters: bool,
}

/// Of what is asked for until a message says that the answer may have changed.
pub(crate) const COUNTER: Policy = Policy {
    listens: true,
    takes_turns: false,
    trusts_local_holds: false,
    passes_on: false,
    shares: false,
    reenters: false,
};

/// Of what is asked for of several servers: whose messages count differs from round to round.
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

    /// Whether owners hold the lock next to each other.
    pub(crate) fn is_shared(&self) -> bool {
        self.policy().shares
    }

    /// Whether a hold that is given back may be left to a waiter of this process, past those of others.
    pub(crate) fn is_passed_on(&self) -> bool {
        self.policy().passes_on
    }

    /// Whether the processes that wait take turns: they stand in line on the server, and the first is told.
    pub(crate) fn takes_turns(&self) -> bool {
        self.policy().takes_turns
    }

    /// Whether an owner may take the lock again.
    pub(crate) fn is_reentrant(&self) -> bool {
        self.policy().reenters
    }
}
