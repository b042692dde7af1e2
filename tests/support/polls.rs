//! Polls a future by hand, and drops it at a chosen poll.

use std::cell::Cell;
use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use redlatch_testkit::Proxy;
use tokio::sync::Notify;
use tokio::time::timeout;

/// A future that is not woken for this long waits for something that does not happen by itself.
const QUIET: Duration = Duration::from_millis(60);
const LIMIT: Duration = Duration::from_secs(10);

/// When a future is dropped, and what the network does at that time.
#[derive(Debug)]
pub struct Polls<'a> {
    proxy: &'a Proxy,
    /// How often the future is polled.
    count: usize,
    /// Whether the reply to what the last poll sends is held back until the future is dropped.
    held: bool,
    /// Whether the future, after its last poll, is dropped only once it is woken or, if `held`, once a request has had
    /// the time to run. Its reply has then arrived or is held back. If `false`, the future is dropped at once.
    woken: bool,
    end: Cell<Option<End>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Dropped,
    Completed,
}

struct WakeSource(Notify);

impl Wake for WakeSource {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }
}

impl Polls<'_> {
    /// Runs a case with every number of polls until its future completes, and with each way to drop it.
    pub async fn sweep(proxy: &Proxy, what: &str, case: impl AsyncFn(&str, &Polls<'_>)) {
        for (held, woken) in [(false, false), (false, true), (true, false), (true, true)] {
            for count in 1.. {
                let polls = Polls {
                    proxy,
                    count,
                    held,
                    woken,
                    end: Cell::new(None),
                };
                let name = format!("{what}, held: {held}, woken: {woken}, polls: {count}");
                case(&name, &polls).await;
                match polls.end.get() {
                    Some(End::Dropped) => assert!(count < 100, "no end: {name}"),
                    Some(End::Completed) => break,
                    None => panic!("the case has no future to drop: {name}"),
                }
            }
        }
    }

    /// Polls a future `count` times, and drops it unless it has completed.
    pub async fn run<F: Future>(&self, future: F) -> Option<F::Output> {
        self.run_until(future, async {}).await
    }

    /// Does the same as [`run`](Self::run), and runs `next` once the future waits for something that does not happen by
    /// itself, or after the future.
    pub async fn run_until<F: Future>(
        &self,
        future: F,
        next: impl Future<Output = ()>,
    ) -> Option<F::Output> {
        let mut next = Some(next);
        let output = self.poll(future, &mut next).await;
        self.proxy.release_replies();
        if let Some(next) = next {
            next.await;
        }
        let end = if output.is_some() {
            End::Completed
        } else {
            End::Dropped
        };
        self.end.set(Some(end));
        output
    }

    async fn poll<F: Future>(
        &self,
        future: F,
        next: &mut Option<impl Future<Output = ()>>,
    ) -> Option<F::Output> {
        let alarm = Arc::new(WakeSource(Notify::new()));
        let waker = Waker::from(alarm.clone());
        let mut future = Box::pin(future);
        for poll in 1.. {
            let last = poll == self.count;
            if last && self.held {
                self.proxy.hold_replies();
            }
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                return Some(output);
            }
            if last && !self.woken {
                break;
            }
            if timeout(QUIET, alarm.0.notified()).await.is_err() {
                if let Some(next) = next.take() {
                    next.await;
                }
                let awaits_reply = last && self.held;
                let patience = if awaits_reply { QUIET } else { LIMIT };
                let woken = timeout(patience, alarm.0.notified()).await.is_ok();
                assert!(woken || awaits_reply, "stalled after {poll} polls");
            }
            if last {
                break;
            }
        }
        None
    }
}
