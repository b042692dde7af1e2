//! For operators: lists and shows the locks of all processes, and checks servers. Requires the feature
//! `unstable-admin`.
//!
//! [`Client::admin`](crate::Client::admin) is the way in. What it returns was true at some time while the server was
//! asked. Nothing here holds a lock: before you act on what a lock protects, acquire the lock.
//!
//! The command `redlatch` shows all of this in a shell.

mod found;
mod inspection;
mod listing;
mod reading;
mod rights;
mod server;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::timeout;

use crate::clock::BootInstant;
use crate::error::Error;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::lock::handle::{Handle, Target};
use crate::name::LockName;
use crate::options::{Prefer, ReleaseBy};
use crate::protocol::hold_key::{Kind, ReadWrite, ServerQueue};
use crate::session::ClientHandle;
use crate::session::backend::Node;
use crate::session::backend::inquiry::Told;

pub use found::{FoundHolder, FoundKind, FoundSide, FoundWaiter};
pub use inspection::Inspection;
use inspection::LockKeys;
pub use listing::{Listing, Unread};
pub use rights::MissingRights;
pub use server::ServerReport;
pub use watch::LockWatch;

/// A view of the locks of all processes, and of the servers. Returned by [`Client::admin`](crate::Client::admin).
///
/// # Examples
///
/// ```
/// # redlatch_testkit::doc(async |url| {
/// # let client = redlatch::Client::connect(url).await?;
/// let guard = client.fenced_lock("ledger").lock().await?;
/// let found = client.admin().inspect("ledger").await?.expect("the lock is held");
/// assert_eq!(found.token, Some(guard.token().get()));
/// guard.unlock().await?;
/// # Ok::<(), redlatch::Error>(()) });
/// ```
#[derive(Clone, Debug)]
pub struct Admin {
    client: Arc<ClientHandle>,
    prefix: Result<String, Error>,
}

/// The outcome of [`Admin::check_messages`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MessageReport {
    /// The words in which the server refuses to publish.
    pub publish_refused: Option<String>,
    /// Whether the server has confirmed a subscription.
    pub is_subscribed: bool,
    /// How long a message took from this client to the server and back, or `None` if it did not arrive.
    pub round_trip: Option<Duration>,
}

impl Admin {
    pub(crate) fn new(client: Arc<ClientHandle>, prefix: Result<String, Error>) -> Self {
        Self { client, prefix }
    }

