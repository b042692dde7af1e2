//! One event, and the text line for it.

use std::fmt;

use rustix::time::{ClockId, clock_gettime};

/// What a worker did, or the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    /// `CLOCK_MONOTONIC` in nanoseconds: the same clock in all processes of a machine.
    pub(crate) at: u64,
    pub(crate) process: u32,
    pub(crate) owner: u32,
    pub(crate) lock: u32,
    pub(crate) op: Op,
    pub(crate) step: Step,
    /// The number of the guard, within the process.
    pub(crate) guard: u32,
    /// The time until which the guard can at least be trusted, on the same clock. Zero if the event does not tell.
    pub(crate) deadline: u64,
}

macro_rules! words {
    ($(#[$about:meta])* $name:ident { $($(#[$note:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum $name { $($(#[$note])* $variant),+ }

        impl $name {
            fn parse(word: &str) -> Option<Self> {
                match word {
                    $($word => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$variant => $word),+ })
            }
        }
    };
}

words! {
    /// The operation.
    Op {
        /// A wait for a lock.
        Acquire = "acquire",
        /// A single attempt that does not wait.
        Try = "try",
        /// One more level for an owner that holds the lock.
        Reenter = "reenter",
        /// A look at the lease.
        Hold = "hold",
        /// A read of the counter and a write of that value plus one, in the section.
        Increment = "increment",
        Release = "release",
        /// The section in which a victim is killed.
        Stay = "stay",
    }
}

words! {
    /// How far the operation has come.
    Step {
        Invoke = "invoke",
        Ok = "ok",
        /// The operation had no effect. For `hold` and `release`: the lease was lost.
        Fail = "fail",
        Unknown = "unknown",
    }
}

impl Event {
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let mut next = || words.next();
        Some(Self {
            at: next()?.parse().ok()?,
            process: next()?.parse().ok()?,
            owner: next()?.parse().ok()?,
            lock: next()?.parse().ok()?,
            op: Op::parse(next()?)?,
            step: Step::parse(next()?)?,
            guard: next()?.parse().ok()?,
            deadline: next()?.parse().ok()?,
        })
    }

    pub(crate) fn is(&self, op: Op, step: Step) -> bool {
        self.op == op && self.step == step
    }

    /// Returns whether an owner that did not hold the lock acquired it.
    pub(crate) fn is_grant(&self) -> bool {
        self.is(Op::Acquire, Step::Ok) || self.is(Op::Try, Step::Ok)
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            at,
            process,
            owner,
            lock,
            op,
            step,
            guard,
            deadline,
        } = self;
        write!(
            f,
            "{at} {process} {owner} {lock} {op} {step} {guard} {deadline}"
        )
    }
}

/// Returns the time on the clock of all events, in nanoseconds.
pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[test]
fn event_survives_its_line() {
    let event = Event {
        at: now(),
        process: 3,
        owner: 15,
        lock: 2,
        op: Op::Reenter,
        step: Step::Unknown,
        guard: 77,
        deadline: 5,
    };
    assert_eq!(Event::parse(&event.to_string()), Some(event));
    assert_eq!(Event::parse("12 3 15 2 reenter"), None);
}
