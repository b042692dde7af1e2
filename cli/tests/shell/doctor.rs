//! `redlatch doctor`, on good servers and on bad ones.

use std::time::Duration;

use redlatch_testkit::{Proxy, Server};
use serde_json::Value;

use crate::command::{Outcome, outcome, redlatch};

/// Returns the outcome of each check.
fn findings(url: &str, args: &[&str]) -> (i32, Vec<(String, String, String)>) {
    let args = [&["doctor", "--json"], args].concat();
    let ended: Outcome = redlatch(url, &args).output().unwrap().into();
    let list: Value = serde_json::from_str(&ended.out).unwrap_or_else(|_| panic!("{ended:?}"));
    let text = |finding: &Value, what: &str| finding[what].as_str().unwrap().to_owned();
    let findings = list.as_array().unwrap().iter();
    let findings = findings.map(|finding| {
        (
            text(finding, "check"),
            text(finding, "outcome"),
            text(finding, "text"),
        )
    });
    (ended.code, findings.collect())
}

fn of<'a>(findings: &'a [(String, String, String)], check: &str) -> (&'a str, &'a str) {
    let found = findings.iter().find(|(what, ..)| what == check);
    let (_, outcome, text) = found.unwrap_or_else(|| panic!("{check} in {findings:?}"));
    (outcome, text)
}

#[test]
fn good_server_is_found_good_and_nothing_remains_there() {
    let server = Server::builder().persistent().start();
    let (code, findings) = findings(&server.url(), &[]);
    assert_eq!(code, 0);
    for (check, outcome, text) in &findings {
        assert_eq!(outcome, "ok", "{check}: {text}");
    }
    assert_eq!(findings.len(), 14, "{findings:?}");
    let mut connection = server.connection();
    crate::command::eventually("nothing remains", || connection.keys().is_empty());
    let text = outcome(&server, &["doctor", "--read-only"]);
    assert_eq!((text.code, text.out.lines().count()), (0, 4), "{text:?}");
}

#[test]
fn server_that_is_far_away_is_found_good() {
    let server = Server::builder().persistent().start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let proxy = runtime.block_on(Proxy::start(server.port()));
    proxy.delay(Duration::from_millis(350));
    let (code, findings) = findings(&proxy.url(), &["--timeout", "3s"]);
    assert_eq!(code, 0, "{findings:?}");
}

// fault: S20
#[test]
fn eviction_is_told_as_what_it_breaks() {
    let server = Server::builder()
        .arg("maxmemory", "100mb")
        .arg("maxmemory-policy", "allkeys-lru")
        .start();
    let (code, findings) = findings(&server.url(), &[]);
    assert_eq!(code, 1);
    let (outcome, text) = of(&findings, "eviction");
    assert_eq!(outcome, "broken");
    assert!(
        text.contains("allkeys-lru") && text.contains("two holders"),
        "{text}"
    );
    assert_eq!(of(&findings, "persistence").0, "warning");
}

#[test]
fn user_without_rights_is_told_what_to_grant() {
    let server = Server::start();
    let mut connection = server.connection();
    let mut user = |name: &str, rules: &[&str]| {
        let words = [&["ACL", "SETUSER", name, "on", ">secret"], rules].concat();
        let reply = connection.command(&words);
        assert_eq!(reply.text(), "OK", "{rules:?}");
        server
            .url()
            .replace("redis://", &format!("redis://{name}:secret@"))
    };
    let url = user("mute", &["~*", "+@all", "-publish", "&*"]);
    let (code, found) = findings(&url, &[]);
    assert_eq!((code, of(&found, "messages").0), (1, "broken"));
    assert!(of(&found, "messages").1.contains("+publish"), "{found:?}");
    assert_eq!(of(&found, "reentrant").0, "ok");

    let url = user("deaf", &["~*", "+@all", "-subscribe", "&*"]);
    let (code, found) = findings(&url, &[]);
    assert_eq!((code, of(&found, "messages").0), (1, "broken"));

    let url = user("scriptless", &["~*", "+@all", "-@scripting", "&*"]);
    let (code, found) = findings(&url, &[]);
    assert_eq!(
        (code, of(&found, "reentrant").0, of(&found, "plain").0),
        (1, "broken", "ok")
    );

    let url = user("orderless", &["~*", "+@all", "-zadd", "&*"]);
    let (code, found) = findings(&url, &[]);
    assert_eq!((code, of(&found, "turns").0), (1, "broken"));
    assert!(of(&found, "turns").1.contains("grant +zadd"), "{found:?}");

    let url = user("elsewhere", &["~mine:*", "+@all", "&*"]);
    let (code, found) = findings(&url, &[]);
    assert_eq!((code, of(&found, "reentrant").0), (1, "broken"));
    assert!(of(&found, "reentrant").1.contains("--prefix"), "{found:?}");
    let rights = ["~mine:*", "~*{mine:*", "+@all", "&*"];
    let (code, found) = findings(&user("prefixed", &rights), &["--prefix", "mine:"]);
    assert_eq!(code, 0, "{found:?}");

    // Whoever may ask for nothing is told that nothing is known.
    let url = user("blind", &["~*", "+@all", "-info", "-config", "-time", "&*"]);
    let (_, found) = findings(&url, &["--read-only"]);
    for check in ["server", "eviction", "persistence"] {
        assert_eq!(of(&found, check).0, "warning", "{found:?}");
    }
}

