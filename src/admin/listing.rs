//! Lists the locks of all servers, page by page.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::sync::Arc;

use futures_util::future::join_all;

use super::Admin;
use super::inspection::{self, Inspection};
use crate::error::{Error, ErrorKind};
use crate::name::is_beside;
use crate::protocol::reply::Reply;
use crate::session::backend::Node;
use crate::session::backend::inquiry::Told;

/// How many keys a server looks at before it answers others.
const AT_ONCE: &str = "1000";
/// How many locks are read together.
const TOGETHER: usize = 64;
/// How much of a string is looked at: more than the value of any lock that this crate makes up.
const LAST_BYTE: &str = "255";
/// How many times the way through the keys of a server starts over.
const RESTARTS: usize = 5;

/// The locks that are held, in no order. Returned by [`Admin::list`].
///
/// Its memory grows with the number of locks that are listed, not with the number of keys.
#[derive(Debug)]
pub struct Listing {
    admin: Admin,
    /// What keys look like, with the prefix.
    pattern: String,
    /// The scans that are not over, the present one first.
    scans: VecDeque<Scan>,
    /// What was found and not returned so far.
    found: VecDeque<Result<Inspection, Unread>>,
    /// The names that were found: a server may name a key twice.
    names: HashSet<String>,
}

/// What could not be read.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Unread {
    /// The address of the server.
    pub server: String,
    /// The name of the lock, or of whatever the key is, without the client's prefix. `None` if the server as a whole
    /// could not be asked, or refused.
    pub name: Option<String>,
    /// Why.
    pub error: Error,
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{name:?} cannot be read: {}", self.error),
            None => write!(f, "{} cannot be asked: {}", self.server, self.error),
        }
    }
}

impl std::error::Error for Unread {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// The types of keys that locks have.
#[derive(Clone, Copy, Debug)]
enum Type {
    Hash,
    String,
}

/// One way through the keys of one type on one server.
struct Scan {
    node: Arc<Node>,
    of: Type,
    /// Where to go on, or `None` once the server has named all of its keys.
    cursor: Option<String>,
    /// The keys that were named last, and not looked at so far.
    page: Vec<String>,
    /// The number of the connection on which the server began to name its keys. A cursor means nothing to another
    /// server, nor to the same one after a restart.
    epoch: u64,
    /// How many times it started over.
    restarts: usize,
}

impl Listing {
    pub(super) fn new(admin: Admin, pattern: &str) -> Result<Self, Error> {
        admin.client.ensure_open()?;
        let pattern = super::escaped(admin.prefix()?) + pattern;
        let nodes = admin.client.backend.known_nodes()?;
        let scans = nodes.into_iter().flat_map(|node| {
            [Type::Hash, Type::String].map(|of| Scan {
                node: node.clone(),
                of,
                cursor: Some("0".to_owned()),
                page: Vec::new(),
                epoch: 0,
                restarts: 0,
            })
        });
        Ok(Self {
            pattern,
            scans: scans.collect(),
            found: VecDeque::new(),
            names: HashSet::new(),
            admin,
        })
    }

    /// Returns the next lock, or what could not be read in its place. Returns `None` at the end.
    ///
    /// A key that this user may not read, or a server that is away, does not keep anything else from being listed.
    ///
    /// # Errors
    ///
    /// [`Unread`] says what could not be read, and why.
    ///
    /// # Cancel safety
    ///
    /// Changes nothing on the server. If the future is dropped, the next call goes on where this one was.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// let mut list = client.admin().list("*")?;
    /// while let Some(found) = list.next().await {
    ///     match found {
    ///         Ok(lock) => println!("{} is held by {:?}", lock.name, lock.holders),
    ///         Err(unread) => eprintln!("{unread}"),
    ///     }
    /// }
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn next(&mut self) -> Option<Result<Inspection, Unread>> {
        loop {
            if let Some(found) = self.found.pop_front() {
                return Some(found);
            }
            self.scans.front()?;
            let client = self.admin.client.clone();
            let step = async {
                self.step().await;
                Ok(())
            };
            if let Err(error) = client.within(Box::pin(step)).await {
                self.failed(error);
            }
        }
    }

    /// Asks for the next keys of the present scan, and in the same round trip looks at those that were named last.
    async fn step(&mut self) {
        let Some(scan) = self.scans.front_mut() else {
            return;
        };
        if scan.cursor.as_deref() == Some("0") {
            scan.epoch = scan.node.epoch();
        }
        let told = match scan.ask(&self.admin, &self.pattern).await {
            Ok(told) => told,
            Err(error) => return self.failed(error),
        };
        if scan.cursor.is_some() && scan.epoch != scan.node.epoch() {
            return match scan.start_over() {
                Ok(()) => {}
                Err(error) => self.failed(error),
            };
        }
        let (candidates, next) = match scan.sieve(told) {
            Ok(sieved) => sieved,
            Err(error) => return self.failed(error),
        };
        let server = format!("{:?}", scan.node);
        let mut read = Vec::new();
        for keys in candidates.chunks(TOGETHER) {
            let names = keys.iter().map(|key| self.admin.unprefixed(key));
            let together = names.map(async |name| (name.to_owned(), self.admin.listed(name).await));
            read.extend(join_all(together).await);
        }
        // From here on without an await: what was found is not lost, and not found twice.
        for (name, read) in read {
            match read {
                Ok(None) => {}
                Ok(Some(lock)) => {
                    if self.names.insert(name) {
                        self.found.push_back(Ok(lock));
                    }
                }
                // Not remembered: there may be as many as keys.
                Err(error) => self.found.push_back(Err(Unread {
                    server: server.clone(),
                    name: Some(name),
                    error,
                })),
            }
        }
        self.go_on(next);
    }

