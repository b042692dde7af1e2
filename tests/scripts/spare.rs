//! The scripts that compare what a client knows of its share, for a hold that has left levels to its owner.

use redlatch_testkit::{Connection, Reply, Server, script};

const FIELD: &str = "req-7";
const HERE: &str = "|00000000-0000-4000-8000-000000000001:req-7";
const THERE: &str = "|00000000-0000-4000-8000-000000000002:req-7";
/// The acquisition ids of both holds, and of one before.
const MINE: &str = "h0000000000000001";
const THEIRS: &str = "h0000000000000002";
const OLD: &str = "h0000000000000003";
const LEASE: &str = "30000";
const ENDS: &str = "99999999999999";

/// How a lock is stored, and released.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Shape {
    Hash,
    Fair,
    ReadWrite,
}

const SHAPES: [Shape; 3] = [Shape::Hash, Shape::Fair, Shape::ReadWrite];

/// A call that is to leave the first client with a share.
#[derive(Clone, Copy, Debug, PartialEq)]
enum To {
    Reenter(u32),
    Release(u32),
    /// Without a level to move: only whether the share is there.
    Adopt(u32),
}

/// A lock of which the first client has a share, and another client of the owner may have one.
struct Scene {
    shape: Shape,
    redis: Connection,
    _server: Server,
}

impl Scene {
    fn new(shape: Shape) -> Self {
        let server = Server::start();
        let redis = server.connection();
        Self {
            shape,
            redis,
            _server: server,
        }
    }

    fn does(&mut self, words: &[&str]) -> Reply {
        let reply = self.redis.command(words);
        assert!(!matches!(reply, Reply::Error(_)), "{words:?}: {reply:?}");
        reply
    }

    /// Has the first client hold this many levels, and the other one level.
    fn hold(&mut self, share: u32) {
        self.does(&["FLUSHALL"]);
        let total = (share + 1).to_string();
        if self.shape == Shape::ReadWrite {
            self.does(&["HSET", "k", "mode", "read", FIELD, &total]);
            for level in 1..=share + 1 {
                let hold = if level > share { THEIRS } else { MINE };
                self.does(&["SET", &level_key(level), hold, "PX", LEASE]);
            }
        } else {
            let [mine, theirs] = [(MINE, share), (THEIRS, 1)];
            let record = |(id, share)| format!("{id}:{share}:{ENDS}");
            let (mine, theirs) = (record(mine), record(theirs));
            self.does(&["HSET", "k", FIELD, &total, HERE, &mine, THERE, &theirs]);
        }
        self.does(&["PEXPIRE", "k", LEASE]);
    }

    fn run(&mut self, name: &str, keys: &[&str], args: &[&str]) -> String {
        let (source, count) = (script(name), keys.len().to_string());
        let words = [&["EVAL", source, &count], keys, args].concat();
        match self.does(&words) {
            Reply::Array(items) => {
                let items = items.iter().map(|item| match item {
                    Reply::Int(number) => number.to_string(),
                    text => text.clone().text(),
                });
                items.collect::<Vec<_>>().join(" ")
            }
            other => panic!("{name}: {other:?}"),
        }
    }

    /// Sends a call of the first client, which knows that so many levels were taken over, and that so many were
    /// recorded.
    fn call(&mut self, to: To, taken: u32, recorded: u32) -> String {
        let known = [taken.to_string(), recorded.to_string()];
        let (To::Reenter(share) | To::Release(share) | To::Adopt(share)) = to;
        let share = share.to_string();
        let id: &[&str] = match self.shape {
            Shape::ReadWrite => &[FIELD, MINE, &share],
            _ => &[FIELD, HERE, MINE, &share],
        };
        let marks = ["k", "channel", "{k}", "redlatch_rwlock_reader:{k}"];
        let (name, keys, rest): (_, &[&str], &[&str]) = match (self.shape, to) {
            (Shape::ReadWrite, To::Reenter(_)) => ("rw_reenter_spare", &["k", "{k}"], &[LEASE]),
            (Shape::ReadWrite, To::Release(_)) => {
                ("rw_release_spare", &marks, &["0", "PUBLISH", "share"])
            }
            (Shape::ReadWrite, To::Adopt(_)) => {
                ("rw_adopt_spare", &["k", "{k}"], &[LEASE, "0", ""])
            }
            (_, To::Reenter(_)) => ("lock_reenter_spare", &["k"], &[LEASE]),
            (_, To::Adopt(_)) => ("lock_adopt_spare", &["k"], &[LEASE, FIELD, ""]),
            (Shape::Hash, To::Release(_)) => {
                ("lock_release_spare", &["k"], &["0", "PUBLISH", "channel"])
            }
            (Shape::Fair, To::Release(_)) => (
                "fair_release_spare",
                &["k", "channel", "queue", "scores", "places"],
                &["0", "PUBLISH", "300000"],
            ),
        };
        let args = [id, rest, &[&known[0], &known[1]]].concat();
        self.run(name, keys, &args)
    }

