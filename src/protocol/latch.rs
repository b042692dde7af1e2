//! Calls of the latch: a string with the count, which does not exist while the latch is open.

use crate::name::LockName;
use crate::protocol::counter::{self, KEPT, RequestMark};
use crate::protocol::script::{self, Arg, Call, Script};

/// What Redisson publishes when a latch opens. Its waiters then read the count.
const OPEN: i64 = 0;
/// What Redisson publishes when there is a count again.
const CLOSED: i64 = 1;

pub(crate) fn set<'a>(name: &'a LockName, mark: &'a RequestMark, count: u32) -> Call<'a> {
    counter::set(name, mark, count, CLOSED, Arg::Publish).of("a latch")
}

pub(crate) fn read(name: &LockName) -> Call<'_> {
    counter::read(name).of("a latch")
}

pub(crate) fn count_down<'a>(name: &'a LockName, mark: &'a RequestMark) -> Call<'a> {
    opening(&script::LATCH_COUNT_DOWN, name, mark)
}

pub(crate) fn delete<'a>(name: &'a LockName, mark: &'a RequestMark) -> Call<'a> {
    // Redisson publishes "closed" here, and its waiters go on waiting for something that never comes.
    opening(&script::LATCH_DELETE, name, mark)
}

fn opening<'a>(script: &'static Script, name: &'a LockName, mark: &'a RequestMark) -> Call<'a> {
    let args = vec![Arg::Number(OPEN), Arg::Publish, KEPT];
    counter::about(script, name, mark, args).of("a latch")
}
