//! What tasks do with semaphores and latches.

use std::future::Ready;
use std::time::Duration;

use redlatch::{Error, Owner};
use tokio::time::sleep;

use super::Task;
use crate::judge::judge;
use crate::machine::now;
use crate::plan::{Ask, Ending, Kind, Section};

/// What clocks of whole milliseconds may take off a lease.
const BLUR: u64 = 5;

impl Task<'_> {
    pub(super) async fn count_down(&self, at: usize) {
        let plan = &self.process.plan;
        let shared = &plan.names[at];
        judge(|judge| judge.counted_down(at));
        let latch = self.process.clients[shared.client].latch(&shared.name);
        let what = format!("count {} down", shared.name);
        let limit = Some(plan.command_timeout);
        self.just(what, limit, latch.count_down(), |()| "done")
            .await;
    }

    pub(super) async fn await_latch(&self, at: usize, wait: u64) {
        let plan = &self.process.plan;
        let shared = &plan.names[at];
        if !judge(|judge| judge.is_set(at)) {
            return;
        }
        let latch = self.process.clients[shared.client].latch(&shared.name);
        let limit = Some(wait + plan.command_timeout);
        let wait = Duration::from_millis(wait);
        let what = format!("wait for {}", shared.name);
        let told = |open: &bool| if *open { "open" } else { "closed" };
        let result = self.just(what, limit, latch.wait_for(wait), told).await;
        if let Some(Ok(true)) = result {
            judge(|judge| judge.open(at));
        }
    }
}

macro_rules! permits {
    (
        $name:ident, $of:ident, $semaphore:ident => $with_lease:expr,
        ($permit:ident, $time:ident) => $extended:expr
    ) => {
        impl Task<'_> {
            pub(super) async fn $name(&self, section: &Section) {
                let at = section.names[0];
                let plan = &self.process.plan;
                let shared = &plan.names[at];
                let lease = section.lease.unwrap_or(3_000);
                let $semaphore = self.process.clients[shared.client].$of(&shared.name);
                let semaphore = $with_lease(lease);
                let what = format!("set {} to {}", shared.name, shared.total);
                let set = semaphore.try_set_permits(shared.total);
                let limit = Some(plan.command_timeout);
                self.just(what, limit, set, |_| "done").await;
                let wanted = section.permits;
                let limit = self.limit(section.ask, &section.names);
                let began = now();
                let asked = async {
                    match section.ask {
                        Ask::Wait => semaphore.acquire_many(wanted).await.map(Some),
                        Ask::Once => semaphore.try_acquire_many(wanted).await,
                        Ask::For(wait) => {
                            let wait = Duration::from_millis(wait);
                            semaphore.try_acquire_many_for(wanted, wait).await
                        }
                    }
                };
                let what = format!("acquire {wanted} of {}", self.shown(section));
                let told = |permit: &Option<_>| if permit.is_some() { "granted" } else { "busy" };
                let asked = self
                    .call(what, limit, &section.names, section.care, asked, told)
                    .await;
                let Some(Ok(Some(permit))) = asked else {
                    return;
                };
                let owner = Owner::unique();
                let until = match shared.kind {
                    Kind::Expirable => began + lease - lease / 100,
                    _ => u64::MAX,
                };
                let hold = judge(|judge| judge.permitted(self.id(), at, wanted, &owner, until));
                let leases = section.extend.map(|lease| [lease / 4, lease]);
                for lease in leases.into_iter().flatten() {
                    let ($permit, $time) = (&permit, Duration::from_millis(lease));
                    let Some(extended) = $extended else {
                        break;
                    };
                    let until = now() + lease - lease / 100 - BLUR;
                    judge(|judge| judge.permits_last(hold, until, true));
                    let what = format!("extend {} by {lease}", shared.name);
                    let limit = Some(2 * plan.command_timeout);
                    let extended = self.just(what, limit, extended, |()| "done").await;
                    if matches!(extended, Some(Ok(()))) {
                        judge(|judge| judge.permits_last(hold, until, false));
                    }
                }
                if section.work > 0 {
                    sleep(Duration::from_millis(section.work)).await;
                }
                judge(|judge| judge.parted(hold));
                match section.ending {
                    Ending::Drop | Ending::Sent => drop(permit),
                    Ending::Forget => {
                        judge(|judge| judge.forgotten(at, &owner));
                        permit.forget();
                    }
                    _ => {
                        let what = format!("release {}", shared.name);
                        let limit = Some(4 * plan.command_timeout);
                        let released = permit.release();
                        let released = self.just(what, limit, released, |()| "done");
                        if !matches!(released.await, Some(Ok(()))) {
                            judge(|judge| judge.owed(at));
                        }
                    }
                }
            }
        }
    };
}

permits!(
    permits, semaphore, semaphore => |_: u64| semaphore,
    (_permit, _time) => None::<Ready<Result<(), Error>>>
);
permits!(
    expirable_permits, expirable_semaphore, semaphore => |lease| semaphore.lease(Duration::from_millis(lease)),
    (permit, time) => Some(permit.extend(time))
);
