//! The scripts of the fair lock, tested alone: the server queue that they keep, for themselves and for Redisson.

use std::time::Duration;

use crate::support::probe::calls;
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

#[test]
fn free_lock_is_taken_and_given_back_without_a_trace_of_a_queue() {
    let mut bench = Bench::new();
    let hold = Hold::new(HERE, 1);
    for mode in ["wait", "try"] {
        assert_eq!(bench.acquire(&hold, mode), answer("granted", 1));
        assert_eq!(bench.probe.keys(), ["k"]);
        assert!(bench.is_held_by(&hold));
        assert_eq!(bench.release(&hold), released());
        assert!(bench.probe.keys().is_empty());
    }
}

#[test]
fn a_try_never_queues_and_never_overtakes() {
    let mut bench = Bench::new();
    let [a, b, c] = [1, 2, 3].map(|owner| Hold::new(HERE, owner));
    bench.wait(&a);
    assert_eq!(tag(bench.acquire(&c, "try")), "busy");
    assert!(bench.queue().is_empty());
    bench.wait(&b);
    bench.probe.command(&["DEL", "k"]);
    assert_eq!(bench.acquire(&c, "try"), answer("busy", -2));
    assert_eq!(bench.queue(), fields(&[&b]));
    assert_eq!(bench.acquire(&b, "try"), answer("granted", 1));
    assert_eq!(bench.probe.keys(), ["k"]);
}

#[test]
fn release_moves_the_lock_to_the_first_of_this_client_in_order_of_arrival() {
    let mut bench = Bench::new();
    let holds: Vec<_> = (1..=5).map(|owner| Hold::new(HERE, owner)).collect();
    assert_eq!(bench.wait(&holds[0]), "granted");
    for hold in &holds[1..] {
        assert_eq!(bench.wait(hold), "queued");
        assert_eq!(bench.wait(hold), "waiting");
    }
    for pair in holds.windows(2) {
        assert_eq!(bench.release(&pair[0]), moved(&pair[1]));
        assert!(bench.is_held_by(&pair[1]));
        assert_eq!(bench.holder().len(), 2);
        assert!(bench.probe.pttl("k") > LEASE - 5_000);
        assert_eq!(bench.release(&pair[0]), absent(), "a repeated release");
        assert!(bench.is_held_by(&pair[1]));
    }
    assert_eq!(bench.release(&holds[4]), released());
    assert!(bench.probe.keys().is_empty());
}

#[test]
fn release_wakes_the_first_of_another_client_and_nobody_else() {
    let mut bench = Bench::new();
    let (a, b, c) = (Hold::new(HERE, 1), Hold::new(THERE, 2), Hold::new(HERE, 3));
    for hold in [&a, &b, &c] {
        bench.wait(hold);
    }
    let channels = [THERE, HERE].map(|client| format!("{CHANNEL}:{client}"));
    let mut messages = bench.server.connection().into_subscriber(&channels);
    assert_eq!(bench.release(&a), released());
    let heard = messages.next(Duration::from_secs(5));
    assert_eq!(heard, Some((channels[0].clone(), "0".to_owned())));
    assert_eq!(messages.next(Duration::from_millis(50)), None);
    assert!(!bench.probe.exists("k"));

    // The lock is free, but only the first waiter may have it. A request of another waiter wakes the first again.
    assert_eq!(bench.wait(&c), "waiting");
    assert_eq!(
        messages.next(Duration::from_secs(5)).unwrap().0,
        channels[0]
    );
    assert_eq!(bench.wait(&b), "granted");
    assert_eq!(bench.queue(), fields(&[&c]));
}

