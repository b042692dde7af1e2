//! Histories written by hand, with times in milliseconds.

use super::event::{Event, Op, Step};
use super::history::{History, Kill};

const MILLI: u64 = 1_000_000;

/// A history under construction. A process has the number of its owner, and each hold has one guard.
#[derive(Debug, Default)]
pub(crate) struct Sketch(History);

impl Sketch {
    pub(crate) fn event(mut self, at: u64, owner: u32, op: Op, step: Step) -> Self {
        self.push(at, owner, op, step, 0, 0);
        self
    }

    /// Adds a hold: the owner waits from `invoked`, holds from `from`, and releases at `to`.
    pub(crate) fn hold(self, owner: u32, invoked: u64, from: u64, to: u64, deadline: u64) -> Self {
        let mut sketch = self.granted(owner, invoked, from, deadline);
        let guard = sketch.last_guard();
        sketch.push(to, owner, Op::Release, Step::Invoke, guard, 0);
        sketch.push(to, owner, Op::Release, Step::Ok, guard, 0);
        sketch
    }

    /// Adds a hold that lasts from `from` on.
    pub(crate) fn granted(mut self, owner: u32, invoked: u64, from: u64, deadline: u64) -> Self {
        let guard = self.last_guard() + 1;
        self.push(invoked, owner, Op::Acquire, Step::Invoke, guard, 0);
        self.push(from, owner, Op::Acquire, Step::Ok, guard, deadline);
        self
    }

    /// Adds an event of the hold that was granted last.
    pub(crate) fn then(mut self, at: u64, owner: u32, op: Op, step: Step, deadline: u64) -> Self {
        let guard = self.last_guard();
        self.push(at, owner, op, step, guard, deadline);
        self
    }

    pub(crate) fn kill(mut self, at: u64, process: u32) -> Self {
        let at = at * MILLI;
        self.0.kills.push(Kill { process, at });
        self
    }

    pub(crate) fn done(self) -> History {
        self.0
    }

    fn last_guard(&self) -> u32 {
        let guards = self.0.events.iter().map(|event| event.guard);
        guards.max().unwrap_or(0)
    }

    fn push(&mut self, at: u64, owner: u32, op: Op, step: Step, guard: u32, deadline: u64) {
        self.0.events.push(Event {
            at: at * MILLI,
            process: owner,
            owner: 0,
            lock: 0,
            op,
            step,
            guard,
            deadline: deadline * MILLI,
        });
    }
}
