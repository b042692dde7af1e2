//! Signs of life: which places stand, which go with the dead, and what a sign does for its client.

use std::time::Duration;

use super::{
    Bench, CHANNEL, HERE, Hold, LEASE, PLACES, QUEUE, SCORES, THERE, absent, answer, fields, moved,
    released, tag,
};

#[test]
fn a_waiter_that_has_not_asked_for_seconds_is_passed_over() {
    let mut bench = Bench::new();
    let [a, dead, c, d] = [1, 2, 3, 4].map(|owner| Hold::new(HERE, owner));
    for hold in [&a, &dead, &c, &d] {
        bench.wait(hold);
    }
    bench.age(&dead, 2_000);
    bench.wait(&d);
    assert_eq!(bench.queue().len(), 3, "two seconds are nothing");
    bench.age(&dead, 2_000);
    assert_eq!(bench.release(&a), moved(&c));
    assert_eq!(bench.queue(), fields(&[&d]));

    // A request that keeps a place removes the dead place ahead of it.
    bench.age(&d, 4_000);
    let (e, f) = (Hold::new(THERE, 5), Hold::new(THERE, 6));
    bench.wait(&e);
    bench.wait(&f);
    bench.wait(&f);
    assert_eq!(bench.queue(), fields(&[&e, &f]));
    // So does a request that finds the lock free; it also wakes the next waiter.
    bench.age(&e, 4_000);
    bench.probe.command(&["DEL", "k"]);
    let g = Hold::new(HERE, 7);
    let channel = format!("{CHANNEL}:{THERE}");
    let mut messages = bench.server.connection().into_subscriber(&[channel]);
    assert_eq!(bench.acquire(&g, "try"), answer("busy", -2));
    assert!(messages.next(Duration::from_secs(5)).is_some());
    assert_eq!(bench.wait(&f), "granted");

    // The waiter that was taken for dead is alive after all, and gets a place at the end.
    bench.wait(&g);
    assert_eq!(bench.wait(&e), "queued");
    assert_eq!(bench.queue(), fields(&[&g, &e]));
}

/// A process sends one request per second for all its places, however many there are.
#[test]
fn a_clients_sign_of_life_is_one_for_all_its_places() {
    let mut bench = Bench::new();
    let [a, b, c, d] = [1, 2, 3, 4].map(|owner| Hold::new(HERE, owner));
    let other = Hold::new(THERE, 5);
    for hold in [&a, &b, &c, &other, &d] {
        bench.wait(hold);
    }
    assert!(!bench.sign(HERE, &[&d]).is_known, "it is the first");
    for _ in 0..5 {
        for hold in [&b, &c] {
            bench.age(hold, 2_900);
        }
        bench.age_sign(HERE, 2_000);
        let signed = bench.sign(HERE, &[&d]);
        assert!(signed.is_known && signed.missing.is_empty(), "{signed:?}");
    }
    bench.wait(&Hold::new(THERE, 6));
    assert_eq!(bench.queue().len(), 5, "the places of the living stand");

    // Without a sign the client's places go, whichever client looks. The places of other clients stand.
    bench.age(&other, 2_500);
    bench.age_sign(HERE, 3_001);
    assert_eq!(bench.wait(&Hold::new(THERE, 6)), "waiting");
    assert_eq!(bench.queue()[0], other.field);
}

#[test]
fn a_place_that_nobody_asks_for_goes_within_a_minute_whatever_signs_its_client_gives() {
    let mut bench = Bench::new();
    let [a, left, c] = [1, 2, 3].map(|owner| Hold::new(HERE, owner));
    for hold in [&a, &left, &c] {
        bench.wait(hold);
    }
    bench.age(&left, 59_000);
    bench.sign(HERE, &[&c]);
    assert_eq!(bench.queue(), fields(&[&left, &c]));
    bench.age(&left, 1_100);
    bench.sign(HERE, &[&c]);
    assert_eq!(bench.queue(), fields(&[&c]));
    assert_eq!(bench.release(&a), moved(&c));
}