#[test]
fn replica_is_told_as_such() {
    let primary = Server::start();
    let replica = Server::builder().replica_of(primary.port()).start();
    let ended = redlatch(&replica.url(), &["doctor"]).output().unwrap();
    assert_ne!(ended.status.code(), Some(0));
    let (code, found) = findings(&primary.url(), &[]);
    assert_eq!((code, of(&found, "replicas").0), (0, "warning"));
    assert_eq!(of(&found, "isolation").0, "warning");
}

#[test]
fn least_number_of_replicas_is_told_with_what_it_means() {
    let primary = Server::builder().arg("min-replicas-to-write", "1").start();
    let (code, found) = findings(&primary.url(), &["--read-only"]);
    let (outcome, text) = of(&found, "isolation");
    assert_eq!((code, outcome), (1, "broken"), "{text}");
    let _replica = Server::builder().replica_of(primary.port()).start();
    let set = |least: &str| {
        let set = ["CONFIG", "SET", "min-replicas-to-write", least];
        primary.connection().command(&set);
        findings(&primary.url(), &["--read-only"]).1
    };
    for (least, outcome) in [("1", "ok"), ("0", "warning")] {
        let found = set(least);
        let (told, text) = of(&found, "isolation");
        assert_eq!(told, outcome, "{text}");
        assert!(
            text.contains(&format!("min-replicas-to-write is {least}")),
            "{text}"
        );
    }
}

#[test]
fn what_could_not_be_found_out_names_the_right_that_is_missing() {
    let server = Server::builder().persistent().start();
    let url = |name: &str, without: &str| {
        let rules = [
            "ACL", "SETUSER", name, "on", ">secret", "~*", "&*", "+@all", without,
        ];
        assert_eq!(server.connection().command(&rules).text(), "OK");
        let login = format!("redis://{name}:secret@");
        server.url().replace("redis://", &login)
    };
    let (_, found) = findings(&url("unset", "-config"), &["--read-only"]);
    let (outcome, text) = of(&found, "persistence");
    assert_eq!(outcome, "warning");
    assert!(
        text.contains("+config|get") && text.contains("unknown"),
        "{text}"
    );
    assert!(text.contains("appendonly"), "what is known is told: {text}");

    let (_, found) = findings(&url("blind", "-info"), &["--read-only"]);
    for check in ["server", "eviction", "persistence"] {
        let (outcome, text) = of(&found, check);
        assert!(outcome == "warning" && text.contains("+info"), "{text}");
    }
}

#[test]
fn right_that_is_missing_is_named_with_the_kinds_that_need_it() {
    let server = Server::start();
    let user = |name: &str, rules: &str| {
        let rules = ["ACL SETUSER", name, "on >secret", rules].join(" ");
        let words: Vec<&str> = rules.split(' ').collect();
        assert_eq!(server.connection().command(&words).text(), "OK");
        let login = format!("redis://{name}:secret@");
        findings(
            &server.url().replace("redis://", &login),
            &["--prefix", "mine:"],
        )
    };
    let keys = "~mine:* ~*{mine:*}* +@all";
    let (code, found) = user(
        "unread",
        &format!("{keys} &*{{mine:*}}* ~redlatch_redlock_mark -hget"),
    );
    assert_eq!(code, 1);
    for (kind, outcome) in [
        ("reentrant", "broken"),
        ("fair", "broken"),
        ("write", "broken"),
        ("redlock", "warning"),
        ("plain", "ok"),
        ("messages", "ok"),
    ] {
        let (found, text) = of(&found, kind);
        assert_eq!(found, outcome, "{kind}: {text}");
        assert_eq!(text.contains("grant +hget"), outcome != "ok", "{text}");
    }
    assert!(
        found.iter().all(|(what, ..)| what != "semaphore"),
        "{found:?}"
    );

    let (code, found) = user("voteless", &format!("{keys} &*{{mine:*}}*"));
    assert_eq!((code, of(&found, "redlock").0), (0, "warning"));
    assert!(
        of(&found, "redlock").1.contains("~redlatch_redlock_mark"),
        "{found:?}"
    );

    for (name, rules, grant) in [
        ("silent", "&*{mine:*}* -ping", "grant +ping"),
        ("deaf", "resetchannels", "&*{mine:*}*"),
    ] {
        let (code, found) = user(name, &format!("{keys} {rules}"));
        let (outcome, text) = of(&found, "messages");
        assert_eq!((code, outcome), (1, "broken"), "{text}");
        assert!(text.contains(grant), "{text}");
    }
}
