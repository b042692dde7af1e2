//! The server of the model: a function for each script, and the functions that scripts share.

use super::Rule;
use super::World;
use super::process::{Channel, Phase, Place};

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(super) enum Holder {
    Process(usize),
    /// Held by a request that arrived when its process no longer wanted the lock.
    Copy(usize),
    Java,
}

/// Whether the first process in the turn order was told that its turn has come.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(super) enum Told {
    No,
    Yes,
    /// Its turn is over.
    Over,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(super) enum Answer {
    Granted,
    Busy,
    Stands {
        place: Place,
        is_foreign: bool,
        is_free: bool,
    },
}

/// Who may take a free lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Nobodys,
    /// All of Redisson's clients that received the message.
    Foreign,
    Of(usize),
}

impl World {
    /// `lock_acquire.lua`, with `refusal` of `lock_stand.lua`.
    pub(super) fn ask(&mut self, hold: Holder, stands: bool) -> Answer {
        let (Holder::Process(c) | Holder::Copy(c)) = hold else {
            return Answer::Busy;
        };
        if self.lock == Some(hold) {
            return Answer::Granted;
        }
        let is_free = self.lock.is_none();
        if is_free {
            let (turn, moved) = self.whose_turn(Some(c), false);
            let is_mine = turn == Turn::Of(c);
            if is_mine || turn == Turn::Nobodys || self.rule == Rule::AnyTurn {
                if is_mine {
                    self.take_out_first();
                } else {
                    self.line.retain(|other| *other != c);
                }
                if is_mine && moved {
                    self.tell_moved(0);
                }
                self.lock = Some(hold);
                if hold == Holder::Process(c) {
                    self.note_turn(c);
                }
                return Answer::Granted;
            }
        }
        if !stands {
            return Answer::Busy;
        }
        Answer::Stands {
            place: self.stand(c),
            is_foreign: self.lock == Some(Holder::Java),
            is_free,
        }
    }

    /// `stand` of `lock_turns.lua`.
    pub(super) fn stand(&mut self, c: usize) -> Place {
        if !self.line.contains(&c) {
            self.line.push(c);
        }
        self.note_place(c);
        let place = self.place(c);
        let is_held = self.lock.is_some();
        if place == Some(0) && is_held && self.rule != Rule::KeepNote {
            self.told = Told::No;
        }
        match place {
            Some(0) => Place::First,
            Some(1) => Place::Second,
            _ => Place::Behind,
        }
    }

    /// Returns the place of a process among ours, from 0. The turn of Redisson's clients, which is ahead of all places,
    /// is not a place itself.
    fn place(&self, c: usize) -> Option<usize> {
        let place = self.line.iter().position(|other| *other == c)?;
        let counts = self.foreign != Told::No && self.rule == Rule::ForeignPlace;
        Some(place + usize::from(counts))
    }

    /// `first` of `lock_turns.lua`. Also returns whether others were removed from the turn order.
    fn whose_turn(&mut self, asking: Option<usize>, is_news: bool) -> (Turn, bool) {
        if self.foreign == Told::Yes && !is_news {
            return (Turn::Foreign, false);
        }
        let counts = matches!(self.rule, Rule::ForeignPlace | Rule::NextToFirst);
        let mut moved = self.foreign != Told::No && counts;
        self.foreign = Told::No;
        while let Some(first) = self.line.first().copied() {
            let was_told = self.told != Told::No && !is_news;
            let is_left = match was_told {
                true => self.told == Told::Yes,
                false => Some(first) != asking && self.tell(first),
            };
            if is_left || Some(first) == asking {
                return (Turn::Of(first), moved);
            }
            self.take_out_first();
            moved = true;
        }
        (Turn::Nobodys, moved)
    }

    /// `begin_turn` of `lock_turns.lua`.
    fn tell(&mut self, c: usize) -> bool {
        let comes_untold = self.processes[c].deaf && self.rule != Rule::DeafGone;
        if !comes_untold && !self.processes[c].hears(Channel::Own) {
            return false;
        }
        self.send(c);
        self.told = Told::Yes;
        if let Some(behind) = self.line.get(1).copied()
            && self.rule != Rule::NoNext
        {
            self.send_next(behind);
        }
        true
    }

    /// Sends a message to a process in the turn order, if it listens.
    fn send(&mut self, c: usize) {
        let reaches = self.processes[c].hears(Channel::Own) && self.reaches(c);
        self.processes[c].mail[Channel::Own as usize] |= reaches;
    }

    /// Sends the message that a turn began to the process behind the one whose turn it is.
    fn send_next(&mut self, c: usize) {
        let reaches = self.processes[c].hears(Channel::Own) && self.reaches(c);
        self.processes[c].next |= reaches;
    }

    /// Returns whether a process that listens reads what is sent to it.
    fn reaches(&self, c: usize) -> bool {
        self.processes[c].phase != Phase::Frozen
    }

    fn take_out_first(&mut self) {
        self.line.remove(0);
        self.told = Told::No;
    }

    /// `lock_release.lua`.
    pub(super) fn release(&mut self, c: usize) {
        if self.lock != Some(Holder::Process(c)) {
            return;
        }
        self.lock = None;
        self.tell_freed();
    }

    /// `lock_freed.lua`.
    fn tell_freed(&mut self) {
        if self.tell_all() {
            self.foreign = Told::Yes;
            let told = match self.rule {
                Rule::NextToNone => 0,
                Rule::ForeignPlace | Rule::NextToFirst => 1,
                _ => 2,
            };
            for behind in self.line.clone().into_iter().take(told) {
                self.send_next(behind);
            }
        } else {
            self.whose_turn(None, true);
        }
    }

    /// `turn_leave.lua`.
    pub(super) fn leave(&mut self, c: usize) {
        let Some(place) = self.place(c) else {
            return;
        };
        if self.line[0] == c {
            self.take_out_first();
        } else {
            self.line.retain(|other| *other != c);
        }
        if self.rule != Rule::SilentLeave {
            self.tell_moved(place);
        }
    }

    /// Tells the processes that are now first and second, from a place on.
    fn tell_moved(&mut self, from: usize) {
        for c in self.line.clone() {
            let place = self.place(c);
            if place.is_some_and(|place| (from..2).contains(&place)) {
                self.send(c);
            }
        }
    }

    /// Publishes a message on the common channel. Returns whether it reached anybody.
    pub(super) fn tell_all(&mut self) -> bool {
        let mut is_heard = self.java.hears();
        self.java.mail |= is_heard;
        for c in 0..self.processes.len() {
            is_heard |= self.processes[c].is_counted();
            let reaches = self.processes[c].hears(Channel::Common) && self.reaches(c);
            self.processes[c].mail[Channel::Common as usize] |= reaches;
        }
        is_heard
    }
}
