//! A lock over five servers: the time to acquire it, next to that of five bare requests at the same time.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use fred::types::Value;
use redlatch::{Client, RedLock};
use redlatch_testkit::Server;
use tokio::time::sleep;

use crate::Failure;
use crate::detour::Detour;
use crate::effort::Effort;
use crate::floor::{Bare, Floor};
use crate::report::{Chapter, Figure, Line, Target};
use crate::waits::Waits;

const SERVERS: usize = 5;
const MAJORITY: usize = 3;
const NAME: &str = "bench:product";
/// Of the same length as the product's.
const FLOOR_NAME: &str = "bench:bottom!";
/// The least pause between two calls.
const REST: Duration = Duration::from_millis(2);
/// Calls before the first that is counted.
const WARM_UP: usize = 200;

pub(crate) async fn loopback(effort: &Effort) -> Result<Chapter, Failure> {
    let fleet = Fleet::open(false).await?;
    let line = fleet
        .measure(
            effort.calls,
            "redlock5_ratio",
            Target::AtMost(1.15),
            MAJORITY,
        )
        .await?;
    Ok(Chapter {
        title: "RedLock: five servers",
        how: "One task acquires a RedLock over five servers that nobody else wants. Its calls alternate with five \
              bare EVALSHAs of the same script, sent at the same time over bare connections and awaited until the \
              third answer. The remaining answers and the releases are not counted, and end before the next call. \
              The ratio is that of the medians.",
        lines: vec![line],
        curves: Vec::new(),
        comparison: None,
    })
}

pub(crate) async fn one_millisecond(effort: &Effort) -> Result<Chapter, Failure> {
    let fleet = Fleet::open(true).await?;
    let span = effort.calls / 2;
    let one = fleet
        .measure(span, "redlock5_1ms_ratio", Target::AtMost(1.1), 1)
        .await?;
    let five = fleet
        .measure(span, "redlock5_1ms_five_ratio", Target::None, MAJORITY)
        .await?;
    Ok(Chapter {
        title: "RedLock: five servers, at 1 ms",
        how: "The same through proxies that add 1 ms to each round trip. The calls alternate with one bare EVALSHA \
              to one server, which is one round trip, and then with five at the same time, whose proxies share \
              this machine's processors.",
        lines: vec![
            one,
            Line {
                shape: "the same, beside five at once".to_owned(),
                ..five
            },
        ],
        curves: Vec::new(),
        comparison: None,
    })
}

struct Fleet {
    lock: RedLock,
    clients: Vec<Client>,
    bare: Vec<Bare>,
    _floors: Vec<Floor>,
    _detour: Option<Detour>,
    _servers: Vec<Server>,
}

impl Fleet {
    async fn open(detour: bool) -> Result<Arc<Self>, Failure> {
        let (mut clients, mut floors) = (Vec::new(), Vec::new());
        let servers: Vec<Server> = (0..SERVERS).map(|_| Server::start()).collect();
        let detour = match detour {
            true => Some(Detour::open(servers.iter().map(Server::port)).await?),
            false => None,
        };
        let urls = match &detour {
            Some(detour) => detour.urls.clone(),
            None => servers.iter().map(Server::url).collect(),
        };
        for url in &urls {
            let client = Client::builder().url(url).trust_fresh_servers(true);
            clients.push(client.build().await?);
            floors.push(Floor::of_pipe(url).await?);
        }
        let lock = RedLock::new(clients.iter().map(|client| client.lock(NAME)));
        // Leaves the server epoch on each server.
        lock.lock().await?.unlock().await?;
        let mut bare = Vec::new();
        for floor in &floors {
            bare.push(floor.vote(FLOOR_NAME, 1).await?);
        }
        Ok(Arc::new(Self {
            lock,
            clients,
            bare,
            _floors: floors,
            _detour: detour,
            _servers: servers,
        }))
    }

    /// Measures both in turns for `span`. The floor sends to all servers and waits for `answers` answers; if that is
    /// one, it sends to one server only.
    async fn measure(
        self: &Arc<Self>,
        span: Duration,
        key: &str,
        target: Target,
        answers: usize,
    ) -> Result<Line, Failure> {
        let fleet = self.clone();
        let calls = tokio::spawn(async move {
            let (mut products, mut floors) = (Vec::new(), Vec::new());
            for _ in 0..WARM_UP {
                fleet.product().await?;
                fleet.floor(answers).await?;
            }
            let started = Instant::now();
            while started.elapsed() < span {
                products.push(fleet.product().await?);
                floors.push(fleet.floor(answers).await?);
            }
            Ok::<_, Failure>((Waits::new(products), Waits::new(floors)))
        });
        let (product, floor) = calls.await??;
        let ratio = product.median().as_secs_f64() / floor.median().as_secs_f64();
        Ok(Line {
            shape: "lock, five servers".to_owned(),
            product: product.summary(),
            floor: floor.summary(),
            figure: Some(Figure::new(key, ratio, target)),
        })
    }

    async fn product(&self) -> Result<Duration, Failure> {
        let asked = Instant::now();
        let guard = self.lock.lock().await?;
        let waited = asked.elapsed();
        guard.unlock().await?;
        self.rest().await;
        Ok(waited)
    }

    /// Waits until the requests that were not awaited have ended. Product and floor both begin after such a rest,
    /// because a processor that was busy just before is faster.
    async fn rest(&self) {
        let is_idle = |client: &Client| format!("{client:?}").contains("locks: 0,");
        loop {
            sleep(REST).await;
            if self.clients.iter().all(is_idle) {
                return;
            }
        }
    }

    async fn floor(&self, answers: usize) -> Result<Duration, Failure> {
        let servers = if answers == 1 { 1 } else { SERVERS };
        let bare = &self.bare[..servers];
        let asked = Instant::now();
        let mut asks: Vec<Ask<'_>> = bare
            .iter()
            .map(|bare| Ask::Awaited(Box::pin(bare.take())))
            .collect();
        answered(&mut asks, answers).await?;
        let waited = asked.elapsed();
        answered(&mut asks, servers).await?;
        for (bare, ask) in bare.iter().zip(asks) {
            if let Ask::Taken(number) = ask {
                bare.give_back(number).await?;
            }
        }
        self.rest().await;
        Ok(waited)
    }
}

enum Ask<'a> {
    Awaited(Pin<Box<dyn Future<Output = Result<Value, Failure>> + Send + 'a>>),
    Taken(Value),
}

/// Waits until at least `answers` requests are answered.
async fn answered(asks: &mut [Ask<'_>], answers: usize) -> Result<(), Failure> {
    poll_fn(|context| {
        let mut taken = 0;
        for ask in asks.iter_mut() {
            if let Ask::Awaited(asked) = ask
                && let Poll::Ready(answer) = asked.as_mut().poll(context)
            {
                *ask = Ask::Taken(answer?);
            }
            taken += usize::from(matches!(ask, Ask::Taken(_)));
        }
        match taken >= answers {
            true => Poll::Ready(Ok(())),
            false => Poll::Pending,
        }
    })
    .await
}
