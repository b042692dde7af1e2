//! What a server says of itself.

use std::time::Duration;

use crate::protocol::reply::Reply;
use crate::session::backend::inquiry::Told;

/// What a server says of itself, as far as it matters to locks. `None` stands for what this user may not ask, or what
/// this server does not know.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerReport {
    /// The address by which the client knows the server. With sentinels, that of the primary that they name.
    pub address: String,
    /// The product and its version, such as `Redis 7.0.15`.
    pub version: Option<String>,
    /// Whether it is a primary. A replica grants no locks.
    pub is_primary: Option<bool>,
    /// What the server does if its memory is full, such as `noeviction`. Any other policy may remove the key of a lock.
    pub eviction_policy: Option<String>,
    /// The limit of its memory in bytes; 0 for none.
    pub max_memory: Option<u64>,
    /// The memory that is in use, in bytes.
    pub used_memory: Option<u64>,
    /// Whether each write goes to a log on disk.
    pub appends: Option<bool>,
    /// When that log is on disk: `always`, `everysec` or `no`. Only with `always` does a restart lose no lock.
    pub append_sync: Option<String>,
    /// How many replicas are connected.
    pub replicas: Option<u64>,
    /// How many replicas have to be connected for the server to take writes.
    pub least_replicas: Option<u64>,
    /// How long the server was up.
    pub uptime: Option<Duration>,
    /// The server's clock: the time since 1970, about half a round trip before the answer arrived.
    pub clock: Option<Duration>,
    /// How long that answer took.
    pub round_trip: Duration,
}

pub(super) fn questions() -> Vec<Vec<&'static str>> {
    vec![
        vec!["INFO"],
        vec!["CONFIG", "GET", "appendfsync"],
        vec!["CONFIG", "GET", "min-replicas-to-write"],
    ]
}

pub(super) const CLOCK: &[&str] = &["TIME"];

/// Reads the answers to [`questions`] and to [`CLOCK`].
pub(super) fn read(
    address: String,
    told: &[Told],
    clock: Option<&Told>,
    round_trip: Duration,
) -> ServerReport {
    let info = |what: &str| told.first()?.as_ref().ok()?.info(what).map(str::to_owned);
    let number = |what: &str| info(what)?.parse::<u64>().ok();
    let setting =
        |at: usize, what: &str| told.get(at)?.as_ref().ok()?.field(what).map(str::to_owned);
    let version = info("valkey_version").map_or_else(
        || info("redis_version").map(|version| format!("Redis {version}")),
        |version| Some(format!("Valkey {version}")),
    );
    ServerReport {
        address,
        version,
        is_primary: info("role").map(|role| role == "master"),
        eviction_policy: info("maxmemory_policy"),
        max_memory: number("maxmemory"),
        used_memory: number("used_memory"),
        appends: number("aof_enabled").map(|enabled| enabled == 1),
        append_sync: setting(1, "appendfsync"),
        replicas: number("connected_slaves"),
        least_replicas: setting(2, "min-replicas-to-write").and_then(|least| least.parse().ok()),
        uptime: number("uptime_in_seconds").map(Duration::from_secs),
        clock: clock.and_then(time),
        round_trip,
    }
}

fn time(told: &Told) -> Option<Duration> {
    let Ok(Reply::List(parts)) = told else {
        return None;
    };
    let [Reply::Text(seconds), Reply::Text(micros)] = &parts[..] else {
        return None;
    };
    let (seconds, micros) = (seconds.parse().ok()?, micros.parse().ok()?);
    Duration::from_secs(seconds).checked_add(Duration::from_micros(micros))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_that_says_nothing_is_reported_as_such() {
        let refused = || Err("NOPERM no".to_owned());
        let told = [refused(), refused(), refused()];
        let report = read("a:1".to_owned(), &told, Some(&refused()), Duration::ZERO);
        assert_eq!((report.version, report.is_primary), (None, None));
        assert_eq!((report.append_sync, report.clock), (None, None));
    }

    #[test]
    fn what_a_server_says_is_read() {
        let text = |text: &str| Reply::Text(text.to_owned());
        let info = "redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:9.0.1\r\nrole:slave\r\naof_enabled:1\r\n";
        let sync = Reply::List(vec![text("appendfsync"), text("always")]);
        let told = [Ok(text(info)), Ok(sync), Ok(Reply::List(Vec::new()))];
        let clock = Ok(Reply::List(vec![text("12"), text("500000")]));
        let report = read("a:1".to_owned(), &told, Some(&clock), Duration::ZERO);
        assert_eq!(report.version.as_deref(), Some("Valkey 9.0.1"));
        assert_eq!(
            (report.is_primary, report.appends),
            (Some(false), Some(true))
        );
        assert_eq!(report.append_sync.as_deref(), Some("always"));
        assert_eq!(report.clock, Some(Duration::from_millis(12_500)));
        assert_eq!(report.least_replicas, None);
    }
}
