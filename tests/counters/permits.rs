//! The behavior that both semaphores have in common: one table of cases, run for each.

use crate::support;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use crate::both::{Permit, Permits};
use crate::support::polls::Polls;
use crate::support::probe::{
    NEVER, begin, calls, eventually_listening, kind, millis, reset_calls, secs, soon,
};
use crate::support::scene::{Scene, patient};
use crate::support::{builder, eventually, eventually_idle, start, start_two};
use redlatch::config::PubSub;
use redlatch::semaphore::{ExpirableSemaphore, Semaphore};
use redlatch::{Client, ErrorKind};
use redlatch_testkit::{Cluster, Server};

const NAME: &str = "s";
const CHANNEL: &str = "redisson_sc:{s}";

/// Runs every case for both semaphores.
macro_rules! table {
    ($($case:ident),* $(,)?) => {
        table!(@kind counted, Semaphore, $($case),*);
        table!(@kind expirable, ExpirableSemaphore, $($case),*);
    };
    (@kind $kind:ident, $semaphore:ty, $($case:ident),*) => {
        mod $kind {
            use super::*;
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case::<$semaphore>().await;
            })*
        }
    };
}

table!(
    permits_are_counted,
    no_more_are_out_than_there_are,
    wait_ends_at_its_limit,
    waiters_here_are_served_in_order_however_many_they_want,
    waiter_that_nobody_polls_leaves_permits_to_those_behind_it,
    waiter_elsewhere_is_woken_by_a_release_and_by_a_drop,
    permit_that_nobody_told_of_is_found_within_the_poll_cap,
    dropped_acquisition_leaves_none_taken,
    dropped_wait_leaves_none_taken_and_lets_the_next_in,
    dropped_release_gives_back,
    calls_without_their_replies_count_once,
    late_copies_of_calls_change_nothing,
    silent_server_is_told_once_it_speaks,
    close_gives_back_what_is_out,
    permits_that_the_server_lost_are_not_given_back,
    full_server_takes_permits_back,
    other_shapes_are_the_wrong_kind_and_stay_untouched,
    input_that_cannot_work_is_refused_before_anything_is_sent,
    numbers_that_java_cannot_count_are_refused,
    permits_of_a_cluster_come_by_message,
    a_permit_costs_two_requests_and_a_wait_here_few_more,
    permit_may_be_dropped_anywhere,
);

/// Connects a client whose waits end by a message, or never.
async fn unpolled(server: &Server) -> Client {
    let unpolled = builder(server.url())
        .command_timeout(secs(5))
        .poll_cap(NEVER / 2);
    unpolled.build().await.unwrap()
}

/// Waits until `free` permits are free, nothing is on its way, and nothing is left but the semaphore and marks that
/// expire.
async fn settles<const N: usize>(server: &Server, name: &str, free: u32, clients: [&Client; N]) {
    for client in clients {
        eventually("no permit is out", async || {
            format!("{client:?}").contains("permits: 0,")
        })
        .await;
    }
    let mut probe = server.connection();
    let free = free.to_string();
    eventually(&format!("{free} are free"), async || {
        probe.command(&["GET", name]).text() == free
    })
    .await;
    let beside = format!("{{{name}}}");
    eventually("nothing beside it is left", async || {
        let mut others = probe.keys();
        others.retain(|key| key.contains(&beside));
        others.iter().all(|key| probe.pttl(key) > 0)
    })
    .await;
}

/// Like [`settles`], and also waits until no mark, no channel and no entry in the clients' maps is left.
async fn ends_clean<const N: usize>(server: &Server, free: u32, clients: [&Client; N]) {
    settles(server, NAME, free, clients).await;
    for client in clients {
        eventually_idle(client).await;
    }
    let mut probe = server.connection();
    eventually("no channel is left", async || probe.channels().is_empty()).await;
    eventually("only the semaphore is left", async || {
        probe.keys() == [NAME]
    })
    .await;
}

