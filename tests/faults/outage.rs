//! Servers that are away or hang: what calls cost meanwhile, what they leave behind, and what is sent first when the
//! server is back.

use std::time::Instant;

use crate::support::mixed::{KINDS, try_take};
use crate::support::probe::{calls_of, nothing_left, secs, soon};
use crate::support::{builder, eventually, eventually_unreachable, sha, start};
use futures_util::future::join_all;
use redlatch::{Client, ErrorKind};
use redlatch_testkit::{Proxy, Reply, Server};

/// The number of permits of each semaphore here.
const PERMITS: u32 = 1_000;

/// Sets the number of permits of both semaphores.
async fn set_permits(client: &Client) {
    let semaphore = client.semaphore("semaphore");
    assert!(semaphore.try_set_permits(PERMITS).await.unwrap());
    let semaphore = client.expirable_semaphore("expirable");
    assert!(semaphore.try_set_permits(PERMITS).await.unwrap());
}

/// Makes `tries` attempts at once, of all kinds in turn, each lock with a name of its own. Returns the error kinds of
/// those that failed.
async fn try_many(client: &Client, tries: usize) -> Vec<ErrorKind> {
    let tries = (0..tries).map(|at| async move {
        let kind = KINDS[at % KINDS.len()];
        let name = match kind {
            "semaphore" | "expirable" => kind.to_owned(),
            _ => format!("{kind}:{at}"),
        };
        try_take(client, kind, &name).await.map(drop)
    });
    let tried = join_all(tries).await;
    tried
        .into_iter()
        .filter_map(|tried| Some(tried.err()?.kind()))
        .collect()
}

/// Returns whether everything was released: no key is left but those of the semaphores, tokens and marks, and the
/// semaphores have all their permits.
async fn is_settled(server: &Server, client: &Client) -> bool {
    let mut probe = server.connection();
    let names = ["semaphore", "expirable"];
    let keys = probe.keys();
    let rest = keys
        .iter()
        .filter(|key| !names.contains(&key.as_str()) && !key.contains("token"));
    let free = [
        client.semaphore("semaphore").available_permits().await,
        client
            .expirable_semaphore("expirable")
            .available_permits()
            .await,
    ];
    let marks = rest.clone().filter(|key| key.contains("redlatch_")).count();
    rest.count() == marks
        && free
            .iter()
            .all(|free| free.as_ref().is_ok_and(|free| *free == PERMITS as i32))
}

/// Returns how many requests for scripts, by hash or in full, this server has ever had.
fn scripts_asked_for(server: &Server) -> u64 {
    let mut probe = server.connection();
    calls_of(&mut probe, "evalsha") + calls_of(&mut probe, "eval")
}

