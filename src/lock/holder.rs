//! Who holds a lock.

use std::fmt;
use std::time::Duration;

use crate::label;

/// Who holds a lock, according to the server's record at one time. Returned by
/// [`holder`](crate::ReentrantLock::holder).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    owner: String,
    label: Option<String>,
    hold_count: u64,
    remaining_lease: Option<Duration>,
}

impl Holder {
    /// Creates the answer of a lock that replaces a real one in a test; see [`NamedLock`](crate::NamedLock).
    ///
    /// # Examples
    ///
    /// ```
    /// use redlatch::Holder;
    ///
    /// /// What the operator is shown.
    /// fn line(holder: &Holder) -> String {
    ///     format!("{} ({} levels)", holder.owner(), holder.hold_count())
    /// }
    ///
    /// assert_eq!(line(&Holder::new("release-1.2", 2, None)), "release-1.2 (2 levels)");
    /// ```
    #[must_use]
    pub fn new(
        owner: impl Into<String>,
        hold_count: u64,
        remaining_lease: Option<Duration>,
    ) -> Self {
        Self {
            owner: owner.into(),
            label: None,
            hold_count,
            remaining_lease,
        }
    }

    /// Sets the [label](crate::ClientBuilder::label) of the holder's client.
    ///
    /// # Examples
    ///
    /// ```
    /// use redlatch::Holder;
    ///
    /// let holder = Holder::new("release-1.2", 1, None).labelled("web-3/812");
    /// assert_eq!(holder.to_string(), "web-3/812 release-1.2");
    /// ```
    #[must_use]
    pub fn labelled(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Returns the owner as the server knows it: `<client id>:<number>`, or the name of a named owner. `Display` shows
    /// a `Holder` for people, as in `web-3/812 task 17`.
    ///
    /// For a [`PlainLock`](crate::PlainLock) this is the value. If the lock was passed on between tasks of one process,
    /// or if several of them read under it, this is the owner that acquired it from the server.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// let lock = client.lock("nightly-report");
    /// let guard = lock.lock().await?;
    /// let holder = lock.holder().await?.expect("the lock is held");
    /// assert!(holder.owner().starts_with(client.id()));
    /// println!("held by {holder}"); // the label of that client, and the task
    /// guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// Returns the [label](crate::ClientBuilder::label) of the holder's client: `host/pid`, unless another one was
    /// chosen. `None` if the holder does not use this crate, such as a client of Redisson, and for a plain lock of a
    /// named owner.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// use redlatch::Client;
    ///
    /// let client = Client::builder().url(url).label("orders@host-7").build().await?;
    /// let lock = client.lock("nightly");
    /// let guard = lock.lock().await?;
    /// let holder = lock.holder().await?.expect("the lock is held");
    /// println!("held by {}", holder.label().unwrap_or(holder.owner()));
    /// # assert_eq!(holder.label(), Some("orders@host-7"));
    /// # guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn label(&self) -> Option<&str> {
        self.label.as_deref()
    }

    /// Returns the number of levels that the owner holds.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// let lock = client.lock("orders:42");
    /// let (outer, inner) = (lock.lock().await?, lock.lock().await?);
    /// let holder = lock.holder().await?.expect("the lock is held");
    /// assert_eq!(holder.hold_count(), 2);
    /// # inner.unlock().await?;
    /// # outer.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn hold_count(&self) -> u64 {
        self.hold_count
    }

    /// Returns how long the lock remains held if it is not renewed, or `None` if the hold has no end.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// use std::time::Duration;
    ///
    /// let lock = client.lock("nightly-report").lease(Duration::from_secs(60));
    /// let guard = lock.lock().await?;
    /// let holder = lock.holder().await?.expect("the lock is held");
    /// match holder.remaining_lease() {
    ///     Some(left) => assert!(left <= Duration::from_secs(60)),
    ///     None => println!("{} was not written by this crate", holder.owner()),
    /// }
    /// guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn remaining_lease(&self) -> Option<Duration> {
        self.remaining_lease
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        label::show(self.label(), &self.owner, f)
    }
}
