//! Pauses and retries, for calls that go on until their servers are back.

use std::time::Duration;

use tokio::time::sleep;
use tracing::{debug, warn};

use crate::backoff::Backoff;
use crate::error::{Error, ErrorKind};
use crate::session::Session;

/// The longest pause between two tries.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Counts the failures in a row of such a call.
#[derive(Debug, Default)]
pub(crate) struct FailureStreak {
    failures: u32,
}

impl FailureStreak {
    /// Pauses after an error of a call about this key. Returns the error instead if a retry cannot help.
    pub(crate) async fn endure(
        &mut self,
        session: &Session,
        key: &str,
        error: Error,
    ) -> Result<(), Error> {
        if !Self::is_one(&error) {
            return Err(error);
        }
        // Jitter keeps the processes that lost the server together from coming back in one burst.
        let pauses = Backoff::exponential().up_to(LONGEST_PAUSE);
        let pause = pauses.pause(self.failures, fastrand::f64());
        self.failures = self.failures.saturating_add(1);
        match self.failures {
            1 => {
                warn!(target: "redlatch", key, %error, "no answer that counts");
            }
            _ => debug!(target: "redlatch", key, %error, ?pause, "no answer that counts"),
        }
        session.unless_closed(sleep(pause)).await
    }

    /// Returns whether the error comes from the server or the network, or from an answer that came too late.
    fn is_one(error: &Error) -> bool {
        error.is_about_the_server() || error.kind() == ErrorKind::LeaseLost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_be_cured_is_endured() {
        for (kind, endured) in [
            (ErrorKind::Backend, true),
            (ErrorKind::Timeout, true),
            (ErrorKind::LeaseLost, true),
            (ErrorKind::InvalidInput, false),
            (ErrorKind::WrongKind, false),
            (ErrorKind::Refused, false),
            (ErrorKind::Protocol, false),
        ] {
            assert_eq!(
                FailureStreak::is_one(&Error::new(kind, "")),
                endured,
                "{kind:?}"
            );
        }
        assert!(!FailureStreak::is_one(&Error::closed()));
    }
}
