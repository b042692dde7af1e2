//! What a fleet costs: the price of each thing by itself, and fleets next to what the prices say.
//!
//! `SIZING.md` plans with these figures.

mod bill;
mod fleet;
mod leases;
mod limit;
mod prices;
mod process;
mod storm;

use crate::Failure;
use crate::effort::Effort;
use crate::report::Chapter;
use prices::Prices;
pub(crate) use process::{ROLE, work};

pub(crate) async fn run(effort: &Effort) -> Result<Chapter, Failure> {
    let sizing = &effort.sizing;
    let prices = Prices::measure(sizing).await?;
    let mut lines = prices.lines();
    lines.extend(limit::lines(sizing, prices.idle).await?);
    lines.extend(leases::lines(sizing, prices.idle).await?);
    lines.extend(fleet::lines(sizing, &prices).await?);
    lines.extend(storm::lines(sizing, prices.idle).await?);
    Ok(Chapter {
        title: "Sizing",
        how: "What one thing costs the server, in processor time of all that it does (`INFO cpu`, less what it \
              spends without clients), of which some inside of commands (`INFO commandstats`, on the wall clock), in commands, and in \
              bytes that it received and sent (`INFO stats`); and what it costs the client in processor time. \
              Memory is the growth of `used_memory` of the server and of the resident memory of the client. A \
              fleet consists of real processes that hold, wait and pass sections at a pace, next to the sum of \
              these prices by the formula of [SIZING.md](SIZING.md), so that the ratio is its error. Processor \
              time is steady where other work keeps the machine busy, unlike wall time.",
        lines,
        curves: Vec::new(),
        comparison: None,
    })
}
