//! One term of a leader, and who it is.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::clock::BootInstant;
use crate::error::Error;
use crate::hold::lease::Lease;
use crate::label;
use crate::lock::fenced::{FencedGuard, FencingToken};
use crate::lock::holder::Holder;
use crate::owner::Owner;
use crate::protocol::leader::LeaderNews;
use crate::session::ClientHandle;
use crate::session::hold::fresh_acquisition_id;

/// How many hexadecimal digits tell the terms of one candidate apart.
const DIGITS: usize = 16;

/// A term of a leader: this process leads as long as the term lasts. Returned by
/// [`Election::campaign`](crate::leader::Election::campaign), and lent to the body of
/// [`Election::lead`](crate::leader::Election::lead).
///
/// A term derefs to its [`Lease`], which is renewed. [`lost`](Lease::lost) resolves when the term can no longer be
/// trusted; [`run_until_lost`](Lease::run_until_lost) runs a future until then. [`step_down`](Self::step_down) ends the
/// term and reports whether this process still led. Dropping the term steps down too, without waiting, from any thread
/// and while a panic unwinds; see [`LockGuard`](crate::LockGuard) for the limits.
#[must_use = "this process steps down as soon as the term is dropped"]
#[clippy::has_significant_drop]
pub struct Term {
    guard: FencedGuard,
    /// Behind the guard, since the fields are dropped in this order: who watches is told after the release was written.
    end: Announcement,
}

impl Term {
    /// Begins a term. Tells those that watch.
    pub(super) fn begin(guard: FencedGuard, end: Announcement) -> Self {
        guard.hold.begins_a_term();
        end.send();
        Self { guard, end }
    }

    /// Returns the fencing token of the term, which is higher than those of all earlier terms.
    ///
    /// Send it along with each write. A store that remembers the highest token and refuses lower ones is safe from a
    /// leader that was paused and replaced, and does not know it yet.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// let election = client.leader("scheduler");
    /// let term = election.campaign().await?;
    /// let stale = term.token();
    /// term.step_down().await?;
    ///
    /// let term = election.campaign().await?;
    /// assert!(term.token() > stale); // UPDATE .. WHERE token <= $1 refuses what the earlier leader still sends
    /// # term.step_down().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.guard.token()
    }

    /// Returns what others see of this term, as [`Election::current`](crate::leader::Election::current) does while it
    /// lasts.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// # let other = redlatch::Client::connect(url).await?;
    /// let term = client.leader("scheduler").campaign().await?;
    /// assert_eq!(other.leader("scheduler").current().await?, Some(term.leader()));
    /// # term.step_down().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn leader(&self) -> Leader {
        Leader {
            owner: self.guard.owner().to_string(),
            label: Some(self.guard.request.client.label().to_owned()),
        }
    }

    /// Steps down, and reports whether this process led until then. The next candidate leads at once.
    ///
    /// # Errors
    ///
    /// [`LeaseLost`](crate::ErrorKind::LeaseLost) if the term had ended: what was done since may have overlapped with
    /// the next leader. [`Timeout`](crate::ErrorKind::Timeout) and [`Backend`](crate::ErrorKind::Backend) if the server
    /// did not answer or refused; the release is retried in the background until the lease has passed.
    ///
    /// # Cancel safety
    ///
    /// Once the future has been polled, the release continues in the background if the future is dropped.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// # async fn drain() {}
    /// let election = client.leader("scheduler");
    /// let term = election.campaign().await?;
    /// drain().await; // before a deployment, say
    /// term.step_down().await?; // no candidate has to wait for the lease to end
    /// assert_eq!(election.current().await?, None);
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn step_down(self) -> Result<(), Error> {
        let Self { guard, end } = self;
        let released = guard.unlock().await;
        drop(end);
        released
    }
}

impl fmt::Debug for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = self.guard.show("Term", f);
        shown.field("token", &self.token().get()).finish()
    }
}

impl Deref for Term {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.guard
    }
}

