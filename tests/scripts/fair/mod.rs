//! The scripts of the fair lock, tested alone: the server queue that they keep, for themselves and for Redisson.

mod queue;
mod redisson;
mod signs;

use redlatch_testkit::{Connection, Reply, Server, script};

const CHANNEL: &str = "redisson_lock__channel:{k}";
const QUEUE: &str = "redisson_lock_queue:{k}";
const SCORES: &str = "redisson_lock_timeout:{k}";
const PLACES: &str = "redlatch_lock_places:{k}";

const HERE: &str = "00000000-0000-4000-8000-000000000001";
const THERE: &str = "00000000-0000-4000-8000-000000000002";
const JAVA: &str = "00000000-0000-4000-8000-00000000000a:57";

const LEASE: i64 = 30_000;
/// The worth of a place, in milliseconds: what Redisson, like our scripts, subtracts from every score when it grants a
/// lock to a waiter without a time limit.
const PLACE: i64 = 300_000;
const DAY: i64 = 86_400_000;
/// How much longer a place of ours stands than one of Redisson's, in milliseconds, since ours is asked for only now and
/// then.
const STALE: i64 = 3_000;

/// One acquisition by a client.
#[derive(Clone)]
struct Hold {
    field: String,
    acquisition_field: String,
    number: String,
    priority: i32,
}

impl Hold {
    fn new(client: &str, owner: u64) -> Self {
        let field = format!("{client}:{owner}");
        Self {
            acquisition_field: format!("|{client}"),
            number: format!("h{owner:016x}"),
            field,
            priority: 0,
        }
    }

    fn named(client: &str, name: &str, number: u64) -> Self {
        Self {
            field: name.to_owned(),
            acquisition_field: format!("|{client}:{name}"),
            number: format!("h{number:016x}"),
            priority: 0,
        }
    }

    fn priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }
}

/// A server with a fair lock `k`.
struct Bench {
    server: Server,
    probe: Connection,
}

impl Bench {
    fn new() -> Self {
        let server = Server::start();
        let probe = server.connection();
        Self { server, probe }
    }

    fn eval(&mut self, name: &str, keys: &[&str], args: &[&str]) -> Reply {
        let (source, count) = (script(name), keys.len().to_string());
        let call = [&["EVAL", source, &count], keys, args].concat();
        self.probe.command(&call)
    }

    fn acquire(&mut self, hold: &Hold, mode: &str) -> Reply {
        let (lease, priority) = (LEASE.to_string(), hold.priority.to_string());
        self.eval(
            "fair_acquire",
            &["k", CHANNEL, QUEUE, SCORES, PLACES],
            &[
                &hold.field,
                &hold.acquisition_field,
                &hold.number,
                &lease,
                mode,
                &priority,
                "0",
                "PUBLISH",
                &PLACE.to_string(),
            ],
        )
    }

    /// Asks for the lock for a hold that waits. Returns the tag of the answer.
    fn wait(&mut self, hold: &Hold) -> String {
        tag(self.acquire(hold, "wait"))
    }

    fn release(&mut self, hold: &Hold) -> Reply {
        self.eval(
            "fair_release",
            &["k", CHANNEL, QUEUE, SCORES, PLACES],
            &[
                &hold.field,
                &hold.acquisition_field,
                &hold.number,
                "0",
                "0",
                "PUBLISH",
                &PLACE.to_string(),
            ],
        )
    }

    /// Gives a client's sign of life, which names these places.
    fn sign(&mut self, client: &str, places: &[&Hold]) -> Signed {
        self.signed(client, "", places)
    }

    /// Gives a sign of life that gives the lock back from a hold that nobody has.
    fn give_back(&mut self, client: &str, gone: &Hold) -> Signed {
        self.signed(client, &gone.number, &[])
    }

