//! What holds while the rule is whole, and what goes wrong without each part of it.

use super::Scenario;
use super::excludes;
use super::server::Fault::*;
use super::server::Rule;

const SETTLED: Scenario = Scenario {
    rule: Rule::Whole,
    asked_before: true,
    rounds: [1, 1],
    extensions: 0,
    losses: 0,
    faults: &[Restart(2), Return(2), Flush(2)],
    most: 1,
    ticks: 3,
};

const FAILBACK: Scenario = Scenario {
    faults: &[Promote(2), Sync(2)],
    most: 3,
    ..SETTLED
};

const ONE_AFTER_ANOTHER: Scenario = Scenario {
    faults: &[Flush(0), Flush(1), Flush(2)],
    most: 3,
    ..SETTLED
};

#[test]
fn nobody_holds_beside_another_though_a_server_forgets() {
    assert!(excludes(SETTLED));
    assert!(excludes(Scenario {
        asked_before: false,
        ..SETTLED
    }));
}

#[test]
fn nobody_holds_beside_another_though_answers_are_lost() {
    assert!(excludes(Scenario {
        losses: 1,
        ticks: 2,
        ..SETTLED
    }));
}

#[test]
fn nobody_holds_beside_another_though_leases_are_extended() {
    assert!(excludes(Scenario {
        extensions: 2,
        ticks: 4,
        ..SETTLED
    }));
}

#[test]
fn nobody_holds_beside_another_though_late_requests_arrive() {
    assert!(excludes(Scenario {
        rounds: [2, 1],
        most: 0,
        ticks: 2,
        ..SETTLED
    }));
}

#[test]
fn nobody_holds_beside_another_though_a_server_fails_over_and_back() {
    assert!(excludes(FAILBACK));
}

#[test]
fn nobody_holds_beside_another_though_all_servers_are_flushed_one_after_another() {
    assert!(excludes(ONE_AFTER_ANOTHER));
}

// fault: S2 S49
#[test]
fn nobody_holds_beside_another_though_all_servers_restart_empty() {
    assert!(excludes(Scenario {
        faults: &[Restart(0), Restart(1), Restart(2)],
        ticks: 2,
        ..ONE_AFTER_ANOTHER
    }));
}

#[test]
fn nobody_holds_beside_another_whatever_befalls_a_server_that_was_promoted() {
    assert!(excludes(Scenario {
        faults: &[
            Promote(2),
            Sync(2),
            Restart(2),
            Flush(2),
            ForgetEpoch(2),
            Clear(2)
        ],
        most: 2,
        ticks: 2,
        ..FAILBACK
    }));
}

#[test]
fn nobody_holds_beside_another_though_servers_forget_in_different_ways() {
    assert!(excludes(Scenario {
        faults: &[Promote(2), Return(1), Flush(0)],
        most: 2,
        ticks: 2,
        ..SETTLED
    }));
}

#[test]
fn without_any_rule_two_hold_it() {
    assert!(!excludes(Scenario {
        rule: Rule::None,
        ..SETTLED
    }));
}

#[test]
fn by_the_run_alone_two_hold_it_after_a_failback() {
    assert!(!excludes(Scenario {
        rule: Rule::WithoutHistory,
        ..FAILBACK
    }));
}

#[test]
fn without_a_look_at_promotions_two_hold_it() {
    let rule = Rule::WithoutPromotion;
    assert!(!excludes(Scenario {
        rule,
        asked_before: false,
        faults: &[Promote(2), ForgetEpoch(2), Sync(2)],
        ..FAILBACK
    }));
}

#[test]
fn without_a_look_at_flushes_two_hold_it() {
    assert!(!excludes(Scenario {
        rule: Rule::WithoutFlush,
        ..SETTLED
    }));
}

#[test]
fn where_a_mark_counts_in_any_run_old_data_make_two_hold_it() {
    assert!(!excludes(Scenario {
        rule: Rule::Durable,
        faults: &[Return(2)],
        ..SETTLED
    }));
}

// fault: S49
#[test]
fn where_a_server_that_was_started_is_trusted_two_hold_it() {
    assert!(!excludes(Scenario {
        rule: Rule::Trusting,
        faults: &[Restart(2)],
        ..SETTLED
    }));
}

#[test]
fn where_an_old_primary_answers_too_two_hold_it() {
    assert!(!excludes(Scenario {
        faults: &[Split(2)],
        ..SETTLED
    }));
}

#[test]
fn where_a_promotion_is_forgotten_within_a_lease_two_hold_it() {
    assert!(!excludes(Scenario {
        asked_before: false,
        faults: &[Promote(2), Sync(2), ClearEarly(2)],
        ..FAILBACK
    }));
}

// fault: S39
#[test]
fn with_a_clock_that_jumps_two_hold_it() {
    assert!(!excludes(Scenario {
        faults: &[Jump(2)],
        ..SETTLED
    }));
}
