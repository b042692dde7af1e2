//! 64 tasks of one process that want one fair lock, and what their number costs the server.

use redlatch::{Client, FairLock};
use redlatch_testkit::{Connection, Server};

use crate::Failure;
use crate::alternation::{Alternation, median};
use crate::crowd::Crowd;
use crate::effort::Effort;
use crate::floor::Floor;
use crate::report::{Chapter, Figure, Line, Target, rate};
use crate::stats::{self, Stats};

const TASKS: usize = 64;
const FEW: usize = 4;
const PHASES: usize = 4;

pub(crate) async fn run(effort: &Effort) -> Result<Chapter, Failure> {
    let server = Server::start();
    let client = Client::connect(server.url()).await?;
    let floor = Floor::of_fred(&server.url()).await?;
    let bare = floor.section("bench:bottom!", 1).await?;
    let lock = client.fair_lock("bench:product");
    let turns = Alternation::run(
        effort.pairs.min(10),
        async || {
            let crowd = Crowd::run(vec![lock.clone(); TASKS], effort.block).await?;
            Ok(crowd.per_second())
        },
        async || Ok(bare.round_trip(effort.block).await?.as_secs_f64()),
    )
    .await?;
    let mut connection = server.connection();
    let mut other = server.connection();
    let work = Alternation::run(
        PHASES,
        async || micros_per_grant(&lock, TASKS, effort, &mut connection).await,
        async || micros_per_grant(&lock, FEW, effort, &mut other).await,
    )
    .await?;
    client.close().await;
    let (many, few) = (median(work.product), median(work.floor));
    Ok(Chapter {
        title: "Contended: 64 tasks of one process on one fair lock",
        how: "64 tasks pass empty sections under one name; sections per round trip are measured as for the \
              reentrant lock. The server's work is the time that it counts for EVALSHA, per grant, with 64 tasks \
              and with 4; medians of four alternating phases each.",
        lines: vec![
            Line {
                shape: "64 tasks, one fair lock: sections".to_owned(),
                product: rate(turns.median(|sections, _| sections)),
                floor: format!("{} round trips", rate(1.0 / turns.median(|_, trip| trip))),
                figure: Some(Figure::new(
                    "fair64_sections_per_rtt",
                    turns.median(|sections, trip| sections * trip),
                    Target::AtLeast(0.6),
                )),
            },
            Line {
                shape: "64 tasks, one fair lock: the server's work for a grant".to_owned(),
                product: format!("{many:.2} µs"),
                floor: format!("{few:.2} µs, with 4 tasks"),
                figure: Some(Figure::new(
                    "fair64_server_time_growth",
                    many / few,
                    Target::AtMost(1.2),
                )),
            },
        ],
        curves: Vec::new(),
        comparison: None,
    })
}

async fn micros_per_grant(
    lock: &FairLock,
    tasks: usize,
    effort: &Effort,
    connection: &mut Connection,
) -> Result<f64, Failure> {
    stats::reset(connection);
    let crowd = Crowd::run(vec![lock.clone(); tasks], effort.block).await?;
    let scripts = Stats::read(connection).of("evalsha");
    Ok(scripts.micros as f64 / crowd.waits.count().max(1) as f64)
}
