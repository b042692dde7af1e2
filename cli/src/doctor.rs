//! `redlatch doctor`: whether the server keeps locks, and whether this user may use them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redlatch::admin::ServerReport;
use redlatch::{Client, DistributedGuard, DistributedLock, Error};
use serde_json::{Value, json};

use crate::args::{Doctor, Server};
use crate::exit::{self, Failure};
use crate::server;
use crate::show;
use crate::shown::shown;
use crate::span;

/// The lease of a lock that is tried, at least: if `redlatch` dies meanwhile, the lock remains for this long.
const LEASE: Duration = Duration::from_secs(2);
/// How many requests that take as long as they may fit into that lease: one acquires the lock, and one releases it.
const REQUESTS: u32 = 5;
/// A clock that is off by more is worth a word.
const CLOCK_OFF: Duration = Duration::from_secs(1);

/// How a check has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Fine,
    /// Not a breach, or not known.
    Warning,
    /// A promise is broken.
    Broken,
}

#[derive(Debug)]
struct Finding {
    what: &'static str,
    outcome: Outcome,
    text: String,
}

fn fine(what: &'static str, text: impl Into<String>) -> Finding {
    finding(what, Outcome::Fine, text)
}

fn warning(what: &'static str, text: impl Into<String>) -> Finding {
    finding(what, Outcome::Warning, text)
}

fn broken(what: &'static str, text: impl Into<String>) -> Finding {
    finding(what, Outcome::Broken, text)
}

fn finding(what: &'static str, outcome: Outcome, text: impl Into<String>) -> Finding {
    Finding {
        what,
        outcome,
        text: text.into(),
    }
}

pub(crate) async fn doctor(server: &Server, args: &Doctor, as_json: bool) -> Result<u8, Failure> {
    let lease = LEASE.max(REQUESTS * server.timeout);
    let client = server::builder(server)?
        .watchdog_lease(lease)
        .build()
        .await?;
    let outcome = examine(&client, server.prefix.as_deref(), args, lease).await;
    client.close().await;
    let findings = outcome?;
    if as_json {
        let list: Vec<Value> = findings
            .iter()
            .map(|finding| {
                json!({
                    "check": finding.what,
                    "outcome": name(finding.outcome),
                    "text": finding.text,
                })
            })
            .collect();
        show::print(&Value::from(list).to_string())?;
    } else {
        for finding in &findings {
            let Finding { what, text, .. } = finding;
            let outcome = name(finding.outcome);
            show::print(&format!("{outcome:7}  {what:11}  {}", shown(text)))?;
        }
    }
    let worst = findings.iter().map(|finding| finding.outcome).max();
    Ok(match worst {
        Some(Outcome::Broken) => exit::NO,
        _ => 0,
    })
}

fn name(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Fine => "ok",
        Outcome::Warning => "warning",
        Outcome::Broken => "broken",
    }
}

async fn examine(
    client: &Client,
    prefix: Option<&str>,
    args: &Doctor,
    lease: Duration,
) -> Result<Vec<Finding>, Failure> {
    let mut findings = Vec::new();
    for report in client.admin().servers().await? {
        match report {
            Ok(report) => findings.extend(server_findings(&report)),
            Err(unread) => findings.push(broken("server", unread.to_string())),
        }
    }
    if !args.read_only {
        let probe = format!("redlatch_doctor:{}", client.id());
        let prefix = prefix.unwrap_or_default();
        let mut tried = rights(client, prefix, &probe).await;
        let mut further = locks(client, &probe, lease).await;
        further.push(messages(client, prefix, &probe).await);
        further.push(turns(client, prefix, &probe).await);
        // That a right is missing says more than what comes of it.
        further.retain(|finding| tried.iter().all(|known| known.what != finding.what));
        tried.extend(further);
        findings.extend(tried);
    }
    Ok(findings)
}

