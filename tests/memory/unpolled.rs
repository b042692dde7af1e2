//! Calls that nobody polls for a while, by a clock that a test moves.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Wake, Waker};

use redlatch::config::ReleaseBy;
use redlatch::{
    Client, DistributedLock, Error, ErrorKind, LockGuard, MultiLock, NamedLock, Owner, RedLock,
    ReentrantLock,
};
use tokio::time::{Instant, sleep, timeout};

use crate::support::probe::{begin, kind, millis, secs, stranger};
use crate::{three, two};

/// The calls that bring a level of a lock that is held here.
const CALLS: [&str; 3] = ["lock", "adopt", "reenter"];

/// Begins a call, and keeps what it returns.
fn begun<'a>(
    call: &str,
    lock: &'a ReentrantLock,
    guard: &'a LockGuard,
) -> Pin<Box<dyn Future<Output = Result<Option<LockGuard>, Error>> + 'a>> {
    match call {
        "lock" => begin(async { lock.lock().await.map(Some) }),
        "adopt" => begin(lock.adopt()),
        _ => begin(async { guard.reenter().await.map(Some) }),
    }
}

/// A lock that is held here, with its guard. Nobody renews it. A level of its owner was left elsewhere.
async fn held(client: &Client, other: &Client, name: &str) -> (ReentrantLock, LockGuard) {
    let owner = Owner::named("req-7");
    let [lock, there] = [client, other].map(|client| {
        let lock = client.lock(name).owned_by(&owner);
        lock.lease(secs(10))
    });
    let guard = lock.lock().await.unwrap();
    drop(there.lock().await.unwrap().detach());
    (lock, guard)
}

