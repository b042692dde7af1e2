//! Clients that connect as a client of fred or of redis-rs does: what is taken over, what is refused, and that locks do
//! not notice what the application's own client does.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use fred::clients::Client as FredClient;
use fred::prelude::{ClientLike, EventInterface, KeysInterface, ListInterface, PubsubInterface};
use fred::types::config::{Config as Fred, CredentialProvider, Server as FredServer};
use fred::types::{Builder, RespVersion};
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};
use redlatch::config::{Protocol, Tls};
use redlatch::{Client, Config, ErrorKind};
use redlatch_testkit::{Cluster, Server};

use crate::support::probe::{acquiring, millis, passes, secs, soon, take_turns};
use crate::support::{eventually, impatient};

fn fred(url: &str) -> Fred {
    Fred::from_url(url).unwrap()
}

async fn connected(url: &str) -> FredClient {
    let client = Builder::from_config(fred(url)).build().unwrap();
    client.init().await.unwrap();
    client
}

#[test]
fn what_fred_says_is_taken_over() {
    // fred lists the host of the URL behind the others.
    for (url, same) in [
        ("redis://h", "redis://h"),
        ("redis://:p@h:1", "redis://:p@h:1"),
        ("redis://u:p@h:1/3", "redis://u:p@h:1/3"),
        (
            "redis-cluster://u:p@h:1?node=i:2&node=j:3",
            "redis-cluster://u:p@i:2?node=j:3&node=h:1",
        ),
        (
            "redis-sentinel://u:p@h:1/3?node=i:2&sentinelServiceName=main",
            "redis-sentinel://u:p@i:2/3?node=h:1&sentinelServiceName=main",
        ),
    ] {
        let ours = Config::from_url(same).unwrap().protocol(Protocol::Resp2);
        let ours = ours.connect_timeout(secs(10));
        assert_eq!(Config::from_fred(&fred(url)).unwrap(), ours, "{url}");
    }
    let mut socket = fred("redis+unix:///run/redis.sock");
    socket.database = Some(3);
    socket.version = RespVersion::RESP3;
    let mut builder = Builder::from_config(socket);
    builder.with_connection_config(|config| config.connection_timeout = secs(2));
    let ours = Config::unix_socket("/run/redis.sock").database(3);
    let ours = ours.connect_timeout(secs(2));
    assert_eq!(Config::from_fred(&builder).unwrap(), ours);
    assert_eq!(Config::from_fred(&builder.build().unwrap()).unwrap(), ours);
    assert_eq!(
        Config::from_fred(&builder.build_pool(2).unwrap()).unwrap(),
        ours
    );
}

#[tokio::test]
async fn id_of_freds_client_is_the_label_if_its_connections_bear_it() {
    let server = Server::start();
    let mut builder = Builder::from_config(fred(&server.url()));
    builder.with_connection_config(|config| config.auto_client_setname = true);
    let fred = builder.build().unwrap();
    let holder = async |builder: redlatch::ClientBuilder| {
        let client = builder.build().await.unwrap();
        let _guard = client.lock("k").lock().await.unwrap();
        let holder = client.lock("k").holder().await.unwrap().unwrap();
        let label = holder.label().map(str::to_owned);
        client.close().await;
        label
    };
    let labelled = holder(Client::builder().fred(&fred)).await;
    assert_eq!(labelled.as_deref(), Some(fred.id()));
    let own = holder(Client::builder().label("mine").fred(&fred)).await;
    assert_eq!(own.as_deref(), Some("mine"));
}

/// Passwords that rotate, as an application gives them to fred.
#[derive(Debug)]
struct Vault {
    password: std::sync::Mutex<String>,
    fetched: Arc<AtomicUsize>,
    every: Option<Duration>,
}

#[async_trait]
impl CredentialProvider for Vault {
    async fn fetch(
        &self,
        server: Option<&FredServer>,
    ) -> Result<(Option<String>, Option<String>), fred::error::Error> {
        assert_eq!(server.map(|server| &*server.host), Some("127.0.0.1"));
        self.fetched.fetch_add(1, Ordering::Relaxed);
        let password = self.password.lock().unwrap().clone();
        Ok((Some("locker".to_owned()), Some(password)))
    }

    fn refresh_interval(&self) -> Option<Duration> {
        self.every
    }
}

#[tokio::test]
async fn credential_provider_of_fred_is_asked_at_each_connect_and_on_its_schedule() {
    let server = Server::start();
    let vault = Arc::new(Vault {
        password: "s3cret-1".to_owned().into(),
        fetched: Arc::default(),
        every: Some(secs(1)),
    });
    let rotate = |password: &str| {
        let password_of = format!(">{password}");
        let user = [
            "ACL",
            "SETUSER",
            "locker",
            "reset",
            "on",
            &password_of,
            "~*",
            "&*",
            "+@all",
        ];
        server.connection().command(&user);
        *vault.password.lock().unwrap() = password.to_owned();
    };
    rotate("s3cret-1");
    let mut config = fred(&server.url());
    config.credential_provider = Some(vault.clone());
    let builder = Client::builder().fred(&config);
    let client = impatient(builder).build().await.unwrap();
    let guard = client.lock("k").lock().await.unwrap();
    // Two connections asked when they were made, and both ask again.
    eventually("it is asked on its schedule", async || {
        vault.fetched.load(Ordering::Relaxed) >= 4
    })
    .await;
    rotate("s3cret-2");
    server
        .connection()
        .command(&["CLIENT", "KILL", "USER", "locker"]);
    eventually("the hold still stands", async || {
        guard.verify().await.is_ok()
    })
    .await;
    guard.unlock().await.unwrap();
    take_turns(&client).await;
    client.close().await;
    assert!(!format!("{:?}", Config::from_fred(&config)).contains("s3cret"));
}

