//! The server in memory does what a real server does: in random states, random calls of all scripts have the same
//! answers there, leave the same data, and publish the same messages.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use fastrand::Rng;
use redlatch_testkit::{Connection, Reply, Server, Subscriber, skip};

use crate::call::{Script, any_key, channel, pick};
use crate::support::listening::Listening;
use crate::support::probe::is_before_7;
use crate::support::soak;

/// The calls on one state, before it is thrown away.
const CALLS: usize = 25;
const ROUNDS: u64 = 200;
/// A round that differs is repeated: a real server's clock does not stand still between its command and ours.
const TRIES: usize = 20;
/// Holds run ids, which no two servers share.
const EPOCH: &str = "epoch";

/// A real server and one in memory, which are told the same.
struct Both {
    real: Connection,
    memory: Connection,
    heard: [Subscriber; 2],
}

/// What two servers did differently.
type Difference = String;

impl Both {
    fn connect(real: &Server, memory: &Listening) -> Self {
        let names = [
            "lock1",
            "lock2",
            "fair1",
            "fair2",
            "rw1",
            "rw2",
            "semaphore1",
            "semaphore2",
            "latch1",
            "latch2",
        ];
        let common = names.map(channel);
        let own = ["lock1", "lock2", "fair1"]
            .iter()
            .flat_map(|name| ["c1", "c2"].map(|client| format!("{}:{client}", channel(name))));
        let channels: Vec<_> = common.into_iter().chain(own).collect();
        Self {
            real: real.connection(),
            memory: memory.connection(),
            heard: [real.connection(), memory.connection()]
                .map(|one| one.into_subscriber(&channels)),
        }
    }

    /// Sends a command to both. Returns the answer of the real server.
    fn tell(&mut self, words: &[impl AsRef<[u8]>]) -> Result<Reply, Difference> {
        let real = self.real.command(words);
        let memory = self.memory.command(words);
        match alike(&real, &memory) {
            true => Ok(real),
            false => {
                let words: Vec<_> = words
                    .iter()
                    .map(|word| String::from_utf8_lossy(word.as_ref()))
                    .collect();
                Err(format!("{words:?}: {real:?} but in memory {memory:?}"))
            }
        }
    }

    fn clear(&mut self) {
        for server in [&mut self.real, &mut self.memory] {
            let keys = server.keys();
            if !keys.is_empty() {
                let words: Vec<_> = ["DEL".to_owned()].into_iter().chain(keys).collect();
                server.command(&words);
            }
        }
    }

    /// Compares all data.
    fn have_the_same(&mut self) -> Result<(), Difference> {
        let (real, memory) = (lasting(&mut self.real), lasting(&mut self.memory));
        if real != memory {
            return Err(format!("the keys {real:?} but in memory {memory:?}"));
        }
        for key in real.iter().filter(|key| *key != EPOCH) {
            match &*self.tell(&["TYPE", key])?.text() {
                "string" => self.tell(&["GET", key])?,
                // A larger hash of a real server has no order.
                "hash" => {
                    let (real, memory) = (self.real.hgetall(key), self.memory.hgetall(key));
                    let texts = |hash: &std::collections::BTreeMap<String, String>| {
                        let pairs = hash
                            .iter()
                            .flat_map(|(name, value)| [name.clone(), value.clone()]);
                        Reply::Array(pairs.map(|text| Reply::Text(text.into_bytes())).collect())
                    };
                    if !alike(&texts(&real), &texts(&memory)) {
                        return Err(format!("{key}: {real:?} but in memory {memory:?}"));
                    }
                    Reply::Nil
                }
                "list" => self.tell(&["LRANGE", key, "0", "-1"])?,
                _ => self.tell(&["ZRANGE", key, "0", "-1", "WITHSCORES"])?,
            };
            self.tell(&["PTTL", key])?;
        }
        Ok(())
    }

    /// Compares all messages since the last time.
    fn have_heard_the_same(&mut self) -> Result<(), Difference> {
        let end = ["PUBLISH", &channel("lock1"), "end"];
        self.tell(&end)?;
        let [real, memory] = &mut self.heard;
        let until_end = |subscriber: &mut Subscriber| {
            let mut heard = Vec::new();
            loop {
                let (channel, text) = subscriber.next(Duration::from_secs(10)).expect("the end");
                if text == "end" {
                    return heard;
                }
                heard.push((channel, text));
            }
        };
        let (real, memory) = (until_end(real), until_end(memory));
        match real == memory {
            true => Ok(()),
            false => Err(format!("heard {real:?} but in memory {memory:?}")),
        }
    }

