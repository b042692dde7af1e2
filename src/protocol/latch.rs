//! Calls of the latch: a string with the count, gone when it is open.

use crate::name::LockName;
use crate::protocol::counter::{self, KEPT, RequestMark};
use crate::protocol::script::{self, Arg, Call, Script};

/// What Redisson publishes when a latch opens; its waiters look at the count then.
const OPEN: i64 = 0;
/// What it publishes when there is a count again.
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
    // Redisson says "closed" here, and its waiters wait on for what never comes.
    opening(&script::LATCH_DELETE, name, mark)
}

fn opening<'a>(script: &'static Script, name: &'a LockName, mark: &'a RequestMark) -> Call<'a> {
    let args = vec![Arg::Number(OPEN), Arg::Publish, KEPT];
    counter::about(script, name, mark, args).of("a latch")
}
