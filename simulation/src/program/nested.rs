//! What a task does in branches, and in runs within each other.

use std::time::Duration;

use redlatch::{Error, ErrorKind, MultiLock, Owner};
use tokio::time::sleep;

use super::Task;
use super::body::Body;
use crate::judge::{Belief, judge};
use crate::locks::{Lock, unowned};
use crate::plan::{Care, Kind};

/// How long a run waits for a lock that its own task may have around it, or in another branch.
const WITHIN: u64 = 300;

impl Task<'_> {
    /// Runs under a lock in several branches at once.
    pub(super) async fn nest(&self, at: usize, work: u64) {
        self.run_at_once(at).await;
        tokio::join!(
            self.branch(0, at, work, u64::MAX),
            self.branch(1, at, work, u64::MAX),
            self.branch(2, at, work, 1_000),
            self.branch(3, at, work, 1_000),
        );
    }

    /// Runs under a lock unless it is busy.
    async fn run_at_once(&self, at: usize) {
        let plan = &self.process.plan;
        let shared = &plan.names[at];
        if shared.kind != Kind::Reentrant {
            return;
        }
        let lock = self.process.clients[shared.client].lock(&shared.name);
        let what = format!("run at once under {}", shared.name);
        let told = |ran: &Option<()>| if ran.is_some() { "ran" } else { "busy" };
        let limit = Some(2 * plan.command_timeout);
        let ran = lock.try_run(async { Ok::<_, Error>(()) });
        self.just(what, limit, ran, told).await;
    }

    /// Runs under a lock, then under another one within that, and within both under the first again.
    async fn branch(&self, branch: usize, at: usize, work: u64, wait: u64) {
        let shared = &self.process.plan.names[at];
        let client = &self.process.clients[shared.client];
        let (process, task) = self.id();
        let (lock, again) = (
            unowned(client, shared, false),
            unowned(client, shared, true),
        );
        let between = client.lock(format!("between:p{process}.{task}.{branch}"));
        let within = async {
            let ran = again.run(WITHIN, Box::pin(async {}));
            let is_right = matches!(Owner::current().scope(ran).await, Ok(true));
            judge(|judge| judge.within(self.id(), at, is_right, "its own run keeps it out"));
            if shared.kind == Kind::Reentrant {
                let set = MultiLock::new([client.lock(&shared.name), between.clone()]);
                let taken = set.try_lock().await;
                let is_right = taken.is_err_and(|error| error.kind() == ErrorKind::Refused);
                judge(|judge| judge.within(self.id(), at, is_right, "a set acts for two owners"));
            }
        };
        let body = async {
            let (owner, belief) = (Owner::unique(), Belief::Body(None));
            let hold = judge(|judge| judge.granted(self.id(), at, false, &owner, belief));
            let _body = Body::new(hold, None);
            Lock::run(&between, 0, Box::pin(within)).await.ok();
            sleep(Duration::from_millis(work)).await;
        };
        let what = format!("run in a branch under {}", shared.name);
        let told = |ran: &bool| if *ran { "ran" } else { "busy" };
        let run = lock.run(wait, Box::pin(body));
        self.call(what, None, &[at], Care::default(), run, told)
            .await;
    }
}
