//! One round of an acquisition over several servers: asks all of them at once, wins with a majority, and undoes every
//! other outcome.
//!
//! [`rounds`](super::rounds) makes the next round. Each member is requested as a separate lock, by an attempt with its
//! own acquisition id and `Undo`, and no server knows of the others.
//!
//! # Invariants
//!
//! 1. A grant by a member becomes a guard at once. As long as there is no majority, the guards lie in [`OpenRequests`],
//!    and are dropped with it: with the future, on an error, and with a round that is not won.
//! 2. A request without an answer when the round is decided is either dropped, and so undone, or goes on in a task and
//!    joins the hold that was won. It never joins a hold that was lost or given back.
//! 3. No server counts twice: two members on one server are refused once both have said which server it is.

use std::collections::BTreeSet;
use std::future::{Future, pending};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tracing::{Instrument, debug, debug_span};

use super::attempt::{Attempt, Attempted, Polling};
use super::quorum_hold::{LateJoin, QuorumHold};
use super::request::AcquireRequest;
use crate::clock::BootInstant;
use crate::error::{Error, ErrorKind};
use crate::loss::LossReason;
use crate::name::Users;
use crate::options::{Deadline, LeaseTime};
use crate::protocol::answer::Ttl;
use crate::protocol::lock::AcquireMode;
use crate::protocol::quorum::{QuorumState, Response, grace, majority, quorum_state};
use crate::protocol::red::{Abstention, Cause};
use crate::session::{ClientHandle, LocalLock};
use crate::stats::Counted;

/// A request for a lock over several servers.
#[derive(Debug)]
pub(crate) struct QuorumAcquire {
    /// One for each member, all for one owner. Where one is enough, the first stands for all: for the name in messages,
    /// and for the client that runs tasks.
    pub(super) requests: Vec<AcquireRequest>,
    /// The longest lease of this lock, in any process.
    longest: LeaseTime,
}

/// The outcome of a round. Unless it was won, all its grants are being given back.
pub(super) enum Round {
    Won(QuorumHold),
    /// A majority votes, and others have too much of it: the lock is busy.
    Outvoted(Outvoted),
    /// No majority votes, so it is not known whether the lock is busy.
    TooFew(Shortage),
}

/// Why no majority votes.
pub(super) struct Shortage {
    /// The error of the call if it does not wait for more.
    pub(super) error: Error,
    /// After how long a majority votes, if that is only a matter of time.
    pub(super) grace: Option<Duration>,
}

/// What an outvoted call has to wait for.
pub(super) struct Outvoted {
    /// The shortest remaining lease of the other holders.
    pub(super) ttl: Ttl,
    /// The indices of the servers that others have.
    pub(super) busy: Vec<usize>,
    /// How many of `busy` are missing for a majority.
    pub(super) missing: usize,
    /// Whether servers that answer, but answered this call too late, would have made it a majority. Then news of the
    /// others is no reason to ask at once: a call that can never win would keep out those that can.
    pub(super) is_too_late: bool,
}

impl QuorumAcquire {
    /// Creates the request without any check; [`acquire_if_distinct`](Self::acquire_if_distinct) asks which servers
    /// they are.
    pub(crate) fn new(requests: Vec<AcquireRequest>, longest: LeaseTime) -> Self {
        Self { requests, longest }
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        self.requests[0].name.key()
    }

    /// Acquires the lock on a majority of the servers. Returns `None` if it was busy until the limit.
    pub(crate) async fn acquire(&self, deadline: Deadline) -> Result<Option<QuorumHold>, Error> {
        let first = &self.requests[0];
        let call = first.client.tally.call(Counted::Red, first.name.key());
        let span = debug_span!(target: "redlatch", "acquire", lock = %first.name.key(), owner = %first.shown_owner(), servers = self.requests.len());
        let rounds = first.tell_if_long(|| self.local(), self.rounds(deadline));
        let acquired = rounds.instrument(span).await;
        call.ended(deadline, &acquired);
        if matches!(acquired, Ok(None)) {
            first.tell_busy(|| self.local());
        }
        acquired
    }

