//! How long to wait between two tries.

use std::time::Duration;

use crate::error::Error;

const FIRST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_millis(128);
const SHORTEST: Duration = Duration::from_millis(1);

/// The pauses between the tries of a [`SpinLock`](crate::SpinLock).
///
/// Jitter keeps waiters that collided once from colliding again: see Brooker,
/// [Exponential Backoff and Jitter](https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/).
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use redlatch::Backoff;
///
/// let gentle = Backoff::fixed(Duration::from_secs(3)).jitter(Duration::from_secs(1)); // 3 to 4 seconds
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    jitter: Jitter,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Jitter {
    /// Up to half of each pause is left out.
    Half,
    /// Up to so much is added to each pause.
    Added(Duration),
}

impl Backoff {
    /// From 1 ms, twice as long after each try, up to 128 ms; of each pause, up to half is left out at random.
    #[must_use]
    pub fn exponential() -> Self {
        Self {
            first: FIRST,
            longest: LONGEST,
            jitter: Jitter::Half,
        }
    }

    /// Always this long, from 1 ms up. A shorter pause is answered with
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) by every verb.
    #[must_use]
    pub fn fixed(pause: Duration) -> Self {
        Self {
            first: pause,
            longest: pause,
            jitter: Jitter::Added(Duration::ZERO),
        }
    }

    /// Adds up to so much to each pause, at random.
    #[must_use = "this makes a new backoff and leaves the old one as it is"]
    pub fn jitter(mut self, at_most: Duration) -> Self {
        self.jitter = Jitter::Added(at_most);
        self
    }

    /// The same with pauses of up to this length.
    pub(crate) fn up_to(mut self, longest: Duration) -> Self {
        self.longest = longest;
        self
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.first < SHORTEST {
            let given = self.first;
            return Err(Error::invalid(format!(
                "a backoff pauses for {SHORTEST:?} at least, not {given:?}"
            )));
        }
        Ok(())
    }

    /// The pause after so many tries before this one, with `random` in 0..1.
    pub(crate) fn pause(&self, tries: u32, random: f64) -> Duration {
        let doubled = self.first.saturating_mul(2u32.saturating_pow(tries));
        let pause = doubled.min(self.longest);
        let random = random.clamp(0.0, 1.0);
        match self.jitter {
            Jitter::Half => pause.mul_f64(1.0 - random / 2.0).max(SHORTEST),
            Jitter::Added(at_most) => {
                let added = Duration::try_from_secs_f64(at_most.as_secs_f64() * random);
                pause.saturating_add(added.unwrap_or(at_most))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn exponential_pauses_double_up_to_their_longest(tries in 0u32..1_000, random in 0.0f64..1.0) {
            let pause = Backoff::exponential().pause(tries, random);
            let whole = LONGEST.min(FIRST * 2u32.pow(tries.min(20)));
            prop_assert!(pause <= whole && pause >= SHORTEST.max(whole / 2), "{pause:?} of {whole:?}");
        }

        #[test]
        fn fixed_pauses_lie_between_the_pause_and_the_pause_with_jitter(tries in 0u32..1_000, random in 0.0f64..1.0) {
            let (fixed, jitter) = (Duration::from_secs(3), Duration::from_secs(1));
            let pause = Backoff::fixed(fixed).jitter(jitter).pause(tries, random);
            prop_assert!(pause >= fixed && pause <= fixed + jitter);
        }
    }

    #[test]
    fn pauses_of_any_length_are_counted_without_overflow() {
        let endless = Backoff::fixed(Duration::MAX).jitter(Duration::MAX);
        assert_eq!(endless.pause(u32::MAX, 1.0), Duration::MAX);
        assert!(Backoff::fixed(Duration::from_micros(999)).check().is_err());
    }
}
