//! One call's way to a majority of several servers: a round after another, until one is won.

use std::future::pending;
use std::time::Duration;

use tokio::time::{sleep, timeout};
use tracing::{debug, info};

use super::quorum_acquire::{Outvoted, QuorumAcquire, Round, Shortage, some};
use super::quorum_hold::QuorumHold;
use super::request::AcquireRequest;
use crate::backoff::Backoff;
use crate::clock::BootInstant;
use crate::error::Error;
use crate::options::Deadline;
use crate::protocol::lock::AcquireMode;
use crate::protocol::policy::MAJORITY;
use crate::protocol::wait::{Step, Wait, WakeSource};
use crate::protocol::waiter::Local;
use crate::session::LocalLock;
use crate::session::give_back::Place;
use crate::session::hub::Subscription;
use crate::session::local_queue::Role;
use crate::wait::{Asked, Waiting, Wanted};

/// Callers that were told of a release at the same time part within this time.
const APART: Duration = Duration::from_millis(2);

/// The pauses of a waiter that hears nothing: up to a part of what it has waited, between these.
const WAITED_TO_PAUSE: u32 = 16;
const SHORT_PAUSES: Duration = Duration::from_millis(128);
const LONG_PAUSES: Duration = Duration::from_secs(1);

/// What one call knows from the rounds before.
struct Rounds<'a> {
    quorum_acquire: &'a QuorumAcquire,
    line: &'a LocalLock,
    /// It asks though it stands in no line, since its owner has the lock.
    is_out_of_line: bool,
    /// By server.
    subscriptions: Vec<Option<Subscription>>,
    /// What it took to win the last round.
    outvoted: Option<Outvoted>,
    too_few_since: Option<BootInstant>,
    told_of_grace: bool,
}

/// How standing in line, or asking, went on.
enum Outcome<'a> {
    Won(QuorumHold),
    Front(Place<'a>),
    /// The owner has the lock by another call, or no longer: it is to be seen whether this one stands in line.
    Again,
}

impl QuorumAcquire {
    /// Asks all servers, round after round. `None` if the lock was busy until the limit.
    pub(super) async fn rounds(&self, deadline: Deadline) -> Result<Option<QuorumHold>, Error> {
        let first = &self.requests[0];
        let mut wait = Wait::new(
            BootInstant::now(),
            deadline,
            first.patience(),
            self.pauses(Duration::ZERO),
        );
        first.client.ensure_open()?;
        let line = self.line();
        let mut rounds = Rounds {
            quorum_acquire: self,
            line: &line,
            is_out_of_line: false,
            subscriptions: Vec::new(),
            outvoted: None,
            too_few_since: None,
            told_of_grace: false,
        };
        loop {
            rounds.is_out_of_line = !wait.is_single_attempt() && self.is_held();
            let place = match rounds.is_out_of_line || wait.is_single_attempt() {
                true => line.stand(Role::Beside, None, &first.client.releaser.runtime),
                false => match self.stand_in_line(&line, &wait).await? {
                    None => return Ok(None),
                    Some(Outcome::Won(quorum_hold)) => return Ok(Some(quorum_hold)),
                    Some(Outcome::Front(place)) => place,
                    Some(Outcome::Again) => continue,
                },
            };
            let waiting = Waiting::new(&first.client, &first.name, &mut wait, MAJORITY);
            match waiting.at(&place).until(&mut rounds).await? {
                None => return Ok(None),
                Some(Outcome::Won(quorum_hold)) => {
                    debug!(waited = ?wait.waited(BootInstant::now()), "acquired");
                    return Ok(Some(quorum_hold));
                }
                Some(Outcome::Front(_) | Outcome::Again) => {}
            }
        }
    }

    /// Waits behind the other calls of this process. `None` if there is no time left.
    async fn stand_in_line<'a>(
        &self,
        line: &'a LocalLock,
        wait: &Wait,
    ) -> Result<Option<Outcome<'a>>, Error> {
        let Step::Park(at_most) = wait.in_queue(BootInstant::now(), None) else {
            return Ok(None);
        };
        let runtime = &self.requests[0].client.releaser.runtime;
        let place = line.stand(Role::InQueue, None, runtime);
        if place.now().is_some() {
            return Ok(Some(Outcome::Front(place)));
        }
        let first = &self.requests[0];
        // A named owner may hold the lock through other processes; then this is a re-entry, and never queues.
        if first.owner.is_named()
            && first.kind.is_reentrant()
            && let Round::Won(quorum_hold) = self.round(line, AcquireMode::JoinOnly).await?
        {
            return Ok(Some(Outcome::Won(quorum_hold)));
        }
        let turn = async {
            tokio::select! {
                _ = place.comes() => true,
                () = self.appeared() => false,
            }
        };
        let turn = first.client.unless_closed(timeout(at_most, turn)).await?;
        Ok(Some(match turn {
            Ok(true) => Outcome::Front(place),
            Ok(false) | Err(_) => Outcome::Again,
        }))
    }

    /// Where no message comes, it asks the less often the longer it has waited: it gets in late by a part of that only.
    fn pauses(&self, waited: Duration) -> WakeSource {
        let longest = (waited / WAITED_TO_PAUSE).clamp(SHORT_PAUSES, LONG_PAUSES);
        let cap = self.requests[0].client.settings.poll_cap;
        WakeSource::pauses(Backoff::exponential().up_to(longest), cap)
    }
}

