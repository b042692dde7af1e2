//! The clock on which leases are measured.

use std::time::Duration;

/// Has all instants from now on measured by tokio's clock, in the whole process.
#[cfg(feature = "memory")]
pub(crate) fn follow_tokio() {
    redlatch_memory::clock::follow_tokio(|| Duration::from_nanos(BootInstant::of_system().0));
}

/// Whether leases are measured by tokio's clock, which may be paused.
pub(crate) fn is_tokios() -> bool {
    #[cfg(feature = "memory")]
    let is_tokios = redlatch_memory::clock::is_tokios();
    #[cfg(not(feature = "memory"))]
    let is_tokios = false;
    is_tokios
}

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
        if let Some(time) = redlatch_memory::clock::boot_time() {
            return Self(0).plus(time);
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
