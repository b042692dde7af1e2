//! Which servers vote: one that may have forgotten a hold abstains until the longest lease has passed, and a replica
//! never votes.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::{Clients, Fleet, MARK, NAME, Settings, taken};
use crate::support::eventually;
use crate::support::probe::{millis, secs, soon};
use redlatch::{ClientBuilder, ErrorKind, RedGuard, RedLock};
use redlatch_testkit::{Cluster, Proxy, Reply, Server};

/// A fleet of five servers behind proxies, one for each client and server. A holds the lock on the first three only,
/// and B reaches only the last three, so they meet on the third.
struct Split {
    fleet: Fleet,
    /// When the holder's lease ends, at the earliest, if the holder does not learn of its loss before.
    ends: Instant,
    _holder: RedGuard,
    others: Clients,
    _holders: Clients,
    _proxies: Vec<Proxy>,
}

/// Longer than any lease in these tests.
const MAX_LEASE: Duration = Duration::from_secs(3);

/// Sets a time to abstain that a test can wait for.
fn short(builder: ClientBuilder) -> Settings {
    lasting(MAX_LEASE, builder)
}

/// Sets the longest lease, which is also that of all locks that set no other.
fn lasting(max_lease: Duration, builder: ClientBuilder) -> Settings {
    Settings {
        builder: builder.watchdog_lease(max_lease),
        max_lease,
    }
}

/// As `short`, and with fresh servers distrusted, as outside tests.
fn wary(builder: ClientBuilder) -> Settings {
    short(builder.trust_fresh_servers(false))
}

impl Split {
    /// Runs `before` and `after` on the third server, before and after it grants its part.
    async fn of(
        third: Server,
        before: impl FnOnce(&Server),
        after: impl FnOnce(&Server),
        settings: impl Fn(ClientBuilder) -> Settings + Copy,
    ) -> Self {
        let [one, two, four, five] = std::array::from_fn(|_| Server::start());
        let fleet = Fleet::of([one, two, third, four, five]);
        let clients = fleet.clients_with(settings).await;
        clients.settle().await;
        // A majority decides: the rest have been asked, and may answer later.
        let marked = |server: &Arc<Server>| server.connection().exists(MARK);
        eventually("each has its mark", async || fleet.0.iter().all(marked)).await;
        drop(clients);
        let (mut proxies, mut urls) = (Vec::new(), Vec::new());
        for server in fleet.0.iter().chain(&fleet.0) {
            let proxy = Proxy::start(server.port()).await;
            urls.push(proxy.url());
            proxies.push(proxy);
        }
        let others = urls.split_off(5);
        let (holders, others) = (
            Clients::of(urls, settings).await,
            Clients::of(others, settings).await,
        );
        for cut in [3, 4, 5, 6] {
            proxies[cut].black_hole(true);
        }
        before(&fleet.0[2]);
        let lease = MAX_LEASE - millis(200);
        let ends = Instant::now() + lease;
        let holder = taken(&holders.leased(lease)).await;
        assert_eq!((fleet.held(0..3), fleet.held(3..5)), (3, 0));
        after(&fleet.0[2]);
        Self {
            fleet,
            ends,
            _holder: holder,
            others,
            _holders: holders,
            _proxies: proxies,
        }
    }

    /// Checks that nobody else gets in while the holder may trust its lease, and that somebody does afterwards.
    async fn excludes(&self) {
        let lock = self.others.lock();
        let error = soon(lock.try_lock()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Quorum);
        assert!(
            error.to_string().contains("1 may have forgotten"),
            "{error}"
        );
        let guard = soon(lock.try_lock_for(secs(20))).await.unwrap().unwrap();
        assert!(Instant::now() > self.ends, "two owners at a time");
        guard.unlock().await.unwrap();
        self.fleet.eventually_free(0..5).await;
    }
}

