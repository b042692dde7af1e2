//! The rights of a user that may do what this crate does under one prefix, and nothing else: the line of docs/rights.md.

use redlatch::{
    Client, DistributedLock, Error, ErrorKind, LockGuard, LossReason, MultiLock, Owner, RedLock,
};
use redlatch_testkit::{Connection, Reply, Server};

use crate::support::probe::{calls_of, is_before_7, kind, millis, reset_calls, secs, soon};
use crate::support::{builder, eventually};

const PREFIX: &str = "orders:";

/// Returns the words of the page's line.
fn line() -> Vec<String> {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/rights.md"));
    let page = page.expect("the page");
    let line = page.lines().find(|line| line.starts_with("ACL SETUSER "));
    let words = line.expect("a line with the rights").split(' ');
    words.map(str::to_owned).collect()
}

/// Returns the URL of the server with the user of that line.
fn url(server: &Server) -> String {
    server.url().replace("//", "//orders:secret@")
}

async fn connect(server: &Server) -> Client {
    builder(url(server))
        .name_prefix(PREFIX)
        .trust_fresh_servers(true)
        // A label must not get in the way of any message.
        .label("orders@host-7")
        .build()
        .await
        .unwrap()
}

/// Waits until this number of channels is listened to.
async fn eventually_listened(admin: &mut Connection, channels: usize) {
    eventually("it listens", async || admin.channels().len() == channels).await;
}

/// Acquires a lock, makes another client wait for it, and hands it over.
macro_rules! hand_over {
    ($one:expr, $two:expr, $lock:ident $(, $side:ident)?) => {{
        let lock = |client: &Client| {
            client.$lock(stringify!($lock))$(.$side())?.owned_by(&Owner::unique())
        };
        let held = lock($one).lock().await.unwrap();
        assert!(lock($two).try_lock().await.unwrap().is_none());
        let waiter = lock($two);
        let waiter = tokio::spawn(async move { waiter.lock().await });
        eventually(concat!("it waits: ", stringify!($lock)), async || format!("{:?}", $two).contains("waiting: 1,")).await;
        held.verify().await.unwrap();
        assert!(lock($one).is_locked().await.unwrap());
        held.unlock().await.unwrap();
        let next = soon(waiter).await.unwrap().unwrap();
        next.unlock().await.unwrap();
        lock($one).force_unlock().await.unwrap();
    }};
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn line_of_the_page_is_enough_for_every_kind() {
    let server = Server::start();
    let mut admin = server.connection();
    let line = line();
    let words: Vec<&str> = line.iter().map(String::as_str).collect();
    assert_eq!(admin.command(&words), Reply::Status("OK".to_owned()));
    let (one, two) = (connect(&server).await, connect(&server).await);
    hand_over!(&one, &two, lock);
    hand_over!(&one, &two, fenced_lock);
    hand_over!(&one, &two, fair_lock);
    hand_over!(&one, &two, spin_lock);
    hand_over!(&one, &two, plain_lock);
    hand_over!(&one, &two, read_write_lock, writer);

    let locks = ["a", "b"].map(|name| one.lock(name));
    let guard = MultiLock::new(locks).lock().await.unwrap();
    guard.extend(secs(60)).await.unwrap();
    guard.unlock().await.unwrap();
    let guard = RedLock::new([one.lock("a")]).lock().await.unwrap();
    guard.unlock().await.unwrap();

    let rooms = one.semaphore("rooms");
    assert!(rooms.try_set_permits(1).await.unwrap());
    let room = rooms.acquire().await.unwrap();
    let waiting = two.semaphore("rooms");
    let waiting = tokio::spawn(async move { waiting.acquire().await });
    eventually_listened(&mut admin, 1).await;
    room.release().await.unwrap();
    soon(waiting)
        .await
        .unwrap()
        .unwrap()
        .release()
        .await
        .unwrap();
    assert_eq!(rooms.drain_permits().await.unwrap(), 1);
    let seats = one.expirable_semaphore("seats");
    assert!(seats.try_set_permits(1).await.unwrap());
    let seat = seats.acquire().await.unwrap();
    seat.extend(secs(60)).await.unwrap();
    seat.release().await.unwrap();

    let latch = one.latch("parts");
    assert!(latch.try_set_count(1).await.unwrap());
    let waiting = two.latch("parts");
    let waiting = tokio::spawn(async move { waiting.wait().await });
    eventually_listened(&mut admin, 1).await;
    latch.count_down().await.unwrap();
    soon(waiting).await.unwrap().unwrap();
    assert!(!latch.delete().await.unwrap());

    let scheduler = one.leader("scheduler");
    let term = scheduler.campaign().await.unwrap();
    let mut watch = two.leader("scheduler").watch();
    assert_eq!(watch.changed().await.unwrap(), Some(term.leader()));
    let watching = tokio::spawn(async move { watch.changed().await });
    eventually_listened(&mut admin, 1).await;
    term.step_down().await.unwrap();
    assert_eq!(soon(watching).await.unwrap().unwrap(), None);

    let report = one.job("report", secs(60));
    let ran = report.execute(async |run| run.verify().await);
    assert_eq!(ran.await.unwrap(), Some(()));
    let again = two.job("report", secs(60));
    let ran = again.execute(async |_| Ok::<_, Error>(()));
    assert_eq!(ran.await.unwrap(), None);

    // Before Redis 7, `CLIENT SETINFO` is refused to this user, and does not exist.
    if !is_before_7(&server) {
        let log = admin.command(&["ACL", "LOG"]);
        assert_eq!(log, Reply::Array(Vec::new()), "{line:?}");
    }
}

#[tokio::test]
async fn line_of_the_page_opens_no_other_name() {
    let server = Server::start();
    let line = line();
    let words: Vec<&str> = line.iter().map(String::as_str).collect();
    server.connection().command(&words);
    let client = connect(&server).await;
    // The prefix ends what this client names, so another client asks for a name without it.
    let stranger = builder(url(&server)).build().await.unwrap();
    assert_eq!(
        kind(stranger.lock("invoices:1").try_lock().await),
        ErrorKind::Backend
    );
    assert!(client.lock("1").try_lock().await.unwrap().is_some());
}

/// Takes a right away from one who holds the lock, which nobody else touches.
async fn is_refused_without(
    right: &str,
    lock: impl DistributedLock<Guard = LockGuard>,
    admin: &mut Connection,
) {
    let guard = lock.lock().await.expect(right);
    let revoked = admin.command(&["ACL", "SETUSER", "orders", &format!("-{right}")]);
    assert_eq!(revoked, Reply::Status("OK".to_owned()));
    let refused = guard.verify().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Backend, "{right}: {refused}");
    assert_eq!(soon(guard.lost()).await, LossReason::Expired, "{right}");
    admin.command(&["ACL", "SETUSER", "orders", &format!("+{right}")]);
    drop(guard);
}

