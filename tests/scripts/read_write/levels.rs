//! Levels of one owner and of several: how both sides acquire, count, adopt and release them.

use redlatch_testkit::Reply;

use super::{Hold, LEASE, Read, Scene, Write, answer, fields, hold, reader, writer};

#[test]
fn holds_have_redissons_fields_and_level_keys_with_their_number() {
    let mut scene = Scene::new();
    let read = reader("A:1", 1);
    scene.take(&read);
    assert_eq!(scene.hash(), fields([("mode", "read"), ("A:1", "1")]));
    assert_eq!(scene.text(&read.level(1)), Some(read.number.clone()));
    assert_eq!(read.level(1), "{k}:A:1:rwlock_timeout:1");
    scene.is_near("k", LEASE);
    scene.is_near(&read.level(1), LEASE);
    assert_eq!(scene.release(&read, 0), answer("released", [1]));
    assert_eq!(scene.published(), ["0"]);
    scene.is_clean();

    let write = writer("A:1", 2);
    scene.take(&write);
    assert_eq!(
        scene.hash(),
        fields([("mode", "write"), ("A:1:write", "1")])
    );
    assert_eq!(scene.text(&write.level(1)), Some(write.number.clone()));
    assert_eq!(write.level(1), "{k}:A:1:write:rwlock_timeout:1");
    assert_eq!(scene.release(&write, 0), answer("released", [1]));
    assert_eq!(scene.published(), ["1"]);
    scene.is_clean();
}

#[test]
fn readers_share_and_a_writer_is_alone() {
    let mut scene = Scene::new();
    let (one, two) = (reader("A:1", 1), reader("A:2", 2).lease(60_000));
    scene.take(&one);
    scene.take(&two);
    scene.is_near("k", 60_000);
    let (ttl, _) = scene.is_refused(&writer("A:3", 3));
    assert!(ttl > 55_000, "as long as the longest reader: {ttl}");
    assert_eq!(scene.release(&one, 0), answer("kept", [0]));
    scene.is_refused(&writer("A:3", 3));
    assert_eq!(scene.release(&two, 0), answer("released", [1]));
    let write = writer("A:3", 3);
    scene.take(&write);
    scene.is_refused(&writer("A:1", 4));
    scene.is_refused(&reader("A:1", 4));
    assert_eq!(scene.release(&write, 0), answer("released", [1]));
    scene.is_clean();
}

#[test]
fn levels_are_counted_on_both_sides_and_a_script_that_runs_again_adds_none() {
    for hold in [reader("A:1", 1), writer("A:1", 1)] {
        let mut scene = Scene::new();
        scene.take(&hold);
        scene.take(&hold);
        let long = hold.clone().lease(60_000);
        assert_eq!(scene.reenter(&long, 2), answer("granted", [2]));
        scene.is_near(&hold.level(1), 60_000);
        assert_eq!(scene.reenter(&hold, 3), answer("granted", [3]));
        for level in [1, 2, 3] {
            scene.is_near(&hold.level(level), 60_000);
        }
        scene.is_near("k", 60_000);
        let before = scene.dump();
        assert_eq!(scene.reenter(&hold, 3), answer("granted", [3]));
        assert_eq!(scene.reenter(&hold, 2), answer("granted", [3]));
        assert_eq!(scene.acquire(&hold).0, "granted");
        assert_eq!(scene.dump(), before, "{hold:?}");

        assert_eq!(scene.release(&hold, 1), answer("kept", [1]));
        let before = scene.dump();
        assert_eq!(before.len(), 2, "the hash and one level");
        assert_eq!(scene.release(&hold, 1), answer("kept", [1]));
        assert_eq!(scene.dump(), before, "{hold:?}");
        assert_eq!(scene.published(), [""; 0]);
        assert_eq!(scene.release(&hold, 0), answer("released", [1]));
        assert_eq!(scene.release(&hold, 0), answer("absent", []));
        assert_eq!(scene.published().len(), 1, "once");
        scene.is_clean();
    }
}

