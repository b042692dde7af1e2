//! Every way to reach a server, each tested with a real one: password, user, database, TLS, sentinels.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use crate::support::{eventually, probe, with_tls};
use redlatch::config::{Protocol, ReleaseBy, Tls};
use redlatch::semaphore::PermitId;
use redlatch::{Client, Config, ErrorKind, MultiLock, Owner};
use redlatch_testkit::{Cluster, Connection, Reply, Sentinel, Server};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

/// Lets two owners take turns on a lock, then closes the client.
async fn take_turns(client: &Client) {
    probe::take_turns(client).await;
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

    let config = Config::server("127.0.0.1", server.port())
        .user("locker")
        .password("pass");
    take_turns(&Client::builder().config(config).build().await.unwrap()).await;
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
    let Some(server) = with_tls(Server::builder().tls()) else {
        return;
    };
    let config = Config::server("127.0.0.1", server.port()).tls(Tls::new().roots(server.ca_pem()));
    take_turns(&Client::builder().config(config).build().await.unwrap()).await;

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ca.pem");
    std::fs::write(&path, server.ca_pem()).unwrap();
    let url = format!("{}?tls_roots={}", server.url(), path.display());
    take_turns(&Client::connect(url).await.unwrap()).await;

    // No system trusts the authority of this test. On a system without any authority, the URL itself is refused.
    let error = Client::connect(server.url()).await.unwrap_err();
    let advice = error.to_string().contains("tls_roots");
    assert!(
        matches!(error.kind(), ErrorKind::Backend | ErrorKind::InvalidInput) && advice,
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_tls_cannot_write_at_once_arrives_whole_and_in_order() {
    let Some(server) = with_tls(Server::builder().tls()) else {
        return;
    };
    let config = Config::server("127.0.0.1", server.port()).tls(Tls::new().roots(server.ca_pem()));
    let builder = Client::builder().config(config);
    // A request may take a sixth of the lease at most.
    let builder = builder.command_timeout(Duration::from_secs(60));
    let builder = builder.watchdog_lease(Duration::from_secs(360));
    let client = builder.build().await.unwrap();
    let guard = client.lock("k").lock().await.unwrap();
    let sent = || client.stats().traffic.bytes_sent;
    let before = sent();
    server.freeze();
    let mut asked = Vec::new();
    for n in 0..4_000 {
        let lock = client.lock(format!("{n:01000}"));
        let lock = lock.owned_by(&Owner::named(format!("{n:01000}")));
        asked.push(tokio::spawn(async move {
            lock.try_lock().await.unwrap().expect("free").unlock().await
        }));
    }
    eventually("more is asked than sockets hold", async || {
        sent() - before > 12_000_000
    })
    .await;
    drop(guard);
    server.thaw();
    for answered in asked {
        answered.await.unwrap().unwrap();
    }
    assert!(client.lock("k").try_lock().await.unwrap().is_some());
    client.close().await;
}

#[tokio::test]
async fn client_certificate_opens_a_server_that_wants_one() {
    let Some(server) = with_tls(Server::builder().client_certificates()) else {
        return;
    };
    let tls = Tls::new().roots(server.ca_pem());
    let config = Config::server("127.0.0.1", server.port());
    let connect = async |tls: Tls| {
        let config = config.clone().tls(tls);
        Client::builder().config(config).build().await
    };
    let error = connect(tls.clone()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend);
    assert!(
        error.to_string().contains("needs a client certificate"),
        "{error}"
    );

    let (chain, key) = server.client_pems();
    take_turns(&connect(tls.clone().certificate(chain, key)).await.unwrap()).await;

    // Settings that cannot work are reported before anything is sent, and neither they nor the errors show a key.
    let stranger = with_tls(Server::builder().tls()).unwrap();
    let (foreign, foreign_key) = stranger.client_pems();
    for (tls, word) in [
        (tls.clone().certificate(chain, foreign_key), "do not match"),
        (tls.clone().certificate(chain, chain), "not a key"),
        (tls.clone().certificate("", key), "no certificate"),
        (
            tls.clone()
                .certificate_files("/nowhere.pem", "/nowhere.key"),
            "/nowhere.pem",
        ),
        (Tls::new().roots("what?"), "no certificate"),
        (Tls::new().roots_file("/nowhere.pem"), "/nowhere.pem"),
        (tls.clone().server_name("no host"), "server name"),
    ] {
        let shown = format!("{tls:?}");
        assert!(!shown.contains("BEGIN"), "{shown}");
        let error = connect(tls).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(error.to_string().contains(word), "{error}");
        assert!(!format!("{error:?}").contains("BEGIN"), "{error:?}");
    }
    let error = connect(tls.certificate(foreign, foreign_key))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend);
    assert!(
        error
            .to_string()
            .contains("does not accept the client certificate"),
        "{error}"
    );
}

#[tokio::test]
async fn rustls_configuration_of_the_application_is_used_as_it_is() {
    let Some(server) = with_tls(Server::builder().client_certificates()) else {
        return;
    };
    let (chain, key) = server.client_pems();
    let mut roots = RootCertStore::empty();
    let authority = CertificateDer::from_pem_slice(server.ca_pem().as_bytes());
    roots.add(authority.unwrap()).unwrap();
    let rustls = ClientConfig::builder().with_root_certificates(roots);
    let chain = CertificateDer::pem_slice_iter(chain.as_bytes()).collect::<Result<_, _>>();
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
    let rustls = rustls.with_client_auth_cert(chain.unwrap(), key).unwrap();
    let rustls = Arc::new(rustls);

    let tls = Tls::rustls(rustls.clone());
    assert_eq!(tls, Tls::rustls(rustls.clone()));
    assert_ne!(tls, Tls::rustls((*rustls).clone()));
    assert!(!format!("{tls:?}").contains("cert_resolver"));
    let connect = async |tls: Tls| {
        let config = Config::server("127.0.0.1", server.port()).tls(tls);
        Client::builder().config(config).build().await
    };
    take_turns(&connect(tls.clone()).await.unwrap()).await;
    take_turns(&connect(tls.clone().server_name("localhost")).await.unwrap()).await;

    let error = connect(tls.roots(server.ca_pem())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("Tls::rustls"), "{error}");
}

#[tokio::test]
async fn certificate_may_be_for_another_host_if_that_is_named() {
    let Some(server) = with_tls(Server::builder().tls()) else {
        return;
    };
    let tls = Tls::new().roots(server.ca_pem());
    let reached_by = async |host: &str, tls: &Tls| {
        let config = Config::server(host, server.port()).tls(tls.clone());
        Client::builder().config(config).build().await
    };
    // The certificate is for 127.0.0.1 and localhost.
    take_turns(&reached_by("localhost", &tls).await.unwrap()).await;
    let other = tls.clone().server_name("redis.internal");
    let error = reached_by("127.0.0.1", &other).await.unwrap_err();
    assert!(error.to_string().contains("tls_server_name"), "{error}");
    let named = tls.server_name("localhost");
    take_turns(&reached_by("127.0.0.1", &named).await.unwrap()).await;
}

#[tokio::test]
async fn certificate_that_has_expired_is_told_and_tls_is_not_advised_against() {
    let Some(server) = with_tls(Server::builder().expired_certificate()) else {
        return;
    };
    let tls = Tls::new().roots(server.ca_pem());
    let config = Config::server("127.0.0.1", server.port()).tls(tls);
    let error = Client::builder().config(config).build().await.unwrap_err();
    let said = error.to_string();
    assert!(said.contains("has expired"), "{said}");
    assert!(!said.contains("redis://"), "{said}");
}

/// The cluster has one server, which announces itself by its TLS port.
#[tokio::test]
async fn cluster_over_tls_is_reached_by_its_url() {
    // The server has a second port without TLS, since the testkit does not speak TLS.
    let plain = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let builder = Server::builder()
        .tls()
        .arg("tls-cluster", "yes")
        .arg("port", plain);
    let Some(server) = with_tls(builder.arg("cluster-enabled", "yes")) else {
        return;
    };
    let mut probe = Connection::open(plain);
    let slots = (0..16384).map(|slot| slot.to_string());
    let words: Vec<_> = ["CLUSTER", "ADDSLOTS"]
        .map(str::to_owned)
        .into_iter()
        .chain(slots)
        .collect();
    assert_eq!(probe.command(&words), Reply::Status("OK".to_owned()));
    eventually("the cluster is well", async || {
        probe
            .command(&["CLUSTER", "INFO"])
            .text()
            .contains("cluster_state:ok")
    })
    .await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ca.pem");
    std::fs::write(&path, server.ca_pem()).unwrap();
    let url = server.url().replace("rediss:", "rediss-cluster:");
    let url = format!("{url}?tls_roots={}", path.display());
    take_turns(&Client::connect(url).await.unwrap()).await;
}

#[tokio::test]
async fn both_versions_of_the_protocol_work() {
    let server = Server::start();
    for version in [Protocol::Resp2, Protocol::Resp3] {
        let config = Config::server("127.0.0.1", server.port()).protocol(version);
        take_turns(&Client::builder().config(config).build().await.unwrap()).await;
    }
}

#[tokio::test]
async fn a_single_server_is_told_from_a_cluster() {
    let server = Server::start();
    let url = format!("redis-cluster://127.0.0.1:{}", server.port());
    let error = Client::connect(url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend);
    assert!(error.to_string().contains("is not in a cluster"), "{error}");
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

/// Asks all that is answered by reading, or by finding that something is taken. Returns what comes of each.
async fn questions(client: &Client) -> Vec<(&'static str, Result<(), redlatch::Error>)> {
    let lock = client.lock("held").owned_by(&Owner::unique());
    let named = client.lock("held").owned_by(&Owner::named("worker"));
    let sides = client.read_write_lock("written");
    let by_steps = client
        .plain_lock("plain")
        .release_by(ReleaseBy::Transaction);
    let admin = client.admin();
    let list = async {
        let mut list = admin.list("*").unwrap();
        match list.next().await {
            Some(Err(unread)) => Err(unread.error),
            _ => Ok(()),
        }
    };
    macro_rules! outcomes {
        ($($what:literal: $asked:expr),* $(,)?) => { vec![$(($what, $asked.await.map(drop))),*] };
    }
    outcomes! {
        "latch.wait_for": client.latch("latch").wait_for(Duration::from_millis(50)),
        "latch.count": client.latch("latch").count(),
        "available_permits": client.semaphore("taken").available_permits(),
        "available_permits with leases": client.expirable_semaphore("taken").available_permits(),
        "try_acquire": client.semaphore("taken").try_acquire(),
        "try_acquire with leases": client.expirable_semaphore("taken").try_acquire(),
        "release_permit": client.expirable_semaphore("taken").release_permit(&PermitId::default()),
        "is_locked": lock.is_locked(),
        "holder": lock.holder(),
        "try_lock": lock.try_lock(),
        "unlock": async { named.unlock().await.or_else(|error| match error.kind() {
            ErrorKind::NotHeld => Ok(()),
            _ => Err(error),
        }) },
        "force_unlock": client.lock("free").force_unlock(),
        "spin": client.spin_lock("held").try_lock(),
        "fenced": client.fenced_lock("led").is_locked(),
        "fenced.try_lock": client.fenced_lock("led").try_lock(),
        "fair": client.fair_lock("fair").is_locked(),
        "fair.try_lock": client.fair_lock("fair").try_lock(),
        "fair.force_unlock": client.fair_lock("free").force_unlock(),
        "reader": sides.reader().is_locked(),
        "reader.try_read": sides.try_read(),
        "writer.try_write": sides.try_write(),
        "writer.force_unlock": client.read_write_lock("free").writer().force_unlock(),
        "plain": client.plain_lock("plain").is_locked(),
        "plain.try_lock": client.plain_lock("plain").try_lock(),
        "plain.force_unlock": client.plain_lock("free").force_unlock(),
        "plain by steps": by_steps.is_locked(),
        "plain.try_lock by steps": by_steps.try_lock(),
        "set": MultiLock::new(["held", "free"].map(|name| client.lock(name))).try_lock(),
        "leader": client.leader("led").current(),
        "inspect": admin.inspect("held"),
        "inspect nothing": admin.inspect("free"),
        "list": list,
    }
}

// fault: S14
#[tokio::test]
async fn replica_answers_no_question_whenever_it_became_one() {
    let server = Server::start();
    let holder = Client::connect(server.url()).await.unwrap();
    holder.latch("latch").try_set_count(3).await.unwrap();
    holder.semaphore("taken").try_set_permits(0).await.unwrap();
    let _held = (
        holder.lock("held").lock().await.unwrap(),
        holder.fair_lock("fair").lock().await.unwrap(),
        holder.read_write_lock("written").write().await.unwrap(),
        holder.plain_lock("plain").lock().await.unwrap(),
        holder.leader("led").campaign().await.unwrap(),
    );
    let client = Client::connect(server.url()).await.unwrap();
    let mut admin = server.connection();
    let fails = async |client: &Client| {
        for (what, outcome) in questions(client).await {
            let error = outcome.expect_err(what);
            assert_eq!(error.kind(), ErrorKind::Backend, "{what}: {error}");
            assert!(
                error.to_string().contains("is a replica"),
                "{what}: {error}"
            );
        }
    };
    let answers = async |client: &Client| {
        for (what, outcome) in questions(client).await {
            assert!(outcome.is_ok(), "{what}: {outcome:?}");
        }
    };
    answers(&client).await;
    // It keeps its data and its connections. There is no primary that it could follow.
    admin.command(&["REPLICAOF", "127.0.0.1", "1"]);
    fails(&client).await;
    let late = Client::connect(server.url()).await.unwrap();
    fails(&late).await;
    admin.command(&["REPLICAOF", "NO", "ONE"]);
    answers(&client).await;
    answers(&late).await;
}

#[tokio::test]
async fn replica_without_the_keys_of_held_locks_says_nothing_of_them() {
    let (server, empty) = (Server::start(), Server::start());
    let client = Client::connect(server.url()).await.unwrap();
    let sides = client.read_write_lock("sides");
    macro_rules! held {
        ($($name:ident: $lock:expr),* $(,)?) => {
            $(let $name = $lock.lock().await.unwrap();)*
            let mut admin = server.connection();
            admin.command(&["REPLICAOF", "127.0.0.1", &empty.port().to_string()]);
            eventually("it has copied nothing", async || admin.keys().is_empty()).await;
            $(
                let asked = [
                    ("verify", $name.verify().await.map(drop)),
                    ("extend", $name.extend(Duration::from_secs(60)).await.map(drop)),
                    ("reenter", $name.reenter().await.map(drop)),
                    ("unlock", $name.unlock().await),
                ];
                for (what, outcome) in asked {
                    let error = outcome.expect_err(what);
                    let kind = stringify!($name);
                    assert_eq!(error.kind(), ErrorKind::Backend, "{kind}, {what}: {error}");
                    assert!(error.to_string().contains("is a replica"), "{kind}, {what}: {error}");
                }
            )*
        };
    }
    held! {
        reentrant: client.lock("reentrant"),
        fenced: client.fenced_lock("fenced"),
        fair: client.fair_lock("fair"),
        spin: client.spin_lock("spin"),
        writer: sides.writer(),
        reader: client.read_write_lock("read").reader(),
    }
}

#[tokio::test]
async fn busy_locks_raise_no_error_on_any_server_of_a_cluster() {
    let cluster = Cluster::start();
    let client = Client::connect(cluster.url()).await.unwrap();
    let errors = |server: &Server| {
        let info = server.connection().command(&["INFO", "stats"]).text();
        let find = |line: &str| {
            line.strip_prefix("total_error_replies:")?
                .parse::<u64>()
                .ok()
        };
        info.lines().find_map(find)
    };
    for name in (0..9)
        .map(|number| format!("job-{number}"))
        .chain(["x{tag}".to_owned()])
    {
        let lock = client.lock(&name);
        let guard = lock.lock().await.unwrap();
        let other = lock.owned_by(&Owner::unique());
        let server = cluster.owner(&name).0;
        let mut before = None;
        // The first time, the server may not know the scripts.
        for _ in 0..2 {
            before = errors(server);
            assert!(other.try_lock().await.unwrap().is_none());
            assert!(other.is_locked().await.unwrap());
            guard.verify().await.unwrap();
        }
        assert_eq!(errors(server), before, "{name}");
        guard.unlock().await.unwrap();
    }
    client.close().await;
}
