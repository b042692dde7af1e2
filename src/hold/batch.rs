//! Several locks of one server, acquired by one request and released by one.
//!
//! The script takes all of the locks or none, so there is never a part to give back. In this process, each lock has
//! what it would have alone: the turn to ask, an attempt with an `Undo`, then a hold and a guard. They share only the
//! request and its acquisition id.
//!
//! A batch does not wait. If a lock is not free at once, here or on the server, it tells the caller
//! ([`group`](super::group)), which waits for that lock by itself. So no call waits in one queue while it has a place
//! in another.

use std::sync::Arc;

use futures_util::future::{BoxFuture, join_all};

use super::attempt::Attempt;
use super::guard::LockGuard;
use super::request::{AcquireRequest, Terms};
use crate::clock::BootInstant;
use crate::error::Error;
use crate::options::Deadline;
use crate::protocol::acquired::Tokens;
use crate::protocol::batch::{self, AllAcquired, Obstacle};
use crate::session::LocalLock;
use crate::session::hold::fresh_acquisition_id;
use crate::session::outgoing::Barrier;
use crate::session::share::{Asking, Place, Share};
use crate::session::undo::Undo;
use crate::session::unlock::{LevelRelease, still_held};

/// The largest number of locks in one request.
pub(crate) const MOST: usize = 100;

/// The answer to an attempt to acquire several locks at once. Unless it was granted, nothing is held, and no place is
/// kept.
pub(crate) enum Batched {
    /// One guard for each lock, in the order of the request.
    Granted(Vec<LockGuard>),
    /// None was acquired: somebody holds the lock at this index.
    Busy(usize),
    /// None was acquired: the lock at this index has to be acquired by itself, since this process has something to wait
    /// for, or the owner holds it already.
    Apart(usize),
}

impl AcquireRequest {
    /// Returns whether one request can ask for both locks of one owner: their kinds have a script for that, and they
    /// are on one server, which in a cluster means in one slot.
    pub(crate) fn goes_with(&self, other: &Self) -> bool {
        let place = |request: &Self| request.client.backend.group(request.name.key());
        let batched = self.kind.is_batched() && other.kind.is_batched();
        batched && Arc::ptr_eq(&self.client, &other.client) && place(self) == place(other)
    }
}

/// Acquires locks that [go together](AcquireRequest::goes_with), all or none, with one request. A call that waits asks
/// only if it overtakes no other call of this process.
///
/// 1. Each lock gets a place and the turn to ask, without waiting. If one cannot, nothing is asked.
/// 2. The `Undo` of each is armed, then one request asks for all.
/// 3. Granted: each hold is committed, one after the other without an await, so the caller gets all guards or none.
/// 4. Refused, and sent once: nothing was taken, and the `Undo`s are disarmed.
///
/// If the future is dropped, or the request fails without an answer, each lock's `Undo` releases what it may have got.
pub(crate) async fn acquire(
    requests: &[&AcquireRequest],
    deadline: Deadline,
) -> Result<Batched, Error> {
    let Some(Terms { client, name, .. }) = requests.first().map(|request| &***request) else {
        return Ok(Batched::Granted(Vec::new()));
    };
    let local_locks: Vec<LocalLock> = requests.iter().map(|request| request.local()).collect();
    // The places are kept so that, until they are dropped, no other call of this owner asks for these locks.
    let (mut attempts, mut places) = (Vec::new(), Vec::new());
    let number = fresh_acquisition_id();
    for (at, (request, local)) in requests.iter().zip(&local_locks).enumerate() {
        let Some(place) = stand(request, local, deadline) else {
            return Ok(Batched::Apart(at));
        };
        places.push(place);
        attempts.push(Attempt::numbered(request, local, number));
    }
    client.ensure_open()?;
    // All locks are on one server, so one check is enough.
    client.reaper.ensure_credit(name)?;
    // Each lock has an `Undo` of its own, armed before the request that may take it is sent.
    let holds: Vec<_> = attempts.iter_mut().map(Attempt::begin).collect();
    let leases = requests.iter().map(|request| request.lease_mode.lease());
    let keys: Vec<_> = holds.iter().map(|hold| hold.key()).zip(leases).collect();
    let call = batch::acquire(&keys);
    let budget = holds.iter().map(|hold| hold.timeout).min();
    let answer = match client.run(&call, budget.unwrap_or_default()).await {
        Ok(answer) => answer,
        Err(error) => {
            attempts.iter_mut().for_each(|it| it.failed(&error));
            // A call that asks for one lock by itself tries again within the limit.
            return match error.is_passing() && !deadline.left().is_zero() {
                true => Ok(Batched::Apart(0)),
                false => Err(requests[0].blame(error)),
            };
        }
    };
    match AllAcquired::decode(&answer.reply, requests.len())? {
        AllAcquired::Granted(tokens) => {
            let mut tokens = tokens.into_iter();
            let commit = |(attempt, local): (&mut Attempt<'_>, &LocalLock)| {
                // This hold was not passed on: the count of handoffs in a row begins again.
                local.turns(|turns| turns.count(false));
                let fenced = attempt.is_fenced();
                let token = fenced.then(|| tokens.next()).flatten();
                attempt.commit(answer.sent, token.map(|token| Tokens::new(token, 1)))
            };
            let granted = attempts.iter_mut().zip(&local_locks).map(commit);
            granted.collect::<Result<_, _>>().map(Batched::Granted)
        }
        AllAcquired::Not { at, because } => {
            // Nothing was taken. But if an earlier send went unanswered, it may arrive after this answer. The `Undo`s
            // then stay armed, and release.
            if !answer.repeated {
                attempts.iter_mut().for_each(Attempt::nothing_held);
            }
            refused(requests[at], at, because)
        }
    }
}

