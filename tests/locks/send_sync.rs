//! Where the public types and the futures of their calls can be moved, and how large those futures are.
#![allow(dead_code, reason = "compiling is the test")]

use std::fmt::{Debug, Display};
use std::hash::Hash;
use std::time::Duration;

use redlatch::config::{Prefer, ReleaseBy};
use redlatch::semaphore::{
    ExpirablePermit, ExpirableSemaphore, PermitId, Semaphore, SemaphorePermit,
};
use redlatch::{
    Client, ClientBuilder, Error, ErrorKind, FairLock, Holder, Latch, Lease, LockGuard, Member,
    MultiGuard, MultiLock, Owner, PlainLock, ReadLock, ReadWriteLock, RedGuard, RedLock,
    ReentrantLock, WriteLock,
};

fn everything<T: Send + Sync + Unpin + Debug + 'static>() {}
fn cloned<T: Clone>() {}
fn compared<T: Eq>() {}
fn hashed<T: Hash>() {}
fn shown<T: Display>() {}
fn copied<T: Copy>() {}
fn an_error<T: std::error::Error>() {}

/// Gives `Asked` the method `is_clone` unless the type is `Clone`: then the inherent method takes precedence.
trait NotClone {
    fn is_clone(&self) -> bool {
        false
    }
}
struct Asked<T>(std::marker::PhantomData<T>);
impl<T> NotClone for Asked<T> {}
impl<T: Clone> Asked<T> {
    fn is_clone(&self) -> bool {
        true
    }
}

#[test]
fn public_types_move_freely() {
    everything::<Client>();
    everything::<ClientBuilder>();
    everything::<Error>();
    everything::<ErrorKind>();
    everything::<ExpirablePermit>();
    everything::<ExpirableSemaphore>();
    everything::<FairLock>();
    everything::<Holder>();
    everything::<Latch>();
    everything::<Lease>();
    everything::<LockGuard>();
    everything::<Member>();
    everything::<MultiGuard>();
    everything::<MultiLock>();
    everything::<Owner>();
    everything::<PermitId>();
    everything::<PlainLock>();
    everything::<Prefer>();
    everything::<ReadLock>();
    everything::<ReadWriteLock>();
    everything::<RedGuard>();
    everything::<RedLock>();
    everything::<ReentrantLock>();
    everything::<ReleaseBy>();
    everything::<Semaphore>();
    everything::<SemaphorePermit>();
    everything::<WriteLock>();

    cloned::<Client>();
    cloned::<ClientBuilder>();
    cloned::<Error>();
    cloned::<ExpirableSemaphore>();
    cloned::<FairLock>();
    cloned::<Latch>();
    cloned::<Semaphore>();
    cloned::<Holder>();
    cloned::<Member>();
    cloned::<MultiLock>();
    cloned::<RedLock>();
    cloned::<Owner>();
    cloned::<PlainLock>();
    cloned::<ReadLock>();
    cloned::<ReadWriteLock>();
    cloned::<ReentrantLock>();
    cloned::<WriteLock>();

    compared::<ErrorKind>();
    compared::<Holder>();
    compared::<Owner>();
    compared::<ReleaseBy>();
    hashed::<ErrorKind>();
    hashed::<Owner>();
    hashed::<PermitId>();
    hashed::<ReleaseBy>();
    shown::<Owner>();
    shown::<PermitId>();
    copied::<ErrorKind>();
    copied::<PermitId>();
    copied::<ReleaseBy>();
    copied::<Prefer>();
    compared::<Prefer>();
    an_error::<Error>();
}

#[test]
fn a_guard_is_one_level_and_cannot_be_cloned() {
    assert!(Asked::<Client>(std::marker::PhantomData).is_clone());
    assert!(!Asked::<LockGuard>(std::marker::PhantomData).is_clone());
    assert!(!Asked::<Lease>(std::marker::PhantomData).is_clone());
    assert!(!Asked::<SemaphorePermit>(std::marker::PhantomData).is_clone());
    assert!(!Asked::<ExpirablePermit>(std::marker::PhantomData).is_clone());
}

/// Asserts that a call can be spawned wherever its handle goes. Returns the size of its future.
fn call<F: Future + Send>(future: F) -> usize {
    drop(future);
    size_of::<F>()
}

async fn done() -> Result<(), Error> {
    Ok(())
}

async fn calls_of_a_read_write_lock(lock: ReadWriteLock) {
    let second = Duration::from_secs(1);
    let sizes = [
        call(lock.read()),
        call(lock.try_read()),
        call(lock.try_read_for(second)),
        call(lock.write()),
        call(lock.try_write()),
        call(lock.try_write_for(second)),
    ];
    assert!(sizes.iter().all(|size| *size <= 1024), "{sizes:?}");
}

