//! Drives one acquisition to a hold, a refusal or a deadline; undoes it if dropped.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::SemaphorePermit;
use tokio::time::{sleep, timeout};
use tracing::{Instrument, debug, debug_span};

use super::guard::LockGuard;
use super::lease::Lease;
use crate::clock::Moment;
use crate::error::{Error, ErrorKind};
use crate::name::LockName;
use crate::options::{LeaseTime, Limit, SHORTEST_TIMEOUT, Term};
use crate::owner::Owner;
use crate::protocol::lock::{self, Acquired, Adopted, HoldKey, Reentered, Ttl};
use crate::protocol::script::Call;
use crate::protocol::wait::{Step, Wait};
use crate::session::Anchor;
use crate::session::backend::Answer;
use crate::session::hold::{Hold, Loss};
use crate::session::hub::Subscription;
use crate::session::queue::Queue;
use crate::session::reaper::{Debt, Settled};

/// While messages may not arrive, the waiter at the front asks this often.
const DEAF_POLL: Duration = Duration::from_secs(1);

/// What is asked for: a lock, for an owner, on terms.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    pub(crate) anchor: Arc<Anchor>,
    pub(crate) name: LockName,
    pub(crate) owner: Owner,
    pub(crate) term: Term,
    /// What must be left of the lease when the guard is handed out.
    pub(crate) min_validity: Duration,
}

/// How standing in line ended.
enum Turn<'a> {
    Front(SemaphorePermit<'a>),
    Granted(LockGuard),
    /// The owner holds the lock by now, through another call.
    Reenter,
    GaveUp,
}

/// How the front of the line was left.
enum Outcome {
    Granted(LockGuard),
    Reenter,
    GaveUp,
}

impl Order {
    /// Takes the lock, or takes it again. None if it was busy until the limit.
    pub(crate) async fn acquire(&self, limit: Limit) -> Result<Option<LockGuard>, Error> {
        let span = debug_span!("acquire", lock = %self.name.key(), owner = %self.owner);
        self.anchor.ensure_open()?;
        self.take(limit).instrument(span).await
    }

    async fn take(&self, limit: Limit) -> Result<Option<LockGuard>, Error> {
        let settings = &self.anchor.settings;
        let mut wait = Wait::new(Moment::now(), limit, self.patience(), settings.poll_cap);
        let queue = self.anchor.queues.enter(self.name.key());
        loop {
            while let Some(hold) = queue.live(&self.owner) {
                match self.reenter(&hold).await {
                    Ok(Some(guard)) => return Ok(Some(guard)),
                    // The hold has ended; perhaps there is a newer one.
                    Ok(None) => {}
                    Err(error) => self.pause(&mut wait, error).await?,
                }
            }
            let turn = if wait.is_single_attempt() {
                None
            } else {
                Some(self.stand_in_line(&queue, &wait).await?)
            };
            let outcome = match turn {
                // A single attempt stands in no line.
                None => self.at_front(&queue, &mut wait).await?,
                Some(Turn::Front(permit)) => {
                    let outcome = self.at_front(&queue, &mut wait).await?;
                    drop(permit);
                    outcome
                }
                Some(Turn::Granted(guard)) => Outcome::Granted(guard),
                Some(Turn::Reenter) => Outcome::Reenter,
                Some(Turn::GaveUp) => Outcome::GaveUp,
            };
            match outcome {
                Outcome::Granted(guard) => {
                    debug!(waited = ?wait.waited(Moment::now()), "acquired");
                    return Ok(Some(guard));
                }
                Outcome::Reenter => {}
                Outcome::GaveUp => return Ok(None),
            }
        }
    }