#[tokio::test]
async fn missing_right_is_a_refusal_and_no_proof_that_the_lock_is_gone() {
    let server = Server::start();
    let mut admin = server.connection();
    let line = line();
    let words: Vec<&str> = line.iter().map(String::as_str).collect();
    admin.command(&words);
    let brief = builder(url(&server)).watchdog_lease(millis(400));
    let client = brief.name_prefix(PREFIX).build().await.unwrap();
    is_refused_without("hget", client.lock("k"), &mut admin).await;
    is_refused_without("get", client.plain_lock("p"), &mut admin).await;
    let sides = client.read_write_lock("rw");
    is_refused_without("hget", sides.writer(), &mut admin).await;
    is_refused_without("get", sides.reader(), &mut admin).await;

    let set = MultiLock::new(["a", "b"].map(|name| client.lock(name)));
    let guard = set.lock().await.unwrap();
    admin.command(&["ACL", "SETUSER", "orders", "-hmget"]);
    assert_eq!(kind(guard.unlock().await), ErrorKind::Backend);
}

#[tokio::test]
async fn plain_lock_needs_the_line_of_the_page_without_scripts_only() {
    let server = Server::start();
    let mut admin = server.connection();
    let mut line = line();
    line.push("-@scripting".to_owned());
    let words: Vec<&str> = line.iter().map(String::as_str).collect();
    assert_eq!(admin.command(&words), Reply::Status("OK".to_owned()));
    let brief = builder(url(&server)).watchdog_lease(millis(600));
    let client = brief.name_prefix(PREFIX).build().await.unwrap();
    let lock = client.plain_lock("p");
    let guard = lock.lock().await.unwrap();
    reset_calls(&mut admin);
    eventually("it is renewed", async || {
        calls_of(&mut admin, "pexpire") > 1
    })
    .await;
    guard.extend(secs(60)).await.unwrap();
    guard.verify().await.unwrap();
    assert!(lock.is_held().await.unwrap());
    guard.unlock().await.unwrap();
    assert!(!admin.exists("orders:p"));
}

/// Gives the user the rights of the page, except those that are taken away: a pattern, or commands.
fn grant(admin: &mut Connection, without: &str) {
    let mut words: Vec<String> = line().into_iter().filter(|word| word != without).collect();
    words.insert(3, "reset".to_owned());
    if let Some(command) = without.strip_prefix('+') {
        words.push(format!("-{command}"));
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    assert_eq!(admin.command(&words), Reply::Status("OK".to_owned()));
}

/// Returns the kinds that lack a right, by the word of the client.
async fn lacking(client: &Client, right: &str) -> Vec<&'static str> {
    let missing = client.admin().check_rights("probe").await.unwrap();
    let lacks = missing
        .iter()
        .filter(|it| it.rights.iter().any(|word| word == right));
    lacks.map(|it| it.kind).collect()
}

