//! Makes rounds for one call, until it wins a majority of several servers.
//!
//! The calls of this process stand in one local queue for the lock, and only its front asks, so that they do not take
//! members from each other. Between rounds a call has nothing on any server: what a lost round brought is being given
//! back. So nothing here has to be undone if the future is dropped.
//!
//! A round that was not won leads to one of three waits, and then to another round:
//!
//! 1. Others have too much of it. The call waits for messages from the servers that they have, if it can hear all of
//!    these, and for the first of their leases to end; otherwise it pauses.
//! 2. Too few servers vote, which is only a matter of time. The call looks again within half a second, and does not use
//!    up its patience.
//! 3. Too few servers vote for another reason. The call pauses, until its limit or its patience is reached.
//!
//! Calls of several processes are in each other's way, since each may get a part. So their pauses are random, and
//! messages are acted on only when enough of them have come for a majority. Calls that each got a part spread out over
//! more time than a round takes.
//!
//! A server that is silent is not asked again while the others are a majority: each request would leave an `Undo`.
//! What it has of the lock is asked in the background, every second.

use std::future::pending;
use std::pin::pin;
use std::time::Duration;

use tokio::time::sleep;
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
use crate::protocol::quorum::majority;
use crate::protocol::wait::{Step, Wait, WakeSource};
use crate::protocol::waiter::Local;
use crate::session::LocalLock;
use crate::session::hub::Subscription;
use crate::session::local_queue::Role;
use crate::session::share::Place;
use crate::wait::{Asked, Waiting, Wanted};

/// Callers that were told of a release at the same time spread out over this time.
const APART: Duration = Duration::from_millis(2);

/// The pauses of a waiter that receives no messages: at most this part of the time that it has waited, between the
/// two limits below.
const WAITED_TO_PAUSE: u32 = 16;
const SHORT_PAUSES: Duration = Duration::from_millis(128);
const LONG_PAUSES: Duration = Duration::from_secs(1);

/// What one call knows from earlier rounds. It lasts for the whole call, even while that goes back into the queue.
/// Nothing in it is needed to give anything back.
struct Rounds<'a> {
    quorum_acquire: &'a QuorumAcquire,
    /// The local lock of the whole, not of a member.
    local: &'a LocalLock,
    /// The call asks without a place in the local queue, since its owner has the lock. Looked at again before each
    /// round: the owner may have given the lock back meanwhile.
    is_out_of_queue: bool,
    /// One per server, from the first round that others won. `None` for a member whose releases are not announced.
    subscriptions: Vec<Option<Subscription>>,
    /// What it would have taken to win the last round.
    outvoted: Option<Outvoted>,
    /// Over which time this call and the others that were told of a release spread out.
    apart: Duration,
    /// It was logged that the call waits for servers to vote: once for each call.
    told_of_grace: bool,
}

/// How standing in the local queue, or asking, went on.
enum RoundsOutcome {
    Won(QuorumHold),
    /// The call has come to the front, and asks.
    Front,
    /// The owner has the lock by another call, or no longer has it: decide again whether this call stands in the
    /// local queue.
    Again,
}

