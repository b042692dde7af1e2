//! Logs a call that waits for longer than usual, and one that was in vain.

use std::future::Future;
use std::pin::pin;

use tokio::time::sleep;
use tracing::field::display;
use tracing::{Level, debug, enabled, warn};

use super::request::AcquireRequest;
use crate::session::LocalLock;

impl AcquireRequest {
    /// Waits for an acquisition, and logs once if it takes longer than the client's `long_wait`. `local` has the hold of
    /// this process, if there is one.
    pub(super) async fn tell_if_long<T>(
        &self,
        local: impl FnOnce() -> LocalLock,
        acquisition: impl Future<Output = T>,
    ) -> T {
        let Some(waited) = self.client.settings.long_wait else {
            return acquisition.await;
        };
        let mut acquisition = pin!(acquisition);
        tokio::select! {
            biased;
            acquired = &mut acquisition => return acquired,
            () = sleep(waited) => {}
        }
        {
            let (lock, owner) = (self.name.key(), self.shown_owner());
            let holder = local().holder();
            let held_by = holder.as_ref().map(|hold| display(hold.shown_owner()));
            warn!(target: "redlatch", %lock, %owner, ?waited, held_by, "long wait");
        }
        acquisition.await
    }

    /// Logs that the lock was busy until the limit of the call.
    pub(super) fn tell_busy(&self, local: impl FnOnce() -> LocalLock) {
        if enabled!(target: "redlatch", Level::DEBUG) {
            let (lock, owner) = (self.name.key(), self.shown_owner());
            let holder = local().holder();
            let held_by = holder.as_ref().map(|hold| display(hold.shown_owner()));
            debug!(target: "redlatch", %lock, %owner, held_by, "busy");
        }
    }
}
