//! The clock of a process with servers in memory, which is tokio's: a test may pause it and advance it.

use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use super::BootInstant;

/// Where all clocks are known, once this process has had a server in memory.
///
/// Read once and not again: two clocks cannot be read at the same instant, and time would seem to go back.
pub(super) static ORIGIN: OnceLock<Origin> = OnceLock::new();

/// One instant on each of the clocks.
pub(super) struct Origin {
    tokio: Instant,
    boot: BootInstant,
    unix: Duration,
}

/// Has all instants from now on measured by tokio's clock, in the whole process.
///
/// That clock is the runtime's. Outside of any runtime it is the system's, and cannot be paused.
pub(crate) fn follow_tokio() {
    ORIGIN.get_or_init(Origin::here);
}

/// Has this process begin at this time since 1970, by tokio's clock, if no clock was asked before.
pub(crate) fn begin_at(unix: Duration) {
    ORIGIN.get_or_init(|| Origin {
        tokio: Instant::from_std(std::time::Instant::now()),
        boot: BootInstant(0).plus(unix),
        unix,
    });
}

/// Returns the time since 1970, by the same clock.
pub(crate) fn unix_time() -> Duration {
    let origin = ORIGIN.get_or_init(Origin::here);
    origin.shift(
        origin.unix,
        Duration::saturating_add,
        Duration::saturating_sub,
    )
}

impl Origin {
    fn here() -> Self {
        Self {
            // The system's, whatever the runtime's is by now.
            tokio: Instant::from_std(std::time::Instant::now()),
            boot: BootInstant::of_system(),
            unix: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default(),
        }
    }

    pub(super) fn now(&self) -> BootInstant {
        self.shift(self.boot, BootInstant::plus, BootInstant::minus)
    }

    /// Moves an instant by the time from this origin until now, which may be negative: another runtime may have
    /// paused its clock before.
    fn shift<T>(&self, instant: T, plus: fn(T, Duration) -> T, minus: fn(T, Duration) -> T) -> T {
        let now = Instant::now();
        match now.checked_duration_since(self.tokio) {
            Some(later) => plus(instant, later),
            None => minus(instant, self.tokio.duration_since(now)),
        }
    }
}