impl QuorumAcquire {
    /// Asks all servers, round after round. Returns `None` if the lock was busy until the limit.
    ///
    /// Each pass of the loop begins by deciding whether the call stands in the local queue, since its owner may have
    /// got the lock by another call, or have given it back.
    pub(super) async fn rounds(&self, deadline: Deadline) -> Result<Option<QuorumHold>, Error> {
        let first = &self.requests[0];
        let (now, pauses) = (BootInstant::now(), self.pauses(Duration::ZERO, APART));
        let mut wait = Wait::new(now, deadline, first.patience(), pauses);
        first.client.ensure_open()?;
        let (local, runtime) = (self.local(), &first.client.releaser.runtime);
        // Entered once: a call that starts over keeps its place.
        let mut in_queue = None;
        let mut rounds = Rounds {
            quorum_acquire: self,
            local: &local,
            is_out_of_queue: false,
            subscriptions: Vec::new(),
            outvoted: None,
            apart: APART,
            told_of_grace: false,
        };
        loop {
            rounds.is_out_of_queue = !wait.is_single_attempt() && self.is_held();
            // A re-entry waits for nobody, and a single attempt does not wait: both ask no matter who stands in the
            // queue.
            let is_beside = rounds.is_out_of_queue || wait.is_single_attempt();
            let beside = is_beside.then(|| local.stand(Role::Beside, None, runtime));
            let place = match &beside {
                Some(place) => place,
                None => {
                    let stand = || local.stand(Role::InQueue, None, runtime);
                    let place = &*in_queue.get_or_insert_with(stand);
                    match self.stand_in_queue(&local, place, &wait).await? {
                        None => return Ok(None),
                        Some(RoundsOutcome::Won(quorum_hold)) => return Ok(Some(quorum_hold)),
                        Some(RoundsOutcome::Front) => place,
                        Some(RoundsOutcome::Again) => continue,
                    }
                }
            };
            let waiting = Waiting::new(&first.client, &first.name, &mut wait, MAJORITY);
            match waiting.at(place).until(&mut rounds).await? {
                None => return Ok(None),
                Some(RoundsOutcome::Won(quorum_hold)) => {
                    debug!(target: "redlatch", waited = ?wait.waited(BootInstant::now()), "acquired");
                    return Ok(Some(quorum_hold));
                }
                Some(RoundsOutcome::Front | RoundsOutcome::Again) => {}
            }
        }
    }

    /// Waits behind the other calls of this process. Returns `None` if there is no time left.
    async fn stand_in_queue(
        &self,
        local: &LocalLock,
        place: &Place<'_>,
        wait: &Wait,
    ) -> Result<Option<RoundsOutcome>, Error> {
        if wait.in_queue(BootInstant::now(), None) == Step::GiveUp {
            return Ok(None);
        }
        if place.now().is_some() {
            return Ok(Some(RoundsOutcome::Front));
        }
        let first = &self.requests[0];
        place.catch_up(BootInstant::now().plus(first.timeout()));
        // A named owner may hold the lock through other processes: that is a re-entry, and never queues. A round in
        // vain gives back what it got, and the call goes on to wait.
        if first.owner.is_named()
            && first.kind.is_reentrant()
            && let Round::Won(quorum_hold) = self.round(local, AcquireMode::JoinOnly).await?
        {
            return Ok(Some(RoundsOutcome::Won(quorum_hold)));
        }
        let turn = {
            let turn = pin!(async {
                tokio::select! {
                    _ = place.comes() => true,
                    () = self.appeared() => false,
                }
            });
            first.client.in_queue(None, wait, turn).await?
        };
        Ok(turn.map(|is_front| match is_front {
            true => RoundsOutcome::Front,
            false => RoundsOutcome::Again,
        }))
    }

    /// Returns the pauses of a waiter that no message reaches. The longer it has waited, the less often it asks, so
    /// that it gets in late by only a part of the time waited. With a random part of up to `apart`, if that is long.
    fn pauses(&self, waited: Duration, apart: Duration) -> WakeSource {
        let cap = self.requests[0].client.settings.poll_cap;
        let longest = (waited / WAITED_TO_PAUSE).clamp(SHORT_PAUSES, LONG_PAUSES);
        let longest = longest.min(cap);
        let mut pauses = Backoff::exponential().up_to(longest);
        if apart > APART {
            pauses = pauses.jitter(apart);
        }
        WakeSource::pauses(pauses, cap + apart)
    }
}

impl Local for Rounds<'_> {}

