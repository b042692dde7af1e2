//! What is judged of a command by the shares of clients in a lock: that holders are told of an end by somebody else,
//! that the lock ends with the last share, and that no request for levels takes some away.

use redlatch_memory::Stored;

use super::data::{BLUR, holds};
use super::turns::Publication;

/// Returns what is wrong with what a command has made of a lock.
pub(super) fn wrong(
    before: &Stored,
    after: Option<&Stored>,
    words: &[Vec<u8>],
    told: &[Publication],
) -> Option<String> {
    match after {
        None => untold(before, words, told),
        Some(after) => outlasting(before, after, words).or_else(|| lowered(before, after, words)),
    }
}

/// Returns the shares in a lock: the fields of clients, and by which acquisitions they have them.
fn shares(lock: &Stored) -> Vec<(String, String)> {
    let mut shares = holds(lock);
    shares.retain(|(field, _)| field.starts_with("|p"));
    shares
}

fn names(words: &[Vec<u8>], number: &str) -> bool {
    words.iter().any(|word| word == number.as_bytes())
}

/// Whether a command that names no hold has ended holds, and a holder is not told.
fn untold(before: &Stored, words: &[Vec<u8>], told: &[Publication]) -> Option<String> {
    let shares = shares(before);
    if shares.iter().any(|(_, number)| names(words, number)) {
        return None;
    }
    let is_told = |field: &str| {
        let client = field[1..].split(':').next().unwrap_or_default();
        let channel = format!("redlatch:{client}");
        told.iter().any(|(one, ..)| *one == channel.as_bytes())
    };
    let (field, _) = shares.iter().find(|(field, _)| !is_told(field))?;
    Some(format!("{field} is not told that somebody ended its hold"))
}

/// Whether a lock lasts longer than its shares, once one of them was given back. Those of owners without a name have no
/// end of their own.
fn outlasting(before: &Stored, after: &Stored, words: &[Vec<u8>]) -> Option<String> {
    let left = shares(after);
    let mut all = shares(before).into_iter();
    all.find(|one| !left.contains(one) && names(words, &one.1))?;
    let parts = after.parts.iter();
    let ends = parts
        .filter(|(field, _)| field.starts_with("|p"))
        .map(|(_, text)| text.split(':').nth(2)?.parse::<u64>().ok());
    let last = ends.collect::<Option<Vec<_>>>()?.into_iter().max()?;
    let more = after.ends?.saturating_sub(last);
    (more > BLUR).then(|| format!("it lasts {more} ms longer than the last of {left:?}"))
}

/// Whether a request for levels has left its client with fewer.
fn lowered(before: &Stored, after: &Stored, words: &[Vec<u8>]) -> Option<String> {
    if !names(words, "take") && !names(words, "join") {
        return None;
    }
    let levels = |(field, text): &(String, String)| {
        let (number, rest) = text.split_once(':')?;
        let levels = rest.split(':').next()?.parse::<u64>().ok()?;
        let is_share = field.starts_with("|p");
        is_share.then(|| (field.clone(), number.to_owned(), levels))
    };
    let left: Vec<_> = after.parts.iter().filter_map(levels).collect();
    before.parts.iter().filter_map(levels).find_map(|had| {
        let has = left
            .iter()
            .find(|one| (&one.0, &one.1) == (&had.0, &had.1))?;
        (has.2 < had.2).then(|| format!("a request for levels leaves {has:?} of {had:?}"))
    })
}
