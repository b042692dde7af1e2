//! `redlatch ls` where not everything can be read, and where there is much.

use std::process::Command;

use redlatch_testkit::{Cluster, Connection, Server};
use serde_json::Value;

use crate::command::{Outcome, Running, outcome, redlatch};

const JAVA: &str = "8743c9c0-0795-4907-87fd-6c719a6b4586:49";

/// Makes keys of hashes that look like locks, with a minute left.
fn hold(connection: &mut Connection, names: &[String]) {
    for name in names {
        connection.command(&["HSET", name, JAVA, "1"]);
        connection.command(&["PEXPIRE", name, "60000"]);
    }
}

/// Returns the URL of a user who may do everything with these keys.
fn user_of(server: &Server, keys: &str) -> String {
    let rules = [
        "ACL", "SETUSER", "half", "on", ">secret", keys, "+@all", "&*",
    ];
    assert_eq!(server.connection().command(&rules).text(), "OK");
    server.url().replace("redis://", "redis://half:secret@")
}

fn run(url: &str, args: &[&str]) -> Outcome {
    redlatch(url, args).output().unwrap().into()
}

/// Returns the names that `ls --json` lists, in alphabetical order.
fn names(listed: &Outcome) -> Vec<String> {
    let list: Value = serde_json::from_str(&listed.out).unwrap_or_else(|_| panic!("{listed:?}"));
    let locks = list.as_array().unwrap().iter();
    let mut names: Vec<_> = locks
        .map(|lock| lock["name"].as_str().unwrap().to_owned())
        .collect();
    names.sort();
    names
}

fn calls(server: &Server, command: &str) -> u64 {
    let stats = server
        .connection()
        .command(&["INFO", "commandstats"])
        .text();
    let start = format!("cmdstat_{command}:calls=");
    let line = stats.lines().find_map(|line| line.strip_prefix(&*start));
    line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}

#[test]
fn keys_that_may_not_be_read_are_told_and_the_rest_is_listed() {
    let server = Server::start();
    let theirs: Vec<_> = (0..15).map(|at| format!("theirs:{at:02}")).collect();
    let mut connection = server.connection();
    hold(&mut connection, &theirs);
    hold(&mut connection, &["mine:1".to_owned(), "mine:2".to_owned()]);
    let url = user_of(&server, "~mine:*");

    let listed = run(&url, &["ls"]);
    assert_eq!(listed.code, 1, "{listed:?}");
    assert_eq!(listed.out.lines().count(), 3, "{}", listed.out);
    assert!(listed.out.contains("mine:1") && listed.out.contains("mine:2"));
    let notes = listed.notes();
    assert_eq!(notes.len(), 11, "{notes:?}");
    assert!(
        notes[0].contains("theirs:") && notes[0].contains("NOPERM"),
        "{notes:?}"
    );
    assert!(notes[10].contains("5 more"), "{notes:?}");

    let listed = run(&url, &["ls", "--json"]);
    assert_eq!(
        (listed.code, names(&listed)),
        (1, vec!["mine:1".to_owned(), "mine:2".to_owned()])
    );
    let first: Value = serde_json::from_str(listed.err.lines().next().unwrap()).unwrap();
    assert_eq!(first["event"], "unread");
    assert!(
        first["name"].as_str().unwrap().starts_with("theirs:"),
        "{first}"
    );

    // What is not asked for is no gap.
    let listed = run(&url, &["ls", "mine:*"]);
    assert_eq!((listed.code, &*listed.err), (0, ""));
}

#[test]
fn user_without_some_commands_lists_what_can_be_seen() {
    let server = Server::start();
    hold(&mut server.connection(), &["lock".to_owned()]);
    let rules = ["-pttl", "-memory", "-hlen", "-type", "-pubsub", "-get"];
    let user = [
        &[
            "ACL", "SETUSER", "half", "on", ">secret", "~*", "+@all", "&*",
        ],
        &rules[..],
    ];
    assert_eq!(server.connection().command(&user.concat()).text(), "OK");
    let url = server.url().replace("redis://", "redis://half:secret@");
    let listed = run(&url, &["ls", "--json"]);
    assert_eq!((listed.code, names(&listed)), (0, vec!["lock".to_owned()]));
    let rules = ["ACL", "SETUSER", "half", "-scan"];
    assert_eq!(server.connection().command(&rules).text(), "OK");
    let listed = run(&url, &["ls", "--json"]);
    assert_eq!((listed.code, &*listed.out), (69, "[]\n"), "{listed:?}");
    assert_eq!(listed.err.lines().count(), 1, "{listed:?}");
}