impl Local for Rounds<'_> {}

impl<'a> Wanted for Rounds<'a> {
    type Output = Outcome<'a>;

    fn settled(&mut self) -> Option<Outcome<'a>> {
        let belongs_in_line = self.is_out_of_line && !self.quorum_acquire.is_held();
        belongs_in_line.then_some(Outcome::Again)
    }

    async fn ask(&mut self, waiting: &mut Waiting<'_>) -> Result<Asked<Outcome<'a>>, Error> {
        for subscription in self.subscriptions.iter_mut().flatten() {
            subscription.catch_up();
        }
        self.outvoted = None;
        match self
            .quorum_acquire
            .round(self.line, AcquireMode::Vote)
            .await?
        {
            Round::Won(quorum_hold) => Ok(Asked::Ready(Outcome::Won(quorum_hold))),
            Round::Outvoted(outvoted) => {
                self.too_few_since = None;
                let wake_source = self.wake_source(&outvoted, waiting.wait());
                waiting.wait().listen_for(wake_source);
                let ttl = outvoted.ttl;
                self.outvoted = Some(outvoted);
                Ok(Asked::Busy(ttl.into()))
            }
            Round::TooFew(shortage) => self.until_enough(shortage, waiting.wait()),
        }
    }

    /// Waits until so many of the servers that others had may be free that a majority is.
    async fn happens(&mut self) -> Result<Option<Outcome<'a>>, Error> {
        let Some(Outvoted { busy, missing, .. }) = &self.outvoted else {
            return pending().await;
        };
        if self.subscriptions.is_empty() {
            let requests = self.quorum_acquire.requests.iter();
            self.subscriptions.extend(requests.map(listen));
        }
        let subscriptions = self.subscriptions.iter_mut().enumerate();
        let of_busy = subscriptions.filter(|(at, _)| busy.contains(at));
        let told = of_busy.filter_map(|(_, subscription)| Some(subscription.as_mut()?.news()));
        some(*missing, told).await;
        // Others were told too.
        sleep(APART.mul_f64(fastrand::f64())).await;
        Ok(None)
    }
}

impl<'a> Rounds<'a> {
    /// Once all servers that others have can be heard, the one that has the lock is: its releases tell.
    fn wake_source(&self, outvoted: &Outvoted, wait: &Wait) -> WakeSource {
        let is_heard = |at: &usize| {
            let subscription = self.subscriptions.get(*at).and_then(Option::as_ref);
            subscription.is_some_and(Subscription::is_heard)
        };
        match outvoted.busy.iter().all(is_heard) {
            true => WakeSource::Messages {
                poll_cap: self.quorum_acquire.requests[0].client.settings.poll_cap,
            },
            false => self.quorum_acquire.pauses(wait.waited(BootInstant::now())),
        }
    }

    /// No majority votes: how long to wait for one, if there is time for that.
    fn until_enough(
        &mut self,
        shortage: Shortage,
        wait: &mut Wait,
    ) -> Result<Asked<Outcome<'a>>, Error> {
        let Shortage { error, grace } = shortage;
        let now = BootInstant::now();
        let step = match grace {
            Some(left) => {
                self.too_few_since = None;
                if !std::mem::replace(&mut self.told_of_grace, true) {
                    info!(?left, "waiting for servers to vote: {error}");
                }
                wait.abstained(now, left)
            }
            None => wait.failed(now, Some(*self.too_few_since.get_or_insert(now))),
        };
        match step {
            Step::Park(at_most) => Ok(Asked::Later(at_most)),
            Step::GiveUp => Err(error),
        }
    }
}

/// Listens for releases on the server of this order, if its kind tells of them.
fn listen(request: &AcquireRequest) -> Option<Subscription> {
    let tells = matches!(request.wake_source, WakeSource::Messages { .. });
    tells.then(|| request.client.hub.subscribe(request.name.channel()))
}
