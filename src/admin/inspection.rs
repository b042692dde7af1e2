//! What the server records of a lock, read from its keys.

use std::time::Duration;

use super::found::{FoundHolder, FoundKind, FoundSide, FoundWaiter};
use crate::error::Error;
use crate::label::{self, acquirer_of, client_of};
use crate::name::LockName;
use crate::protocol::hold_key::Kind;
use crate::protocol::reply::Reply;
use crate::protocol::steps::is_lock;
use crate::session::backend::inquiry::Told;

/// What the server records under a name at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inspection {
    /// The name, without the client's prefix.
    pub name: String,
    /// What is under the name.
    pub kind: FoundKind,
    /// Who holds it: empty if the lock is free, and for semaphores and latches.
    pub holders: Vec<FoundHolder>,
    /// How long the key remains if nobody renews it, or `None` if it has no end, such as a lock of redis-py. A
    /// read-write lock remains for as long as the longest of its holders.
    pub remaining_lease: Option<Duration>,
    /// The waiters in order, as far as the server knows: the owners that wait for a fair lock, otherwise the clients
    /// that wait their turn, one for each process. Waiters for a spin lock or a plain lock leave no trace here. Neither
    /// do Redisson's waiters, except those for a fair lock.
    pub waiters: Vec<FoundWaiter>,
    /// Whether a reader or a writer waits for a read-write lock.
    pub is_wanted: bool,
    /// How many clients listen for the release of the lock, those of Redisson's and this one's included, or `None` if
    /// this user may not ask.
    pub listeners: Option<u64>,
    /// The fencing token that was given out last.
    pub token: Option<u64>,
    /// The number of free permits of a semaphore, or the count of a latch.
    pub count: Option<i64>,
}

/// The most fields that the hash of a lock has. One with more is something else, and not worth reading.
const MOST_FIELDS: i64 = 10_000;
/// The most memory that such a hash takes.
const MOST_BYTES: i64 = 4 << 20;
/// The longest value of a plain lock that is read as a whole, in bytes.
const LONGEST_VALUE: usize = 2_048;
/// The last byte that is read: one more, which shows that there is more.
const END_OF_VALUE: &str = "2048";
/// The most levels of a reader whose leases are read.
const MOST_LEVELS: u64 = 16;

/// The keys of a lock: its own, and those next to it.
pub(super) struct LockKeys {
    key: String,
    stem: String,
    queue: String,
    places: String,
    token: String,
    turns: String,
    writer: String,
    reader: String,
    taken: String,
    channel: String,
    read_write_channel: String,
}

impl LockKeys {
    pub(super) fn new(name: &LockName, sides: &LockName) -> Self {
        Self {
            key: name.key().to_string(),
            stem: name.stem(),
            queue: name.beside("redisson_lock_queue"),
            places: name.beside("redlatch_lock_places"),
            token: name.beside("redisson_lock_token"),
            turns: name.turns(),
            writer: name.beside("redlatch_rwlock_writer"),
            reader: name.beside("redlatch_rwlock_reader"),
            taken: format!("{}:timeout", name.stem()),
            channel: name.channel().to_string(),
            read_write_channel: sides.channel().to_string(),
        }
    }

    /// The questions whose answers tell which of the other questions make sense.
    pub(super) fn shape(&self) -> Vec<Vec<&str>> {
        vec![
            vec!["TYPE", &self.key],
            vec!["HLEN", &self.key],
            vec!["MEMORY", "USAGE", &self.key],
        ]
    }

    /// The questions whose answers [`read`] takes.
    pub(super) fn questions<'a>(&'a self, counts_by: &'a str) -> Vec<Vec<&'a str>> {
        let key = &*self.key;
        vec![
            vec!["HGETALL", key],
            vec!["GETRANGE", key, "0", END_OF_VALUE],
            vec!["PTTL", key],
            vec!["LRANGE", &self.queue, "0", "999"],
            vec!["GET", &self.token],
            vec!["ZRANGE", &self.turns, "0", "999"],
            vec!["EXISTS", &self.writer],
            vec!["EXISTS", &self.reader],
            vec!["ZCARD", &self.taken],
            vec!["PUBSUB", counts_by, &self.channel],
            vec!["PUBSUB", counts_by, &self.read_write_channel],
        ]
    }

