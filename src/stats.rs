//! What a client has done and has, in numbers: [`Client::stats`](crate::Client::stats). A later version may count more.

// Each number is a row of a table here: its manual, its name and type in the `Stats`, what counts it, and the metric
// that shows it. The rest of the crate tells a number what has happened, and nothing else stands between.

mod number;

use std::time::Duration;

pub(crate) use number::{Count, Level, Longest};

use crate::metrics::{Histogram, Labels, Metric, Unit};

const ACQUISITIONS: Metric = (
    "redlatch_acquisitions_total",
    Unit::Count,
    "Calls to acquire that have ended, by their outcome",
);
const LOST: Metric = (
    "redlatch_lost_total",
    Unit::Count,
    "Holds that were lost, by the reason",
);
const RENEWALS: Metric = (
    "redlatch_renewals_total",
    Unit::Count,
    "Holds that were renewed, found gone, or are tried again",
);
pub(crate) const MESSAGES: Metric = (
    "redlatch_messages_total",
    Unit::Count,
    "Messages of releases that have arrived",
);

/// Makes a struct that shows numbers, and one that counts them. A row names what counts, with the metric that shows it,
/// if any, and the label by which the rows of one metric differ. Times are shown by a metric only.
macro_rules! numbers {
    (
        $(#[$manual:meta])*
        $Stats:ident counted by $Numbers:ident {
            $(
                $(#[$about:meta])*
                $name:ident: $Type:ty = $Number:ident($($metric:expr $(, $label:literal, $value:literal)?)?),
            )*
        }
        $(and times { $($time:ident = $histogram:expr,)* })?
    ) => {
        $(#[$manual])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize))]
        #[non_exhaustive]
        pub struct $Stats {
            $($(#[$about])* pub $name: $Type,)*
        }

        #[derive(Debug)]
        pub(crate) struct $Numbers {
            $(pub(crate) $name: $Number,)*
            $($(pub(crate) $time: Histogram,)*)?
        }

        impl $Numbers {
            /// With metrics that have these labels.
            pub(crate) fn new(labels: &Labels) -> Self {
                Self {
                    $($name: numbers!(@new labels $Number $($metric $(, $label, $value)?)?),)*
                    $($($time: labels.histogram($histogram),)*)?
                }
            }

            /// Returns the sums of those that are counted apart.
            pub(crate) fn sum<'a>(all: impl IntoIterator<Item = &'a Self>) -> $Stats {
                let all = all.into_iter();
                $Stats::sum(all.map(|it| $Stats { $($name: it.$name.get(),)* }))
            }
        }

        impl $Stats {
            fn sum(all: impl Iterator<Item = Self>) -> Self {
                all.fold(Self::default(), |sum, it| Self { $($name: sum.$name + it.$name,)* })
            }
        }
    };
    (@new $labels:ident $Number:ident) => { $Number::unshown() };
    (@new $labels:ident $Number:ident $metric:expr) => { $Number::new($labels, $metric) };
    (@new $labels:ident $Number:ident $metric:expr, $label:literal, $value:literal) => {
        $Number::new(&$labels.with($label, $value), $metric)
    };
}

/// Makes the [`Stats`], with a row for each kind that is counted apart.
macro_rules! stats {
    (
        $(#[$manual:meta])*
        kinds { $($(#[$about:meta])* $name:ident: $Kind:ident,)* }
        others { $($(#[$about_other:meta])* $other:ident: $Type:ty,)* }
    ) => {
        $(#[$manual])*
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize))]
        #[non_exhaustive]
        pub struct Stats {
            $($(#[$about])* pub $name: KindStats,)*
            $($(#[$about_other])* pub $other: $Type,)*
        }

        /// The kinds that are counted apart.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Counted {
            $($Kind,)*
        }

        impl Counted {
            /// In the order of their numbers.
            pub(crate) const ALL: [Self; [$(Self::$Kind),*].len()] = [$(Self::$Kind),*];

            pub(crate) fn name(self) -> &'static str {
                match self { $(Self::$Kind => stringify!($name),)* }
            }
        }

        impl Stats {
            /// Returns the numbers of each kind, and the others at zero.
            pub(crate) fn of_kinds(numbers: impl Fn(Counted) -> KindStats) -> Self {
                Self { $($name: numbers(Counted::$Kind),)* ..Self::default() }
            }

            fn of(&self, kind: Counted) -> KindStats {
                match kind { $(Counted::$Kind => self.$name,)* }
            }
        }
    };
}

stats! {
    /// What a client has done since it was connected, and what it has now. A snapshot, returned by
    /// [`Client::stats`](crate::Client::stats).
    ///
    /// All clones of a client are counted together, scoped ones too. Counts begin at zero when the client is connected
    /// and never go down; to measure a span of time, subtract an earlier snapshot. What is called *now* is the state
    /// when the snapshot was taken: it returns to zero once nothing is held and nobody waits, also when the client was
    /// closed. The numbers of one snapshot are read one after the other, while calls go on, so they may differ by calls
    /// that were on their way.
    ///
    /// Counting costs a few atomic additions for each call, and no request. The feature `metrics` exports the same
    /// numbers, with histograms.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// let guard = client.lock("orders:42").lock().await?;
    /// let again = guard.reenter().await?;
    /// let stats = client.stats();
    /// assert_eq!(stats.reentrant.held, 1); // one owner, two levels
    /// assert_eq!(stats.reentrant.granted, 2);
    /// assert_eq!(stats.reentrant.reentered, 1);
    /// assert_eq!(stats.lost.total(), 0);
    ///
    /// again.unlock().await?;
    /// guard.unlock().await?;
    /// for (kind, numbers) in client.stats().kinds() {
    ///     println!("{kind}: {} granted, {} held, {} waiting", numbers.granted, numbers.held, numbers.waiting);
    /// }
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    kinds {
        /// Of each [`ReentrantLock`](crate::ReentrantLock).
        reentrant: Reentrant,
        /// Of each [`SpinLock`](crate::SpinLock).
        spin: Spin,
        /// Of each [`FencedLock`](crate::FencedLock). Elections and jobs that run once are held by such locks, and
        /// count here.
        fenced: Fenced,
        /// Of each [`FairLock`](crate::FairLock).
        fair: Fair,
        /// Of each [`PlainLock`](crate::PlainLock).
        plain: Plain,
        /// Of each [`ReadLock`](crate::ReadLock).
        read: Read,
        /// Of each [`WriteLock`](crate::WriteLock).
        write: Write,
        /// The calls of each [`RedLock`](crate::RedLock), with the client of its first member. What it holds counts as
        /// held with the kind and the client of each member.
        red: Red,
        /// Of each [`Semaphore`](crate::semaphore::Semaphore): calls are counted, and permits are held.
        semaphore: Semaphore,
        /// Of each [`ExpirableSemaphore`](crate::semaphore::ExpirableSemaphore): calls are counted, and permits are
        /// held.
        expirable_semaphore: ExpirableSemaphore,
        /// The waits for each [`Latch`](crate::Latch): granted once it is open. Nothing is held.
        latch: Latch,
    }
    others {
        /// The holds that were lost.
        lost: LossStats,
        /// What the watchdog did.
        renewals: RenewalStats,
        /// The connections for commands.
        connections: ConnectionStats,
        /// What went over these connections.
        traffic: TrafficStats,
        /// How many messages of releases have arrived, on the connections for messages.
        messages: u64,
    }
}

numbers! {
    /// The numbers of one kind of lock, semaphore or latch.
    ///
    /// Each call is counted once, however often it asks the server: as `waiting` from its first poll until it ends, and
    /// by its outcome after that. The members of a [`MultiLock`](crate::MultiLock) are counted as one call each, by
    /// their own kinds; all of them end as the call for the set does.
    KindStats counted by KindNumbers {
        /// How many are held now: owners that hold a lock, however many levels each of them has, or permits. What was
        /// left to its owner by [`detach`](crate::LockGuard::detach) counts until its lease ends. A permit with a lease
        /// counts until it is given back or dropped, also if its lease has ended.
        held: u64 = Level(("redlatch_held", Unit::Count, "Owners that hold a lock, and permits that are held")),
        /// How many calls are under way now, those included whose first request was sent and not answered.
        waiting: u64 = Level(("redlatch_waiting", Unit::Count, "Calls to acquire that are under way")),
        /// Calls that were granted what they asked for.
        granted: u64 = Count(ACQUISITIONS, "outcome", "granted"),
        /// Calls among `granted` that were served in memory: another owner of this process passed the lock on, or had
        /// it for reading too.
        handed_over: u64 = Count(("redlatch_handed_over_total", Unit::Count, "Granted calls that were served in memory")),
        /// Calls among `granted` by an owner that held the lock already.
        reentered: u64 = Count(("redlatch_reentered_total", Unit::Count, "Granted calls of owners that held the lock already")),
        /// Calls that made a single attempt, `try_lock` for example, and found it busy.
        busy: u64 = Count(ACQUISITIONS, "outcome", "busy"),
        /// Calls that waited up to their limit in vain: `try_lock_for`, or a spin lock after its last attempt.
        timed_out: u64 = Count(ACQUISITIONS, "outcome", "timed_out"),
        /// Calls that returned an error.
        failed: u64 = Count(ACQUISITIONS, "outcome", "failed"),
        /// Calls whose future was dropped before it was ready.
        cancelled: u64 = Count(ACQUISITIONS, "outcome", "cancelled"),
    }
    and times {
        wait = ("redlatch_wait_seconds", Unit::Seconds, "How long granted calls took"),
        hold = ("redlatch_hold_seconds", Unit::Seconds, "How long locks and permits were held"),
    }
}

numbers! {
    /// The holds that were lost while somebody relied on them, by the reason. Each is counted once.
    LossStats counted by LossNumbers {
        /// The server no longer had them: their keys expired, or were deleted.
        gone: u64 = Count(LOST, "reason", "gone"),
        /// No renewal was confirmed before their leases ended, or they had fixed leases, and those ended.
        expired: u64 = Count(LOST, "reason", "expired"),
        /// The lock was granted to another owner of this process meanwhile.
        displaced: u64 = Count(LOST, "reason", "displaced"),
        /// A call released the lock by force, in this process or in another one that told it.
        forced: u64 = Count(LOST, "reason", "forced"),
        /// The client was closed, or its runtime ended.
        closed: u64 = Count(LOST, "reason", "closed"),
    }
}

numbers! {
    /// What the watchdog did to renew leases.
    ///
    /// One request renews up to 100 holds.
    RenewalStats counted by RenewalNumbers {
        /// How many requests were sent.
        requests: u64 = Count(),
        /// How many holds they renewed.
        renewed: u64 = Count(RENEWALS, "outcome", "renewed"),
        /// How many holds they found gone.
        gone: u64 = Count(RENEWALS, "outcome", "gone"),
        /// How many holds were not renewed since the request for them failed or was not answered in time. Each is tried
        /// again before its lease ends.
        failed: u64 = Count(RENEWALS, "outcome", "failed"),
        /// The longest delay of a renewal, from when it was due until it was sent. If this comes near a third of a
        /// lease, the runtime is too busy to keep its locks.
        worst_lag: Duration = Longest(("redlatch_renewal_lag_seconds", Unit::Seconds, "How much later than it was due a renewal was sent")),
    }
}

numbers! {
    /// The connections for commands: one to each server that is in use.
    ConnectionStats counted by ConnectionNumbers {
        /// How many are open now.
        open: u64 = Level(("redlatch_connected", Unit::Count, "Open connections for commands")),
        /// How often one was made again after it broke.
        reconnects: u64 = Count(("redlatch_reconnects_total", Unit::Count, "Connections for commands that were made again")),
    }
}

numbers! {
    /// What went over the connections for commands.
    TrafficStats counted by TrafficNumbers {
        /// Requests that were given to a connection. A request that is repeated counts each time.
        requests: u64 = Count(("redlatch_requests_total", Unit::Count, "Requests that were given to a connection")),
        /// The bytes of these requests, before any encryption.
        bytes_sent: u64 = Count(("redlatch_sent_bytes_total", Unit::Bytes, "Bytes of requests")),
        /// The bytes of all replies, after any decryption.
        bytes_received: u64 = Count(("redlatch_received_bytes_total", Unit::Bytes, "Bytes of replies")),
    }
    and times {
        request = ("redlatch_request_seconds", Unit::Seconds, "How long requests took until their replies were read"),
    }
}

impl Stats {
    /// Returns the numbers of each kind with its name, which is the value of the label `kind` in the feature `metrics`.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// client.fair_lock("printer").lock().await?.unlock().await?;
    /// let stats = client.stats();
    /// let (kind, _) = stats.kinds().find(|(_, numbers)| numbers.granted > 0).unwrap();
    /// assert_eq!(kind, "fair");
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub fn kinds(&self) -> impl Iterator<Item = (&'static str, KindStats)> {
        Counted::ALL
            .map(|kind| (kind.name(), self.of(kind)))
            .into_iter()
    }

    /// Returns the sums over all kinds.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// let lock = client.lock("orders:42").lock().await?;
    /// let permit = client.fair_lock("printer").lock().await?;
    /// assert_eq!(client.stats().total().held, 2);
    /// # drop((lock, permit));
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn total(&self) -> KindStats {
        KindStats::sum(self.kinds().map(|(_, kind)| kind))
    }
}

impl LossStats {
    /// Returns how many holds were lost for any reason.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// let lock = client.lock("orders:42");
    /// let guard = lock.lock().await?;
    /// lock.force_unlock().await?;
    /// assert!(guard.is_lost());
    /// assert_eq!(client.stats().lost.total(), 1);
    /// assert_eq!(client.stats().lost.forced, 1);
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn total(&self) -> u64 {
        self.gone + self.expired + self.displaced + self.forced + self.closed
    }
}
