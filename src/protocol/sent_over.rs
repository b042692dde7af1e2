//! Records the connections that the requests of a call went over, to decide whether its undo can be sent behind them.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The connections that may have carried the requests of one call.
///
/// A server carries out the requests of one connection in order. So a request behind all of them finds what they did,
/// and none of them can run after it.
#[derive(Debug, Default)]
pub(crate) struct SentOver(Mutex<Carriers>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Carriers {
    #[default]
    None,
    One(Carrier),
    Several,
}

/// A connection: the number of its server in this process, and its own number among those to that server.
pub(crate) type Carrier = (u64, u64);

impl SentOver {
    /// Records a request before it is sent.
    pub(crate) fn note(&self, carrier: Carrier) {
        let mut carriers = self.lock();
        *carriers = match *carriers {
            Carriers::None => Carriers::One(carrier),
            Carriers::One(first) if first == carrier => return,
            _ => Carriers::Several,
        };
    }

    /// Whether there were requests, and all of them went over this connection.
    pub(crate) fn is_only(&self, carrier: Carrier) -> bool {
        *self.lock() == Carriers::One(carrier)
    }

    /// Forgets requests that were answered.
    pub(crate) fn clear(&self) {
        *self.lock() = Carriers::None;
    }

    fn lock(&self) -> MutexGuard<'_, Carriers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
