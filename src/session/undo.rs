//! The `Undo`: a guard that gives back what a request may have left on a server without an owner here.
//!
//! Every request that takes something is sent with one of these armed. So whatever happens to the call (it is dropped
//! anywhere, it fails, its answer is lost), something here owns what the server may have, and gives it back. An
//! [`Owed`] defines what is owed and how: the levels of a hold ([`Share`](super::share::Share)), or the permits of a
//! call ([`PermitRecord`](super::permit_record::PermitRecord)).

use std::future::Future;
use std::ops::Deref;

use crate::error::Error;

/// What a server may have in excess.
///
/// Implementations must make [`run`](Self::run) and [`post`](Self::post) harmless if the server has nothing: a request
/// may have failed before it was sent, or may run after the undo.
pub(crate) trait Owed: Send {
    /// The server's answer, for a caller that waits.
    type Answer;

    /// Undoes it now.
    ///
    /// If the future fails or is dropped, it is still owed, and [`post`](Self::post) follows.
    fn run(&mut self) -> impl Future<Output = Result<Self::Answer, Error>> + Send;

    /// Hands it to the background task, which repeats it until the server has answered.
    ///
    /// Called from `drop`: it must not wait, and must do without a runtime.
    fn post(&mut self);

    /// Notes that nothing is owed any more.
    ///
    /// Called when it is disarmed, including after a [`run`](Self::run) that succeeded.
    fn end(&mut self) {}
}

/// Undoes what a request may have left on a server, unless disarmed. It is armed before the request is sent, and
/// disarmed when an answer shows that nothing is owed or a guard takes over. Dropping it before that, anywhere, has it
/// undone in the background.
#[derive(Debug)]
#[must_use = "dropping it has it undone in the background"]
pub(crate) struct Undo<T: Owed> {
    /// What is owed. Its extent is worked out when it is undone.
    pub(super) owed: T,
    /// Whether a drop undoes it.
    is_armed: bool,
}

impl<T: Owed> Undo<T> {
    /// Takes responsibility for what a server may have. Must be called before the request is sent.
    pub(crate) fn arm(owed: T) -> Self {
        Self {
            owed,
            is_armed: true,
        }
    }

    /// Disarms it: nothing is owed, or other code takes over what is owed.
    ///
    /// Must be called in one step, without an await, with handing on what was granted.
    pub(crate) fn disarm(mut self) {
        self.is_armed = false;
        self.owed.end();
    }

    /// Undoes it now. Without an answer, it stays owed and is undone in the background.
    pub(crate) async fn run(mut self) -> Result<T::Answer, Error> {
        // Still armed: an error, or the end of this future, drops `self` and posts it.
        let answer = self.owed.run().await?;
        self.disarm();
        Ok(answer)
    }
}

impl<T: Owed> Deref for Undo<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.owed
    }
}

impl<T: Owed> Drop for Undo<T> {
    fn drop(&mut self) {
        if self.is_armed {
            self.owed.post();
        }
    }
}
