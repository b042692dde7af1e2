//! The servers of the model: when each of them votes, and the faults that may befall it.

use std::mem;

use crate::protocol::quorum::Response;

/// The lease, in ticks. Also the longest lease of the fleet, and how long the servers have been up at the beginning.
pub(super) const LEASE: u8 = 2;

/// When a server votes: the check ahead of the script, of which one part may be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    Whole,
    /// Every server votes.
    None,
    /// An epoch is identified by the run alone.
    WithoutHistory,
    /// A server without an epoch is not asked whether it was promoted.
    WithoutPromotion,
    /// A server without an epoch is not asked whether it was flushed.
    WithoutFlush,
    /// An epoch counts in any run, as for servers that lose nothing.
    Durable,
    /// A server that was started counts as having forgotten nothing.
    Trusting,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(super) enum Fault {
    /// The server starts again, without data.
    Restart(usize),
    /// The server starts again, with the data of the beginning.
    Return(usize),
    /// `FLUSHALL`, `SWAPDB`; or either of them and `CONFIG RESETSTAT`.
    Flush(usize),
    /// Only the server's epoch is lost, as in a cluster when nobody has asked for a name.
    ForgetEpoch(usize),
    /// The replica takes the server's place, with the data that it has.
    Promote(usize),
    /// As `Promote`, but the first caller still reaches the old primary.
    Split(usize),
    /// The other node becomes the server's replica, or catches up as its replica.
    Sync(usize),
    /// The server forgets its second replication id: a first replica attaches, or its backlog is freed, which takes
    /// longer than a lease after a promotion.
    Clear(usize),
    /// As `Clear`, but sooner.
    ClearEarly(usize),
    /// The server's clock is a lease ahead from now on.
    Jump(usize),
}

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub(super) struct Server {
    /// The node that clients reach.
    pub(super) primary: Node,
    /// The replica of the primary, or the former primary.
    other: Node,
    other_replicates: bool,
    split: bool,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub(super) struct Node {
    run: u8,
    history: u8,
    promoted: Option<u8>,
    flushed: bool,
    started: u8,
    /// How far the node's clock is ahead.
    ahead: u8,
    pub(super) data: Data,
}

#[derive(Clone, Debug, Default, Hash, PartialEq, Eq)]
pub(super) struct Data {
    pub(super) hold: Option<Hold>,
    epoch: Option<Epoch>,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(super) struct Hold {
    pub(super) request: Request,
    ends: u8,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
struct Epoch {
    run: u8,
    history: u8,
    since: u8,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) caller: usize,
    pub(super) round: u8,
    pub(super) sent: u8,
}

impl Server {
    /// Makes a server that has been up for long, with a new replica. `asked_before` says that the server was asked
    /// before.
    pub(super) fn new(number: usize, asked_before: bool) -> Self {
        let node = |run: usize, started: u8| Node {
            run: run as u8,
            history: number as u8,
            promoted: None,
            flushed: false,
            started,
            ahead: 0,
            data: Data::first(number, asked_before),
        };
        Self {
            primary: node(number, 0),
            other: node(number + 3, LEASE),
            other_replicates: true,
            split: false,
        }
    }

    /// Returns the node that a caller reaches.
    pub(super) fn reached_by(&mut self, caller: usize) -> &mut Node {
        match self.split && caller == 0 {
            true => &mut self.other,
            false => &mut self.primary,
        }
    }

    /// Applies a fault. `fresh` is the number of the run or history that began last.
    pub(super) fn suffer(&mut self, fault: Fault, now: u8, fresh: &mut u8, asked_before: bool) {
        let Self { primary, other, .. } = self;
        match fault {
            Fault::Restart(_) => primary.restart(now, Data::default(), fresh),
            Fault::Return(s) => primary.restart(now, Data::first(s, asked_before), fresh),
            Fault::Flush(_) => {
                primary.data = Data::default();
                primary.flushed = true;
            }
            Fault::ForgetEpoch(_) => primary.data.epoch = None,
            Fault::Promote(_) | Fault::Split(_) => {
                mem::swap(primary, other);
                primary.history = next(fresh);
                primary.promoted = Some(now);
                self.other_replicates = false;
                self.split = matches!(fault, Fault::Split(_));
                if self.split {
                    // Somebody asks the new primary at once.
                    self.primary.votes(now, Rule::Whole);
                }
            }
            Fault::Sync(_) => {
                other.history = primary.history;
                other.promoted = None;
                other.data = primary.data.clone();
                self.other_replicates = true;
                self.split = false;
            }
            Fault::Clear(_) | Fault::ClearEarly(_) => primary.clear(fresh),
            Fault::Jump(_) => primary.ahead += LEASE,
        }
    }
}

impl Data {
    fn first(server: usize, asked_before: bool) -> Self {
        let epoch = asked_before.then_some(Epoch {
            run: server as u8,
            history: server as u8,
            since: 0,
        });
        Self { hold: None, epoch }
    }
}

impl Node {
    fn clock(&self, now: u8) -> u8 {
        now + self.ahead
    }

    /// Returns whether the node votes, and notes its epoch: the guard of the acquisition.
    pub(super) fn votes(&mut self, now: u8, rule: Rule) -> bool {
        let (clock, epoch) = (self.clock(now), self.data.epoch);
        let is_of_run = |epoch: &Epoch| epoch.run == self.run;
        let is_of_history =
            |epoch: &Epoch| epoch.history == self.history || rule == Rule::WithoutHistory;
        let since = match epoch {
            Some(epoch) if is_of_run(&epoch) && is_of_history(&epoch) => epoch.since,
            Some(epoch) if is_of_run(&epoch) => clock,
            _ if self.promoted.is_some() && rule != Rule::WithoutPromotion => clock,
            Some(epoch) if rule == Rule::Durable => epoch.since,
            _ if self.flushed && rule != Rule::WithoutFlush => clock,
            _ => self.started,
        };
        self.data.epoch = Some(Epoch {
            run: self.run,
            history: self.history,
            since,
        });
        let trusted = rule == Rule::Trusting && since == self.started;
        clock - since >= LEASE || trusted || rule == Rule::None
    }

    pub(super) fn acquire(&mut self, now: u8, request: Request) -> Response {
        let clock = self.clock(now);
        match self.data.hold {
            Some(hold) if clock < hold.ends && hold.request != request => Response::No,
            _ => {
                let ends = clock + LEASE;
                self.data.hold = Some(Hold { request, ends });
                Response::Yes
            }
        }
    }

    /// Sets the lease of a hold again. Returns `false` if the hold no longer exists.
    pub(super) fn extend(&mut self, now: u8, caller: usize, round: u8) -> bool {
        let clock = self.clock(now);
        match &mut self.data.hold {
            Some(hold) if clock < hold.ends && hold.is_of(caller, round) => {
                hold.ends = clock + LEASE;
                true
            }
            _ => false,
        }
    }

    fn restart(&mut self, now: u8, data: Data, fresh: &mut u8) {
        *self = Self {
            run: next(fresh),
            history: next(fresh),
            promoted: None,
            flushed: false,
            started: now,
            ahead: self.ahead,
            data,
        };
    }

    fn clear(&mut self, fresh: &mut u8) {
        self.history = next(fresh);
        self.promoted = None;
    }
}

fn next(fresh: &mut u8) -> u8 {
    *fresh += 1;
    *fresh
}

impl Fault {
    pub(super) fn server(self) -> usize {
        match self {
            Self::Restart(s)
            | Self::Return(s)
            | Self::Flush(s)
            | Self::ForgetEpoch(s)
            | Self::Promote(s)
            | Self::Split(s)
            | Self::Sync(s)
            | Self::Clear(s)
            | Self::ClearEarly(s)
            | Self::Jump(s) => s,
        }
    }

    pub(super) fn is_possible(self, server: &Server, now: u8) -> bool {
        let primary = &server.primary;
        match self {
            Self::Promote(_) | Self::Split(_) => server.other_replicates,
            Self::Clear(_) => primary.promoted.is_none_or(|at| now >= at + LEASE),
            Self::ClearEarly(_) => primary.promoted.is_some(),
            // A node without data can forget nothing.
            Self::Flush(_) | Self::Restart(_) => primary.data != Data::default(),
            Self::ForgetEpoch(_) => primary.data.epoch.is_some(),
            Self::Sync(_) => !server.other_replicates || server.other.data != primary.data,
            Self::Return(_) | Self::Jump(_) => true,
        }
    }
}

impl Hold {
    pub(super) fn is_of(&self, caller: usize, round: u8) -> bool {
        self.request.caller == caller && self.request.round == round
    }
}