#[tokio::test(start_paused = true)]
async fn level_of_a_hold_that_was_lost_before_its_call_was_polled_is_handed_to_nobody() {
    for call in CALLS {
        let (server, client, other) = two().await;
        let (lock, guard) = held(&client, &other, call).await;
        let unpolled = begun(call, &lock, &guard);
        sleep(secs(1)).await;
        server.restart_empty();
        guard.lost().await;
        match unpolled.await {
            // It is taken anew.
            Ok(level) => assert!(!level.expect(call).is_lost(), "{call}"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::LeaseLost, "{call}");
                assert_ne!(call, "lock");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn level_of_which_too_little_is_left_when_its_call_is_polled_is_handed_to_nobody() {
    for call in CALLS {
        let (_server, client, other) = two().await;
        let (lock, guard) = held(&client, &other, call).await;
        let unpolled = begun(call, &lock, &guard);
        sleep(secs(8)).await;
        match unpolled.await {
            Ok(level) => {
                let left = level.expect(call).remaining();
                assert!(left >= secs(5), "{call}: {left:?}");
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::LeaseLost, "{call}"),
        }
        assert!(guard.remaining() > secs(0), "{call}");
    }
}

#[tokio::test(start_paused = true)]
async fn calls_of_one_owner_that_asked_at_the_same_time_do_not_lose_each_others_levels() {
    let (_server, client, _other) = two().await;
    let both = client.read_write_lock("job");
    let lock = both.owned_by(&Owner::named("req-7")).reader();
    for single in [false, true] {
        let unpolled = begin(lock.lock());
        let polled = match single {
            true => lock.try_lock().await.unwrap().expect("shared"),
            false => lock.lock().await.unwrap(),
        };
        let unpolled = unpolled.await.unwrap();
        assert!(!polled.is_lost() && !unpolled.is_lost());
        sleep(secs(60)).await;
        assert_eq!(lock.hold_count().await.unwrap(), 2);
        polled.unlock().await.unwrap();
        unpolled.unlock().await.unwrap();
        assert!(!lock.is_locked().await.unwrap());
    }
}

/// One call of an owner adopts a level from elsewhere, and another one locks.
async fn adopts_beside<L>(here: L, there: L)
where
    L: NamedLock + DistributedLock<Guard = LockGuard>,
{
    for polls in 1.. {
        drop(there.lock().await.unwrap().detach());
        let mut adopting = Box::pin(here.adopt());
        if is_ready(&mut adopting, polls).await {
            return;
        }
        let locked = here.lock().await.unwrap();
        let adopted = adopting.await.unwrap().expect("a level was left");
        assert!(!locked.is_lost() && !adopted.is_lost(), "{polls}");
        sleep(secs(60)).await;
        assert_eq!(here.hold_count().await.unwrap(), 2, "{polls}");
        adopted.unlock().await.unwrap();
        locked.unlock().await.unwrap();
        assert!(!here.is_locked().await.unwrap(), "{polls}");
    }
}

#[tokio::test(start_paused = true)]
async fn adopted_level_takes_none_of_its_owner_away() {
    let owner = Owner::named("req-7");
    let (_server, client, other) = two().await;
    let both = |name| [&client, &other].map(|client| client.read_write_lock(name).owned_by(&owner));
    let [here, there] = both("reads");
    adopts_beside(here.reader(), there.reader()).await;
    let [here, there] = both("writes");
    adopts_beside(here.writer(), there.writer()).await;
}

#[tokio::test(start_paused = true)]
async fn grant_that_lay_unread_is_lost_at_once_if_the_lock_was_released_meanwhile() {
    for by in ["force", "handle"] {
        let (_server, client, other) = two().await;
        // From here on the client listens, so that nothing but its age has a grant checked.
        let held = client.lock("held for longer").lock().await.unwrap();
        sleep(secs(1)).await;
        let both = client.read_write_lock("job");
        let lock = both.owned_by(&Owner::named("req-7")).writer();
        // From then on the server has the script, and one poll is enough for a grant.
        lock.lock().await.unwrap().unlock().await.unwrap();
        let unpolled = begin(lock.lock());
        sleep(secs(2)).await;
        match by {
            "force" => assert!(lock.force_unlock().await.unwrap()),
            _ => lock.unlock().await.unwrap(),
        }
        let others = stranger(&other.read_write_lock("job").writer());
        let theirs = others.lock().await.unwrap();
        let stale = unpolled.await.unwrap();
        timeout(millis(100), stale.lost()).await.expect(by);
        theirs.unlock().await.unwrap();
        held.unlock().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn release_that_nobody_polls_answers_those_that_passed_the_lock_on() {
    let (_server, client, _other) = two().await;
    let [first, second] = [(); 2].map(|()| stranger(&client.lock("job")));
    let guard = first.lock().await.unwrap();
    let mut next = begin(second.lock());
    sleep(secs(1)).await;
    let passed_on = begin(guard.unlock());
    let guard = next.as_mut().await.unwrap();
    let unpolled = begin(guard.unlock());
    let asked = Instant::now();
    passed_on.await.unwrap();
    assert_eq!(asked.elapsed(), secs(0));
    unpolled.await.unwrap();
}

/// Others have each of these locks at once, though nobody polls what gives them back.
async fn goes_on_beside<L>(release: impl Future<Output = Result<(), Error>>, locks: &[L])
where
    L: NamedLock + DistributedLock<Guard = LockGuard>,
{
    let unpolled = begin(release);
    let asked = Instant::now();
    for lock in locks {
        let lock = stranger(lock);
        let next = timeout(secs(10), lock.lock()).await.expect("given back");
        next.unwrap().unlock().await.unwrap();
    }
    assert!(asked.elapsed() < millis(100), "{:?}", asked.elapsed());
    unpolled.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn release_of_a_set_that_nobody_polls_keeps_no_later_call_waiting() {
    let (_server, client, _other) = two().await;
    let locks = ["a", "b"].map(|name| client.lock(name));
    let guard = MultiLock::new(locks.clone()).lock().await.unwrap();
    goes_on_beside(guard.unlock(), &locks).await;
}

#[tokio::test(start_paused = true)]
async fn release_of_a_plain_lock_that_nobody_polls_is_carried_out() {
    let (_server, client, _other) = two().await;
    for by in [ReleaseBy::Script, ReleaseBy::Transaction] {
        let lock = client.plain_lock("job").release_by(by);
        let guard = lock.lock().await.unwrap();
        goes_on_beside(guard.unlock(), &[lock]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn release_that_fails_while_nobody_polls_it_is_sent_again() {
    for by in [ReleaseBy::Script, ReleaseBy::Transaction] {
        let (server, client, other) = two().await;
        let guard = client
            .plain_lock("job")
            .release_by(by)
            .lock()
            .await
            .unwrap();
        server.stop();
        // The client learns of it.
        sleep(millis(100)).await;
        let unlocking = begin(guard.unlock());
        sleep(secs(3)).await;
        server.start();
        let next = other.plain_lock("job").try_lock_for(secs(10)).await;
        next.unwrap().expect("released").unlock().await.unwrap();
        drop(unlocking);
    }
}

#[tokio::test(start_paused = true)]
async fn level_costs_one_timeout_at_a_silent_server_though_others_are_before_it() {
    for (call, others) in CALLS.into_iter().flat_map(|call| [(call, 1), (call, 2)]) {
        let (server, client, other) = two().await;
        let (lock, guard) = held(&client, &other, call).await;
        server.stop_answering();
        let mut before = vec![begin(guard.extend(secs(20)))];
        sleep(millis(600)).await;
        before.resize_with(others, || begin(guard.extend(secs(20))));
        let asked = Instant::now();
        let level = match call {
            "lock" => lock.try_lock().await,
            "adopt" => lock.adopt().await,
            _ => guard.reenter().await.map(Some),
        };
        let error = level.expect_err(call);
        assert_ne!(error.kind(), ErrorKind::LeaseLost, "{error}");
        let took = asked.elapsed();
        assert!(took <= secs(1), "{call} behind {others}: {took:?}");
        drop(before);
    }
}

/// Polls a future so many times. Returns whether it is ready by then.
async fn is_ready<F: Future>(future: &mut Pin<Box<F>>, polls: usize) -> bool {
    for _ in 0..polls {
        let mut context = Context::from_waker(Waker::noop());
        if future.as_mut().poll(&mut context).is_ready() {
            return true;
        }
        sleep(millis(1)).await;
    }
    false
}

#[tokio::test(start_paused = true)]
async fn grants_that_are_polled_behind_their_lease_displace_nobody() {
    for polls in 1.. {
        let clients = three(secs(30)).await;
        let red = |lease| {
            let locks = clients.iter().map(|client| client.lock("job").lease(lease));
            RedLock::new(locks).owned_by(&Owner::unique())
        };
        let (brief, long) = (red(millis(500)), red(secs(10)));
        let mut unpolled = Box::pin(brief.try_lock_for(secs(20)));
        if is_ready(&mut unpolled, polls).await {
            return;
        }
        sleep(secs(1)).await;
        let guard = long.lock().await.unwrap();
        is_ready(&mut unpolled, 3).await;
        assert!(!guard.is_lost(), "{polls}");
        guard.unlock().await.unwrap();
    }
}

/// No other call takes the place of one that stands in a queue on the server.
#[tokio::test(start_paused = true)]
async fn turn_in_a_queue_that_is_polled_behind_its_lease_displaces_nobody() {
    let (_server, client, _other) = two().await;
    let somebody = |lease| stranger(&client.fair_lock("job")).lease(lease);
    let (brief, long) = (somebody(millis(500)), somebody(secs(10)));
    let guard = long.lock().await.unwrap();
    let mut unpolled = begin(brief.lock());
    sleep(millis(10)).await;
    assert!(!is_ready(&mut unpolled, 3).await);
    let next = tokio::spawn(async move { stranger(&long).lock().await });
    sleep(millis(10)).await;
    guard.unlock().await.unwrap();
    let guard = next.await.unwrap().unwrap();
    is_ready(&mut unpolled, 3).await;
    assert!(!guard.is_lost());
    guard.unlock().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn level_that_nobody_polls_keeps_the_lock_from_nobody() {
    for call in ["lock", "reenter"] {
        let (_server, client, other) = two().await;
        let lock = client.lock("job").owned_by(&Owner::unique());
        let guard = lock.lock().await.unwrap();
        let unpolled = begun(call, &lock, &guard);
        sleep(secs(1)).await;
        lock.unlock().await.unwrap();
        let next = timeout(secs(10), other.lock("job").lock()).await;
        next.expect(call).unwrap().unlock().await.unwrap();
        drop(unpolled);
    }
}

#[tokio::test(start_paused = true)]
async fn set_that_was_granted_at_once_and_is_not_polled_is_left_to_others() {
    let (_server, client, other) = two().await;
    let set = MultiLock::new(["a", "b"].map(|name| client.lock(name)));
    set.lock().await.unwrap().unlock().await.unwrap();
    let mut unpolled = begin(set.lock());
    sleep(secs(1)).await;
    for name in ["a", "b"] {
        let next = timeout(secs(10), other.lock(name).lock()).await;
        next.expect(name).unwrap().unlock().await.unwrap();
    }
    let again = timeout(secs(10), &mut unpolled)
        .await
        .expect("it begins again");
    again.unwrap().unlock().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn client_that_closes_gives_back_what_was_granted_to_a_call_that_nobody_polls() {
    let (_server, client, other) = two().await;
    let lock = client.lock("job");
    lock.lock().await.unwrap().unlock().await.unwrap();
    let unpolled = begin(lock.lock());
    sleep(secs(1)).await;
    assert!(other.lock("job").try_lock().await.unwrap().is_none());
    client.close().await;
    assert!(other.lock("job").try_lock().await.unwrap().is_some());
    assert_eq!(kind(unpolled.await), ErrorKind::Closed);
}

#[tokio::test(start_paused = true)]
async fn place_that_a_request_behind_the_grant_of_another_call_brings_is_given_up() {
    let (server, client, other) = two().await;
    let guard = other.lock("job").lock().await.unwrap();
    let [first, second] = [(); 2].map(|()| stranger(&client.lock("job")));
    let mut unpolled = begin(first.lock());
    sleep(secs(10)).await;
    let mut next = Box::pin(second.lock());
    let held = timeout(secs(10), &mut next).await;
    held.expect_err("held, and both wait at the front");
    guard.unlock().await.unwrap();
    assert!(!is_ready(&mut next, 1).await);
    assert!(!is_ready(&mut unpolled, 1).await);
    drop(unpolled);
    next.await.unwrap().unlock().await.unwrap();
    let line = server.simulated().stored("redlatch_turns:{job}");
    assert!(line.is_none(), "{:?}", line.map(|line| line.parts));
}

#[tokio::test(start_paused = true)]
async fn grant_that_was_released_by_force_before_its_call_was_polled_is_lost_at_once() {
    let (_server, client, other) = two().await;
    let held = client.lock("held for longer").lock().await.unwrap();
    // From here on the client is told of releases by force.
    sleep(secs(1)).await;
    let lock = client.lock("job");
    let unpolled = begin(lock.lock());
    sleep(millis(100)).await;
    assert!(other.lock("job").force_unlock().await.unwrap());
    sleep(millis(100)).await;
    let guard = unpolled.await.unwrap();
    let lost = timeout(millis(100), guard.lost()).await;
    lost.expect("told long before the next renewal");
    held.unlock().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn level_that_is_asked_for_just_before_a_release_that_nobody_polls_is_a_new_hold() {
    let (_server, client, _other) = two().await;
    let lock = client.lock("job").owned_by(&Owner::named("req-7"));
    let guard = lock.lock().await.unwrap();
    // Its task begins behind the release.
    let level = begin(lock.try_lock());
    let unpolled = begin(guard.unlock());
    let level = level.await.unwrap().expect("a free lock");
    level.unlock().await.unwrap();
    unpolled.await.unwrap();
}

/// A waker that looks at the client, as one may that polls right away.
struct Looks(Client, AtomicUsize);

impl Wake for Looks {
    fn wake(self: Arc<Self>) {
        let shown = format!("{:?}", self.0);
        self.1.fetch_add(shown.len(), Relaxed);
    }
}

#[tokio::test(start_paused = true)]
async fn waiter_in_a_queue_on_the_server_is_woken_with_nothing_locked() {
    let (_server, client, _other) = two().await;
    let [first, second] = [(); 2].map(|()| stranger(&client.fair_lock("job")));
    let guard = first.lock().await.unwrap();
    let looks = Arc::new(Looks(client, AtomicUsize::new(0)));
    let waker = Waker::from(looks.clone());
    let mut next = Box::pin(second.lock());
    for _ in 0..10 {
        let polled = next.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        sleep(millis(1)).await;
    }
    let before = looks.1.load(Relaxed);
    guard.unlock().await.unwrap();
    sleep(millis(10)).await;
    assert_ne!(looks.1.load(Relaxed), before, "woken");
    next.await.unwrap().unlock().await.unwrap();
}
