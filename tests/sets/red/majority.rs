//! What a majority of the servers grants, extends and releases, and when a hold has none any more. What cannot work is
//! refused.

use std::time::Duration;

use super::{Clients, Fleet, MARK, NAME, taken};
use crate::support::probe::{kind, millis, scripts_run, secs, soon};
use crate::support::{builder, eventually, sha};
use redlatch::config::ReleaseBy;
use redlatch::{ErrorKind, LossReason, Member, Owner, RedLock, ReentrantLock};
use redlatch_testkit::{Cluster, Proxy};

#[tokio::test]
async fn lock_is_had_on_every_server_and_given_back_on_every_server() {
    let fleet = Fleet::start(5);
    let clients = fleet.clients().await;
    let owner = Owner::unique();
    let lock = clients.lock().owned_by(&owner);
    let guard = taken(&lock).await;
    eventually("all five grant it", async || fleet.held(0..5) == 5).await;
    assert!(!guard.is_lost() && guard.remaining() > secs(20));
    assert_eq!(guard.owner(), &owner);
    guard.verify().await.unwrap();
    assert_eq!(guard.run_until_lost(async { 7 }).await.unwrap(), 7);
    assert!(clients.lock().try_lock().await.unwrap().is_none());
    let again = taken(&lock).await;
    again.unlock().await.unwrap();
    guard.verify().await.unwrap();
    guard.unlock().await.unwrap();
    fleet.eventually_free(0..5).await;
    drop(taken(&clients.lock()).await);
    fleet.nothing_left([&clients]).await;
}

#[tokio::test]
async fn plain_members_exclude_their_owner_too() {
    let fleet = Fleet::start(3);
    let clients = fleet.clients().await;
    let members = clients.0.iter().map(|client| client.plain_lock(NAME));
    let lock = RedLock::new(members).owned_by(&Owner::unique());
    let guard = taken(&lock).await;
    assert!(lock.try_lock().await.unwrap().is_none());
    guard.extend(secs(20)).await.unwrap();
    guard.verify().await.unwrap();
    guard.unlock().await.unwrap();
    taken(&lock).await.unlock().await.unwrap();
    fleet.nothing_left([&clients]).await;
}