    /// Returns the local lock in whose queue the waiters of this process stand, so that they are not in each other's
    /// way on the servers.
    pub(super) fn local(&self) -> LocalLock {
        let first = &self.requests[0];
        let local = first.name.local_key(Users::Majorities);
        first.client.local_locks.enter(local)
    }

    /// Returns whether this owner has the lock on a majority, so that a call re-enters and waits for nobody. Sends no
    /// request: only holds of this process count.
    pub(super) fn is_held(&self) -> bool {
        let held = self.requests.iter().filter(|request| {
            let local = request
                .client
                .local_locks
                .find(request.kind.local_key(&request.name));
            local.is_some_and(|local| request.own(&local).is_some())
        });
        held.count() >= majority(self.requests.len())
    }

    /// Waits until this owner has the lock, by another call: it has a majority of the members, as for
    /// [`is_held`](Self::is_held). A call behind others in the local queue then re-enters.
    pub(super) async fn appeared(&self) {
        let local_locks: Vec<_> = self.requests.iter().map(AcquireRequest::local).collect();
        let members = self.requests.iter().zip(&local_locks);
        some(
            majority(self.requests.len()),
            members.map(|(request, local)| request.appeared(local)),
        )
        .await;
    }

    /// Asks every server once. The grants are given back if they are no majority, or if too little is left of a
    /// majority's leases.
    ///
    /// 1. Silent servers are skipped, as long as the others are a majority.
    /// 2. All others are asked at once, in the task of the caller.
    /// 3. The round is over as soon as no further answer can change its outcome.
    /// 4. Won: the guards go into a [`QuorumHold`], which late answers may join. Otherwise all of it is dropped.
    ///
    /// `local` is the local lock whose front learns when the lock is given back. Dropping the future drops all
    /// requests.
    pub(super) async fn round(&self, local: &LocalLock, mode: AcquireMode) -> Result<Round, Error> {
        let (first, longest) = (&self.requests[0], self.longest);
        let (asked, quorum_state) = loop {
            let asks = self.requests.iter().zip(self.silent());
            let asks = asks.map(|(request, spared)| {
                let request = request.clone();
                async move {
                    match spared {
                        Some(error) => Err(error),
                        None => ask(request, mode, longest).await,
                    }
                }
            });
            let mut asked = OpenRequests::new(&first.client, self.requests.len(), asks);
            let decided = async move {
                let quorum_state = asked.decide(vote).await;
                (asked, quorum_state)
            };
            // Otherwise nobody polled this call, and what it had was given back.
            if let Some(decided) = first.client.while_polled(decided).await {
                break decided;
            }
        };
        // Without a majority, `asked` is dropped: guards release what was granted, and requests without an answer are
        // undone.
        match quorum_state {
            QuorumState::Won => {}
            QuorumState::Outvoted => return Ok(Round::Outvoted(self.outvoted(&asked))),
            QuorumState::TooFew | QuorumState::Open => {
                return self.too_few(&asked).map(Round::TooFew);
            }
        }
        // Each lease was long enough at its grant, but time has passed since. The members may have different ones.
        let is_timely = |answer: &&Result<Polling, Error>| match answer {
            Ok(Polling::Voted(Attempted::Granted(guard))) => guard.is_timely(),
            _ => false,
        };
        if asked.answers().filter(is_timely).count() < majority(self.requests.len()) {
            return Err(first.too_late());
        }
        let quorum_hold = QuorumHold::new(self.requests.len(), local.clone());
        for (at, answer) in asked.answers.into_iter().enumerate() {
            if let Some(Ok(Polling::Voted(Attempted::Granted(guard)))) = answer {
                quorum_hold.join(at, guard);
            }
        }
        self.go_on(quorum_hold.late_join(), asked.awaited);
        Ok(Round::Won(quorum_hold))
    }

