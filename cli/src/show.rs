//! `redlatch inspect` and `watch`: who holds a lock.

use std::future::pending;
use std::io::{self, Write, stdout};
use std::os::fd::AsFd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redlatch::admin::{FoundHolder, FoundKind, FoundSide, Inspection};
use serde_json::{Value, json};
use tokio::io::Interest;
use tokio::net::unix::pipe::Sender;

use crate::args::{Inspect, Server, Watch};
use crate::exit::{self, Failure};
use crate::server::{self, seconds};
use crate::shown::shown;
use crate::span;

pub(crate) async fn inspect(server: &Server, args: &Inspect, as_json: bool) -> Result<u8, Failure> {
    let client = server::connect(server).await?;
    let found = client.admin().inspect(&args.name).await;
    client.close().await;
    let found = found?;
    if as_json {
        print(&found.as_ref().map_or(Value::Null, json).to_string())?;
    } else {
        match &found {
            Some(found) => print(&in_full(found))?,
            None => print(&format!(
                "{}: nothing is held under this name",
                shown(&args.name)
            ))?,
        };
    }
    // What a free lock leaves behind, such as its last token or those who wait, does not make it held.
    let is_there = |found: &Inspection| !found.holders.is_empty() || found.count.is_some();
    Ok(match found.as_ref().is_some_and(is_there) {
        true => 0,
        false => exit::NO,
    })
}

pub(crate) async fn watch(server: &Server, args: &Watch, as_json: bool) -> Result<u8, Failure> {
    let client = server::connect(server).await?;
    let admin = client.admin();
    let mut messages = admin.watch(&args.name)?;
    let out = stdout().as_fd().try_clone_to_owned();
    let out = out.and_then(Sender::from_owned_fd_unchecked);
    let mut last: Option<Option<Vec<(String, u64)>>> = None;
    let mut was_away = false;
    loop {
        match admin.inspect(&args.name).await {
            Ok(found) => {
                let state = found.as_ref().map(state);
                if std::mem::take(&mut was_away) || last.as_ref() != Some(&state) {
                    let is_gone = line(args, found.as_ref(), as_json)? == Reader::Gone;
                    if is_gone {
                        break;
                    }
                    last = Some(state);
                }
            }
            Err(error) => {
                let failure = Failure::from(error);
                if failure.code == exit::USAGE {
                    return Err(failure);
                }
                // Once for each time that the server is away; it may come back.
                if !std::mem::replace(&mut was_away, true) {
                    let line = match as_json {
                        true => json!({ "time": now(), "name": args.name, "error": failure.text })
                            .to_string(),
                        false => format!("{}  {}", clock(), shown(&failure.text)),
                    };
                    if write(&line)? == Reader::Gone {
                        break;
                    }
                }
            }
        }
        tokio::select! {
            () = messages.message(), if !was_away => {}
            () = tokio::time::sleep(args.interval) => {}
            () = reader_goes(&out) => break,
        }
    }
    Ok(0)
}

/// Returns what makes a state differ from another one: not the lease, which changes all the time.
fn state(found: &Inspection) -> Vec<(String, u64)> {
    let holders = found.holders.iter().map(|holder| {
        let side = holder.side.map_or("", side);
        (format!("{side} {}", holder.owner), holder.hold_count)
    });
    let mut state: Vec<_> = holders.collect();
    state.sort();
    let waiters = found.waiters.len() as u64 + u64::from(found.is_wanted);
    let count = found.count.unwrap_or_default() as u64;
    let token = found.token.unwrap_or_default();
    state.extend([
        (kind(found.kind).to_owned(), count),
        ("waiters".to_owned(), waiters),
        ("token".to_owned(), token),
    ]);
    state
}

/// Prints one line of `watch`.
fn line(args: &Watch, found: Option<&Inspection>, as_json: bool) -> Result<Reader, Failure> {
    let text = match (as_json, found) {
        (true, found) => {
            json!({ "time": now(), "name": args.name, "lock": found.map(json) }).to_string()
        }
        (false, Some(found)) if found.count.is_some() => {
            format!("{}  {} {}", clock(), shown(&args.name), count(found))
        }
        (false, Some(found)) if !found.holders.is_empty() => {
            let token = found
                .token
                .map_or_else(String::new, |token| format!(", token {token}"));
            format!(
                "{}  {} held by {}{token}",
                clock(),
                shown(&args.name),
                holders(found)
            )
        }
        (false, found) => {
            let waiters = found.map_or_else(String::new, and_waiting);
            format!("{}  {} free{waiters}", clock(), shown(&args.name))
        }
    };
    write(&text)
}

/// Returns what `inspect` shows.
fn in_full(found: &Inspection) -> String {
    let mut lines = vec![format!("name      {}", shown(&found.name))];
    lines.push(format!("kind      {}", kind(found.kind)));
    if found.count.is_some() {
        lines.push(format!("count     {}", count(found)));
    } else if found.holders.is_empty() {
        lines.push("held by   nobody".to_owned());
    }
    for holder in &found.holders {
        lines.push(format!("held by   {}", one(holder)));
    }
    if let Some(token) = found.token {
        lines.push(format!("token     {token}, the last one given out"));
    }
    for waiter in &found.waiters {
        let what = match found.kind {
            FoundKind::Fair => "",
            _ => "client ",
        };
        lines.push(format!("waits     {what}{}", shown(&waiter.to_string())));
    }
    if found.is_wanted {
        lines.push("waits     at least one reader or writer".to_owned());
    }
    if let Some(listeners) = found.listeners.filter(|listeners| *listeners > 0) {
        lines.push(format!("listening {listeners} on the lock's channel"));
    }
    lines.join("\n")
}

