//! Redisson's waiters in the same queue, and the scores by which it judges everybody.

use std::time::Duration;

use crate::support::probe::calls;

use super::{
    Bench, CHANNEL, DAY, HERE, Hold, JAVA, LEASE, PLACE, QUEUE, SCORES, STALE, THERE, absent,
    answer, moved, released,
};

/// Redisson's clients tell an owner, and know nothing of processes.
#[test]
fn a_waiter_is_told_when_a_release_of_redissons_may_be_for_it() {
    let mut bench = Bench::new();
    let [a, b, c] = [1, 2, 3].map(|owner| Hold::new(HERE, owner));
    bench.wait(&a);
    assert_eq!(bench.acquire(&b, "wait"), answer("queued", 0));
    assert_eq!(bench.acquire(&b, "wait"), answer("waiting", 0));
    bench.enqueue_java(JAVA, PLACE);
    assert_eq!(bench.acquire(&b, "wait"), answer("waiting", 0), "ahead");
    assert_eq!(bench.acquire(&c, "wait"), answer("queued", 1));
    assert_eq!(bench.acquire(&c, "wait"), answer("waiting", 1));

    bench.probe.command(&["FLUSHALL"]);
    bench.probe.command(&["HSET", "k", JAVA, "1"]);
    bench.probe.command(&["PEXPIRE", "k", "30000"]);
    assert_eq!(bench.acquire(&b, "wait"), answer("queued", 1));
}

/// Otherwise the places behind it would count as mixed for as long as the queue is not empty.
#[test]
fn a_waiter_of_redissons_that_has_gone_leaves_nothing_to_those_who_come_later() {
    let mut bench = Bench::new();
    let [a, b, c, d] = [1, 2, 3, 4].map(|owner| Hold::new(HERE, owner));
    bench.wait(&a);
    bench.enqueue_java(JAVA, PLACE);
    assert_eq!(bench.acquire(&b, "wait"), answer("queued", 1));
    bench.probe.command(&["ZREM", SCORES, JAVA]);
    bench.probe.command(&["LREM", QUEUE, "1", JAVA]);
    assert_eq!(bench.acquire(&c, "wait"), answer("queued", 0));
    // The same holds for a waiter that has left and asks again.
    assert_eq!(bench.release(&b), absent());
    assert_eq!(bench.acquire(&b, "wait"), answer("queued", 0));
    bench.enqueue_java(JAVA, PLACE);
    assert_eq!(bench.acquire(&d, "wait"), answer("queued", 1));
}

/// The server does nothing else while a script runs.
#[test]
fn many_that_died_among_redissons_are_taken_out_at_the_cost_of_each() {
    const DEAD: usize = 200;
    let mut bench = Bench::new();
    let holder = Hold::new(HERE, 1);
    bench.wait(&holder);
    let dead: Vec<_> = (0..DEAD as u64)
        .map(|owner| Hold::new(THERE, 100 + owner))
        .collect();
    for hold in &dead {
        bench.wait(hold);
    }
    bench.enqueue_java(JAVA, 3_600_000 + DEAD as i64 * PLACE);
    let last = Hold::new(HERE, 2);
    bench.wait(&last);
    for hold in &dead {
        bench.age(hold, 4_000);
    }
    let before = bench.distance(JAVA);
    bench.probe.command(&["CONFIG", "RESETSTAT"]);
    bench.wait(&last);
    assert_eq!(bench.queue(), [JAVA.to_owned(), last.field.clone()]);
    let nearer = before - bench.distance(JAVA);
    assert!((nearer - DEAD as i64 * PLACE).abs() < 5_000, "{nearer}");
    let calls = calls(&mut bench.probe);
    assert!(
        calls.get("zadd").is_none_or(|scored| *scored <= 6),
        "{calls:?}"
    );
}

#[test]
fn scores_have_the_size_that_redisson_builds_on() {
    let mut bench = Bench::new();
    let holds: Vec<_> = (1..=4).map(|owner| Hold::new(HERE, owner)).collect();
    bench.wait(&holds[0]);
    for (place, hold) in (1..).zip(&holds[1..]) {
        bench.wait(hold);
        let expected = LEASE + STALE + place * PLACE;
        let distance = bench.distance(&hold.field);
        assert!((distance - expected).abs() < 5_000, "{distance} at {place}");
    }
    // Behind a Redisson waiter that has an hour left, that hour is added. No score is more than 30 days from now.
    bench.enqueue_java(JAVA, 3_600_000);
    let behind = Hold::new(HERE, 8);
    bench.wait(&behind);
    assert!(bench.distance(&behind.field) >= 3_600_000 + PLACE - 5_000);
    bench
        .probe
        .command(&["ZADD", SCORES, "9e15", &behind.field]);
    let last = Hold::new(HERE, 9);
    bench.wait(&last);
    let distance = bench.distance(&last.field);
    assert!((distance - 30 * DAY).abs() < 5_000, "{distance}");
}