async fn permits_are_counted<S: Permits>() {
    let (server, client) = start().await;
    let semaphore = S::of(&client, NAME);
    assert_eq!(semaphore.available().await.unwrap(), 0);
    assert!(semaphore.try_acquire().await.unwrap().is_none());
    assert!(semaphore.set(5).await.unwrap());
    assert!(!semaphore.set(9).await.unwrap());
    let one = semaphore.acquire().await.unwrap();
    let three = semaphore.acquire_many(3).await.unwrap();
    assert_eq!((one.permits(), three.permits()), (1, 3));
    assert_eq!(semaphore.available().await.unwrap(), 1);
    let two = semaphore.try_acquire_for(2, Duration::ZERO).await.unwrap();
    assert!(two.is_none());
    three.release().await.unwrap();
    assert_eq!(semaphore.available().await.unwrap(), 4);
    semaphore.add(-6).await.unwrap();
    assert_eq!(semaphore.available().await.unwrap(), -2);
    assert_eq!(semaphore.drain().await.unwrap(), 0);
    one.release().await.unwrap();
    assert_eq!(semaphore.available().await.unwrap(), -1);
    semaphore.add(6).await.unwrap();
    assert_eq!(semaphore.drain().await.unwrap(), 5);
    assert!(semaphore.try_acquire().await.unwrap().is_none());
    ends_clean(&server, 0, [&client]).await;
}