    /// Changes a key past all scripts.
    fn disturb(&mut self, rng: &mut Rng) -> Result<(), Difference> {
        let key = any_key(rng);
        let words: &[&str] = match rng.u8(..9) {
            0 | 1 => &["DEL", &key],
            2 => &["SET", &key, pick(rng, &["3", "x", "10", "-1", ""])],
            3 => &["RPUSH", &key, pick(rng, &["c1:1", "c9:9"])],
            4 => &[
                "HSET",
                &key,
                pick(rng, &["c1:1", "|c1", "mode", "|token"]),
                pick(rng, &["2", "read", "h1:1"]),
            ],
            5 => &[
                "ZADD",
                &key,
                pick(rng, &["1", "1900000000000"]),
                pick(rng, &["c1:1", "c1", "*"]),
            ],
            6 => &["PEXPIRE", &key, pick(rng, &["0", "30000", "900000"])],
            7 => {
                let member = pick(rng, &["c1:1", "c1", "c2"]);
                self.tell(&["ZADD", &key, "7", member])?;
                let option = pick(rng, &["NX", "XX", "GT", "LT", "CH", "INCR"]);
                &["ZADD", &key, option, pick(rng, &["5", "-5", "9"]), member]
            }
            _ => &["PERSIST", &key],
        };
        self.tell(words).map(drop)
    }
}

/// Returns the keys, without those that end within a second: they may be gone on one of two servers.
fn lasting(server: &mut Connection) -> Vec<String> {
    let mut keys = server.keys();
    keys.retain(|key| {
        let left = server.pttl(key);
        left == -1 || left > 1_000
    });
    keys
}

/// Whether two replies are the same but for the time that has passed from one to the other.
fn alike(real: &Reply, memory: &Reply) -> bool {
    match (real, memory) {
        (Reply::Array(real), Reply::Array(memory)) => {
            // The number behind these words is for how many milliseconds others go first: five turns at most.
            let has_turn = |reply: &[Reply]| {
                let [Reply::Text(word), Reply::Int(1..1_510), ..] = reply else {
                    return false;
                };
                matches!(&word[..], b"stands" | b"busy")
            };
            let has_turn = has_turn(real) && has_turn(memory);
            let mut pairs = real.iter().zip(memory).enumerate();
            real.len() == memory.len()
                && pairs.all(|(at, (one, other))| at == 1 && has_turn || alike(one, other))
        }
        (Reply::Int(real), Reply::Int(memory)) => near(*real, *memory),
        (Reply::Text(real), Reply::Text(memory)) => {
            real == memory || {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                let (real, memory) = (text(real), text(memory));
                let is_digit = |letter: char| letter.is_ascii_digit();
                let rest = |text: &str| {
                    text.split(is_digit)
                        .filter(|part| !part.is_empty())
                        .collect::<Vec<_>>()
                        .join("#")
                };
                let numbers = |text: &str| -> Vec<i64> {
                    text.split(|letter| !is_digit(letter))
                        .filter_map(|part| part.parse().ok())
                        .collect()
                };
                let (ones, others) = (numbers(&real), numbers(&memory));
                rest(&real) == rest(&memory)
                    && ones.len() == others.len()
                    && ones
                        .iter()
                        .zip(&others)
                        .all(|(one, other)| near(*one, *other))
            }
        }
        // Behind this, Redis says where in the script it was.
        (Reply::Error(real), Reply::Error(memory)) => {
            let words = |text: &str| text.split(" script: ").next().map(str::to_owned);
            words(real) == words(memory)
        }
        (real, memory) => real == memory,
    }
}

/// Whether two numbers are the same, or may be the same time in milliseconds or microseconds, read a moment later.
fn near(real: i64, memory: i64) -> bool {
    let slack = match real {
        ..2_500 => 0,
        2_500..100_000_000_000_000 => 1_500,
        _ => 1_500_000,
    };
    real.abs_diff(memory) <= slack
}

/// Carries out the calls of a seed on both. Adds to `reached` which script gave which sort of answer.
fn round(
    both: &mut Both,
    scripts: &[Script],
    seed: u64,
    reached: &mut BTreeSet<String>,
) -> Result<(), Difference> {
    let mut rng = Rng::with_seed(seed);
    let family = scripts[rng.usize(..scripts.len())].family();
    let related: Vec<_> = scripts
        .iter()
        .filter(|script| script.family() == family)
        .collect();
    both.clear();
    let told = format!("seed {seed}");
    let with_seed = |difference: Difference| format!("{told}: {difference}");
    for _ in 0..CALLS {
        if rng.u8(..5) == 0 {
            both.disturb(&mut rng).map_err(with_seed)?;
        }
        // Most are of one family, so that they find what those before have left.
        let script = match rng.u8(..8) {
            0 => &scripts[rng.usize(..scripts.len())],
            _ => pick(&mut rng, &related),
        };
        let mut words = vec!["EVAL".to_owned(), script.source.to_owned()];
        words.extend(script.words(&mut rng));
        let real = both.real.command(&words);
        let memory = both.memory.command(&words);
        if !alike(&real, &memory) {
            let (name, words) = (&script.name, &words[2..]);
            return Err(with_seed(format!(
                "{name} {words:?}: {real:?} but in memory {memory:?}"
            )));
        }
        let tag = match real {
            Reply::Array(parts) => parts
                .first()
                .map_or_else(String::new, |part| format!("{part:?}")),
            Reply::Error(text) => text.split(' ').next().unwrap_or_default().to_owned(),
            other => format!("{other:?}"),
        };
        reached.insert(format!("{} {tag}", script.name));
    }
    both.have_the_same().map_err(with_seed)?;
    both.have_heard_the_same().map_err(with_seed)
}

