//! How long the tests last that can go on and on.
#![allow(unreachable_pub, reason = "programs of one file use it too")]

use std::env;
use std::time::Duration;

/// Returns what `REDLATCH_SOAK` says, if it is set.
pub fn asked_for() -> Option<Duration> {
    let seconds = env::var("REDLATCH_SOAK").ok()?;
    let seconds = seconds
        .parse()
        .expect("REDLATCH_SOAK is a number of seconds");
    Some(Duration::from_secs(seconds))
}

/// Returns the same, a minute at most: zero if it is not set.
pub fn a_minute_at_most() -> Duration {
    let asked = asked_for().unwrap_or_default();
    asked.min(Duration::from_secs(60))
}
