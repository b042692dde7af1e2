//! Each script of the read-write lock by itself, and next to the steps that Redisson takes on the same keys.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use redlatch_testkit::{Connection, Reply, Server, Subscriber, script};

/// An owner in Redisson's form: client and thread.
const JAVA: &str = "00000000-0000-4000-8000-00000000000a:57";
const LEASE: i64 = 30_000;
const MARK: i64 = 1_000;
const CHANNEL: &str = "redisson_rwlock:{k}";
const WRITER_MARK: &str = "redlatch_rwlock_writer:{k}";
const READER_MARK: &str = "redlatch_rwlock_reader:{k}";
/// The keys of the scripts that acquire a side.
const ENTRY_KEYS: [&str; 4] = ["k", "{k}", WRITER_MARK, READER_MARK];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Read,
    Write,
}

use Side::{Read, Write};

/// One hold: its side, its owner and its acquisition id.
#[derive(Clone, Debug)]
struct Hold {
    side: Side,
    owner: &'static str,
    number: String,
    lease: i64,
    /// One of `take`, `share` and `join`.
    entry: &'static str,
    prefer: &'static str,
    came: i64,
    mark: i64,
}

fn hold(side: Side, owner: &'static str, number: u64) -> Hold {
    Hold {
        side,
        owner,
        number: format!("h{number:016x}"),
        lease: LEASE,
        entry: "take",
        prefer: "arrival",
        came: 0,
        mark: 0,
    }
}

fn reader(owner: &'static str, number: u64) -> Hold {
    hold(Read, owner, number)
}

fn writer(owner: &'static str, number: u64) -> Hold {
    hold(Write, owner, number)
}

impl Hold {
    fn lease(mut self, millis: i64) -> Self {
        self.lease = millis;
        self
    }

    /// Lets the hold have waited this long when it asks.
    fn waited(mut self, millis: i64) -> Self {
        self.came = -millis * 1_000;
        self
    }

    fn shared(mut self) -> Self {
        self.entry = "share";
        self
    }

    fn only_joins(mut self) -> Self {
        self.entry = "join";
        self
    }

    fn prefers(mut self, who: &'static str) -> Self {
        self.prefer = who;
        self
    }

    fn waits(mut self) -> Self {
        self.mark = MARK;
        self
    }

    fn field(&self) -> String {
        match self.side {
            Read => self.owner.to_owned(),
            Write => format!("{}:write", self.owner),
        }
    }

    fn level(&self, level: u32) -> String {
        level_key(&self.field(), level)
    }

    fn own_mark(&self) -> &'static str {
        match self.side {
            Read => READER_MARK,
            Write => WRITER_MARK,
        }
    }
}

fn level_key(field: &str, level: u32) -> String {
    format!("{{k}}:{field}:rwlock_timeout:{level}")
}

/// One server, the lock `k`, and what our scripts and Redisson's steps do to it.
struct Scene {
    redis: Connection,
    messages: Subscriber,
    _server: Server,
}

impl Scene {
    fn new() -> Self {
        let server = Server::start();
        let messages = Connection::subscribe(server.port(), &[CHANNEL]);
        Self {
            redis: server.connection(),
            messages,
            _server: server,
        }
    }

    fn run(&mut self, script: &str, keys: &[&str], args: &[&str]) -> Reply {
        let reply = self.send(script, keys, args);
        assert!(!matches!(reply, Reply::Error(_)), "{script}: {reply:?}");
        reply
    }

    fn send(&mut self, name: &str, keys: &[&str], args: &[impl AsRef<str>]) -> Reply {
        let source = script(name);
        let count = keys.len().to_string();
        let head = ["EVAL", source, &count];
        let args = args.iter().map(AsRef::as_ref);
        let command: Vec<&str> = head.iter().chain(keys).copied().chain(args).collect();
        self.redis.command(&command)
    }

    /// Runs a script that answers with a tag. Returns the tag and the numbers that come with it.
    fn tagged(&mut self, script: &str, keys: &[&str], args: &[&str]) -> (String, Vec<i64>) {
        let reply = self.run(script, keys, args).array();
        let numbers = reply[1..].iter().map(Reply::int).collect();
        (reply[0].text(), numbers)
    }

    fn acquire(&mut self, hold: &Hold) -> (String, Vec<i64>) {
        if hold.side == Read {
            let (tag, mut numbers) = self.read(hold);
            // The number dropped here says for how long a writer has waited.
            numbers.truncate(if tag == "granted" { 1 } else { 3 });
            return (tag, numbers);
        }
        let numbers = [hold.lease, hold.came, hold.mark].map(|number| number.to_string());
        let [lease, came, mark] = &numbers;
        let field = hold.field();
        let (prefer, entry) = (hold.prefer, hold.entry);
        let args = [&field, &hold.number, "1", lease, prefer, came, mark, entry];
        self.tagged("write_acquire", &ENTRY_KEYS, &args)
    }

