//! A set of locks, acquired whole or not at all.
//!
//! One request asks for several keys of one server. A set waits for a busy lock as a single call does. Meanwhile, it
//! keeps what it holds as guards in the future of the call, so dropping the future gives everything back. If nobody
//! polls the call, a task does that, since the guards would be renewed for as long as the process lives.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use tokio::time::{sleep, timeout};
use tracing::debug;

use super::batch::{self, Batched};
use super::guard::LockGuard;
use super::replication::all_acknowledged;
use super::request::AcquireRequest;
use crate::error::Error;
use crate::options::{Deadline, LeaseMode};

/// Acquires all the locks, or returns `None` if one of them was busy until the limit. The guards are in the order of
/// the locks.
///
/// Every set asks for its locks in the order of their keys and waits only for a key behind all that it holds, so that
/// sets which want the same locks never wait for each other in a circle. No two locks of a set may have one key: the
/// order would not tell which comes first.
///
/// A set that waits for longer than `hold_and_wait` gives back what it holds, so that nobody waits for idle locks. Once
/// it has the lock that it waited for, it takes the locks before that one only if they are free.
///
/// All requests are of one owner. A lock that was lost while the set waited for another is found at the end, and fails
/// the call: a set is never handed out with a part missing.
pub(crate) fn acquire(
    requests: Vec<AcquireRequest>,
    wait: Duration,
    hold_and_wait: Duration,
) -> BoxFuture<'static, Result<Option<Vec<LockGuard>>, Error>> {
    Box::pin(async move {
        let deadline = Deadline::within(wait);
        let calls: Vec<_> = requests.iter().map(AcquireRequest::counted).collect();
        let taken = gather(requests.clone(), deadline, hold_and_wait).await;
        for call in calls {
            call.ended(deadline, &taken);
        }
        taken
    })
}

/// Does the work of [`acquire`].
async fn gather(
    requests: Vec<AcquireRequest>,
    deadline: Deadline,
    hold_and_wait: Duration,
) -> Result<Option<Vec<LockGuard>>, Error> {
    let mut members: Vec<_> = requests.into_iter().enumerate().collect();
    members.sort_by(|(_, a), (_, b)| a.name.key().cmp(b.name.key()));
    ensure_distinct(&members)?;
    let members: Arc<[Member]> = members.into();
    loop {
        let completed = complete(Gathering::new(members.clone(), hold_and_wait), deadline);
        if let Some(completed) = members[0].1.client.while_polled(completed).await {
            return completed;
        }
    }
}

/// Acquires the locks, waits for the replicas of their servers, and checks that none was lost meanwhile.
async fn complete(
    gathering: Gathering,
    deadline: Deadline,
) -> Result<Option<Vec<LockGuard>>, Error> {
    let members = gathering.members.clone();
    let (request, taking) = (&members[0].1, take_all(gathering, deadline));
    let taken = match deadline {
        Deadline::At(_) => request.within(deadline.left(), taking).await,
        // Each of its requests has a limit. Together, they may take longer at distant servers.
        Deadline::Once | Deadline::Never => taking.await,
    };
    let Some(guards) = taken? else {
        return Ok(None);
    };
    let guards = all_acknowledged(guards).await?;
    match guards.iter().find(|guard| !guard.is_timely()) {
        Some(lost) if lost.is_lost() => Err(lost.lost_error()),
        Some(late) => Err(late.request.too_late()),
        None => Ok(Some(guards)),
    }
}

/// Acquires the locks.
async fn take_all(
    mut gathering: Gathering,
    deadline: Deadline,
) -> Result<Option<Vec<LockGuard>>, Error> {
    while gathering.next < gathering.members.len() {
        let (next, all) = (gathering.next, gathering.members.len());
        let Some(taken) = gathering.take(next, all, deadline).await? else {
            return Ok(None);
        };
        gathering.next += taken;
        // An earlier lock is busy. Waiting for it while holding later ones would break the order.
        if !gathering.take_before().await? {
            gathering.begin_with(gathering.busy);
        }
    }
    let Gathering {
        mut held, requests, ..
    } = gathering;
    // Locks from a single request were all granted a moment ago, so there is nothing to check.
    if requests > 1 {
        ensure_valid(&held).await?;
    }
    held.sort_by_key(|(at, _)| *at);
    Ok(Some(held.into_iter().map(|(_, guard)| guard).collect()))
}