    /// Has the other client take one level of the first over.
    fn take_over(&mut self) {
        let theirs = self.shares()[1] + 1;
        let share = theirs.to_string();
        let answer = if self.shape == Shape::ReadWrite {
            let level = self.levels().iter().position(|hold| hold == MINE);
            let level = (level.expect("a level of the first") + 1).to_string();
            let args = [FIELD, THEIRS, &share, LEASE, &level, MINE];
            self.run("rw_adopt", &["k", "{k}"], &args)
        } else {
            let record = self.does(&["HGET", "k", HERE]).text();
            let args = [FIELD, THERE, THEIRS, &share, LEASE, HERE, &record];
            self.run("lock_adopt", &["k"], &args)
        };
        assert!(answer.starts_with("adopted "), "{answer}");
        assert_eq!(self.shares()[1], theirs);
    }

    /// Returns what the keys of the levels hold.
    fn levels(&mut self) -> Vec<String> {
        let total = self.redis.hgetall("k");
        let total = total
            .get(FIELD)
            .map_or(0, |total| total.parse().expect("a count"));
        let keys = (1..=total).map(level_key);
        keys.map(|key| self.does(&["GET", &key]).text()).collect()
    }

    /// Returns the share of each client. Together they have what the lock counts.
    fn shares(&mut self) -> [u64; 2] {
        let hash = self.redis.hgetall("k");
        let shares = match self.shape {
            Shape::ReadWrite => {
                let levels = self.levels();
                let of = |id: &&str| levels.iter().filter(|hold| hold == id).count() as u64;
                [MINE, THEIRS].map(|id| of(&id))
            }
            _ => [HERE, THERE].map(|field| {
                let share = hash.get(field).and_then(|record| record.split(':').nth(1));
                share.map_or(0, |share| share.parse().expect("a share"))
            }),
        };
        let total = hash
            .get(FIELD)
            .map_or(0, |total| total.parse().expect("a count"));
        assert_eq!(shares.iter().sum::<u64>(), total, "{hash:?}");
        shares
    }

    /// Returns everything that is stored.
    fn dump(&mut self) -> Vec<(String, Reply)> {
        let keys = self.redis.keys().into_iter();
        keys.map(|key| {
            let value = match &*key {
                "k" => Reply::Status(format!("{:?}", self.redis.hgetall("k"))),
                _ => self.does(&["GET", &key]),
            };
            (key, value)
        })
        .collect()
    }
}

fn level_key(level: u32) -> String {
    format!("{{k}}:{FIELD}:rwlock_timeout:{level}")
}

/// The calls for a first client that has two levels, and what each leaves it with.
const CALLS: [(To, u64); 4] = [
    (To::Reenter(3), 3),
    (To::Release(1), 1),
    (To::Release(0), 0),
    (To::Adopt(2), 2),
];

#[test]
fn call_is_refused_while_its_client_counts_levels_that_were_taken_over() {
    for shape in SHAPES {
        let mut scene = Scene::new(shape);
        // As the first such call, and as a later one.
        for is_later in [false, true] {
            for (to, _) in CALLS {
                let what = format!("{shape:?} {is_later} {to:?}");
                scene.hold(2);
                if is_later {
                    scene.call(To::Adopt(2), 0, 2);
                }
                scene.take_over();
                let before = scene.dump();
                if to == To::Release(0) {
                    // What it knows does not matter to this one.
                    assert_eq!(scene.call(to, 0, 2), "kept 2", "{what}");
                    assert_eq!(scene.shares(), [0, 2], "{what}");
                    continue;
                }
                for _ in 0..2 {
                    assert_eq!(scene.call(to, 0, 2), "fewer 1", "{what}");
                    assert_eq!(scene.dump(), before, "{what}");
                }
                // With one level less, it is what the client may ask for. Adopt only looks.
                let to = match to {
                    To::Reenter(_) => To::Reenter(2),
                    To::Release(_) => To::Release(0),
                    To::Adopt(_) => To::Adopt(1),
                };
                assert!(!scene.call(to, 1, 1).starts_with("fewer"), "{what}");
                let left = [To::Reenter(2), To::Release(0), To::Adopt(1)];
                let left = left
                    .iter()
                    .position(|other| *other == to)
                    .expect("one of them");
                assert_eq!(scene.shares(), [[2, 2], [0, 2], [1, 2]][left], "{what}");
            }
        }
    }
}

#[test]
fn copy_of_a_call_does_not_take_its_own_effect_for_that_of_another_client() {
    for shape in SHAPES {
        let mut scene = Scene::new(shape);
        for (to, left) in CALLS {
            let what = format!("{shape:?} {to:?}");
            scene.hold(2);
            for _ in 0..3 {
                scene.call(to, 0, 2);
                assert_eq!(scene.shares(), [left, 1], "{what}");
            }
            let before = scene.dump();
            scene.call(to, 0, 2);
            assert_eq!(scene.dump(), before, "{what}");
            if left == 0 {
                continue;
            }
            // A copy that comes after that changes nothing.
            scene.take_over();
            let before = scene.dump();
            assert_eq!(
                scene.call(to, 0, 2),
                if left > 1 { "fewer 1" } else { "absent" },
                "{what}"
            );
            assert_eq!(scene.dump(), before, "{what}");
        }
    }
}

