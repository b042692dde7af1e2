//! What is owed to the servers: holds that were dropped, and what may have come of requests without an answer.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::debug;

use super::backend::{Answer, Backend, Posted};
use super::grants::{Expected, Grants, Told};
use super::handoff::Handoff;
use super::hold::{Hold, Release};
use super::hub::Hub;
use super::ledger::{Place, Unpaid};
use super::queue::{self, Courtesy, Queues, Sending};
use super::record::{Outcome, Settled};
use super::sync::{Spawner, oneshot};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind};
use crate::name::LockName;
use crate::protocol::answer::Released;
use crate::protocol::batch::{self, AllReleased};
use crate::protocol::hold_key::{HoldKey, Kind};
use crate::protocol::script::Request;

/// How long this process leaves a free lock to others that were told of it, in round trips: a message to them, and
/// their request.
const QUIET_TRIPS: u32 = 3;
const SHORTEST_QUIET: Duration = Duration::from_millis(1);
const LONGEST_QUIET: Duration = Duration::from_millis(100);

/// How long a waiter that the lock was moved to may take to go on with it. Futures that share a task with
/// the releaser may not be polled, and the others in the queue may not wait for them.
const GRANT_LIES: Duration = Duration::from_secs(1);

/// The queue of one lock, with the handoffs that are left there.
pub(crate) type QueueRef = queue::QueueRef<Handoff<Undo>>;

/// The place at the front of such a queue.
pub(crate) type AtFront<'a> = queue::AtFront<'a, Handoff<Undo>>;

/// The turn to ask the server for an owner's first level.
pub(crate) type Asking<'a> = queue::Asking<'a, Handoff<Undo>>;

/// The way to the reaper. Sending never blocks, and does nothing once the reaper has ended.
#[derive(Clone, Debug)]
pub(crate) struct Reaper(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    undos: mpsc::UnboundedSender<Overdue>,
    queues: Arc<Queues<Handoff<Undo>>>,
    hub: Arc<Hub>,
    backend: Arc<Backend>,
    grants: Arc<Grants>,
    runtime: Spawner,
    /// Counts what is owed, or may be.
    owing: TaskTracker,
    unpaid: Unpaid,
}

/// What is in the reaper's hands.
#[derive(Debug)]
pub(crate) struct Overdue {
    what: What,
    /// From then on the server has let it go by itself.
    end: Moment,
    /// Goes on from the request until it is paid, so that whoever waits for all misses none.
    _owing: TaskTrackerToken,
}

#[derive(Debug)]
enum What {
    Undo {
        hold: Arc<Hold>,
        /// What is owed for a name comes before what is asked for it.
        sending: Option<Sending<Handoff<Undo>>>,
        first: Option<PostedRelease>,
    },
    Errand(Errand, Option<Posted>),
}

/// A release that was written by a `Drop`.
#[derive(Debug)]
struct PostedRelease {
    posted: Posted,
    /// How many messages had come in on the lock's channel before.
    heard: u64,
}

/// A request that is sent until it is answered.
#[derive(Debug)]
pub(crate) struct Errand {
    pub(crate) request: Arc<dyn Request>,
    pub(crate) timeout: Duration,
}

impl Reaper {
    /// Leaves a lock to others if they were `told` that it is free. `heard` is how many messages had come in before
    /// the request for that was sent, at `sent`: how long it took tells how far the server is.
    pub(crate) fn give_way(&self, hold: &Hold, told: u64, heard: u64, sent: Moment) {
        // Readers go together, and are told who goes first. Where processes take turns the server sees to it.
        let kind = &hold.key().kind;
        let in_reach = || self.0.hub.listeners(hold.key().name.channel());
        if told == 0 || kind.is_shared() || kind.takes_turns() || told <= in_reach() {
            return;
        }
        let trip = sent.until(Moment::now());
        let pause = (trip * QUIET_TRIPS).clamp(SHORTEST_QUIET, LONGEST_QUIET);
        let queue = self.0.queues.enter(hold.key().queue_key());
        queue.give_way(Courtesy {
            // Our own message is one of both.
            last_message: heard + told,
            pause,
        });
        // The queue is kept for a while, though nobody here may use it.
        self.0.runtime.spawn(async move {
            sleep(pause).await;
            drop(queue);
        });
    }

    /// How many subscribers to a lock's channel are this process, where all of them can be counted.
    pub(super) fn listeners(&self, key: &HoldKey) -> Option<u64> {
        let counts = self.0.backend.counts_listeners();
        counts.then(|| self.0.hub.listeners(key.name.channel()))
    }

