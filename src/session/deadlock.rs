//! Finds calls that may wait without end: for a lock whose holder, in this process, may be waiting for them.
//!
//! What is known is which owners of one client hold and want which locks. Two things follow from it:
//!
//! - The holder waits as well, for a lock of the owner that waits for it, directly or by way of others. If each of them
//!   does one thing after the other, none of them ever goes on.
//! - A holder that was renewed for a whole lease, while another owner waited, may be a parent that waits for its child.
//!   No executor tells who waits for a task, so it may as well be a long job. The user is told once for each hold.
//!
//! The watchdog looks when it has renewed a hold. So no call has a timer for this, and a hold that ends within its lease
//! costs nothing.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::iter::successors;
use std::sync::Arc;
use std::time::Duration;

use tracing::{field, warn};

use super::hold::Hold;
use super::local_lock::{LocalLocks, State};
use super::local_queue::Side;
use super::owners::Owners;
use super::pace::Pace;
use crate::clock::BootInstant;
use crate::label;
use crate::owner::Owner;

/// The shortest time between two warnings of one client.
const APART: Duration = Duration::from_secs(60);

/// Warns of calls that may wait without end.
#[derive(Debug)]
pub(super) struct Deadlocks {
    pace: Pace,
}

impl Default for Deadlocks {
    fn default() -> Self {
        let pace = Pace::new(APART);
        Self { pace }
    }
}

impl Deadlocks {
    /// Looks for a call that has waited for a hold for at least one lease, after that was renewed.
    pub(super) fn look<D>(&self, local_locks: &LocalLocks<D>, hold: &Hold) {
        // What is not told is not looked for: with many readers that would take long.
        if !self.pace.is_due() {
            return;
        }
        let now = BootInstant::now();
        let Some(lease) = hold.lock().outlasts_its_lease(now) else {
            return;
        };
        let Some(local) = local_locks.find(hold.key().local_key()) else {
            return;
        };
        let contention = local.lock().contention(now, lease);
        let Some(contention) = contention else {
            return;
        };
        let Some(waiter) = contention.first(local.side, &hold.owner) else {
            return;
        };
        if self.pace.tell().is_none() {
            return;
        }
        hold.lock().wait_is_known();
        let (lock, holder) = (&*contention.lock, &hold.owner);
        let (owner, waited) = (waiter.owner.as_ref(), waiter.came.until(now));
        let shown = |owner| field::display(label::shown(hold.key().label(), owner));
        let all = local_locks.each(|state| state.contention(now, Duration::ZERO));
        match owner.and_then(|owner| chain(&all, holder, owner)) {
            Some(chain) => warn!(
                lock,
                owner = owner.map(shown),
                holder = shown(holder),
                ?waited,
                "deadlock in this client: {}; have every task acquire these locks in one order, or use a MultiLock",
                Chain(&chain)
            ),
            None => warn!(
                lock,
                owner = owner.map(shown),
                holder = shown(holder),
                ?waited,
                "a call waits for another owner of this client, which has held the lock for longer than a lease; if \
                 that one waits for the call, as for a child task, neither goes on: give the child the owner of its \
                 parent, by Owner::current().scope(..), and see redlatch::pitfalls"
            ),
        }
    }
}

/// Who waits for a lock in this process, and who has it.
#[derive(Debug)]
pub(super) struct Contention {
    lock: Arc<str>,
    /// In the order of arrival.
    waiters: Vec<Waiter>,
    holders: Vec<(Side, Owner)>,
}

/// A call that waits.
#[derive(Debug)]
struct Waiter {
    side: Side,
    came: BootInstant,
    /// Not known of calls that cannot take a lock again: those for plain locks, and for several locks at once.
    owner: Option<Owner>,
}

impl<D> State<D> {
    /// Returns who has waited at least this long, and for whom. `None` if nobody has, or nobody here has the lock.
    fn contention(&self, now: BootInstant, at_least: Duration) -> Option<Contention> {
        let has_waited = |came: BootInstant| came.until(now) >= at_least;
        // As a rule nobody waits for long, and the first came first.
        let first = self.queue.arrivals().next();
        first.filter(|(_, _, came)| has_waited(*came))?;
        let mut holders = Vec::new();
        let mut lock = None;
        for side in [Side::Exclusive, Side::Shared] {
            let holds = self.owners.of(side).holds();
            for hold in holds.filter(|hold| hold.is_live() && hold.is_guarded()) {
                lock = Some(hold.key().name.key().clone());
                holders.push((side, hold.owner.clone()));
            }
        }
        let owners: HashMap<_, _> = self.owners.both().flat_map(Owners::calls).collect();
        let waiters = self.queue.arrivals().filter(|(.., came)| has_waited(*came));
        let waiters = waiters.map(|(ticket, side, came)| Waiter {
            side,
            came,
            owner: owners.get(&ticket).map(|owner| (*owner).clone()),
        });
        Some(Contention {
            lock: lock?,
            waiters: waiters.collect(),
            holders,
        })
    }
}

