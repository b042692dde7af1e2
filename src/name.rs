//! A lock's name, and every key and channel derived from it.

use std::sync::Arc;

use crate::error::Error;

/// The longest accepted name in bytes, including the prefix.
const LONGEST: usize = 1024;

/// What the keys next to locks begin with, those of Redisson's included.
const BESIDE: [&str; 12] = [
    "redisson_lock_queue",
    "redisson_lock_timeout",
    "redisson_lock_token",
    "redisson_unlock_latch",
    "redlatch_braced_turns",
    "redlatch_call",
    "redlatch_lock_places",
    "redlatch_permit",
    "redlatch_redlock_mark",
    "redlatch_rwlock_reader",
    "redlatch_rwlock_writer",
    "redlatch_turns",
];

/// A valid lock name, including the prefix, with the channel on which its releases are published.
///
/// Key and channel are those that Redisson uses for the same name, so that Java and Rust meet on one lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LockName {
    key: Arc<str>,
    channel: Arc<str>,
}

/// Identifies the waiters and holds of this process that belong to one lock. It contains the key itself, since other
/// locks may share the keys next to it, and the way the key is used, since different uses of one key ignore each other
/// here.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LocalKey {
    key: Arc<str>,
    users: Users,
}

/// The way in which waiters and holds of this process use a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Users {
    /// They take a lock, of any kind other than those below.
    Owners,
    /// They take the shared side of a read-write lock.
    Readers,
    /// They take the exclusive side of a read-write lock.
    Writers,
    /// They take permits of a semaphore.
    Permits,
    /// They take a lock over several servers.
    Majorities,
}

impl LocalKey {
    /// Returns the key that both sides of a read-write lock share.
    pub(crate) fn of_both_sides(mut self) -> Self {
        if self.users == Users::Readers {
            self.users = Users::Writers;
        }
        self
    }

    pub(crate) fn is_of_readers(&self) -> bool {
        self.users == Users::Readers
    }
}

impl LockName {
    pub(crate) fn new(prefix: &str, name: &str) -> Result<Self, Error> {
        Self::with_channel("redisson_lock__channel", prefix, name)
    }

    /// Creates the name of a read-write lock, whose sides share a channel of their own.
    pub(crate) fn read_write(prefix: &str, name: &str) -> Result<Self, Error> {
        Self::with_channel("redisson_rwlock", prefix, name)
    }

    /// Creates the name of a semaphore.
    pub(crate) fn semaphore(prefix: &str, name: &str) -> Result<Self, Error> {
        Self::with_channel("redisson_sc", prefix, name)
    }

    /// Creates the name of a latch. Its channel has the whole key as its hash tag, so in a cluster, a key that has a
    /// hash tag of its own would be in another slot than its channel.
    pub(crate) fn latch(prefix: &str, name: &str) -> Result<Self, Error> {
        let key = whole(prefix, name)?;
        Ok(Self {
            channel: format!("redisson_countdownlatch__channel__{{{key}}}").into(),
            key: key.into(),
        })
    }

    fn with_channel(channel: &str, prefix: &str, name: &str) -> Result<Self, Error> {
        let key = whole(prefix, name)?;
        Ok(Self {
            channel: prefixed(channel, &key).into(),
            key: key.into(),
        })
    }

    /// Returns the key of the lock itself.
    pub(crate) fn key(&self) -> &Arc<str> {
        &self.key
    }

    /// Returns the key, or channel, of something next to the lock.
    pub(crate) fn beside(&self, prefix: &str) -> String {
        debug_assert!(BESIDE.contains(&prefix), "{prefix} is not in the list");
        prefixed(prefix, &self.key)
    }

    /// Returns the key of the turn order. `k` and `{k}` have one each, though they share a channel.
    #[cfg(feature = "unstable-admin")]
    pub(crate) fn turns(&self) -> String {
        self.beside(match self.ensure_own_keys() {
            Ok(()) => "redlatch_turns",
            Err(_) => "redlatch_braced_turns",
        })
    }

