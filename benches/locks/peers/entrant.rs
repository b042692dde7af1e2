//! A contestant with its two processes, and what was measured of it.

use std::process::Command;
use std::time::Duration;

use redlatch_testkit::Server;
use tokio::time::sleep;

use super::contestant::Contestant;
use super::monitor::Monitor;
use super::{COUNTED_WAIT, TASKS};
use crate::Failure;
use crate::alternation::median;
use crate::crowd::Crowd;
use crate::report::{Figure, Line, Target, rate};
use crate::waits::Waits;
use crate::worker::{Worker, number};

/// A waiter that asked later than this before the release may not have come to rest: the round is not counted.
const LEAST_REST: Duration = Duration::from_millis(3);
/// How long a client may still listen after its last wait.
const REST: Duration = Duration::from_secs(3);

pub(super) struct Entrant {
    pub(super) contestant: Contestant,
    holder: Worker,
    waiter: Worker,
    cycles: Vec<Duration>,
    crowds: Vec<Crowd>,
    hand_overs: Vec<Duration>,
    hand_overs_after_long: Vec<Duration>,
    commands_a_cycle: f64,
    commands_a_section: f64,
    commands_of_wait: u64,
}

/// The figures of one contestant.
pub(super) struct Figures {
    pub(super) cycle: Waits,
    pub(super) commands_a_cycle: f64,
    pub(super) sections_a_second: f64,
    /// The least of its crowds, whose span is next to it.
    pub(super) served: usize,
    pub(super) span: Duration,
    pub(super) waits: Waits,
    pub(super) commands_a_section: f64,
    pub(super) hand_over: Waits,
    pub(super) hand_over_after_long: Waits,
    pub(super) commands_of_wait: u64,
}

impl Entrant {
    pub(super) async fn start(
        contestant: Contestant,
        mut command: Command,
        server: &Server,
    ) -> Result<Self, Failure> {
        command.arg(server.url());
        Ok(Self {
            contestant,
            holder: Worker::run(&mut command).await?,
            waiter: Worker::run(&mut command).await?,
            cycles: Vec::new(),
            crowds: Vec::new(),
            hand_overs: Vec::new(),
            hand_overs_after_long: Vec::new(),
            commands_a_cycle: f64::NAN,
            commands_a_section: f64::NAN,
            commands_of_wait: 0,
        })
    }

    /// Lets both processes do everything that is measured later.
    pub(super) async fn warm_up(&mut self, span: Duration) -> Result<(), Failure> {
        for _ in 0..2 {
            self.cycles(span).await?;
            self.crowd(span / 2).await?;
            self.turn(super::SHORT_HOLD).await?;
            self.change_roles();
        }
        Ok(())
    }

    pub(super) async fn pass_cycles(&mut self, span: Duration) -> Result<(), Failure> {
        let cycles = self.cycles(span).await?;
        self.cycles.extend(cycles);
        Ok(())
    }

    pub(super) async fn pass_crowd(&mut self, span: Duration) -> Result<(), Failure> {
        let crowd = self.crowd(span).await?;
        self.crowds.push(crowd);
        Ok(())
    }

    pub(super) async fn hand_over(&mut self, hold: Duration) -> Result<(), Failure> {
        let took = self.turn(hold).await?;
        self.hand_overs.extend(took);
        self.change_roles();
        Ok(())
    }

    pub(super) async fn hand_over_after_long(&mut self, hold: Duration) -> Result<(), Failure> {
        let took = self.turn(hold).await?;
        self.hand_overs_after_long.extend(took);
        self.change_roles();
        Ok(())
    }

    /// Does again what was timed, and counts the commands.
    pub(super) async fn count_commands(
        &mut self,
        monitor: &mut Monitor,
        span: Duration,
    ) -> Result<(), Failure> {
        let before = monitor.commands().await?;
        let cycles = self.cycles(span).await?.len();
        self.commands_a_cycle = (monitor.commands().await? - before) as f64 / cycles as f64;

        let before = monitor.commands().await?;
        let sections = self.crowd(span).await?.waits.count();
        self.commands_a_section = (monitor.commands().await? - before) as f64 / sections as f64;

        // Both processes leave the channels of the crowd first.
        sleep(REST).await;
        ask(&mut self.holder, "take", Duration::ZERO).await?;
        let before = monitor.commands().await?;
        self.waiter.tell("take")?;
        sleep(COUNTED_WAIT).await;
        self.commands_of_wait = monitor.commands().await? - before;
        ask(&mut self.holder, "release", Duration::ZERO).await?;
        self.waiter.hear(Duration::ZERO).await?;
        ask(&mut self.waiter, "release", Duration::ZERO).await?;
        Ok(())
    }

    async fn cycles(&mut self, span: Duration) -> Result<Vec<Duration>, Failure> {
        let line = ask(
            &mut self.holder,
            &format!("cycles {}", span.as_nanos()),
            span,
        )
        .await?;
        line.split(' ')
            .map(|took| Ok(Duration::from_nanos(number(Some(took))?)))
            .collect()
    }

