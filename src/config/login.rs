//! The user and the password that a client logs in with, to servers and to sentinels.

use std::time::Duration;

use super::Config;
use super::secret::Secret;

/// A user and a password, and for how long they are valid. Returned by [`Credentials`](crate::config::Credentials).
///
/// `Debug` does not show the password.
#[must_use = "this logs nobody in by itself, return it from `Credentials`"]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Login {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<Secret>,
    /// After which time to ask for the next one.
    pub(crate) renewed_after: Option<Duration>,
}

impl Login {
    pub(crate) fn is_given(&self) -> bool {
        self.user.is_some() || self.password.is_some()
    }
}

setters! { Config:
    /// Sets the user of the server's ACL to log in as, the default user if none is set.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let port = url.rsplit_once(':').unwrap().1.parse::<u16>().unwrap();
    /// # let rights = ["ACL", "SETUSER", "locker", "on", ">s3cret", "~lock:*", "&*", "+@all"];
    /// # redlatch_testkit::Connection::open(port).command(&rights);
    /// use redlatch::{Client, Config, ErrorKind};
    ///
    /// // ACL SETUSER locker on >s3cret ~lock:* &* +@all
    /// let config = Config::server("127.0.0.1", port).user("locker").password("s3cret");
    /// let client = Client::builder().config(config).build().await?;
    /// let error = client.lock("orders:42").try_lock().await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Backend); // a key that this user may not write
    /// # client.close().await;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    user(user: impl Into<String>) => login.user = Some(user.into());

    /// Sets the password to log in with.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let port = url.rsplit_once(':').unwrap().1.parse::<u16>().unwrap();
    /// # let set = ["CONFIG", "SET", "requirepass", "s3/cret#1"];
    /// # redlatch_testkit::Connection::open(port).command(&set);
    /// use redlatch::{Client, Config, ErrorKind};
    ///
    /// let config = Config::server("127.0.0.1", port);
    /// let error = Client::builder().config(config.clone()).build().await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Backend); // the server requires a password
    ///
    /// let config = config.password("s3/cret#1"); // as it is, not escaped as in a URL
    /// assert!(!format!("{config:?}").contains("s3/cret#1"));
    /// let client = Client::builder().config(config).build().await?;
    /// # client.close().await;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    password(password: impl Into<String>) => login.password = Some(Secret::new(password));

    /// Sets the user to log in to the sentinels as.
    ///
    /// # Examples
    ///
    /// ```
    /// use redlatch::Config;
    ///
    /// let config = Config::sentinels("main", [("10.0.0.1", 26379)])
    ///     .user("locker") // of the primary
    ///     .password("s3cret")
    ///     .sentinel_user("watcher") // of the sentinels
    ///     .sentinel_password("w4tch");
    ///
    /// let url = "redis-sentinel://locker:s3cret@10.0.0.1?sentinelServiceName=main\
    ///            &sentinelUsername=watcher&sentinelPassword=w4tch";
    /// assert_eq!(config, Config::from_url(url)?);
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    sentinel_user(user: impl Into<String>) => sentinel_login.user = Some(user.into());

    /// Sets the password to log in to the sentinels with.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn f() -> Result<(), Box<dyn std::error::Error>> {
    /// use redlatch::{Client, Config};
    ///
    /// // Two secrets: `password` is never sent to a sentinel.
    /// let primary = std::env::var("REDIS_PASSWORD")?;
    /// let sentinel = std::env::var("SENTINEL_PASSWORD")?;
    /// let config = Config::sentinels("main", [("10.0.0.1", 26379), ("10.0.0.2", 26379)])
    ///     .password(primary)
    ///     .sentinel_password(sentinel);
    /// let client = Client::builder().config(config).build().await?;
    /// # Ok(()) }
    /// ```
    sentinel_password(password: impl Into<String>) => sentinel_login.password = Some(Secret::new(password));
}
