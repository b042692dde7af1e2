//! The synchronization primitives of local locks and handoffs. In unit tests these are shuttle's, which tries out the
//! orders in which tasks may run.
//!
//! Only the modules that shuttle runs take their mutexes from here: `local_lock` and its parts, `record`, and
//! `handoff`. shuttle does not see mutexes of the standard library, so none may be held where a task could yield.

#[cfg(not(test))]
pub(crate) use shipped::*;
#[cfg(test)]
pub(crate) use tried::*;

#[cfg(not(test))]
mod shipped {
    pub(crate) use std::sync::{Mutex, MutexGuard};
    pub(crate) use tokio::runtime::Handle as Spawner;
    pub(crate) use tokio::sync::oneshot;
    pub(crate) use tokio::task::JoinHandle;
    pub(crate) use tokio::time::sleep;
}

#[cfg(test)]
mod tried {
    use std::cell::Cell;
    use std::future::pending;
    use std::time::Duration;

    use shuttle::future::{self, yield_now};
    use shuttle::rand::{Rng, thread_rng};

    use crate::protocol::model::has_time;

    pub(crate) use shuttle::future::JoinHandle;
    pub(crate) use shuttle::sync::{Mutex, MutexGuard};
    // It waits for nothing but its waker, which is shuttle's.
    pub(crate) use tokio::sync::oneshot;

    /// Spawns tasks as the handle of a runtime does.
    #[derive(Clone, Debug)]
    pub(crate) struct Spawner;

    impl Spawner {
        pub(crate) fn current() -> Self {
            Self
        }

        pub(crate) fn spawn<T: Send + 'static>(
            &self,
            task: impl Future<Output = T> + Send + 'static,
        ) -> JoinHandle<T> {
            future::spawn(task)
        }
    }

    /// How many orders a test tries.
    pub(crate) fn orders() -> usize {
        if has_time() { 2_000 } else { 1_000 }
    }

    thread_local! {
        /// Whether timers fire. A step that works only because of a timer would be slow.
        pub(crate) static TIMERS: Cell<bool> = const { Cell::new(true) };
    }

    /// Time has no length here: a timer fires before any other event, after it, or never.
    pub(crate) async fn sleep(_: Duration) {
        if !TIMERS.get() {
            pending::<()>().await;
        }
        while thread_rng().gen_bool(0.75) {
            yield_now().await;
        }
    }

    /// Waits for tasks, some of which are aborted at any point.
    pub(crate) async fn ended(stay: Vec<JoinHandle<()>>, leave: Vec<JoinHandle<()>>) {
        for task in &leave {
            for _ in 0..thread_rng().gen_range(0..12) {
                yield_now().await;
            }
            task.abort();
        }
        for task in stay {
            task.await.expect("no task fails");
        }
        for task in leave {
            task.await.ok();
        }
    }
}
