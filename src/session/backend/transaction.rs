//! Compare and change without scripts: WATCH, GET, MULTI, DEL or PEXPIRE, EXEC.
//!
//! On a connection of its own, since what is watched and what is queued belongs to the connection, and one
//! sequence at a time. Without a reconnect policy: with one, fred was seen to send MULTI and EXEC again on a new
//! connection, without their WATCH, and to delete the next holder's key. A sequence that does not come to its end
//! takes its connection with it, and with that whatever of it the server has not carried out.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use fred::bytes::Bytes;
use fred::clients::Client;
use fred::interfaces::{ClientLike, Resp3Frame};
use fred::types::{ClusterHash, CustomCommand, Value};
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::node::{Fault, Node};
use super::wire::{Connected, connected, refusal, reply, send_once, timed_out};
use crate::clock::Moment;
use crate::protocol::reply::Reply;
use crate::protocol::script::{Arg, Call, Steps};
use crate::protocol::steps::{Change, Found};

/// A command with its words.
type Command = (&'static str, Vec<Value>);

type Request<'a> =
    Pin<Box<dyn Future<Output = Result<Resp3Frame, fred::error::Error>> + Send + 'a>>;

impl Node {
    /// Does by commands what a script does. A transaction is run only if there is something to compare and change:
    /// a free lock is taken by one command, and to look changes nothing.
    pub(super) async fn step(
        &self,
        call: &Call<'_>,
        steps: Steps,
        left: Duration,
    ) -> Result<Reply, Fault> {
        let end = Moment::now().plus(left);
        if steps == Steps::Acquire {
            let taken = self.look_up(vec![take(call)], left).await;
            let taken = taken.map_err(Fault::Cut)?;
            refusals(&taken)?;
            if !matches!(taken[..], [Resp3Frame::Null]) {
                return Ok(steps.granted());
            }
        }
        if steps == Steps::Acquire || steps.only_asks() {
            return self.change(call, steps, end).await;
        }
        let left = Moment::now().until(end);
        let done = self.transactions.run(call, steps, left).await?;
        if steps != Steps::Release || done == steps.released() {
            return Ok(done);
        }
        // What was to be undone went over the other connection, and is perhaps still on its way there.
        self.change(call, steps, end).await
    }

    /// Looks, and runs a transaction if there is something to change.
    async fn change(&self, call: &Call<'_>, steps: Steps, end: Moment) -> Result<Reply, Fault> {
        let looked = self.look_up(look(call).collect(), Moment::now().until(end));
        let looked = looked.await.map_err(Fault::Unsent)?;
        let (changes, answer) = decide(call, steps, &looked)?;
        if changes.is_empty() {
            return Ok(answer);
        }
        let left = Moment::now().until(end);
        self.transactions.run(call, steps, left).await
    }

    async fn look_up(
        &self,
        commands: Vec<Command>,
        left: Duration,
    ) -> Result<Vec<Resp3Frame>, fred::error::Error> {
        let request = |(command, words)| -> Request<'_> {
            Box::pin(send_once(self.commands.client(), command, words, left))
        };
        all(commands.into_iter().map(request).collect()).await
    }
}

/// The connection for transactions, made when the first one is run.
pub(super) struct Transactions {
    /// Makes a client without a reconnect policy.
    client: Box<dyn Fn() -> Client + Send + Sync>,
    /// Where connections live: whoever runs a transaction may be elsewhere.
    runtime: Handle,
    idle: Mutex<Option<Seat>>,
}

/// A connection that nothing is watched or queued on.
struct Seat {
    client: Client,
    connection: AbortOnDropHandle<Connected>,
}

impl Transactions {
    pub(super) fn new(
        client: impl Fn() -> Client + Send + Sync + 'static,
        runtime: &Handle,
    ) -> Self {
        Self {
            client: Box::new(client),
            runtime: runtime.clone(),
            idle: Mutex::new(None),
        }
    }

