//! The driver of a waiting call: asks until the result is there, and carries out what [`Waiter`] decides. A call that
//! waits behind others of its process, or in the server queue of a fair lock, does not come here: it asks nobody and
//! waits to be told.

use std::future::{Future, pending};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::clock::BootInstant;
use crate::error::Error;
use crate::name::LockName;
use crate::protocol::policy::Policy;
use crate::protocol::wait::{LONGEST_PAUSE, Wait};
use crate::protocol::waiter::{
    BusyAnswer, CallChannels, Listening, Local, Start, Waiter, WaiterStep,
};
use crate::session::Session;
use crate::session::hub::Subscription;
use crate::session::share::Place;
use crate::session::turns::YieldPeriod;

/// Something that a call asks for until it is available.
pub(crate) trait Wanted: Local + Send {
    type Output: Send;

    /// Asks once. An error ends the wait.
    fn ask(
        &mut self,
        waiting: &mut Waiting<'_>,
    ) -> impl Future<Output = Result<Asked<Self::Output>, Error>> + Send;

    /// Returns the result if it is already there, without a request of this call.
    fn without_asking(&mut self) -> Option<Self::Output> {
        None
    }

    /// Waits for any other event that makes it worth asking, or for a result without asking.
    fn happens(&mut self) -> impl Future<Output = Result<Option<Self::Output>, Error>> + Send {
        pending()
    }

    /// Returns this call's own channel, if it has one besides the common channel.
    fn channel(&self) -> Option<Arc<str>> {
        None
    }
}

/// The answer to one request.
#[derive(Debug)]
pub(crate) enum Asked<T> {
    Ready(T),
    Busy(BusyAnswer),
    /// It was left to others.
    Yielded,
    /// It is not available now. The call asks again after an event, or after this time.
    Later(Duration),
    /// The call asks again if the error may pass.
    Failed(Error),
}

/// One waiting call.
pub(crate) struct Waiting<'a> {
    session: &'a Session,
    name: &'a LockName,
    wait: &'a mut Wait,
    waiter: Waiter,
    /// The call's place in the local queue, if it has one. Events there wake it too.
    place: Option<&'a Place<'a>>,
    /// The call's own channel. On the heap, since usually nobody listens.
    own: Option<Box<Subscription>>,
    /// The common channel, if that is a different one.
    common: Option<Box<Subscription>>,
}

impl<'a> Waiting<'a> {
    /// Creates a call about this name.
    pub(crate) fn new(
        session: &'a Session,
        name: &'a LockName,
        wait: &'a mut Wait,
        policy: Policy,
    ) -> Self {
        Self {
            session,
            name,
            wait,
            waiter: Waiter::new(policy),
            place: None,
            own: None,
            common: None,
        }
    }

    pub(crate) fn waiter(&self) -> &Waiter {
        &self.waiter
    }

    /// Returns the limits of the wait.
    pub(crate) fn wait(&mut self) -> &mut Wait {
        self.wait
    }

    /// Sets the call's place in the local queue.
    pub(crate) fn at(mut self, place: &'a Place<'a>) -> Self {
        self.place = Some(place);
        self
    }

    /// Asks until the result is there. Returns `None` if it stays busy until the limit.
    pub(crate) async fn until<W: Wanted>(
        &mut self,
        wanted: &mut W,
    ) -> Result<Option<W::Output>, Error> {
        loop {
            // Called before the request, so that nothing is missed while the request is in flight.
            self.is_alive();
            if let Some(output) = wanted.without_asking() {
                return Ok(Some(output));
            }
            let channels = self.catch_up(wanted);
            let step = match self.waiter.start(BootInstant::now(), channels, wanted) {
                Start::Ask => match wanted.ask(self).await? {
                    Asked::Ready(output) => return Ok(Some(output)),
                    Asked::Busy(refusal) => self.refused(refusal),
                    Asked::Yielded => self.yielded(),
                    Asked::Later(at_most) => WaiterStep::Park(at_most),
                    Asked::Failed(error) => {
                        // During the pause, the call does not poll its place, and must not be passed over for that.
                        self.is_alive();
                        let pause = self.session.pause(self.name.key(), self.wait, error);
                        Box::pin(pause).await?;
                        continue;
                    }
                },
                Start::Spare => self.spared(),
                Start::Yield => self.yielded(),
            };
            let at_most = match step {
                WaiterStep::GiveUp => return Ok(None),
                WaiterStep::Ask => continue,
                WaiterStep::Pause(pause) => {
                    // No wake-up ends this pause, which leaves the lock to others.
                    Box::pin(self.session.unless_closed(sleep(pause))).await?;
                    continue;
                }
                WaiterStep::Park(at_most) => at_most,
                WaiterStep::Listen { common, at_most } => {
                    let channels = self.listen(wanted, common);
                    match self.waiter.listens(channels, at_most) {
                        Some(at_most) => at_most,
                        None => continue,
                    }
                }
            };
            // On the heap, since usually nobody waits.
            if let Some(output) = Box::pin(self.park(wanted, at_most)).await? {
                return Ok(Some(output));
            }
        }
    }