#[test]
fn call_that_comes_again_has_the_lease_count_anew() {
    for side in [Read, Write] {
        let mut scene = Scene::new();
        let held = hold(side, "A:1", 1);
        scene.take(&held);
        scene.expire(&held.level(1), 5_000);
        scene.expire("k", 5_000);
        scene.take(&held);
        scene.is_near(&held.level(1), LEASE);
        scene.is_near("k", LEASE);
        scene.expire(&held.level(1), 2 * LEASE);
        scene.take(&held);
        scene.is_near(&held.level(1), 2 * LEASE);
        assert_eq!(scene.release(&held, 0), answer("released", [1]));
    }
}

#[test]
fn call_under_another_acquisition_id_changes_nothing() {
    for side in [Read, Write] {
        let mut scene = Scene::new();
        let (stands, late) = (hold(side, "A:1", 1), hold(side, "A:1", 2));
        scene.take(&stands);
        scene.redis.command(&["PERSIST", "k"]);
        scene.redis.command(&["PERSIST", &stands.level(1)]);
        let before = scene.dump();
        assert_eq!(scene.release(&late, 0), answer("absent", []));
        assert_eq!(scene.reenter(&late, 2), answer("absent", []));
        assert_eq!(scene.extend(&late, 9_000, "exactly"), "absent");
        assert_eq!(scene.renew(&[&late]), [0]);
        assert_eq!(scene.check(&[&late]), [0]);
        assert_eq!(scene.adopt(&late, 1, 9_000, 1, &late.number).0, "changed");
        if side == Write {
            let (ttl, _) = scene.is_refused(&late);
            assert_eq!(ttl, -1);
        }
        assert_eq!(scene.dump(), before);
        assert_eq!(scene.redis.pttl("k"), -1);
        assert_eq!(scene.redis.pttl(&stands.level(1)), -1);
        assert_eq!(scene.published(), [""; 0]);
        assert_eq!(scene.release(&stands, 0), answer("released", [1]));
        for hold in [&stands, &late] {
            assert_eq!(scene.reenter(hold, 2), answer("absent", []));
            assert_eq!(scene.extend(hold, 9_000, "at_least"), "absent");
            assert_eq!(scene.adopt(hold, 1, 9_000, 1, ""), answer("absent", []));
            assert_eq!(scene.renew(&[hold]), [0]);
        }
        scene.is_clean();
    }
}

#[test]
fn levels_of_one_owner_in_several_clients_add_up_and_gaps_are_closed() {
    for side in [Read, Write] {
        let mut scene = Scene::new();
        let (one, two) = (hold(side, "job", 1).shared(), hold(side, "job", 2).shared());
        scene.take(&one);
        assert_eq!(scene.acquire(&two), answer("granted", [2]));
        assert_eq!(scene.reenter(&one, 2), answer("granted", [3]));
        assert_eq!(scene.extend(&two, 9_000, "exactly"), "extended");
        scene.is_near("k", LEASE);
        let long = two.clone().lease(90_000);
        assert_eq!(scene.reenter(&long, 2), answer("granted", [4]));
        assert_eq!(scene.release(&one, 0), answer("kept", [2]));
        assert_eq!(scene.hash()[&one.field()], "2");
        for level in [1, 2] {
            assert_eq!(scene.text(&one.level(level)), Some(two.number.clone()));
            scene.is_near(&one.level(level), 90_000);
        }
        assert!(!scene.redis.exists(&one.level(3)) && !scene.redis.exists(&one.level(4)));
        assert_eq!(scene.release(&two, 0), answer("released", [1]));
        scene.is_clean();
    }
}