    /// The question in whose answer each waiter for a fair lock has what [`FoundWaiter::tell`] takes.
    pub(super) fn places<'a>(&'a self, waiters: &'a [FoundWaiter]) -> Vec<&'a str> {
        let waiters = waiters.iter().map(|waiter| &*waiter.id);
        ["HMGET", &self.places].into_iter().chain(waiters).collect()
    }

    /// The keys of the levels of a reader or a writer.
    pub(super) fn levels(&self, holder: &FoundHolder) -> Vec<String> {
        let field = match holder.side {
            Some(FoundSide::Write) => format!("{}:write", holder.owner),
            _ => holder.owner.clone(),
        };
        let levels = 1..=holder.hold_count.min(MOST_LEVELS);
        levels
            .map(|level| format!("{}:{field}:rwlock_timeout:{level}", self.stem))
            .collect()
    }

    pub(super) fn key(&self) -> &str {
        &self.key
    }
}

/// Whether what has this type and size may be a lock.
pub(super) fn may_be_lock(shape: &[Told]) -> bool {
    match shape {
        [Ok(Reply::Text(kind)), fields, size] => match &**kind {
            "none" | "string" => true,
            "hash" => is_small(fields, size),
            _ => false,
        },
        // This user may not ask: the answers themselves will tell.
        _ => true,
    }
}

/// Whether a hash with this number of fields, in this much memory, may be a lock. What is not known does not count.
pub(super) fn is_small(fields: &Told, size: &Told) -> bool {
    let is_large = matches!(size, Ok(Reply::Integer(size)) if *size > MOST_BYTES);
    let is_long = matches!(fields, Ok(Reply::Integer(fields)) if *fields > MOST_FIELDS);
    !is_large && !is_long
}

/// Reads the answers to [`LockKeys::questions`]. Returns `None` if there is nothing, and `Err` if there is
/// something else.
pub(super) fn read(
    name: &str,
    keys: &LockKeys,
    told: Vec<Told>,
) -> Result<Option<Inspection>, Error> {
    let Ok::<[Told; 11], _>(
        [
            fields,
            value,
            left,
            queue,
            token,
            turns,
            writer,
            reader,
            taken,
            listeners,
            read_write_listeners,
        ],
    ) = told.try_into()
    else {
        return Err(Reply::Nil.unexpected());
    };
    let mut found = Inspection {
        name: name.to_owned(),
        kind: FoundKind::Reentrant,
        holders: Vec::new(),
        remaining_lease: left_of(&left),
        waiters: Vec::new(),
        is_wanted: [&writer, &reader]
            .iter()
            .any(|mark| matches!(mark, Ok(Reply::Integer(1)))),
        listeners: count_of(&listeners),
        token: text(&token).and_then(|token| token.parse().ok()),
        count: None,
    };
    found.contain(fields, value, &taken, keys)?;
    found.tell_apart(texts(&queue), texts(&turns), &read_write_listeners);
    let is_nothing = found.holders.is_empty()
        && found.count.is_none()
        && found.waiters.is_empty()
        && found.token.is_none()
        && !found.is_wanted;
    Ok((!is_nothing).then_some(found))
}

impl Inspection {
    /// Whether the value of a plain lock was not read to its end.
    pub(super) fn is_cut(&self) -> bool {
        let mut owners = self.holders.iter().map(|holder| &holder.owner);
        self.kind == FoundKind::Plain && owners.any(|value| value.len() > LONGEST_VALUE)
    }

