//! The log that an operator sees: the events in the life of a lock, none of which contains a secret.
//!
//! A program of its own, for its subscribers: each test records what happens on its thread.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

mod support;

use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redlatch::config::Protocol;
use redlatch::{Client, Config, LockGuard, LossReason, Owner};
use redlatch_testkit::{Proxy, Server};
use support::mixed::{KINDS, try_take};
use support::{builder, eventually, start};
use tokio::task::JoinSet;
use tracing::subscriber::{DefaultGuard, set_default};
use tracing::{Instrument, info_span};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::FmtSpan;

const PASSWORD: &str = "s3cret";

/// All log output, as text.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Records what happens on this thread until the guard is dropped.
    fn record() -> (Self, DefaultGuard) {
        let log = Self::default();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_span_events(FmtSpan::NEW | FmtSpan::CLOSE)
            .with_ansi(false)
            .with_writer(log.clone())
            .finish();
        (log, set_default(subscriber))
    }

    /// Returns the lines that an operator sees.
    fn told(&self) -> Vec<String> {
        let is_told = |line: &&str| {
            let level = line.split_whitespace().nth(1).unwrap_or_default();
            ["INFO", "WARN", "ERROR"].contains(&level)
        };
        self.text()
            .lines()
            .filter(is_told)
            .map(str::to_owned)
            .collect()
    }

    /// Checks that each event under the target `redlatch` is on its page, with its level and its fields.
    fn is_as_documented(&self) {
        let page = include_str!("../src/tracing.rs");
        let rows = page.lines().filter_map(|line| line.strip_prefix("//! | `"));
        let rows: Vec<Vec<&str>> = rows.map(|row| row.split(" | ").collect()).collect();
        let text = self.text();
        for line in text.lines().filter(|line| line.contains(" redlatch: ")) {
            let level = line.split_whitespace().nth(1).unwrap().to_lowercase();
            let (_, event) = line.split_once(" redlatch: ").unwrap();
            let words = event.split(' ').take_while(|word| !word.contains('='));
            let name = words.collect::<Vec<_>>().join(" ");
            if ["new", "close"].contains(&&*name) {
                continue;
            }
            let row = rows.iter().find(|row| row[0].trim_end_matches('`') == name);
            let row = row.unwrap_or_else(|| panic!("not on the page: {line}"));
            assert!(row[1].contains(&level), "{level}: {line}");
            let first = event[name.len()..].trim_start().split('=').next().unwrap();
            assert!(row[2].contains(&format!("`{first}`")), "{first}: {line}");
        }
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    async fn tells(&self, words: &[&str]) {
        let shown = format!("the log has a line with {words:?}");
        eventually(&shown, async || {
            self.text()
                .lines()
                .any(|line| words.iter().all(|word| line.contains(word)))
        })
        .await;
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Log {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

#[tokio::test]
async fn the_life_of_a_lock_is_reported_and_no_password() {
    let (log, _recording) = Log::record();
    let server = Server::builder().password(PASSWORD).start();
    let client = builder(server.url())
        .label("here")
        .watchdog_lease(Duration::from_millis(900))
        .build()
        .await
        .unwrap();
    log.tells(&["DEBUG", "connected", client.id()]).await;

    let lock = client.lock("invoice");
    let guard = lock.lock().await.unwrap();
    log.tells(&["DEBUG", "acquire{lock=invoice owner=", "acquired waited="])
        .await;
    let other = lock.clone().owned_by(&Owner::named("req-7"));
    let waiter = tokio::spawn(async move { other.lock().await });
    log.tells(&["DEBUG", "subscribed", "channels=1"]).await;
    let mut admin = server.connection();
    admin.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    log.tells(&["INFO", "resubscribing", "channels=1"]).await;

    guard.unlock().await.unwrap();
    let guard = waiter.await.unwrap().unwrap();
    log.tells(&["acquire{lock=invoice owner=here req-7}", "acquired waited="])
        .await;
    admin.command(&["DEL", "invoice"]);
    guard.lost().await;
    log.tells(&[
        "WARN",
        "lost",
        "lock=invoice",
        "owner=here req-7",
        "reason=Gone",
    ])
    .await;

    let guard = lock.lock().await.unwrap();
    server.kill();
    guard.lost().await;
    let address = format!("127.0.0.1:{}", server.port());
    log.tells(&[
        "WARN",
        "outage",
        &address,
        "held=1",
        "locks=\"invoice\"",
        "error=",
    ])
    .await;
    log.tells(&["WARN", "lost", "reason=Expired"]).await;

    assert!(Client::connect(server.url()).await.is_err());
    client.close().await;
    log.tells(&["DEBUG", "closed", client.id()]).await;

    assert!(!log.text().contains(PASSWORD));
    log.is_as_documented();
}

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

#[tokio::test]
async fn call_that_waits_for_long_and_one_in_vain_name_who_waits_and_who_holds() {
    let (log, _recording) = Log::record();
    let (server, elsewhere) = start().await;
    let client = builder(server.url())
        .label("here")
        .long_wait(Duration::from_millis(50));
    let client = client.build().await.unwrap();
    let lock = client.lock("stock:7");
    let guard = lock
        .clone()
        .owned_by(&Owner::named("req-1"))
        .lock()
        .await
        .unwrap();
    let other = lock.clone().owned_by(&Owner::named("req-2"));
    assert!(other.try_lock().await.unwrap().is_none());
    log.tells(&[
        "DEBUG",
        "busy",
        "lock=stock:7 owner=here req-2 held_by=here req-1",
    ])
    .await;
    let waiting = tokio::spawn(async move { other.lock().await });
    log.tells(&[
        "WARN",
        "long wait",
        "lock=stock:7 owner=here req-2 waited=50ms held_by=here req-1",
    ])
    .await;
    guard.unlock().await.unwrap();
    log.tells(&["DEBUG", "unlocked", "lock=stock:7 owner=here req-1 held="])
        .await;
    let guard = waiting.await.unwrap().unwrap();

    // What another process holds is not known here.
    let lock = elsewhere.lock("stock:7").owned_by(&Owner::named("req-3"));
    let wait = Duration::from_millis(20);
    assert!(lock.try_lock_for(wait).await.unwrap().is_none());
    log.tells(&["DEBUG", "busy", " req-3"]).await;
    let text = log.text();
    let waits: Vec<_> = text
        .lines()
        .filter(|line| line.contains("long wait"))
        .collect();
    assert_eq!(waits.len(), 1, "{waits:#?}");
    assert!(
        !text
            .lines()
            .any(|line| line.contains("req-3") && line.contains("held_by"))
    );
    drop(guard);
    log.tells(&["DEBUG", "unlocked", "owner=here req-2"]).await;
    log.is_as_documented();
}

#[tokio::test]
async fn call_that_waits_for_permits_that_nobody_set_says_so_once() {
    let (log, _recording) = Log::record();
    let server = Server::start();
    let client = builder(server.url()).long_wait(Duration::from_millis(50));
    let client = client.build().await.unwrap();
    let (unset, spent) = (client.semaphore("uploads"), client.semaphore("spent"));
    let leased = client.expirable_semaphore("leased");
    spent.try_set_permits(1).await.unwrap();
    let taken = spent.acquire().await.unwrap();
    let waiting = [
        tokio::spawn(async move { spent.acquire().await.map(drop) }),
        tokio::spawn({
            let unset = unset.clone();
            async move { unset.acquire().await.map(drop) }
        }),
        tokio::spawn({
            let unset = unset.clone();
            async move { unset.acquire().await.map(drop) }
        }),
        tokio::spawn({
            let leased = leased.clone();
            async move { leased.acquire().await.map(drop) }
        }),
    ];
    let advice = "no permits were set, call try_set_permits";
    for semaphore in [
        "semaphore=uploads waited=50ms",
        "semaphore=leased waited=50ms",
    ] {
        log.tells(&["WARN", advice, semaphore]).await;
    }
    unset.try_set_permits(1).await.unwrap();
    leased.try_set_permits(1).await.unwrap();
    taken.release().await.unwrap();
    for call in waiting {
        call.await.unwrap().unwrap();
    }
    let text = log.text();
    let told = text.lines().filter(|line| line.contains(advice)).count();
    assert_eq!(told, 2, "{text}");
    client.close().await;
    log.is_as_documented();
}

#[tokio::test]
async fn hold_has_a_span_from_its_grant_to_its_end_if_asked_for() {
    let (log, _recording) = Log::record();
    let (server, plain) = start().await;
    plain
        .lock("k")
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    assert!(!log.text().contains("hold{"), "not by default");

    let client = builder(server.url())
        .label("here")
        .trace_holds(true)
        .build()
        .await
        .unwrap();
    let lock = client.lock("k").owned_by(&Owner::named("req-7"));
    let guard = lock.lock().await.unwrap();
    let inner = guard.reenter().await.unwrap();
    log.tells(&["INFO", "hold{lock=k owner=here req-7}", "new"])
        .await;
    guard.unlock().await.unwrap();
    let is_closed =
        |line: &str| line.contains("hold{lock=k owner=here req-7") && line.contains("close");
    assert!(!log.text().lines().any(is_closed), "one level is left");
    inner.unlock().await.unwrap();
    assert!(log.text().lines().any(is_closed));

    // The call is over, and the hold goes on.
    let request = info_span!("request");
    let guard = lock.lock().instrument(request).await.unwrap();
    log.tells(&["request:hold{lock=k owner=here req-7}", "new"])
        .await;
    log.tells(&["request:acquire{lock=k owner=here req-7}", "close"])
        .await;
    lock.force_unlock().await.unwrap();
    log.tells(&["INFO", "hold{", "lost=Forced", "close"]).await;
    drop(guard);
    // A lock that is passed on in memory has a span for each hold.
    let guard = lock.lock().await.unwrap();
    let next = client.lock("k").owned_by(&Owner::unique());
    let next = tokio::spawn(async move { next.lock().await });
    guard.unlock().await.unwrap();
    drop(next.await.unwrap().unwrap());
    let text = log.text();
    let count = |what: &str| {
        let spans = text
            .lines()
            .filter(|line| line.contains("hold{") && line.ends_with(what));
        spans.count()
    };
    assert_eq!(count(": redlatch: new"), 4, "{text}");
    client.close().await;
    log.is_as_documented();
}

/// A client with holds, a hold that was left to its owner, a permit and calls that wait.
async fn busy_client(server: &Server) -> (Client, Vec<LockGuard>, JoinSet<()>) {
    let client = builder(server.url()).build().await.unwrap();
    let mut guards = Vec::new();
    for name in ["a", "b", "c"] {
        guards.push(client.lock(name).lock().await.unwrap());
    }
    guards.push(client.fair_lock("d").lock().await.unwrap());
    drop(client.lock("e").lock().await.unwrap().detach());
    let permits = client.semaphore("p");
    permits.try_set_permits(1).await.unwrap();
    let permit = permits.acquire().await.unwrap();
    let mut waiting = JoinSet::new();
    for lock in [client.lock("a"), client.lock("b")] {
        let lock = lock.owned_by(&Owner::unique());
        waiting.spawn(async move { drop(lock.lock().await) });
    }
    let fair = client.fair_lock("d").owned_by(&Owner::unique());
    waiting.spawn(async move {
        let _permit = permit;
        drop(fair.lock().await);
    });
    eventually("they wait", async || {
        format!("{client:?}").contains("waiting: 3")
    })
    .await;
    (client, guards, waiting)
}

#[tokio::test]
async fn close_in_good_order_warns_of_nothing() {
    let (log, _recording) = Log::record();
    let server = Server::start();
    let (client, guards, waiting) = busy_client(&server).await;
    client.close().await;
    assert!(guards.iter().all(|guard| guard.is_lost()));
    waiting.join_all().await;
    log.tells(&["DEBUG", "lost", "lock=a", "reason=Closed"])
        .await;
    drop(guards);
    assert_eq!(log.told(), [""; 0]);
    log.is_as_documented();
}

#[test]
fn end_of_a_runtime_warns_of_nothing() {
    let (log, _recording) = Log::record();
    let server = Server::start();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let (client, guards, waiting) = runtime.block_on(busy_client(&server));
    drop(waiting);
    drop(runtime);
    assert!(guards.iter().all(|guard| guard.is_lost()));
    drop((guards, client));
    assert_eq!(log.told(), [""; 0]);
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
async fn terms_adoptions_and_releases_by_force_are_told_at_info_with_lock_label_and_token() {
    let (log, _recording) = Log::record();
    let server = Server::start();
    let labelled = async |label: &str| {
        let builder = builder(server.url()).label(label);
        builder.build().await.unwrap()
    };
    let (here, there) = (labelled("here").await, labelled("there").await);
    let term = here.leader("scheduler").campaign().await.unwrap();
    let token = format!("token={}", term.token());
    log.tells(&["INFO", "leads", "lock=scheduler", "label=\"here\"", &token])
        .await;
    let candidate = there.leader("scheduler");
    let next = tokio::spawn(async move { candidate.campaign().await });
    let follows = [
        "INFO",
        "follows",
        "lock=scheduler label=\"there\" leader=here",
    ];
    log.tells(&follows).await;

    assert!(there.fenced_lock("scheduler").force_unlock().await.unwrap());
    log.tells(&[
        "INFO",
        "released by force",
        "lock=scheduler label=\"there\"",
    ])
    .await;
    term.lost().await;
    let deposed = [
        "INFO",
        "deposed",
        "lock=scheduler label=\"here\"",
        &token,
        "reason=",
    ];
    log.tells(&deposed).await;
    drop(term);
    let term = next.await.unwrap().unwrap();
    let token = format!("token={}", term.token());
    log.tells(&["INFO", "leads", "label=\"there\"", &token])
        .await;
    // One that steps down is not deposed.
    term.step_down().await.unwrap();
    let text = log.text();
    let deposed = text.lines().filter(|line| line.contains(" deposed "));
    assert_eq!(deposed.count(), 1, "{text}");

    let job = Owner::named("import-7");
    let [left, found] = [&here, &there].map(|client| client.fenced_lock("import").owned_by(&job));
    drop(left.lock().await.unwrap().detach());
    let guard = found.adopt().await.unwrap().unwrap();
    let token = format!("token={}", guard.token());
    let adopted = [
        "INFO",
        "adopted",
        "lock=import owner=import-7 label=\"there\"",
        &token,
    ];
    log.tells(&adopted).await;
    guard.unlock().await.unwrap();
    log.is_as_documented();
}
