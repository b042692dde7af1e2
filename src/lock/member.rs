//! A lock of any kind as a member of a set.

use std::sync::Arc;

use super::handle::Handle;
use crate::error::{Error, ErrorKind};
use crate::hold::request::AcquireRequest;
use crate::owner::{Owner, Owners};
use crate::scope;
use crate::session::ClientHandle;

/// A lock of any kind as a member of a set, with its own lease and its own client.
///
/// Every lock of this crate converts into a member by `into()`. A set takes locks of one type as they are; `into()` is
/// for sets of several kinds, since an array needs one type:
///
/// ```
/// # redlatch_testkit::doc(async |url| {
/// # use redlatch::{Client, Member, MultiLock};
/// # let client = Client::connect(url).await?;
/// let alike = MultiLock::new([client.lock("a"), client.lock("b")]);
/// let mixed = MultiLock::new([
///     Member::from(client.lock("a")),
///     client.fenced_lock("b").into(),
///     client.read_write_lock("c").reader().into(),
/// ]);
/// # drop((alike, mixed));
/// # Ok::<(), redlatch::Error>(()) });
/// ```
#[derive(Clone, Debug)]
pub struct Member(pub(super) Handle);

/// The locks of a set, and the owner that it acts for.
#[derive(Clone, Debug)]
pub(super) struct Members {
    members: Vec<Member>,
    owner: Option<Owner>,
}

impl Members {
    pub(super) fn new<M: Into<Member>>(locks: impl IntoIterator<Item = M>) -> Self {
        Self {
            members: locks.into_iter().map(Into::into).collect(),
            owner: None,
        }
    }

    pub(super) fn owned_by(mut self, owner: &Owner) -> Self {
        self.owner = Some(owner.clone());
        self
    }

    /// Returns the names for people, in the order of the locks.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.handles().map(Handle::shown_name)
    }

    pub(super) fn handles(&self) -> impl Iterator<Item = &Handle> {
        self.members.iter().map(|Member(handle)| handle)
    }

    /// Returns a client of the set: that of its first lock.
    pub(super) fn client(&self) -> Result<&Arc<ClientHandle>, Error> {
        let first = self.handles().next();
        let first = first.ok_or_else(|| Error::invalid("a set needs at least one lock"))?;
        Ok(&first.client)
    }

    /// Returns the owner that the set acts for, and one request for each member.
    ///
    /// Returns `Err` if the members have different owners.
    pub(super) fn requests(&self) -> Result<(Owner, Vec<AcquireRequest>), Error> {
        let owner = match self.given_owner()? {
            Some(owner) => owner,
            None => scope::of_call(self.owners()),
        };
        let requests = self
            .handles()
            .map(|handle| handle.request_for(owner.clone()));
        let requests = requests.collect::<Result<_, _>>()?;
        Ok((owner, requests))
    }

    fn owners(&self) -> Owners {
        let first = self.handles().next();
        first.map_or_else(Owners::default, Handle::owners)
    }

    /// Returns the owner that the set or a member names, or else the owner around the call that holds one of the locks.
    /// With a different owner, the call would wait for its caller.
    ///
    /// Returns `Err` if several owners around the call hold the locks.
    fn given_owner(&self) -> Result<Option<Owner>, Error> {
        if let Some(named) = self.named_owner()? {
            return Ok(Some(named.clone()));
        }
        let mut given: Option<Owner> = None;
        for handle in self.handles() {
            let holder = scope::holder(self.owners(), |owner| handle.is_held_by(owner));
            if let Some(holder) = holder
                && *given.get_or_insert_with(|| holder.clone()) != holder
            {
                return Err(Error::new(
                    ErrorKind::Refused,
                    "locks of the set are held around this call for several owners; a set acts for one owner",
                ));
            }
        }
        Ok(given)
    }

    /// Returns the owner that the set or a member names.
    fn named_owner(&self) -> Result<Option<&Owner>, Error> {
        let mut owner = self.owner.as_ref();
        for wanted in self.handles().filter_map(|handle| handle.owner.as_ref()) {
            if *owner.get_or_insert(wanted) != wanted {
                return Err(Error::invalid(
                    "the locks of the set name different owners; a set acts for one owner",
                ));
            }
        }
        Ok(owner)
    }
}
