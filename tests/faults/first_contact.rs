//! The errors of a client that fails to make its first connection: they name the address and say what may be wrong.

use crate::support;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;
use std::time::Instant;

use crate::support::probe::{self, millis, nothing_left, secs, soon};
use crate::support::{eventually, with_tls};
use redlatch::config::Tls;
use redlatch::{Client, Config, ErrorKind};
use redlatch_testkit::{Cluster, Sentinel, Server};

/// Tries to connect to a port of this machine, which must fail, and returns the error's text. The text must name the
/// address, and the error must not show the password, which is always `s3cret`.
async fn refusal(port: u16, config: Config) -> String {
    let config = config.connect_timeout(millis(500));
    let error = soon(Client::builder().config(config).build())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
    let said = error.to_string();
    let address = format!("127.0.0.1:{port}");
    assert!(
        said.contains(&address),
        "it does not name {address}: {said}"
    );
    let mut source = std::error::Error::source(&error);
    let mut shown = format!("{error:?}");
    while let Some(error) = source {
        shown += &format!("{error} {error:?}");
        source = error.source();
    }
    assert!(
        !said.contains("s3cret") && !shown.contains("s3cret"),
        "{said} {shown}"
    );
    said
}

fn at(port: u16) -> Config {
    Config::server("127.0.0.1", port)
}

#[tokio::test]
async fn tls_where_there_is_none_and_none_where_it_is_wanted_are_told_apart() {
    let plain = Server::start();
    let Some(secure) = with_tls(Server::builder().tls()) else {
        return;
    };
    let said = refusal(secure.port(), at(secure.port())).await;
    assert!(said.contains("rediss://"), "{said}");
    // How a plain server reacts to TLS depends on random bytes: it answers, or waits for more.
    for _ in 0..8 {
        let tls = Tls::new().roots(secure.ca_pem());
        let said = refusal(plain.port(), at(plain.port()).tls(tls)).await;
        assert!(said.contains("redis://"), "{said}");
    }
}

#[tokio::test]
async fn missing_and_wrong_passwords_are_told_apart() {
    let server = Server::builder().password("s3cret").start();
    server
        .connection()
        .command(&["ACL", "SETUSER", "disabled", "off", ">s3cret"]);
    let here = || at(server.port());
    for config in [here(), here().protocol(redlatch::config::Protocol::Resp2)] {
        let said = refusal(server.port(), config.clone()).await;
        assert!(said.contains("needs a password"), "{said}");
        for config in [
            config.clone().password("s3cret?"),
            config.clone().user("nobody").password("s3cret"),
            config.clone().user("nobody"),
            config.clone().user("disabled").password("s3cret"),
        ] {
            let said = refusal(server.port(), config).await;
            assert!(said.contains("password is wrong"), "{said}");
        }
        let url = format!("{}?command_timeout=1s", server.url());
        Client::connect(url).await.unwrap().close().await;
    }
}

#[tokio::test]
async fn address_where_nothing_listens_is_named() {
    let server = Server::start();
    server.kill();
    let said = refusal(server.port(), at(server.port())).await;
    assert!(said.contains("nothing listens there"), "{said}");
    let cluster = Config::cluster([("127.0.0.1", server.port())]);
    let said = refusal(server.port(), cluster).await;
    assert!(said.contains("nothing listens there"), "{said}");
    let sentinels = Config::sentinels("main", [("127.0.0.1", server.port())]);
    let said = refusal(server.port(), sentinels).await;
    assert!(said.contains("nothing listens there"), "{said}");

    let error = Client::connect("redis+unix:///nowhere/redis.sock")
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend);
    let said = error.to_string();
    assert!(
        said.contains("/nowhere/redis.sock") && said.contains("unixsocket"),
        "{said}"
    );
}

/// The second connection that a client makes is for messages.
// fault: S18
#[tokio::test]
async fn server_with_no_place_for_another_connection_says_so() {
    for places in [1, 2] {
        let server = Server::builder().arg("maxclients", places).start();
        let held = server.connection();
        for _ in 0..10 {
            let said = refusal(server.port(), at(server.port())).await;
            assert!(said.contains("max number of clients"), "{said}");
            assert!(said.contains("`maxclients`"), "{said}");
        }
        drop(held);
    }
}

