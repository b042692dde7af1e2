//! The clock that all processes of one machine share, and the processor time of this one.

use std::time::{Duration, SystemTime};

use rustix::time::{ClockId, clock_gettime};

/// Returns the time since the machine started, which is the same in every process.
pub(crate) fn now() -> Duration {
    read(ClockId::Monotonic)
}

/// Returns the time on the wall clock, which programs in other languages can read too.
pub(crate) fn wall() -> Duration {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.unwrap_or_default()
}

/// Returns the processor time that this process has spent, in all its threads.
pub(crate) fn processor_time() -> Duration {
    read(ClockId::ProcessCPUTime)
}

fn read(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