#[test]
fn time_and_grants_in_java_leave_a_waiter_alive_to_redisson() {
    let mut bench = Bench::new();
    let (holder, waiter) = (Hold::new(HERE, 1), Hold::new(HERE, 2));
    bench.wait(&holder);
    for n in 1..=3 {
        bench.enqueue_java(&format!("{JAVA}{n}"), LEASE + n * PLACE);
    }
    bench.wait(&waiter);
    bench.release(&holder);
    let before = bench.distance(&waiter.field);

    // Minutes pass: for the server, its clock and what it stores of a waiter move apart.
    for _ in 0..50 {
        bench.shift_score(&waiter.field, -2_900);
        bench.age(&waiter, 2_900);
        assert_eq!(bench.wait(&waiter), "waiting");
        bench.shift_score(&waiter.field, -14_500);
        bench.age(&waiter, 14_500);
        assert!(bench.sign(HERE, &[&waiter]).missing.is_empty());
    }
    let after = bench.distance(&waiter.field);
    assert!((after - before).abs() < 5_000, "{before} became {after}");

    for n in 1..=3 {
        bench.probe.command(&["LPOP", QUEUE]);
        bench
            .probe
            .command(&["ZREM", SCORES, &format!("{JAVA}{n}")]);
        for field in bench.queue() {
            bench.shift_score(&field, -PLACE);
        }
        let left = bench.distance(&waiter.field);
        assert!(left > PLACE - 5_000, "{left} after {n} grants");
    }
    assert_eq!(bench.wait(&waiter), "granted");
}

#[test]
fn a_score_that_went_wrong_is_put_right_by_its_place() {
    let mut bench = Bench::new();
    let [a, b, c] = [1, 2, 3].map(|owner| Hold::new(HERE, owner));
    for hold in [&a, &b, &c] {
        bench.wait(hold);
    }
    let whole = LEASE + STALE + 2 * PLACE;
    for wrong in [-whole, whole] {
        for by_sign in [false, true] {
            bench.shift_score(&c.field, wrong);
            match by_sign {
                true => assert!(bench.sign(HERE, &[&c]).missing.is_empty()),
                false => assert_eq!(bench.wait(&c), "waiting"),
            }
            let distance = bench.distance(&c.field);
            assert!((distance - whole).abs() < 5_000, "{distance}");
        }
    }
    bench.shift_score(&b.field, whole);
    assert_eq!(bench.wait(&b), "waiting");
    let distance = bench.distance(&b.field);
    assert!(
        (distance - LEASE - STALE - PLACE).abs() < 5_000,
        "{distance}"
    );
}

/// Otherwise a Redisson waiter that died behind ours would keep its place for the times of all of ours in addition to
/// its own.
#[test]
fn whatever_a_place_added_to_those_behind_it_goes_with_it() {
    let holder = Hold::new(HERE, 1);
    let granted_here = Hold::new(HERE, 2);
    let granted_there = Hold::new(THERE, 3);
    let leaves = Hold::new(THERE, 4);
    let dies = Hold::new(THERE, 5);
    let mut bench = Bench::new();
    for hold in [&holder, &granted_here, &granted_there, &leaves, &dies] {
        bench.wait(hold);
    }
    let own = 4_000;
    let ahead = bench.distance(&dies.field);
    bench.enqueue_java(JAVA, ahead + own);
    let last = Hold::new(HERE, 6);
    bench.wait(&last);
    let mut expected = LEASE + STALE + 4 * PLACE + own;
    let mut came_nearer = |bench: &mut Bench| {
        expected -= PLACE;
        let behind = [JAVA, &last.field].map(|field| bench.distance(field));
        assert!((behind[0] - expected).abs() < 5_000, "{behind:?}");
        assert!(
            (behind[1] - expected - PLACE).abs() < 5_000,
            "{behind:?}, {expected}"
        );
    };
    bench.release(&leaves);
    came_nearer(&mut bench);
    bench.release(&leaves);
    assert_eq!(bench.release(&holder), moved(&granted_here));
    came_nearer(&mut bench);
    assert_eq!(bench.release(&granted_here), released());
    assert_eq!(bench.wait(&granted_there), "granted");
    assert_eq!(bench.wait(&granted_there), "granted", "a copy");
    came_nearer(&mut bench);
    bench.age(&dies, 3_100);
    assert_eq!(bench.wait(&last), "waiting");
    came_nearer(&mut bench);
    assert_eq!(bench.queue(), [JAVA.to_owned(), last.field.clone()]);

    // A waiter that later goes ahead of Redisson's adds as much as it subtracts when it goes.
    let before = bench.distance(JAVA);
    let urgent = Hold::new(HERE, 7).priority(1);
    bench.wait(&urgent);
    assert!((bench.distance(JAVA) - before - PLACE).abs() < 5_000);
    assert_eq!(bench.release(&granted_there), released());
    assert_eq!(bench.wait(&urgent), "granted");
    assert!((bench.distance(JAVA) - before).abs() < 5_000);
}

