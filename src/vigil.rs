//! Asks the server the same until the answer is yes; between the tries waits for a message.

use std::future::Future;
use std::sync::Arc;

use tokio::time::sleep;

use crate::clock::Moment;
use crate::error::Error;
use crate::protocol::answer::Ttl;
use crate::protocol::wait::{Step, Wait};
use crate::session::Session;
use crate::session::hub::Subscription;

/// What is asked.
pub(crate) trait Question: Send {
    type Yes: Send;

    fn ask(&mut self) -> impl Future<Output = Result<Asked<Self::Yes>, Error>> + Send;
}

/// The answer to a question.
#[derive(Debug)]
pub(crate) enum Asked<T> {
    Yes(T),
    /// Perhaps when this time has passed, if no message tells earlier.
    Not(Ttl),
}

/// Asks, subscribes to the channel, asks again, then after every message, and when the poll cap has passed without
/// one. None if the answer was no until the limit.
pub(crate) async fn until_yes<Q: Question>(
    session: &Session,
    channel: &Arc<str>,
    wait: &mut Wait,
    question: &mut Q,
) -> Result<Option<Q::Yes>, Error> {
    let mut subscription: Option<Subscription> = None;
    loop {
        // Others of this process may listen already.
        let heard = session.hub.reception(channel);
        if let Some(subscription) = &mut subscription {
            subscription.catch_up();
        }
        let ttl = match question.ask().await {
            Ok(Asked::Yes(yes)) => return Ok(Some(yes)),
            Ok(Asked::Not(ttl)) => ttl,
            Err(error) => {
                session.pause(channel, wait, error).await?;
                continue;
            }
        };
        let Step::Park(at_most) = wait.busy(Moment::now(), ttl, fastrand::f64()) else {
            return Ok(None);
        };
        let subscription = subscription.get_or_insert_with(|| session.hub.subscribe(channel));
        if subscription.is_heard() && heard != Some(subscription.count()) {
            // What was told meanwhile is seen by asking again.
            continue;
        }
        let at_most = subscription.patience(at_most);
        let woken = async {
            tokio::select! {
                () = subscription.news() => {}
                () = sleep(at_most) => {}
            }
        };
        session.unless_closed(woken).await?;
    }
}
