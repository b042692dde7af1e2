//! The queue: who is granted the lock, in which order, and what a release does with it.

use std::time::Duration;

use crate::support::probe::calls;
use redlatch_testkit::Reply;

use super::{
    Bench, CHANNEL, DAY, HERE, Hold, JAVA, LEASE, PLACE, PLACES, QUEUE, SCORES, Signed, THERE,
    absent, answer, fields, moved, released, tag,
};

#[test]
fn free_lock_is_taken_and_given_back_without_a_trace_of_a_queue() {
    let mut bench = Bench::new();
    let hold = Hold::new(HERE, 1);
    for mode in ["wait", "try"] {
        assert_eq!(bench.acquire(&hold, mode), answer("granted", 1));
        assert_eq!(bench.probe.keys(), ["k"]);
        assert!(bench.is_held_by(&hold));
        assert_eq!(bench.release(&hold), released());
        assert!(bench.probe.keys().is_empty());
    }
}

#[test]
fn a_try_never_queues_and_never_overtakes() {
    let mut bench = Bench::new();
    let [a, b, c] = [1, 2, 3].map(|owner| Hold::new(HERE, owner));
    bench.wait(&a);
    assert_eq!(tag(bench.acquire(&c, "try")), "busy");
    assert!(bench.queue().is_empty());
    bench.wait(&b);
    bench.probe.command(&["DEL", "k"]);
    assert_eq!(bench.acquire(&c, "try"), answer("busy", -2));
    assert_eq!(bench.queue(), fields(&[&b]));
    assert_eq!(bench.acquire(&b, "try"), answer("granted", 1));
    assert_eq!(bench.probe.keys(), ["k"]);
}

#[test]
fn release_moves_the_lock_to_the_first_of_this_client_in_order_of_arrival() {
    let mut bench = Bench::new();
    let holds: Vec<_> = (1..=5).map(|owner| Hold::new(HERE, owner)).collect();
    assert_eq!(bench.wait(&holds[0]), "granted");
    for hold in &holds[1..] {
        assert_eq!(bench.wait(hold), "queued");
        assert_eq!(bench.wait(hold), "waiting");
    }
    for pair in holds.windows(2) {
        assert_eq!(bench.release(&pair[0]), moved(&pair[1]));
        assert!(bench.is_held_by(&pair[1]));
        assert_eq!(bench.holder().len(), 2);
        assert!(bench.probe.pttl("k") > LEASE - 5_000);
        assert_eq!(bench.release(&pair[0]), absent(), "a repeated release");
        assert!(bench.is_held_by(&pair[1]));
    }
    assert_eq!(bench.release(&holds[4]), released());
    assert!(bench.probe.keys().is_empty());
}

#[test]
fn release_wakes_the_first_of_another_client_and_nobody_else() {
    let mut bench = Bench::new();
    let (a, b, c) = (Hold::new(HERE, 1), Hold::new(THERE, 2), Hold::new(HERE, 3));
    for hold in [&a, &b, &c] {
        bench.wait(hold);
    }
    let channels = [THERE, HERE].map(|client| format!("{CHANNEL}:{client}"));
    let mut messages = bench.server.connection().into_subscriber(&channels);
    assert_eq!(bench.release(&a), released());
    let heard = messages.next(Duration::from_secs(5));
    assert_eq!(heard, Some((channels[0].clone(), "0".to_owned())));
    assert_eq!(messages.next(Duration::from_millis(50)), None);
    assert!(!bench.probe.exists("k"));

    // The lock is free, but only the first waiter may have it. A request of another waiter wakes the first again.
    assert_eq!(bench.wait(&c), "waiting");
    assert_eq!(
        messages.next(Duration::from_secs(5)).unwrap().0,
        channels[0]
    );
    assert_eq!(bench.wait(&b), "granted");
    assert_eq!(bench.queue(), fields(&[&c]));
}

#[test]
fn only_the_first_is_told_how_long_the_lock_is_held() {
    let mut bench = Bench::new();
    let (a, b, c) = (Hold::new(HERE, 1), Hold::new(HERE, 2), Hold::new(THERE, 3));
    for hold in [&a, &b, &c] {
        bench.wait(hold);
    }
    let Signed { ttl, .. } = bench.sign(HERE, &[&b]);
    assert!(ttl > LEASE - 5_000 && ttl <= LEASE, "{ttl}");
    assert_eq!(bench.sign(THERE, &[&c]).ttl, -1);
    // For a lock whose lease does not end the answer is the same: there is no end to wait for.
    bench.probe.command(&["PERSIST", "k"]);
    assert_eq!(bench.sign(HERE, &[&b]).ttl, -1);
}

