//! Many tasks that pass sections at the same time.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::Failure;
use crate::section::Section;
use crate::waits::Waits;
use crate::worker::number;

/// What a crowd did.
#[derive(Debug)]
pub(crate) struct Crowd {
    /// How long it ran.
    pub(crate) span: Duration,
    /// Sections that were passed within that time.
    pub(crate) sections: usize,
    /// Tasks that passed at least one of them.
    pub(crate) served: usize,
    /// The wait of every call, including those granted only after the end, so that a starved task shows here.
    pub(crate) waits: Waits,
}

impl Crowd {
    /// Runs one task for each section, all of them for `span`. Each task passes its section again and again.
    pub(crate) async fn run<S: Section>(
        sections: impl IntoIterator<Item = S>,
        span: Duration,
    ) -> Result<Self, Failure> {
        let end = Instant::now() + span;
        let mut tasks = JoinSet::new();
        for section in sections {
            tasks.spawn(pass_until(section, end));
        }
        let (mut waits, mut passed, mut served) = (Vec::new(), 0, 0);
        while let Some(ended) = tasks.join_next().await {
            let (own_waits, own_passed) = ended??;
            waits.extend(own_waits);
            passed += own_passed;
            served += usize::from(own_passed > 0);
        }
        Ok(Self {
            span,
            sections: passed,
            served,
            waits: Waits::new(waits),
        })
    }

    /// Returns the line in which a worker reports this: sections, tasks served, then every wait in nanoseconds.
    pub(crate) fn told(&self) -> String {
        let mut line = format!("{} {}", self.sections, self.served);
        for wait in self.waits.all() {
            line.push_str(&format!(" {}", wait.as_nanos()));
        }
        line
    }

    /// Parses a worker's report.
    pub(crate) fn read(line: &str, span: Duration) -> Result<Self, Failure> {
        let mut words = line.split(' ');
        let (sections, served) = (number(words.next())?, number(words.next())?);
        let waits = words.map(|wait| Ok(Duration::from_nanos(wait.parse()?)));
        Ok(Self {
            span,
            sections: sections as usize,
            served: served as usize,
            waits: Waits::new(waits.collect::<Result<_, Failure>>()?),
        })
    }

    pub(crate) fn per_second(&self) -> f64 {
        self.sections as f64 / self.span.as_secs_f64()
    }

    /// Returns how long a task waits if all tasks get the same: one section of each, at the mean time of a section.
    pub(crate) fn fair_share(&self, tasks: usize) -> Duration {
        self.span
            .mul_f64(tasks as f64 / self.sections.max(1) as f64)
    }
}

async fn pass_until(
    section: impl Section,
    end: Instant,
) -> Result<(Vec<Duration>, usize), Failure> {
    let (mut waits, mut passed) = (Vec::new(), 0);
    while Instant::now() < end {
        waits.push(section.pass().await?);
        passed += usize::from(Instant::now() < end);
    }
    Ok((waits, passed))
}
