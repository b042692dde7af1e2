//! Which rights a user lacks, for which kind of lock.
//!
//! Each command that the scripts of a kind send is sent by itself, in a form that changes nothing: a server looks at the
//! rights of a user first. This needs no further right, and works with every version.

use std::collections::BTreeSet;

use super::Admin;
use super::escaped;
use crate::error::Error;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::protocol::red::EPOCH_KEY;
use crate::protocol::script;
use crate::session::backend::inquiry::Told;

/// What a user may not do that a kind of lock needs. Returned by [`Admin::check_rights`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MissingRights {
    /// The kind, such as `fenced` or `semaphore`; `set` for a lock on several names, and `messages` for what every kind
    /// waits by.
    pub kind: &'static str,
    /// What is to be added by `ACL SETUSER`, such as `+hget` or `~orders:*`.
    pub rights: Vec<String>,
}

/// A kind, what the files of its scripts begin with, and what the keys next to it begin with.
type Kind = (
    &'static str,
    &'static [&'static str],
    &'static [&'static str],
);

const KINDS: &[Kind] = &[
    ("reentrant", &["lock_"], &[]),
    ("spin", &["lock_"], &[]),
    ("fenced", &["fenced_", "lock_"], &["redisson_lock_token"]),
    (
        "fair",
        &["fair_", "lock_"],
        &[
            "redisson_lock_queue",
            "redisson_lock_timeout",
            "redlatch_lock_places",
        ],
    ),
    ("set", &["lock_"], &[]),
    ("plain", &["plain_"], &[]),
    ("read", &["read_", "rw_"], SIDES),
    ("write", &["write_", "rw_"], SIDES),
    ("semaphore", &["semaphore_", "counter_", "mark_"], MARKS),
    ("expirable", &["permit_", "counter_", "mark_"], MARKS),
    ("latch", &["latch_", "counter_", "mark_"], MARKS),
    ("redlock", &["red_", "lock_"], &[EPOCH_KEY]),
    // No script: the connection that listens to messages.
    ("messages", &[], &[]),
];
const SIDES: &[&str] = &["redlatch_rwlock_reader", "redlatch_rwlock_writer"];
const MARKS: &[&str] = &["redlatch_call", "redlatch_permit"];

/// What runs a script.
const ALWAYS: &[&str] = &["EVAL", "EVALSHA"];
/// What the plain lock sends where it may run no script.
const UNSCRIPTED: &[&str] = &["WATCH", "UNWATCH", "GET", "PTTL", "SET", "DEL", "PEXPIRE"];

/// The arguments behind the key, with which a command changes nothing if there is no such key.
const HARMLESS: &[(&str, &[&str])] = &[
    ("DECRBY", &["no number"]),
    ("DEL", &[]),
    ("EXISTS", &[]),
    ("GET", &[]),
    ("HDEL", &["f"]),
    ("HGET", &["f"]),
    ("HGETALL", &[]),
    ("HINCRBY", &["f", "no number"]),
    ("HLEN", &[]),
    ("HMGET", &["f"]),
    ("HSET", &["f", "v", "no value follows"]),
    ("INCRBY", &["no number"]),
    ("LINDEX", &["0"]),
    ("LINSERT", &["BEFORE", "a", "b"]),
    ("LLEN", &[]),
    ("LPOP", &[]),
    ("LPOS", &["a"]),
    ("LRANGE", &["0", "0"]),
    ("LREM", &["0", "a"]),
    ("PEXPIRE", &["1"]),
    ("PEXPIREAT", &["1"]),
    ("PTTL", &[]),
    ("SET", &["v", "PX", "0"]),
    ("WATCH", &[]),
    ("ZADD", &["no number", "m"]),
    ("ZCARD", &[]),
    ("ZCOUNT", &["0", "0"]),
    ("ZINCRBY", &["no number", "m"]),
    ("ZRANGE", &["0", "0"]),
    ("ZREM", &["m"]),
    ("ZREMRANGEBYSCORE", &["0", "0"]),
    ("ZSCORE", &["m"]),
];
/// Commands that would make a key whatever their arguments, and fail on a text. Not tried if no text can be set.
const ON_A_TEXT: &[(&str, &[&str])] = &[("DECR", &[]), ("LPUSH", &["a"]), ("RPUSH", &["a"])];
const KEYLESS: &[&[&str]] = &[
    &["EVAL", "return 0", "0"],
    &["EVALSHA", "0000000000000000000000000000000000000000", "0"],
    &["INFO", "replication"],
    &["PING"],
    &["TIME"],
    &["UNWATCH"],
];
/// For how long a text remains if this process dies, in milliseconds.
const LIFE: &str = "60000";