    /// Changes the keys of a call as its steps decide, all or none, if nobody else changes them meanwhile; else
    /// decides anew.
    pub(super) async fn run(
        &self,
        call: &Call<'_>,
        steps: Steps,
        budget: Duration,
    ) -> Result<Reply, Fault> {
        let end = Moment::now().plus(budget);
        let seated = async {
            let mut idle = self.idle.lock().await;
            let seat = match idle.take() {
                Some(seat) => seat,
                None => self.connect().await?,
            };
            Ok((idle, seat))
        };
        let (mut idle, mut seat) = timeout(budget, seated)
            .await
            .unwrap_or_else(|_| Err(timed_out()))
            .map_err(Fault::Unsent)?;
        let answer = seat.run(call, steps, Moment::now().until(end)).await?;
        *idle = Some(seat);
        Ok(answer)
    }

    /// Ends the connection.
    pub(super) async fn close(&self) {
        drop(self.idle.lock().await.take());
    }

    async fn connect(&self) -> Result<Seat, fred::error::Error> {
        let client = (self.client)();
        let connecting = self.runtime.spawn({
            let client = client.clone();
            async move { connected(&client).await }
        });
        let connection = AbortOnDropHandle::new(connecting).await;
        Ok(Seat {
            connection: connection.map_err(|_| fred::error::Error::new_canceled())??,
            client,
        })
    }
}

impl Seat {
    async fn run(
        &mut self,
        call: &Call<'_>,
        steps: Steps,
        budget: Duration,
    ) -> Result<Reply, Fault> {
        // Set before EXEC is sent.
        let in_doubt = AtomicBool::new(false);
        let ended = |error| match in_doubt.load(Ordering::Relaxed) {
            true => Fault::Cut(error),
            false => Fault::Unsent(error),
        };
        let Self { client, connection } = self;
        tokio::select! {
            biased;
            answer = sequence(client, call, steps, &in_doubt) => match answer {
                Err(Fault::Unsent(error)) => Err(ended(error)),
                answer => answer,
            },
            () = sleep(budget) => Err(ended(timed_out())),
            // Requests on a connection that has ended are answered by nobody.
            _ = connection => Err(ended(fred::error::Error::new_canceled())),
        }
    }
}

async fn sequence(
    client: &Client,
    call: &Call<'_>,
    steps: Steps,
    in_doubt: &AtomicBool,
) -> Result<Reply, Fault> {
    loop {
        let mut looks = vec![("WATCH", call.keys.iter().map(|key| text(key)).collect())];
        looks.extend(look(call));
        let mut looked = send(client, looks).await?;
        let found = looked.split_off(1);
        refusals(&looked)?;
        let (changes, answer) = decide(call, steps, &found)?;
        if changes.is_empty() {
            refusals(&send(client, vec![("UNWATCH", Vec::new())]).await?)?;
            return Ok(answer);
        }
        let mut commands = vec![("MULTI", Vec::new())];
        commands.extend(changes);
        commands.push(("EXEC", Vec::new()));
        in_doubt.store(true, Ordering::Relaxed);
        let done = send(client, commands).await?;
        in_doubt.store(false, Ordering::Relaxed);
        refusals(&done)?;
        if let Some(Resp3Frame::Array { data, .. }) = done.last() {
            refusals(data)?;
            return Ok(answer);
        }
        // Somebody has changed a key since it was looked at.
    }
}

/// Sends commands one behind the other, and waits for their replies. Without time-outs of their own: fred does not
/// send one that has run into its time-out, and might send the next.
async fn send(client: &Client, commands: Vec<Command>) -> Result<Vec<Resp3Frame>, Fault> {
    let request = |(command, words)| -> Request<'_> {
        let command = CustomCommand::new_static(command, ClusterHash::FirstKey, false);
        Box::pin(client.custom_raw(command, words))
    };
    let requests = commands.into_iter().map(request).collect();
    all(requests).await.map_err(Fault::Unsent)
}

