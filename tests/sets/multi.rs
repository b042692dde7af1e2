//! Sets of locks: all or nothing, over kinds, clients and servers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::support::probe::{
    eventually_heard, kind, millis, name_of, nothing_left, scripts_run, secs, soon,
};
use crate::support::{client, eventually, eventually_idle, start, start_two};
use redlatch::{Client, ErrorKind, LockGuard, Member, MultiLock, Owner, ReentrantLock};
use redlatch_testkit::{Cluster, Server};
use tokio::task::JoinHandle;

/// The prefix of the key that a fenced lock leaves behind.
const KEPT: &str = "redisson_lock_token:";

fn locks<const N: usize>(client: &Client, names: [&str; N]) -> [ReentrantLock; N] {
    names.map(|name| client.lock(name))
}

fn set<const N: usize>(client: &Client, names: [&str; N]) -> MultiLock {
    MultiLock::new(locks(client, names)).owned_by(&Owner::unique())
}

/// Returns the locks that are held on this server.
fn held(server: &Server) -> Vec<String> {
    let mut keys = server.connection().keys();
    keys.retain(|key| {
        ![KEPT, "redlatch_turns"]
            .iter()
            .any(|beside| key.starts_with(beside))
    });
    keys.sort();
    keys
}

async fn eventually_free(server: &Server) {
    eventually("nothing is held", async || held(server).is_empty()).await;
}

