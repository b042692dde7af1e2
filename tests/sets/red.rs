//! Locks over several servers: what a majority grants, and what no majority may grant.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::support::polls::Polls;
use crate::support::probe::{
    begin, calls_of, channel, kind, millis, reset_calls, scripts_run, secs, soon, subscribers,
};
use crate::support::{builder, eventually, eventually_idle, sha};
use redlatch::config::ReleaseBy;
use redlatch::{
    Client, ClientBuilder, ErrorKind, LossReason, Member, Owner, RedGuard, RedLock, ReentrantLock,
};
use redlatch_testkit::{Cluster, Proxy, Reply, Server};

const NAME: &str = "job";
const MARK: &str = "redlatch_redlock_mark";

/// Independent servers.
struct Fleet(Vec<Arc<Server>>);

/// One process's clients of a fleet, and the longest lease of the locks that are made from them.
struct Clients(Vec<Client>, Duration);

/// What a test sets of clients and locks.
struct Settings {
    builder: ClientBuilder,
    max_lease: Duration,
}

impl From<ClientBuilder> for Settings {
    fn from(builder: ClientBuilder) -> Self {
        Self {
            builder,
            max_lease: secs(60),
        }
    }
}

impl Fleet {
    fn start(servers: usize) -> Self {
        Self::of((0..servers).map(|_| Server::start()))
    }

    fn of(servers: impl IntoIterator<Item = Server>) -> Self {
        Self(servers.into_iter().map(Arc::new).collect())
    }

    async fn clients(&self) -> Clients {
        self.clients_with(|builder| builder).await
    }

    async fn clients_with<S: Into<Settings>>(
        &self,
        settings: impl Fn(ClientBuilder) -> S,
    ) -> Clients {
        Clients::of(self.0.iter().map(|server| server.url()), settings).await
    }

    /// Returns on how many of these servers the lock is held.
    fn held(&self, servers: impl IntoIterator<Item = usize>) -> usize {
        let held = |at: &usize| self.0[*at].connection().exists(NAME);
        servers.into_iter().filter(held).count()
    }

    async fn eventually_free(&self, servers: impl IntoIterator<Item = usize> + Clone) {
        eventually("no server has the lock", async || {
            self.held(servers.clone()) == 0
        })
        .await;
    }

    /// Waits until the waiters listen on these servers and send no requests.
    async fn eventually_quiet(&self, servers: &[usize]) {
        for at in servers {
            let mut probe = self.0[*at].connection();
            eventually("somebody listens", async || {
                subscribers(&mut probe, &channel(NAME)) > 0
            })
            .await;
            eventually("nobody asks", async || {
                let before = scripts_run(&mut probe);
                tokio::time::sleep(millis(50)).await;
                scripts_run(&mut probe) == before
            })
            .await;
        }
    }

    /// Waits until nothing is left on the servers but the marks.
    async fn nothing_left<const N: usize>(&self, all: [&Clients; N]) {
        for client in all.iter().flat_map(|clients| &clients.0) {
            eventually_idle(client).await;
        }
        for server in &self.0 {
            let mut probe = server.connection();
            eventually("only the mark is left", async || probe.keys() == [MARK]).await;
            eventually("no channel is left", async || probe.channels().is_empty()).await;
        }
    }
}

impl Clients {
    async fn of<S: Into<Settings>>(
        urls: impl IntoIterator<Item = String>,
        settings: impl Fn(ClientBuilder) -> S,
    ) -> Self {
        let (mut clients, mut longest) = (Vec::new(), secs(60));
        for url in urls {
            // The servers of a test have just been started.
            let builder = builder(url).trust_fresh_servers(true);
            let Settings { builder, max_lease } = settings(builder).into();
            clients.push(builder.build().await.unwrap());
            longest = max_lease;
        }
        Self(clients, longest)
    }

    fn members(&self) -> Vec<ReentrantLock> {
        self.0.iter().map(|client| client.lock(NAME)).collect()
    }

    /// Returns the lock for a new owner.
    fn lock(&self) -> RedLock {
        self.lock_of(self.members())
    }

    /// Returns the lock of these members for a new owner.
    fn lock_of(&self, members: impl IntoIterator<Item = ReentrantLock>) -> RedLock {
        let lock = RedLock::new(members).max_lease(self.1);
        lock.owned_by(&Owner::unique())
    }

    fn leased(&self, lease: Duration) -> RedLock {
        let members = self.members().into_iter();
        self.lock_of(members.map(|member| member.lease(lease)))
    }