/// Uses a lock, semaphore or latch of a kind as everybody does.
async fn used(client: &Client, kind: &str, name: &str) -> Result<(), Error> {
    match kind {
        "reentrant" => {
            let lock = client.lock(name);
            let (outer, inner) = (lock.lock().await?, lock.lock().await?);
            inner.unlock().await?;
            outer.verify().await?;
            lock.holder().await?;
            outer.unlock().await
        }
        "fenced" => client.fenced_lock(name).lock().await?.unlock().await,
        "fair" => client.fair_lock(name).lock().await?.unlock().await,
        "plain" => client.plain_lock(name).lock().await?.unlock().await,
        "read" => client.read_write_lock(name).read().await?.unlock().await,
        "write" => client.read_write_lock(name).write().await?.unlock().await,
        "set" => {
            MultiLock::new([client.lock(name), client.lock(format!("{name}:2"))])
                .lock()
                .await?
                .unlock()
                .await
        }
        "redlock" => {
            RedLock::new([client.lock(name)])
                .lock()
                .await?
                .unlock()
                .await
        }
        "semaphore" => {
            let rooms = client.semaphore(name);
            rooms.try_set_permits(1).await?;
            rooms.acquire().await?.release().await
        }
        "expirable" => {
            let rooms = client.expirable_semaphore(name);
            rooms.try_set_permits(1).await?;
            rooms.acquire().await?.release().await
        }
        "latch" => {
            let latch = client.latch(name);
            latch.try_set_count(1).await?;
            latch.count_down().await.map(drop)
        }
        _ => panic!("{kind} is not used here"),
    }
}

// fault: S19
#[tokio::test]
async fn right_that_is_missing_is_named_for_each_kind_that_fails_without_it() {
    let server = Server::start();
    let mut admin = server.connection();
    grant(&mut admin, "");
    let client = connect(&server).await;
    assert_eq!(client.admin().check_rights("probe").await.unwrap(), []);
    for (at, (right, kinds)) in [
        ("+hdel", &["reentrant"][..]),
        ("+hincrby", &["reentrant"]),
        ("+hget", &["reentrant"]),
        ("+hgetall", &["reentrant"]),
        ("+hmget", &["reentrant", "fenced", "fair", "read", "write"]),
        ("+pttl", &["reentrant", "fenced", "read"]),
        ("+time", &["fenced", "expirable"]),
        ("+get", &["fenced", "plain", "semaphore", "latch"]),
        ("+set", &["fenced", "plain", "read", "semaphore"]),
        ("+exists", &["set", "write", "expirable"]),
        ("+lindex", &["fair"]),
        ("+decrby", &["semaphore", "expirable"]),
        ("+incrby", &["semaphore", "expirable"]),
        ("+zscore", &["expirable"]),
        ("+zcount", &["expirable"]),
        ("+zadd", &["expirable"]),
        ("+info", &["redlock"]),
        ("~redlatch_redlock_mark", &["redlock"]),
        (
            "~*{orders:*}*",
            &["fenced", "fair", "read", "semaphore", "latch"],
        ),
        ("~orders:*", &["reentrant", "plain", "set", "latch"]),
        ("+evalsha", &["reentrant", "set", "latch"]),
    ]
    .into_iter()
    .enumerate()
    {
        grant(&mut admin, right);
        let named = lacking(&client, right).await;
        for kind in kinds {
            assert!(named.contains(kind), "{kind} without {right}: {named:?}");
            let failed = soon(used(&client, kind, &format!("{kind}:{at}"))).await;
            assert!(failed.is_err(), "{kind} can do without {right}");
        }
    }
    for command in [
        "decr",
        "del",
        "hlen",
        "hset",
        "linsert",
        "llen",
        "lpop",
        "lpos",
        "lpush",
        "lrange",
        "lrem",
        "pexpire",
        "pexpireat",
        "rename",
        "rpush",
        "zcard",
        "zincrby",
        "zrange",
        "zrem",
        "zremrangebyscore",
        "eval",
        "ping",
    ] {
        let right = format!("+{command}");
        grant(&mut admin, &right);
        assert_ne!(lacking(&client, &right).await, [""; 0], "{right}");
    }
    grant(&mut admin, "+@scripting");
    assert!(!lacking(&client, "+evalsha").await.contains(&"plain"));
    admin.command(&["ACL", "SETUSER", "orders", "-@transaction"]);
    assert_eq!(lacking(&client, "+@transaction").await, ["plain"]);
    grant(&mut admin, "");
    client.close().await;
    let probes = admin.keys().into_iter().filter(|key| key.contains("probe"));
    assert_eq!(probes.count(), 0, "nothing is left of the tries");
}
