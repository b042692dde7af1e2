//! The processes that want the lock: those of ours, and one of Redisson's.

use super::Rule;
use super::World;
use super::server::{Answer, Holder};

/// A process of ours. The server knows only which channels it listens to.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(super) struct Process {
    /// How many more times it will want the lock, including this time.
    pub(super) sections: u8,
    pub(super) phase: Phase,
    pub(super) ears: [Ear; 2],
    /// For each channel, whether a message with news is in flight.
    pub(super) mail: [bool; 2],
    /// Whether the message is in flight that the turn of another process began.
    pub(super) next: bool,
    /// Whether there has been news since the process asked.
    news: bool,
    /// Whether the process will ask when the turn of the other process is over.
    pub(super) soon: bool,
    /// A copy of its request that may arrive late: the section at which it was made, and whether it asks for a place.
    pub(super) copy: Option<(u8, bool)>,
    /// Whether the process gives up its place and the server does not know yet.
    pub(super) leaving: bool,
    /// Whether nothing reaches the process, as its subscriptions are never carried out.
    pub(super) deaf: bool,
    /// Whether a fault befell the process, so that it has no claim to its turn.
    pub(super) befallen: bool,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(super) enum Phase {
    Idle,
    Asked { stands: bool },
    Answered(Answer),
    Parked(Place),
    Holding,
    Frozen,
    Dead,
}

/// What the process was told of its place.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(super) enum Place {
    Nowhere,
    First,
    Second,
    Behind,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(super) enum Channel {
    Own,
    Common,
}

