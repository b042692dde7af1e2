//! Compare and change without scripts: WATCH, GET, MULTI, DEL or PEXPIRE, EXEC.
//!
//! Transactions have a connection of their own, since watched keys and queued commands belong to a connection. They run
//! one sequence at a time, and leave one that takes long the connection that it has. A sequence that is not completed
//! closes its connection, and the server drops what it has not carried out.
//!
//! The call ([`Steps`]) decides from what was read what to change; this module carries it out. Taking a free key, and
//! looking, need no transaction. They go over the connection for commands, and so stay in order with its requests.
//!
//! # Invariants
//!
//! 1. Nothing changes before EXEC is sent. A sequence that fails before EXEC did not run; one that fails after it is in
//!    doubt.
//! 2. A connection that is not locked has no watched key and no queued command.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::try_join_all;
use tokio::runtime::Handle;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::connection::Broken;
use super::connection_task::left;
use super::dial::{Dialer, is_of_replica};
use super::link::Link;
use super::node::Node;
use super::resp::{Said, WireRequest};
use super::send_error::Fault;
use crate::clock::BootInstant;
use crate::error::{Error, ErrorKind};
use crate::protocol::compare::{Change, Found, Take};
use crate::protocol::reply::Reply;
use crate::protocol::script::{Call, Steps};

impl Node {
    /// Does by commands what a script does. Runs a transaction only to compare and change: one command takes a free
    /// lock, and looking changes nothing.
    ///
    /// An error says whether anything may have changed, as precisely as that of a script.
    pub(super) async fn step(
        &self,
        call: &Call<'_>,
        steps: &Steps<'_>,
        asking: bool,
        left: Duration,
    ) -> Result<Reply, Fault> {
        let end = BootInstant::now().plus(left);
        let take = steps.take();
        let takes = take.is_some();
        if let Some(take) = take {
            let key = call.keys.first().copied().unwrap_or_default();
            match self.commands.ask(set(key, &take, asking), left).await? {
                Err(text) => return Err(Fault::Refused(text)),
                Ok(Reply::Nil) => {}
                Ok(_) => return Ok(take.answer),
            }
        }
        if takes || steps.only_asks() {
            return self.change(call, steps, asking, end).await;
        }
        let left = BootInstant::now().until(end);
        let done = self
            .transactions
            .run(call, steps, asking, self.commands.epoch(), left)
            .await?;
        if !steps.looks_again(&done) {
            return Ok(done);
        }
        // The call that this one undoes went over the connection for commands, and may still be on its way there. So
        // the look goes over that connection, behind it.
        self.change(call, steps, asking, end).await
    }

    /// Looks at the keys, and runs a transaction if there is something to change.
    ///
    /// The keys may change between the two, so the transaction looks again.
    async fn change(
        &self,
        call: &Call<'_>,
        steps: &Steps<'_>,
        asking: bool,
        end: BootInstant,
    ) -> Result<Reply, Fault> {
        let left = BootInstant::now().until(end);
        let questions = look(call, asking).chain([WireRequest::of(&["ROLE"])]);
        let looks = questions.map(|request| self.commands.ask(request, left));
        let looked = try_join_all(looks).await.map_err(|broken| match broken {
            // Looking changes nothing, so nothing is in doubt.
            Broken::Cut(error) => Broken::Unsent(error),
            broken => broken,
        })?;
        if is_of_replica(looked.last()) {
            return Err(Fault::Refused(OF_REPLICA.to_owned()));
        }
        let (changes, answer) = decide(call, steps, &looked)?;
        if changes.is_empty() {
            return Ok(answer);
        }
        let left = BootInstant::now().until(end);
        self.transactions
            .run(call, steps, asking, self.commands.epoch(), left)
            .await
    }
}

/// How long the sequence under way is waited for. Those behind it then get another connection.
const TURN: Duration = Duration::from_millis(250);

/// A replica answers a look too, and may be out of date. This refuses its answer.
const OF_REPLICA: &str = "READONLY by its role";

/// The connection for transactions, made when the first one is run.
pub(super) struct Transactions {
    /// How to connect, and whether the primary has changed.
    dialer: Dialer,
    /// The runtime of its connections. The caller that runs a transaction may be on another one.
    runtime: Handle,
    /// The connection that the next sequence takes its turn on.
    present: std::sync::Mutex<Arc<Mutex<Idle>>>,
}

/// A connection on which nothing is watched or queued, with the number that the connection for commands had when it was
/// made. If that number has changed, the server may have too.
///
/// Locked for the whole sequence, so that sequences wait for each other: not for long, since one may be part of a
/// future that nobody polls.
type Idle = Option<(u64, Link)>;

