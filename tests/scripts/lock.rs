//! The scripts that set a lease, each sent twice: what the repetition does to the lease, the record and the token.

use redlatch_testkit::{Connection, Reply, Server, script};

const LEASE: i64 = 30_000;
const TOKEN: &str = "redisson_lock_token:{k}";

const HERE: &str = "00000000-0000-4000-8000-000000000001";
const THERE: &str = "00000000-0000-4000-8000-000000000002";

/// A server that tests send requests to, any number of times.
struct Scene {
    redis: Connection,
    _server: Server,
}

/// A request that sets a lease.
struct Case {
    script: &'static str,
    keys: Vec<String>,
    args: Vec<String>,
    /// The answer, the same each time that the request is sent.
    answer: &'static str,
    /// The keys whose lease the request sets.
    leased: Vec<String>,
    /// The commands that precede the request.
    before: Vec<Vec<String>>,
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// Returns the owner field, acquisition field and acquisition id of a hold.
fn hold(client: &str, owner: &str, number: u64) -> [String; 3] {
    let (field, acquisition_field) = match owner.parse::<u64>() {
        Ok(_) => (format!("{client}:{owner}"), format!("|{client}")),
        Err(_) => (owner.to_owned(), format!("|{client}:{owner}")),
    };
    [field, acquisition_field, format!("h{number:016x}")]
}

/// Builds a case; `{0}`, `{1}` and `{2}` stand for the hold's owner field, acquisition field and acquisition id.
fn case(script: &'static str, keys: &str, args: &str, answer: &'static str, leased: &str) -> Case {
    Case {
        script,
        keys: words(keys),
        args: words(&filled(args)),
        answer,
        leased: words(leased),
        before: Vec::new(),
    }
}

fn filled(text: &str) -> String {
    let (mine, old) = (hold(HERE, "1", 1), hold(HERE, "2", 2));
    let mut text = text.to_owned();
    for (n, part) in mine.iter().chain(&old).enumerate() {
        text = text.replace(&format!("{{{n}}}"), part);
    }
    text
}

impl Case {
    fn after(mut self, command: &str) -> Self {
        self.before.push(words(&filled(command)));
        self
    }
}

impl Scene {
    fn new() -> Self {
        let server = Server::start();
        Self {
            redis: server.connection(),
            _server: server,
        }
    }

    fn does(&mut self, command: &[impl AsRef<[u8]>]) -> Reply {
        let reply = self.redis.command(command);
        assert!(!matches!(reply, Reply::Error(_)), "{reply:?}");
        reply
    }

    fn run(&mut self, name: &str, keys: &[String], args: &[String]) -> String {
        let mut request = vec![
            "EVAL".to_owned(),
            script(name).to_owned(),
            keys.len().to_string(),
        ];
        request.extend(keys.iter().chain(args).cloned());
        said(&self.does(&request))
    }

    fn send(&mut self, case: &Case) -> String {
        self.run(case.script, &case.keys, &case.args)
    }