#[test]
fn a_sign_takes_a_free_lock_for_the_first_of_its_client_and_tells_another() {
    let mut bench = Bench::new();
    let (a, b, c) = (Hold::new(HERE, 1), Hold::new(THERE, 2), Hold::new(HERE, 3));
    for hold in [&a, &b, &c] {
        bench.wait(hold);
    }
    bench.release(&a);
    let channels = [THERE, HERE].map(|client| format!("{CHANNEL}:{client}"));
    let mut messages = bench.server.connection().into_subscriber(&channels);
    assert_eq!(bench.sign(HERE, &[&c]).moved, "");
    let heard = messages.next(Duration::from_secs(5));
    assert_eq!(heard, Some((channels[0].clone(), "0".to_owned())));
    assert!(!bench.probe.exists("k"));

    let signed = bench.sign(THERE, &[&b]);
    assert_eq!((&*signed.moved, signed.missing.len()), (&*b.number, 0));
    assert!(bench.is_held_by(&b));
    assert!(bench.probe.pttl("k") > LEASE - 5_000);
    assert_eq!(bench.queue(), fields(&[&c]));

    // If the answer was lost, the same sign is sent again: it reports which hold has the lock, and changes nothing.
    let again = bench.sign(THERE, &[&b]);
    assert_eq!((&*again.moved, &*again.holder), ("", &*b.number));
    assert_eq!(again.missing, [&*b.number]);
    assert!(bench.is_held_by(&b));
    assert_eq!(bench.queue(), fields(&[&c]));
    assert_eq!(bench.sign(HERE, &[&c]).holder, "");

    // A copy of the sign that arrives when no call of the client waits any more acquires nothing.
    assert_eq!(bench.release(&c), absent());
    bench.release(&b);
    assert_eq!(bench.sign(THERE, &[&b]).moved, "");
    assert!(!bench.probe.exists("k"));
}

#[test]
fn a_sign_says_which_places_are_gone_and_whether_the_server_has_forgotten() {
    let mut bench = Bench::new();
    let [a, b, c] = [1, 2, 3].map(|owner| Hold::new(HERE, owner));
    for hold in [&a, &b, &c] {
        bench.wait(hold);
    }
    bench.sign(HERE, &[&b]);
    let mut older = b.clone();
    older.number = "hffffffffffffffff".to_owned();
    assert_eq!(bench.sign(HERE, &[&older, &c]).missing, [&*older.number]);
    for gone in [QUEUE, SCORES, PLACES] {
        bench.probe.command(&["DEL", gone]);
        let signed = bench.sign(HERE, &[&b, &c]);
        assert_eq!(signed.missing, [&*b.number, &*c.number], "without {gone}");
        for hold in [&b, &c, &b, &c] {
            bench.wait(hold);
        }
        assert_eq!(bench.sign(HERE, &[&b, &c]).missing.len(), 0);
    }
    bench.probe.command(&["FLUSHALL"]);
    assert!(!bench.sign(HERE, &[&b]).is_known);
}

#[test]
fn a_sign_tells_a_named_owner_that_it_holds_the_lock_elsewhere() {
    let mut bench = Bench::new();
    let here = Hold::named(HERE, "request 7", 2);
    let there = Hold::named(THERE, "request 7", 3);
    for hold in [&Hold::new(HERE, 1), &here, &there] {
        bench.wait(hold);
    }
    bench.probe.command(&["DEL", "k"]);
    assert_eq!(bench.sign(THERE, &[&there]).moved, there.number);
    assert_eq!(bench.sign(HERE, &[&here]).holder, here.number);
    assert_eq!(bench.acquire(&here, "wait"), answer("granted", 2), "joins");
}

