//! Commands about sorted sets.

use crate::argument::{Args, float, integer, is, span, upper};
use crate::keys::Keys;
use crate::reply::{Answer, Refusal, Reply};
use crate::value::Sorted;

/// The options of `ZADD`.
#[derive(Default)]
struct Options {
    only_new: bool,
    only_old: bool,
    /// Only to a score that is higher.
    only_up: bool,
    /// Only to a score that is lower.
    only_down: bool,
    /// Whether changed members are counted too, and not only new ones.
    counts_changed: bool,
    /// Whether the score is added to the one that is there.
    adds: bool,
}

impl Options {
    /// Reads the options in front of the scores, and returns them with what follows.
    fn read(args: Args<'_>) -> Result<(Self, Args<'_>), Refusal> {
        let mut options = Self::default();
        let mut rest = args;
        while let Some((word, behind)) = rest.split_first() {
            match &*upper(word) {
                "NX" => options.only_new = true,
                "XX" => options.only_old = true,
                "GT" => options.only_up = true,
                "LT" => options.only_down = true,
                "CH" => options.counts_changed = true,
                "INCR" => options.adds = true,
                _ => break,
            }
            rest = behind;
        }
        let compares = options.only_up || options.only_down;
        if rest.is_empty() || !rest.len().is_multiple_of(2) {
            return Err(Refusal::syntax());
        }
        if options.only_new && options.only_old {
            let text = "ERR XX and NX options at the same time are not compatible";
            return Err(Refusal::new(text));
        }
        if compares && options.only_new || options.only_up && options.only_down {
            let text = "ERR GT, LT, and/or NX options at the same time are not compatible";
            return Err(Refusal::new(text));
        }
        if options.adds && rest.len() > 2 {
            let text = "ERR INCR option supports a single increment-element pair";
            return Err(Refusal::new(text));
        }
        Ok((options, rest))
    }

    /// Returns the score that a member is to get, or `None` if its score is to stay as it is.
    fn score(&self, old: Option<f64>, given: f64) -> Result<Option<f64>, Refusal> {
        let Some(old) = old else {
            return Ok((!self.only_old).then_some(given));
        };
        let score = match self.adds {
            true => sum(old, given)?,
            false => given,
        };
        let stays = self.only_new || self.only_up && score <= old || self.only_down && score >= old;
        Ok((!stays).then_some(score))
    }
}

/// `ZADD key [NX|XX] [GT|LT] [CH] [INCR] score member..`
pub(crate) fn zadd(keys: &mut Keys<'_>, args: Args<'_>) -> Answer {
    let (options, pairs) = Options::read(&args[1..])?;
    let pairs = pairs
        .chunks_exact(2)
        .map(|pair| Ok((number(&pair[0])?, &pair[1])));
    let pairs: Vec<_> = pairs.collect::<Result<_, Refusal>>()?;
    keys.edit(&args[0], |sorted: &mut Sorted| {
        let (mut count, mut last) = (0, None);
        for (given, member) in pairs {
            let old = sorted.score(member);
            last = options.score(old, given)?;
            if let Some(score) = last {
                sorted.set(member, score);
                count += usize::from(old.is_none() || options.counts_changed && old != Some(score));
            }
        }
        Ok(match options.adds {
            true => last.map_or(Reply::Nil, Reply::Score),
            false => Reply::count(count),
        })
    })?
}

/// `ZINCRBY key number member`
pub(crate) fn zincrby(keys: &mut Keys<'_>, args: Args<'_>) -> Answer {
    let more = number(&args[1])?;
    keys.edit(&args[0], |sorted: &mut Sorted| {
        let score = sum(sorted.score(&args[2]).unwrap_or(0.0), more)?;
        sorted.set(&args[2], score);
        Ok(Reply::Score(score))
    })?
}

/// `ZREM key member..`
pub(crate) fn zrem(keys: &mut Keys<'_>, args: Args<'_>) -> Answer {
    keys.edit(&args[0], |sorted: &mut Sorted| {
        Reply::count(
            args[1..]
                .iter()
                .filter(|member| sorted.remove(member))
                .count(),
        )
    })
}