    /// Waits until each of these clients has the lock: those that a guard did not wait for join it later.
    async fn eventually_hold(&self, clients: impl IntoIterator<Item = usize> + Clone) {
        let holds = |at: usize| format!("{:?}", self.0[at]).contains("holds: 1");
        eventually("they hold it", async || {
            clients.clone().into_iter().all(holds)
        })
        .await;
    }

    /// Makes the servers vote, and waits until they have nothing of the lock.
    async fn settle(&self) {
        self.lock().lock().await.unwrap().unlock().await.unwrap();
        for client in &self.0 {
            eventually_idle(client).await;
        }
    }
}

async fn taken(lock: &RedLock) -> RedGuard {
    soon(lock.try_lock()).await.unwrap().expect("nobody has it")
}

#[tokio::test]
async fn lock_is_had_on_every_server_and_given_back_on_every_server() {
    let fleet = Fleet::start(5);
    let clients = fleet.clients().await;
    let owner = Owner::unique();
    let lock = clients.lock().owned_by(&owner);
    let guard = taken(&lock).await;
    eventually("all five grant it", async || fleet.held(0..5) == 5).await;
    assert!(!guard.is_lost() && guard.remaining() > secs(20));
    assert_eq!(guard.owner(), &owner);
    guard.verify().await.unwrap();
    assert_eq!(guard.run_until_lost(async { 7 }).await.unwrap(), 7);
    assert!(clients.lock().try_lock().await.unwrap().is_none());
    let again = taken(&lock).await;
    again.unlock().await.unwrap();
    guard.verify().await.unwrap();
    guard.unlock().await.unwrap();
    fleet.eventually_free(0..5).await;
    drop(taken(&clients.lock()).await);
    fleet.nothing_left([&clients]).await;
}

#[tokio::test]
async fn plain_members_exclude_their_owner_too() {
    let fleet = Fleet::start(3);
    let clients = fleet.clients().await;
    let members = clients.0.iter().map(|client| client.plain_lock(NAME));
    let lock = RedLock::new(members).owned_by(&Owner::unique());
    let guard = taken(&lock).await;
    assert!(lock.try_lock().await.unwrap().is_none());
    guard.extend(secs(20)).await.unwrap();
    guard.verify().await.unwrap();
    guard.unlock().await.unwrap();
    taken(&lock).await.unlock().await.unwrap();
    fleet.nothing_left([&clients]).await;
}

#[tokio::test]
async fn what_cannot_work_is_refused_before_anything_is_taken() {
    let fleet = Fleet::start(3);
    let clients = fleet.clients().await;
    let [one, two, three] = &clients.0[..] else {
        panic!("three clients")
    };
    let refused = async |lock: RedLock, why: &str| {
        let error = soon(lock.try_lock()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(error.to_string().contains(why), "{error}");
    };
    refused(RedLock::new(Vec::<ReentrantLock>::new()), "one lock").await;
    refused(clients.leased(secs(61)), "max_lease").await;
    for bad in [millis(49), Duration::MAX] {
        refused(clients.lock().max_lease(bad), "max_lease must be").await;
    }
    refused(RedLock::new([one.fair_lock(NAME)]), "a fair lock").await;
    let members = [Member::from(one.lock(NAME)), two.fenced_lock(NAME).into()];
    refused(RedLock::new(members), "a fenced lock").await;
    let members = [one.plain_lock(NAME), two.plain_lock(NAME)];
    let by_transaction = members.map(|member| member.release_by(ReleaseBy::Transaction));
    refused(RedLock::new(by_transaction), "script").await;
    let members = [one.lock(NAME), two.lock(NAME), one.lock("other")];
    refused(RedLock::new(members), "one server").await;
    let again = builder(fleet.0[1].url()).build().await.unwrap();
    let members = [
        one.lock(NAME),
        two.lock(NAME),
        again.lock(NAME),
        three.lock(NAME),
    ];
    refused(RedLock::new(members), "one server").await;
    let members = [one, two].map(|client| client.lock(NAME).owned_by(&Owner::unique()));
    refused(RedLock::new(members), "owners").await;
    let guard = taken(&clients.lock()).await;
    assert_eq!(kind(guard.extend(secs(61)).await), ErrorKind::InvalidInput);
    guard.unlock().await.unwrap();
    fleet.nothing_left([&clients]).await;
}

// fault: S48
#[tokio::test]
async fn two_of_five_may_be_killed_and_three_may_not() {
    let fleet = Fleet::start(5);
    let clients = fleet.clients().await;
    clients.settle().await;
    let held = taken(&clients.lock()).await;
    clients.eventually_hold(0..5).await;
    fleet.0[0].kill();
    fleet.0[1].kill();
    held.verify().await.unwrap();
    held.unlock().await.unwrap();
    let guard = taken(&clients.lock()).await;
    guard.extend(secs(20)).await.unwrap();
    guard.unlock().await.unwrap();
    fleet.eventually_free(2..5).await;

    fleet.0[2].kill();
    let error = soon(clients.lock().try_lock()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Quorum);
    let text = error.to_string();
    assert!(
        text.contains("3 of 5") && text.contains("2 granted"),
        "{text}"
    );
    assert!(text.contains("3 failed"), "{text}");
    assert!(std::error::Error::source(&error).is_some());
    let wait = millis(400);
    let started = Instant::now();
    let error = clients.lock().try_lock_for(wait).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Quorum);
    assert!(started.elapsed() >= wait);
    fleet.eventually_free(3..5).await;
}

