//! The faults that may befall the processes and the server.

use super::World;
use super::process::{Ear, JavaPhase, Phase, Process};
use super::server::{Holder, Told};

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(super) enum Fault {
    /// The connections of a process break: messages and answers are lost, and it subscribes and asks again.
    Break,
    /// Only the connection for messages breaks.
    Deafen,
    Die,
    /// The process is frozen: the server still counts it as a subscriber, but it does nothing.
    Freeze,
    /// The waiter is cancelled, and gives up its place.
    Cancel,
    /// The waiter is cancelled, and the server is never told.
    Vanish,
    /// A copy of its request arrives at any later time, or never.
    Copy,
    /// The process was told, and comes only when its turn is over.
    Dawdle,
    /// The turn order is deleted.
    Flush,
    /// Redisson's process dies.
    End,
}

impl World {
    pub(super) fn may_befall(&self, fault: Fault, c: usize) -> bool {
        let process = &self.processes[c];
        let waits = matches!(
            process.phase,
            Phase::Asked { .. } | Phase::Answered(_) | Phase::Parked(_)
        );
        match fault {
            Fault::Break | Fault::Deafen => waits,
            Fault::Die | Fault::Freeze => waits || process.phase == Phase::Holding,
            Fault::Cancel | Fault::Vanish => matches!(process.phase, Phase::Parked(_)),
            Fault::Copy => matches!(process.phase, Phase::Asked { .. }) && process.copy.is_none(),
            Fault::Dawdle => self.told == Told::Yes && self.line[0] == c && process.comes(),
            Fault::Flush => c == 0 && !self.line.is_empty(),
            Fault::End => {
                c == 0 && matches!(self.java.phase, JavaPhase::Parked | JavaPhase::Holding)
            }
        }
    }

    pub(super) fn suffer(&mut self, fault: Fault, c: usize) {
        let befallen = match fault {
            Fault::Flush => self.came.clone(),
            Fault::End => Vec::new(),
            _ => vec![c],
        };
        for c in befallen {
            self.processes[c].befallen = true;
            self.came.retain(|other| *other != c);
        }
        let process = &mut self.processes[c];
        match fault {
            Fault::Break => {
                process.lose_messages();
                if matches!(process.phase, Phase::Answered(_)) {
                    process.ask();
                }
            }
            Fault::Deafen => process.lose_messages(),
            Fault::Die | Fault::Freeze => {
                if let Phase::Asked { stands } = process.phase {
                    process.copy = Some((process.sections, stands));
                }
                let ears = process.ears;
                process.rest(Phase::Dead, false);
                process.leaving = false;
                process.ears = [Ear::Off; 2];
                if fault == Fault::Freeze {
                    process.phase = Phase::Frozen;
                    process.ears = ears;
                }
            }
            Fault::Cancel | Fault::Vanish => {
                process.rest(Phase::Idle, self.keeps);
                process.end();
                process.leaving = fault == Fault::Cancel;
                if self.lock == Some(Holder::Process(c)) {
                    self.lock = Some(Holder::Copy(c));
                }
            }
            Fault::Copy => {
                if let Phase::Asked { stands } = process.phase {
                    process.copy = Some((process.sections, stands));
                }
            }
            Fault::Dawdle => self.told = Told::Over,
            Fault::Flush => {
                self.line.clear();
                self.told = Told::No;
                self.foreign = Told::No;
            }
            Fault::End => self.java.phase = JavaPhase::Dead,
        }
    }

    pub(super) fn late_copy(&mut self, c: usize) {
        let Some((section, stands)) = self.processes[c].copy.take() else {
            return;
        };
        let process = &self.processes[c];
        let waits = matches!(
            process.phase,
            Phase::Asked { .. } | Phase::Answered(_) | Phase::Parked(_) | Phase::Holding
        );
        let hold = match waits && process.sections == section {
            true => Holder::Process(c),
            false => Holder::Copy(c),
        };
        self.ask(hold, stands);
    }
}

impl Process {
    fn lose_messages(&mut self) {
        for ear in &mut self.ears {
            *ear = match *ear {
                Ear::Open | Ear::Known => Ear::Broken,
                Ear::Left => Ear::Off,
                other => other,
            };
        }
        self.mail = [false; 2];
        self.next = false;
    }
}
