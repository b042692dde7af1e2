//! Commands about hashes.

use crate::argument::{Args, integer};
use crate::keys::Keys;
use crate::reply::{Answer, Refusal, Reply};
use crate::value::Hash;

/// `HGET key field`
pub(crate) fn hget(keys: &mut Keys<'_>, args: Args<'_>) -> Answer {
    Ok(value(keys.read(&args[0])?, &args[1]))
}

/// `HMGET key field..`
pub(crate) fn hmget(keys: &mut Keys<'_>, args: Args<'_>) -> Answer {
    let hash = keys.read(&args[0])?;
    let values = args[1..].iter().map(|field| value(hash, field));
    Ok(Reply::List(values.collect()))
}

/// `HGETALL key`
pub(crate) fn hgetall(keys: &mut Keys<'_>, args: Args<'_>) -> Answer {
    let hash = keys.read::<Hash>(&args[0])?;
    Ok(Reply::Map(
        hash.map_or_else(Vec::new, |hash| hash.0.clone()),
    ))
}

/// `HKEYS key`
pub(crate) fn hkeys(keys: &mut Keys<'_>, args: Args<'_>) -> Answer {
    let fields = keys
        .read::<Hash>(&args[0])?
        .into_iter()
        .flat_map(|hash| &hash.0);
    Ok(Reply::bulks(fields.map(|(name, _)| name.clone())))
}

/// `HLEN key`
pub(crate) fn hlen(keys: &mut Keys<'_>, args: Args<'_>) -> Answer {
    let hash = keys.read::<Hash>(&args[0])?;
    Ok(Reply::count(hash.map_or(0, |hash| hash.0.len())))
}

/// `HEXISTS key field`
pub(crate) fn hexists(keys: &mut Keys<'_>, args: Args<'_>) -> Answer {
    let is_there = value(keys.read(&args[0])?, &args[1]) != Reply::Nil;
    Ok(Reply::Integer(is_there.into()))
}

/// `HSET key field value..`
pub(crate) fn hset(keys: &mut Keys<'_>, args: Args<'_>) -> Answer {
    let pairs = &args[1..];
    if !pairs.len().is_multiple_of(2) {
        return Err(Refusal::new(
            "ERR wrong number of arguments for 'hset' command",
        ));
    }
    keys.edit(&args[0], |hash: &mut Hash| {
        let pairs = pairs.chunks_exact(2);
        let new = pairs.filter(|pair| hash.set(&pair[0], pair[1].clone()));
        Reply::count(new.count())
    })
}

/// `HDEL key field..`
pub(crate) fn hdel(keys: &mut Keys<'_>, args: Args<'_>) -> Answer {
    keys.edit(&args[0], |hash: &mut Hash| {
        Reply::count(args[1..].iter().filter(|field| hash.remove(field)).count())
    })
}

/// `HINCRBY key field number`
pub(crate) fn hincrby(keys: &mut Keys<'_>, args: Args<'_>) -> Answer {
    let more = integer(&args[2])?;
    let number = match keys
        .read::<Hash>(&args[0])?
        .and_then(|hash| hash.get(&args[1]))
    {
        Some(text) => {
            integer(text).map_err(|_| Refusal::new("ERR hash value is not an integer"))?
        }
        None => 0,
    };
    let sum = number.checked_add(more);
    let sum = sum.ok_or_else(|| Refusal::new("ERR increment or decrement would overflow"))?;
    keys.edit(&args[0], |hash: &mut Hash| {
        hash.set(&args[1], sum.to_string().into_bytes())
    })?;
    Ok(Reply::Integer(sum))
}

fn value(hash: Option<&Hash>, field: &[u8]) -> Reply {
    let value = hash.and_then(|hash| hash.get(field));
    value.map_or(Reply::Nil, |value| Reply::bulk(value.clone()))
}