/// Who leads, or led: one term of one candidate. Two terms of the same candidate are not equal.
///
/// People are shown the [`identity`](Self::identity), or if none was chosen, the label of the client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Leader {
    owner: String,
    label: Option<String>,
}

impl Leader {
    /// Creates an owner for one campaign of a candidate. Each has its own, so that no two candidates share a term,
    /// whatever they are called.
    pub(super) fn candidate(identity: &str) -> Result<Owner, Error> {
        Owner::named(identity).check()?;
        let term = fresh_acquisition_id();
        Ok(Owner::named(format!("{identity}/{term:0DIGITS$x}")))
    }

    /// Returns the leader that holds the lock of an election.
    pub(super) fn of(holder: &Holder) -> Self {
        Self {
            owner: holder.owner().to_owned(),
            label: holder.label().map(str::to_owned),
        }
    }

    /// Returns the [`identity`](crate::leader::Election::identity) of the leader, by default the
    /// [id](crate::Client::id) of its client.
    ///
    /// If the lock was acquired as a [`FencedLock`](crate::FencedLock) and not by an election, this is the owner.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// let election = client.leader("scheduler");
    /// let term = election.campaign().await?;
    /// let leader = election.current().await?.expect("there is one");
    /// assert_eq!(leader.identity(), client.id()); // it is this process
    /// # term.step_down().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn identity(&self) -> &str {
        match self.owner.rsplit_once('/') {
            Some((identity, term)) if is_number(term) => identity,
            _ => &self.owner,
        }
    }

    /// Returns the [label](crate::ClientBuilder::label) of the leader's client: `host/pid`, unless another one was
    /// chosen.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// let election = client.leader("scheduler");
    /// let term = election.campaign().await?;
    /// let leader = election.current().await?.expect("there is one");
    /// assert_eq!(leader.label(), Some(client.label()));
    /// println!("{leader} leads"); // web-3/812 leads
    /// # term.step_down().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn label(&self) -> Option<&str> {
        self.label.as_deref()
    }
}

impl fmt::Display for Leader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let identity = self.identity();
        let is_chosen = label::label_and_id(identity).is_none();
        f.write_str(match &self.label {
            Some(label) if !is_chosen => label,
            _ => identity,
        })
    }
}

fn is_number(term: &str) -> bool {
    term.len() == DIGITS && term.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Tells those that watch an election, once more when dropped.
#[derive(Debug)]
pub(super) struct Announcement {
    client: Arc<ClientHandle>,
    news: Arc<LeaderNews>,
}

impl Announcement {
    pub(super) fn new(client: Arc<ClientHandle>, news: LeaderNews) -> Self {
        let news = Arc::new(news);
        Self { client, news }
    }

    /// Sends the message once, without waiting. A watch that misses it finds out when it asks next.
    fn send(&self) {
        let timeout = self.client.settings.command_timeout;
        let reaper = &self.client.reaper;
        reaper.send_now(self.news.clone(), timeout, BootInstant::now());
    }
}

impl Drop for Announcement {
    fn drop(&mut self) {
        self.send();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_is_what_the_candidate_was_called() {
        for identity in ["web-7", "a/b", "7/0123456789abcdef", "4b0c:12"] {
            let owners = [(); 2].map(|()| Leader::candidate(identity).unwrap().to_string());
            assert_ne!(owners[0], owners[1]);
            for owner in owners {
                let leader = Leader::of(&Holder::new(owner, 1, None));
                assert_eq!(leader.identity(), identity);
                assert_eq!(leader.to_string(), identity);
            }
        }
        let of = |owner: &str| Leader::of(&Holder::new(owner, 1, None).labelled("web-3/812"));
        assert_eq!(of("req-7").identity(), "req-7");
        assert_eq!(of("a/b").to_string(), "a/b");
        let by_default = format!("{}/0123456789abcdef", uuid::Uuid::nil());
        assert_eq!(of(&by_default).to_string(), "web-3/812");
        assert!(Leader::candidate("").is_err());
    }
}
