//! A set of locks that is taken whole or not at all.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::sleep;
use tracing::debug;

use super::batch::{self, Batched};
use super::guard::LockGuard;
use super::order::Order;
use crate::clock::Moment;
use crate::error::Error;
use crate::options::{Limit, Term};
use crate::protocol::wait::Wait;

/// Sets that were in each other's way on several servers part within this time, more each time that they meet.
const FIRST_PAUSE: Duration = Duration::from_millis(4);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// Takes all locks, or none: then one of them was busy until the limit. The guards stand in the order of the locks.
///
/// Every set asks for its locks in the order of their keys and waits only for a key behind all that it holds, so that
/// sets which want the same locks never wait for each other in a circle. Equal keys on several servers have no order;
/// of these a set waits for one only while it holds none of the others.
pub(crate) async fn acquire(
    orders: Vec<Order>,
    limit: Limit,
) -> Result<Option<Vec<LockGuard>>, Error> {
    let mut ranked: Vec<_> = orders.into_iter().enumerate().collect();
    ranked.sort_by(|(_, a), (_, b)| a.name.key().cmp(b.name.key()));
    ensure_distinct(&ranked, limit).await?;
    let ranks = ranked.chunk_by(|(_, a), (_, b)| a.name.key() == b.name.key());
    let ranks: Vec<_> = ranks.collect();
    let mut rest = &ranks[..];
    // Which of the rest is to be asked for by itself.
    let mut apart = None;
    let mut held: Vec<(usize, LockGuard)> = Vec::with_capacity(ranked.len());
    let mut requests = 0;
    while let Some(rank) = rest.first() {
        let run = run(rest).min(apart.unwrap_or(usize::MAX));
        if run > 1 {
            let (places, orders): (Vec<_>, Vec<_>) = singles(&rest[..run]).unzip();
            match keeping(&held, batch::acquire(&orders, limit)).await? {
                Batched::Granted(guards) => {
                    requests += 1;
                    held.extend(places.into_iter().zip(guards));
                    rest = &rest[run..];
                    apart = apart.and_then(|at: usize| at.checked_sub(run));
                    continue;
                }
                Batched::Busy(_) if limit == Limit::Once => return Ok(None),
                Batched::Busy(at) | Batched::Apart(at) => apart = Some(at),
            }
            if apart > Some(1) {
                continue;
            }
        }
        rest = &rest[1..];
        apart = apart.and_then(|at| at.checked_sub(1));
        let (places, orders): (Vec<_>, Vec<_>) =
            rank.iter().map(|(at, order)| (*at, order)).unzip();
        let taken = keeping(&held, equals(&orders, limit)).await?;
        let Some(guards) = taken else {
            return Ok(None);
        };
        requests += rank.len();
        held.extend(places.into_iter().zip(guards));
    }
    // What one request has brought is as good as it was a moment ago.
    if requests > 1 {
        ensure_valid(&held).await?;
    }
    held.sort_by_key(|(at, _)| *at);
    Ok(Some(held.into_iter().map(|(_, guard)| guard).collect()))
}

/// How many locks can be asked for by one request, from the first on.
fn run(ranks: &[&[(usize, Order)]]) -> usize {
    let first = singles(ranks).next();
    let together = singles(ranks)
        .take(batch::MOST)
        .take_while(|(_, order)| first.is_some_and(|(_, first)| first.goes_with(order)));
    together.count()
}

/// The locks up to the first of several with one key.
fn singles<'a>(ranks: &'a [&'a [(usize, Order)]]) -> impl Iterator<Item = (usize, &'a Order)> {
    ranks.iter().map_while(|rank| match rank {
        [(at, order)] => Some((*at, order)),
        _ => None,
    })
}

/// Refuses a lock that is in the set twice. Two clients may have one key each, if that is on two servers.
async fn ensure_distinct(ranked: &[(usize, Order)], limit: Limit) -> Result<(), Error> {
    let ranks = ranked.chunk_by(|(_, a), (_, b)| a.name.key() == b.name.key());
    let several: Vec<_> = ranks.filter(|rank| rank.len() > 1).collect();
    for rank in &several {
        for (n, (_, order)) in rank.iter().enumerate() {
            let client = &order.anchor;
            if rank[..n]
                .iter()
                .any(|(_, other)| Arc::ptr_eq(&other.anchor, client))
            {
                return Err(twice(order));
            }
        }
    }
    for rank in several {
        let mut servers: Vec<Arc<str>> = Vec::new();
        let asked = rank.iter().map(|(_, order)| server(order, limit));
        for ((_, order), server) in rank.iter().zip(join_all(asked).await) {
            let server = server.map_err(|error| order.blame(error))?;
            if servers.contains(&server) {
                return Err(twice(order));
            }
            servers.push(server);
        }
    }
    Ok(())
}

