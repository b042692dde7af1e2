//! Decides for a lock over several servers: what their votes come to, until when a majority can be trusted, whether a
//! fleet is used for the first time.

use std::time::Duration;

use crate::clock::Moment;

/// Within this time all servers of a fleet that is new are asked for the first time. Servers that lost their memory
/// one after the other, as in a restart of all in turn, are further apart.
const FIRST_USE: Duration = Duration::from_secs(2);

/// What one server has said so far.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(crate) enum Vote {
    Awaited,
    /// It has granted its part, which can be trusted until then.
    Yes(Moment),
    /// Somebody else has its part.
    No,
    /// It may have forgotten votes, and has a mark of this age.
    Abstained {
        age: Duration,
    },
    /// It failed, or did not answer in time.
    Missing,
}

/// What the votes come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The votes that are awaited decide.
    Open,
    /// A majority has granted its parts, all of which can be trusted until then.
    Won(Moment),
    /// It looks as if the servers had never been asked before. If they had, they would have `outvoted` the call, or
    /// else be too few.
    FirstUse { outvoted: bool },
    /// A majority votes, and others have some of it.
    Outvoted,
    /// No majority votes.
    TooFew,
}

/// How many of so many servers decide: any two such sets have one in common.
pub(crate) fn majority(servers: usize) -> usize {
    servers / 2 + 1
}

pub(crate) fn verdict(votes: &[Vote]) -> Verdict {
    let most = majority(votes.len());
    let count = |is: fn(&Vote) -> bool| votes.iter().filter(|vote| is(vote)).count();
    let yes = count(|vote| matches!(vote, Vote::Yes(_)));
    let no = count(|vote| *vote == Vote::No);
    let awaited = count(|vote| *vote == Vote::Awaited);
    let abstained = count(|vote| matches!(vote, Vote::Abstained { .. }));
    let promises = votes.iter().filter_map(|vote| match vote {
        Vote::Yes(until) => Some(*until),
        _ => None,
    });
    if let Some(until) = trusted_until(promises, votes.len()) {
        return Verdict::Won(until);
    }
    if yes + awaited >= most {
        return Verdict::Open;
    }
    let all_are_new = votes.iter().all(|vote| match vote {
        Vote::Abstained { age } => *age <= FIRST_USE,
        Vote::Missing => false,
        Vote::Awaited | Vote::Yes(_) | Vote::No => true,
    });
    if all_are_new && abstained > 0 && yes + awaited + abstained >= most {
        return match awaited {
            0 => Verdict::FirstUse {
                outvoted: yes + no >= most,
            },
            _ => Verdict::Open,
        };
    }
    if yes + no >= most {
        Verdict::Outvoted
    } else if awaited > 0 {
        // Too few will be an error, which tells of all.
        Verdict::Open
    } else {
        Verdict::TooFew
    }
}

/// Until when a majority of so many servers stands by its promise, if it does: the longest that so many have given.
pub(crate) fn trusted_until(
    promises: impl Iterator<Item = Moment>,
    servers: usize,
) -> Option<Moment> {
    let mut promises: Vec<_> = promises.collect();
    promises.sort_unstable_by(|a, b| b.cmp(a));
    promises.get(majority(servers) - 1).copied()
}

/// Since when a server remembers its votes.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub(crate) struct Mark {
    /// The run id of the server, and the time by its clock. No two marks are alike.
    pub(crate) made: Box<str>,
    /// The fleet that it votes in without having rested.
    pub(crate) fleet: Option<Box<str>>,
    pub(crate) age: Duration,
}

/// The id of a fleet whose servers are used for the first time, from the marks of all of them. None if it is not so.
///
/// The id is made of the marks: so clients that come at the same time make the same, and go on where another one
/// stopped, while a server that lost its mark meanwhile has no part in it.
pub(crate) fn first_use(marks: &[Mark]) -> Option<String> {
    let mut made: Vec<&str> = marks.iter().map(|mark| &*mark.made).collect();
    made.sort_unstable();
    let mut id = sha1_smol::Sha1::from(made.join("\n")).digest().to_string();
    id.truncate(16);
    let begun = |mark: &Mark| mark.fleet.as_deref() == Some(&*id);
    let joins = |mark: &Mark| mark.fleet.is_none();
    let is_new = marks.iter().all(|mark| mark.age <= FIRST_USE);
    let one_fleet = marks.iter().all(|mark| begun(mark) || joins(mark));
    (one_fleet && (is_new || marks.iter().any(begun))).then_some(id)
}