    /// Marks the events in this process as known, and shows that this call is polled, though not at its place.
    fn is_alive(&self) {
        if let Some(place) = self.place {
            let at_most = self.session.settings.command_timeout.max(LONGEST_PAUSE);
            place.catch_up(BootInstant::now().plus(at_most));
        }
    }

    fn refused(&mut self, refusal: BusyAnswer) -> WaiterStep {
        let jitter = fastrand::f64();
        self.waiter
            .refused(self.wait, BootInstant::now(), refusal, jitter)
    }

    fn spared(&mut self) -> WaiterStep {
        let poll_cap = self.session.settings.poll_cap;
        self.waiter
            .spared(self.wait, BootInstant::now(), poll_cap, fastrand::f64())
    }

    fn yielded(&mut self) -> WaiterStep {
        self.waiter
            .yielded(self.wait, BootInstant::now(), fastrand::f64())
    }

    /// Marks all messages up to now as known. Returns the state of the subscriptions before the request.
    fn catch_up<W: Wanted>(&mut self, wanted: &W) -> CallChannels {
        let Policy {
            listens,
            takes_turns,
            ..
        } = *self.waiter.policy();
        let hub = &self.session.hub;
        let mut own = self.own.as_mut().map(|it| it.catch_up());
        // Other calls of this process may listen to this channel already. Usually this client has no subscriptions, and
        // the name of the channel is not needed.
        if own.is_none() && listens && hub.len() > 0 {
            let channel = channel(self.name, wanted);
            own = Some(hub.listening(&channel));
            // A call that is told by name needs a subscription of its own. With one, even its first request may ask for
            // a place in the turn order.
            if takes_turns && own.is_some_and(Listening::is_confirmed) {
                let own_channel = self.own.insert(Box::new(hub.subscribe(&channel)));
                own = Some(own_channel.listening());
            }
        }
        let common = self.common.as_mut().map(|it| it.catch_up());
        CallChannels {
            own: own.unwrap_or_default(),
            common: common.unwrap_or_default(),
        }
    }

    /// Subscribes to the call's own channel, and to the common one only if `common` is set.
    fn listen<W: Wanted>(&mut self, wanted: &W, common: bool) -> CallChannels {
        let hub = &self.session.hub;
        let subscribe = || Box::new(hub.subscribe(&channel(self.name, wanted)));
        let own = self.own.get_or_insert_with(subscribe);
        if common {
            let subscribe = || Box::new(hub.subscribe(self.name.channel()));
            self.common.get_or_insert_with(subscribe);
        } else {
            self.common = None;
        }
        let common = self.common.as_ref().map(|it| it.listening());
        CallChannels {
            own: own.listening(),
            common: common.unwrap_or_default(),
        }
    }

    /// Waits for any event that may have changed the answer, or for a result without asking.
    async fn park<W: Wanted>(
        &mut self,
        wanted: &mut W,
        at_most: Duration,
    ) -> Result<Option<W::Output>, Error> {
        let happens_here = async {
            match self.place {
                Some(place) => place.news().await,
                None => pending().await,
            }
        };
        let woken = async {
            tokio::select! {
                happened = wanted.happens() => Some(happened),
                () = messages(&mut self.own) => None,
                () = messages(&mut self.common) => None,
                () = happens_here => None,
                () = sleep(at_most) => None,
            }
        };
        let happened = self.session.unless_closed(woken).await?;
        let own = self.own.as_ref().map(|it| it.listening());
        self.waiter.woken(own.unwrap_or_default());
        happened.transpose().map(Option::flatten)
    }

    /// Lets others go first before the lock is requested, as long as it is their turn. For kinds whose releases are
    /// announced to everybody.
    pub(crate) async fn yield_lock(
        &mut self,
        owed: impl Fn() -> Option<YieldPeriod>,
    ) -> Result<(), Error> {
        let session = self.session;
        let subscribe = || Box::new(session.hub.subscribe(self.name.channel()));
        let own = self.own.get_or_insert_with(subscribe);
        while let Some(YieldPeriod {
            last_message,
            pause,
        }) = owed()
        {
            let is_over = own.count() >= last_message;
            let Some(pause) = self
                .waiter
                .yields(self.wait, BootInstant::now(), pause, is_over)
            else {
                break;
            };
            let told = timeout(pause, own.news());
            if session.unless_closed(told).await?.is_err() {
                // No message came during the whole pause, so nobody else wants the lock now.
                break;
            }
        }
        self.waiter.asks_behind(own.catch_up());
        Ok(())
    }
}

/// Returns the channel with messages for a call.
fn channel<W: Wanted>(name: &LockName, wanted: &W) -> Arc<str> {
    wanted.channel().unwrap_or_else(|| name.channel().clone())
}

/// Waits for messages on a channel, if the call listens to it.
async fn messages(subscription: &mut Option<Box<Subscription>>) {
    match subscription {
        Some(subscription) => subscription.news().await,
        None => pending().await,
    }
}