/// Takes a place for one lock of several, with the turn to ask. Returns `None` if the lock has to be acquired by
/// itself. Awaits nothing, so a set never waits for one lock while it has a place for another.
fn stand<'a>(
    request: &'a AcquireRequest,
    local: &'a LocalLock,
    deadline: Deadline,
) -> Option<(Option<Place<'a>>, Asking<'a>)> {
    match deadline {
        Deadline::Once => {
            // Like a single attempt for one lock, this takes no place and may overtake waiting calls. A handoff or a
            // re-entry needs no server, and is left to a call for that lock alone.
            let apart = local.has_handoff() || request.own(local).is_some();
            let asking = local.turn_at_once(&request.owner, Barrier::Sent);
            asking.filter(|_| !apart).map(|asking| (None, asking))
        }
        // Takes the front of the local queue, if nobody else stands there, and if this process has no hold, handoff or
        // release of this lock.
        Deadline::At(_) | Deadline::Never => {
            let front = local.stand(request.role(), None, &request.client.releaser.runtime);
            // The call may not be polled again before the request has ended, and must not be passed over for that.
            front.catch_up(BootInstant::now().plus(request.timeout()));
            let asking = front.now().and_then(|_| local.turn_if_idle(&request.owner));
            asking.map(|asking| (Some(front), asking))
        }
    }
}

/// Returns the answer for a request that could not acquire the lock at `at`.
fn refused(request: &AcquireRequest, at: usize, because: Obstacle) -> Result<Batched, Error> {
    let error = match because {
        Obstacle::Busy => return Ok(Batched::Busy(at)),
        Obstacle::Exhausted => request.exhausted(),
        Obstacle::Spent => request.spent(),
        Obstacle::WrongKind => Error::wrong_kind(request.name.key()),
    };
    Err(request.blame(error))
}

/// Releases one level of each guard, with one request for those that go together. For a set, whose locks may be of
/// several kinds and servers. Locks that cannot be batched are released at the same time, as by the guard's own
/// `unlock`. Each level is given back whatever happens to the others. The error returned is that of the first that
/// failed.
pub(crate) async fn release(mut guards: Vec<LockGuard>) -> Result<(), Error> {
    // All are given back before the first await. From here on, the release goes on even if this future is dropped.
    let given_back: Vec<_> = guards.iter_mut().map(LockGuard::give_back).collect();
    let mut batches: Vec<(Vec<&AcquireRequest>, Vec<Undo<Share>>)> = Vec::new();
    let mut outcomes: Vec<BoxFuture<'_, Result<(), Error>>> = Vec::new();
    for (guard, given_back) in guards.iter().zip(given_back) {
        let request = &guard.request;
        match given_back {
            Ok(LevelRelease::Undo(undo)) => {
                let mut with_room = batches
                    .iter_mut()
                    .filter(|(requests, _)| requests.len() < MOST);
                match with_room.find(|(requests, undos)| {
                    request.goes_with(requests[0]) && undo.goes_with(&undos[0])
                }) {
                    Some((requests, undos)) => {
                        requests.push(request);
                        undos.push(undo);
                    }
                    None => batches.push((vec![request], vec![undo])),
                }
            }
            // It was left to a waiter of this process, or others here have the record. So there is no release to batch,
            // only an answer to wait for.
            Ok(left) => {
                outcomes.push(Box::pin(request.client.finish_release(left, &request.name)));
            }
            Err(error) => outcomes.push(Box::pin(std::future::ready(Err(error)))),
        }
    }
    for (requests, undos) in batches {
        outcomes.push(Box::pin(release_together(requests, undos)));
    }
    match outcomes.pop() {
        Some(only) if outcomes.is_empty() => only.await,
        last => {
            outcomes.extend(last);
            join_all(outcomes).await.into_iter().collect()
        }
    }
}

/// Sends the releases of one batch in one request. A batch of one goes like any other release. If the future is
/// dropped, each `Undo` sends its release by itself.
async fn release_together(
    requests: Vec<&AcquireRequest>,
    mut undos: Vec<Undo<Share>>,
) -> Result<(), Error> {
    let Some(Terms { client, name, .. }) = requests.first().map(|request| &***request) else {
        return Ok(());
    };
    if undos.len() == 1
        && let Some(undo) = undos.pop()
    {
        return client.finish_release(LevelRelease::Undo(undo), name).await;
    }
    let were_held = Undo::run_all(undos).await?;
    let mut outcomes = were_held.into_iter().zip(requests);
    outcomes.try_for_each(|(was_held, request)| still_held(was_held, &request.name))
}
