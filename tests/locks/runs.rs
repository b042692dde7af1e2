//! Futures that run under a lock: who waits for it, and what a call returns.

use std::fmt::Debug;
use std::future::{pending, ready};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use crate::support::probe::{eventually_free, kind, millis, secs, soon};
use crate::support::{builder, start, start_two};
use futures_util::StreamExt;
use futures_util::future::LocalBoxFuture;
use futures_util::stream::iter;
use redlatch::{
    Client, DistributedGuard, DistributedLock, DynLock, Error, ErrorKind, MultiLock, Owner, RedLock,
};
use redlatch_testkit::{Connection, Server};

/// What the futures here return in place of an error of the lock.
#[derive(Debug)]
enum Failure {
    Own(u32),
    Lock(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Lock(error)
    }
}

/// Returns the error of the lock that a call returned.
#[track_caller]
fn of_lock<T: Debug>(ran: Result<T, Failure>) -> Error {
    match ran {
        Err(Failure::Lock(error)) => error,
        other => panic!("not an error of the lock: {other:?}"),
    }
}

async fn shipped() -> Result<&'static str, Failure> {
    Ok("shipped")
}

/// Counts its polls, so that a future that was never polled is seen.
async fn counted(polls: &AtomicUsize) -> Result<(), Failure> {
    polls.fetch_add(1, Ordering::SeqCst);
    Ok(())
}

/// Calls the inherent methods of a lock, which the trait's would do the same as.
macro_rules! answers {
    ($lock:expr, $named:expr) => {{
        let lock = $lock;
        let polls = AtomicUsize::new(0);
        let held = lock
            .clone()
            .owned_by(&Owner::unique())
            .lock()
            .await
            .unwrap();
        let none = soon(lock.try_run(counted(&polls))).await.unwrap();
        assert!(none.is_none(), "{lock:?}");
        let none = soon(lock.try_run_for(millis(20), counted(&polls))).await;
        assert!(none.unwrap().is_none(), "{lock:?}");
        let busy = of_lock(soon(lock.run_for(millis(20), counted(&polls))).await);
        assert_eq!(busy.kind(), ErrorKind::Busy);
        assert!(busy.to_string().starts_with($named), "{busy}");
        assert_eq!(polls.load(Ordering::SeqCst), 0, "{lock:?}");
        // Both wait for as long as they were told.
        let (waited, also, freed) = tokio::join!(
            soon(lock.try_run_for(secs(60), shipped())),
            soon(lock.run_for(secs(60), shipped())),
            held.unlock(),
        );
        freed.unwrap();
        assert_eq!(
            (waited.unwrap(), also.unwrap()),
            (Some("shipped"), "shipped")
        );
        assert_eq!(lock.try_run(shipped()).await.unwrap(), Some("shipped"));
        let own = lock
            .try_run(async { Ok::<_, Error>(Owner::current()) })
            .await;
        assert_ne!(own.unwrap(), Some(Owner::current()), "{lock:?}");
        // An error of the future is that of the call, and the lock is free.
        let failed = lock
            .run_for(secs(1), ready(Err::<(), _>(Failure::Own(7))))
            .await;
        assert!(matches!(failed, Err(Failure::Own(7))), "{failed:?}");
        assert_eq!(lock.try_run(shipped()).await.unwrap(), Some("shipped"));
    }};
}

#[tokio::test]
async fn busy_is_none_or_an_error_or_waited_for_alike_for_every_lock() {
    let server = Server::start();
    let builder = builder(server.url()).trust_fresh_servers(true);
    let client = builder.build().await.unwrap();
    answers!(client.lock("lock"), "\"lock\": busy for 20ms");
    answers!(client.fenced_lock("fenced"), "\"fenced\": ");
    answers!(client.fair_lock("fair"), "\"fair\": ");
    answers!(client.spin_lock("spin"), "\"spin\": ");
    answers!(client.plain_lock("plain"), "\"plain\": ");
    answers!(client.read_write_lock("rw").writer(), "\"rw\": ");
    let both = || MultiLock::new([client.lock("a"), client.lock("b")]);
    answers!(both(), "\"a\", \"b\": ");
    answers!(RedLock::new([client.lock("red")]), "\"red\": ");
    // A reader waits for writers only.
    let lock = client.read_write_lock("rw");
    let written = lock.write().await.unwrap();
    let reader = lock.reader().owned_by(&Owner::unique());
    assert_eq!(reader.try_run(shipped()).await.unwrap(), None);
    let busy = of_lock(reader.run_for(millis(20), shipped()).await);
    assert_eq!(busy.kind(), ErrorKind::Busy);
    written.unlock().await.unwrap();
    let within = async { reader.try_run(shipped()).await };
    assert_eq!(reader.try_run(within).await.unwrap(), Some(Some("shipped")));
}

/// The methods of the trait, by which a test may replace the lock.
async fn by_the_trait(lock: impl DistributedLock) {
    assert_eq!(lock.run(async { 7 }).await.unwrap(), 7);
    assert_eq!(lock.try_run(shipped()).await.unwrap(), Some("shipped"));
    let within = lock.try_run_for(millis(20), shipped()).await;
    assert_eq!(within.unwrap(), Some("shipped"));
    assert_eq!(
        lock.run_for(millis(20), shipped()).await.unwrap(),
        "shipped"
    );
    let guard = lock.lock().await.unwrap();
    assert!(guard.held_by().is_some());
    // In a task of its own, as a function over all kinds spawns it.
    let apart = tokio::spawn(async move { lock.try_run(shipped()).await });
    assert_eq!(apart.await.unwrap().unwrap(), None);
}