/// One of the locks, with its index in the set.
type Member = (usize, AcquireRequest);

/// A set that is not complete yet. Each round of the loop acquires what comes next, then what is missing before the
/// first lock held. If something there is busy, the set gives everything back and begins with that.
///
/// # Invariants
///
/// 1. It holds the members from `first` to `next`, or nothing, and then `first` and `next` are equal.
/// 2. It waits for `next` only, which is behind all that it holds.
struct Gathering {
    /// In the order of their keys.
    members: Arc<[Member]>,
    first: usize,
    next: usize,
    /// What is held, in the order in which it was acquired, each with its index in the set.
    held: Vec<(usize, LockGuard)>,
    /// The last member that was found busy, which is acquired by itself. Beyond all members if none was.
    busy: usize,
    /// How many requests have been granted. All locks from a single one have a fresh lease.
    requests: usize,
    /// How long the set keeps what it holds while it waits. Doubles each time, so that a set succeeds even if several
    /// of its locks are always busy.
    hold_and_wait: Duration,
}

impl Gathering {
    fn new(members: Arc<[Member]>, hold_and_wait: Duration) -> Self {
        Self {
            members,
            first: 0,
            next: 0,
            held: Vec::new(),
            busy: usize::MAX,
            requests: 0,
            hold_and_wait,
        }
    }

    /// Acquires the member `at`, and those up to `end` that one request can ask for. Returns how many it acquired, or
    /// `None` if one of them, `busy`, was busy until the limit.
    ///
    /// Adds them to `held`. The caller moves `first` and `next`, since it knows on which side of `held` these members
    /// lie. If [`take_one`](Self::take_one) gave everything back in between, both are at `at` already.
    async fn take(
        &mut self,
        at: usize,
        end: usize,
        deadline: Deadline,
    ) -> Result<Option<usize>, Error> {
        loop {
            let rest = &self.members[at..end];
            // A busy member is acquired as a single lock, in its own queue, while all before it are held.
            let run = run(rest).min(self.busy.checked_sub(at).unwrap_or(usize::MAX));
            if run < 2 {
                return Ok(self.take_one(at, deadline).await?.then_some(1));
            }
            let requests: Vec<_> = rest[..run].iter().map(|(_, request)| request).collect();
            match keeping(&self.held, batch::acquire(&requests, deadline)).await? {
                Batched::Granted(guards) => {
                    self.requests += 1;
                    let places = rest.iter().map(|(at, _)| *at);
                    self.held.extend(places.zip(guards));
                    return Ok(Some(run));
                }
                Batched::Busy(busy) => {
                    self.busy = at + busy;
                    if deadline.left().is_zero() {
                        return Ok(None);
                    }
                    // Next come the members before the busy one, then that one by itself.
                }
                Batched::Apart(busy) => self.busy = at + busy,
            }
        }
    }

    /// Acquires the member `at`. Returns `false` if it was busy until the limit. After a long wait, the set holds
    /// nothing else.
    async fn take_one(&mut self, at: usize, deadline: Deadline) -> Result<bool, Error> {
        let members = self.members.clone();
        let (place, request) = &members[at];
        // Without held locks, there is nothing to give back; and a single attempt does not wait.
        let hold_and_wait = match deadline == Deadline::Once || self.held.is_empty() {
            true => Duration::MAX,
            false => self.hold_and_wait,
        };
        let mut taking = Box::pin(request.acquire_member(deadline));
        let taken = match timeout(hold_and_wait, keeping(&self.held, &mut taking)).await {
            Ok(taken) => taken,
            Err(_) => {
                debug!(locks = self.held.len(), waited = ?hold_and_wait, "released the locks until another one is free");
                self.begin_with(at);
                self.hold_and_wait = hold_and_wait.saturating_mul(2);
                // The same future goes on, so that the call keeps its place in the local queue.
                taking.await
            }
        };
        let Some(guard) = taken.map_err(|error| request.blame(error))? else {
            self.busy = at;
            return Ok(false);
        };
        self.requests += 1;
        self.held.push((*place, guard));
        Ok(true)
    }

