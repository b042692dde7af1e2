//! Decides when this client listens to its own channel.
//!
//! A client has one channel of its own, and not one for each lock, since it may hold 100,000. The channel is in the
//! slot of no lock. So in a cluster, messages are published with `PUBLISH`, and the client listens on one server. A
//! message names acquisition ids and is a hint: those holds are checked, and one that the server denies was lost by
//! force. So no PING has to prove that messages arrive.

use std::time::Duration;

use super::Watchdog;

/// From this age of a hold on, the client listens for releases by force. Shorter holds cost no subscription.
const HELD_FOR_LONG: Duration = Duration::from_millis(100);

impl Watchdog {
    /// Subscribes to the own channel once a hold has stood for [`HELD_FOR_LONG`], and unsubscribes once nothing has
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
        // Next to holds that come and go, an old hold is due first or last, whether it is renewed or has a fixed lease.
        let ends = {
            let registry = self.lock();
            let due = || registry.due.values();
            [due().next().cloned(), due().next_back().cloned()]
        };
        let ages = ends.iter().flatten().map(|hold| hold.held_for());
        let left = HELD_FOR_LONG.saturating_sub(ages.max().unwrap_or_default());
        if left.is_zero() {
            backend.attend(true);
            return Some(pause);
        }
        Some(pause.min(left))
    }
}
