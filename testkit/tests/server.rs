use std::net::UdpSocket;
use std::time::{Duration, Instant};

use redlatch_testkit::{Connection, Reply, Sentinel, Server, skip};

const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn a_server_answers_until_it_is_dropped() {
    let server = Server::start();
    let mut connection = server.connection();
    assert_eq!(connection.command(&["PING"]).text(), "PONG");
    let pid = connection.command(&["INFO", "server"]).text();
    assert!(pid.contains(&format!("process_id:{}\r\n", server.pid())));
    let port = server.port();
    drop(server);
    assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err());
}

#[test]
fn only_a_persistent_server_keeps_its_data_over_a_restart() {
    for (builder, kept) in [
        (Server::builder(), false),
        (Server::builder().persistent(), true),
    ] {
        let server = builder.start();
        server.connection().command(&["HSET", "hash", "field", "1"]);
        let pid = server.pid();
        server.kill();
        server.restart();
        assert_ne!(server.pid(), pid);
        assert_eq!(server.connection().exists("hash"), kept);
    }
}

#[test]
fn the_port_of_a_server_that_is_down_stays_its_own() {
    let server = Server::start();
    let address = ("127.0.0.1", server.port());
    server.kill();
    // Whoever starts something reserves a port so.
    assert!(UdpSocket::bind(address).is_err());
    drop(server);
    // A process that another test starts has a copy of the reservation until it runs its program.
    let dropped = Instant::now();
    while UdpSocket::bind(address).is_err() {
        assert!(dropped.elapsed() < LIMIT);
        std::thread::yield_now();
    }
}

#[test]
fn a_frozen_server_answers_after_the_thaw() {
    let server = Server::start();
    let mut connection = server.connection();
    let mut messages = Connection::subscribe(server.port(), &["news"]);
    server.freeze();
    std::thread::scope(|scope| {
        let publisher = scope.spawn(|| connection.command(&["PUBLISH", "news", "thaw"]));
        assert_eq!(messages.next(Duration::from_millis(100)), None);
        server.thaw();
        let message = ("news".to_owned(), "thaw".to_owned());
        assert_eq!(messages.next(LIMIT), Some(message));
        assert_eq!(publisher.join().unwrap().int(), 1);
    });
}

#[test]
fn a_frozen_server_can_be_dropped() {
    let server = Server::start();
    server.freeze();
}

#[test]
fn a_connection_shows_what_the_server_holds() {
    let server = Server::start();
    let mut connection = server.connection();
    connection.command(&["SET", "text", "a\r\nb", "PX", "60000"]);
    connection.command(&["HSET", "hash", "field", "1"]);
    assert_eq!(connection.keys(), ["hash", "text"]);
    assert_eq!(connection.command(&["GET", "text"]).text(), "a\r\nb");
    assert_eq!(connection.hgetall("hash")["field"], "1");
    assert!((1..=60_000).contains(&connection.pttl("text")));
    assert_eq!(connection.pttl("hash"), -1);
    assert!(connection.command(&["GET", "none"]).is_nil());
    assert!(!connection.exists("none"));
    let error = connection.command(&["HGET", "text", "field"]);
    assert!(matches!(error, Reply::Error(text) if text.starts_with("WRONGTYPE")));
    let _subscriber = Connection::subscribe(server.port(), &["one", "two"]);
    assert_eq!(connection.channels(), ["one", "two"]);
}

#[test]
fn a_password_is_asked_for() {
    let server = Server::builder().password("secret").start();
    assert!(server.url().contains(":secret@"));
    let refused = Connection::open(server.port()).command(&["PING"]);
    assert!(matches!(refused, Reply::Error(text) if text.starts_with("NOAUTH")));
    assert_eq!(server.connection().command(&["PING"]).text(), "PONG");
}

#[test]
fn a_refused_option_shows_the_log() {
    let refused = Server::builder().arg("no-such-option", 1).try_start();
    assert!(refused.err().unwrap().contains("no-such-option"));
}

#[test]
fn a_server_speaks_tls() {
    match Server::builder().tls().try_start() {
        Ok(server) => {
            assert!(server.ca_pem().starts_with("-----BEGIN CERTIFICATE-----"));
            assert!(server.url().starts_with("rediss://"));
        }
        Err(log) if log.contains("tls") => skip("tls", "this server was built without TLS"),
        Err(log) => panic!("{log}"),
    }
}

#[test]
fn a_sentinel_follows_a_failover() {
    let primary = Server::start();
    primary.connection().command(&["SET", "key", "value"]);
    let replica = Server::builder().replica_of(primary.port()).start();
    assert!(replica.connection().exists("key"));
    let sentinel = Sentinel::start(&primary, "service");
    assert_eq!(sentinel.primary(), primary.port());
    let mut events = Connection::subscribe(sentinel.port(), &["+slave", "+switch-master"]);
    let mut connection = Connection::open(sentinel.port());
    let known = connection.command(&["SENTINEL", "replicas", "service"]);
    if known.array().is_empty() {
        assert_eq!(events.next(LIMIT).unwrap().0, "+slave");
    }
    primary.kill();
    let deadline = Instant::now() + LIMIT;
    while sentinel.primary() != replica.port() {
        let left = deadline.saturating_duration_since(Instant::now());
        assert!(events.next(left).is_some(), "no failover");
    }
}
