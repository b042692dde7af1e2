//! Every way to reach a server, each with a real one: password, user, database, TLS, sentinels.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

mod support;

use std::sync::Arc;

use redlatch::fred::rustls::pki_types::CertificateDer;
use redlatch::fred::rustls::pki_types::pem::PemObject;
use redlatch::fred::rustls::{self, ClientConfig, RootCertStore};
use redlatch::fred::types::config::{Config, ServerConfig};
use redlatch::{Client, ErrorKind, Owner};
use redlatch_testkit::{Sentinel, Server, skip};
use support::eventually;

/// Takes a lock, finds it excluded for another owner, has the other woken by the unlock.
async fn take_turns(client: &Client) {
    let lock = client.lock("turns");
    let other = lock.clone().owned_by(&Owner::unique());
    let guard = lock.lock().await.unwrap();
    assert!(other.try_lock().await.unwrap().is_none());
    let waiter = tokio::spawn(async move { other.lock().await.unwrap().unlock().await });
    eventually("the waiter listens", async || {
        format!("{client:?}").contains("channels: 1")
    })
    .await;
    guard.unlock().await.unwrap();
    waiter.await.unwrap().unwrap();
    client.close().await;
}

#[tokio::test]
async fn a_password_in_the_url_is_used_and_its_absence_refused() {
    let server = Server::builder().password("s3cret/#").start();
    let url = format!("redis://:s3cret%2F%23@127.0.0.1:{}", server.port());
    take_turns(&Client::connect(url).await.unwrap()).await;

    for credentials in ["", ":wrong@"] {
        let url = format!("redis://{credentials}127.0.0.1:{}", server.port());
        let error = Client::connect(url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
        assert!(!format!("{error} {error:?}").contains("wrong@"));
    }
}

#[tokio::test]
async fn a_user_with_the_rights_of_a_lock_suffices() {
    let server = Server::start();
    server.connection().command(&[
        "ACL",
        "SETUSER",
        "locker",
        "on",
        ">pass",
        "~*",
        "&*",
        "-@all",
        "+@connection",
        "+@scripting",
        "+@hash",
        "+@keyspace",
        "+@pubsub",
        "+info",
        "+role",
    ]);
    let url = format!("redis://locker:pass@127.0.0.1:{}", server.port());
    take_turns(&Client::connect(url).await.unwrap()).await;
}

#[tokio::test]
async fn databases_are_apart_though_channels_are_not() {
    let server = Server::start();
    let in_three = Client::connect(format!("{}/3", server.url()))
        .await
        .unwrap();
    let in_zero = Client::connect(server.url()).await.unwrap();
    let guard = in_three.lock("k").lock().await.unwrap();
    let other = in_zero
        .lock("k")
        .try_lock()
        .await
        .unwrap()
        .expect("another database, another lock");
    assert_eq!(server.connection().keys(), ["k"]);
    other.unlock().await.unwrap();
    guard.verify().await.unwrap();
    guard.unlock().await.unwrap();
    take_turns(&in_three).await;
}

#[tokio::test]
async fn tls_with_a_given_authority_connects_and_with_the_systems_is_refused() {
    let server = match Server::builder().tls().try_start() {
        Ok(server) => server,
        Err(log) if log.to_lowercase().contains("tls") => {
            return skip("tls", "this server was built without TLS");
        }
        Err(log) => panic!("{log}"),
    };
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(server.ca_pem().as_bytes()).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let config = Config {
        server: ServerConfig::new_centralized("127.0.0.1", server.port()),
        tls: Some(tls.into()),
        ..Config::default()
    };
    take_turns(&Client::builder().config(config).build().await.unwrap()).await;

    // No system trusts the authority of this test; without any authority the URL itself is refused.
    let error = Client::connect(server.url()).await.unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::Backend | ErrorKind::InvalidInput),
        "{error}"
    );
}

/// A fred configuration says RESP2 if nothing else is said.
#[tokio::test]
async fn both_versions_of_the_protocol_work() {
    use redlatch::fred::types::RespVersion;
    let server = Server::start();
    for version in [RespVersion::RESP2, RespVersion::RESP3] {
        let config = Config {
            server: ServerConfig::new_centralized("127.0.0.1", server.port()),
            version,
            ..Config::default()
        };
        take_turns(&Client::builder().config(config).build().await.unwrap()).await;
    }
}

#[tokio::test]
async fn a_single_server_is_told_from_a_cluster() {
    let server = Server::start();
    let url = format!("redis-cluster://127.0.0.1:{}", server.port());
    let error = Client::connect(url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend);
    assert!(error.to_string().contains("is in no cluster"), "{error}");
}

#[tokio::test]
async fn sentinels_lead_to_the_primary() {
    let primary = Server::start();
    let sentinel = Sentinel::start(&primary, "main");
    take_turns(&Client::connect(sentinel.url()).await.unwrap()).await;
}

#[tokio::test]
async fn replica_says_that_it_takes_no_locks_until_it_is_the_primary() {
    let primary = Server::start();
    let replica = Server::builder().replica_of(primary.port()).start();
    let client = Client::connect(replica.url()).await.unwrap();
    let lock = client.lock("k");
    let error = lock.try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend);
    assert!(error.to_string().contains("is a replica"), "{error}");
    let other = lock.clone().owned_by(&Owner::unique());
    let waiter = tokio::spawn(async move { other.lock().await });
    let promoted = replica.connection().command(&["REPLICAOF", "NO", "ONE"]);
    assert_eq!(promoted.text(), "OK");
    let guard = waiter.await.unwrap().unwrap();
    guard.unlock().await.unwrap();
    take_turns(&client).await;
}
