//! Compare and change without scripts: WATCH, GET, MULTI, DEL or PEXPIRE, EXEC.
//!
//! On a connection of its own, since what is watched and what is queued belongs to the connection, and one
//! sequence at a time. A sequence that does not come to its end takes its connection with it, and with that whatever
//! of it the server has not carried out.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::try_join_all;
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::connection::{Broken, left};
use super::dial::Dialer;
use super::link::Link;
use super::node::{Fault, Node};
use super::resp::{Request, Said};
use crate::clock::BootInstant;
use crate::error::{Error, ErrorKind};
use crate::protocol::reply::Reply;
use crate::protocol::script::{Arg, Call, Steps};
use crate::protocol::steps::{Change, Found};

impl Node {
    /// Does by commands what a script does. A transaction is run only if there is something to compare and change:
    /// a free lock is taken by one command, and to look changes nothing.
    pub(super) async fn step(
        &self,
        call: &Call<'_>,
        steps: Steps,
        left: Duration,
    ) -> Result<Reply, Fault> {
        let end = BootInstant::now().plus(left);
        if steps == Steps::Acquire {
            match self.commands.ask(take(call), left).await? {
                Err(text) => return Err(Fault::Refused(text)),
                Ok(Reply::Nil) => {}
                Ok(_) => return Ok(steps.granted()),
            }
        }
        if steps == Steps::Acquire || steps.only_asks() {
            return self.change(call, steps, end).await;
        }
        let left = BootInstant::now().until(end);
        let done = self
            .transactions
            .run(call, steps, self.commands.epoch(), left)
            .await?;
        if steps != Steps::Release || done == steps.released() {
            return Ok(done);
        }
        // What was to be undone went over the other connection, and is perhaps still on its way there.
        self.change(call, steps, end).await
    }

    /// Looks, and runs a transaction if there is something to change.
    async fn change(
        &self,
        call: &Call<'_>,
        steps: Steps,
        end: BootInstant,
    ) -> Result<Reply, Fault> {
        let left = BootInstant::now().until(end);
        let looks = look(call).map(|request| self.commands.ask(request, left));
        let looked = try_join_all(looks).await.map_err(|broken| match broken {
            // To look changes nothing.
            Broken::Cut(error) => Broken::Unsent(error),
            broken => broken,
        })?;
        let (changes, answer) = decide(call, steps, &looked)?;
        if changes.is_empty() {
            return Ok(answer);
        }
        let left = BootInstant::now().until(end);
        self.transactions
            .run(call, steps, self.commands.epoch(), left)
            .await
    }
}

/// The connection for transactions, made when the first one is run.
pub(super) struct Transactions {
    dialer: Dialer,
    /// Where connections live: whoever runs a transaction may be elsewhere.
    runtime: Handle,
    /// Nothing is watched or queued on it. With the number of the connection for commands, which may lead elsewhere by
    /// now.
    idle: Mutex<Option<(u64, Link)>>,
}

impl Transactions {
    pub(super) fn new(dialer: Dialer, runtime: &Handle) -> Self {
        Self {
            dialer,
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
        epoch: u64,
        budget: Duration,
    ) -> Result<Reply, Fault> {
        // Set before EXEC is sent.
        let in_doubt = AtomicBool::new(false);
        let broken = |error| match in_doubt.load(Ordering::Relaxed) {
            true => Broken::Cut(error),
            false => Broken::Unsent(error),
        };
        let end = BootInstant::now().plus(budget);
        let done = async {
            let mut idle = self.idle.lock().await;
            let mut line = match idle.take() {
                Some((at, line)) if at == epoch => line,
                _ => self.dial().await.map_err(Broken::Unsent)?,
            };
            let place = line.place.clone();
            let answer = tokio::select! {
                answer = sequence(&mut line, call, steps, &in_doubt, end) => answer,
                // What the old primary says counts no more.
                () = self.dialer.leads_elsewhere(Some(&place)) => Err(Failure::Broken(left())),
            };
            let answer = answer.map_err(|failure| match failure {
                Failure::Broken(error) => broken(error).into(),
                Failure::Refused(text) => Fault::Refused(text),
            })?;
            *idle = Some((epoch, line));
            Ok(answer)
        };
        match timeout(budget, done).await {
            Ok(done) => done,
            Err(late) if in_doubt.load(Ordering::Relaxed) => Err(Broken::TimedOut(late).into()),
            Err(late) => Err(Broken::Unsent(silent().caused_by(late)).into()),
        }
    }

    /// Ends the connection.
    pub(super) async fn close(&self) {
        drop(self.idle.lock().await.take());
    }

    async fn dial(&self) -> Result<Link, Error> {
        let dialer = self.dialer.clone();
        let dialling = self.runtime.spawn(async move { dialer.dial().await });
        AbortOnDropHandle::new(dialling)
            .await
            .map_err(|error| silent().caused_by(error))?
    }
}

/// How a sequence of commands came to no end.
enum Failure {
    Broken(Error),
    Refused(String),
}

impl From<Failure> for Fault {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Broken(error) => Broken::Unsent(error).into(),
            Failure::Refused(text) => Self::Refused(text),
        }
    }
}

