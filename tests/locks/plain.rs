//! The plain lock: the format that other clients share, with compare-and-change by script and by transaction.

use crate::support;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::probe::{
    NEVER, acquiring, calls_of, kind, millis, nothing_left, reset_calls, secs, soon, stranger,
    subscribers,
};
use crate::support::{builder, client, eventually, sha, start, start_two};
use redlatch::config::ReleaseBy;
use redlatch::{Client, ErrorKind, LockGuard, Owner, PlainLock};
use redlatch_testkit::{Connection, Proxy, Reply, Server, script};

const NAME: &str = "k";
const BOTH: [ReleaseBy; 2] = [ReleaseBy::Script, ReleaseBy::Transaction];

fn value(probe: &mut Connection) -> Reply {
    probe.command(&["GET", NAME])
}

fn is(text: &str) -> Reply {
    Reply::Text(text.as_bytes().to_vec())
}

async fn take(lock: &PlainLock) -> LockGuard {
    soon(lock.lock()).await.expect("the lock can be had")
}

/// Starts a server that refuses every script.
fn scriptless() -> Server {
    let server = Server::start();
    let mut admin = server.connection();
    let done = admin.command(&["ACL", "SETUSER", "default", "-@scripting"]);
    assert_eq!(done, Reply::Status("OK".to_owned()));
    server
}

fn waiting(client: &Client, calls: usize) -> bool {
    format!("{client:?}").contains(&format!("waiting: {calls},"))
}

/// Connects a client whose requests and leases outlast what is done to its connections.
async fn patient(url: String) -> Client {
    builder(url)
        .command_timeout(secs(8))
        .watchdog_lease(secs(60))
        .build()
        .await
        .unwrap()
}

