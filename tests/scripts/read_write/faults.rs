//! Releases by force, hashes of another shape, and servers that forget, fail or have no memory left.

use std::time::{Duration, Instant};

use redlatch_testkit::Reply;

use super::{
    ENTRY_KEYS, LEASE, READER_MARK, Read, Scene, Write, answer, fields, hold, read_args, reader,
    release_args, release_keys, writer,
};

#[test]
fn force_frees_one_side_with_its_levels() {
    let mut scene = Scene::new();
    assert_eq!(scene.force(Read), "free");
    scene.take(&reader("A:1", 1));
    scene.take(&reader("A:2", 2));
    scene.java_reads("J:1", 60_000);
    assert_eq!(scene.force(Write), "free");
    assert_eq!(scene.force(Read), "released");
    assert_eq!(scene.published(), ["0"]);
    scene.is_clean();

    let (write, read) = (writer("A:1", 1), reader("A:1", 2));
    scene.take(&write);
    assert_eq!(scene.force(Read), "free");
    scene.take(&read);
    assert_eq!(scene.force(Read), "released");
    assert_eq!(
        scene.hash(),
        fields([("mode", "write"), ("A:1:write", "1")])
    );
    scene.take(&read);
    assert_eq!(scene.published(), ["0"]);
    assert_eq!(scene.force(Write), "released");
    assert_eq!(scene.published(), ["1"]);
    assert_eq!(scene.hash(), fields([("mode", "read"), ("A:1", "1")]));
    assert_eq!(scene.check(&[&read, &write]), [1, 0]);
    assert_eq!(scene.release(&read, 0), answer("released", [1]));
    scene.is_clean();
}

/// Java's forced release deletes the hash, and leaves the keys of all levels.
#[test]
fn levels_that_javas_force_left_go_with_the_release_of_their_hold() {
    for side in [Read, Write] {
        let mut scene = Scene::new();
        let (one, two) = (hold(side, "job", 1).shared(), hold(side, "job", 2).shared());
        scene.take(&one);
        assert_eq!(scene.acquire(&two), answer("granted", [2]));
        assert_eq!(scene.reenter(&one, 2), answer("granted", [3]));
        scene.redis.command(&["DEL", "k"]);
        for _ in 0..2 {
            assert_eq!(scene.release(&one, 0), answer("absent", []));
            let keys = scene.redis.keys();
            assert_eq!(
                keys,
                [one.level(2)],
                "the other's is left to its own release"
            );
        }
        // By now there is a gap below this level, which a later hold then fills.
        let next = hold(side, "job", 3).shared();
        scene.take(&next);
        assert_eq!(scene.release(&two, 0), answer("absent", []));
        let mut keys = scene.redis.keys();
        keys.sort();
        assert_eq!(keys, ["k".to_owned(), one.level(1)].map(|key| key));
        assert_eq!(scene.check(&[&next]), [1]);
        assert_eq!(scene.published(), [""; 0]);
        assert_eq!(scene.release(&next, 0), answer("released", [1]));
        scene.is_clean();
    }
}

#[test]
fn hash_of_another_shape_is_the_wrong_kind_and_stays_untouched() {
    let mut scene = Scene::new();
    for shape in [
        ["A:1", "1", "B:1", "1"],
        ["mode", "other", "A:1", "1"],
        ["mode", "read", "A:1", "abc"],
        ["mode", "write", "A:1:write", "-1"],
    ] {
        scene.redis.command(&["DEL", "k"]);
        let command: Vec<&str> = ["HSET", "k"].into_iter().chain(shape).collect();
        scene.redis.command(&command);
        let before = scene.dump();
        let side = if shape[1] == "write" { Write } else { Read };
        let held = hold(side, "A:1", 1).shared();
        assert_eq!(scene.acquire(&held).0, "wrong_kind", "{shape:?}");
        assert_eq!(scene.release(&held, 0).0, "absent", "{shape:?}");
        assert_eq!(scene.reenter(&held, 1).0, "absent", "{shape:?}");
        assert_eq!(scene.renew(&[&held]), [0], "{shape:?}");
        assert_eq!(scene.check(&[&held]), [0], "{shape:?}");
        assert_eq!(scene.adopt(&held, 1, 0, 1, "").0, "wrong_kind", "{shape:?}");
        assert_eq!(scene.force(side), "wrong_kind", "{shape:?}");
        assert_eq!(scene.dump(), before, "{shape:?}");
    }
    scene.redis.command(&["DEL", "k"]);
    let (held, other) = (reader("A:1", 1), reader("A:2", 2));
    scene.take(&held);
    scene.take(&other);
    scene.die(&[held.level(1)]);
    scene.redis.command(&["RPUSH", &held.level(1), "x"]);
    assert_eq!(scene.renew(&[&held, &other]), [0, 1]);
    assert_eq!(scene.check(&[&held, &other]), [0, 1]);
    scene.redis.command(&["SET", "k", "text"]);
    assert_eq!(scene.renew(&[&reader("A:1", 1)]), [0]);
    assert_eq!(scene.check(&[&reader("A:1", 1)]), [0]);
}

