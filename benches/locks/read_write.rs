//! 64 tasks of one process that mostly read, and sometimes write, under one name.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use redlatch::ReadWriteLock;

use crate::Failure;
use crate::effort::Effort;
use crate::report::{Chapter, Figure, Line, Target};
use crate::road::Road;
use crate::section::Section;
use crate::waits::Waits;

const TASKS: usize = 64;

/// How far away the server is, and how many of a hundred sections write.
struct Shape {
    title: &'static str,
    how: &'static str,
    label: &'static str,
    key: &'static str,
    writes: u32,
    sections_per_round_trip: f64,
    writer: Target,
    detour: bool,
}

pub(crate) async fn run(effort: &Effort) -> Result<Chapter, Failure> {
    let shape = Shape {
        title: "Read-write: 64 tasks of one process on one name, 95 % of the sections read",
        how: "Every section is empty. Five sections in a hundred, chosen at random, write; the others read. Blocks \
              alternate with blocks of one task's bare EVALSHAs, whose mean is the round trip; the figure is the \
              median over the pairs. A writer's wait is given in milliseconds, over all blocks together.",
        label: "64 tasks, 95 % read",
        key: "rw95",
        writes: 5,
        sections_per_round_trip: 3.0,
        writer: Target::AtMost(30.0),
        detour: false,
    };
    shape.measure(effort).await
}

pub(crate) async fn one_millisecond(effort: &Effort) -> Result<Chapter, Failure> {
    let shape = Shape {
        title: "Read-write: 64 tasks of one process on one name, 99 % of the sections read, at 1 ms",
        how: "The same with one section in a hundred that writes, through a proxy that adds 1 ms to each round \
              trip, including those of the floor.",
        label: "64 tasks, 99 % read, 1 ms",
        key: "rw99_1ms",
        writes: 1,
        sections_per_round_trip: 60.0,
        writer: Target::None,
        detour: true,
    };
    shape.measure(effort).await
}

impl Shape {
    async fn measure(self, effort: &Effort) -> Result<Chapter, Failure> {
        let road = Road::open(self.detour).await?;
        let written = Written::default();
        let mixed = Mixed {
            lock: road.client.read_write_lock("bench:product"),
            writes: self.writes,
            written: written.clone(),
        };
        let sections = road
            .measure(&vec![mixed; TASKS], effort.pairs.min(10), effort)
            .await?;
        road.client.close().await;
        let writers = written.take();
        let longest = writers.quantile(0.999).as_secs_f64() * 1_000.0;
        Ok(Chapter {
            title: self.title,
            how: self.how,
            lines: vec![
                sections.line(self.label, self.key, self.sections_per_round_trip),
                Line {
                    shape: format!("{}: wait of a writer, p99.9 in ms", self.label),
                    product: writers.summary(),
                    floor: String::new(),
                    figure: Some(Figure::new(
                        &format!("{}_writer_p999_ms", self.key),
                        longest,
                        self.writer,
                    )),
                },
            ],
            curves: Vec::new(),
            comparison: None,
        })
    }
}

/// The waits of the sections that wrote.
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

/// A section that reads or, for `writes` in a hundred, writes.
#[derive(Clone)]
struct Mixed {
    lock: ReadWriteLock,
    writes: u32,
    written: Written,
}

impl Section for Mixed {
    async fn pass(&self) -> Result<Duration, Failure> {
        let asked = Instant::now();
        let writes = fastrand::u32(..100) < self.writes;
        let guard = match writes {
            true => self.lock.write().await?,
            false => self.lock.read().await?,
        };
        let waited = asked.elapsed();
        if writes {
            self.written.add(waited);
        }
        guard.unlock().await?;
        Ok(waited)
    }
}
