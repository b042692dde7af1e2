//! The command connection: how it introduces itself, what it does while the server is away, and how often it
//! reconnects.

use crate::support;
use std::net::TcpListener;
use std::time::Instant;

use crate::support::probe::{
    eventually_heard, millis, name_of, nothing_left, secs, soon, stranger, take_turns,
};
use crate::support::rogue::rogue;
use crate::support::{builder, eventually, eventually_unreachable, start};
use redlatch::{Client, Config, ErrorKind};
use redlatch_testkit::{Connection, Proxy, Server, skip};

/// Returns what the server's `CLIENT LIST` says about each connection of this client.
fn lines_of(probe: &mut Connection, client: &Client) -> Vec<String> {
    let list = probe.command(&["CLIENT", "LIST"]).text();
    let name = format!("name=redlatch:{} ", name_of(client));
    let lines = list.lines().filter(|line| line.contains(&name));
    lines.map(str::to_owned).collect()
}

#[tokio::test]
async fn operators_find_a_client_by_its_id_and_its_library() {
    let (server, client) = start().await;
    let mut probe = server.connection();
    let lines = lines_of(&mut probe, &client);
    // One for commands, one for messages.
    assert_eq!(lines.len(), 2, "{lines:?}");
    let info = probe.command(&["INFO", "server"]).text();
    if info.contains("redis_version:7.2") || info.contains("redis_version:8") {
        let is_named = |line: &String| line.contains("lib-name=redlatch");
        assert!(lines.iter().all(is_named), "{lines:?}");
    }
    client.close().await;
    eventually("it is gone", async || {
        lines_of(&mut probe, &client).is_empty()
    })
    .await;
}

#[tokio::test]
async fn server_that_knows_no_hello_is_spoken_to_in_the_older_version() {
    let server = Server::builder()
        .password("secret")
        .directive("rename-command", &["HELLO", "HI"])
        .start();
    let client = Client::builder().url(server.url()).poll_cap(secs(60));
    let client = client.build().await.unwrap();
    let guard = soon(client.lock("k").lock()).await.unwrap();
    assert_eq!(lines_of(&mut server.connection(), &client).len(), 2);
    let lock = stranger(&client.lock("k"));
    let waiter = tokio::spawn(async move { lock.lock().await });
    eventually_heard(&server, "k", 1).await;
    // Another client releases the lock by force: only a message tells the waiter.
    let other = support::client(&server).await;
    assert!(other.lock("k").force_unlock().await.unwrap());
    let next = soon(waiter).await.unwrap().unwrap();
    drop(guard);
    next.unlock().await.unwrap();
    other.close().await;
    nothing_left(&server, [&client]).await;
}

#[cfg(unix)]
#[tokio::test]
async fn unix_socket_carries_a_lock() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("redis.sock");
    let server = Server::builder().arg("unixsocket", path.display()).start();
    let config = Config::unix_socket(&path).database(2);
    let url = format!("redis+unix://{}?db=2", path.display());
    assert_eq!(config, url.parse().unwrap());
    let client = Client::builder().config(config).build().await.unwrap();
    let lock = client.lock("k");
    let guard = soon(lock.lock()).await.unwrap();
    let mut probe = server.connection();
    assert!(!probe.exists("k"), "another database");
    assert_eq!(probe.command(&["SELECT", "2"]).text(), "OK");
    assert!(probe.exists("k"));
    let lines = lines_of(&mut probe, &client);
    assert!(lines.iter().all(|line| line.contains("db=2")), "{lines:?}");
    guard.unlock().await.unwrap();
    client.close().await;
    assert!(probe.keys().is_empty());
}

#[cfg(unix)]
#[tokio::test]
async fn unix_socket_by_its_url_takes_a_user_and_a_password() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("redis.sock");
    let _server = Server::builder()
        .arg("unixsocket", path.display())
        .password("s3cret/")
        .start();
    for login in [":s3cret%2F@", "default:s3cret%2F@localhost"] {
        let url = format!("redis+unix://{login}{}?db=1", path.display());
        let client = Client::connect(url).await.unwrap();
        let guard = soon(client.lock("k").lock()).await.unwrap();
        guard.unlock().await.unwrap();
        client.close().await;
    }
    let error = Client::connect(format!("redis+unix://{}", path.display()))
        .await
        .unwrap_err();
    assert!(error.to_string().contains("needs a password"), "{error}");
}