async fn sequence(
    line: &mut Link,
    call: &Call<'_>,
    steps: Steps,
    in_doubt: &AtomicBool,
    end: BootInstant,
) -> Result<Reply, Failure> {
    loop {
        let watch: Vec<&str> = [&["WATCH"], &call.keys[..]].concat();
        let mut requests = vec![Request::of(&watch)];
        requests.extend(look(call));
        let looked = send(line, &requests).await?;
        refusals(&looked[..1])?;
        let (changes, answer) = decide(call, steps, &looked[1..])?;
        if changes.is_empty() {
            refusals(&send(line, &[Request::of(&["UNWATCH"])]).await?)?;
            return Ok(answer);
        }
        // Nobody may have polled this for long, and then nobody counts on it any more.
        if BootInstant::now() >= end {
            return Err(Failure::Broken(silent()));
        }
        let mut requests = vec![Request::of(&["MULTI"])];
        requests.extend(changes);
        requests.push(Request::of(&["EXEC"]));
        in_doubt.store(true, Ordering::Relaxed);
        let done = send(line, &requests).await?;
        in_doubt.store(false, Ordering::Relaxed);
        refusals(&done)?;
        if let Some(Ok(Reply::List(outcomes))) = done.last() {
            let refused = outcomes.iter().find_map(|outcome| match outcome {
                Reply::Refusal(text) => Some(text.clone()),
                _ => None,
            });
            return refused.map_or(Ok(answer), |text| Err(Failure::Refused(text)));
        }
        // Somebody has changed a key since it was looked at.
    }
}

async fn send(line: &mut Link, requests: &[Request]) -> Result<Vec<Said>, Failure> {
    let said = line.talk(requests).await;
    said.map_err(|error| Failure::Broken(silent().caused_by(error)))
}

/// The commands that tell what stands at the keys of a call.
fn look(call: &Call<'_>) -> impl Iterator<Item = Request> {
    let keys = call.keys.iter();
    keys.flat_map(|key| [Request::of(&["GET", key]), Request::of(&["PTTL", key])])
}

/// The commands that change what is to be changed, and the answer then. `looked` is what came back from [`look`].
fn decide(
    call: &Call<'_>,
    steps: Steps,
    looked: &[Said],
) -> Result<(Vec<Request>, Reply), Failure> {
    let args = call.args.len() / call.keys.len().max(1);
    let (mut changes, mut answers) = (Vec::new(), Vec::new());
    for (at, (key, looked)) in call.keys.iter().zip(looked.chunks(2)).enumerate() {
        let args = &call.args[at * args..(at + 1) * args];
        let found = found(looked)?;
        let decision = steps.decide(args, &found);
        changes.extend(decision.change.map(|change| command(key, change)));
        // What the server says to a script that meets another type.
        let other = || Failure::Refused("WRONGTYPE".to_owned());
        answers.push(decision.answer.ok_or_else(other)?);
    }
    Ok((changes, steps.answer(answers)))
}

/// The command that takes a free lock, with the value and the lease that a call has as its first arguments.
fn take(call: &Call<'_>) -> Request {
    let key = call.keys.first().copied().unwrap_or_default();
    let arg = |at: usize| call.args.get(at).copied().unwrap_or(Arg::Text(""));
    let [set, key, px, nx] = ["SET", key, "PX", "NX"].map(Arg::Text);
    let words = [set, key, arg(0), px, arg(1), nx];
    Request::default().and(words.len(), words.into_iter(), "")
}

/// What stands at a key, by the replies to GET and PTTL.
fn found(looked: &[Said]) -> Result<Found, Failure> {
    let [value, ttl] = looked else {
        return Ok(Found::Nothing);
    };
    match (value, ttl) {
        (Err(text), _) if text.starts_with("WRONGTYPE") => Ok(Found::Other),
        (Err(text), _) | (_, Err(text)) => Err(Failure::Refused(text.clone())),
        // It ended in between.
        (_, Ok(Reply::Integer(-2))) => Ok(Found::Nothing),
        (Ok(Reply::Text(value)), Ok(Reply::Integer(ttl))) => Ok(Found::Value(value.clone(), *ttl)),
        _ => Ok(Found::Nothing),
    }
}

fn command(key: &str, change: Change<'_>) -> Request {
    match change {
        Change::Set(value, lease) => Request::of(&["SET", key, value, "PX", &lease.to_string()]),
        Change::Delete => Request::of(&["DEL", key]),
        Change::Expire(lease) => Request::of(&["PEXPIRE", key, &lease.to_string()]),
    }
}

/// The first refusal among replies.
fn refusals(said: &[Said]) -> Result<(), Failure> {
    match said.iter().find_map(|said| said.as_ref().err()) {
        Some(text) => Err(Failure::Refused(text.clone())),
        None => Ok(()),
    }
}

fn silent() -> Error {
    Error::new(
        ErrorKind::Backend,
        "the connection for transactions gave no answer",
    )
    .passing()
}
