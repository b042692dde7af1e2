//! The Lua scripts with their source, hash and arity, and the calls of them.

use std::fmt;
use std::sync::OnceLock;

use crate::error::Error;
use crate::options::LeaseTime;
use crate::protocol::sent_over::SentOver;

/// A script from `lua/`: its own file, preceded by the files that it shares with others. The header of a file is its
/// contract, which a test compares with the arity here.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) name: &'static str,
    source: &'static str,
    /// The text of its file, preceded by the texts of the shared files.
    #[cfg(test)]
    parts: &'static [&'static str],
    arity: Arity,
    hash: OnceLock<String>,
}

/// How many keys and arguments a script takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arity {
    Fixed {
        keys: usize,
        args: usize,
    },
    /// Any number of keys, with `args` arguments for each.
    PerKey {
        args: usize,
    },
    /// Any number of locks, each with `keys` keys, and with `each` arguments after the `args` common ones. More keys
    /// may follow.
    PerLock {
        keys: usize,
        args: usize,
        each: usize,
    },
    /// Any number of entries, each with `each` arguments after the `args` common ones.
    PerEntry {
        keys: usize,
        args: usize,
        each: usize,
    },
}

impl Script {
    /// Returns the text as it is sent.
    pub(crate) fn source(&self) -> &'static str {
        self.source
    }

    /// Returns the SHA-1 by which the server knows the script.
    pub(crate) fn hash(&self) -> &str {
        self.hash
            .get_or_init(|| sha1_smol::Sha1::from(self.source()).digest().to_string())
    }
}

macro_rules! scripts {
    ($($id:ident = $($file:literal),+ $arity:expr;)*) => {
        $(pub(crate) static $id: Script = Script {
            name: concat!($($file, " "),+).trim_ascii_end(),
            source: concat!($(include_str!(concat!("../../lua/", $file, ".lua"))),+),
            #[cfg(test)]
            parts: &[$(include_str!(concat!("../../lua/", $file, ".lua"))),+],
            arity: $arity,
            hash: OnceLock::new(),
        };)*
        #[cfg(any(test, feature = "unstable-admin"))]
        pub(crate) static ALL: &[&Script] = &[$(&$id),*];
    };
}

