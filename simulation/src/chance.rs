//! Makes a process repeatable: the random numbers and the time that the standard library, tokio and other crates get
//! from the system follow from one number.
//!
//! The two functions of the C library below replace those of the system in this program. With the same random numbers,
//! hash maps have the same order, tokio's `select!` tries the same branch first, and ids are the same.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::rand::GetRandomFlags;
use rustix::time::{ClockId, clock_gettime as of_system};

static IS_REPEATABLE: AtomicBool = AtomicBool::new(false);
static STATE: AtomicU64 = AtomicU64::new(0);

/// Seconds since 1970 at which every repeatable process begins.
pub const BEGIN: u64 = 1_700_000_000;

/// From now on, derives all random numbers of this process from a seed, and stops its system clocks. Must be called
/// first, since earlier random numbers do not change.
pub fn repeat(seed: u64) {
    STATE.store(seed, Ordering::Relaxed);
    IS_REPEATABLE.store(true, Ordering::Relaxed);
    fastrand::seed(seed);
}

/// Returns a different number for each input, as splitmix64 does.
pub fn mixed(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// As `timespec` on 64-bit Linux.
#[repr(C)]
struct Time {
    seconds: i64,
    nanos: i64,
}

/// # Safety
///
/// `buffer` is where `length` bytes may be written.
#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(buffer: *mut u8, length: usize, _flags: u32) -> isize {
    if length == 0 {
        return 0;
    }
    // SAFETY: the caller promises it, as to the function of the C library.
    let bytes = unsafe { std::slice::from_raw_parts_mut(buffer, length) };
    if !IS_REPEATABLE.load(Ordering::Relaxed) {
        return rustix::rand::getrandom(bytes, GetRandomFlags::empty())
            .map_or(-1, |drawn| drawn as isize);
    }
    for chunk in bytes.chunks_mut(8) {
        let number = mixed(STATE.fetch_add(1, Ordering::Relaxed));
        chunk.copy_from_slice(&number.to_le_bytes()[..chunk.len()]);
    }
    length as isize
}

/// # Safety
///
/// `time` is where a `timespec` may be written.
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(clock: i32, time: *mut Time) -> i32 {
    let (seconds, nanos) = if IS_REPEATABLE.load(Ordering::Relaxed) {
        (BEGIN as i64, 0)
    } else {
        let time = of_system(match clock {
            0 => ClockId::Realtime,
            _ => ClockId::Monotonic,
        });
        (time.tv_sec, time.tv_nsec)
    };
    // SAFETY: the caller promises it, as to the function of the C library.
    unsafe { time.write(Time { seconds, nanos }) };
    0
}