/// Judges what a server says of itself.
fn server_findings(report: &ServerReport) -> Vec<Finding> {
    let mut findings = Vec::new();
    let version = report.version.as_deref().unwrap_or("an unknown version");
    let round_trip = span_of(report.round_trip);
    let uptime = match report.uptime {
        Some(uptime) => format!(", up for {}", span::show(uptime)),
        None => String::new(),
    };
    let text = format!("{} is {version}{uptime}, {round_trip} away", report.address);
    findings.push(match report.version.as_deref().map(is_supported) {
        Some(false) => broken(
            "server",
            format!("{text}: Redis 6.2 is the oldest that works"),
        ),
        Some(true) => fine("server", text),
        None => warning(
            "server",
            format!("{text}: this user may not run INFO; grant +info"),
        ),
    });
    if report.is_primary == Some(false) {
        findings.push(broken(
            "role",
            "this is a replica and grants no locks; name the primary, or the sentinels",
        ));
    }
    findings.push(eviction(report));
    findings.push(persistence(report));
    findings.extend(replicas(report));
    findings.extend(isolation(report));
    findings.extend(clock(report));
    findings
}

fn is_supported(version: &str) -> bool {
    let Some(number) = version.strip_prefix("Redis ") else {
        return true;
    };
    let mut parts = number.split('.').map(|part| part.parse::<u32>().ok());
    let version = (parts.next().flatten(), parts.next().flatten());
    version >= (Some(6), Some(2))
}

fn eviction(report: &ServerReport) -> Finding {
    let is_limited = report.max_memory != Some(0);
    match report.eviction_policy.as_deref() {
        Some("noeviction") => {
            let used = match (report.used_memory, report.max_memory) {
                (Some(used), Some(most)) if most > 0 && used > most / 10 * 9 => {
                    return warning(
                        "eviction",
                        "noeviction, but over 90% of maxmemory is in use: if it is full, no lock can be acquired",
                    );
                }
                (_, Some(0)) => "no limit of memory",
                _ => "a full memory refuses writes",
            };
            fine(
                "eviction",
                format!("noeviction: no lock is evicted; {used}"),
            )
        }
        Some(policy) if is_limited => broken(
            "eviction",
            format!(
                "{policy} may evict the key of a lock that is held, and then there are two holders; set \
                 maxmemory-policy noeviction"
            ),
        ),
        Some(policy) => warning(
            "eviction",
            format!(
                "{policy} would evict locks, but there is no limit of memory; set maxmemory-policy noeviction before \
                 anyone sets one"
            ),
        ),
        None => warning(
            "eviction",
            "unknown: this user may not run INFO; grant +info; maxmemory-policy must be noeviction",
        ),
    }
}

fn persistence(report: &ServerReport) -> Finding {
    let lost =
        "a restart forgets locks that are held, and their holders are told when they reconnect";
    match (report.appends, report.append_sync.as_deref()) {
        (Some(true), Some("always")) => {
            fine("persistence", "appendfsync always: a restart loses no lock")
        }
        (Some(true), Some(sync)) => warning(
            "persistence",
            format!(
                "appendonly with appendfsync {sync}: a crash forgets the locks of the last moment"
            ),
        ),
        (Some(true), None) => warning(
            "persistence",
            "appendonly, but it is unknown how often that is on disk: this user may not run CONFIG GET; grant \
             +config|get, or see to it that appendfsync is always, otherwise a crash forgets the locks of the last \
             moment",
        ),
        (Some(false), _) => warning("persistence", format!("no appendonly: {lost}")),
        (None, _) => warning(
            "persistence",
            format!("unknown: this user may not run INFO; grant +info; without appendonly {lost}"),
        ),
    }
}

fn replicas(report: &ServerReport) -> Option<Finding> {
    let replicas = report.replicas.filter(|replicas| *replicas > 0)?;
    Some(warning(
        "replicas",
        format!(
            "{replicas} connected: a failover to one that has not received a lock yet means two holders; only a fencing \
             token, or a RedLock over several servers, prevents that; ClientBuilder::min_replicas makes it rarer"
        ),
    ))
}

