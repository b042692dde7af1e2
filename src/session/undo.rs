//! What a request may leave on a server though nobody here has it, and how that is undone.

use std::future::Future;
use std::ops::Deref;

use crate::error::Error;

/// What a server may have in excess.
pub(crate) trait Owed: Send {
    /// What the server says when it is undone.
    type Answer;

    /// Undoes it now.
    fn run(&mut self) -> impl Future<Output = Result<Self::Answer, Error>> + Send;

    /// Gives it to the background task, which goes on until the server has answered.
    fn post(&mut self);

    /// Notes that nothing is owed any more.
    fn end(&mut self) {}
}

/// What a request may have left on a server, undone unless disarmed. It is armed before a request is sent that may
/// leave too much on a server, until an answer shows that nothing is owed, or a guard takes over. If it is dropped
/// before that, wherever that happens, it is undone in the background.
#[derive(Debug)]
#[must_use = "dropping it has it undone in the background"]
pub(crate) struct Undo<T: Owed> {
    pub(super) owed: T,
    is_armed: bool,
}

impl<T: Owed> Undo<T> {
    pub(crate) fn arm(owed: T) -> Self {
        Self {
            owed,
            is_armed: true,
        }
    }

    /// Disarms it: nothing is owed, or other code takes over what is owed.
    pub(crate) fn disarm(mut self) {
        self.is_armed = false;
        self.owed.end();
    }

    /// Undoes it now. What the server does not answer stays owed, and is undone in the background.
    pub(crate) async fn run(mut self) -> Result<T::Answer, Error> {
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