#[tokio::test]
async fn trait_runs_a_future_as_the_lock_itself_does() {
    let (_server, client) = start().await;
    by_the_trait(client.lock("a")).await;
    by_the_trait(client.fair_lock("b")).await;
    by_the_trait(MultiLock::new([client.lock("c"), client.lock("d")])).await;
    let held = client.lock("e").lock().await.unwrap();
    let lock = client.lock("e").owned_by(&Owner::unique());
    let busy = DistributedLock::run_for(&lock, millis(20), shipped()).await;
    assert!(of_lock(busy).to_string().starts_with("\"e\": "));
    held.unlock().await.unwrap();
}

#[tokio::test]
async fn branches_of_one_task_find_each_other_busy() {
    let (_server, client) = start().await;
    let lock = client.lock("k");
    let (inside, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let section = async || {
        let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
        most.fetch_max(now, Ordering::SeqCst);
        tokio::time::sleep(millis(20)).await;
        inside.fetch_sub(1, Ordering::SeqCst);
        Ok::<_, Error>(())
    };
    let each = async |_| lock.try_run(section()).await.unwrap().is_some();
    let ran = iter(0..8).map(each).buffer_unordered(8).collect::<Vec<_>>();
    let ran = soon(ran).await.into_iter().filter(|ran| *ran).count();
    assert_eq!((ran, most.into_inner()), (1, 1));
    // What is held around the call is acquired again, and not found busy.
    let held = lock.lock().await.unwrap();
    let again = lock
        .try_run(async { Ok::<_, Error>(Owner::current()) })
        .await;
    assert_eq!(again.unwrap(), Some(held.owner().clone()));
    let named = Owner::named("req-7");
    let other = client.lock("other").owned_by(&named);
    let acts = other.run_for(secs(1), async { Ok::<_, Error>(Owner::current()) });
    assert_eq!(acts.await.unwrap(), named);
    held.unlock().await.unwrap();
}

#[tokio::test]
async fn future_is_dropped_when_the_lock_is_lost_and_its_own_error_goes_before_that_of_the_release()
{
    let (server, client, other) = start_two().await;
    let lock = client.lock("k");
    let inside = async |then: Result<u32, Failure>| {
        other.lock("k").force_unlock().await?;
        then
    };
    // The loss is noticed by the release only.
    let failed = lock.try_run(inside(Err(Failure::Own(7)))).await;
    assert!(matches!(failed, Err(Failure::Own(7))), "{failed:?}");
    let lost = of_lock(lock.try_run(inside(Ok(7))).await);
    assert_eq!(lost.kind(), ErrorKind::LeaseLost);
    // Here it ends the future.
    let dropped = lock.run_for(secs(1), async {
        client.lock("k").force_unlock().await?;
        pending::<Result<(), Failure>>().await
    });
    let lost = of_lock(soon(dropped).await);
    assert_eq!(lost.kind(), ErrorKind::LeaseLost);
    assert!(lost.to_string().contains("\"k\""), "{lost}");
    // A call that is dropped gives the lock back.
    let held = lock.try_run(pending::<Result<(), Failure>>());
    assert!(tokio::time::timeout(millis(20), held).await.is_err());
    eventually_free(&server, "k").await;
    // A server that is away is an error, and not busy.
    server.kill();
    let away = of_lock(soon(lock.try_run(shipped())).await);
    assert!(matches!(
        away.kind(),
        ErrorKind::Backend | ErrorKind::Timeout
    ));
    let quick: Client = other;
    assert_ne!(
        kind(soon(quick.lock("k").try_run(async { Ok::<_, Error>(()) })).await),
        ErrorKind::Busy
    );
}

/// A future that still has something once it has ended, as a timeout has its work. When it is dropped, it notes whether
/// somebody has the lock.
struct Work {
    ends: bool,
    probe: Connection,
    held: Arc<Mutex<Vec<bool>>>,
}

impl Future for Work {
    type Output = Result<(), Error>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        match self.ends {
            true => Poll::Ready(Ok(())),
            false => Poll::Pending,
        }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let is_held = self.probe.exists("k");
        self.held.lock().unwrap().push(is_held);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn future_is_dropped_while_the_lock_is_held() {
    let (server, client) = start().await;
    let held = Arc::new(Mutex::new(Vec::new()));
    let work = |ends| Work {
        ends,
        probe: server.connection(),
        held: held.clone(),
    };
    let lock = client.lock("k");
    let any: Arc<dyn DynLock> = Arc::new(lock.clone());
    for ends in [true, false] {
        // Those that do not end are dropped, with their calls.
        let at_most = if ends { secs(60) } else { millis(50) };
        let calls: [LocalBoxFuture<'_, Result<(), Error>>; 9] = [
            Box::pin(async { lock.run(work(ends)).await.map(drop) }),
            Box::pin(async { lock.run_for(secs(60), work(ends)).await }),
            Box::pin(async { lock.try_run(work(ends)).await.map(drop) }),
            Box::pin(async { lock.try_run_for(secs(60), work(ends)).await.map(drop) }),
            Box::pin(async { DistributedLock::run(&lock, work(ends)).await.map(drop) }),
            Box::pin(async { DistributedLock::run_for(&lock, secs(60), work(ends)).await }),
            Box::pin(async { any.run(work(ends)).await.map(drop) }),
            Box::pin(async { any.run_for(secs(60), work(ends)).await }),
            Box::pin(async { any.try_run_for(secs(60), work(ends)).await.map(drop) }),
        ];
        for call in calls {
            let ended = tokio::time::timeout(at_most, call).await;
            assert_eq!(ended.is_ok(), ends);
            eventually_free(&server, "k").await;
        }
    }
    assert_eq!(*held.lock().unwrap(), [true; 18]);
}