/// The server has the place of a call that has ended, and does not know that.
#[test]
fn a_sign_gives_the_lock_back_from_a_hold_that_nobody_has_and_from_no_other() {
    for named in [false, true] {
        let mut bench = Bench::new();
        let hold = |owner: u64| match named {
            true => Hold::named(HERE, &format!("owner-{owner}"), owner),
            false => Hold::new(HERE, owner),
        };
        let [a, gone, next] = [1, 2, 3].map(hold);
        for hold in [&a, &gone, &next] {
            bench.wait(hold);
        }
        assert_eq!(bench.release(&a), moved(&gone));
        let stale = bench.give_back(HERE, &a);
        assert_eq!((&*stale.moved, &*stale.holder), ("", &*gone.number));
        assert_eq!(bench.give_back(THERE, &gone).moved, "", "of another client");
        assert!(bench.is_held_by(&gone));
        assert_eq!(bench.give_back(HERE, &gone).moved, next.number);
        assert!(bench.is_held_by(&next));
    }
}

#[test]
fn a_sign_finds_a_key_that_is_no_lock() {
    let mut bench = Bench::new();
    let (a, b) = (Hold::new(HERE, 1), Hold::new(HERE, 2));
    bench.wait(&a);
    bench.wait(&b);
    bench.probe.command(&["DEL", "k"]);
    bench.probe.command(&["HSET", "k", "mode", "read"]);
    let args = [HERE, "0", "PUBLISH", "300000", "", &b.field, &b.number];
    let answer = bench.eval("fair_sign", &["k", CHANNEL, QUEUE, SCORES, PLACES], &args);
    assert_eq!(tag(answer), "wrong_kind");
}

/// A place that was last asked for before the clock was set back has a date in the future: dead or alive, its waiter
/// looks fresh for the length of that step.
#[test]
fn a_clock_set_back_costs_the_dead_their_place_as_ever_and_the_living_nothing() {
    const STEP: i64 = 3_600_000;
    let mut bench = Bench::new();
    let holder = Hold::new(HERE, 1);
    let [dead, b, c] = [2, 3, 4].map(|owner| Hold::new(THERE, owner));
    for hold in [&holder, &dead, &b, &c] {
        bench.wait(hold);
    }
    let distances = [&dead, &b, &c].map(|hold| bench.distance(&hold.field));
    for hold in [&dead, &b, &c] {
        bench.age(hold, -STEP);
        bench.shift_score(&hold.field, STEP);
    }
    assert_eq!(bench.release(&holder), released());
    for hold in [&b, &c] {
        assert_eq!(bench.wait(hold), "waiting", "it has its place");
    }
    for (hold, before) in [&dead, &b, &c].into_iter().zip(distances) {
        // The score no longer includes the TTL of the lock.
        let distance = bench.distance(&hold.field);
        assert!(
            (distance - before).abs() < LEASE + 5_000,
            "{before} to {distance}"
        );
    }
    bench.age(&dead, 3_100);
    assert_eq!(bench.wait(&b), "granted", "the first is dead");
    assert_eq!(bench.queue(), fields(&[&c]));

    // The same holds if the lock was not released but has expired.
    let [dead, e] = [5, 6].map(|owner| Hold::new(HERE, owner));
    bench.wait(&dead);
    bench.age(&dead, -STEP);
    bench.release(&c);
    bench.probe.command(&["DEL", "k"]);
    assert_eq!(bench.wait(&e), "queued");
    bench.age(&dead, 3_100);
    assert_eq!(bench.wait(&e), "granted");
    assert_eq!(bench.probe.keys(), ["k"]);
}

/// A place that clients share is kept for those of them that are not dead.
#[test]
fn a_clock_set_back_leaves_no_place_to_a_dead_client_of_a_named_owner() {
    const STEP: i64 = 3_600_000;
    let mut bench = Bench::new();
    let (here, there) = (Hold::named(HERE, "n", 2), Hold::named(THERE, "n", 3));
    let next = Hold::new(HERE, 4);
    for hold in [&Hold::new(HERE, 1), &here, &there, &next] {
        bench.wait(hold);
    }
    bench.age(&here, -STEP);
    assert_eq!(bench.release(&here), absent());
    assert_eq!(bench.queue(), fields(&[&there, &next]), "it may be alive");
    bench.age(&there, 3_100);
    bench.probe.command(&["DEL", "k"]);
    assert_eq!(bench.wait(&next), "granted");
    assert_eq!(bench.probe.keys(), ["k"]);
}
