//! Handoffs between the waiters of one process.

use crate::support;
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::thread;

use crate::support::probe::{
    acquiring, begin, calls_of, eventually_heard, eventually_waiting, kind, millis, secs, soon,
    stranger,
};
use crate::support::scene::Scene;
use crate::support::{builder, eventually, eventually_idle, sha, start, start_two};
use futures_util::future::select_all;
use redlatch::{Client, ErrorKind, LockGuard, Owner, ReentrantLock};
use redlatch_testkit::{Server, script};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Acquires and releases the lock `sections` times, for an owner of its own.
pub(super) async fn turns(lock: ReentrantLock, sections: usize) {
    let lock = stranger(&lock);
    for _ in 0..sections {
        lock.lock().await.unwrap().unlock().await.unwrap();
    }
}

/// Waits for the first of these tasks to finish. Removes it and returns its output.
async fn first_of<T>(waiters: &mut Vec<JoinHandle<T>>) -> T {
    let waiting = std::mem::take(waiters);
    let (done, _, others) = soon(select_all(waiting)).await;
    *waiters = others;
    done.unwrap()
}

pub(super) async fn nothing_left(server: &Server, client: &Client) {
    eventually_idle(client).await;
    assert_eq!(server.connection().keys(), Vec::<String>::new());
}