scripts! {
    LOCK_ACQUIRE = "lock_waited", "lock_free", "primary", "lock_record", "lock_share", "lock_raise", "lock_shape", "lock_turns", "lock_stand", "lock_acquire" Arity::Fixed { keys: 1, args: 10 };
    LOCK_ACQUIRE_ALL = "primary", "lock_record", "lock_share", "lock_waited", "lock_turns", "lock_acquire_all" Arity::PerLock { keys: 1, args: 4, each: 3 };
    LOCK_REENTER = "primary", "lock_record", "lock_share", "lock_raise", "lock_reenter" Arity::Fixed { keys: 1, args: 5 };
    LOCK_REENTER_SPARE = "primary", "lock_record", "lock_spare", "lock_share", "lock_raise", "lock_reenter" Arity::Fixed { keys: 1, args: 7 };
    LOCK_CONFIRM = "primary", "primary_only", "key_read", "lock_waited", "lock_turns", "lock_confirm" Arity::Fixed { keys: 1, args: 6 };
    LOCK_RELEASE = "lock_waited", "lock_whole", "primary", "lock_record", "lock_lower", "lock_turns", "lock_freed", "lock_release" Arity::Fixed { keys: 1, args: 7 };
    LOCK_RELEASE_SPARE = "lock_waited", "lock_whole", "primary", "lock_record", "lock_spare", "lock_lower", "lock_turns", "lock_freed", "lock_release" Arity::Fixed { keys: 1, args: 9 };
    LOCK_RELEASE_ALL = "primary", "key_read", "lock_record", "lock_lower", "lock_waited", "lock_turns", "lock_freed", "lock_release_all" Arity::PerLock { keys: 1, args: 4, each: 3 };
    LOCK_ADOPT = "primary", "lock_record", "lock_share", "lock_adopt" Arity::Fixed { keys: 1, args: 7 };
    LOCK_ADOPT_SPARE = "primary", "lock_record", "lock_spare", "lock_share", "lock_adopt" Arity::Fixed { keys: 1, args: 9 };
    LOCK_EXTEND = "primary", "lock_record", "lease_end", "lock_extend" Arity::Fixed { keys: 1, args: 5 };
    LOCK_RENEW = "primary", "key_read", "lock_record", "lock_renew" Arity::PerKey { args: 3 };
    LOCK_CHECK = "primary", "primary_only", "key_read", "lock_check" Arity::PerKey { args: 2 };
    LOCK_FORCE_RELEASE = "primary", "primary_only", "lock_shape", "holders_named", "holder_told", "lock_waited", "lock_turns", "lock_freed", "lock_force_release" Arity::PerEntry { keys: 1, args: 3, each: 1 };
    LOCK_INSPECT = "primary", "primary_only", "lock_inspect" Arity::Fixed { keys: 1, args: 0 };
    TURN_LEAVE = "lock_waited", "lock_turns", "turn_leave" Arity::Fixed { keys: 1, args: 3 };
    LEADER_TELL = "leader_tell" Arity::Fixed { keys: 1, args: 2 };
    FENCED_ACQUIRE = "primary", "lock_record", "lock_share", "lock_raise", "lock_shape", "lock_waited", "lock_turns", "lock_stand", "fenced_acquire" Arity::Fixed { keys: 2, args: 12 };
    FENCED_TOKEN = "primary", "primary_only", "fenced_token" Arity::Fixed { keys: 2, args: 1 };
    FAIR_ACQUIRE = "primary", "lock_shape", "lock_record", "lock_share", "lock_raise", "fair_place", "fair_keep", "fair_acquire" Arity::Fixed { keys: 5, args: 9 };
    FAIR_SIGN = "primary", "lock_record", "lock_lower", "fair_place", "fair_heir", "fair_keep", "fair_sign" Arity::PerEntry { keys: 5, args: 5, each: 2 };
    FAIR_RELEASE = "primary", "lock_record", "lock_lower", "fair_place", "fair_heir", "fair_release" Arity::Fixed { keys: 5, args: 7 };
    FAIR_RELEASE_SPARE = "primary", "lock_record", "lock_spare", "lock_lower", "fair_place", "fair_heir", "fair_release" Arity::Fixed { keys: 5, args: 9 };
    FAIR_FORCE_RELEASE = "primary", "primary_only", "lock_shape", "holders_named", "holder_told", "lock_record", "fair_place", "fair_heir", "fair_force_release" Arity::PerEntry { keys: 5, args: 3, each: 1 };
    PLAIN_ACQUIRE = "primary", "plain_acquire" Arity::Fixed { keys: 1, args: 3 };
    PLAIN_RELEASE = "primary", "plain_release" Arity::Fixed { keys: 1, args: 1 };
    PLAIN_ADOPT = "primary", "plain_adopt" Arity::Fixed { keys: 1, args: 2 };
    PLAIN_EXTEND = "primary", "lease_end", "plain_extend" Arity::Fixed { keys: 1, args: 3 };
    PLAIN_RENEW = "primary", "key_read", "plain_renew" Arity::PerKey { args: 2 };
    PLAIN_CHECK = "primary", "primary_only", "key_read", "plain_check" Arity::PerKey { args: 1 };
    PLAIN_FORCE_RELEASE = "primary", "primary_only", "plain_shape", "holder_told", "plain_force_release" Arity::PerEntry { keys: 1, args: 0, each: 1 };
    PLAIN_INSPECT = "primary", "primary_only", "plain_shape", "plain_inspect" Arity::Fixed { keys: 1, args: 0 };
    READ_ACQUIRE = "primary", "rw_level", "rw_taking", "read_acquire" Arity::Fixed { keys: 4, args: 8 };
    WRITE_ACQUIRE = "primary", "rw_level", "rw_taking", "write_acquire" Arity::Fixed { keys: 4, args: 8 };
    RW_REENTER = "primary", "rw_level", "rw_reenter" Arity::Fixed { keys: 2, args: 4 };
    RW_REENTER_SPARE = "primary", "rw_level", "rw_spare", "rw_reenter" Arity::Fixed { keys: 2, args: 6 };
    RW_CONFIRM = "primary", "primary_only", "key_read", "rw_level", "rw_confirm" Arity::Fixed { keys: 3, args: 4 };
    RW_RELEASE = "primary", "rw_level", "rw_fit", "rw_release" Arity::Fixed { keys: 4, args: 6 };
    RW_RELEASE_SPARE = "primary", "rw_level", "rw_spare", "rw_fit", "rw_release" Arity::Fixed { keys: 4, args: 8 };
    RW_ADOPT = "primary", "rw_level", "rw_adopt" Arity::Fixed { keys: 2, args: 6 };
    RW_ADOPT_SPARE = "primary", "rw_level", "rw_spare", "rw_adopt" Arity::Fixed { keys: 2, args: 8 };
    RW_EXTEND = "primary", "rw_level", "rw_fit", "lease_end", "rw_extend" Arity::Fixed { keys: 2, args: 4 };
    RW_RENEW = "primary", "key_read", "rw_level", "rw_renew" Arity::PerKey { args: 4 };
    RW_CHECK = "primary", "primary_only", "key_read", "rw_level", "rw_check" Arity::PerKey { args: 3 };
    RW_FORCE_RELEASE = "primary", "primary_only", "rw_level", "rw_fit", "holders_named", "holder_told", "rw_force_release" Arity::PerEntry { keys: 3, args: 3, each: 1 };
    RW_INSPECT = "primary", "primary_only", "rw_level", "rw_inspect" Arity::Fixed { keys: 2, args: 1 };
    KEY_TOUCH = "key_touch" Arity::PerKey { args: 0 };
    COUNTER_READ = "primary", "primary_only", "counter_shape", "counter_read" Arity::Fixed { keys: 1, args: 0 };
    COUNTER_SET = "counter_shape", "counter_set" Arity::Fixed { keys: 3, args: 4 };
    MARK_FORGET = "mark_forget" Arity::Fixed { keys: 1, args: 1 };
    KEY_KIND = "primary", "primary_only", "counter_shape", "lock_shape", "key_kind" Arity::Fixed { keys: 1, args: 0 };
    LATCH_COUNT_DOWN = "counter_shape", "latch_count_down" Arity::Fixed { keys: 3, args: 3 };
    LATCH_DELETE = "counter_shape", "latch_delete" Arity::Fixed { keys: 3, args: 3 };
    SEMAPHORE_ACQUIRE = "primary", "counter_shape", "semaphore_acquire" Arity::Fixed { keys: 2, args: 2 };
    SEMAPHORE_RETURN = "counter_shape", "permit_add", "semaphore_return" Arity::Fixed { keys: 3, args: 4 };
    SEMAPHORE_ADD = "counter_shape", "semaphore_add" Arity::Fixed { keys: 3, args: 3 };
    SEMAPHORE_DRAIN = "counter_shape", "semaphore_drain" Arity::Fixed { keys: 2, args: 1 };
    PERMIT_ACQUIRE = "primary", "counter_shape", "permit_id", "permit_add", "permit_acquire" Arity::Fixed { keys: 4, args: 4 };
    PERMIT_RETURN = "primary", "key_read", "counter_shape", "permit_id", "permit_add", "permit_return" Arity::Fixed { keys: 4, args: 3 };
    PERMIT_EXTEND = "primary", "permit_id", "permit_extend" Arity::Fixed { keys: 2, args: 4 };
    PERMIT_COUNT = "primary", "primary_only", "counter_shape", "permit_add", "permit_count" Arity::Fixed { keys: 3, args: 1 };
    RED_ACQUIRE = "primary", "red_guard", "lock_waited", "lock_free", "lock_record", "lock_share", "lock_raise", "lock_shape", "lock_turns", "lock_stand", "lock_acquire" Arity::Fixed { keys: 2, args: 14 };
    RED_PLAIN_ACQUIRE = "primary", "red_guard", "plain_acquire" Arity::Fixed { keys: 2, args: 7 };
}