#[test]
fn call_that_only_joins_takes_nothing_that_is_free() {
    let mut scene = Scene::new();
    let (joins, other) = (writer("job", 1).only_joins(), writer("job", 2));
    scene.is_refused(&joins);
    scene.is_clean();
    scene.take(&reader("A:1", 3));
    scene.is_refused(&joins);
    scene.redis.command(&["FLUSHALL"]);
    scene.take(&other);
    assert_eq!(scene.acquire(&joins), answer("granted", [2]));
}

#[test]
fn gap_that_only_an_expired_level_could_fill_is_closed_too() {
    let mut scene = Scene::new();
    let (one, two) = (reader("job", 1).lease(60_000), reader("job", 2));
    scene.take(&one);
    assert_eq!(scene.acquire(&two), answer("granted", [2]));
    scene.die(&[one.level(2)]);
    assert_eq!(scene.release(&one, 0), answer("released", [1]));
    scene.is_clean();
}

#[test]
fn writer_that_reads_too_becomes_a_reader_and_wakes_those_that_wait() {
    let mut scene = Scene::new();
    let (write, read) = (writer("A:1", 1).lease(60_000), reader("A:1", 2));
    scene.take(&write);
    scene.take(&read);
    assert_eq!(
        scene.hash(),
        fields([("mode", "write"), ("A:1", "1"), ("A:1:write", "1")])
    );
    scene.is_refused(&reader("A:2", 3));
    scene.is_near("k", 60_000);
    assert_eq!(scene.release(&write, 0), answer("released", [1]));
    assert_eq!(scene.published(), ["1"], "as no Redisson does");
    assert_eq!(scene.hash(), fields([("mode", "read"), ("A:1", "1")]));
    scene.is_near("k", LEASE);
    scene.take(&reader("A:2", 3));
    scene.is_refused(&writer("A:3", 4));

    let mut scene = Scene::new();
    scene.take(&write);
    scene.take(&read);
    assert_eq!(scene.release(&read, 0), answer("kept", [0]));
    assert_eq!(scene.published(), [""; 0]);
    assert_eq!(scene.hash()["mode"], "write");
    assert_eq!(scene.release(&write, 0), answer("released", [1]));
    scene.is_clean();
}

#[test]
fn upgrade_is_refused_at_once_and_a_dead_level_is_none() {
    let mut scene = Scene::new();
    let (read, other) = (reader("A:1", 1), reader("A:2", 2));
    scene.take(&read);
    let write = writer("A:1", 3).shared().waits();
    let before = scene.dump();
    assert_eq!(scene.acquire(&write), answer("upgrade", []), "alone");
    assert_eq!(scene.dump(), before);
    scene.take(&other);
    assert_eq!(scene.acquire(&write), answer("upgrade", []));
    scene.die(&[read.level(1)]);
    scene.is_refused(&write);
    assert_eq!(scene.release(&other, 0), answer("released", [1]));
    scene.take(&write);
}

#[test]
fn owner_whose_client_knows_what_it_reads_is_asked_no_more_by_the_server() {
    let mut scene = Scene::new();
    // A:1 began this record and no longer reads. Other readers of its client still do.
    let began = reader("A:1", 1);
    scene.take(&began);
    let (_, write) = scene.is_refused(&writer("A:1", 2).waits());
    // That level does not let A:1 pass the writer.
    let again = reader("A:1", 3).waits();
    scene.is_refused(&again);
    let named = Hold {
        owner: "A:1",
        ..reader("A:1", 4).shared()
    };
    assert_eq!(scene.acquire(&named), answer("granted", [2]), "another may");
    assert_eq!(scene.release(&named, 0), answer("kept", [1]));
    assert_eq!(scene.release(&began, 0), answer("released", [1]));
    scene.take(&write);
}

#[test]
fn write_hold_that_also_reads_is_reentered_without_an_upgrade() {
    let mut scene = Scene::new();
    let write = writer("job", 1).shared();
    scene.take(&write);
    scene.take(&reader("job", 2));
    assert_eq!(
        scene.acquire(&writer("job", 3).shared()),
        answer("granted", [2])
    );
    assert_eq!(scene.reenter(&write, 2), answer("granted", [3]));
}

