//! What an operator sees of the locks of all processes.

use std::collections::HashSet;

use crate::support::scene::patient;
use crate::support::{builder, start};
use redlatch::{Client, ErrorKind};
use redlatch_testkit::Server;

/// Makes this many keys that look like locks.
fn hold(server: &Server, locks: &str) {
    let fill = "for at = 1, ARGV[1] do
        redis.call('HSET', 'lock:' .. at, '8743c9c0-0795-4907-87fd-6c719a6b4586:49', 1)
        redis.call('PEXPIRE', 'lock:' .. at, 600000)
    end";
    let mut connection = server.connection();
    connection.command(&["EVAL", fill, "0", locks]);
}

/// Returns the names of all that is held, in alphabetical order.
async fn listed(client: &Client) -> Vec<String> {
    let mut list = client.admin().list("*").unwrap();
    let mut names = Vec::new();
    while let Some(found) = list.next().await {
        names.push(found.unwrap().name);
    }
    names.sort();
    names
}

#[tokio::test]
async fn list_misses_nothing_if_the_server_is_restarted_meanwhile() {
    let server = Server::builder().persistent().start();
    hold(&server, "5000");
    let client = patient(builder(server.url())).build().await.unwrap();
    let mut list = client.admin().list("*").unwrap();
    let mut names = HashSet::from([list.next().await.unwrap().unwrap().name]);
    server.restart();
    while let Some(found) = list.next().await {
        let name = found.unwrap().name;
        assert!(names.insert(name), "no name comes twice");
    }
    assert_eq!(names.len(), 5_000);
}

#[tokio::test]
async fn list_says_so_if_the_connection_breaks_again_and_again() {
    let server = Server::start();
    hold(&server, "20000");
    let client = patient(builder(server.url())).build().await.unwrap();
    let mut connection = server.connection();
    let mut list = client.admin().list("*").unwrap();
    let mut names = 0;
    let unread = loop {
        match list.next().await.expect("the end is not reached") {
            Ok(_) => names += 1,
            Err(unread) => break unread,
        }
        if names % 100 == 0 {
            connection.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        }
    };
    assert!(unread.name.is_none(), "{unread}");
    assert!(unread.to_string().contains("again and again"), "{unread}");
    assert!(list.next().await.is_none());
}

#[tokio::test]
async fn cluster_without_a_known_server_is_no_empty_one() {
    let server = Server::start();
    server.kill();
    let url = format!("redis-cluster://127.0.0.1:{}", server.port());
    let client = builder(url).connect_lazily().build().await.unwrap();
    let admin = client.admin();
    let error = admin.list("*").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
    let error = admin.servers().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
}

#[tokio::test]
async fn locks_are_listed_whatever_their_names_begin_with() {
    let (server, client) = start().await;
    let one = client.fair_lock("redisson_app:k");
    let _one = one.lock().await.unwrap();
    let _two = client.lock("redlatch_app").lock().await.unwrap();
    // With a key next to it.
    let _three = client.fenced_lock("fenced").lock().await.unwrap();
    let names = ["fenced", "redisson_app:k", "redlatch_app"];
    assert_eq!(listed(&client).await, names);

    let prefixed = builder(server.url()).name_prefix("redisson_app:");
    let prefixed = prefixed.build().await.unwrap();
    assert_eq!(listed(&prefixed).await, ["k"]);
}

#[tokio::test]
async fn value_that_is_too_long_to_compare_is_refused() {
    let (server, client) = start().await;
    let admin = client.admin();
    let mut connection = server.connection();
    for (length, is_known) in [(2_048, true), (2_049, false)] {
        connection.command(&["SET", "k", &"x".repeat(length), "PX", "60000"]);
        let found = admin.inspect("k").await.unwrap().unwrap();
        let released = admin.force_unlock(&found).await;
        match is_known {
            true => assert!(released.unwrap()),
            false => assert_eq!(released.unwrap_err().kind(), ErrorKind::InvalidInput),
        }
    }
}