    /// From now on, a release in this client may move the lock to this hold.
    pub(crate) fn expect(&self, hold: &Arc<Hold>) -> Expected {
        self.0.grants.expect(hold)
    }

    /// A request sent at `sent` has moved the lock to the hold of this number.
    pub(super) fn granted(&self, number: String, sent: Moment) {
        // Else whoever waited has left, and owes a release of its own.
        if self.0.grants.tell(&number, Told::Granted(sent)) {
            let reaper = self.clone();
            self.0.runtime.spawn(async move {
                sleep(GRANT_LIES).await;
                if let Some(hold) = reaper.0.grants.give_up(&number) {
                    debug!(lock = %hold.key().name.key(), owner = %hold.owner, "granted, and not taken: released");
                    reaper.owe(hold);
                }
            });
        }
    }

    /// How many holds stand in queues on the server, or ask for a place.
    pub(crate) fn in_queues(&self) -> usize {
        self.0.grants.len()
    }

    /// Leaves every queue on the server.
    pub(crate) fn leave_queues(&self) {
        for hold in self.0.grants.give_up_all() {
            self.owe(hold);
        }
    }

    /// Has a request sent in the background, at least once and until this moment.
    pub(crate) fn send(&self, errand: Errand, end: Moment) {
        self.have_sent(errand, None, end);
    }

    /// Sends a request now, if the connection takes it, and has it answered in the background.
    pub(crate) fn send_now(&self, errand: Errand, end: Moment) {
        let posted = self.0.backend.post(&errand.request.call());
        self.have_sent(errand, posted, end);
    }

    /// Refuses to ask a server for more while too much is owed to it and it does not answer.
    pub(crate) fn ensure_credit(&self, name: &LockName) -> Result<(), Error> {
        let home = || self.0.backend.home(name.key()).map(|node| node.id());
        match self.0.unpaid.too_much(home) {
            None => Ok(()),
            Some(unpaid) => Err(Error::new(
                ErrorKind::Backend,
                format!(
                    "{unpaid} releases are owed to a server that does not answer; nothing is asked of it before it does"
                ),
            )
            .unsent()
            .about(name.key())),
        }
    }

    pub(super) fn grants(&self) -> &Grants {
        &self.0.grants
    }

    pub(super) fn hub(&self) -> &Arc<Hub> {
        &self.0.hub
    }

    pub(super) fn backend(&self) -> &Backend {
        &self.0.backend
    }

    pub(super) fn unpaid(&self) -> &Unpaid {
        &self.0.unpaid
    }

    pub(super) fn owing(&self) -> TaskTracker {
        self.0.owing.clone()
    }

    fn have_sent(&self, errand: Errand, posted: Option<Posted>, end: Moment) {
        let what = What::Errand(errand, posted);
        self.collect(what, end, self.0.owing.token());
    }

    /// Gives something to the collector. After that has ended, what was not written dies by its lease.
    fn collect(&self, what: What, end: Moment, owing: TaskTrackerToken) {
        let overdue = Overdue {
            what,
            end,
            _owing: owing,
        };
        self.0.undos.send(overdue).ok();
    }

    /// Has the call at the front of a queue looked after while others stand behind it.
    pub(crate) fn watch_front(&self, queue: &QueueRef) {
        queue.watch_front(&self.0.runtime);
    }

