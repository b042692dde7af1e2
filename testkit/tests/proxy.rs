use std::time::{Duration, Instant};

use redlatch_testkit::{Connection, Proxy, Server};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

const LIMIT: Duration = Duration::from_secs(20);
const SILENCE: Duration = Duration::from_millis(100);

async fn client(proxy: &Proxy) -> TcpStream {
    let client = TcpStream::connect(("127.0.0.1", proxy.port())).await;
    client.expect("connect to the proxy")
}

async fn ask(client: &mut TcpStream, command: &str) -> String {
    let request = format!("{command}\r\n");
    client.write_all(request.as_bytes()).await.unwrap();
    hear(client).await
}

/// What comes next; nothing at the end of the stream.
async fn hear(client: &mut TcpStream) -> String {
    let mut bytes = vec![0; 1024];
    let heard = timeout(LIMIT, client.read(&mut bytes)).await;
    let length = heard.expect("an answer in time").unwrap_or(0);
    bytes.truncate(length);
    String::from_utf8(bytes).unwrap()
}

async fn is_silent(client: &mut TcpStream) -> bool {
    timeout(SILENCE, client.read_u8()).await.is_err()
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        tokio::task::yield_now().await;
    }
}

fn counter(server: &Server) -> String {
    server.connection().command(&["GET", "counter"]).text()
}

#[tokio::test]
async fn passes_and_counts() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let mut one = client(&proxy).await;
    let mut two = client(&proxy).await;
    assert_eq!(ask(&mut one, "PING").await, "+PONG\r\n");
    assert_eq!(ask(&mut two, "PING").await, "+PONG\r\n");
    assert_eq!((proxy.connections(), proxy.accepted()), (2, 2));
    drop(one);
    until("one connection", || proxy.connections() == 1).await;
    assert_eq!(proxy.accepted(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn serves_a_blocking_client() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let mut connection = Connection::open(proxy.port());
    let large = "x".repeat(1 << 20);
    connection.command(&["SET", "large", &large]);
    assert_eq!(connection.command(&["GET", "large"]).text(), large);
}

#[tokio::test]
async fn an_end_of_either_side_is_passed() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let mut quitter = client(&proxy).await;
    quitter.write_all(b"INCR counter\r\n").await.unwrap();
    drop(quitter);
    until("the counter", || server.connection().exists("counter")).await;
    let mut client = client(&proxy).await;
    assert_eq!(ask(&mut client, "PING").await, "+PONG\r\n");
    server.kill();
    assert_eq!(hear(&mut client).await, "");
    until("no connection", || proxy.connections() == 0).await;
}

#[tokio::test]
async fn cut_closes_what_is_open_only() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let mut old = client(&proxy).await;
    ask(&mut old, "PING").await;
    proxy.cut();
    assert_eq!(hear(&mut old).await, "");
    until("no connection", || proxy.connections() == 0).await;
    assert_eq!(ask(&mut client(&proxy).await, "PING").await, "+PONG\r\n");
}

#[tokio::test]
async fn a_black_hole_leaves_connections_half_open() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let mut idle = client(&proxy).await;
    let mut busy = client(&proxy).await;
    ask(&mut idle, "PING").await;
    ask(&mut busy, "SUBSCRIBE news").await;
    let mut subscribed = server.connection();
    proxy.black_hole(true);
    let mut late = client(&proxy).await;
    late.write_all(b"INCR counter\r\n").await.unwrap();
    busy.write_all(b"UNSUBSCRIBE news\r\n").await.unwrap();
    assert!(is_silent(&mut late).await);
    assert!(is_silent(&mut busy).await);
    proxy.black_hole(false);
    busy.write_all(b"UNSUBSCRIBE news\r\n").await.unwrap();
    assert!(is_silent(&mut late).await);
    assert!(is_silent(&mut busy).await);
    drop(busy);
    assert_eq!(ask(&mut idle, "PING").await, "+PONG\r\n");
    assert_eq!(ask(&mut client(&proxy).await, "PING").await, "+PONG\r\n");
    assert!(!subscribed.exists("counter"));
    assert_eq!(subscribed.channels(), ["news"]);
    drop(proxy);
    until("the end of the half", || subscribed.channels().is_empty()).await;
}

