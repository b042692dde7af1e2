//! What holds while the rules are whole, and what goes wrong without each of them.

use super::EMPTY;
use super::Fault;
use super::LEASE;
use super::ORDER;
use super::Rule;
use super::Scenario;
use super::WOKEN;
use super::breaks;
use crate::protocol::model::{broken, has_time};

const NOTHING: &[&str] = &[];

const WITH_JAVA: Scenario = Scenario {
    rule: Rule::Whole,
    processes: 2,
    sections: 2,
    java: 1,
    deaf: false,
    keeps: false,
    faults: &[],
    befall: 1,
};

const AMONG_US: Scenario = Scenario {
    processes: 3,
    sections: 1,
    java: 0,
    ..WITH_JAVA
};

const ALL: Scenario = Scenario {
    processes: 3,
    sections: 1,
    ..WITH_JAVA
};

const EACH_ONCE: Scenario = Scenario {
    sections: 1,
    ..WITH_JAVA
};

const GONE: &[Fault] = &[Fault::Die, Fault::Freeze, Fault::Vanish];
const LATE: &[Fault] = &[Fault::Cancel, Fault::Dawdle];
const ENDS: &[Fault] = &[Fault::Cancel, Fault::End];
const CUT: &[Fault] = &[Fault::Break, Fault::Deafen];

fn with(faults: &'static [Fault], scenario: Scenario) -> Scenario {
    Scenario { faults, ..scenario }
}

fn without(rule: Rule, scenario: Scenario) -> Scenario {
    Scenario { rule, ..scenario }
}

#[test]
fn processes_go_in_turn() {
    for keeps in [false, true] {
        let sections = 2;
        let scenario = Scenario {
            keeps,
            sections,
            ..AMONG_US
        };
        assert_eq!(broken(scenario), NOTHING);
    }
}

#[test]
fn processes_go_in_turn_beside_java() {
    let keeps = true;
    assert_eq!(broken(Scenario { keeps, ..WITH_JAVA }), NOTHING);
    if has_time() {
        assert_eq!(broken(ALL), NOTHING);
    }
}

#[test]
fn everybody_is_woken_though_a_connection_breaks() {
    assert_eq!(broken(with(CUT, AMONG_US)), NOTHING);
    assert_eq!(broken(with(CUT, EACH_ONCE)), NOTHING);
}

#[test]
fn everybody_is_woken_though_a_waiter_is_cancelled_or_late_or_java_dies() {
    assert_eq!(broken(with(LATE, AMONG_US)), NOTHING);
    assert_eq!(broken(with(LATE, EACH_ONCE)), NOTHING);
    assert_eq!(broken(with(ENDS, EACH_ONCE)), NOTHING);
    if has_time() {
        assert_eq!(broken(with(ENDS, WITH_JAVA)), NOTHING);
    }
}

#[test]
fn process_that_hears_nothing_goes_in_turn() {
    let deaf = true;
    for keeps in [false, true] {
        let sections = 2;
        let among_us = Scenario {
            keeps,
            sections,
            deaf,
            ..AMONG_US
        };
        assert_eq!(broken(among_us.clone()), NOTHING);
        for rule in [Rule::DeafGone, Rule::DeafLate] {
            assert!(breaks(without(rule, among_us.clone()), ORDER));
        }
    }
    let beside_java = Scenario { deaf, ..WITH_JAVA };
    assert_eq!(broken(beside_java), NOTHING);
    let among_us = Scenario { deaf, ..AMONG_US };
    assert_eq!(broken(with(LATE, among_us.clone())), NOTHING);
    assert_eq!(broken(with(GONE, among_us)), [EMPTY]);
}

/// What such a process leaves behind is removed by the next process that comes.
#[test]
fn nobody_waits_for_one_that_is_gone() {
    for keeps in [false, true] {
        let among_us = Scenario { keeps, ..AMONG_US };
        assert_eq!(broken(with(GONE, among_us.clone())), [EMPTY]);
        assert!(!breaks(with(&[Fault::Copy], among_us), WOKEN));
    }
    assert_eq!(broken(with(GONE, EACH_ONCE)), [EMPTY]);
    if has_time() {
        assert_eq!(broken(with(GONE, WITH_JAVA)), [EMPTY]);
    }
    assert!(!breaks(with(&[Fault::Copy], EACH_ONCE), WOKEN));
}