/// An argument of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arg<'a> {
    Text(&'a str),
    Number(i64),
    /// The publish command of the servers in use: `PUBLISH`, or `SPUBLISH` in a cluster.
    Publish,
}

/// What a new lease may do to a longer one.
///
/// Only a request that names the exact end of the longer lease cuts it. So a late copy, after another request has set a
/// lease, finds a different end and cuts nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Leave the longer lease.
    Never,
    /// Leave the longer lease, and report when it ends.
    Ask,
    /// Cut the lease that ends at this time.
    Ending(i64),
}

impl From<Cut> for Arg<'_> {
    fn from(cut: Cut) -> Self {
        match cut {
            Cut::Never => Self::Text("at_least"),
            Cut::Ask => Self::Number(0),
            Cut::Ending(ends) => Self::Number(ends),
        }
    }
}

/// A script with its keys and arguments, ready to be sent once or several times.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub(crate) script: &'static Script,
    pub(crate) keys: Vec<&'a str>,
    pub(crate) args: Vec<Arg<'a>>,
    pub(crate) unscripted: Unscripted<'a>,
    /// Records the sends of this call, or those that it is posted behind.
    pub(crate) over: Option<&'a SentOver>,
    /// Whether it does harm if it runs twice, and so is not sent again if its connection breaks.
    pub(crate) once: bool,
}

