//! The only module that knows fred: connects, runs a script call, yields messages.
//!
//! Each server that we talk to has one client for commands and one for messages, so that neither waits for the
//! other. fred sends every command once: it would replay a script after a reconnect, and only we know which calls
//! may be repeated. (All of ours may: see `lua/`. So [`Backend::run`] repeats them itself, within its budget.)
//!
//! Commands go through `with_options(..).custom_raw(..)`: fred's `evalsha` ignores the options, and with them the
//! time-out.

pub(crate) mod address;
mod transaction;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fred::bytes::Bytes;
use fred::clients::Client;
use fred::interfaces::{ClientLike, EventInterface, PubsubInterface, Resp3Frame};
pub(crate) use fred::types::config::Config;
use fred::types::config::{
    ConnectionConfig, Options, PerformanceConfig, ReconnectPolicy, Server, TcpConfig,
};
use fred::types::{ClusterHash, CustomCommand, Message, Value};
use tokio::sync::{Notify, broadcast};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, info, warn};

use crate::clock::Moment;
use crate::error::{Error, ErrorKind};
use crate::options::ReleaseBy;
use crate::protocol::reply::Reply;
use crate::protocol::script::{Arg, Call, Steps, Unscripted};

use transaction::Transactions;

/// Messages that may be waiting before some are dropped, which wakes everybody.
const MESSAGE_BACKLOG: usize = 4096;
/// Between two sends of one call whose connection was cut.
const RESEND_PAUSE: Duration = Duration::from_millis(5);
/// How long a goodbye to the server may take.
const GOODBYE: Duration = Duration::from_millis(500);

/// The connections to one server.
pub(crate) struct Backend {
    commands: Client,
    listener: Client,
    transactions: Transactions,
    /// The server has said that this user may run no scripts. It may change its mind, and then nothing is lost but a
    /// round trip. Relaxed: nothing else hangs on it.
    scriptless: AtomicBool,
    health: Health,
    server: Mutex<Option<Known>>,
    tasks: Mutex<Vec<AbortOnDropHandle<()>>>,
}

/// The answer to a call.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) reply: Reply,
    /// Before the request that was answered was sent.
    pub(crate) sent: Moment,
    /// An earlier send of this call went unanswered: it may have run too.
    pub(crate) repeated: bool,
}

/// Which server the commands go to, as it has said.
struct Known {
    run_id: Arc<str>,
    /// Has something to tell once the connection is another.
    reconnects: broadcast::Receiver<Server>,
}

/// How the server has been answering.
#[derive(Debug, Default)]
struct Health {
    silence: Mutex<Option<Silence>>,
    /// Asks for a new connection, when the present one has gone silent or leads to a replica.
    sick: Notify,
}

/// A time in which every request went unanswered.
#[derive(Debug)]
struct Silence {
    since: Moment,
    /// How the last one failed.
    error: Error,
}

/// One attempt that brought no answer.
enum Miss {
    /// The server does not know the script by its hash; it did not run.
    UnknownScript,
    /// The connection broke; whether the command ran is unknown.
    Cut(fred::error::Error),
    TimedOut(fred::error::Error),
    /// The connection broke before anything could be changed.
    Unsent(fred::error::Error),
    /// No scripts may be run; this one did not.
    Scriptless,
    Refused(Error),
}

/// A command, or a sequence of them, that came to no end.
enum Fault {
    /// Nothing was changed.
    Unsent(fred::error::Error),
    /// Whether anything was changed is unknown.
    Cut(fred::error::Error),
    /// By the server, in these words.
    Refused(String),
}

/// How a connection ended.
type Connected = Result<(), fred::error::Error>;

