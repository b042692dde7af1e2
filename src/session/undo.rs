//! What a request may leave on a server though nobody here has it, and how that is undone.

use std::future::Future;
use std::ops::Deref;

use crate::error::Error;

/// What a server may have too much.
pub(crate) trait Owed: Send {
    /// What the server says when it is undone.
    type Answer;

    /// Has it undone now.
    fn run(&mut self) -> impl Future<Output = Result<Self::Answer, Error>> + Send;

    /// Gives it to the background task, which goes on until the server has answered.
    fn post(&mut self);

    /// Nothing is owed any more.
    fn end(&mut self) {}
}

/// Armed before a request is sent that may leave too much on a server, until an answer shows that nothing is owed, or a
/// guard takes over. Dropped before, wherever that happens, it is done in the background.
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

    /// Nothing is owed, or somebody else sees to it.
    pub(crate) fn disarm(mut self) {
        self.is_armed = false;
        self.owed.end();
    }

    /// Undoes it now. What the server does not answer to stays owed, and is done in the background.
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