// fault: S2 S49
#[tokio::test]
async fn server_restarted_empty_does_not_vote_for_one_max_lease() {
    let split = Split::of(Server::start(), |_| {}, Server::restart, wary).await;
    split.excludes().await;
}

#[tokio::test]
async fn server_that_was_flushed_does_not_vote_for_one_max_lease() {
    let flush = |server: &Server| drop(server.connection().command(&["FLUSHALL"]));
    let split = Split::of(Server::start(), |_| {}, flush, short).await;
    split.excludes().await;
}

fn save(server: &Server) {
    server.connection().command(&["SAVE"]);
}

#[tokio::test]
async fn server_restarted_with_old_data_does_not_vote_for_one_max_lease() {
    let split = Split::of(Server::start(), save, Server::restart, wary).await;
    assert!(
        split.fleet.0[2].connection().exists(MARK),
        "the old mark is back"
    );
    split.excludes().await;
}

#[tokio::test]
async fn server_that_is_said_to_be_durable_votes_at_once() {
    let durable = |builder: ClientBuilder| wary(builder.durable());
    let kept = Server::builder().persistent().start();
    let split = Split::of(kept, |_| {}, Server::restart, durable).await;
    assert!(
        soon(split.others.lock().try_lock())
            .await
            .unwrap()
            .is_none()
    );
    drop(split);

    // The setting is believed: where it is false, another owner gets in before the lease has ended.
    let split = Split::of(Server::start(), save, Server::restart, durable).await;
    taken(&split.others.lock()).await.unlock().await.unwrap();
}

fn follow(server: &Server, primary: &Server) {
    let mut connection = server.connection();
    let port = primary.port().to_string();
    connection.command(&["REPLICAOF", "127.0.0.1", &port]);
    let linked = Reply::Text(b"connected".to_vec());
    let end = Instant::now() + secs(10);
    while !connection.command(&["ROLE"]).array().contains(&linked) {
        assert!(Instant::now() < end, "not within ten seconds: it follows");
        std::thread::sleep(millis(5));
    }
}

/// Cuts the replica off from its primary: it keeps its data and receives nothing more.
fn cut_off(replica: &Server) {
    replica
        .connection()
        .command(&["REPLICAOF", "127.0.0.1", "1"]);
}

fn promote(replica: &Server) {
    replica.connection().command(&["REPLICAOF", "NO", "ONE"]);
}

#[tokio::test]
async fn server_that_failed_over_to_a_replica_and_back_does_not_vote_for_one_max_lease() {
    let third = Server::start();
    let replica = Server::builder().replica_of(third.port()).start();
    let lags = |_: &Server| {
        let end = Instant::now() + secs(10);
        while !replica.connection().exists(MARK) {
            assert!(Instant::now() < end, "not within ten seconds: its mark");
            std::thread::sleep(millis(5));
        }
        cut_off(&replica);
    };
    let fails_back = |third: &Server| {
        promote(&replica);
        follow(third, &replica);
        assert!(!third.connection().exists(NAME), "the hold is forgotten");
        assert!(third.connection().exists(MARK), "and its own mark is not");
        promote(third);
    };
    let split = Split::of(third, lags, fails_back, short).await;
    split.excludes().await;
}

#[tokio::test]
async fn fleet_that_was_flushed_server_by_server_grants_nothing_for_one_max_lease() {
    let fleet = Fleet::start(3);
    let (clients, others) = (
        fleet.clients_with(short).await,
        fleet.clients_with(short).await,
    );
    clients.settle().await;
    let ends = Instant::now() + MAX_LEASE - millis(200);
    let holder = taken(&clients.leased(MAX_LEASE - millis(200))).await;
    for server in &fleet.0 {
        server.connection().command(&["FLUSHALL"]);
    }
    let error = soon(others.lock().try_lock()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Quorum);
    assert!(
        error.to_string().contains("3 may have forgotten"),
        "{error}"
    );
    let guard = soon(others.lock().lock()).await.unwrap();
    assert!(Instant::now() > ends, "two owners at a time");
    guard.unlock().await.unwrap();
    drop(holder);
}

