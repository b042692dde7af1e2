//! Leases: how long the hash and its levels last, whoever releases, extends, renews, confirms or dies.

use super::{
    Hold, JAVA, LEASE, Read, Scene, Write, answer, fields, hold, level_key, reader, writer,
};

#[test]
fn dead_reader_does_not_outlive_the_last_live_one() {
    let mut scene = Scene::new();
    let (dead, live, last) = (reader("A:1", 1), reader("A:2", 2), reader("A:3", 3));
    for hold in [&dead, &live, &last] {
        scene.take(hold);
    }
    scene.die(&[dead.level(1)]);
    assert_eq!(scene.release(&live, 0), answer("kept", [0]));
    assert_eq!(scene.published(), [""; 0]);
    assert_eq!(scene.release(&last, 0), answer("released", [1]));
    assert_eq!(scene.published(), ["0"]);
    scene.is_clean();
}

#[test]
fn hash_lasts_as_long_as_the_longest_level_that_is_left() {
    let mut scene = Scene::new();
    let short = reader("A:1", 1).lease(5_000);
    let middle = reader("A:2", 2).lease(20_000);
    let long = reader("A:3", 3).lease(60_000);
    for hold in [&long, &middle, &short] {
        scene.take(hold);
    }
    scene.is_near("k", 60_000);
    assert_eq!(scene.release(&long, 0), answer("kept", [0]));
    scene.is_near("k", 20_000);
    assert_eq!(scene.release(&short, 0), answer("kept", [0]));
    scene.is_near("k", 20_000);
    assert_eq!(scene.extend(&middle, 5_000, "exactly"), "extended");
    scene.is_near("k", 5_000);
    scene.take(&long);
    assert_eq!(scene.extend(&middle, 8_000, "exactly"), "extended");
    scene.is_near("k", 60_000);
    scene.is_near(&middle.level(1), 8_000);
    assert_eq!(scene.extend(&middle, 4_000, "at_least"), "extended");
    scene.is_near(&middle.level(1), 8_000);
    assert_eq!(scene.reenter(&middle, 2), answer("granted", [2]));
    scene.is_near("k", 60_000);
    assert_eq!(scene.extend(&middle, 90_000, "at_least"), "extended");
    scene.is_near(&middle.level(1), 90_000);
    scene.is_near("k", 90_000);
}

#[test]
fn hash_of_a_writer_that_gives_back_a_longer_read_lasts_as_long_as_the_writer() {
    let mut scene = Scene::new();
    let write = writer("A:1", 1).lease(5_000);
    let read = reader("A:1", 2).lease(60_000);
    scene.take(&write);
    scene.take(&read);
    scene.is_near("k", 60_000);
    for _ in 0..2 {
        scene.release(&read, 0);
        scene.is_near("k", 5_000);
        scene.is_near(&write.level(1), 5_000);
    }
    let (ttl, _) = scene.is_refused(&reader("A:2", 3));
    assert!(ttl <= 5_000, "{ttl}");

    // Here the writer has the longer level. It releases one level, which it took over from a hold with a longer lease.
    let (one, two) = (writer("job", 4).shared(), writer("job", 5).shared());
    scene.redis.command(&["FLUSHALL"]);
    scene.take(&one);
    let long = two.clone().lease(60_000);
    assert_eq!(scene.acquire(&long), answer("granted", [2]));
    assert_eq!(
        scene.adopt(&one, 2, LEASE, 2, &two.number),
        answer("adopted", [2])
    );
    scene.is_near("k", 60_000);
    let before = scene.redis.pttl(&one.level(2));
    assert_eq!(scene.reenter(&one, 2), answer("granted", [2]));
    assert!(
        scene.redis.pttl(&one.level(2)) > before - 2_000,
        "raised only"
    );
    assert_eq!(scene.release(&one, 1), answer("kept", [1]));
    scene.is_near("k", LEASE);
    scene.is_near(&one.level(1), LEASE);
}

