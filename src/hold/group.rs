//! A set of locks, acquired whole or not at all.
//!
//! Several keys of one server are asked for by one request; a lock that is busy is waited for by itself, like any
//! single lock. What the set holds meanwhile are guards in the future of the call, so a future that is dropped gives
//! all of it back.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{sleep, timeout};
use tracing::debug;

use super::batch::{self, Batched};
use super::guard::LockGuard;
use super::replication::all_acknowledged;
use super::request::AcquireRequest;
use crate::clock::BootInstant;
use crate::error::Error;
use crate::options::{Deadline, LeaseMode};
use crate::protocol::wait::Wait;

/// Sets that were in each other's way on several servers each pause for a random time, up to this long at first, and
/// up to twice as long each time that they meet again.
const FIRST_PAUSE: Duration = Duration::from_millis(4);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// Acquires all the locks, or returns `None` if one of them was busy until the limit. The guards are in the order of
/// the locks.
///
/// Every set asks for its locks in the order of their keys and waits only for a key behind all that it holds, so that
/// sets which want the same locks never wait for each other in a circle. Equal keys on several servers have no order;
/// a set waits for one of these only while it holds none of the others.
///
/// A set that waits for longer than `hold_and_wait` gives back what it holds, so that nobody waits for locks under
/// which nothing is done. Having acquired the lock that it waited for, it takes the locks before that one only if
/// they are free.
///
/// All requests are of one owner. A lock that was lost while the set waited for another is found at the end, and fails
/// the call: a set is never handed out with a part missing.
pub(crate) async fn acquire(
    requests: Vec<AcquireRequest>,
    deadline: Deadline,
    hold_and_wait: Duration,
) -> Result<Option<Vec<LockGuard>>, Error> {
    let calls: Vec<_> = requests.iter().map(AcquireRequest::counted).collect();
    let taken = gather(requests.clone(), deadline, hold_and_wait).await;
    for call in calls {
        call.ended(deadline, &taken);
    }
    taken
}

/// Carries out the call.
async fn gather(
    requests: Vec<AcquireRequest>,
    deadline: Deadline,
    hold_and_wait: Duration,
) -> Result<Option<Vec<LockGuard>>, Error> {
    let mut ranked: Vec<_> = requests.into_iter().enumerate().collect();
    ranked.sort_by(|(_, a), (_, b)| a.name.key().cmp(b.name.key()));
    ensure_distinct(&ranked, deadline).await?;
    let ranks = ranked.chunk_by(|(_, a), (_, b)| a.name.key() == b.name.key());
    let ranks: Vec<_> = ranks.collect();
    let mut gathering = Gathering::new(&ranks, hold_and_wait);
    while gathering.next < ranks.len() {
        let (next, all) = (gathering.next, ranks.len());
        let Some(taken) = gathering.take(next, all, deadline).await? else {
            return Ok(None);
        };
        gathering.next += taken;
        // One of the locks before is busy. To wait for it with later ones in hand would break the order.
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
    let guards = held.into_iter().map(|(_, guard)| guard).collect();
    all_acknowledged(guards).await.map(Some)
}

/// The locks with one key, each with its index in the set. As a rule that is one lock; several of them are on as many
/// servers or databases, reached by as many clients.
type Rank<'a> = &'a [(usize, AcquireRequest)];

/// A set that is not complete yet. Each round of the loop takes what comes next, then what is missing before the first
/// rank that is held. If something there is busy, all is given back, and the set begins with that.
///
/// # Invariants
///
/// 1. It holds the ranks from `first` to `next`, or nothing, and then `first` and `next` are equal.
/// 2. It waits for `next` only, which is behind all that it holds.
struct Gathering<'a> {
    ranks: &'a [Rank<'a>],
    first: usize,
    next: usize,
    /// What is held, in the order in which it was acquired, each with its index in the set.
    held: Vec<(usize, LockGuard)>,
    /// The last rank that was found busy, which is asked for by itself; beyond all ranks if none was.
    busy: usize,
    /// How many requests have been granted. All locks from a single one have a fresh lease.
    requests: usize,
    /// For how long the set keeps what it holds while it waits. Twice as long each time, so that a set gets in even
    /// where several of its locks are always busy.
    hold_and_wait: Duration,
}