#[tokio::test]
async fn call_outlasts_the_time_in_which_a_restarted_fleet_abstains() {
    let fleet = Fleet::start(3);
    // The patience with silent servers ends long before the servers vote again.
    let impatient = |builder| Settings {
        builder: wary(builder).builder.watchdog_lease(millis(1_500)),
        max_lease: MAX_LEASE,
    };
    let (clients, others) = (
        fleet.clients_with(impatient).await,
        fleet.clients_with(impatient).await,
    );
    clients.settle().await;
    let lease = MAX_LEASE - millis(200);
    let ends = Instant::now() + lease;
    let holder = taken(&clients.leased(lease)).await;
    for server in &fleet.0 {
        server.restart();
    }
    let guard = soon(others.lock().lock()).await.unwrap();
    assert!(Instant::now() > ends, "two owners at a time");
    guard.unlock().await.unwrap();
    drop(holder);
}

/// A lock on one server, so that this server's answer decides.
struct Alone {
    lock: RedLock,
    _clients: Clients,
}

impl Alone {
    async fn on(server: &Server, settings: impl Fn(ClientBuilder) -> Settings) -> Self {
        let clients = Clients::of([server.url()], settings).await;
        Self {
            lock: clients.lock(),
            _clients: clients,
        }
    }

    async fn votes(&self) {
        taken(&self.lock).await.unlock().await.unwrap();
    }

    async fn abstains(&self, why: &str) {
        let error = soon(self.lock.try_lock()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Quorum, "{error}");
        let text = error.to_string();
        assert!(
            text.contains("1 may have forgotten") && text.contains(why),
            "{text}"
        );
    }

    async fn eventually_votes(&self) {
        let guard = soon(self.lock.lock()).await.unwrap();
        guard.unlock().await.unwrap();
    }
}

const CLEARED: &str = "flushed";
const REPLICATION: &str = "promoted";

#[tokio::test]
async fn server_abstains_after_whatever_takes_its_data() {
    let ways: [&[&str]; 5] = [
        &["FLUSHALL"],
        &["FLUSHDB ASYNC"],
        &["SWAPDB 0 1"],
        &["EVAL redis.call('FLUSHDB') 0"],
        &["FLUSHALL", "CONFIG RESETSTAT"],
    ];
    for way in ways {
        let server = Server::start();
        let alone = Alone::on(&server, short).await;
        alone.votes().await;
        let mut probe = server.connection();
        for command in way {
            probe.command(&command.split(' ').collect::<Vec<_>>());
        }
        assert!(!probe.exists(MARK), "{way:?}");
        let stats = probe.command(&["INFO", "commandstats"]).text();
        if way.len() > 1 && !stats.contains("config|") {
            // Redis 6.2 does not distinguish CONFIG calls, as the documentation says.
            continue;
        }
        alone.abstains(CLEARED).await;
    }
}

#[tokio::test]
async fn time_to_abstain_does_not_begin_anew_with_each_call() {
    let server = Server::start();
    let alone = Alone::on(&server, short).await;
    alone.votes().await;
    server.connection().command(&["FLUSHALL"]);
    let flushed = Instant::now();
    alone.abstains(CLEARED).await;
    alone.eventually_votes().await;
    assert!(flushed.elapsed() > MAX_LEASE, "{:?}", flushed.elapsed());
    alone.votes().await;
}

#[tokio::test]
async fn refused_flush_and_a_mark_that_is_gone_keep_nobody_from_voting() {
    let server = Server::start();
    let alone = Alone::on(&server, short).await;
    alone.votes().await;
    let mut probe = server.connection();
    let user = ["ACL", "SETUSER", "guest", "on", "nopass", "~*", "+ping"];
    probe.command(&user);
    let mut guest = server.connection();
    guest.command(&["AUTH", "guest", "any"]);
    let refused = guest.command(&["FLUSHALL"]);
    assert!(matches!(refused, Reply::Error(_)), "{refused:?}");
    probe.command(&["DEL", MARK]);
    alone.votes().await;
}