#[tokio::test]
async fn what_cannot_work_is_refused_before_anything_is_taken() {
    let fleet = Fleet::start(3);
    let clients = fleet.clients().await;
    let [one, two, three] = &clients.0[..] else {
        panic!("three clients")
    };
    let refused = async |lock: RedLock, why: &str| {
        let error = soon(lock.try_lock()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(error.to_string().contains(why), "{error}");
    };
    refused(RedLock::new(Vec::<ReentrantLock>::new()), "one lock").await;
    refused(clients.leased(secs(61)), "max_lease").await;
    for bad in [millis(49), Duration::MAX] {
        refused(clients.lock().max_lease(bad), "max_lease must be").await;
    }
    refused(RedLock::new([one.fair_lock(NAME)]), "a fair lock").await;
    let members = [Member::from(one.lock(NAME)), two.fenced_lock(NAME).into()];
    refused(RedLock::new(members), "a fenced lock").await;
    let members = [one.plain_lock(NAME), two.plain_lock(NAME)];
    let by_transaction = members.map(|member| member.release_by(ReleaseBy::Transaction));
    refused(RedLock::new(by_transaction), "script").await;
    let members = [one.lock(NAME), two.lock(NAME), one.lock("other")];
    refused(RedLock::new(members), "one server").await;
    let again = builder(fleet.0[1].url()).build().await.unwrap();
    let members = [
        one.lock(NAME),
        two.lock(NAME),
        again.lock(NAME),
        three.lock(NAME),
    ];
    refused(RedLock::new(members), "one server").await;
    let members = [one, two].map(|client| client.lock(NAME).owned_by(&Owner::unique()));
    refused(RedLock::new(members), "owners").await;
    let guard = taken(&clients.lock()).await;
    assert_eq!(kind(guard.extend(secs(61)).await), ErrorKind::InvalidInput);
    guard.unlock().await.unwrap();
    fleet.nothing_left([&clients]).await;
}

#[tokio::test]
async fn majority_that_goes_for_several_reasons_is_no_majority_for_good() {
    let fleet = Fleet::start(3);
    let clients = fleet.clients().await;
    let guard = taken(&clients.lock()).await;
    clients.eventually_hold(0..3).await;
    clients.0[0].lock(NAME).force_unlock().await.unwrap();
    assert!(!guard.is_lost(), "two of three have it");
    fleet.0[1].connection().command(&["DEL", NAME]);
    guard.verify().await.unwrap_err();
    assert_eq!(soon(guard.lost()).await, LossReason::NoMajority);
    clients.0[2].lock(NAME).force_unlock().await.unwrap();
    assert_eq!(guard.lost().await, LossReason::NoMajority);
    let error = guard.unlock().await.unwrap_err();
    assert_eq!(error.loss_reason(), Some(LossReason::NoMajority));
    let words = LossReason::NoMajority.to_string();
    assert!(error.to_string().contains(&words), "{error}");
}

#[tokio::test]
async fn majority_that_a_release_finds_gone_names_what_the_servers_said() {
    let fleet = Fleet::start(3);
    let clients = fleet.clients().await;
    let guard = taken(&clients.lock()).await;
    clients.eventually_hold(0..3).await;
    for server in &fleet.0[..2] {
        server.connection().command(&["DEL", NAME]);
    }
    let error = guard.unlock().await.unwrap_err();
    assert_eq!(error.loss_reason(), Some(LossReason::Gone), "{error}");
}

#[tokio::test]
async fn release_that_nobody_waits_for_is_sent_once() {
    let fleet = Fleet::start(3);
    let proxy = Proxy::start(fleet.0[2].port()).await;
    let urls = [fleet.0[0].url(), fleet.0[1].url(), proxy.url()];
    let clients = Clients::of(urls, |it| it.command_timeout(secs(4))).await;
    clients.settle().await;
    fleet.eventually_free(0..3).await;
    let guard = taken(&clients.lock()).await;
    clients.eventually_hold(0..3).await;
    let mut probe = fleet.0[2].connection();
    let before = scripts_run(&mut probe);
    proxy.delay(millis(100));
    guard.unlock().await.unwrap();
    assert_eq!(fleet.held(2..3), 1, "the others were enough");
    fleet.nothing_left([&clients]).await;
    assert_eq!(scripts_run(&mut probe) - before, 1);
}

#[tokio::test]
async fn new_fleet_takes_no_more_than_a_majority() {
    let fleet = Fleet::start(3);
    let clients = fleet.clients().await;
    fleet.0[0].freeze();
    taken(&clients.lock()).await.unlock().await.unwrap();
    fleet.0[0].thaw();
    fleet.eventually_free(0..3).await;
}

// fault: S52
#[tokio::test]
async fn extension_counts_only_servers_where_the_lock_was_still_ours() {
    let fleet = Fleet::start(5);
    let clients = fleet.clients().await;
    let guard = taken(&clients.leased(secs(20))).await;
    clients.eventually_hold(0..5).await;
    for server in &fleet.0[..2] {
        server.connection().command(&["DEL", NAME]);
    }
    soon(guard.extend(secs(40))).await.unwrap();
    assert!(guard.remaining() > secs(30));
    fleet.0[2].connection().command(&["DEL", NAME]);
    assert_eq!(kind(guard.extend(secs(50)).await), ErrorKind::LeaseLost);
    assert!(guard.is_lost());
    soon(guard.lost()).await;
    assert_eq!(fleet.held(0..3), 0, "it is taken anew on none");
    assert_eq!(kind(guard.unlock().await), ErrorKind::LeaseLost);
    fleet.eventually_free(0..5).await;
}

#[tokio::test]
async fn majority_that_took_too_much_of_its_first_part_is_not_handed_out() {
    let fleet = Fleet::start(3);
    let proxy = Proxy::start(fleet.0[1].port()).await;
    let urls = [fleet.0[0].url(), proxy.url(), fleet.0[2].url()];
    let (lease, least) = (secs(10), millis(9_500));
    let clients = Clients::of(urls, |it| it.command_timeout(secs(5)).min_validity(least));
    let clients = clients.await;
    clients.settle().await;
    fleet.eventually_free(0..3).await;
    let owner = Owner::unique();
    let lock = clients.leased(lease).owned_by(&owner);
    let others = fleet.clients().await;
    let third = others.0[2].lock(NAME).lock().await.unwrap();
    // The second server is not asked while another call of the owner asks it, and the third is held by another owner.
    let mut asks = proxy.stop(sha("lock_acquire"));
    let alone = clients.0[1].lock(NAME).lease(lease).owned_by(&owner);
    let alone = tokio::spawn(async move { alone.try_lock().await });
    soon(asks.reached()).await;
    let taking = tokio::spawn(async move { lock.try_lock().await });
    eventually("the first has granted it", async || fleet.held(0..1) == 1).await;
    tokio::time::sleep(lease - least).await;
    asks.open();
    let alone = soon(alone).await.unwrap().unwrap().expect("it was free");
    assert_eq!(kind(soon(taking).await.unwrap()), ErrorKind::LeaseLost);
    alone.unlock().await.unwrap();
    third.unlock().await.unwrap();
    fleet.nothing_left([&clients, &others]).await;
}

#[tokio::test]
async fn cluster_is_one_member_with_its_mark_beside_the_lock() {
    let (cluster, fleet) = (Cluster::start(), Fleet::start(2));
    let urls = [cluster.url(), fleet.0[0].url(), fleet.0[1].url()];
    let clients = Clients::of(urls, |it| it).await;
    let guard = taken(&clients.lock()).await;
    clients.eventually_hold(0..3).await;
    let mut home = cluster.owner(NAME).0.connection();
    assert!(home.exists(NAME) && home.exists(&format!("{MARK}:{{{NAME}}}")));
    fleet.0[0].kill();
    guard.extend(secs(20)).await.unwrap();
    guard.verify().await.unwrap();
    guard.unlock().await.unwrap();
    taken(&clients.lock()).await.unlock().await.unwrap();
    fleet.eventually_free(1..2).await;
    eventually("the cluster has it no more", async || !home.exists(NAME)).await;
}

#[tokio::test]
async fn name_in_use_by_something_else_is_the_wrong_kind() {
    let fleet = Fleet::start(3);
    let clients = fleet.clients().await;
    clients.settle().await;
    for server in &fleet.0[..2] {
        server.connection().command(&["SET", NAME, "7"]);
    }
    let error = soon(clients.lock().try_lock()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongKind, "{error}");
    fleet.0[0].connection().command(&["DEL", NAME]);
    taken(&clients.lock()).await.unlock().await.unwrap();
}