    /// Runs a future on the client's runtime.
    pub(super) fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        drop(self.0.runtime.spawn(future));
    }

    /// Has whatever the server has of a hold released in the background.
    fn owe(&self, hold: Arc<Hold>) {
        let queue = self.0.queues.enter(hold.key().queue_key());
        drop(Undo::new(hold, queue, self));
    }

    /// Writes the release of a hold that has ended, if the connection takes it at once and nothing else is on its way
    /// for the hold. What is left of a hold that others here share takes its turn in the background.
    fn post(&self, hold: &Hold, sending: &Sending<Handoff<Undo>>) -> Option<PostedRelease> {
        let _turn = hold.record.turn.try_lock().ok()?;
        if !hold.is_surely_ours() {
            return None;
        }
        let release = self.release(hold).filter(|release| release.keep == 0)?;
        let posted = self.0.backend.post(&hold.key().release(release.keep))?;
        self.is_ahead(hold, sending);
        let heard = release.heard;
        Some(PostedRelease { posted, heard })
    }

    /// Brings the server's record of a hold to the levels that it has here. The `first` try may have been made.
    async fn settle(
        &self,
        backend: &Backend,
        sending: Option<&Sending<Handoff<Undo>>>,
        hold: &Arc<Hold>,
        first: Option<PostedRelease>,
    ) -> Result<Settled, Error> {
        let _turn = hold.record.turn.lock().await;
        if first.is_none() && !hold.is_surely_ours() {
            // Another process may hold it by the same value: what is perhaps left of this one ends by its lease.
            return Ok(Settled::Absent { repeated: false });
        }
        let Some(mut release) = self.release(hold) else {
            return Ok(Settled::Done);
        };
        release.is_on_its_way = true;
        let answered = if let Some(PostedRelease { posted, heard }) = first {
            release.heard = heard;
            let call = hold.key().release(release.keep);
            Box::pin(backend.conclude(posted, &call, hold.timeout)).await
        } else {
            let call = hold.key().release(release.keep);
            let mut request = pin!(backend.run(&call, hold.timeout));
            // Its first step sends it, unless there is no connection.
            let answered = request.as_mut().now_or_never();
            if let Some(sending) = sending
                && backend.silence(hold.key().name.key()).is_none()
            {
                self.is_ahead(hold, sending);
            }
            match answered {
                Some(answered) => answered,
                None => request.await,
            }
        };
        if let (Err(_), Some(sending)) = (&answered, sending) {
            sending.is_ahead(false);
        }
        release.is_on_its_way = false;
        let answer = answered.inspect_err(|error| release.failed(error))?;
        let released =
            Released::decode(&answer.reply).inspect_err(|error| release.failed(error))?;
        Ok(self.released(&release, released, &answer))
    }

    /// The same for several holds of one server, with one request.
    async fn settle_all(
        &self,
        backend: &Backend,
        holds: &[Arc<Hold>],
    ) -> Result<Vec<Settled>, Error> {
        let mut turns = Vec::with_capacity(holds.len());
        // Whoever waits for several turns does so in one order.
        let mut in_order: Vec<_> = holds.iter().collect();
        in_order.sort_by_key(|hold| Arc::as_ptr(&hold.record));
        for hold in in_order {
            turns.push(hold.record.turn.lock().await);
        }
        let mut settled = vec![Settled::Done; holds.len()];
        let mut releases: Vec<_> = holds
            .iter()
            .zip(&mut settled)
            .filter_map(|(hold, settled)| Some((self.release(hold)?, settled)))
            .collect();
        let timeout = releases.iter().map(|(release, _)| release.hold.timeout);
        let Some(timeout) = timeout.min() else {
            return Ok(settled);
        };
        let keys = releases
            .iter()
            .map(|(release, _)| (release.hold.key(), release.keep));
        let keys: Vec<_> = keys.collect();
        let call = batch::release(&keys);
        for (release, _) in &mut releases {
            release.is_on_its_way = true;
        }
        let answered = backend.run(&call, timeout).await;
        for (release, _) in &mut releases {
            release.is_on_its_way = false;
        }
        let answer = answered.inspect_err(|error| {
            for (release, _) in &releases {
                release.failed(error);
            }
        })?;
        let AllReleased(outcomes) = AllReleased::decode(&answer.reply, releases.len())?;
        for ((release, settled), released) in releases.into_iter().zip(outcomes) {
            *settled = self.released(&release, released, &answer);
        }
        Ok(settled)
    }

    /// What to ask for, with the hold's turn. None if nothing is owed any more.
    fn release<'a>(&self, hold: &'a Hold) -> Option<Releasing<'a>> {
        // Guards that go at the same time owe one release, and whoever comes first pays it for all. One that passed its
        // record on owes none. One that was never granted here may have been asked for again since.
        if hold.release() == Release::Done && hold.was_granted() {
            return None;
        }
        let keep = hold.share();
        // What several have counts as one level, which the last of them owes.
        let is_held = || keep > 0 || hold.record.is_held();
        if hold.was_granted() && hold.record.was_joined() && is_held() {
            return None;
        }
        if keep == 0 {
            hold.record.releases();
        }
        Some(Releasing {
            hold,
            keep,
            is_on_its_way: false,
            heard: self.0.hub.heard_on(hold.key().name.channel()),
        })
    }

    fn released(&self, release: &Releasing<'_>, released: Released, answer: &Answer) -> Settled {
        let hold = release.hold;
        let settled = match released {
            Released::Freed { told } => {
                release.note(Release::Done);
                self.give_way(hold, told, release.heard, answer.sent);
                Settled::Done
            }
            Released::Moved { number } => {
                release.note(Release::Done);
                self.granted(number.into(), answer.sent);
                Settled::Done
            }
            Released::Kept => {
                release.note(Release::Done);
                Settled::Done
            }
            // Whoever has it by now took it after us.
            Released::Absent | Released::Taken => {
                if answer.repeated {
                    release.note(Release::InDoubt);
                }
                Settled::Absent {
                    repeated: answer.repeated || hold.release() == Release::InDoubt,
                }
            }
        };
        release.ended(&Ok(settled));
        settled
    }

    /// A release is on its way, and what is asked now comes behind it: on one connection, but for those of plain locks, which
    /// may be transactions. The last one of one side of a read-write lock here lets the other side here ask.
    fn is_ahead(&self, hold: &Hold, sending: &Sending<Handoff<Undo>>) {
        if matches!(hold.key().kind, Kind::Plain(_)) {
            return;
        }
        sending.is_ahead(true);
        if !sending.queue().is_held_here()
            && let Some(opposite) = hold.key().opposite_queue_key()
            && let Some(opposite) = self.0.queues.find(opposite)
        {
            opposite.opened.notify_waiters();
        }
    }
}