/// Runs tasks of two clients that each want one to four of seven permits.
async fn no_more_are_out_than_there_are<S: Permits>() {
    const ALL: u32 = 7;
    let server = Server::start();
    let clients = [unpolled(&server).await, unpolled(&server).await];
    S::of(&clients[0], NAME).set(ALL).await.unwrap();
    let out = Arc::new(AtomicU32::new(0));
    let tasks: Vec<_> = (0..24)
        .map(|n| {
            let (semaphore, out) = (S::of(&clients[n % 2], NAME), out.clone());
            tokio::spawn(async move {
                for round in 0..25 {
                    let wanted = 1 + (n + round) as u32 % 4;
                    let permit = semaphore.acquire_many(wanted).await.unwrap();
                    let now = out.fetch_add(wanted, Ordering::SeqCst) + wanted;
                    assert!(now <= ALL, "{now} are out");
                    tokio::task::yield_now().await;
                    out.fetch_sub(wanted, Ordering::SeqCst);
                    if round % 2 == 0 {
                        permit.release().await.unwrap();
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        let done = tokio::time::timeout(secs(60), task).await;
        done.expect("everybody gets in").unwrap();
    }
    ends_clean(&server, ALL, [&clients[0], &clients[1]]).await;
}

async fn wait_ends_at_its_limit<S: Permits>() {
    let (server, client) = start().await;
    let semaphore = S::of(&client, NAME);
    semaphore.set(2).await.unwrap();
    let permit = semaphore.acquire().await.unwrap();
    let started = Instant::now();
    let none = semaphore.try_acquire_for(2, millis(300)).await.unwrap();
    assert!(none.is_none());
    let took = started.elapsed();
    // The documented slack is one command timeout.
    assert!(took >= millis(300) && took < millis(1_300), "{took:?}");

    // Behind another waiter.
    let front = semaphore.clone();
    let front = tokio::spawn(async move { front.try_acquire_for(2, secs(60)).await });
    eventually("it stands in line", async || {
        format!("{client:?}").contains("waiting: 1,")
    })
    .await;
    let started = Instant::now();
    let none = semaphore.try_acquire_for(1, millis(300)).await.unwrap();
    assert!(none.is_none(), "overtook the one before it");
    let took = started.elapsed();
    assert!(took >= millis(300) && took < millis(1_300), "{took:?}");
    front.abort();
    assert!(front.await.unwrap_err().is_cancelled());
    assert!(
        semaphore.try_acquire().await.unwrap().is_some(),
        "the line is empty again"
    );
    drop(permit);
    ends_clean(&server, 2, [&client]).await;
}

async fn waiters_here_are_served_in_order_however_many_they_want<S: Permits>() {
    let server = Server::start();
    let client = unpolled(&server).await;
    let semaphore = S::of(&client, NAME);
    semaphore.set(4).await.unwrap();
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(semaphore.acquire().await.unwrap());
    }
    let mut first = begin(semaphore.acquire_many(3));
    // It asks once before it joins the local queue.
    eventually_polled(&mut first, &server).await;
    let mut second = begin(semaphore.acquire());
    drop(held.pop());
    drop(held.pop());
    settled_at(&server, "2").await;
    // Two are free, and the first waiter wants three: neither a later waiter nor a single try may overtake it.
    assert!(semaphore.try_acquire().await.unwrap().is_none());
    let quick = tokio::time::timeout(millis(300), async {
        tokio::select! {
            biased;
            _ = &mut first => panic!("three were not free"),
            _ = &mut second => panic!("overtook the one before it"),
        }
    });
    assert!(quick.await.is_err());
    drop(held.pop());
    let three = soon(&mut first).await.unwrap();
    assert_eq!(three.permits(), 3);
    drop(held);
    let one = soon(&mut second).await.unwrap();
    drop((one, three));
    drop((first, second));
    ends_clean(&server, 4, [&client]).await;
}

/// Polls a wait until it listens to the channel.
async fn eventually_polled<F: Future + Unpin>(wait: &mut F, server: &Server) {
    tokio::select! {
        biased;
        _ = wait => panic!("it had to wait"),
        () = eventually_listening(server, CHANNEL, 1) => {}
    }
}

async fn waiter_that_nobody_polls_leaves_permits_to_those_behind_it<S: Permits>() {
    let server = Server::start();
    let client = unpolled(&server).await;
    let semaphore = S::of(&client, NAME);
    semaphore.set(1).await.unwrap();
    let held = semaphore.acquire().await.unwrap();
    let mut first = begin(semaphore.acquire());
    eventually_polled(&mut first, &server).await;
    let second = async {
        drop(held);
        drop(semaphore.acquire().await.unwrap());
    };
    soon(second).await;
    drop(soon(&mut first).await.unwrap());
    ends_clean(&server, 1, [&client]).await;
}

async fn settled_at(server: &Server, free: &str) {
    let mut probe = server.connection();
    eventually("permits come back", async || {
        probe.command(&["GET", NAME]).text() == free
    })
    .await;
}

async fn waiter_elsewhere_is_woken_by_a_release_and_by_a_drop<S: Permits>() {
    let server = Server::start();
    let (one, two) = (unpolled(&server).await, unpolled(&server).await);
    let (here, there) = (S::of(&one, NAME), S::of(&two, NAME));
    here.set(1).await.unwrap();
    for round in 0..6 {
        let permit = here.acquire().await.unwrap();
        let waiter = there.clone();
        let waiting = tokio::spawn(async move { waiter.acquire().await });
        eventually_listening(&server, CHANNEL, 1).await;
        if round % 2 == 0 {
            permit.release().await.unwrap();
        } else {
            drop(permit);
        }
        let granted = soon(waiting).await.unwrap().unwrap();
        granted.release().await.unwrap();
    }
    // One message wakes all of them at once.
    let all: Vec<_> = (0..5)
        .map(|_| {
            let waiter = there.clone();
            tokio::spawn(async move { waiter.acquire_many(2).await.unwrap().forget() })
        })
        .collect();
    eventually_listening(&server, CHANNEL, 1).await;
    here.add(9).await.unwrap();
    for granted in all {
        soon(granted).await.unwrap();
    }
    assert_eq!(here.available().await.unwrap(), 0);
}

async fn permit_that_nobody_told_of_is_found_within_the_poll_cap<S: Permits>() {
    let server = Server::start();
    let polling = builder(server.url()).poll_cap(millis(300)).build().await;
    let client = polling.unwrap();
    let semaphore = S::of(&client, NAME);
    semaphore.set(0).await.unwrap();
    let waiter = semaphore.clone();
    let waiting = tokio::spawn(async move { waiter.try_acquire_for(1, secs(60)).await });
    eventually_listening(&server, CHANNEL, 1).await;
    server.connection().command(&["INCR", NAME]);
    let permit = soon(waiting).await.unwrap().unwrap().unwrap();
    permit.release().await.unwrap();
    ends_clean(&server, 1, [&client]).await;
}

/// Drops the permit of a future that ran to its end, and checks that the future did not fail.
fn finish<T>(output: Option<Result<T, redlatch::Error>>) {
    drop(output.map(|output| output.expect("the network is sound")));
}

async fn dropped_acquisition_leaves_none_taken<S: Permits>() {
    let scene = Scene::open(patient).await;
    for wanted in [1, 3] {
        let what = format!("acquire {wanted}");
        Polls::sweep(&scene.proxy, &what, async |name, polls| {
            let semaphore = S::of(&scene.client, name);
            semaphore.set(3).await.unwrap();
            finish(polls.run(semaphore.acquire_many(wanted)).await);
            scene.requests_have_run().await;
            settles(&scene.server, name, 3, [&scene.client]).await;
        })
        .await;
    }
    Polls::sweep(&scene.proxy, "try", async |name, polls| {
        let semaphore = S::of(&scene.client, name);
        semaphore.set(3).await.unwrap();
        finish(polls.run(semaphore.try_acquire()).await);
        scene.requests_have_run().await;
        settles(&scene.server, name, 3, [&scene.client]).await;
    })
    .await;
}

async fn dropped_wait_leaves_none_taken_and_lets_the_next_in<S: Permits>() {
    let scene = Scene::open(patient).await;
    Polls::sweep(&scene.proxy, "wait", async |name, polls| {
        let elsewhere = S::of(&scene.other, name);
        elsewhere.set(2).await.unwrap();
        let out = elsewhere.acquire_many(2).await.unwrap();
        let semaphore = S::of(&scene.client, name);
        let mut behind = None;
        let release = async {
            let next = semaphore.clone();
            behind = Some(tokio::spawn(async move { next.acquire_many(2).await }));
            out.release().await.unwrap();
        };
        finish(polls.run_until(semaphore.acquire_many(2), release).await);
        let next = behind.expect("spawned by now");
        soon(next).await.unwrap().unwrap().release().await.unwrap();
        scene.requests_have_run().await;
        settles(&scene.server, name, 2, [&scene.client, &scene.other]).await;
    })
    .await;
    eventually_idle(&scene.client).await;
}

async fn dropped_release_gives_back<S: Permits>() {
    let scene = Scene::open(patient).await;
    Polls::sweep(&scene.proxy, "release", async |name, polls| {
        let semaphore = S::of(&scene.client, name);
        semaphore.set(2).await.unwrap();
        let permit = semaphore.acquire_many(2).await.unwrap();
        finish(polls.run(permit.release()).await);
        scene.requests_have_run().await;
        settles(&scene.server, name, 2, [&scene.client]).await;
    })
    .await;
}

async fn calls_without_their_replies_count_once<S: Permits>() {
    let scene = Scene::open(patient).await;
    let semaphore = S::of(&scene.client, NAME);
    let cut = |request: String| scene.proxy.cut_reply_to(request);
    let free = async || semaphore.available().await.unwrap();
    cut(support::sha("counter_set"));
    assert!(semaphore.set(5).await.unwrap());
    cut(S::acquiring());
    let permit = semaphore.acquire_many(2).await.unwrap();
    assert_eq!(free().await, 3);
    cut(S::returning());
    permit.release().await.unwrap();
    assert_eq!(free().await, 5);
    let permit = semaphore.acquire_many(2).await.unwrap();
    cut(S::returning());
    drop(permit);
    eventually("it is given back", async || free().await == 5).await;
    assert!(!scene.proxy.cut_reply_armed());
    cut(support::sha("semaphore_add"));
    semaphore.add(3).await.unwrap();
    assert_eq!(free().await, 8);
    cut(support::sha("semaphore_drain"));
    assert_eq!(semaphore.drain().await.unwrap(), 8);
    assert!(!scene.proxy.cut_reply_armed());
    settles(&scene.server, NAME, 0, [&scene.client]).await;
}

async fn late_copies_of_calls_change_nothing<S: Permits>() {
    let scene = Scene::open(patient).await;
    let semaphore = S::of(&scene.client, NAME);
    semaphore.set(5).await.unwrap();

    // A copy of the acquisition arrives after everything else.
    let mut late = scene.proxy.hold_request(S::acquiring());
    let (permit, ()) = tokio::join!(semaphore.acquire_many(2), late.caught());
    permit.unwrap().release().await.unwrap();
    late.deliver().await;
    assert_eq!(semaphore.available().await.unwrap(), 5);

    let permit = semaphore.acquire_many(2).await.unwrap();
    let mut late = scene.proxy.hold_request(S::returning());
    let (released, ()) = tokio::join!(permit.release(), late.caught());
    released.unwrap();
    let again = semaphore.acquire_many(2).await.unwrap();
    late.deliver().await;
    assert_eq!(semaphore.available().await.unwrap(), 3);
    again.release().await.unwrap();

    let mut late = scene.proxy.hold_request(support::sha("semaphore_add"));
    let (added, ()) = tokio::join!(semaphore.add(1), late.caught());
    added.unwrap();
    late.deliver().await;
    assert_eq!(semaphore.available().await.unwrap(), 6);
}

/// Requests, takes and gives up permits while no answer gets through.
async fn silent_server_is_told_once_it_speaks<S: Permits>() {
    let scene = Scene::open(|builder| builder.command_timeout(millis(300))).await;
    let semaphore = S::of(&scene.client, NAME);
    semaphore.set(2).await.unwrap();
    let permit = semaphore.acquire().await.unwrap();
    scene.server.freeze();
    let unanswered = kind(semaphore.try_acquire().await);
    assert!(matches!(
        unanswered,
        ErrorKind::Timeout | ErrorKind::Backend
    ));
    let unanswered = kind(permit.release().await);
    assert!(matches!(
        unanswered,
        ErrorKind::Timeout | ErrorKind::Backend
    ));
    scene.server.thaw();
    settles(&scene.server, NAME, 2, [&scene.client]).await;
}

async fn close_gives_back_what_is_out<S: Permits>() {
    let (server, closing, other) = start_two().await;
    let semaphore = S::of(&closing, NAME);
    semaphore.set(5).await.unwrap();
    let kept = semaphore.acquire_many(2).await.unwrap();
    let dropped = semaphore.acquire().await.unwrap();
    let wait = semaphore.clone();
    let waiting = tokio::spawn(async move { wait.acquire_many(5).await.map(drop) });
    eventually_listening(&server, CHANNEL, 1).await;
    closing.close().await;
    assert_eq!(kind(soon(waiting).await.unwrap()), ErrorKind::Closed);
    assert_eq!(S::of(&other, NAME).available().await.unwrap(), 5);
    drop(dropped);
    assert_eq!(kind(kept.release().await), ErrorKind::Closed);
    assert_eq!(kind(semaphore.acquire().await.map(drop)), ErrorKind::Closed);
    settles(&server, NAME, 5, [&closing, &other]).await;
}

async fn permits_that_the_server_lost_are_not_given_back<S: Permits>() {
    let (server, client) = start().await;
    let semaphore = S::of(&client, NAME);
    semaphore.set(5).await.unwrap();
    let permit = semaphore.acquire_many(2).await.unwrap();
    let dropped = semaphore.acquire().await.unwrap();
    server.connection().command(&["FLUSHALL"]);
    semaphore.set(3).await.unwrap();
    assert_eq!(kind(permit.release().await), ErrorKind::LeaseLost);
    drop(dropped);
    ends_clean(&server, 3, [&client]).await;
}

async fn full_server_takes_permits_back<S: Permits>() {
    let (server, client) = start().await;
    let semaphore = S::of(&client, NAME);
    semaphore.set(2).await.unwrap();
    let permit = semaphore.acquire().await.unwrap();
    let dropped = semaphore.acquire().await.unwrap();
    let mut probe = server.connection();
    probe.command(&["CONFIG", "SET", "maxmemory", "1"]);
    permit.release().await.unwrap();
    drop(dropped);
    semaphore.add(1).await.unwrap();
    settled_at(&server, "3").await;
    assert_eq!(
        kind(semaphore.acquire().await.map(drop)),
        ErrorKind::Backend
    );
    probe.command(&["CONFIG", "SET", "maxmemory", "0"]);
    ends_clean(&server, 3, [&client]).await;
}

async fn other_shapes_are_the_wrong_kind_and_stay_untouched<S: Permits>() {
    let (server, client) = start().await;
    let mut probe = server.connection();
    let semaphore = S::of(&client, NAME);
    for command in [
        &["SET", NAME, "text"][..],
        &["SET", NAME, "12345678901234"],
        &["SET", NAME, "007"],
        &["RPUSH", NAME, "a"],
        &["HSET", NAME, "f", "1"],
    ] {
        probe.command(command);
        let before = probe.command(&["DUMP", NAME]);
        let kinds = [
            kind(semaphore.set(1).await),
            kind(soon(semaphore.acquire()).await.map(drop)),
            kind(semaphore.try_acquire().await.map(drop)),
            kind(soon(semaphore.try_acquire_for(1, NEVER)).await.map(drop)),
            kind(semaphore.available().await),
            kind(semaphore.add(1).await),
            kind(semaphore.drain().await),
        ];
        assert_eq!(kinds, [ErrorKind::WrongKind; 7], "{command:?}");
        assert_eq!(probe.command(&["DUMP", NAME]), before);
        assert_eq!(probe.keys(), [NAME]);
        probe.command(&["DEL", NAME]);
    }
    semaphore.set(1).await.unwrap();
    let lock = client.lock(NAME).try_lock().await;
    assert_eq!(kind(lock), ErrorKind::WrongKind);
    ends_clean(&server, 1, [&client]).await;
}

async fn input_that_cannot_work_is_refused_before_anything_is_sent<S: Permits>() {
    let (server, client) = start().await;
    let mut probe = server.connection();
    reset_calls(&mut probe);
    let semaphore = S::of(&client, NAME);
    for permits in [0, 1 << 31, u32::MAX] {
        let kinds = [
            kind(semaphore.acquire_many(permits).await.map(drop)),
            kind(semaphore.try_acquire_for(permits, secs(1)).await.map(drop)),
        ];
        assert_eq!(kinds, [ErrorKind::InvalidInput; 2], "{permits}");
    }
    assert_eq!(kind(semaphore.set(1 << 31).await), ErrorKind::InvalidInput);
    for name in ["".to_owned(), "x".repeat(1_025)] {
        let odd = S::of(&client, &name);
        let kinds = [
            kind(odd.set(1).await),
            kind(odd.acquire().await.map(drop)),
            kind(odd.available().await),
            kind(odd.add(1).await),
            kind(odd.drain().await),
        ];
        assert_eq!(kinds, [ErrorKind::InvalidInput; 5]);
    }
    assert!(!calls(&mut probe).contains_key("evalsha"));
}

async fn numbers_that_java_cannot_count_are_refused<S: Permits>() {
    let (server, client) = start().await;
    let semaphore = S::of(&client, NAME);
    assert!(semaphore.set(i32::MAX as u32).await.unwrap());
    assert_eq!(kind(semaphore.add(1).await), ErrorKind::Refused);
    assert_eq!(semaphore.available().await.unwrap(), i32::MAX);
    semaphore.add(i32::MIN).await.unwrap();
    semaphore.add(i32::MIN + 1).await.unwrap();
    assert_eq!(semaphore.available().await.unwrap(), i32::MIN);
    assert_eq!(kind(semaphore.add(-1).await), ErrorKind::Refused);
    semaphore.add(i32::MAX).await.unwrap();
    semaphore.add(1).await.unwrap();
    ends_clean(&server, 0, [&client]).await;
}

/// A cluster for the cases that leave no permit out.
static CLUSTER: LazyLock<Cluster> = LazyLock::new(Cluster::start);

async fn permits_of_a_cluster_come_by_message<S: Permits>() {
    for pubsub in [PubSub::Auto, PubSub::Plain] {
        let connect = async || {
            let unpolled = builder(CLUSTER.url()).poll_cap(NEVER / 2).pubsub(pubsub);
            unpolled.command_timeout(secs(5)).build().await.unwrap()
        };
        let clients = [connect().await, connect().await];
        for name in ["a", "b", "{t}:c", "d"] {
            let name = format!("{name}{pubsub:?}{}", S::acquiring());
            let [here, there] = [&clients[0], &clients[1]].map(|client| S::of(client, &name));
            here.set(2).await.unwrap();
            let permit = here.acquire_many(2).await.unwrap();
            let waiting = tokio::spawn(async move { there.acquire().await });
            eventually("it listens", async || {
                format!("{:?}", clients[1]).contains("channels: 1,")
            })
            .await;
            assert!(!waiting.is_finished());
            permit.release().await.unwrap();
            drop(soon(waiting).await.unwrap().unwrap());
            eventually("all are back", async || {
                here.available().await.unwrap() == 2
            })
            .await;
            here.drain().await.unwrap();
            eventually_idle(&clients[1]).await;
        }
        let odd = S::of(&clients[0], "a{b").set(1).await;
        assert_eq!(kind(odd), ErrorKind::InvalidInput);
        for client in clients {
            client.close().await;
        }
    }
}

async fn a_permit_costs_two_requests_and_a_wait_here_few_more<S: Permits>() {
    const WAITERS: usize = 50;
    let server = Server::start();
    let client = unpolled(&server).await;
    let semaphore = S::of(&client, NAME);
    semaphore.set(1).await.unwrap();
    semaphore.acquire().await.unwrap().release().await.unwrap();
    let mut probe = server.connection();
    reset_calls(&mut probe);
    let permit = semaphore.acquire().await.unwrap();
    permit.release().await.unwrap();
    assert_eq!(calls(&mut probe)["evalsha"], 2);

    let permit = semaphore.acquire().await.unwrap();
    let waiting: Vec<_> = (0..WAITERS)
        .map(|_| {
            let waiter = semaphore.clone();
            tokio::spawn(async move {
                let permit = waiter.acquire().await.unwrap();
                permit.release().await.unwrap();
            })
        })
        .collect();
    eventually("all wait", async || {
        format!("{client:?}").contains(&format!("waiting: {WAITERS},"))
    })
    .await;
    eventually_listening(&server, CHANNEL, 1).await;
    reset_calls(&mut probe);
    drop(permit);
    for served in waiting {
        soon(served).await.unwrap();
    }
    let each = calls(&mut probe)["evalsha"] as f64 / WAITERS as f64;
    // Each waiter sends one request to release, one to ask when it reaches the front of the local queue, and at most
    // one for each message.
    assert!(each <= 3.5, "{each}");
    ends_clean(&server, 1, [&client]).await;
}

async fn permit_may_be_dropped_anywhere<S: Permits>() {
    let (server, client) = start().await;
    let semaphore = S::of(&client, NAME);
    semaphore.set(2).await.unwrap();
    let permit = semaphore.acquire().await.unwrap();
    std::thread::spawn(move || drop(permit)).join().unwrap();
    ends_clean(&server, 2, [&client]).await;

    // The client was closed and its runtime has ended: the permit is only a value now.
    let url = server.url();
    let left = std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let client = runtime.block_on(Client::connect(url)).unwrap();
        let semaphore = S::of(&client, NAME);
        let permits = runtime.block_on(async {
            let one = semaphore.acquire().await.unwrap();
            (one, semaphore.acquire().await.unwrap())
        });
        runtime.block_on(client.close());
        permits
    });
    let (dropped, released) = left.join().unwrap();
    drop(dropped);
    assert_eq!(kind(released.release().await), ErrorKind::Closed);
    ends_clean(&server, 2, [&client]).await;
}