#[tokio::test]
async fn holder_learns_when_the_majority_is_killed() {
    let fleet = Fleet::start(3);
    let clients = fleet
        .clients_with(|it| it.watchdog_lease(millis(900)))
        .await;
    let guard = taken(&clients.lock()).await;
    clients.eventually_hold(0..3).await;
    tokio::time::timeout(millis(1_500), guard.lost())
        .await
        .expect_err("it is renewed");
    fleet.0[0].kill();
    tokio::time::timeout(millis(1_500), guard.lost())
        .await
        .expect_err("two of three still renew it");
    fleet.0[1].kill();
    let started = Instant::now();
    let reason = soon(guard.lost()).await;
    assert_eq!(reason, LossReason::Expired, "on either of the two");
    assert!(started.elapsed() < secs(2), "{:?}", started.elapsed());
    assert!(guard.is_lost() && guard.remaining().is_zero());
    let error = guard.verify().await.unwrap_err();
    assert_eq!(error.loss_reason(), Some(reason));
    assert_eq!(kind(guard.unlock().await), ErrorKind::LeaseLost);
}

#[tokio::test]
async fn majority_that_goes_for_several_reasons_is_no_majority_for_good() {
    let fleet = Fleet::start(3);
    let clients = fleet.clients().await;
    let guard = taken(&clients.lock()).await;
    clients.eventually_hold(0..3).await;
    clients.0[0].lock(NAME).force_unlock().await.unwrap();
    assert!(!guard.is_lost(), "two of three have it");
    fleet.0[1].connection().command(&["DEL", NAME]);
    guard.verify().await.unwrap_err();
    assert_eq!(soon(guard.lost()).await, LossReason::NoMajority);
    clients.0[2].lock(NAME).force_unlock().await.unwrap();
    assert_eq!(guard.lost().await, LossReason::NoMajority);
    let error = guard.unlock().await.unwrap_err();
    assert_eq!(error.loss_reason(), Some(LossReason::NoMajority));
    let words = LossReason::NoMajority.to_string();
    assert!(error.to_string().contains(&words), "{error}");
}

#[tokio::test]
async fn majority_that_a_release_finds_gone_names_what_the_servers_said() {
    let fleet = Fleet::start(3);
    let clients = fleet.clients().await;
    let guard = taken(&clients.lock()).await;
    clients.eventually_hold(0..3).await;
    for server in &fleet.0[..2] {
        server.connection().command(&["DEL", NAME]);
    }
    let error = guard.unlock().await.unwrap_err();
    assert_eq!(error.loss_reason(), Some(LossReason::Gone), "{error}");
}

// fault: S50
#[tokio::test]
async fn servers_that_hang_hold_nobody_up() {
    let fleet = Fleet::start(5);
    let clients = fleet.clients_with(|it| it.command_timeout(secs(4))).await;
    clients.settle().await;
    fleet.0[1].freeze();
    fleet.0[3].freeze();
    // The command timeout is four seconds, so each server that hangs would have that long to answer.
    for _ in 0..20 {
        let started = Instant::now();
        let guard = taken(&clients.lock()).await;
        guard.extend(secs(20)).await.unwrap();
        guard.verify().await.unwrap();
        guard.unlock().await.unwrap();
        assert!(started.elapsed() < secs(1), "{:?}", started.elapsed());
    }
    let guard = taken(&clients.lock()).await;
    let started = Instant::now();
    assert!(clients.lock().try_lock().await.unwrap().is_none());
    assert!(started.elapsed() < secs(1), "{:?}", started.elapsed());
    guard.unlock().await.unwrap();
    fleet.0[1].thaw();
    fleet.0[3].thaw();
    fleet.nothing_left([&clients]).await;
}