impl Backend {
    /// Connects to the server that `config` names.
    pub(crate) async fn connect(
        mut config: Config,
        command_timeout: Duration,
        closing: &CancellationToken,
    ) -> Result<Self, Error> {
        if config.server.is_clustered() {
            return Err(Error::invalid(
                "a Redis cluster is not supported yet; give the address of a single server or of sentinels",
            ));
        }
        config.fail_fast = true;
        let handshake = command_timeout.clamp(Duration::from_millis(500), Duration::from_secs(10));
        let client = move |policy: Option<ReconnectPolicy>| {
            // A command of a transaction has no time-out of its own.
            let default_command_timeout = match policy {
                Some(_) => command_timeout,
                None => Duration::ZERO,
            };
            let connection = ConnectionConfig {
                connection_timeout: handshake * 2,
                internal_command_timeout: handshake,
                max_command_attempts: 1,
                tcp: TcpConfig {
                    nodelay: Some(true),
                    ..TcpConfig::default()
                },
                ..ConnectionConfig::default()
            };
            let performance = PerformanceConfig {
                default_command_timeout,
                broadcast_channel_capacity: MESSAGE_BACKLOG,
                ..PerformanceConfig::default()
            };
            Client::new(config.clone(), Some(performance), Some(connection), policy)
        };
        let mut policy = ReconnectPolicy::new_exponential(0, 50, 1_000, 2);
        policy.set_jitter(50);
        let (commands, listener) = (client(Some(policy.clone())), client(Some(policy)));
        let connections = [
            keep_connected(&commands, closing).await?,
            keep_connected(&listener, closing).await?,
        ];
        Ok(Self {
            commands,
            listener,
            transactions: Transactions::new(move || client(None)),
            scriptless: AtomicBool::new(false),
            health: Health::default(),
            server: Mutex::default(),
            tasks: Mutex::new(connections.into()),
        })
    }

    /// Runs a script and waits for its answer, at most for `budget`. A call that was cut off is sent again within
    /// that time.
    ///
    /// If the future is dropped, the call may still run.
    pub(crate) async fn run(&self, call: &Call<'_>, budget: Duration) -> Result<Answer, Error> {
        let started = Moment::now();
        let end = started.plus(budget);
        let (mut whole, mut repeated) = (false, false);
        let mut sent = started;
        loop {
            let left = sent.until(end);
            let answered = match self.steps(call) {
                Some(steps) => Box::pin(self.step(call, steps, left)).await,
                None => self.send(call, whole, left).await,
            };
            let miss = match answered {
                Ok(reply) => {
                    *self.health.lock() = None;
                    return Ok(Answer {
                        reply,
                        sent,
                        repeated,
                    });
                }
                Err(miss) => miss,
            };
            match miss {
                Miss::UnknownScript => whole = true,
                Miss::Scriptless => {}
                Miss::Refused(error) => {
                    *self.health.lock() = None;
                    return Err(error);
                }
                Miss::Cut(_) | Miss::Unsent(_) if Moment::now().plus(RESEND_PAUSE) < end => {
                    repeated |= matches!(miss, Miss::Cut(_));
                    sleep(RESEND_PAUSE).await;
                }
                Miss::Cut(error) | Miss::Unsent(error) | Miss::TimedOut(error) => {
                    return Err(self.missed(started, budget, error));
                }
            }
            sent = Moment::now();
        }
    }

    async fn send(&self, call: &Call<'_>, whole: bool, left: Duration) -> Result<Reply, Miss> {
        let (command, script) = if whole {
            ("EVAL", call.script.source)
        } else {
            ("EVALSHA", call.script.hash())
        };
        let mut words: Vec<Value> = Vec::with_capacity(2 + call.keys.len() + call.args.len());
        words.push(Value::from_static_str(script));
        words.push((call.keys.len() as i64).into());
        words.extend(arguments(call));
        let frame = send_once(&self.commands, command, words, left)
            .await
            .map_err(|error| self.missed_by(call, Fault::Cut(error)))?;
        match refusal(&frame) {
            Some(text) if forbids_scripts(&text) => Err(self.without_scripts(call, &text)),
            Some(text) => Err(self.refused(call, &text)),
            None => Ok(reply(&frame)),
        }
    }

