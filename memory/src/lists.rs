//! Commands about lists.

use crate::argument::{Args, integer, is, span};
use crate::keys::Keys;
use crate::reply::{Answer, Refusal, Reply};
use crate::value::List;

/// `LPUSH key element..`
pub(crate) fn lpush(keys: &mut Keys<'_>, args: Args<'_>) -> Answer {
    keys.edit(&args[0], |list: &mut List| {
        args[1..]
            .iter()
            .for_each(|element| list.push_front(element.clone()));
        Reply::count(list.len())
    })
}

/// `RPUSH key element..`
pub(crate) fn rpush(keys: &mut Keys<'_>, args: Args<'_>) -> Answer {
    keys.edit(&args[0], |list: &mut List| {
        list.extend(args[1..].iter().cloned());
        Reply::count(list.len())
    })
}

/// `LPOP key`
pub(crate) fn lpop(keys: &mut Keys<'_>, args: Args<'_>) -> Answer {
    let popped = keys.edit(&args[0], |list: &mut List| list.pop_front())?;
    Ok(popped.map_or(Reply::Nil, Reply::bulk))
}

/// `LLEN key`
pub(crate) fn llen(keys: &mut Keys<'_>, args: Args<'_>) -> Answer {
    let list = keys.read::<List>(&args[0])?;
    Ok(Reply::count(list.map_or(0, List::len)))
}

/// `LINDEX key position`
pub(crate) fn lindex(keys: &mut Keys<'_>, args: Args<'_>) -> Answer {
    let at = integer(&args[1])?;
    let element = keys.read::<List>(&args[0])?.and_then(|list| {
        let at = if at < 0 { at + list.len() as i64 } else { at };
        list.get(usize::try_from(at).ok()?)
    });
    Ok(element.map_or(Reply::Nil, |element| Reply::bulk(element.clone())))
}

/// `LRANGE key start stop`
pub(crate) fn lrange(keys: &mut Keys<'_>, args: Args<'_>) -> Answer {
    let (start, stop) = (integer(&args[1])?, integer(&args[2])?);
    let list = keys.read::<List>(&args[0])?;
    let range = list.map(|list| list.range(span(start, stop, list.len())));
    Ok(Reply::bulks(range.into_iter().flatten().cloned()))
}

/// `LPOS key element`
pub(crate) fn lpos(keys: &mut Keys<'_>, args: Args<'_>) -> Answer {
    let list = keys.read::<List>(&args[0])?;
    let at = list.and_then(|list| list.iter().position(|element| *element == args[1]));
    Ok(at.map_or(Reply::Nil, Reply::count))
}

/// `LINSERT key BEFORE|AFTER pivot element`
pub(crate) fn linsert(keys: &mut Keys<'_>, args: Args<'_>) -> Answer {
    let behind = match &args[1] {
        word if is(word, "AFTER") => 1,
        word if is(word, "BEFORE") => 0,
        _ => return Err(Refusal::syntax()),
    };
    if keys.read::<List>(&args[0])?.is_none() {
        return Ok(Reply::Integer(0));
    }
    keys.edit(&args[0], |list: &mut List| {
        let Some(at) = list.iter().position(|element| *element == args[2]) else {
            return Reply::Integer(-1);
        };
        list.insert(at + behind, args[3].clone());
        Reply::count(list.len())
    })
}

/// `LREM key count element`
pub(crate) fn lrem(keys: &mut Keys<'_>, args: Args<'_>) -> Answer {
    let count = integer(&args[1])?;
    let most = match count {
        0 => usize::MAX,
        count => count.unsigned_abs() as usize,
    };
    keys.edit(&args[0], |list: &mut List| {
        let mut found: Vec<usize> = (0..list.len()).filter(|at| list[*at] == args[2]).collect();
        match count < 0 {
            true => drop(found.drain(..found.len().saturating_sub(most))),
            false => found.truncate(most),
        }
        for at in found.iter().rev() {
            list.remove(*at);
        }
        Reply::count(found.len())
    })
}
