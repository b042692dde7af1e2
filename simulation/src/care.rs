//! Polls the future of a call as a plan says.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use tokio::time::sleep;

use crate::judge::judge;
use crate::plan::Care;

/// Polls a future as `care` says. Returns `None` if it is dropped before it is done.
pub async fn cared<T>(call: u64, care: Care, future: impl Future<Output = T>) -> Option<T> {
    let mut future = Box::pin(future);
    let mut polls = 0;
    let mut unpolled = care.unpolled;
    loop {
        let step = poll_fn(|context| {
            if care.dropped.is_some_and(|(most, _)| polls >= most) {
                return Poll::Ready(Step::Dropped);
            }
            if let Some((at, span)) = unpolled
                && polls == at
            {
                unpolled = None;
                return Poll::Ready(Step::Unpolled(span));
            }
            polls += 1;
            match future.as_mut().poll(context) {
                Poll::Ready(done) => Poll::Ready(Step::Done(done)),
                Poll::Pending if care.dropped == Some((polls, true)) => Poll::Ready(Step::Dropped),
                Poll::Pending => Poll::Pending,
            }
        });
        match step.await {
            Step::Done(done) => return Some(done),
            Step::Dropped => return None,
            Step::Unpolled(span) => {
                judge(|judge| judge.unpolled(call, span));
                sleep(Duration::from_millis(span)).await;
            }
        }
    }
}

enum Step<T> {
    Done(T),
    Dropped,
    Unpolled(u64),
}
