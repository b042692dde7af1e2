//! The memory of this process.

use std::fs;

use crate::Failure;
use crate::worker::number;

/// Returns the resident memory of this process, in bytes.
pub(crate) fn resident() -> Result<u64, Failure> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next());
    Ok(number(kilobytes)? * 1024)
}