#[test]
fn nobody_of_redisson_who_may_live_is_brought_near_to_death_by_our_grants() {
    let mut bench = Bench::new();
    let [holder, a, b] = [1, 2, 3].map(|owner| Hold::new(HERE, owner));
    for hold in [&holder, &a, &b] {
        bench.wait(hold);
    }
    // The Redisson waiter computed its score from a place of less worth, or has been waiting for a long time.
    bench.enqueue_java(JAVA, 60_000);
    for (from, to) in [(&holder, &a), (&a, &b)] {
        assert_eq!(bench.release(from), moved(to));
        let left = bench.distance(JAVA);
        assert!((4_000..=5_000).contains(&left), "{left}");
    }
    // A Redisson waiter that is dead by Redisson's own rule stays dead.
    bench.shift_score(JAVA, -6_000);
    let c = Hold::new(HERE, 4);
    bench.wait(&c);
    assert_eq!(bench.release(&b), moved(&c));
}

/// A longer time may come from a clock that was set back, a `tryLock` with a long wait, or places whose worth nobody
/// subtracted.
#[test]
fn whoever_of_redisson_is_first_and_was_told_has_no_longer_than_a_place_is_worth() {
    let mut bench = Bench::new();
    let (holder, waiter) = (Hold::new(HERE, 1), Hold::new(HERE, 2));
    for by_release in [true, false] {
        bench.wait(&holder);
        bench.enqueue_java(JAVA, 3_600_000);
        bench.wait(&waiter);
        assert!(bench.distance(JAVA) > 3_590_000, "the lock is held");
        if by_release {
            assert_eq!(bench.release(&holder), released());
        } else {
            bench.probe.command(&["DEL", "k"]);
            assert_eq!(bench.wait(&waiter), "waiting");
        }
        let left = bench.distance(JAVA);
        assert!((PLACE - 5_000..=PLACE).contains(&left), "{left}");
        bench.shift_score(JAVA, -PLACE / 2);
        assert_eq!(bench.wait(&waiter), "waiting");
        assert!(bench.distance(JAVA) <= PLACE / 2, "it is told but once");
        bench.shift_score(JAVA, -PLACE / 2);
        assert_eq!(bench.wait(&waiter), "granted");
        assert_eq!(bench.release(&waiter), released());
        assert!(bench.probe.keys().is_empty());
    }
}

#[test]
fn entries_of_redisson_are_judged_by_its_own_rule() {
    let mut bench = Bench::new();
    let (holder, waiter) = (Hold::new(HERE, 1), Hold::new(HERE, 2));
    bench.wait(&holder);
    bench.enqueue_java(JAVA, PLACE);
    bench.wait(&waiter);
    let channel = format!("{CHANNEL}:{JAVA}");
    let mut messages = bench.server.connection().into_subscriber(&[channel]);
    assert_eq!(bench.release(&holder), released());
    assert!(messages.next(Duration::from_secs(5)).is_some());
    assert_eq!(bench.wait(&waiter), "waiting", "Java's turn");

    bench.shift_score(JAVA, -PLACE - 1);
    assert_eq!(bench.wait(&waiter), "granted", "Java's is dead");
    assert_eq!(bench.probe.keys(), ["k"]);

    // A release passes over a dead Redisson waiter too.
    bench.enqueue_java(JAVA, -1);
    bench.wait(&holder);
    assert_eq!(bench.release(&waiter), moved(&holder));
    bench.wait(&waiter);
    assert_eq!(bench.release(&holder), moved(&waiter));

    // No client in Java would ever remove an entry without a score.
    bench.probe.command(&["RPUSH", QUEUE, JAVA]);
    assert_eq!(bench.release(&waiter), released());
    assert_eq!(bench.wait(&holder), "granted");
    assert_eq!(bench.probe.keys(), ["k"]);
}

#[test]
fn scores_keep_their_end_when_the_only_waiter_is_redissons() {
    let mut bench = Bench::new();
    let (a, b) = (Hold::new(HERE, 1), Hold::new(HERE, 2));
    bench.wait(&a);
    bench.enqueue_java(JAVA, 2 * PLACE);
    bench.wait(&b);
    bench.release(&b);
    assert_eq!(bench.queue(), [JAVA]);
    bench.release(&a);
    assert!(bench.distance(JAVA) <= PLACE);
    assert!(bench.probe.pttl(SCORES) > DAY);
}
