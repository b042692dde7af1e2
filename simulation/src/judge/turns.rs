//! What is judged of those that wait, by the data of servers: that they are told, and have the lock in turn.

use redlatch_memory::Stored;

use super::Judge;
use super::data::Stood;
use crate::machine::now;
use crate::plan::Kind;

/// The longest turn of the first in line, and of the one behind it, in milliseconds.
const TURNS: u64 = 1_900;

/// The longest turn, with what its last digit adds.
const LONGEST_TURN: f64 = 1_510.0;

/// How long a call waits until its client has asked more than once, and knows how far away the server is.
const ASKS_AGAIN: u64 = 1_000;

/// What stands for Redisson's clients, which listen to the channel of the lock.
const FOREIGN: &str = "*";

/// A message: its channel, its text, and how many heard it.
pub(super) type Publication = (Vec<u8>, Vec<u8>, usize);

impl Judge {
    /// Judges what a command did to those that wait.
    pub(super) fn queued(
        &mut self,
        (name, left, clock): (usize, u64, u64),
        stood: &Stood,
        (lock, line): (Option<&Stored>, Option<&Stored>),
        told: &[Publication],
    ) {
        let (is_taken, is_freed) = (
            stood.lock.is_none() && lock.is_some(),
            stood.lock.is_some() && lock.is_none(),
        );
        let (before, after) = (members(stood.line.as_ref()), members(line));
        // All that wait are clients of this crate. Owners have no slash.
        let is_of_client = |(channel, ..): &Publication| channel.contains(&b'/');
        let wrong = match self.plan().names[name].kind {
            Kind::Reentrant | Kind::Fenced | Kind::Spin | Kind::Leader => {
                if is_taken {
                    overtaken(&before, &after, client(lock)).or_else(|| lasting(told, left))
                } else if is_freed {
                    let first = after.first().filter(|first| *first != FOREIGN);
                    untold(first, told, "it is free")
                } else {
                    // The turn of Redisson's clients has no position.
                    let moved = ours(&before).position(|one| !after.contains(one));
                    // Those behind the third learn it in their turn, and that turn is one of the three.
                    let ahead = usize::from(before.first().is_some_and(|first| first == FOREIGN));
                    let moved = moved
                        .filter(|at| at + ahead < 3)
                        .and_then(|at| ours(&after).nth(at));
                    let lasts = left.max(TURNS);
                    untold(moved, told, "it moved up").or_else(|| lasting(told, lasts))
                }
            }
            Kind::Fair if is_taken => overtaken(&before, &after, owner(lock)),
            Kind::Fair if is_freed && !after.is_empty() && !told.iter().any(is_of_client) => {
                Some("nobody in the queue is told that it is free".to_owned())
            }
            Kind::ReadWrite | Kind::Latch if is_freed && told.is_empty() => {
                Some("nobody is told that it is free".to_owned())
            }
            Kind::Counted | Kind::Expirable => self.permits_told(name, stood, lock, told),
            _ => None,
        };
        let wrong = wrong.or_else(|| {
            let is_put_off = lock.is_none() && before.len() < after.len();
            turn(line?, told, is_put_off.then_some(clock))
        });
        if let Some(wrong) = wrong {
            let shown = &self.plan().names[name].name;
            let text = format!("{shown}: {wrong}; {before:?} before, {after:?} after");
            self.violation(text);
        }
    }

    /// Judges whether a command took its place from another client, which waits, hears, and is near enough for its turn.
    pub(super) fn ousted(&mut self, stood: &Stood, line: Option<&Stored>, words: &[Vec<u8>]) {
        let (plan, name) = (self.plan(), stood.name);
        let (kind, shown) = (plan.names[name].kind, &plan.names[name].name);
        // A client does not hear for a moment if its lock moves to another server.
        let is_calm = plan.weather == "calm" && self.disturbed.is_none() && !self.is_unpolled;
        if !is_calm || !matches!(kind, Kind::Reentrant | Kind::Fenced) {
            return;
        }
        let after = members(line);
        let asks = |client: &str| {
            let mut words = words.iter().map(|word| String::from_utf8_lossy(word));
            words.any(|word| word.contains(client))
        };
        let waits = |client: &str| {
            self.calls.values().any(|call| {
                let is_meant = call.names == [name] && call.began + ASKS_AGAIN < now();
                is_meant && client.starts_with(&format!("p{}/", call.process))
            })
        };
        let mut before = members(stood.line.as_ref()).into_iter();
        if let Some(client) = before.find(|it| !after.contains(it) && !asks(it) && waits(it)) {
            self.violation(format!("{shown}: {client}, who waits, has lost its place"));
        }
    }