#[tokio::test]
async fn lock_is_a_string_that_tells_one_hold_and_ends_with_its_lease() {
    let (server, client) = start().await;
    let mut probe = server.connection();
    for by in BOTH {
        let lock = client.plain_lock(NAME).release_by(by).lease(secs(10));
        let mut values = Vec::new();
        for _ in 0..2 {
            let guard = take(&lock).await;
            let value = value(&mut probe).text();
            let owner = format!("{}/{}:h", client.label(), client.owner_field(guard.owner()));
            assert!(value.starts_with(&owner), "{value}");
            let ttl = probe.pttl(NAME);
            assert!(ttl > 9_000 && ttl <= 10_000, "{ttl}");
            assert_eq!(lock.holder().await.unwrap().unwrap().owner(), value);
            assert!(!values.contains(&value), "one hold as another");
            values.push(value);
            guard.unlock().await.unwrap();
            assert!(!probe.exists(NAME));
        }
        let guard = take(&lock.owned_by(&Owner::named("req-7"))).await;
        assert_eq!(value(&mut probe), is("req-7"));
        guard.unlock().await.unwrap();
    }
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn owner_finds_its_own_lock_busy() {
    let (server, client, other) = start_two().await;
    for by in BOTH {
        for owner in [Owner::unique(), Owner::named("req-7")] {
            let lock = client.plain_lock(NAME).release_by(by).owned_by(&owner);
            let there = other.plain_lock(NAME).release_by(by).owned_by(&owner);
            let guard = take(&lock).await;
            assert!(lock.try_lock().await.unwrap().is_none());
            assert!(lock.try_lock_for(millis(50)).await.unwrap().is_none());
            assert!(there.try_lock().await.unwrap().is_none());
            assert_eq!(kind(guard.reenter().await), ErrorKind::Refused);
            guard.verify().await.unwrap();
            assert_eq!(lock.hold_count().await.unwrap(), 1);
            assert_eq!(
                there.is_held().await.unwrap(),
                owner == Owner::named("req-7")
            );
            guard.unlock().await.unwrap();
        }
    }
    nothing_left(&server, [&client, &other]).await;
}

#[tokio::test]
async fn foreign_holder_is_waited_for_by_pauses_without_a_message() {
    let (server, client) = start().await;
    let mut probe = server.connection();
    for by in BOTH {
        let lock = client.plain_lock(NAME).release_by(by);
        probe.command(&["SET", NAME, "token", "PX", "600000"]);
        assert!(lock.try_lock().await.unwrap().is_none());
        assert_eq!(lock.holder().await.unwrap().unwrap().owner(), "token");
        reset_calls(&mut probe);
        let waiter = tokio::spawn({
            let lock = lock.clone();
            async move { lock.lock().await }
        });
        eventually("it asked often", async || calls_of(&mut probe, "get") > 8).await;
        assert!(probe.channels().is_empty());
        let freed = Instant::now();
        probe.command(&["DEL", NAME]);
        let guard = soon(waiter).await.unwrap().unwrap();
        // The longest pause, and some slack for a busy machine.
        let took = freed.elapsed();
        assert!(took < millis(128) + millis(150), "{took:?}");
        guard.unlock().await.unwrap();

        // The lease ends long before the next pause would.
        probe.command(&["SET", NAME, "token", "PX", "300"]);
        take(&lock).await.unlock().await.unwrap();
        // A key without a TTL leaves only the caller's limit to end the wait. It is one of redis-py.
        probe.command(&["SET", NAME, "f4a1c2d03b4e11ef9c1a0242ac120002"]);
        assert!(lock.try_lock_for(millis(100)).await.unwrap().is_none());
        assert_eq!(lock.remaining_lease().await.unwrap(), None);
        assert!(lock.force_unlock().await.unwrap());
        assert!(!probe.exists(NAME));
    }
    assert_eq!(calls_of(&mut probe, "publish"), 0);
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn string_without_a_lease_is_no_lock_and_is_neither_shown_nor_released() {
    let (server, client) = start().await;
    let mut probe = server.connection();
    let digest = "f4a1c2d03b4e41ef9c1a0242ac120002";
    for by in BOTH {
        let lock = client.plain_lock(NAME).release_by(by);
        for text in ["secret=7", digest, &digest[1..], "true"] {
            probe.command(&["SET", NAME, text, "PX", "60000"]);
            let found = client.admin().inspect(NAME).await.unwrap().unwrap();
            assert_eq!(found.holders[0].owner, text);
            probe.command(&["PERSIST", NAME]);
            let errors = [
                lock.is_locked().await.map(drop),
                lock.holder().await.map(drop),
                lock.force_unlock().await.map(drop),
                client.admin().inspect(NAME).await.map(drop),
            ];
            for error in errors.map(Result::unwrap_err) {
                assert_eq!(error.kind(), ErrorKind::WrongKind, "{error}");
                assert!(!format!("{error:?}").contains(text), "{error:?}");
            }
            assert!(lock.try_lock().await.unwrap().is_none(), "it may be a lock");
            assert_eq!(value(&mut probe), is(text));
            probe.command(&["DEL", NAME]);
        }
    }
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn key_that_ended_or_is_anothers_is_lost_and_left_alone() {
    let server = Server::start();
    let client = builder(server.url())
        .watchdog_lease(secs(1))
        .build()
        .await
        .unwrap();
    let mut probe = server.connection();
    for by in BOTH {
        for other in [None, Some("other"), Some("")] {
            for call in ["unlock", "verify", "extend", "lost", "drop", "handle"] {
                let lock = client.plain_lock(NAME).release_by(by);
                let guard = take(&lock).await;
                probe.command(&["DEL", NAME]);
                if let Some(other) = other {
                    probe.command(&["SET", NAME, other, "PX", "600000"]);
                }
                let lost = match call {
                    "unlock" => guard.unlock().await,
                    "verify" => guard.verify().await,
                    "extend" => guard.extend(secs(60)).await,
                    "handle" => lock.unlock().await,
                    "lost" => {
                        soon(guard.lost()).await;
                        guard.unlock().await
                    }
                    _ => {
                        drop(guard);
                        support::eventually_idle(&client).await;
                        Err(lock.unlock().await.unwrap_err())
                    }
                };
                let expected = match call {
                    "drop" => ErrorKind::NotHeld,
                    _ => ErrorKind::LeaseLost,
                };
                assert_eq!(kind(lost), expected, "{by:?}, {other:?}, {call}");
                support::eventually_idle(&client).await;
                assert_eq!(
                    value(&mut probe),
                    other.map_or(Reply::Nil, is),
                    "{by:?}, {call}"
                );
                if other.is_some() {
                    assert!(probe.pttl(NAME) > 590_000, "{by:?}, {call}");
                }
                probe.command(&["DEL", NAME]);
            }
        }
    }
    nothing_left(&server, [&client]).await;
}

/// Cuts the connection of a transaction while the request that contains `cut` is on its way, and runs `meanwhile`
/// before the client can have reconnected. Returns what the call answered, and the server's answer to the
/// late request.
async fn cut_at<T: Send + 'static>(
    proxy: &Proxy,
    cut: &str,
    call: impl Future<Output = T> + Send + 'static,
    meanwhile: impl FnOnce(),
) -> (T, Vec<u8>) {
    let mut parcel = proxy.hold_request(cut);
    // A new connection takes several such delays, which leaves time for `meanwhile`.
    proxy.delay(millis(100));
    let call = tokio::spawn(call);
    parcel.caught().await;
    meanwhile();
    let output = soon(call).await.unwrap();
    proxy.delay(Duration::ZERO);
    // The request that was on its way arrives late.
    (output, parcel.deliver().await)
}

#[tokio::test(flavor = "multi_thread")]
async fn cut_between_get_and_exec_leaves_the_next_holders_key() {
    let server = scriptless();
    let proxy = Proxy::start(server.port()).await;
    let client = patient(proxy.url()).await;
    let lock = client.plain_lock(NAME);
    for cut in ["WATCH", "GET", "MULTI", "EXEC"] {
        for verb in ["unlock", "extend"] {
            let guard = take(&lock).await;
            let call = async move {
                match verb {
                    "unlock" => guard.unlock().await,
                    _ => guard.extend(secs(600)).await,
                }
            };
            let mut probe = server.connection();
            let taken = || {
                probe.command(&["DEL", NAME]);
                probe.command(&["SET", NAME, "other", "PX", "30000"]);
            };
            let (output, late) = cut_at(&proxy, cut, call, taken).await;
            // MULTI to EXEC were on their way, so this release most likely ended the hold.
            let given_back = verb == "unlock" && matches!(cut, "MULTI" | "EXEC");
            let lost = output.err().map(|error| error.kind());
            let expected = (!given_back).then_some(ErrorKind::LeaseLost);
            assert_eq!(lost, expected, "{verb}, {cut}");
            let late = String::from_utf8_lossy(&late).into_owned();
            assert!(!late.contains(":1\r\n"), "{cut}: {late}");
            assert_eq!(value(&mut probe), is("other"), "{cut}");
            assert!(probe.pttl(NAME) <= 30_000, "{cut}");
            probe.command(&["DEL", NAME]);
            support::eventually_idle(&client).await;
        }
    }
    nothing_left(&server, [&client]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn key_that_ends_while_a_release_is_cut_was_lost_if_the_release_had_not_begun() {
    let server = scriptless();
    let proxy = Proxy::start(server.port()).await;
    let client = patient(proxy.url()).await;
    let lock = client.plain_lock(NAME);
    for (cut, begun) in [("WATCH", false), ("EXEC", true)] {
        let guard = take(&lock).await;
        let mut probe = server.connection();
        let ended = || assert_eq!(probe.command(&["DEL", NAME]).int(), 1);
        let (output, _) = cut_at(&proxy, cut, guard.unlock(), ended).await;
        let lost = output.err().map(|error| error.kind());
        // With EXEC on its way it was most likely this release that ended it.
        let expected = (!begun).then_some(ErrorKind::LeaseLost);
        assert_eq!(lost, expected, "{cut}");
    }
    nothing_left(&server, [&client]).await;
}

/// Runs on one thread, so that the client sees the end of the connection before it sends MULTI.
#[tokio::test]
async fn connection_that_ends_behind_the_reply_to_get_is_not_made_anew_for_exec() {
    let server = scriptless();
    let proxy = Proxy::start(server.port()).await;
    let client = patient(proxy.url()).await;
    let lock = client.plain_lock(NAME);
    let mut probe = server.connection();
    take(&lock).await.unlock().await.unwrap();
    for _ in 0..5 {
        let guard = take(&lock).await;
        reset_calls(&mut probe);
        proxy.cut_after_reply_to("WATCH");
        proxy.delay(millis(100));
        let unlocking = tokio::spawn(guard.unlock());
        eventually("it was looked at", async || {
            calls_of(&mut probe, "watch") > 0
        })
        .await;
        probe.command(&["DEL", NAME]);
        probe.command(&["SET", NAME, "other", "PX", "30000"]);
        // The test cannot tell whether EXEC was sent before the client saw the end.
        if let Err(error) = soon(unlocking).await.unwrap() {
            assert_eq!(error.kind(), ErrorKind::LeaseLost);
        }
        assert!(!proxy.cut_reply_armed());
        proxy.delay(Duration::ZERO);
        assert_eq!(value(&mut probe), is("other"));
        probe.command(&["DEL", NAME]);
    }
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn idle_connection_that_was_closed_is_made_anew() {
    let server = scriptless();
    let client = builder(server.url())
        .command_timeout(secs(60))
        .build()
        .await
        .unwrap();
    let lock = client.plain_lock(NAME);
    let mut probe = server.connection();
    for _ in 0..5 {
        take(&lock).await.unlock().await.unwrap();
        let guard = take(&lock).await;
        let list = probe.command(&["CLIENT", "LIST"]).text();
        let idle = list
            .lines()
            .find(|line| line.contains("cmd=exec"))
            .expect(&list);
        let id = idle.split(' ').next().unwrap().strip_prefix("id=").unwrap();
        assert_eq!(probe.command(&["CLIENT", "KILL", "ID", id]).int(), 1);
        soon(guard.unlock()).await.unwrap();
    }
    nothing_left(&server, [&client]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cut_transaction_is_done_again_and_its_late_half_does_nothing() {
    let server = scriptless();
    let proxy = Proxy::start(server.port()).await;
    let client = patient(proxy.url()).await;
    let lock = client.plain_lock(NAME);
    let other = support::client(&server).await.plain_lock(NAME);
    for cut in ["WATCH", "MULTI"] {
        let guard = take(&lock).await;
        let mut parcel = proxy.hold_request(cut);
        let unlocking = tokio::spawn(guard.unlock());
        parcel.caught().await;
        soon(unlocking)
            .await
            .unwrap()
            .expect("given back by the second try");
        let next = take(&other).await;
        parcel.deliver().await;
        next.verify().await.expect("the late half of the first try");
        next.unlock().await.unwrap();
    }
    nothing_left(&server, [&client]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn transaction_that_is_refused_or_dropped_half_way_spoils_no_other() {
    let server = scriptless();
    let proxy = Proxy::start(server.port()).await;
    let client = builder(proxy.url()).build().await.unwrap();
    let lock = client.plain_lock(NAME);
    let mut probe = server.connection();
    let guard = take(&lock).await;
    probe.command(&["ACL", "SETUSER", "default", "-del"]);
    let refused = lock.force_unlock().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Backend);
    assert!(refused.to_string().contains("NOPERM"), "{refused}");
    probe.command(&["ACL", "SETUSER", "default", "+del"]);
    support::eventually_idle(&client).await;
    drop(guard);

    // The call is dropped while its WATCH, or its MULTI to EXEC, is on the way.
    for held in ["WATCH", "MULTI"] {
        let guard = take(&stranger(&lock)).await;
        {
            let mut parcel = proxy.hold_request(held);
            let extending = guard.extend(secs(60));
            tokio::pin!(extending);
            tokio::select! {
                biased;
                () = parcel.caught() => {}
                // Where the machine is busy, it may be repeated and done before this task goes on.
                answered = &mut extending => {
                    answered.unwrap();
                    soon(parcel.caught()).await;
                }
            }
        }
        guard.verify().await.unwrap();
        soon(guard.unlock()).await.unwrap();
    }
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn user_without_scripts_needs_no_script_and_no_other_right() {
    let server = Server::start();
    let mut probe = server.connection();
    let rules = "on >s3cret ~* &* +@connection +@transaction +set +get +pttl +del +pexpire";
    let mut command = vec!["ACL", "SETUSER", "app"];
    command.extend(rules.split(' '));
    assert_eq!(probe.command(&command), Reply::Status("OK".to_owned()));
    let url = format!("redis://app:s3cret@127.0.0.1:{}", server.port());
    for by in [ReleaseBy::Auto, ReleaseBy::Transaction] {
        let client = builder(&url)
            .watchdog_lease(millis(600))
            .build()
            .await
            .unwrap();
        let lock = client.plain_lock(NAME).release_by(by);
        reset_calls(&mut probe);
        let guard = take(&lock).await;
        eventually("it was renewed twice", async || {
            calls_of(&mut probe, "pexpire") > 1
        })
        .await;
        guard.extend(secs(60)).await.unwrap();
        guard.verify().await.unwrap();
        assert!(stranger(&lock).try_lock().await.unwrap().is_none());
        assert!(lock.is_held().await.unwrap());
        guard.unlock().await.unwrap();
        let guard = take(&lock).await;
        assert!(lock.force_unlock().await.unwrap());
        soon(guard.lost()).await;
        for script in ["eval", "evalsha", "script"] {
            assert_eq!(calls_of(&mut probe, script), 0, "{by:?}");
        }
        let stats = probe.command(&["INFO", "commandstats"]).text();
        let tried: usize = stats
            .lines()
            .filter(|line| line.starts_with("cmdstat_eval"))
            .filter_map(|line| {
                line.split("rejected_calls=")
                    .nth(1)?
                    .split(',')
                    .next()?
                    .parse::<usize>()
                    .ok()
            })
            .sum();
        assert_eq!(tried, usize::from(by == ReleaseBy::Auto), "{stats}");
        client.close().await;
    }
    assert!(probe.keys().is_empty());
}

/// The acquisition is undone on another connection, and the undo must not overtake it.
#[tokio::test(flavor = "multi_thread")]
async fn dropped_acquisition_that_is_still_on_its_way_is_undone_once_it_arrives() {
    let server = scriptless();
    let proxy = Proxy::start(server.port()).await;
    let client = patient(proxy.url()).await;
    let lock = client.plain_lock(NAME);
    // From now on the client knows that scripts are refused.
    take(&lock).await.unlock().await.unwrap();
    let mut probe = server.connection();
    reset_calls(&mut probe);
    let mut gate = proxy.stop("$3\r\nSET\r\n");
    let call = tokio::spawn(async move { lock.lock().await });
    gate.reached().await;
    call.abort();
    eventually("the undo has begun", async || {
        calls_of(&mut probe, "watch") > 0
    })
    .await;
    gate.open();
    eventually("it was taken", async || calls_of(&mut probe, "set") > 0).await;
    eventually("it is free", async || probe.keys().is_empty()).await;
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn locks_that_need_scripts_say_so_by_name() {
    let server = scriptless();
    let client = client(&server).await;
    let by_script = client.plain_lock(NAME).release_by(ReleaseBy::Script);
    let errors = [
        (
            "a reentrant lock",
            client.lock(NAME).lock().await.unwrap_err(),
        ),
        (
            "a fenced lock",
            client.fenced_lock(NAME).try_lock().await.unwrap_err(),
        ),
        (
            "a fair lock",
            client.fair_lock(NAME).lock().await.unwrap_err(),
        ),
        (
            "a read-write lock",
            client.read_write_lock(NAME).read().await.unwrap_err(),
        ),
        (
            "a read-write lock",
            client.read_write_lock(NAME).try_write().await.unwrap_err(),
        ),
        (
            "a spin lock",
            client.spin_lock(NAME).is_locked().await.unwrap_err(),
        ),
        ("this plain lock", by_script.try_lock().await.unwrap_err()),
    ];
    for (name, error) in errors {
        assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
        let text = error.to_string();
        assert!(text.contains(name) && text.contains("NOPERM"), "{text}");
    }
    let plain = client.plain_lock(NAME);
    take(&plain).await.unlock().await.unwrap();
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn many_holds_are_renewed_together_and_each_tells_of_its_own_loss() {
    for server in [Server::start(), scriptless()] {
        let client = builder(server.url())
            .command_timeout(secs(1))
            .watchdog_lease(secs(3))
            .build()
            .await
            .unwrap();
        let mut probe = server.connection();
        let mut guards = Vec::new();
        for n in 0..150 {
            let lock = client.plain_lock(format!("k{n}"));
            guards.push(take(&lock.owned_by(&Owner::unique())).await);
        }
        let others = [("k3", "string"), ("k77", "list")];
        probe.command(&["SET", "k3", "other"]);
        probe.command(&["DEL", "k77"]);
        probe.command(&["RPUSH", "k77", "other"]);
        let end = Instant::now() + secs(5);
        tokio::time::sleep_until(end.into()).await;
        for (n, guard) in guards.iter().enumerate() {
            assert_eq!(guard.is_lost(), n == 3 || n == 77, "k{n}");
        }
        for guard in guards {
            guard.unlock().await.ok();
        }
        for (key, kind) in others {
            let found = probe.command(&["TYPE", key]);
            assert_eq!(found, Reply::Status(kind.to_owned()), "{key}");
            probe.command(&["DEL", key]);
        }
        nothing_left(&server, [&client]).await;
    }
}

#[tokio::test]
async fn waiters_here_and_those_of_a_reentrant_lock_take_nothing_from_each_other() {
    let (server, client) = start().await;
    let (plain, reentrant) = (client.plain_lock(NAME), client.lock(NAME));

    let held = take(&plain).await;
    let next = acquiring(&reentrant);
    eventually("it stands in line", async || waiting(&client, 1)).await;
    held.unlock().await.unwrap();
    let held = soon(next).await.unwrap().unwrap();

    let front = tokio::spawn({
        let plain = stranger(&plain);
        async move { plain.lock().await }
    });
    eventually("it stands in line", async || waiting(&client, 1)).await;
    let next = acquiring(&reentrant);
    eventually("both stand in line", async || waiting(&client, 2)).await;
    held.unlock().await.unwrap();
    let first = soon(front).await.unwrap();
    if let Ok(guard) = first {
        guard.unlock().await.unwrap();
    } else {
        assert_eq!(kind(first), ErrorKind::WrongKind);
    }
    soon(next).await.unwrap().unwrap().unlock().await.unwrap();

    let held = reentrant.lock().await.unwrap();
    assert_eq!(
        kind(stranger(&plain).try_lock().await),
        ErrorKind::WrongKind
    );
    let held_as_plain = {
        held.unlock().await.unwrap();
        take(&plain).await
    };
    let busy = reentrant
        .clone()
        .owned_by(&Owner::unique())
        .try_lock()
        .await;
    assert_eq!(kind(busy), ErrorKind::WrongKind);
    assert_eq!(kind(reentrant.try_lock().await), ErrorKind::WrongKind);
    held_as_plain.unlock().await.unwrap();
    assert_eq!(subscribers(&mut server.connection(), NAME), 0);
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn streak_of_this_process_ends_with_a_pause_of_the_next_in_line() {
    let server = Server::start();
    for streak in [0, u32::MAX] {
        let client = builder(server.url())
            .local_handoff_limit(streak)
            .build()
            .await
            .unwrap();
        let lock = client.plain_lock(NAME);
        let mut held = take(&lock).await;
        let (mut from_release, mut from_its_reply) = (NEVER, NEVER);
        for _ in 0..40 {
            let next = tokio::spawn({
                let lock = stranger(&lock);
                async move { lock.lock().await }
            });
            eventually("it waits", async || waiting(&client, 1)).await;
            let released = Instant::now();
            held.unlock().await.unwrap();
            let replied = Instant::now();
            held = soon(next).await.unwrap().unwrap();
            from_release = from_release.min(released.elapsed());
            from_its_reply = from_its_reply.min(replied.elapsed());
        }
        held.unlock().await.unwrap();
        // The shortest pause is 1 ms; without one, the grant takes a round trip.
        if streak == 0 {
            assert!(from_release >= millis(1), "no pause: {from_release:?}");
        } else {
            assert!(from_its_reply < millis(1), "paused: {from_its_reply:?}");
        }
        nothing_left(&server, [&client]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_another_process_get_in_beside_many_here() {
    let server = scriptless();
    let many = Client::builder()
        .url(server.url())
        .local_handoff_limit(2)
        .build()
        .await
        .unwrap();
    let one = client(&server).await;
    let done = Arc::new(AtomicBool::new(false));
    let crowd: Vec<_> = (0..4)
        .map(|_| {
            let (lock, done) = (stranger(&many.plain_lock(NAME)), done.clone());
            tokio::spawn(async move {
                while !done.load(Ordering::SeqCst) {
                    lock.lock().await.unwrap().unlock().await.unwrap();
                }
            })
        })
        .collect();
    let lock = one.plain_lock(NAME);
    for _ in 0..5 {
        soon(lock.lock()).await.unwrap().unlock().await.unwrap();
    }
    done.store(true, Ordering::SeqCst);
    for task in crowd {
        soon(task).await.unwrap();
    }
    nothing_left(&server, [&many, &one]).await;
}

/// Drops a call while one of its requests is on its way, and delivers that request to the server afterwards.
async fn dropped_on_the_way<T: std::fmt::Debug>(
    proxy: &Proxy,
    needle: String,
    call: impl Future<Output = T>,
) {
    let mut parcel = proxy.hold_request(needle);
    {
        tokio::pin!(call);
        tokio::select! {
            biased;
            answer = &mut call => panic!("answered: {answer:?}"),
            () = parcel.caught() => {}
        }
    }
    parcel.deliver().await;
}

/// Returns the text that identifies a request: the hash of the script, or the command that stands in for it.
fn request(by: ReleaseBy, script: &str, command: &str) -> String {
    match by {
        ReleaseBy::Transaction => command.to_owned(),
        _ => sha(script),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_call_under_the_name_of_a_holder_leaves_the_hold_alone() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let (client, other) = (patient(proxy.url()).await, client(&server).await);
    let owner = Owner::named("req-7");
    let mut probe = server.connection();
    for name in ["plain_acquire", "plain_adopt"] {
        probe.command(&["SCRIPT", "LOAD", script(name)]);
    }
    for by in BOTH {
        let here = client.plain_lock(NAME).release_by(by).owned_by(&owner);
        let there = other.plain_lock(NAME).release_by(by).owned_by(&owner);
        let held = take(&there).await;
        assert!(here.try_lock().await.unwrap().is_none());
        let acquire = request(by, "plain_acquire", "NX");
        dropped_on_the_way(&proxy, acquire, here.try_lock()).await;
        support::eventually_idle(&client).await;
        held.verify().await.expect("not given back by another");

        let adopt = request(by, "plain_adopt", "WATCH");
        dropped_on_the_way(&proxy, adopt, here.adopt()).await;
        support::eventually_idle(&client).await;
        held.verify().await.expect("not given back by another");

        // An explicit `unlock` releases it.
        here.unlock().await.unwrap();
        assert!(!there.is_locked().await.unwrap());
        drop(held);
    }
    nothing_left(&server, [&client, &other]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_dropped_call_took_under_a_name_ends_by_its_lease() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let client = patient(proxy.url()).await;
    let mut probe = server.connection();
    for by in BOTH {
        let lock = client.plain_lock(NAME).release_by(by).lease(millis(600));
        let named = lock.owned_by(&Owner::named("req-7"));
        take(&named).await.unlock().await.unwrap();
        let acquire = request(by, "plain_acquire", "NX");
        dropped_on_the_way(&proxy, acquire, named.try_lock()).await;
        support::eventually_idle(&client).await;
        let left = probe.pttl(NAME);
        assert!(left <= 600 && left != -1, "{left}");
        soon(named.lock()).await.unwrap().unlock().await.unwrap();
    }
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn hold_that_was_lost_under_a_name_takes_no_later_one_with_it() {
    let (server, client) = start().await;
    let mut probe = server.connection();
    let lock = client.plain_lock(NAME).owned_by(&Owner::named("req-7"));
    let old = take(&lock).await;
    probe.command(&["DEL", NAME]);
    let new = lock.try_lock().await.unwrap().expect("free");
    assert!(old.is_lost());
    drop(old);
    // Everything that was sent about the old hold is answered before the client forgets it.
    eventually("the old one is forgotten", async || {
        format!("{client:?}").contains("holds: 1,")
    })
    .await;
    for _ in 0..3 {
        assert!(lock.is_locked().await.unwrap());
    }
    new.verify().await.unwrap();
    new.unlock().await.unwrap();
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn lock_that_is_freed_by_force_elsewhere_is_found_by_a_pause_here() {
    let (server, client, other) = start_two().await;
    for by in BOTH {
        let fixed = client.plain_lock(NAME).release_by(by).lease(secs(60));
        let held = take(&fixed).await;
        let waiter = stranger(&fixed);
        let waiter = tokio::spawn(async move { waiter.lock().await });
        eventually("it waits", async || waiting(&client, 1)).await;
        assert!(
            other
                .plain_lock(NAME)
                .release_by(by)
                .force_unlock()
                .await
                .unwrap()
        );
        soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();
        assert_eq!(kind(held.unlock().await), ErrorKind::LeaseLost);
    }
    nothing_left(&server, [&client, &other]).await;
}

/// The guard is renewed, and the next renewal is far away.
#[tokio::test]
async fn lock_that_the_server_has_lost_is_found_by_the_poll_cap_though_a_hold_here_stands() {
    let server = Server::start();
    let builder = builder(server.url()).watchdog_lease(secs(600));
    let client = builder.poll_cap(millis(200)).build().await.unwrap();
    let lock = client.plain_lock(NAME);
    let held = stranger(&lock).lock().await.unwrap();
    let waiter = stranger(&lock);
    let waiter = tokio::spawn(async move { waiter.lock().await });
    eventually("it waits", async || {
        format!("{client:?}").contains("waiting: 1,")
    })
    .await;
    server.connection().command(&["DEL", NAME]);
    let next = soon(waiter).await.unwrap().unwrap();
    assert_eq!(kind(held.unlock().await), ErrorKind::LeaseLost);
    next.unlock().await.unwrap();
}