#[tokio::test]
async fn set_is_had_whole_and_given_back_whole() {
    let (server, client) = start().await;
    let owner = Owner::unique();
    let set = MultiLock::new(locks(&client, ["c", "a", "b"])).owned_by(&owner);
    let guard = set.lock().await.unwrap();
    assert_eq!(held(&server), ["a", "b", "c"]);
    assert_eq!(guard.owner(), &owner);
    assert!(!guard.is_lost() && guard.remaining() > secs(20));
    guard.verify().await.unwrap();
    assert_eq!(guard.run_until_lost(async { 7 }).await.unwrap(), 7);
    guard.extend(secs(90)).await.unwrap();
    assert!(guard.remaining() > secs(80));
    for name in ["a", "b", "c"] {
        let one = client.lock(name).owned_by(&owner);
        assert_eq!(one.hold_count().await.unwrap(), 1, "{name}");
    }
    // The same owner acquires the set again.
    let again = soon(set.lock()).await.unwrap();
    assert_eq!(
        client
            .lock("a")
            .owned_by(&owner)
            .hold_count()
            .await
            .unwrap(),
        2
    );
    again.unlock().await.unwrap();
    guard.verify().await.unwrap();
    guard.unlock().await.unwrap();
    drop(set.try_lock().await.unwrap().unwrap());
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn members_are_on_the_server_what_they_are_by_themselves() {
    let (server, client) = start().await;
    let owner = Owner::unique();
    let field = client.owner_field(&owner);
    let acquisition_field = format!("|{}", name_of(&client));
    let mut probe = server.connection();
    let mut shapes = Vec::new();
    for together in [true, false] {
        let [a, b] = ["a", "b"].map(|name| client.lock(name).owned_by(&owner).lease(secs(9)));
        let (set, alone) = match together {
            true => (Some(MultiLock::new([b, a]).lock().await.unwrap()), None),
            false => (
                None,
                Some((a.lock().await.unwrap(), b.lock().await.unwrap())),
            ),
        };
        for name in ["a", "b"] {
            let hash = probe.hgetall(name);
            assert_eq!(hash.len(), 2);
            let (number, share) = hash[&acquisition_field].split_once(':').unwrap();
            assert!(number.starts_with('h') && number.len() == 17, "{number}");
            assert!((8_000..=9_000).contains(&probe.pttl(name)));
            shapes.push((hash[&field].clone(), share.to_owned()));
        }
        assert_eq!(probe.keys().len(), 2, "a set has no key of its own");
        drop((set, alone));
        eventually_free(&server).await;
    }
    assert_eq!(shapes, vec![("1".to_owned(), "1".to_owned()); 4]);
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn member_that_is_held_already_is_taken_again() {
    let (server, client) = start().await;
    let owner = Owner::unique();
    let set = MultiLock::new(locks(&client, ["a", "b", "c"])).owned_by(&owner);
    for name in ["a", "b", "c"] {
        let one = client.lock(name).owned_by(&owner);
        let outer = one.lock().await.unwrap();
        let all = soon(set.lock()).await.unwrap();
        assert_eq!(one.hold_count().await.unwrap(), 2);
        let tried = set.try_lock().await.unwrap().unwrap();
        assert_eq!(one.hold_count().await.unwrap(), 3);
        tried.unlock().await.unwrap();
        all.unlock().await.unwrap();
        assert_eq!(held(&server), [name]);
        outer.unlock().await.unwrap();
    }
    // A named owner re-enters through another client.
    let (named, other) = (Owner::named("req-7"), self::client(&server).await);
    let here = MultiLock::new(locks(&client, ["a", "b"])).owned_by(&named);
    let there = MultiLock::new(locks(&other, ["b", "a"])).owned_by(&named);
    let first = here.lock().await.unwrap();
    let second = there.try_lock().await.unwrap().unwrap();
    first.unlock().await.unwrap();
    assert_eq!(held(&server), ["a", "b"]);
    second.verify().await.unwrap();
    second.unlock().await.unwrap();
    nothing_left(&server, [&client, &other]).await;
}

#[tokio::test]
async fn set_is_given_back_though_a_level_beside_it_was_left_and_unlocked_elsewhere() {
    let (server, one, two) = start_two().await;
    let owner = Owner::named("req-7");
    let set = MultiLock::new(locks(&one, ["a", "b", "c"])).owned_by(&owner);
    let guard = set.lock().await.unwrap();
    for name in ["a", "b"] {
        drop(
            one.lock(name)
                .owned_by(&owner)
                .lock()
                .await
                .unwrap()
                .detach(),
        );
        two.lock(name).owned_by(&owner).unlock().await.unwrap();
    }
    guard.unlock().await.unwrap();
    assert_eq!(held(&server), [""; 0], "at once");
    nothing_left(&server, [&one, &two]).await;
}

#[tokio::test]
async fn set_of_hundreds_is_had_by_a_few_requests() {
    let (server, client) = start().await;
    let names = (0..250).map(|n| client.lock(format!("k{n}")));
    let set = MultiLock::new(names).owned_by(&Owner::unique());
    set.lock().await.unwrap().unlock().await.unwrap();
    let mut probe = server.connection();
    let before = scripts_run(&mut probe);
    let guard = set.lock().await.unwrap();
    assert_eq!(scripts_run(&mut probe) - before, 3);
    assert_eq!(held(&server).len(), 250);
    guard.unlock().await.unwrap();
    assert_eq!(scripts_run(&mut probe) - before, 6);
    nothing_left(&server, [&client]).await;
}

// fault: S53
#[tokio::test]
async fn busy_member_leaves_the_others_free() {
    let (server, client, other) = start_two().await;
    for busy in ["a", "b", "c"] {
        let guard = other.lock(busy).lock().await.unwrap();
        let set = set(&client, ["a", "b", "c"]);
        assert!(set.try_lock().await.unwrap().is_none());
        let (started, wait) = (Instant::now(), millis(300));
        assert!(set.try_lock_for(wait).await.unwrap().is_none());
        let took = started.elapsed();
        // The documented slack is one command timeout.
        assert!(took >= wait && took < wait + secs(1), "{took:?}");
        eventually("the others are free", async || held(&server) == [busy]).await;
        let waiting = tokio::spawn(async move { set.lock().await });
        eventually_heard(&server, busy, 1).await;
        guard.unlock().await.unwrap();
        let guard = soon(waiting).await.unwrap().unwrap();
        assert_eq!(held(&server), ["a", "b", "c"]);
        guard.unlock().await.unwrap();
        eventually_free(&server).await;
    }
    nothing_left(&server, [&client, &other]).await;
}

#[tokio::test]
async fn one_name_on_several_servers_or_in_several_databases_is_refused_with_a_way_out() {
    let servers = [Server::start(), Server::start()];
    let [here, there] = [client(&servers[0]).await, client(&servers[1]).await];
    let url = format!("{}/1", servers[0].url());
    let beside = Client::connect(url).await.unwrap();
    for other in [&there, &beside] {
        // A lock in between does not hide it.
        let set = MultiLock::new([here.lock("k"), here.lock("a"), other.lock("k")]);
        for error in [set.lock().await.err(), set.try_lock().await.err()] {
            let error = error.unwrap();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            let text = error.to_string();
            assert!(text.contains("\"k\"") && text.contains("RedLock"), "{text}");
            assert_eq!(held(&servers[0]), [""; 0], "{text}");
        }
        let named = MultiLock::new([here.lock("k:0"), here.lock("a"), other.lock("k:1")]);
        named.lock().await.unwrap().unlock().await.unwrap();
    }
    for server in &servers {
        eventually_free(server).await;
    }
}

/// Acquires a lock that is about to be free.
async fn get(client: &Client, name: &str) -> LockGuard {
    let guard = soon(client.lock(name).owned_by(&Owner::unique()).lock()).await;
    guard.unwrap()
}

#[tokio::test]
async fn what_a_set_holds_is_given_back_while_one_of_its_locks_is_long_in_coming() {
    let (server, client, other) = start_two().await;
    for (busy, before) in [("c", ["a", "b"]), ("b", ["a", "a"])] {
        let held = get(&other, busy).await;
        let set = set(&client, ["a", "b", "c"]);
        let waiting = tokio::spawn(async move { set.lock().await });
        eventually_heard(&server, busy, 1).await;
        let guard = get(&other, before[0]).await;
        assert_eq!(self::held(&server), [before[0], busy]);
        // The set acquires the lock that it waited for at once, and releases it, since another one is busy by now.
        held.unlock().await.unwrap();
        eventually_heard(&server, before[0], 1).await;
        eventually("it holds nothing", async || {
            self::held(&server) == [before[0]]
        })
        .await;
        assert!(!waiting.is_finished());
        guard.unlock().await.unwrap();
        let guard = soon(waiting).await.unwrap().unwrap();
        assert_eq!(self::held(&server), ["a", "b", "c"]);
        guard.unlock().await.unwrap();
        eventually_free(&server).await;
    }
    nothing_left(&server, [&client, &other]).await;
}

#[tokio::test]
async fn set_that_had_to_give_back_holds_on_twice_as_long_the_next_time() {
    let (server, client, other) = start_two().await;
    let first = millis(150);
    let set = set(&client, ["a", "b"]).hold_and_wait(first);
    let mut b = get(&other, "b").await;
    let waiting = tokio::spawn(async move { set.lock().await });
    for stands in [first, first * 2, first * 4] {
        eventually("it holds the first", async || held(&server) == ["a", "b"]).await;
        let since = Instant::now();
        let a = get(&other, "a").await;
        let stood = since.elapsed();
        // The set may have held the first lock for a while before the test saw it.
        assert!(stood > stands.mul_f64(0.8), "{stood:?} of {stands:?}");
        b.unlock().await.unwrap();
        eventually("it has tried in vain", async || held(&server) == ["a"]).await;
        b = get(&other, "b").await;
        a.unlock().await.unwrap();
    }
    b.unlock().await.unwrap();
    soon(waiting)
        .await
        .unwrap()
        .unwrap()
        .unlock()
        .await
        .unwrap();
    nothing_left(&server, [&client, &other]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sets_that_give_back_what_they_hold_all_get_in() {
    const ROUNDS: usize = 20;
    let server = Server::start();
    let clients = [client(&server).await, client(&server).await];
    let inside = Arc::new(AtomicUsize::new(0));
    let mut tasks = Vec::new();
    for names in [["a", "b", "c"], ["c", "b", "a"]] {
        for client in &clients {
            let (set, inside) = (set(client, names), inside.clone());
            let set = set.hold_and_wait(millis(2));
            tasks.push(tokio::spawn(async move {
                for _ in 0..ROUNDS {
                    let guard = set.lock().await.unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at once");
                    tokio::time::sleep(millis(5)).await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    guard.unlock().await.unwrap();
                }
            }));
        }
    }
    // Other callers hold one lock for longer than a set waits while it holds others.
    for (client, name) in [(&clients[0], "a"), (&clients[1], "c")] {
        let lock = client.lock(name).owned_by(&Owner::unique());
        tasks.push(tokio::spawn(async move {
            for _ in 0..ROUNDS {
                let guard = lock.lock().await.unwrap();
                tokio::time::sleep(millis(5)).await;
                guard.unlock().await.unwrap();
            }
        }));
    }
    for task in tasks {
        tokio::time::timeout(secs(30), task).await.unwrap().unwrap();
    }
    nothing_left(&server, [&clients[0], &clients[1]]).await;
}

#[tokio::test]
async fn what_cannot_work_is_said_before_anything_is_taken() {
    let (server, client, other) = start_two().await;
    let (one, two) = (Owner::unique(), Owner::unique());
    let none: [ReentrantLock; 0] = [];
    let twice = client.scoped("a").lock("b");
    let sides = client.read_write_lock("ab");
    for (what, set) in [
        ("nothing", MultiLock::new(none)),
        ("no name", set(&client, ["a", ""])),
        ("twice", MultiLock::new([client.lock("ab"), twice])),
        (
            "kinds of one name",
            MultiLock::new([
                Member::from(client.lock("ab")),
                client.spin_lock("ab").into(),
            ]),
        ),
        (
            "sides of one name",
            MultiLock::new([Member::from(sides.reader()), sides.writer().into()]),
        ),
        (
            "clients of one server",
            MultiLock::new([client.lock("ab"), other.lock("ab")]),
        ),
        (
            "owners of members",
            MultiLock::new([
                client.lock("a").owned_by(&one),
                client.lock("b").owned_by(&two),
            ]),
        ),
        (
            "owner of a member",
            MultiLock::new([client.lock("a").owned_by(&one), client.lock("b")]).owned_by(&two),
        ),
        (
            "lease",
            MultiLock::new([client.lock("a"), client.lock("b").lease(millis(1))]),
        ),
    ] {
        assert_eq!(
            kind(set.try_lock().await),
            ErrorKind::InvalidInput,
            "{what}"
        );
        assert_eq!(kind(set.lock().await), ErrorKind::InvalidInput, "{what}");
        assert_eq!(held(&server), [""; 0], "{what}");
    }
    let attempts = MultiLock::new([client.spin_lock("a").max_attempts(2)]);
    assert_eq!(kind(attempts.lock().await), ErrorKind::InvalidInput);
    let named = MultiLock::new([client.lock("a").owned_by(&one), client.lock("b")]);
    let guard = named.lock().await.unwrap();
    assert_eq!(guard.owner(), &one);
    guard.unlock().await.unwrap();
    nothing_left(&server, [&client, &other]).await;
}

#[tokio::test]
async fn members_are_of_any_kind() {
    let (server, client) = start().await;
    let set = MultiLock::new([
        Member::from(client.plain_lock("g")),
        client.fenced_lock("e").into(),
        client.fair_lock("d").into(),
        client.lock("a").into(),
        client.fenced_lock("b").lease(secs(9)).into(),
        client.spin_lock("f").into(),
        client.read_write_lock("c").reader().into(),
        client.read_write_lock("h").writer().into(),
    ]);
    let reader = client.read_write_lock("c").owned_by(&Owner::unique());
    let reading = reader.read().await.unwrap();
    let mut before = Vec::new();
    for round in 0..3 {
        let guard = soon(set.lock()).await.unwrap();
        let tokens: Vec<_> = guard.tokens().collect();
        assert_eq!(
            tokens.iter().map(Option::is_some).collect::<Vec<_>>(),
            [false, true, false, false, true, false, false, false]
        );
        assert!(before.is_empty() || tokens[1] > before[1] && tokens[4] > before[4]);
        before = tokens;
        let leases: Vec<_> = guard.leases().map(redlatch::Lease::remaining).collect();
        assert!(leases[4] < secs(9) && leases[1] > secs(20), "{leases:?}");
        assert!(guard.remaining() <= leases[4], "the least of them");
        guard.verify().await.unwrap();
        let stranger = MultiLock::new([client.lock("a")]).owned_by(&Owner::unique());
        assert!(stranger.try_lock().await.unwrap().is_none(), "{round}");
        guard.unlock().await.unwrap();
    }
    reading.unlock().await.unwrap();
    eventually_free(&server).await;
    eventually_idle(&client).await;
}

#[tokio::test]
async fn members_of_one_server_cost_one_request_to_take_and_one_to_give_back() {
    let (server, client, other) = start_two().await;
    let set = MultiLock::new([
        Member::from(client.lock("a")),
        client.fenced_lock("b").into(),
        client.lock("c").into(),
    ]);
    // The server learns the scripts.
    set.lock().await.unwrap().unlock().await.unwrap();
    let mut probe = server.connection();
    let mut before = scripts_run(&mut probe);
    let mut requests = |probe: &mut _| {
        let now = scripts_run(probe);
        now - std::mem::replace(&mut before, now)
    };
    let mut last = None;
    for _ in 0..3 {
        let guard = set.lock().await.unwrap();
        assert_eq!(requests(&mut probe), 1);
        let token = guard.tokens().nth(1).unwrap();
        assert!(token > last);
        last = token;
        guard.unlock().await.unwrap();
        assert_eq!(requests(&mut probe), 1);
        let guard = set.try_lock().await.unwrap().unwrap();
        assert_eq!(requests(&mut probe), 1);
        guard.unlock().await.unwrap();
        requests(&mut probe);
    }
    // One request also finds what other owners hold, and nothing is taken then.
    for busy in ["a", "b", "c"] {
        let guard = other.lock(busy).lock().await.unwrap();
        requests(&mut probe);
        assert!(set.try_lock().await.unwrap().is_none());
        assert_eq!(requests(&mut probe), 1);
        assert_eq!(held(&server), [busy]);
        guard.unlock().await.unwrap();
    }
    eventually_idle(&client).await;
    assert_eq!(held(&server), [""; 0]);
}

/// Locks the set this often in a task of its own, and checks each time that nobody else is inside.
fn passes_often(set: MultiLock, inside: Arc<AtomicUsize>, rounds: usize) -> JoinHandle<()> {
    tokio::spawn(async move {
        for _ in 0..rounds {
            let guard = set.lock().await.unwrap();
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at once");
            tokio::task::yield_now().await;
            inside.fetch_sub(1, Ordering::SeqCst);
            guard.unlock().await.unwrap();
        }
    })
}

#[tokio::test]
async fn members_that_were_passed_on_by_several_owners_are_given_back_under_each() {
    let (server, client) = start().await;
    let [a, b] = ["a", "b"].map(|name| client.lock(name));
    let of_a = a.clone().owned_by(&Owner::unique()).lock().await.unwrap();
    let of_b = b.clone().owned_by(&Owner::unique()).lock().await.unwrap();
    let set = MultiLock::new([a, b]).owned_by(&Owner::unique());
    let set = set.hold_and_wait(Duration::MAX);
    let waiting = tokio::spawn(async move { set.lock().await });
    for held in [of_a, of_b] {
        eventually("the set waits for it", async || {
            format!("{client:?}").contains("waiting: 1,")
        })
        .await;
        held.unlock().await.unwrap();
    }
    let guard = soon(waiting).await.unwrap().unwrap();
    // Each record is still that of the owner who acquired it.
    let mut probe = server.connection();
    assert_ne!(probe.hgetall("a"), probe.hgetall("b"));
    guard.unlock().await.unwrap();
    nothing_left(&server, [&client]).await;
}

// fault: S53
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn opposite_orders_never_deadlock() {
    const ROUNDS: usize = 300;
    let server = Server::start();
    let clients = [client(&server).await, client(&server).await];
    let inside = Arc::new(AtomicUsize::new(0));
    let mut tasks = Vec::new();
    for (client, names) in [
        (&clients[0], ["a", "b"]),
        (&clients[0], ["b", "a"]),
        (&clients[1], ["b", "a"]),
    ] {
        let (set, inside) = (set(client, names), inside.clone());
        tasks.push(passes_often(set, inside, ROUNDS));
    }
    for task in tasks {
        tokio::time::timeout(secs(30), task).await.unwrap().unwrap();
    }
    nothing_left(&server, [&clients[0], &clients[1]]).await;
}

// fault: S53
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn opposite_orders_over_two_servers_never_deadlock() {
    const ROUNDS: usize = 200;
    let servers = [Server::start(), Server::start()];
    let inside = Arc::new(AtomicUsize::new(0));
    let mut tasks = Vec::new();
    for opposite in [false, true] {
        let (one, two) = (client(&servers[0]).await, client(&servers[1]).await);
        // The members on the first server are held together, though the one on the second server lies between them.
        let mut members: Vec<Member> = vec![
            one.lock("a").into(),
            two.plain_lock("b").into(),
            one.lock("c").into(),
            one.fenced_lock("d").into(),
        ];
        if opposite {
            members.reverse();
        }
        let (set, inside) = (MultiLock::new(members), inside.clone());
        tasks.push(passes_often(set, inside, ROUNDS));
    }
    for task in tasks {
        tokio::time::timeout(secs(30), task).await.unwrap().unwrap();
    }
    for server in &servers {
        eventually_free(server).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_in_a_cluster_lie_where_they_lie() {
    let cluster = Cluster::start();
    let mut names: Vec<String> = (0..6).map(|n| format!("n{n}")).collect();
    // These names share a slot.
    names.extend(["{t}:1", "{t}:2", "{t}:3"].map(str::to_owned));
    let clients = [
        Client::connect(cluster.url()).await.unwrap(),
        Client::connect(cluster.url()).await.unwrap(),
    ];
    let total = || -> u64 {
        let nodes = cluster.nodes().iter();
        nodes.map(|node| scripts_run(&mut node.connection())).sum()
    };
    let together = set(&clients[0], ["{t}:1", "{t}:2", "{t}:3"]);
    together.lock().await.unwrap().unlock().await.unwrap();
    let before = total();
    let guard = together.lock().await.unwrap();
    assert_eq!(total() - before, 1, "one request a slot");
    guard.unlock().await.unwrap();
    assert_eq!(total() - before, 2);

    let inside = Arc::new(AtomicUsize::new(0));
    let mut tasks = Vec::new();
    for client in &clients {
        names.reverse();
        let set = MultiLock::new(names.iter().map(|name| client.lock(name)));
        let inside = inside.clone();
        tasks.push(tokio::spawn(async move {
            for _ in 0..50 {
                let guard = set.lock().await.unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at once");
                guard.verify().await.unwrap();
                inside.fetch_sub(1, Ordering::SeqCst);
                guard.unlock().await.unwrap();
            }
        }));
    }
    for task in tasks {
        tokio::time::timeout(secs(30), task).await.unwrap().unwrap();
    }
    let twice = MultiLock::new([clients[0].lock("n1"), clients[1].lock("n1")]);
    assert_eq!(kind(twice.lock().await), ErrorKind::InvalidInput);
    for node in cluster.nodes() {
        eventually_free(node).await;
    }
}
