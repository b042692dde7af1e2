//! Processes that want one name, with one task each or with eight; and herds, most with work in their sections.

use std::time::Duration;

use redlatch::Client;
use redlatch_testkit::Server;

use crate::Failure;
use crate::clock;
use crate::crowd::Crowd;
use crate::effort::Effort;
use crate::floor::Floor;
use crate::report::{Chapter, Curve, Figure, Line, Target, of_fair, rate};
use crate::section::Lasting;
use crate::stats::{self, Stats};
use crate::waits::Waits;
use crate::worker::{self, Lines, Worker};

/// The role of a worker that takes part.
pub(crate) const ROLE: &str = "crowd";
const NAME: &str = "bench:product";
/// The time until the common start, so that the last process is told before it.
const HEAD_START: Duration = Duration::from_millis(100);
const WORK: Duration = Duration::from_millis(10);

/// How many want the name, and what they do with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    processes: usize,
    tasks: usize,
    work: Duration,
}

impl Shape {
    const fn crowd(processes: usize, tasks: usize) -> Self {
        Self {
            processes,
            tasks,
            work: Duration::ZERO,
        }
    }

    const fn herd(processes: usize, work: Duration) -> Self {
        Self {
            processes,
            tasks: 1,
            work,
        }
    }
}

const CROWDS: [Shape; 4] = [
    Shape::crowd(2, 1),
    Shape::crowd(2, 8),
    Shape::crowd(8, 1),
    LARGEST,
];
const LARGEST: Shape = Shape::crowd(8, 8);
const HERDS: [Shape; 4] = [
    Shape::herd(8, WORK),
    Shape::herd(32, WORK),
    Shape::herd(100, WORK),
    Shape::herd(200, Duration::ZERO),
];

pub(crate) async fn run(effort: &Effort) -> Result<Chapter, Failure> {
    let (mut lines, mut curves) = (Vec::new(), Vec::new());
    for shape in CROWDS {
        let span = if shape == LARGEST {
            effort.crowd
        } else {
            effort.smaller_crowds
        };
        let measured = Measured::new(shape, span, effort.block).await?;
        lines.extend(measured.lines());
        curves.push(Curve::new(
            "processes",
            &measured.label(),
            &measured.whole,
            shape.processes * shape.tasks,
        ));
    }
    Ok(Chapter {
        title: "Contended: processes on one name",
        how: "Processes start together and pass empty sections under one name for one span without a break; the \
              round trip is the mean of one task's bare EVALSHAs before and after it. The share of a process is \
              the number of sections that it passed within the span, compared with an equal part. Commands are \
              those that clients sent, as the server counts them (without commands inside scripts), from the start \
              until the last process has released the lock, per section passed.",
        lines,
        curves,
        comparison: None,
    })
}

pub(crate) async fn herds(effort: &Effort) -> Result<Chapter, Failure> {
    let mut lines = Vec::new();
    for shape in HERDS {
        // Long enough for each process to have several turns.
        let turns = shape.work * shape.processes as u32 * effort.turns;
        let measured = Measured::new(shape, effort.smaller_crowds.max(turns), effort.block).await?;
        lines.extend(measured.herd_lines());
    }
    Ok(Chapter {
        title: "Contended: herds of processes",
        how: "Processes with one task each that want one name, with sections of 10 ms and, for the largest herd, \
              empty ones. A fair turn is the time of one section of each process. Commands are counted as above.",
        lines,
        curves: Vec::new(),
        comparison: None,
    })
}

/// The measurements of one shape.
struct Measured {
    shape: Shape,
    round_trip: Duration,
    /// The sections of each process.
    shares: Vec<usize>,
    /// All processes as one crowd.
    whole: Crowd,
    commands: u64,
}

impl Measured {
    async fn new(shape: Shape, span: Duration, block: Duration) -> Result<Self, Failure> {
        let server = Server::start();
        let floor = Floor::of_fred(&server.url()).await?;
        let bare = floor.section("bench:bottom!", 1).await?;
        let mut workers = Vec::new();
        let (tasks, work) = (shape.tasks.to_string(), shape.work.as_nanos().to_string());
        for _ in 0..shape.processes {
            workers.push(Worker::start(&[ROLE, &server.url(), &tasks, &work]).await?);
        }
        let before = bare.round_trip(block).await?;

        let mut connection = server.connection();
        stats::reset(&mut connection);
        let start = (clock::now() + HEAD_START).as_nanos();
        for worker in &mut workers {
            worker.tell(&format!("{start} {}", span.as_nanos()))?;
        }
        let (mut shares, mut served, mut waits) = (Vec::new(), 0, Vec::new());
        for worker in &mut workers {
            let crowd = Crowd::read(&worker.hear(span).await?, span)?;
            shares.push(crowd.sections);
            served += crowd.served;
            waits.extend_from_slice(crowd.waits.all());
        }
        let commands = Stats::read(&mut connection).sent_by_clients();
        drop(workers);

        let after = bare.round_trip(block).await?;
        Ok(Self {
            shape,
            round_trip: (before + after) / 2,
            whole: Crowd {
                span,
                sections: shares.iter().sum(),
                served,
                waits: Waits::new(waits),
            },
            shares,
            commands,
        })
    }