/// What tells two members apart whose servers are one: the first half of their marks.
pub(crate) fn is_one_server_twice(marks: &[Mark]) -> bool {
    marks
        .iter()
        .enumerate()
        .any(|(at, mark)| marks[..at].iter().any(|other| other.made == mark.made))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn vote() -> impl Strategy<Value = Vote> {
        prop_oneof![
            Just(Vote::Awaited),
            (1u64..100_000).prop_map(|millis| Vote::Yes(Moment::from_millis(millis))),
            Just(Vote::No),
            (0u64..4_000).prop_map(|millis| Vote::Abstained {
                age: Duration::from_millis(millis)
            }),
            Just(Vote::Missing),
        ]
    }

    fn votes() -> impl Strategy<Value = Vec<Vote>> {
        proptest::collection::vec(vote(), 1..8)
    }

    fn is_yes(vote: &Vote) -> bool {
        matches!(vote, Vote::Yes(_))
    }

    fn mark(made: &str, fleet: Option<&str>, age: u64) -> Mark {
        Mark {
            made: made.into(),
            fleet: fleet.map(Box::from),
            age: Duration::from_millis(age),
        }
    }

    proptest! {
        #[test]
        fn two_majorities_have_a_server_in_common(servers in 1usize..100) {
            prop_assert!(majority(servers) * 2 > servers);
            prop_assert!((majority(servers) - 1) * 2 <= servers);
        }

        #[test]
        fn nothing_but_a_majority_that_granted_wins(votes in votes()) {
            let yes = votes.iter().filter(|vote| is_yes(vote)).count();
            let won = matches!(verdict(&votes), Verdict::Won(_));
            prop_assert_eq!(won, yes >= majority(votes.len()));
        }

        #[test]
        fn a_majority_stands_by_its_promise_for_as_long_as_is_said(votes in votes()) {
            if let Verdict::Won(until) = verdict(&votes) {
                let stand = |vote: &&Vote| matches!(vote, Vote::Yes(promise) if *promise >= until);
                let longer = |vote: &&Vote| matches!(vote, Vote::Yes(promise) if *promise > until);
                prop_assert!(votes.iter().filter(stand).count() >= majority(votes.len()));
                prop_assert!(votes.iter().filter(longer).count() < majority(votes.len()));
            }
        }

        #[test]
        fn a_round_is_open_only_while_an_answer_can_decide_it(votes in votes()) {
            if verdict(&votes) == Verdict::Open {
                prop_assert!(votes.contains(&Vote::Awaited));
            }
        }

        #[test]
        fn a_round_that_was_given_up_could_not_be_won(votes in votes(), answers in proptest::collection::vec(vote(), 8)) {
            let before = verdict(&votes);
            let mut answers = answers.into_iter().filter(|vote| *vote != Vote::Awaited);
            let after: Vec<_> = votes
                .iter()
                .map(|vote| match vote {
                    Vote::Awaited => answers.next().unwrap_or(Vote::Missing),
                    vote => *vote,
                })
                .collect();
            if matches!(before, Verdict::Outvoted | Verdict::TooFew | Verdict::FirstUse { .. }) {
                prop_assert!(!matches!(verdict(&after), Verdict::Won(_)));
            }
        }

        #[test]
        fn first_use_takes_an_answer_of_every_server_and_no_old_mark_among_those_that_rest(votes in votes()) {
            if matches!(verdict(&votes), Verdict::FirstUse { .. }) {
                let in_time = |vote: &Vote| match vote {
                    Vote::Abstained { age } => *age <= FIRST_USE,
                    vote => is_yes(vote) || *vote == Vote::No,
                };
                prop_assert!(votes.iter().all(in_time));
            }
        }

        #[test]
        fn a_fleet_id_depends_on_every_mark_and_not_on_their_order(servers in 1usize..8, lost in 0usize..8) {
            let marks: Vec<_> = (0..servers).map(|n| mark(&format!("{n}:1"), None, 0)).collect();
            let fleet = first_use(&marks);
            prop_assert!(fleet.is_some());
            let turned: Vec<_> = marks.iter().rev().cloned().collect();
            prop_assert_eq!(first_use(&turned), fleet.clone());
            let mut forgot = marks;
            forgot[lost % servers].made = "lost:2".into();
            prop_assert_ne!(first_use(&forgot), fleet);
        }
    }

    #[test]
    fn a_first_use_goes_on_where_another_stopped_but_takes_no_server_that_forgot() {
        let fleet = first_use(&[
            mark("a:1", None, 0),
            mark("b:1", None, 0),
            mark("c:1", None, 0),
        ]);
        let fleet = fleet.as_deref();
        let late = [
            mark("a:1", fleet, 9_000),
            mark("b:1", None, 9_000),
            mark("c:1", fleet, 9_000),
        ];
        assert_eq!(first_use(&late).as_deref(), fleet);
        let forgot = [
            mark("a:1", fleet, 500),
            mark("b:2", None, 0),
            mark("c:1", fleet, 500),
        ];
        assert_eq!(first_use(&forgot), None);
        let begun = [
            mark("a:1", fleet, 0),
            mark("b:1", fleet, 0),
            mark("c:1", fleet, 0),
        ];
        assert_eq!(first_use(&begun).as_deref(), fleet, "others were faster");
    }

    #[test]
    fn first_use_that_a_majority_votes_without_is_no_lack_of_votes() {
        let yes = Vote::Yes(Moment::from_millis(1));
        let new = Vote::Abstained {
            age: Duration::ZERO,
        };
        let outvoted = |votes: [Vote; 3]| verdict(&votes) == Verdict::FirstUse { outvoted: true };
        assert!(outvoted([yes, Vote::No, new]));
        assert!(outvoted([Vote::No, yes, new]));
        let too_few = Verdict::FirstUse { outvoted: false };
        assert_eq!(verdict(&[yes, new, new]), too_few);
        assert_eq!(verdict(&[new, Vote::No, new]), too_few);
    }

    #[test]
    fn servers_that_forgot_one_after_the_other_are_not_new() {
        let marks = [
            mark("a:1", None, 0),
            mark("b:1", None, 1_000),
            mark("c:1", None, 2_001),
        ];
        assert_eq!(first_use(&marks), None);
        let votes = marks.map(|mark| Vote::Abstained { age: mark.age });
        assert_eq!(verdict(&votes), Verdict::TooFew);
    }

    #[test]
    fn a_server_that_stands_for_two_is_found_by_its_mark() {
        let (a, b) = (mark("a:1", None, 0), mark("b:1", None, 0));
        assert!(is_one_server_twice(&[a.clone(), b.clone(), a.clone()]));
        assert!(!is_one_server_twice(&[a, b]));
    }
}