impl Transactions {
    /// Makes no connection: most clients never need one.
    pub(super) fn new(dialer: Dialer, runtime: &Handle) -> Self {
        Self {
            dialer,
            runtime: runtime.clone(),
            present: std::sync::Mutex::default(),
        }
    }

    /// Changes the keys of a call as its steps decide: all or none. Decides again if another client changes them in the
    /// meantime.
    ///
    /// `epoch` is the number of the connection for commands. Dropping the future drops the connection, and the server
    /// forgets what it has not executed.
    pub(super) async fn run(
        &self,
        call: &Call<'_>,
        steps: &Steps<'_>,
        asking: bool,
        epoch: u64,
        budget: Duration,
    ) -> Result<Reply, Fault> {
        // Set before EXEC is sent: until then nothing has changed.
        let in_doubt = AtomicBool::new(false);
        let broken = |error| match in_doubt.load(Ordering::Relaxed) {
            true => Broken::Cut(error),
            false => Broken::Unsent(error),
        };
        let end = BootInstant::now().plus(budget);
        let done = async {
            let mut idle = self.turn(TURN.min(budget / 4)).await;
            // Put back only once the sequence is complete.
            let mut line = match idle.take() {
                Some((at, line)) if at == epoch && !line.is_due() => line,
                _ => {
                    let mut line = self.dial().await.map_err(Broken::Unsent)?;
                    // To a user without the right to `MULTI`, each change would happen by itself, whatever was watched.
                    let words = ["MULTI", "EXEC"].map(|word| WireRequest::of(&[word]));
                    refusals(&send(&mut line, &words).await?)?;
                    line
                }
            };
            let place = line.place.clone();
            let answer = tokio::select! {
                answer = sequence(&mut line, call, steps, asking, &in_doubt, end) => answer,
                // The answers of a former primary no longer count.
                () = self.dialer.leads_elsewhere(Some(&place)) => Err(Broken::Unsent(left()).into()),
            };
            let answer = answer.map_err(|fault| match fault {
                Fault::Broken(Broken::Unsent(error)) => broken(error).into(),
                fault => fault,
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

    /// Waits for the turn to run a sequence. If that takes longer than `at_most`, another connection takes the place of
    /// the present one, which is left to the sequence under way.
    async fn turn(&self, mut at_most: Duration) -> OwnedMutexGuard<Idle> {
        loop {
            let present = self.present().clone();
            if let Ok(turn) = timeout(at_most, present.clone().lock_owned()).await {
                return turn;
            }
            // The other one has to be made first.
            at_most *= 2;
            let mut next = self.present();
            if Arc::ptr_eq(&next, &present) {
                *next = Arc::default();
            }
        }
    }

    fn present(&self) -> MutexGuard<'_, Arc<Mutex<Idle>>> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the connection: at once, or at the end of the sequence under way.
    pub(super) fn close(&self) {
        *self.present() = Arc::default();
    }

    /// Connects on the runtime of the client.
    ///
    /// The connection outlives the caller's runtime, so its task must not run there.
    async fn dial(&self) -> Result<Link, Error> {
        let dialer = self.dialer.clone();
        let dialling = self.runtime.spawn(async move { dialer.dial().await });
        AbortOnDropHandle::new(dialling)
            .await
            .map_err(|error| silent().caused_by(error))?
    }
}

/// Watches and reads the keys, and changes them as decided. Starts over whenever another client changes them in
/// between.
///
/// Leaves nothing watched or queued on the connection, unless it fails.
async fn sequence(
    line: &mut Link,
    call: &Call<'_>,
    steps: &Steps<'_>,
    asking: bool,
    in_doubt: &AtomicBool,
    end: BootInstant,
) -> Result<Reply, Fault> {
    loop {
        let watch: Vec<&str> = [&["WATCH"], &call.keys[..]].concat();
        let mut requests = vec![asked(asking, &watch)];
        requests.extend(look(call, asking));
        let looked = send(line, &requests).await?;
        // Without the watch, others could change what is read here.
        refusals(&looked[..1])?;
        let (changes, answer) = decide(call, steps, &looked[1..])?;
        if changes.is_empty() {
            let words = [["UNWATCH"], ["ROLE"]].map(|words| WireRequest::of(&words));
            let said = send(line, &words).await?;
            refusals(&said[..1])?;
            return match is_of_replica(said.last()) {
                true => Err(Fault::Refused(OF_REPLICA.to_owned())),
                false => Ok(answer),
            };
        }
        // The future may not have been polled for a long time. Nothing is changed after the call's time is over, since
        // its caller has given up by then.
        if BootInstant::now() >= end {
            return Err(Broken::Unsent(silent()).into());
        }
        // Permission that is asked for in front of MULTI lasts up to EXEC.
        let mut requests = vec![asked(asking, &["MULTI"])];
        requests.extend(changes);
        requests.push(WireRequest::of(&["EXEC"]));
        in_doubt.store(true, Ordering::Relaxed);
        let done = send(line, &requests).await?;
        in_doubt.store(false, Ordering::Relaxed);
        refusals(&done)?;
        if let Some(Ok(Reply::List(outcomes))) = done.last() {
            let refused = outcomes.iter().find_map(|outcome| match outcome {
                Reply::Refusal(text) => Some(text.clone()),
                _ => None,
            });
            return refused.map_or(Ok(answer), |text| Err(Fault::Refused(text)));
        }
        // EXEC has done nothing: a key has changed since it was read.
    }
}

/// Sends commands together, and waits for all replies.
async fn send(line: &mut Link, requests: &[WireRequest]) -> Result<Vec<Said>, Fault> {
    let said = line.talk(requests).await;
    said.map_err(|error| Broken::Unsent(silent().caused_by(error)).into())
}

/// Returns the commands that read the keys of a call: value and remaining lease of each.
///
/// Only both together tell a lock without a lease from a lock that is gone.
fn look(call: &Call<'_>, asking: bool) -> impl Iterator<Item = WireRequest> {
    let keys = call.keys.iter();
    keys.flat_map(move |key| ["GET", "PTTL"].map(|command| asked(asking, &[command, key])))
}

/// Returns a command, behind ASKING if the slot is being moved to the server that it goes to.
fn asked(asking: bool, words: &[&str]) -> WireRequest {
    WireRequest::asking(asking).then(words)
}

/// Decides which commands change the keys, and what the answer is then. `looked` has the replies to [`look`].
///
/// A call about several keys has the steps of each key in turn.
fn decide(
    call: &Call<'_>,
    steps: &Steps<'_>,
    looked: &[Said],
) -> Result<(Vec<WireRequest>, Reply), Fault> {
    let (mut changes, mut answers) = (Vec::new(), Vec::new());
    let each = call.keys.iter().zip(looked.chunks(2));
    for (at, (key, looked)) in each.enumerate() {
        let decision = steps.decide(at, &found(looked)?);
        changes.extend(decision.change.map(|change| command(key, change)));
        // A server answers this to a script that finds a key of another type.
        let other = || Fault::Refused("WRONGTYPE".to_owned());
        answers.push(decision.answer.ok_or_else(other)?);
    }
    Ok((changes, steps.answer(answers)))
}

/// Returns the command that takes a key if it is free.
fn set(key: &str, take: &Take<'_>, asking: bool) -> WireRequest {
    let millis = take.millis.to_string();
    asked(asking, &["SET", key, take.value, "PX", &millis, "NX"])
}

/// Interprets the replies to GET and PTTL of a key.
///
/// A key of another type is a lock of another kind, as a script would find.
fn found(looked: &[Said]) -> Result<Found, Fault> {
    let [value, ttl] = looked else {
        return Ok(Found::Nothing);
    };
    match (value, ttl) {
        (Err(text), _) if text.starts_with("WRONGTYPE") => Ok(Found::Other),
        (Err(text), _) | (_, Err(text)) => Err(Fault::Refused(text.clone())),
        // The key expired or was deleted between the two commands.
        (_, Ok(Reply::Integer(-2))) => Ok(Found::Nothing),
        (Ok(Reply::Text(value)), Ok(Reply::Integer(ttl))) => Ok(Found::Value(value.clone(), *ttl)),
        _ => Ok(Found::Nothing),
    }
}

/// Returns the command for a change.
fn command(key: &str, change: Change<'_>) -> WireRequest {
    match change {
        Change::Set(value, millis) => {
            WireRequest::of(&["SET", key, value, "PX", &millis.to_string()])
        }
        Change::Delete => WireRequest::of(&["DEL", key]),
        Change::Expire(millis) => WireRequest::of(&["PEXPIRE", key, &millis.to_string()]),
    }
}

/// Returns the first refusal among replies as `Err`.
fn refusals(said: &[Said]) -> Result<(), Fault> {
    match said.iter().find_map(|said| said.as_ref().err()) {
        Some(text) => Err(Fault::Refused(text.clone())),
        None => Ok(()),
    }
}

/// Builds the error of a connection for transactions that failed.
fn silent() -> Error {
    Error::new(
        ErrorKind::Backend,
        "the connection for transactions did not answer",
    )
    .passing()
}
