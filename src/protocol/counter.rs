//! The identity of a call that changes a counter, and the calls that semaphores and latches share.
//!
//! In Redisson both are a string with a number, from which nobody can tell whether a call was carried out. So each call
//! that changes the number leaves a **mark** next to it, which identifies the same call if it arrives again.

use std::time::Duration;

use crate::name::LockName;
use crate::protocol::script::{self, Arg, Call, Request};

/// How long a mark is kept after a call, in milliseconds: longer than a late copy of the call can take. On Linux, a
/// socket that its program has closed goes on sending for about 100 seconds.
pub(crate) const KEPT: Arg<'static> = Arg::Number(120_000);
/// How long a call is tried at most, since its mark ends.
pub(crate) const LONGEST: Duration = Duration::from_secs(20);

/// The request mark of one call that changes a counter.
#[derive(Debug)]
pub(crate) struct RequestMark {
    key: Box<str>,
    /// Whether a copy of the call may still be in flight.
    in_doubt: bool,
}

impl RequestMark {
    pub(crate) fn new(name: &LockName, number: u64) -> Self {
        let beside = name.beside("redlatch_call");
        Self::of(&format!("{beside}:{number:016x}"), false)
    }

    pub(crate) fn of(key: &str, in_doubt: bool) -> Self {
        Self {
            key: key.into(),
            in_doubt,
        }
    }

    pub(crate) fn key(&self) -> &str {
        &self.key
    }
}

/// Removes the mark once the call cannot arrive again. While a copy may still be in flight, the mark is kept for
/// [`KEPT`].
impl Request for RequestMark {
    fn call(&self) -> Call<'_> {
        let kept = if self.in_doubt { KEPT } else { Arg::Number(0) };
        Call::new(&script::MARK_FORGET, vec![self.key()], vec![kept])
    }
}

/// Makes a call that sets a count unless there is one, and publishes `message`.
pub(crate) fn set<'a>(
    name: &'a LockName,
    mark: &'a RequestMark,
    count: u32,
    message: i64,
    publish: Arg<'a>,
) -> Call<'a> {
    let args = vec![
        Arg::Number(count.into()),
        Arg::Number(message),
        publish,
        KEPT,
    ];
    about(&script::COUNTER_SET, name, mark, args)
}

pub(crate) fn read(name: &LockName) -> Call<'_> {
    Call::new(&script::COUNTER_READ, vec![name.key()], Vec::new())
}

/// Makes a call that changes a counter and may publish.
pub(crate) fn about<'a>(
    script: &'static script::Script,
    name: &'a LockName,
    mark: &'a RequestMark,
    args: Vec<Arg<'a>>,
) -> Call<'a> {
    Call::new(script, vec![name.key(), name.channel(), mark.key()], args)
}
