//! Tells of outages and of losses what [`OutageLog`](crate::session::outage_log::OutageLog) decides.

use tracing::{debug, warn};

use super::Watchdog;
use crate::clock::BootInstant;
use crate::loss::LossReason;
use crate::session::backend::Disruption;
use crate::session::hold::Hold;
use crate::session::outage_log::Names;

impl Watchdog {
    /// Tells of a loss. A hold that ends with its client is no surprise to anybody.
    pub(super) fn tell_loss(&self, hold: &Hold, reason: LossReason) {
        let (lock, owner) = (hold.key().name.key(), &hold.owner);
        let server = || self.releaser.backend.home(lock).map(|node| node.id());
        let is_told =
            reason != LossReason::Closed && self.outages.lost(server(), lock, BootInstant::now());
        match is_told {
            true => warn!(target: "redlatch", %lock, %owner, %reason, "lost"),
            false => debug!(target: "redlatch", %lock, %owner, %reason, "lost"),
        }
        // The others that are lost now are told together in a moment, by the task.
        if is_told {
            self.woken.notify_one();
        }
    }

    /// Tells of an outage that begins.
    pub(super) fn tell_outage(&self, disruption: &Disruption) {
        let now = BootInstant::now();
        match disruption {
            Disruption::Silent {
                node,
                server,
                since,
                error,
            } => {
                if self.outages.begins(*node, server.clone(), *since) {
                    let (held, locks) = self.held(disruption);
                    warn!(target: "redlatch", %server, held, %locks, %error, "outage");
                }
            }
            Disruption::Answers(node) => self.outages.answers(*node, now),
            Disruption::Slots(_) => {
                let servers = self.releaser.backend.nodes();
                let servers: Vec<_> = servers.iter().map(|node| node.id()).collect();
                self.outages.moved_to(&servers, now);
            }
            Disruption::Node(_) => {}
        }
    }

    /// Tells what was gathered by now: outages that are over, and what was lost.
    pub(super) fn tell_gathered(&self) {
        for outage in self.outages.take_due(BootInstant::now()) {
            let (lost, locks) = (outage.lost.count, &outage.lost);
            if outage.is_of_a_server() {
                let (server, lasted) = (&outage.server, outage.lasted());
                warn!(target: "redlatch", %server, ?lasted, lost, %locks, "outage is over");
            } else if lost > 1 {
                warn!(target: "redlatch", lost, %locks, "lost more");
            }
        }
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
