//! The decisions of a lock over several servers: the outcome of their votes, how long a majority can be trusted, and
//! when enough of them vote.

use std::time::Duration;

/// What one server has answered so far.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(crate) enum Response {
    Awaited,
    /// The server has granted its part.
    Yes,
    /// Another owner has the server's part.
    No,
    /// The server abstained, failed, or did not answer in time.
    Missing,
}

/// The outcome of the votes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QuorumState {
    /// The outcome depends on votes that are still awaited.
    Open,
    /// A majority has granted its parts.
    Won,
    /// A majority votes, but other owners have some of its parts.
    Outvoted,
    /// No majority votes.
    TooFew,
}

/// Returns how many of `servers` servers are a majority. Any two majorities have a server in common.
pub(crate) fn majority(servers: usize) -> usize {
    servers / 2 + 1
}

/// Decides the outcome of one vote for each server.
pub(crate) fn quorum_state(votes: &[Response]) -> QuorumState {
    let most = majority(votes.len());
    let count = |response: Response| votes.iter().filter(|vote| **vote == response).count();
    let yes = count(Response::Yes);
    let no = count(Response::No);
    let awaited = count(Response::Awaited);
    if yes >= most {
        QuorumState::Won
    } else if yes + awaited >= most {
        QuorumState::Open
    } else if yes + no >= most {
        QuorumState::Outvoted
    } else if awaited > 0 {
        // `TooFew` becomes an error that reports all servers, so it waits for the outstanding answers.
        QuorumState::Open
    } else {
        QuorumState::TooFew
    }
}

/// Returns how long the leases on a majority of `servers` servers can be trusted, or zero if there is no majority.
/// `left` is the remaining time of each lease that was granted.
pub(crate) fn trusted_for(left: impl Iterator<Item = Duration>, servers: usize) -> Duration {
    let mut left: Vec<_> = left.collect();
    left.sort_unstable_by(|a, b| b.cmp(a));
    left.get(majority(servers) - 1).copied().unwrap_or_default()
}

/// Returns after how long a majority of `servers` servers votes, or `None` if time alone is not enough. `voting` of
/// them vote now, and `left` is the time until each server that abstains votes.
pub(crate) fn grace(
    voting: usize,
    left: impl Iterator<Item = Duration>,
    servers: usize,
) -> Option<Duration> {
    let Some(lacking) = majority(servers).checked_sub(voting + 1) else {
        return Some(Duration::ZERO);
    };
    let mut left: Vec<_> = left.collect();
    left.sort_unstable();
    left.get(lacking).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn vote() -> impl Strategy<Value = Response> {
        prop_oneof![
            Just(Response::Awaited),
            Just(Response::Yes),
            Just(Response::No),
            Just(Response::Missing),
        ]
    }

    fn votes() -> impl Strategy<Value = Vec<Response>> {
        proptest::collection::vec(vote(), 1..8)
    }

    proptest! {
        #[test]
        fn two_majorities_have_a_server_in_common(servers in 1usize..100) {
            prop_assert!(majority(servers) * 2 > servers);
            prop_assert!((majority(servers) - 1) * 2 <= servers);
        }

        #[test]
        fn nothing_but_a_majority_that_granted_wins(votes in votes()) {
            let yes = votes.iter().filter(|vote| **vote == Response::Yes).count();
            let won = quorum_state(&votes) == QuorumState::Won;
            prop_assert_eq!(won, yes >= majority(votes.len()));
        }

        #[test]
        fn a_majority_stands_by_its_promise_for_as_long_as_is_said(
            left in proptest::collection::vec(0u64..100_000, 0..8), others in 0usize..8
        ) {
            let servers = left.len() + others;
            let left: Vec<_> = left.into_iter().map(Duration::from_millis).collect();
            let said = trusted_for(left.iter().copied(), servers);
            let standing = left.iter().filter(|left| **left >= said).count();
            let longer = left.iter().filter(|left| **left > said).count();
            prop_assert!(said.is_zero() || standing >= majority(servers));
            prop_assert!(longer < majority(servers));
        }

        #[test]
        fn a_round_is_open_only_while_an_answer_can_decide_it(votes in votes()) {
            if quorum_state(&votes) == QuorumState::Open {
                prop_assert!(votes.contains(&Response::Awaited));
            }
        }

        #[test]
        fn a_round_that_was_given_up_could_not_be_won(votes in votes(), answers in proptest::collection::vec(vote(), 8)) {
            let before = quorum_state(&votes);
            let mut answers = answers.into_iter().filter(|vote| *vote != Response::Awaited);
            let after: Vec<_> = votes
                .iter()
                .map(|vote| match vote {
                    Response::Awaited => answers.next().unwrap_or(Response::Missing),
                    vote => *vote,
                })
                .collect();
            if matches!(before, QuorumState::Outvoted | QuorumState::TooFew) {
                prop_assert_ne!(quorum_state(&after), QuorumState::Won);
            }
        }

        #[test]
        fn the_grace_is_over_when_a_majority_votes_and_not_before(
            voting in 0usize..8, left in proptest::collection::vec(0u64..1_000, 0..8)
        ) {
            let servers = voting + left.len();
            prop_assume!(servers > 0);
            let left: Vec<_> = left.into_iter().map(Duration::from_millis).collect();
            let after = grace(voting, left.iter().copied(), servers);
            prop_assert!(after.is_some(), "nobody failed, so it is a matter of time");
            let votes = |at: Duration| voting + left.iter().filter(|left| **left <= at).count();
            let after = after.unwrap_or_default();
            prop_assert!(votes(after) >= majority(servers));
            if let Some(before) = after.checked_sub(Duration::from_millis(1)) {
                prop_assert!(votes(before) < majority(servers));
            }
        }
    }

    #[test]
    fn no_time_makes_a_majority_of_too_few() {
        let left = [Duration::from_secs(9)];
        assert_eq!(grace(1, left.into_iter(), 4), None);
        assert_eq!(grace(0, left.into_iter(), 3), None);
        assert_eq!(grace(1, left.into_iter(), 3), Some(left[0]));
    }
}
