//! Who goes first, readers, writers or whoever came first, and the marks of those that wait.

use super::{
    Hold, LEASE, MARK, READER_MARK, Read, Scene, WRITER_MARK, Write, answer, hold, level_key,
    reader, writer,
};

#[test]
fn writer_that_waits_keeps_new_readers_out_unless_they_are_preferred() {
    for (prefer, kept_out) in [("writers", true), ("arrival", true), ("readers", false)] {
        let mut scene = Scene::new();
        let first = reader("A:1", 1).prefers(prefer);
        scene.take(&first);
        let write = writer("A:2", 2).prefers(prefer);
        scene.is_refused(&write);
        assert!(
            !scene.redis.exists(WRITER_MARK),
            "a single attempt waits for nothing"
        );
        let (_, write) = scene.is_refused(&write.waits());
        let second = reader("A:3", 3).prefers(prefer);
        if !kept_out {
            assert!(!scene.redis.exists(WRITER_MARK), "{prefer}");
            scene.take(&second);
            continue;
        }
        scene.is_near(WRITER_MARK, MARK);
        let (ttl, _) = scene.is_refused(&second);
        assert!(ttl <= MARK, "as long as the mark: {ttl}");
        assert_eq!(scene.reenter(&first, 2), answer("granted", [2]), "{prefer}");
        assert_eq!(scene.release(&first, 0), answer("released", [1]));
        scene.is_refused(&second);
        scene.take(&write);
        assert!(
            !scene.redis.exists(WRITER_MARK),
            "{prefer}: it waits no more"
        );
        let read = reader("A:2", 4).prefers(prefer);
        scene.is_refused(&writer("A:5", 5).prefers(prefer).waits());
        scene.take(&read);
    }
}

#[test]
fn reader_that_came_before_the_writer_goes_before_it_by_arrival_only() {
    for (prefer, reader_first) in [("arrival", true), ("writers", false)] {
        let mut scene = Scene::new();
        let holder = writer("A:1", 1).prefers(prefer);
        scene.take(&holder);
        let read = reader("A:2", 2).prefers(prefer).waits();
        let (_, read) = scene.is_refused(&read);
        let write = writer("A:3", 3).prefers(prefer).waits();
        let (_, write) = scene.is_refused(&write);
        let late = reader("A:4", 4).prefers(prefer).waits();
        let (_, late) = scene.is_refused(&late);
        assert!(read.came < write.came && write.came < late.came);
        assert_eq!(scene.redis.exists(READER_MARK), reader_first);
        assert_eq!(scene.release(&holder, 0), answer("released", [1]));
        scene.is_refused(&late);
        if reader_first {
            let (ttl, _) = scene.is_refused(&write);
            assert!(ttl <= MARK, "as long as the reader's mark: {ttl}");
            scene.take(&read);
            scene.is_refused(&write);
            assert_eq!(scene.release(&read, 0), answer("released", [1]));
        } else {
            scene.is_refused(&read);
        }
        scene.take(&write);
        assert_eq!(scene.release(&write, 0), answer("released", [1]));
        scene.take(&late);
    }
}

#[test]
fn writer_waits_for_a_reader_that_came_before_it_by_arrival_only() {
    for (prefer, waits) in [("arrival", true), ("writers", false), ("readers", false)] {
        let mut scene = Scene::new();
        let (holder, write) = (writer("A:1", 1), writer("A:2", 2).prefers(prefer));
        scene.take(&holder);
        let (_, before) = scene.is_refused(&write);
        let (_, read) = scene.is_refused(&reader("A:3", 3).waits());
        scene.expire(READER_MARK, MARK / 2);
        scene.is_refused(&read);
        assert!(scene.redis.pttl(READER_MARK) > MARK / 2, "it still waits");
        assert_eq!(scene.release(&holder, 0), answer("released", [1]));
        if waits {
            scene.is_refused(&write);
            scene.take(&before);
        } else {
            scene.take(&write);
        }
    }
}

#[test]
fn call_that_waited_in_line_before_it_asks_came_before_those_that_asked_meanwhile() {
    for side in [Read, Write] {
        let mut scene = Scene::new();
        let holder = writer("A:1", 1);
        scene.take(&holder);
        let other = if side == Read { Write } else { Read };
        let (_, early) = scene.is_refused(&hold(other, "A:2", 2).waits());
        let late = hold(side, "A:3", 3).waits();
        let (_, long) = scene.is_refused(&hold(side, "A:4", 4).waited(60_000));
        assert!(long.came < early.came - 59_000_000);
        assert_eq!(scene.release(&holder, 0), answer("released", [1]));
        scene.is_refused(&late);
        scene.take(&hold(side, "A:4", 4).waited(60_000));
    }
}

#[test]
fn reader_that_heeds_nobody_passes_a_writer_that_waits() {
    let mut scene = Scene::new();
    scene.take(&reader("A:1", 1));
    scene.is_refused(&writer("A:2", 2).waits());
    scene.is_refused(&reader("A:3", 3));
    scene.take(&reader("A:3", 3).prefers("readers"));
}

