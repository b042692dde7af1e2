//! Errors that say what to do about their cause.

use std::env;
use std::process::Command;

use redlatch::{Client, Error, ErrorKind};
use redlatch_testkit::Server;

use crate::support::builder;
use crate::support::probe::nothing_left;
use crate::support::start;

#[tokio::test]
async fn url_with_a_bare_password_or_a_list_of_hosts_says_how_to_write_it() {
    for (url, cure) in [
        ("redis://u:p@ss/word@h", "/ as %2F"),
        ("redis://u:p?word@h", "? as %3F"),
        ("redis://u:p#word@h", "%23"),
        ("redis://a:1,b:2", "redis-cluster://a:1?node=b:2"),
        ("redis://a:1,b:2", "redis-sentinel://a:1?node=b:2"),
    ] {
        let error = Client::connect(url).await.expect_err(url);
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains(cure), "{url}: {error}");
        assert!(!error.to_string().contains("word@"), "{error}");
    }
}

#[tokio::test]
async fn error_about_a_name_in_use_says_what_is_there() {
    let (server, client) = start().await;
    let other = Client::connect(server.url()).await.unwrap();
    let read = other.read_write_lock("read").read().await.unwrap();
    let lock = other.lock("lock").lock().await.unwrap();
    let plain = other.plain_lock("plain").lock().await.unwrap();
    let semaphore = other.semaphore("semaphore");
    semaphore.try_set_permits(3).await.unwrap();
    let mut probe = server.connection();
    let queue = "redisson_lock_queue:{k}";
    for command in [
        &["SET", "text", "12 pieces of an order"][..],
        &["RPUSH", "list", "a"],
        &["RPUSH", queue, "a"],
        &["SADD", "set", "a"],
        &["ZADD", "scores", "1", "a"],
        &["XADD", "stream", "1-1", "a", "b"],
    ] {
        probe.command(command);
    }

    for (name, there) in [
        ("read", "a read-write lock"),
        ("plain", "a string with a lease, such as a plain lock"),
        ("semaphore", "a number, such as a semaphore or a latch"),
        ("text", "a string"),
        ("list", "a list"),
        (queue, "the queue of a fair lock"),
        ("set", "a set"),
        ("scores", "a sorted set"),
        ("stream", "a stream"),
    ] {
        let error = client.lock(name).try_lock().await.expect_err(name);
        assert_eq!(error.to_string(), told(name, there));
    }
    let a_lock = told("lock", "a reentrant, fair or fenced lock");
    let errors = [
        client.read_write_lock("lock").try_write().await.err(),
        client.plain_lock("lock").try_lock().await.err(),
        client.semaphore("lock").try_acquire().await.err(),
        client.latch("lock").count().await.err(),
    ];
    for error in errors {
        assert_eq!(error.expect("it is a lock").to_string(), a_lock);
    }

    for guard in [read, lock] {
        guard.unlock().await.unwrap();
    }
    plain.unlock().await.unwrap();
    probe.command(&["FLUSHALL"]);
    nothing_left(&server, [&client, &other]).await;
}

#[tokio::test]
async fn error_about_a_name_in_use_stands_though_the_server_does_not_say_what_is_there() {
    let server = Server::start();
    let mut probe = server.connection();
    let user = "ACL SETUSER app on >s3cret ~* &* +@all -type".split(' ');
    probe.command(&user.collect::<Vec<_>>());
    probe.command(&["RPUSH", "k", "a"]);
    let url = format!("redis://app:s3cret@127.0.0.1:{}", server.port());
    let client = builder(url).build().await.unwrap();
    let error = client.lock("k").try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongKind);
    let text = "\"k\" is in use for something else; choose another name";
    assert_eq!(error.to_string(), text);
}

/// The variable that tells the server to the process that ends with an error.
const ENDS: &str = "REDLATCH_ENDS";

/// What a `main` that returns an error does.
#[tokio::test]
#[ignore = "a process of its own, started by the test below"]
async fn ends_with_an_error() -> Result<(), Error> {
    let url = env::var(ENDS).expect("started by the test below");
    let client = Client::connect(url).await?;
    client.lock("k").lock().await?.unlock().await
}

#[test]
fn main_that_returns_an_error_prints_its_kind_and_text_and_causes() {
    let server = Server::start();
    server.connection().command(&["RPUSH", "k", "a"]);
    let url = server.url();
    let printed = |url: &str| {
        let ended = Command::new(env::current_exe().unwrap())
            .args(["--ignored", "--exact", "cures::ends_with_an_error"])
            .arg("--nocapture")
            .env(ENDS, url)
            .output()
            .unwrap();
        assert!(!ended.status.success());
        let printed = String::from_utf8(ended.stderr).unwrap();
        let line = printed.lines().find(|line| line.starts_with("Error: "));
        line.unwrap_or_else(|| panic!("{printed}")).to_owned()
    };
    let line = printed(&url);
    let error = "Error: WrongKind: \"k\" is in use for something else, a list; choose another name; caused by: ";
    assert!(line.starts_with(error), "{line}");
    // Redis 6.2 says first that a script ended with it.
    assert!(line.contains("WRONGTYPE "), "{line}");
    drop(server);
    let line = printed(&url);
    assert!(line.starts_with("Error: Backend: "), "{line}");
    assert_eq!(line.matches("Connection refused").count(), 1, "{line}");
}

/// Returns the text of the error about this name, where there is this.
fn told(name: &str, there: &str) -> String {
    format!("{name:?} is in use for something else, {there}; choose another name")
}