    /// Takes note of the keys that the server has named, or goes on with the next scan if there are no more.
    fn go_on(&mut self, next: Option<Page>) {
        let (Some(scan), Some((cursor, page))) = (self.scans.front_mut(), next) else {
            self.scans.pop_front();
            return;
        };
        scan.cursor = (cursor != "0").then_some(cursor);
        scan.page = page;
        if scan.cursor.is_none() && scan.page.is_empty() {
            self.scans.pop_front();
        }
    }

    /// Gives the server of the present scan up.
    fn failed(&mut self, error: Error) {
        let Some(Scan { node, .. }) = self.scans.pop_front() else {
            return;
        };
        self.scans.retain(|scan| scan.node != node);
        self.found.push_back(Err(Unread {
            server: format!("{node:?}"),
            name: None,
            error,
        }));
    }
}

/// A cursor, and the keys that the server has named with it.
type Page = (String, Vec<String>);

impl Scan {
    async fn ask(&self, admin: &Admin, pattern: &str) -> Result<Vec<Told>, Error> {
        let scan = self.cursor.as_deref().map(|cursor| {
            let of = self.of.name();
            let words = ["SCAN", cursor, "MATCH", pattern, "COUNT", AT_ONCE, "TYPE"];
            [&words[..], &[of]].concat()
        });
        let looks = self.page.iter().flat_map(|key| self.of.looks(key));
        let commands: Vec<_> = scan.into_iter().chain(looks).collect();
        admin.client.backend.look(&self.node, &commands).await
    }

    /// Goes back to the first key, which has the server name every key again.
    fn start_over(&mut self) -> Result<(), Error> {
        if self.restarts == RESTARTS {
            let text = format!(
                "the connection to {:?} broke again and again while it listed its keys",
                self.node
            );
            return Err(Error::new(ErrorKind::Backend, text));
        }
        self.restarts += 1;
        self.cursor = Some("0".to_owned());
        self.page.clear();
        Ok(())
    }

    /// Returns the keys that may be locks, and what comes next.
    fn sieve(&self, mut told: Vec<Told>) -> Result<(Vec<String>, Option<Page>), Error> {
        let looks = told.split_off(usize::from(self.cursor.is_some()));
        let next = match told.pop() {
            None => None,
            Some(Ok(Reply::List(parts))) => match <[Reply; 2]>::try_from(parts) {
                Ok([Reply::Text(next), page]) => {
                    let mut page = inspection::texts(&Ok(page));
                    // Keys next to a lock are shown with it.
                    page.retain(|key| !is_beside(key));
                    Some((next, page))
                }
                _ => return Err(Reply::Nil.unexpected()),
            },
            Some(Err(refusal)) => {
                let message = format!("{:?} does not list its keys: {refusal}", self.node);
                return Err(Error::refused(message, &refusal));
            }
            Some(_) => return Err(Reply::Nil.unexpected()),
        };
        let each = self.of.looks("").len();
        let looked = self.page.iter().zip(looks.chunks(each));
        let candidates = looked.filter(|(_, told)| self.of.may_be_lock(told));
        let candidates = candidates.map(|(key, _)| key.clone()).collect();
        Ok((candidates, next))
    }
}

impl fmt::Debug for Scan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {:?}", self.of.name(), self.node)
    }
}

impl Type {
    fn name(self) -> &'static str {
        match self {
            Self::Hash => "hash",
            Self::String => "string",
        }
    }

    /// The questions whose answers leave out most of what is no lock, without reading much of it.
    fn looks(self, key: &str) -> Vec<Vec<&str>> {
        match self {
            Self::Hash => vec![
                vec!["PTTL", key],
                vec!["HLEN", key],
                vec!["MEMORY", "USAGE", key],
            ],
            Self::String => vec![vec!["PTTL", key], vec!["GETRANGE", key, "0", LAST_BYTE]],
        }
    }

    /// Judges by the answers to [`looks`](Self::looks). What the server refuses to tell shows when the key is read.
    fn may_be_lock(self, told: &[Told]) -> bool {
        // Every lock has an end.
        let may_end = !matches!(told.first(), Some(Ok(Reply::Integer(left))) if *left < 0);
        may_end
            && match (self, told) {
                (Self::Hash, [_, fields, size]) => inspection::is_small(fields, size),
                (Self::String, [_, Ok(Reply::Text(value))]) => inspection::is_plain_value(value),
                _ => true,
            }
    }
}

impl Admin {
    /// Returns what is under a name if it is recognized as a lock that is held.
    async fn listed(&self, name: &str) -> Result<Option<Inspection>, Error> {
        let looked = match self.read(name).await {
            Ok(looked) => looked,
            Err(error) => {
                return match error.kind() {
                    // Something else, or a text that is no name.
                    ErrorKind::WrongKind | ErrorKind::InvalidInput => Ok(None),
                    _ => Err(error),
                };
            }
        };
        Ok(looked.and_then(|(found, is_own)| {
            let is_listed = is_own || inspection::is_made_up(&found);
            (is_listed && !found.holders.is_empty()).then_some(found)
        }))
    }
}