/// Judges what the server does without its replicas.
fn isolation(report: &ServerReport) -> Option<Finding> {
    let replicas = report.replicas.unwrap_or_default();
    match report.least_replicas {
        Some(least) if least > replicas => Some(broken(
            "isolation",
            format!(
                "min-replicas-to-write is {least}, and {replicas} are connected: locks are neither acquired, renewed nor \
                 released"
            ),
        )),
        Some(least) if least > 0 => Some(fine(
            "isolation",
            format!(
                "min-replicas-to-write is {least}: cut off from its replicas, this server acquires and renews no lock; \
                 it does not wait until a replica has one, as ClientBuilder::min_replicas does"
            ),
        )),
        _ if replicas == 0 => None,
        Some(_) => Some(warning(
            "isolation",
            "min-replicas-to-write is 0: cut off from its replicas, of which one is promoted, this server goes on \
             granting locks to the clients that reach it; with 1 it stops after min-replicas-max-lag, 10 s by default",
        )),
        None => Some(warning(
            "isolation",
            "unknown: this user may not run CONFIG GET; grant +config|get; min-replicas-to-write should be 1 or more, \
             so that a server which is cut off from its replicas grants no locks",
        )),
    }
}

fn clock(report: &ServerReport) -> Option<Finding> {
    let theirs = report.clock?.saturating_sub(report.round_trip / 2);
    let ours = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    // The other servers were asked in between, so the difference is a rough one.
    let (off, which) = match theirs.checked_sub(ours) {
        Some(ahead) => (ahead, "ahead of"),
        None => (ours.saturating_sub(theirs), "behind"),
    };
    let text = format!("the server's is {} {which} this machine's", span::show(off));
    Some(match off > CLOCK_OFF {
        true => warning(
            "clock",
            format!(
                "{text}; leases do not depend on that, but one of the clocks will be set some day, and a server's that \
                 jumps ahead ends leases early"
            ),
        ),
        false => fine("clock", text),
    })
}

/// Judges whether this user has the rights that each kind needs.
async fn rights(client: &Client, prefix: &str, probe: &str) -> Vec<Finding> {
    let missing = match client.admin().check_rights(probe).await {
        Ok(missing) if missing.is_empty() => {
            return vec![fine("rights", "this user may send what each kind needs")];
        }
        Ok(missing) => missing,
        Err(error) => return vec![untried("rights", error)],
    };
    let findings = missing.into_iter().map(|missing| {
        let so = match missing.kind {
            "messages" => "waiters ask every second instead of being told",
            "fenced" => "fenced locks, leaders and jobs cannot be used, or are lost",
            "semaphore" | "expirable" | "latch" => "none can be used",
            "redlock" => "no RedLock can be used, if there is to be any",
            _ => "such locks cannot be used, or are lost",
        };
        let names_keys = missing.rights.iter().any(|right| right.starts_with('~'));
        let hint = match names_keys && prefix.is_empty() {
            true => "; if this user may use one prefix only, name it by --prefix",
            false => "",
        };
        let grant = missing.rights.join(" ");
        let text = format!("this user lacks a right, so {so}; grant {grant}{hint}");
        match missing.kind {
            "redlock" => warning(missing.kind, text),
            _ => broken(missing.kind, text),
        }
    });
    findings.collect()
}

/// Returns the pattern of all that stands next to the locks under a prefix: keys, and channels.
fn around(prefix: &str, unprefixed: &str) -> String {
    match prefix {
        "" => unprefixed.to_owned(),
        tagged if tagged.contains('{') => format!("*{tagged}*"),
        _ => format!("*{{{prefix}*}}*"),
    }
}

/// Acquires and releases a lock of each kind.
async fn locks(client: &Client, probe: &str, lease: Duration) -> Vec<Finding> {
    let name = |kind: &str| format!("{probe}:{kind}");
    let tried = [
        ("reentrant", held(&client.lock(name("reentrant"))).await),
        ("fair", held(&client.fair_lock(name("fair"))).await),
        // Its last token is not to remain for good.
        (
            "fenced",
            held(&client.fenced_lock(name("fenced")).token_ttl(lease)).await,
        ),
        ("spin", held(&client.spin_lock(name("spin"))).await),
        ("plain", held(&client.plain_lock(name("plain"))).await),
        (
            "read",
            held(&client.read_write_lock(name("rw")).reader()).await,
        ),
        (
            "write",
            held(&client.read_write_lock(name("rw")).writer()).await,
        ),
    ];
    let findings = tried.into_iter().map(|(kind, tried)| match tried {
        Ok(()) => fine(kind, "a lock was acquired and released"),
        Err(error) => broken(
            kind,
            format!("such locks cannot be used: {}", Failure::from(error).text),
        ),
    });
    findings.collect()
}