#[tokio::test]
async fn silent_server_is_not_asked_in_each_round() {
    let fleet = Fleet::start(3);
    let clients = fleet.clients().await;
    clients.settle().await;
    let mut probe = fleet.0[0].connection();
    fleet.0[0].freeze();
    let alone = clients.0[0].lock("other").try_lock().await;
    assert_eq!(kind(alone), ErrorKind::Timeout);
    for _ in 0..100 {
        taken(&clients.lock()).await.unlock().await.unwrap();
    }
    fleet.0[0].thaw();
    fleet.nothing_left([&clients]).await;
    let calls = calls_of(&mut probe, "evalsha");
    assert!(calls < 50, "{calls} requests in 100 rounds");
    let guard = taken(&clients.lock()).await;
    clients.eventually_hold(0..1).await;
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn server_that_answers_late_joins_the_guard() {
    let fleet = Fleet::start(3);
    let proxy = Proxy::start(fleet.0[2].port()).await;
    let urls = [fleet.0[0].url(), fleet.0[1].url(), proxy.url()];
    let clients = Clients::of(urls, |it| it.command_timeout(secs(4))).await;
    clients.settle().await;
    proxy.delay(millis(60));
    let guard = taken(&clients.lock()).await;
    clients.eventually_hold(0..3).await;
    proxy.delay(Duration::ZERO);
    fleet.0[0].connection().command(&["DEL", NAME]);
    guard.verify().await.unwrap();
    guard.unlock().await.unwrap();

    // A grant that arrives after the guard has gone is released.
    proxy.delay(millis(60));
    taken(&clients.lock()).await.unlock().await.unwrap();
    fleet.nothing_left([&clients]).await;
}

#[tokio::test]
async fn waiter_that_nobody_polls_leaves_the_lock_to_those_behind_it() {
    let fleet = Fleet::start(3);
    let clients = fleet.clients().await;
    clients.settle().await;
    let guard = taken(&clients.lock()).await;
    let first = clients.lock();
    let mut first = begin(async move { first.lock().await });
    let listens = fleet.eventually_quiet(&[0, 1, 2]);
    tokio::select! {
        biased;
        _ = &mut first => panic!("it is taken"),
        () = listens => {}
    }
    let second = clients.lock();
    let second = begin(async move { second.lock().await });
    guard.unlock().await.unwrap();
    soon(second).await.unwrap().unlock().await.unwrap();
    soon(first).await.unwrap().unlock().await.unwrap();
    fleet.nothing_left([&clients]).await;
}

#[tokio::test]
async fn release_that_nobody_waits_for_is_sent_once() {
    let fleet = Fleet::start(3);
    let proxy = Proxy::start(fleet.0[2].port()).await;
    let urls = [fleet.0[0].url(), fleet.0[1].url(), proxy.url()];
    let clients = Clients::of(urls, |it| it.command_timeout(secs(4))).await;
    clients.settle().await;
    fleet.eventually_free(0..3).await;
    let guard = taken(&clients.lock()).await;
    clients.eventually_hold(0..3).await;
    let mut probe = fleet.0[2].connection();
    let before = scripts_run(&mut probe);
    proxy.delay(millis(100));
    guard.unlock().await.unwrap();
    assert_eq!(fleet.held(2..3), 1, "the others were enough");
    fleet.nothing_left([&clients]).await;
    assert_eq!(scripts_run(&mut probe) - before, 1);
}

#[tokio::test]
async fn server_that_answers_after_the_callers_runtime_has_ended_joins_the_guard() {
    let fleet = Fleet::start(3);
    let proxy = Proxy::start(fleet.0[2].port()).await;
    let urls = [fleet.0[0].url(), fleet.0[1].url(), proxy.url()];
    let clients = Clients::of(urls, |it| it.command_timeout(secs(4))).await;
    clients.settle().await;
    proxy.delay(millis(300));
    let lock = clients.lock();
    let caller = std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(lock.lock()).unwrap()
    });
    let caller = tokio::task::spawn_blocking(|| caller.join().unwrap());
    let guard = soon(caller).await.unwrap();
    clients.eventually_hold(0..3).await;
    proxy.delay(Duration::ZERO);
    guard.unlock().await.unwrap();
    fleet.nothing_left([&clients]).await;
}

