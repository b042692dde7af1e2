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
        how: "What one thing costs the server: processor time (`INFO cpu`, less what the server spends without \
              clients), of which some inside of commands (`INFO commandstats`, on the wall clock); commands; and \
              bytes received and sent (`INFO stats`). Also the client's processor time. Memory is the growth of \
              the server's `used_memory` and of the client's resident memory. A fleet consists of real processes \
              that hold locks, wait, and lock and unlock at a pace. It stands next to the sum of these prices by \
              the formula of [SIZING.md](../SIZING.md), so the ratio is the error of the formula. Unlike wall \
              time, processor time stays steady while other work keeps the machine busy.",
        lines,
        curves: Vec::new(),
        comparison: None,
    })
}
