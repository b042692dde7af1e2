use std::collections::VecDeque;
use std::future;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// The delay line of one direction. An empty chunk stands for the end of the stream.
#[derive(Default)]
pub(crate) struct Line {
    chunks: VecDeque<(Instant, Vec<u8>)>,
    ended: bool,
}

impl Line {
    /// Returns whether the end of the stream has entered the delay line.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    pub(crate) fn push(&mut self, chunk: Vec<u8>, delay: Duration) {
        self.ended = chunk.is_empty();
        self.chunks.push_back((Instant::now() + delay, chunk));
    }

    /// Removes the first chunk once it is due. Cancel safe.
    pub(crate) async fn pop(&mut self) -> Vec<u8> {
        match self.chunks.front() {
            None => future::pending().await,
            // A sleep would last until the next tick of the timer.
            Some((due, _)) if *due <= Instant::now() => {}
            Some((due, _)) => sleep_until(*due).await,
        }
        let (_, chunk) = self.chunks.pop_front().expect("a chunk in front");
        chunk
    }
}
