//! How long to wait between two attempts.

use std::time::Duration;

use crate::error::Error;

const FIRST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_millis(128);
const SHORTEST: Duration = Duration::from_millis(1);

/// The pauses between the attempts of a [`SpinLock`](crate::SpinLock).
///
/// Jitter keeps waiters that collided once from colliding again: see Brooker,
/// [Exponential Backoff and Jitter](https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/).
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use redlatch::config::Backoff;
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
    /// Each pause is shortened by up to half.
    Half,
    /// Each pause is lengthened by up to this time.
    Added(Duration),
}

impl Backoff {
    /// Creates a backoff that pauses for 1 ms at first, then for twice as long after each attempt, up to 128 ms. Each
    /// pause is shortened at random by up to half, but never below 1 ms.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// # let other = redlatch::Client::connect(url).await?;
    /// use std::time::Duration;
    /// use redlatch::config::Backoff;
    ///
    /// let guard = other.spin_lock("cache-refresh").lock().await?;
    /// let lock = client.spin_lock("cache-refresh").backoff(Backoff::exponential());
    /// // Asks after about 1, 2, 4, .. ms: soon if the lock is held briefly, rarely if it is held for long.
    /// let wait = Duration::from_secs(5);
    /// let (next, released) = tokio::join!(lock.try_lock_for(wait), guard.unlock());
    /// released?;
    /// assert!(next?.is_some());
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn exponential() -> Self {
        Self {
            first: FIRST,
            longest: LONGEST,
            jitter: Jitter::Half,
        }
    }

    /// Creates a backoff that always pauses for the same time, at least 1 ms. With a shorter pause, every call that
    /// acquires, unlocks or adopts the lock returns [`InvalidInput`](crate::ErrorKind::InvalidInput).
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// # let other = redlatch::Client::connect(url).await?;
    /// use std::time::Duration;
    /// use redlatch::config::Backoff;
    ///
    /// let guard = other.spin_lock("nightly-report").lock().await?;
    /// let every = Backoff::fixed(Duration::from_millis(20));
    /// let lock = client.spin_lock("nightly-report").backoff(every).max_attempts(3);
    /// // Gives up after about 40 ms, since another process writes the report.
    /// assert!(lock.try_lock_for(Duration::from_secs(60)).await?.is_none());
    /// guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn fixed(pause: Duration) -> Self {
        Self {
            first: pause,
            longest: pause,
            jitter: Jitter::Added(Duration::ZERO),
        }
    }

    /// Adds a random time of up to `at_most` to each pause, in place of any jitter that was set before.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// use std::time::Duration;
    /// use redlatch::config::Backoff;
    ///
    /// // Instances that a timer starts at the same time do not keep asking at the same time.
    /// let spread = Backoff::fixed(Duration::from_secs(2)).jitter(Duration::from_secs(1));
    /// let lock = client.spin_lock("nightly-report").backoff(spread);
    /// let guard = lock.lock().await?;
    /// guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use = "this makes a new backoff and leaves the old one as it is"]
    pub fn jitter(mut self, at_most: Duration) -> Self {
        self.jitter = Jitter::Added(at_most);
        self
    }

    /// Returns the same backoff with pauses of at most this length.
    pub(crate) fn up_to(mut self, longest: Duration) -> Self {
        self.longest = longest;
        self
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.first < SHORTEST {
            let given = self.first;
            return Err(Error::invalid(format!(
                "a backoff must pause for at least {SHORTEST:?}, not {given:?}"
            )));
        }
        Ok(())
    }

    /// Returns the longest pause that there may be.
    pub(crate) fn longest_pause(&self) -> Duration {
        let [least, most] = [0.0, 1.0].map(|random| self.pause(u32::MAX, random));
        least.max(most)
    }

    /// Returns the pause after this number of earlier attempts, with `random` in 0..1.
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