#[test]
fn only_the_first_is_told_how_long_the_lock_is_held() {
    let mut bench = Bench::new();
    let (a, b, c) = (Hold::new(HERE, 1), Hold::new(HERE, 2), Hold::new(THERE, 3));
    for hold in [&a, &b, &c] {
        bench.wait(hold);
    }
    let Signed { ttl, .. } = bench.sign(HERE, &[&b]);
    assert!(ttl > LEASE - 5_000 && ttl <= LEASE, "{ttl}");
    assert_eq!(bench.sign(THERE, &[&c]).ttl, -1);
    // For a lock whose lease does not end the answer is the same: there is no end to wait for.
    bench.probe.command(&["PERSIST", "k"]);
    assert_eq!(bench.sign(HERE, &[&b]).ttl, -1);
}

#[test]
fn higher_priorities_go_ahead_and_arrival_decides_between_equals() {
    let mut bench = Bench::new();
    let priorities = [0, -1, 5, 0, 5, -1, 2, 0];
    let holds: Vec<_> = (2..)
        .zip(priorities)
        .map(|(owner, priority)| Hold::new(HERE, owner).priority(priority))
        .collect();
    let holder = Hold::new(HERE, 1);
    bench.wait(&holder);
    for hold in &holds {
        assert_eq!(bench.wait(hold), "queued");
    }
    let mut expected: Vec<_> = holds.iter().collect();
    expected.sort_by_key(|hold| -hold.priority);
    assert_eq!(bench.queue(), fields(&expected));

    bench.enqueue_java(JAVA, PLACE);
    let late = Hold::new(HERE, 20).priority(1);
    bench.wait(&late);
    let queue = bench.queue();
    let at = |field: &str| queue.iter().position(|entry| entry == field).unwrap();
    assert!(at(&late.field) > at(&holds[6].field), "behind priority 2");
    assert!(at(&late.field) < at(JAVA), "Java's count as 0");

    // A request with another priority gets another place.
    let raised = holds[1].clone().priority(9);
    assert_eq!(bench.wait(&raised), "queued");
    assert_eq!(bench.queue()[0], raised.field);
    assert_eq!(bench.queue().len(), holds.len() + 2);
}

#[test]
fn a_hold_takes_one_place_however_often_it_asks_and_loses_it_when_it_gives_up() {
    let mut bench = Bench::new();
    let [a, b, c, d] = [1, 2, 3, 4].map(|owner| Hold::new(HERE, owner));
    for hold in [&a, &b, &c, &d] {
        bench.wait(hold);
        bench.wait(hold);
    }
    let before = bench.distance(&d.field);
    assert_eq!(bench.release(&c), absent());
    assert_eq!(bench.queue(), fields(&[&b, &d]));
    assert!((bench.distance(&d.field) - before).abs() < 5_000);

    // A late request to leave the queue, from another attempt, changes nothing.
    let mut late = d.clone();
    late.number = "hffffffffffffffff".to_owned();
    assert_eq!(bench.release(&late), absent());
    assert_eq!(bench.queue(), fields(&[&b, &d]));
    assert_eq!(bench.wait(&d), "waiting");

    assert_eq!(bench.release(&b), absent());
    assert_eq!(bench.release(&d), absent());
    assert_eq!(
        bench.probe.keys(),
        ["k"],
        "the keys go with the last waiter"
    );
}

#[test]
fn the_first_that_gives_up_a_free_lock_wakes_the_next() {
    let mut bench = Bench::new();
    let (a, b, c) = (Hold::new(HERE, 1), Hold::new(THERE, 2), Hold::new(THERE, 3));
    for hold in [&a, &b, &c] {
        bench.wait(hold);
    }
    bench.release(&a);
    let channel = format!("{CHANNEL}:{THERE}");
    let mut messages = bench.server.connection().into_subscriber(&[channel]);
    assert!(messages.next(Duration::from_millis(50)).is_none());
    bench.release(&b);
    assert!(messages.next(Duration::from_secs(5)).is_some());
    assert_eq!(bench.wait(&c), "granted");
}