#[tokio::test(flavor = "multi_thread")]
async fn request_that_was_never_sent_says_so_and_owes_nothing() {
    let server = Server::start();
    let client = builder(server.url()).build().await.unwrap();
    let held = client.lock("held");
    let outer = held.lock().await.unwrap();
    server.kill();
    eventually_unreachable(&client).await;
    let tries = (0..100).map(|at| {
        let client = &client;
        async move {
            let kind = KINDS[at % KINDS.len()];
            // Readers of one name ask in one request.
            let name = if kind == "read" {
                kind.to_owned()
            } else {
                format!("{kind}:{at}")
            };
            (kind, try_take(client, kind, &name).await.map(drop))
        }
    });
    for (kind, tried) in join_all(tries).await {
        let error = tried.expect_err(kind);
        assert_eq!(error.kind(), ErrorKind::Backend, "{kind}: {error}");
        assert!(error.to_string().contains("not sent"), "{kind}: {error}");
    }
    let again = outer.reenter().await.unwrap_err();
    assert!(again.to_string().contains("not sent"), "{again}");
    // The hold is lost or about to be; its release is the only thing that is owed.
    drop(outer);
    server.restart();
    let lock = client.lock("k");
    soon(lock.lock()).await.unwrap().unlock().await.unwrap();
    nothing_left(&server, [&client]).await;
    // The client sends everything that it owes before it closes.
    client.close().await;
    // The lock and its release: each by hash and in full. The release of the other hold likewise.
    let asked = scripts_asked_for(&server);
    assert!((4..=7).contains(&asked), "{asked}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_hung_server_did_not_answer_is_undone_soon_after_it_goes_on() {
    let server = Server::start();
    // The lease is shorter than the server hangs: when the server goes on, it still takes locks for the requests that
    // it had not read.
    let lease = secs(3);
    let client = Client::builder().url(server.url()).watchdog_lease(lease);
    let client = client.build().await.unwrap();
    set_permits(&client).await;
    assert_eq!(try_many(&client, KINDS.len()).await, []);
    server.freeze();
    let frozen = Instant::now();
    let failed = try_many(&client, 1_000).await;
    assert_eq!(failed.len(), 1_000);
    assert!(failed.contains(&ErrorKind::Timeout), "some were sent");
    // The late requests are on a connection that was given up.
    eventually_unreachable(&client).await;
    tokio::time::sleep_until((frozen + lease + secs(1)).into()).await;
    server.thaw();
    let back = Instant::now();
    soon(client.lock("k").lock())
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    let first = back.elapsed();
    eventually("all is given back", async || {
        is_settled(&server, &client).await
    })
    .await;
    println!("first {first:?}, settled {:?}", back.elapsed());
    assert!(
        back.elapsed() < lease,
        "not by the leases: {:?}",
        back.elapsed()
    );
    client.close().await;
}

#[tokio::test]
async fn request_that_lies_on_a_connection_that_was_given_up_is_never_carried_out() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    proxy.allow_kills();
    let client = builder(proxy.url()).build().await.unwrap();
    let lock = client.lock("k");
    lock.lock().await.unwrap().unlock().await.unwrap();
    let mut late = proxy.hold_request(sha("lock_acquire"));
    let guard = soon(lock.lock()).await.unwrap();
    late.caught().await;
    guard.unlock().await.unwrap();
    // As if the server read the request only now: the lock is free, so it would be taken for a lease.
    let answer = late.try_deliver().await.unwrap_or_default();
    assert!(answer.is_empty(), "{}", String::from_utf8_lossy(&answer));
    nothing_left(&server, [&client]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connection_on_which_all_was_answered_needs_no_end_by_the_next() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    proxy.allow_kills();
    let client = builder(proxy.url()).build().await.unwrap();
    let lock = client.lock("k");
    lock.lock().await.unwrap().unlock().await.unwrap();
    proxy.cut_reply_to("KILL");
    let before = proxy.accepted();
    proxy.cut();
    // Nothing is asked for before the client has seen the cut.
    eventually("connected again", async || {
        proxy.accepted() >= before + 2 && client.is_connected()
    })
    .await;
    soon(lock.lock()).await.unwrap().unlock().await.unwrap();
    assert!(
        proxy.cut_reply_armed(),
        "the server looked for the old connection among all"
    );
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_asked_for_while_too_much_is_owed() {
    let (server, client) = start().await;
    let lock = client.lock("k");
    lock.lock().await.unwrap().unlock().await.unwrap();
    server.freeze();
    // More than the client keeps, all of them sent before it knows that the server hangs.
    let tries = (0..10_000).map(|at| {
        let lock = client.lock(format!("k:{at}"));
        async move { lock.try_lock().await.is_err() }
    });
    assert!(join_all(tries).await.into_iter().all(|failed| failed));
    eventually("as much is owed as may be", async || {
        let refused = lock.try_lock().await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Backend, "{refused}");
        refused.to_string().contains("owed to a server")
    })
    .await;
    server.thaw();
    eventually("it is asked again", async || lock.try_lock().await.is_ok()).await;
    nothing_left(&server, [&client]).await;
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn release_that_is_refused_after_an_outage_holds_up_no_other() {
    let server = Server::start();
    let mut admin = server.connection();
    let mut user = |keys: &[&str]| {
        let rights = ["ACL", "SETUSER", "app", "on", "nopass", "&*", "+@all"];
        let done = admin.command(&[&rights, keys].concat());
        assert_eq!(done, Reply::Status("OK".to_owned()));
    };
    user(&["allkeys"]);
    let proxy = Proxy::start(server.port()).await;
    let url = format!("redis://app:any@127.0.0.1:{}", proxy.port());
    let client = builder(url).build().await.unwrap();
    let guards = (0..=100).map(|at| {
        let name = if at == 50 {
            "k".to_owned()
        } else {
            format!("refused:{at}")
        };
        let lock = client.lock(name);
        async move { lock.lock().await.unwrap() }
    });
    let guards = join_all(guards).await;
    proxy.black_hole(true);
    eventually_unreachable(&client).await;
    user(&["resetkeys", "~k"]);
    drop(guards);
    // These requests queue behind the releases, and wait no longer than they do.
    for _ in 0..2 {
        assert!(client.lock("later").is_locked().await.is_err());
    }
    proxy.black_hole(false);
    proxy.cut();
    let mut probe = server.connection();
    eventually("it is given back", async || !probe.exists("k")).await;
    assert_eq!(probe.keys().len(), 100, "refused");
    user(&["allkeys"]);
    nothing_left(&server, [&client]).await;
    client.close().await;
}
