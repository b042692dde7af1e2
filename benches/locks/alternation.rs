//! Measures product and floor in turns, so that whatever else the machine does affects both.

use crate::Failure;

/// The measurements of alternating pairs of blocks.
#[derive(Debug)]
pub(crate) struct Alternation<T = f64> {
    pub(crate) product: Vec<T>,
    pub(crate) floor: Vec<T>,
}

impl<T: Copy> Alternation<T> {
    /// Measures `pairs` pairs. The two also take turns at going first.
    pub(crate) async fn run(
        pairs: usize,
        mut product: impl AsyncFnMut() -> Result<T, Failure>,
        mut floor: impl AsyncFnMut() -> Result<T, Failure>,
    ) -> Result<Self, Failure> {
        let mut measured = Self {
            product: Vec::with_capacity(pairs),
            floor: Vec::with_capacity(pairs),
        };
        for pair in 0..pairs {
            if pair % 2 == 0 {
                measured.product.push(product().await?);
                measured.floor.push(floor().await?);
            } else {
                measured.floor.push(floor().await?);
                measured.product.push(product().await?);
            }
        }
        Ok(measured)
    }

    /// Returns the median over the pairs of what `of` makes of each pair.
    pub(crate) fn median(&self, of: impl Fn(T, T) -> f64) -> f64 {
        let pairs = self.product.iter().zip(&self.floor);
        median(pairs.map(|(product, floor)| of(*product, *floor)).collect())
    }
}

/// Returns the middle value, or the mean of the two in the middle. Returns NaN if there are no values.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match (values.len(), values.len() / 2) {
        (0, _) => f64::NAN,
        (count, middle) if count % 2 == 1 => values[middle],
        (_, middle) => values[middle - 1].midpoint(values[middle]),
    }
}