#[test]
fn adopted_level_changes_hands_and_counts_once() {
    for side in [Read, Write] {
        let mut scene = Scene::new();
        let (one, two) = (hold(side, "job", 1).shared(), hold(side, "job", 2).shared());
        scene.take(&one);
        let record = one.number.clone();
        for (level, held) in [(2, ""), (1, "1"), (0, "")] {
            let adopted = scene.adopt(&two, 1, 0, level, held);
            assert_eq!(adopted, answer("changed", []), "{level} {held}");
        }
        for share in [2, 0] {
            let adopted = scene.adopt(&two, share, 60_000, 1, &record);
            assert_eq!(adopted, answer("absent", []), "two are missing, or none");
        }
        scene.is_near("k", LEASE);
        assert_eq!(scene.adopt(&two, 1, 0, 1, &record), answer("adopted", [1]));
        scene.is_near(&one.level(1), LEASE);
        assert_eq!(scene.text(&one.level(1)), Some(two.number.clone()));
        let before = scene.dump();
        assert_eq!(
            scene.adopt(&two, 1, 60_000, 1, &record),
            answer("adopted", [1])
        );
        scene.is_near(&one.level(1), 60_000);
        scene.is_near("k", 60_000);
        assert_eq!(scene.dump(), before);
        assert_eq!(
            scene.adopt(&two, 2, 60_000, 1, &record),
            answer("changed", [])
        );
        assert_eq!(scene.release(&one, 0), answer("absent", []));
        assert_eq!(scene.release(&two, 0), answer("released", [1]));
        scene.is_clean();
    }
    let mut scene = Scene::new();
    scene.java_reads("J:1", 9_000);
    let read = reader("J:1", 1);
    assert_eq!(scene.adopt(&read, 1, 0, 1, "1"), answer("adopted", [1]));
    scene.is_near(&read.level(1), 9_000);
    assert_eq!(scene.release(&read, 0), answer("released", [1]));
    scene.java_writes("J:1", 9_000);
    let write = writer("J:1", 1).shared();
    assert_eq!(scene.adopt(&write, 1, LEASE, 1, ""), answer("adopted", [1]));
    scene.is_near(&write.level(1), LEASE);
    scene.is_near("k", LEASE);
    assert_eq!(scene.release(&write, 0), answer("released", [1]));
    scene.is_clean();
}

#[test]
fn inspection_tells_fields_and_the_levels_of_one_owner() {
    let mut scene = Scene::new();
    let inspect = |scene: &mut Scene, field: &str| {
        let reply = scene.run("rw_inspect", &["k", "{k}"], &[field]).array();
        let texts = |reply: &Reply| -> Vec<String> {
            reply.clone().array().iter().map(Reply::text).collect()
        };
        match &reply[..] {
            [tag] => (tag.text(), 0, vec![], vec![]),
            all => (all[0].text(), all[1].int(), texts(&all[2]), texts(&all[3])),
        }
    };
    assert_eq!(inspect(&mut scene, "job").0, "free");
    let (one, two) = (reader("job", 1), reader("job", 2));
    scene.take(&one);
    assert_eq!(scene.acquire(&two), answer("granted", [2]));
    scene.java_reads("job", 9_000);
    scene.die(&[one.level(1)]);
    let (tag, ttl, fields, levels) = inspect(&mut scene, "job");
    assert_eq!((&*tag, ttl > 20_000), ("held", true));
    assert_eq!(fields, ["mode", "read", "job", "3"]);
    assert_eq!(levels, ["", &two.number, "1"]);
    assert_eq!(inspect(&mut scene, "").3, [""; 0]);
    scene.redis.command(&["DEL", "k"]);
    scene.redis.command(&["HSET", "k", "job", "1"]);
    assert_eq!(inspect(&mut scene, "job").0, "wrong_kind");
}