#[tokio::test]
async fn database_that_is_not_there_is_told() {
    let server = Server::builder().arg("databases", 4).start();
    let said = refusal(server.port(), at(server.port()).database(4)).await;
    assert!(said.contains("fewer databases"), "{said}");
    Client::builder()
        .config(at(server.port()).database(3))
        .build()
        .await
        .unwrap()
        .close()
        .await;
}

#[tokio::test]
async fn sentinels_and_servers_are_not_taken_for_each_other() {
    let primary = Server::start();
    let sentinel = Sentinel::start(&primary, "main");
    let said = refusal(sentinel.port(), at(sentinel.port())).await;
    assert!(said.contains("is a sentinel"), "{said}");
    assert!(said.contains("redis-sentinel://"), "{said}");
    let sentinels = |service, port| Config::sentinels(service, [("127.0.0.1", port)]);
    let said = refusal(primary.port(), sentinels("main", primary.port())).await;
    assert!(said.contains("it is not a sentinel"), "{said}");
    let said = refusal(sentinel.port(), sentinels("other", sentinel.port())).await;
    assert!(
        said.contains("\"other\"") && said.contains("no such service"),
        "{said}"
    );
}

#[tokio::test]
async fn server_that_hangs_is_told_from_one_that_is_no_redis() {
    let server = Server::start();
    server.freeze();
    let said = refusal(server.port(), at(server.port())).await;
    assert!(said.contains("did not answer"), "{said}");
    server.thaw();

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.unwrap();
            // Reads as much of the first request as has arrived.
            let _ = client.read(&mut [0; 1024]).unwrap();
            client.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").ok();
        }
    });
    let said = refusal(port, at(port)).await;
    assert!(said.contains("Redis"), "{said}");
}

#[tokio::test]
async fn replica_is_named_by_the_first_lock() {
    let primary = Server::start();
    let replica = Server::builder().replica_of(primary.port()).start();
    let client = Client::connect(replica.url()).await.unwrap();
    let error = client.lock("k").try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend);
    let said = error.to_string();
    let address = format!("127.0.0.1:{}", replica.port());
    assert!(
        said.contains(&address) && said.contains("is a replica"),
        "{said}"
    );
    client.close().await;
}

/// Lets two owners take turns on a lock, and checks that the second waited for nothing but the message.
async fn take_turns(client: &Client) {
    let took = probe::take_turns(client).await;
    assert!(took < secs(2), "{took:?}");
}

