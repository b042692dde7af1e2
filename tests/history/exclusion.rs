//! Mutual exclusion: no two owners ever believe at the same time that they hold the same lock.

use std::collections::HashMap;

use super::hold::Hold;

/// Returns overlaps between holds of different owners. The result is empty if and only if no two such holds overlap; it
/// need not name every pair.
pub(crate) fn overlaps(holds: &[Hold]) -> Vec<String> {
    let mut holds = holds.to_vec();
    holds.sort_by_key(|hold| hold.from);
    let mut found = Vec::new();
    // For each lock, the hold that lasts longest so far. If any earlier hold reaches into the present one, then so does
    // the longest. If the longest has the same owner, and the earlier hold another one, then those two overlap as well,
    // and that was found before.
    let mut longest: HashMap<u32, Hold> = HashMap::new();
    for hold in holds {
        let reach = longest.entry(hold.lock).or_insert(hold);
        if hold.from < reach.to && hold.from < hold.to && hold.owner != reach.owner {
            found.push(format!("two owners at once: {reach:?} and {hold:?}"));
        }
        if hold.to > reach.to {
            *reach = hold;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::hold::{End, holds};
    use super::super::sketch::Sketch;
    use super::*;

    #[test]
    fn owners_in_turn_are_accepted() {
        let history = Sketch::default()
            .hold(1, 0, 10, 20, 1_000)
            .hold(2, 5, 20, 30, 1_000)
            // The lease ran out at 40, and so the owner no longer believes that it holds the lock.
            .hold(1, 25, 30, 90, 40)
            .hold(2, 30, 41, 50, 1_000)
            // A nested level.
            .hold(3, 50, 60, 80, 1_000)
            .hold(3, 61, 62, 70, 1_000)
            .done();
        assert_eq!(overlaps(&holds(&history)), Vec::<String>::new());
    }

    #[test]
    fn two_owners_at_once_are_rejected() {
        for second in [(15, 30), (10, 20), (19, 20), (12, 13)] {
            let history = Sketch::default()
                .hold(1, 0, 10, 20, 1_000)
                .hold(2, 0, second.0, second.1, 1_000)
                .done();
            assert_eq!(overlaps(&holds(&history)).len(), 1, "{second:?}");
        }
        let under_a_nested_level = Sketch::default()
            .hold(1, 0, 10, 100, 1_000)
            .hold(1, 0, 20, 30, 1_000)
            .hold(2, 0, 40, 50, 1_000)
            .done();
        assert_eq!(overlaps(&holds(&under_a_nested_level)).len(), 1);
    }

    #[test]
    fn sweep_and_comparison_of_all_pairs_agree() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut both = [0, 0];
        for _ in 0..2_000 {
            let holds: Vec<Hold> = (0..random.usize(0..7))
                .map(|_| {
                    let from = random.u64(0..60);
                    Hold {
                        lock: random.u32(0..2),
                        owner: (random.u32(0..3), 0),
                        from,
                        to: from + random.u64(0..12),
                        end: End::Released,
                    }
                })
                .collect();
            let overlap = |a: &Hold, b: &Hold| {
                a.lock == b.lock && a.owner != b.owner && a.from.max(b.from) < a.to.min(b.to)
            };
            let any = holds.iter().any(|a| holds.iter().any(|b| overlap(a, b)));
            assert_eq!(any, !overlaps(&holds).is_empty(), "{holds:?}");
            both[usize::from(any)] += 1;
        }
        assert!(both.iter().all(|n| *n > 200), "{both:?}");
    }
}