    /// The steps to take in place of the script.
    fn steps(&self, call: &Call<'_>) -> Option<Steps> {
        match call.unscripted {
            Unscripted::Steps(steps, ReleaseBy::Transaction) => Some(steps),
            Unscripted::Steps(steps, ReleaseBy::Auto)
                if self.scriptless.load(Ordering::Relaxed) =>
            {
                Some(steps)
            }
            _ => None,
        }
    }

    /// Does by commands what a script does. A transaction is run only if there is something to compare and change:
    /// a free lock is taken by one command, and to look changes nothing.
    async fn step(&self, call: &Call<'_>, steps: Steps, left: Duration) -> Result<Reply, Miss> {
        let stepping = async {
            let end = Moment::now().plus(left);
            if steps == Steps::Acquire {
                let taken = self.ask(vec![transaction::take(call)], left).await;
                let taken = taken.map_err(Fault::Cut)?;
                transaction::refusals(&taken)?;
                if !matches!(taken[..], [Resp3Frame::Null]) {
                    return Ok(steps.granted());
                }
            }
            if steps == Steps::Acquire || steps.only_asks() {
                let left = Moment::now().until(end);
                let looked = self.ask(transaction::look(call).collect(), left).await;
                let looked = looked.map_err(Fault::Unsent)?;
                let (changes, answer) = transaction::decide(call, steps, &looked)?;
                if changes.is_empty() {
                    return Ok(answer);
                }
            }
            let left = Moment::now().until(end);
            let done = self.transactions.run(call, steps, left).await?;
            if steps != Steps::Release || done == steps.released() {
                return Ok(done);
            }
            // What was to be undone went over the other connection, and is perhaps still on its way there.
            let left = Moment::now().until(end);
            let looked = self.ask(transaction::look(call).collect(), left).await;
            let looked = looked.map_err(Fault::Unsent)?;
            let (changes, answer) = transaction::decide(call, steps, &looked)?;
            if changes.is_empty() {
                return Ok(answer);
            }
            let left = Moment::now().until(end);
            self.transactions.run(call, steps, left).await
        };
        stepping.await.map_err(|fault| self.missed_by(call, fault))
    }

