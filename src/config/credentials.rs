//! Users and passwords that change while a client lives.

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

use super::Given;
use crate::config::{Address, Config, Login, Secret};

/// Returns the user and password to log in with, each time that a client connects. Passed to [`Config::credentials`].
///
/// For passwords that rotate, and for tokens that are valid for minutes, as the clouds give them out: IAM on AWS, Entra
/// on Azure. A fixed user and password are set by [`Config::user`] and [`Config::password`].
///
/// The client asks before it makes each connection. If the login says [for how long](Login::valid_for) it is valid, the
/// client asks again when four fifths of that time are over, and logs in once more on its open connections. Calls,
/// locks and waiters do not notice. A client has one or two connections to each server, and asks for each of them, so
/// cache a login that is expensive to get.
///
/// An async closure that returns a [`Login`] implements it. If the closure captures something, write it as a closure
/// that returns a future, as below.
///
/// # Errors
///
/// Any error. While there is no connection, calls return it as the reason, so its text must not contain a secret. The
/// client treats it as a server that cannot be reached, and tries again. If there is a connection, the client keeps it,
/// and asks again after one second, two, four, and so on, up to half a minute. [`tracing`](mod@crate::tracing)
/// describes the event that it logs.
///
/// An answer that does not come within [`connect_timeout`](Config::connect_timeout) is an error, and so is a panic.
///
/// # Cancel safety
///
/// The client drops the future when its time is over, and when the client closes.
///
/// # Examples
///
/// ```
/// # redlatch_testkit::doc(async |url| {
/// # let port = url.rsplit_once(':').unwrap().1.parse::<u16>().unwrap();
/// # let rights = ["ACL", "SETUSER", "locker", "on", ">s3cret", "~*", "&*", "+@all"];
/// # redlatch_testkit::Connection::open(port).command(&rights);
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("password");
/// # std::fs::write(&path, "s3cret\n").unwrap();
/// use redlatch::config::Login;
/// use redlatch::{Client, Config};
///
/// // A file that is replaced when the password rotates, as a secret that Kubernetes mounts.
/// let credentials = move || {
///     let path = path.clone();
///     async move {
///         let password = tokio::fs::read_to_string(path).await?;
///         Ok::<_, std::io::Error>(Login::new("locker", password.trim()))
///     }
/// };
/// let config = Config::server("127.0.0.1", port).credentials(credentials);
/// let client = Client::builder().config(config).build().await?;
/// let guard = client.lock("orders:42").lock().await?;
/// guard.unlock().await?;
/// # client.close().await;
/// # Ok::<(), redlatch::Error>(()) });
/// ```
pub trait Credentials: Send + Sync + 'static {
    /// Returns the user and password to log in with now.
    fn login(&self) -> impl Future<Output = Result<Login, Box<dyn StdError + Send + Sync>>> + Send;
}

impl<F, R, E> Credentials for F
where
    F: Fn() -> R + Send + Sync + 'static,
    R: Future<Output = Result<Login, E>> + Send,
    E: Into<Box<dyn StdError + Send + Sync>>,
{
    async fn login(&self) -> Result<Login, Box<dyn StdError + Send + Sync>> {
        self().await.map_err(E::into)
    }
}

/// What comes of asking for a login.
pub(crate) type Asked<'a> = BoxFuture<'a, Result<Login, Box<dyn StdError + Send + Sync>>>;

/// [`Credentials`] of any type, which may be told the server.
pub(crate) trait Ask: Send + Sync {
    fn ask<'a>(&'a self, address: &'a Address) -> Asked<'a>;
}

impl<C: Credentials> Ask for C {
    fn ask<'a>(&'a self, _: &'a Address) -> Asked<'a> {
        Box::pin(self.login())
    }
}

/// Where logins come from.
pub(crate) type Provider = Given<dyn Ask>;

impl Login {
    /// Creates the login of this user of the server's ACL.
    pub fn new(user: impl Into<String>, password: impl Into<String>) -> Self {
        Self {
            user: Some(user.into()),
            ..Self::password(password)
        }
    }

    /// Creates the login of the default user.
    pub fn password(password: impl Into<String>) -> Self {
        Self {
            password: Some(Secret::new(password)),
            ..Self::default()
        }
    }

    /// Sets for how long the login is valid, counted from when the client asked for it. Without this time, the client
    /// asks only when it connects.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use redlatch::config::Login;
    /// use redlatch::Config;
    ///
    /// # async fn token() -> Result<(String, Duration), std::io::Error> { Ok((String::new(), Duration::ZERO)) }
    /// // A token of the cloud, with the time that is left of it. The client logs in again before it is over.
    /// let config = Config::server("locks.example.com", 6379).credentials(async || {
    ///     let (token, left) = token().await?;
    ///     Ok::<_, std::io::Error>(Login::new("locker", token).valid_for(left))
    /// });
    /// # drop(config);
    /// ```
    pub fn valid_for(mut self, time: Duration) -> Self {
        self.renewed_after = Some(time / 5 * 4);
        self
    }
}

setters! { Config:
    /// Asks for the user and the password each time that the client connects, and before they expire. Replaces
    /// [`user`](Self::user) and [`password`](Self::password). [`Credentials`] has an example.
    credentials(credentials: impl Credentials) => credentials = Some(Given(Arc::new(credentials)));

    /// Asks for the user and the password of the sentinels. Replaces [`sentinel_user`](Self::sentinel_user) and
    /// [`sentinel_password`](Self::sentinel_password).
    ///
    /// The client asks when it connects to a sentinel.
    ///
    /// # Examples
    ///
    /// ```
    /// use redlatch::config::Login;
    /// use redlatch::Config;
    ///
    /// # async fn secret(_: &str) -> Result<String, std::io::Error> { Ok(String::new()) }
    /// // Two secrets: that of the servers is never sent to a sentinel.
    /// let config = Config::sentinels("main", [("10.0.0.1", 26379), ("10.0.0.2", 26379)])
    ///     .credentials(async || secret("redis").await.map(Login::password))
    ///     .sentinel_credentials(async || secret("sentinel").await.map(Login::password));
    /// # drop(config);
    /// ```
    sentinel_credentials(credentials: impl Credentials) => sentinel_credentials = Some(Given(Arc::new(credentials)));
}
