//! Moves a level of an owner here from another process.
//!
//! `adopt` and `unlock` on a handle come here if this process has no hold of the owner. The owner has a name, since
//! only a named owner can have levels in another process.
//!
//! 1. The server says where a level of the owner is recorded: for no client, as Redisson's levels are, or for another
//!    one.
//! 2. That level is moved to the hold of this attempt, if the field still has what was read.
//! 3. The hold is committed like a grant, or released.
//!
//! The move names the share to reach, not a step, so it can be sent twice. The owner's hold count does not change. Once
//! the move is sent, the level belongs to this attempt's `Undo`: if the future is dropped, the level is released and
//! not put back.

use crate::clock::BootInstant;
use crate::error::Error;
use crate::hold::attempt::{Attempt, Attempted};
use crate::options::LeaseTime;
use crate::protocol::acquired::Tokens;
use crate::protocol::answer::Adopted;
use crate::protocol::lock::TransferSource;
use crate::session::unlock::LevelRelease;

impl Attempt<'_> {
    /// Moves one level of the owner here and returns its guard. Returns `None` if there was nothing to move, and
    /// `Yielded` if the level was given back because the owner has another hold here by now.
    ///
    /// The token of a fenced lock is read before the move, so that an error leaves the level where it is.
    pub(crate) async fn adopt(mut self) -> Result<Option<Attempted>, Error> {
        let lease = self.request.lease_mode.lease();
        let Some((sent, source, mut token)) = self.take_over(Some(lease)).await? else {
            return Ok(None);
        };
        if !source.is_recorded() {
            // Redisson's clients may have raised the token meanwhile, and do not record it.
            let raised = self.request.token(&self.hold, &source).await;
            token = raised.unwrap_or(token);
        }
        if self.is_second() {
            return Ok(Some(Attempted::Yielded));
        }
        // Only one token, since the hold of a named owner is not passed on.
        let guard = self.commit(sent, token.map(|token| Tokens::new(token, 1)))?;
        Ok(Some(Attempted::Granted(guard)))
    }

    /// Moves one level of the owner here, to release it at once.
    pub(crate) async fn take_over_and_release(mut self) -> Result<(), Error> {
        // Sets no new lease, since the level is released right away.
        match (self.take_over(None).await?, self.undo.take()) {
            (Some((sent, ..)), Some(undo)) => {
                // The hold never enters the local lock, since nobody may re-enter it before it is released.
                self.hold.taken_over_to_release(sent);
                self.request
                    .client
                    .finish_release(LevelRelease::Undo(undo), &self.request.name)
                    .await
            }
            _ => Err(self.request.not_held()),
        }
    }

    /// Moves one level of the owner here. Returns when the request was sent and where the level came from, or `None` if
    /// there was nothing to move. With a `lease`, raises the hold's lease to at least that, and returns the token of a
    /// fenced lock too.
    async fn take_over(
        &mut self,
        lease: Option<LeaseTime>,
    ) -> Result<Option<(BootInstant, TransferSource, Option<u64>)>, Error> {
        // Reads whose level it is, then moves it. The move compares what was read, so each step can be repeated.
        loop {
            let now = BootInstant::now();
            let Some(source) = self.request.source(&self.hold, now).await? else {
                return Ok(None);
            };
            let token = match lease {
                Some(_) => self.request.token(&self.hold, &source).await,
                None => Ok(None),
            };
            if token.is_err()
                && self.request.source(&self.hold, now).await?.as_ref() != Some(&source)
            {
                // It was released meanwhile, so read again.
                continue;
            }
            let token = token?;
            let hold = self.hold.clone();
            let answer = self
                .run(&hold.key().adopt(1.into(), lease, Some(&source)))
                .await?;
            match Adopted::decode(&answer.reply)? {
                Adopted::Moved => return Ok(Some((answer.sent, source, token))),
                // Another client was faster, so read again.
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
