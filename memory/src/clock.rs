//! The clock of a process with servers in memory, which is tokio's: a test may pause it and advance it.
//!
//! Until one of these functions has chosen that clock, servers in memory go by the system's.

use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// Where all clocks are known, once this process goes by tokio's.
///
/// Read once and not again: two clocks cannot be read at the same instant, and time would seem to go back.
static ORIGIN: OnceLock<Origin> = OnceLock::new();

/// One instant on each of the clocks.
struct Origin {
    tokio: Instant,
    boot: Duration,
    unix: Duration,
}

/// Has all time from now on measured by tokio's clock, in the whole process. `boot` returns the time since the machine
/// has started, and is called if nobody has chosen this clock before.
///
/// That clock is the runtime's. Outside of any runtime it is the system's, and cannot be paused.
pub fn follow_tokio(boot: impl FnOnce() -> Duration) {
    begin(boot, system_time);
}

/// Has this process begin at this time since 1970, by tokio's clock, whatever the clocks of the computer say, so that a
/// process can be repeated. For a process that has asked no clock so far.
pub fn begin_at(unix: Duration) {
    begin(|| unix, || unix);
}

fn begin(boot: impl FnOnce() -> Duration, unix: impl FnOnce() -> Duration) {
    ORIGIN.get_or_init(|| Origin {
        // The system's, whatever the runtime's is by now.
        tokio: Instant::from_std(std::time::Instant::now()),
        boot: boot(),
        unix: unix(),
    });
}

/// Whether anybody has chosen that clock.
pub fn is_tokios() -> bool {
    ORIGIN.get().is_some()
}

/// Returns the time since the machine has started, by tokio's clock. `None` if nobody has chosen that clock.
pub fn boot_time() -> Option<Duration> {
    ORIGIN.get().map(|origin| origin.shifted(origin.boot))
}

/// Returns the time since 1970, by the same clock.
pub(crate) fn unix_time() -> Duration {
    let origin = ORIGIN.get();
    origin.map_or_else(system_time, |origin| origin.shifted(origin.unix))
}

fn system_time() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

impl Origin {
    /// Moves a time by what has passed since this origin, which may be negative: another runtime may have paused its
    /// clock before.
    fn shifted(&self, time: Duration) -> Duration {
        let now = Instant::now();
        match now.checked_duration_since(self.tokio) {
            Some(later) => time.saturating_add(later),
            None => time.saturating_sub(self.tokio.duration_since(now)),
        }
    }
}