    /// Takes in what the lock's own key contains: a hash with holders, or a string with a count or a value.
    fn contain(
        &mut self,
        fields: Told,
        value: Told,
        taken: &Told,
        keys: &LockKeys,
    ) -> Result<(), Error> {
        let is_wrong = || Error::wrong_kind(keys.key());
        let is_own = has_own_field(&fields);
        let holders = match fields {
            Ok(fields) => Some(holders(&pairs(&fields)).ok_or_else(is_wrong)?),
            // A string, or this user may not read it.
            Err(_) => None,
        };
        match (holders, value) {
            (Some((holders, kind)), _) if !holders.is_empty() => {
                let names_client = || holders.iter().any(|holder| has_client(&holder.owner));
                // Without a lease, a hash of numbers alone may be anything.
                let is_known = is_own || kind == FoundKind::ReadWrite || names_client();
                if self.remaining_lease.is_none() && !is_known {
                    return Err(is_wrong());
                }
                self.holders = holders;
                self.kind = kind;
            }
            (_, Ok(Reply::Text(value))) if !value.is_empty() => match value.parse::<i64>() {
                // A lock has an end; a semaphore and a latch have none.
                Ok(count) if self.remaining_lease.is_none() => {
                    self.count = Some(count);
                    let is_leased = matches!(taken, Ok(Reply::Integer(1..)));
                    self.kind = match is_leased {
                        true => FoundKind::ExpirableSemaphore,
                        false => FoundKind::Counter,
                    };
                }
                _ if !is_lock(&value, self.remaining_lease.is_some()) => return Err(is_wrong()),
                _ => {
                    self.kind = FoundKind::Plain;
                    let label = client_of(&value).and_then(|(label, _)| label);
                    self.holders = vec![FoundHolder {
                        label: label.map(str::to_owned),
                        owner: value,
                        side: None,
                        hold_count: 1,
                        remaining_lease: None,
                    }];
                }
            },
            // The server refuses both: nothing is known.
            (None, Err(refusal)) => {
                let message = format!("the server does not show {:?}: {refusal}", keys.key());
                return Err(match refusal.starts_with("WRONGTYPE") {
                    true => is_wrong(),
                    false => Error::refused(message, &refusal),
                });
            }
            _ => {}
        }
        Ok(())
    }

    /// Names the kind, where only the keys next to the lock's own tell, and lists the waiters.
    fn tell_apart(&mut self, queue: Vec<String>, turns: Vec<String>, read_write_listeners: &Told) {
        if self.kind == FoundKind::Reentrant {
            if !queue.is_empty() {
                self.kind = FoundKind::Fair;
            } else if self.token.is_some() {
                self.kind = FoundKind::Fenced;
            } else if self.holders.is_empty() && self.is_wanted {
                self.kind = FoundKind::ReadWrite;
            }
        }
        if self.kind == FoundKind::ReadWrite {
            self.listeners = count_of(read_write_listeners);
        }
        self.waiters = match self.kind {
            FoundKind::Fair => queue.into_iter().map(FoundWaiter::owner).collect(),
            // `*` stands for Redisson's clients, while they go first.
            _ => turns
                .iter()
                .filter(|client| *client != "*")
                .map(|client| FoundWaiter::client(client))
                .collect(),
        };
        for holder in &mut self.holders {
            holder.remaining_lease = self.remaining_lease;
        }
    }
}

/// Reads the fields of a hash. Returns `None` if it is no lock's.
fn holders(fields: &[(&str, &str)]) -> Option<(Vec<FoundHolder>, FoundKind)> {
    let mode = fields.iter().find(|(field, _)| *field == "mode");
    let mut holders = Vec::new();
    for (field, value) in fields {
        if *field == "mode" || mode.is_none() && field.starts_with('|') {
            continue;
        }
        let (owner, side) = match (mode, field.strip_suffix(":write")) {
            (None, _) => (*field, None),
            (Some(_), Some(owner)) => (owner, Some(FoundSide::Write)),
            (Some(_), None) => (*field, Some(FoundSide::Read)),
        };
        let names = fields.iter().map(|(field, _)| *field);
        holders.push(FoundHolder {
            owner: owner.to_owned(),
            label: label::of_holder(owner, names).map(str::to_owned),
            side,
            hold_count: value.parse().ok()?,
            remaining_lease: None,
        });
    }
    // The order of a hash means nothing.
    holders.sort_by(|one, other| (one.side, &one.owner).cmp(&(other.side, &other.owner)));
    let kind = match mode {
        Some((_, "read" | "write")) => FoundKind::ReadWrite,
        Some(_) => return None,
        None => FoundKind::Reentrant,
    };
    Some((holders, kind))
}

/// Returns the fields of those holders that hold a lock of this kind: of one side, if it is a read-write lock.
pub(super) fn fields_of(found: &Inspection, kind: &Kind) -> Vec<String> {
    let fields = found.holders.iter().filter_map(|holder| {
        let owner = &holder.owner;
        match (kind, holder.side) {
            (Kind::Read(_), Some(FoundSide::Write)) | (Kind::Write(_), Some(FoundSide::Read)) => {
                None
            }
            (Kind::Write(_), _) => Some(format!("{owner}:write")),
            _ => Some(owner.clone()),
        }
    });
    fields.collect()
}

