//! One connection of fred's, for messages: made when it is first used, and kept; and the words of servers.

use std::sync::OnceLock;
use std::time::Duration;

use fred::clients::Client;
use fred::interfaces::{ClientLike, Resp3Frame};
use fred::types::config::Options;
use fred::types::{ClusterHash, CustomCommand, Value};
use tokio::runtime::Handle;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::warn;

use super::contact::refused;
use crate::config::Server;
use crate::error::{Error, quote};

/// How a connection ended.
pub(super) type Connected = Result<(), fred::error::Error>;

/// One connection, made when it is first used.
pub(super) struct Wire {
    client: Client,
    /// Where it leads, as far as it is configured.
    server: Server,
    /// Where it lives: whoever uses it first may be elsewhere.
    runtime: Handle,
    closing: CancellationToken,
    kept: OnceLock<AbortOnDropHandle<()>>,
}

impl Wire {
    pub(super) fn new(client: Client, server: &Server, closing: &CancellationToken) -> Self {
        Self {
            client,
            server: server.clone(),
            runtime: Handle::current(),
            closing: closing.clone(),
            kept: OnceLock::new(),
        }
    }

    /// Connects now, and tells if that fails; if it was used before it keeps connecting by itself.
    pub(super) async fn connect(&self) -> Result<(), Error> {
        if self.kept.get().is_some() {
            return Ok(());
        }
        let connection = connected(&self.client).await.map_err(|error| {
            let error = cause(error);
            let place = format!("{} for messages", self.server);
            refused(&place, error.details()).caused_by(error)
        })?;
        self.keep(Some(connection));
        Ok(())
    }

    /// The client. What it is given before it is connected waits for that.
    pub(super) fn client(&self) -> &Client {
        self.keep(None);
        &self.client
    }

    pub(super) async fn quit(&self) {
        if let Some(kept) = self.kept.get() {
            self.client.quit().await.ok();
            kept.abort();
        }
    }

    fn keep(&self, connection: Option<AbortOnDropHandle<Connected>>) {
        self.kept.get_or_init(|| {
            let (client, closing) = (self.client.clone(), self.closing.clone());
            AbortOnDropHandle::new(self.runtime.spawn(supervise(client, closing, connection)))
        });
    }
}

/// Keeps a client connected.
///
/// fred reconnects by itself, but its task ends for good on some errors, of the configuration for example, which a
/// server that is being set up may well give for a while.
async fn supervise(
    client: Client,
    closing: CancellationToken,
    connection: Option<AbortOnDropHandle<Connected>>,
) {
    let mut connection = connection.unwrap_or_else(|| AbortOnDropHandle::new(client.connect()));
    loop {
        let ended = connection.await;
        if closing.is_cancelled() {
            return;
        }
        warn!(?ended, "the connection task ended; starting it again");
        sleep(Duration::from_millis(200 + fastrand::u64(..200))).await;
        connection = AbortOnDropHandle::new(client.connect());
    }
}

/// Connects a client.
pub(super) async fn connected(
    client: &Client,
) -> Result<AbortOnDropHandle<Connected>, fred::error::Error> {
    let mut connection = None;
    let connected = tokio::select! {
        // First: fred looks at its state and then listens for a change, so a connection that is made between the
        // two would be waited for without end. Before `connect` none can be made.
        biased;
        connected = client.wait_for_connect() => connected,
        ended = async { connection.insert(AbortOnDropHandle::new(client.connect())).await } => match ended {
            Ok(Err(error)) => Err(error),
            _ => Err(fred::error::Error::new_canceled()),
        },
    };
    connected.and_then(|()| connection.ok_or_else(fred::error::Error::new_canceled))
}

pub(super) async fn send_once(
    client: &Client,
    command: &'static str,
    words: Vec<Value>,
    budget: Duration,
) -> Result<Resp3Frame, fred::error::Error> {
    let command = CustomCommand::new_static(command, ClusterHash::FirstKey, false);
    let client = client.with_options(&once(budget));
    // fred's future has 7 KB, and every future around it would have them too, and be moved with them.
    Box::pin(client.custom_raw(command, words)).await
}

/// fred takes a time-out of zero for none.
pub(super) fn once(budget: Duration) -> Options {
    let budget = budget.max(Duration::from_millis(1));
    Options {
        max_attempts: Some(1),
        timeout: Some(budget),
        ..Options::default()
    }
}

/// The word that a server's error begins with. Before Redis 7 an error inside a script is wrapped in another.
pub(super) fn code(text: &str) -> &str {
    let inner = if text.starts_with("ERR Error running script") {
        let last = text.rsplit("@user_script:").next().unwrap_or(text);
        last.trim_start_matches(|c: char| c.is_ascii_digit() || ": -".contains(c))
    } else {
        text
    };
    inner.split(' ').next().unwrap_or(inner)
}

/// What a server says to a user that may run no scripts, or if it has none.
pub(super) fn forbids_scripts(text: &str) -> bool {
    match code(text) {
        "NOPERM" => text.contains("run the 'eval"),
        _ => text.starts_with("ERR unknown command"),
    }
}

/// The words in which the server refused.
pub(super) fn refusal(frame: &Resp3Frame) -> Option<String> {
    match frame {
        Resp3Frame::SimpleError { data, .. } => Some(quote(format_args!("{data}"))),
        Resp3Frame::BlobError { data, .. } => {
            let text = String::from_utf8_lossy(data);
            Some(quote(format_args!("{text}")))
        }
        _ => None,
    }
}

/// An error of fred's, with as much of what the server said as an error shows.
pub(super) fn cause(error: fred::error::Error) -> fred::error::Error {
    let text = quote(format_args!("{}", error.details()));
    match text == error.details() {
        true => error,
        false => fred::error::Error::new(error.kind().clone(), text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_of_an_error_is_found_in_every_version_of_the_server() {
        for (text, expected) in [
            (
                "OOM command not allowed when used memory > 'maxmemory'. script: abc, on @user_script:7.",
                "OOM",
            ),
            (
                "WRONGTYPE Operation against a key holding the wrong kind of value",
                "WRONGTYPE",
            ),
            (
                "ERR Error running script (call to f_1): @user_script:21: @user_script: 21: -OOM command not allowed",
                "OOM",
            ),
            (
                "ERR Error running script (call to f_1): @user_script:21: WRONGTYPE Operation against a key",
                "WRONGTYPE",
            ),
            ("ERR unknown command", "ERR"),
            ("", ""),
        ] {
            assert_eq!(code(text), expected, "{text}");
        }
    }
}