impl Wanted for Rounds<'_> {
    type Output = RoundsOutcome;

    fn without_asking(&mut self) -> Option<RoundsOutcome> {
        // The call asked without a place because its owner had the lock. Without the lock, it has to queue.
        let belongs_in_queue = self.is_out_of_queue && !self.quorum_acquire.is_held();
        belongs_in_queue.then_some(RoundsOutcome::Again)
    }

    /// Makes one round. An outvoted call then waits by messages or by pauses, whichever can be relied on.
    async fn ask(&mut self, waiting: &mut Waiting<'_>) -> Result<Asked<RoundsOutcome>, Error> {
        // What was told before the round is answered by it; what comes from now on makes another round worthwhile.
        for subscription in self.subscriptions.iter_mut().flatten() {
            subscription.catch_up();
        }
        let began = BootInstant::now();
        self.outvoted = None;
        match self
            .quorum_acquire
            .round(self.local, AcquireMode::Vote)
            .await?
        {
            Round::Won(quorum_hold) => Ok(Asked::Ready(RoundsOutcome::Won(quorum_hold))),
            Round::Outvoted(outvoted) => {
                // Each of several callers may get the servers that are nearer to it, and gets them again, unless one
                // asks earlier than the others by the time that its requests travel longer.
                let is_split = outvoted.missing < majority(self.quorum_acquire.requests.len());
                let took = began.until(BootInstant::now());
                self.apart = match is_split {
                    true => (took * 4).clamp(APART, LONG_PAUSES),
                    false => APART,
                };
                let wake_source = self.wake_source(&outvoted, waiting.wait());
                waiting.wait().listen_for(wake_source);
                let ttl = outvoted.ttl;
                self.outvoted = Some(outvoted);
                Ok(Asked::Busy(ttl.into()))
            }
            Round::TooFew(shortage) => self.until_enough(shortage, waiting.wait()),
        }
    }

    /// Waits until enough of the servers that others had may be free for a majority. It subscribes here, so a call that
    /// wins its first round does not.
    async fn happens(&mut self) -> Result<Option<RoundsOutcome>, Error> {
        let Some(outvoted) = self.outvoted.as_ref().filter(|it| !it.is_too_late) else {
            return pending().await;
        };
        let Outvoted { busy, missing, .. } = outvoted;
        if self.subscriptions.is_empty() {
            let requests = self.quorum_acquire.requests.iter();
            self.subscriptions.extend(requests.map(listen));
        }
        let subscriptions = self.subscriptions.iter_mut().enumerate();
        let of_busy = subscriptions.filter(|(at, _)| busy.contains(at));
        let told = of_busy.filter_map(|(_, subscription)| Some(subscription.as_mut()?.news()));
        // Not at each message: calls that ask in vain give back what they got, and servers tell of that too.
        some(*missing, told).await;
        // Others were told at the same time.
        sleep(self.apart.mul_f64(fastrand::f64())).await;
        Ok(None)
    }
}

impl Rounds<'_> {
    /// Returns messages as the wake source once all servers that others have are subscribed to: the holder's releases
    /// are among what they tell. Until then, and for a call that is answered too late, returns pauses.
    fn wake_source(&self, outvoted: &Outvoted, wait: &Wait) -> WakeSource {
        let is_heard = |at: &usize| {
            let subscription = self.subscriptions.get(*at).and_then(Option::as_ref);
            subscription.is_some_and(Subscription::is_heard)
        };
        match !outvoted.is_too_late && outvoted.busy.iter().all(is_heard) {
            true => WakeSource::Messages {
                poll_cap: self.quorum_acquire.requests[0].client.settings.poll_cap,
            },
            false => {
                let waited = wait.waited(BootInstant::now());
                self.quorum_acquire.pauses(waited, self.apart)
            }
        }
    }

    /// Returns how long to wait for a majority to vote, or the error if there is no time for that. A call without a
    /// limit has its patience for servers that fail, counted from the first round in which they were too many.
    fn until_enough(
        &mut self,
        shortage: Shortage,
        wait: &mut Wait,
    ) -> Result<Asked<RoundsOutcome>, Error> {
        let Shortage { error, grace } = shortage;
        let now = BootInstant::now();
        let step = match grace {
            Some(left) => {
                // Servers that only abstain are not silent, so that no patience runs out.
                if !std::mem::replace(&mut self.told_of_grace, true) {
                    info!(?left, "waiting for servers to vote: {error}");
                }
                wait.abstained(now, left)
            }
            // So few answers count as none.
            None => wait.failed(now, false, self.quorum_acquire.silent_since()),
        };
        match step {
            Step::Park(at_most) => Ok(Asked::Later(at_most)),
            Step::GiveUp => Err(error),
        }
    }
}

/// Listens for releases on the server of this request, if its kind tells of them.
fn listen(request: &AcquireRequest) -> Option<Subscription> {
    let tells = matches!(request.wake_source, WakeSource::Messages { .. });
    tells.then(|| request.client.hub.subscribe(request.name.channel()))
}
