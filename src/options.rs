//! Lease, wait and client settings, valid by construction.

use std::time::Duration;

use crate::clock::BootInstant;
use crate::error::Error;
use crate::label;
use crate::owner::Owners;

pub(crate) const SHORTEST_LEASE: Duration = Duration::from_millis(50);
/// A century: far below the point where the server's millisecond arithmetic overflows.
const LONGEST_LEASE: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
/// With a shorter timeout, a request would be given up before a healthy server can answer.
pub(crate) const SHORTEST_TIMEOUT: Duration = Duration::from_millis(20);

/// With a shorter time, every call would count as a long wait.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

/// A valid lease: whole milliseconds, long enough to be kept, short enough for the server's arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LeaseTime(Duration);

impl LeaseTime {
    pub(crate) fn new(lease: Duration) -> Result<Self, Error> {
        if lease < SHORTEST_LEASE || lease > LONGEST_LEASE {
            return Err(Error::invalid(format!(
                "a lease must last from {SHORTEST_LEASE:?} to 100 years, not {lease:?}"
            )));
        }
        Ok(Self(Duration::from_millis(lease.as_millis() as u64)))
    }

    /// Checks a setting that has the limits of a lease. The error names the setting.
    pub(crate) fn of_setting(setting: &str, given: Duration) -> Result<Self, Error> {
        let named = |_| {
            Error::invalid(format!(
                "{setting} must be from {SHORTEST_LEASE:?} to 100 years, not {given:?}"
            ))
        };
        Self::new(given).map_err(named)
    }

    pub(crate) fn get(self) -> Duration {
        self.0
    }

    pub(crate) fn millis(self) -> u64 {
        self.0.as_millis() as u64
    }

    /// Returns by how much the local deadline is earlier than the server's: 1 % for clocks that run at different rates,
    /// and 2 ms for the resolution of the server's clock and of the local timers.
    pub(crate) fn margin(self) -> Duration {
        self.0 / 100 + Duration::from_millis(2)
    }
}

/// How long a hold lasts: for a fixed time, or renewed as long as a guard lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseMode {
    Fixed(LeaseTime),
    Renewed(LeaseTime),
}

impl LeaseMode {
    pub(crate) fn lease(self) -> LeaseTime {
        match self {
            Self::Fixed(lease) | Self::Renewed(lease) => lease,
        }
    }

    pub(crate) fn is_renewed(self) -> bool {
        matches!(self, Self::Renewed(_))
    }
}

/// Who goes first when readers and writers wait for the same [`ReadWriteLock`](crate::ReadWriteLock). Set by
/// [`ReadWriteLock::prefer`](crate::ReadWriteLock::prefer).
///
/// Redisson's readers ignore this preference. While one of them holds the lock, a reader of this crate waits for at
/// most one second behind a waiting writer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Prefer {
    /// In order of arrival: a reader that arrives while a writer waits goes after that writer, and a writer that
    /// arrives while readers wait goes after those readers. Neither side starves, which is why this is the default.
    #[default]
    Arrival,
    /// Writers first: readers wait as long as any writer waits. A steady stream of writers starves readers.
    Writers,
    /// Readers first: they join the current readers and ignore waiting writers. The fastest choice if writes are rare;
    /// a steady stream of readers starves writers, as with Redisson.
    Readers,
}

/// How waiters in a cluster are notified of a release. Set by
/// [`ClientBuilder::pubsub`](crate::ClientBuilder::pubsub).
///
/// All clients of a lock, including Redisson's, must choose the same way: a message sent in one way does not reach
/// clients that listen in the other. Those clients notice the release only when they ask again, at the end of the
/// holder's lease or of the [`poll_cap`](crate::ClientBuilder::poll_cap).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PubSub {
    /// Sharded messages if the cluster supports them, which it does from Redis 7 on, otherwise plain messages. Redisson
    /// chooses in the same way from version 3.22 on.
    ///
    /// Users with few rights need `+pubsub|shardnumsub` for the detection; without it, connecting fails with an error
    /// that says so.
    #[default]
    Auto,
    /// `PUBLISH`, which each server passes on to all other servers. For fleets with an older Redisson, or with a
    /// Redisson that has sharded subscriptions turned off.
    Plain,
    /// `SPUBLISH`, which stays on the server of the lock. Connecting to a cluster that does not support it is an error.
    Sharded,
}