#[tokio::test]
async fn server_that_joins_late_does_not_bring_a_lost_majority_back() {
    let fleet = Fleet::start(3);
    let proxy = Proxy::start(fleet.0[2].port()).await;
    let urls = [fleet.0[0].url(), fleet.0[1].url(), proxy.url()];
    let clients = Clients::of(urls, |it| it.command_timeout(secs(4))).await;
    clients.settle().await;
    proxy.hold_replies();
    let guard = taken(&clients.lock()).await;
    let mut first = fleet.0[0].connection();
    first.command(&["DEL", NAME]);
    first.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    let holds = |at: usize, count: usize| {
        format!("{:?}", clients.0[at]).contains(&format!("holds: {count}"))
    };
    eventually("the loss is seen", async || holds(0, 0)).await;
    proxy.release_replies();
    eventually("the third has answered", async || {
        holds(2, 0) && fleet.held(2..3) == 0
    })
    .await;
    assert!(guard.is_lost());
    drop(guard);
    fleet.eventually_free(0..3).await;
}

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
async fn new_fleet_takes_no_more_than_a_majority() {
    let fleet = Fleet::start(3);
    let clients = fleet.clients().await;
    fleet.0[0].freeze();
    taken(&clients.lock()).await.unlock().await.unwrap();
    fleet.0[0].thaw();
    fleet.eventually_free(0..3).await;
}

// fault: S51
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_clients_that_collide_on_a_new_fleet_get_in_one_after_the_other() {
    let fleet = Fleet::start(5);
    let inside = Arc::new(AtomicBool::new(false));
    let passed = Arc::new(AtomicUsize::new(0));
    let mut all = Vec::new();
    for _ in 0..10 {
        all.push(fleet.clients().await);
    }
    let mut tasks = Vec::new();
    for clients in &all {
        let (lock, inside, passed) = (clients.lock(), inside.clone(), passed.clone());
        tasks.push(tokio::spawn(async move {
            for _ in 0..3 {
                let guard = lock.try_lock_for(secs(60)).await.unwrap().unwrap();
                assert!(!inside.swap(true, Ordering::SeqCst), "two at a time");
                tokio::task::yield_now().await;
                inside.store(false, Ordering::SeqCst);
                passed.fetch_add(1, Ordering::SeqCst);
                guard.unlock().await.unwrap();
            }
        }));
    }
    let started = Instant::now();
    eventually("somebody gets in", async || {
        passed.load(Ordering::SeqCst) > 0
    })
    .await;
    println!("the first after {:?}", started.elapsed());
    for task in tasks {
        task.await.unwrap();
    }
    println!("30 sections of 10 clients in {:?}", started.elapsed());
    for clients in &all {
        fleet.nothing_left([clients]).await;
    }
}

#[tokio::test]
async fn waiters_of_one_process_get_in_one_after_the_other() {
    let fleet = Fleet::start(3);
    let clients = fleet.clients().await;
    let inside = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = (0..20)
        .map(|_| {
            let (lock, inside) = (clients.lock(), inside.clone());
            tokio::spawn(async move {
                let guard = lock.lock().await.unwrap();
                assert!(!inside.swap(true, Ordering::SeqCst), "two at a time");
                guard.verify().await.unwrap();
                inside.store(false, Ordering::SeqCst);
                guard.unlock().await.unwrap();
            })
        })
        .collect();
    for task in tasks {
        soon(task).await.unwrap();
    }
    fleet.nothing_left([&clients]).await;
}

#[tokio::test]
async fn named_owner_takes_again_what_another_process_holds_for_it_and_never_queues() {
    let fleet = Fleet::start(3);
    let (clients, others) = (fleet.clients().await, fleet.clients().await);
    let owner = Owner::named("r7");
    let held = taken(&others.lock().owned_by(&owner)).await;
    others.eventually_hold(0..3).await;
    let mut probe = fleet.0[0].connection();
    reset_calls(&mut probe);
    let (first, again) = (clients.lock(), clients.lock().owned_by(&owner));
    let waiter = tokio::spawn(async move { first.lock().await.unwrap().unlock().await });
    eventually("the first stands at the front", async || {
        calls_of(&mut probe, "evalsha") >= 3
    })
    .await;
    let guard = soon(again.lock()).await.unwrap();
    guard.unlock().await.unwrap();
    assert!(!waiter.is_finished());
    held.unlock().await.unwrap();
    soon(waiter).await.unwrap().unwrap();
    fleet.nothing_left([&clients, &others]).await;
}

