//! Cuts parts out of a plan, to find which of them break a promise.

use std::fmt;

use super::Plan;

/// A part that is left out of a plan.
#[derive(Clone, Copy, Debug)]
pub enum Cut {
    Event(usize),
    /// A whole process.
    Process(usize),
    /// A range of steps of one task of a process.
    Steps(usize, usize, usize, usize),
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Event(event) => write!(f, "event.{event}"),
            Self::Process(process) => write!(f, "process.{process}"),
            Self::Steps(process, task, from, to) => write!(f, "steps.{process}.{task}.{from}.{to}"),
        }
    }
}

impl Cut {
    /// Parses the text that the `Display` of a cut writes.
    pub fn read(text: &str) -> Option<Self> {
        let (kind, numbers) = text.split_once('.')?;
        let numbers: Option<Vec<_>> = numbers.split('.').map(|one| one.parse().ok()).collect();
        match (kind, &numbers?[..]) {
            ("event", &[event]) => Some(Self::Event(event)),
            ("process", &[process]) => Some(Self::Process(process)),
            ("steps", &[process, task, from, to]) => Some(Self::Steps(process, task, from, to)),
            _ => None,
        }
    }
}

impl Plan {
    /// Returns the plan without these parts. Their numbers are those of the whole plan.
    #[must_use]
    pub fn without(mut self, cuts: &[Cut]) -> Self {
        let is_cut = |process, task, step| {
            cuts.iter().any(|cut| match *cut {
                Cut::Event(_) => false,
                Cut::Process(one) => one == process,
                Cut::Steps(one, other, from, to) => {
                    (one, other) == (process, task) && (from..to).contains(&step)
                }
            })
        };
        for (process, plan) in self.processes.iter_mut().enumerate() {
            for (task, steps) in plan.tasks.iter_mut().enumerate() {
                let mut step = 0;
                steps.retain(|_| {
                    step += 1;
                    !is_cut(process, task, step - 1)
                });
            }
        }
        let mut event = 0;
        self.events.retain(|_| {
            event += 1;
            !cuts
                .iter()
                .any(|cut| matches!(cut, Cut::Event(one) if *one == event - 1))
        });
        self
    }
}
