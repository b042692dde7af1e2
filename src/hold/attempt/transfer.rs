//! A level of the owner that is moved here from another process.
//!
//! `adopt` and `unlock` on a handle come here if this process has no hold of the owner. The owner is named, since no
//! other process can have levels of an unnamed one.
//!
//! 1. The server is asked where a level of the owner is recorded: for no client, as Redisson's levels are, or for
//!    another one.
//! 2. That level is moved to the hold of this attempt, if the field still has what was read.
//! 3. The hold is committed like a grant, or released.
//!
//! The move names the share to reach, not a step, so it can be sent twice; the owner's hold count is not raised. Once
//! it is under way, the level belongs to this attempt's `Undo`: if the future is dropped, the level is released and not
//! put back.

use crate::clock::BootInstant;
use crate::error::Error;
use crate::hold::attempt::Attempt;
use crate::hold::guard::LockGuard;
use crate::options::LeaseTime;
use crate::protocol::acquired::Tokens;
use crate::protocol::answer::Adopted;
use crate::protocol::lock::TransferSource;
use crate::session::unlock::LevelRelease;

impl Attempt<'_> {
    /// Moves one level of the owner here and returns its guard. Returns `None` if there was nothing to move.
    ///
    /// The token of a fenced lock is read by a request of its own. The `Undo` stays armed meanwhile.
    pub(crate) async fn adopt(mut self) -> Result<Option<LockGuard>, Error> {
        match self
            .take_over(Some(self.request.lease_mode.lease()))
            .await?
        {
            Some((sent, source)) => {
                // Just the one token: the hold of a named owner is not passed on.
                let token = self.request.token(&self.hold, &source).await?;
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
            (Some((sent, _)), Some(undo)) => {
                // The hold never enters the local lock: nobody here may re-enter what is about to be released.
                self.hold.taken_over_to_release(sent);
                self.request
                    .client
                    .finish_release(LevelRelease::Undo(undo), &self.request.name)
                    .await
            }
            _ => Err(self.request.not_held()),
        }
    }

    /// Moves one level of the owner here. Returns when the request was sent and from where the level came, or `None` if
    /// there was nothing to move. With a `lease`, the hold's lease is raised to it at least.
    async fn take_over(
        &mut self,
        lease: Option<LeaseTime>,
    ) -> Result<Option<(BootInstant, TransferSource)>, Error> {
        // Reads whose level it is, then moves it; the move compares what was read. So each step can be repeated.
        loop {
            let Some(source) = self.request.source(&self.hold).await? else {
                return Ok(None);
            };
            let hold = self.hold.clone();
            let answer = self
                .run(&hold.key().adopt(1.into(), lease, Some(&source)))
                .await?;
            match Adopted::decode(&answer.reply)? {
                Adopted::Moved => return Ok(Some((answer.sent, source))),
                // Another client was faster: look again at what is there.
                Adopted::Changed => self.nothing_held(),
                Adopted::Absent => {
                    self.nothing_held();
                    return Ok(None);
                }
                // This hold has left no level to anybody.
                Adopted::Fewer { .. } => return Err(answer.reply.unexpected()),
                Adopted::WrongKind => {
                    self.nothing_held();
                    return Err(Error::wrong_kind(self.request.name.key()));
                }
            }
        }
    }
}