#[tokio::test]
async fn client_that_starts_before_its_server_works_once_that_appears() {
    let server = Server::start();
    server.kill();
    let client = support::builder(server.url()).connect_lazily().build();
    let client = soon(client).await.unwrap();
    assert!(!client.is_connected());
    let address = format!("127.0.0.1:{}", server.port());
    let lock = client.lock("k");
    let refused = soon(lock.try_lock()).await.unwrap_err();
    for error in [refused, soon(client.ping()).await.unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
        let said = error.to_string();
        assert!(
            said.contains(&address) && said.contains("nothing listens there"),
            "{said}"
        );
    }
    let waiting = lock.clone();
    let waiter = tokio::spawn(async move { waiting.lock().await });
    server.restart();
    let guard = soon(waiter).await.unwrap().unwrap();
    assert!(client.is_connected());
    soon(client.ping()).await.unwrap();
    guard.unlock().await.unwrap();
    take_turns(&client).await;
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn client_that_starts_before_its_sentinels_or_its_cluster_works_once_they_appear() {
    let primary = Server::start();
    let sentinel = Sentinel::start(&primary, "main");
    primary.freeze();
    let cluster = Cluster::start();
    for server in cluster.nodes() {
        server.freeze();
    }
    for (url, servers) in [
        (sentinel.url(), std::slice::from_ref(&primary)),
        (cluster.url(), cluster.nodes()),
    ] {
        let client = support::builder(&url).connect_lazily().build();
        let client = soon(client).await.unwrap();
        assert!(!client.is_connected());
        let lock = client.lock("k");
        let error = soon(lock.try_lock()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Backend, "{url}: {error}");
        let waiter = tokio::spawn(async move { lock.lock().await });
        for server in servers {
            server.thaw();
        }
        let guard = soon(waiter).await.unwrap().unwrap();
        assert!(client.is_connected(), "{url}");
        soon(client.ping()).await.unwrap();
        guard.unlock().await.unwrap();
        take_turns(&client).await;
        soon(client.close()).await;
    }
}

#[tokio::test]
async fn client_whose_server_never_appears_gives_up_and_closes_in_time() {
    let server = Server::start();
    server.kill();
    let urls = [
        server.url(),
        format!("redis-cluster://127.0.0.1:{}", server.port()),
        format!(
            "redis-sentinel://127.0.0.1:{}?sentinelServiceName=main",
            server.port()
        ),
    ];
    for url in urls {
        let builder = support::builder(&url)
            .watchdog_lease(secs(1))
            .connect_lazily();
        let client = builder.build().await.unwrap();
        let began = Instant::now();
        let error = soon(client.lock("k").lock()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Backend, "{url}: {error}");
        assert!(
            error.to_string().contains("nothing listens there"),
            "{url}: {error}"
        );
        assert!(
            (millis(900)..secs(4)).contains(&began.elapsed()),
            "{url}: {:?}",
            began.elapsed()
        );
        assert!(!client.is_connected());
        let began = Instant::now();
        soon(client.close()).await;
        assert!(began.elapsed() < secs(3), "{:?}", began.elapsed());
        assert_eq!(client.ping().await.unwrap_err().kind(), ErrorKind::Closed);
    }
}

#[tokio::test]
async fn client_made_lazily_still_refuses_what_can_never_work_and_tells_of_a_wrong_password() {
    let server = Server::builder().password("s3cret").start();
    let build = async |url: String| support::builder(url).connect_lazily().build().await;
    for part in ["?db=3", "/x", "#"] {
        let error = build(format!("{}{part}", server.url())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
    let client = build(format!("redis://:wrong@127.0.0.1:{}", server.port()))
        .await
        .unwrap();
    let error = soon(client.lock("k").try_lock()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend);
    assert!(error.to_string().contains("password is wrong"), "{error}");
    soon(client.close()).await;
}

#[tokio::test]
async fn ping_tells_of_a_server_that_hangs_or_is_gone_and_of_one_that_is_back() {
    let server = Server::start();
    let client = support::builder(server.url()).build().await.unwrap();
    assert!(client.is_connected());
    assert!(soon(client.ping()).await.unwrap() < secs(1));
    server.freeze();
    let error = soon(client.ping()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    server.thaw();
    server.kill();
    eventually("the loss is seen", async || !client.is_connected()).await;
    let error = soon(client.ping()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
    assert!(
        error.to_string().contains(&server.port().to_string()),
        "{error}"
    );
    server.restart();
    eventually("it is back", async || client.ping().await.is_ok()).await;
    assert!(client.is_connected());
    client.close().await;
    assert!(!client.is_connected());
    assert_eq!(client.ping().await.unwrap_err().kind(), ErrorKind::Closed);
}

#[tokio::test]
async fn ping_reaches_every_primary_of_a_cluster() {
    let cluster = Cluster::start();
    let client = support::builder(cluster.url()).build().await.unwrap();
    assert!(client.is_connected());
    soon(client.ping()).await.unwrap();
    for server in cluster.nodes() {
        server.freeze();
        let error = soon(client.ping()).await.unwrap_err();
        let address = format!("127.0.0.1:{}", server.port());
        assert!(error.to_string().contains(&address), "{error}");
        server.thaw();
        eventually("all answer", async || client.ping().await.is_ok()).await;
    }
    client.close().await;
}