#[test]
fn extension_that_shortens_leaves_the_hash_as_long_as_the_longest_level() {
    for side in [Read, Write] {
        let mut scene = Scene::new();
        let held = hold(side, "job", 1).lease(60_000).shared();
        let other = hold(side, "job", 2).lease(20_000).shared();
        scene.take(&held);
        assert_eq!(scene.acquire(&other), answer("granted", [2]));
        for _ in 0..2 {
            assert_eq!(scene.extend(&held, 5_000, "exactly"), "extended");
            scene.is_near("k", 20_000);
            scene.is_near(&held.level(1), 5_000);
            scene.is_near(&other.level(2), 20_000);
        }
        assert_eq!(scene.extend(&other, 1_000, "at_least"), "extended");
        scene.is_near("k", 20_000);
        assert_eq!(scene.extend(&other, 8_000, "exactly"), "extended");
        scene.is_near("k", 8_000);
        if side == Write {
            let read = reader("job", 3).lease(40_000);
            scene.take(&read);
            assert_eq!(scene.extend(&read, 6_000, "exactly"), "extended");
            scene.is_near("k", 8_000);
        }
    }
    let mut scene = Scene::new();
    let held = reader("A:1", 1).lease(60_000);
    scene.take(&held);
    scene.java_reads("J:1", 9_000);
    assert_eq!(scene.extend(&held, 4_000, "exactly"), "extended");
    scene.is_near("k", 9_000);
}

#[test]
fn hash_lasts_as_long_as_what_is_left_when_one_side_was_freed_by_force() {
    let mut scene = Scene::new();
    let (write, read) = (writer("A:1", 1).lease(60_000), reader("A:1", 2));
    scene.take(&write);
    scene.take(&read);
    assert_eq!(scene.force(Write), "released");
    scene.is_near("k", LEASE);
    scene.take(&reader("A:2", 3).lease(60_000));
    assert_eq!(scene.force(Read), "released");
    scene.is_clean();

    scene.take(&write);
    scene.take(&read.clone().lease(90_000));
    assert_eq!(scene.force(Read), "released");
    scene.is_near("k", 60_000);
    scene.take(&read);
    scene.die(&[read.level(1)]);
    assert_eq!(scene.force(Write), "released");
    scene.is_clean();
}

/// Java's write levels have no key of their own: they last as long as the hash.
#[test]
fn hash_in_which_java_writes_is_never_cut_short() {
    let mut scene = Scene::new();
    let (read, write) = (reader(JAVA, 1), writer(JAVA, 2).shared());
    scene.java_writes(JAVA, 60_000);
    scene.take(&read.clone().lease(10_000));
    assert_eq!(scene.extend(&read, 1_000, "exactly"), "extended");
    scene.is_near("k", 60_000);
    assert_eq!(scene.release(&read, 0), answer("kept", [0]));
    scene.is_near("k", 60_000);
    scene.take(&read);
    assert_eq!(scene.force(Read), "released");
    scene.is_near("k", 60_000);
    assert_eq!(scene.acquire(&write), answer("granted", [2]));
    assert_eq!(scene.extend(&write, 1_000, "exactly"), "extended");
    scene.is_near("k", 60_000);
    assert_eq!(scene.release(&write, 0), answer("kept", [1]));
    scene.is_near("k", 60_000);
}

/// A level of a named writer that died has no key either, but nobody else renews the hash for it.
#[test]
fn named_writer_that_died_holds_nothing_when_the_others_under_its_name_have_gone() {
    for dead_first in [true, false] {
        let mut scene = Scene::new();
        let (live, dead) = (writer("req", 1).lease(60_000), writer("req", 2));
        let (live, dead) = (live.shared(), dead.shared());
        let (first, second) = match dead_first {
            true => (&dead, &live),
            false => (&live, &dead),
        };
        scene.take(first);
        assert_eq!(scene.acquire(second), answer("granted", [2]));
        scene.die(&[dead.level(if dead_first { 1 } else { 2 })]);
        assert_eq!(scene.extend(&live, 9_000, "exactly"), "extended");
        scene.is_near("k", 9_000);
        assert_eq!(
            scene.release(&live, 0),
            answer("released", [1]),
            "{dead_first}"
        );
        assert_eq!(scene.published(), ["1"]);
        scene.is_clean();
    }
}