    fn signed(&mut self, client: &str, gone: &str, places: &[&Hold]) -> Signed {
        let worth = PLACE.to_string();
        let mut args = vec![client, "0", "PUBLISH", &worth, gone];
        for place in places {
            args.extend([&*place.field, &*place.number]);
        }
        let keys = ["k", CHANNEL, QUEUE, SCORES, PLACES];
        let answer = self.eval("fair_sign", &keys, &args).array();
        assert_eq!(answer[0].text(), "signed");
        Signed {
            is_known: answer[1].int() == 1,
            ttl: answer[2].int(),
            moved: answer[3].text(),
            holder: answer[4].text(),
            missing: answer[5..].iter().map(Reply::text).collect(),
        }
    }

    /// Makes a client's last sign of life older by `millis`.
    fn age_sign(&mut self, client: &str, millis: i64) {
        let key = format!("redlatch_lock_sign:{{k}}:{client}");
        let left = self.probe.pttl(&key) - millis;
        self.probe.command(&["PEXPIRE", &key, &left.to_string()]);
    }

    fn queue(&mut self) -> Vec<String> {
        let fields = self.probe.command(&["LRANGE", QUEUE, "0", "-1"]);
        fields.array().iter().map(Reply::text).collect()
    }

    /// Returns how far from now a score is, in milliseconds.
    fn distance(&mut self, field: &str) -> i64 {
        let score: f64 = self
            .probe
            .command(&["ZSCORE", SCORES, field])
            .text()
            .parse()
            .unwrap();
        score as i64 - self.now()
    }

    fn now(&mut self) -> i64 {
        let time = self.probe.command(&["TIME"]).array();
        let part = |at: usize| time[at].text().parse::<i64>().unwrap();
        part(0) * 1_000 + part(1) / 1_000
    }

    /// Puts an entry into the queue as Redisson writes it.
    fn enqueue_java(&mut self, field: &str, distance: i64) {
        let score = (self.now() + distance).to_string();
        self.probe.command(&["ZADD", SCORES, &score, field]);
        self.probe.command(&["RPUSH", QUEUE, field]);
    }

    fn shift_score(&mut self, field: &str, millis: i64) {
        self.probe
            .command(&["ZINCRBY", SCORES, &millis.to_string(), field]);
    }

    /// Makes a waiter look as if it had last asked `millis` earlier. A negative number has the effect of a clock that
    /// was set back since.
    fn age(&mut self, hold: &Hold, millis: i64) {
        let lines = self.probe.command(&["HGET", PLACES, &hold.field]).text();
        let aged = lines.lines().map(|line| {
            let mut parts: Vec<_> = line.split(' ').map(str::to_owned).collect();
            parts[2] = (parts[2].parse::<i64>().unwrap() - millis).to_string();
            parts.join(" ") + "\n"
        });
        let lines: String = aged.collect();
        self.probe.command(&["HSET", PLACES, &hold.field, &lines]);
    }

    fn holder(&mut self) -> Vec<String> {
        let hash = self.probe.hgetall("k");
        hash.into_keys().collect()
    }

    fn is_held_by(&mut self, hold: &Hold) -> bool {
        let hash = self.probe.hgetall("k");
        hash.get(&hold.field).map(String::as_str) == Some("1")
            && hash
                .get(&hold.acquisition_field)
                .is_some_and(|share| share.starts_with(&format!("{}:1", hold.number)))
    }
}

/// The answer to a sign of life.
#[derive(Debug)]
struct Signed {
    is_known: bool,
    ttl: i64,
    moved: String,
    holder: String,
    missing: Vec<String>,
}

fn tag(reply: Reply) -> String {
    reply.array()[0].text()
}

fn answer(tag: &str, number: i64) -> Reply {
    Reply::Array(vec![Reply::Text(tag.into()), Reply::Int(number)])
}

fn moved(to: &Hold) -> Reply {
    let parts = ["moved", &to.number];
    Reply::Array(parts.map(|part| Reply::Text(part.into())).to_vec())
}

fn absent() -> Reply {
    Reply::Array(vec![Reply::Text("absent".into())])
}

fn released() -> Reply {
    Reply::Array(vec![Reply::Text("released".into())])
}

fn fields(holds: &[&Hold]) -> Vec<String> {
    holds.iter().map(|hold| hold.field.clone()).collect()
}