#[tokio::test]
async fn server_is_reached_by_its_address_of_ipv6() {
    if TcpListener::bind("[::1]:0").is_err() {
        return skip("ipv6", "this system has no IPv6");
    }
    let server = Server::builder()
        .directive("bind", &["127.0.0.1", "::1"])
        .start();
    let client = Client::connect(format!("redis://[::1]:{}", server.port()))
        .await
        .unwrap();
    take_turns(&client).await;
    server.kill();
    let error = client.lock("k").try_lock().await.unwrap_err();
    assert!(
        error
            .to_string()
            .contains(&format!("[::1]:{}", server.port())),
        "{error}"
    );
    client.close().await;
}

#[tokio::test]
async fn request_that_was_not_sent_names_the_server_and_leaves_nothing_to_wait_for() {
    let server = Server::start();
    let client = builder(server.url()).build().await.unwrap();
    let lock = client.lock("k");
    lock.lock().await.unwrap().unlock().await.unwrap();
    server.kill();
    eventually_unreachable(&client).await;
    let address = format!("127.0.0.1:{}", server.port());
    let started = Instant::now();
    for _ in 0..3 {
        let error = lock.try_lock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
        assert!(error.to_string().contains(&address), "{error}");
    }
    assert!(started.elapsed() < secs(4), "{:?}", started.elapsed());
    server.restart();
    soon(lock.lock()).await.unwrap().unlock().await.unwrap();
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn reply_without_bounds_is_an_error_and_ends_nothing_else() {
    let server = Server::start();
    for reply in [
        "*1\r\n".repeat(400),
        "*1\r\n".repeat(200_000),
        "$999999999\r\n".to_owned(),
        "what?\r\n".to_owned(),
    ] {
        let client = builder(rogue(&server, reply.into_bytes()))
            .build()
            .await
            .unwrap();
        let error = soon(client.lock("k").try_lock()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
        assert!(error.to_string().len() < 1_000, "{error}");
        // Everything else still works.
        assert!(
            !soon(support::client(&server).await.lock("k").is_locked())
                .await
                .unwrap()
        );
        soon(client.close()).await;
    }
}

/// The client makes some quick tries for the sake of short leases, and one per second from then on.
#[tokio::test]
async fn server_that_hangs_up_on_every_request_is_not_stormed() {
    let server = Server::start();
    let client = builder(rogue(&server, Vec::new())).build().await.unwrap();
    let lock = client.lock("k");
    let connections = async || {
        let info = server.connection().command(&["INFO", "stats"]).text();
        let line = info
            .lines()
            .find_map(|line| line.strip_prefix("total_connections_received:"));
        line.unwrap().parse::<u64>().unwrap()
    };
    let made_in = async |time| {
        let before = connections().await;
        let began = Instant::now();
        while began.elapsed() < time {
            lock.try_lock().await.unwrap_err();
        }
        // One of the connections is that of the probe.
        connections().await - before - 1
    };
    let first = made_in(secs(4)).await;
    assert!((4..=24).contains(&first), "{first}");
    let later = made_in(secs(3)).await;
    assert!((1..=4).contains(&later), "{later}");
    soon(client.close()).await;
}

/// The reset comes in the handshake, in a request or in a reply.
// fault: S24
#[tokio::test]
async fn connection_may_be_reset_at_any_byte_and_nothing_stays_held() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let client = builder(proxy.url()).build().await.unwrap();
    let lock = client.lock("k");
    let mut probe = server.connection();
    // From here on, the server knows the scripts.
    soon(lock.lock()).await.unwrap().unlock().await.unwrap();
    let (mut granted, mut failed) = (0, 0);
    for byte in (1..2_400).step_by(71) {
        proxy.reset_after(byte);
        proxy.cut();
        match soon(lock.try_lock()).await {
            Ok(Some(guard)) => {
                granted += 1;
                // A release that is cut off is sent again.
                proxy.reset_after(None);
                soon(guard.unlock()).await.unwrap();
            }
            Ok(None) => panic!("nobody else holds it"),
            Err(error) => {
                failed += 1;
                assert!(
                    matches!(error.kind(), ErrorKind::Backend | ErrorKind::Timeout),
                    "{error}"
                );
            }
        }
        proxy.reset_after(None);
        eventually("it is free", async || !probe.exists("k")).await;
        // Connects again soon at the next byte, since this connection has answered.
        eventually("it answers", async || lock.is_locked().await.is_ok()).await;
    }
    assert!(granted > 5 && failed > 5, "{granted} and {failed}");
    nothing_left(&server, [&client]).await;
}

/// A request for a lease of 400 ms may take 67, and the server is 120 away: nothing is granted in time. What is given
/// back for it has the time of any command, so the owner's next call does not wait behind it again and again.
// fault: S28
#[tokio::test]
async fn lease_too_short_for_the_distance_is_in_nobodys_way_later() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let client = builder(proxy.url()).build().await.unwrap();
    proxy.delay(millis(60));
    let lock = |lease| client.lock("k").lease(millis(lease));
    for _ in 0..3 {
        soon(lock(400).try_lock()).await.unwrap_err();
    }
    let guard = soon(lock(1_500).lock()).await.unwrap();
    soon(guard.unlock()).await.unwrap();
}