#[test]
fn a_waiter_that_has_not_asked_for_seconds_is_passed_over() {
    let mut bench = Bench::new();
    let [a, dead, c, d] = [1, 2, 3, 4].map(|owner| Hold::new(HERE, owner));
    for hold in [&a, &dead, &c, &d] {
        bench.wait(hold);
    }
    bench.age(&dead, 2_000);
    bench.wait(&d);
    assert_eq!(bench.queue().len(), 3, "two seconds are nothing");
    bench.age(&dead, 2_000);
    assert_eq!(bench.release(&a), moved(&c));
    assert_eq!(bench.queue(), fields(&[&d]));

    // A request that keeps a place removes the dead place ahead of it.
    bench.age(&d, 4_000);
    let (e, f) = (Hold::new(THERE, 5), Hold::new(THERE, 6));
    bench.wait(&e);
    bench.wait(&f);
    bench.wait(&f);
    assert_eq!(bench.queue(), fields(&[&e, &f]));
    // So does a request that finds the lock free; it also wakes the next waiter.
    bench.age(&e, 4_000);
    bench.probe.command(&["DEL", "k"]);
    let g = Hold::new(HERE, 7);
    let channel = format!("{CHANNEL}:{THERE}");
    let mut messages = bench.server.connection().into_subscriber(&[channel]);
    assert_eq!(bench.acquire(&g, "try"), answer("busy", -2));
    assert!(messages.next(Duration::from_secs(5)).is_some());
    assert_eq!(bench.wait(&f), "granted");

    // The waiter that was taken for dead is alive after all, and gets a place at the end.
    bench.wait(&g);
    assert_eq!(bench.wait(&e), "queued");
    assert_eq!(bench.queue(), fields(&[&g, &e]));
}

/// A process sends one request per second for all its places, however many there are.
#[test]
fn a_clients_sign_of_life_is_one_for_all_its_places() {
    let mut bench = Bench::new();
    let [a, b, c, d] = [1, 2, 3, 4].map(|owner| Hold::new(HERE, owner));
    let other = Hold::new(THERE, 5);
    for hold in [&a, &b, &c, &other, &d] {
        bench.wait(hold);
    }
    assert!(!bench.sign(HERE, &[&d]).is_known, "it is the first");
    for _ in 0..5 {
        for hold in [&b, &c] {
            bench.age(hold, 2_900);
        }
        bench.age_sign(HERE, 2_000);
        let signed = bench.sign(HERE, &[&d]);
        assert!(signed.is_known && signed.missing.is_empty(), "{signed:?}");
    }
    bench.wait(&Hold::new(THERE, 6));
    assert_eq!(bench.queue().len(), 5, "the places of the living stand");

    // Without a sign the client's places go, whichever client looks. The places of other clients stand.
    bench.age(&other, 2_500);
    bench.age_sign(HERE, 3_001);
    assert_eq!(bench.wait(&Hold::new(THERE, 6)), "waiting");
    assert_eq!(bench.queue()[0], other.field);
}

#[test]
fn a_place_that_nobody_asks_for_goes_within_a_minute_whatever_signs_its_client_gives() {
    let mut bench = Bench::new();
    let [a, left, c] = [1, 2, 3].map(|owner| Hold::new(HERE, owner));
    for hold in [&a, &left, &c] {
        bench.wait(hold);
    }
    bench.age(&left, 59_000);
    bench.sign(HERE, &[&c]);
    assert_eq!(bench.queue(), fields(&[&left, &c]));
    bench.age(&left, 1_100);
    bench.sign(HERE, &[&c]);
    assert_eq!(bench.queue(), fields(&[&c]));
    assert_eq!(bench.release(&a), moved(&c));
}