/// A release that is about to be sent.
#[derive(Debug)]
struct Releasing<'a> {
    hold: &'a Hold,
    keep: u32,
    /// Dropped then, nobody hears the answer: the next release may find that this one has done it.
    is_on_its_way: bool,
    /// How many messages had come in on the lock's channel before.
    heard: u64,
}

impl Drop for Releasing<'_> {
    fn drop(&mut self) {
        if self.is_on_its_way {
            self.note(Release::InDoubt);
        }
    }
}

impl Releasing<'_> {
    fn note(&self, release: Release) {
        if self.keep == 0 {
            self.hold.note_release(release);
        }
    }

    fn failed(&self, error: &Error) {
        if error.is_unanswered() {
            self.note(Release::InDoubt);
        }
        self.ended(&Err(error.clone()));
    }

    /// Tells everyone who passed the record on before.
    fn ended(&self, outcome: &Outcome) {
        if self.keep == 0 {
            self.hold.record.released(outcome);
        }
    }
}

/// What we may owe the server: to bring its record of a hold down to the levels that we count.
///
/// It exists from before a request that could leave too much on the server is sent, until an answer shows that
/// nothing is owed; dropped before, wherever that happens, it hands itself to the reaper.
#[derive(Debug)]
#[must_use = "dropping a undo has it paid in the background"]
pub(crate) struct Undo {
    /// Empty once paid or forgiven.
    owed: Option<(Arc<Hold>, QueueRef)>,
    /// There is no hurry: a try to pay has failed, or somebody may work under the hold yet.
    can_wait: bool,
    reaper: Reaper,
    owing: TaskTrackerToken,
}

impl Undo {
    pub(crate) fn new(hold: Arc<Hold>, queue: QueueRef, reaper: &Reaper) -> Self {
        Self {
            owed: Some((hold, queue)),
            can_wait: false,
            reaper: reaper.clone(),
            owing: reaper.0.owing.token(),
        }
    }

    /// Has it paid in the background only: whoever works under the hold hears of its loss before the lock is free.
    pub(crate) fn unhurried(mut self) -> Self {
        self.can_wait = true;
        self
    }

    /// Whether both are under one owner's name on the server: what was passed on is under that of who took it.
    pub(crate) fn goes_with(&self, other: &Self) -> bool {
        match (&self.owed, &other.owed) {
            (Some((hold, _)), Some((other, _))) => {
                hold.key().companion() == other.key().companion()
            }
            _ => false,
        }
    }

    /// Leaves the lock to whoever waits for it here. Returns where it is told whether it was still held; or the undo, if
    /// nobody waits, or the lock cannot be passed on.
    pub(crate) fn leave(
        self,
        queue: &QueueRef,
        hold: &Arc<Hold>,
    ) -> Result<oneshot::Receiver<Outcome>, Self> {
        if !hold.record.can_pass() {
            queue.forget(hold);
            return Err(self);
        }
        let runtime = self.reaper.0.runtime.clone();
        let left = Handoff::leave(self, queue, hold, &runtime);
        if hold.key().kind.is_shared() && left.is_ok() {
            // The reader at the front may have been refused, and wait for a message. If it came behind a writer it has the
            // record released.
            queue.opened.notify_waiters();
        }
        left
    }

