//! What goes wrong at a server: outages in a handful of lines, refusals in its own words, and no part of a password
//! that it repeats.

use std::time::{Duration, Instant};

use crate::support::mixed::{KINDS, try_take};
use crate::support::scene::patient;
use crate::support::{self, builder, eventually};
use crate::{Log, PASSWORD};
use redlatch::config::Protocol;
use redlatch::{Client, Config, LossReason, Owner};
use redlatch_testkit::{Cluster, Proxy, Server};
use tokio::task::JoinSet;

#[tokio::test]
async fn refusal_to_publish_is_told_once_with_what_to_grant() {
    let (log, _recording) = Log::record();
    let server = Server::start();
    let user = [
        "on",
        ">s3cret",
        "~*",
        "&*",
        "+@all",
        "-publish",
        "-spublish",
    ];
    let mut probe = server.connection();
    probe.command(&[&["ACL", "SETUSER", "app"], &user[..]].concat());
    let url = format!("redis://app:{PASSWORD}@127.0.0.1:{}", server.port());
    let client = builder(url).build().await.unwrap();
    for name in ["a", "b", "c"] {
        let guard = client.lock(name).lock().await.unwrap();
        guard.unlock().await.unwrap();
    }
    log.tells(&["WARN", "+publish", "&redisson_*", "poll_cap"])
        .await;
    let text = log.text();
    let told = text.lines().filter(|line| line.contains("+publish"));
    assert_eq!(told.count(), 1, "{text}");
    client.close().await;
    assert!(!log.text().contains(PASSWORD));
}

#[tokio::test]
async fn refused_renewal_is_told_with_the_words_of_the_server() {
    let (log, _recording) = Log::record();
    let server = Server::start();
    let mut admin = server.connection();
    let user = "ACL SETUSER app on >s3cret ~* &* +@all".split(' ');
    admin.command(&user.collect::<Vec<_>>());
    let url = format!("redis://app:{PASSWORD}@127.0.0.1:{}", server.port());
    let brief = builder(url).watchdog_lease(Duration::from_millis(400));
    let client = brief.build().await.unwrap();
    let guard = client.lock("k").lock().await.unwrap();
    admin.command(&["ACL", "SETUSER", "app", "-hget"]);
    log.tells(&["WARN", "renewal failed", "can't run this command"])
        .await;
    assert_eq!(guard.lost().await, LossReason::Expired);
    client.close().await;
    log.is_as_documented();
}

