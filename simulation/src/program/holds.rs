//! What tasks do with locks.

use std::future::{pending, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use redlatch::{ErrorKind, Owner};
use tokio::time::{sleep, timeout};

use super::body::Body;
use super::{Abandoned, Held, Process, Task};
use crate::judge::{Belief, Parted, judge, tell};
use crate::locks::{Guard, Named, lock, named};
use crate::plan::{Ask, By, Care, Ending, Kind, LONGEST_SPAN, Section};

impl Process {
    /// Begins a call for each lock and polls it for moments. Nothing becomes of it.
    pub async fn abandon(self: &Arc<Self>) {
        for (at, shared) in self.plan.names.iter().enumerate() {
            if !matches!(
                shared.kind,
                Kind::Reentrant | Kind::Fair | Kind::Fenced | Kind::ReadWrite
            ) {
                continue;
            }
            let process = self.clone();
            let mut call: Abandoned = Box::pin(async move {
                let (section, owner) = (writing(at), Owner::unique());
                let lock = lock(&process.plan, &process.clients, &section, &owner);
                let _guard = lock.ask(Ask::Wait).await;
                pending::<()>().await;
            });
            let polled = [0, 1, 30, 200][(self.number + at) % 4];
            let polled = Duration::from_millis(polled);
            timeout(polled, call.as_mut()).await.ok();
            self.abandoned().push(call);
        }
    }

    /// Drops the calls that were abandoned.
    pub fn forsake(&self) {
        let calls = std::mem::take(&mut *self.abandoned());
        drop(calls);
    }
}

/// A lock that is taken for a moment, or only looked at.
fn writing(at: usize) -> Section {
    Section {
        names: vec![at],
        reads: false,
        ask: Ask::Once,
        by: By::Task,
        lease: None,
        levels: 1,
        permits: 1,
        work: 0,
        fails: false,
        extend: None,
        verifies: false,
        ending: Ending::Unlock,
        care: Care::default(),
        held: Care::default(),
    }
}

impl Task<'_> {
    fn owner(by: By) -> Owner {
        match by {
            By::Task => Owner::current(),
            By::Unique => Owner::unique(),
            By::Named(number) => Owner::named(format!("owner-{number}")),
        }
    }

    pub(super) async fn section(&self, section: &Section) {
        let owner = Self::owner(section.by);
        let lock = lock(&self.process.plan, &self.process.clients, section, &owner);
        let mut levels = Vec::new();
        for level in 0..section.levels {
            let ask = if level == 0 { section.ask } else { Ask::Once };
            let care = if level == 0 {
                section.care
            } else {
                Care::default()
            };
            let limit = self.limit(ask, &section.names);
            let told = |guard: &Option<Guard>| if guard.is_some() { "granted" } else { "busy" };
            let asked = self.call(
                format!("lock {}", self.shown(section)),
                limit,
                &section.names,
                care,
                lock.ask(ask),
                told,
            );
            match asked.await {
                Some(Ok(Some(guard))) => {
                    self.lasts(section, &guard);
                    levels.push(self.held(section, &owner, guard));
                }
                Some(Err(error))
                    if error.kind() == ErrorKind::Refused && section.names.len() == 1 =>
                {
                    judge(|judge| judge.refused(self.id(), section.names[0], &owner));
                }
                _ => {}
            }
            if levels.len() as u32 != level + 1 {
                break;
            }
        }
        let Some(last) = levels.last() else {
            return;
        };
        self.work(section, last).await;
        while let Some(held) = levels.pop() {
            self.part(section, held).await;
        }
    }

    /// Tells the judge how much of its lease a lock is granted with.
    fn lasts(&self, section: &Section, guard: &Guard) {
        let (plan, name) = (&self.process.plan, section.names[0]);
        // Leases of a set that nobody renews may be extended one after the other.
        let is_even = section.names.len() == 1 || section.lease.is_none();
        if is_even && plan.names[name].kind != Kind::Red {
            let least = section.lease.unwrap_or(plan.watchdog) / 2;
            let left = guard.remaining();
            judge(|judge| judge.lasts(self.id(), name, (left, least)));
        }
    }

    fn held(&self, section: &Section, owner: &Owner, guard: Guard) -> Held {
        let guard = Arc::new(guard);
        let holds = section.names.iter().map(|name| {
            let belief = Belief::Lock(guard.clone());
            judge(|judge| judge.granted(self.id(), *name, section.reads, owner, belief))
        });
        let holds = holds.collect();
        let owner = owner.clone();
        Held {
            guard,
            holds,
            owner,
        }
    }

    /// Works under a lock, until the lock is lost.
    pub(super) async fn work(&self, section: &Section, held: &Held) {
        let guard = &held.guard;
        let plan = &self.process.plan;
        let limit = Some(2 * plan.command_timeout * section.names.len() as u64);
        if let Some(lease) = section.extend {
            let what = format!("extend {} by {lease}", self.shown(section));
            let extended = guard.extend(lease);
            self.call(what, limit, &[], section.held, extended, |()| "done")
                .await;
        }
        if section.verifies {
            let what = format!("verify {}", self.shown(section));
            let verified = guard.verify();
            self.call(what, limit, &[], section.held, verified, |()| "done")
                .await;
        }
        if section.work == 0 {
            return;
        }
        let mut left = guard.remaining();
        let mut lost = pin!(guard.lost());
        let work = Duration::from_millis(section.work);
        let mut worked = pin!(sleep(work));
        let reason = poll_fn(|context| {
            if let Poll::Ready(reason) = lost.as_mut().poll(context) {
                return Poll::Ready(Some(reason));
            }
            left = guard.remaining();
            worked.as_mut().poll(context).map(|()| None)
        });
        let mut reason = reason.await;
        if reason.is_none() && guard.is_lost() {
            reason = timeout(Duration::from_millis(3), lost).await.ok();
            if reason.is_none() {
                judge(|judge| judge.untold_loss(self.id(), section.names[0]));
            }
        }
        if let Some(reason) = reason {
            judge(|judge| judge.told_of_loss(self.id(), &held.holds, left, reason));
        }
    }

    pub(super) async fn part(&self, section: &Section, held: Held) {
        match section.ending {
            Ending::Unlock => self.unlock(held, section.held).await,
            Ending::Unfinished(polls) => {
                let dropped = Some((polls, true));
                self.unlock(
                    held,
                    Care {
                        dropped,
                        unpolled: None,
                    },
                )
                .await;
            }
            Ending::Drop => {
                tell!(
                    "p{}.{} drops {}",
                    self.id().0,
                    self.id().1,
                    self.shown(section)
                );
                let guard = self.parted(held).0;
                judge(|judge| section.names.iter().for_each(|name| judge.owed(*name)));
                drop(guard);
            }
            Ending::Forget => {
                tell!(
                    "p{}.{} forgets {}",
                    self.id().0,
                    self.id().1,
                    self.shown(section)
                );
                let owner = held.owner.clone();
                let guard = self.parted(held).0;
                judge(|judge| {
                    section
                        .names
                        .iter()
                        .for_each(|name| judge.forgotten(*name, &owner));
                });
                std::mem::forget(guard);
            }
            Ending::Sent => self.process.inbox().push(held),
            Ending::Detached => {
                let guard = self.parted(held).0;
                match guard.map(Guard::detach) {
                    Some(Ok(owner)) => {
                        tell!(
                            "p{}.{} leaves {}",
                            self.id().0,
                            self.id().1,
                            self.shown(section)
                        );
                        judge(|judge| judge.detached(section.names[0], owner, self.process.number));
                    }
                    other => drop(other),
                }
            }
        }
    }

    /// Tells the judge that a guard is about to be given back, and returns it.
    fn parted(&self, held: Held) -> (Option<Guard>, Vec<Parted>) {
        let parted = held
            .holds
            .iter()
            .filter_map(|hold| judge(|judge| judge.parted(*hold)));
        let parted = parted.collect();
        (Arc::into_inner(held.guard), parted)
    }

    pub(super) async fn unlock(&self, held: Held, care: Care) {
        let (guard, parted) = self.parted(held);
        let Some(guard) = guard else {
            return;
        };
        let limit = 4 * self.process.plan.command_timeout * parted.len() as u64;
        let what = "unlock".to_owned();
        let called = self.call(what, Some(limit), &[], care, guard.unlock(), |()| "done");
        let result = called.await;
        judge(|judge| match &result {
            Some(result) => judge.unlocked(self.id(), &parted, result),
            None => parted
                .iter()
                .for_each(|parted| judge.left(self.id().0, parted)),
        });
    }

    pub(super) async fn under(&self, section: &Section) {
        let owner = Self::owner(section.by);
        let lock = lock(&self.process.plan, &self.process.clients, section, &owner);
        let wait = match section.ask {
            Ask::For(wait) => wait,
            _ => 0,
        };
        let limit = self.limit(Ask::For(wait), &section.names);
        let limit = limit.map(|limit| {
            limit
                + section.work
                + 4 * self.process.plan.command_timeout * section.names.len() as u64
        });
        let parted = Mutex::new(Vec::new());
        let has_worked = AtomicBool::new(false);
        let work = async {
            let bodies: Vec<_> = section
                .names
                .iter()
                .map(|name| {
                    let hold = judge(|judge| {
                        judge.granted(self.id(), *name, section.reads, &owner, Belief::Body(None))
                    });
                    Body::new(hold, Some(&parted))
                })
                .collect();
            sleep(Duration::from_millis(section.work)).await;
            drop(bodies);
            has_worked.store(true, Ordering::Relaxed);
        };
        let what = format!("run under {}", self.shown(section));
        let told = |ran: &bool| if *ran { "ran" } else { "busy" };
        let care = section.care.polled();
        let ran = match section.fails {
            true => lock.fail(wait, Box::pin(work)),
            false => lock.run(wait, Box::pin(work)),
        };
        let called = self.call(what, limit, &section.names, care, ran, told);
        let result = called.await;
        let parted = parted.into_inner().unwrap_or_else(PoisonError::into_inner);
        let name = section.names[0];
        match result {
            // Whether the release succeeded, it is not told.
            Some(result) if section.fails => judge(|judge| {
                judge.owed(name);
                let is_hidden = has_worked.into_inner() && result.is_err();
                judge.failed(self.id(), name, is_hidden);
            }),
            Some(Ok(_)) => judge(|judge| judge.unlocked(self.id(), &parted, &Ok(()))),
            _ => {}
        }
    }

    fn named(&self, section: &Section, owner: &Owner) -> Box<dyn Named> {
        named(&self.process.plan, &self.process.clients, section, owner)
    }

    pub(super) async fn look(&self, at: usize) {
        let plan = &self.process.plan;
        let shared = &plan.names[at];
        let client = &self.process.clients[shared.client];
        let what = format!("look at {}", shared.name);
        let limit = Some(6 * plan.command_timeout);
        match shared.kind {
            Kind::Counted => {
                let semaphore = client.semaphore(&shared.name);
                self.just(what, limit, semaphore.available_permits(), |_| "done")
                    .await;
            }
            Kind::Expirable => {
                let semaphore = client.expirable_semaphore(&shared.name);
                self.just(what, limit, semaphore.available_permits(), |_| "done")
                    .await;
            }
            Kind::Leader => self.look_at_leader(at).await,
            Kind::Latch | Kind::Red | Kind::Job => {}
            _ => {
                let owner = Owner::current();
                let lock = self.named(&writing(at), &owner);
                let known = judge(|judge| judge.levels(at, &owner));
                let looked = self.just(what, limit, lock.look(), |_| "done").await;
                if let Some(Ok(levels)) = looked {
                    judge(|judge| judge.counted(self.id(), (at, &owner), known, levels));
                }
            }
        }
    }

    pub(super) async fn force(&self, at: usize) {
        let plan = &self.process.plan;
        if matches!(
            plan.names[at].kind,
            Kind::Latch | Kind::Red | Kind::Counted | Kind::Expirable | Kind::Leader | Kind::Job
        ) {
            return;
        }
        let shared = &plan.names[at];
        let lock = match shared.kind {
            // Any lock of the same shape may release it.
            Kind::Reentrant if self.task % 2 == 1 => {
                Box::new(self.process.clients[shared.client].spin_lock(&shared.name))
            }
            _ => self.named(&writing(at), &Owner::current()),
        };
        let what = format!("force {}", plan.names[at].name);
        judge(|judge| judge.forced(at, 0));
        let limit = Some(2 * plan.command_timeout);
        let forced = self.just(what, limit, lock.force(), |_| "done").await;
        Self::was_taken(at, forced.is_some_and(|forced| forced.is_ok()));
    }

    /// Tells the judge that a call may have taken a name from its holders. If it was not answered, the server may carry
    /// it out later.
    fn was_taken(at: usize, is_answered: bool) {
        let late = if is_answered { 0 } else { LONGEST_SPAN };
        judge(|judge| judge.forced(at, late));
    }

    pub(super) async fn adopt(&self) {
        let plan = &self.process.plan;
        let Some((at, owner)) = judge(|judge| judge.adoptable(self.process.number)) else {
            return;
        };
        let section = writing(at);
        let lock = self.named(&section, &owner);
        let what = format!("adopt {} of {owner}", plan.names[at].name);
        judge(|judge| judge.forced(at, 0));
        let limit = Some(2 * plan.command_timeout);
        let told = |guard: &Option<Guard>| if guard.is_some() { "adopted" } else { "gone" };
        let adopted = self.just(what, limit, lock.adopt(), told).await;
        Self::was_taken(at, adopted.as_ref().is_some_and(Result::is_ok));
        if let Some(Ok(Some(guard))) = adopted {
            let held = self.held(&section, &owner, guard);
            self.unlock(held, Care::default()).await;
        }
    }
}
