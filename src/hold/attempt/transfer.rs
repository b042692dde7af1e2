//! A level of the owner that is moved here from another process.

use crate::clock::BootInstant;
use crate::error::Error;
use crate::hold::attempt::Attempt;
use crate::hold::guard::LockGuard;
use crate::options::LeaseTime;
use crate::protocol::answer::{Adopted, Tokens};
use crate::session::give_back::GivenBack;

impl Attempt<'_> {
    /// Moves one level of the owner here and returns its guard. Returns `None` if there was nothing to move.
    pub(crate) async fn adopt(mut self) -> Result<Option<LockGuard>, Error> {
        match self
            .take_over(Some(self.request.lease_mode.lease()))
            .await?
        {
            Some(sent) => {
                let token = self.request.token(&self.hold).await?;
                self.commit(sent, token.map(|token| Tokens::new(token, 1)))
                    .map(Some)
            }
            None => Ok(None),
        }
    }

    /// Moves one level of the owner here, to release it at once.
    pub(crate) async fn take_over_and_release(mut self) -> Result<(), Error> {
        // Without a new lease: the level is released right away.
        match (self.take_over(None).await?, self.undo.take()) {
            (Some(sent), Some(undo)) => {
                self.hold.taken_over_to_release(sent);
                self.request
                    .client
                    .released(GivenBack::Undo(undo), &self.request.name)
                    .await
            }
            _ => Err(self.request.not_held()),
        }
    }

    /// Moves one level of the owner here. Returns when the request was sent, or `None` if there was nothing to move.
    async fn take_over(&mut self, lease: Option<LeaseTime>) -> Result<Option<BootInstant>, Error> {
        // Reads whose level it is, then moves it; the move compares what was read. So each step can be repeated.
        loop {
            let Some(source) = self.request.source(&self.hold).await? else {
                return Ok(None);
            };
            let hold = self.hold.clone();
            let call = hold.key().adopt(1, lease, Some(&source));
            let answer = self.run(&call).await?;
            match Adopted::decode(&answer.reply)? {
                Adopted::Moved => return Ok(Some(answer.sent)),
                // Another client was faster: look again at what is there.
                Adopted::Changed => self.nothing_held(),
                Adopted::Absent => {
                    self.nothing_held();
                    return Ok(None);
                }
                Adopted::WrongKind => {
                    self.nothing_held();
                    return Err(Error::wrong_kind(self.request.name.key()));
                }
            }
        }
    }
}
