//! Decides when this client listens to its own channel.
//!
//! A client has one channel of its own, and not one for each lock, since it may hold 100,000. The channel is in the
//! slot of no lock. So in a cluster, messages are published with `PUBLISH`, and the client listens on one server. A
//! message names acquisition ids and is a hint: those holds are checked, and one that the server denies was lost by
//! force. So no PING has to prove that messages arrive.

use std::time::Duration;

use super::Watchdog;
use crate::clock::BootInstant;

/// Once there have been holds for this long, the client listens for releases by force. A short hold costs no
/// subscription.
const HELD_FOR_LONG: Duration = Duration::from_millis(100);

impl Watchdog {
    /// Subscribes to the own channel once there have been holds for [`HELD_FOR_LONG`], and unsubscribes once nothing has
    /// been due for a while. Returns how long the task may sleep, at most `pause`.
    pub(super) fn attend(&self, pause: Option<Duration>) -> Option<Duration> {
        let backend = &self.releaser.backend;
        let Some(pause) = pause else {
            backend.attend(false);
            return None;
        };
        if backend.is_attending() {
            return Some(pause);
        }
        let since = self.lock().since;
        let left = HELD_FOR_LONG.saturating_sub(since.until(BootInstant::now()));
        if left.is_zero() {
            backend.attend(true);
            return Some(pause);
        }
        Some(pause.min(left))
    }
}
