//! The commands that scripts may use, and clients too.

use crate::argument::{Args, upper};
use crate::channels;
use crate::data::{self, Data};
use crate::generic;
use crate::hashes;
use crate::keys::Keys;
use crate::lists;
use crate::reply::{Answer, Refusal, Reply};
use crate::sorted_sets;
use crate::texts;

/// What a command does.
#[derive(Clone, Copy)]
enum Action {
    /// It is about the keys of one database.
    Keys(fn(&mut Keys<'_>, Args<'_>) -> Answer),
    /// It is about the server.
    Server(fn(&mut Data, Args<'_>) -> Answer),
}

use Action::{Keys as K, Server as S};

/// Each command with the number of its words, its name included. A negative number is the least.
const COMMANDS: &[(&str, i32, Action)] = &[
    ("CONFIG", -2, S(data::config)),
    ("DECR", 2, K(texts::decr)),
    ("DECRBY", 3, K(texts::decrby)),
    ("DEL", -2, K(generic::del)),
    ("EXISTS", -2, K(generic::exists)),
    ("EXPIRE", -3, K(generic::expire_seconds)),
    ("GET", 2, K(texts::get)),
    ("GETRANGE", 4, K(texts::getrange)),
    ("HDEL", -3, K(hashes::hdel)),
    ("HEXISTS", 3, K(hashes::hexists)),
    ("HGET", 3, K(hashes::hget)),
    ("HGETALL", 2, K(hashes::hgetall)),
    ("HINCRBY", 4, K(hashes::hincrby)),
    ("HKEYS", 2, K(hashes::hkeys)),
    ("HLEN", 2, K(hashes::hlen)),
    ("HMGET", -3, K(hashes::hmget)),
    ("HSET", -4, K(hashes::hset)),
    ("INCR", 2, K(texts::incr)),
    ("INCRBY", 3, K(texts::incrby)),
    ("INFO", -1, S(data::info)),
    ("KEYS", 2, K(generic::keys)),
    ("LINDEX", 3, K(lists::lindex)),
    ("LINSERT", 5, K(lists::linsert)),
    ("LLEN", 2, K(lists::llen)),
    ("LPOP", 2, K(lists::lpop)),
    ("LPOS", 3, K(lists::lpos)),
    ("LPUSH", -3, K(lists::lpush)),
    ("LRANGE", 4, K(lists::lrange)),
    ("LREM", 4, K(lists::lrem)),
    ("MEMORY", -2, K(generic::memory)),
    ("PERSIST", 2, K(generic::persist)),
    ("PEXPIRE", -3, K(generic::pexpire)),
    ("PEXPIREAT", -3, K(generic::pexpireat)),
    ("PEXPIRETIME", 2, K(generic::pexpiretime)),
    ("PTTL", 2, K(generic::pttl)),
    ("PUBLISH", 3, S(channels::publish)),
    ("PUBSUB", -2, S(channels::pubsub)),
    ("RENAME", 3, K(generic::rename)),
    ("ROLE", 1, S(data::role)),
    ("RPUSH", -3, K(lists::rpush)),
    ("SCAN", -2, K(generic::scan)),
    ("SET", -3, K(texts::set)),
    ("SPUBLISH", 3, S(channels::spublish)),
    ("TIME", 1, S(data::time)),
    ("TTL", 2, K(generic::ttl)),
    ("TYPE", 2, K(generic::kind)),
    ("ZADD", -4, K(sorted_sets::zadd)),
    ("ZCARD", 2, K(sorted_sets::zcard)),
    ("ZCOUNT", 4, K(sorted_sets::zcount)),
    ("ZINCRBY", 4, K(sorted_sets::zincrby)),
    ("ZRANGE", -4, K(sorted_sets::zrange)),
    ("ZRANK", 3, K(sorted_sets::zrank)),
    ("ZREM", -3, K(sorted_sets::zrem)),
    ("ZREMRANGEBYSCORE", 4, K(sorted_sets::zremrangebyscore)),
    ("ZSCORE", 3, K(sorted_sets::zscore)),
];

/// Why there is nothing to be carried out.
enum CommandFault {
    /// The server does not know the command.
    Unknown,
    /// The command has too few words, or too many.
    Miscounted,
}

/// Carries out a command in a database.
pub(crate) fn run(data: &mut Data, database: u32, words: Args<'_>) -> Answer {
    let action = find(words).map_err(|fault| fault.told(words))?;
    action.carry_out(data, database, words)
}

/// Carries out a command of a script, which is told of a fault in other words.
pub(crate) fn run_for_script(data: &mut Data, database: u32, words: Args<'_>) -> Answer {
    let action = find(words).map_err(|fault| {
        Refusal::new(match fault {
            CommandFault::Unknown => "ERR Unknown Redis command called from script",
            CommandFault::Miscounted => {
                "ERR Wrong number of args calling Redis command from script"
            }
        })
    })?;
    action.carry_out(data, database, words)
}

/// Refuses a command that is not known, or has the wrong number of words.
pub(crate) fn check(words: Args<'_>) -> Result<(), Refusal> {
    find(words).map(drop).map_err(|fault| fault.told(words))
}

fn find(words: Args<'_>) -> Result<Action, CommandFault> {
    let name = upper(words.first().map_or(&[][..], Vec::as_slice));
    let found = COMMANDS.binary_search_by_key(&&*name, |(name, ..)| name);
    let (_, arity, action) = COMMANDS[found.map_err(|_| CommandFault::Unknown)?];
    let (count, least) = (words.len(), arity.unsigned_abs() as usize);
    match count == least || arity < 0 && count > least {
        true => Ok(action),
        false => Err(CommandFault::Miscounted),
    }
}

impl Action {
    fn carry_out(self, data: &mut Data, database: u32, words: Args<'_>) -> Answer {
        match self {
            Self::Keys(command) => command(&mut data.keys(database), &words[1..]),
            Self::Server(command) => command(data, &words[1..]),
        }
    }
}

impl CommandFault {
    /// Returns the words in which a client is told.
    fn told(&self, words: Args<'_>) -> Refusal {
        let text = |word: &Vec<u8>| String::from_utf8_lossy(word).into_owned();
        let name = words.first().map(text).unwrap_or_default();
        match self {
            Self::Miscounted => miscounted(&name),
            Self::Unknown => {
                let args = words.iter().skip(1).take(3);
                let args: Vec<_> = args.map(|word| format!("'{}'", text(word))).collect();
                let args = args.join(" ");
                Refusal::new(format!(
                    "ERR unknown command '{name}', with args beginning with: {args}"
                ))
            }
        }
    }
}

/// Builds the refusal of a command with too few words or too many.
pub(crate) fn miscounted(name: &str) -> Refusal {
    Refusal::new(format!(
        "ERR wrong number of arguments for '{}' command",
        name.to_lowercase()
    ))
}

/// `PING [text]`
pub(crate) fn ping(args: Args<'_>) -> Reply {
    match args {
        [text] => Reply::bulk(text.clone()),
        _ => Reply::Status("PONG".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found_by_their_names_in_order() {
        assert!(COMMANDS.is_sorted_by_key(|(name, ..)| name));
    }
}