#[test]
fn a_sign_takes_a_free_lock_for_the_first_of_its_client_and_tells_another() {
    let mut bench = Bench::new();
    let (a, b, c) = (Hold::new(HERE, 1), Hold::new(THERE, 2), Hold::new(HERE, 3));
    for hold in [&a, &b, &c] {
        bench.wait(hold);
    }
    bench.release(&a);
    let channels = [THERE, HERE].map(|client| format!("{CHANNEL}:{client}"));
    let mut messages = bench.server.connection().into_subscriber(&channels);
    assert_eq!(bench.sign(HERE, &[&c]).moved, "");
    let heard = messages.next(Duration::from_secs(5));
    assert_eq!(heard, Some((channels[0].clone(), "0".to_owned())));
    assert!(!bench.probe.exists("k"));

    let signed = bench.sign(THERE, &[&b]);
    assert_eq!((&*signed.moved, signed.missing.len()), (&*b.number, 0));
    assert!(bench.is_held_by(&b));
    assert!(bench.probe.pttl("k") > LEASE - 5_000);
    assert_eq!(bench.queue(), fields(&[&c]));

    // If the answer was lost, the same sign is sent again: it reports which hold has the lock, and changes nothing.
    let again = bench.sign(THERE, &[&b]);
    assert_eq!((&*again.moved, &*again.holder), ("", &*b.number));
    assert_eq!(again.missing, [&*b.number]);
    assert!(bench.is_held_by(&b));
    assert_eq!(bench.queue(), fields(&[&c]));
    assert_eq!(bench.sign(HERE, &[&c]).holder, "");

    // A copy of the sign that arrives when no call of the client waits any more acquires nothing.
    assert_eq!(bench.release(&c), absent());
    bench.release(&b);
    assert_eq!(bench.sign(THERE, &[&b]).moved, "");
    assert!(!bench.probe.exists("k"));
}

#[test]
fn a_sign_says_which_places_are_gone_and_whether_the_server_has_forgotten() {
    let mut bench = Bench::new();
    let [a, b, c] = [1, 2, 3].map(|owner| Hold::new(HERE, owner));
    for hold in [&a, &b, &c] {
        bench.wait(hold);
    }
    bench.sign(HERE, &[&b]);
    let mut older = b.clone();
    older.number = "hffffffffffffffff".to_owned();
    assert_eq!(bench.sign(HERE, &[&older, &c]).missing, [&*older.number]);
    for gone in [QUEUE, SCORES, PLACES] {
        bench.probe.command(&["DEL", gone]);
        let signed = bench.sign(HERE, &[&b, &c]);
        assert_eq!(signed.missing, [&*b.number, &*c.number], "without {gone}");
        for hold in [&b, &c, &b, &c] {
            bench.wait(hold);
        }
        assert_eq!(bench.sign(HERE, &[&b, &c]).missing.len(), 0);
    }
    bench.probe.command(&["FLUSHALL"]);
    assert!(!bench.sign(HERE, &[&b]).is_known);
}

#[test]
fn a_sign_tells_a_named_owner_that_it_holds_the_lock_elsewhere() {
    let mut bench = Bench::new();
    let here = Hold::named(HERE, "request 7", 2);
    let there = Hold::named(THERE, "request 7", 3);
    for hold in [&Hold::new(HERE, 1), &here, &there] {
        bench.wait(hold);
    }
    bench.probe.command(&["DEL", "k"]);
    assert_eq!(bench.sign(THERE, &[&there]).moved, there.number);
    assert_eq!(bench.sign(HERE, &[&here]).holder, here.number);
    assert_eq!(bench.acquire(&here, "wait"), answer("granted", 2), "joins");
}

/// The server has the place of a call that has ended, and does not know that.
#[test]
fn a_sign_gives_the_lock_back_from_a_hold_that_nobody_has_and_from_no_other() {
    for named in [false, true] {
        let mut bench = Bench::new();
        let hold = |owner: u64| match named {
            true => Hold::named(HERE, &format!("owner-{owner}"), owner),
            false => Hold::new(HERE, owner),
        };
        let [a, gone, next] = [1, 2, 3].map(hold);
        for hold in [&a, &gone, &next] {
            bench.wait(hold);
        }
        assert_eq!(bench.release(&a), moved(&gone));
        let stale = bench.give_back(HERE, &a);
        assert_eq!((&*stale.moved, &*stale.holder), ("", &*gone.number));
        assert_eq!(bench.give_back(THERE, &gone).moved, "", "of another client");
        assert!(bench.is_held_by(&gone));
        assert_eq!(bench.give_back(HERE, &gone).moved, next.number);
        assert!(bench.is_held_by(&next));
    }
}