// fault: S52
#[tokio::test]
async fn extension_counts_only_servers_where_the_lock_was_still_ours() {
    let fleet = Fleet::start(5);
    let clients = fleet.clients().await;
    let guard = taken(&clients.leased(secs(20))).await;
    clients.eventually_hold(0..5).await;
    for server in &fleet.0[..2] {
        server.connection().command(&["DEL", NAME]);
    }
    soon(guard.extend(secs(40))).await.unwrap();
    assert!(guard.remaining() > secs(30));
    fleet.0[2].connection().command(&["DEL", NAME]);
    assert_eq!(kind(guard.extend(secs(50)).await), ErrorKind::LeaseLost);
    assert!(guard.is_lost());
    soon(guard.lost()).await;
    assert_eq!(fleet.held(0..3), 0, "it is taken anew on none");
    assert_eq!(kind(guard.unlock().await), ErrorKind::LeaseLost);
    fleet.eventually_free(0..5).await;
}

#[tokio::test]
async fn wait_ends_at_its_limit() {
    let fleet = Fleet::start(3);
    let (clients, others) = (fleet.clients().await, fleet.clients().await);
    let guard = taken(&others.lock()).await;
    let (wait, started) = (millis(300), Instant::now());
    assert!(clients.lock().try_lock_for(wait).await.unwrap().is_none());
    let took = started.elapsed();
    // One command timeout is the promised slack.
    assert!(took >= wait && took < wait + secs(1), "{took:?}");
    let lock = clients.lock();
    let waiter = tokio::spawn(async move { lock.lock().await });
    guard.unlock().await.unwrap();
    let guard = soon(waiter).await.unwrap().unwrap();
    guard.unlock().await.unwrap();
    fleet.nothing_left([&clients, &others]).await;
}

