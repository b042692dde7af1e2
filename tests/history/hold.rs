//! The periods during which an owner believed that it held a lock.

use std::collections::HashMap;

use super::event::{Event, Op, Step};
use super::history::History;

/// One level that an owner believed that it held.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hold {
    pub(crate) lock: u32,
    /// The process, and the number of the owner within it.
    pub(crate) owner: (u32, u32),
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) end: End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Released,
    /// The owner saw that the lease was lost, or the lease ran out.
    Lost,
    Killed,
    /// The history ends before the hold.
    Open,
}

/// Returns every hold, from its grant until its release, loss, deadline or death, whichever comes first.
pub(crate) fn holds(history: &History) -> Vec<Hold> {
    let mut open: HashMap<(u32, u32), (Hold, u64)> = HashMap::new();
    let mut holds = Vec::new();
    for event in sorted(&history.events) {
        let guard = (event.process, event.guard);
        if event.is_grant() || event.is(Op::Reenter, Step::Ok) {
            let hold = Hold {
                lock: event.lock,
                owner: (event.process, event.owner),
                from: event.at,
                to: 0,
                end: End::Open,
            };
            open.insert(guard, (hold, event.deadline));
        } else if event.is(Op::Hold, Step::Ok) {
            if let Some((_, deadline)) = open.get_mut(&guard) {
                *deadline = event.deadline;
            }
        } else if let Some(end) = end_of(&event)
            && let Some((hold, deadline)) = open.remove(&guard)
        {
            let deadline = deadline.max(event.deadline);
            holds.push(ended(hold, event.at, deadline, end));
        }
    }
    for (hold, deadline) in open.into_values() {
        holds.push(match history.killed(hold.owner.0) {
            Some(at) => ended(hold, at, deadline, End::Killed),
            None => ended(hold, u64::MAX, deadline, End::Open),
        });
    }
    holds.sort_by_key(|hold| hold.from);
    holds
}

/// Returns the holds that were lost although their lease had not run out.
pub(crate) fn robberies(history: &History) -> Vec<String> {
    let mut deadlines: HashMap<(u32, u32), u64> = HashMap::new();
    let mut robbed = Vec::new();
    for event in sorted(&history.events) {
        let guard = (event.process, event.guard);
        if event.deadline > 0 {
            deadlines.insert(guard, event.deadline);
        }
        let lost = matches!(event.op, Op::Hold | Op::Release) && event.step == Step::Fail;
        if lost
            && deadlines
                .get(&guard)
                .is_some_and(|deadline| event.at < *deadline)
        {
            robbed.push(format!("lost before its deadline: {event}"));
        }
    }
    robbed
}

pub(crate) fn sorted(events: &[Event]) -> Vec<Event> {
    let mut events = events.to_vec();
    // The sort is stable: events that one process logged at the same time stay in order.
    events.sort_by_key(|event| event.at);
    events
}

fn end_of(event: &Event) -> Option<End> {
    if event.is(Op::Release, Step::Invoke) {
        Some(End::Released)
    } else if event.is(Op::Hold, Step::Fail) {
        Some(End::Lost)
    } else {
        None
    }
}

fn ended(hold: Hold, at: u64, deadline: u64, end: End) -> Hold {
    let (to, end) = if deadline < at {
        (deadline, End::Lost)
    } else {
        (at, end)
    };
    Hold { to, end, ..hold }
}

#[cfg(test)]
mod tests {
    use super::super::sketch::Sketch;
    use super::*;

    #[test]
    fn hold_ends_with_the_first_of_release_loss_deadline_and_death() {
        let history = Sketch::default()
            .hold(1, 0, 10, 20, 1_000)
            .granted(1, 20, 30, 40)
            .then(60, 1, Op::Release, Step::Invoke, 0)
            .granted(1, 60, 70, 1_000)
            .then(80, 1, Op::Hold, Step::Fail, 0)
            .granted(1, 80, 90, 100)
            .then(95, 1, Op::Hold, Step::Ok, 200)
            .then(150, 1, Op::Release, Step::Invoke, 0)
            .granted(2, 150, 160, 1_000)
            .kill(170, 2)
            .done();
        let found: Vec<_> = holds(&history)
            .iter()
            .map(|hold| (hold.from / 1_000_000, hold.to / 1_000_000, hold.end))
            .collect();
        assert_eq!(
            found,
            [
                (10, 20, End::Released),
                (30, 40, End::Lost),
                (70, 80, End::Lost),
                (90, 150, End::Released),
                (160, 170, End::Killed),
            ]
        );
    }

    #[test]
    fn loss_before_the_deadline_is_a_robbery_and_after_it_is_none() {
        let late = Sketch::default()
            .granted(1, 0, 10, 100)
            .then(100, 1, Op::Hold, Step::Fail, 0);
        assert_eq!(robberies(&late.done()), Vec::<String>::new());
        let early = Sketch::default()
            .granted(1, 0, 10, 100)
            .then(99, 1, Op::Hold, Step::Fail, 0);
        assert_eq!(robberies(&early.done()).len(), 1);
        let unlock =
            Sketch::default()
                .granted(1, 0, 10, 100)
                .then(50, 1, Op::Release, Step::Fail, 0);
        assert_eq!(robberies(&unlock.done()).len(), 1);
    }
}
