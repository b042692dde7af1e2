//! A machine: a runtime with its own clock, which advances only on request.

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::yield_now;
use tokio::time::{Instant, advance, sleep_until};

/// How many times tasks that wake each other run before time passes.
const TURNS: usize = 8;

thread_local! {
    static NOW: Cell<u64> = const { Cell::new(0) };
    static RUNNING: Cell<usize> = const { Cell::new(0) };
    /// The start of the running machine's clock, if it has one of its own.
    static BASE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Returns the time in milliseconds, of the running machine or else of the world.
pub fn now() -> u64 {
    match BASE.get() {
        Some(base) => (Instant::now() - base).as_millis() as u64,
        None => NOW.get(),
    }
}

/// Returns the number of the process that runs, or did last.
pub fn running() -> usize {
    RUNNING.get()
}

/// Notes which process runs.
pub fn set_running(process: usize) {
    RUNNING.set(process);
}

/// Sets the time of the world.
pub fn set_now(now: u64) {
    NOW.set(now);
}

/// A runtime with a clock that may be a little faster or slower than the world's.
pub struct Machine {
    /// Never dropped: a killed process does not run the drop code of its values.
    runtime: ManuallyDrop<Runtime>,
    base: Instant,
    /// How much faster its clock is, in millionths.
    faster: i64,
}

impl Machine {
    /// Starts a machine whose clock shows the time of the world.
    pub fn start(faster: i64) -> Self {
        let mut builder = Builder::new_current_thread();
        let runtime = builder.enable_time().start_paused(true).build();
        let runtime = ManuallyDrop::new(runtime.expect("a runtime"));
        let base = runtime.block_on(async { Instant::now() });
        let machine = Self {
            runtime,
            base,
            faster,
        };
        machine.jump();
        machine
    }

    pub fn handle(&self) -> &Handle {
        self.runtime.handle()
    }

    pub fn tasks(&self) -> usize {
        self.runtime.metrics().num_alive_tasks()
    }

    /// Returns the time that its clock should show.
    fn due(&self, now: u64) -> Instant {
        let now = now as i64;
        let shown = now + now * self.faster / 1_000_000;
        self.base + Duration::from_millis(shown as u64)
    }

    /// Sets its clock to the time of the world, as after a pause. All timers in between are due at once.
    pub fn jump(&self) {
        let due = self.due(now());
        self.block_on(async move {
            let passed = due.saturating_duration_since(Instant::now());
            if !passed.is_zero() {
                advance(passed).await;
            }
        });
    }

    /// Runs its tasks for `span` milliseconds, beginning with the world's present one.
    pub fn run(&self, span: u64) {
        let due = self.due(now() + span);
        BASE.set((self.faster == 0).then_some(self.base));
        self.block_on(async move {
            if due > Instant::now() {
                return sleep_until(due).await;
            }
            // Its clock is slow, and stands still now. The tasks handle arrivals all the same.
            for _ in 0..TURNS {
                yield_now().await;
            }
        });
        BASE.set(None);
    }

    /// Runs a future that waits for nothing, with this machine's clock.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }
}