#[test]
fn higher_priorities_go_ahead_and_arrival_decides_between_equals() {
    let mut bench = Bench::new();
    let priorities = [0, -1, 5, 0, 5, -1, 2, 0];
    let holds: Vec<_> = (2..)
        .zip(priorities)
        .map(|(owner, priority)| Hold::new(HERE, owner).priority(priority))
        .collect();
    let holder = Hold::new(HERE, 1);
    bench.wait(&holder);
    for hold in &holds {
        assert_eq!(bench.wait(hold), "queued");
    }
    let mut expected: Vec<_> = holds.iter().collect();
    expected.sort_by_key(|hold| -hold.priority);
    assert_eq!(bench.queue(), fields(&expected));

    bench.enqueue_java(JAVA, PLACE);
    let late = Hold::new(HERE, 20).priority(1);
    bench.wait(&late);
    let queue = bench.queue();
    let at = |field: &str| queue.iter().position(|entry| entry == field).unwrap();
    assert!(at(&late.field) > at(&holds[6].field), "behind priority 2");
    assert!(at(&late.field) < at(JAVA), "Java's count as 0");

    // A request with another priority gets another place.
    let raised = holds[1].clone().priority(9);
    assert_eq!(bench.wait(&raised), "queued");
    assert_eq!(bench.queue()[0], raised.field);
    assert_eq!(bench.queue().len(), holds.len() + 2);
}

#[test]
fn a_hold_takes_one_place_however_often_it_asks_and_loses_it_when_it_gives_up() {
    let mut bench = Bench::new();
    let [a, b, c, d] = [1, 2, 3, 4].map(|owner| Hold::new(HERE, owner));
    for hold in [&a, &b, &c, &d] {
        bench.wait(hold);
        bench.wait(hold);
    }
    let before = bench.distance(&d.field);
    assert_eq!(bench.release(&c), absent());
    assert_eq!(bench.queue(), fields(&[&b, &d]));
    assert!((bench.distance(&d.field) - before).abs() < 5_000);

    // A late request to leave the queue, from another attempt, changes nothing.
    let mut late = d.clone();
    late.number = "hffffffffffffffff".to_owned();
    assert_eq!(bench.release(&late), absent());
    assert_eq!(bench.queue(), fields(&[&b, &d]));
    assert_eq!(bench.wait(&d), "waiting");

    assert_eq!(bench.release(&b), absent());
    assert_eq!(bench.release(&d), absent());
    assert_eq!(
        bench.probe.keys(),
        ["k"],
        "the keys go with the last waiter"
    );
}

#[test]
fn the_first_that_gives_up_a_free_lock_wakes_the_next() {
    let mut bench = Bench::new();
    let (a, b, c) = (Hold::new(HERE, 1), Hold::new(THERE, 2), Hold::new(THERE, 3));
    for hold in [&a, &b, &c] {
        bench.wait(hold);
    }
    bench.release(&a);
    let channel = format!("{CHANNEL}:{THERE}");
    let mut messages = bench.server.connection().into_subscriber(&[channel]);
    assert!(messages.next(Duration::from_millis(50)).is_none());
    bench.release(&b);
    assert!(messages.next(Duration::from_secs(5)).is_some());
    assert_eq!(bench.wait(&c), "granted");
}

#[test]
fn a_holder_takes_its_lock_again_without_queueing() {
    let mut bench = Bench::new();
    let (a, b) = (Hold::new(HERE, 1), Hold::new(HERE, 2));
    bench.wait(&a);
    bench.wait(&b);
    assert_eq!(bench.acquire(&a, "wait"), answer("granted", 1), "a repeat");
    assert_eq!(bench.queue(), fields(&[&b]));

    let mut newer = a.clone();
    newer.number = "hffffffffffffffff".to_owned();
    assert_eq!(
        bench.wait(&newer),
        "queued",
        "another hold of the same owner"
    );
    assert_eq!(bench.release(&a), moved(&b));
    assert_eq!(bench.release(&b), moved(&newer));
    assert_eq!(bench.release(&a), absent(), "late");
    assert!(bench.is_held_by(&newer));
}