async fn held(lock: &impl DistributedLock) -> Result<(), Error> {
    match lock.try_lock().await? {
        Some(guard) => guard.unlock().await,
        // Nobody else knows the name. Should it happen, the server works all the same.
        None => Ok(()),
    }
}

/// Judges whether releases are heard.
async fn messages(client: &Client, prefix: &str, probe: &str) -> Finding {
    let channels = around(prefix, "redisson_*");
    let report = match client.admin().check_messages(probe).await {
        Ok(report) => report,
        Err(error) => return untried("messages", error),
    };
    match (&report.publish_refused, report.round_trip) {
        (Some(refusal), _) => broken(
            "messages",
            format!(
                "releases are not published, so waiters learn of them only by asking, after up to 5s{}",
                refused(refusal, &format!("+publish +spublish &{channels}"))
            ),
        ),
        (None, _) if !report.is_subscribed => broken(
            "messages",
            format!(
                "the server confirms no subscription, so waiters ask every second instead; grant +subscribe \
                 +ssubscribe &{channels}"
            ),
        ),
        (None, None) => broken(
            "messages",
            "a message that was published did not arrive: waiters learn of releases only by asking",
        ),
        (None, Some(round_trip)) => fine(
            "messages",
            format!("a release is heard within {}", span_of(round_trip)),
        ),
    }
}

/// Judges whether this user may take part in the turn order.
async fn turns(client: &Client, prefix: &str, probe: &str) -> Finding {
    match client.admin().check_turns(probe).await {
        Ok(None) => fine("turns", "processes that wait take turns"),
        Ok(Some(refusal)) => {
            let right = match refusal.split_once(" run the '") {
                // The command is in quotes.
                Some((_, command)) => {
                    format!("+{}", command.split('\'').next().unwrap_or_default())
                }
                None => format!("~{}", around(prefix, "*")),
            };
            broken(
                "turns",
                format!(
                    "this user cannot take part in the turn order: waiting processes race for a lock, and those of \
                     other users are not told of this one's releases{}",
                    refused(&refusal, &right)
                ),
            )
        }
        Err(error) => untried("turns", error),
    }
}

/// Returns the words in which a server refuses, behind the rights that mend it if it is for want of rights.
fn refused(words: &str, rights: &str) -> String {
    match words.starts_with("NOPERM") {
        true => format!("; grant {rights}: {words}"),
        false => format!(": {words}"),
    }
}

fn untried(what: &'static str, error: Error) -> Finding {
    let text = format!("this could not be tried: {}", Failure::from(error).text);
    broken(what, text)
}

/// Writes a short span with microseconds.
fn span_of(span: Duration) -> String {
    match span.as_millis() {
        0 => format!("{}µs", span.as_micros()),
        _ => span::show(span),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_asked_for_only_if_one_is_missing() {
        let refusal = "NOPERM this user has no permissions to access one of the keys";
        assert_eq!(refused(refusal, "~*"), format!("; grant ~*: {refusal}"));
        let moved = "MOVED 42 10.0.0.1:6379";
        assert_eq!(refused(moved, "~*"), format!(": {moved}"));
    }

    #[test]
    fn versions_before_the_oldest_are_told() {
        for (version, supported) in [
            ("Redis 6.2.14", true),
            ("Redis 7.0.15", true),
            ("Redis 10.0.0", true),
            ("Redis 6.0.9", false),
            ("Redis 5", false),
            ("Valkey 9.1.2", true),
        ] {
            assert_eq!(is_supported(version), supported, "{version}");
        }
    }
}
