//! Elections: one leader at a time, the next one, and those that watch.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use redlatch::leader::{Election, LeaderWatch};
use redlatch::{Client, ErrorKind};
use redlatch_testkit::{Cluster, Server};
use tokio::task::JoinHandle;

use crate::support::polls::Polls;
use crate::support::probe::{NEVER, begin, kind, millis, reset_calls, scripts_run, secs, soon};
use crate::support::scene::{self, Scene};
use crate::support::{builder, eventually, eventually_idle, start, start_two};
use crate::worker::{Event, LEASE, Worker};

/// The time for processes on a loaded machine to be woken and to report it.
const SLACK: Duration = Duration::from_millis(500);

/// Connects a client that asks nothing by itself: what it learns in a test, it was told.
async fn patient(server: &Server) -> Client {
    let builder = builder(server.url())
        .watchdog_lease(secs(60))
        .poll_cap(NEVER);
    builder.build().await.unwrap()
}

async fn short_leased(server: &Server) -> Client {
    let builder = builder(server.url()).watchdog_lease(LEASE);
    builder.build().await.unwrap()
}

/// Waits for a leader. Returns what it is called.
async fn next_leader(watch: &mut LeaderWatch) -> String {
    loop {
        if let Some(leader) = soon(watch.changed()).await.unwrap() {
            return leader.identity().to_owned();
        }
    }
}

/// Polls a watch that waits until its client listens for changes.
async fn eventually_watching<T: std::fmt::Debug>(
    server: &Server,
    changed: &mut (impl Future<Output = T> + Unpin),
) {
    let channel = "redisson_lock__channel:{k}:leader";
    let mut probe = server.connection();
    let listens = eventually("the watch listens", async || {
        let counted = probe.command(&["PUBSUB", "NUMSUB", channel]).array();
        counted[1].int() == 1
    });
    tokio::select! {
        told = changed => panic!("{told:?} without a change"),
        () = listens => {}
    }
}