    /// Returns what to wait for after a round that others have won. Outstanding answers do not count: if they could
    /// change the outcome, the round would not be decided.
    fn outvoted(&self, asked: &OpenRequests<Result<Polling, Error>>) -> Outvoted {
        let (mut yes, mut late, mut busy, mut shortest) = (0, 0, Vec::new(), None);
        for (at, answer) in asked.answers.iter().enumerate() {
            match answer {
                Some(Ok(Polling::Voted(Attempted::Granted(_)))) => yes += 1,
                Some(Ok(Polling::Voted(Attempted::Busy(ttl)))) => {
                    busy.push(at);
                    shortest = shortest.into_iter().chain(ttl.left()).min();
                }
                Some(Err(_)) if silence(&self.requests[at]).is_none() => late += 1,
                _ => {}
            }
        }
        let missing = majority(self.requests.len()).saturating_sub(yes);
        Outvoted {
            ttl: shortest.map_or(Ttl::Never, Ttl::Ends),
            busy,
            missing,
            is_too_late: late >= missing,
        }
    }

    /// Returns since when too few servers have answered for a majority, or `None` if enough answer now.
    pub(super) fn silent_since(&self) -> Option<BootInstant> {
        let silences = self.requests.iter().filter_map(silence);
        let mut silences: Vec<_> = silences.map(|(since, _)| since).collect();
        silences.sort_unstable();
        let speaking = self.requests.len() - majority(self.requests.len());
        silences.get(speaking).copied()
    }

    /// Returns, for each silent server, the reason not to ask it. So nobody waits for it, and no round leaves anything
    /// owed to it. If the others are no majority, all servers are asked.
    fn silent(&self) -> Vec<Option<Error>> {
        let silences = self.requests.iter().map(silence);
        let mut silent: Vec<_> = silences.map(|it| it.map(|(_, error)| error)).collect();
        let speaking = silent.iter().filter(|silence| silence.is_none()).count();
        if speaking < majority(self.requests.len()) {
            silent.fill(None);
        }
        for (request, silence) in self.requests.iter().zip(&silent) {
            let key = request.name.key();
            if silence.is_some() && request.client.backend.is_to_be_tried(key) {
                let request = request.clone();
                // Any answer ends the silence.
                request.client.clone().spawn(async move {
                    let call = request.kind.inspect(&request.name, "");
                    let answer = request.client.run(&call, request.timeout()).await;
                    debug!(?answer, "probed a silent server");
                });
            }
        }
        silent
    }

    /// Waits in the background for the servers that have not answered, so that the guard has all the members that it
    /// can. The task does not keep the hold alive.
    fn go_on(&self, quorum_hold: LateJoin, mut late: Awaited<Result<Polling, Error>>) {
        if late.is_empty() {
            return;
        }
        self.requests[0].client.spawn(async move {
            while let Some((at, answer)) = late.next().await {
                if let Ok(Polling::Voted(Attempted::Granted(guard))) = answer {
                    quorum_hold.join(at, guard);
                }
            }
        });
    }

    /// Acquires the lock, and returns `Err` for two members on one server, whose vote would count twice. For a handle,
    /// until all servers have identified themselves once. Also returns whether they have.
    ///
    /// Each server is asked for its identity just before it is asked for the lock, over the same connection. So a
    /// server that votes has identified itself, and nobody waits for the others.
    pub(crate) async fn acquire_if_distinct(
        &self,
        deadline: Deadline,
    ) -> Result<(Option<QuorumHold>, bool), Error> {
        let asked = self
            .requests
            .iter()
            .map(async |request| match silence(request) {
                Some((_, error)) => Err(error),
                None => request.client.server(request.name.key()).await,
            });
        let mut asked: FuturesUnordered<_> = asked.collect();
        let mut servers = BTreeSet::new();
        let mut acquired = pin!(self.acquire(deadline));
        let quorum_hold = loop {
            tokio::select! {
                biased;
                Some(server) = asked.next() => {
                    if let Ok(server) = server && !servers.insert(server) {
                        return Err(self.one_server());
                    }
                }
                acquired = &mut acquired => break acquired?,
            }
        };
        Ok((quorum_hold, servers.len() == self.requests.len()))
    }

    fn one_server(&self) -> Error {
        let name = self.name();
        Error::invalid(format!(
            "two members of {name:?} are on one server, whose vote would count twice: give each a server of its own"
        ))
    }