    /// Returns the beginning of the keys that are next to the lock and named after it.
    pub(crate) fn stem(&self) -> String {
        let [before, behind] = braces(&self.key);
        [before, &self.key, behind].concat()
    }

    /// Returns the key under which this process keeps the waiters and holds that use the name in this way.
    pub(crate) fn local_key(&self, users: Users) -> LocalKey {
        LocalKey {
            key: self.key.clone(),
            users,
        }
    }

    /// Refuses a name that consists of nothing but one pair of braces: the keys next to `{k}` have the same names as
    /// the keys next to `k`.
    pub(crate) fn ensure_own_keys(&self) -> Result<(), Error> {
        let key = &*self.key;
        let enclosed = key
            .strip_prefix('{')
            .and_then(|rest| rest.strip_suffix('}'));
        match enclosed {
            Some(twin) if !twin.is_empty() && !twin.contains('{') => Err(Error::invalid(format!(
                "{key:?} would share its other keys with {twin:?}, which is another name; leave out the braces, \
                     or add text before or after them, as in \"{key}:x\""
            ))),
            _ => Ok(()),
        }
    }

    /// Refuses a name whose braces put the lock and what is next to it into different slots. For a cluster, where a
    /// script can only touch keys with the same hash tag.
    pub(crate) fn ensure_one_slot(&self) -> Result<(), Error> {
        let (key, beside) = (&*self.key, prefixed("p", &self.key));
        if [&*beside, &*self.channel]
            .iter()
            .all(|other| tag(other) == tag(key))
        {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "the braces in {key:?} would put the lock and its channel, which must share a slot of the cluster, into \
             different slots; leave them out, or enclose a part of the name that is not empty"
        )))
    }

    pub(crate) fn channel(&self) -> &Arc<str> {
        &self.channel
    }
}

/// Joins a prefix and a name, and checks the result.
fn whole(prefix: &str, name: &str) -> Result<String, Error> {
    check("a name", name)?;
    let key = [prefix, name].concat();
    check("a name with its prefix", &key)?;
    Ok(key)
}

/// Checks the length of a prefix or a name before it is sent anywhere.
pub(crate) fn check(what: &str, text: &str) -> Result<(), Error> {
    if text.is_empty() {
        return Err(Error::invalid(format!("{what} must not be empty")));
    }
    if text.len() > LONGEST {
        let length = text.len();
        return Err(Error::invalid(format!(
            "{what} may have at most {LONGEST} bytes; this one has {length}"
        )));
    }
    Ok(())
}

/// Whether a key is next to a lock, or named as if it were.
#[cfg(feature = "unstable-admin")]
pub(crate) fn is_beside(key: &str) -> bool {
    let (first, _) = key.split_once(':').unwrap_or((key, ""));
    BESIDE.contains(&first)
}

/// Applies Redisson's rule: what is next to a key has the key as its hash tag, unless the key contains a hash tag
/// itself, so that both are in the same cluster slot.
fn prefixed(prefix: &str, key: &str) -> String {
    let [before, behind] = braces(key);
    [prefix, ":", before, key, behind].concat()
}

/// Returns the part of a key that determines its slot in a cluster.
pub(crate) fn tag(key: &str) -> &str {
    let enclosed = key
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'));
    match enclosed {
        Some((tag, _)) if !tag.is_empty() => tag,
        _ => key,
    }
}

