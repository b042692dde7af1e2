//! Plain locks by transaction in a cluster whose slots move.

use crate::support::builder;
use crate::support::probe::{secs, soon};
use crate::support::scene::patient;
use redlatch::config::ReleaseBy;
use redlatch_testkit::Cluster;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_lock_by_transaction_is_found_while_its_slot_is_half_moved() {
    let cluster = Cluster::start();
    let client = patient(builder(cluster.url())).build().await.unwrap();
    let lock = |name| {
        let lock = client.plain_lock(name);
        lock.release_by(ReleaseBy::Transaction)
    };
    let stays = soon(lock("{job}:stays").lock()).await.unwrap();
    let (from, to) = cluster.owner("job");
    let begun = cluster.begin_move(cluster.slot("job"), from, to);
    let new = soon(lock("{job}:new").lock()).await.unwrap();
    assert_eq!(to.connection().keys(), ["{job}:new"]);
    for guard in [stays, new] {
        guard.verify().await.unwrap();
        guard.extend(secs(600)).await.unwrap();
        soon(guard.unlock()).await.unwrap();
    }
    for server in [from, to] {
        assert_eq!(server.connection().keys(), [""; 0]);
    }
    begun.keys(usize::MAX);
    begun.finish();
    client.close().await;
}