    /// Returns what kept a majority from voting, or an error that decides the call, however many servers answer. A
    /// shortage may pass, so the call goes on while there is time.
    fn too_few(&self, asked: &OpenRequests<Result<Polling, Error>>) -> Result<Shortage, Error> {
        let (mut yes, mut no) = (0, 0);
        let mut abstaining: Vec<Abstention> = Vec::new();
        let mut errors: Vec<Error> = Vec::new();
        for answer in asked.answers() {
            match (vote(answer), answer) {
                (Response::Yes, _) => yes += 1,
                (Response::No, _) => no += 1,
                (_, Ok(Polling::Abstains(abstention))) => abstaining.push(*abstention),
                (_, Err(error)) => errors.push(error.clone()),
                (_, Ok(Polling::Voted(_))) => {}
            }
        }
        let (servers, name) = (self.requests.len(), self.name());
        let most = majority(servers);
        // An error is decisive if every majority has a server that gives such an error. Errors of a server or its
        // connection that may pass do not count.
        let decisive = errors.iter().find(|error| {
            let alike = |other: &&Error| {
                other.kind() == error.kind() && other.is_passing() == error.is_passing()
            };
            let is_of_the_moment = error.is_about_the_server() && error.is_passing();
            !is_of_the_moment && errors.iter().filter(alike).count() > servers - most
        });
        if let Some(error) = decisive {
            return Err(error.clone());
        }
        let failed = servers - yes - no - abstaining.len();
        let mut message = format!(
            "{name:?} needs {most} of {servers} servers: {yes} granted it, {no} found it busy, {failed} failed or did \
             not answer"
        );
        let left = abstaining.iter().map(|abstention| abstention.left);
        if let Some(longest) = left.clone().max() {
            let causes: BTreeSet<_> = abstaining.iter().map(|it| it.cause).collect();
            let listed: Vec<_> = causes.iter().map(ToString::to_string).collect();
            message += &format!(
                ", {} may have forgotten what they granted ({}) and will vote within {longest:?}",
                abstaining.len(),
                listed.join("; ")
            );
            if causes.contains(&Cause::Started) {
                message += "; in development, trust_fresh_servers lets new servers vote at once";
            }
        }
        let error = Error::new(ErrorKind::Quorum, message).passing();
        Ok(Shortage {
            grace: grace(yes + no, left, servers),
            error: match errors.into_iter().next() {
                Some(source) => error.caused_by(source),
                None => error,
            },
        })
    }
}

/// Asks one server for its part of the lock, which takes the time of one request, and waits for its replicas. Can be
/// dropped at any point: the attempt or the guard then gives everything back.
async fn ask(
    request: AcquireRequest,
    mode: AcquireMode,
    longest: LeaseTime,
) -> Result<Polling, Error> {
    let part = take_part(&request, mode, longest);
    match request.within(Duration::ZERO, part).await? {
        Polling::Voted(Attempted::Granted(guard)) => {
            let guard = guard.acknowledged().await?;
            Ok(Polling::Voted(Attempted::Granted(guard)))
        }
        polling => Ok(polling),
    }
}

/// Acquires a part of the lock. If this owner has it already, and the server votes, re-enters it, whatever the other
/// servers say.
async fn take_part(
    request: &AcquireRequest,
    mode: AcquireMode,
    longest: LeaseTime,
) -> Result<Polling, Error> {
    request.client.ensure_open()?;
    let local = request.local();
    loop {
        if let Some(hold) = request.own(&local) {
            // The owner may have acquired it alone, from a server that does not vote. Once it has stood for the longest
            // lease, every grant from before it has ended. It counts from the request, which may have been on its way.
            if !hold.record.is_vote() && hold.held_for() < longest.get() + hold.timeout {
                let mut attempt = Attempt::new(request, &local);
                let _asking = attempt.turn().await?;
                let polling = attempt.poll(AcquireMode::JoinOnly, longest).await?;
                if let Polling::Abstains(_) = polling {
                    return Ok(polling);
                }
                hold.record.voted();
            }
            if let Some(guard) = request.reenter(&local, &hold).await? {
                return Ok(Polling::Voted(Attempted::Granted(guard)));
            }
            // It has ended in the meantime, so it is requested like any other.
            continue;
        }
        let mut attempt = Attempt::new(request, &local);
        let asking = attempt.turn().await?;
        // Another call of this owner may have acquired this part while this one waited for its turn.
        if request.own(&local).is_none() {
            let polling = attempt.poll(mode, longest).await?;
            drop(asking);
            if let Polling::Voted(Attempted::Granted(guard)) = &polling {
                guard.hold.record.voted();
            }
            return Ok(polling);
        }
    }
}