    /// Waits behind the other waiters of this process.
    async fn stand_in_line<'a>(&self, queue: &'a Queue, wait: &Wait) -> Result<Turn<'a>, Error> {
        if let Ok(permit) = queue.front.try_acquire() {
            return Ok(Turn::Front(permit));
        }
        // A named owner may hold the lock through another process; then this is a re-entry, and never queues.
        if self.owner.is_named() {
            let _asking = self.anchor.unless_closed(queue.asking(&self.owner)).await?;
            if queue.live(&self.owner).is_some() {
                return Ok(Turn::Reenter);
            }
            match Attempt::new(self, queue).send(Take::JoinOnly).await {
                Ok(Attempted::Granted(guard)) => return Ok(Turn::Granted(guard)),
                Err(error) if !error.is_passing() => return Err(error),
                Ok(Attempted::Busy(_)) | Err(_) => {}
            }
        }
        let line = queue.front.acquire();
        let appeared = queue.appeared(&self.owner);
        tokio::pin!(line, appeared);
        loop {
            let (since, silence) = self.anchor.backend.silence().unzip();
            let Step::Park(at_most) = wait.in_line(Moment::now(), since) else {
                return silence.map_or(Ok(Turn::GaveUp), Err);
            };
            let turn = async {
                tokio::select! {
                    permit = &mut line => permit.ok().map(Turn::Front),
                    () = &mut appeared => Some(Turn::Reenter),
                    () = sleep(at_most) => None,
                }
            };
            if let Some(turn) = self.anchor.unless_closed(turn).await? {
                return Ok(turn);
            }
        }
    }

    /// Asks for the lock until it is granted: subscribe, ask again, then wait for a message, the end of a hold in
    /// this process, the holder's lease or the poll cap.
    async fn at_front(&self, queue: &Queue, wait: &mut Wait) -> Result<Outcome, Error> {
        let mut attempt = Attempt::new(self, queue);
        let mut subscription: Option<Subscription> = None;
        // The end of a hold in this process is signalled here: no need to ask the server who has the lock. But
        // only until the first wake-up, which may mean that the server has given it to others.
        let mut trust_holds_here = !wait.is_single_attempt();
        loop {
            if queue.live(&self.owner).is_some() {
                return Ok(Outcome::Reenter);
            }
            let freed = queue.freed.notified();
            tokio::pin!(freed);
            if freed.as_mut().enable() {
                // A signal from before: what it tells of is seen below.
                freed.set(queue.freed.notified());
                freed.as_mut().enable();
            }
            if let Some(subscription) = &mut subscription {
                subscription.catch_up();
            }
            let ttl = if trust_holds_here && queue.is_held_here() {
                Ttl::Never
            } else {
                // All within the time of one request, so that a silent server does not add up to several.
                let end = Moment::now().plus(attempt.hold.timeout);
                let asked = {
                    let turn = timeout(attempt.hold.timeout, async {
                        queue.settled().await;
                        queue.asking(&self.owner).await
                    });
                    let _asking = self.anchor.unless_closed(turn).await?;
                    if queue.live(&self.owner).is_some() {
                        return Ok(Outcome::Reenter);
                    }
                    attempt.budget = Moment::now().until(end).max(SHORTEST_TIMEOUT);
                    attempt.send(Take::Free).await
                };
                match asked {
                    Ok(Attempted::Granted(guard)) => return Ok(Outcome::Granted(guard)),
                    Ok(Attempted::Busy(ttl)) => ttl,
                    Err(error) => {
                        self.pause(wait, error).await?;
                        continue;
                    }
                }
            };
            let Step::Park(at_most) = wait.busy(Moment::now(), ttl, fastrand::f64()) else {
                return Ok(Outcome::GaveUp);
            };
            let Some(subscription) = &mut subscription else {
                let mut new = self.anchor.hub.subscribe(self.name.channel());
                self.anchor
                    .unless_closed(new.heard(at_most.min(DEAF_POLL)))
                    .await?;
                subscription = Some(new);
                continue;
            };
            let at_most = if subscription.is_heard() {
                at_most
            } else {
                at_most.min(DEAF_POLL)
            };
            let woken = async {
                tokio::select! {
                    () = subscription.news() => {}
                    () = freed => {}
                    () = queue.appeared(&self.owner) => {}
                    () = sleep(at_most) => {}
                }
            };
            self.anchor.unless_closed(woken).await?;
            trust_holds_here = false;
        }
    }

    /// Takes the lock once more for a hold that stands. None if it does not stand any more.
    pub(crate) async fn reenter(&self, hold: &Arc<Hold>) -> Result<Option<LockGuard>, Error> {
        let _turn = self.anchor.unless_closed(hold.turn.lock()).await?;
        let Some(claim) = Claim::new(self, hold) else {
            return Ok(None);
        };
        let answer = self
            .anchor
            .run(
                &hold.key.reenter(claim.share, self.term.lease()),
                hold.timeout,
            )
            .await?;
        match Reentered::decode(&answer.reply)? {
            Reentered::Granted { count } => {
                debug!(count, "re-entered");
                claim.keep(answer.sent)
            }
            Reentered::Absent => {
                drop(self.anchor.watchdog.lose(hold, Loss::Gone));
                Ok(None)
            }
            Reentered::Exhausted => Err(lock::exhausted(&self.name)),
        }
    }

    /// Takes over one level that the owner holds. None if it holds nothing.
    pub(crate) async fn adopt(&self) -> Result<Option<LockGuard>, Error> {
        self.anchor.ensure_open()?;
        let queue = self.anchor.queues.enter(self.name.key());
        if let Some(hold) = queue.live(&self.owner) {
            return self.adopt_here(&hold).await;
        }
        if !self.owner.is_named() {
            return Ok(None);
        }
        Attempt::new(self, &queue).adopt().await
    }

    /// Takes over a level of a hold of this process that nobody guards; else moves one in from another process;
    /// else guards what is guarded already.
    async fn adopt_here(&self, hold: &Arc<Hold>) -> Result<Option<LockGuard>, Error> {
        let _turn = self.anchor.unless_closed(hold.turn.lock()).await?;
        let lease = self.term.lease();
        let spare = hold.spare_level();
        let claim = if spare.is_some() {
            None
        } else {
            Claim::new(self, hold)
        };
        let Some(share) = spare.or(claim.as_ref().map(|claim| claim.share)) else {
            return Ok(None);
        };
        hold.lock().schedule.asks_for(lease);
        let answer = self
            .anchor
            .run(&hold.key.adopt(share, Some(lease)), hold.timeout)
            .await?;
        match (Adopted::decode(&answer.reply)?, claim) {
            (Adopted::Adopted, Some(claim)) => claim.keep(answer.sent),
            (Adopted::Adopted, None) => self.guard(hold, answer.sent),
            (Adopted::Own, claim) => {
                drop(claim);
                self.guard(hold, answer.sent)
            }
            (Adopted::Absent, _) => {
                drop(self.anchor.watchdog.lose(hold, Loss::Gone));
                Ok(None)
            }
            (Adopted::WrongKind, _) => Err(Error::wrong_kind(self.name.key())),
        }
    }

    /// Gives back one level of this owner, wherever it is recorded.
    pub(crate) async fn unlock(&self) -> Result<(), Error> {
        self.anchor.ensure_open()?;
        let queue = self.anchor.queues.enter(self.name.key());
        if let Some(hold) = queue.live(&self.owner) {
            return match give_back(&self.anchor, &hold, None) {
                Some(debt) => pay(&self.anchor, debt, &self.name).await,
                None => Err(self.not_held()),
            };
        }
        if !self.owner.is_named() {
            return Err(self.not_held());
        }
        Attempt::new(self, &queue).take_over_and_release().await
    }

    fn not_held(&self) -> Error {
        let (name, owner) = (self.name.key(), &self.owner);
        Error::new(
            ErrorKind::NotHeld,
            format!("the owner {owner} does not hold {name:?}: nothing to unlock"),
        )
    }

    /// Adds a guard to a hold whose lease was confirmed by a request sent at `sent`.
    fn guard(&self, hold: &Arc<Hold>, sent: Moment) -> Result<Option<LockGuard>, Error> {
        if !hold.guard_level(sent, self.term) {
            return Ok(None);
        }
        self.anchor.watchdog.watch(hold);
        let guard = LockGuard::new(Lease::new(self.clone(), hold.clone()));
        if guard.remaining() < self.min_validity {
            return Err(self.too_late());
        }
        Ok(Some(guard))
    }

    fn too_late(&self) -> Error {
        let (name, least) = (self.name.key(), self.min_validity);
        Error::lost(format!(
            "{name:?} was granted with less than {least:?} of its lease left, and was given back"
        ))
    }

    /// How long the server may be silent before a wait without limit gives up.
    fn patience(&self) -> Duration {
        match self.term {
            Term::Renewed(lease) => lease.get(),
            Term::Fixed(_) => self.anchor.settings.watchdog_lease,
        }
    }

    /// Pauses after an error that may pass, or gives up with it.
    async fn pause(&self, wait: &mut Wait, error: Error) -> Result<(), Error> {
        if !error.is_passing() {
            return Err(error);
        }
        let since = self.anchor.backend.silence().map(|(since, _)| since);
        match wait.failed(Moment::now(), since) {
            Step::Park(pause) => self.anchor.unless_closed(sleep(pause)).await,
            Step::GiveUp => Err(error),
        }
    }
}