/// Otherwise the hash would say that it writes, for as long as it reads.
#[test]
fn writer_whose_levels_have_ended_only_reads_from_its_release_on() {
    // All levels of a numbered owner are its client's, though its field looks like one of Java.
    for owner in ["A:1", JAVA] {
        let mut scene = Scene::new();
        let (write, read) = (writer(owner, 1), reader(owner, 2));
        scene.take(&write);
        scene.take(&read);
        scene.die(&[write.level(1)]);
        scene.is_refused(&reader("A:2", 3));
        for told in [&["1"][..], &[]] {
            assert_eq!(scene.release(&write, 0), answer("absent", []));
            assert_eq!(scene.published(), told);
            assert_eq!(scene.hash(), fields([("mode", "read"), (owner, "1")]));
            scene.is_near("k", LEASE);
        }
        scene.take(&reader("A:2", 3));
        assert_eq!(scene.release(&read, 0), answer("kept", [0]));
    }

    // Here it gives back what it reads first. Only the client knows that nothing is left then.
    let mut scene = Scene::new();
    let (write, read) = (writer(JAVA, 1), reader(JAVA, 2));
    scene.take(&write);
    scene.take(&read);
    scene.die(&[write.level(1)]);
    assert_eq!(scene.release(&read, 0), answer("kept", [0]));
    assert_eq!(scene.release(&write, 0), answer("absent", []));
    assert_eq!(scene.published(), ["1"]);
    scene.is_clean();

    // The level of another client under the name has ended.
    let (dead, live) = (writer("req", 1).shared(), writer("req", 2).shared());
    scene.take(&dead);
    assert_eq!(scene.acquire(&live), answer("granted", [2]));
    scene.take(&reader("req", 3).shared());
    scene.die(&[dead.level(1)]);
    assert_eq!(scene.release(&dead, 0), answer("absent", []));
    assert_eq!(scene.hash()["mode"], "write", "the other one stands");
    assert_eq!(scene.release(&live, 0), answer("released", [1]));
    assert_eq!(scene.published(), ["1"]);
    assert_eq!(scene.hash(), fields([("mode", "read"), ("req", "1")]));
}

#[test]
fn level_of_a_writer_in_java_ends_with_no_level_of_ours() {
    let mut scene = Scene::new();
    let write = writer(JAVA, 1).shared();
    scene.java_writes(JAVA, 60_000);
    assert_eq!(scene.acquire(&write), answer("granted", [2]));
    scene.die(&[write.level(2)]);
    let before = scene.dump();
    assert_eq!(scene.release(&write, 0), answer("absent", []));
    assert_eq!(scene.dump(), before);
    scene.is_near("k", 60_000);
    assert_eq!(scene.published(), [""; 0]);
}

#[test]
fn renewal_sets_the_lease_of_hash_and_levels_and_never_shortens() {
    for side in [Read, Write] {
        let mut scene = Scene::new();
        let (held, gone) = (hold(side, "A:1", 1), hold(side, "A:2", 2));
        scene.take(&held);
        assert_eq!(scene.reenter(&held, 2), answer("granted", [2]));
        for key in ["k".to_owned(), held.level(1), held.level(2)] {
            scene.expire(&key, 9_000);
        }
        assert_eq!(scene.renew(&[&gone, &held, &gone]), [0, 1, 0]);
        for key in ["k".to_owned(), held.level(1), held.level(2)] {
            scene.is_near(&key, LEASE);
        }
        let short = held.clone().lease(5_000);
        assert_eq!(scene.renew(&[&short]), [1]);
        scene.is_near("k", LEASE);
        scene.is_near(&held.level(1), LEASE);
    }
}