#[test]
fn a_sign_finds_a_key_that_is_no_lock() {
    let mut bench = Bench::new();
    let (a, b) = (Hold::new(HERE, 1), Hold::new(HERE, 2));
    bench.wait(&a);
    bench.wait(&b);
    bench.probe.command(&["DEL", "k"]);
    bench.probe.command(&["HSET", "k", "mode", "read"]);
    let args = [HERE, "0", "PUBLISH", "300000", "", &b.field, &b.number];
    let answer = bench.eval("fair_sign", &["k", CHANNEL, QUEUE, SCORES, PLACES], &args);
    assert_eq!(tag(answer), "wrong_kind");
}

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

/// A place that was last asked for before the clock was set back has a date in the future: dead or alive, its waiter
/// looks fresh for the length of that step.
#[test]
fn a_clock_set_back_costs_the_dead_their_place_as_ever_and_the_living_nothing() {
    const STEP: i64 = 3_600_000;
    let mut bench = Bench::new();
    let holder = Hold::new(HERE, 1);
    let [dead, b, c] = [2, 3, 4].map(|owner| Hold::new(THERE, owner));
    for hold in [&holder, &dead, &b, &c] {
        bench.wait(hold);
    }
    let distances = [&dead, &b, &c].map(|hold| bench.distance(&hold.field));
    for hold in [&dead, &b, &c] {
        bench.age(hold, -STEP);
        bench.shift_score(&hold.field, STEP);
    }
    assert_eq!(bench.release(&holder), released());
    for hold in [&b, &c] {
        assert_eq!(bench.wait(hold), "waiting", "it has its place");
    }
    for (hold, before) in [&dead, &b, &c].into_iter().zip(distances) {
        // The score no longer includes the TTL of the lock.
        let distance = bench.distance(&hold.field);
        assert!(
            (distance - before).abs() < LEASE + 5_000,
            "{before} to {distance}"
        );
    }
    bench.age(&dead, 3_100);
    assert_eq!(bench.wait(&b), "granted", "the first is dead");
    assert_eq!(bench.queue(), fields(&[&c]));

    // The same holds if the lock was not released but has expired.
    let [dead, e] = [5, 6].map(|owner| Hold::new(HERE, owner));
    bench.wait(&dead);
    bench.age(&dead, -STEP);
    bench.release(&c);
    bench.probe.command(&["DEL", "k"]);
    assert_eq!(bench.wait(&e), "queued");
    bench.age(&dead, 3_100);
    assert_eq!(bench.wait(&e), "granted");
    assert_eq!(bench.probe.keys(), ["k"]);
}

/// A place that clients share is kept for those of them that are not dead.
#[test]
fn a_clock_set_back_leaves_no_place_to_a_dead_client_of_a_named_owner() {
    const STEP: i64 = 3_600_000;
    let mut bench = Bench::new();
    let (here, there) = (Hold::named(HERE, "n", 2), Hold::named(THERE, "n", 3));
    let next = Hold::new(HERE, 4);
    for hold in [&Hold::new(HERE, 1), &here, &there, &next] {
        bench.wait(hold);
    }
    bench.age(&here, -STEP);
    assert_eq!(bench.release(&here), absent());
    assert_eq!(bench.queue(), fields(&[&there, &next]), "it may be alive");
    bench.age(&there, 3_100);
    bench.probe.command(&["DEL", "k"]);
    assert_eq!(bench.wait(&next), "granted");
    assert_eq!(bench.probe.keys(), ["k"]);
}