impl<'a> Gathering<'a> {
    fn new(ranks: &'a [Rank<'a>], hold_and_wait: Duration) -> Self {
        Self {
            ranks,
            first: 0,
            next: 0,
            held: Vec::new(),
            busy: usize::MAX,
            requests: 0,
            hold_and_wait,
        }
    }

    /// Acquires the rank `at`, and those up to `end` that one request can ask for. Returns how many it acquired, or
    /// `None` if one of them, `busy`, was busy until the limit.
    ///
    /// What was acquired is added to `held`, but `first` and `next` are the caller's to move: it knows on which side of
    /// what is held these ranks lie. If [`take_one`](Self::take_one) gave all back in between, both are at `at`
    /// already.
    async fn take(
        &mut self,
        at: usize,
        end: usize,
        deadline: Deadline,
    ) -> Result<Option<usize>, Error> {
        loop {
            let rest = &self.ranks[at..end];
            // A rank that was found busy is waited for as a single lock, in its own queue, with all before it held.
            let run = run(rest).min(self.busy.checked_sub(at).unwrap_or(usize::MAX));
            if run < 2 {
                return Ok(self.take_one(at, deadline).await?.then_some(1));
            }
            let (places, requests): (Vec<_>, Vec<_>) = singles(&rest[..run]).unzip();
            match keeping(&self.held, batch::acquire(&requests, deadline)).await? {
                Batched::Granted(guards) => {
                    self.requests += 1;
                    self.held.extend(places.into_iter().zip(guards));
                    return Ok(Some(run));
                }
                Batched::Busy(busy) => {
                    self.busy = at + busy;
                    if deadline == Deadline::Once {
                        return Ok(None);
                    }
                    // Next, the ranks before the busy one are asked for, then that one by itself.
                }
                Batched::Apart(busy) => self.busy = at + busy,
            }
        }
    }

    /// Acquires the rank `at`. Returns `false` if it was busy until the limit. If the wait is long, the set holds
    /// nothing else by the end of it.
    async fn take_one(&mut self, at: usize, deadline: Deadline) -> Result<bool, Error> {
        let rank = self.ranks[at].iter().map(|(at, request)| (*at, request));
        let (places, requests): (Vec<_>, Vec<_>) = rank.unzip();
        // With nothing in hand there is nothing to give back, and a single attempt does not wait.
        let hold_and_wait = match deadline == Deadline::Once || self.held.is_empty() {
            true => Duration::MAX,
            false => self.hold_and_wait,
        };
        let mut taking = pin!(equals(&requests, deadline));
        let taken = match timeout(hold_and_wait, keeping(&self.held, &mut taking)).await {
            Ok(taken) => taken?,
            Err(_) => {
                debug!(locks = self.held.len(), waited = ?hold_and_wait, "released the locks until another one is free");
                self.begin_with(at);
                self.hold_and_wait = hold_and_wait.saturating_mul(2);
                // The same future goes on, so that the call keeps its place in the local queue.
                taking.await?
            }
        };
        let Some(guards) = taken else {
            self.busy = at;
            return Ok(false);
        };
        self.requests += requests.len();
        self.held.extend(places.into_iter().zip(guards));
        Ok(true)
    }

    /// Acquires what is missing before the first rank that is held, without waiting. Returns `false` if one of them,
    /// `busy`, could not be acquired. What it acquired by then is in `held` all the same: the caller gives all back.
    async fn take_before(&mut self) -> Result<bool, Error> {
        let mut at = 0;
        while at < self.first {
            match self.take(at, self.first, Deadline::Once).await {
                Ok(Some(taken)) => at += taken,
                Ok(None) => return Ok(false),
                // Asked for by itself next, it is tried again until the limit.
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

    /// Gives all back, to start over with the rank `at`. The ranks before it follow once it is held.
    fn begin_with(&mut self, at: usize) {
        self.held.clear();
        (self.first, self.next) = (at, at);
    }
}

/// Returns how many locks, from the first on, can be asked for by one request. Zero if the first key is that of several
/// locks, which are on several servers.
fn run(ranks: &[Rank<'_>]) -> usize {
    let first = singles(ranks).next();
    let together = singles(ranks)
        .take(batch::MOST)
        .take_while(|(_, request)| first.is_some_and(|(_, first)| first.goes_with(request)));
    together.count()
}

/// Returns the locks up to the first key that several of them have.
fn singles<'a>(ranks: &'a [Rank<'a>]) -> impl Iterator<Item = (usize, &'a AcquireRequest)> {
    ranks.iter().map_while(|rank| match rank {
        [(at, request)] => Some((*at, request)),
        _ => None,
    })
}

/// Refuses a set that has one lock twice: through two clients, it would wait for itself. Two clients may have one key
/// each, if it is on two servers or in two databases of one.
async fn ensure_distinct(
    ranked: &[(usize, AcquireRequest)],
    deadline: Deadline,
) -> Result<(), Error> {
    let ranks = ranked.chunk_by(|(_, a), (_, b)| a.name.key() == b.name.key());
    let several: Vec<_> = ranks.filter(|rank| rank.len() > 1).collect();
    // One key of one client is one lock, which shows without asking a server.
    for rank in &several {
        for (n, (_, request)) in rank.iter().enumerate() {
            let client = &request.client;
            if rank[..n]
                .iter()
                .any(|(_, other)| Arc::ptr_eq(&other.client, client))
            {
                return Err(twice(request));
            }
        }
    }
    // Two clients may be connected to one server by different addresses, so the servers are asked who they are.
    for rank in several {
        let mut places: Vec<(Arc<str>, u32)> = Vec::new();
        let asked = rank.iter().map(|(_, request)| server(request, deadline));
        for ((_, request), server) in rank.iter().zip(join_all(asked).await) {
            let server = server.map_err(|error| request.blame(error))?;
            let place = (server, request.client.backend.database());
            if places.contains(&place) {
                return Err(twice(request));
            }
            places.push(place);
        }
    }
    Ok(())
}

/// Returns the server of a lock. While the request fails in a way that may pass, it is sent again until the limit.
async fn server(request: &AcquireRequest, deadline: Deadline) -> Result<Arc<str>, Error> {
    let key = request.name.key();
    let mut wait = Wait::new(
        BootInstant::now(),
        deadline,
        request.patience(),
        request.wake_source.clone(),
    );
    loop {
        match request.client.server(key).await {
            Ok(server) => return Ok(server),
            Err(error) => request.client.pause(key, &mut wait, error).await?,
        }
    }
}

fn twice(request: &AcquireRequest) -> Error {
    let name = request.name.key();
    Error::invalid(format!(
        "{name:?} is in the set twice, in one database of one server; name each lock once"
    ))
}

/// Acquires locks with one key, each on a server of its own: waits for one, then tries the others. If one of those is
/// busy, gives all back, and after a pause waits for that one. For a single lock, that is to acquire it.
///
/// The guards are returned in the order of `requests`. An error gives back what was acquired.
async fn equals(
    requests: &[&AcquireRequest],
    deadline: Deadline,
) -> Result<Option<Vec<LockGuard>>, Error> {
    let mut first = 0;
    let mut pause = FIRST_PAUSE;
    loop {
        let waited_for = requests[first];
        let taken = Box::pin(waited_for.acquire_member(deadline)).await;
        let Some(guard) = taken.map_err(|error| waited_for.blame(error))? else {
            return Ok(None);
        };
        let tries = requests
            // The tries do not wait, since equal keys have no order: two sets that waited could wait for each other.
            .iter()
            .enumerate()
            .map(async |(at, request)| match at == first {
                true => Ok(None),
                false => request.acquire_member(Deadline::Once).await,
            });
        // The guard that was waited for is put in its place among the others.
        let mut guard = Some(guard);
        let mut guards = Vec::with_capacity(requests.len());
        let mut busy = None;
        for (at, tried) in join_all(tries).await.into_iter().enumerate() {
            let tried = tried.map_err(|error| requests[at].blame(error))?;
            match tried.or_else(|| guard.take_if(|_| at == first)) {
                Some(guard) => guards.push(guard),
                None => busy = Some(at),
            }
        }
        let Some(at) = busy else {
            return Ok(Some(guards));
        };
        // Before the pause, so that the set that has the other lock finds these free.
        drop((guards, guard));
        first = at;
        let random = pause.mul_f64(fastrand::f64());
        pause = (pause * 2).min(LONGEST_PAUSE);
        let left = deadline.left();
        if left.is_zero() {
            return Ok(None);
        }
        let client = &waited_for.client;
        client.unless_closed(sleep(random.min(left))).await?;
    }
}

/// Waits for a future, and meanwhile extends the leases that nobody renews, so that none runs out while the set waits:
/// the caller of a set cannot do so, since it has no guard so far.
async fn keeping<F: Future>(held: &[(usize, LockGuard)], future: F) -> F::Output {
    let fixed: Vec<_> = held
        .iter()
        .filter_map(|(_, guard)| match guard.request.lease_mode {
            LeaseMode::Fixed(lease) => Some((guard, lease.get())),
            LeaseMode::Renewed(_) => None,
        })
        .collect();
    let Some(shortest) = fixed.iter().map(|(_, lease)| *lease).min() else {
        return future.await;
    };
    let keep = async {
        loop {
            sleep(shortest / 3).await;
            // A lock that is lost meanwhile is found when the set is complete.
            join_all(fixed.iter().map(|(guard, lease)| guard.extend(*lease))).await;
        }
    };
    // Biased, so that no extension is begun once the future is done.
    tokio::select! {
        biased;
        output = future => output,
        output = keep => output,
    }
}

/// Refuses a set of which a lock was lost while it waited for the rest. Extends fixed leases that have too little
/// left, and refuses what has too little left all the same.
async fn ensure_valid(held: &[(usize, LockGuard)]) -> Result<(), Error> {
    for (_, guard) in held {
        let request = &guard.request;
        if guard.is_lost() {
            return Err(guard.lost_error());
        }
        if guard.remaining() < request.min_validity && !request.lease_mode.is_renewed() {
            guard
                .extend(request.lease_mode.lease().get())
                .await
                .map_err(|error| request.blame(error))?;
        }
        if guard.remaining() < request.min_validity {
            return Err(request.too_late());
        }
    }
    debug!(locks = held.len(), "the set is complete");
    Ok(())
}