#[test]
fn check_has_the_hash_last_as_long_as_our_levels_and_changes_nothing_else() {
    let mut scene = Scene::new();
    let read = reader("A:1", 1).lease(60_000);
    scene.take(&read);
    scene.java_reads("J:1", 3_000);
    scene.is_near("k", 60_000);
    scene.java_renews_read("J:1", 3_000);
    scene.is_near("k", 3_000);
    let before = scene.dump();
    assert_eq!(scene.check(&[&read, &reader("A:2", 2)]), [1, 0]);
    scene.is_near("k", 60_000);
    scene.is_near(&level_key("J:1", 1), 3_000);
    scene.redis.command(&["PEXPIRE", "k", "90000"]);
    assert_eq!(scene.check(&[&read]), [1]);
    scene.is_near("k", 90_000);
    assert_eq!(scene.dump(), before);
}

#[test]
fn java_reader_that_goes_leaves_ours_in_peace_and_the_other_way_round() {
    let mut scene = Scene::new();
    let (read, write) = (reader("A:1", 1), writer("A:2", 2));
    scene.java_reads("J:1", 60_000);
    scene.take(&read);
    assert!(!scene.java_reads_no_more("J:1"), "ours is alive");
    scene.is_near("k", LEASE);
    scene.java_reads("J:1", 60_000);
    scene.java_reads("J:1", 60_000);
    assert_eq!(scene.release(&read, 0), answer("kept", [0]));
    scene.is_refused(&write);
    assert!(!scene.java_reads_no_more("J:1"));
    assert!(scene.java_reads_no_more("J:1"));
    scene.is_clean();

    scene.java_writes(JAVA, 60_000);
    let below = reader(JAVA, 3).lease(90_000);
    scene.take(&below);
    assert_eq!(scene.release(&below, 0), answer("kept", [0]), "Java writes");
    scene.is_refused(&read);
    scene.is_refused(&write);
    scene.redis.command(&["DEL", "k"]);
    scene.take(&write);
}

#[test]
fn java_reader_that_dies_frees_its_share_within_its_lease() {
    let mut scene = Scene::new();
    let read = reader("A:1", 1).lease(60_000);
    scene.java_reads("J:1", 5_000);
    scene.take(&read);
    assert_eq!(scene.release(&read, 0), answer("kept", [0]));
    scene.is_near("k", 5_000);
    scene.take(&read);
    scene.die(&[level_key("J:1", 1)]);
    assert_eq!(scene.release(&read, 0), answer("released", [1]));
    scene.is_clean();
}

/// The clock advances while a script runs: the TTLs of a level and of its hash are not read at the same instant.
#[test]
fn reader_with_the_longest_lease_leaves_nothing_of_a_dead_one_whenever_it_goes() {
    let mut scene = Scene::new();
    let (dead, read) = (
        reader("A:1", 1).lease(60_000),
        reader("A:2", 2).lease(60_000),
    );
    for _ in 0..10_000 {
        scene.take(&dead);
        scene.take(&read);
        scene.die(&[level_key("A:1", 1)]);
        assert_eq!(scene.release(&read, 0), answer("released", [1]));
    }
    scene.is_clean();
}

/// If it did, the release of the longest level would not see that this was the longest.
#[test]
fn hash_does_not_outlive_the_levels_that_it_was_raised_for_whenever_the_clock_goes_on() {
    type Verb = fn(&mut Scene, &Hold);
    let verbs: [(&str, Verb); 7] = [
        ("read_acquire", |scene, hold| scene.take(hold)),
        ("write_acquire", |scene, hold| {
            scene.take(&writer(hold.owner, 1));
        }),
        ("rw_reenter", |scene, hold| {
            assert_eq!(scene.reenter(hold, 1), answer("granted", [1]));
        }),
        ("rw_extend", |scene, hold| {
            assert_eq!(scene.extend(hold, hold.lease, "at_least"), "extended");
        }),
        ("rw_adopt", |scene, hold| {
            let (other, record) = (reader(hold.owner, 2).shared(), &hold.number);
            assert_eq!(
                scene.adopt(&other, 1, hold.lease, 1, record),
                answer("adopted", [1])
            );
        }),
        ("rw_renew", |scene, hold| {
            assert_eq!(scene.renew(&[hold]), [1]);
        }),
        ("rw_check", |scene, hold| {
            assert_eq!(scene.check(&[hold]), [1]);
        }),
    ];
    for (verb, run) in verbs {
        let mut scene = Scene::new();
        let held = match verb {
            "write_acquire" => writer("A:1", 1),
            _ => reader("A:1", 1),
        };
        let level = held.level(1);
        for _ in 0..4_000 {
            scene.take(&held);
            scene.expire(&level, LEASE);
            scene.expire("k", 9_000);
            run(&mut scene, &held);
            // Reads the level first: in this order, a sound hash never appears to outlive its level.
            let left = "return redis.call('PTTL', KEYS[2]) - redis.call('PTTL', KEYS[1])";
            let spare = scene.redis.command(&["EVAL", left, "2", "k", &level]).int();
            assert!(spare >= 0, "{verb}: {spare} ms");
            scene.redis.command(&["DEL", "k", &level]);
        }
    }
}

