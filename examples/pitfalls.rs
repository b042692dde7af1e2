//! Handmade locks, each shown failing, next to those of redlatch; and a task that waits for its parent.
//!
//! `cargo run --example pitfalls`

use std::sync::Mutex;
use std::time::Duration;

use redlatch::{Client, Error, ErrorKind, LockGuard, Owner, ReentrantLock};
use redlatch_testkit::{Connection, Playground, Reply};
use tokio::time::sleep;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const LEASE: Duration = Duration::from_millis(200);
const COMPARE_AND_DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

/// A connection for the processes that make their locks by hand, and two clients of redlatch.
struct Scene {
    by_hand: Mutex<Connection>,
    first: Client,
    second: Client,
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let server = Playground::open();
    let scene = Scene {
        by_hand: Mutex::new(server.connection()),
        first: Client::connect(server.url()).await?,
        second: Client::connect(server.url()).await?,
    };
    scene.setnx_then_expire().await?;
    scene.bare_del().await?;
    scene.get_then_del().await?;
    scene.value_that_is_not_unique().await?;
    scene.lease_shorter_than_the_work().await?;
    scene.child_that_waits_for_its_parent().await?;
    scene.first.close().await;
    scene.second.close().await;
    Ok(())
}

impl Scene {
    async fn setnx_then_expire(&self) -> Result<(), Failure> {
        println!("SETNX, then EXPIRE; the process dies in between");
        self.send(&["SETNX", "a", "1"])?;
        let ttl = self.send(&["PTTL", "a"])?;
        assert_eq!(ttl, Reply::Int(-1));
        println!("  by hand: the lock never expires, and nobody is left to release it");
        self.send(&["DEL", "a"])?;

        std::mem::forget(self.first.lock("a").lease(LEASE).lock().await?);
        self.second.lock("a").lock().await?.unlock().await?;
        println!(
            "  redlatch: one script sets the lock and its lease; the next client got in when the lease ended"
        );
        Ok(())
    }

    async fn bare_del(&self) -> Result<(), Failure> {
        println!("a bare DEL, after the lease has ended");
        self.take("b", "first")?;
        sleep(LEASE * 2).await;
        assert!(self.take("b", "second")?);
        self.send(&["DEL", "b"])?;
        assert!(self.take("b", "third")?);
        println!(
            "  by hand: the first deleted the second's lock, and a third got in at the same time"
        );
        self.send(&["DEL", "b"])?;
        self.late_unlock("b").await
    }

    async fn get_then_del(&self) -> Result<(), Failure> {
        println!("GET, compare, then DEL; the lease ends in between");
        self.take("c", "first")?;
        let mine = self.send(&["GET", "c"])? == Reply::Text(b"first".to_vec());
        sleep(LEASE * 2).await;
        assert!(self.take("c", "second")?);
        if mine {
            self.send(&["DEL", "c"])?;
        }
        assert!(self.take("c", "third")?);
        println!("  by hand: the first compared, and deleted the second's lock nevertheless");
        self.send(&["DEL", "c"])?;
        self.late_unlock("c").await
    }

    async fn value_that_is_not_unique(&self) -> Result<(), Failure> {
        println!("compare-and-delete, with a value that two processes share");
        self.take("d", "locked")?;
        sleep(LEASE * 2).await;
        assert!(self.take("d", "locked")?);
        let late = self.send(&["EVAL", COMPARE_AND_DELETE, "1", "d", "locked"])?;
        assert_eq!(late, Reply::Int(1));
        println!("  by hand: the value matched, and the second's lock is gone");
        self.late_unlock("d").await
    }

    async fn lease_shorter_than_the_work(&self) -> Result<(), Failure> {
        println!("a lease shorter than the work");
        self.take("e", "first")?;
        sleep(LEASE * 2).await;
        assert!(self.take("e", "second")?);
        println!("  by hand: two processes work at the same time");
        self.send(&["DEL", "e"])?;

        let client = self.first.clone().watchdog_lease(LEASE);
        let guard = client.lock("e").lock().await?;
        sleep(LEASE * 4).await;
        assert!(self.second.lock("e").try_lock().await?.is_none());
        guard.unlock().await?;
        println!(
            "  redlatch: the lease was renewed for four times its length, and nobody else got in"
        );
        Ok(())
    }

    async fn child_that_waits_for_its_parent(&self) -> Result<(), Failure> {
        println!("a child task that waits for its parent");
        let lock = self.first.clone().watchdog_lease(LEASE).lock("f");
        let guard = lock.lock().await?;
        let child = |lock: ReentrantLock| async move { lock.try_lock_for(LEASE * 3).await };
        let stranger = tokio::spawn(child(lock.clone()));
        assert!(stranger.await??.is_none());
        println!(
            "  by itself: another owner, which waited in vain; the log says so after one lease"
        );

        let helper = tokio::spawn(Owner::current().scope(child(lock)));
        assert!(helper.await??.is_some());
        guard.unlock().await?;
        println!("  with Owner::current().scope(..): the child has what its parent has");
        Ok(())
    }

    /// Has the first client unlock after its lease has ended, and checks that the second client's hold survives.
    async fn late_unlock(&self, name: &str) -> Result<(), Failure> {
        let late = self.first.lock(name).lease(LEASE).lock().await?;
        let held: LockGuard = self.second.lock(name).lock().await?;
        let told: Result<(), Error> = late.unlock().await;
        assert!(told.is_err_and(|error| error.kind() == ErrorKind::LeaseLost));
        held.verify().await?;
        held.unlock().await?;
        println!(
            "  redlatch: the first is told that it lost the lock, and the second still holds it"
        );
        Ok(())
    }

    /// Acquires a handmade lock with `SET NX PX`. Returns `false` if the lock is held.
    fn take(&self, name: &str, value: &str) -> Result<bool, Failure> {
        let lease = LEASE.as_millis().to_string();
        let answer = self.send(&["SET", name, value, "NX", "PX", &lease])?;
        Ok(answer != Reply::Nil)
    }

    fn send(&self, command: &[&str]) -> Result<Reply, Failure> {
        let by_hand = self.by_hand.lock();
        match by_hand.map_err(|_| "broken before")?.command(command) {
            Reply::Error(text) => Err(text.into()),
            reply => Ok(reply),
        }
    }
}