#[tokio::test]
async fn waiter_elsewhere_is_woken_by_the_release() {
    let fleet = Fleet::start(5);
    let (clients, others) = (fleet.clients().await, fleet.clients().await);
    clients.settle().await;
    let mut waited = Duration::ZERO;
    for _ in 0..6 {
        let guard = soon(others.lock().lock()).await.unwrap();
        let lock = clients.lock();
        let waiter = tokio::spawn(async move {
            let guard = lock.lock().await.unwrap();
            (guard, Instant::now())
        });
        fleet.eventually_quiet(&[0, 1, 2, 3, 4]).await;
        let unlocked = Instant::now();
        guard.unlock().await.unwrap();
        let (guard, granted) = soon(waiter).await.unwrap();
        waited += granted.saturating_duration_since(unlocked);
        guard.unlock().await.unwrap();
    }
    // With polls alone, each would take some seconds.
    assert!(waited < secs(2), "{waited:?} for six");
    fleet.nothing_left([&clients, &others]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_ten_processes_ask_seldom_and_get_in_one_after_the_other() {
    const PROCESSES: usize = 10;
    let fleet = Fleet::start(3);
    let holder = fleet.clients().await;
    let held = taken(&holder.lock()).await;
    holder.eventually_hold(0..3).await;
    let mut all = Vec::new();
    for _ in 0..PROCESSES {
        all.push(fleet.clients().await);
    }
    let waiters: Vec<_> = all
        .iter()
        .map(|clients| {
            let lock = clients.lock();
            tokio::spawn(async move { lock.lock().await?.unlock().await })
        })
        .collect();
    let mut probe = fleet.0[0].connection();
    eventually("all listen", async || {
        subscribers(&mut probe, &channel(NAME)) == PROCESSES as i64
    })
    .await;
    fleet.eventually_quiet(&[0, 1, 2]).await;
    let span = secs(3);
    let before = scripts_run(&mut probe);
    tokio::time::sleep(span).await;
    let scripts = scripts_run(&mut probe) - before;
    // Each waiter asks once per poll cap, which is five seconds.
    assert!(scripts <= 10, "{scripts} in {span:?}");
    let released = Instant::now();
    held.unlock().await.unwrap();
    for waiter in waiters {
        soon(waiter).await.unwrap().unwrap();
    }
    // None of them had to wait for a poll.
    let took = released.elapsed();
    println!("{scripts} scripts in {span:?}; all ten in {took:?}");
    assert!(took < secs(4), "{took:?}");
    for clients in &all {
        fleet.nothing_left([clients]).await;
    }
}

#[tokio::test]
async fn waiter_for_plain_members_asks_the_less_often_the_longer_it_waits() {
    let fleet = Fleet::start(3);
    let (clients, others) = (fleet.clients().await, fleet.clients().await);
    let lock = |clients: &Clients| {
        let members = clients.0.iter().map(|client| client.plain_lock(NAME));
        RedLock::new(members).owned_by(&Owner::unique())
    };
    let held = taken(&lock(&others)).await;
    others.eventually_hold(0..3).await;
    let mut probe = fleet.0[0].connection();
    let waiting = lock(&clients);
    let waiting = tokio::spawn(async move { waiting.lock().await });
    let span = secs(2);
    let mut counts = Vec::new();
    for _ in 0..4 {
        let before = scripts_run(&mut probe);
        tokio::time::sleep(span).await;
        counts.push(scripts_run(&mut probe) - before);
    }
    // After six seconds and more: pauses of 190 to 500 ms, where they were 64 to 128 ms at first.
    assert!(counts[3] <= 13, "{counts:?}");
    held.unlock().await.unwrap();
    soon(waiting)
        .await
        .unwrap()
        .unwrap()
        .unlock()
        .await
        .unwrap();
    fleet.nothing_left([&clients, &others]).await;
}

#[tokio::test]
async fn majority_that_took_too_much_of_its_first_part_is_not_handed_out() {
    let fleet = Fleet::start(3);
    let proxy = Proxy::start(fleet.0[1].port()).await;
    let urls = [fleet.0[0].url(), proxy.url(), fleet.0[2].url()];
    let (lease, least) = (secs(10), millis(9_500));
    let clients = Clients::of(urls, |it| it.command_timeout(secs(5)).min_validity(least));
    let clients = clients.await;
    clients.settle().await;
    fleet.eventually_free(0..3).await;
    let owner = Owner::unique();
    let lock = clients.leased(lease).owned_by(&owner);
    let others = fleet.clients().await;
    let third = others.0[2].lock(NAME).lock().await.unwrap();
    // The second server is not asked while another call of the owner asks it, and the third is held by another owner.
    let mut asks = proxy.stop(sha("lock_acquire"));
    let alone = clients.0[1].lock(NAME).lease(lease).owned_by(&owner);
    let alone = tokio::spawn(async move { alone.try_lock().await });
    soon(asks.reached()).await;
    let taking = tokio::spawn(async move { lock.try_lock().await });
    eventually("the first has granted it", async || fleet.held(0..1) == 1).await;
    tokio::time::sleep(lease - least).await;
    asks.open();
    let alone = soon(alone).await.unwrap().unwrap().expect("it was free");
    assert_eq!(kind(soon(taking).await.unwrap()), ErrorKind::LeaseLost);
    alone.unlock().await.unwrap();
    third.unlock().await.unwrap();
    fleet.nothing_left([&clients, &others]).await;
}

#[test]
fn crashed_holder_frees_the_lock_within_its_lease() {
    let fleet = Fleet::start(3);
    let lease = secs(1);
    let crashed = tokio::runtime::Runtime::new().unwrap();
    let guard = crashed.block_on(async {
        let clients = fleet.clients_with(|it| it.watchdog_lease(lease)).await;
        taken(&clients.lock()).await
    });
    std::mem::forget(guard);
    crashed.shutdown_background();
    let started = Instant::now();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let clients = fleet.clients().await;
        let guard = soon(clients.lock().lock()).await.unwrap();
        assert!(
            started.elapsed() < lease + secs(1),
            "{:?}",
            started.elapsed()
        );
        guard.unlock().await.unwrap();
    });
}

#[tokio::test]
async fn grant_without_its_reply_counts_once_and_is_given_back() {
    let fleet = Fleet::start(3);
    let proxy = Proxy::start(fleet.0[0].port()).await;
    let urls = [proxy.url(), fleet.0[1].url(), fleet.0[2].url()];
    let clients = Clients::of(urls, |it| it.command_timeout(secs(5))).await;
    clients.settle().await;
    let acquire = sha("red_acquire");
    for _ in 0..20 {
        // A server that is silent after a cut is not asked for its vote.
        eventually("the first server answers", async || {
            clients.0[0].lock("other").is_locked().await.is_ok()
        })
        .await;
        proxy.cut_reply_to(acquire.clone());
        let guard = taken(&clients.lock()).await;
        eventually("the reply was cut", async || !proxy.cut_reply_armed()).await;
        let (field, _) = fleet.0[1].connection().hgetall(NAME).pop_last().unwrap();
        assert!(field.starts_with('|'));
        guard.unlock().await.unwrap();
        fleet.eventually_free(0..3).await;
    }
    fleet.nothing_left([&clients]).await;
}

