//! A failover, step by step: a replica takes over from its primary.

use redlatch_memory::Server as MemoryServer;

use super::World;
use crate::judge::{judge, tell};
use crate::machine::now;
use crate::plan::{Failover, Fall};
use crate::server::Memory;

#[derive(Clone, Copy, Debug)]
enum Stage {
    /// The primary fails, for all or for some.
    Falls,
    Promoted,
    /// A sentinel hears of it.
    Told(usize),
    /// The former primary is back, as a primary.
    Back,
    Converted,
}

pub(super) struct Takeover {
    plan: Failover,
    former: usize,
    heir: usize,
    /// The data of the replica that takes over.
    data: MemoryServer,
    stages: Vec<(u64, Stage)>,
    is_promoted: bool,
}

impl World {
    /// Begins a failover. From now on, the replica receives nothing more.
    pub(super) fn fail_over(&mut self, plan: &Failover) {
        let Some(sentinels) = &self.sentinels else {
            return;
        };
        let former = sentinels.primary();
        sentinels.begin(former);
        let falls = now() + plan.lag;
        let promoted = falls + plan.promoted;
        let back = promoted + plan.back;
        let mut stages = vec![
            (falls, Stage::Falls),
            (promoted, Stage::Promoted),
            (back, Stage::Back),
            (back + plan.converted, Stage::Converted),
        ];
        stages.extend(
            (0..)
                .zip(plan.told)
                .map(|(one, after)| (promoted + after, Stage::Told(one))),
        );
        stages.sort_by_key(|(at, _)| *at);
        self.takeover = Some(Takeover {
            plan: *plan,
            former,
            heir: (former + plan.heir) % self.servers.len(),
            data: self.servers[former].copied(),
            stages,
            is_promoted: false,
        });
    }

    /// Continues a failover up to the present time, or to its end with `all`.
    pub(super) fn go_on_with_takeover(&mut self, all: bool) {
        let Some(mut takeover) = self.takeover.take() else {
            return;
        };
        while let Some(&(at, stage)) = takeover.stages.first()
            && (all || at <= now())
        {
            takeover.stages.remove(0);
            tell!(
                "failover from {} to {}: {stage:?}",
                takeover.former,
                takeover.heir
            );
            self.enter(&mut takeover, stage);
        }
        if let Some(sentinels) = &self.sentinels
            && takeover.is_promoted
        {
            let at_stake = sentinels.at_stake(false);
            judge(|judge| at_stake.iter().for_each(|name| judge.server_forgot(*name)));
        }
        self.takeover = Some(takeover).filter(|takeover| !takeover.stages.is_empty());
    }

    fn enter(&mut self, takeover: &mut Takeover, stage: Stage) {
        let Some(sentinels) = self.sentinels.clone() else {
            return;
        };
        let (former, heir) = (takeover.former, takeover.heir);
        match (stage, takeover.plan.fall) {
            (Stage::Falls, Fall::Stop) => self.servers[former].stop(64),
            (Stage::Falls, Fall::Hang) => self.servers[former].hang(),
            (Stage::Falls, Fall::CutOff) => {
                let until = takeover.stages.iter().map(|(at, _)| *at).max();
                let span = until.unwrap_or_default().saturating_sub(now());
                for process in 0..self.processes.len() {
                    if takeover.plan.apart >> process & 1 == 1 {
                        self.network.mute(Some(process), Some(former), span);
                        self.network
                            .hold(Some(process), Some(former), [true; 2], span);
                    }
                }
            }
            (Stage::Promoted, _) => {
                self.servers[heir].machine.jump();
                self.servers[heir].stop(64);
                self.servers[heir].restart_with(&takeover.data);
                sentinels.promote(heir);
                takeover.is_promoted = true;
                let at_stake = sentinels.at_stake(true);
                judge(|judge| at_stake.iter().for_each(|name| judge.server_forgot(*name)));
            }
            (Stage::Told(sentinel), _) => {
                sentinels.learn(sentinel, heir);
                let machine = &self.watchers[sentinel];
                machine.jump();
                machine.run(1);
            }
            (Stage::Back, Fall::Stop) => {
                self.servers[former].machine.jump();
                self.servers[former].restart(Memory::All);
            }
            (Stage::Back, Fall::Hang) => {
                self.servers[former].machine.jump();
                self.servers[former].go_on();
                self.servers[former].machine.run(1);
            }
            (Stage::Back, Fall::CutOff) => {}
            (Stage::Converted, _) => {
                self.servers[former].machine.jump();
                self.servers[former].stop(64);
                sentinels.convert(former);
                self.servers[former].restart(Memory::Nothing);
            }
        }
    }
}
