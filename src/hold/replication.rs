//! Holds that count only once replicas have acknowledged them, for clients that ask for that.
//!
//! The wait begins once the hold stands, with its guard in the future of the call. Dropping the future gives the hold
//! back like any other guard. If nobody polls the call, the hold is given back too. Replicas acknowledge the record. So
//! a call that takes it over in memory, or takes another level, does not wait again, except while the first wait goes
//! on.

use std::iter;
use std::sync::Arc;

use futures_util::future::try_join_all;

use super::guard::LockGuard;
use crate::error::{Error, ErrorKind};
use crate::loss::LossReason;
use crate::options::MinReplicas;
use crate::protocol::hold_key::HoldKey;
use crate::protocol::script::Call;
use crate::session::backend::{Acknowledged, Look};

/// Asks whether a hold stands.
struct HoldCheck(HoldKey);

impl Look for HoldCheck {
    fn call(&self) -> Call<'_> {
        self.0.kind.shape().check(iter::once(&self.0))
    }
}

impl LockGuard {
    /// Returns once as many replicas as the client asks for have acknowledged the hold: at once if it asks for none.
    /// Otherwise gives the level back, and fails.
    pub(super) async fn acknowledged(self) -> Result<Self, Error> {
        match self.request.client.settings.min_replicas {
            Some(asked) if !self.hold.record.is_acknowledged() => {
                Box::pin(self.ask_replicas(asked)).await
            }
            _ => Ok(self),
        }
    }

    async fn ask_replicas(self, asked: MinReplicas) -> Result<Self, Error> {
        let client = self.request.client.clone();
        let hold = Arc::new(HoldCheck(self.hold.key().clone()));
        let acknowledged = client.unless_closed(client.backend.acknowledged(hold));
        let error = match acknowledged.await? {
            Ok(Acknowledged::Enough) => {
                self.hold.record.acknowledged();
                match self.is_timely() {
                    true => return Ok(self),
                    false => self.request.too_late(),
                }
            }
            Ok(Acknowledged::By(count)) => self.too_few(count, asked),
            Ok(Acknowledged::Gone) => {
                drop(client.watchdog.lose(&self.hold, LossReason::Gone));
                return Err(self.lost_error());
            }
            Err(error) => self.request.blame(error),
        };
        // The next call here would only wait for the same replicas.
        self.hold.record.stay();
        // Not waited for: a server that hangs would cost the call another timeout.
        drop(self);
        Err(error)
    }

    fn too_few(&self, count: u32, asked: MinReplicas) -> Error {
        let (name, MinReplicas { least, within }) = (self.request.name.key(), asked);
        let text = format!(
            "{name:?} was granted, and released again: {count} of {least} replicas had it within {within:?}; see whether \
             the replicas are connected, and how far they are behind"
        );
        Error::new(ErrorKind::Backend, text).passing()
    }
}

/// Does the same for a lock, if it was acquired. Returns `None` if nobody polled the call meanwhile: the lock was given
/// back, and the call begins again.
pub(super) async fn acknowledged(
    taken: Result<Option<LockGuard>, Error>,
) -> Option<Result<Option<LockGuard>, Error>> {
    match taken {
        Ok(Some(guard))
            if guard.request.client.settings.min_replicas.is_some()
                && !guard.hold.record.is_acknowledged() =>
        {
            let client = guard.request.client.clone();
            let acknowledged = Box::pin(client.while_polled(guard.acknowledged()));
            Some(acknowledged.await?.map(Some))
        }
        taken => Some(taken),
    }
}

/// Does the same for the locks of a set, all at the same time. If one fails, all are given back.
pub(super) async fn all_acknowledged(guards: Vec<LockGuard>) -> Result<Vec<LockGuard>, Error> {
    let asks = |guard: &LockGuard| guard.request.client.settings.min_replicas.is_some();
    match guards.iter().any(asks) {
        true => try_join_all(guards.into_iter().map(LockGuard::acknowledged)).await,
        false => Ok(guards),
    }
}