#[test]
fn where_only_the_first_listens_for_java_a_release_is_missed() {
    let scenario = with(&[Fault::Die], WITH_JAVA);
    assert!(breaks(without(Rule::SecondDeaf, scenario), WOKEN));
}

#[test]
fn where_a_turn_of_redissons_is_a_place_somebody_is_missed() {
    let scenario = with(&[Fault::Die], WITH_JAVA);
    assert!(breaks(without(Rule::ForeignPlace, scenario), LEASE));
}

#[test]
fn where_only_the_first_is_told_when_redissons_turn_ends_somebody_is_missed() {
    let scenario = with(&[Fault::Die], ALL);
    assert!(breaks(without(Rule::NextToFirst, scenario), WOKEN));
}

#[test]
fn where_nobody_is_told_when_redissons_turn_ends_somebody_is_missed() {
    assert!(breaks(without(Rule::NextToNone, WITH_JAVA), WOKEN));
}

#[test]
fn who_moves_up_by_a_cancellation_knows_of_the_lease() {
    let faults = &[Fault::Cancel, Fault::Die];
    let scenario = Scenario {
        processes: 4,
        befall: 2,
        ..with(faults, AMONG_US)
    };
    if has_time() {
        assert_eq!(broken(scenario.clone()), [EMPTY]);
    }
    assert!(breaks(without(Rule::SilentLeave, scenario), LEASE));
}

#[test]
fn where_the_line_is_deleted_somebody_waits_for_the_last_resort() {
    assert!(breaks(with(&[Fault::Flush], AMONG_US), WOKEN));
}

#[test]
fn where_a_place_is_taken_after_the_refusal_somebody_is_missed() {
    assert!(breaks(without(Rule::StandLater, AMONG_US), LEASE));
}

#[test]
fn where_a_place_is_taken_before_its_process_hears_somebody_is_missed() {
    assert!(breaks(without(Rule::StandDeaf, AMONG_US), WOKEN));
    assert!(breaks(without(Rule::StandDeaf, AMONG_US), ORDER));
}

#[test]
fn where_nobody_asks_again_once_it_hears_somebody_is_missed() {
    assert!(breaks(without(Rule::NoLookOwn, AMONG_US), LEASE));
    assert!(breaks(without(Rule::NoLookCommon, WITH_JAVA), WOKEN));
}

#[test]
fn where_the_first_does_not_listen_for_java_somebody_is_missed() {
    assert!(breaks(without(Rule::DeafToJava, WITH_JAVA), WOKEN));
}

#[test]
fn where_a_place_is_given_up_too_late_the_next_one_is_lost() {
    let scenario = with(&[Fault::Cancel], WITH_JAVA);
    assert!(breaks(without(Rule::LateLeave, scenario), WOKEN));
}

#[test]
fn where_a_turn_never_ends_all_wait_for_one_that_is_frozen() {
    let scenario = with(&[Fault::Freeze], AMONG_US);
    assert!(breaks(without(Rule::EndlessTurn, scenario), WOKEN));
}

#[test]
fn where_the_second_is_not_told_when_a_turn_ends_all_wait_for_one_that_is_frozen() {
    let scenario = with(&[Fault::Freeze], AMONG_US);
    assert!(breaks(without(Rule::NoNext, scenario), WOKEN));
}

#[test]
fn where_whoever_asks_takes_a_free_lock_somebody_is_overtaken() {
    assert!(breaks(without(Rule::AnyTurn, AMONG_US), ORDER));
}

#[test]
fn where_a_turn_runs_on_though_java_came_first_somebody_is_overtaken() {
    assert!(breaks(without(Rule::KeepNote, WITH_JAVA), ORDER));
}