    /// Lists what is held, in no order. `pattern` is a glob, as in the command `SCAN`.
    ///
    /// Looks at every key of each server, a thousand at a time, while the list is read. Lists locks of all kinds that
    /// this crate and Redisson write, except that a plain lock is listed only if this crate made up its value: other
    /// strings may be anything. Semaphores and latches, which are bare numbers, are not listed either, nor is a key
    /// without an end, nor a lock that is named as the keys next to locks are, such as `redlatch_turns:..` or
    /// `redisson_lock_token:..`. A lock that is acquired or released meanwhile may or may not be listed.
    ///
    /// If the connection to a server is replaced meanwhile, that server is asked for its keys from the start, and
    /// nothing is listed twice. If that happens again and again, the server is given up as [`Unread`].
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](ErrorKind::InvalidInput) if the client has a prefix that no name can have;
    /// [`Closed`](ErrorKind::Closed) if the client is closed; [`Backend`](ErrorKind::Backend) if no server of the
    /// cluster is known so far.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// let guard = client.lock("orders:42").lock().await?;
    /// let mut list = client.admin().list("orders:*")?;
    /// let found = list.next().await.expect("a lock").expect("it can be read");
    /// assert_eq!(found.name, "orders:42");
    /// guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub fn list(&self, pattern: &str) -> Result<Listing, Error> {
        Listing::new(self.clone(), pattern)
    }

    /// Returns what is under a name, or `None` if nothing is.
    ///
    /// Shows locks of every kind, semaphores and latches, those of Redisson's included, and any string with a lease,
    /// which may be a plain lock. What has no lease is a lock only if it names a client, or has the token of redis-py's
    /// `Lock`.
    ///
    /// # Errors
    ///
    /// [`WrongKind`](ErrorKind::WrongKind) if there is something that is none of these;
    /// [`InvalidInput`](ErrorKind::InvalidInput) for a text that is no name; [`Backend`](ErrorKind::Backend) or
    /// [`Timeout`](ErrorKind::Timeout) if the server cannot be asked or refuses.
    ///
    /// # Cancel safety
    ///
    /// Changes nothing on the server.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// let admin = client.admin();
    /// assert_eq!(admin.inspect("orders:42").await?, None);
    /// let guard = client.lock("orders:42").lock().await?;
    /// let found = admin.inspect("orders:42").await?.expect("the lock is held");
    /// assert_eq!(found.holders[0].hold_count, 1);
    /// guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn inspect(&self, name: &str) -> Result<Option<Inspection>, Error> {
        let inspect = async {
            let looked = self.look(name).await?;
            Ok(looked.map(|(found, _)| found))
        };
        self.client.within(Box::pin(inspect)).await
    }

    /// Does the same, and tells whether there is a field that only this crate writes.
    async fn look(&self, name: &str) -> Result<Option<(Inspection, bool)>, Error> {
        self.client.ensure_open()?;
        let keys = self.keys(name)?;
        // First, since what is not a lock may be huge.
        let shape = self
            .client
            .backend
            .look_at(keys.key(), &keys.shape())
            .await?;
        if !inspection::may_be_lock(&shape) {
            return Err(Error::wrong_kind(keys.key()));
        }
        self.read(name).await
    }

    /// Releases a lock if exactly those who held it when it was inspected still hold it. Returns `false` otherwise.
    ///
    /// Otherwise the same as `force_unlock` of each kind of lock, such as
    /// [`ReentrantLock::force_unlock`](crate::ReentrantLock::force_unlock), with its dangers: the holders are not
    /// asked. Only the holders are compared: it does not matter how many times they hold the lock, or whether it is a
    /// later hold of the same owner. The sides of a read-write lock are compared and released one after the other, the
    /// readers first.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](ErrorKind::InvalidInput) for a semaphore or a latch, and for a plain lock with a value of more
    /// than 2048 bytes, which are not compared; otherwise same as
    /// [`ReentrantLock::force_unlock`](crate::ReentrantLock::force_unlock).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lock may be released, or one side of it.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// # let other = redlatch::Client::connect(url).await?;
    /// let admin = client.admin();
    /// let guard = other.lock("orders:42").lock().await?;
    /// let found = admin.inspect("orders:42").await?.expect("the lock is held");
    /// guard.unlock().await?;
    /// let _next = other.lock("orders:42").owned_by(&redlatch::Owner::unique()).lock().await?;
    /// assert!(!admin.force_unlock(&found).await?); // somebody else holds it by now
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn force_unlock(&self, found: &Inspection) -> Result<bool, Error> {
        if found.count.is_some() {
            let text = format!("{:?} is a semaphore or a latch, not a lock", found.name);
            return Err(Error::invalid(text));
        }
        if found.is_cut() {
            let text = format!(
                "the value of {:?} is too long to be compared; use `PlainLock::force_unlock`, which compares nothing",
                found.name
            );
            return Err(Error::invalid(text));
        }
        let (name, sides) = self.names(&found.name)?;
        let kinds = match found.kind {
            FoundKind::ReadWrite => {
                let sides = Arc::new(ReadWrite::new(&sides, Prefer::default()));
                vec![Kind::Read(sides.clone()), Kind::Write(sides)]
            }
            FoundKind::Fair => {
                let worth = self.client.settings.fair_wait_timeout;
                vec![Kind::Fair(Arc::new(ServerQueue::new(&name, worth)))]
            }
            FoundKind::Plain => vec![Kind::Plain(ReleaseBy::Auto)],
            _ => vec![Kind::Reentrant],
        };
        let mut is_released = false;
        for kind in kinds {
            let holders = inspection::fields_of(found, &kind);
            // Whoever waits may get in as soon as one side is free, so a side that nobody had is left alone.
            if !holders.is_empty() {
                let name = if kind.sides().is_some() {
                    &sides
                } else {
                    &name
                };
                let target = Target::new(name.clone(), kind);
                let lock = Handle::new(self.client.clone(), target, Duration::ZERO);
                is_released |= lock.force_unlock(&holders).await?;
            }
        }
        Ok(is_released)
    }

    /// Returns a watch on the messages of a lock. To see releases early, look at the lock again at each message.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](ErrorKind::InvalidInput) for a text that is no name.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// let mut watch = client.admin().watch("orders:42")?;
    /// watch.message().await; // the subscription itself is the first
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub fn watch(&self, name: &str) -> Result<LockWatch, Error> {
        let (name, sides) = self.names(name)?;
        Ok(LockWatch::new(&self.client.hub, &name, &sides))
    }

    /// Returns what each server says of itself; in a cluster, what each primary with slots says. A server that cannot
    /// be asked is [`Unread`], and the others are still asked. What a server refuses to tell is `None` in its report.
    ///
    /// # Errors
    ///
    /// [`Closed`](ErrorKind::Closed) if the client is closed; [`Backend`](ErrorKind::Backend) if no server of the
    /// cluster is known so far.
    ///
    /// # Cancel safety
    ///
    /// Changes nothing on the server.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// for server in client.admin().servers().await? {
    ///     match server {
    ///         Ok(server) if server.eviction_policy.as_deref() == Some("noeviction") => {}
    ///         Ok(server) => println!("{} may evict locks", server.address),
    ///         Err(unread) => println!("{unread}"),
    ///     }
    /// }
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn servers(&self) -> Result<Vec<Result<ServerReport, Unread>>, Error> {
        let servers = async {
            self.client.ensure_open()?;
            let nodes = self.client.backend.known_nodes()?;
            let reports = nodes.iter().map(async |node| {
                let report = self.report(node).await;
                report.map_err(|error| Unread {
                    server: format!("{node:?}"),
                    name: None,
                    error,
                })
            });
            Ok(join_all(reports).await)
        };
        self.client.within(Box::pin(servers)).await
    }

    async fn report(&self, node: &Node) -> Result<ServerReport, Error> {
        let backend = &self.client.backend;
        let told = backend.inquire(node, &server::questions()).await?;
        // By itself, so that its round trip is that of one small command.
        let asked = BootInstant::now();
        let clock = backend.inquire(node, &[server::CLOCK.to_vec()]).await?;
        let round_trip = asked.until(BootInstant::now());
        let address = format!("{node:?}");
        Ok(server::read(address, &told, clock.first(), round_trip))
    }

    /// Subscribes to the channel of the lock with this name, and publishes a message there. Wakes whoever waits for
    /// that lock, so use a name of your own.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](ErrorKind::InvalidInput) for a text that is no name; [`Backend`](ErrorKind::Backend) or
    /// [`Timeout`](ErrorKind::Timeout) if the server cannot be asked.
    ///
    /// # Cancel safety
    ///
    /// Leaves nothing on the server.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// let report = client.admin().check_messages("probe:17").await?;
    /// assert!(report.is_subscribed && report.round_trip.is_some());
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn check_messages(&self, name: &str) -> Result<MessageReport, Error> {
        let check = async {
            self.client.ensure_open()?;
            let (name, _) = self.names(name)?;
            let backend = &self.client.backend;
            let channel = name.channel();
            let mut subscription = self.client.hub.subscribe(channel);
            let subscribed = timeout(backend.patience(), async {
                while !subscription.is_heard() {
                    subscription.news().await;
                }
            });
            let is_subscribed = subscribed.await.is_ok();
            // The acknowledgement is not to be taken for the message.
            subscription.catch_up();
            let asked = BootInstant::now();
            let words = vec![backend.publishes_by(), &**channel, "0"];
            let told = backend.inquire_about(channel, &[words]).await?;
            let publish_refused = told.into_iter().find_map(Result::err);
            let mut round_trip = None;
            if is_subscribed && publish_refused.is_none() {
                let arrived = timeout(backend.patience(), subscription.news()).await;
                round_trip = arrived.ok().map(|()| asked.until(BootInstant::now()));
            }
            Ok(MessageReport {
                publish_refused,
                is_subscribed,
                round_trip,
            })
        };
        self.client.within(Box::pin(check)).await
    }

    /// Tries whether this user may read and write the turn order of the lock with this name, which tells waiting
    /// processes of a release. Returns the words in which the server refuses, or `None` if all is well. Use a name that
    /// no lock has.
    ///
    /// Scripts carry on without these rights, so no other call fails for want of them.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](ErrorKind::InvalidInput) for a text that is no name; [`Backend`](ErrorKind::Backend) or
    /// [`Timeout`](ErrorKind::Timeout) if the server cannot be asked.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, an entry may remain for a second.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// assert_eq!(client.admin().check_turns("probe:17").await?, None);
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn check_turns(&self, name: &str) -> Result<Option<String>, Error> {
        let check = async {
            self.client.ensure_open()?;
            let (name, _) = self.names(name)?;
            let turns = &*name.turns();
            let backend = &self.client.backend;
            let commands = [
                vec!["ZADD", turns, "0", "probe"],
                vec!["PEXPIRE", turns, "1000"],
                vec!["ZRANGE", turns, "0", "0"],
                vec!["ZRANK", turns, "probe"],
                vec!["PTTL", turns],
                vec!["EXISTS", turns],
                vec!["PUBSUB", backend.counts_by(), name.channel()],
                vec!["ZREM", turns, "probe"],
            ];
            let told = backend.inquire_about(name.key(), &commands).await?;
            Ok(told.into_iter().find_map(Told::err))
        };
        self.client.within(Box::pin(check)).await
    }

    fn prefix(&self) -> Result<&str, Error> {
        self.prefix.as_deref().map_err(Clone::clone)
    }

    /// Returns the name of what has this key.
    fn unprefixed<'a>(&self, key: &'a str) -> &'a str {
        let prefix = self.prefix().unwrap_or_default();
        key.strip_prefix(prefix).unwrap_or(key)
    }

    fn keys(&self, name: &str) -> Result<LockKeys, Error> {
        let (name, sides) = self.names(name)?;
        Ok(LockKeys::new(&name, &sides))
    }

    /// Returns the name of a lock, and that of a read-write lock, whose channel is another one.
    fn names(&self, name: &str) -> Result<(LockName, LockName), Error> {
        let prefix = self.prefix()?;
        let names = (
            LockName::new(prefix, name)?,
            LockName::read_write(prefix, name)?,
        );
        self.client.ensure_placed(&names.0)?;
        Ok(names)
    }
}

/// Escapes the characters that a glob gives a meaning to.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if "*?[]\\^".contains(c) {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_is_taken_literally() {
        assert_eq!(escaped("a*[b]?\\"), "a\\*\\[b\\]\\?\\\\");
    }
}