/// Returns the holders in one line, with what is left of the lease and who waits.
pub(crate) fn holders(found: &Inspection) -> String {
    let waiters = and_waiting(found);
    match &found.holders[..] {
        [] => format!("nobody{waiters}"),
        [holder] => format!("{}{waiters}", one(holder)),
        several => format!(
            "{} owners, for {}{waiters}",
            several.len(),
            left(found.remaining_lease)
        ),
    }
}

fn one(holder: &FoundHolder) -> String {
    let side = holder
        .side
        .map_or_else(String::new, |held| format!(", {}", side(held)));
    let times = match holder.hold_count {
        1 => String::new(),
        times => format!(", {times} times"),
    };
    let lease = match holder.remaining_lease {
        Some(lease) => format!("lease {}", span::show(lease)),
        None => "no lease".to_owned(),
    };
    format!("{}{side}{times}, {lease}", shown(&holder.to_string()))
}

pub(crate) fn owners(found: &Inspection) -> String {
    let names = found.holders.iter().map(|holder| {
        let side = match holder.side {
            Some(held) => format!(" ({})", side(held)),
            None => String::new(),
        };
        let times = match holder.hold_count {
            1 => String::new(),
            times => format!(" x{times}"),
        };
        format!("{}{side}{times}", shown(&holder.to_string()))
    });
    names.collect::<Vec<_>>().join(", ")
}

/// Returns how many wait, as far as that is known.
pub(crate) fn waiting(found: &Inspection) -> Option<String> {
    match (found.waiters.len(), found.is_wanted) {
        (0, true) => Some("yes".to_owned()),
        (0, false) => None,
        (waiters, _) => Some(waiters.to_string()),
    }
}

/// Returns the end of a line: how many wait, if any do.
fn and_waiting(found: &Inspection) -> String {
    waiting(found).map_or_else(String::new, |waiters| format!(", waiting: {waiters}"))
}

fn count(found: &Inspection) -> String {
    let count = found.count.unwrap_or_default();
    match found.kind {
        FoundKind::ExpirableSemaphore => format!("{count} permits, less those that are out"),
        _ => format!("{count} free permits, or a latch at {count}"),
    }
}

pub(crate) fn left(lease: Option<Duration>) -> String {
    lease.map_or_else(|| "-".to_owned(), span::show)
}

pub(crate) fn kind(kind: FoundKind) -> &'static str {
    match kind {
        FoundKind::Reentrant => "reentrant",
        FoundKind::Fair => "fair",
        FoundKind::Fenced => "fenced",
        FoundKind::ReadWrite => "read-write",
        FoundKind::Plain => "plain",
        FoundKind::Counter => "counter",
        FoundKind::ExpirableSemaphore => "expirable-semaphore",
        _ => "other",
    }
}

fn side(side: FoundSide) -> &'static str {
    match side {
        FoundSide::Read => "read",
        FoundSide::Write => "write",
        _ => "other",
    }
}

pub(crate) fn json(found: &Inspection) -> Value {
    let holders: Vec<Value> = found
        .holders
        .iter()
        .map(|holder| {
            json!({
                "owner": holder.owner,
                "label": holder.label,
                "side": holder.side.map(side),
                "hold_count": holder.hold_count,
                "lease_left": seconds(holder.remaining_lease),
            })
        })
        .collect();
    let waiters: Vec<&str> = found.waiters.iter().map(|waiter| &*waiter.id).collect();
    json!({
        "name": found.name,
        "kind": kind(found.kind),
        "holders": holders,
        "lease_left": seconds(found.remaining_lease),
        "waiters": waiters,
        "is_wanted": found.is_wanted,
        "listeners": found.listeners,
        "token": found.token,
        "count": found.count,
    })
}

/// Whether anybody reads what is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    There,
    /// The other end of the pipe is closed, as by `head`.
    Gone,
}

/// Waits until the other end of the pipe is closed. A file has no such end.
async fn reader_goes(out: &io::Result<Sender>) {
    if let Ok(out) = out
        && out.ready(Interest::ERROR).await.is_ok()
    {
        return;
    }
    pending::<()>().await;
}

/// Prints one or more lines.
pub(crate) fn write(text: &str) -> Result<Reader, Failure> {
    let mut out = stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Ok(()) => Ok(Reader::There),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Reader::Gone),
        Err(error) => Err(Failure::system("cannot print", &error)),
    }
}

pub(crate) fn print(text: &str) -> Result<u8, Failure> {
    write(text).map(|_| 0)
}

/// Returns the time since 1970 in seconds.
fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_millis() as f64 / 1_000.0)
}

/// Returns the time of day, in UTC.
fn clock() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let since = since.unwrap_or_default();
    let (seconds, millis) = (since.as_secs() % 86_400, since.subsec_millis());
    let (hours, minutes, seconds) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    format!("{hours:02}:{minutes:02}:{seconds:02}.{millis:03}Z")
}