#[test]
fn keys_of_a_slot_that_is_being_moved_are_listed_and_shown() {
    let cluster = Cluster::start();
    let held = ["{t}:a", "{t}:b", "{t}:c"].map(str::to_owned);
    let (from, to) = cluster.owner("t");
    hold(&mut from.connection(), &held);
    let moving = cluster.begin_move(cluster.slot("t"), from, to);
    moving.keys(1);
    for _ in 0..2 {
        let listed = run(&cluster.url(), &["ls", "--json"]);
        assert_eq!(
            (listed.code, &names(&listed)[..]),
            (0, &held[..]),
            "{listed:?}"
        );
        for name in &held {
            let shown = run(&cluster.url(), &["inspect", name]);
            assert_eq!(shown.code, 0, "{shown:?}");
        }
        moving.keys(1);
    }
}

#[test]
fn server_that_is_away_keeps_the_others_from_nothing() {
    let cluster = Cluster::start();
    let (dead, _) = cluster.owner("a");
    let name_on = |owner: &Server| {
        let names = (0..).map(|at| format!("lock:{at}"));
        let mut there = names.filter(|name| cluster.owner(name).0.port() == owner.port());
        there.next().unwrap()
    };
    let alive = cluster
        .nodes()
        .iter()
        .filter(|node| node.port() != dead.port());
    let mut held: Vec<_> = alive.clone().map(name_on).collect();
    held.sort();
    for node in alive.clone() {
        hold(&mut node.connection(), &[name_on(node)]);
    }
    // Named first, a server that is alive tells which others there are.
    let seed = alive.clone().next().unwrap();
    let url = format!("redis-cluster://127.0.0.1:{}", seed.port());
    dead.kill();
    let address = format!("127.0.0.1:{}", dead.port());

    let listed = run(&url, &["ls", "--json"]);
    assert_eq!((listed.code, names(&listed)), (69, held), "{listed:?}");
    assert_eq!(listed.err.lines().count(), 1, "{}", listed.err);
    assert!(listed.err.contains(&address), "{}", listed.err);

    for args in [&["doctor"][..], &["doctor", "--read-only"]] {
        let doctor = run(&url, args);
        assert_eq!(doctor.code, 1, "{doctor:?}");
        let servers = |outcome: &str| {
            let lines = doctor.out.lines();
            lines
                .filter(|line| line.starts_with(outcome) && line.contains("  server "))
                .count()
        };
        assert_eq!((servers("ok"), servers("broken")), (2, 1), "{}", doctor.out);
        let told = doctor
            .out
            .lines()
            .find(|line| line.starts_with("broken"))
            .unwrap();
        assert!(told.contains(&address), "{told}");
    }
}

#[test]
fn what_is_no_lock_is_neither_read_nor_kept() {
    let server = Server::start();
    let mut connection = server.connection();
    // Sessions: with an end, as locks have.
    let fill = "for i = 1, 100000 do
        redis.call('SETEX', string.format('session:%d:', i) .. string.rep('x', 1000), 600, 'x')
    end";
    connection.command(&["EVAL", fill, "0"]);
    hold(&mut connection, &["lock".to_owned()]);
    // As much memory as an empty list takes, and half of what the names take.
    let listed = Command::new("bash")
        .args(["-c", "ulimit -v 80000; exec \"$0\" ls --json"])
        .arg(env!("CARGO_BIN_EXE_redlatch"))
        .env("REDIS_URL", server.url())
        .output()
        .unwrap();
    let listed = Outcome::from(listed);
    assert_eq!(
        (listed.code, names(&listed)),
        (0, vec!["lock".to_owned()]),
        "{}",
        listed.err
    );
    assert_eq!((calls(&server, "hgetall"), calls(&server, "type")), (1, 0));
}

#[test]
fn list_is_printed_while_it_is_made() {
    let server = Server::start();
    let mut connection = server.connection();
    let locks: Vec<_> = (0..2_500).map(|at| format!("lock:{at:04}")).collect();
    hold(&mut connection, &locks);
    let listed = outcome(&server, &["ls", "--json"]);
    assert_eq!((listed.code, names(&listed)), (0, locks));
    let table = outcome(&server, &["ls"]);
    let heads = table.out.lines().filter(|line| line.starts_with("NAME"));
    assert_eq!((heads.count(), table.out.lines().count()), (1, 2_501));
    // The other end may go away in between.
    let mut first = Running::start(&server, &["ls"]);
    assert!(first.line().starts_with("NAME"));
}