    /// Judges the number of free permits.
    fn permits_told(
        &self,
        name: usize,
        stood: &Stood,
        lock: Option<&Stored>,
        told: &[Publication],
    ) -> Option<String> {
        let count = |one: Option<&Stored>| one?.parts[0].1.parse::<i64>().ok();
        let (before, after) = (count(stood.lock.as_ref())?, count(lock)?);
        if !(0..=i64::from(self.plan().names[name].total)).contains(&after)
            && self.excuse(name, 0).is_none()
        {
            return Some(format!("{after} permits are free"));
        }
        // Permits whose leases have ended may be told of, and taken at once.
        let count = |text: &[u8]| str::from_utf8(text).ok()?.parse::<i64>().ok();
        let is_told = told.iter().any(|(_, text, _)| count(text) >= Some(after));
        (after > before && !is_told)
            .then(|| format!("nobody is told that {after} permits are free"))
    }
}

fn members(line: Option<&Stored>) -> Vec<String> {
    let parts = line.map_or(&[][..], |line| &line.parts);
    parts.iter().map(|(member, _)| member.clone()).collect()
}

fn ours(line: &[String]) -> impl Iterator<Item = &String> {
    line.iter().filter(|one| *one != FOREIGN)
}

/// Returns the client that has a lock.
fn client(lock: Option<&Stored>) -> Option<&str> {
    let field = lock?
        .parts
        .iter()
        .find_map(|(field, _)| field.strip_prefix('|').filter(|rest| rest.contains('/')))?;
    field.split(':').next()
}

/// Returns the owner that has a lock.
fn owner(lock: Option<&Stored>) -> Option<&str> {
    let mut fields = lock?.parts.iter().map(|(field, _)| &**field);
    fields.find(|field| !field.starts_with('|'))
}

/// Whether somebody has a lock ahead of the first that waits.
fn overtaken(before: &[String], after: &[String], by: Option<&str>) -> Option<String> {
    let first = before.first()?;
    // Redisson's clients may not come, so their turn keeps nobody out who does not wait.
    let is_overtaken = first != FOREIGN && by != Some(first) && after.contains(first);
    is_overtaken.then(|| format!("{by:?} has it ahead of {first}"))
}

/// Whether the first in line has a turn though it hears nothing, or, if another was put off for it at this time by the
/// server's clock, a turn that is over or longer than any.
fn turn(line: &Stored, told: &[Publication], put_off: Option<u64>) -> Option<String> {
    let (first, score) = line.parts.first()?;
    let score = score.parse::<f64>().ok().filter(|score| *score < 0.0)?;
    let channel = format!(":{first}");
    let is_unheard = told.iter().any(|(one, text, heard)| {
        *heard == 0 && *text == b"0" && one.ends_with(channel.as_bytes())
    });
    // The last digit is 5 or more for a client that has said so.
    if is_unheard && score.rem_euclid(10.0) < 5.0 {
        return Some(format!("{first}, who hears nothing, has its turn"));
    }
    let left = score + 1e15 - put_off? as f64;
    let is_turn = (-5.0..=LONGEST_TURN).contains(&left);
    (!is_turn).then(|| format!("the turn of {first} has {left} ms left"))
}

/// Whether a waiter is told of a longer time than the lock, or a turn, lasts.
fn lasting(told: &[Publication], left: u64) -> Option<String> {
    told.iter().find_map(|(_, text, _)| {
        let text = str::from_utf8(text).ok()?;
        let next: u64 = text.strip_prefix("next:")?.parse().ok()?;
        (next > left + 5).then(|| format!("{text} is told, and it ends in {left} ms"))
    })
}

/// Whether a waiter is not told what it waits for.
fn untold(whom: Option<&String>, told: &[Publication], what: &str) -> Option<String> {
    let whom = whom?;
    let channel = format!(":{whom}");
    let mut channels = told.iter().map(|(channel, ..)| channel);
    let is_told = channels.any(|one| one.ends_with(channel.as_bytes()));
    (!is_told).then(|| format!("{whom} is not told that {what}"))
}