    fn read(&mut self, hold: &Hold) -> (String, Vec<i64>) {
        let args = read_args(hold);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        self.tagged("read_acquire", &ENTRY_KEYS, &args)
    }

    fn confirm(&mut self, hold: &Hold, lease: i64) -> (String, Vec<i64>) {
        let lease = lease.to_string();
        let args = [&hold.field(), &hold.number, &*lease, hold.prefer];
        self.tagged("rw_confirm", &["k", "{k}", WRITER_MARK], &args)
    }

    fn take(&mut self, hold: &Hold) {
        assert_eq!(self.acquire(hold), answer("granted", [1]), "{hold:?}");
    }

    /// Expects busy. Returns the TTL, and the hold with the time at which it came.
    fn is_refused(&mut self, hold: &Hold) -> (i64, Hold) {
        let (tag, numbers) = self.acquire(hold);
        assert_eq!(tag, "busy", "{hold:?}");
        let mut hold = hold.clone();
        assert!(hold.came <= 0 || hold.came == numbers[1], "it came once");
        let mark = format!("{}:{}", numbers[1], hold.number);
        let marked = self.text(hold.own_mark()) == Some(mark);
        assert_eq!(numbers[2], marked.into(), "{hold:?}");
        hold.came = numbers[1];
        (numbers[0], hold)
    }

    fn reenter(&mut self, hold: &Hold, share: u32) -> (String, Vec<i64>) {
        let (share, lease) = (share.to_string(), hold.lease.to_string());
        let args = [&hold.field(), &hold.number, &*share, &*lease];
        self.tagged("rw_reenter", &["k", "{k}"], &args)
    }

    fn release(&mut self, hold: &Hold, keep: u32) -> (String, Vec<i64>) {
        let args = release_args(hold, keep);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        self.tagged("rw_release", &release_keys(hold), &args)
    }

    fn extend(&mut self, hold: &Hold, lease: i64, mode: &str) -> String {
        let (field, lease) = (hold.field(), lease.to_string());
        let mut extend = |cut: &str| {
            let args = [&field, &hold.number, &*lease, cut];
            self.tagged("rw_extend", &["k", "{k}"], &args)
        };
        if mode != "exactly" {
            return extend(mode).0;
        }
        // A request may cut a longer lease only if it names the end of that lease.
        match extend("0") {
            (tag, ends) if tag == "longer" => extend(&ends[0].to_string()).0,
            (tag, _) => tag,
        }
    }

    fn adopt(
        &mut self,
        hold: &Hold,
        share: u32,
        lease: i64,
        level: u32,
        record: &str,
    ) -> (String, Vec<i64>) {
        let numbers = [share.to_string(), lease.to_string(), level.to_string()];
        let [share, lease, level] = &numbers;
        let args = [&hold.field(), &hold.number, share, lease, level, record];
        self.tagged("rw_adopt", &["k", "{k}"], &args)
    }

    fn renew(&mut self, holds: &[&Hold]) -> Vec<i64> {
        self.each("rw_renew", holds, |hold| Some(hold.lease.to_string()))
    }

    fn check(&mut self, holds: &[&Hold]) -> Vec<i64> {
        self.each("rw_check", holds, |_| None)
    }

    fn each(
        &mut self,
        script: &str,
        holds: &[&Hold],
        last: impl Fn(&Hold) -> Option<String>,
    ) -> Vec<i64> {
        let mut args = Vec::new();
        for hold in holds {
            args.extend([hold.field(), "{k}".to_owned(), hold.number.clone()]);
            args.extend(last(hold));
        }
        let args: Vec<&str> = args.iter().map(|arg| &**arg).collect();
        let reply = self.run(script, &vec!["k"; holds.len()], &args);
        reply.array().iter().map(Reply::int).collect()
    }

    fn force(&mut self, side: Side) -> String {
        let (name, message) = match side {
            Read => ("read", "0"),
            Write => ("write", "1"),
        };
        let args = [name, message, "PUBLISH"];
        self.tagged("rw_force_release", &["k", CHANNEL, "{k}"], &args)
            .0
    }

    fn hash(&mut self) -> BTreeMap<String, String> {
        self.redis.hgetall("k")
    }

    fn text(&mut self, key: &str) -> Option<String> {
        match self.redis.command(&["GET", key]) {
            Reply::Nil => None,
            text => Some(text.text()),
        }
    }

    fn is_near(&mut self, key: &str, millis: i64) {
        let left = self.redis.pttl(key);
        let near = left <= millis && left > millis - 2_000;
        assert!(near, "{key} has {left} of {millis}");
    }