#[tokio::test]
async fn promoted_replica_abstains_for_one_max_lease_with_a_mark_and_without() {
    for knows_the_mark in [true, false] {
        let server = Server::start();
        let replica = Server::builder().replica_of(server.port()).start();
        if !knows_the_mark {
            cut_off(&replica);
        }
        Alone::on(&server, short).await.votes().await;
        if knows_the_mark {
            eventually("the mark is there", async || {
                replica.connection().exists(MARK)
            })
            .await;
        }
        promote(&replica);
        let promoted = Alone::on(&replica, short).await;
        promoted.abstains(REPLICATION).await;
        promoted.eventually_votes().await;
    }
}

#[tokio::test]
async fn durable_does_not_mean_that_a_replica_lost_nothing() {
    let server = Server::start();
    let replica = Server::builder().replica_of(server.port()).start();
    let durable = |builder: ClientBuilder| short(builder.durable());
    Alone::on(&server, durable).await.votes().await;
    eventually("the mark is there", async || {
        replica.connection().exists(MARK)
    })
    .await;
    promote(&replica);
    Alone::on(&replica, durable)
        .await
        .abstains(REPLICATION)
        .await;
}

#[tokio::test]
async fn first_replica_makes_a_server_abstain_and_a_cut_link_does_not() {
    let server = Server::start();
    let alone = Alone::on(&server, short).await;
    alone.votes().await;
    let replica = Server::builder().replica_of(server.port()).start();
    alone.abstains(REPLICATION).await;
    alone.eventually_votes().await;
    server
        .connection()
        .command(&["CLIENT", "KILL", "TYPE", "replica"]);
    alone.votes().await;
    cut_off(&replica);
    alone.votes().await;
}

#[tokio::test]
async fn replica_never_votes_even_if_it_takes_writes() {
    let server = Server::start();
    Alone::on(&server, short).await.votes().await;
    let replica = Server::builder()
        .replica_of(server.port())
        .arg("replica-read-only", "no")
        .start();
    let alone = Alone::on(&replica, short).await;
    let error = soon(alone.lock.try_lock()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Quorum, "{error}");
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains("is a replica"), "{cause}");
    assert!(!replica.connection().exists(NAME));
}

// fault: S40
#[tokio::test]
async fn server_whose_clock_was_set_back_abstains() {
    let server = Server::start();
    let alone = Alone::on(&server, short).await;
    alone.votes().await;
    let mut probe = server.connection();
    let mark = probe.command(&["GET", MARK]).text();
    let parts: Vec<_> = mark.split(':').collect();
    let [run, history, since, cause] = parts[..] else {
        panic!("{mark}")
    };
    let ahead = since.parse::<u64>().unwrap() + 3_600_000_000;
    let mark = format!("{run}:{history}:{ahead}:{cause}");
    probe.command(&["SET", MARK, &mark]);
    alone.abstains("clock").await;
    alone.eventually_votes().await;
}

