//! Commands about keys of any type.

use crate::argument::{Args, integer, is, matches, upper};
use crate::keys::Keys;
use crate::reply::{Answer, Refusal, Reply};

/// `DEL key..`
pub(crate) fn del(keys: &mut Keys<'_>, args: Args<'_>) -> Answer {
    Ok(Reply::count(
        args.iter().filter(|key| keys.remove(key)).count(),
    ))
}

/// `EXISTS key..`
pub(crate) fn exists(keys: &mut Keys<'_>, args: Args<'_>) -> Answer {
    let there = args.iter().filter(|key| keys.entry(key).is_some());
    Ok(Reply::count(there.count()))
}

/// `RENAME key name`
pub(crate) fn rename(keys: &mut Keys<'_>, args: Args<'_>) -> Answer {
    if keys.entry(&args[0]).is_none() {
        return Err(Refusal::new("ERR no such key"));
    }
    if let Some(entry) = keys.database.remove(&args[0]) {
        keys.set(&args[1], entry.value, entry.ends);
    }
    Ok(Reply::ok())
}

/// `TYPE key`
pub(crate) fn kind(keys: &mut Keys<'_>, args: Args<'_>) -> Answer {
    let kind = keys
        .entry(&args[0])
        .map_or("none", |entry| entry.value.kind());
    Ok(Reply::Status(kind.to_owned()))
}

/// `KEYS pattern`
pub(crate) fn keys(keys: &mut Keys<'_>, args: Args<'_>) -> Answer {
    let names = keys.all().map(|(key, _)| key);
    Ok(Reply::bulks(
        names.filter(|key| matches(&args[0], key)).cloned(),
    ))
}

/// `SCAN cursor [MATCH pattern] [COUNT number] [TYPE type]`, with all keys on one page.
pub(crate) fn scan(keys: &mut Keys<'_>, args: Args<'_>) -> Answer {
    let (mut pattern, mut kind) = (&b"*"[..], None);
    for option in args[1..].chunks(2) {
        match option {
            [word, given] if is(word, "MATCH") => pattern = given,
            [word, given] if is(word, "TYPE") => kind = Some(upper(given).to_lowercase()),
            [word, given] if is(word, "COUNT") => drop(integer(given)?),
            _ => return Err(Refusal::syntax()),
        }
    }
    let found = keys.all().filter(|(key, entry)| {
        matches(pattern, key)
            && kind
                .as_deref()
                .is_none_or(|kind| kind == entry.value.kind())
    });
    let page = Reply::bulks(found.map(|(key, _)| key.clone()));
    Ok(Reply::List(vec![Reply::bulk("0"), page]))
}

/// `PTTL key`
pub(crate) fn pttl(keys: &mut Keys<'_>, args: Args<'_>) -> Answer {
    let now = keys.now;
    Ok(Reply::Integer(match keys.entry(&args[0]) {
        None => -2,
        Some(entry) => entry
            .ends
            .map_or(-1, |ends| ends.saturating_sub(now) as i64),
    }))
}

/// `TTL key`
pub(crate) fn ttl(keys: &mut Keys<'_>, args: Args<'_>) -> Answer {
    Ok(match pttl(keys, args)? {
        Reply::Integer(millis) if millis >= 0 => Reply::Integer((millis + 500) / 1000),
        none => none,
    })
}

/// `PEXPIRETIME key`
pub(crate) fn pexpiretime(keys: &mut Keys<'_>, args: Args<'_>) -> Answer {
    Ok(Reply::Integer(match keys.entry(&args[0]) {
        None => -2,
        Some(entry) => entry.ends.map_or(-1, |ends| ends as i64),
    }))
}

/// `PEXPIRE key milliseconds`
pub(crate) fn pexpire(keys: &mut Keys<'_>, args: Args<'_>) -> Answer {
    let ends = integer(&args[1])?.checked_add(keys.now as i64);
    expire(keys, args, ends.ok_or_else(|| invalid("pexpire"))?)
}

/// `EXPIRE key seconds`
pub(crate) fn expire_seconds(keys: &mut Keys<'_>, args: Args<'_>) -> Answer {
    let millis = integer(&args[1])?.checked_mul(1000);
    let ends = millis.and_then(|millis| millis.checked_add(keys.now as i64));
    expire(keys, args, ends.ok_or_else(|| invalid("expire"))?)
}

/// `PEXPIREAT key milliseconds`
pub(crate) fn pexpireat(keys: &mut Keys<'_>, args: Args<'_>) -> Answer {
    let ends = integer(&args[1])?;
    expire(keys, args, ends)
}

/// `PERSIST key`
pub(crate) fn persist(keys: &mut Keys<'_>, args: Args<'_>) -> Answer {
    let entry = keys.entry(&args[0]);
    let had_end = entry.and_then(|entry| entry.ends.take()).is_some();
    Ok(Reply::Integer(had_end.into()))
}

/// `MEMORY USAGE key`
pub(crate) fn memory(keys: &mut Keys<'_>, args: Args<'_>) -> Answer {
    match args {
        [word, key] if is(word, "USAGE") => Ok(match keys.entry(key) {
            Some(entry) => Reply::count(key.len() + entry.value.size()),
            None => Reply::Nil,
        }),
        _ => Err(Refusal::syntax()),
    }
}

/// Sets when a key ends. One that has ended by now is removed.
fn expire(keys: &mut Keys<'_>, args: Args<'_>, ends: i64) -> Answer {
    if args.len() > 2 {
        return Err(Refusal::new(format!(
            "ERR Unsupported option {}",
            String::from_utf8_lossy(&args[2])
        )));
    }
    let now = keys.now;
    let Some(entry) = keys.entry(&args[0]) else {
        return Ok(Reply::Integer(0));
    };
    match u64::try_from(ends) {
        Ok(ends) if ends > now => entry.ends = Some(ends),
        _ => drop(keys.remove(&args[0])),
    }
    Ok(Reply::Integer(1))
}

/// Builds the refusal of a time to live that cannot be represented.
pub(crate) fn invalid(command: &str) -> Refusal {
    Refusal::new(format!("ERR invalid expire time in '{command}' command"))
}