#[tokio::test]
async fn release_that_ran_at_its_first_try_is_no_loss_though_the_lock_is_anothers_at_the_second() {
    let fleet = Fleet::start(3);
    let proxy = Proxy::start(fleet.0[0].port()).await;
    let urls = [proxy.url(), fleet.0[1].url(), fleet.0[2].url()];
    let clients = Clients::of(urls, |it| it.command_timeout(secs(5))).await;
    clients.settle().await;
    let members = clients.0.iter().map(|client| client.plain_lock(NAME));
    let lock = RedLock::new(members).owned_by(&Owner::unique());
    taken(&lock).await.unlock().await.unwrap();
    // Also on servers that granted it after the majority was reached.
    for client in &clients.0 {
        eventually_idle(client).await;
    }
    let take = |at: usize| fleet.0[at].connection().command(&["SET", NAME, "other"]);
    // So the lock needs both of the other servers.
    take(2);
    let guard = taken(&lock).await;
    proxy.cut_reply_to(sha("plain_release"));
    let mut again = proxy.stop(sha("plain_release"));
    let unlocking = tokio::spawn(guard.unlock());
    soon(again.reached()).await;
    assert_eq!(fleet.held(0..1), 0, "the first try was carried out");
    take(0);
    again.open();
    soon(unlocking).await.unwrap().unwrap();
    eventually("its part is given back", async || fleet.held(1..2) == 0).await;
    assert_eq!(fleet.held([0, 2]), 2, "what is another's stays");
}

// fault: S54
#[tokio::test]
async fn dropped_call_leaves_nothing_held() {
    let fleet = Fleet::start(3);
    let proxy = Proxy::start(fleet.0[0].port()).await;
    let urls = [proxy.url(), fleet.0[1].url(), fleet.0[2].url()];
    let (clients, others) = (Clients::of(urls, |it| it).await, fleet.clients().await);
    clients.settle().await;
    fleet.eventually_free(0..3).await;
    Polls::sweep(&proxy, "acquire", async |_, polls| {
        let lock = clients.lock();
        drop(polls.run(lock.try_lock_for(secs(60))).await);
        let guard = soon(others.lock().lock()).await.unwrap();
        guard.unlock().await.unwrap();
        fleet.eventually_free(0..3).await;
    })
    .await;
    Polls::sweep(&proxy, "unlock", async |_, polls| {
        let guard = soon(clients.lock().lock()).await.unwrap();
        polls.run(guard.unlock()).await;
        fleet.eventually_free(0..3).await;
    })
    .await;
    fleet.nothing_left([&clients, &others]).await;
}

#[tokio::test]
async fn cluster_is_one_member_with_its_mark_beside_the_lock() {
    let (cluster, fleet) = (Cluster::start(), Fleet::start(2));
    let urls = [cluster.url(), fleet.0[0].url(), fleet.0[1].url()];
    let clients = Clients::of(urls, |it| it).await;
    let guard = taken(&clients.lock()).await;
    clients.eventually_hold(0..3).await;
    let mut home = cluster.owner(NAME).0.connection();
    assert!(home.exists(NAME) && home.exists(&format!("{MARK}:{{{NAME}}}")));
    fleet.0[0].kill();
    guard.extend(secs(20)).await.unwrap();
    guard.verify().await.unwrap();
    guard.unlock().await.unwrap();
    taken(&clients.lock()).await.unlock().await.unwrap();
    fleet.eventually_free(1..2).await;
    eventually("the cluster has it no more", async || !home.exists(NAME)).await;
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

#[tokio::test]
async fn name_in_use_by_something_else_is_the_wrong_kind() {
    let fleet = Fleet::start(3);
    let clients = fleet.clients().await;
    clients.settle().await;
    for server in &fleet.0[..2] {
        server.connection().command(&["SET", NAME, "7"]);
    }
    let error = soon(clients.lock().try_lock()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongKind, "{error}");
    fleet.0[0].connection().command(&["DEL", NAME]);
    taken(&clients.lock()).await.unlock().await.unwrap();
}