impl PubSub {
    /// Returns whether messages are sharded, if that was chosen.
    pub(crate) fn sharded(self) -> Option<bool> {
        match self {
            Self::Auto => None,
            Self::Plain => Some(false),
            Self::Sharded => Some(true),
        }
    }
}

/// How long an acquisition may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deadline {
    /// A single attempt.
    Once,
    /// Until this instant.
    At(BootInstant),
    /// Without limit, as long as the server answers.
    Never,
}

impl Deadline {
    /// Returns the time left until the deadline.
    pub(crate) fn left(self) -> Duration {
        match self {
            Self::Once => Duration::ZERO,
            Self::At(end) => BootInstant::now().until(end),
            Self::Never => Duration::MAX,
        }
    }

    pub(crate) fn within(wait: Duration) -> Self {
        if wait.is_zero() {
            return Self::Once;
        }
        match BootInstant::now().plus(wait) {
            BootInstant::NEVER => Self::Never,
            instant => Self::At(instant),
        }
    }
}

/// How a [`PlainLock`](crate::PlainLock) is released, renewed, extended and verified. Each of these must change a key
/// only if its value is still that of the hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ReleaseBy {
    /// By script, or by transaction once the server has refused scripts to this user.
    #[default]
    Auto,
    /// By script only. If the server allows none, the call fails with [`Backend`](crate::ErrorKind::Backend).
    Script,
    /// By transaction only: `WATCH`, `GET`, `MULTI`, `DEL` or `PEXPIRE`, `EXEC`. Never sends a script.
    Transaction,
}

/// How many replicas have to acknowledge a hold before it counts, and within which time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MinReplicas {
    pub(crate) least: u32,
    pub(crate) within: Duration,
}

/// The settings of a client, checked when the client is built.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) watchdog_lease: Duration,
    pub(crate) command_timeout: Duration,
    pub(crate) min_validity: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) poll_cap: Duration,
    pub(crate) local_handoff_limit: u32,
    pub(crate) fair_wait_timeout: Duration,
    pub(crate) pubsub: PubSub,
    pub(crate) owners: Owners,
    pub(crate) label: Option<String>,
    /// After this time, a call that still waits is told of.
    pub(crate) long_wait: Option<Duration>,
    /// Each hold has a span.
    pub(crate) trace_holds: bool,
    /// The names of locks whose metrics have the name as a label.
    pub(crate) metrics_by_name: Vec<Box<str>>,
    /// Building the client does not fail if the server is not there yet.
    pub(crate) connects_lazily: bool,
    pub(crate) min_replicas: Option<MinReplicas>,
    /// The server never loses what it has answered.
    pub(crate) durable: bool,
    /// A server that was started only recently is trusted to have granted nothing before its start.
    pub(crate) trusts_fresh: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            watchdog_lease: Duration::from_secs(30),
            command_timeout: Duration::from_secs(1),
            min_validity: None,
            max_hold: None,
            poll_cap: Duration::from_secs(5),
            local_handoff_limit: 8,
            fair_wait_timeout: Duration::from_secs(5 * 60),
            pubsub: PubSub::Auto,
            owners: Owners::Task,
            label: None,
            long_wait: None,
            trace_holds: false,
            metrics_by_name: Vec::new(),
            connects_lazily: false,
            min_replicas: None,
            durable: false,
            trusts_fresh: false,
        }
    }
}