/// Keeps the application's own client at work until the locks are done.
#[tokio::test]
async fn locks_notice_nothing_of_an_application_whose_client_is_blocked_busy_or_gone() {
    let server = Server::start();
    let blocked = connected(&server.url()).await;
    let client = Client::builder().fred(&blocked).build().await.unwrap();
    // It waits for a list that nobody fills.
    let waiting = tokio::spawn({
        let blocked = blocked.clone();
        async move {
            blocked
                .blpop::<Option<(String, String)>, _>("queue", 0.0)
                .await
        }
    });
    let subscribed = connected(&server.url()).await;
    subscribed.subscribe("news").await.unwrap();
    let news = subscribed.message_rx();
    let busy = connected(&server.url()).await;
    let writing = tokio::spawn(async move {
        loop {
            busy.set::<(), _, _>("busy", 1, None, None, false)
                .await
                .unwrap();
        }
    });
    eventually("it is blocked", async || {
        let list = server.connection().command(&["CLIENT", "LIST"]);
        list.text().contains("cmd=blpop")
    })
    .await;
    for from in [&blocked, &subscribed] {
        let other = Client::builder().fred(from).build().await.unwrap();
        take_turns(&other).await;
        take_turns(&client).await;
        let guard = client.lock("k").lock().await.unwrap();
        let waiter = acquiring(&other.lock("k"));
        guard.unlock().await.unwrap();
        passes(waiter).await;
        other.close().await;
    }
    waiting.abort();
    writing.abort();
    drop(news);
    soon(subscribed.quit()).await.unwrap();
    drop(blocked);
    take_turns(&client).await;
    client.close().await;
}

fn info(url: &str) -> ConnectionInfo {
    url.into_connection_info().unwrap()
}

#[test]
fn what_redis_rs_says_is_taken_over() {
    for (url, ours) in [
        ("redis://h", "redis://h?protocol=2"),
        (
            "redis://u:p%2F@h:1/3?protocol=resp3",
            "redis://u:p%2F@h:1/3",
        ),
        (
            "redis+unix:///r.sock?db=3&user=u&pass=p",
            "redis+unix://u:p@/r.sock?db=3&protocol=2",
        ),
    ] {
        let client = redis::Client::open(url).unwrap();
        assert_eq!(
            Config::from_redis(&client).unwrap(),
            Config::from_url(ours).unwrap()
        );
        assert_eq!(
            Config::from_redis(&info(url)).unwrap(),
            Config::from_url(ours).unwrap()
        );
    }
    let nodes = ["redis://u:p@h:1", "redis://u:p@i:2"].map(info);
    let ours = Config::from_url("redis-cluster://u:p@h:1?node=i:2&protocol=2").unwrap();
    assert_eq!(Config::from_redis(&nodes[..]).unwrap(), ours);
    assert_eq!(Config::from_redis(&nodes.to_vec()).unwrap(), ours);
    for (nodes, word) in [
        (vec![], "no server"),
        (
            vec![info("redis://h"), info("redis+unix:///r.sock")],
            "all reached by TCP",
        ),
    ] {
        let error = Config::from_redis(&nodes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains(word), "{error}");
    }
}

#[tokio::test]
async fn tls_that_redis_rs_does_not_show_is_an_error_unless_it_is_set() {
    let secure = |insecure| {
        let addr = ConnectionAddr::TcpTls {
            host: "h".to_owned(),
            port: 1,
            insecure,
            tls_params: None,
        };
        info("redis://u:p@h").set_addr(addr)
    };
    let taken = Config::from_redis(&secure(false)).unwrap();
    assert_eq!(
        taken,
        Config::from_url("rediss://u:p@h:1?protocol=2").unwrap()
    );
    let error = Client::builder()
        .redis(&secure(true))
        .build()
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("#insecure"), "{error}");
    let tls = Tls::new().server_name("n");
    let set = Config::from_redis(&secure(true)).unwrap().tls(tls.clone());
    assert_eq!(set, taken.tls(tls));
}

#[tokio::test]
async fn locks_are_where_redis_rs_connects() {
    let server = Server::builder().password("s3cret").start();
    let url = format!("redis://:s3cret@127.0.0.1:{}/2", server.port());
    let redis = redis::Client::open(url).unwrap();
    let client = Client::builder().redis(&redis).build().await.unwrap();
    let guard = client.lock("k").lock().await.unwrap();
    let mut probe = server.connection();
    probe.command(&["SELECT", "2"]);
    assert_eq!(probe.keys(), ["k"]);
    guard.unlock().await.unwrap();
    take_turns(&client).await;
    client.close().await;

    let cluster = Cluster::start();
    let nodes = cluster.nodes().iter().map(|node| info(&node.url()));
    let nodes: Vec<_> = nodes.collect();
    let builder = Client::builder()
        .redis(&nodes)
        .command_timeout(millis(1_000));
    let client = builder.build().await.unwrap();
    take_turns(&client).await;
    client.close().await;
}