/// The commands that tell what stands at the keys of a call.
fn look(call: &Call<'_>) -> impl Iterator<Item = Command> {
    let keys = call.keys.iter();
    keys.flat_map(|key| [("GET", vec![text(key)]), ("PTTL", vec![text(key)])])
}

/// The commands that change what is to be changed, and the answer then. `looked` is what came back from [`look`].
fn decide(
    call: &Call<'_>,
    steps: Steps,
    looked: &[Resp3Frame],
) -> Result<(Vec<Command>, Reply), Fault> {
    let args = call.args.len() / call.keys.len().max(1);
    let (mut changes, mut answers) = (Vec::new(), Vec::new());
    for (at, (key, looked)) in call.keys.iter().zip(looked.chunks(2)).enumerate() {
        let args = &call.args[at * args..(at + 1) * args];
        let found = found(looked)?;
        let decision = steps.decide(args, &found);
        changes.extend(decision.change.map(|change| command(key, change)));
        // What the server says to a script that meets another type.
        let other = || Fault::Refused("WRONGTYPE".to_owned());
        answers.push(decision.answer.ok_or_else(other)?);
    }
    Ok((changes, steps.answer(answers)))
}

/// The command that takes a free lock, with the value and the lease that a call has as its first arguments.
fn take(call: &Call<'_>) -> Command {
    let word = |arg: &Arg<'_>| match arg {
        Arg::Text(word) => text(word),
        Arg::Number(number) => (*number).into(),
        // Nobody is told of a plain lock.
        Arg::Publish => Value::Null,
    };
    let key = call.keys.iter().map(|key| text(key));
    let mut words: Vec<Value> = key.chain(call.args.iter().take(2).map(word)).collect();
    words.insert(2, text("PX"));
    words.push(text("NX"));
    ("SET", words)
}

/// Sends all requests, one behind the other, and waits for their replies. No join of a library promises the order.
async fn all(requests: Vec<Request<'_>>) -> Result<Vec<Resp3Frame>, fred::error::Error> {
    let mut waiting: Vec<_> = requests
        .into_iter()
        .map(|request| (request, None))
        .collect();
    // The first poll of a request sends it. What follows one that cannot be sent is not sent either.
    poll_fn(|context| {
        let mut complete = true;
        for (request, output) in &mut waiting {
            if output.is_none() {
                match request.as_mut().poll(context) {
                    Poll::Ready(Ok(value)) => *output = Some(value),
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => complete = false,
                }
            }
        }
        match complete {
            true => Poll::Ready(Ok(())),
            false => Poll::Pending,
        }
    })
    .await?;
    Ok(waiting
        .into_iter()
        .filter_map(|(_, output)| output)
        .collect())
}

/// What stands at a key, by the replies to GET and PTTL.
fn found(looked: &[Resp3Frame]) -> Result<Found, Fault> {
    let [value, ttl] = looked else {
        return Ok(Found::Nothing);
    };
    if refusal(value).is_some_and(|text| text.starts_with("WRONGTYPE")) {
        return Ok(Found::Other);
    }
    refusals(looked)?;
    Ok(match (reply(value), reply(ttl)) {
        // It ended in between.
        (_, Reply::Integer(-2)) => Found::Nothing,
        (Reply::Text(value), Reply::Integer(ttl)) => Found::Value(value, ttl),
        _ => Found::Nothing,
    })
}

fn command(key: &str, change: Change<'_>) -> Command {
    match change {
        Change::Set(value, lease) => (
            "SET",
            vec![text(key), text(value), text("PX"), lease.into()],
        ),
        Change::Delete => ("DEL", vec![text(key)]),
        Change::Expire(lease) => ("PEXPIRE", vec![text(key), lease.into()]),
    }
}

/// The first refusal among replies.
fn refusals(replies: &[Resp3Frame]) -> Result<(), Fault> {
    match replies.iter().find_map(refusal) {
        Some(text) => Err(Fault::Refused(text)),
        None => Ok(()),
    }
}

fn text(text: &str) -> Value {
    Value::Bytes(Bytes::copy_from_slice(text.as_bytes()))
}