/// Gives back one level of a hold, with the guard that goes with it. What is owed then; none if the hold has ended.
pub(crate) fn give_back(anchor: &Anchor, hold: &Arc<Hold>, guard: Option<Term>) -> Option<Debt> {
    let left = hold.give_back(guard)?;
    if left == 0 {
        anchor.retire(hold);
    }
    Some(anchor.debt(hold))
}

/// Pays what is owed for a level given back, and says whether the hold still stood.
pub(crate) async fn pay(anchor: &Anchor, debt: Debt, name: &LockName) -> Result<(), Error> {
    match debt.pay(&anchor.backend).await? {
        // An earlier send went unanswered: it was this release that removed the hold.
        Settled::Done | Settled::Absent { repeated: true } => Ok(()),
        Settled::Absent { repeated: false } => {
            let name = name.key();
            Err(Error::lost(format!(
                "{name:?} was not held any more when it was unlocked"
            )))
        }
    }
}

/// Whether an attempt may take the lock while it is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Take {
    Free,
    JoinOnly,
}

/// The answer to an attempt.
enum Attempted {
    Granted(LockGuard),
    Busy(Ttl),
}

/// One acquisition that has no hold yet, with the same hold number in all its tries.
struct Attempt<'a> {
    order: &'a Order,
    queue: &'a Queue,
    hold: Arc<Hold>,
    /// How long the next request may take.
    budget: Duration,
    /// There from before the first send until an answer shows that the server has nothing of this hold.
    debt: Option<Debt>,
    /// A try went unanswered, and may be carried out later than one that was answered.
    in_doubt: bool,
}