    async fn ask(
        &self,
        commands: Vec<transaction::Command>,
        left: Duration,
    ) -> Result<Vec<Resp3Frame>, fred::error::Error> {
        let request = |(command, words)| -> transaction::Request<'_> {
            Box::pin(send_once(&self.commands, command, words, left))
        };
        transaction::all(commands.into_iter().map(request).collect()).await
    }

    fn missed_by(&self, call: &Call<'_>, fault: Fault) -> Miss {
        let timed_out =
            |error: &fred::error::Error| *error.kind() == fred::error::ErrorKind::Timeout;
        match fault {
            Fault::Refused(text) => self.refused(call, &text),
            Fault::Cut(error) | Fault::Unsent(error) if timed_out(&error) => Miss::TimedOut(error),
            Fault::Cut(error) => Miss::Cut(error),
            Fault::Unsent(error) => Miss::Unsent(error),
        }
    }

    fn without_scripts(&self, call: &Call<'_>, text: &str) -> Miss {
        let message = match call.unscripted {
            Unscripted::Steps(_, ReleaseBy::Auto) => {
                if !self.scriptless.swap(true, Ordering::Relaxed) {
                    info!(%text, "no scripts are allowed: plain locks go by transactions");
                }
                return Miss::Scriptless;
            }
            Unscripted::Steps(..) => format!(
                "this plain lock goes by script only, and the server lets this user run none; it can go by \
                 transaction: {text}"
            ),
            Unscripted::Refused(lock) => format!(
                "{lock} needs scripts, and the server lets this user run none; plain_lock does without: {text}"
            ),
        };
        Miss::Refused(Error::new(ErrorKind::Backend, message))
    }

    fn refused(&self, call: &Call<'_>, text: &str) -> Miss {
        let code = code(text);
        if code == "NOSCRIPT" {
            return Miss::UnknownScript;
        }
        if code == "WRONGTYPE" {
            return Miss::Refused(Error::wrong_kind(
                call.keys.first().copied().unwrap_or_default(),
            ));
        }
        let error = Error::new(ErrorKind::Backend, format!("the server refused: {text}"));
        Miss::Refused(match code {
            // This was the primary once: ask where it is now.
            "READONLY" => {
                self.health.sick.notify_one();
                error.passing()
            }
            "LOADING" | "BUSY" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN" => error.passing(),
            _ => error,
        })
    }

    fn missed(&self, started: Moment, budget: Duration, source: fred::error::Error) -> Error {
        let since = self
            .health
            .lock()
            .as_ref()
            .map_or(started, |silence| silence.since);
        let error = if self.commands.is_connected() {
            if since.until(Moment::now()) >= self.commands.perf_config().default_command_timeout {
                self.health.sick.notify_one();
            }
            let message = format!(
                "the server did not answer within {budget:?}; whether the request ran is unknown"
            );
            Error::new(ErrorKind::Timeout, message)
        } else {
            Error::new(
                ErrorKind::Backend,
                format!("the server could not be reached within {budget:?}"),
            )
        };
        let error = error.unanswered().caused_by(source);
        *self.health.lock() = Some(Silence {
            since,
            error: error.clone(),
        });
        error
    }

    /// The run id of the server. Asked for once a connection.
    pub(crate) async fn server(&self, budget: Duration) -> Result<Arc<str>, Error> {
        let known = || self.server.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = &*known()
            && known.reconnects.is_empty()
        {
            return Ok(known.run_id.clone());
        }
        let started = Moment::now();
        let reconnects = self.commands.reconnect_rx();
        let answered = send_once(&self.commands, "INFO", vec!["server".into()], budget).await;
        let frame = answered.map_err(|error| self.missed(started, budget, error))?;
        if let Some(text) = refusal(&frame) {
            let message = format!("the server does not tell which one it is: {text}");
            return Err(Error::new(ErrorKind::Backend, message));
        }
        let answer = reply(&frame);
        let run_id: Arc<str> = answer
            .info("run_id")
            .ok_or_else(|| answer.unexpected())?
            .into();
        *known() = Some(Known {
            run_id: run_id.clone(),
            reconnects,
        });
        Ok(run_id)
    }

    /// Whether keys of different slots lie on different servers.
    pub(crate) fn is_clustered(&self) -> bool {
        self.commands.client_config().server.is_clustered()
    }

    /// Since when every request went unanswered, and how the last one failed; none if the last was answered.
    pub(crate) fn silence(&self) -> Option<(Moment, Error)> {
        self.health
            .lock()
            .as_ref()
            .map(|silence| (silence.since, silence.error.clone()))
    }

    /// Opens a new connection whenever the present one turns out to be silent: to fred, a peer that is gone
    /// without a word looks alive for as long as requests are written to it.
    pub(crate) async fn mend(&self) {
        let patience = self.commands.connection_config().connection_timeout * 2;
        loop {
            self.health.sick.notified().await;
            info!("reconnecting: the server is silent, or is no primary any more");
            // It may hang for as long as the server does; a later sign of sickness asks again.
            match timeout(patience, self.commands.force_reconnection()).await {
                Ok(Ok(())) => {
                    // Signs that came meanwhile were of the old connection.
                    std::pin::pin!(self.health.sick.notified())
                        .as_mut()
                        .enable();
                }
                Ok(Err(error)) => debug!(%error, "could not reconnect"),
                Err(_) => debug!("still reconnecting"),
            }
        }
    }

    /// Subscribes to a channel. Done when a later [`ping`](Self::ping) is answered, and not when this returns.
    pub(crate) async fn subscribe(&self, channel: &str, budget: Duration) -> Result<(), Error> {
        let subscribed = self
            .listener
            .with_options(&once(budget))
            .subscribe(channel)
            .await;
        subscribed.map_err(|error| self.unheard(budget, error))
    }

    pub(crate) async fn unsubscribe(&self, channel: &str, budget: Duration) -> Result<(), Error> {
        let unsubscribed = self
            .listener
            .with_options(&once(budget))
            .unsubscribe(channel)
            .await;
        unsubscribed.map_err(|error| self.unheard(budget, error))
    }

    /// Proves that the connection for messages is alive, and that what was sent on it before has been done.
    pub(crate) async fn ping(&self, budget: Duration) -> Result<(), Error> {
        match send_once(&self.listener, "PING", Vec::new(), budget).await {
            Ok(_) => Ok(()),
            Err(error) => Err(self.unheard(budget, error)),
        }
    }

    fn unheard(&self, budget: Duration, source: fred::error::Error) -> Error {
        let message = format!("the connection for messages gave no answer within {budget:?}");
        Error::new(ErrorKind::Backend, message)
            .passing()
            .caused_by(source)
    }

    /// Opens a new connection for messages, if that can be done within the budget.
    pub(crate) async fn relisten(&self, budget: Duration) {
        if timeout(budget, self.listener.force_reconnection())
            .await
            .is_err()
        {
            debug!("still reconnecting for messages");
        }
    }

    /// The messages of all subscribed channels from now on.
    pub(crate) fn messages(&self) -> Messages {
        Messages {
            messages: self.listener.message_rx(),
            reconnects: self.listener.reconnect_rx(),
        }
    }

    /// Every reconnect of the connection for commands from now on.
    pub(crate) fn reconnects(&self) -> Reconnects {
        Reconnects(self.commands.reconnect_rx())
    }

    /// Says goodbye and closes both connections.
    pub(crate) async fn quit(&self) {
        let goodbyes = async {
            tokio::join!(
                self.commands.quit(),
                self.listener.quit(),
                self.transactions.close()
            )
        };
        if timeout(GOODBYE, goodbyes).await.is_err() {
            debug!("closed the connections without a goodbye: the server does not answer");
        }
        self.tasks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }
}

