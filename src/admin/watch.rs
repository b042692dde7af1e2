//! Waits for the messages of a lock.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use crate::name::LockName;
use crate::session::hub::{Hub, Subscription};

/// Waits for messages of a lock. Returned by [`Admin::watch`](super::Admin::watch).
#[derive(Debug)]
pub struct LockWatch {
    lock: Subscription,
    sides: Subscription,
}

impl LockWatch {
    pub(super) fn new(hub: &Arc<Hub>, lock: &LockName, sides: &LockName) -> Self {
        Self {
            lock: hub.subscribe(lock.channel()),
            sides: hub.subscribe(sides.channel()),
        }
    }

    /// Waits for a message that may mean a release, or for a change of the subscription, after which messages may have
    /// been missed.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, no message is lost.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// # let guard = client.lock("orders:42").lock().await?;
    /// let mut watch = client.admin().watch("orders:42")?;
    /// # let release = tokio::spawn(guard.unlock());
    /// while client.lock("orders:42").is_locked().await? {
    ///     watch.message().await;
    /// }
    /// # release.await.unwrap()?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn message(&mut self) {
        let (mut lock, mut sides) = (pin!(self.lock.news()), pin!(self.sides.news()));
        poll_fn(|context| {
            let is_ready =
                lock.as_mut().poll(context).is_ready() || sides.as_mut().poll(context).is_ready();
            match is_ready {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
    }
}