impl<'a> Attempt<'a> {
    fn new(order: &'a Order, queue: &'a Queue) -> Self {
        let key = HoldKey::new(order.name.clone(), &order.anchor.client_id, &order.owner);
        let lease = order.term.lease();
        let timeout = order.anchor.settings.timeout(lease);
        let hold = Hold::new(key, order.owner.clone(), lease, timeout);
        Self {
            order,
            queue,
            hold,
            budget: timeout,
            debt: None,
            in_doubt: false,
        }
    }

    async fn send(&mut self, take: Take) -> Result<Attempted, Error> {
        let call = self
            .hold
            .key
            .acquire(1, self.order.term.lease(), take == Take::JoinOnly);
        let answer = self.run(&call).await?;
        match Acquired::decode(&answer.reply)? {
            Acquired::Granted { count } => {
                debug!(count, "granted");
                self.commit(answer.sent).map(Attempted::Granted)
            }
            Acquired::Busy(ttl) => {
                self.nothing_held();
                Ok(Attempted::Busy(ttl))
            }
            Acquired::Free => {
                self.nothing_held();
                Ok(Attempted::Busy(Ttl::Ends(Duration::ZERO)))
            }
            Acquired::Exhausted => {
                self.nothing_held();
                Err(lock::exhausted(&self.order.name))
            }
            Acquired::WrongKind => {
                self.nothing_held();
                Err(Error::wrong_kind(self.order.name.key()))
            }
        }
    }