impl std::fmt::Debug for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Backend")
            .field("servers", &self.commands.active_connections())
            .finish_non_exhaustive()
    }
}

impl Health {
    fn lock(&self) -> MutexGuard<'_, Option<Silence>> {
        self.silence.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the connection for messages brings.
#[derive(Debug)]
pub(crate) enum News {
    Message(String),
    /// Messages were dropped, or may have been.
    Missed,
    Reconnected,
}

/// The stream of messages.
#[derive(Debug)]
pub(crate) struct Messages {
    messages: broadcast::Receiver<Message>,
    reconnects: broadcast::Receiver<Server>,
}

impl Messages {
    /// The next news, or none when the client was closed.
    pub(crate) async fn next(&mut self) -> Option<News> {
        tokio::select! {
            message = self.messages.recv() => match message {
                Ok(message) => Some(News::Message(message.channel.to_string())),
                Err(broadcast::error::RecvError::Lagged(_)) => Some(News::Missed),
                Err(broadcast::error::RecvError::Closed) => None,
            },
            reconnect = self.reconnects.recv() => match reconnect {
                Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => Some(News::Reconnected),
                Err(broadcast::error::RecvError::Closed) => None,
            },
        }
    }
}

/// The stream of reconnects.
#[derive(Debug)]
pub(crate) struct Reconnects(broadcast::Receiver<Server>);

impl Reconnects {
    /// Waits for the next reconnect; none when the client was closed.
    pub(crate) async fn next(&mut self) -> Option<()> {
        match self.0.recv().await {
            Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => Some(()),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}

/// Connects a client, and keeps it so until the task is dropped.
///
/// fred reconnects by itself, but its task ends for good on some errors, of the configuration for example, which a
/// server that is being set up may well give for a while.
async fn keep_connected(
    client: &Client,
    closing: &CancellationToken,
) -> Result<AbortOnDropHandle<()>, Error> {
    let mut connection = connected(client).await.map_err(|error| {
        let text = format!("cannot connect: {}", error.details());
        Error::new(ErrorKind::Backend, text).caused_by(error)
    })?;
    let (client, closing) = (client.clone(), closing.clone());
    let supervise = async move {
        loop {
            let ended = connection.await;
            if closing.is_cancelled() {
                return;
            }
            warn!(?ended, "the connection task ended; starting it again");
            sleep(Duration::from_millis(200 + fastrand::u64(..200))).await;
            connection = AbortOnDropHandle::new(client.connect());
        }
    };
    Ok(AbortOnDropHandle::new(tokio::spawn(supervise)))
}

/// Connects a client.
async fn connected(client: &Client) -> Result<AbortOnDropHandle<Connected>, fred::error::Error> {
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

async fn send_once(
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

/// The keys and arguments of a call. Their text is slices of one buffer, since an allocation for each would cost more
/// than the copying.
fn arguments<'a>(call: &'a Call<'_>) -> impl Iterator<Item = Value> + use<'a> {
    let words = || {
        let keys = call.keys.iter().map(|key| Arg::Text(key));
        keys.chain(call.args.iter().copied())
    };
    let texts = || {
        words().filter_map(|word| match word {
            Arg::Text(text) => Some(text),
            Arg::Number(_) => None,
        })
    };
    let mut buffer = String::with_capacity(texts().map(str::len).sum());
    buffer.extend(texts());
    let mut rest = Bytes::from(buffer);
    words().map(move |word| match word {
        Arg::Text(text) => Value::Bytes(rest.split_to(text.len())),
        Arg::Number(number) => Value::from(number),
    })
}

/// fred takes a time-out of zero for none.
fn once(budget: Duration) -> Options {
    let budget = budget.max(Duration::from_millis(1));
    Options {
        max_attempts: Some(1),
        timeout: Some(budget),
        ..Options::default()
    }
}

/// The word that a server's error begins with. Before Redis 7 an error inside a script is wrapped in another.
fn code(text: &str) -> &str {
    let inner = if text.starts_with("ERR Error running script") {
        let last = text.rsplit("@user_script:").next().unwrap_or(text);
        last.trim_start_matches(|c: char| c.is_ascii_digit() || ": -".contains(c))
    } else {
        text
    };
    inner.split(' ').next().unwrap_or(inner)
}

/// What a server says to a user that may run no scripts, or if it has none.
fn forbids_scripts(text: &str) -> bool {
    match code(text) {
        "NOPERM" => text.contains("run the 'eval"),
        _ => text.starts_with("ERR unknown command"),
    }
}

/// The words in which the server refused.
fn refusal(frame: &Resp3Frame) -> Option<String> {
    match frame {
        Resp3Frame::SimpleError { data, .. } => Some(data.to_string()),
        Resp3Frame::BlobError { data, .. } => Some(String::from_utf8_lossy(data).into_owned()),
        _ => None,
    }
}

fn timed_out() -> fred::error::Error {
    fred::error::Error::new(fred::error::ErrorKind::Timeout, "Request timed out.")
}

fn reply(frame: &Resp3Frame) -> Reply {
    match frame {
        Resp3Frame::Number { data, .. } => Reply::Integer(*data),
        Resp3Frame::SimpleString { data, .. }
        | Resp3Frame::BlobString { data, .. }
        | Resp3Frame::VerbatimString { data, .. } => {
            Reply::Text(String::from_utf8_lossy(data).into_owned())
        }
        Resp3Frame::Array { data, .. } => Reply::List(data.iter().map(reply).collect()),
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
