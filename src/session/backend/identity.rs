//! The login of connections: a fixed one, or the one that the application's credentials supply, renewed before it
//! expires.

use std::future::pending;
use std::io;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::{sleep, timeout};
use tracing::warn;

use super::contact::{ContactStep, refused_login};
use super::dial::Dialer;
use super::resp::{Said, WireRequest};
use crate::clock::BootInstant;
use crate::config::{Login, Provider, Secret, Server};
use crate::error::Error;
use crate::pace::Pace;

/// The pause after the first attempt to log in again that has failed. It doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The login of a connection.
pub(super) struct Identity {
    login: Login,
    /// Whether the application has just supplied it.
    pub(super) is_asked: bool,
    /// When to log in again.
    pub(super) due: Option<BootInstant>,
}

/// A connection that can log in again while it is in use.
pub(super) trait Living: Sync {
    /// Sends the command and returns the reply, or `None` if the connection has ended or is about to.
    fn log_in(&self, auth: WireRequest) -> impl Future<Output = Option<Said>> + Send;
}

impl Identity {
    /// Returns the user and the password, if there is anything to log in with.
    ///
    /// A user without a password logs in with an empty one, since AUTH takes no user alone.
    pub(super) fn words(&self) -> Option<(Option<&str>, &str)> {
        let user = self.login.user.as_deref();
        let password = self.login.password.as_ref().map(Secret::reveal);
        Some((user, password.or_else(|| user.map(|_| ""))?))
    }

    /// Returns the command that logs in, if there is anything to log in with.
    pub(super) fn auth(&self) -> Option<WireRequest> {
        Some(match self.words()? {
            (Some(user), password) => WireRequest::of(&["AUTH", user, password]),
            (None, password) => WireRequest::of(&["AUTH", password]),
        })
    }
}

impl Dialer {
    /// Returns the login for a server. Asks the application if it has set up credentials.
    ///
    /// The application's code may hang, fail or panic. Each counts as a server that is out of reach.
    pub(super) async fn identify(&self, server: &Server) -> Result<Identity, Error> {
        let (login, provider) = (&self.config.login, &self.config.credentials);
        self.identified(server, login, provider.as_ref()).await
    }

    /// Does the same for a sentinel, which has logins of its own.
    pub(super) async fn identify_to_sentinel(&self, server: &Server) -> Result<Identity, Error> {
        let config = &self.config;
        let (login, provider) = (&config.sentinel_login, &config.sentinel_credentials);
        self.identified(server, login, provider.as_ref()).await
    }

    async fn identified(
        &self,
        server: &Server,
        login: &Login,
        provider: Option<&Provider>,
    ) -> Result<Identity, Error> {
        let Some(provider) = provider else {
            return Ok(Identity {
                login: login.clone(),
                is_asked: false,
                due: None,
            });
        };
        let (place, address) = (server.to_string(), self.address(server));
        // Its lifetime counts from before it was made.
        let began = BootInstant::now();
        let asked = AssertUnwindSafe(async { provider.0.ask(&address).await }).catch_unwind();
        let asked = asked.map(|asked| match asked {
            Ok(answered) => answered.map_err(io::Error::other),
            Err(_) => Err(io::Error::other("they panicked")),
        });
        let login = self.step(&place, ContactStep::Identify, asked).await?;
        Ok(Identity {
            is_asked: true,
            due: login.renewed_after.map(|after| began.plus(after)),
            login,
        })
    }

    /// Logs in again on a connection to `place` whenever that is `due`. Never returns.
    ///
    /// A connection whose login cannot be renewed is kept, until the server ends it.
    pub(super) async fn stay_logged_in(
        &self,
        place: &str,
        mut due: Option<BootInstant>,
        on: &impl Living,
    ) -> std::convert::Infallible {
        let (mut pause, told) = (FIRST_PAUSE, Pace::default());
        loop {
            wait_until(due).await;
            let renewed = async {
                let server = self.leads_to().unwrap_or_else(|| self.server.clone());
                let identity = self.identify(&server).await?;
                let auth = identity.auth();
                let send = async { on.log_in(auth?).await };
                match timeout(self.patience, send).await {
                    Ok(Some(Err(text))) => Err(refused_login(place, &text, &identity)),
                    // Without an answer it is not known, and not worse than that.
                    _ => Ok(identity.due),
                }
            };
            due = match renewed.await {
                Ok(due) => {
                    pause = FIRST_PAUSE;
                    // Not at once, even if the new login has expired already.
                    let soonest = BootInstant::now().plus(FIRST_PAUSE);
                    due.map(|due| due.max(soonest))
                }
                Err(error) => {
                    if let Some(untold) = told.tell() {
                        warn!(target: "redlatch", server = %place, %error, untold, "login not renewed");
                    }
                    let again = BootInstant::now().plus(pause);
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    Some(again)
                }
            };
        }
    }
}

/// Waits until `due`, or forever if it is `None`.
async fn wait_until(due: Option<BootInstant>) {
    let Some(due) = due else {
        return pending().await;
    };
    loop {
        let left = BootInstant::now().until(due);
        if left.is_zero() {
            return;
        }
        // The timer stops while the machine is suspended, but the lifetime of a login does not.
        sleep(left.min(LONGEST_PAUSE)).await;
    }
}