    fn label(&self) -> String {
        match self.shape.tasks {
            1 => format!("{} processes × 1 task", self.shape.processes),
            tasks => format!("{} processes × {tasks} tasks", self.shape.processes),
        }
    }

    fn lines(&self) -> Vec<Line> {
        let (crowd, label) = (&self.whole, self.label());
        let Shape {
            processes, tasks, ..
        } = self.shape;
        let everybody = processes * tasks;
        let fair = crowd.fair_share(everybody);
        let figure = |name: &str, value, target| {
            let target = match self.shape == LARGEST {
                true => target,
                false => Target::None,
            };
            let key = format!("processes{processes}x{tasks}_{name}");
            Some(Figure::new(&key, value, target))
        };
        vec![
            Line {
                shape: format!("{label}: sections"),
                product: rate(crowd.per_second()),
                floor: format!("{} round trips", rate(1.0 / self.round_trip.as_secs_f64())),
                figure: figure(
                    "sections_per_rtt",
                    crowd.per_second() * self.round_trip.as_secs_f64(),
                    Target::AtLeast(1.5),
                ),
            },
            self.least_share(&label, |least| {
                figure("least_of_fair", least, Target::AtLeast(0.8))
            }),
            Line {
                shape: format!("{label}: waits"),
                product: crowd.waits.summary(),
                floor: format!("{fair:.1?}, a fair share"),
                figure: figure(
                    "p99_of_fair",
                    of_fair(crowd.waits.quantile(0.99), fair),
                    Target::None,
                ),
            },
            Line {
                shape: format!("{label}: tasks served"),
                product: crowd.served.to_string(),
                floor: everybody.to_string(),
                figure: None,
            },
            self.commands(&label, |commands| {
                figure("commands_per_section", commands, Target::AtMost(0.6))
            }),
        ]
    }

    fn herd_lines(&self) -> Vec<Line> {
        let (crowd, processes) = (&self.whole, self.shape.processes);
        let turn = crowd.fair_share(processes);
        let label = format!("{processes} processes, sections of {:?}", self.shape.work);
        let figure = |name: &str, value, target| {
            Some(Figure::new(
                &format!("herd{processes}_{name}"),
                value,
                target,
            ))
        };
        let longest = crowd.waits.quantile(1.0);
        vec![
            self.commands(&label, |commands| {
                figure("commands_per_section", commands, Target::AtMost(4.0))
            }),
            Line {
                shape: format!("{label}: longest wait"),
                product: format!("{longest:.1?}"),
                floor: format!("{turn:.1?}, a fair turn"),
                figure: figure(
                    "longest_of_turn",
                    of_fair(longest, turn),
                    Target::AtMost(2.0),
                ),
            },
            self.least_share(&label, |least| {
                figure("least_of_fair", least, Target::AtLeast(0.8))
            }),
        ]
    }

    fn commands(&self, label: &str, figure: impl FnOnce(f64) -> Option<Figure>) -> Line {
        let passed = self.whole.waits.count();
        Line {
            shape: format!("{label}: commands a section"),
            product: format!("{} for {passed}", self.commands),
            floor: String::new(),
            figure: figure(self.commands as f64 / passed.max(1) as f64),
        }
    }

    fn least_share(&self, label: &str, figure: impl FnOnce(f64) -> Option<Figure>) -> Line {
        let processes = self.shape.processes as f64;
        let (least, most) = (
            self.share(self.shares.iter().min()),
            self.share(self.shares.iter().max()),
        );
        Line {
            shape: format!("{label}: least share"),
            product: format!("{:.1} % to {:.1} %", least * 100.0, most * 100.0),
            floor: format!("{:.1} %, an equal part", 100.0 / processes),
            figure: figure(least * processes),
        }
    }

    /// Returns what part of all sections this number is.
    fn share(&self, sections: Option<&usize>) -> f64 {
        sections.copied().unwrap_or_default() as f64 / self.whole.sections.max(1) as f64
    }
}

/// Runs the worker: at each request, passes sections from a given instant on, for a span.
pub(crate) async fn work(url: &str, tasks: usize, work: Duration) -> Result<(), Failure> {
    let mut orders = Lines::orders();
    let client = Client::connect(url).await?;
    worker::answer("ready")?;
    while let Some(order) = orders.next().await {
        let mut words = order.split(' ').map(str::parse);
        let (Some(start), Some(span)) = (words.next(), words.next()) else {
            return Err(format!("no order: {order:?}").into());
        };
        let (start, span) = (Duration::from_nanos(start?), Duration::from_nanos(span?));
        tokio::time::sleep(start.saturating_sub(clock::now())).await;
        let span = (start + span).saturating_sub(clock::now());
        let sections = (0..tasks).map(|_| Lasting {
            lock: client.lock(NAME),
            work,
        });
        let crowd = Crowd::run(sections, span).await?;
        worker::answer(&crowd.told())?;
    }
    Ok(())
}