    async fn crowd(&mut self, span: Duration) -> Result<Crowd, Failure> {
        let order = format!("crowd {TASKS} {}", span.as_nanos());
        Crowd::read(&ask(&mut self.holder, &order, span).await?, span)
    }

    /// Has one process hold the lock for a time while the other one waits. Returns how long the hand-over took, or `None`
    /// if the waiter was late.
    async fn turn(&mut self, hold: Duration) -> Result<Option<Duration>, Failure> {
        ask(&mut self.holder, "take", Duration::ZERO).await?;
        self.waiter.tell("take")?;
        sleep(hold).await;
        let released = ask(&mut self.holder, "release", Duration::ZERO).await?;
        let waited = self.waiter.hear(Duration::ZERO).await?;
        ask(&mut self.waiter, "release", Duration::ZERO).await?;
        let mut words = waited.split(' ');
        let released = Duration::from_nanos(number(Some(&released))?);
        let asked = Duration::from_nanos(number(words.next())?);
        let acquired = Duration::from_nanos(number(words.next())?);
        let rested = asked + LEAST_REST < released;
        Ok(rested.then(|| acquired.saturating_sub(released)))
    }

    fn change_roles(&mut self) {
        std::mem::swap(&mut self.holder, &mut self.waiter);
    }

    pub(super) fn figures(&self) -> Figures {
        let waits = self.crowds.iter().flat_map(|crowd| crowd.waits.all());
        Figures {
            cycle: Waits::new(self.cycles.clone()),
            commands_a_cycle: self.commands_a_cycle,
            sections_a_second: median(self.crowds.iter().map(Crowd::per_second).collect()),
            served: self
                .crowds
                .iter()
                .map(|crowd| crowd.served)
                .min()
                .unwrap_or_default(),
            span: self
                .crowds
                .first()
                .map(|crowd| crowd.span)
                .unwrap_or_default(),
            waits: Waits::new(waits.copied().collect()),
            commands_a_section: self.commands_a_section,
            hand_over: Waits::new(self.hand_overs.clone()),
            hand_over_after_long: Waits::new(self.hand_overs_after_long.clone()),
            commands_of_wait: self.commands_of_wait,
        }
    }

    pub(super) fn lines(&self, pings: &Waits) -> Vec<Line> {
        let figures = self.figures();
        let line = |shape: &str, product: String, key: &str, value: f64| Line {
            shape: format!("{}: {shape}", self.contestant),
            product,
            floor: String::new(),
            figure: Some(Figure::new(
                &format!("{}_{key}", self.contestant.key()),
                value,
                Target::None,
            )),
        };
        let millis = |wait: Duration| wait.as_secs_f64() * 1e3;
        let cycle = line(
            "lock and unlock",
            figures.cycle.summary(),
            "cycle_of_pings",
            figures.cycle.median().as_secs_f64() / pings.median().as_secs_f64(),
        );
        let ping = pings.median().as_secs_f64() / 2.0;
        let longest = figures.waits.quantile(1.0);
        vec![
            Line {
                floor: format!("{}, two PINGs", pings.summary()),
                ..cycle
            },
            line(
                "commands a cycle",
                String::new(),
                "commands_per_cycle",
                figures.commands_a_cycle,
            ),
            Line {
                floor: format!("{} PINGs", rate(1.0 / ping)),
                ..line(
                    "64 tasks, sections",
                    rate(figures.sections_a_second),
                    "sections_per_ping",
                    figures.sections_a_second * ping,
                )
            },
            line(
                &format!("64 tasks, served in {:?}", figures.span),
                format!("{} of {TASKS}", figures.served),
                "served",
                figures.served as f64,
            ),
            line(
                "64 tasks, longest wait in ms",
                format!("{}, longest {longest:.1?}", figures.waits.summary()),
                "longest_wait_ms",
                millis(longest),
            ),
            line(
                "64 tasks, commands a section",
                String::new(),
                "commands_per_section",
                figures.commands_a_section,
            ),
            line(
                "hand-over after 5 ms, p50 in ms",
                figures.hand_over.summary(),
                "hand_over_ms",
                millis(figures.hand_over.median()),
            ),
            line(
                "hand-over after 5 to 255 ms, p50 in ms",
                figures.hand_over_after_long.summary(),
                "hand_over_after_long_ms",
                millis(figures.hand_over_after_long.median()),
            ),
            line(
                &format!("commands in a wait of {COUNTED_WAIT:?}"),
                String::new(),
                "commands_of_wait",
                figures.commands_of_wait as f64,
            ),
        ]
    }
}

async fn ask(worker: &mut Worker, order: &str, busy: Duration) -> Result<String, Failure> {
    worker.tell(order)?;
    worker.hear(busy).await
}