    /// Pays now. What cannot be paid stays owed, and goes to the reaper.
    pub(crate) async fn run(mut self, backend: &Backend) -> Result<Settled, Error> {
        let Some((hold, queue)) = self.owed.clone() else {
            return Ok(Settled::Done);
        };
        let settled = {
            let sending = Sending::new(queue, hold.owner.clone());
            self.reaper
                .settle(backend, Some(&sending), &hold, None)
                .await
        };
        match settled {
            Ok(_) => self.owed = None,
            Err(_) => self.can_wait = true,
        }
        settled
    }

    /// Runs several now, of holds of one server that are given back by one request. What cannot be paid stays
    /// owed, and goes to the reaper.
    pub(crate) async fn run_all(
        undos: Vec<Self>,
        backend: &Backend,
    ) -> Result<Vec<Settled>, Error> {
        let Some(reaper) = undos.first().map(|undo| undo.reaper.clone()) else {
            return Ok(Vec::new());
        };
        let owed = undos.iter().filter_map(|undo| undo.owed.clone());
        let (holds, sending): (Vec<_>, Vec<_>) = owed
            .map(|(hold, queue)| (hold.clone(), Sending::new(queue, hold.owner.clone())))
            .unzip();
        let settled = reaper.settle_all(backend, &holds).await?;
        drop(sending);
        for undo in undos {
            undo.disarm();
        }
        Ok(settled)
    }

    /// Nothing is owed any more.
    pub(crate) fn disarm(mut self) {
        self.owed = None;
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        if let Some((hold, queue)) = self.owed.take() {
            let end = Moment::now().plus(hold.longest_lease().get());
            let sending = Sending::new(queue, hold.owner.clone());
            let first = match self.can_wait {
                true => None,
                false => self.reaper.post(&hold, &sending),
            };
            let what = What::Undo {
                hold,
                sending: Some(sending),
                first,
            };
            self.reaper.collect(what, end, self.owing.clone());
        }
    }
}

impl Overdue {
    /// One try. What remains of it is owed.
    pub(super) async fn run(&mut self, reaper: &Reaper, backend: &Backend) -> Result<(), Error> {
        match &mut self.what {
            What::Undo {
                hold,
                sending,
                first,
            } => {
                let settled = reaper.settle(backend, sending.as_ref(), hold, first.take());
                settled.await.map(drop)
            }
            What::Errand(Errand { request, timeout }, posted) => {
                let call = request.call();
                let answered = match posted.take() {
                    Some(posted) => backend.conclude(posted, &call, *timeout).await,
                    None => backend.run(&call, *timeout).await,
                };
                answered.map(drop)
            }
        }
    }

    /// The server that it is owed to.
    pub(super) fn place(&self, backend: &Backend) -> Place {
        let home = match &self.what {
            What::Undo { hold, .. } => backend.home(hold.key().name.key()),
            What::Errand(errand, _) => backend.home(errand.request.call().keys.first()?),
        };
        home.map(|node| node.id())
    }

    /// Whether it was sent, and an answer is to come.
    pub(super) fn is_posted(&self) -> bool {
        match &self.what {
            What::Undo { first, .. } => first.is_some(),
            What::Errand(_, posted) => posted.is_some(),
        }
    }

    /// Whether it need not be paid any more, after this error. A lease that has passed ends what a server has that answers;
    /// one that does not may have yet to take the lock, by a request that lies there unread.
    pub(super) fn has_ended(&self, error: &Error) -> bool {
        let counts = match self.what {
            What::Undo { .. } => error.is_refusal(),
            What::Errand(..) => true,
        };
        counts && Moment::now() >= self.end
    }

    /// Whoever asks for the lock does not wait for this any more.
    pub(super) fn keep_nobody_waiting(&mut self) {
        if let What::Undo { sending, .. } = &mut self.what {
            *sending = None;
        }
    }

    /// The hold that it is owed for.
    pub(super) fn hold(&self) -> Option<u64> {
        match &self.what {
            What::Undo { hold, .. } => Some(hold.id),
            What::Errand(..) => None,
        }
    }
}

pub(crate) fn new(
    queues: Arc<Queues<Handoff<Undo>>>,
    hub: Arc<Hub>,
    backend: Arc<Backend>,
    runtime: Spawner,
) -> (Reaper, mpsc::UnboundedReceiver<Overdue>) {
    let (sender, undos) = mpsc::unbounded_channel();
    let reaper = Reaper(Arc::new(Shared {
        undos: sender,
        queues,
        hub,
        backend,
        grants: Arc::default(),
        runtime,
        owing: TaskTracker::new(),
        unpaid: Unpaid::default(),
    }));
    (reaper, undos)
}
