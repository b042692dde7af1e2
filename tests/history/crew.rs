//! A worker whose tasks lock at random: waits, attempts, nested levels, cancelled futures and leases that run out.

use std::future::pending;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fastrand::Rng;
use redlatch::{Client, Error, ErrorKind, LockGuard, ReentrantLock};
use redlatch_testkit::Connection;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::event::{Op, Step};
use super::journal::{Journal, commands, deadline};
use super::leftover::Quiet;

pub(crate) const TASKS: u32 = 16;
pub(crate) const LOCKS: u32 = 3;
pub(crate) const WATCHDOG_LEASE: Duration = Duration::from_secs(2);
const FIXED_LEASE: Duration = Duration::from_secs(1);
/// The least remaining lease with which a write is begun. No pause of a test machine is that long.
const TIME_TO_WRITE: Duration = Duration::from_millis(500);

/// Returns the key of a lock and the key of the counter that it protects.
pub(crate) fn keys(lock: u32) -> (String, String) {
    (format!("lock-{lock}"), format!("count-{lock}"))
}

pub(crate) async fn play(journal: Journal, port: u16, seed: u64, lasts: Duration, victim: bool) {
    let mut commands = commands();
    let client = Client::builder()
        .url(format!("redis://127.0.0.1:{port}"))
        .watchdog_lease(WATCHDOG_LEASE)
        .build()
        .await
        .expect("the server is up");
    let alive = || Handle::current().metrics().num_alive_tasks();
    let tasks_before = alive();
    let process = journal.process();
    let journal = Arc::new(journal);
    let store = Arc::new(Mutex::new(Connection::open(port)));
    let started = Instant::now();

    let mut tasks = JoinSet::new();
    for number in 0..TASKS {
        let stays_after = (victim && number == 0).then_some(started + lasts / 2);
        let hand = Hand {
            number,
            client: client.clone(),
            journal: journal.clone(),
            store: store.clone(),
            random: Rng::with_seed(seed ^ u64::from(process) << 32 ^ u64::from(number)),
            stays_after,
        };
        tasks.spawn(hand.work(started + lasts));
    }
    while let Some(ended) = tasks.join_next().await {
        ended.expect("a task ends well");
    }

    let end = Instant::now() + Duration::from_secs(10);
    let quiet = loop {
        let quiet = Quiet {
            process,
            tasks: alive(),
            tasks_before,
            client: format!("{client:?}"),
        };
        if quiet.leaks().is_empty() || Instant::now() > end {
            break quiet;
        }
        sleep(Duration::from_millis(10)).await;
    };
    journal.quiet(&quiet);
    assert_eq!(commands.recv().await.as_deref(), Some("end"));
    client.close().await;
}

/// One task, and thus one owner.
struct Hand {
    number: u32,
    client: Client,
    journal: Arc<Journal>,
    store: Arc<Mutex<Connection>>,
    random: Rng,
    /// From this time on, the task stays in its next section until it is killed.
    stays_after: Option<Instant>,
}

impl Hand {
    async fn work(mut self, until: Instant) {
        while Instant::now() < until {
            let lock = self.random.u32(0..LOCKS);
            let handle = self.client.lock(keys(lock).0);
            let handle = if self.happens(30) {
                handle.lease(FIXED_LEASE)
            } else {
                handle
            };
            if let Some((guard, id)) = self.acquire(&handle, lock).await {
                self.section(&handle, lock, guard, id).await;
            }
            self.rest(15).await;
        }
    }

    /// Acquires by a wait without a limit, a single attempt or a wait with a limit. Sometimes drops the future midway.
    async fn acquire(&mut self, handle: &ReentrantLock, lock: u32) -> Option<(LockGuard, u32)> {
        let id = self.journal.next_guard();
        let verb = self.random.u32(0..10);
        let wait = Duration::from_millis(self.random.u64(1..300));
        let op = if verb < 2 { Op::Try } else { Op::Acquire };
        self.note(lock, op, Step::Invoke, id, 0);
        let call = async {
            match verb {
                0..2 => handle.try_lock().await,
                2..5 => handle.try_lock_for(wait).await,
                _ => handle.lock().await.map(Some),
            }
        };
        let answer = if self.happens(10) {
            let patience = Duration::from_micros(self.random.u64(0..20_000));
            timeout(patience, call).await.ok()
        } else {
            Some(call.await)
        };
        match answer {
            Some(Ok(Some(guard))) => {
                self.note(lock, op, Step::Ok, id, deadline(&guard));
                return Some((guard, id));
            }
            Some(Ok(None)) => self.note(lock, op, Step::Fail, id, 0),
            Some(Err(error)) => self.failed(lock, op, id, &error),
            None => self.note(lock, op, Step::Unknown, id, 0),
        }
        None
    }

