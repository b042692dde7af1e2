//! 64 tasks of one process, each with a name of its own: how much the connection carries.

use redlatch::Client;
use redlatch_testkit::Server;

use crate::Failure;
use crate::alternation::Alternation;
use crate::crowd::Crowd;
use crate::effort::Effort;
use crate::floor::Floor;
use crate::report::{Chapter, Figure, Line, Target, rate};

const NAMES: u64 = 64;

pub(crate) async fn run(effort: &Effort) -> Result<Chapter, Failure> {
    let server = Server::start();
    let client = Client::connect(server.url()).await?;
    let floor = Floor::connect(&server.url()).await?;
    let (mut locks, mut bare) = (Vec::new(), Vec::new());
    for number in 0..NAMES {
        locks.push(client.lock(format!("bench:product:{number}")));
        bare.push(
            floor
                .section(&format!("bench:bottom!:{number}"), number)
                .await?,
        );
    }
    let measured = Alternation::run(
        effort.pairs,
        async || Ok(Crowd::run(locks.clone(), effort.block).await?.per_second()),
        async || Ok(Crowd::run(bare.clone(), effort.block).await?.per_second()),
    )
    .await?;
    client.close().await;
    let ratio = measured.median(|product, floor| product / floor);
    Ok(Chapter {
        title: "Uncontended: 64 tasks on 64 names",
        how: "64 tasks of one process each take and give back a lock of their own, in blocks that alternate with blocks \
              of the floor; the ratio is the median over the pairs.",
        lines: vec![Line {
            shape: "64 tasks, 64 names: sections".to_owned(),
            product: rate(measured.median(|product, _| product)),
            floor: rate(measured.median(|_, floor| floor)),
            figure: Some(Figure::new(
                "names64_of_floor",
                ratio,
                Target::AtLeast(0.95),
            )),
        }],
        curves: Vec::new(),
    })
}
