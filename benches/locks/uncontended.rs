//! One task without competitors: acquiring and releasing a lock, and acquiring again a lock that it holds.

use std::time::{Duration, Instant};

use redlatch::{Client, MultiLock};
use redlatch_testkit::Server;

use crate::Failure;
use crate::effort::Effort;
use crate::floor::{Floor, Side};
use crate::report::{Chapter, Figure, Line, Target};
use crate::section::Section;
use crate::waits::Waits;

const NAME: &str = "bench:product";
/// Of the same length as the product's.
const FLOOR_NAME: &str = "bench:bottom!";
/// Calls before the first that is counted.
const WARM_UP: usize = 200;

pub(crate) async fn run(effort: &Effort) -> Result<Chapter, Failure> {
    let server = Server::start();
    let client = Client::connect(server.url()).await?;
    let url = server.url();
    let span = effort.calls / 2;
    let pipe = Floor::of_pipe(&url).await?.section(FLOOR_NAME, 1).await?;
    let of_pipe = alternate(client.lock(NAME), pipe, span).await?;
    let fred = Floor::of_fred(&url).await?.section(FLOOR_NAME, 1).await?;
    let of_fred = alternate(client.lock(NAME), fred, span).await?;
    client.close().await;
    Ok(Chapter {
        title: "Uncontended: one task",
        how: "One task acquires and releases a lock that nobody else wants. Its call pairs alternate with those of \
              the floor, which is a bare connection of the benchmark's own, and then fred. The ratio is that of \
              the medians.",
        lines: vec![
            line(
                "lock and unlock, beside the bare connection",
                "uncontended_of_pipe",
                &of_pipe,
                Target::AtMost(1.2),
            ),
            line(
                "lock and unlock, beside fred",
                "uncontended_of_fred",
                &of_fred,
                Target::AtMost(0.95),
            ),
        ],
        curves: Vec::new(),
        comparison: None,
    })
}

pub(crate) async fn reentry(effort: &Effort) -> Result<Chapter, Failure> {
    let server = Server::start();
    let client = Client::connect(server.url()).await?;
    let floor = Floor::of_fred(&server.url()).await?;
    floor.section(FLOOR_NAME, 1).await?.acquire.send().await?;
    let bare = floor.second_level(FLOOR_NAME, 1).await?;
    // With an explicit owner, since the task that measures is another than this one.
    let lock = client.lock(NAME).owned_by(&redlatch::Owner::unique());
    let outer = lock.lock().await?;
    let both = alternate(lock, bare, effort.calls / 2).await?;
    outer.unlock().await?;
    client.close().await;
    Ok(Chapter {
        title: "Re-entry",
        how: "The holder acquires the lock a second time and releases that level. Its call pairs alternate with \
              those of the floor; the ratio is that of the medians.",
        lines: vec![line("second level", "reentry_ratio", &both, Target::None)],
        curves: Vec::new(),
        comparison: None,
    })
}

pub(crate) async fn multi(effort: &Effort) -> Result<Chapter, Failure> {
    let server = Server::start();
    let client = Client::connect(server.url()).await?;
    let set = MultiLock::new(["1", "2", "3"].map(|part| client.lock(format!("{{{NAME}}}:{part}"))));
    let both = alternate(set, client.lock(NAME), effort.calls / 2).await?;
    client.close().await;
    Ok(Chapter {
        title: "Multi lock: three at once",
        how: "One task acquires and releases three locks of one slot as a set. Its call pairs alternate with those \
              of one lock by itself. The floor is that one lock, of this crate; the ratio is that of the medians.",
        lines: vec![line("set of 3", "multi3_ratio", &both, Target::AtMost(1.3))],
        curves: Vec::new(),
        comparison: None,
    })
}

/// Measures the other kinds, each next to its own scripts.
pub(crate) async fn kinds(effort: &Effort) -> Result<Chapter, Failure> {
    let server = Server::start();
    let client = Client::connect(server.url()).await?;
    let floor = Floor::of_fred(&server.url()).await?;
    let span = effort.calls / 4;
    let [fair, both] = ["bench:product:fair", "bench:product:both"];
    let [fair_floor, both_floor] = ["bench:bottom!:fair", "bench:bottom!:both"];
    let both = client.read_write_lock(both);
    let bare = floor.fair_section(fair_floor, 1).await?;
    let fair = alternate(client.fair_lock(fair), bare, span).await?;
    let bare = floor.side_section(Side::Read, both_floor, 1).await?;
    let read = alternate(both.reader(), bare, span).await?;
    let bare = floor.side_section(Side::Write, both_floor, 1).await?;
    let write = alternate(both.writer(), bare, span).await?;
    client.close().await;
    let lines = [
        ("fair lock", "fair_ratio", fair),
        ("read", "read_ratio", read),
        ("write", "write_ratio", write),
    ];
    Ok(Chapter {
        title: "Uncontended: fair and read-write locks",
        how: "As in the first chapter, with each lock next to the scripts of its own kind, which are those of the \
              product.",
        lines: lines
            .map(|(shape, key, both)| line(shape, key, &both, Target::AtMost(1.15)))
            .into(),
        curves: Vec::new(),
        comparison: None,
    })
}

pub(crate) fn line(
    shape: &str,
    key: &str,
    (product, floor): &(Waits, Waits),
    target: Target,
) -> Line {
    let ratio = product.median().as_secs_f64() / floor.median().as_secs_f64();
    Line {
        shape: shape.to_owned(),
        product: product.summary(),
        floor: floor.summary(),
        figure: Some(Figure::new(key, ratio, target)),
    }
}

/// Passes both in turns for `span`.
pub(crate) async fn alternate(
    product: impl Section,
    floor: impl Section,
    span: Duration,
) -> Result<(Waits, Waits), Failure> {
    let calls = tokio::spawn(async move {
        for _ in 0..WARM_UP {
            product.pass().await?;
            floor.pass().await?;
        }
        let (mut products, mut floors) = (Vec::new(), Vec::new());
        let started = Instant::now();
        while started.elapsed() < span {
            products.push(timed(&product).await?);
            floors.push(timed(&floor).await?);
        }
        Ok::<_, Failure>((Waits::new(products), Waits::new(floors)))
    });
    calls.await?
}

async fn timed(section: &impl Section) -> Result<Duration, Failure> {
    let started = Instant::now();
    section.pass().await?;
    Ok(started.elapsed())
}