    async fn section(&mut self, handle: &ReentrantLock, lock: u32, guard: LockGuard, id: u32) {
        let inner = match self.random.u32(0..10) {
            0 => self.reenter(lock, handle.lock()).await,
            1 => self.reenter(lock, guard.reenter()).await,
            _ => None,
        };
        if self.happens(80) {
            self.increment(&guard, lock, id).await;
        }
        if self
            .stays_after
            .is_some_and(|after| Instant::now() >= after)
            && !guard.is_lost()
        {
            self.note(lock, Op::Stay, Step::Invoke, id, deadline(&guard));
            pending::<()>().await;
        }
        self.linger(&guard, lock, id).await;
        let (first, second) = match inner {
            Some(inner) if self.happens(50) => (Some(inner), (guard, id)),
            Some(inner) => (Some((guard, id)), inner),
            None => (None, (guard, id)),
        };
        if let Some(first) = first {
            self.release(lock, first).await;
        }
        self.release(lock, second).await;
    }

    async fn reenter(
        &mut self,
        lock: u32,
        call: impl Future<Output = Result<LockGuard, Error>>,
    ) -> Option<(LockGuard, u32)> {
        let id = self.journal.next_guard();
        self.note(lock, Op::Reenter, Step::Invoke, id, 0);
        match call.await {
            Ok(guard) => {
                self.note(lock, Op::Reenter, Step::Ok, id, deadline(&guard));
                Some((guard, id))
            }
            Err(error) => {
                self.failed(lock, Op::Reenter, id, &error);
                None
            }
        }
    }

    /// Reads the counter and writes it back plus one. This is not atomic, so a second owner in the section loses an
    /// update.
    async fn increment(&mut self, guard: &LockGuard, lock: u32, id: u32) {
        let key = keys(lock).1;
        let value: u64 = match self.store(&["GET", &key]) {
            redlatch_testkit::Reply::Nil => 0,
            reply => reply.text().parse().expect("a count"),
        };
        self.rest(2).await;
        if guard.remaining() < TIME_TO_WRITE {
            return;
        }
        self.note(lock, Op::Increment, Step::Invoke, id, 0);
        self.store(&["SET", &key, &(value + 1).to_string()]);
        let step = if guard.is_lost() {
            Step::Unknown
        } else {
            Step::Ok
        };
        self.note(lock, Op::Increment, step, id, 0);
    }

    /// Stays in the section briefly, now and then for longer than the lease. Returns early if the lease is lost.
    async fn linger(&mut self, guard: &LockGuard, lock: u32, id: u32) {
        let length = match self.random.u32(0..1_000) {
            0 => WATCHDOG_LEASE + Duration::from_millis(500),
            1..4 => FIXED_LEASE + Duration::from_millis(100),
            4..20 => Duration::from_millis(100),
            _ => return self.rest(3).await,
        };
        let lost = tokio::select! {
            () = sleep(length) => guard.is_lost(),
            _ = guard.lost() => true,
        };
        let step = if lost { Step::Fail } else { Step::Ok };
        self.note(lock, Op::Hold, step, id, deadline(guard));
    }

    async fn release(&mut self, lock: u32, (guard, id): (LockGuard, u32)) {
        self.note(lock, Op::Release, Step::Invoke, id, deadline(&guard));
        if self.happens(40) {
            drop(guard);
            return;
        }
        match guard.unlock().await {
            Ok(()) => self.note(lock, Op::Release, Step::Ok, id, 0),
            Err(error) if error.kind() == ErrorKind::LeaseLost => {
                self.note(lock, Op::Release, Step::Fail, id, 0);
            }
            Err(error) => self.failed(lock, Op::Release, id, &error),
        }
    }

    fn failed(&self, lock: u32, op: Op, id: u32, error: &Error) {
        self.journal.error(error);
        self.note(lock, op, Step::Unknown, id, 0);
    }

    fn note(&self, lock: u32, op: Op, step: Step, guard: u32, deadline: u64) {
        self.journal
            .note((self.number, lock), op, step, guard, deadline);
    }

    /// Sends one command. The mutex is locked only for that command, so that it does not order the commands of two
    /// sections.
    fn store(&self, command: &[&str]) -> redlatch_testkit::Reply {
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        store.command(command)
    }

    async fn rest(&mut self, at_most: u64) {
        sleep(Duration::from_micros(self.random.u64(0..at_most * 1_000))).await;
    }

    fn happens(&mut self, percent: u32) -> bool {
        self.random.u32(0..100) < percent
    }
}
