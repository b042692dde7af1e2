//! Servers that refuse: which kind of error a call returns, and what still works on them.

use crate::support;
use std::error::Error as _;
use std::time::Instant;

use crate::support::probe::{
    calls_of, eventually_free, kind, millis, nothing_left, passes, reset_calls, secs, soon,
    stranger,
};
use crate::support::rogue::rogue;
use crate::support::{builder, client, eventually, start, start_two};
use redlatch::config::ReleaseBy;
use redlatch::{Client, Error, ErrorKind, Owner};
use redlatch_testkit::{Connection, Proxy, Reply, Server};

fn configure(probe: &mut Connection, key: &str, value: &str) {
    let reply = probe.command(&["CONFIG", "SET", key, value]);
    assert_eq!(reply, Reply::Status("OK".to_owned()), "{key} {value}");
}

/// Returns everything that an error shows to a log.
fn shown(error: &Error) -> String {
    let mut shown = format!("{error} {error:?} {error:#?}");
    let mut source = error.source();
    while let Some(error) = source {
        shown += &format!(" {error} {error:?}");
        source = error.source();
    }
    shown
}

#[tokio::test]
async fn server_that_is_not_there_is_a_backend_error_of_connect() {
    let server = Server::start();
    let url = server.url();
    drop(server);
    let started = Instant::now();
    let error = Client::connect(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
    assert!(error.to_string().contains("connect"), "{error}");
    let cause = error.source().expect("a cause");
    assert!(cause.is::<std::io::Error>(), "{cause}");
    assert!(started.elapsed() < secs(10));
    let error = Client::connect("redis://nowhere.invalid:6379")
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
}

// fault: S11
#[tokio::test]
async fn server_out_of_memory_grants_nothing_and_takes_everything_back() {
    let server = Server::start();
    let client = builder(server.url())
        .watchdog_lease(secs(3))
        .build()
        .await
        .unwrap();
    let other = support::client(&server).await;
    let mut probe = server.connection();
    let owner = Owner::named("req-7");
    let lock = client.lock("k").owned_by(&owner);
    let remote = other.lock("k").owned_by(&owner);

    let outer = lock.lock().await.unwrap();
    let inner = lock.lock().await.unwrap();
    let elsewhere = remote.lock().await.unwrap();
    let mut alone = Vec::new();
    for name in ["unlocked", "dropped", "forced", "extended"] {
        alone.push((name, client.lock(name).lock().await.unwrap()));
    }
    configure(&mut probe, "maxmemory", "1");

    let fresh = client.lock("new");
    for result in [
        soon(fresh.lock()).await.map(drop),
        fresh.try_lock().await.map(drop),
        soon(fresh.try_lock_for(secs(60))).await.map(drop),
        outer.reenter().await.map(drop),
        lock.lock().await.map(drop),
    ] {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
        assert!(error.to_string().contains("OOM"), "{error}");
    }
    assert!(!probe.exists("new"));
    assert!(
        stranger(&lock).try_lock().await.unwrap().is_none(),
        "busy is told all the same"
    );
    eventually("the refused re-entries are not counted", async || {
        lock.hold_count().await.unwrap() == 3
    })
    .await;

    // Longer than the lease: the server accepts renewals.
    let kept = tokio::time::timeout(secs(4), outer.lost()).await;
    assert!(kept.is_err());
    assert_eq!(lock.hold_count().await.unwrap(), 3);

    inner.unlock().await.unwrap();
    assert_eq!(lock.hold_count().await.unwrap(), 2, "an inner release");
    remote.unlock().await.unwrap();
    assert_eq!(
        lock.hold_count().await.unwrap(),
        1,
        "a handle's, of this client's level"
    );
    drop(elsewhere);
    // A level that only another client has recorded.
    lock.unlock().await.unwrap();
    assert_eq!(kind(remote.unlock().await), ErrorKind::NotHeld);
    drop(outer);
    for (name, guard) in alone {
        match name {
            "unlocked" => guard.unlock().await.unwrap(),
            "dropped" => drop(guard),
            "forced" => assert!(other.lock(name).force_unlock().await.unwrap()),
            _ => {
                guard.extend(secs(60)).await.unwrap();
                assert!(probe.pttl(name) > 50_000);
                guard.unlock().await.unwrap();
            }
        }
        eventually_free(&server, name).await;
    }
    configure(&mut probe, "maxmemory", "0");
    fresh.lock().await.unwrap().unlock().await.unwrap();
    nothing_left(&server, [&client, &other]).await;
}

#[tokio::test]
async fn level_of_a_named_owner_is_unlocked_elsewhere_without_memory() {
    let (server, one, two) = start_two().await;
    let mut probe = server.connection();
    for levels in [1, 3] {
        let owner = Owner::named("req-7");
        let (here, there) = (
            one.lock("k").owned_by(&owner),
            two.lock("k").owned_by(&owner),
        );
        let mut guards = Vec::new();
        for _ in 0..levels {
            guards.push(here.lock().await.unwrap());
        }
        configure(&mut probe, "maxmemory", "1");
        for left in (0..levels).rev() {
            there.unlock().await.unwrap();
            assert_eq!(there.hold_count().await.unwrap(), left);
        }
        assert!(!probe.exists("k"));
        configure(&mut probe, "maxmemory", "0");
        for guard in guards {
            assert_eq!(kind(guard.unlock().await), ErrorKind::LeaseLost);
        }
    }

    // A level that none of our clients recorded.
    probe.command(&["HSET", "k", "java:1", "2"]);
    probe.command(&["PEXPIRE", "k", "60000"]);
    configure(&mut probe, "maxmemory", "1");
    let java = one.lock("k").owned_by(&Owner::named("java:1"));
    for left in [1, 0] {
        java.unlock().await.unwrap();
        assert_eq!(java.hold_count().await.unwrap(), left);
    }
    nothing_left(&server, [&one, &two]).await;
}

/// Checks what a server means to holders that begins to refuse writes, with this code, and takes them again.
async fn refuses_and_the_key_ends(
    refuse: impl AsyncFn(&mut Connection),
    code: &str,
    accept: impl Fn(&mut Connection),
) {
    let (server, client) = start().await;
    let mut probe = server.connection();
    let lock = client.lock("k").lease(secs(2));
    let guard = lock.lock().await.unwrap();
    let again = lock.lock().await.unwrap();
    refuse(&mut probe).await;
    for result in [
        soon(client.lock("new").lock()).await.map(drop),
        client.lock("new").try_lock().await.map(drop),
        again.unlock().await,
        guard.extend(secs(60)).await,
    ] {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
        assert!(error.to_string().contains(code), "{error}");
    }
    soon(guard.lost()).await;
    assert_eq!(kind(guard.unlock().await), ErrorKind::LeaseLost);
    eventually_free(&server, "k").await;
    accept(&mut probe);
    lock.lock().await.unwrap().unlock().await.unwrap();
    nothing_left(&server, [&client]).await;
}

// fault: S13
#[tokio::test]
async fn server_without_enough_replicas_refuses_and_the_key_ends_by_its_lease() {
    let least = |probe: &mut Connection, least| configure(probe, "min-replicas-to-write", least);
    let refuse = async |probe: &mut Connection| least(probe, "1");
    refuses_and_the_key_ends(refuse, "NOREPLICAS", |probe| least(probe, "0")).await;
}

// fault: S12
#[tokio::test]
async fn server_that_cannot_save_refuses_and_the_key_ends_by_its_lease() {
    let refuse = async |probe: &mut Connection| {
        let dir = probe.command(&["CONFIG", "GET", "dir"]).texts();
        std::fs::remove_dir_all(&dir[1]).unwrap();
        configure(probe, "save", "3600 1");
        probe.command(&["BGSAVE"]);
        eventually("it cannot save", async || {
            let state = probe.command(&["INFO", "persistence"]).text();
            state.contains("rdb_last_bgsave_status:err")
        })
        .await;
    };
    let accept = |probe: &mut Connection| configure(probe, "stop-writes-on-bgsave-error", "no");
    refuses_and_the_key_ends(refuse, "MISCONF", accept).await;
}

#[tokio::test]
async fn refused_release_is_carried_out_once_the_server_takes_writes() {
    let (server, client) = start().await;
    let mut probe = server.connection();
    let guard = client.lock("k").lock().await.unwrap();
    configure(&mut probe, "min-replicas-to-write", "1");
    assert_eq!(kind(guard.unlock().await), ErrorKind::Backend);
    assert!(probe.pttl("k") > 10_000);
    configure(&mut probe, "min-replicas-to-write", "0");
    eventually_free(&server, "k").await;
    nothing_left(&server, [&client]).await;
}

// fault: S14
#[tokio::test]
async fn replica_refuses_in_clear_words_and_is_given_time_to_become_primary() {
    let primary = Server::start();
    let replica = Server::builder().replica_of(primary.port()).start();
    let client = builder(replica.url()).build().await.unwrap();
    let lock = client.lock("k");
    let started = Instant::now();
    let refused = [
        lock.try_lock().await.map(drop),
        lock.try_lock_for(millis(700)).await.map(drop),
    ];
    for result in refused {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
        assert!(error.to_string().contains("READONLY"), "{error}");
    }
    assert!(started.elapsed() < secs(4), "{:?}", started.elapsed());
    assert!(!primary.connection().exists("k"));
    let mut probe = replica.connection();
    reset_calls(&mut probe);
    let waiting = support::probe::acquiring(&lock);
    eventually("it was refused", async || {
        calls_of(&mut probe, "evalsha") > 0
    })
    .await;
    replica.connection().command(&["REPLICAOF", "NO", "ONE"]);
    passes(waiting).await;
    nothing_left(&replica, [&client]).await;
}

/// A replica may lack what its primary has, and refuses no transaction that changes nothing.
#[tokio::test]
async fn replica_that_has_nothing_to_change_answers_no_transaction() {
    let primary = Server::start();
    let replica = Server::builder().replica_of(primary.port()).start();
    let client = builder(replica.url()).build().await.unwrap();
    let lock = client.plain_lock("k").release_by(ReleaseBy::Transaction);
    let error = lock.force_unlock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
    assert!(error.to_string().contains("READONLY"), "{error}");
}

#[tokio::test]
async fn replica_that_never_becomes_primary_is_an_error_after_one_watchdog_lease() {
    let primary = Server::start();
    let replica = Server::builder().replica_of(primary.port()).start();
    let writer = client(&primary).await;
    assert!(writer.semaphore("s").try_set_permits(1).await.unwrap());
    let held = writer.lock("held").lock().await.unwrap();
    eventually("both are replicated", async || {
        ["s", "held"]
            .iter()
            .all(|key| replica.connection().exists(key))
    })
    .await;
    let lease = secs(1);
    let client = builder(replica.url())
        .watchdog_lease(lease)
        .build()
        .await
        .unwrap();
    // A call that meets another type of key is answered: an answer is not a sign of a primary.
    let other = client.lock("s");
    let looking = tokio::spawn(async move {
        while kind(other.try_lock().await) == ErrorKind::WrongKind {
            tokio::time::sleep(millis(10)).await;
        }
    });
    let started = Instant::now();
    let (lock, fair, semaphore) = (
        client.lock("k"),
        client.fair_lock("f"),
        client.semaphore("s"),
    );
    let other = lock.clone().owned_by(&Owner::unique());
    let written = client.read_write_lock("rw");
    let (first, second, fair, written, permit) = soon(async {
        tokio::join!(
            lock.lock(),
            other.lock(),
            fair.lock(),
            written.write(),
            semaphore.acquire(),
        )
    })
    .await;
    let took = started.elapsed();
    let errors = [
        first.map(drop).unwrap_err(),
        second.map(drop).unwrap_err(),
        fair.map(drop).unwrap_err(),
        written.map(drop).unwrap_err(),
        permit.map(drop).unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
        assert!(error.to_string().contains("is a replica"), "{error}");
    }
    println!("after {took:?}");
    assert!(took >= lease && took < lease * 3, "{took:?}");
    assert!(!looking.is_finished());
    looking.abort();
    held.unlock().await.unwrap();
    client.close().await;
}

#[tokio::test]
async fn user_without_the_right_to_run_scripts_is_refused_in_clear_words() {
    let server = Server::start();
    let mut probe = server.connection();
    let rules = [
        "ACL", "SETUSER", "app", "on", ">s3cret", "~*", "&*", "+@all",
    ];
    for (right, revoked) in [("scripts", "-@scripting"), ("keys", "resetkeys")] {
        probe.command(&rules);
        probe.command(&["ACL", "SETUSER", "app", revoked]);
        let url = format!("redis://app:s3cret@127.0.0.1:{}", server.port());
        let client = builder(url).build().await.unwrap();
        let lock = client.lock("k").lease(millis(500));
        let error = soon(lock.lock()).await.expect_err(right);
        assert_eq!(error.kind(), ErrorKind::Backend, "{right}: {error}");
        let shown = shown(&error);
        assert!(
            ["NOPERM", "permission", "can't run"]
                .iter()
                .any(|word| shown.contains(word)),
            "{right}: {shown}"
        );
        assert!(!shown.contains("s3cret"), "{shown}");
        client.close().await;
        eventually_free(&server, "k").await;
    }
}

#[tokio::test]
async fn waiter_that_may_not_subscribe_still_gets_in() {
    let server = Server::start();
    let mut probe = server.connection();
    probe.command(&[
        "ACL",
        "SETUSER",
        "app",
        "on",
        ">s3cret",
        "~*",
        "resetchannels",
        "+@all",
    ]);
    let url = format!("redis://app:s3cret@127.0.0.1:{}", server.port());
    let client = builder(url).build().await.unwrap();
    probe.command(&["HSET", "k", "java:1", "1"]);
    let waiting = support::probe::acquiring(&client.lock("k").lease(secs(3)));
    let busy = stranger(&client.lock("k")).try_lock_for(millis(300)).await;
    assert!(matches!(busy, Ok(None)), "{busy:?}");
    probe.command(&["DEL", "k"]);
    let guard = soon(waiting).await.unwrap().unwrap();
    // This user may not publish either.
    guard.unlock().await.unwrap();
    assert!(!probe.exists("k"));
}

#[tokio::test]
async fn refusal_names_its_lock_and_keeps_the_words_of_the_server() {
    let (server, client) = start().await;
    let mut probe = server.connection();
    let guard = client.lock("orders:42").lock().await.unwrap();
    configure(&mut probe, "min-replicas-to-write", "1");
    let error = guard.extend(secs(60)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
    assert!(error.to_string().contains("\"orders:42\""), "{error}");
    let source = error.source().expect("the server's words").to_string();
    assert!(source.contains("NOREPLICAS"), "{source}");
    configure(&mut probe, "min-replicas-to-write", "0");
    probe.command(&["RPUSH", "list", "item"]);
    let error = client.lock("list").try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongKind);
    let source = error.source().expect("the server's words").to_string();
    assert!(source.contains("WRONGTYPE"), "{source}");
    probe.command(&["DEL", "list"]);
    guard.unlock().await.unwrap();
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn silence_names_the_lock_that_was_asked_about() {
    let server = Server::start();
    let client = builder(server.url()).build().await.unwrap();
    let guard = client.lock("orders:42").lock().await.unwrap();
    server.freeze();
    for error in [
        guard.verify().await.unwrap_err(),
        guard.extend(secs(60)).await.unwrap_err(),
        client.lock("orders:42").is_locked().await.unwrap_err(),
    ] {
        assert!(error.to_string().contains("\"orders:42\""), "{error}");
        assert!(error.source().is_some(), "{error}");
    }
    server.thaw();
    drop(guard);
    eventually_free(&server, "orders:42").await;
}

#[tokio::test]
async fn answers_that_no_server_gives_are_short_errors_and_no_panic() {
    let server = Server::start();
    let long = "x".repeat(5 << 20);
    let nested = |depth: usize| "*1\r\n".repeat(depth) + ":1\r\n";
    let answers = [
        (ErrorKind::Backend, format!("-ERR {long}\r\n")),
        (ErrorKind::Backend, format!("-NOPERM {long}\r\n")),
        (
            ErrorKind::Protocol,
            format!("${}\r\n{long}\r\n", long.len()),
        ),
        (ErrorKind::Protocol, format!("*1\r\n+{long}\r\n")),
        (
            ErrorKind::Protocol,
            "*2\r\n$4\r\nbusy\r\n-ERR no\r\n".into(),
        ),
        (
            ErrorKind::Protocol,
            "*100000\r\n".to_owned() + &":1\r\n".repeat(100_000),
        ),
        (ErrorKind::Protocol, nested(1)),
        (ErrorKind::Protocol, nested(100)),
        (ErrorKind::Protocol, nested(2_000)),
    ];
    for (kind, answer) in answers {
        let start: String = answer.chars().take(20).collect();
        let url = rogue(&server, answer.into_bytes());
        let client = builder(url).command_timeout(secs(5)).build().await.unwrap();
        let error = soon(client.lock("k").try_lock()).await.expect_err(&start);
        assert_eq!(error.kind(), kind, "{start}");
        let shown = shown(&error);
        assert!(shown.len() < 8_000, "{start}: {} bytes", shown.len());
    }
}

#[tokio::test]
async fn server_that_never_knows_a_script_is_not_asked_again_and_again() {
    let server = Server::start();
    let answer = "-NOSCRIPT No matching script. Please use EVAL.\r\n";
    let client = builder(rogue(&server, answer.into()))
        .build()
        .await
        .unwrap();
    let lock = client.lock("k");
    for error in [
        soon(lock.lock()).await.map(drop),
        soon(lock.try_lock_for(secs(60))).await.map(drop),
        soon(lock.is_locked()).await.map(drop),
        soon(client.plain_lock("p").lock()).await.map(drop),
    ] {
        let error = error.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
        assert!(error.to_string().contains("EVAL"), "{error}");
    }
    soon(client.close()).await;
    let requests = client.stats().traffic.requests;
    assert!(requests < 40, "{requests}");
}

#[tokio::test]
async fn wrong_password_is_refused_without_showing_it() {
    let server = Server::builder().password("r1ght-s3cret").start();
    for login in [":wr0ng-s3cret@", "user:wr0ng-s3cret@", ""] {
        let url = format!("redis://{login}127.0.0.1:{}", server.port());
        let built = Client::builder().url(&url);
        let debug = format!("{built:?} {built:#?}");
        assert!(!debug.contains("s3cret"), "{debug}");
        // Without a login, the server refuses at the handshake or at the first command.
        let error = match soon(built.build()).await {
            Err(error) => error,
            Ok(client) => soon(client.lock("k").try_lock()).await.unwrap_err(),
        };
        assert_eq!(error.kind(), ErrorKind::Backend, "{login}: {error}");
        let shown = shown(&error);
        assert!(!shown.contains("s3cret"), "{shown}");
        let clear = ["WRONGPASS", "NOAUTH", "password", "uthenticat"];
        assert!(
            clear.iter().any(|word| error.to_string().contains(word)),
            "{error}"
        );
    }
}

#[tokio::test]
async fn debug_of_nothing_shows_the_password() {
    let server = Server::builder().password("r1ght-s3cret").start();
    let builder = Client::builder().url(server.url());
    let before = format!("{builder:?}");
    let client = builder.build().await.unwrap();
    let scope = client.scoped("a:");
    let lock = scope.lock("k").lease(secs(9));
    let guard = lock.lock().await.unwrap();
    let holder = lock.holder().await.unwrap();
    let owner = guard.owner();
    let error = lock
        .clone()
        .owned_by(&Owner::named("x"))
        .unlock()
        .await
        .unwrap_err();
    let all = format!(
        "{before} {client:?} {client:#?} {scope:?} {lock:?} {guard:?} {:?} {holder:?} {owner:?} {error:?} {error}",
        *guard
    );
    assert!(!all.contains("s3cret"), "{all}");
    let shown = format!("{client:?}");
    assert!(shown.contains(client.id()), "it helps an operator: {shown}");
    guard.unlock().await.unwrap();
    client.close().await;
    let error = lock.try_lock().await.unwrap_err();
    assert!(error.to_string().contains("closed"), "{error}");
}

#[tokio::test]
async fn texts_of_errors_name_the_lock_and_what_to_do() {
    let (server, client) = start().await;
    let lock = client.lock("orders:42");
    let guard = lock.lock().await.unwrap();
    lock.unlock().await.unwrap();
    let texts = [
        (lock.unlock().await.unwrap_err(), "orders:42"),
        (guard.verify().await.unwrap_err(), "orders:42"),
        (guard.unlock().await.unwrap_err(), "orders:42"),
        (client.lock("").lock().await.unwrap_err(), "empty"),
        (
            lock.clone().lease(millis(1)).lock().await.unwrap_err(),
            "50ms",
        ),
        (
            lock.clone()
                .owned_by(&Owner::named("mode"))
                .lock()
                .await
                .unwrap_err(),
            "mode",
        ),
    ];
    for (error, word) in texts {
        assert!(error.to_string().contains(word), "{error}");
        assert!(
            !error.to_string().ends_with('.'),
            "a text to put into another: {error}"
        );
    }
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn silent_server_costs_a_call_its_limit_and_one_command_timeout() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let limit = secs(1);
    let client = builder(proxy.url())
        .command_timeout(limit)
        .build()
        .await
        .unwrap();
    let lock = client.lock("k");
    let guards = [
        lock.lock().await.unwrap(),
        lock.lock().await.unwrap(),
        lock.lock().await.unwrap(),
    ];
    proxy.black_hole(true);
    // Each drop is a release in flight that nobody answers.
    drop(guards);
    for wait in [None, Some(millis(0)), Some(millis(300)), None] {
        let started = Instant::now();
        let answer = match wait {
            None => stranger(&lock).try_lock().await,
            Some(wait) => stranger(&lock).try_lock_for(wait).await,
        };
        let took = started.elapsed();
        let kind = kind(answer);
        assert!(
            matches!(kind, ErrorKind::Backend | ErrorKind::Timeout),
            "{kind:?}"
        );
        let most = limit + wait.unwrap_or_default() + millis(500);
        assert!(took < most, "{wait:?} took {took:?}");
    }
    proxy.black_hole(false);
    eventually_free(&server, "k").await;
}
