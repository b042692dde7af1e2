//! What is asked for: a lock, for an owner, on terms.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind};
use crate::name::LockName;
use crate::options::Term;
use crate::owner::Owner;
use crate::session::{Anchor, Queue};

/// One call's wish, with everything checked that can be checked without the server.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    pub(crate) anchor: Arc<Anchor>,
    pub(crate) name: LockName,
    pub(crate) owner: Owner,
    pub(crate) term: Term,
    /// What must be left of the lease when the guard is handed out.
    pub(crate) min_validity: Duration,
}

impl Order {
    /// The waiters and holds of this lock in this process.
    pub(crate) fn queue(&self) -> Queue {
        self.anchor.queues.enter(self.name.key())
    }

    pub(crate) fn not_held(&self) -> Error {
        let (name, owner) = (self.name.key(), &self.owner);
        Error::new(
            ErrorKind::NotHeld,
            format!("the owner {owner} does not hold {name:?}: nothing to unlock"),
        )
    }

    pub(crate) fn too_late(&self) -> Error {
        let (name, least) = (self.name.key(), self.min_validity);
        Error::lost(format!(
            "{name:?} was granted with less than {least:?} of its lease left, and was given back"
        ))
    }

    /// How long the server may be silent before a wait without limit gives up.
    pub(crate) fn patience(&self) -> Duration {
        match self.term {
            Term::Renewed(lease) => lease.get(),
            Term::Fixed(_) => self.anchor.settings.watchdog_lease,
        }
    }
}
