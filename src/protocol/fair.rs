//! Calls of the fair lock, whose waiters stand in a queue on the server.

use std::sync::Arc;
use std::time::Duration;

use crate::name::LockName;
use crate::options::LeaseTime;
use crate::protocol::hold_key::{HoldKey, Line};
use crate::protocol::lock::{self, UNLOCKED};
use crate::protocol::script::{self, Arg, Call};

impl Line {
    /// The keys that Redisson uses for a fair lock of this name, and one of our own beside them.
    pub(crate) fn new(name: &LockName, worth: Duration) -> Self {
        Self {
            worth,
            queue: name.beside("redisson_lock_queue").into(),
            scores: name.beside("redisson_lock_timeout").into(),
            places: name.beside("redlatch_lock_places").into(),
        }
    }

    fn worth(&self) -> Arg<'_> {
        // At most a day of milliseconds.
        Arg::Number(self.worth.as_millis() as i64)
    }
}

/// Takes the lock if it is this owner's turn; else, with a priority, stands in the queue.
pub(crate) fn acquire<'a>(
    key: &'a HoldKey,
    line: &'a Line,
    lease: LeaseTime,
    stand: Option<i32>,
) -> Call<'a> {
    let rest = [
        lease.into(),
        Arg::Text(if stand.is_some() { "wait" } else { "try" }),
        Arg::Number(stand.unwrap_or(0).into()),
        Arg::Number(UNLOCKED),
        Arg::Publish,
        line.worth(),
    ];
    call(key, line, &script::FAIR_ACQUIRE, rest)
}

pub(crate) fn release<'a>(key: &'a HoldKey, line: &'a Line, share: u32) -> Call<'a> {
    let rest = [
        share.into(),
        Arg::Number(UNLOCKED),
        Arg::Publish,
        line.worth(),
    ];
    call(key, line, &script::FAIR_RELEASE, rest)
}

pub(crate) fn force_release<'a>(name: &'a LockName, line: &'a Line) -> Call<'a> {
    let keys = vec![&**name.key(), &**name.channel(), &*line.queue];
    let args = vec![Arg::Number(UNLOCKED), Arg::Publish];
    Call::new(&script::FAIR_FORCE_RELEASE, keys, args)
}

/// Where the owner of this hold is told that it is first and the lock is free.
pub(crate) fn channel(key: &HoldKey) -> Arc<str> {
    format!("{}:{}", key.name.channel(), key.field()).into()
}

fn call<'a, const N: usize>(
    key: &'a HoldKey,
    line: &'a Line,
    script: &'static script::Script,
    rest: [Arg<'a>; N],
) -> Call<'a> {
    let mut call = lock::call(key, script, rest);
    call.keys.extend([
        &**key.name.channel(),
        &*line.queue,
        &*line.scores,
        &*line.places,
    ]);
    call
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::owner::Owner;
    use crate::protocol::hold_key::Kind;

    #[test]
    fn keys_and_channels_follow_redissons_rules() {
        for (name, tagged) in [("k", "{k}"), ("{t}:x", "{t}:x")] {
            let name = LockName::new("", name).unwrap();
            let line = Line::new(&name, Duration::from_secs(300));
            assert_eq!(*line.queue, format!("redisson_lock_queue:{tagged}"));
            assert_eq!(*line.scores, format!("redisson_lock_timeout:{tagged}"));
            assert_eq!(*line.places, format!("redlatch_lock_places:{tagged}"));
            let kind = Kind::Fair(Arc::new(line));
            let key = HoldKey::new(name, kind, "c-1", &Owner::named("req-7"), 1);
            let expected = format!("redisson_lock__channel:{tagged}:req-7");
            assert_eq!(*channel(&key), expected);
        }
    }
}
