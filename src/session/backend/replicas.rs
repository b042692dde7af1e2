//! Waits until replicas have acknowledged what a server granted.
//!
//! `WAIT` counts the replicas that have everything up to the last write on its own connection, and delays whatever
//! comes behind it there. So it has a connection of its own. Ahead of it goes a write that changes nothing,
//! `key_touch`. A replica that has this write also has whatever was granted before it.
//!
//! One round serves all calls that wait by then: it writes, checks that the server still has the holds, and sends one
//! `WAIT`. Calls that come in the meantime join the next round.
//!
//! # Invariants
//!
//! 1. The commands of a round go over one connection in one step. With no write before it on the same connection,
//!    `WAIT` counts all replicas, whatever they have.
//! 2. A hold counts as acknowledged only if the server that answered `WAIT` said in the same round that it has the
//!    hold. After a failover, the connection may lead to a server that never had it.
//! 3. `is_served` is set as long as there is a task. It is cleared under the mutex under which calls are entered, or by
//!    the drop of the task, so no call is left without a task.
//!
//! Acquiring on that connection too was measured. It takes 0.11 ms instead of 0.15, but an acquisition would then queue
//! behind the `WAIT` of others, and no longer behind the releases of its own process.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::Backend;
use super::connection::{Broken, Connection};
use super::maker::Maker;
use super::node::{Node, SendForm, request};
use super::refusal::code;
use super::resp::{Said, WireRequest};
use super::slots;
use crate::clock::BootInstant;
use crate::config::Server;
use crate::error::{Error, ErrorKind};
use crate::options::MinReplicas;
use crate::protocol::reply::Reply;
use crate::protocol::script::{Call, KEY_TOUCH};

/// The most holds in one script.
const BATCH: usize = 100;
/// The pause before a round that failed is repeated.
const PAUSE: Duration = Duration::from_millis(10);

/// The outcome of a wait for replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acknowledged {
    /// As many replicas as the client asks for have the hold.
    Enough,
    /// Only this many replicas, too few, had it when the time was over.
    By(u32),
    /// The server does not have the hold.
    Gone,
}

/// A hold that replicas are to have, as its server knows it.
pub(crate) trait Look: Send + Sync {
    /// Returns a call about the hold's key. Its script takes any number of keys, and answers for each whether the hold
    /// stands.
    fn call(&self) -> Call<'_>;
}

/// What a round says of one hold.
enum ReplicaVerdict {
    Outcome(Acknowledged),
    /// The server refused, in these words.
    Refused(String),
    Broken(Error),
}

/// The calls that wait for the replicas of one server.
pub(super) struct Replicas {
    connection: Connection,
    /// The runtime of the task. The caller that waits first may be on another one.
    runtime: Handle,
    asked: MinReplicas,
    /// How long the server may take to answer, in addition to the wait.
    patience: Duration,
    waiting: Mutex<ReplicaQueue>,
}

#[derive(Default)]
struct ReplicaQueue {
    calls: Vec<ReplicaWaiter>,
    is_served: bool,
}

/// One call that waits.
struct ReplicaWaiter {
    hold: Arc<dyn Look>,
    /// The group of its key: keys of different groups cannot be in one script.
    group: u16,
    end: BootInstant,
    /// How many replicas had the hold in the rounds so far, at most.
    had: u32,
    told: oneshot::Sender<ReplicaVerdict>,
}

impl ReplicaWaiter {
    /// Returns what to tell the call after a round, or `None` if it waits for the next one.
    ///
    /// The last round may be too short for the replicas to answer, so the replicas of earlier rounds count.
    fn outcome(&mut self, told: ReplicaVerdict, now: BootInstant) -> Option<ReplicaVerdict> {
        let ReplicaVerdict::Outcome(Acknowledged::By(count)) = told else {
            return Some(told);
        };
        self.had = self.had.max(count);
        (now >= self.end).then_some(ReplicaVerdict::Outcome(Acknowledged::By(self.had)))
    }
}

impl Backend {
    /// Waits until as many replicas as the client asks for have acknowledged a hold that was granted. Returns at once
    /// if it asks for none.
    ///
    /// Dropping the future leaves at most a check of the hold in flight.
    pub(crate) async fn acknowledged(&self, hold: Arc<dyn Look>) -> Result<Acknowledged, Error> {
        let look = hold.call();
        let key = look.keys.first().copied().unwrap_or_default();
        let began = BootInstant::now();
        loop {
            let node = self.home_of(key)?;
            let Some(replicas) = &node.replicas else {
                return Ok(Acknowledged::Enough);
            };
            let end = began.plus(replicas.asked.within);
            let (told, outcome) = oneshot::channel();
            replicas.enter(ReplicaWaiter {
                hold: hold.clone(),
                group: self.group(key),
                end,
                had: 0,
                told,
            });
            // A round under way about other calls may take longer.
            let limit = BootInstant::now().until(end) + replicas.patience;
            let outcome = timeout(limit, outcome).await;
            let outcome = outcome.map_err(|late| unsaid().caused_by(late))?;
            let error = match outcome.map_err(|_| Error::closed())? {
                ReplicaVerdict::Outcome(outcome) => return Ok(outcome),
                ReplicaVerdict::Broken(error) => error,
                ReplicaVerdict::Refused(text) => self.refused(&node, replicas, &text),
            };
            if !error.is_passing() || BootInstant::now().plus(PAUSE) >= end {
                return Err(error);
            }
            sleep(PAUSE).await;
        }
    }