    /// Returns everything that is stored, without the leases.
    fn record(&mut self) -> Vec<String> {
        let mut record = Vec::new();
        for key in self.redis.keys() {
            let value = match &*self.does(&["TYPE", &key]).text() {
                "hash" => format!("{:?}", self.redis.hgetall(&key)),
                _ => said(&self.does(&["GET", &key])),
            };
            record.push(format!("{key} {value}"));
        }
        record
    }
}

/// Returns a reply as words.
fn said(reply: &Reply) -> String {
    match reply {
        Reply::Array(items) => items.iter().map(said).collect::<Vec<_>>().join(" "),
        Reply::Int(number) => number.to_string(),
        Reply::Nil => "nothing".to_owned(),
        text => text.text(),
    }
}

/// Returns every request that sets a lease, with a state in which it does.
fn cases() -> Vec<Case> {
    let held = "HSET k {0} 1 {1} {2}:1";
    let token = "SET redisson_lock_token:{k} 9007199254740000";
    let channel = "redisson_lock__channel:{k}";
    let queue = "redisson_lock_queue:{k} redisson_lock_timeout:{k} redlatch_lock_places:{k}";
    let level = "{k}:{0}:rwlock_timeout:1";
    let marks = "redlatch_rwlock_writer:{k} redlatch_rwlock_reader:{k}";
    let first = filled(level);
    let fair = format!("k {channel} {queue}");
    let written = filled("{k}:{0}:write:rwlock_timeout:1");
    let reads = "HSET k mode read {0} 1";
    let level_set = "SET {k}:{0}:rwlock_timeout:1 {2}";
    vec![
        case(
            "lock_acquire",
            "k",
            "{0} {1} {2} 1 30000 take redisson_lock__channel:{k} PUBLISH 0 0",
            "granted 1",
            "k",
        ),
        case(
            "lock_acquire_all",
            "k l",
            "{0} {1} {2} PUBLISH 30000 -1 redisson_lock__channel:{k} 30000 -1 redisson_lock__channel:{l}",
            "granted ",
            "k l",
        ),
        case(
            "lock_acquire_all",
            &format!("k {TOKEN}"),
            "{0} {1} {2} PUBLISH 30000 0 redisson_lock__channel:{k}",
            "granted 9007199254740001",
            "k",
        )
        .after(token),
        case("lock_reenter", "k", "{0} {1} {2} 2 30000", "granted 2", "k").after(held),
        case(
            "lock_adopt",
            "k",
            "{0} {1} {2} 1 30000 {0} 1",
            "adopted 1",
            "k",
        )
        .after("HSET k {0} 1"),
        case(
            "lock_extend",
            "k",
            "{0} {1} {2} 30000 at_least",
            "extended",
            "k",
        )
        .after(held),
        case("lock_renew", "k", "{1} {2} 30000", "1", "k").after(held),
        case(
            "lock_confirm",
            "k",
            "{1} {2} 30000 0 PUBLISH redisson_lock__channel:{k}",
            "stands -1",
            "k",
        )
        .after(held),
        case(
            "fenced_acquire",
            &format!("k {TOKEN}"),
            "{0} {1} {2} 1 30000 take redisson_lock__channel:{k} PUBLISH 0 0 0 1",
            "granted 1 9007199254740001 1",
            "k",
        )
        .after(token),
        case(
            "fair_acquire",
            &fair,
            "{0} {1} {2} 30000 wait 0 0 PUBLISH",
            "granted 1",
            "k",
        ),
        case("plain_acquire", "k", "{0}:{2} 30000 hold", "granted 1", "k"),
        case("plain_adopt", "k", "{0}:{2} 30000", "adopted 1", "k").after("SET k {0}:{2}"),
        case(
            "plain_extend",
            "k",
            "{0}:{2} 30000 at_least",
            "extended",
            "k",
        )
        .after("SET k {0}:{2}"),
        case("plain_renew", "k", "{0}:{2} 30000", "1", "k").after("SET k {0}:{2}"),
        case(
            "read_acquire",
            &format!("k {{k}} {marks}"),
            "{0} {2} 1 30000 arrival 0 0 take",
            "granted 1 -1",
            &format!("k {first}"),
        ),
        case(
            "rw_confirm",
            "k {k} redlatch_rwlock_writer:{k}",
            "{0} {2} 30000 arrival",
            "stands -1",
            &format!("k {first}"),
        )
        .after(reads)
        .after(level_set),
        case(
            "write_acquire",
            &format!("k {{k}} {marks}"),
            "{0}:write {2} 1 30000 arrival 0 0 take",
            "granted 1",
            &format!("k {written}"),
        ),
        case(
            "rw_reenter",
            "k {k}",
            "{0} {2} 2 30000",
            "granted 2",
            &format!("k {first}"),
        )
        .after(reads)
        .after(level_set),
        case(
            "rw_adopt",
            "k {k}",
            "{0} {2} 1 30000 1 h9",
            "adopted 1",
            &format!("k {first}"),
        )
        .after(reads)
        .after("SET {k}:{0}:rwlock_timeout:1 h9"),
        case(
            "rw_extend",
            "k {k}",
            "{0} {2} 30000 at_least",
            "extended",
            &format!("k {first}"),
        )
        .after(reads)
        .after(level_set),
        case(
            "rw_renew",
            "k",
            "{0} {k} {2} 30000",
            "1",
            &format!("k {first}"),
        )
        .after(reads)
        .after(level_set),
    ]
}

#[test]
fn whoever_is_told_that_it_has_the_lock_has_its_lease_set_by_that_very_send() {
    let mut scene = Scene::new();
    for case in cases() {
        let script = case.script;
        scene.does(&["FLUSHALL"]);
        for command in &case.before {
            scene.does(command);
        }
        assert_eq!(scene.send(&case), case.answer, "{script}");
        let record = scene.record();
        // Between the two sends most of the lease passes, or another client sets a longer one.
        for (left, kept) in [(1_000, LEASE), (90_000, 90_000)] {
            for key in &case.leased {
                scene.does(&["PEXPIRE", key, &left.to_string()]);
            }
            assert_eq!(scene.send(&case), case.answer, "{script}: said again");
            assert_eq!(scene.record(), record, "{script}: done again");
            for key in &case.leased {
                let ttl = scene.redis.pttl(key);
                assert!(
                    (kept - 5_000..=kept).contains(&ttl),
                    "{script}: {ttl} ms of {kept} ms of {key}"
                );
            }
        }
    }
}

#[test]
fn tokens_that_were_reserved_are_answered_once() {
    let mut scene = Scene::new();
    scene.does(&["SET", TOKEN, "9007199254740000"]);
    let keys = words(&format!("k {TOKEN}"));
    let args = words(&filled(
        "{0} {1} {2} 1 30000 take redisson_lock__channel:{k} PUBLISH 0 0 0 3",
    ));
    let mut send = || scene.run("fenced_acquire", &keys, &args);
    assert_eq!(send(), "granted 1 9007199254740001 3");
    // It is unknown what became of the other two tokens, so the repetition answers only the last one.
    assert_eq!(send(), "granted 1 9007199254740003 1");
    assert_eq!(said(&scene.does(&["GET", TOKEN])), "9007199254740003");
}

#[test]
fn hold_that_is_not_there_has_no_lease_set() {
    let mut scene = Scene::new();
    let about_a_hold = |case: &Case| {
        let verb = case.script.rsplit('_').next().unwrap();
        // A script that acquires or adopts a level needs no hold of its own beforehand.
        let takes =
            ["acquire", "all"].contains(&verb) || ["lock_adopt", "rw_adopt"].contains(&case.script);
        !takes
    };
    for case in cases().into_iter().filter(about_a_hold) {
        let script = case.script;
        scene.does(&["FLUSHALL"]);
        for command in &case.before {
            let of_another = command
                .iter()
                .map(|word| word.replace("h0000000000000001", "h0000000000000003"));
            scene.does(&of_another.collect::<Vec<_>>());
        }
        for key in &case.leased {
            scene.does(&["PEXPIRE", key, "10000"]);
        }
        let before = scene.record();
        let answer = scene.send(&case);
        assert!(["absent", "0"].contains(&&*answer), "{script}: {answer}");
        assert_eq!(scene.record(), before, "{script}");
        for key in &case.leased {
            let ttl = scene.redis.pttl(key);
            assert!(ttl <= 10_000, "{script}: {ttl} ms of {key}");
        }
    }
}

#[test]
fn extension_never_cuts_what_levels_of_another_client_depend_on() {
    let mut scene = Scene::new();
    let [field, mine, number] = hold(HERE, "req-7", 1);
    let [_, theirs, other] = hold(THERE, "req-7", 2);
    let shares = [format!("{number}:1"), format!("{other}:1")];
    scene.does(&[
        "HSET", "k", &field, "2", &mine, &shares[0], &theirs, &shares[1],
    ]);
    scene.does(&["PEXPIRE", "k", "60000"]);
    for end in ["at_least", "0"] {
        let args = [&field, &mine, &number, "5000", end].map(str::to_owned);
        assert_eq!(
            scene.run("lock_extend", &words("k"), &args),
            "extended",
            "{end}"
        );
        let ttl = scene.redis.pttl("k");
        assert!(ttl > 55_000, "{end}: {ttl} ms");
    }
}

#[test]
fn longer_lease_is_cut_only_by_who_names_its_end() {
    let mut scene = Scene::new();
    for case in cases() {
        let script = case.script;
        if !script.ends_with("_extend") {
            continue;
        }
        scene.does(&["FLUSHALL"]);
        for command in &case.before {
            scene.does(command);
        }
        let raise = |scene: &mut Scene, millis: &str| {
            for key in &case.leased {
                scene.does(&["PEXPIRE", key, millis]);
            }
        };
        raise(&mut scene, "60000");
        let extend = |scene: &mut Scene, end: &str| {
            let mut args = case.args.clone();
            *args.last_mut().unwrap() = end.to_owned();
            let answer = scene.run(script, &case.keys, &args);
            let ttls: Vec<_> = case
                .leased
                .iter()
                .map(|key| scene.redis.pttl(key))
                .collect();
            (answer, ttls)
        };
        let (answer, ttls) = extend(&mut scene, "0");
        let end = answer
            .strip_prefix("longer ")
            .unwrap_or_else(|| panic!("{script}: {answer}"))
            .to_owned();
        assert!(
            ttls.iter().all(|ttl| *ttl > 55_000),
            "{script}: asked only: {ttls:?}"
        );
        assert_eq!(
            extend(&mut scene, "0").0,
            answer,
            "{script}: the same end at every look"
        );

        let (answer, ttls) = extend(&mut scene, &end);
        assert_eq!(answer, "extended", "{script}");
        assert!(
            ttls.iter().all(|ttl| (25_000..=LEASE).contains(ttl)),
            "{script}: cut: {ttls:?}"
        );

        // A copy of the request arrives late, after another lease was set.
        raise(&mut scene, "90000");
        let (answer, ttls) = extend(&mut scene, &end);
        assert!(answer.starts_with("longer "), "{script}: {answer}");
        assert!(
            ttls.iter().all(|ttl| *ttl > 85_000),
            "{script}: late: {ttls:?}"
        );
    }
}

/// The scripts that take a level for a hold: the name, the keys, the arguments behind the hold's own, the answer that
/// the level was taken, and the beginning of the answer that it was not.
const TAKERS: [[&str; 5]; 5] = [
    [
        "lock_acquire",
        "k",
        "1 30000 join redisson_lock__channel:{k} PUBLISH 0 0",
        "granted 2",
        "busy",
    ],
    [
        "lock_acquire_all",
        "k",
        "PUBLISH 30000 -1 redisson_lock__channel:{k}",
        "granted ",
        "busy",
    ],
    [
        "fenced_acquire",
        "k t",
        "1 30000 take redisson_lock__channel:{k} PUBLISH 0 0 0 1",
        "granted 2 5 1",
        "busy",
    ],
    [
        "fair_acquire",
        "k c q s p",
        "30000 try 0 0 PUBLISH 9",
        "granted 2",
        "busy",
    ],
    [
        "lock_adopt",
        "k",
        "1 30000 {theirs} {share}",
        "adopted 1",
        "absent",
    ],
];

#[test]
fn own_share_that_has_ended_keeps_no_client_out_while_another_has_the_lock() {
    let mut scene = Scene::new();
    let [field, mine, number] = hold(HERE, "req-7", 1);
    let [_, theirs, other] = hold(THERE, "req-7", 2);
    let [_, _, old] = hold(HERE, "req-7", 3);
    let (past, future) = ("1", "99999999999999");
    let share = format!("{other}:1:{future}");
    for [script, keys, rest, taken, refused] in TAKERS {
        let rest = rest.replace("{theirs}", &theirs).replace("{share}", &share);
        let mut args = vec![field.clone(), mine.clone(), number.clone()];
        args.extend(words(&rest));
        for (ended, beside) in [(true, true), (false, true), (true, false)] {
            scene.does(&["FLUSHALL"]);
            let ends = if ended { past } else { future };
            let own = format!("{old}:2:{ends}");
            scene.does(&["SET", "t", "5"]);
            scene.does(&["HSET", "k", &field, "2", &mine, &own]);
            if beside {
                scene.does(&["HSET", "k", &field, "3", &theirs, &share]);
            }
            if script == "fenced_acquire" {
                scene.does(&["HSET", "k", "|token", "5"]);
            }
            scene.does(&["PEXPIRE", "k", "60000"]);
            let before = scene.record();
            let what = format!("{script}, ended {ended}, beside another {beside}");
            let answer = scene.run(script, &words(keys), &args);
            if !(ended && beside) {
                assert!(answer.starts_with(refused), "{what}: {answer}");
                assert_eq!(scene.record(), before, "{what}");
                continue;
            }
            assert_eq!(answer, taken, "{what}");
            let hash = scene.redis.hgetall("k");
            let adopted = script == "lock_adopt";
            assert_eq!(hash[&field], if adopted { "1" } else { "2" }, "{what}");
            assert!(hash[&mine].starts_with(&format!("{number}:1:")), "{what}");
            assert_eq!(hash.contains_key(&theirs), !adopted, "{what}");

            // Requests about the old hold arrive late.
            let record = scene.record();
            let channel = "redisson_lock__channel:{k}";
            let release = [&*field, &mine, &old, "0", "0", "PUBLISH", channel];
            let release = release.map(str::to_owned);
            assert_eq!(scene.run("lock_release", &words("k"), &release), "absent");
            let renewal = [&*mine, &old, "90000"].map(str::to_owned);
            assert_eq!(scene.run("lock_renew", &words("k"), &renewal), "0");
            assert_eq!(scene.record(), record, "{what}");
        }
    }
}

#[test]
fn level_is_adopted_from_no_record_that_cannot_be_read() {
    let mut scene = Scene::new();
    let [field, mine, number] = hold(HERE, "req-7", 1);
    let [_, theirs, _] = hold(THERE, "req-7", 2);
    for poison in ["foo:1", "h2:1:x", "h2", "h2:0:9"] {
        scene.does(&["FLUSHALL"]);
        scene.does(&["HSET", "k", &field, "1", &theirs, poison]);
        let before = scene.record();
        let args = [&*field, &mine, &number, "1", "30000", &theirs, poison].map(str::to_owned);
        assert_eq!(
            scene.run("lock_adopt", &words("k"), &args),
            "wrong_kind",
            "{poison}"
        );
        assert_eq!(scene.record(), before, "{poison}");
    }
}

#[test]
fn client_that_counts_no_level_is_recorded_with_none() {
    let mut scene = Scene::new();
    let [field, mine, number] = hold(HERE, "req-7", 1);
    let [_, theirs, other] = hold(THERE, "req-7", 2);
    let record = format!("{other}:1:9999999999999");
    scene.does(&["HSET", "k", &field, "1", &theirs, &record]);
    scene.does(&["PEXPIRE", "k", "30000"]);
    let before = scene.record();
    let args = [&*field, &mine, &number, "0", "60000", &theirs, &record].map(str::to_owned);
    assert_eq!(scene.run("lock_adopt", &words("k"), &args), "absent");
    assert_eq!(scene.record(), before);
}

#[test]
fn token_in_the_hash_that_is_no_number_is_the_wrong_kind_and_stays() {
    let mut scene = Scene::new();
    let joined = format!("k {TOKEN}");
    let joins: [(&str, &str, &str); 2] = [
        (
            "lock_acquire_all",
            &joined,
            "{0} {1} {2} PUBLISH 30000 5000 redisson_lock__channel:{k}",
        ),
        (
            "fenced_acquire",
            &joined,
            "{0} {1} {2} 1 30000 take redisson_lock__channel:{k} PUBLISH 0 0 5000 1",
        ),
    ];
    for (script, keys, args) in joins {
        for poison in ["abc", "-1", "1.5", ""] {
            scene.does(&["FLUSHALL"]);
            scene.does(&words(&filled("HSET k {0} 1 {1} {2}:1")));
            scene.does(&["HSET", "k", "|token", poison]);
            scene.does(&["SET", TOKEN, "5"]);
            let before = scene.record();
            let answer = scene.run(script, &words(keys), &words(&filled(args)));
            let refused = answer.starts_with("wrong_kind");
            assert!(refused, "{script}, {poison}: {answer}");
            assert_eq!(scene.record(), before, "{script}, {poison}");
        }
    }
}