/// A server that answers each request of a call too late, and is not silent, is waited for as long as a silent one.
#[tokio::test]
async fn wait_without_limit_ends_though_the_server_answers_too_late() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let client = builder(proxy.url()).watchdog_lease(secs(2)).build();
    let client = client.await.unwrap();
    proxy.delay(millis(80));
    let begun = Instant::now();
    let error = soon(client.lock("k").lease(millis(400)).lock())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    assert!(begun.elapsed() >= secs(2), "{:?}", begun.elapsed());
    // It answers others, meanwhile and later.
    let guard = soon(client.lock("k").lock()).await.unwrap();
    soon(guard.unlock()).await.unwrap();
}

/// Replies arrive in the order of the requests: each caller gets its own, however many are cut off.
// fault: S24
#[tokio::test(flavor = "multi_thread")]
async fn callers_of_one_connection_never_have_the_reply_of_another() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let client = builder(proxy.url()).build().await.unwrap();
    let mut probe = server.connection();
    for at in 0..64 {
        let key = format!("k{at}");
        let lease = (100 + at) * 1_000;
        probe.command(&["HSET", &key, "somebody", "1"]);
        probe.command(&["PEXPIRE", &key, &lease.to_string()]);
    }
    let asking = (0..64).map(|at| {
        let lock = client.lock(format!("k{at}"));
        tokio::spawn(async move {
            let mut answered = 0;
            let end = Instant::now() + secs(3);
            while Instant::now() < end {
                // Some calls are dropped while they are in flight: nobody may get their replies.
                let patience = millis(fastrand::u64(1..50));
                let Ok(asked) = tokio::time::timeout(patience, lock.remaining_lease()).await else {
                    continue;
                };
                let Ok(left) = asked else {
                    continue;
                };
                let left = left.expect("it is held").as_secs();
                assert!((90 + at..=100 + at).contains(&left), "{left} of {at}");
                answered += 1;
            }
            answered
        })
    });
    let asking: Vec<_> = asking.collect();
    for _ in 0..20 {
        tokio::time::sleep(millis(100)).await;
        // This mostly cuts a request or a reply in two.
        proxy.reset_after(fastrand::usize(1_000..20_000));
        proxy.cut();
    }
    let mut answered = 0;
    for task in asking {
        answered += task.await.unwrap();
    }
    assert!(answered > 100, "{answered}");
    soon(client.close()).await;
}