/// Runs for as many seconds as `REDLATCH_SOAK` says, a minute at most.
#[test]
fn random_calls_of_all_scripts_do_the_same_as_on_a_real_server() {
    let (real, memory) = (Server::start(), Listening::start());
    if is_before_7(&real) {
        return skip("redis7", "errors of scripts are worded otherwise");
    }
    let span = soak::a_minute_at_most();
    let seed = match span.is_zero() {
        true => 1,
        false => fastrand::u64(..u64::MAX / 2),
    };
    let scripts = Script::all();
    let mut both = Both::connect(&real, &memory);
    let mut reached = BTreeSet::new();
    let (started, mut number) = (Instant::now(), 0);
    while number < ROUNDS || started.elapsed() < span {
        let mut differs = Ok(());
        for _ in 0..TRIES {
            differs = round(&mut both, &scripts, seed + number, &mut reached);
            if differs.is_ok() {
                break;
            }
            both = Both::connect(&real, &memory);
        }
        differs.unwrap();
        number += 1;
    }
    // Otherwise the calls would all end at their first line.
    let sorts = reached.len();
    assert!(
        sorts >= 5 * scripts.len() / 2,
        "only {sorts} sorts of answer: {reached:#?}"
    );
}

#[test]
fn odd_words_do_the_same_as_on_a_real_server() {
    let (real, memory) = (Server::start(), Listening::start());
    if is_before_7(&real) {
        return skip("redis7", "errors of scripts are worded otherwise");
    }
    let mut both = Both::connect(&real, &memory);
    let mut differences = Vec::new();
    let mut tell = |words: &[&str]| differences.extend(both.tell(words).err());
    for score in [
        "1e400",
        "-1e400",
        "1e-400",
        "0e5",
        "0.0e-999",
        "inf",
        "-inf",
        "+INFINITY",
        "nan",
        "1e",
    ] {
        tell(&["DEL", "z"]);
        tell(&["ZADD", "z", score, "a"]);
        tell(&["ZINCRBY", "z", score, "b"]);
        tell(&["ZCOUNT", "z", score, score]);
    }
    tell(&["DEL", "z"]);
    tell(&["ZADD", "z", "inf", "a"]);
    tell(&["ZINCRBY", "z", "-inf", "a"]);
    tell(&["ZADD", "z", "INCR", "-inf", "a"]);
    tell(&["ZINCRBY", "none", "nan", "a"]);
    tell(&["EXISTS", "none"]);
    for text in ["abc", ""] {
        tell(&["SET", "k", text]);
        let (least, most) = (i64::MIN.to_string(), i64::MAX.to_string());
        for start in ["0", "1", "-1", "-100", &*least, &*most] {
            for end in ["0", "1", "-1", "-50", &*least, &*most] {
                tell(&["GETRANGE", "k", start, end]);
            }
        }
    }
    for script in [
        "return {1/0, -1/0, 0/0, 1e19, -1e19, 3.99, -3.99}",
        "return 9007199254740993",
        "redis.call('SET', 'n', 1/0) return redis.call('GET', 'n')",
        "x = 1",
        "return x",
        "function f() end",
        "KEYS = {}",
        "redis = nil",
        "redis.x = 1",
        "redis.call = nil",
        "string.x = 1",
        "_G.x = 1",
        "return _G.x",
        "return redis.nothing == nil",
        "local ok, why = pcall(function() x = 1 end) return why",
        "local ok, why = pcall(function() return x end) return why",
        "return loadstring('return 5')()",
        "return pcall(loadstring('x = 1'))",
        "return type(print)",
        "return type(setfenv)",
        "return type(getfenv)",
        "return type(newproxy)",
        "KEYS[1] = 'a' return KEYS[1]",
        "return {#KEYS, #ARGV}",
        "return {'a'} .. 'b'",
    ] {
        tell(&["EVAL", script, "0"]);
    }
    assert!(differences.is_empty(), "{differences:#?}");
}