#[test]
fn a_late_copy_of_the_first_request_takes_nothing_back() {
    let mut bench = Bench::new();
    let hold = Hold::new(HERE, 1);
    bench.wait(&hold);
    bench.probe.command(&["HSET", "k", &hold.field, "3"]);
    let record = format!("{}:3", hold.number);
    bench
        .probe
        .command(&["HSET", "k", &hold.acquisition_field, &record]);
    for mode in ["wait", "try"] {
        assert_eq!(bench.acquire(&hold, mode), answer("granted", 3));
        let hash = bench.probe.hgetall("k");
        assert_eq!(hash.get(&hold.acquisition_field), Some(&record));
    }
}

#[test]
fn two_clients_that_wait_under_one_name_share_a_place_until_both_have_gone() {
    let mut bench = Bench::new();
    let holder = Hold::new(HERE, 1);
    let (here, there) = (
        Hold::named(HERE, "request 7", 2),
        Hold::named(THERE, "request 7", 3),
    );
    let last = Hold::new(HERE, 4);
    for hold in [&holder, &here, &there, &last] {
        bench.wait(hold);
    }
    assert_eq!(bench.queue(), fields(&[&here, &last]));
    assert_eq!(bench.wait(&here), "waiting");
    bench.release(&here);
    assert_eq!(bench.queue(), fields(&[&there, &last]));
    bench.wait(&here);

    assert_eq!(bench.release(&holder), moved(&here));
    assert!(bench.is_held_by(&here));
    assert_eq!(bench.acquire(&there, "wait"), answer("granted", 2), "joins");
    assert_eq!(bench.queue(), fields(&[&last]));
    assert_eq!(bench.release(&here), answer("kept", 1));
    assert_eq!(bench.release(&there), released());
    assert_eq!(bench.wait(&last), "granted");

    // The same holds if the first of the two clients finds the lock free.
    bench.wait(&here);
    bench.wait(&there);
    bench.probe.command(&["DEL", "k"]);
    assert_eq!(bench.wait(&here), "granted");
    assert_eq!(bench.queue(), fields(&[&there]));
    assert_eq!(bench.acquire(&there, "wait"), answer("granted", 2));
    assert_eq!(bench.probe.keys(), ["k"]);
}

#[test]
fn a_waiter_that_was_thrown_out_queues_again_at_the_end() {
    let mut bench = Bench::new();
    let [a, b, c] = [1, 2, 3].map(|owner| Hold::new(HERE, owner));
    for hold in [&a, &b, &c] {
        bench.wait(hold);
    }
    bench.probe.command(&["LPOP", QUEUE]);
    bench.probe.command(&["ZREM", SCORES, &b.field]);
    assert_eq!(bench.wait(&b), "queued");
    assert_eq!(bench.queue(), fields(&[&c, &b]));

    // The server may evict any of the queue's keys.
    for gone in [QUEUE, SCORES, PLACES] {
        bench.probe.command(&["DEL", gone]);
        for hold in [&c, &b, &c, &b] {
            bench.wait(hold);
        }
        assert_eq!(bench.queue(), fields(&[&c, &b]), "without {gone}");
        assert_eq!(bench.probe.command(&["ZCARD", SCORES]).int(), 2);
    }
}

#[test]
fn the_queue_ends_in_one_piece() {
    let mut bench = Bench::new();
    let (a, b) = (Hold::new(HERE, 1), Hold::new(HERE, 2));
    bench.wait(&a);
    for _ in 0..2 {
        bench.wait(&b);
        ends_in_one_piece(&mut bench);
    }
}

#[test]
fn the_only_place_loses_a_line_and_keeps_its_end() {
    let mut bench = Bench::new();
    let (a, b) = (Hold::new(HERE, 1), Hold::new(HERE, 2));
    let (here, there) = (Hold::named(HERE, "both", 3), Hold::named(THERE, "both", 4));
    for hold in [&a, &here, &there] {
        bench.wait(hold);
    }
    assert_eq!(bench.release(&here), absent(), "gives up");
    ends_in_one_piece(&mut bench);

    bench.wait(&here);
    bench.probe.command(&["DEL", "k"]);
    assert_eq!(bench.wait(&there), "granted");
    ends_in_one_piece(&mut bench);

    // After a clock was set back, it has another date.
    bench.probe.command(&["DEL", "k"]);
    bench.age(&here, -10_000);
    assert_eq!(bench.acquire(&b, "try"), answer("busy", -2));
    ends_in_one_piece(&mut bench);
}