    /// Does what a refusal calls for, and returns its error. One that may pass is worth another round.
    fn refused(&self, node: &Arc<Node>, replicas: &Replicas, text: &str) -> Error {
        let error = Error::refused(format!("the server refused: {text}"), text);
        match code(text) {
            "MOVED" => {
                if let (Some(to), Some(cluster)) = (slots::redirect(text), self.cluster()) {
                    cluster.learn(&to, node);
                }
            }
            // A new connection finds the present primary.
            "READONLY" | "UNBLOCKED" => replicas.redial(),
            "NOSCRIPT" | "ASK" | "TRYAGAIN" | "CLUSTERDOWN" | "LOADING" | "BUSY" => {}
            "NOPERM" => {
                let text = format!("min_replicas needs scripts, and the right +wait: {text}");
                return Error::refused(text, "NOPERM");
            }
            _ => return error,
        }
        error.passing()
    }
}

impl Replicas {
    pub(super) fn new(maker: &Maker, server: &Server, asked: MinReplicas) -> Arc<Self> {
        Arc::new(Self {
            connection: maker.apart(server),
            runtime: maker.runtime.clone(),
            asked,
            patience: maker.command_timeout,
            waiting: Mutex::default(),
        })
    }

    /// Enters a call for the next round.
    fn enter(self: &Arc<Self>, waiter: ReplicaWaiter) {
        let mut waiting = self.lock();
        waiting.calls.push(waiter);
        if !std::mem::replace(&mut waiting.is_served, true) {
            drop(waiting);
            // Made outside the task, since a runtime that has ended drops the task without polling it.
            let serving = Serving(Some(self.clone()));
            self.runtime.spawn(serving.run());
        }
    }

    /// Makes rounds until no call waits.
    async fn serve(&self) {
        let mut calls: Vec<ReplicaWaiter> = Vec::new();
        loop {
            {
                let mut waiting = self.lock();
                calls.append(&mut waiting.calls);
                calls.retain(|call| !call.told.is_closed());
                if calls.is_empty() {
                    waiting.is_served = false;
                    return;
                }
            }
            let told = self.round(&calls).await;
            let now = BootInstant::now();
            for (mut call, told) in std::mem::take(&mut calls).into_iter().zip(told) {
                match call.outcome(told, now) {
                    Some(outcome) => drop(call.told.send(outcome)),
                    None => calls.push(call),
                }
            }
        }
    }

    /// Asks once for all of these calls, until the time of the first is over. Returns the outcome of each.
    async fn round(&self, calls: &[ReplicaWaiter]) -> Vec<ReplicaVerdict> {
        let now = BootInstant::now();
        let left = calls.iter().map(|call| now.until(call.end)).min();
        // Zero would wait forever.
        let wait = left.unwrap_or_default().max(Duration::from_millis(1));
        let questions = Questions::about(calls);
        let mut requests: Vec<_> = questions
            .scripts()
            .map(|call| self.request(&call))
            .collect();
        let [least, millis] = [self.asked.least.to_string(), wait.as_millis().to_string()];
        requests.push(WireRequest::of(&["WAIT", &least, &millis]));
        match self
            .connection
            .ask_all(&requests, wait + self.patience)
            .await
        {
            Ok(said) => questions.told(&said, self.asked.least),
            Err(broken) => {
                if matches!(broken, Broken::TimedOut(_)) {
                    self.redial();
                }
                let error = broken.causes(unsaid());
                calls
                    .iter()
                    .map(|_| ReplicaVerdict::Broken(error.clone()))
                    .collect()
            }
        }
    }

    fn request(&self, call: &Call<'_>) -> WireRequest {
        let form = SendForm {
            whole: !self.connection.knows(call.script),
            asking: false,
            publish: "",
        };
        request(call, form)
    }

    fn redial(&self) {
        self.connection.redial(self.connection.epoch());
    }

    pub(super) fn close(&self) {
        self.connection.close();
    }

    fn lock(&self) -> MutexGuard<'_, ReplicaQueue> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn unsaid() -> Error {
    let text = "the server did not say whether its replicas have the lock";
    Error::new(ErrorKind::Backend, text).passing()
}

/// The task. If it ends before its time, with its runtime, the calls that wait are told by the drop of their senders.
struct Serving(Option<Arc<Replicas>>);