/// Returns what makes a key a hash tag, unless it contains one.
fn braces(key: &str) -> [&'static str; 2] {
    match key.contains('{') {
        true => [""; 2],
        false => ["{", "}"],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn channel(prefix: &str, name: &str) -> String {
        LockName::new(prefix, name).unwrap().channel().to_string()
    }

    #[test]
    fn channel_follows_redissons_tag_rule() {
        assert_eq!(channel("", "k"), "redisson_lock__channel:{k}");
        assert_eq!(channel("", "{t}:x"), "redisson_lock__channel:{t}:x");
        assert_eq!(channel("", "a}b"), "redisson_lock__channel:{a}b}");
        assert_eq!(
            channel("billing:", "k"),
            "redisson_lock__channel:{billing:k}"
        );
    }

    #[test]
    fn stem_follows_redissons_tag_rule() {
        let stem = |name| LockName::read_write("", name).unwrap().stem();
        assert_eq!(stem("k"), "{k}");
        assert_eq!(stem("{t}:x"), "{t}:x");
        let name = LockName::read_write("p:", "k").unwrap();
        assert_eq!(&**name.channel(), "redisson_rwlock:{p:k}");
    }

    #[test]
    fn counters_have_channels_of_their_own() {
        let semaphore = |name| LockName::semaphore("", name).unwrap();
        assert_eq!(&**semaphore("k").channel(), "redisson_sc:{k}");
        assert_eq!(&**semaphore("{t}:x").channel(), "redisson_sc:{t}:x");
        let latch = |name| LockName::latch("p:", name).unwrap();
        for (name, channel) in [
            ("k", "redisson_countdownlatch__channel__{p:k}"),
            ("{t}:x", "redisson_countdownlatch__channel__{p:{t}:x}"),
        ] {
            assert_eq!(&**latch(name).channel(), channel);
        }
        // The channel encloses the whole key in braces, so a name with braces of its own would be in another slot.
        assert!(latch("k").ensure_one_slot().is_ok());
        for name in ["{t}:x", "k}"] {
            let error = latch(name).ensure_one_slot().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
        }
    }

    #[test]
    fn names_with_odd_braces_are_refused_in_a_cluster() {
        let placed = |name: &str| LockName::new("", name).unwrap().ensure_one_slot().is_ok();
        for name in ["k", "{t}:x", "a{t}", "x}y{z}", "{{t}}", "{a}{b}"] {
            assert!(placed(name), "{name}");
        }
        for name in ["a{b", "{}x", "x}y", "{", "}", "{}", "a}b{"] {
            assert!(!placed(name), "{name}");
        }
    }

    #[test]
    fn names_that_share_what_stands_beside_them_are_told_apart_or_refused() {
        let name = |text: &str| LockName::new("", text).unwrap();
        let own = |text: &str| name(text).ensure_own_keys().is_ok();
        for text in [
            "k", "{}", "{k}:x", "x:{k}", "{a}{b}", "{{k}}", "{k", "k}", "{", "}",
        ] {
            assert!(own(text), "{text}");
            let twin = format!("{{{text}}}");
            let shared =
                name(text).beside("redlatch_turns") == name(&twin).beside("redlatch_turns");
            assert_eq!(own(&twin), !shared, "{twin}");
        }
        assert!(!own("{k}") && !own("{a}b}"));
        let prefixed = |prefix| LockName::read_write(prefix, "k}").unwrap();
        assert!(prefixed("{").ensure_own_keys().is_err());
        assert!(prefixed("p:{").ensure_own_keys().is_ok());
        assert_ne!(
            name("k").local_key(Users::Owners),
            name("{k}").local_key(Users::Owners)
        );
    }

    #[test]
    fn odd_names_are_names() {
        for name in ["a\0b", "two\nlines", "🔒", "*", "{}", "\r\n", " "] {
            assert_eq!(LockName::new("", name).unwrap().key().as_ref(), name);
        }
        assert!(LockName::new("", &"x".repeat(LONGEST)).is_ok());
    }

    #[test]
    fn empty_and_overlong_names_are_refused() {
        for (prefix, name) in [
            ("", String::new()),
            ("p:", String::new()),
            ("", "x".repeat(1025)),
            ("p:", "x".repeat(1024)),
        ] {
            let error = LockName::new(prefix, &name).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        }
    }
}