impl Admin {
    /// Tries which rights this user lacks, for each kind of lock, semaphore and latch that lacks any. Use a name that
    /// no lock has.
    ///
    /// Rights to publish and to subscribe, and to take part in the turn order, are not among them: see
    /// [`check_messages`](Self::check_messages) and [`check_turns`](Self::check_turns).
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](ErrorKind::InvalidInput) for a text that is no name; [`Backend`](ErrorKind::Backend) or
    /// [`Timeout`](ErrorKind::Timeout) if the server cannot be asked.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, a key next to the name may remain for a minute.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// for missing in client.admin().check_rights("probe:17").await? {
    ///     println!("{}: grant {}", missing.kind, missing.rights.join(" "));
    /// }
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn check_rights(&self, name: &str) -> Result<Vec<MissingRights>, Error> {
        let check = async {
            self.client.ensure_open()?;
            let commands = self.refused_commands(name).await?;
            let keys = self.refused_keys(name).await?;
            let missing = KINDS.iter().map(|kind| MissingRights {
                kind: kind.0,
                rights: missing(kind, &commands, &keys),
            });
            Ok(missing.filter(|kind| !kind.rights.is_empty()).collect())
        };
        self.client.within(Box::pin(check)).await
    }

    /// Returns those of all commands that the user may not send.
    async fn refused_commands(&self, name: &str) -> Result<BTreeSet<&'static str>, Error> {
        let backend = &self.client.backend;
        let (name, _) = self.names(name)?;
        let (key, text) = (&**name.key(), &*format!("{}:text", name.key()));
        let set = vec!["SET", text, "v", "PX", LIFE];
        let made = backend.inquire_about(key, &[set]).await?;
        let on = |key, (command, args): &(&'static str, &'static [&'static str])| {
            [&[*command, key], *args].concat()
        };
        let mut questions: Vec<Vec<&str>> = HARMLESS.iter().map(|words| on(key, words)).collect();
        // `UNWATCH` is among these, behind `WATCH`.
        questions.extend(KEYLESS.iter().map(|words| words.to_vec()));
        questions.push(vec!["RENAME", key, key]);
        if made.iter().all(Result::is_ok) {
            questions.extend(ON_A_TEXT.iter().map(|pushes| on(text, pushes)));
        }
        let told = backend.inquire_about(key, &questions).await?;
        backend.inquire_about(key, &[vec!["DEL", text]]).await?;
        let refused = questions
            .iter()
            .zip(&told)
            .filter(|(_, told)| is_refused(told, true));
        let refused: BTreeSet<&str> = refused.map(|(words, _)| words[0]).collect();
        Ok(all_commands()
            .into_iter()
            .filter(|it| refused.contains(it))
            .collect())
    }

    /// Returns what the keys begin with that the user may not touch, with the pattern to grant. The lock itself begins
    /// with nothing.
    async fn refused_keys(&self, name: &str) -> Result<Vec<(&'static str, String)>, Error> {
        let backend = &self.client.backend;
        let (name, _) = self.names(name)?;
        let prefix = escaped(self.prefix()?);
        let around = match (prefix.is_empty(), prefix.contains('{')) {
            (true, _) => "~*".to_owned(),
            (_, true) => format!("~*{prefix}*"),
            _ => format!("~*{{{prefix}*}}*"),
        };
        let beside: BTreeSet<&str> = KINDS.iter().flat_map(|kind| kind.2).copied().collect();
        let mut keys = vec![("", name.key().to_string(), format!("~{prefix}*"))];
        for stem in beside {
            keys.push(match stem == EPOCH_KEY && !backend.is_clustered() {
                true => (stem, stem.to_owned(), format!("~{stem}")),
                false => (stem, name.beside(stem), around.clone()),
            });
        }
        let mut refused = Vec::new();
        for (stem, key, pattern) in keys {
            // The mark of a RedLock may be there, and is not to be changed.
            let questions = [vec!["PTTL", &*key], vec!["PEXPIRE", &*key, "no number"]];
            let told = backend.inquire_about(name.key(), &questions).await?;
            if told.iter().any(|told| is_refused(told, false)) {
                refused.push((stem, pattern));
            }
        }
        Ok(refused)
    }
}

