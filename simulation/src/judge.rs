//! The judge: is told when each call and each hold begins and ends, and says what should not have been.
//!
//! All of it is in the order in which it happened, since one thread runs the world.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use redlatch::{Error, ErrorKind, LossReason, Owner};

use crate::locks::Guard;
use crate::machine::now;
use crate::plan::{Kind, LONGEST_LEASE, Plan};

/// What a call may take longer than its limit and the time of a command: turns of tasks, and timers of whole
/// milliseconds.
const SLACK: u64 = 50;

/// Keys that have no end: the last fencing token, since when a server of a RedLock has forgotten nothing, and the ends
/// of permits.
const UNENDING: [&str; 3] = ["lock_token:", "redlock_mark", ":timeout"];

/// What somebody believes to have.
enum Belief {
    Lock(Arc<Guard>),
    /// Permits, until this time.
    Permits(u32, u64),
    /// A future that runs under a lock, and is dropped when that is lost.
    Body,
}

struct Hold {
    process: usize,
    owner: Owner,
    name: usize,
    reads: bool,
    /// When it was asked for.
    since: u64,
    belief: Belief,
    /// Another owner was granted the lock meanwhile.
    is_overtaken: bool,
}

struct Call {
    process: usize,
    task: usize,
    began: u64,
    what: String,
    /// How long it may take, if that has a limit.
    limit: Option<u64>,
    /// The names that it waits for.
    waits: Vec<usize>,
    /// How long its process was paused, and it was not polled, since it began.
    absent: u64,
}

/// What is known of a name.
#[derive(Default)]
struct Name {
    token: u64,
    /// Owners that may have levels for which there is no guard, with that token.
    left: Vec<Owner>,
    /// Since when nobody has it, as far as is known.
    free: u64,
    /// Until when somebody may have it of whom nothing is known: a call that was dropped, a process that was killed.
    haunted: u64,
    /// When a call released it by force, or took it over.
    forced: Option<u64>,
    /// Permits that nobody gives back.
    leaked: u32,
    counted_down: u32,
    /// Whether a latch was closed.
    is_set: bool,
}

/// What a hold was when its guard began to be given back.
pub struct Parted {
    name: usize,
    since: u64,
    deadline: u64,
    is_overtaken: bool,
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
    begun: u64,
    tells: bool,
    hash: u64,
    last: u64,
    holds: BTreeMap<u64, Hold>,
    calls: BTreeMap<u64, Call>,
    /// When each task began its last call.
    began: BTreeMap<(usize, usize), u64>,
    names: Vec<Name>,
    /// When each server last lost data.
    lost: Vec<Option<u64>>,
    /// When the last fault ends that has begun.
    disturbed: Option<u64>,
    paused: BTreeMap<usize, u64>,
    /// Levels that were left to their owners: the name, the owner, and the process.
    detached: Vec<(usize, Owner, usize)>,
    pub figures: Figures,
}

thread_local! {
    static JUDGE: RefCell<Judge> = RefCell::default();
}

/// Does something with the judge of this world.
pub fn judge<T>(act: impl FnOnce(&mut Judge) -> T) -> T {
    JUDGE.with_borrow_mut(act)
}

/// Tells what happens.
macro_rules! tell {
    ($($part:tt)*) => {
        $crate::judge::judge(|judge| judge.tell(format_args!($($part)*)))
    };
}
pub(crate) use tell;

impl Judge {
    pub fn begin(&mut self, plan: &Plan, tells: bool) {
        *self = Self {
            tells,
            begun: now(),
            hash: 0xcbf2_9ce4_8422_2325,
            names: plan.names.iter().map(|_| Name::default()).collect(),
            lost: vec![None; plan.servers],
            plan: Some(plan.clone()),
            ..Self::default()
        };
    }

    fn plan(&self) -> &Plan {
        self.plan.as_ref().expect("a plan")
    }