#[tokio::test]
async fn lock_is_passed_on_while_the_server_is_silent_and_unlock_waits_for_it() {
    let scene = Scene::open(|builder| builder.command_timeout(secs(10))).await;
    let lock = scene.client.lock("k");
    let mut guard = lock.lock().await.unwrap();
    let mut waiters: Vec<_> = (0..4).map(|_| acquiring(&lock)).collect();
    eventually_waiting(&scene.client, 4).await;
    scene.proxy.hold_replies();
    let mut unlocks = Vec::new();
    while !waiters.is_empty() {
        unlocks.push(tokio::spawn(guard.unlock()));
        guard = first_of(&mut waiters).await.unwrap();
        assert!(!guard.is_lost());
    }
    assert!(!unlocks.iter().any(JoinHandle::is_finished));
    scene.proxy.release_replies();
    for unlock in unlocks {
        soon(unlock).await.unwrap().unwrap();
    }
    guard.unlock().await.unwrap();
    nothing_left(&scene.server, &scene.client).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn passing_on_takes_few_requests_and_no_message() {
    let (server, client) = start().await;
    let lock = client.lock("k");
    turns(lock.clone(), 1).await; // from here on, the server knows the scripts
    let guard = lock.lock().await.unwrap();
    let tasks: Vec<_> = (0..20)
        .map(|_| tokio::spawn(turns(lock.clone(), 1)))
        .collect();
    eventually_waiting(&client, 20).await;
    eventually_heard(&server, "k", 1).await;
    let mut probe = server.connection();
    let before = (
        calls_of(&mut probe, "evalsha"),
        calls_of(&mut probe, "publish"),
    );
    guard.unlock().await.unwrap();
    for task in tasks {
        soon(task).await.unwrap();
    }
    // The last release answers everyone who passed the lock on, unless a request for each of them does so before.
    let requests = calls_of(&mut probe, "evalsha") - before.0;
    assert!((1..=23).contains(&requests), "{requests} requests");
    assert!(calls_of(&mut probe, "publish") - before.1 <= 3);
    nothing_left(&server, &client).await;
}

#[tokio::test]
async fn reentry_of_the_holder_comes_first_and_inner_releases_hand_nothing_on() {
    let (server, client) = start().await;
    let lock = client.lock("k");
    let outer = lock.lock().await.unwrap();
    let waiter = acquiring(&lock);
    eventually_waiting(&client, 1).await;
    eventually_heard(&server, "k", 1).await;
    let inner = soon(lock.lock()).await.unwrap();
    inner.unlock().await.unwrap();
    assert_eq!(lock.hold_count().await.unwrap(), 1);
    assert!(!waiter.is_finished());
    outer.unlock().await.unwrap();
    let guard = soon(waiter).await.unwrap().unwrap();
    guard.unlock().await.unwrap();
    nothing_left(&server, &client).await;
}

#[tokio::test]
async fn each_hold_has_its_own_lease_fixed_beside_renewed() {
    let server = Server::start();
    let client = builder(server.url())
        .watchdog_lease(secs(3))
        .build()
        .await
        .unwrap();
    let renewed = client.lock("k");
    let fixed = renewed.clone().lease(secs(60));
    let first = renewed.lock().await.unwrap();
    let waiter = acquiring(&fixed);
    eventually_waiting(&client, 1).await;
    eventually_heard(&server, "k", 1).await;
    first.unlock().await.unwrap();
    let second = soon(waiter).await.unwrap().unwrap();
    let ttl = server.connection().pttl("k");
    assert!((55_000..=60_000).contains(&ttl), "the fixed lease: {ttl}");

    let waiter = acquiring(&renewed);
    eventually_waiting(&client, 1).await;
    eventually("it waits", async || {
        format!("{client:?}").contains("locks: 1")
    })
    .await;
    eventually_heard(&server, "k", 1).await;
    second.unlock().await.unwrap();
    let third = soon(waiter).await.unwrap().unwrap();
    let ttl = server.connection().pttl("k");
    assert!((1_500..=3_000).contains(&ttl), "the watchdog's: {ttl}");
    tokio::time::sleep(secs(4)).await;
    third.verify().await.unwrap();
    third.unlock().await.unwrap();
    nothing_left(&server, &client).await;
}

#[tokio::test]
async fn server_out_of_memory_has_the_lock_passed_on_all_the_same() {
    let (server, client) = start().await;
    let lock = client.lock("k");
    turns(lock.clone(), 1).await;
    let guard = lock.lock().await.unwrap();
    let waiter = acquiring(&lock);
    eventually_waiting(&client, 1).await;
    eventually_heard(&server, "k", 1).await;
    let mut admin = server.connection();
    // The server must know the script already: without memory it accepts no new one.
    admin.command(&["SCRIPT", "LOAD", script("lock_confirm")]);
    admin.command(&["CONFIG", "SET", "maxmemory", "1"]);
    guard.unlock().await.unwrap();
    let guard = soon(waiter).await.unwrap().unwrap();
    guard.verify().await.unwrap();
    guard.unlock().await.unwrap();
    nothing_left(&server, &client).await;
}

#[tokio::test]
async fn lock_is_not_passed_on_late_in_its_lease() {
    let scene = Scene::open(|builder| builder.min_validity(millis(10))).await;
    let lock = scene.client.lock("k").lease(secs(2));
    let guard = lock.lock().await.unwrap();
    eventually("half of the lease has passed", async || {
        guard.remaining() < millis(900)
    })
    .await;
    let first = scene.server.connection().hgetall("k");
    let waiter = acquiring(&lock);
    eventually_waiting(&scene.client, 1).await;
    scene.proxy.hold_replies();
    let unlock = tokio::spawn(guard.unlock());
    let mut probe = scene.server.connection();
    eventually("somebody else has it there", async || {
        probe.hgetall("k") != first
    })
    .await;
    scene.proxy.release_replies();
    soon(unlock).await.unwrap().unwrap();
    let guard = soon(waiter).await.unwrap().unwrap();
    assert!(guard.remaining() > secs(1));
    guard.unlock().await.unwrap();
    nothing_left(&scene.server, &scene.client).await;
}

/// Several releases may be owed for such a hold, and each of them would release what the next holder has.
#[tokio::test]
async fn lock_that_was_held_twice_is_not_passed_on() {
    let (server, client) = start().await;
    let lock = client.lock("k");
    let outer = lock.lock().await.unwrap();
    outer.reenter().await.unwrap().unlock().await.unwrap();
    let record = server.connection().hgetall("k");
    let waiter = acquiring(&lock);
    eventually_waiting(&client, 1).await;
    outer.unlock().await.unwrap();
    let guard = soon(waiter).await.unwrap().unwrap();
    assert_ne!(server.connection().hgetall("k"), record);
    guard.unlock().await.unwrap();
    nothing_left(&server, &client).await;
}

#[tokio::test]
async fn whoever_has_it_now_holds_it_and_whoever_took_it_does_not() {
    let (server, client) = start().await;
    let lock = client.lock("k");
    let [first, second] = [stranger(&lock), stranger(&lock)];
    let guard = first.lock().await.unwrap();
    let record = server.connection().hgetall("k");
    let waiting = second.clone();
    let waiter = tokio::spawn(async move { waiting.lock().await });
    eventually_waiting(&client, 1).await;
    assert_eq!(first.hold_count().await.unwrap(), 1);
    assert!(!second.is_held().await.unwrap());
    guard.unlock().await.unwrap();
    let guard = soon(waiter).await.unwrap().unwrap();
    assert_eq!(server.connection().hgetall("k"), record, "it was passed on");
    assert!(!first.is_held().await.unwrap());
    assert_eq!(second.hold_count().await.unwrap(), 1);
    let forced = stranger(&lock).force_unlock().await.unwrap();
    assert!(forced && guard.is_lost());
    nothing_left(&server, &client).await;
}

#[tokio::test]
async fn reply_to_a_confirmation_that_is_lost_does_no_harm() {
    let scene = Scene::open(|builder| builder).await;
    let lock = scene.client.lock("k");
    for _ in 0..50 {
        let guard = lock.lock().await.unwrap();
        let waiter = acquiring(&lock);
        eventually_waiting(&scene.client, 1).await;
        eventually_heard(&scene.server, "k", 1).await;
        scene.proxy.cut_reply_to(sha("lock_confirm"));
        soon(guard.unlock()).await.unwrap();
        let guard = soon(waiter).await.unwrap().unwrap();
        assert!(!scene.proxy.cut_reply_armed(), "the server was asked");
        assert_eq!(scene.levels("k"), 1);
        guard.unlock().await.unwrap();
    }
    nothing_left(&scene.server, &scene.client).await;
}

#[tokio::test]
async fn confirmation_that_arrives_late_leaves_the_next_holder_alone() {
    let scene = Scene::open(|builder| builder).await;
    let lock = scene.client.lock("k");
    let guard = lock.lock().await.unwrap();
    let waiter = acquiring(&lock);
    eventually_waiting(&scene.client, 1).await;
    eventually_heard(&scene.server, "k", 1).await;
    let mut parcel = scene.proxy.hold_request(sha("lock_confirm"));
    let unlock = tokio::spawn(guard.unlock());
    soon(parcel.caught()).await;
    soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();
    soon(unlock).await.unwrap().unwrap();
    let next = scene.other.lock("k").lock().await.unwrap();
    soon(parcel.deliver()).await;
    next.verify().await.unwrap();
    assert_eq!(scene.levels("k"), 1);
    next.unlock().await.unwrap();
    nothing_left(&scene.server, &scene.client).await;
}

#[tokio::test]
async fn waiter_that_leaves_when_the_lock_was_passed_to_it_gives_it_to_the_next() {
    let scene = Scene::open(|builder| builder.command_timeout(secs(2))).await;
    let lock = scene.client.lock("k");
    for others in [0, 1] {
        let guard = lock.lock().await.unwrap();
        let leaving = acquiring(&lock);
        eventually_waiting(&scene.client, 1).await;
        eventually_heard(&scene.server, "k", 1).await;
        let staying: Vec<_> = (0..others).map(|_| acquiring(&lock)).collect();
        eventually_waiting(&scene.client, 1 + others).await;
        scene.proxy.hold_replies();
        let unlock = tokio::spawn(guard.unlock());
        eventually("the lock was passed on", async || leaving.is_finished()).await;
        // The finished task still contains the guard, which nobody has taken out.
        drop(leaving);
        scene.proxy.release_replies();
        soon(unlock).await.unwrap().unwrap();
        for waiter in staying {
            soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();
        }
        nothing_left(&scene.server, &scene.client).await;
    }
}

/// A future that shares its task with the releaser might not be polled until the release is done.
#[tokio::test]
async fn waiter_that_nobody_polls_holds_nobody_up() {
    let (server, client) = start().await;
    let elsewhere = support::client(&server).await;
    let lock = client.lock("k");
    for dropped in [false, true] {
        let guard = lock.lock().await.unwrap();
        let sleeping = stranger(&lock);
        let sleeping = begin(async move { sleeping.lock().await });
        if dropped {
            drop(guard);
        } else {
            soon(guard.unlock()).await.unwrap();
        }
        let other = soon(elsewhere.lock("k").lock()).await.unwrap();
        other.unlock().await.unwrap();
        soon(sleeping).await.unwrap().unlock().await.unwrap();
    }
    nothing_left(&server, &client).await;
}

/// A future in a `join!` or a `select!` might not be polled while another one of them works.
#[tokio::test]
async fn waiter_at_the_front_that_nobody_polls_leaves_the_lock_to_those_behind_it() {
    let (_server, client) = start().await;
    macro_rules! passes_the_first {
        ($lock:expr) => {
            let somebody = || $lock.clone().owned_by(&Owner::unique());
            let guard = somebody().lock().await.unwrap();
            let first = somebody();
            let first = begin(async move { first.lock().await });
            let second = somebody();
            let second = tokio::spawn(async move { second.lock().await });
            let both_wait = async || format!("{client:?}").contains("waiting: 2,");
            eventually("both wait", both_wait).await;
            guard.unlock().await.unwrap();
            soon(second).await.unwrap().unwrap().unlock().await.unwrap();
            // A caller that arrives after that gets the lock at once, although the first still waits.
            let third = soon(somebody().lock()).await.unwrap();
            third.unlock().await.unwrap();
            soon(first).await.unwrap().unlock().await.unwrap();
        };
    }
    passes_the_first!(client.lock("reentrant"));
    passes_the_first!(client.fenced_lock("fenced"));
    passes_the_first!(client.spin_lock("spin"));
    passes_the_first!(client.plain_lock("plain"));
    passes_the_first!(client.read_write_lock("rw").writer());
    eventually_idle(&client).await;
}

/// A lock must also not be lost for its whole lease to a future that has asked for it and is not polled when the server
/// grants it.
#[tokio::test]
async fn grant_that_nobody_polls_goes_to_those_behind_it() {
    let (_server, client) = start().await;
    macro_rules! is_passed {
        ($lock:expr) => {
            let somebody = || $lock.clone().owned_by(&Owner::unique());
            // From here on, the server knows the scripts, and one request is enough.
            somebody().lock().await.unwrap().unlock().await.unwrap();
            let first = somebody();
            let first = begin(async move { first.lock().await });
            let granted = async || $lock.is_locked().await.unwrap();
            eventually("the server has granted it", granted).await;
            let second = soon(somebody().lock()).await.unwrap();
            // Nothing of the first call is left, and nothing of it arrives later.
            assert_eq!($lock.holder().await.unwrap().unwrap().hold_count(), 1);
            let first = tokio::spawn(first);
            second.unlock().await.unwrap();
            soon(first).await.unwrap().unwrap().unlock().await.unwrap();
            assert!(!$lock.is_locked().await.unwrap());
        };
    }
    is_passed!(client.lock("reentrant"));
    is_passed!(client.fenced_lock("fenced"));
    is_passed!(client.fair_lock("fair"));
    is_passed!(client.spin_lock("spin"));
    is_passed!(client.plain_lock("plain"));
    is_passed!(client.read_write_lock("rw").writer());
    eventually_idle(&client).await;
}

/// A grant of a plain lock under its owner's value cannot be told from what that owner holds by another call, so it is
/// not released.
#[tokio::test]
async fn grant_that_nobody_polls_is_kept_where_it_cannot_be_told_from_another() {
    let (server, client) = start().await;
    let lock = client.plain_lock("k");
    let named = lock.clone().owned_by(&Owner::named("worker"));
    named.lock().await.unwrap().unlock().await.unwrap();
    let mut first = begin(named.lock());
    let mut probe = server.connection();
    eventually("the server has granted it", async || probe.exists("k")).await;
    let other = lock.owned_by(&Owner::unique());
    let mut second = begin(other.lock());
    assert!(timeout(secs(4), &mut second).await.is_err(), "it is held");
    let guard = timeout(secs(1), &mut first).await.expect("it was granted");
    guard.unwrap().unlock().await.unwrap();
    soon(second).await.unwrap().unlock().await.unwrap();
}

/// The attempt of that call has been released by then. The call asks for the lock once more when it is polled, since
/// the server did not know the script.
#[tokio::test]
async fn call_that_was_passed_is_served_when_it_is_polled_again() {
    let (server, client) = start().await;
    let lock = client.lock("k");
    let first = stranger(&lock);
    let first = begin(async move { first.lock().await });
    soon(stranger(&lock).lock())
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    soon(first).await.unwrap().unlock().await.unwrap();
    assert!(!server.connection().exists("k"));
    eventually_idle(&client).await;
}

#[tokio::test]
async fn call_that_was_passed_before_the_server_came_back_is_served_too() {
    let scene = Scene::open(|builder| builder).await;
    let lock = scene.client.lock("k");
    lock.lock().await.unwrap().unlock().await.unwrap();
    scene.server.kill();
    eventually("there is no connection", async || {
        lock.try_lock().await.is_err()
    })
    .await;
    let first = stranger(&lock);
    let first = begin(async move { first.lock().await });
    let second = acquiring(&lock);
    let both_wait = async || format!("{:?}", scene.client).contains("waiting: 2,");
    eventually("both wait", both_wait).await;
    scene.server.restart();
    scene.load_scripts().await;
    soon(second).await.unwrap().unwrap().unlock().await.unwrap();
    soon(first).await.unwrap().unlock().await.unwrap();
    assert!(!scene.server.connection().exists("k"));
}

/// A waker of another executor may do anything when it is dropped.
#[tokio::test(flavor = "multi_thread")]
async fn waker_that_looks_at_the_client_when_it_is_dropped_does_no_harm() {
    struct Looks(Client);
    impl Wake for Looks {
        fn wake(self: Arc<Self>) {}
    }
    impl Drop for Looks {
        fn drop(&mut self) {
            assert!(format!("{:?}", self.0).contains("waiting: "));
        }
    }
    let (_server, client) = start().await;
    let lock = client.lock("k");
    let guard = lock.lock().await.unwrap();
    let [one, two] = [(); 2].map(|()| stranger(&lock));
    let _one = begin(async move { one.lock().await });
    for leaves in [true, false] {
        let (two, client) = (two.clone(), client.clone());
        let (tell, polled) = oneshot::channel();
        thread::spawn(move || {
            let mut waiting = pin!(two.lock());
            let waker = Waker::from(Arc::new(Looks(client)));
            let mut context = Context::from_waker(&waker);
            assert!(waiting.as_mut().poll(&mut context).is_pending());
            drop(waker);
            if !leaves {
                let mut context = Context::from_waker(Waker::noop());
                assert!(waiting.as_mut().poll(&mut context).is_pending());
            }
            // Drops the future before the signal, so that nothing is left of it by then.
            waiting.set(two.lock());
            tell.send(()).unwrap();
        });
        soon(polled).await.unwrap();
    }
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn record_that_was_gone_is_told_to_everyone_who_passed_it_on_and_to_the_holder() {
    let (server, client) = start().await;
    let lock = client.lock("k");
    // The holder may also learn it by asking for itself, but not each time.
    for taken in [false, true].repeat(4) {
        let guard = lock.lock().await.unwrap();
        let mut waiters: Vec<_> = (0..2).map(|_| acquiring(&lock)).collect();
        eventually_waiting(&client, 2).await;
        eventually_heard(&server, "k", 1).await;
        let mut foreign = server.connection();
        foreign.command(&["DEL", "k"]);
        if taken {
            foreign.command(&["HSET", "k", "somebody:1", "1"]);
            foreign.command(&["PEXPIRE", "k", "60000"]);
        }
        assert_eq!(kind(soon(guard.unlock()).await), ErrorKind::LeaseLost);
        let guard = first_of(&mut waiters).await.unwrap();
        // The loss is reported long before the lease would be renewed.
        let told = timeout(secs(2), guard.lost()).await;
        assert!(told.is_ok(), "it was not told");
        assert_eq!(kind(guard.unlock().await), ErrorKind::LeaseLost);
        if taken {
            assert!(!waiters[0].is_finished());
            foreign.command(&["DEL", "k"]);
            foreign.command(&["PUBLISH", "redisson_lock__channel:{k}", "0"]);
        }
        let next = first_of(&mut waiters).await.unwrap();
        next.unlock().await.unwrap();
        nothing_left(&server, &client).await;
    }
}

#[tokio::test]
async fn confirmation_that_goes_unanswered_is_told_and_the_holder_releases() {
    let scene = Scene::open(|builder| builder.command_timeout(millis(300))).await;
    let lock = scene.client.lock("k");
    let guard = lock.lock().await.unwrap();
    let [second, third] = [(); 2].map(|()| acquiring(&lock));
    eventually_waiting(&scene.client, 2).await;
    scene.proxy.hold_replies();
    assert_eq!(kind(soon(guard.unlock()).await), ErrorKind::Timeout);
    scene.proxy.release_replies();
    let mut waiters = vec![second, third];
    let guard = first_of(&mut waiters).await.unwrap();
    guard.verify().await.unwrap();
    // This release goes through the server: a request is unanswered, and a copy of it may arrive late.
    let record = scene.server.connection().hgetall("k");
    soon(guard.unlock()).await.unwrap();
    let guard = first_of(&mut waiters).await.unwrap();
    assert_ne!(scene.server.connection().hgetall("k"), record);
    guard.unlock().await.unwrap();
    nothing_left(&scene.server, &scene.client).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn force_unlock_in_the_middle_of_a_streak_is_told_before_the_next_gets_in() {
    let (server, client) = start().await;
    let operator = support::client(&server).await;
    let inside = Arc::new(Mutex::new(BTreeMap::new()));
    let tasks: Vec<_> = (0..8)
        .map(|task| {
            let (lock, inside) = (stranger(&client.lock("k")), inside.clone());
            tokio::spawn(async move {
                let mut lost = 0;
                for _ in 0..100 {
                    let guard = lock.lock().await.unwrap();
                    {
                        let mut inside = inside.lock().unwrap();
                        let others_are_lost =
                            inside.values().all(|other: &LockGuard| other.is_lost());
                        assert!(guard.is_lost() || others_are_lost);
                        inside.insert(task, guard);
                    }
                    tokio::task::yield_now().await;
                    let guard = inside.lock().unwrap().remove(&task).unwrap();
                    if let Err(error) = guard.unlock().await {
                        assert_eq!(error.kind(), ErrorKind::LeaseLost);
                        lost += 1;
                    }
                }
                lost
            })
        })
        .collect();
    let mut forced = 0;
    while tasks.iter().any(|task| !task.is_finished()) {
        forced += u32::from(operator.lock("k").force_unlock().await.unwrap());
        tokio::time::sleep(millis(2)).await;
    }
    let mut lost = 0;
    for task in tasks {
        lost += task.await.unwrap();
    }
    println!("freed by force {forced} times, {lost} sections cannot be vouched for");
    assert!(forced > 0 && lost > 0);
    nothing_left(&server, &client).await;
}

#[tokio::test]
async fn owner_named_in_two_processes_is_not_moved_away_from_itself() {
    let (server, here, there) = start_two().await;
    let owner = Owner::named("req-7");
    let (ours, theirs) = (
        here.lock("k").owned_by(&owner),
        there.lock("k").owned_by(&owner),
    );
    let (first, second) = (ours.lock().await.unwrap(), theirs.lock().await.unwrap());
    let waiter = acquiring(&here.lock("k"));
    eventually_heard(&server, "k", 1).await;
    soon(first.unlock()).await.unwrap();
    assert!(!waiter.is_finished(), "the other process holds it still");
    second.verify().await.unwrap();
    second.unlock().await.unwrap();
    soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();
    nothing_left(&server, &here).await;
}
