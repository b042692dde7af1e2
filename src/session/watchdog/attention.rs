//! Decides when this client listens to what is said to it alone.
//!
//! A client has one channel of its own, and not one for each lock, since it may hold 100,000. It is in the slot of
//! no lock, so in a cluster it is published to by `PUBLISH`, and the client listens on one server. A message names
//! acquisition ids and is a hint: those holds are checked, and one that the server denies was lost by force. So no
//! PING has to prove that messages arrive.

use std::time::Duration;

use super::Watchdog;

/// From this age of a hold on, this client is told of releases by force. Shorter sections cost no subscription.
const HELD_FOR_LONG: Duration = Duration::from_millis(100);

impl Watchdog {
    /// Has this client told of releases by force once a hold has stood for long, and until nothing has been due for a
    /// while. Returns how long the task may sleep, of at most `pause`.
    pub(super) fn attend(&self, pause: Option<Duration>) -> Option<Duration> {
        let backend = &self.releaser.backend;
        let Some(pause) = pause else {
            backend.attend(false);
            return None;
        };
        if backend.is_attending() {
            return Some(pause);
        }
        // An old hold is due first or last next to those that come and go, whether it is renewed or has a fixed lease.
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
