//! The judge: learns when each call and each hold begins and ends, and reports violations.
//!
//! It learns everything in the order of events, since one thread runs the world.

mod calls;
mod clocks;
mod data;
mod endings;
mod glance;
mod holds;
mod jobs;
mod owners;
mod reports;
mod sets;
mod terms;
mod turns;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use redlatch::Owner;
use redlatch_memory::Server as MemoryServer;

use crate::locks::Guard;
use crate::machine::now;
use crate::network::Network;
use crate::plan::{Kind, Plan};

pub use reports::report;

/// What a task believes that it holds.
pub enum Belief {
    Lock(Arc<Guard>),
    /// Permits, until this time.
    Permits(u32, u64),
    /// A future that runs under a lock, with a token if that has one, and is dropped when the lock is lost.
    Body(Option<u64>),
}

struct Hold {
    process: usize,
    owner: Owner,
    name: usize,
    reads: bool,
    /// When it was requested, and granted.
    since: u64,
    began: u64,
    belief: Belief,
    /// Whether another owner has been granted the lock since.
    is_overtaken: bool,
    /// Since when no server has it.
    gone: Option<u64>,
}

struct Call {
    process: usize,
    task: usize,
    began: u64,
    what: String,
    /// How long it may take, if it has a limit.
    limit: Option<u64>,
    /// The names that it asks for.
    names: Vec<usize>,
    /// How long its process was paused or it was not polled, since it began.
    absent: u64,
    /// Until when that was so last, or when it began.
    back: u64,
    /// How often a lock that it waits for was granted to calls that began later.
    overtaken: u32,
}

/// What is known of a name.
#[derive(Default)]
struct Name {
    token: u64,
    token_owner: Option<Owner>,
    /// Owners that may have levels for which there is no guard, with that token.
    left: Vec<Owner>,
    /// Since when nobody is known to have it.
    free: u64,
    /// Until when an unknown owner may have it, left by a dropped call or a killed process.
    haunted: u64,
    /// When a server last lost data of it, or a request for it went to a server that no longer counts.
    forgotten: Option<u64>,
    /// When its only server was last back without any data.
    wiped: Option<u64>,
    /// When the clock of a server was last set ahead.
    ahead: Option<u64>,
    /// Until when something may last that was there when a clock was set back.
    stretched: u64,
    /// The clock of the server that has it now may be behind what gave out the last tokens.
    has_no_floor: bool,
    /// The last run of a job.
    run: Option<jobs::Run>,
    /// The key of those that wait for it.
    line: String,
    /// What each server has of it.
    kept: Vec<data::Kept>,
    /// Whether something lasting was reported of it.
    is_wrong: bool,
    /// When a holder last began to give it back.
    parted: u64,
    /// When a call to write last ended.
    written: u64,
    /// When a call released it by force, or took it over.
    forced: Option<u64>,
    /// The number of permits that nobody will give back.
    leaked: u32,
    counted_down: u32,
    /// Whether a latch was closed.
    is_set: bool,
    terms: terms::Terms,
    /// Since when more stand in the queue of a fair lock than wait for it.
    crowded: Option<u64>,
}

/// A hold at the time when its guard began to be given back.
pub struct Parted {
    name: usize,
    since: u64,
    began: u64,
    deadline: u64,
    is_overtaken: bool,
    /// When that was.
    ended: u64,
    reads: bool,
    /// Whether the server cannot tell it from another hold of its owner.
    is_alike: bool,
}

#[derive(Default)]
pub struct Figures {
    pub calls: u64,
    pub grants: u64,
    pub faults: BTreeMap<&'static str, u64>,
    pub violations: Vec<String>,
    pub permitted: u64,
}

#[derive(Default)]
pub struct Judge {
    plan: Option<Plan>,
    servers: Vec<MemoryServer>,
    /// The links, by which it is known what a process has heard.
    network: Option<Network>,
    /// When each server was last heard of, and its clock then.
    heard: Vec<(u64, u64)>,
    said: reports::Said,
    /// What each process has told of outages of its only server.
    outages: BTreeMap<usize, reports::Outage>,
    /// Since when the only server has been away, and when it was away last.
    stopped: Option<u64>,
    away: Option<(u64, u64)>,
    /// When each process has connected.
    connected: BTreeMap<usize, u64>,
    /// What the present command is about.
    stood: Vec<data::Stood>,
    begun: u64,
    tells: bool,
    hash: u64,
    last: u64,
    holds: BTreeMap<u64, Hold>,
    calls: BTreeMap<u64, Call>,
    /// When each task began its last call.
    began: BTreeMap<(usize, usize), u64>,
    names: Vec<Name>,
    /// Whether any call was not polled for a while.
    is_unpolled: bool,
    /// When the last of the faults ends that have begun.
    disturbed: Option<u64>,
    /// When each process first asked for a name after the last fault.
    tried: BTreeMap<(usize, usize), u64>,
    paused: BTreeMap<usize, u64>,
    /// How many holds each process may count as lost, besides those that were forgotten anywhere.
    lost: BTreeMap<usize, u64>,
    forgotten: u64,
    /// Levels that were left to their owners: the name, the owner, and the process.
    detached: Vec<(usize, Owner, usize)>,
    pub figures: Figures,
}

