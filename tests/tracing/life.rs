//! The life of a lock: who waits for it, who holds it, how a hold ends, and that closing a client warns of nothing.

use std::time::Duration;

use crate::support::{builder, eventually, start};
use crate::{Log, PASSWORD};
use redlatch::{Client, LockGuard, Owner};
use redlatch_testkit::Server;
use tokio::task::JoinSet;
use tracing::{Instrument, info_span};

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
