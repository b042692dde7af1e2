//! What is judged of jobs: that they run once in their period, and again after it.

use super::Judge;
use crate::machine::now;
use crate::plan::Kind;

/// A run of a job.
pub(super) struct Run {
    hold: u64,
    began: u64,
    /// Until when no other may begin, if the server was told that it succeeded.
    kept: u64,
}

impl Judge {
    /// A hold began, which may be a run of a job.
    pub(super) fn runs(&mut self, (process, task): (usize, usize), name: usize, hold: u64) {
        let shared = &self.plan().names[name];
        if shared.kind != Kind::Job {
            return;
        }
        let shown = shared.name.clone();
        let before = self.names[name].run.replace(Run {
            hold,
            began: now(),
            kept: 0,
        });
        if let Some(Run { began, kept, .. }) = before
            && now() < kept
        {
            match self.excuse(name, began) {
                Some(_) => self.figures.permitted += 1,
                None => self.violation(format!(
                    "p{process}.{task} runs {shown}, which has run since {began} and is kept until {kept}"
                )),
            }
        }
    }

    /// A job has run to its end, and its process was told so, or gave up waiting for that.
    pub fn has_run(
        &mut self,
        (process, task): (usize, usize),
        name: usize,
        (hold, began, ended): (u64, u64, u64),
        is_told: bool,
    ) {
        let plan = self.plan();
        let (is_calm, shown) = (plan.weather == "calm", plan.names[name].name.clone());
        let within = u64::from(plan.names[name].total);
        // A renewal on its way at the end may keep it for longer. A short run has none.
        let is_short = is_calm && ended - began < plan.watchdog / 4;
        let late = plan.command_timeout + if is_short { 0 } else { plan.watchdog };
        // By a server whose clock may be fast.
        let kept = began + within - within / 100 - 2;
        let Some(run) = &mut self.names[name].run else {
            return;
        };
        if run.hold == hold {
            run.kept = if is_told { kept } else { 0 };
        } else if is_calm && run.began < kept {
            let text = format!("p{process}.{task}: {shown} was run by another one before {kept}");
            self.violation(text);
        }
        self.haunt_until(name, now() + within + within / 100 + late);
    }

    /// Another process was said to run a job, or to have run it.
    pub fn left_out(&mut self, (process, task): (usize, usize), name: usize) {
        let since = self.asked(process, task);
        let known = &self.names[name];
        let is_had = self.holds.values().any(|hold| hold.name == name)
            || self.calls.values().any(|call| call.names.contains(&name));
        if !is_had && known.free.max(known.haunted) < since {
            let shown = &self.plan().names[name].name;
            let text = format!("p{process}.{task} may not run {shown}, which nobody has run");
            self.violation(text);
        }
    }
}
