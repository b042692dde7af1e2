//! What becomes of locks whose commands another client carries, next to redlatch's own connection:
//! docs/why-our-own-connection.md has the figures.
//!
//! `cargo bench --bench carriers`
//!
//! The lock over fred is the usual one: `SET NX PX`, and a script that deletes what is one's own. Its guard releases as
//! a guard over such a client has to: by a task that its `Drop` spawns.
#![allow(clippy::print_stdout, reason = "a report")]

use std::time::{Duration, Instant};

use fred::clients::Client as Fred;
use fred::interfaces::{ClientLike, KeysInterface, LuaInterface};
use fred::types::{Builder, Expiration, SetOptions};
use redlatch::Client;
use redlatch_testkit::Server;
use tokio::runtime::{Builder as Runtime, Handle};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const GUARDS: usize = 200;
const NAMES: usize = 64;
const LEASE: Duration = Duration::from_secs(30);
const RELEASE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";
/// How many rounds of the fates, and how long the sections go on.
const ROUNDS: usize = 10;
const SPAN: Duration = Duration::from_secs(3);

fn main() -> Result<(), Failure> {
    let server = Server::start();
    println!("guards that stay held, of {GUARDS} that are dropped as their runtime ends");
    let ends = |over: &str, left: Vec<usize>| {
        let sum: usize = left.iter().sum();
        println!("    {over}: {} in the mean, {left:?}", sum / left.len());
    };
    ends(
        "over fred",
        left(&server, |url| async move { drop_over_fred(&url).await })?,
    );
    ends(
        "own connection",
        left(&server, |url| async move { drop_over_own(&url).await })?,
    );

    let runtime = Runtime::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    println!(
        "calls that were given up while the server hung, and that it carried out, of {ROUNDS}"
    );
    println!(
        "    over fred: {}",
        runtime.block_on(given_up_over_fred(&server))?
    );
    println!(
        "    own connection: {}",
        runtime.block_on(given_up_over_own(&server))?
    );

    println!("sections a second, {NAMES} tasks with a name each");
    println!(
        "    over fred: {}",
        runtime.block_on(sections_over_fred(&server))?
    );
    println!(
        "    own connection: {}",
        runtime.block_on(sections_over_own(&server))?
    );
    Ok(())
}

/// Returns how many keys are left in each round, once the server has come to rest.
fn left<F: Future<Output = Result<(), Failure>>>(
    server: &Server,
    drops: impl Fn(String) -> F,
) -> Result<Vec<usize>, Failure> {
    let mut left = Vec::new();
    for _ in 0..ROUNDS {
        server.connection().command(&["FLUSHALL"]);
        Runtime::new_current_thread()
            .enable_all()
            .build()?
            .block_on(drops(server.url()))?;
        std::thread::sleep(Duration::from_millis(500));
        left.push(server.connection().keys().len());
    }
    Ok(left)
}

async fn drop_over_own(url: &str) -> Result<(), Failure> {
    let client = Client::connect(url).await?;
    let mut guards = Vec::new();
    for name in 0..GUARDS {
        guards.push(client.plain_lock(name.to_string()).lock().await?);
    }
    drop(guards);
    Ok(())
}

async fn drop_over_fred(url: &str) -> Result<(), Failure> {
    let fred = connect(url).await?;
    let mut guards = Vec::new();
    for name in 0..GUARDS {
        guards.push(Guard::take(&fred, name.to_string()).await?);
    }
    drop(guards);
    Ok(())
}

async fn connect(url: &str) -> Result<Fred, Failure> {
    let mut builder = Builder::from_config(fred::types::config::Config::from_url(url)?);
    builder.with_connection_config(|config| {
        config.max_command_attempts = 1;
        config.tcp.nodelay = Some(true);
    });
    let fred = builder.build()?;
    fred.init().await?;
    Ok(fred)
}

/// A lock over fred, until it is dropped.
struct Guard(Fred, String);

impl Guard {
    async fn take(fred: &Fred, name: String) -> Result<Self, Failure> {
        let lease = Expiration::PX(LEASE.as_millis() as i64);
        let taken: Option<String> = fred
            .set(&name, "own", Some(lease), Some(SetOptions::NX), false)
            .await?;
        taken.ok_or("it was free")?;
        Ok(Self(fred.clone(), name))
    }

    async fn release(fred: &Fred, name: String) -> Result<u64, Failure> {
        Ok(fred.eval(RELEASE, vec![name], vec!["own"]).await?)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let (fred, name) = (self.0.clone(), self.1.clone());
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move { Self::release(&fred, name).await.ok() });
        }
    }
}

/// Returns how many locks are held at the end, of those that were asked for by calls that were dropped.
async fn given_up_over_fred(server: &Server) -> Result<usize, Failure> {
    let fred = connect(&server.url()).await?;
    server.connection().command(&["FLUSHALL"]);
    for round in 0..ROUNDS {
        server.freeze();
        let call = Guard::take(&fred, format!("given up {round}"));
        let is_late = timeout(Duration::from_millis(50), call).await.is_err();
        server.thaw();
        assert!(is_late, "the server hung");
    }
    sleep(Duration::from_millis(500)).await;
    Ok(server.connection().keys().len())
}

async fn given_up_over_own(server: &Server) -> Result<usize, Failure> {
    let client = Client::connect(server.url()).await?;
    server.connection().command(&["FLUSHALL"]);
    for round in 0..ROUNDS {
        let lock = client.plain_lock(format!("given up {round}"));
        server.freeze();
        let is_late = timeout(Duration::from_millis(50), lock.lock())
            .await
            .is_err();
        server.thaw();
        assert!(is_late, "the server hung");
    }
    sleep(Duration::from_millis(500)).await;
    let left = server.connection().keys().len();
    client.close().await;
    Ok(left)
}

async fn sections_over_fred(server: &Server) -> Result<u64, Failure> {
    let fred = connect(&server.url()).await?;
    let sha: String = fred.script_load(RELEASE).await?;
    sections(move |name| {
        let (fred, sha) = (fred.clone(), sha.clone());
        async move {
            let lease = Expiration::PX(LEASE.as_millis() as i64);
            let _taken: Option<String> = fred
                .set(&name, "own", Some(lease), Some(SetOptions::NX), false)
                .await?;
            let _: u64 = fred.evalsha(sha, vec![name], vec!["own"]).await?;
            Ok(())
        }
    })
    .await
}

async fn sections_over_own(server: &Server) -> Result<u64, Failure> {
    let client = Client::connect(server.url()).await?;
    let shared = client.clone();
    let per_second = sections(move |name| {
        let lock = shared.plain_lock(name);
        async move { Ok(lock.lock().await?.unlock().await?) }
    })
    .await;
    client.close().await;
    per_second
}

async fn sections<F: Future<Output = Result<(), Failure>> + Send + 'static>(
    section: impl Fn(String) -> F + Clone + Send + Sync + 'static,
) -> Result<u64, Failure> {
    let started = Instant::now();
    let mut tasks = JoinSet::new();
    for task in 0..NAMES {
        let section = section.clone();
        tasks.spawn(async move {
            let mut done = 0;
            while started.elapsed() < SPAN {
                section(format!("name {task}")).await?;
                done += 1;
            }
            Ok::<u64, Failure>(done)
        });
    }
    let mut all = 0;
    for done in tasks.join_all().await {
        all += done?;
    }
    Ok((all as f64 / started.elapsed().as_secs_f64()) as u64)
}
