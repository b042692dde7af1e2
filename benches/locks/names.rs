//! 64 tasks of one process, each with a name of its own: the throughput of the connection.

use redlatch::{Client, ReentrantLock};
use redlatch_testkit::Server;

use crate::Failure;
use crate::alternation::Alternation;
use crate::clock;
use crate::crowd::Crowd;
use crate::effort::Effort;
use crate::floor::Floor;
use crate::report::{Chapter, Figure, Line, Target, rate};
use crate::section::Section;

const NAMES: u64 = 64;

/// The measurements of a crowd in one block.
#[derive(Clone, Copy, Debug)]
struct Block {
    per_second: f64,
    /// Processor time of this process for one section, in microseconds.
    micros: f64,
}

pub(crate) async fn run(effort: &Effort) -> Result<Chapter, Failure> {
    let server = Server::start();
    let client = Client::connect(server.url()).await?;
    let locks: Vec<ReentrantLock> = (0..NAMES)
        .map(|number| client.lock(format!("bench:product:{number}")))
        .collect();
    let pipe = Floor::of_pipe(&server.url()).await?;
    let of_pipe = beside(&pipe, &locks, effort).await?;
    let fred = Floor::of_fred(&server.url()).await?;
    let of_fred = beside(&fred, &locks, effort).await?;
    client.close().await;
    Ok(Chapter {
        title: "Uncontended: 64 tasks on 64 names",
        how: "64 tasks of one process each acquire and release a lock of their own, in blocks that alternate with \
              blocks of the floor, which is a bare connection, and then fred. The ratio is the median over the \
              pairs. The processor time is that of one section, without the server's.",
        lines: vec![
            sections(
                "the bare connection",
                "names64_of_pipe",
                &of_pipe,
                Target::None,
            ),
            sections("fred", "names64_of_fred", &of_fred, Target::AtLeast(1.2)),
            processor_time(
                "the bare connection",
                "names64_cpu_of_pipe",
                &of_pipe,
                Target::None,
            ),
            processor_time(
                "fred",
                "names64_cpu_of_fred",
                &of_fred,
                Target::AtMost(0.65),
            ),
        ],
        curves: Vec::new(),
        comparison: None,
    })
}

fn sections(floor: &str, key: &str, blocks: &Alternation<Block>, target: Target) -> Line {
    let ratio = blocks.median(|product, floor| product.per_second / floor.per_second);
    Line {
        shape: format!("64 tasks, 64 names: sections, beside {floor}"),
        product: rate(blocks.median(|product, _| product.per_second)),
        floor: rate(blocks.median(|_, floor| floor.per_second)),
        figure: Some(Figure::new(key, ratio, target)),
    }
}

fn processor_time(floor: &str, key: &str, blocks: &Alternation<Block>, target: Target) -> Line {
    let ratio = blocks.median(|product, floor| product.micros / floor.micros);
    let micros = |micros: f64| format!("{micros:.1} µs");
    Line {
        shape: format!("64 tasks, 64 names: the client's processor time, beside {floor}"),
        product: micros(blocks.median(|product, _| product.micros)),
        floor: micros(blocks.median(|_, floor| floor.micros)),
        figure: Some(Figure::new(key, ratio, target)),
    }
}

/// Measures the product in turns with this floor.
async fn beside(
    floor: &Floor,
    locks: &[ReentrantLock],
    effort: &Effort,
) -> Result<Alternation<Block>, Failure> {
    let mut bare = Vec::new();
    for number in 0..NAMES {
        let name = format!("bench:bottom!:{number}");
        bare.push(floor.section(&name, number).await?);
    }
    Alternation::run(
        effort.pairs,
        async || Block::measure(locks, effort).await,
        async || Block::measure(&bare, effort).await,
    )
    .await
}

impl Block {
    async fn measure<S: Section + Clone>(sections: &[S], effort: &Effort) -> Result<Self, Failure> {
        let before = clock::processor_time();
        let crowd = Crowd::run(sections.to_vec(), effort.block).await?;
        let spent = clock::processor_time() - before;
        Ok(Self {
            per_second: crowd.per_second(),
            micros: spent.as_secs_f64() * 1e6 / crowd.waits.count().max(1) as f64,
        })
    }
}