#[tokio::test]
async fn replies_are_held_while_requests_pass() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let mut client = client(&proxy).await;
    ask(&mut client, "PING").await;
    proxy.hold_replies();
    client.write_all(b"INCR counter\r\n").await.unwrap();
    until("the counter", || server.connection().exists("counter")).await;
    client.write_all(b"INCR counter\r\n").await.unwrap();
    assert!(is_silent(&mut client).await);
    proxy.release_replies();
    let mut replies = String::new();
    while replies.len() < 8 {
        replies += &hear(&mut client).await;
    }
    assert_eq!(replies, ":1\r\n:2\r\n");
}

#[tokio::test]
async fn a_delay_is_a_latency_and_no_queue() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let delay = Duration::from_millis(100);
    let mut client = client(&proxy).await;
    ask(&mut client, "PING").await;
    proxy.delay(delay);
    let begin = Instant::now();
    let (mut replies, mut requests) = client.split();
    let write = async {
        for _ in 1..=20 {
            requests.write_all(b"INCR counter\r\n").await.unwrap();
            tokio::time::sleep(delay / 20).await;
        }
    };
    let read = async {
        let mut bytes = vec![0; 11 * 5 + 9 * 4];
        replies.read_exact(&mut bytes).await.unwrap();
    };
    tokio::join!(write, read);
    assert!(begin.elapsed() >= 2 * delay);
    assert!(begin.elapsed() < 20 * delay);
    proxy.delay(Duration::ZERO);
    assert_eq!(ask(&mut client, "GET counter").await, "$2\r\n20\r\n");
}

#[tokio::test]
async fn a_cut_reply_belongs_to_a_command_that_ran() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let mut other = client(&proxy).await;
    ask(&mut other, "PING").await;
    proxy.cut_reply_to("INCR counter");
    let mut cut = client(&proxy).await;
    assert_eq!(ask(&mut cut, "PING").await, "+PONG\r\n");
    assert!(proxy.cut_reply_armed());
    assert_eq!(ask(&mut cut, "PING\r\nINCR counter\r\nPING").await, "");
    assert!(!proxy.cut_reply_armed());
    assert_eq!(counter(&server), "1");
    assert_eq!(ask(&mut other, "INCR counter").await, ":2\r\n");
}

#[tokio::test]
async fn a_held_request_arrives_after_its_connection() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let mut lost = client(&proxy).await;
    ask(&mut lost, "PING").await;
    let mut parcel = proxy.hold_request("INCR");
    assert_eq!(ask(&mut lost, "INCR counter").await, "");
    timeout(LIMIT, parcel.caught()).await.unwrap();
    assert!(!server.connection().exists("counter"));
    assert_eq!(
        ask(&mut client(&proxy).await, "INCR counter").await,
        ":1\r\n"
    );
    assert_eq!(parcel.deliver().await, b":2\r\n");
    assert_eq!(counter(&server), "2");
}

#[tokio::test]
async fn a_dropped_parcel_holds_nothing() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    drop(proxy.hold_request("INCR"));
    let mut client = client(&proxy).await;
    assert_eq!(ask(&mut client, "INCR counter").await, ":1\r\n");
}

#[tokio::test]
async fn a_dropped_proxy_closes_everything() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let mut client = client(&proxy).await;
    ask(&mut client, "PING").await;
    let port = proxy.port();
    drop(proxy);
    assert_eq!(hear(&mut client).await, "");
    let deadline = Instant::now() + LIMIT;
    while TcpStream::connect(("127.0.0.1", port)).await.is_ok() {
        assert!(Instant::now() < deadline, "the proxy still listens");
    }
}