/// Starts a body that leads until it is aborted, and counts how often it began and how often it was dropped.
fn leading(election: Election) -> (JoinHandle<()>, Arc<AtomicU32>, Arc<AtomicU32>) {
    struct Ends(Arc<AtomicU32>);
    impl Drop for Ends {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let (begun, ended) = (Arc::<AtomicU32>::default(), Arc::<AtomicU32>::default());
    let counts = (begun.clone(), ended.clone());
    let task = tokio::spawn(async move {
        let led = election.lead(async move |_| {
            begun.fetch_add(1, Ordering::SeqCst);
            let _ends = Ends(ended.clone());
            std::future::pending::<()>().await;
        });
        led.await.unwrap();
    });
    (task, counts.0, counts.1)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_three_processes_leads_and_the_next_follows_its_kill_within_a_lease() {
    let (server, client) = start().await;
    let mut watch = client.leader("k").watch();
    let mut workers: Vec<(String, Worker)> = ["a", "b", "c"]
        .map(|name| {
            let worker = Worker::start(&server, &format!("lead {name}"));
            (name.to_owned(), worker)
        })
        .into();
    let (mut token, mut killed) = (0, None);
    while !workers.is_empty() {
        let leader = next_leader(&mut watch).await;
        let at = workers.iter().position(|(name, _)| *name == leader);
        let (_, mut worker) = workers.remove(at.expect("a worker that lives leads"));
        let begins = worker.event("begins");
        assert!(begins.token > token, "tokens rise");
        token = begins.token;
        if let Some(killed) = killed {
            let took = begins.at.saturating_sub(killed);
            assert!(took < LEASE + SLACK, "{took:?}");
        }
        tokio::time::sleep(LEASE * 2).await;
        for (name, other) in &workers {
            assert_eq!(other.events(), [], "{leader} leads, and {name} does not");
        }
        assert!(worker.events().iter().all(|event| event.what == "beats"));
        killed = Some(worker.kill());
    }
    assert_eq!(soon(watch.changed()).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_that_was_paused_ends_its_body_before_it_does_anything_else() {
    let server = Server::start();
    let first = Worker::start(&server, "lead a");
    let before = first.event("begins");
    let second = Worker::start(&server, "lead b");
    tokio::time::sleep(millis(300)).await;
    first.pause();
    let after = second.event("begins");
    assert!(after.token > before.token, "a store can refuse the first");
    first.events();
    let resumed = first.resume();
    let (meanwhile, told) = first.until("ends");
    assert_eq!(meanwhile, [], "it is told before it does anything");
    assert_eq!(told.token, before.token);
    let took = told.at.saturating_sub(resumed);
    assert!(took < SLACK, "{took:?}");
    // It is a candidate again, and leads when the other one goes.
    second.finish();
    let events: Vec<_> = std::iter::once(first.event("begins"))
        .chain(first.finish())
        .collect();
    assert!(events[0].token > after.token);
    assert!(events.iter().all(|event| event.token != before.token));
}

#[tokio::test]
async fn no_beat_of_a_deposed_leader_comes_after_the_pause() {
    let server = Server::start();
    let first = Worker::start(&server, "lead a");
    let term = first.event("begins");
    first.pause();
    tokio::time::sleep(LEASE * 2).await;
    first.events();
    first.resume();
    let (meanwhile, again) = first.until("begins");
    assert!(again.token > term.token);
    let beats = |event: &Event| event.what == "beats" && event.token == term.token;
    assert!(!meanwhile.iter().any(beats), "{meanwhile:?}");
    assert!(!first.finish().iter().any(beats));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn campaign_body_and_watch_outlast_an_outage_of_several_leases() {
    let server = Server::start();
    let (one, two) = (short_leased(&server).await, short_leased(&server).await);
    let (first, begun, ended) = leading(one.leader("k").identity("one"));
    let mut watch = two.leader("k").watch();
    assert_eq!(next_leader(&mut watch).await, "one");
    let (second, others, _) = leading(two.leader("k").identity("two"));
    let mut changed = begin(watch.changed());

    server.kill();
    eventually("the body is dropped", async || {
        ended.load(Ordering::SeqCst) == 1
    })
    .await;
    let other = one.leader("other");
    let mut late = begin(other.campaign());
    let outage = tokio::time::timeout(LEASE * 3, async {
        tokio::select! {
            term = &mut late => panic!("{term:?} without a server"),
            leader = &mut changed => panic!("{leader:?} without a server"),
        }
    });
    assert!(outage.await.is_err());
    server.restart();

    let beginnings = || begun.load(Ordering::SeqCst) + others.load(Ordering::SeqCst);
    eventually("somebody leads again", async || beginnings() == 2).await;
    drop(soon(late).await.unwrap());
    soon(changed).await.unwrap();
    for task in [first, second] {
        assert!(!task.is_finished());
        task.abort();
    }
}

#[tokio::test]
async fn leader_that_steps_down_is_replaced_at_once_and_watches_are_told() {
    let server = Server::start();
    let (one, two) = (patient(&server).await, patient(&server).await);
    let mut watch = two.leader("k").watch();
    assert_eq!(soon(watch.changed()).await.unwrap(), None);
    let first = one.leader("k").identity("one").campaign().await.unwrap();
    assert_eq!(soon(watch.changed()).await.unwrap(), Some(first.leader()));

    let next = two.leader("k").identity("two");
    let mut campaign = begin(next.campaign());
    let mut turn = begin(watch.changed());
    assert!(
        tokio::time::timeout(millis(300), &mut campaign)
            .await
            .is_err()
    );
    let before = Instant::now();
    let (stepped_down, second) = tokio::join!(first.step_down(), soon(&mut campaign));
    stepped_down.unwrap();
    let second = second.unwrap();
    assert!(before.elapsed() < secs(1), "{:?}", before.elapsed());
    // The end of a term may be seen before the next one.
    let mut leader = soon(&mut turn).await.unwrap();
    drop(turn);
    if leader.is_none() {
        leader = soon(watch.changed()).await.unwrap();
    }
    assert_eq!(leader, Some(second.leader()));

    let mut end = begin(watch.changed());
    eventually_watching(&server, &mut end).await;
    drop(second);
    assert_eq!(soon(&mut end).await.unwrap(), None);
    drop((end, campaign));
    drop(watch);
    eventually_idle(&one).await;
    eventually_idle(&two).await;
    let mut probe = server.connection();
    assert_eq!(probe.keys(), ["redisson_lock_token:{k}"]);
}

#[tokio::test]
async fn watch_is_told_of_a_new_leader_without_asking_meanwhile() {
    let server = Server::start();
    let (one, two) = (patient(&server).await, patient(&server).await);
    let first = one.leader("k").campaign().await.unwrap();
    let mut watch = two.leader("k").watch();
    soon(watch.changed()).await.unwrap();
    let mut end = begin(watch.changed());
    eventually_watching(&server, &mut end).await;
    // The answer to the last question may be on its way.
    assert!(tokio::time::timeout(millis(200), &mut end).await.is_err());
    let mut probe = server.connection();
    reset_calls(&mut probe);
    assert!(tokio::time::timeout(millis(500), &mut end).await.is_err());
    assert_eq!(scripts_run(&mut probe), 0);
    first.step_down().await.unwrap();
    assert_eq!(soon(&mut end).await.unwrap(), None);
    drop(end);

    let mut turn = begin(watch.changed());
    eventually_watching(&server, &mut turn).await;
    let second = one.leader("k").campaign().await.unwrap();
    assert_eq!(soon(&mut turn).await.unwrap(), Some(second.leader()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaders_are_elected_watched_and_replaced_in_a_cluster() {
    let cluster = Cluster::start();
    let patient = async || {
        scene::patient(builder(cluster.url()))
            .build()
            .await
            .unwrap()
    };
    let (one, two) = (patient().await, patient().await);
    for name in ["a", "b:{slot}", "c", "d"] {
        let mut watch = one.leader(name).watch();
        assert_eq!(soon(watch.changed()).await.unwrap(), None);
        let next = two.leader(name);
        let first = one.leader(name).campaign().await.unwrap();
        assert_eq!(soon(watch.changed()).await.unwrap(), Some(first.leader()));
        let mut campaign = begin(next.campaign());
        assert!(
            tokio::time::timeout(millis(200), &mut campaign)
                .await
                .is_err()
        );
        let mut changed = begin(watch.changed());
        assert!(
            tokio::time::timeout(millis(200), &mut changed)
                .await
                .is_err()
        );
        first.step_down().await.unwrap();
        let second = soon(&mut campaign).await.unwrap();
        let mut leader = soon(changed).await.unwrap();
        if leader.is_none() {
            leader = soon(watch.changed()).await.unwrap();
        }
        assert_eq!(leader, Some(second.leader()));
    }
}

#[tokio::test]
async fn watch_returns_how_things_stand_and_not_all_that_happened() {
    let (_server, one, two) = start_two().await;
    let election = one.leader("k");
    let mut watch = two.leader("k").watch();
    assert_eq!(soon(watch.changed()).await.unwrap(), None);
    let mut leaders = Vec::new();
    for _ in 0..5 {
        let term = election.campaign().await.unwrap();
        leaders.push(term.leader());
        term.step_down().await.unwrap();
    }
    let last = election.campaign().await.unwrap();
    assert_eq!(soon(watch.changed()).await.unwrap(), Some(last.leader()));
    // Each term differs from all others, though the candidate is the same.
    assert!(!leaders.contains(&last.leader()));
    let unchanged = tokio::time::timeout(millis(300), watch.changed()).await;
    assert!(unchanged.is_err());
}

#[tokio::test]
async fn candidates_exclude_each_other_whatever_they_are_called() {
    let (_server, one, two) = start_two().await;
    let same = [&one, &one, &two].map(|client| client.leader("k").identity("same"));
    let term = same[0].campaign().await.unwrap();
    for election in &same {
        let campaign = tokio::time::timeout(millis(200), election.campaign());
        assert!(campaign.await.is_err(), "there is a leader");
        let leader = election.current().await.unwrap().expect("a leader");
        assert_eq!((leader.identity(), &leader), ("same", &term.leader()));
    }
    // The campaigns that were dropped have withdrawn.
    term.step_down().await.unwrap();
    let term = soon(same[2].campaign()).await.unwrap();
    term.verify().await.unwrap();
    // An operator can depose a leader.
    assert!(one.fenced_lock("k").force_unlock().await.unwrap());
    soon(term.lost()).await;
    assert_eq!(kind(term.step_down().await), ErrorKind::LeaseLost);
}

#[tokio::test]
async fn body_that_returns_ends_the_run_and_the_term() {
    let (_server, client, other) = start_two().await;
    let election = client.leader("k");
    let mut rounds = 0;
    let led = election.lead(async |term| {
        rounds += 1;
        tokio::task::yield_now().await;
        (rounds, term.token(), term.leader())
    });
    let (rounds, token, leader) = led.await.unwrap();
    assert_eq!((rounds, leader.identity()), (1, client.id()));
    assert_eq!(election.current().await.unwrap(), None);
    let next = other.leader("k").lead(async |term| term.token()).await;
    assert!(next.unwrap() > token);
}

#[tokio::test]
async fn deposed_body_is_dropped_and_called_again() {
    let (_server, client, other) = start_two().await;
    let (task, begun, ended) = leading(client.leader("k"));
    for term in 1..=3 {
        eventually("it leads", async || begun.load(Ordering::SeqCst) == term).await;
        assert_eq!(ended.load(Ordering::SeqCst), term - 1);
        assert!(client.fenced_lock("k").force_unlock().await.unwrap());
        eventually("it is dropped", async || {
            ended.load(Ordering::SeqCst) >= term
        })
        .await;
    }
    eventually("it leads", async || begun.load(Ordering::SeqCst) == 4).await;
    task.abort();
    assert!(task.await.is_err());
    let next = soon(other.leader("k").campaign()).await.unwrap();
    next.verify().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn campaign_that_is_dropped_leaves_nobody_leading() {
    let scene = Scene::open(scene::patient).await;
    Polls::sweep(&scene.proxy, "campaign", async |name, polls| {
        let election = scene.client.leader(name);
        drop(polls.run(election.campaign()).await.transpose().unwrap());
        scene.requests_have_run().await;
        let next = soon(scene.other.leader(name).campaign()).await.unwrap();
        next.step_down().await.unwrap();
    })
    .await;
    Polls::sweep(&scene.proxy, "run", async |name, polls| {
        let election = scene.client.leader(name);
        let led = election.lead(async |_| tokio::task::yield_now().await);
        polls.run(led).await.transpose().unwrap();
        scene.requests_have_run().await;
        let next = soon(scene.other.leader(name).campaign()).await.unwrap();
        next.step_down().await.unwrap();
    })
    .await;
}

#[test]
fn elections_and_terms_move_freely() {
    fn everything<T: Send + Sync + Unpin + std::fmt::Debug + 'static>() {}
    fn moves<T: Send>(_: &T) {}
    everything::<Election>();
    everything::<redlatch::leader::Term>();
    everything::<redlatch::leader::Leader>();
    everything::<LeaderWatch>();
    let _ = |election: Election, mut watch: LeaderWatch, term: redlatch::leader::Term| {
        moves(&election.campaign());
        moves(&election.current());
        moves(&election.lead(async move |term| term.lost().await));
        moves(&watch.changed());
        moves(&term.step_down());
    };
}

#[tokio::test]
async fn what_trying_again_does_not_cure_ends_campaign_and_watch() {
    let (server, client) = start().await;
    let mut probe = server.connection();
    probe.command(&["SET", "string", "1"]);
    let no_body = async |_: &redlatch::leader::Term| ();
    for (election, expected) in [
        (client.leader(""), ErrorKind::InvalidInput),
        (client.leader("{k}"), ErrorKind::InvalidInput),
        (client.leader("string"), ErrorKind::WrongKind),
    ] {
        assert_eq!(kind(soon(election.campaign()).await), expected);
        assert_eq!(kind(soon(election.lead(no_body)).await), expected);
        assert_eq!(kind(election.current().await), expected);
        assert_eq!(kind(soon(election.watch().changed()).await), expected);
    }
    let unnamed = client.leader("k").identity("");
    assert_eq!(kind(unnamed.campaign().await), ErrorKind::InvalidInput);

    let election = client.leader("k");
    let term = election.campaign().await.unwrap();
    let campaign = begin(election.campaign());
    let mut watch = election.watch();
    soon(watch.changed()).await.unwrap();
    let changed = begin(watch.changed());
    client.close().await;
    assert!(term.is_lost());
    assert_eq!(kind(soon(campaign).await), ErrorKind::Closed);
    assert_eq!(kind(soon(changed).await), ErrorKind::Closed);
    assert_eq!(kind(election.campaign().await), ErrorKind::Closed);
    assert_eq!(kind(election.watch().changed().await), ErrorKind::Closed);
}