impl Settings {
    pub(crate) fn check(&self) -> Result<(), Error> {
        let lease = LeaseTime::of_setting("watchdog_lease", self.watchdog_lease)?;
        self.min_validity(lease)?;
        self.label.as_deref().map_or(Ok(()), label::check)?;
        within_a_day("command_timeout", self.command_timeout, SHORTEST_TIMEOUT)?;
        within_a_day("poll_cap", self.poll_cap, Duration::from_millis(10))?;
        let second = Duration::from_secs(1);
        within_a_day("fair_wait_timeout", self.fair_wait_timeout, second)?;
        if self.long_wait.is_some_and(|after| after < SHORTEST_WAIT) {
            return Err(Error::invalid(
                "long_wait must be at least 1 ms; leave it out to be told of no wait",
            ));
        }
        if let Some(MinReplicas { least, within }) = self.min_replicas {
            if least == 0 {
                return Err(Error::invalid(
                    "min_replicas must be at least 1; leave it out to wait for none",
                ));
            }
            within_a_day("the time of min_replicas", within, SHORTEST_WAIT)?;
        }
        match self.max_hold {
            Some(given) if given < SHORTEST_LEASE => Err(Error::invalid(format!(
                "max_hold must be at least {SHORTEST_LEASE:?}, not {given:?}"
            ))),
            _ => Ok(()),
        }
    }

    /// Returns how long one request for a hold with this lease may take. Several requests must fit into one lease.
    pub(crate) fn timeout(&self, lease: LeaseTime) -> Duration {
        self.command_timeout
            .min(SHORTEST_TIMEOUT.max(lease.get() / 6))
    }

    /// Returns how much of this lease must be left when the lock is handed out.
    pub(crate) fn min_validity(&self, lease: LeaseTime) -> Result<Duration, Error> {
        let least = self.min_validity.unwrap_or_else(|| lease.get() / 2);
        if least >= lease.get() - lease.margin() {
            let lease = lease.get();
            return Err(Error::invalid(format!(
                "a lease of {lease:?} can never meet a min_validity of {least:?}"
            )));
        }
        Ok(least)
    }
}

/// Refuses a setting that is shorter than `least` or longer than a day.
pub(crate) fn within_a_day(what: &str, given: Duration, least: Duration) -> Result<(), Error> {
    match given >= least && given <= Duration::from_secs(24 * 60 * 60) {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "{what} must be between {least:?} and a day, not {given:?}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_outside_the_range_are_refused() {
        for lease in [
            Duration::ZERO,
            Duration::from_nanos(1),
            Duration::from_millis(1),
            Duration::from_millis(49),
            Duration::from_secs(u64::MAX),
            Duration::MAX,
        ] {
            assert!(LeaseTime::new(lease).is_err(), "{lease:?}");
        }
        let odd = LeaseTime::new(Duration::from_micros(100_500)).unwrap();
        assert_eq!(odd.millis(), 100, "only whole milliseconds are sent");
    }

    #[test]
    fn waits_of_any_length_are_accepted() {
        assert_eq!(Deadline::within(Duration::ZERO), Deadline::Once);
        assert_eq!(Deadline::within(Duration::MAX), Deadline::Never);
        assert!(matches!(
            Deadline::within(Duration::from_millis(1)),
            Deadline::At(_)
        ));
    }

    #[test]
    fn timeouts_follow_the_lease() {
        let settings = Settings::default();
        let timeout =
            |millis| settings.timeout(LeaseTime::new(Duration::from_millis(millis)).unwrap());
        assert_eq!(timeout(50), Duration::from_millis(20));
        assert_eq!(timeout(3_000), Duration::from_millis(500));
        assert_eq!(timeout(30_000), Duration::from_secs(1));
    }

    #[test]
    fn impossible_settings_are_refused() {
        let refuse = |change: fn(&mut Settings)| {
            let mut settings = Settings::default();
            change(&mut settings);
            assert!(settings.check().is_err(), "{settings:?}");
        };
        refuse(|s| s.watchdog_lease = Duration::ZERO);
        refuse(|s| s.command_timeout = Duration::ZERO);
        refuse(|s| s.poll_cap = Duration::ZERO);
        refuse(|s| s.max_hold = Some(Duration::ZERO));
        refuse(|s| s.fair_wait_timeout = Duration::from_millis(999));
        refuse(|s| s.fair_wait_timeout = Duration::from_secs(24 * 60 * 60 + 1));
        refuse(|s| s.long_wait = Some(Duration::ZERO));
        refuse(|s| s.min_validity = Some(Duration::from_secs(30)));
        assert!(Settings::default().check().is_ok());
    }
}
