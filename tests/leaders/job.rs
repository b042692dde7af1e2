//! Jobs: that one process runs them, once in a period, and what happens if it does not come to their end.

use std::cell::Cell;
use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use redlatch::job::{Execution, Job};
use redlatch::{Client, Error, ErrorKind};
use redlatch_testkit::Server;
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::support::polls::Polls;
use crate::support::probe::{eventually_free, kind, millis, secs, soon};
use crate::support::scene::{self, Scene};
use crate::support::{self, builder, eventually, eventually_idle, start, start_two};
use crate::worker::{LEASE, Worker};

/// The time for processes on a loaded machine to be woken and to report it.
const SLACK: Duration = Duration::from_millis(500);
const LONG: Duration = Duration::from_secs(60);

/// Runs a job that takes no time. Returns whether it ran here.
async fn runs(client: &Client, within: Duration) -> bool {
    let job = client.job("k", within);
    let ran = job.execute(async |_| Ok::<_, Error>(()));
    ran.await.unwrap().is_some()
}

async fn short_leased(server: &Server) -> Client {
    let builder = builder(server.url()).watchdog_lease(LEASE);
    builder.build().await.unwrap()
}

#[test]
fn one_of_five_processes_runs_the_job_and_late_ones_find_that_it_ran() {
    let server = Server::start();
    let mut workers = [(); 5].map(|()| Worker::start(&server, "job 60000 20"));
    let outcomes = workers.each_ref().map(Worker::outcome);
    let ran = outcomes.iter().filter(|outcome| *outcome == "ran").count();
    let none = outcomes.iter().filter(|outcome| *outcome == "none").count();
    assert_eq!((ran, none), (1, 4), "{outcomes:?}");
    // A process that is killed right after the job has run it all the same.
    for worker in &mut workers {
        worker.kill();
    }
    std::thread::sleep(LEASE + SLACK);
    assert_eq!(
        Worker::start(&server, "job 60000 20").event("none").token,
        0
    );
    let left = server.connection().pttl("k");
    assert!((40_000..=60_000).contains(&left), "{left}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn job_of_a_killed_process_runs_elsewhere_within_a_lease() {
    let (server, client) = start().await;
    let mut worker = Worker::start(&server, "job 60000 hang");
    let token = worker.event("begins").token;
    let job = client.job("k", LONG);
    let attempt = async || job.execute(async |run| Ok::<_, Error>(run.token())).await;
    assert_eq!(attempt().await.unwrap(), None);
    // Renewed over several leases.
    sleep(LEASE * 2).await;
    assert_eq!(attempt().await.unwrap(), None);
    worker.kill();
    let killed = Instant::now();
    let next = loop {
        match attempt().await.unwrap() {
            Some(token) => break token,
            None => sleep(millis(5)).await,
        }
    };
    let took = killed.elapsed();
    assert!(took < LEASE + SLACK, "{took:?}");
    assert!(next.get() > token);
}

#[test]
fn job_of_a_paused_process_is_dropped_before_it_does_anything_else() {
    let server = Server::start();
    let first = Worker::start(&server, "job 60000 2500");
    let token = first.event("begins").token;
    first.pause();
    std::thread::sleep(LEASE + SLACK);
    let second = Worker::start(&server, "job 60000 20");
    assert!(second.event("ran").token > token);
    first.resume();
    first.event("LeaseLost");
    // What it owes does not free the lock of the other one.
    std::thread::sleep(SLACK);
    Worker::start(&server, "job 60000 20").event("none");
    let left = server.connection().pttl("k");
    assert!((40_000..=60_000).contains(&left), "{left}");
}

#[tokio::test]
async fn fast_job_does_not_run_twice_within_its_period_and_runs_again_after_it() {
    // A lease of 30 s, from which the period is cut.
    let (server, client, other) = start_two().await;
    let within = secs(1);
    for _ in 0..2 {
        let before = Instant::now();
        assert!(runs(&client, within).await);
        let after = Instant::now();
        let left = server.connection().pttl("k");
        assert!((500..=1_000).contains(&left), "{left}");
        let mut asked = 0;
        loop {
            let now = Instant::now();
            if runs(&other, within).await {
                break;
            }
            asked += 1;
            assert!(now < after + within + SLACK, "it is free by itself");
            sleep(millis(5)).await;
        }
        assert!(asked > 10);
        assert!(before.elapsed() >= within, "{:?}", before.elapsed());
        // What ran just now is over before the next round.
        eventually_free(&server, "k").await;
    }
    for client in [&client, &other] {
        eventually_idle(client).await;
    }
    let mut probe = server.connection();
    assert_eq!(probe.keys(), ["redisson_lock_token:{k}"]);
}

#[tokio::test]
async fn job_that_fails_panics_or_is_dropped_may_run_elsewhere_at_once() {
    let (_server, client, other) = start_two().await;
    let job = client.job("k", LONG);
    type Failure = Box<dyn std::error::Error + Send + Sync>;

    let failed = job.execute(async |_| Err::<(), Failure>("no file".into()));
    assert_eq!(failed.await.unwrap_err().to_string(), "no file");

    let panics = job.execute(async |_| -> Result<(), Failure> { panic!("on purpose") });
    let panicked = does_panic(panics).await;
    assert!(panicked);

    let hangs = job.execute(async |_| std::future::pending::<Result<(), Failure>>().await);
    assert!(tokio::time::timeout(millis(200), hangs).await.is_err());

    eventually("it runs elsewhere", async || runs(&other, LONG).await).await;
    assert!(!runs(&client, LONG).await);
}

/// Returns whether a future panics.
async fn does_panic(future: impl Future) -> bool {
    let mut future = Box::pin(future);
    poll_fn(|context| {
        let polled = AssertUnwindSafe(|| future.as_mut().poll(context).is_ready());
        match std::panic::catch_unwind(polled) {
            Ok(false) => Poll::Pending,
            Ok(true) => Poll::Ready(false),
            Err(_) => Poll::Ready(true),
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn call_that_is_dropped_leaves_the_job_to_others_unless_it_has_run() {
    let scene = Scene::open(scene::patient).await;
    Polls::sweep(&scene.proxy, "job", async |name, polls| {
        let job = scene.client.job(name, LONG);
        let has_run = AtomicBool::new(false);
        let ran = job.execute(async |_| {
            tokio::task::yield_now().await;
            has_run.store(true, Ordering::SeqCst);
            Ok::<_, Error>(())
        });
        polls.run(ran).await.transpose().unwrap();
        scene.requests_have_run().await;
        let other = scene.other.job(name, LONG);
        let job = async |_: &Execution| Ok::<_, Error>(());
        if has_run.load(Ordering::SeqCst) {
            assert_eq!(other.execute(job).await.unwrap(), None);
        } else {
            eventually("it runs elsewhere", async || {
                other.execute(job).await.unwrap().is_some()
            })
            .await;
        }
    })
    .await;
}

#[test]
fn jobs_move_freely() {
    fn everything<T: Send + Sync + Unpin + std::fmt::Debug + 'static>() {}
    fn moves<T: Send>(_: &T) {}
    everything::<Job>();
    everything::<Execution>();
    let _ = |job: Job, text: String| {
        moves(&job.execute(async |run| {
            run.verify().await?;
            Ok::<_, Error>(text.len())
        }));
    };
}

#[tokio::test]
async fn job_longer_than_its_period_is_renewed_and_frees_the_lock_at_its_end() {
    let server = Server::start();
    let (client, other) = (short_leased(&server).await, support::client(&server).await);
    let within = millis(300);
    let job = client.job("k", within);
    let ran = job.execute(async |run| {
        let end = Instant::now() + LEASE * 3;
        while Instant::now() < end {
            assert!(!runs(&other, within).await);
            sleep(millis(50)).await;
        }
        run.verify().await
    });
    assert_eq!(ran.await.unwrap(), Some(()));
    assert!(runs(&other, within).await, "it is free at once");
}

#[tokio::test]
async fn job_that_starts_itself_finds_itself_running() {
    let (_server, client) = start().await;
    let job = client.job("k", LONG);
    let ran = job.execute(async |_| {
        assert!(!runs(&client, LONG).await);
        Ok::<_, Error>(())
    });
    assert_eq!(ran.await.unwrap(), Some(()));
}

#[tokio::test]
async fn job_that_loses_its_lease_is_dropped() {
    let (_server, client) = start().await;
    let lock = client.fenced_lock("k");
    let job = client.job("k", LONG);
    let ran = job.execute(async |_| {
        assert!(lock.force_unlock().await?);
        std::future::pending::<Result<(), Error>>().await
    });
    assert_eq!(kind(soon(ran).await), ErrorKind::LeaseLost);
    assert!(runs(&client, LONG).await);
}

#[tokio::test]
async fn settings_that_cannot_work_and_a_server_that_is_away_are_errors_before_the_job() {
    let (server, client) = start().await;
    server.connection().command(&["SET", "string", "1"]);
    let unreached = async |_: &Execution| -> Result<(), Error> { panic!("the job was begun") };
    for (name, within, expected) in [
        ("", LONG, ErrorKind::InvalidInput),
        ("k", Duration::ZERO, ErrorKind::InvalidInput),
        ("k", Duration::MAX, ErrorKind::InvalidInput),
        ("string", LONG, ErrorKind::WrongKind),
    ] {
        let ran = client.job(name, within).execute(unreached).await;
        assert_eq!(kind(ran), expected);
    }
    server.kill();
    let ran = soon(client.job("k", LONG).execute(unreached)).await;
    assert!(matches!(kind(ran), ErrorKind::Backend | ErrorKind::Timeout));
    client.close().await;
    let job = client.job("k", LONG);
    let ran = job.execute(unreached).await;
    assert_eq!(kind(ran), ErrorKind::Closed);
}

#[tokio::test]
async fn server_that_restarts_with_its_data_during_the_job_changes_nothing() {
    let server = Server::builder().persistent().start();
    let builder = builder(server.url()).watchdog_lease(secs(10));
    let client = builder.build().await.unwrap();
    let other = support::client(&server).await;
    let job = client.job("k", LONG);
    let ran = job.execute(async |run| {
        server.restart();
        eventually("the server is back", async || run.verify().await.is_ok()).await;
        Ok::<_, Error>(())
    });
    assert_eq!(ran.await.unwrap(), Some(()));
    assert!(!runs(&other, LONG).await);
    server.restart();
    eventually("the server is back", async || other.ping().await.is_ok()).await;
    assert!(!runs(&other, LONG).await);
}

#[tokio::test]
async fn outage_at_the_end_of_a_job_blocks_nobody_and_the_job_does_not_run_again() {
    let server = Server::start();
    let (client, other) = (short_leased(&server).await, support::client(&server).await);
    let within = secs(8);
    let before = Instant::now();
    let job = client.job("k", within);
    let ran = job.execute(async |_| {
        server.kill();
        Ok::<_, Error>(Instant::now())
    });
    let ended = soon(ran).await.unwrap().expect("it ran here");
    let took = ended.elapsed();
    assert!(took >= LEASE, "the server is told for a lease: {took:?}");
    assert!(took < LEASE + SLACK, "the caller goes on: {took:?}");
    sleep(LEASE).await;

    // Without its data, it has forgotten the lock. The job is entered again.
    server.restart();
    let mut probe = server.connection();
    eventually("the run is known again", async || probe.exists("k")).await;
    eventually("the other is back", async || other.ping().await.is_ok()).await;
    assert!(!runs(&other, within).await);
    let left = probe.pttl("k");
    let most = within.saturating_sub(before.elapsed()).as_millis() as i64 + 500;
    assert!((1..=most).contains(&left), "{left} of {most}");
    eventually("the period ends", async || runs(&other, within).await).await;
    assert!(before.elapsed() >= within);
}

#[tokio::test]
async fn short_outage_at_the_end_of_a_job_is_waited_for() {
    let server = Server::start();
    let (client, other) = (start_of(&server).await, support::client(&server).await);
    let job = client.job("k", LONG);
    let ran = job.execute(async |_| {
        server.freeze();
        Ok::<_, Error>(())
    });
    let thaw = async {
        sleep(millis(700)).await;
        server.thaw();
    };
    let (ran, ()) = tokio::join!(soon(ran), thaw);
    assert_eq!(ran.unwrap(), Some(()));
    assert!(!runs(&other, LONG).await);
    assert!(server.connection().pttl("k") > 40_000);
}

async fn start_of(server: &Server) -> Client {
    builder(server.url()).build().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn job_that_ran_is_kept_though_its_future_is_dropped() {
    let server = Server::start();
    let (client, other) = (start_of(&server).await, support::client(&server).await);
    let job = client.job("k", LONG);
    let mut ran = Box::pin(job.execute(async |_| {
        server.freeze();
        Ok::<_, Error>(())
    }));
    assert!(
        tokio::time::timeout(millis(200), &mut ran).await.is_err(),
        "the server does not answer"
    );
    drop(ran);
    server.thaw();
    let mut probe = server.connection();
    eventually("it is kept", async || probe.pttl("k") > 40_000).await;
    assert!(!runs(&other, LONG).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn job_is_not_released_by_its_own_process_while_no_answer_arrives() {
    let scene = Scene::open(|builder| scene::patient(builder).watchdog_lease(LEASE)).await;
    let job = scene.client.job("k", LONG);
    let ran = job.execute(async |_| {
        scene.proxy.hold_replies();
        Ok::<_, Error>(())
    });
    let outage = async {
        let mut probe = scene.server.connection();
        eventually("the server was told", async || probe.pttl("k") > 40_000).await;
        // The lease that the client knows of passes meanwhile.
        let end = Instant::now() + LEASE * 3;
        while Instant::now() < end {
            assert!(!runs(&scene.other, LONG).await);
            sleep(millis(5)).await;
        }
        scene.proxy.release_replies();
        let end = Instant::now() + LEASE * 2;
        while Instant::now() < end {
            assert!(!runs(&scene.other, LONG).await);
            sleep(millis(5)).await;
        }
    };
    let (ran, ()) = tokio::join!(ran, outage);
    assert_eq!(ran.unwrap(), Some(()));
    eventually_idle(&scene.client).await;
    assert!(scene.server.connection().pttl("k") > 40_000);
}

#[tokio::test]
async fn job_is_entered_again_though_less_is_left_of_its_period_than_a_grant_must_have() {
    let server = Server::start();
    let builder = builder(server.url()).watchdog_lease(secs(20));
    let client = builder.min_validity(secs(15)).build().await.unwrap();
    let within = secs(10);
    let job = client.job("k", within);
    let ran = job.execute(async |_| {
        server.kill();
        Ok::<_, Error>(())
    });
    let forgets = async {
        sleep(millis(300)).await;
        server.restart();
    };
    let (ran, ()) = tokio::join!(soon(ran), forgets);
    assert_eq!(ran.unwrap(), Some(()));
    let left = server.connection().pttl("k");
    assert!((1..=10_000).contains(&left), "{left}");
}

/// Ends an outage behind the period of a job of one second. The job has run, and its lock is free soon.
async fn period_ends_in(
    scene: &Scene,
    ran: impl Future<Output = Result<Option<()>, Error>>,
    outage: impl Future<Output = ()>,
) {
    let outage = async {
        outage.await;
        sleep(millis(1_500)).await;
        scene.proxy.black_hole(false);
        scene.proxy.cut();
    };
    let (ran, ()) = tokio::join!(soon(ran), outage);
    assert_eq!(ran.unwrap(), Some(()));
    eventually_free(&scene.server, "k").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn period_that_ends_in_an_outage_is_not_followed_by_a_long_lease() {
    let lease = secs(40);
    let scene = Scene::open(|builder| builder.watchdog_lease(lease)).await;
    let job = scene.client.job("k", secs(1));
    let ran = job.execute(async |_| {
        scene.proxy.black_hole(true);
        Ok::<_, Error>(())
    });
    period_ends_in(&scene, ran, async {}).await;
}

/// The outage begins between the request that learns when the lease ends and the one that cuts it.
#[tokio::test]
async fn period_that_ends_while_the_cut_of_its_lease_is_in_doubt_is_not_followed_by_a_long_lease() {
    let scene = Scene::open(|builder| builder.watchdog_lease(secs(40))).await;
    let job = scene.client.job("k", secs(1));
    let mut asks = scene.proxy.stop(support::sha("lock_extend"));
    let ran = job.execute(async |_| Ok::<_, Error>(()));
    let outage = async {
        asks.reached().await;
        let mut cuts = scene.proxy.stop(support::sha("lock_extend"));
        asks.open();
        cuts.reached().await;
        scene.proxy.black_hole(true);
    };
    period_ends_in(&scene, ran, outage).await;
}

#[test]
fn caller_of_a_job_waits_for_one_lease_though_the_runtime_of_the_client_rests() {
    let server = Server::start();
    let runtime = || Builder::new_current_thread().enable_all().build().unwrap();
    let (theirs, ours) = (Arc::new(runtime()), runtime());
    let builder = Client::builder().url(server.url()).watchdog_lease(secs(3));
    let client = theirs.block_on(builder.build()).unwrap();
    let (rests, rest) = oneshot::channel::<()>();
    let driven = theirs.clone();
    let driver = std::thread::spawn(move || driven.block_on(rest));
    let job = client.job("k", LONG);
    let ran = job.execute(async |_| {
        rests.send(()).unwrap();
        driver.join().unwrap().unwrap();
        Ok::<_, Error>(())
    });
    assert_eq!(ours.block_on(async { soon(ran).await.unwrap() }), Some(()));
}

/// The runtime ends in the moment in which the job has, before any task of its client runs.
#[test]
fn job_that_has_run_is_not_run_again_though_its_runtime_ends() {
    let server = Server::start();
    let runtime = || Builder::new_current_thread().enable_all().build().unwrap();
    let short = runtime();
    short.block_on(async {
        let client = support::client(&server).await;
        let job = client.job("k", LONG);
        let has_run = Cell::new(false);
        let mut ran = Box::pin(job.execute(async |_| {
            has_run.set(true);
            Ok::<_, Error>(())
        }));
        // Ready with the poll in which the job ends.
        poll_fn(|context| match ran.as_mut().poll(context) {
            Poll::Pending if !has_run.get() => Poll::Pending,
            _ => Poll::Ready(()),
        })
        .await;
    });
    drop(short);
    assert!(!runtime().block_on(async { runs(&support::client(&server).await, LONG).await }));
}

/// By a clock that a test moves.
#[cfg(feature = "memory")]
mod paused {
    use redlatch::{Client, Error, ErrorKind, MemoryServer};
    use tokio::time::{advance, sleep, timeout};

    use super::{LONG, runs};
    use crate::support::probe::{begin, millis, secs};

    /// Time passes within one poll of the job, as if its thread had been kept busy.
    #[tokio::test(start_paused = true)]
    async fn job_that_ran_into_its_deadline_is_kept_though_its_release_is_owed() {
        let server = MemoryServer::new();
        let builder = || Client::builder().config(server.config());
        let client = builder().watchdog_lease(LONG).build().await.unwrap();
        let other = builder().build().await.unwrap();
        let within = LONG * 10;
        let job = client.job("k", within);
        let ran = job.execute(async |run| {
            drop(begin(advance(run.remaining() + millis(1))));
            run.lost().await;
            Ok::<_, Error>(())
        });
        let ran = timeout(LONG * 2, ran).await.expect("an answer");
        assert_eq!(ran.unwrap(), Some(()));
        sleep(secs(1)).await;
        assert!(!runs(&other, within).await);
    }

    /// What is owed is sent once more after 50 ms, and the next call waits for less.
    #[tokio::test(start_paused = true)]
    async fn job_is_not_kept_from_running_by_what_its_own_process_has_yet_to_release() {
        let server = MemoryServer::new();
        let builder = Client::builder().config(server.config());
        let client = builder.command_timeout(millis(20)).build().await.unwrap();
        for round in 0..40 {
            let job = client.job(format!("k:{round}"), LONG);
            let failed = job.execute(async |_| {
                server.stop();
                Err::<(), _>(Error::new(ErrorKind::Backend, "an outage"))
            });
            failed.await.unwrap_err();
            sleep(secs(2)).await;
            server.start();
            let ran = async {
                loop {
                    match job.execute(async |_| Ok::<_, Error>(())).await {
                        Ok(ran) => return ran,
                        // It was not begun: the server is still to be found, or the release is owed.
                        Err(_) => sleep(millis(1)).await,
                    }
                }
            };
            let ran = timeout(secs(10), ran).await.expect("an answer");
            assert_eq!(ran, Some(()), "{round}");
        }
    }
}
