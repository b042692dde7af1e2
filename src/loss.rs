//! Why a lock was lost.

use std::fmt;

/// Says why a lock was lost. [`lost`](crate::Lease::lost) resolves to it, and
/// [`Error::loss_reason`](crate::Error::loss_reason) returns it.
///
/// The reason is for logs and for people: whatever it is, the lock can no longer be relied on, and the work that it
/// protected has to stop. It is the first reason that this process learned, and it never changes. `Display` shows it in
/// plain words.
///
/// # Examples
///
/// ```
/// # redlatch_testkit::doc(async |url| {
/// # let client = redlatch::Client::connect(url).await?;
/// use redlatch::LossReason;
///
/// let lock = client.lock("nightly-report");
/// let guard = lock.lock().await?;
/// lock.force_unlock().await?; // an operator was impatient
/// let reason = guard.lost().await;
/// assert_eq!(reason, LossReason::Forced);
/// assert_eq!(reason.to_string(), "a call released it by force");
/// # Ok::<(), redlatch::Error>(()) });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LossReason {
    /// The server says that it no longer has this hold: its key expired, was deleted, or has another owner. Another
    /// process may have released the lock by force, and its message did not arrive here. Or the server may have lost
    /// its data.
    Gone,
    /// The lease passed before a renewal was confirmed: the server or the network was away, the server refused the
    /// renewal, which the log says, or this process was paused. A fixed lease, and one that has reached
    /// [`max_hold`](crate::ClientBuilder::max_hold), ends in this way too.
    ///
    /// Also the reason of a loss that is noticed by comparing clocks, before the server has said anything.
    Expired,
    /// The server granted the lock to another owner in this process. Usually, the hold had ended on the server before
    /// this process noticed.
    Displaced,
    /// A call released the lock by force: in this process, or in another one, which told this client.
    Forced,
    /// The client was closed, or the runtime on which it was connected has ended, so nothing renews the lease.
    Closed,
    /// Another call of the same owner released the level that this guard stood for, by `unlock` on a handle. No other
    /// owner took the lock away, but the guard no longer protects anything.
    Unlocked,
    /// Only a minority of the servers of a [`RedLock`](crate::RedLock) still has the lock, and the others lost it for
    /// different reasons. If the others have one reason in common, that reason is reported instead.
    NoMajority,
}

impl LossReason {
    /// Returns the reason of a loss that several losses amount to: the one that they have in common, if there is one.
    pub(crate) fn of_majority(mut losses: impl Iterator<Item = Self>) -> Self {
        match losses.next() {
            Some(first) if losses.all(|loss| loss == first) => first,
            _ => Self::NoMajority,
        }
    }
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gone => "the server no longer has this hold",
            Self::Expired => "its lease ended, and no renewal was confirmed",
            Self::Displaced => "the server granted it to another owner in this process",
            Self::Forced => "a call released it by force",
            Self::Closed => "the client was closed, or its runtime ended",
            Self::Unlocked => "another call of its owner unlocked it",
            Self::NoMajority => "too few of its servers still have it",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_amount_to_the_reason_that_they_have_in_common() {
        use LossReason::{Expired, Gone, NoMajority};

        for (losses, reason) in [
            (&[Expired, Expired][..], Expired),
            (&[Gone], Gone),
            (&[Gone, Expired, Gone], NoMajority),
            (&[], NoMajority),
        ] {
            assert_eq!(LossReason::of_majority(losses.iter().copied()), reason);
        }
    }
}