impl Contention {
    /// Returns the call that has waited longest for what this owner has.
    fn first(&self, side: Side, holder: &Owner) -> Option<&Waiter> {
        let waits = |it: &&Waiter| excludes(side, it.side) && it.owner.as_ref() != Some(holder);
        self.waiters.iter().find(waits)
    }
}

fn excludes(one: Side, other: Side) -> bool {
    one == Side::Exclusive || other == Side::Exclusive
}

/// An owner that waits for a lock which another one has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Link<'a> {
    owner: &'a Owner,
    lock: &'a str,
    holder: &'a Owner,
}

/// Returns how one owner waits for another, directly or by way of others: the shortest such chain.
fn chain<'a>(all: &'a [Contention], from: &'a Owner, to: &Owner) -> Option<Vec<Link<'a>>> {
    let mut wants: HashMap<&Owner, Vec<(&Contention, Side)>> = HashMap::new();
    for contention in all {
        for waiter in &contention.waiters {
            if let Some(owner) = &waiter.owner {
                let wants = wants.entry(owner).or_default();
                wants.push((contention, waiter.side));
            }
        }
    }
    // By its holder, how each owner was come to.
    let mut links: HashMap<&Owner, Link<'_>> = HashMap::new();
    let mut next = VecDeque::from([from]);
    while let Some(owner) = next.pop_front() {
        for (contention, side) in wants.get(owner).into_iter().flatten() {
            let holders = contention.holders.iter();
            for (_, holder) in
                holders.filter(|(of, holder)| excludes(*of, *side) && holder != owner)
            {
                let lock = &*contention.lock;
                let link = Link {
                    owner,
                    lock,
                    holder,
                };
                if holder == to {
                    let back = |link: &Link<'a>| links.get(link.owner).copied();
                    let mut chain: Vec<_> = successors(Some(link), back).collect();
                    chain.reverse();
                    return Some(chain);
                }
                if holder != from && !links.contains_key(holder) {
                    links.insert(holder, link);
                    next.push_back(holder);
                }
            }
        }
    }
    None
}

/// A chain, in words.
struct Chain<'a>(&'a [Link<'a>]);

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (
            at,
            Link {
                owner,
                lock,
                holder,
            },
        ) in self.0.iter().enumerate()
        {
            let and = if at == 0 { "" } else { ", and " };
            write!(f, "{and}{owner} waits for {lock:?}, which {holder} holds")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A lock that one owner waits for and another has.
    fn waits(owner: &str, lock: &str, holder: &str) -> Contention {
        Contention {
            lock: lock.into(),
            waiters: vec![Waiter {
                side: Side::Exclusive,
                came: BootInstant::now(),
                owner: Some(Owner::named(owner)),
            }],
            holders: vec![(Side::Exclusive, Owner::named(holder))],
        }
    }

    fn told(all: &[Contention], from: &str, to: &str) -> Option<String> {
        let [from, to] = [from, to].map(Owner::named);
        let chain = chain(all, &from, &to)?;
        Some(Chain(&chain).to_string())
    }

    #[test]
    fn shortest_chain_is_found_and_told() {
        let all = [
            waits("a", "1", "b"),
            waits("b", "2", "c"),
            waits("c", "3", "d"),
            waits("b", "4", "d"),
            waits("d", "5", "d"),
            waits("d", "6", "b"),
        ];
        let chain = "a waits for \"1\", which b holds, and b waits for \"4\", which d holds";
        assert_eq!(told(&all, "a", "d").as_deref(), Some(chain));
        let itself = "b waits for \"4\", which d holds, and d waits for \"6\", which b holds";
        assert_eq!(told(&all, "b", "b").as_deref(), Some(itself));
        assert_eq!(told(&all, "d", "a"), None);
        assert_eq!(told(&all, "x", "a"), None);
    }

    #[test]
    fn readers_wait_for_writers_and_not_for_each_other() {
        for (waiter, holder, is_told) in [
            (Side::Shared, Side::Shared, false),
            (Side::Shared, Side::Exclusive, true),
            (Side::Exclusive, Side::Shared, true),
        ] {
            let mut all = [waits("a", "1", "b")];
            all[0].waiters[0].side = waiter;
            all[0].holders[0].0 = holder;
            assert_eq!(told(&all, "a", "b").is_some(), is_told);
            let first = all[0].first(holder, &Owner::named("b"));
            assert_eq!(first.is_some(), is_told);
        }
    }
}