    /// Acquires what is missing before the first member that is held, without waiting. Returns `false` if one of them,
    /// `busy`, could not be acquired. `held` then has what it acquired so far, and the caller gives everything back.
    async fn take_before(&mut self) -> Result<bool, Error> {
        let mut at = 0;
        while at < self.first {
            match self.take(at, self.first, Deadline::Once).await {
                Ok(Some(taken)) => at += taken,
                Ok(None) => return Ok(false),
                // Next, it is acquired by itself, with retries until the limit.
                Err(error) if error.is_passing() => {
                    self.busy = at;
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
        }
        self.first = 0;
        Ok(true)
    }

    /// Gives everything back, to start over with the member `at`. The members before it follow once it is held.
    fn begin_with(&mut self, at: usize) {
        self.held.clear();
        (self.first, self.next) = (at, at);
    }
}

/// Returns how many locks, from the first on, can be asked for by one request.
fn run(members: &[Member]) -> usize {
    let [(_, first), ..] = members else { return 0 };
    let members = members.iter().take(batch::MOST);
    members
        .take_while(|(_, request)| first.goes_with(request))
        .count()
}

/// Refuses a set with two locks of one key. On one server they would be one lock, which the set would wait for while
/// it holds it; on several servers they have no order that all clients share.
fn ensure_distinct(members: &[Member]) -> Result<(), Error> {
    let mut pairs = members.windows(2);
    match pairs.find(|pair| pair[0].1.name.key() == pair[1].1.name.key()) {
        Some(pair) => Err(Error::invalid(format!(
            "{:?} is in the set twice: name each lock once, and give those on several servers a name each; for one \
             name on several servers, use a RedLock",
            pair[0].1.name.key()
        ))),
        None => Ok(()),
    }
}

/// Waits for a future, and meanwhile extends the leases that nobody renews, so that none expires. The caller of a set
/// cannot do so, since it has no guard yet.
async fn keeping<F: Future>(held: &[(usize, LockGuard)], future: F) -> F::Output {
    let keep = held.iter().filter_map(|(_, guard)| {
        let LeaseMode::Fixed(lease) = guard.request.lease_mode else {
            return None;
        };
        let lease = lease.get();
        Some(async move {
            // A lock that is lost is detected when the set is complete.
            while !guard.is_lost() {
                // By what is left, since the set may wait for one lock after another in that time.
                if guard.remaining() < lease / 3 * 2 {
                    guard.extend(lease).await.ok();
                }
                sleep(lease / 24).await;
            }
        })
    });
    let keep = async {
        join_all(keep).await;
        pending().await
    };
    // Biased, so that no extension begins once the future is done.
    tokio::select! {
        biased;
        output = future => output,
        output = keep => output,
    }
}

/// Returns `Err` if a lock of the set was lost while it waited for the rest. Extends leases that have too little left,
/// and returns `Err` if too little is left all the same.
async fn ensure_valid(held: &[(usize, LockGuard)]) -> Result<(), Error> {
    for (_, guard) in held {
        let request = &guard.request;
        if guard.is_lost() {
            return Err(guard.lost_error());
        }
        if !guard.is_timely() {
            guard
                .extend(request.lease_mode.lease().get())
                .await
                .map_err(|error| request.blame(error))?;
        }
        if !guard.is_timely() {
            return Err(request.too_late());
        }
    }
    debug!(locks = held.len(), "the set is complete");
    Ok(())
}
