//! What is judged of elections: that each change of who leads is told, to those that watch and in the log.

use redlatch::{Error, ErrorKind};

use super::{Call, Hold, Judge};
use crate::machine::now;
use crate::plan::Kind;
use crate::world::is_over;

/// How long after the beginning of a term a candidate knows who leads.
const FOLLOWS: u64 = 2_000;

/// The changes of who leads.
#[derive(Default)]
pub(super) struct Terms {
    /// How often that has changed, and how often it was told.
    changes: u64,
    pub(super) told: u64,
    /// The changes that were known at a time.
    noted: (u64, u64),
}

impl Judge {
    fn is_election(&self, name: usize) -> bool {
        self.plan().names[name].kind == Kind::Leader
    }

    /// A hold begins, which may be a term.
    pub(super) fn leads(&mut self, name: usize) {
        let is_election = self.is_election(name);
        self.names[name].terms.changes += u64::from(is_election);
    }

    /// A hold ends, which may be a term: whoever campaigned for long was told who led.
    pub(super) fn led(&mut self, hold: &Hold) {
        self.leads(hold.name);
        if self.plan().weather != "calm" || !self.is_election(hold.name) {
            return;
        }
        let blind = self.calls.values().find(|call| self.is_blind(call, hold));
        if let Some(call) = blind {
            let text = format!(
                "p{}.{} {} follows nobody",
                call.process, call.task, call.what
            );
            self.violation(text);
        }
    }

    /// Whether a campaign goes on beside a term, and was not told of it.
    fn is_blind(&self, call: &Call, term: &Hold) -> bool {
        let plan = self.plan();
        let patience = FOLLOWS + 8 * (plan.delay.least + plan.delay.jitter + plan.spread);
        // The call that leads goes on during its term.
        let leads = call.process == term.process && call.began == term.since;
        !leads
            && call.names == [term.name]
            && call.absent == 0
            && call.began.max(term.began) + patience < now()
            && !self.has_said(call.process, "follows", term.name, call.began)
    }

    /// Whether the loss of a hold is that of a term, and its process has not said that it is deposed.
    pub(super) fn is_deposed_untold(&self, hold: &Hold) -> bool {
        self.is_election(hold.name)
            && !self.has_said(hold.process, "deposed", hold.name, hold.since)
    }

    /// Judges the error of a campaign, which outlasts outages.
    pub(super) fn check_election(&mut self, call: &Call, error: &Error) {
        let is_election = |name: &usize| self.is_election(*name);
        let campaigns = call.what.starts_with("lock ") || call.what.starts_with("lead ");
        let is_passing = matches!(
            error.kind(),
            ErrorKind::Backend | ErrorKind::Timeout | ErrorKind::LeaseLost
        );
        if campaigns && is_passing && call.names.first().is_some_and(is_election) {
            self.violation(format!("a campaign ends: {}: {error}", call.what));
        }
    }

    /// Judges whether each change of who leads is told to those that watch.
    pub(super) fn announced(&mut self, name: usize, patience: u64) {
        if !self.is_election(name) {
            return;
        }
        let known = &mut self.names[name];
        let (since, changes) = known.terms.noted;
        if known.terms.told >= changes {
            known.terms.noted = (now(), known.terms.changes);
        } else if since + patience < now() && !is_over() {
            known.is_wrong = true;
            let shown = self.plan().names[name].name.clone();
            self.violation(format!(
                "{shown}: a change of the leader since {since} is not told"
            ));
        }
    }
}