    async fn adopt(mut self) -> Result<Option<LockGuard>, Error> {
        match self.take_over(Some(self.order.term.lease())).await? {
            Some(sent) => self.commit(sent).map(Some),
            None => Ok(None),
        }
    }

    async fn take_over_and_release(mut self) -> Result<(), Error> {
        match (self.take_over(None).await?, self.debt.take()) {
            (Some(_), Some(debt)) => pay(&self.order.anchor, debt, &self.order.name).await,
            _ => Err(self.order.not_held()),
        }
    }

    /// Moves one level of the owner here. When the request was sent, or none if there was nothing to move.
    async fn take_over(&mut self, lease: Option<LeaseTime>) -> Result<Option<Moment>, Error> {
        let call = self.hold.key.adopt(1, lease);
        let answer = self.run(&call).await?;
        match Adopted::decode(&answer.reply)? {
            Adopted::Adopted => Ok(Some(answer.sent)),
            Adopted::Own | Adopted::Absent => {
                self.nothing_held();
                Ok(None)
            }
            Adopted::WrongKind => {
                self.nothing_held();
                Err(Error::wrong_kind(self.order.name.key()))
            }
        }
    }

    async fn run(&mut self, call: &Call) -> Result<Answer, Error> {
        let anchor = &self.order.anchor;
        self.debt.get_or_insert_with(|| anchor.debt(&self.hold));
        let answered = anchor.run(call, self.budget).await;
        if let Err(error) = &answered {
            if error.is_unanswered() {
                self.in_doubt = true;
            } else {
                self.nothing_held();
            }
        }
        answered
    }

    /// The server has answered that this hold is not there.
    fn nothing_held(&mut self) {
        if !self.in_doubt
            && let Some(debt) = self.debt.take()
        {
            debt.forgive();
        }
    }

    /// The server has granted the hold, by a request sent at `sent`.
    fn commit(&mut self, sent: Moment) -> Result<LockGuard, Error> {
        let Order { anchor, term, .. } = self.order;
        self.hold.granted(sent, *term, anchor.settings.max_hold);
        for displaced in self.queue.install(&self.hold) {
            drop(anchor.watchdog.lose(&displaced, Loss::Displaced));
        }
        anchor.watchdog.watch(&self.hold);
        let guard = LockGuard::new(Lease::new(self.order.clone(), self.hold.clone()));
        if let Some(debt) = self.debt.take() {
            debt.forgive();
        }
        // From here on dropping the guard gives the hold back.
        anchor.ensure_open()?;
        if guard.remaining() < self.order.min_validity {
            return Err(self.order.too_late());
        }
        Ok(guard)
    }
}

/// A level of a hold that is being asked for. Dropped before it is granted, it is given back.
struct Claim<'a> {
    order: &'a Order,
    hold: &'a Arc<Hold>,
    share: u32,
    kept: bool,
}

impl<'a> Claim<'a> {
    /// None if the hold has ended.
    fn new(order: &'a Order, hold: &'a Arc<Hold>) -> Option<Self> {
        let share = hold.claim_level()?;
        hold.lock().schedule.asks_for(order.term.lease());
        Some(Self {
            order,
            hold,
            share,
            kept: false,
        })
    }

    fn keep(mut self, sent: Moment) -> Result<Option<LockGuard>, Error> {
        self.kept = true;
        self.order.guard(self.hold, sent)
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if !self.kept {
            drop(give_back(&self.order.anchor, self.hold, None));
        }
    }
}
