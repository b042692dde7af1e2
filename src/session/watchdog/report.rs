//! Logs outages and losses, as [`OutageLog`](crate::session::outage_log::OutageLog) decides, and possible deadlocks:
//! calls that wait for a holder that may wait for them.

use std::sync::Arc;

use tracing::{debug, field, info, warn};

use super::Watchdog;
use crate::clock::BootInstant;
use crate::label;
use crate::loss::LossReason;
use crate::session::backend::{Disruption, Node};
use crate::session::hold::Hold;
use crate::session::outage_log::Names;

impl Watchdog {
    /// Logs a loss, unless the hold ends with its client.
    pub(super) fn tell_loss(&self, hold: &Hold, reason: LossReason) {
        let (lock, owner, token) = (hold.key().name.key(), hold.shown_owner(), hold.token());
        let server = || self.node(hold).map(|node| node.id());
        let is_told =
            reason != LossReason::Closed && self.outages.lost(server(), lock, BootInstant::now());
        match is_told {
            true => warn!(target: "redlatch", %lock, %owner, ?reason, token, "lost"),
            false => debug!(target: "redlatch", %lock, %owner, ?reason, token, "lost"),
        }
        if hold.is_term() && reason != LossReason::Closed {
            let label = hold.key().label();
            info!(target: "redlatch", %lock, label, token, ?reason, "deposed");
        }
        // The task logs the others that are lost now together, in a moment.
        if is_told {
            self.woken.notify_one();
        }
    }

    /// Logs an outage that begins.
    pub(super) fn tell_outage(&self, disruption: &Disruption) {
        let now = BootInstant::now();
        let servers = self.releaser.backend.nodes();
        let server_of = |id: u64| servers.iter().find(|server| server.id() == id);
        // The outage may be over or have begun again by now, so the present state of the server counts.
        let is_out = |id: u64| server_of(id).is_some_and(|server| server.is_outage());
        let known: Vec<_> = servers.iter().map(|server| server.id()).collect();
        self.outages.moved_to(&known, now);
        match disruption {
            Disruption::Silent {
                node,
                server,
                since,
                error,
            } if is_out(*node) => {
                if self.outages.begins(*node, server.clone(), *since) {
                    let (held, locks) = self.held(disruption);
                    warn!(target: "redlatch", %server, held, %locks, %error, "outage");
                }
            }
            Disruption::Answers(node) if !is_out(*node) => self.outages.answers(*node, now),
            // The connection is back. If this client holds nothing, nobody else may ask for a long time.
            Disruption::Node(node) if is_out(*node) => self.probe(server_of(*node)),
            // Nobody else may ask before the next renewal either.
            Disruption::Unreachable(node) => self.probe(server_of(*node)),
            Disruption::Silent { .. }
            | Disruption::Answers(_)
            | Disruption::Slots(_)
            | Disruption::Node(_)
            | Disruption::Heard
            | Disruption::Forced(_) => {}
        }
    }

    /// Asks a server whether it answers, in a task, and records the result.
    fn probe(&self, server: Option<&Arc<Node>>) {
        if let Some(server) = server.cloned() {
            self.releaser
                .runtime
                .spawn(async move { server.probe().await });
        }
    }

    /// Logs what was gathered: outages that are over, and lost locks.
    pub(super) fn tell_gathered(&self) {
        for outage in self.outages.take_due(BootInstant::now()) {
            let (lost, locks) = (outage.lost.count, &outage.lost);
            if outage.is_of_a_server() {
                let (server, lasted, silences) = (&outage.server, outage.lasted(), outage.silences);
                warn!(target: "redlatch", %server, ?lasted, silences, lost, %locks, "outage is over");
            } else if lost > 1 {
                warn!(target: "redlatch", lost, %locks, "lost more");
            }
        }
    }

    /// Warns, once for each hold, that a call has waited for it for a whole lease. The holder may be a parent task that
    /// waits for this call of its child. The runtime does not say which task waits for which, so it may also be a long
    /// job.
    ///
    /// Checked when a hold was renewed. So no call needs a timer for this, and a hold that ends within its lease costs
    /// nothing.
    pub(super) fn tell_wait(&self, hold: &Hold) {
        // Skips the search if nothing may be logged now, since with many readers it takes long.
        if !self.waits.is_due() {
            return;
        }
        let now = BootInstant::now();
        let lease = hold.lock().outlasts_its_lease(now);
        let Some(lease) = lease.filter(|_| hold.is_guarded()) else {
            return;
        };
        let local = self.releaser.local_locks.find(hold.key().local_key());
        let first = local.and_then(|local| local.first_behind(&hold.owner));
        let Some((came, owner)) = first.filter(|(came, _)| came.until(now) >= lease) else {
            return;
        };
        if self.waits.tell().is_none() {
            return;
        }
        hold.lock().wait_is_known();
        let (lock, holder, waited) = (hold.key().name.key(), hold.shown_owner(), came.until(now));
        let shown = |owner| field::display(label::shown(hold.key().label(), owner));
        warn!(
            lock = &**lock,
            owner = owner.as_ref().map(shown),
            %holder,
            ?waited,
            "a call waits for another owner of this client, which has held the lock for longer than a lease; if that \
             one waits for the call, neither goes on: give a child task the owner of its parent, by \
             Owner::current().scope(..), have every task acquire its locks in one order, and see redlatch::pitfalls"
        );
    }

    /// Returns how many holds a disruption concerns, and the names of the first.
    fn held(&self, disruption: &Disruption) -> (usize, Names) {
        let holds = self.releaser.local_locks.holds();
        let names = holds.iter().map(|hold| hold.key().name.key());
        let concerned = names.filter(|name| self.releaser.backend.concerns(disruption, name));
        let locks: Names = concerned.collect();
        (locks.count, locks)
    }
}