#[test]
fn a_holder_takes_its_lock_again_without_queueing() {
    let mut bench = Bench::new();
    let (a, b) = (Hold::new(HERE, 1), Hold::new(HERE, 2));
    bench.wait(&a);
    bench.wait(&b);
    assert_eq!(bench.acquire(&a, "wait"), answer("granted", 1), "a repeat");
    assert_eq!(bench.queue(), fields(&[&b]));

    let mut newer = a.clone();
    newer.number = "hffffffffffffffff".to_owned();
    assert_eq!(
        bench.wait(&newer),
        "queued",
        "another hold of the same owner"
    );
    assert_eq!(bench.release(&a), moved(&b));
    assert_eq!(bench.release(&b), moved(&newer));
    assert_eq!(bench.release(&a), absent(), "late");
    assert!(bench.is_held_by(&newer));
}

#[test]
fn a_late_copy_of_the_first_request_takes_nothing_back() {
    let mut bench = Bench::new();
    let hold = Hold::new(HERE, 1);
    bench.wait(&hold);
    bench.probe.command(&["HSET", "k", &hold.field, "3"]);
    let record = format!("{}:3", hold.number);
    bench
        .probe
        .command(&["HSET", "k", &hold.acquisition_field, &record]);
    for mode in ["wait", "try"] {
        assert_eq!(bench.acquire(&hold, mode), answer("granted", 3));
        let hash = bench.probe.hgetall("k");
        assert_eq!(hash.get(&hold.acquisition_field), Some(&record));
    }
}