/// Returns how an answer counts. An abstention and an error count as missing, since neither shows that another owner
/// has the part. So does a grant that was lost before the round was over. A grant that took too long counts: a majority
/// of those is an error, not a reason to ask again.
fn vote(answer: &Result<Polling, Error>) -> Response {
    match answer {
        Ok(Polling::Voted(Attempted::Granted(guard))) => match guard.hold.loss() {
            None | Some(LossReason::Expired) => Response::Yes,
            Some(_) => Response::Missing,
        },
        Ok(Polling::Voted(Attempted::Busy(_) | Attempted::Yielded)) => Response::No,
        Ok(Polling::Abstains(_)) | Err(_) => Response::Missing,
    }
}

/// Runs futures next to each other until `enough` of them are done. Never returns if there are fewer.
pub(super) async fn some<F: Future>(enough: usize, futures: impl IntoIterator<Item = F>) {
    let mut running: FuturesUnordered<_> = futures.into_iter().collect();
    for _ in 0..enough {
        if running.next().await.is_none() {
            pending::<()>().await;
        }
    }
}

/// The outstanding answers, each with the index of its server. They go on in the background once a majority has been
/// found.
type Awaited<T> = FuturesUnordered<BoxFuture<'static, (usize, T)>>;

/// Returns how the server of a request last failed, if it is silent.
fn silence(request: &AcquireRequest) -> Option<(BootInstant, Error)> {
    request.client.backend.silence(request.name.key())
}

/// Requests to several servers, sent at once: to acquire a lock, and later to extend, check or release it. Dropping
/// this drops the unanswered requests.
pub(crate) struct OpenRequests<T> {
    /// The number of servers of which a majority is needed. Those that are not asked count as a no.
    servers: usize,
    /// One for each request, `None` until it is answered.
    answers: Vec<Option<T>>,
    awaited: Awaited<T>,
}

impl<T: Send + 'static> OpenRequests<T> {
    /// Takes at most `servers` requests, since a member that is not held is not asked. [`decide`](Self::decide) sends
    /// them by polling.
    pub(crate) fn new<F>(
        client: &ClientHandle,
        servers: usize,
        asks: impl Iterator<Item = F>,
    ) -> Self
    where
        F: Future<Output = T> + Send + 'static,
    {
        let ask = |(at, ask)| {
            let ask = async move { (at, ask.await) };
            // The caller's runtime may end before requests that go on in the background.
            client.with_timers(ask).boxed()
        };
        let awaited: Awaited<T> = asks.enumerate().map(ask).collect();
        Self {
            servers,
            answers: awaited.iter().map(|_| None).collect(),
            awaited,
        }
    }

    /// Waits for answers until they decide, or none is outstanding. Requests still outstanding stay in `awaited`.
    pub(crate) async fn decide(&mut self, vote: impl Fn(&T) -> Response) -> QuorumState {
        loop {
            let said = self.answers.iter().map(Option::as_ref);
            let mut votes: Vec<_> = said
                .map(|answer| answer.map_or(Response::Awaited, &vote))
                .collect();
            votes.resize(self.servers, Response::No);
            let quorum_state = quorum_state(&votes);
            if quorum_state != QuorumState::Open {
                return quorum_state;
            }
            let Some((at, answer)) = self.awaited.next().await else {
                return quorum_state;
            };
            self.answers[at] = Some(answer);
        }
    }

    /// Returns the answers that have come in.
    pub(crate) fn answers(&self) -> impl Iterator<Item = &T> {
        self.answers.iter().flatten()
    }

    /// Returns how many answers are outstanding.
    pub(crate) fn awaited(&self) -> usize {
        self.awaited.len()
    }

    /// Lets the unanswered requests go on in the background, and ignores their answers. For releases and extensions,
    /// which would otherwise be cut off, and then sent again or left in doubt.
    pub(crate) fn go_on(mut self, client: &ClientHandle) {
        if !self.awaited.is_empty() {
            client.spawn(async move { while self.awaited.next().await.is_some() {} });
        }
    }
}
