//! Sets and RedLocks, by a clock that a test moves: calls that nobody polls, leases of several lengths, servers that
//! are far away.

use std::io;
use std::pin::Pin;
use std::time::Duration;

use futures_util::FutureExt;
use redlatch::config::Address;
use redlatch::{Client, ClientBuilder, Config, ErrorKind, MemoryServer, MultiLock, Owner, RedLock};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, duplex, split};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::support::probe::{NEVER, kind, millis, secs};
use crate::{client, three, two};

/// Polls a future so often, a millisecond apart. Returns what it returns, if it is done by then.
async fn polled<F: Future>(future: &mut Pin<Box<F>>, times: usize) -> Option<F::Output> {
    for _ in 0..times {
        if let Some(output) = future.as_mut().now_or_never() {
            return Some(output);
        }
        sleep(millis(1)).await;
    }
    None
}

/// Returns a client of each of these servers.
async fn clients(
    servers: &[MemoryServer],
    settings: impl Fn(ClientBuilder) -> ClientBuilder,
) -> Vec<Client> {
    let mut clients = Vec::new();
    for server in servers {
        let builder = settings(Client::builder().config(server.config()));
        clients.push(builder.build().await.unwrap());
    }
    clients
}

/// Returns a RedLock for a new owner.
fn red_lock(clients: &[Client]) -> RedLock {
    let members = clients.iter().map(|client| client.lock("job"));
    RedLock::new(members).owned_by(&Owner::unique())
}