#[test]
fn reader_heeds_a_writer_for_a_second_at_most_beside_readers_who_heed_nobody() {
    for prefer in ["arrival", "writers"] {
        let mut scene = Scene::new();
        scene.java_reads("J:1", 5_000);
        let (_, write) = scene.is_refused(&writer("A:2", 2).prefers(prefer).waits().waited(90_000));
        let new = || reader("A:3", 3).prefers(prefer).waits();
        let (ttl, _) = scene.is_refused(&new().waited(700));
        assert!((250..=300).contains(&ttl), "it asks in time: {ttl}");
        scene.is_refused(&new().waited(900));
        scene.is_refused(&reader("A:4", 4).prefers(prefer).waited(5_000));
        scene.is_refused(&write);
        scene.take(&new().waited(MARK));
        assert_eq!(scene.release(&new(), 0), answer("kept", [0]));
        // The clock was set back: this reader came at a time that the clock has not reached yet.
        let ahead = Hold {
            came: write.came + 3_600_000_000,
            ..new()
        };
        scene.take(&ahead);

        // Neither readers that yield to the writer nor Java's dead readers are a reason to pass it.
        scene.die(&[level_key("J:1", 1)]);
        let (ttl, _) = scene.is_refused(&reader("A:5", 5).prefers(prefer).waits().waited(5_000));
        assert!(ttl > 500, "as long as the mark: {ttl}");
        assert_eq!(scene.release(&ahead, 0), answer("released", [1]));
        scene.is_refused(&new().waited(5_000));
        scene.take(&write);
        let (ttl, _) = scene.is_refused(&new().waited(5_000));
        assert!(ttl > 5_000, "as long as the writer: {ttl}");
    }
}

#[test]
fn owner_that_reads_already_passes_a_writer_that_waits() {
    let mut scene = Scene::new();
    scene.take(&reader("job", 1).shared());
    scene.is_refused(&writer("A:2", 2).waits());
    let again = reader("job", 3).shared();
    assert_eq!(scene.acquire(&again), answer("granted", [2]));
}

#[test]
fn mark_of_readers_is_of_the_one_that_came_first_too() {
    let mut scene = Scene::new();
    scene.take(&writer("A:1", 1));
    scene.is_refused(&reader("A:2", 2).waits());
    let (_, first) = scene.is_refused(&reader("A:3", 3).waited(60_000).waits());
    scene.is_refused(&reader("A:4", 4).waits());
    let mark = format!("{}:{}", first.came, first.number);
    assert_eq!(scene.text(READER_MARK), Some(mark));
}

#[test]
fn mark_is_of_the_one_that_came_first_and_goes_with_it() {
    let mut scene = Scene::new();
    let read = reader("A:1", 1);
    scene.take(&read);
    let (_, first) = scene.is_refused(&writer("A:2", 2).waits());
    let (_, second) = scene.is_refused(&writer("A:3", 3).waits());
    let mark = |hold: &Hold| Some(format!("{}:{}", hold.came, hold.number));
    assert_eq!(scene.text(WRITER_MARK), mark(&first));
    scene.expire(WRITER_MARK, 500);
    scene.is_refused(&second);
    assert!(
        scene.redis.pttl(WRITER_MARK) <= 500,
        "another's mark is left alone"
    );
    scene.is_refused(&first);
    assert!(scene.redis.pttl(WRITER_MARK) > 500, "its own is renewed");

    assert_eq!(scene.release(&second, 0), answer("absent", []));
    assert_eq!(scene.text(WRITER_MARK), mark(&first));
    assert_eq!(scene.published(), [""; 0]);
    assert_eq!(scene.release(&first, 0), answer("absent", []));
    assert!(!scene.redis.exists(WRITER_MARK));
    assert_eq!(scene.published(), ["1"], "readers may come in");
    scene.is_refused(&second);
    assert_eq!(scene.text(WRITER_MARK), mark(&second));
    scene.is_refused(&first);
    assert_eq!(scene.text(WRITER_MARK), mark(&first), "it came before");
}

#[test]
fn clients_with_different_preferences_do_not_wait_for_each_other() {
    for writes in ["readers", "writers", "arrival"] {
        for reads in ["readers", "writers", "arrival"] {
            let mut scene = Scene::new();
            let holder = writer("A:1", 1);
            scene.take(&holder);
            let read = reader("A:2", 2).prefers(reads).waits();
            let (_, read) = scene.is_refused(&read);
            let write = writer("A:3", 3).prefers(writes).waits();
            let (_, write) = scene.is_refused(&write);
            assert_eq!(scene.release(&holder, 0), answer("released", [1]));
            let granted = [&read, &write].map(|hold| scene.acquire(hold).0 == "granted");
            assert!(granted[0] || granted[1], "{reads} beside {writes}");
        }
    }
}

#[test]
fn of_calls_that_came_together_the_mark_stays_with_the_one_that_has_it() {
    let mut scene = Scene::new();
    scene.take(&writer("A:9", 9));
    let (_, first) = scene.is_refused(&reader("A:1", 1).waits());
    let twin = Hold {
        came: first.came,
        ..reader("A:2", 2).waits()
    };
    scene.redis.command(&["PEXPIRE", READER_MARK, "300"]);
    let marked = [&twin, &first].map(|hold| scene.acquire(hold).1[2]);
    assert_eq!(marked, [0, 1]);
    scene.is_near(READER_MARK, MARK);
}

#[test]
fn reader_is_told_for_how_long_a_writer_has_waited() {
    for prefer in ["arrival", "writers", "readers"] {
        let mut scene = Scene::new();
        let holder = reader("A:9", 9).prefers(prefer);
        assert_eq!(scene.read(&holder), answer("granted", [1, -1]));
        assert_eq!(scene.confirm(&holder, LEASE), answer("stands", [-1]));
        scene.is_refused(&writer("A:8", 8).waited(300).waits());
        let near = |(tag, numbers): (String, Vec<i64>), expected: &str| {
            assert_eq!(tag, expected, "{prefer}");
            let waited = numbers[numbers.len() - 1];
            match prefer {
                "readers" => assert_eq!(waited, -1),
                _ => assert!((300_000..5_000_000).contains(&waited), "{waited} us"),
            }
        };
        near(scene.read(&holder), "granted");
        near(scene.confirm(&holder, LEASE), "stands");
    }
}