/// How a call is made on a server that runs no scripts.
#[derive(Debug)]
pub(crate) enum Unscripted<'a> {
    /// The call is refused. The text says which kind of lock it belongs to.
    Refused(&'static str),
    /// The call is refused, although steps could replace the script.
    Unwanted,
    /// These steps replace the script on such a server.
    Fallback(Box<Steps<'a>>),
    /// These steps replace the script on every server.
    Instead(Box<Steps<'a>>),
}

/// What a call of the plain lock does about each of its keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Steps<'a> {
    One(ScriptStep<'a>),
    /// One for each key, as are the answers.
    Each(Vec<ScriptStep<'a>>),
}

/// What to do about one key of the plain lock. Its script gets the same as arguments. `value` identifies the hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScriptStep<'a> {
    Acquire {
        value: &'a str,
        lease: LeaseTime,
        /// Whether no other hold of the owner has this value.
        is_unique: bool,
    },
    Release {
        value: &'a str,
    },
    Extend {
        value: &'a str,
        lease: LeaseTime,
        cut: Cut,
    },
    /// Without a lease the TTL stays as it is.
    Adopt {
        value: &'a str,
        lease: Option<LeaseTime>,
    },
    Renew {
        value: &'a str,
        lease: LeaseTime,
    },
    Check {
        value: &'a str,
    },
    Inspect,
    ForceRelease,
}

/// A request that can make its call at any time, and is sent until it is answered.
pub(crate) trait Request: fmt::Debug + Send + Sync {
    fn call(&self) -> Call<'_>;

    /// Returns the call to post in place of that one if it goes [over](Call::over) the same connection as what it
    /// undoes, and so leaves nothing in doubt.
    fn call_behind(&self) -> Option<Call<'_>> {
        None
    }
}

impl<'a> Call<'a> {
    /// Makes a call with all its keys and arguments.
    pub(crate) fn new(script: &'static Script, keys: Vec<&'a str>, args: Vec<Arg<'a>>) -> Self {
        debug_assert!(
            match script.arity {
                Arity::Fixed { keys: k, args: a } => (keys.len(), args.len()) == (k, a),
                Arity::PerKey { args: a } => args.len() == keys.len() * a,
                Arity::PerLock {
                    keys: k,
                    args: a,
                    each,
                } => {
                    let locks = args.len().saturating_sub(a) / each;
                    args.len() == a + locks * each && keys.len() >= locks * k
                }
                Arity::PerEntry {
                    keys: k,
                    args: a,
                    each,
                } => {
                    keys.len() == k && args.len() >= a && (args.len() - a).is_multiple_of(each)
                }
            },
            "{} called with {} keys and {} arguments",
            script.name,
            keys.len(),
            args.len()
        );
        Self::begun(script, keys, args)
    }

    /// Makes a call to which more keys or arguments will be added.
    pub(crate) fn begun(script: &'static Script, keys: Vec<&'a str>, args: Vec<Arg<'a>>) -> Self {
        Self {
            script,
            keys,
            args,
            unscripted: Unscripted::Refused("this lock"),
            over: None,
            once: false,
        }
    }

    /// Adds the names of the locks to an error of this call.
    pub(crate) fn blame(&self, error: Error) -> Error {
        let (count, apart) = match self.script.arity {
            Arity::Fixed { .. } | Arity::PerEntry { .. } => (1, 1),
            Arity::PerKey { .. } => (self.keys.len(), 1),
            Arity::PerLock { keys, args, each } => {
                (self.args.len().saturating_sub(args) / each, keys)
            }
        };
        let locks = || self.keys.iter().step_by(apart).take(count).copied();
        match (count, locks().next()) {
            (1, Some(lock)) => error.about(lock),
            _ => error.about_all(count, locks()),
        }
    }

    /// Joins two calls of a script that takes any number of keys.
    pub(crate) fn and(mut self, other: Self) -> Self {
        debug_assert!(
            matches!(self.script.arity, Arity::PerKey { .. })
                && std::ptr::eq(self.script, other.script)
        );
        self.keys.extend(other.keys);
        self.args.extend(other.args);
        self
    }

    /// Records the sends of this call. A posted call is written only behind the recorded sends, if all of them went
    /// over one connection, and otherwise not at all.
    pub(crate) fn over(mut self, over: &'a SentOver) -> Self {
        self.over = Some(over);
        self
    }

    /// Names the kind of lock that makes the call, for servers that run no scripts.
    pub(crate) fn of(mut self, lock: &'static str) -> Self {
        if let Unscripted::Refused(asking) = &mut self.unscripted {
            *asking = lock;
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{acquired, answer, batch, counted, fair, key_kind, red, reply};

    /// Returns the header lines of a script and of the files before it, without the dashes.
    fn header(script: &Script) -> Vec<&'static str> {
        let lines = |part: &&'static str| part.lines().map_while(|line| line.strip_prefix("--"));
        script.parts.iter().flat_map(lines).map(str::trim).collect()
    }

    /// Returns the arity that the headers declare.
    fn declared(script: &Script) -> Arity {
        let lines = header(script);
        let count = |start: &str| lines.iter().filter(|line| line.starts_with(start)).count();
        let of_each =
            |what: &str, of: usize| (1..=of).all(|n| count(&format!("{what}[{n} of {of}] ")) == 1);
        let each = (1..=count("ARGV[")).find(|each| of_each("ARGV", *each));
        let keys = (1..=count("KEYS[")).find(|keys| of_each("KEYS", *keys));
        if let (Some(keys), Some(each)) = (keys, each) {
            let args = count("ARGV[") - each;
            let common = (1..=args).all(|n| count(&format!("ARGV[{n}] ")) == 1);
            assert!(common, "{}", script.name);
            return Arity::PerLock { keys, args, each };
        }
        if count("KEYS[..] ") == 1 {
            let args = count("ARGV[");
            assert!(
                (1..=args).all(|n| count(&format!("ARGV[{n} of {args}] ")) == 1),
                "{}",
                script.name
            );
            return Arity::PerKey { args };
        }
        let (keys, mut args) = (count("KEYS["), count("ARGV["));
        args -= each.unwrap_or(0);
        for (what, all) in [("KEYS", keys), ("ARGV", args)] {
            // A check numbers its keys and arguments after those of the script that it precedes.
            let guards = count(&format!("{what}[+"));
            let own = (1..=all - guards).all(|n| count(&format!("{what}[{n}] ")) == 1);
            let further = (1..=guards).all(|n| count(&format!("{what}[+{n}] ")) == 1);
            assert!(own && further, "{}", script.name);
        }
        match each {
            Some(each) => Arity::PerEntry { keys, args, each },
            None => Arity::Fixed { keys, args },
        }
    }

    /// Returns the answers that the header names.
    fn promised(script: &Script) -> Vec<String> {
        let mut answers: Vec<String> = header(script)
            .iter()
            .filter_map(|line| line.strip_prefix("Returns "))
            .map(|line| {
                let line = line
                    .strip_prefix("for each ")
                    .and_then(|line| line.split_once(' '))
                    .map_or(line, |(_, line)| line);
                line.split([',', ':']).next().unwrap().to_owned()
            })
            .collect();
        answers.sort();
        answers
    }

    /// Returns the answers that the code below the header gives.
    fn given(script: &Script) -> Vec<String> {
        let mut answers: Vec<String> = Vec::new();
        for line in script.source.lines().filter(|line| !line.starts_with("--")) {
            for (start, answer) in [("return", " {'"), ("answers[", "] = {'")] {
                if let Some((_, rest)) = line.split_once(start)
                    && let Some((_, rest)) = rest.split_once(answer)
                {
                    answers.push(rest.split('\'').next().unwrap().to_owned());
                }
            }
            if let Some((_, rest)) = line.split_once("answers[i] = ")
                && !rest.starts_with('{')
            {
                answers.push(rest.to_owned());
            }
        }
        answers.sort();
        answers.dedup();
        answers
    }

    #[test]
    fn headers_state_keys_and_arguments() {
        for script in ALL {
            assert_eq!(declared(script), script.arity, "{}", script.name);
        }
    }

    #[test]
    fn headers_and_enums_name_every_answer() {
        let decoded: &[(&Script, &[&str])] = &[
            (&LOCK_ACQUIRE, acquired::Acquired::TAGS),
            (&LOCK_ACQUIRE_ALL, batch::AllAcquired::TAGS),
            (&LOCK_REENTER, answer::Reentered::TAGS),
            (&LOCK_REENTER_SPARE, answer::Reentered::SPARE_TAGS),
            (&LOCK_CONFIRM, answer::Confirmed::TAGS),
            (&LOCK_RELEASE, answer::Released::TAGS),
            (&LOCK_RELEASE_SPARE, answer::Released::SPARE_TAGS),
            (&LOCK_RELEASE_ALL, batch::AllReleased::TAGS),
            (&LOCK_ADOPT, answer::Adopted::TAGS),
            (&LOCK_ADOPT_SPARE, answer::Adopted::SPARE_TAGS),
            (&LOCK_EXTEND, answer::Extended::TAGS),
            (&LOCK_RENEW, reply::STANDS),
            (&LOCK_CHECK, reply::STANDS),
            (&LOCK_FORCE_RELEASE, answer::ForceReleased::TAGS),
            (&LOCK_INSPECT, answer::Inspected::TAGS),
            (&TURN_LEAVE, &["left"]),
            (&LEADER_TELL, &["told"]),
            (&FENCED_ACQUIRE, acquired::Acquired::FENCED_TAGS),
            (&FENCED_TOKEN, answer::Token::TAGS),
            (&FAIR_ACQUIRE, acquired::Acquired::FAIR_TAGS),
            (&FAIR_SIGN, fair::Signed::TAGS),
            (&FAIR_RELEASE, answer::Released::FAIR_TAGS),
            (&FAIR_RELEASE_SPARE, answer::Released::FAIR_SPARE_TAGS),
            (&FAIR_FORCE_RELEASE, answer::ForceReleased::TAGS),
            (&PLAIN_ACQUIRE, acquired::Acquired::PLAIN_TAGS),
            (&PLAIN_RELEASE, answer::Released::PLAIN_TAGS),
            (&PLAIN_ADOPT, answer::Adopted::PLAIN_TAGS),
            (&PLAIN_EXTEND, answer::Extended::TAGS),
            (&PLAIN_RENEW, reply::STANDS),
            (&PLAIN_CHECK, reply::STANDS),
            (&PLAIN_FORCE_RELEASE, answer::ForceReleased::TAGS),
            (&PLAIN_INSPECT, answer::Inspected::TAGS),
            (&READ_ACQUIRE, acquired::Acquired::READ_TAGS),
            (&RW_CONFIRM, answer::Confirmed::TAGS),
            (&WRITE_ACQUIRE, acquired::Acquired::WRITE_TAGS),
            (&RW_REENTER, answer::Reentered::TAGS),
            (&RW_REENTER_SPARE, answer::Reentered::SPARE_TAGS),
            (&RW_RELEASE, answer::Released::TAGS),
            (&RW_RELEASE_SPARE, answer::Released::SPARE_TAGS),
            (&RW_ADOPT, answer::Adopted::TAGS),
            (&RW_ADOPT_SPARE, answer::Adopted::SPARE_TAGS),
            (&RW_EXTEND, answer::Extended::TAGS),
            (&RW_RENEW, reply::STANDS),
            (&RW_CHECK, reply::STANDS),
            (&RW_FORCE_RELEASE, answer::ForceReleased::TAGS),
            (&RW_INSPECT, answer::Inspected::TAGS),
            (&KEY_TOUCH, &["written"]),
            (&COUNTER_READ, counted::CounterValue::TAGS),
            (&COUNTER_SET, counted::Changed::SET_TAGS),
            (&MARK_FORGET, &["forgotten"]),
            (&KEY_KIND, key_kind::KeyKind::TAGS),
            (&LATCH_COUNT_DOWN, counted::CounterValue::DOWN_TAGS),
            (&LATCH_DELETE, counted::Changed::DELETED_TAGS),
            (&SEMAPHORE_ACQUIRE, counted::Taken::TAGS),
            (&SEMAPHORE_RETURN, counted::Returned::TAGS),
            (&SEMAPHORE_ADD, counted::CounterValue::ADD_TAGS),
            (&SEMAPHORE_DRAIN, counted::CounterValue::DRAIN_TAGS),
            (&PERMIT_ACQUIRE, counted::Taken::TAGS),
            (&PERMIT_RETURN, counted::Returned::LEASED_TAGS),
            (&PERMIT_EXTEND, answer::Extended::PERMIT_TAGS),
            (&PERMIT_COUNT, counted::CounterValue::TAGS),
            (&RED_ACQUIRE, red::Polled::TAGS),
            (&RED_PLAIN_ACQUIRE, red::Polled::PLAIN_TAGS),
        ];
        assert_eq!(decoded.len(), ALL.len());
        for (script, tags) in decoded {
            let mut tags: Vec<String> = tags.iter().map(ToString::to_string).collect();
            tags.sort();
            assert_eq!(promised(script), tags, "{}: header and enum", script.name);
            assert_eq!(given(script), tags, "{}: code and enum", script.name);
        }
    }

    #[test]
    fn headers_say_what_is_published() {
        for script in ALL {
            // Scripts publish with `pcall`, so that a release stands even if publishing fails.
            assert!(!script.source.contains(".call(ARGV["), "{}", script.name);
            let last = script.parts.last().unwrap_or(&"");
            let publishes = [
                "redis.pcall(ARGV[",
                "whose_turn(",
                "tell_freed(",
                "notify(",
                "refusal(",
                "wake(",
                "tell_first(",
                "pass_on(",
                "add_permits(",
                "tell_holder",
            ];
            let publishes = publishes.iter().any(|call| last.contains(call));
            let silent = header(script).contains(&"Publishes nothing");
            assert_ne!(publishes, silent, "{}", script.name);
        }
    }

    #[test]
    fn every_file_is_registered() {
        let mut files: Vec<String> = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/lua"))
            .unwrap()
            .map(|entry| {
                entry
                    .unwrap()
                    .path()
                    .file_stem()
                    .unwrap()
                    .to_str()
                    .unwrap()
                    .to_owned()
            })
            .collect();
        files.sort();
        let mut names: Vec<String> = ALL
            .iter()
            .flat_map(|script| script.name.split(' '))
            .map(str::to_owned)
            .collect();
        names.sort();
        names.dedup();
        assert_eq!(files, names);
    }
}