#[tokio::test]
async fn fresh_server_votes_one_max_lease_after_its_start_and_not_before() {
    // The uptime is in whole seconds, and so overstates most for a server that started late in a second.
    let late = async || {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        now.subsec_millis() > 700
    };
    eventually("a second is nearly over", late).await;
    let before = Instant::now();
    let server = Server::start();
    let mut probe = server.connection();
    eventually("it says that it has been up for a second", async || {
        let info = probe.command(&["INFO", "server"]).text();
        info.contains("uptime_in_seconds:1\r\n")
    })
    .await;
    let alone = Alone::on(&server, |it| {
        lasting(secs(2), it.trust_fresh_servers(false))
    })
    .await;
    alone.abstains("started a moment ago").await;
    let error = soon(alone.lock.try_lock()).await.unwrap_err();
    assert!(error.to_string().contains("trust_fresh_servers"), "{error}");
    let guard = soon(alone.lock.lock()).await.unwrap();
    let waited = before.elapsed();
    assert!(waited >= secs(2), "{waited:?}");
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn locks_of_different_names_have_different_max_leases_on_the_same_servers() {
    let server = Server::start();
    let clients = Clients::of([server.url()], |it| {
        lasting(secs(1), it.trust_fresh_servers(false))
    })
    .await;
    let long = RedLock::new([clients.0[0].lock("another")]).max_lease(secs(60));
    for _ in 0..2 {
        let error = soon(long.try_lock()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Quorum, "{error}");
        // It votes on this one, and abstains for the other name all the same.
        drop(soon(clients.lock().lock()).await.unwrap());
    }
    let guard = taken(&clients.lock()).await;
    let error = guard.extend(secs(2)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn server_that_was_restarted_while_nobody_asked_votes_at_once() {
    let server = Server::start();
    let brief = |builder: ClientBuilder| lasting(secs(1), builder.trust_fresh_servers(false));
    let alone = Alone::on(&server, brief).await;
    alone.eventually_votes().await;
    server.restart();
    let mut probe = server.connection();
    eventually("it has been up for three seconds", async || {
        let info = probe.command(&["INFO", "server"]).text();
        ["0", "1", "2"]
            .iter()
            .all(|secs| !info.contains(&format!("uptime_in_seconds:{secs}\r\n")))
    })
    .await;
    alone.votes().await;
}

#[tokio::test]
async fn user_without_info_is_told_which_rights_are_missing() {
    let server = Server::start();
    let mut probe = server.connection();
    let user = "ACL SETUSER app on >pw ~* &* +@all -@dangerous";
    probe.command(&user.split(' ').collect::<Vec<_>>());
    let url = format!("redis://app:pw@127.0.0.1:{}", server.port());
    let clients = Clients::of([url], short).await;
    let lock = clients.lock();
    let error = soon(lock.lock()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
    let rights = "+info|server +info|replication +info|commandstats";
    assert!(error.to_string().contains(rights), "{error}");
    let grant = format!("ACL SETUSER app {rights}");
    probe.command(&grant.split(' ').collect::<Vec<_>>());
    taken(&lock).await.unlock().await.unwrap();
    let less = "ACL SETUSER app -info +info|server +info|replication";
    probe.command(&less.split(' ').collect::<Vec<_>>());
    probe.command(&["DEL", MARK]);
    let error = soon(lock.try_lock()).await.unwrap_err();
    assert!(error.to_string().contains(rights), "{error}");
}

#[tokio::test]
async fn new_name_on_clusters_is_granted_while_one_is_down_and_leaves_nothing() {
    let (cluster, fleet) = (Cluster::start(), Fleet::start(2));
    let urls = [cluster.url(), fleet.0[0].url(), fleet.0[1].url()];
    let clients = Clients::of(urls, |it| lasting(secs(1), it)).await;
    clients.settle().await;
    fleet.0[0].kill();

    let of_name = |name: &str| {
        let members = clients.0.iter().map(|client| client.lock(name));
        clients.lock_of(members)
    };
    let name = "a-new-name";
    let mut home = cluster.owner(name).0.connection();
    let mark = format!("{MARK}:{{{name}}}");
    // Each call makes the mark last for two longest leases from then on.
    for _ in 0..2 {
        taken(&of_name(name)).await.unlock().await.unwrap();
        let left = home.pttl(&mark);
        assert!(left > 1_000 && left <= 2_000, "{left}");
        eventually("half of that is over", async || home.pttl(&mark) < 1_000).await;
    }
    eventually("it is over", async || !home.exists(&mark)).await;
    taken(&of_name(name)).await.unlock().await.unwrap();
}