thread_local! {
    static JUDGE: RefCell<Judge> = RefCell::default();
}

/// Runs `act` on the judge of this world.
pub fn judge<T>(act: impl FnOnce(&mut Judge) -> T) -> T {
    JUDGE.with_borrow_mut(act)
}

/// Logs an event.
macro_rules! tell {
    ($($part:tt)*) => {
        $crate::judge::judge(|judge| judge.tell(format_args!($($part)*)))
    };
}
pub(crate) use tell;

impl Judge {
    pub fn begin(
        &mut self,
        plan: &Plan,
        servers: Vec<MemoryServer>,
        network: &Network,
        tells: bool,
    ) {
        let name = |shared| Name {
            line: data::line(shared),
            kept: vec![data::Kept::default(); servers.len()],
            ..Name::default()
        };
        *self = Self {
            tells,
            begun: now(),
            hash: 0xcbf2_9ce4_8422_2325,
            names: plan.names.iter().map(name).collect(),
            heard: vec![(now(), 0); servers.len()],
            servers,
            network: Some(network.clone()),
            plan: Some(plan.clone()),
            ..Self::default()
        };
    }

    fn plan(&self) -> &Plan {
        self.plan.as_ref().expect("a plan")
    }

    /// Returns a hash of all logged events.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    pub fn tell(&mut self, what: std::fmt::Arguments<'_>) {
        let mut line = String::new();
        let time = now();
        write!(line, "{:>4}.{:03} {what}", time / 1000, time % 1000).expect("a text");
        for byte in line.bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        if self.tells {
            println!("{line}");
        }
    }

    fn violation(&mut self, what: String) {
        self.tell(format_args!("VIOLATION {what}"));
        self.figures.violations.push(what);
    }

    fn id(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    // The world.

    pub fn fault(&mut self, kind: &'static str, span: u64) {
        *self.figures.faults.entry(kind).or_default() += 1;
        self.disturbed = self.disturbed.max(Some(now() + span));
        self.tried.clear();
    }

    /// Notes that the last faults end, and connections with them.
    pub fn healed(&mut self) {
        self.disturbed = self.disturbed.max(Some(now()));
    }

    /// Notes that a server lost data of a name, or no longer counts for it.
    pub fn server_forgot(&mut self, name: usize) {
        let known = &mut self.names[name];
        known.forgotten = Some(now());
        known.has_no_floor |= known.stretched > 0;
        let plan = self.plan();
        // Earlier data is back: a hold that has ended and, for a fair lock, the places of ended calls, each of which
        // gets its turn.
        let turns = if plan.names[name].kind == Kind::Fair {
            4
        } else {
            1
        };
        self.haunt_until(name, now() + turns * plan.longest());
    }

    /// Notes that copies of requests arrive for so long. What they acquire, nobody gives back, and the places that they
    /// make are as those in earlier data.
    pub fn copied(&mut self, span: u64) {
        let until = now() + span + 4 * self.plan().longest();
        (0..self.names.len()).for_each(|name| self.haunt_until(name, until));
    }

    /// Notes that a server is back without any data.
    pub fn wiped(&mut self, server: usize) {
        let plan = self.plan.as_ref().expect("a plan");
        for (shared, known) in plan.names.iter().zip(&mut self.names) {
            if shared.client == server && shared.kind != Kind::Red {
                known.wiped = Some(now());
            }
        }
    }

    /// Notes that a process may count a hold as lost.
    fn may_lose(&mut self, process: usize) {
        *self.lost.entry(process).or_default() += 1;
    }

    pub fn paused(&mut self, process: usize) {
        self.paused.insert(process, now());
    }

    pub fn resumed(&mut self, process: usize) {
        let since = self.paused.remove(&process).unwrap_or_else(now);
        let calls = self.calls.values_mut();
        for call in calls.filter(|call| call.process == process) {
            call.absent += now() - since.max(call.began);
            call.back = call.back.max(now());
        }
    }

    /// Notes that a process was killed, with all its holds and calls.
    pub fn killed(&mut self, process: usize) {
        self.paused.remove(&process);
        self.said.retain(|(one, ..), _| *one != process);
        self.outages.remove(&process);
        self.connected.remove(&process);
        let calls = std::mem::take(&mut self.calls);
        for (id, call) in calls {
            match call.process == process {
                true => call.names.iter().for_each(|name| self.haunt(*name)),
                false => drop(self.calls.insert(id, call)),
            }
        }
        let holds = std::mem::take(&mut self.holds);
        for (id, hold) in holds {
            match hold.process == process {
                true => {
                    self.haunt(hold.name);
                    // Not dropped: a killed process runs no code.
                    std::mem::forget(hold);
                }
                false => drop(self.holds.insert(id, hold)),
            }
        }
        // It may have owed permits that nobody else will give back.
        let totals: Vec<_> = self
            .plan()
            .names
            .iter()
            .map(|shared| shared.total)
            .collect();
        for (name, total) in self.names.iter_mut().zip(totals) {
            name.leaked += total;
        }
    }

    /// Notes that an unknown owner may have a name for one longest lease, and will give back no permits.
    pub fn haunt(&mut self, name: usize) {
        let plan = self.plan();
        let (leaked, longest) = (plan.names[name].total, plan.longest());
        self.haunt_until(name, now() + longest);
        self.names[name].leaked += leaked;
    }

    fn haunt_until(&mut self, name: usize, time: u64) {
        let known = &mut self.names[name];
        known.haunted = known.haunted.max(time).max(known.stretched);
    }

    /// Any request of its owner prolongs a level without a guard.
    fn haunt_beside(&mut self, name: usize, owner: &Owner) {
        if self.names[name].left.contains(owner) {
            self.haunt(name);
        }
    }

    /// Notes that whatever a call may have got is being given back: at once, if there is no fault.
    pub fn owed(&mut self, name: usize) {
        let plan = self.plan();
        // A grant for a named owner that reached nobody lasts for its lease.
        let is_kept = plan.names[name].kind == Kind::Plain;
        let span = match plan.weather == "calm" && !is_kept {
            true => plan.command_timeout,
            false => plan.longest(),
        };
        self.haunt_until(name, now() + span);
    }

    /// Like [`Self::haunt`], for as long as the watchdog may renew.
    pub fn forgotten(&mut self, name: usize, owner: &Owner) {
        self.forgotten += 1;
        self.haunt(name);
        self.names[name].left.push(owner.clone());
        // Nobody is told of the end of a term that is forgotten.
        self.names[name].terms.told += 1;
        let longest = self.plan().max_hold;
        self.names[name].haunted += longest;
    }

    pub fn detached(&mut self, name: usize, owner: Owner, process: usize) {
        self.haunt(name);
        self.names[name].left.push(owner.clone());
        self.detached.push((name, owner, process));
    }

    /// Returns a level that this process may adopt.
    pub fn adoptable(&mut self, process: usize) -> Option<(usize, Owner)> {
        let is_meant =
            |(_, owner, from): &(usize, Owner, usize)| *from == process || is_named(owner);
        let at = self.detached.iter().position(is_meant)?;
        let (name, owner, _) = self.detached.remove(at);
        Some((name, owner))
    }

    /// Notes that a call releases a name by force, or takes it over, now or at any time within `span`.
    pub fn forced(&mut self, name: usize, span: u64) {
        self.names[name].forced = Some(now() + span);
    }

    pub fn counted_down(&mut self, name: usize) {
        self.names[name].counted_down += 1;
    }

    pub fn set(&mut self, name: usize) {
        self.names[name].is_set = true;
    }

    pub fn is_set(&self, name: usize) -> bool {
        self.names[name].is_set
    }

    /// Notes that a call saw an open latch.
    pub fn open(&mut self, name: usize) {
        let total = self.plan().names[name].total;
        if self.names[name].counted_down < total && self.excuse(name, 0).is_none() {
            self.violation(format!(
                "{} is open too early",
                self.plan().names[name].name
            ));
        }
    }
}

/// Whether the owner is the same in all processes.
fn is_named(owner: &Owner) -> bool {
    *owner == Owner::named(owner.to_string())
}