/// The clock advances while a script runs: a hash that is cut does not outlive the level that it is cut to.
#[test]
fn hash_that_is_cut_down_does_not_outlive_its_longest_level_whenever_the_clock_goes_on() {
    type Verb = fn(&mut Scene, &Hold);
    let verbs: [(&str, Verb); 3] = [
        ("rw_release", |scene, inner| {
            assert_eq!(scene.release(inner, 0), answer("kept", [0]));
        }),
        ("rw_extend", |scene, inner| {
            assert_eq!(scene.extend(inner, 9_000, "exactly"), "extended");
        }),
        ("rw_force_release", |scene, _| {
            assert_eq!(scene.force(Read), "released");
        }),
    ];
    for (verb, run) in verbs {
        let mut scene = Scene::new();
        let (write, inner) = (writer("A:1", 1), reader("A:1", 2).lease(60_000));
        for _ in 0..4_000 {
            scene.take(&write);
            scene.take(&inner);
            run(&mut scene, &inner);
            // Reads the level first: in this order, a sound hash never appears to outlive its level.
            let left = "return redis.call('PTTL', KEYS[2]) - redis.call('PTTL', KEYS[1])";
            let level = write.level(1);
            let spare = scene.redis.command(&["EVAL", left, "2", "k", &level]).int();
            // Cut to another level, it would last for many seconds less. The server may pause between two steps.
            assert!((0..1_000).contains(&spare), "{verb}: {spare} ms");
            scene.redis.command(&["FLUSHALL"]);
        }
    }
}

#[test]
fn confirmation_renews_one_level_and_changes_nothing_else() {
    let mut scene = Scene::new();
    let (mine, other) = (reader("A:1", 1), reader("A:2", 2));
    scene.take(&mine);
    scene.take(&other);
    for short in ["k", &mine.level(1), &other.level(1)] {
        scene.expire(short, 5_000);
    }
    for _ in 0..2 {
        assert_eq!(scene.confirm(&mine, LEASE), answer("stands", [-1]));
        scene.is_near("k", LEASE);
        scene.is_near(&mine.level(1), LEASE);
        scene.is_near(&other.level(1), 5_000);
    }
    assert_eq!(scene.confirm(&mine, 1_000), answer("stands", [-1]));
    scene.is_near(&mine.level(1), LEASE);
    // Another acquisition id, an owner without a hold, a deleted key, and a key that is not a lock.
    let before = scene.dump();
    for absent in [reader("A:1", 3), reader("A:3", 1)] {
        assert_eq!(scene.confirm(&absent, LEASE), answer("absent", []));
    }
    assert_eq!(scene.dump(), before);
    scene.redis.command(&["DEL", "k"]);
    assert_eq!(scene.confirm(&mine, LEASE), answer("absent", []));
    scene.redis.command(&["SET", "k", "x"]);
    assert_eq!(scene.confirm(&mine, LEASE), answer("absent", []));
    // An older level of the same owner that was never released.
    scene.redis.command(&["DEL", "k"]);
    let second = reader("A:2", 4);
    scene.take(&other);
    assert_eq!(scene.acquire(&second), answer("granted", [2]));
    assert_eq!(scene.confirm(&second, LEASE), answer("stands", [-1]));
}