#[test]
fn count_that_nobody_could_reach_stops_no_server() {
    let mut scene = Scene::new();
    let (read, other) = (reader("A:1", 1), reader("A:2", 2));
    let started = Instant::now();
    for count in ["1001", "2147483647", "99999999999999999999"] {
        scene
            .redis
            .command(&["HSET", "k", "mode", "read", "A:1", count]);
        scene.redis.command(&["HSET", "k", "J:1", count]);
        assert_eq!(scene.acquire(&read).0, "exhausted", "{count}");
        assert_eq!(scene.release(&read, 0).0, "absent");
        assert_eq!(scene.renew(&[&read]), [0]);
        assert_eq!(scene.check(&[&read]), [0]);
        scene.take(&other);
        scene.redis.command(&["PEXPIRE", "k", "1"]);
        scene.release(&other, 0);
        scene.redis.command(&["DEL", "k"]);
    }
    for hold in [read, writer("A:1", 1).shared()] {
        scene.take(&hold);
        assert_eq!(scene.reenter(&hold, 1_000), answer("granted", [1_000]));
        assert_eq!(scene.reenter(&hold, 1_001), answer("exhausted", []));
        let mut second = hold.clone();
        second.number = "h00000000000000ff".to_owned();
        assert_eq!(scene.acquire(&second), answer("exhausted", []));
        assert_eq!(scene.release(&hold, 0), answer("released", [1]));
        scene.is_clean();
    }
    assert!(started.elapsed() < Duration::from_secs(5));
}

// fault: S11
#[test]
fn server_out_of_memory_still_releases_renews_and_moves() {
    for side in [Read, Write] {
        let mut scene = Scene::new();
        let (one, two) = (hold(side, "job", 1).shared(), hold(side, "job", 2).shared());
        let memory = |scene: &mut Scene, bytes: &str| {
            let set = scene.redis.command(&["CONFIG", "SET", "maxmemory", bytes]);
            assert_eq!(set.text(), "OK");
        };
        scene.take(&one);
        assert_eq!(scene.reenter(&one, 2), answer("granted", [2]));
        assert_eq!(scene.acquire(&two), answer("granted", [3]));
        let read = reader("job", 3);
        if side == Write {
            scene.take(&read);
        }
        memory(&mut scene, "1");
        assert_eq!(scene.renew(&[&one, &two]), [1, 1]);
        assert_eq!(scene.check(&[&one]), [1]);
        assert_eq!(scene.extend(&one, 40_000, "at_least"), "extended");
        assert_eq!(scene.release(&one, 2), answer("kept", [3]));
        assert_eq!(scene.release(&one, 1), answer("kept", [2]));
        let record = one.number.clone();
        assert_eq!(
            scene.adopt(&two, 2, LEASE, 1, &record),
            answer("adopted", [2])
        );
        assert_eq!(scene.release(&two, 0), answer("released", [1]));
        if side == Write {
            assert_eq!(scene.hash(), fields([("mode", "read"), ("job", "1")]));
            assert_eq!(scene.force(Read), "released");
        }
        scene.is_clean();
        memory(&mut scene, "0");
        scene.take(&one);
        memory(&mut scene, "1");
        assert_eq!(scene.force(side), "released");
        scene.is_clean();
    }
}

#[test]
fn lock_whose_server_forgot_it_is_taken_anew() {
    let mut scene = Scene::new();
    let (read, write) = (reader("A:1", 1), writer("A:2", 2));
    scene.take(&read);
    scene.redis.command(&["DEL", "k"]);
    scene.take(&write);
    assert_eq!(scene.check(&[&read, &write]), [0, 1]);
    assert_eq!(scene.release(&read, 0), answer("absent", []));
    assert_eq!(scene.release(&write, 0), answer("released", [1]));
}

#[test]
fn error_in_a_script_changes_nothing() {
    let mut scene = Scene::new();
    let (one, two) = (reader("A:1", 1), reader("A:2", 2));
    scene.take(&two);
    scene.redis.command(&["DEL", &two.level(1)]);
    scene.redis.command(&["RPUSH", &two.level(1), "x"]);
    let before = scene.dump();
    let asked = scene.send("read_acquire", &ENTRY_KEYS, &read_args(&two));
    assert!(matches!(asked, Reply::Error(_)), "{asked:?}");
    assert_eq!(scene.dump(), before);
    scene.take(&one);
    scene.redis.command(&["RPUSH", READER_MARK, "x"]);
    let before = scene.dump();
    let gone = reader("A:3", 3);
    let released = scene.send("rw_release", &release_keys(&gone), &release_args(&gone, 0));
    assert!(matches!(released, Reply::Error(_)), "{released:?}");
    assert_eq!(scene.dump(), before);
    // The list at the level's key is nobody's level.
    assert_eq!(scene.release(&one, 0), answer("released", [1]));
}
