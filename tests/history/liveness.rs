//! Liveness: a lock that is released while a call waits for it is soon granted.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use super::event::{Event, Op, Step};
use super::history::History;
use super::hold::{End, Hold, sorted};

/// The period from a release until the next grant, or until no call waited any more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gap {
    lock: u32,
    released: u64,
    ended: u64,
}

/// The bound within which waiters are served.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Promise {
    pub(crate) within: Duration,
    /// How much longer a grant may take after a process was killed, since that process may have been granted the lock
    /// without a record of it.
    pub(crate) lease: Duration,
}

#[derive(Debug, Default)]
struct Lock {
    waiting: HashSet<(u32, u32)>,
    released: Option<u64>,
}

enum BootInstant {
    Event(Event),
    Freed { lock: u32 },
    Killed { process: u32 },
}

impl Gap {
    pub(crate) fn length(&self) -> Duration {
        Duration::from_nanos(self.ended - self.released)
    }
}

/// Returns every period during which a lock was free and a call waited for it.
pub(crate) fn gaps(history: &History, holds: &[Hold]) -> Vec<Gap> {
    let mut moments: Vec<(u64, BootInstant)> = Vec::new();
    // The sort is stable: of entries at the same time, releases come first, so that a lock is freed before it is
    // granted, and events keep their order, so that the end of an owner's wait comes before its next wait.
    for (lock, at) in releases(holds) {
        moments.push((at, BootInstant::Freed { lock }));
    }
    for kill in &history.kills {
        let process = kill.process;
        moments.push((kill.at, BootInstant::Killed { process }));
    }
    let events = sorted(&history.events);
    moments.extend(
        events
            .into_iter()
            .map(|event| (event.at, BootInstant::Event(event))),
    );
    moments.sort_by_key(|(at, _)| *at);

    let mut locks: HashMap<u32, Lock> = HashMap::new();
    let mut gaps = Vec::new();
    let mut close = |id: u32, lock: &mut Lock, ended: u64| {
        if let Some(released) = lock.released.take() {
            gaps.push(Gap {
                lock: id,
                released,
                ended,
            });
        }
    };
    let end = moments.last().map_or(0, |(at, _)| *at);
    for (at, moment) in moments {
        match moment {
            BootInstant::Freed { lock } => {
                let lock = locks.entry(lock).or_default();
                lock.released = (!lock.waiting.is_empty()).then_some(at);
            }
            BootInstant::Killed { process } => {
                for (id, lock) in &mut locks {
                    lock.waiting.retain(|(waiter, _)| *waiter != process);
                    if lock.waiting.is_empty() {
                        close(*id, lock, at);
                    }
                }
            }
            BootInstant::Event(event) => {
                let lock = locks.entry(event.lock).or_default();
                let call = (event.process, event.guard);
                if event.is(Op::Acquire, Step::Invoke) {
                    lock.waiting.insert(call);
                } else if event.op == Op::Acquire {
                    lock.waiting.remove(&call);
                }
                let taken = event.is_grant() || event.is(Op::Reenter, Step::Ok);
                if taken || lock.waiting.is_empty() {
                    close(event.lock, lock, at);
                }
            }
        }
    }
    for (id, lock) in &mut locks {
        close(*id, lock, end);
    }
    gaps
}

/// Returns the gaps that lasted too long.
pub(crate) fn delays(history: &History, gaps: &[Gap], promise: Promise) -> Vec<String> {
    let late = gaps.iter().filter(|gap| {
        let faulty = history.kills.iter().any(|kill| {
            gap.ended >= kill.at && gap.released <= kill.at + promise.lease.as_nanos() as u64
        });
        let grace = if faulty {
            promise.lease
        } else {
            Duration::ZERO
        };
        gap.length() > promise.within + grace
    });
    let shown = |gap: &Gap| {
        let (lock, from, length) = (gap.lock, gap.released, gap.length());
        format!("lock {lock} was free for {length:?} from {from} on, and somebody waited")
    };
    late.map(shown).collect()
}

/// Returns the locks and the times at which an owner released its last level.
fn releases(holds: &[Hold]) -> Vec<(u32, u64)> {
    let mut last: HashMap<(u32, (u32, u32)), Hold> = HashMap::new();
    let mut freed = Vec::new();
    let mut holds = holds.to_vec();
    holds.sort_by_key(|hold| hold.from);
    for hold in holds {
        let span = last.entry((hold.lock, hold.owner)).or_insert(hold);
        if hold.from > span.to {
            freed.push(*span);
            *span = hold;
        } else if hold.to > span.to {
            *span = hold;
        }
    }
    freed.extend(last.into_values());
    let released = freed.iter().filter(|span| span.end == End::Released);
    released.map(|span| (span.lock, span.to)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::hold::holds;
    use super::super::sketch::Sketch;
    use super::*;

    const PROMISE: Promise = Promise {
        within: Duration::from_millis(250),
        lease: Duration::from_secs(2),
    };

    fn late(sketch: Sketch) -> usize {
        let history = sketch.done();
        let gaps = gaps(&history, &holds(&history));
        delays(&history, &gaps, PROMISE).len()
    }

    fn held_until_100() -> Sketch {
        Sketch::default().hold(1, 0, 10, 100, 90_000)
    }

    #[test]
    fn grant_soon_after_the_release_is_accepted() {
        assert_eq!(late(held_until_100().hold(2, 50, 350, 360, 90_000)), 0);
        // No call waited at the release.
        assert_eq!(
            late(held_until_100().hold(2, 4_900, 5_000, 5_010, 90_000)),
            0
        );
        // Another owner was faster.
        let passed_by = held_until_100().hold(2, 200, 210, 5_000, 90_000);
        assert_eq!(late(passed_by.hold(3, 50, 5_010, 5_020, 90_000)), 0);
        // The waiter gave up.
        let gave_up = held_until_100().event(50, 2, Op::Acquire, Step::Invoke);
        assert_eq!(
            late(
                gave_up
                    .event(300, 2, Op::Acquire, Step::Fail)
                    .hold(3, 5_000, 5_010, 5_020, 90_000)
            ),
            0
        );
        // After the first release, one level is left.
        let nested = held_until_100().hold(1, 20, 30, 2_000, 90_000);
        assert_eq!(late(nested.hold(2, 50, 2_010, 2_020, 90_000)), 0);
    }

    #[test]
    fn late_grant_is_rejected() {
        assert_eq!(late(held_until_100().hold(2, 50, 351, 360, 90_000)), 1);
        let never = held_until_100().event(50, 2, Op::Acquire, Step::Invoke);
        assert_eq!(late(never.event(351, 3, Op::Try, Step::Fail)), 1);
    }

    #[test]
    fn a_kill_excuses_one_lease() {
        let killed = || held_until_100().kill(90, 9);
        assert_eq!(late(killed().hold(2, 50, 2_350, 2_360, 90_000)), 0);
        assert_eq!(late(killed().hold(2, 50, 2_351, 2_360, 90_000)), 1);
        let long_ago = Sketch::default().kill(1, 9).hold(1, 0, 10, 5_000, 90_000);
        assert_eq!(late(long_ago.hold(2, 50, 5_251, 5_260, 90_000)), 1);
    }
}