impl Serving {
    async fn run(mut self) {
        if let Some(replicas) = &self.0 {
            replicas.serve().await;
            self.0 = None;
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if let Some(replicas) = &self.0 {
            let mut waiting = replicas.lock();
            waiting.is_served = false;
            let left = std::mem::take(&mut waiting.calls);
            drop(waiting);
            drop(left);
        }
    }
}

/// What a round asks the server ahead of its `WAIT`. Calls are identified by their index.
struct Questions<'a> {
    calls: &'a [ReplicaWaiter],
    /// The holds whose keys each script writes.
    written: Vec<Vec<usize>>,
    /// The holds that each script checks.
    checked: Vec<Vec<usize>>,
}

impl<'a> Questions<'a> {
    fn about(calls: &'a [ReplicaWaiter]) -> Self {
        let mut groups: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
        let mut scripts: BTreeMap<(u16, &str), Vec<usize>> = BTreeMap::new();
        for (at, call) in calls.iter().enumerate() {
            let script = call.hold.call().script.name;
            groups.entry(call.group).or_default().push(at);
            scripts.entry((call.group, script)).or_default().push(at);
        }
        let batches =
            |all: &Vec<usize>| all.chunks(BATCH).map(<[usize]>::to_vec).collect::<Vec<_>>();
        Self {
            calls,
            written: groups.values().flat_map(batches).collect(),
            checked: scripts.values().flat_map(batches).collect(),
        }
    }

    /// Returns the scripts to run, in the order in which [`told`](Self::told) reads their answers.
    fn scripts(&self) -> impl Iterator<Item = Call<'_>> {
        let look = |at: &usize| self.calls[*at].hold.call();
        let written = self.written.iter().map(move |batch| {
            let keys = batch.iter().flat_map(|at| look(at).keys);
            Call::new(&KEY_TOUCH, keys.collect(), Vec::new())
        });
        let checked = self.checked.iter();
        written.chain(checked.filter_map(move |batch| batch.iter().map(look).reduce(Call::and)))
    }

    /// Reads the answers: those to the scripts, then that to `WAIT`.
    fn told(&self, said: &[Said], least: u32) -> Vec<ReplicaVerdict> {
        let mut told: Vec<Option<ReplicaVerdict>> = self.calls.iter().map(|_| None).collect();
        let mut said = said.iter();
        let mut is_written = false;
        for (batch, said) in self.written.iter().zip(&mut said) {
            match said.as_ref().map(Reply::tagged) {
                Ok(Some(("written", [Reply::Integer(locks)]))) => is_written |= *locks > 0,
                _ => batch
                    .iter()
                    .for_each(|at| told[*at] = Some(ReplicaVerdict::unanswered(said))),
            }
        }
        for (batch, said) in self.checked.iter().zip(&mut said) {
            let standing = said
                .as_ref()
                .ok()
                .and_then(|said| said.standing(batch.len()).ok());
            for (n, at) in batch.iter().enumerate() {
                match &standing {
                    Some(standing) if standing[n] => {}
                    Some(_) => told[*at] = Some(ReplicaVerdict::Outcome(Acknowledged::Gone)),
                    None => told[*at] = Some(ReplicaVerdict::unanswered(said)),
                }
            }
        }
        let counted = |said: Option<&Said>| match said {
            // Without a write before it, the count says nothing.
            Some(Ok(Reply::Integer(_))) if !is_written => {
                ReplicaVerdict::Outcome(Acknowledged::By(0))
            }
            Some(Ok(Reply::Integer(count))) if *count >= i64::from(least) => {
                ReplicaVerdict::Outcome(Acknowledged::Enough)
            }
            Some(Ok(Reply::Integer(count))) => {
                ReplicaVerdict::Outcome(Acknowledged::By(u32::try_from(*count).unwrap_or_default()))
            }
            Some(said) => ReplicaVerdict::unanswered(said),
            None => ReplicaVerdict::unanswered(&Ok(Reply::Nil)),
        };
        let count = said.next();
        let told = told.into_iter();
        told.map(|told| told.unwrap_or_else(|| counted(count)))
            .collect()
    }
}

impl ReplicaVerdict {
    /// Returns what an unexpected reply says.
    fn unanswered(said: &Said) -> Self {
        match said {
            Ok(reply) => Self::Broken(reply.unexpected()),
            Err(text) => Self::Refused(text.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;

    impl Look for Nothing {
        fn call(&self) -> Call<'_> {
            unreachable!("a call that was told is not asked about")
        }
    }

    #[test]
    fn replica_that_had_a_hold_counts_though_the_last_round_was_too_short() {
        let end = BootInstant::now();
        let mut call = ReplicaWaiter {
            hold: Arc::new(Nothing),
            group: 0,
            end,
            had: 0,
            told: oneshot::channel().0,
        };
        let by = |count| ReplicaVerdict::Outcome(Acknowledged::By(count));
        let before = end.minus(Duration::from_secs(1));
        assert!(call.outcome(by(1), before).is_none());
        let told = call.outcome(by(0), end);
        assert!(matches!(
            told,
            Some(ReplicaVerdict::Outcome(Acknowledged::By(1)))
        ));
    }
}
