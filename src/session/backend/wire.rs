//! One connection of fred's: made when it is first used, and kept; and the words that travel on it.

use std::sync::OnceLock;
use std::time::Duration;

use fred::bytes::Bytes;
use fred::clients::Client;
use fred::interfaces::{ClientLike, Resp3Frame};
use fred::types::config::Options;
use fred::types::{ClusterHash, CustomCommand, Value};
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::warn;

use crate::error::{Error, ErrorKind, quote};
use crate::protocol::reply::Reply;
use crate::protocol::script::{Arg, Call};

/// How many lists may lie one in another: no script answers more than three, `CLUSTER SLOTS` four.
const DEEPEST: usize = 8;

/// How a connection ended.
pub(super) type Connected = Result<(), fred::error::Error>;

/// One connection, made when it is first used.
pub(super) struct Wire {
    client: Client,
    /// Where it lives: whoever uses it first may be elsewhere.
    runtime: Handle,
    closing: CancellationToken,
    kept: OnceLock<AbortOnDropHandle<()>>,
}

impl Wire {
    pub(super) fn new(client: Client, closing: &CancellationToken) -> Self {
        Self {
            client,
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
            let text = format!("cannot connect: {}", error.details());
            Error::new(ErrorKind::Backend, text).caused_by(error)
        })?;
        self.keep(Some(connection));
        Ok(())
    }

    /// The client. What it is given before it is connected waits for that.
    pub(super) fn client(&self) -> &Client {
        self.keep(None);
        &self.client
    }

    /// The client, as it is.
    pub(super) fn idle_client(&self) -> &Client {
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

/// Sends a command that a server runs for a slot that is just being moved to it. Both go in one piece: what comes
/// between them on the connection would have the permission in the command's place.
pub(super) async fn send_asking(
    client: &Client,
    command: &'static str,
    words: Vec<Value>,
    budget: Duration,
) -> Result<Said, fred::error::Error> {
    let pipeline = client.pipeline();
    for (command, words) in [("ASKING", Vec::new()), (command, words)] {
        let command = CustomCommand::new_static(command, ClusterHash::FirstKey, false);
        // Queued, and answered at once.
        pipeline.custom_raw(command, words).await?;
    }
    let answers = timeout(budget, Box::pin(pipeline.try_all::<Value>()));
    let mut answers = answers.await.unwrap_or_else(|_| vec![Err(timed_out())]);
    match (answers.pop(), answers.pop()) {
        (Some(Ok(value)), Some(_)) => Ok(Ok(reply_of(&value))),
        (Some(Err(refusal)), Some(_)) => Ok(Err(cause(refusal).details().to_owned())),
        (Some(Err(error)), None) => Err(error),
        _ => Err(fred::error::Error::new_canceled()),
    }
}

/// What a server said: an answer, or in which words it refused.
pub(super) type Said = Result<Reply, String>;

pub(super) fn said(frame: &Resp3Frame) -> Said {
    match refusal(frame) {
        Some(text) => Err(text),
        None => Ok(reply(frame)),
    }
}

/// The keys and arguments of a call. Their text is slices of one buffer, since an allocation for each would cost more
/// than the copying.
pub(super) fn arguments<'a>(
    call: &'a Call<'_>,
    publish: &'static str,
) -> impl Iterator<Item = Value> + use<'a> {
    let words = || {
        let keys = call.keys.iter().map(|key| Arg::Text(key));
        keys.chain(call.args.iter().copied())
    };
    let texts = || {
        words().filter_map(|word| match word {
            Arg::Text(text) => Some(text),
            Arg::Number(_) | Arg::Publish => None,
        })
    };
    let mut buffer = String::with_capacity(texts().map(str::len).sum());
    buffer.extend(texts());
    let mut rest = Bytes::from(buffer);
    words().map(move |word| match word {
        Arg::Text(text) => Value::Bytes(rest.split_to(text.len())),
        Arg::Number(number) => Value::from(number),
        Arg::Publish => Value::from_static_str(publish),
    })
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

pub(super) fn timed_out() -> fred::error::Error {
    fred::error::Error::new(fred::error::ErrorKind::Timeout, "Request timed out.")
}

pub(super) fn reply(frame: &Resp3Frame) -> Reply {
    shallow(frame, DEEPEST)
}

/// What lies deeper than any answer of ours is left out.
fn shallow(frame: &Resp3Frame, levels: usize) -> Reply {
    match frame {
        Resp3Frame::Number { data, .. } => Reply::Integer(*data),
        Resp3Frame::SimpleString { data, .. }
        | Resp3Frame::BlobString { data, .. }
        | Resp3Frame::VerbatimString { data, .. } => {
            Reply::Text(String::from_utf8_lossy(data).into_owned())
        }
        Resp3Frame::Array { data, .. } if levels > 0 => {
            Reply::List(data.iter().map(|item| shallow(item, levels - 1)).collect())
        }
        _ => refusal(frame).map_or(Reply::Nil, Reply::Refusal),
    }
}

fn reply_of(value: &Value) -> Reply {
    match value {
        Value::Integer(number) => Reply::Integer(*number),
        Value::String(text) => Reply::Text(text.to_string()),
        Value::Bytes(bytes) => Reply::Text(String::from_utf8_lossy(bytes).into_owned()),
        Value::Array(values) => Reply::List(values.iter().map(reply_of).collect()),
        _ => Reply::Nil,
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