/// Whether an owner or a value has the form of those that this crate and Redisson make up. Other hashes and strings may
/// be anything.
pub(super) fn is_made_up(found: &Inspection) -> bool {
    match found.kind {
        FoundKind::Counter | FoundKind::ExpirableSemaphore => false,
        FoundKind::Plain => found
            .holders
            .iter()
            .all(|holder| is_plain_value(&holder.owner)),
        FoundKind::ReadWrite => true,
        _ => found.holders.iter().any(|holder| has_client(&holder.owner)),
    }
}

/// Whether a string is the value of a plain lock that this crate makes up.
pub(super) fn is_plain_value(value: &str) -> bool {
    let parts = value.rsplit_once(":h");
    parts.is_some_and(|(_, id)| id.len() == 16) && has_client(value)
}

/// Whether the hash has a field that only this crate writes, next to the one of a named owner.
pub(super) fn has_own_field(fields: &Told) -> bool {
    let Ok(fields) = fields else {
        return false;
    };
    pairs(fields)
        .iter()
        .any(|(field, _)| acquirer_of(field).is_some())
}

/// Whether a text begins with the id of one of this crate's clients.
fn has_client(text: &str) -> bool {
    client_of(text).is_some()
}

/// Returns what is left, as `PTTL` tells it. `None` if that has no end, or is not known.
pub(super) fn left_of(told: &Told) -> Option<Duration> {
    match told {
        Ok(Reply::Integer(left)) => u64::try_from(*left).ok().map(Duration::from_millis),
        _ => None,
    }
}

/// Returns the label of a client, from the acquisition id in the key of a level of a read-write lock.
pub(super) fn label_of(record: &Told) -> Option<String> {
    let (_, label) = text(record)?.split_once('/')?;
    Some(label.to_owned())
}

fn pairs(reply: &Reply) -> Vec<(&str, &str)> {
    let Reply::List(items) = reply else {
        return Vec::new();
    };
    let pairs = items.chunks(2).filter_map(|pair| match pair {
        [Reply::Text(field), Reply::Text(value)] => Some((&**field, &**value)),
        _ => None,
    });
    pairs.collect()
}

fn text(told: &Told) -> Option<&str> {
    match told {
        Ok(Reply::Text(text)) => Some(text),
        _ => None,
    }
}

/// Returns the texts of a list; none if the server refuses to show it.
pub(super) fn texts(told: &Told) -> Vec<String> {
    let Ok(Reply::List(items)) = told else {
        return Vec::new();
    };
    let texts = items.iter().filter_map(|item| match item {
        Reply::Text(text) => Some(text.clone()),
        _ => None,
    });
    texts.collect()
}

/// Reads the answer to PUBSUB NUMSUB for one channel.
fn count_of(told: &Told) -> Option<u64> {
    match told {
        Ok(Reply::List(items)) => match &items[..] {
            [_, Reply::Integer(count)] => u64::try_from(*count).ok(),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: &str = "ae5eab3c-3ba2-4d6c-9f0b-d2b6bc1c2a8e";

    #[test]
    fn owners_of_clients_are_told_from_other_texts() {
        assert!(has_client(&format!("{CLIENT}:42")));
        for text in ["", "42", CLIENT, "ä".repeat(40).as_str(), "session:42"] {
            assert!(!has_client(text), "{text}");
        }
    }

    #[test]
    fn hash_of_something_else_is_no_lock() {
        let owner = format!("{CLIENT}:1");
        let (found, kind) = holders(&[(&owner, "2"), (&format!("|a/b/{CLIENT}"), "h1:2")]).unwrap();
        assert_eq!((found.len(), kind), (1, FoundKind::Reentrant));
        assert_eq!(found[0].to_string(), "a/b task 1");
        assert_eq!(found[0].hold_count, 2);
        let sides = [("mode", "read"), (&*owner, "1"), ("name:write", "3")];
        let (found, kind) = holders(&sides).unwrap();
        assert_eq!(kind, FoundKind::ReadWrite);
        assert_eq!(found[0].side, Some(FoundSide::Write));
        assert_eq!(holders(&[("user", "anna")]), None);
        assert_eq!(holders(&[("mode", "dark"), ("size", "1")]), None);
    }
}
