//! Each script of the read-write lock by itself, and next to the steps that Redisson takes on the same keys.

mod faults;
mod leases;
mod levels;
mod preference;

use std::collections::BTreeMap;
use std::time::Duration;

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
    args.extend([message, "PUBLISH", hold.entry].map(str::to_owned));
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