#[test]
fn two_clients_that_wait_under_one_name_share_a_place_until_both_have_gone() {
    let mut bench = Bench::new();
    let holder = Hold::new(HERE, 1);
    let (here, there) = (
        Hold::named(HERE, "request 7", 2),
        Hold::named(THERE, "request 7", 3),
    );
    let last = Hold::new(HERE, 4);
    for hold in [&holder, &here, &there, &last] {
        bench.wait(hold);
    }
    assert_eq!(bench.queue(), fields(&[&here, &last]));
    assert_eq!(bench.wait(&here), "waiting");
    bench.release(&here);
    assert_eq!(bench.queue(), fields(&[&there, &last]));
    bench.wait(&here);

    assert_eq!(bench.release(&holder), moved(&here));
    assert!(bench.is_held_by(&here));
    assert_eq!(bench.acquire(&there, "wait"), answer("granted", 2), "joins");
    assert_eq!(bench.queue(), fields(&[&last]));
    assert_eq!(bench.release(&here), answer("kept", 1));
    assert_eq!(bench.release(&there), released());
    assert_eq!(bench.wait(&last), "granted");

    // The same holds if the first of the two clients finds the lock free.
    bench.wait(&here);
    bench.wait(&there);
    bench.probe.command(&["DEL", "k"]);
    assert_eq!(bench.wait(&here), "granted");
    assert_eq!(bench.queue(), fields(&[&there]));
    assert_eq!(bench.acquire(&there, "wait"), answer("granted", 2));
    assert_eq!(bench.probe.keys(), ["k"]);
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
fn a_waiter_that_was_thrown_out_queues_again_at_the_end() {
    let mut bench = Bench::new();
    let [a, b, c] = [1, 2, 3].map(|owner| Hold::new(HERE, owner));
    for hold in [&a, &b, &c] {
        bench.wait(hold);
    }
    bench.probe.command(&["LPOP", QUEUE]);
    bench.probe.command(&["ZREM", SCORES, &b.field]);
    assert_eq!(bench.wait(&b), "queued");
    assert_eq!(bench.queue(), fields(&[&c, &b]));

    // The server may evict any of the queue's keys.
    for gone in [QUEUE, SCORES, PLACES] {
        bench.probe.command(&["DEL", gone]);
        for hold in [&c, &b, &c, &b] {
            bench.wait(hold);
        }
        assert_eq!(bench.queue(), fields(&[&c, &b]), "without {gone}");
        assert_eq!(bench.probe.command(&["ZCARD", SCORES]).int(), 2);
    }
}

#[test]
fn the_queue_ends_in_one_piece() {
    let mut bench = Bench::new();
    let (a, b) = (Hold::new(HERE, 1), Hold::new(HERE, 2));
    bench.wait(&a);
    for _ in 0..2 {
        bench.wait(&b);
        let left = [QUEUE, SCORES, PLACES].map(|key| bench.probe.pttl(key));
        assert!(left[0] > 2 * DAY - 5_000, "{left:?}");
        assert!(left.iter().all(|ms| left[0] - ms < 1_000), "{left:?}");
    }
}

#[test]
fn a_server_out_of_memory_keeps_places_and_moves_the_lock_on() {
    let mut bench = Bench::new();
    let [a, b, c] = [1, 2, 3].map(|owner| Hold::new(HERE, owner));
    bench.wait(&a);
    bench.wait(&b);
    bench.probe.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let refused = bench.acquire(&c, "wait");
    assert!(
        matches!(&refused, Reply::Error(error) if error.contains("OOM")),
        "{refused:?}"
    );
    assert_eq!(bench.queue(), fields(&[&b]));
    assert_eq!(bench.wait(&b), "waiting");
    for is_known in [false, true] {
        let signed = bench.sign(HERE, &[&b]);
        assert_eq!((signed.is_known, signed.missing.len()), (is_known, 0));
    }
    assert_eq!(bench.release(&a), moved(&b));
    assert_eq!(bench.release(&b), released());
    bench.age_sign(HERE, 3_001);
    assert!(bench.probe.keys().is_empty());
}

#[test]
fn a_hash_of_another_shape_is_not_a_lock() {
    let mut bench = Bench::new();
    let hold = Hold::new(HERE, 1);
    bench.probe.command(&["HSET", "k", "mode", "read"]);
    assert_eq!(tag(bench.acquire(&hold, "wait")), "wrong_kind");
    bench.probe.command(&["HDEL", "k", "mode"]);
    bench.probe.command(&["HSET", "k", &hold.field, "many"]);
    assert_eq!(tag(bench.acquire(&hold, "wait")), "wrong_kind");
    assert_eq!(
        tag(bench.eval(
            "fair_force_release",
            &["k", CHANNEL, QUEUE, SCORES, PLACES],
            &["0", "PUBLISH", &PLACE.to_string()]
        )),
        "wrong_kind"
    );
    assert_eq!(bench.probe.keys(), ["k"]);
}

#[test]
fn release_by_force_wakes_the_first() {
    let mut bench = Bench::new();
    let (a, b) = (Hold::new(HERE, 1), Hold::new(HERE, 2));
    let force = |bench: &mut Bench| {
        tag(bench.eval(
            "fair_force_release",
            &["k", CHANNEL, QUEUE, SCORES, PLACES],
            &["0", "PUBLISH", &PLACE.to_string()],
        ))
    };
    assert_eq!(force(&mut bench), "free");
    bench.wait(&a);
    bench.wait(&b);
    let channel = format!("{CHANNEL}:{HERE}");
    let mut messages = bench.server.connection().into_subscriber(&[channel]);
    assert_eq!(force(&mut bench), "released");
    assert!(messages.next(Duration::from_secs(5)).is_some());
    assert_eq!(bench.release(&a), absent());
    assert_eq!(bench.wait(&b), "granted");
}

#[test]
fn a_grant_costs_the_same_with_4_waiters_as_with_64() {
    let mut bench = Bench::new();
    let mut cost = |waiters: u64| {
        let holds: Vec<_> = (0..=waiters).map(|owner| Hold::new(HERE, owner)).collect();
        for hold in &holds {
            bench.wait(hold);
        }
        bench.probe.command(&["CONFIG", "RESETSTAT"]);
        // Each hold passes the lock on and queues again.
        for turn in 0..64 {
            let at = turn % holds.len();
            assert_eq!(
                bench.release(&holds[at]),
                moved(&holds[(at + 1) % holds.len()])
            );
            assert_eq!(bench.wait(&holds[at]), "queued");
        }
        let calls = calls(&mut bench.probe);
        bench.probe.command(&["FLUSHALL"]);
        assert!(!calls.contains_key("lpos"), "{calls:?}");
        calls.values().sum::<u64>()
    };
    assert_eq!(cost(4), cost(64));
}