#[test]
fn what_was_taken_over_is_forgotten_with_the_hold() {
    for shape in SHAPES {
        let mut scene = Scene::new(shape);
        let counts = |scene: &mut Scene| {
            let kept = scene.dump();
            format!("{kept:?}").matches("||").count() + format!("{kept:?}").matches("taken").count()
        };
        // By its last release, and when its last level is taken over.
        for is_released in [true, false] {
            scene.hold(2);
            scene.call(To::Adopt(2), 0, 2);
            assert_eq!(counts(&mut scene), 1, "{shape:?}");
            match is_released {
                true => assert_eq!(scene.call(To::Release(0), 0, 2), "kept 1", "{shape:?}"),
                false => (0..2).for_each(|_| scene.take_over()),
            }
            assert_eq!(counts(&mut scene), 0, "{shape:?}");
            assert_eq!(scene.call(To::Reenter(2), 0, 2), "absent", "{shape:?}");
        }
        // What an earlier hold of the client counted is not of this one.
        scene.hold(2);
        scene.does(&["HSET", "k", &format!("|{HERE}"), &format!("{OLD}:7")]);
        if shape != Shape::ReadWrite {
            assert_eq!(scene.call(To::Release(1), 0, 2), "kept 2", "{shape:?}");
            assert_eq!(counts(&mut scene), 1, "{shape:?}");
        }
    }
}

/// A hash has its count in itself, and a read-write lock in a key of its own.
#[test]
fn count_of_what_was_taken_over_lasts_as_long_as_the_hold() {
    let mut scene = Scene::new(Shape::ReadWrite);
    let taken = format!("{{k}}:{FIELD}:rwlock_taken:{MINE}");
    // Both by one script: nothing that this process waits for lies between.
    let apart = "return redis.call('PTTL', KEYS[1]) - redis.call('PTTL', KEYS[2])";
    let ends_with_the_hold = |scene: &mut Scene, what: &str| {
        let words = ["EVAL", apart, "2", &taken, &level_key(1)];
        let apart = scene.does(&words).int();
        assert!(apart.abs() < 1_000, "{what}: {apart} ms");
    };
    scene.hold(3);
    scene.call(To::Release(2), 0, 3);
    ends_with_the_hold(&mut scene, "compared");
    assert_eq!(
        scene.run("rw_renew", &["k"], &[FIELD, "{k}", MINE, "60000"]),
        "1"
    );
    ends_with_the_hold(&mut scene, "renewed");
    let longer = scene.run("rw_extend", &["k", "{k}"], &[FIELD, MINE, "9000", "0"]);
    let ends = longer
        .strip_prefix("longer ")
        .expect("the end of the lease");
    let cut = scene.run("rw_extend", &["k", "{k}"], &[FIELD, MINE, "9000", ends]);
    assert_eq!(cut, "extended");
    ends_with_the_hold(&mut scene, "cut");
    assert_eq!(scene.call(To::Reenter(3), 0, 2), "granted 4");
    ends_with_the_hold(&mut scene, "taken again");
    let args = ["read", "0", "PUBLISH"];
    scene.run("rw_force_release", &["k", "channel", "{k}"], &args);
    assert_eq!(scene.redis.keys(), [""; 0]);
}

#[test]
fn client_that_lacks_more_than_one_level_is_not_given_any() {
    for shape in [Shape::Hash, Shape::ReadWrite] {
        let mut scene = Scene::new(shape);
        scene.hold(2);
        let before = scene.dump();
        let record = format!("{MINE}:2:{ENDS}");
        // The other client has one level.
        let answer = match shape {
            Shape::ReadWrite => {
                let args = [FIELD, THEIRS, "3", LEASE, "1", MINE];
                scene.run("rw_adopt", &["k", "{k}"], &args)
            }
            _ => {
                let args = [FIELD, THERE, THEIRS, "3", LEASE, HERE, &record];
                scene.run("lock_adopt", &["k"], &args)
            }
        };
        assert_eq!(answer, "absent", "{shape:?}");
        assert_eq!(scene.dump(), before, "{shape:?}");
    }
}

#[test]
fn first_release_that_compares_is_carried_out_by_a_server_without_memory() {
    for shape in SHAPES {
        let mut scene = Scene::new(shape);
        scene.hold(2);
        scene.does(&["CONFIG", "SET", "maxmemory", "1"]);
        assert_eq!(scene.call(To::Release(1), 0, 2), "kept 2", "{shape:?}");
        assert_eq!(scene.shares(), [1, 1], "{shape:?}");
    }
}