    /// Returns what was published since the last call.
    fn published(&mut self) -> Vec<String> {
        self.redis.command(&["PUBLISH", CHANNEL, "mark"]);
        let next = || self.messages.next(Duration::from_secs(10)).unwrap().1;
        std::iter::repeat_with(next)
            .take_while(|message| message != "mark")
            .collect()
    }

    fn is_clean(&mut self) {
        assert_eq!(self.redis.keys(), [""; 0]);
    }

    /// Returns everything on the server except the remaining TTLs.
    fn dump(&mut self) -> Vec<(String, Reply)> {
        let keys = self.redis.keys();
        let mut dump = |key: String| {
            let value = self.redis.command(&["DUMP", &key]);
            (key, value)
        };
        keys.into_iter().map(&mut dump).collect()
    }

    fn expire(&mut self, key: &str, millis: i64) {
        let set = self.redis.command(&["PEXPIRE", key, &millis.to_string()]);
        assert_eq!(set.int(), 1, "{key}");
    }

    /// Deletes these levels, as if their lease had ended.
    fn die(&mut self, levels: &[String]) {
        for level in levels {
            assert_eq!(self.redis.command(&["DEL", level]).int(), 1, "{level}");
        }
    }
}

/// Redisson's steps, one by one.
impl Scene {
    fn java_reads(&mut self, owner: &str, lease: i64) {
        let lease = lease.to_string();
        let count = match self.hash().get("mode").map(String::as_str) {
            None => {
                let set = ["HSET", "k", "mode", "read", owner, "1"];
                self.redis.command(&set);
                1
            }
            Some("read") => self.redis.command(&["HINCRBY", "k", owner, "1"]).int(),
            Some(mode) => panic!("a reader of Java waits for mode {mode}"),
        };
        let level = level_key(owner, count as u32);
        self.redis.command(&["SET", &level, "1", "PX", &lease]);
        let longest = self.redis.pttl("k").max(lease.parse().unwrap());
        self.expire("k", longest);
    }

    /// Releases a Java reader. Returns whether the lock is free afterwards.
    fn java_reads_no_more(&mut self, owner: &str) -> bool {
        let count = self.redis.command(&["HINCRBY", "k", owner, "-1"]).int();
        if count == 0 {
            self.redis.command(&["HDEL", "k", owner]);
        }
        self.die(&[level_key(owner, count as u32 + 1)]);
        let hash = self.hash();
        let levels = hash
            .iter()
            .filter_map(|(field, count)| Some((field, count.parse::<u32>().ok()?)));
        let keys = levels.flat_map(|(field, count)| (1..=count).map(|n| level_key(field, n)));
        let longest = keys.map(|key| self.redis.pttl(&key)).max().unwrap_or(0);
        if longest > 0 {
            self.expire("k", longest);
        } else if hash["mode"] == "read" {
            self.redis.command(&["DEL", "k"]);
            self.redis.command(&["PUBLISH", CHANNEL, "0"]);
            return true;
        }
        false
    }

    fn java_renews_read(&mut self, owner: &str, lease: i64) {
        let count = self.hash()[owner].parse().unwrap();
        for level in 1..=count {
            self.expire(&level_key(owner, level), lease);
        }
        self.expire("k", lease);
    }

    fn java_writes(&mut self, owner: &str, lease: i64) {
        let field = format!("{owner}:write");
        let set = ["HSET", "k", "mode", "write", &field, "1"];
        self.redis.command(&set);
        self.expire("k", lease);
    }
}

fn read_args(hold: &Hold) -> Vec<String> {
    let [lease, came, mark] = [hold.lease, hold.came, hold.mark].map(|number| number.to_string());
    let [share, prefer] = ["1", hold.prefer].map(str::to_owned);
    let number = hold.number.clone();
    let entry = hold.entry.to_owned();
    vec![
        hold.field(),
        number,
        share,
        lease,
        prefer,
        came,
        mark,
        entry,
    ]
}

fn release_keys(hold: &Hold) -> [&str; 4] {
    ["k", CHANNEL, "{k}", hold.own_mark()]
}

fn release_args(hold: &Hold, keep: u32) -> Vec<String> {
    let message = if hold.side == Read { "0" } else { "1" };
    let mut args = vec![hold.field(), hold.number.clone(), keep.to_string()];
    args.extend([message, "PUBLISH"].map(str::to_owned));
    args
}

fn answer<const N: usize>(tag: &str, numbers: [i64; N]) -> (String, Vec<i64>) {
    (tag.to_owned(), numbers.to_vec())
}

fn fields<const N: usize>(fields: [(&str, &str); N]) -> BTreeMap<String, String> {
    fields
        .map(|(field, value)| (field.to_owned(), value.to_owned()))
        .into()
}

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
