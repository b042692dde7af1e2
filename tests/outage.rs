//! Servers that are away, or hang: what calls cost meanwhile, what they leave, and what comes first when they are back.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

mod support;

use futures_util::future::join_all;
use redlatch::ErrorKind;
use redlatch_testkit::Server;
use support::mixed::{KINDS, try_take};
use support::probe::{calls_of, nothing_left, soon};
use support::{builder, eventually_unreachable};

/// Requests for scripts that this server ever had, in whatever form.
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
            // Readers of one name ask together.
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
    // Lost, or about to be; its release is the only thing that is owed.
    drop(outer);
    server.restart();
    let lock = client.lock("k");
    soon(lock.lock()).await.unwrap().unlock().await.unwrap();
    nothing_left(&server, [&client]).await;
    // Whatever is owed is paid before it ends.
    client.close().await;
    // Of the lock: by its hash and as a whole, twice; and so the release of the other one.
    let asked = scripts_asked_for(&server);
    assert!((4..=7).contains(&asked), "{asked}");
}
