//! Lost updates: no increment made under a lock is lost.

use super::event::{Event, Op, Step};
use super::history::History;

/// Returns the counters whose value cannot be the number of their increments. `values` has the final value of each
/// lock's counter.
pub(crate) fn lost_updates(history: &History, values: &[u64]) -> Vec<String> {
    let mut found = Vec::new();
    for (lock, value) in values.iter().enumerate() {
        let count = |step| {
            let of_lock = |event: &&Event| event.lock as usize == lock;
            let events = history.events.iter().filter(of_lock);
            events.filter(|event| event.is(Op::Increment, step)).count() as u64
        };
        // The two differ by increments that were not answered, or that may not have been in time.
        let (least, most) = (count(Step::Ok), count(Step::Invoke));
        if !(least..=most).contains(value) {
            found.push(format!(
                "the counter of lock {lock} stands at {value} after {least} to {most} increments"
            ));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::sketch::Sketch;
    use super::*;

    #[test]
    fn counter_stands_between_the_increments_confirmed_and_those_begun() {
        let history = Sketch::default()
            .event(1, 1, Op::Increment, Step::Invoke)
            .event(2, 1, Op::Increment, Step::Ok)
            .event(3, 2, Op::Increment, Step::Invoke)
            .event(4, 2, Op::Increment, Step::Ok)
            .event(5, 2, Op::Increment, Step::Invoke)
            .kill(6, 2)
            .done();
        for (value, lost) in [(1, 1), (2, 0), (3, 0), (4, 1)] {
            assert_eq!(lost_updates(&history, &[value]).len(), lost, "{value}");
        }
    }
}
