//! Many items, and several processes that go through them: each item is done by one of them, and each of them does its
//! share.

use std::collections::BTreeMap;
use std::sync::Mutex;

use futures_util::StreamExt;
use futures_util::stream::iter;
use redlatch::{Client, Error};
use redlatch_testkit::{Connection, Server};
use tokio::time::sleep;

use crate::support::probe::millis;
use crate::worker::{Worker, read_line, say};

const PROCESSES: usize = 3;
/// How many items a process works on at a time.
const AT_A_TIME: usize = 8;
const ITEMS: usize = 10 * PROCESSES * AT_A_TIME;
/// The hash in which an item has the process that did it.
const DONE: &str = "done";
/// How many items were begun.
const BEGUN: &str = "begun";

/// Goes through all items, in the order in which every process does.
pub(crate) async fn go_through(client: &Client, redis: Connection) {
    let redis = Mutex::new(redis);
    let ask = |command: &[&str]| redis.lock().expect("nobody panics").command(command);
    let work = async |item: usize| {
        let item = item.to_string();
        if ask(&["HEXISTS", DONE, &item]).int() == 1 {
            return Ok::<_, Error>(());
        }
        // Nobody's work ends before each process has all the work that it can do at a time.
        let add = |more| ask(&["INCRBY", BEGUN, more]).int() as usize;
        let round = add("1").next_multiple_of(PROCESSES * AT_A_TIME);
        while add("0") < round {
            sleep(millis(50)).await;
        }
        let is_first = ask(&["HSETNX", DONE, &item, client.id()]).int();
        assert_eq!(is_first, 1, "{item} was done twice");
        Ok(())
    };
    let each = async |item| {
        let lock = client.lock(format!("item:{item}"));
        lock.try_run(work(item)).await.expect("the server is up");
    };
    iter(0..ITEMS).for_each_concurrent(AT_A_TIME, each).await;
    say("done", 0);
    read_line();
}

#[test]
fn processes_that_skip_what_is_busy_always_find_work_and_do_an_equal_share() {
    let server = Server::start();
    let workers = [(); PROCESSES].map(|()| Worker::start(&server, "items"));
    for worker in &workers {
        worker.event("done");
    }
    let mut shares = BTreeMap::new();
    for process in server.connection().hgetall(DONE).into_values() {
        *shares.entry(process).or_insert(0) += 1;
    }
    let shares: Vec<usize> = shares.into_values().collect();
    assert_eq!(shares, [ITEMS / PROCESSES; PROCESSES]);
    drop(workers.map(Worker::finish));
}
