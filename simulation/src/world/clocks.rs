//! Clocks of servers that are set.

use super::World;
use crate::judge::judge;
use crate::plan::Kind;

impl World {
    pub(super) fn set_clock(&self, server: usize, by: i64) {
        // Servers that pass data on to each other have the same time.
        let of_all = self.plan.topology.shares_data();
        for (number, one) in self.servers.iter().enumerate() {
            if of_all || number == server {
                one.set_clock(by);
            }
        }
        for (at, shared) in self.plan.names.iter().enumerate() {
            if of_all || shared.client == server || shared.kind == Kind::Red {
                judge(|judge| judge.clock_set(at, by));
            }
        }
    }
}