async fn calls_of_a_set(set: MultiLock, guard: MultiGuard) {
    let second = Duration::from_secs(1);
    let sizes = [
        call(set.lock()),
        call(set.try_lock()),
        call(set.try_lock_for(second)),
        call(set.run(async {})),
        call(set.run_for(second, done())),
        call(set.try_run(done())),
        call(set.try_run_for(second, done())),
        call(guard.extend(second)),
        call(guard.verify()),
        call(guard.lost()),
        call(guard.run_until_lost(async {})),
        call(guard.unlock()),
    ];
    assert!(sizes.iter().all(|size| *size <= 1024), "{sizes:?}");
}

async fn calls_of_a_lock_on_several(set: RedLock, guard: RedGuard) {
    let second = Duration::from_secs(1);
    let sizes = [
        call(set.lock()),
        call(set.try_lock()),
        call(set.try_lock_for(second)),
        call(set.run(async {})),
        call(set.run_for(second, done())),
        call(set.try_run(done())),
        call(set.try_run_for(second, done())),
        call(guard.extend(second)),
        call(guard.verify()),
        call(guard.lost()),
        call(guard.run_until_lost(async {})),
        call(guard.unlock()),
    ];
    assert!(sizes.iter().all(|size| *size <= 1024), "{sizes:?}");
}

async fn calls_of_counters(client: Client) {
    let second = Duration::from_secs(1);
    let (semaphore, latch) = (client.semaphore("s"), client.latch("l"));
    let expirable = client.expirable_semaphore("e").lease(second);
    let _set = (
        semaphore.try_set_permits(1).await,
        expirable.try_set_permits(1).await,
    );
    let (Ok(permit), Ok(leased)) = (semaphore.acquire().await, expirable.acquire().await) else {
        panic!("one is free");
    };
    let id = leased.id();
    let sizes = [
        call(semaphore.try_set_permits(1)),
        call(semaphore.acquire()),
        call(semaphore.acquire_many(2)),
        call(semaphore.try_acquire()),
        call(semaphore.try_acquire_many(2)),
        call(semaphore.try_acquire_for(second)),
        call(semaphore.try_acquire_many_for(2, second)),
        call(semaphore.available_permits()),
        call(semaphore.add_permits(1)),
        call(semaphore.drain_permits()),
        call(semaphore.release(1)),
        call(permit.release()),
        call(expirable.acquire()),
        call(expirable.try_acquire_many_for(2, second)),
        call(expirable.available_permits()),
        call(expirable.release_permit(&id)),
        call(leased.extend(second)),
        call(leased.release()),
        call(latch.try_set_count(1)),
        call(latch.count()),
        call(latch.count_down()),
        call(latch.wait()),
        call(latch.wait_for(second)),
        call(latch.delete()),
    ];
    for (call, size) in sizes.iter().enumerate() {
        assert!(*size <= 1024, "call {call} of the list: {size} bytes");
    }
}

async fn calls_of_a_handle(lock: ReentrantLock, guard: LockGuard, client: Client) {
    let second = Duration::from_secs(1);
    let sizes = [
        call(lock.lock()),
        call(lock.try_lock()),
        call(lock.try_lock_for(second)),
        call(lock.run(async {})),
        call(lock.run_for(second, done())),
        call(lock.try_run(done())),
        call(lock.try_run_for(second, done())),
        call(lock.unlock()),
        call(lock.adopt()),
        call(lock.is_locked()),
        call(lock.is_held()),
        call(lock.hold_count()),
        call(lock.remaining_lease()),
        call(lock.holder()),
        call(lock.force_unlock()),
        call(guard.reenter()),
        call(guard.extend(second)),
        call(guard.verify()),
        call(guard.lost()),
        call(guard.run_until_lost(async {})),
        call(client.close()),
        call(guard.unlock()),
    ];
    for (call, size) in sizes.iter().enumerate() {
        assert!(*size <= 1024, "call {call} of the list: {size} bytes");
    }
}

#[tokio::test]
async fn futures_of_all_calls_can_be_spawned_and_are_small() {
    let server = redlatch_testkit::Server::start();
    let builder = Client::builder().url(server.url());
    let client = builder.trust_fresh_servers(true).build().await.unwrap();
    let lock = client.lock("k");
    let guard = lock.lock().await.unwrap();
    calls_of_a_read_write_lock(client.read_write_lock("rw")).await;
    let set = MultiLock::new([client.lock("a"), client.lock("b")]);
    let both = set.lock().await.unwrap();
    calls_of_a_set(set, both).await;
    let red = RedLock::new([client.lock("c")]);
    let majority = red.lock().await.unwrap();
    calls_of_a_lock_on_several(red, majority).await;
    calls_of_counters(client.clone()).await;
    call(Client::connect(server.url()));
    call(Client::builder().build());
    // Also within a task, with a guard held across each await.
    tokio::spawn(calls_of_a_handle(lock, guard, client))
        .await
        .unwrap();
}