/// The server of a lock, asked again until the limit while it fails in a way that may pass.
async fn server(order: &Order, limit: Limit) -> Result<Arc<str>, Error> {
    let key = order.name.key();
    let mut wait = Wait::new(Moment::now(), limit, order.patience(), order.alarm);
    loop {
        match order.anchor.server(key).await {
            Ok(server) => return Ok(server),
            Err(error) => order.anchor.pause(key, &mut wait, error).await?,
        }
    }
}

fn twice(order: &Order) -> Error {
    let name = order.name.key();
    Error::invalid(format!(
        "{name:?} is in the set twice, on one server; name each lock once"
    ))
}

/// Takes locks of one key, each on a server of its own: waits for one, then tries the others. If one of those is busy
/// it gives all back, and after a pause waits for that one.
async fn equals(orders: &[&Order], limit: Limit) -> Result<Option<Vec<LockGuard>>, Error> {
    let mut first = 0;
    let mut pause = FIRST_PAUSE;
    loop {
        let waited_for = orders[first];
        let taken = Box::pin(waited_for.acquire(limit)).await;
        let Some(guard) = taken.map_err(|error| waited_for.blame(error))? else {
            return Ok(None);
        };
        let tries = orders
            .iter()
            .enumerate()
            .map(async |(at, order)| match at == first {
                true => Ok(None),
                false => order.acquire(Limit::Once).await,
            });
        let mut guard = Some(guard);
        let mut guards = Vec::with_capacity(orders.len());
        let mut busy = None;
        for (at, tried) in join_all(tries).await.into_iter().enumerate() {
            let tried = tried.map_err(|error| orders[at].blame(error))?;
            match tried.or_else(|| guard.take_if(|_| at == first)) {
                Some(guard) => guards.push(guard),
                None => busy = Some(at),
            }
        }
        let Some(at) = busy else {
            return Ok(Some(guards));
        };
        drop((guards, guard));
        first = at;
        let random = pause.mul_f64(fastrand::f64());
        pause = (pause * 2).min(LONGEST_PAUSE);
        let left = limit.left();
        if left.is_zero() {
            return Ok(None);
        }
        let client = &waited_for.anchor;
        client.unless_closed(sleep(random.min(left))).await?;
    }
}

/// Waits for a future, and has those leases that nobody renews begin anew meanwhile, so that none runs out while the
/// set waits.
async fn keeping<F: Future>(held: &[(usize, LockGuard)], future: F) -> F::Output {
    let fixed: Vec<_> = held
        .iter()
        .filter_map(|(_, guard)| match guard.order.term {
            Term::Fixed(lease) => Some((guard, lease.get())),
            Term::Renewed(_) => None,
        })
        .collect();
    let Some(shortest) = fixed.iter().map(|(_, lease)| *lease).min() else {
        return future.await;
    };
    let keep = async {
        loop {
            sleep(shortest / 3).await;
            // One that is lost is found in the end.
            join_all(fixed.iter().map(|(guard, lease)| guard.extend(*lease))).await;
        }
    };
    tokio::select! {
        biased;
        output = future => output,
        output = keep => output,
    }
}

/// What was taken first may have been lost while the set waited for the rest, or have little left.
async fn ensure_valid(held: &[(usize, LockGuard)]) -> Result<(), Error> {
    for (_, guard) in held {
        let order = &guard.order;
        if guard.is_lost() {
            return Err(guard.lost_error());
        }
        if guard.remaining() < order.min_validity && !order.term.is_renewed() {
            guard
                .extend(order.term.lease().get())
                .await
                .map_err(|error| order.blame(error))?;
        }
        if guard.remaining() < order.min_validity {
            return Err(order.too_late());
        }
    }
    debug!(locks = held.len(), "the set is complete");
    Ok(())
}