/// The state of the process's subscription to a channel.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(super) enum Ear {
    Off,
    Asked,
    /// The server sends messages to the process, which does not know yet.
    Open,
    Known,
    /// The server no longer sends messages to the process, which does not know yet.
    Broken,
    /// The process does not listen any more, and the server has not been told yet.
    Left,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(super) struct Java {
    pub(super) sections: u8,
    pub(super) phase: JavaPhase,
    pub(super) mail: bool,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(super) enum JavaPhase {
    Idle,
    Subscribing,
    /// It listens, and is about to ask again.
    Looking,
    Parked,
    Holding,
    Dead,
}

impl Process {
    pub(super) fn new(sections: u8, deaf: bool) -> Self {
        Self {
            sections,
            deaf,
            phase: Phase::Idle,
            ears: [Ear::Off; 2],
            mail: [false; 2],
            next: false,
            news: false,
            soon: false,
            copy: None,
            leaving: false,
            befallen: false,
        }
    }

    pub(super) fn is_new(&self, sections: u8) -> bool {
        self.phase == Phase::Idle && self.sections == sections
    }

    pub(super) fn hears(&self, channel: Channel) -> bool {
        matches!(self.ears[channel as usize], Ear::Open | Ear::Known)
    }

    /// Returns whether the server counts the process as a subscriber of the common channel.
    pub(super) fn is_counted(&self) -> bool {
        self.hears(Channel::Common) || self.ears[Channel::Common as usize] == Ear::Left
    }

    /// Returns whether the process will ask before long.
    pub(super) fn comes(&self) -> bool {
        let is_about = |ear: &Ear| matches!(ear, Ear::Asked | Ear::Open | Ear::Broken);
        match self.phase {
            Phase::Asked { .. } => true,
            Phase::Answered(_) | Phase::Parked(_) => {
                self.deaf
                    || self.mail.contains(&true)
                    || self.news
                    || self.ears.iter().any(is_about)
            }
            Phase::Idle | Phase::Holding | Phase::Frozen | Phase::Dead => false,
        }
    }

    pub(super) fn ask(&mut self) {
        let stands = match self.ears[0] {
            Ear::Asked => self.deaf,
            ear => matches!(ear, Ear::Known | Ear::Broken),
        };
        self.phase = Phase::Asked { stands };
        self.news = false;
        self.soon = false;
    }

    /// Tells the process that there is news. The news is kept until the outcome of the last request is known.
    pub(super) fn wake(&mut self) {
        match self.phase {
            Phase::Parked(_) => self.ask(),
            Phase::Asked { .. } | Phase::Answered(_) => self.news = true,
            Phase::Idle | Phase::Holding | Phase::Frozen | Phase::Dead => {}
        }
    }

    fn park(&mut self, place: Place) {
        self.phase = Phase::Parked(place);
        if self.news {
            self.ask();
        }
    }

    /// Ends the wait of the process.
    pub(super) fn rest(&mut self, phase: Phase, keeps: bool) {
        self.phase = phase;
        if !keeps {
            self.ears[Channel::Own as usize] = Ear::Off;
        }
        self.leave_common(keeps);
        self.mail = [false; 2];
        self.next = false;
        self.news = false;
        self.soon = false;
    }

    fn leave_common(&mut self, keeps: bool) {
        let common = &mut self.ears[Channel::Common as usize];
        *common = match *common {
            Ear::Asked | Ear::Open | Ear::Known | Ear::Left if keeps => Ear::Left,
            _ => Ear::Off,
        };
        self.mail[Channel::Common as usize] = false;
    }

    /// Ends a section: the process releases the lock, or its waiter is cancelled.
    pub(super) fn end(&mut self) {
        self.sections -= 1;
        self.phase = Phase::Idle;
    }
}

impl Java {
    pub(super) fn new(sections: u8) -> Self {
        Self {
            sections,
            phase: JavaPhase::Idle,
            mail: false,
        }
    }

    pub(super) fn hears(&self) -> bool {
        matches!(self.phase, JavaPhase::Looking | JavaPhase::Parked)
    }
}

impl World {
    pub(super) fn arrive(&mut self, c: usize) {
        let Phase::Asked { stands } = self.processes[c].phase else {
            return;
        };
        let stands = match self.rule {
            Rule::StandLater => false,
            Rule::StandDeaf => true,
            _ => stands,
        };
        let answer = self.ask(Holder::Process(c), stands);
        self.processes[c].phase = Phase::Answered(answer);
    }

    pub(super) fn hear(&mut self, c: usize) {
        let Phase::Answered(answer) = self.processes[c].phase else {
            return;
        };
        if answer == Answer::Busy
            && self.rule == Rule::StandLater
            && self.processes[c].hears(Channel::Own)
        {
            self.stand(c);
        }
        let process = &mut self.processes[c];
        let own = &mut process.ears[Channel::Own as usize];
        if *own == Ear::Off && answer != Answer::Granted {
            *own = Ear::Asked;
        }
        match answer {
            Answer::Granted => process.rest(Phase::Holding, self.keeps),
            Answer::Busy => process.park(Place::Nowhere),
            Answer::Stands {
                place,
                is_foreign,
                is_free,
            } => {
                let may_listen = match place {
                    Place::First => self.rule != Rule::DeafToJava,
                    Place::Second => !matches!(self.rule, Rule::DeafToJava | Rule::SecondDeaf),
                    Place::Behind | Place::Nowhere => false,
                };
                let common = &mut process.ears[Channel::Common as usize];
                match *common {
                    _ if !(is_foreign && may_listen) => process.leave_common(self.keeps),
                    Ear::Off => *common = Ear::Asked,
                    Ear::Left => {
                        *common = Ear::Known;
                        process.news = true;
                    }
                    _ => {}
                }
                process.soon |= is_free && place != Place::Behind;
                process.park(place);
            }
        }
    }

    pub(super) fn acknowledge(&mut self, c: usize, channel: Channel) {
        let parks = match channel {
            Channel::Own => matches!(self.rule, Rule::NoLookOwn | Rule::StandDeaf),
            Channel::Common => self.rule == Rule::NoLookCommon,
        };
        let process = &mut self.processes[c];
        process.ears[channel as usize] = Ear::Known;
        if !parks {
            process.wake();
        }
    }

    /// Returns whether the holder is gone, so nobody extends its lease.
    pub(super) fn is_doomed(&self) -> bool {
        match self.lock {
            None => false,
            Some(Holder::Process(c)) => {
                matches!(self.processes[c].phase, Phase::Frozen | Phase::Dead)
            }
            Some(Holder::Copy(_)) => true,
            Some(Holder::Java) => self.java.phase == JavaPhase::Dead,
        }
    }

    /// Ends the lease of the holder. The first and the second process, and Redisson's, know when that is.
    pub(super) fn expire(&mut self) {
        self.lock = None;
        for process in &mut self.processes {
            match process.phase {
                Phase::Parked(place) | Phase::Answered(Answer::Stands { place, .. })
                    if matches!(place, Place::First | Place::Second) =>
                {
                    process.wake();
                }
                _ => {}
            }
        }
        self.java.mail |= self.java.phase == JavaPhase::Parked;
    }

    pub(super) fn java_asks(&mut self) {
        let java = &mut self.java;
        java.mail &= java.phase == JavaPhase::Looking;
        java.phase = match (self.lock, java.phase) {
            (None, _) => {
                self.lock = Some(Holder::Java);
                java.mail = false;
                JavaPhase::Holding
            }
            (Some(_), JavaPhase::Idle) => JavaPhase::Subscribing,
            (Some(_), _) => JavaPhase::Parked,
        };
    }

    pub(super) fn java_releases(&mut self) {
        self.java.sections -= 1;
        self.java.phase = JavaPhase::Idle;
        self.lock = None;
        self.tell_all();
    }

    /// Notes that a process takes a place, if it had none.
    pub(super) fn note_place(&mut self, c: usize) {
        let process = &self.processes[c];
        let waits = matches!(process.phase, Phase::Asked { .. } | Phase::Answered(_));
        if waits && !process.befallen && !self.came.contains(&c) {
            self.came.push(c);
        }
    }

    /// Notes that the turn of a process has come.
    pub(super) fn note_turn(&mut self, c: usize) {
        if !self.processes[c].befallen {
            self.overtaken |= self.came.first().is_some_and(|first| *first != c);
            self.came.retain(|other| *other != c);
        }
    }
}