/// `ZCARD key`
pub(crate) fn zcard(keys: &mut Keys<'_>, args: Args<'_>) -> Answer {
    let sorted = keys.read::<Sorted>(&args[0])?;
    Ok(Reply::count(sorted.map_or(0, |sorted| sorted.0.len())))
}

/// `ZSCORE key member`
pub(crate) fn zscore(keys: &mut Keys<'_>, args: Args<'_>) -> Answer {
    let sorted = keys.read::<Sorted>(&args[0])?;
    let score = sorted.and_then(|sorted| sorted.score(&args[1]));
    Ok(score.map_or(Reply::Nil, Reply::Score))
}

/// `ZRANK key member`
pub(crate) fn zrank(keys: &mut Keys<'_>, args: Args<'_>) -> Answer {
    let sorted = keys.read::<Sorted>(&args[0])?;
    let rank = sorted.and_then(|sorted| sorted.rank(&args[1]));
    Ok(rank.map_or(Reply::Nil, Reply::count))
}

/// `ZRANGE key start stop [WITHSCORES]`
pub(crate) fn zrange(keys: &mut Keys<'_>, args: Args<'_>) -> Answer {
    let (start, stop) = (integer(&args[1])?, integer(&args[2])?);
    let with_scores = match &args[3..] {
        [] => false,
        [word] if is(word, "WITHSCORES") => true,
        _ => return Err(Refusal::syntax()),
    };
    let found = match keys.read::<Sorted>(&args[0])? {
        Some(sorted) => sorted.0[span(start, stop, sorted.0.len())].to_vec(),
        None => Vec::new(),
    };
    Ok(match with_scores {
        true => Reply::Scored(found),
        false => Reply::bulks(found.into_iter().map(|(member, _)| member)),
    })
}

/// `ZCOUNT key min max`
pub(crate) fn zcount(keys: &mut Keys<'_>, args: Args<'_>) -> Answer {
    let between = between(&args[1], &args[2])?;
    let sorted = keys
        .read::<Sorted>(&args[0])?
        .into_iter()
        .flat_map(|sorted| &sorted.0);
    Ok(Reply::count(
        sorted.filter(|(_, score)| between(*score)).count(),
    ))
}

/// `ZREMRANGEBYSCORE key min max`
pub(crate) fn zremrangebyscore(keys: &mut Keys<'_>, args: Args<'_>) -> Answer {
    let between = between(&args[1], &args[2])?;
    keys.edit(&args[0], |sorted: &mut Sorted| {
        let before = sorted.0.len();
        sorted.0.retain(|(_, score)| !between(*score));
        Reply::count(before - sorted.0.len())
    })
}

/// Returns whether a score is between two bounds, each of which `(` excludes.
fn between(min: &[u8], max: &[u8]) -> Result<impl Fn(f64) -> bool, Refusal> {
    let bound = |word: &[u8]| {
        let open = word.strip_prefix(b"(");
        let score = float(open.unwrap_or(word));
        let score = score.ok_or_else(|| Refusal::new("ERR min or max is not a float"))?;
        Ok((score, open.is_some()))
    };
    let ((min, above), (max, below)) = (bound(min)?, bound(max)?);
    Ok(move |score| {
        (min < score || !above && min == score) && (score < max || !below && score == max)
    })
}

/// Reads a score, which is refused if it is too large or too small for a number.
fn number(word: &[u8]) -> Result<f64, Refusal> {
    let digits = word.split(|byte| byte.eq_ignore_ascii_case(&b'e')).next();
    let has = |digit: fn(&u8) -> bool| digits.unwrap_or_default().iter().any(digit);
    let is_lost = |score: &f64| match score {
        _ if score.is_infinite() => has(u8::is_ascii_digit),
        _ => *score == 0.0 && has(|byte| (b'1'..=b'9').contains(byte)),
    };
    let score = float(word).filter(|score| !is_lost(score));
    score.ok_or_else(|| Refusal::new("ERR value is not a valid float"))
}

fn sum(score: f64, more: f64) -> Result<f64, Refusal> {
    let sum = score + more;
    match sum.is_nan() {
        true => Err(Refusal::new("ERR resulting score is not a number (NaN)")),
        false => Ok(sum),
    }
}
