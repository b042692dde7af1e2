//! The clock on which leases are measured.

use std::time::Duration;

/// An instant on a clock that keeps counting while the machine is suspended.
///
/// On Linux this is `CLOCK_BOOTTIME`. The clocks of `std` and tokio stop during a suspend there, and with them a lease
/// would look valid long after the server has given the lock to another owner.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BootInstant(u64);

impl BootInstant {
    /// An instant later than any other.
    pub(crate) const NEVER: Self = Self(u64::MAX);

    pub(crate) fn now() -> Self {
        #[cfg(feature = "memory")]
        if let Some(origin) = in_memory::ORIGIN.get() {
            return origin.now();
        }
        Self::of_system()
    }

    fn of_system() -> Self {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let clock = rustix::time::ClockId::Boottime;
        // Elsewhere on Unix, the monotonic clock either counts through sleep (macOS) or is the best clock available.
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        let clock = rustix::time::ClockId::Monotonic;
        let time = rustix::time::clock_gettime(clock);
        Self((time.tv_sec as u64).saturating_mul(1_000_000_000) + time.tv_nsec as u64)
    }

    #[cfg(test)]
    pub(crate) fn from_millis(millis: u64) -> Self {
        Self(millis * 1_000_000)
    }

    #[cfg(test)]
    pub(crate) fn millis(self) -> u64 {
        self.0 / 1_000_000
    }

    pub(crate) fn plus(self, span: Duration) -> Self {
        let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }

    pub(crate) fn minus(self, span: Duration) -> Self {
        let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_sub(nanos))
    }

    /// Returns the last multiple of `grid` that is not after this instant.
    pub(crate) fn round_down(self, grid: Duration) -> Self {
        let grid = u64::try_from(grid.as_nanos()).unwrap_or(u64::MAX).max(1);
        Self(self.0 - self.0 % grid)
    }

    /// Returns the time from this instant to a later one, or zero if the other one is not later.
    pub(crate) fn until(self, later: Self) -> Duration {
        Duration::from_nanos(later.0.saturating_sub(self.0))
    }
}

#[cfg(feature = "memory")]
pub(crate) use in_memory::{follow_tokio, unix_time};

/// The clock of a process with servers in memory, which is tokio's: a test may pause it and advance it.
#[cfg(feature = "memory")]
mod in_memory {
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
        fn shift<T>(
            &self,
            instant: T,
            plus: fn(T, Duration) -> T,
            minus: fn(T, Duration) -> T,
        ) -> T {
            let now = Instant::now();
            match now.checked_duration_since(self.tokio) {
                Some(later) => plus(instant, later),
                None => minus(instant, self.tokio.duration_since(now)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates_instead_of_wrapping() {
        let start = BootInstant::now();
        assert_eq!(start.plus(Duration::MAX), BootInstant::NEVER);
        assert_eq!(BootInstant::NEVER.until(start), Duration::ZERO);
        assert_eq!(
            start.until(start.plus(Duration::from_secs(3))),
            Duration::from_secs(3)
        );
    }
}