#[tokio::test(start_paused = true)]
async fn locks_that_a_set_holds_while_nobody_polls_it_are_left_to_others() {
    let (_server, client, other) = two().await;
    let busy = other.lock("b").lock().await.unwrap();
    let names = ["a", "b", "c"].map(|name| client.lock(name));
    let set = MultiLock::new(names).owned_by(&Owner::unique());
    let mut unpolled = Box::pin(set.lock());
    assert!(polled(&mut unpolled, 20).await.is_none());
    let first = other.lock("a");
    assert!(first.try_lock().await.unwrap().is_none(), "the set has it");
    let guard = timeout(secs(10), first.lock()).await.expect("left to it");
    guard.unwrap().unlock().await.unwrap();
    busy.unlock().await.unwrap();
    let guard = timeout(secs(10), unpolled).await.expect("it begins again");
    guard.unwrap().unlock().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn set_that_is_polled_keeps_what_it_holds() {
    let (_server, client, other) = two().await;
    let busy = other.lock("b").lock().await.unwrap();
    let set = MultiLock::new(["a", "b", "c"].map(|name| client.lock(name)));
    let set = set.hold_and_wait(Duration::MAX);
    let waiting = tokio::spawn(async move { set.lock().await });
    for _ in 0..60 {
        sleep(secs(1)).await;
        assert!(other.lock("a").try_lock().await.unwrap().is_none());
    }
    busy.unlock().await.unwrap();
    let guard = timeout(secs(10), waiting).await.expect("it is free");
    guard.unwrap().unwrap().unlock().await.unwrap();
}

/// The first server has granted its part, and the others have not answered when the call is polled last.
#[tokio::test(start_paused = true)]
async fn part_of_a_red_lock_that_nobody_polls_is_left_to_others() {
    let servers = [(); 3].map(|()| MemoryServer::new());
    let lock = red_lock(&clients(&servers, |it| it.trust_fresh_servers(true)).await);
    lock.lock().await.unwrap().unlock().await.unwrap();
    servers[1..].iter().for_each(MemoryServer::stop_answering);
    let mut unpolled = Box::pin(lock.lock());
    assert!(polled(&mut unpolled, 20).await.is_none());
    servers[1..].iter().for_each(MemoryServer::resume);
    let alone = client(&servers[0]).await.lock("job");
    assert!(alone.try_lock().await.unwrap().is_none(), "the call has it");
    let guard = timeout(secs(10), alone.lock()).await.expect("left to it");
    guard.unwrap().unlock().await.unwrap();
    let guard = timeout(secs(10), unpolled).await.expect("it begins again");
    guard.unwrap().unlock().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn lock_that_waits_for_replicas_while_nobody_polls_it_is_left_to_others() {
    let mut has_begun_again = false;
    for polls in 1.. {
        let server = MemoryServer::new();
        let settings = |builder: ClientBuilder| builder.min_replicas(1, secs(1));
        let clients = clients(std::slice::from_ref(&server), settings).await;
        let lock = clients[0].lock("job");
        let mut unpolled = Box::pin(lock.lock());
        if let Some(output) = polled(&mut unpolled, polls).await {
            assert_eq!(kind(output), ErrorKind::Backend, "it has no replicas");
            assert!(has_begun_again);
            return;
        }
        let other = client(&server).await.lock("job");
        let began = Instant::now();
        let guard = timeout(secs(60), other.lock()).await.expect("left to it");
        guard.unwrap().unlock().await.unwrap();
        // What the server granted lasts for a lease if the call has not read that.
        if began.elapsed() < secs(10) {
            let output = timeout(secs(60), unpolled).await.expect("it is free");
            assert_eq!(kind(output), ErrorKind::Backend, "it has no replicas");
            has_begun_again = true;
        }
    }
}

/// Each of them is waited for by less than a third of the lease, and all together by more than the lease.
#[tokio::test(start_paused = true)]
async fn fixed_lease_lasts_while_a_set_waits_for_one_lock_after_another() {
    let (_server, client, other) = two().await;
    let names = ["a", "b", "c", "d", "e"];
    let mut busy = Vec::new();
    for name in &names[1..] {
        busy.push(other.lock(*name).lock().await.unwrap());
    }
    let members = names.map(|name| client.lock(name).lease(secs(3)));
    let set = MultiLock::new(members);
    let waiting = tokio::spawn(async move { set.lock().await });
    for guard in busy {
        sleep(millis(900)).await;
        guard.unlock().await.unwrap();
    }
    let guard = timeout(secs(10), waiting).await.expect("all are free");
    guard.unwrap().unwrap().unlock().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn members_with_very_different_leases_make_a_majority() {
    let clients = three(secs(30)).await;
    let leases = [secs(20), secs(2), secs(2)];
    let members = clients.iter().zip(leases);
    let lock = RedLock::new(members.map(|(client, lease)| client.lock("job").lease(lease)));
    let guard = lock.lock().await.unwrap();
    let left = guard.remaining();
    assert!(left > secs(1) && left < secs(2), "{left:?}");
    guard.unlock().await.unwrap();
}

/// The first server has forgotten that it granted its part to another owner, who has the second one too.
#[tokio::test(start_paused = true)]
async fn member_that_its_owner_has_alone_counts_only_if_its_server_votes() {
    let servers = [(); 3].map(|()| MemoryServer::new());
    let [here, there] = [
        clients(&servers, |builder| builder).await,
        clients(&servers, |builder| builder).await,
    ];
    // Long enough that they vote.
    sleep(secs(100)).await;
    let third = here[2].lock("job").lock().await.unwrap();
    let members = there
        .iter()
        .map(|client| client.lock("job").lease(secs(50)));
    let holder = RedLock::new(members).owned_by(&Owner::unique());
    let holder = holder.lock().await.unwrap();
    third.unlock().await.unwrap();
    servers[0].restart_empty();

    let owner = Owner::unique();
    let alone = here[0].lock("job").owned_by(&owner).lock().await.unwrap();
    let lock = red_lock(&here).owned_by(&owner);
    let taken = lock.try_lock().await;
    assert!(!matches!(taken, Ok(Some(_))), "the other owner has it");
    sleep(secs(70)).await;
    let guard = lock.try_lock().await.unwrap().expect("it votes again");
    guard.unlock().await.unwrap();
    alone.unlock().await.unwrap();
    drop(holder);
}

/// The servers abstain at first. In that time, the owner of the second call has two members alone, one after the other.
#[tokio::test(start_paused = true)]
async fn waiter_of_a_red_lock_keeps_its_place_whatever_else_its_owner_acquires() {
    let servers = [(); 3].map(|()| MemoryServer::new());
    let clients = clients(&servers, |builder| builder).await;
    let owners = [(); 3].map(|()| Owner::unique());
    let (tells, mut told) = mpsc::unbounded_channel();
    for (number, owner) in owners.iter().enumerate() {
        let (lock, tells) = (red_lock(&clients).owned_by(owner), tells.clone());
        tokio::spawn(async move {
            let guard = lock.lock().await.unwrap();
            tells.send(number).unwrap();
            guard.unlock().await.unwrap();
        });
        sleep(millis(10)).await;
    }
    for client in &clients[..2] {
        let alone = client.lock("job").owned_by(&owners[1]);
        let guard = alone.lock().await.unwrap();
        sleep(millis(10)).await;
        guard.unlock().await.unwrap();
    }
    for number in 0..3 {
        let next = timeout(secs(120), told.recv()).await.expect("they vote");
        assert_eq!(next, Some(number));
    }
}

/// Returns a client of a server to and from which all bytes take this long.
pub(crate) async fn client_at(server: &MemoryServer, way: Duration) -> Client {
    let server = server.clone();
    let connect = move |_: Address| {
        let server = server.clone();
        async move {
            let (near, here) = duplex(1 << 16);
            let (there, served) = duplex(1 << 16);
            let ((from_here, to_here), (from_there, to_there)) = (split(here), split(there));
            tokio::spawn(async move { server.serve(served).await });
            tokio::spawn(carry(from_here, to_there, way));
            tokio::spawn(carry(from_there, to_here, way));
            io::Result::Ok(near)
        }
    };
    let config = Config::server("far", 6379).connector(connect);
    let builder = Client::builder().config(config).poll_cap(NEVER);
    builder.trust_fresh_servers(true).build().await.unwrap()
}

/// Carries bytes in one direction.
async fn carry(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, way: Duration) {
    let (sends, mut sent) = mpsc::unbounded_channel();
    let reads = async move {
        let mut bytes = vec![0; 1 << 16];
        while let Ok(count @ 1..) = from.read(&mut bytes).await {
            let arrives = Instant::now() + way;
            sends.send((arrives, bytes[..count].to_vec())).unwrap();
        }
    };
    let writes = async move {
        while let Some((arrives, bytes)) = sent.recv().await {
            sleep_until(arrives).await;
            // The other end may be gone.
            to.write_all(&bytes).await.ok();
        }
    };
    tokio::join!(reads, writes);
}

/// Each of the two callers has two of four servers long before the other one's requests arrive there.
#[tokio::test(start_paused = true)]
async fn callers_that_are_nearer_to_different_servers_do_not_split_the_votes_for_long() {
    let servers = [(); 4].map(|()| MemoryServer::new());
    let (near, far) = (millis(1), millis(50));
    let mut locks = Vec::new();
    for ways in [[near, near, far, far], [far, far, near, near]] {
        let mut clients = Vec::new();
        for (server, way) in servers.iter().zip(ways) {
            clients.push(client_at(server, way).await);
        }
        let lock = red_lock(&clients);
        lock.lock().await.unwrap().unlock().await.unwrap();
        locks.push(lock);
    }
    // Until all that they released has arrived.
    sleep(secs(1)).await;
    let calls = locks.into_iter().map(|lock| {
        tokio::spawn(async move { lock.lock().await.unwrap().unlock().await.unwrap() })
    });
    for call in calls.collect::<Vec<_>>() {
        let passed = timeout(secs(10), call).await;
        passed.expect("one of them is first by enough").unwrap();
    }
}

/// Each request takes nearly as long as one may.
#[tokio::test(start_paused = true)]
async fn set_whose_servers_are_slow_ends_by_its_limit() {
    let server = MemoryServer::new();
    let (other, slow) = (client(&server).await, client_at(&server, millis(450)).await);
    let _busy = other.lock("c").lock().await.unwrap();
    let set = MultiLock::new(["a", "b", "c"].map(|name| slow.lock(name)));
    for wait in [0, 1_000, 1_500, 2_000].map(millis) {
        let asked = Instant::now();
        set.try_lock_for(wait).await.ok();
        let took = asked.elapsed();
        assert!(took <= wait + millis(1_030), "{wait:?}: {took:?}");
        sleep(secs(5)).await;
    }
}

/// Those that stand in the local queue have learned nothing themselves.
#[tokio::test(start_paused = true)]
async fn each_call_for_a_red_lock_gives_up_one_lease_after_the_majority_fell_silent() {
    let servers = [(); 3].map(|()| MemoryServer::new());
    let settings = |it: ClientBuilder| it.trust_fresh_servers(true).watchdog_lease(secs(6));
    let lock = red_lock(&clients(&servers, settings).await);
    let held = lock.lock().await.unwrap();
    let calls = [(); 5].map(|()| {
        let lock = lock.clone().owned_by(&Owner::unique());
        tokio::spawn(async move { lock.lock().await })
    });
    sleep(secs(1)).await;
    servers[1..].iter().for_each(MemoryServer::stop_answering);
    let silent = Instant::now();
    drop(held);
    for call in calls {
        assert_eq!(kind(call.await.unwrap()), ErrorKind::Quorum);
    }
    assert!(silent.elapsed() < secs(18), "{:?}", silent.elapsed());
}

/// The members that it has are renewed, and yet have less left than it wants when the last one comes.
#[tokio::test(start_paused = true)]
async fn set_whose_members_need_most_of_their_lease_is_granted() {
    let server = MemoryServer::new();
    let both = [server.clone(), server];
    let settings = |it: ClientBuilder| it.watchdog_lease(secs(3)).min_validity(millis(2_500));
    let [here, there] = clients(&both, settings).await.try_into().unwrap();
    let busy = there.lock("b").lock().await.unwrap();
    let set = MultiLock::new(["a", "b"].map(|name| here.lock(name)));
    let set = tokio::spawn(async move { set.lock().await });
    sleep(millis(600)).await;
    busy.unlock().await.unwrap();
    let guard = set.await.unwrap().unwrap();
    assert!(guard.remaining() >= millis(2_500));
    guard.unlock().await.unwrap();
}