/// Whether a server refuses a command to this user, or else a key.
fn is_refused(told: &Told, command: bool) -> bool {
    let Err(text) = told else { return false };
    text.starts_with("NOPERM") && text.contains(" run the '") == command
}

fn missing(
    (kind, scripts, beside): &Kind,
    commands: &BTreeSet<&str>,
    keys: &[(&str, String)],
) -> Vec<String> {
    let mut needed = commands_of(kind, scripts);
    let is_scripted = !commands.contains("EVALSHA") && !commands.contains("EVAL");
    if *kind == "plain" && !is_scripted {
        needed = UNSCRIPTED.iter().copied().collect();
    }
    let commands = needed.intersection(commands).map(|command| match *command {
        "WATCH" | "UNWATCH" => "+@transaction".to_owned(),
        command => format!("+{}", command.to_lowercase()),
    });
    let mut rights: Vec<String> = commands.collect();
    rights.dedup();
    let is_used = |key: &&str| key.is_empty() && !scripts.is_empty() || beside.contains(key);
    for (_, pattern) in keys.iter().filter(|(key, _)| is_used(key)) {
        if !rights.contains(pattern) {
            rights.push(pattern.clone());
        }
    }
    rights
}

fn all_commands() -> BTreeSet<&'static str> {
    let of_kinds = KINDS
        .iter()
        .flat_map(|(kind, scripts, _)| commands_of(kind, scripts));
    of_kinds.chain(UNSCRIPTED.iter().copied()).collect()
}

/// Returns the commands without which the scripts of a kind fail.
fn commands_of(kind: &str, scripts: &[&str]) -> BTreeSet<&'static str> {
    let own = |name: &str| {
        let file = name.rsplit(' ').next().unwrap_or(name);
        let is_of_sets = file.ends_with("_all");
        scripts.iter().any(|start| file.starts_with(start)) && (kind == "set" || !is_of_sets)
    };
    let scripts = script::ALL.iter().filter(|script| own(script.name));
    let mut commands: BTreeSet<_> = scripts
        .flat_map(|script| sent_by(script.source()))
        .collect();
    match kind {
        "messages" => commands.extend(["PING"]),
        // The guard before its scripts asks by `pcall`, to refuse in words of its own.
        "redlock" => commands.extend([ALWAYS, &["INFO"]].concat()),
        _ => commands.extend(ALWAYS),
    }
    commands
}

/// Returns the commands of a script, except those that it can do without: it sends them by `pcall`.
fn sent_by(source: &'static str) -> Vec<&'static str> {
    let mut commands = Vec::new();
    for line in source
        .lines()
        .filter(|line| !line.trim_start().starts_with("--"))
    {
        let mut before = "";
        for (at, part) in line.split('\'').enumerate() {
            let is_sent =
                before.ends_with('{') || before.ends_with('(') && !before.ends_with("pcall(");
            if at % 2 == 1 && is_sent && part.bytes().all(|byte| byte.is_ascii_uppercase()) {
                commands.push(part);
            }
            before = part;
        }
    }
    commands
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_of_a_script_can_be_tried() {
        let keyless = KEYLESS.iter().map(|words| words[0]);
        let others = HARMLESS
            .iter()
            .chain(ON_A_TEXT)
            .map(|(command, _)| *command);
        let tried: BTreeSet<&str> = keyless.chain(others).chain(["RENAME"]).collect();
        assert_eq!(tried, all_commands());
        for script in script::ALL {
            let file = script.name.rsplit(' ').next().unwrap();
            let is_of_a_kind = KINDS
                .iter()
                .any(|kind| kind.1.iter().any(|it| file.starts_with(it)));
            // Courtesies: no call fails because of them.
            let is_courtesy = ["turn_leave", "leader_tell", "key_kind"].contains(&file);
            // What it runs, other scripts run too.
            let is_for_replicas = file == "key_touch";
            assert!(is_of_a_kind || is_courtesy || is_for_replicas, "{file}");
        }
    }
}