fn ends_in_one_piece(bench: &mut Bench) {
    let left = [QUEUE, SCORES, PLACES].map(|key| bench.probe.pttl(key));
    assert!(left[0] > 2 * DAY - 5_000, "{left:?}");
    assert!(left.iter().all(|ms| left[0] - ms < 1_000), "{left:?}");
}

#[test]
fn a_server_out_of_memory_keeps_places_and_moves_the_lock_on() {
    let mut bench = Bench::new();
    let [a, b, c] = [1, 2, 3].map(|owner| Hold::new(HERE, owner));
    bench.wait(&a);
    bench.wait(&b);
    bench.probe.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let refused = bench.acquire(&c, "wait");
    assert!(
        matches!(&refused, Reply::Error(error) if error.contains("OOM")),
        "{refused:?}"
    );
    assert_eq!(bench.queue(), fields(&[&b]));
    assert_eq!(bench.wait(&b), "waiting");
    for is_known in [false, true] {
        let signed = bench.sign(HERE, &[&b]);
        assert_eq!((signed.is_known, signed.missing.len()), (is_known, 0));
    }
    assert_eq!(bench.release(&a), moved(&b));
    assert_eq!(bench.release(&b), released());
    bench.age_sign(HERE, 3_001);
    assert!(bench.probe.keys().is_empty());
}

#[test]
fn a_hash_of_another_shape_is_not_a_lock() {
    let mut bench = Bench::new();
    let hold = Hold::new(HERE, 1);
    bench.probe.command(&["HSET", "k", "mode", "read"]);
    assert_eq!(tag(bench.acquire(&hold, "wait")), "wrong_kind");
    bench.probe.command(&["HDEL", "k", "mode"]);
    bench.probe.command(&["HSET", "k", &hold.field, "many"]);
    assert_eq!(tag(bench.acquire(&hold, "wait")), "wrong_kind");
    assert_eq!(
        tag(bench.eval(
            "fair_force_release",
            &["k", CHANNEL, QUEUE, SCORES, PLACES],
            &["0", "PUBLISH", &PLACE.to_string()]
        )),
        "wrong_kind"
    );
    assert_eq!(bench.probe.keys(), ["k"]);
}

#[test]
fn release_by_force_wakes_the_first() {
    let mut bench = Bench::new();
    let (a, b) = (Hold::new(HERE, 1), Hold::new(HERE, 2));
    let force = |bench: &mut Bench| {
        tag(bench.eval(
            "fair_force_release",
            &["k", CHANNEL, QUEUE, SCORES, PLACES],
            &["0", "PUBLISH", &PLACE.to_string()],
        ))
    };
    assert_eq!(force(&mut bench), "free");
    bench.wait(&a);
    bench.wait(&b);
    let channel = format!("{CHANNEL}:{HERE}");
    let mut messages = bench.server.connection().into_subscriber(&[channel]);
    assert_eq!(force(&mut bench), "released");
    assert!(messages.next(Duration::from_secs(5)).is_some());
    assert_eq!(bench.release(&a), absent());
    assert_eq!(bench.wait(&b), "granted");
}

#[test]
fn a_grant_costs_the_same_with_4_waiters_as_with_64() {
    let mut bench = Bench::new();
    let mut cost = |waiters: u64| {
        let holds: Vec<_> = (0..=waiters).map(|owner| Hold::new(HERE, owner)).collect();
        for hold in &holds {
            bench.wait(hold);
        }
        bench.probe.command(&["CONFIG", "RESETSTAT"]);
        // Each hold passes the lock on and queues again.
        for turn in 0..64 {
            let at = turn % holds.len();
            assert_eq!(
                bench.release(&holds[at]),
                moved(&holds[(at + 1) % holds.len()])
            );
            assert_eq!(bench.wait(&holds[at]), "queued");
        }
        let calls = calls(&mut bench.probe);
        bench.probe.command(&["FLUSHALL"]);
        assert!(!calls.contains_key("lpos"), "{calls:?}");
        calls.values().sum::<u64>()
    };
    assert_eq!(cost(4), cost(64));
}
