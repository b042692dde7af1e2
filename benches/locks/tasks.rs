//! 64 tasks of one process that want one name.

use crate::Failure;
use crate::crowd::Crowd;
use crate::effort::Effort;
use crate::report::{Chapter, Curve, Figure, Line, Target, of_fair};
use crate::road::Road;

const TASKS: usize = 64;

/// How the server is reached, and the texts and target of the chapter.
struct Shape {
    title: &'static str,
    how: &'static str,
    label: &'static str,
    key: &'static str,
    sections_per_round_trip: f64,
    detour: bool,
}

pub(crate) async fn loopback(effort: &Effort) -> Result<Chapter, Failure> {
    let shape = Shape {
        title: "Contended: 64 tasks of one process on one name",
        how: "64 tasks pass empty sections under one name. Sections per round trip: blocks alternate with blocks \
              of one task's bare EVALSHAs, whose mean is the round trip; the figure is the median over the pairs. \
              Waits and tasks served: from one run without a break; a fair share is the time of 64 sections of \
              that run.",
        label: "64 tasks, one name",
        key: "tasks64",
        sections_per_round_trip: 3.0,
        detour: false,
    };
    shape.measure(effort).await
}

pub(crate) async fn one_millisecond(effort: &Effort) -> Result<Chapter, Failure> {
    let shape = Shape {
        title: "Contended: 64 tasks of one process on one name, at 1 ms",
        how: "The same through a proxy that adds 1 ms to each round trip, including those of the floor.",
        label: "64 tasks, one name, 1 ms",
        key: "tasks64_1ms",
        sections_per_round_trip: 30.0,
        detour: true,
    };
    shape.measure(effort).await
}

impl Shape {
    async fn measure(self, effort: &Effort) -> Result<Chapter, Failure> {
        let road = Road::open(self.detour).await?;
        let locks = vec![road.client.lock("bench:product"); TASKS];
        let sections = road.measure(&locks, effort.pairs, effort).await?;
        let crowd = Crowd::run(locks, effort.waits).await?;
        road.client.close().await;
        let mut lines = vec![sections.line(self.label, self.key, self.sections_per_round_trip)];
        lines.extend(self.waits(&crowd));
        Ok(Chapter {
            title: self.title,
            how: self.how,
            lines,
            curves: vec![Curve::new("tasks", self.label, &crowd, TASKS)],
            comparison: None,
        })
    }

    fn waits(&self, crowd: &Crowd) -> Vec<Line> {
        let fair = crowd.fair_share(TASKS);
        let quantile = |name: &str, key: &str, share, most| {
            let wait = crowd.waits.quantile(share);
            Line {
                shape: format!("{}: wait {name}", self.label),
                product: format!("{wait:.1?}"),
                floor: format!("{fair:.1?}, a fair share"),
                figure: Some(Figure::new(
                    &format!("{}_{key}_of_fair", self.key),
                    of_fair(wait, fair),
                    Target::AtMost(most),
                )),
            }
        };
        let served = Line {
            shape: format!("{}: tasks served", self.label),
            product: crowd.served.to_string(),
            floor: TASKS.to_string(),
            figure: Some(Figure::new(
                &format!("{}_served", self.key),
                crowd.served as f64,
                Target::AtLeast(TASKS as f64),
            )),
        };
        let half = Line {
            shape: format!("{}: wait p50", self.label),
            product: format!("{:.1?}", crowd.waits.median()),
            floor: format!("{fair:.1?}, a fair share"),
            figure: None,
        };
        vec![
            served,
            half,
            quantile("p99", "p99", 0.99, 2.0),
            quantile("p99.9", "p999", 0.999, 4.0),
        ]
    }
}