/// A server is away for several leases. Whatever is held, the log has a handful of lines.
#[tokio::test]
async fn outage_with_a_thousand_holds_is_told_in_a_handful_of_lines() {
    const HOLDS: usize = 1_000;

    let (log, _recording) = Log::record();
    let server = Server::start();
    let client = builder(server.url()).watchdog_lease(Duration::from_secs(3));
    let client = client.build().await.unwrap();
    let mut guards = Vec::new();
    for at in 0..HOLDS {
        guards.push(client.lock(format!("held:{at}")).lock().await.unwrap());
    }
    let waiting = client.lock("held:0").owned_by(&Owner::unique());
    let waiting = tokio::spawn(async move { waiting.lock().await.map(drop) });
    for outage in ["killed", "hung"] {
        // On a machine that is busy, the acquisitions may have had one of their own.
        eventually("no outage goes on", async || {
            let count = |what: &str| log.told().iter().filter(|line| line.contains(what)).count();
            count("outage server") == count("outage is over")
        })
        .await;
        let before = log.told().len();
        let end = Instant::now() + Duration::from_secs(8);
        match outage {
            "killed" => server.kill(),
            _ => server.freeze(),
        }
        eventually("it is told", async || {
            log.told()[before..]
                .iter()
                .any(|line| line.contains("outage"))
        })
        .await;
        while Instant::now() < end {
            client.lock("k").try_lock().await.unwrap_err();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        match outage {
            "killed" => server.restart(),
            _ => server.thaw(),
        }
        eventually("its end is told", async || {
            log.told()[before..]
                .iter()
                .any(|line| line.contains("outage is over"))
        })
        .await;
        let lines = log.told()[before..].to_vec();
        assert!(lines.len() <= 8, "{outage}, {}: {lines:#?}", lines.len());
        let address = format!("server=127.0.0.1:{} ", server.port());
        let has = |words: &[&str]| {
            let mut those = lines
                .iter()
                .filter(|line| words.iter().all(|word| line.contains(word)));
            assert!(those.next().is_some(), "{words:?}: {lines:#?}");
            assert!(those.next().is_none(), "{words:?}: {lines:#?}");
        };
        let held = guards.iter().filter(|guard| !guard.is_lost()).count();
        assert_eq!(held, 0, "{outage}");
        has(&[
            "WARN",
            "outage server",
            &address,
            "locks=\"held:",
            "and 997 more",
            "held=1000",
        ]);
        has(&[
            "WARN",
            "outage is over",
            &address,
            "lasted=",
            "lost=1000",
            "and 997 more",
        ]);
        has(&["WARN", "lost lock="]);
        guards.clear();
        for at in 0..HOLDS {
            guards.push(client.lock(format!("held:{at}")).lock().await.unwrap());
        }
    }
    waiting.abort();
    drop(guards);
    client.close().await;
    log.is_as_documented();
}

#[tokio::test]
async fn server_that_comes_back_empty_is_told_with_all_that_it_lost() {
    let (log, _recording) = Log::record();
    let server = Server::start();
    let client = builder(server.url()).build().await.unwrap();
    let mut guards = Vec::new();
    for at in 0..50 {
        guards.push(client.lock(format!("held:{at}")).lock().await.unwrap());
    }
    server.connection().command(&["FLUSHALL"]);
    server
        .connection()
        .command(&["CLIENT", "KILL", "TYPE", "normal"]);
    for guard in &guards {
        guard.lost().await;
    }
    log.tells(&["INFO", "reconnected", "server=127.0.0.1:"])
        .await;
    log.tells(&["WARN", "lost more", "lost=50", "and 47 more"])
        .await;
    let losses: Vec<_> = log
        .told()
        .into_iter()
        .filter(|line| line.contains("redlatch: lost"))
        .collect();
    assert_eq!(losses.len(), 2, "{losses:#?}");
    log.is_as_documented();
}

/// Checks that many failed calls of all kinds are logged at about one line per second.
#[tokio::test]
async fn calls_that_fail_in_an_outage_are_told_in_few_lines() {
    let (log, _recording) = Log::record();
    let server = Server::start();
    let client = Client::builder()
        .url(server.url())
        .watchdog_lease(Duration::from_secs(2));
    let client = client.build().await.unwrap();
    let mut guards = Vec::new();
    for at in 0..200 {
        guards.push(client.lock(format!("held:{at}")).lock().await.unwrap());
    }
    let waiting = client.lock("held:0").owned_by(&Owner::unique());
    let waiting = tokio::spawn(async move { waiting.lock().await.map(drop) });
    for outage in ["killed", "hung"] {
        let (before, began) = (log.told().len(), Instant::now());
        match outage {
            "killed" => server.kill(),
            _ => server.freeze(),
        }
        let mut calls = JoinSet::new();
        while began.elapsed() < Duration::from_secs(4) {
            let (client, call) = (client.clone(), calls.len());
            calls.spawn(async move {
                let kind = KINDS[call % KINDS.len()];
                try_take(&client, kind, &format!("{kind}:{call}"))
                    .await
                    .map(drop)
            });
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        match outage {
            "killed" => server.restart(),
            _ => server.thaw(),
        }
        let failed = calls.join_all().await.into_iter().filter(Result::is_err);
        assert!(failed.count() > 100, "{outage}");
        eventually("it answers again", async || {
            client.lock("k").is_locked().await.is_ok()
        })
        .await;
        let lines = log.told()[before..].to_vec();
        let most = began.elapsed().as_secs() as usize + 3;
        assert!(lines.len() <= most, "{outage}, {}: {lines:#?}", lines.len());
    }
    waiting.abort();
    drop(guards);
    client.close().await;
}

/// Nobody asks a server where nothing is held: its outage ends all the same when there is a connection again.
#[tokio::test]
async fn outage_of_a_client_that_holds_nothing_ends_with_it() {
    let (log, _recording) = Log::record();
    let server = Server::start();
    let _client = builder(server.url()).build().await.unwrap();
    server.kill();
    // Nobody asks anything: the end of the connection is enough.
    log.tells(&["WARN", "outage", "held=0"]).await;
    server.restart();
    log.tells(&["WARN", "outage is over", "lost=0"]).await;
    log.is_as_documented();
}

/// Each call is given up, and yet replies come all the time: another connection would not be faster.
#[tokio::test]
async fn server_that_answers_late_is_no_outage_and_keeps_its_connection() {
    let (log, _recording) = Log::record();
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let patience = Duration::from_secs(3);
    let client = builder(proxy.url()).command_timeout(patience);
    let client = client.build().await.unwrap();
    client.ping().await.unwrap();
    let (mut delay, mut failed) = (Duration::ZERO, 0);
    let mut calls = JoinSet::new();
    while failed < 50 {
        // Step by step, so that there is no gap between the replies.
        delay = (delay + Duration::from_millis(20)).min(Duration::from_millis(1_700));
        proxy.delay(delay);
        let client = client.clone();
        calls.spawn(async move { client.ping().await });
        tokio::time::sleep(Duration::from_millis(25)).await;
        while let Some(answered) = calls.try_join_next() {
            failed += usize::from(answered.unwrap().is_err());
        }
    }
    calls.abort_all();
    proxy.delay(Duration::ZERO);
    client.ping().await.unwrap();
    assert_eq!(client.stats().connections.reconnects, 0);
    let told = log.told();
    assert!(told.is_empty(), "{told:#?}");
}

/// The server shows a part of each password, in one line, and this client none of it.
#[tokio::test]
async fn no_part_of_a_password_that_the_server_repeats_is_shown() {
    let (log, _recording) = Log::record();
    // Four letters of any of them are nowhere else.
    let numbered = |count: usize| (0..count).map(|n| format!("Q{n:03}")).collect::<String>();
    let passwords = [
        numbered(60),
        numbered(2),
        numbered(1) + "\n" + &numbered(3),
        numbered(2) + "\r\n'" + &numbered(2),
        format!("'{}\" {}", numbered(1), numbered(2)),
    ];
    let port = support::rogue::parrot();
    let mut shown = String::new();
    for password in &passwords {
        for user in [None, Some("locker")] {
            for protocol in [Protocol::Resp2, Protocol::Resp3] {
                let config = Config::server("127.0.0.1", port).password(password);
                let config = config.protocol(protocol);
                let config = match user {
                    Some(user) => config.user(user),
                    None => config,
                };
                let builder = support::impatient(Client::builder().config(config));
                shown += &told_by(builder.clone().build().await.unwrap_err());
                let client = builder.connect_lazily().build().await.unwrap();
                shown += &told_by(client.lock("k").try_lock().await.unwrap_err());
                shown += &format!("{client:?}");
                client.close().await;
            }
        }
    }
    let sentinels = Config::sentinels("main", [("127.0.0.1", port)]);
    let sentinels = sentinels.sentinel_password(&passwords[0]);
    let builder = support::impatient(Client::builder().config(sentinels));
    shown += &told_by(builder.build().await.unwrap_err());
    assert!(shown.contains("unknown command"), "{shown}");
    log.tells(&["WARN", "outage", "unknown command"]).await;
    shown += &log.text();
    for password in &passwords {
        let letters: Vec<char> = password.chars().collect();
        for part in letters.windows(4) {
            let part: String = part.iter().collect();
            assert!(!shown.contains(&part), "{part:?} in {shown}");
        }
    }
}

/// Returns all that an error tells, in every form.
fn told_by(error: redlatch::Error) -> String {
    let mut told = format!("{error:?} {error:#?}\n");
    let mut next: Option<&dyn std::error::Error> = Some(&error);
    while let Some(error) = next {
        told += &format!("{error} {error:?}\n");
        next = error.source();
    }
    told
}

#[tokio::test]
async fn servers_that_disagree_about_a_slot_move_it_at_most_ten_times_a_second() {
    let cluster = Cluster::start();
    let (log, _recording) = Log::record();
    let client = patient(builder(cluster.url())).build().await.unwrap();
    let (owner, other) = cluster.owner("job");
    let began = Instant::now();
    // Each of them says that the other one has the slot.
    cluster.disown(cluster.slot("job"), owner, other);
    let lock = client.lock("job");
    let asking = tokio::spawn(async move { lock.lock().await.map(drop) });
    // The client has learnt of all slots at first.
    let moves = || log.text().matches(" slots=1\n").count();
    eventually("it was moved there and back", async || moves() >= 4).await;
    let most = began.elapsed().as_millis() / 100 + 1;
    let moves = moves();
    assert!(moves as u128 <= most, "{moves} moves, at most {most}");
    asking.abort();
    client.close().await;
}
