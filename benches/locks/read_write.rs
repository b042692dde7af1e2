//! 64 tasks of one process that read, and write now and then, under one name.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use redlatch::{Client, ReadWriteLock, ReentrantLock};
use redlatch_testkit::Server;
use tokio::time::sleep;

use crate::Failure;
use crate::alternation::Alternation;
use crate::crowd::Crowd;
use crate::effort::Effort;
use crate::report::{Chapter, Figure, Line, Target, rate};
use crate::section::Section;
use crate::waits::Waits;

const TASKS: usize = 64;
/// Of a hundred sections, those that write.
const WRITES: u32 = 5;
/// What a section takes that is not empty.
const WORK: Duration = Duration::from_millis(1);

pub(crate) async fn run(effort: &Effort) -> Result<Chapter, Failure> {
    let server = Server::start();
    let client = Client::connect(server.url()).await?;
    let written = Written::default();
    let mixed = Mixed {
        lock: client.read_write_lock("bench:product"),
        written: written.clone(),
    };
    let plain = client.lock("bench:bottom!");
    let empty = Alternation::run(
        effort.pairs.min(10),
        async || per_second(&mixed, effort.block).await,
        async || per_second(&plain, effort.block).await,
    )
    .await?;
    let writes = written.take();
    let long = Alternation::run(
        2,
        async || per_second(&Working(mixed.clone()), effort.block).await,
        async || per_second(&Working(plain.clone()), effort.block).await,
    )
    .await?;
    let long_writes = written.take();
    client.close().await;

    let sections = |shape: &str, measured: &Alternation, figure: Option<Figure>| Line {
        shape: format!("64 tasks, 95 % read, {shape}: sections"),
        product: rate(measured.median(|mixed, _| mixed)),
        floor: format!(
            "{}, our reentrant lock",
            rate(measured.median(|_, plain| plain))
        ),
        figure,
    };
    let ratio = empty.median(|mixed, plain| mixed / plain);
    let longest = writes.quantile(0.999).as_secs_f64() * 1_000.0;
    Ok(Chapter {
        title: "Read-write: 64 tasks of one process on one name, 95 % of the sections read",
        how: "Each section reads, but five in a hundred, chosen by chance, write. Blocks alternate with blocks of as \
              many tasks under one reentrant lock; the ratio is the median over the pairs. A writer's wait is given in \
              milliseconds, of all the blocks together. With empty sections, and with sections of 1 ms.",
        lines: vec![
            sections(
                "empty",
                &empty,
                Some(Figure::new(
                    "rw95_over_reentrant",
                    ratio,
                    Target::AtLeast(1.5),
                )),
            ),
            Line {
                shape: "64 tasks, 95 % read, empty: wait of a writer, p99.9 in ms".to_owned(),
                product: writes.summary(),
                floor: String::new(),
                figure: Some(Figure::new(
                    "rw95_writer_p999_ms",
                    longest,
                    Target::AtMost(100.0),
                )),
            },
            sections("1 ms", &long, None),
            Line {
                shape: "64 tasks, 95 % read, 1 ms: wait of a writer".to_owned(),
                product: long_writes.summary(),
                floor: String::new(),
                figure: None,
            },
        ],
        curves: Vec::new(),
    })
}

async fn per_second(section: &(impl Section + Clone), span: Duration) -> Result<f64, Failure> {
    Ok(Crowd::run(vec![section.clone(); TASKS], span)
        .await?
        .per_second())
}

/// The waits of those that wrote.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<Duration>>>);

impl Written {
    fn add(&self, wait: Duration) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(wait);
    }

    fn take(&self) -> Waits {
        let mut waits = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Waits::new(std::mem::take(&mut waits))
    }
}

/// Reads, or writes now and then.
#[derive(Clone)]
struct Mixed {
    lock: ReadWriteLock,
    written: Written,
}

impl Mixed {
    async fn pass(&self, work: Duration) -> Result<Duration, Failure> {
        let asked = Instant::now();
        let writes = fastrand::u32(..100) < WRITES;
        let guard = match writes {
            true => self.lock.write().await?,
            false => self.lock.read().await?,
        };
        let waited = asked.elapsed();
        if writes {
            self.written.add(waited);
        }
        if !work.is_zero() {
            sleep(work).await;
        }
        guard.unlock().await?;
        Ok(waited)
    }
}

impl Section for Mixed {
    async fn pass(&self) -> Result<Duration, Failure> {
        self.pass(Duration::ZERO).await
    }
}

/// A section that takes a while.
#[derive(Clone)]
struct Working<L>(L);

impl Section for Working<Mixed> {
    async fn pass(&self) -> Result<Duration, Failure> {
        self.0.pass(WORK).await
    }
}

impl Section for Working<ReentrantLock> {
    async fn pass(&self) -> Result<Duration, Failure> {
        let asked = Instant::now();
        let guard = self.0.lock().await?;
        let waited = asked.elapsed();
        sleep(WORK).await;
        guard.unlock().await?;
        Ok(waited)
    }
}
