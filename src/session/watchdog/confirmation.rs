//! Asks the server whether it still has a record that was passed on in memory, or that several readers share.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::yield_now;
use tracing::debug;

use super::Watchdog;
use crate::clock::BootInstant;
use crate::options::LeaseTime;
use crate::protocol::answer::Confirmed;
use crate::session::hold::Hold;
use crate::session::record::Record;

/// How many times this task yields before it asks about a record that other tasks may pass on, and for how long at
/// most. With many waiters, this saves a quarter of the requests.
const GATHERED: usize = 16;
const GATHERING: Duration = Duration::from_micros(100);

impl Watchdog {
    /// Asks the server whether it still has a record that was passed on to this hold, or that others share. The answer
    /// is for every call that passed the record on, or left it to others, before the request.
    ///
    /// Returns at once: a task sends the request, unless another task is about to.
    pub(crate) fn confirm(self: &Arc<Self>, hold: &Hold) {
        if hold.record.passed_on(BootInstant::now()) {
            let (watchdog, record) = (self.clone(), hold.record.clone());
            let (lease, budget) = (hold.lock().schedule.lease(), hold.timeout);
            let confirm = async move { watchdog.confirm_all(&record, lease, budget).await };
            self.releaser.runtime.spawn(confirm);
        }
    }

    /// Asks about a record until nobody has passed it on since the last question. Hands each answer to the calls that
    /// wait for it, and to the holds that have the record now.
    async fn confirm_all(&self, record: &Arc<Record>, lease: LeaseTime, budget: Duration) {
        let key = &record.key;
        let local = self.releaser.local_locks.enter(key.local_key());
        loop {
            // A call in the local queue will soon pass the record on, and can share the request.
            let begun = BootInstant::now();
            for _ in 0..GATHERED {
                if local.in_queue() == 0 || begun.until(BootInstant::now()) > GATHERING {
                    break;
                }
                yield_now().await;
            }
            let Some(unlocks) = record.next_unlocks(BootInstant::now()) else {
                return;
            };
            let listeners = self.releaser.listeners(key);
            let call = key.confirm(lease, listeners);
            let confirmed = self.releaser.backend.run(&call, budget).await;
            let confirmed = confirmed.and_then(|answer| {
                let confirmed = Confirmed::decode(&answer.reply);
                Ok((answer.sent, confirmed.map_err(|error| call.blame(error))?))
            });

            match confirmed {
                Ok((sent, Confirmed::Stands { others })) => {
                    let now = BootInstant::now();
                    // Noted before the calls are told, since a reader may follow one of them at once and look at it.
                    record.saw(sent, now, others);
                    unlocks.stood();
                    // Otherwise the server could not count, and others are assumed to wait.
                    if listeners.is_some() && !key.kind.is_shared() {
                        local.turns(|turns| turns.others_wait(others.is_some()));
                    }
                    for hold in local.having(record) {
                        let mut state = hold.lock();
                        // A hold that was left to its owner ends with its lease.
                        if state.is_left() {
                            continue;
                        }
                        state.schedule.confirmed(sent, lease);
                        self.place(&hold, &mut state, now);
                    }
                }
                Ok((_, Confirmed::Absent)) => {
                    // Not lost if our own release took it away in the meantime.
                    if unlocks.was_gone() {
                        self.lose_all(&local, record);
                    }
                }
                Err(error) => {
                    debug!(lock = %key.name.key(), %error, "unconfirmed");
                    unlocks.failed(error);
                }
            }
        }
    }
}
