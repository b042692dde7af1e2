//! What tasks do with jobs.

use std::sync::OnceLock;
use std::time::Duration;

use redlatch::Owner;
use redlatch::job::Execution;
use tokio::time::sleep;

use super::Task;
use super::body::Body;
use crate::judge::{Belief, judge};
use crate::locks::Failure;
use crate::machine::now;
use crate::plan::Attempt;

impl Task<'_> {
    pub(super) async fn job(&self, attempt: &Attempt) {
        let plan = &self.process.plan;
        let name = attempt.name;
        let shared = &plan.names[name];
        let within = Duration::from_millis(shared.total.into());
        let job = self.process.clients[shared.client].job(&shared.name, within);
        // The hold of a run that succeeded, when it began and when it ended.
        let ran = OnceLock::new();
        let run = async |run: &Execution| {
            let belief = Belief::Body(Some(run.token().get()));
            let owner = Owner::unique();
            let hold = judge(|judge| judge.granted(self.id(), name, false, &owner, belief));
            let began = now();
            let body = Body::new(hold, None);
            sleep(Duration::from_millis(attempt.work)).await;
            drop(body);
            if attempt.fails {
                return Err(Failure::Wanted);
            }
            ran.set((hold, began, now())).ok();
            Ok(())
        };
        let asked = async {
            match job.execute(run).await {
                Ok(Some(())) => Ok("has run"),
                Ok(None) => Ok("busy"),
                Err(Failure::Wanted) => Ok("failed"),
                Err(Failure::Met(error)) => Err(error),
            }
        };
        // It waits for the word about its end for one lease at most.
        let end = plan.watchdog.max(4 * plan.command_timeout);
        let limit = Some(plan.command_timeout + attempt.work + end);
        let what = format!("run {}", shared.name);
        let names = [name];
        let called = self.call(what, limit, &names, attempt.care.polled(), asked, |told| {
            told
        });
        match (called.await, ran.get()) {
            (Some(Ok("busy")), _) => judge(|judge| judge.left_out(self.id(), name)),
            (Some(Ok(_)), Some(&(hold, began, ended))) => {
                let is_told = now() - ended < plan.watchdog;
                judge(|judge| judge.has_run(self.id(), name, (hold, began, ended), is_told));
            }
            (None, Some(&(hold, began, ended))) => {
                // A task of the client goes on to tell the server.
                let is_told = plan.weather == "calm";
                judge(|judge| judge.has_run(self.id(), name, (hold, began, ended), is_told));
            }
            _ => judge(|judge| judge.owed(name)),
        }
    }
}
