//! Commands about keys that hold a text or a number.

use crate::argument::{Args, integer, span, upper};
use crate::generic::invalid;
use crate::keys::Keys;
use crate::reply::{Answer, Refusal, Reply};
use crate::value::Value;

/// `GET key`
pub(crate) fn get(keys: &mut Keys<'_>, args: Args<'_>) -> Answer {
    Ok(match keys.read::<Vec<u8>>(&args[0])? {
        Some(text) => Reply::bulk(text.clone()),
        None => Reply::Nil,
    })
}

/// `GETRANGE key start end`
pub(crate) fn getrange(keys: &mut Keys<'_>, args: Args<'_>) -> Answer {
    let (start, stop) = (integer(&args[1])?, integer(&args[2])?);
    let text = keys.read::<Vec<u8>>(&args[0])?.map_or(&[][..], |text| text);
    // Other than in a list, a stop before the first byte stands for the first byte, unless it is before the start, too.
    let stop = match stop {
        0.. => stop,
        _ if start < 0 && start > stop => return Ok(Reply::bulk("")),
        _ => (stop + text.len() as i64).max(0),
    };
    Ok(Reply::bulk(&text[span(start, stop, text.len())]))
}

/// `SET key value [NX|XX] [PX milliseconds|EX seconds|PXAT milliseconds|KEEPTTL]`
pub(crate) fn set(keys: &mut Keys<'_>, args: Args<'_>) -> Answer {
    let (mut only_new, mut only_old, mut keeps, mut ends) = (false, false, false, None);
    let mut options = args[2..].iter();
    while let Some(option) = options.next() {
        let option = upper(option);
        match &*option {
            "NX" if !only_old => only_new = true,
            "XX" if !only_new => only_old = true,
            "KEEPTTL" if ends.is_none() => keeps = true,
            "PX" | "EX" | "PXAT" if ends.is_none() && !keeps => {
                let given = integer(options.next().ok_or_else(Refusal::syntax)?)?;
                ends = Some(end(&option, given, keys.now).ok_or_else(|| invalid("set"))?);
            }
            _ => return Err(Refusal::syntax()),
        }
    }
    let old = keys.entry(&args[0]);
    if only_new && old.is_some() || only_old && old.is_none() {
        return Ok(Reply::Nil);
    }
    let kept = old.and_then(|old| old.ends).filter(|_| keeps);
    keys.set(&args[0], Value::Text(args[1].clone()), ends.or(kept));
    Ok(Reply::ok())
}

/// Returns when a key ends that is set with this option, or `None` if there is no such time.
fn end(option: &str, given: i64, now: u64) -> Option<u64> {
    let given = u64::try_from(given).ok().filter(|given| *given > 0)?;
    match option {
        "PX" => now.checked_add(given),
        "EX" => now.checked_add(given.checked_mul(1000)?),
        _ => Some(given),
    }
    .filter(|ends| i64::try_from(*ends).is_ok())
}

/// `INCRBY key number`
pub(crate) fn incrby(keys: &mut Keys<'_>, args: Args<'_>) -> Answer {
    let more = integer(&args[1])?;
    add(keys, &args[0], more)
}

/// `DECRBY key number`
pub(crate) fn decrby(keys: &mut Keys<'_>, args: Args<'_>) -> Answer {
    let less = integer(&args[1])?.checked_neg();
    let less = less.ok_or_else(|| Refusal::new("ERR decrement would overflow"))?;
    add(keys, &args[0], less)
}

/// `INCR key`
pub(crate) fn incr(keys: &mut Keys<'_>, args: Args<'_>) -> Answer {
    add(keys, &args[0], 1)
}

/// `DECR key`
pub(crate) fn decr(keys: &mut Keys<'_>, args: Args<'_>) -> Answer {
    add(keys, &args[0], -1)
}

fn add(keys: &mut Keys<'_>, key: &[u8], more: i64) -> Answer {
    let number = match keys.read::<Vec<u8>>(key)? {
        Some(text) => integer(text)?,
        None => 0,
    };
    let sum = number.checked_add(more);
    let sum = sum.ok_or_else(|| Refusal::new("ERR increment or decrement would overflow"))?;
    keys.edit(key, |text: &mut Vec<u8>| {
        *text = sum.to_string().into_bytes();
    })?;
    Ok(Reply::Integer(sum))
}
