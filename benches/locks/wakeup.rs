//! The time from an unlock in one process to the acquired lock in another.

use std::time::Duration;

use redlatch::Client;
use redlatch_testkit::Server;
use tokio::time::{sleep, timeout};

use crate::Failure;
use crate::carrier::Fred;
use crate::clock;
use crate::effort::Effort;
use crate::floor::{Bare, Floor, channel};
use crate::report::{Chapter, Figure, Line, Target};
use crate::waits::Waits;
use crate::worker::{self, Lines, Worker, number};

/// The role of the worker that waits.
pub(crate) const ROLE: &str = "wakeup";
const NAME: &str = "bench:product";
const FLOOR_NAME: &str = "bench:bottom!";
/// A channel without subscribers: a release by the worker must not wake the worker.
const MUTE: &str = "bench:nobody";
/// Time for the waiter to ask, subscribe, ask again and come to rest.
const REST: Duration = Duration::from_millis(5);
/// A waiter that asked later than this before the unlock may not have come to rest: the round is not counted.
const LEAST_REST: Duration = Duration::from_millis(3);
const MESSAGE_LIMIT: Duration = Duration::from_secs(5);
const WARM_UP: usize = 5;
/// The requests to the worker: what to wait for.
const PRODUCT: &str = "product";
const FLOOR: &str = "floor";

pub(crate) async fn run(effort: &Effort) -> Result<Chapter, Failure> {
    let server = Server::start();
    let floor = Floor::of_fred(&server.url()).await?;
    let mut rounds = Rounds {
        client: Client::connect(server.url()).await?,
        bare: floor.section(FLOOR_NAME, 1).await?,
        waiter: Worker::start(&[ROLE, &server.url()]).await?,
    };
    for _ in 0..WARM_UP {
        rounds.product().await?;
        rounds.floor().await?;
    }
    let (mut products, mut floors) = (Vec::new(), Vec::new());
    for _ in 0..effort.wakeups {
        products.extend(rounds.product().await?);
        floors.extend(rounds.floor().await?);
    }
    rounds.client.close().await;

    let (product, floor) = (Waits::new(products), Waits::new(floors));
    let ratio = product.median().as_secs_f64() / floor.median().as_secs_f64();
    Ok(Chapter {
        title: "Wake-up",
        how: "One process unlocks while another one waits: the time from the call of `unlock` to the return of \
              `lock`, on the clock that all processes share. Floor: a release script that publishes, the message \
              on a subscribed connection, and one EVALSHA. The two alternate round by round; the ratio is that of \
              the medians.",
        lines: vec![Line {
            shape: format!(
                "unlock here to acquired there, {} and {} rounds",
                product.count(),
                floor.count()
            ),
            product: product.summary(),
            floor: floor.summary(),
            figure: Some(Figure::new("wakeup_ratio", ratio, Target::AtMost(1.3))),
        }],
        curves: Vec::new(),
        comparison: None,
    })
}

/// The process that unlocks, and the worker that waits.
struct Rounds {
    client: Client,
    bare: Bare,
    waiter: Worker,
}

impl Rounds {
    /// Measures one wake-up. Returns `None` if the waiter was late.
    async fn product(&mut self) -> Result<Option<Duration>, Failure> {
        let guard = self.client.lock(NAME).lock().await?;
        self.waiter.tell(PRODUCT)?;
        sleep(REST).await;
        let unlocked = clock::now();
        guard.unlock().await?;
        self.woken(unlocked).await
    }

    async fn floor(&mut self) -> Result<Option<Duration>, Failure> {
        self.bare.acquire.send().await?;
        self.waiter.tell(FLOOR)?;
        sleep(REST).await;
        let unlocked = clock::now();
        self.bare.release.send().await?;
        self.woken(unlocked).await
    }

    async fn woken(&mut self, unlocked: Duration) -> Result<Option<Duration>, Failure> {
        let line = self.waiter.hear(MESSAGE_LIMIT).await?;
        let mut words = line.split(' ');
        let asked = Duration::from_nanos(number(words.next())?);
        let acquired = Duration::from_nanos(number(words.next())?);
        let rested = asked + LEAST_REST < unlocked;
        Ok(rested.then(|| acquired.saturating_sub(unlocked)))
    }
}

/// Runs the worker: waits as requested, reports when it asked and when it had the lock, and releases the lock.
pub(crate) async fn work(url: &str) -> Result<(), Failure> {
    let mut orders = Lines::orders();
    let client = Client::connect(url).await?;
    let (floor, listener) = (Floor::of_fred(url).await?, Fred::connect(url).await?);
    let bare = floor.section_heard_on(MUTE, FLOOR_NAME, 2).await?;
    let mut messages = listener.listen(&channel(FLOOR_NAME)).await?;
    worker::answer("ready")?;
    while let Some(order) = orders.next().await {
        let asked = clock::now();
        let acquired = match order.as_str() {
            PRODUCT => {
                let guard = client.lock(NAME).lock().await?;
                let acquired = clock::now();
                guard.unlock().await?;
                acquired
            }
            FLOOR => {
                timeout(MESSAGE_LIMIT, messages.recv()).await??;
                bare.acquire.send().await?;
                let acquired = clock::now();
                bare.release.send().await?;
                acquired
            }
            _ => return Err(format!("no order: {order:?}").into()),
        };
        worker::answer(&format!("{} {}", asked.as_nanos(), acquired.as_nanos()))?;
    }
    Ok(())
}