    /// Returns a number that stands for everything that was told.
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
    }

    pub fn server_forgot(&mut self, server: usize) {
        self.lost[server] = Some(now());
    }

    pub fn paused(&mut self, process: usize) {
        self.paused.insert(process, now());
    }

    pub fn resumed(&mut self, process: usize) {
        let since = self.paused.remove(&process).unwrap_or_else(now);
        let calls = self.calls.values_mut();
        for call in calls.filter(|call| call.process == process) {
            call.absent += now() - since.max(call.began);
        }
    }

    /// A process is gone with all that it had.
    pub fn killed(&mut self, process: usize) {
        self.paused.remove(&process);
        let calls = std::mem::take(&mut self.calls);
        for (id, call) in calls {
            match call.process == process {
                true => call.waits.iter().for_each(|name| self.haunt(*name)),
                false => drop(self.calls.insert(id, call)),
            }
        }
        let holds = std::mem::take(&mut self.holds);
        for (id, hold) in holds {
            match hold.process == process {
                true => {
                    self.haunt(hold.name);
                    // As the process is: nothing of it runs any more.
                    std::mem::forget(hold);
                }
                false => drop(self.holds.insert(id, hold)),
            }
        }
    }

    /// Somebody may have a name for one longest lease.
    pub fn haunt(&mut self, name: usize) {
        let plan = self.plan();
        let longest = LONGEST_LEASE.max(plan.watchdog) + plan.command_timeout;
        let leaked = plan.names[name].total;
        self.names[name].haunted = now() + longest;
        self.names[name].leaked += leaked;
    }

    /// As [`Self::haunt`], while the watchdog goes on for as long as it may.
    pub fn forgotten(&mut self, name: usize, owner: &Owner) {
        self.haunt(name);
        self.names[name].left.push(owner.clone());
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

    pub fn forced(&mut self, name: usize) {
        self.names[name].forced = Some(now());
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

    /// A call saw that a latch is open.
    pub fn open(&mut self, name: usize) {
        let total = self.plan().names[name].total;
        if self.names[name].counted_down < total && self.excuse(name, 0).is_none() {
            self.violation(format!(
                "{} is open too early",
                self.plan().names[name].name
            ));
        }
    }

    // Calls.

    pub fn call(
        &mut self,
        (process, task): (usize, usize),
        what: String,
        limit: Option<u64>,
        waits: &[usize],
    ) -> u64 {
        self.figures.calls += 1;
        let id = self.id();
        self.tell(format_args!("p{process}.{task} {what}"));
        self.began.insert((process, task), now());
        self.calls.insert(
            id,
            Call {
                process,
                task,
                began: now(),
                what,
                limit,
                waits: waits.to_vec(),
                absent: 0,
            },
        );
        id
    }

    /// A call was not polled for so long.
    pub fn unpolled(&mut self, call: u64, span: u64) {
        if let Some(call) = self.calls.get_mut(&call) {
            call.absent += span;
        }
    }

    pub fn returned(&mut self, call: u64, outcome: &str, error: Option<&Error>) {
        let Some(call) = self.calls.remove(&call) else {
            return;
        };
        self.tell(format_args!(
            "p{}.{} .. {}: {outcome}",
            call.process, call.task, call.what
        ));
        self.check_span(&call, outcome);
        // Clients connect within the first second.
        let in_calm = self.plan().weather == "calm" && call.began > self.begun + 1_000;
        if let Some(error) = error
            && in_calm
            && !matches!(
                error.kind(),
                ErrorKind::LeaseLost | ErrorKind::Refused | ErrorKind::Busy | ErrorKind::NotHeld
            )
        {
            let what = format!("error in calm weather: {}: {error}", call.what);
            self.violation(what);
        }
        if outcome == "dropped" || error.is_some() {
            call.waits.iter().for_each(|name| self.haunt(*name));
        }
    }

    fn check_span(&mut self, call: &Call, outcome: &str) {
        let took = (now() - call.began).saturating_sub(call.absent);
        let (process, task, what) = (call.process, call.task, &call.what);
        if let Some(limit) = call.limit
            && took > limit + SLACK
        {
            let text = format!("p{process}.{task} {what} took {took} ms of {limit}: {outcome}");
            self.violation(text);
        }
        let plan = self.plan();
        let calm = if self.disturbed.is_none() {
            2_500
        } else {
            plan.poll_cap + 9_000
        };
        let quiet = self.disturbed.unwrap_or(0).max(call.began + call.absent);
        let is_lock = |name: &usize| {
            !matches!(
                plan.names[*name].kind,
                Kind::Counted | Kind::Expirable | Kind::Latch
            )
        };
        if let [name] = call.waits[..]
            && is_lock(&name)
            && !self.holds.values().any(|hold| hold.name == name)
        {
            let known = &self.names[name];
            let free = known.free.max(known.haunted).max(quiet);
            if now().saturating_sub(free) > calm {
                let text =
                    format!("p{process}.{task} {what} waited though it was free from {free} on");
                self.violation(text);
            }
        }
    }

    // Holds.

    /// Returns why a hold of this name from this time on may have ended without a word of its holder.
    fn excuse(&self, name: usize, since: u64) -> Option<&'static str> {
        let plan = self.plan();
        let shared = &plan.names[name];
        let is_after = |time: Option<u64>| time.is_some_and(|time| time + 1 >= since);
        if is_after(self.names[name].forced) {
            return Some("released by force");
        }
        let has_lost = shared.kind != Kind::Red && is_after(self.lost[shared.server]);
        has_lost.then_some("the server forgot it")
    }

    /// A lock was granted. Returns the number of the hold.
    pub fn granted(
        &mut self,
        (process, task): (usize, usize),
        name: usize,
        reads: bool,
        owner: &Owner,
        guard: Option<&Arc<Guard>>,
    ) -> u64 {
        self.figures.grants += 1;
        let shown = self.plan().names[name].name.clone();
        let remaining = guard.map(|guard| guard.remaining());
        let token = guard.and_then(|guard| guard.token());
        self.tell(format_args!(
            "p{process}.{task} has {shown} for {remaining:?} ms, token {token:?}"
        ));
        if remaining == Some(0) {
            self.granted_late(process, task, name);
        }
        let mut is_nested = false;
        let mut wrong = Vec::new();
        for hold in self.holds.values_mut().filter(|hold| hold.name == name) {
            let left = match &hold.belief {
                Belief::Lock(other) if !other.is_lost() => Some(other.remaining()),
                // Whoever is paused drops nothing.
                Belief::Body if !self.paused.contains_key(&hold.process) => Some(0),
                _ => None,
            };
            if hold.owner == *owner {
                is_nested |= left.is_some();
                continue;
            }
            if hold.reads && reads {
                continue;
            }
            hold.is_overtaken = true;
            if let Some(left) = left {
                wrong.push((hold.process, hold.since, left));
            }
        }
        for (other, since, left) in wrong {
            match self.excuse(name, since) {
                Some(_) => self.figures.permitted += 1,
                None => self.violation(format!(
                    "p{process}.{task} got {shown} while p{other} has it since {since} for {left} ms more"
                )),
            }
        }
        if let Some(token) = token {
            let last = self.names[name].token;
            let is_nested = is_nested || self.names[name].left.contains(owner);
            if token < last || token == last && !is_nested {
                self.violation(format!("{shown}: token {token} after {last}"));
            }
            self.names[name].token = token.max(last);
        }
        let since = self
            .began
            .get(&(process, task))
            .copied()
            .unwrap_or_else(now);
        let id = self.id();
        self.holds.insert(
            id,
            Hold {
                process,
                owner: owner.clone(),
                name,
                reads,
                since,
                belief: guard.map_or(Belief::Body, |guard| Belief::Lock(guard.clone())),
                is_overtaken: false,
            },
        );
        id
    }

    fn granted_late(&mut self, process: usize, task: usize, name: usize) {
        let shared = &self.plan().names[name];
        // A member of a RedLock may be counted though its server denied it before the majority answered.
        if shared.kind != Kind::Red {
            self.violation(format!(
                "p{process}.{task} got {} with nothing left",
                shared.name
            ));
        }
    }

    /// Permits were granted, until a time at least. Returns the number of the hold.
    pub fn permitted(
        &mut self,
        (process, task): (usize, usize),
        name: usize,
        permits: u32,
        owner: &Owner,
        until: u64,
    ) -> u64 {
        self.figures.grants += 1;
        let (shown, total) = {
            let shared = &self.plan().names[name];
            (shared.name.clone(), shared.total)
        };
        self.tell(format_args!(
            "p{process}.{task} has {permits} of {shown} until {until}"
        ));
        let mut taken = permits;
        let mut since = now();
        for hold in self.holds.values().filter(|hold| hold.name == name) {
            if let Belief::Permits(permits, until) = hold.belief
                && until > now()
            {
                taken += permits;
                since = since.min(hold.since);
            }
        }
        if taken > total {
            match self.excuse(name, since) {
                Some(_) => self.figures.permitted += 1,
                None => self.violation(format!("{taken} of {total} permits of {shown} are taken")),
            }
        }
        let since = self
            .began
            .get(&(process, task))
            .copied()
            .unwrap_or_else(now);
        let id = self.id();
        self.holds.insert(
            id,
            Hold {
                process,
                owner: owner.clone(),
                name,
                reads: true,
                since,
                belief: Belief::Permits(permits, until),
                is_overtaken: false,
            },
        );
        id
    }

    /// A holder begins to give a hold back, or has lost it. Nobody believes in it any more.
    pub fn parted(&mut self, hold: u64) -> Option<Parted> {
        let hold = self.holds.remove(&hold)?;
        if !self.holds.values().any(|other| other.name == hold.name) {
            self.names[hold.name].free = now();
        }
        let deadline = match &hold.belief {
            Belief::Lock(guard) => now() + guard.remaining(),
            Belief::Permits(_, until) => *until,
            Belief::Body => now(),
        };
        Some(Parted {
            name: hold.name,
            since: hold.since,
            deadline,
            is_overtaken: hold.is_overtaken,
        })
    }

    /// An unlock has an answer.
    pub fn unlocked(
        &mut self,
        (process, task): (usize, usize),
        parted: &[Parted],
        result: &Result<(), Error>,
    ) {
        let is_excused = parted
            .iter()
            .any(|one| self.excuse(one.name, one.since).is_some() || self.may_be_shaken(one.name));
        let deadline = parted.iter().map(|one| one.deadline).min().unwrap_or(0);
        let is_overtaken = parted.iter().any(|one| one.is_overtaken);
        let since = parted.first().map_or(0, |one| one.since);
        for one in parted {
            let free = &mut self.names[one.name].free;
            *free = (*free).max(now());
        }
        match result {
            Ok(()) if is_overtaken && !is_excused => {
                let text = format!(
                    "p{process}.{task}: unlock says it was held, since {since}, but another owner had it"
                );
                self.violation(text);
            }
            Err(error) if matches!(error.kind(), ErrorKind::LeaseLost | ErrorKind::NotHeld) => {
                if now() < deadline && !is_excused {
                    let text = format!(
                        "p{process}.{task}: unlock says it was lost, but it was held, since {since} and until {deadline}: {error}"
                    );
                    self.violation(text);
                }
            }
            Err(_) => parted.iter().for_each(|one| self.haunt(one.name)),
            Ok(()) => {}
        }
    }

    /// The future of an unlock was dropped.
    pub fn left(&mut self, parted: &Parted) {
        self.haunt(parted.name);
    }

    /// A guard told of its loss.
    pub fn told_of_loss(
        &mut self,
        (process, task): (usize, usize),
        holds: &[u64],
        left: u64,
        reason: LossReason,
    ) {
        let holds: Vec<_> = holds
            .iter()
            .filter_map(|hold| self.holds.get(hold))
            .collect();
        let is_excused = holds.iter().any(|hold| {
            self.excuse(hold.name, hold.since).is_some() || self.may_be_shaken(hold.name)
        });
        let shown = holds.iter().map(|hold| &*self.plan().names[hold.name].name);
        let shown = shown.collect::<Vec<_>>().join("+");
        self.tell(format_args!("p{process}.{task} lost {shown}: {reason}"));
        if reason != LossReason::Expired && !is_excused {
            let text = format!(
                "p{process}.{task}: {shown} is called lost, {reason}, {left} ms before its end, for no reason"
            );
            self.violation(text);
        }
    }

    /// A guard is lost by the clock, and has not told so.
    pub fn untold_loss(&mut self, (process, task): (usize, usize), name: usize) {
        let shown = self.plan().names[name].name.clone();
        self.violation(format!(
            "p{process}.{task}: {shown} is lost, and nobody was told"
        ));
    }

    /// Whether a hold of several servers may be lost because some of them are away or have forgotten.
    fn may_be_shaken(&self, name: usize) -> bool {
        self.plan().names[name].kind == Kind::Red && self.disturbed.is_some()
    }

    // The end.

    /// Judges what is left when nothing has happened for long.
    pub fn end(&mut self, server: usize, keys: &[(String, i64, String)], channels: &[String]) {
        for (key, ttl, value) in keys {
            let shared = self.plan().names.iter().position(|shared| {
                shared.name == *key
                    && matches!(shared.kind, Kind::Counted | Kind::Expirable | Kind::Latch)
            });
            if let Some(name) = shared {
                let (total, kind) = (self.plan().names[name].total, self.plan().names[name].kind);
                let count: u32 = value.parse().unwrap_or_default();
                let leaked = if kind == Kind::Expirable {
                    0
                } else {
                    self.names[name].leaked
                };
                if kind == Kind::Counted
                    && self.excuse(name, 0).is_none()
                    && (count > total || count + leaked < total)
                {
                    self.violation(format!("{key}: {count} of {total} permits at the end"));
                }
            } else if *ttl < 0 && !UNENDING.iter().any(|part| key.contains(part)) {
                self.violation(format!("{key} on server {server} never ends"));
            }
        }
        for channel in channels {
            self.violation(format!(
                "somebody listens to {channel} on server {server} at the end"
            ));
        }
    }

    /// Judges the calls that have not ended.
    pub fn end_calls(&mut self) {
        for (_, call) in std::mem::take(&mut self.calls) {
            let Call {
                process,
                task,
                ref what,
                began,
                ..
            } = call;
            self.check_span(&call, "no end");
            if !call.waits.iter().any(|name| {
                matches!(
                    self.plan().names[*name].kind,
                    Kind::Counted | Kind::Expirable
                )
            }) {
                self.violation(format!(
                    "p{process}.{task} {what} never ends, since {began}"
                ));
            }
        }
    }

    pub fn tasks_left(&mut self, process: usize, tasks: usize) {
        if tasks > 0 {
            self.violation(format!("{tasks} tasks of p{process} go on after its end"));
        }
    }
}

/// Whether the owner is the same in all processes.
fn is_named(owner: &Owner) -> bool {
    *owner == Owner::named(owner.to_string())
}
