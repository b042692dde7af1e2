//! Moves slots of a cluster together with their keys.

use super::World;
use crate::cluster::slot;
use crate::judge::{judge, tell};
use crate::server::Memory;

impl World {
    /// Returns the server that has the keys of a name.
    pub(super) fn keeper(&self, name: usize) -> Option<usize> {
        let slot = slot(&self.plan.names[name].name);
        self.cluster.as_ref().map(|cluster| cluster.keeper(slot))
    }

    /// Moves the keys of a name's slot to another server. Returns `false` if that is not possible.
    pub(super) fn begin_move(&mut self, name: usize, next: usize) -> bool {
        let Some(cluster) = &self.cluster else {
            return false;
        };
        let moved = slot(&self.plan.names[name].name);
        let from = cluster.owner(moved);
        let to = (from + 1 + next) % self.servers.len();
        let (here, there) = (&self.servers[from], &self.servers[to]);
        if !here.is_well() || !there.is_well() || !cluster.begin(moved, to) {
            return false;
        }
        here.hand_over(there, |key| slot(key) == moved);
        for (at, shared) in self.plan.names.iter().enumerate() {
            if slot(&shared.name) == moved {
                judge(|judge| judge.moved(at, from, to));
            }
        }
        tell!("slot {moved} moves from {from} to {to}");
        true
    }

    /// Moves the slot of a name to the server that has its keys.
    pub(super) fn finish_move(&mut self, name: usize) {
        let Some(cluster) = &self.cluster else {
            return;
        };
        let moved = slot(&self.plan.names[name].name);
        let from = cluster.owner(moved);
        cluster.finish();
        self.servers[from].machine.jump();
        self.servers[from].unsubscribe(|channel| slot(channel) == moved);
        self.servers[from].machine.run(1);
    }

    /// Lets another server take over the slots of one that has stopped.
    pub(super) fn inherit(&mut self, server: usize, next: usize, is_back: bool) {
        let Some(cluster) = self.cluster.clone() else {
            return;
        };
        let heir = (server + 1 + next) % self.servers.len();
        self.servers[server].stop(64);
        self.servers[server].hand_over(&self.servers[heir], |key| {
            cluster.keeper(slot(key)) == server
        });
        cluster.inherit(server, heir);
        tell!("the slots of {server} are those of {heir} now");
        if is_back {
            self.servers[server].machine.jump();
            self.servers[server].restart(Memory::Nothing);
        }
    }

    /// Deletes the keys of other servers' slots from a server that starts again.
    pub(super) fn delete_strangers(&self, server: usize) {
        if let Some(cluster) = &self.cluster {
            self.servers[server].delete(|key| cluster.keeper(slot(key)) != server);
        }
    }
}
