//! Detects two misuses by asking what is at a key: a name that is in use for something else, and a wait that nothing
//! ends.

use std::pin::pin;

use futures_util::future::BoxFuture;
use tokio::time::sleep;
use tracing::warn;

use super::Session;
use crate::error::Error;
use crate::name::LockName;
use crate::protocol::key_kind::{self, KeyKind};

impl Session {
    /// Adds to an error of the kind `WrongKind` what is there instead, if the server tells.
    ///
    /// Asks only after the call has failed, so that no other call pays for it. The refusal itself names no type.
    pub(super) fn explained(&self, error: Error) -> BoxFuture<'_, Error> {
        Box::pin(async move {
            let Some(key) = error.misused().cloned() else {
                return error;
            };
            let kind = self.kind_of(&key).await;
            match kind.and_then(|kind| kind.shown(&key)) {
                Some(what) => error.finding(&key, &what),
                None => error,
            }
        })
    }

    /// Waits for permits. Warns once if that takes longer than the client's `long_wait` and nobody has set their
    /// number, since no release ends such a wait.
    pub(crate) async fn tell_if_unset<T>(
        &self,
        name: &LockName,
        permits: impl Future<Output = T>,
    ) -> T {
        let Some(waited) = self.settings.long_wait else {
            return permits.await;
        };
        let mut permits = pin!(permits);
        let unset = async {
            sleep(waited).await;
            let semaphore = name.key();
            let kind = self.kind_of(semaphore).await;
            if kind.is_some_and(|kind| kind.is_none()) {
                warn!(target: "redlatch", %semaphore, ?waited, "no permits were set, call try_set_permits");
            }
        };
        tokio::select! {
            biased;
            permits = &mut permits => permits,
            () = unset => permits.await,
        }
    }

    /// Asks what is at a key. Returns `None` if the server does not tell.
    async fn kind_of(&self, key: &str) -> Option<KeyKind> {
        let call = key_kind::ask(key);
        let answer = self.run(&call, self.settings.command_timeout).await.ok()?;
        KeyKind::decode(&answer.reply)
    }
}
