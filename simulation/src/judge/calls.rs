//! The judgement of calls: when one returns, and at the end of the run.

use redlatch::{Error, ErrorKind};

use super::{Call, Judge};
use crate::machine::now;
use crate::plan::{Fault, Kind};
use crate::world::is_over;

/// How much longer a call may take than its limit and one command, because of task scheduling and timers of whole
/// milliseconds.
const SLACK: u64 = 50;

/// How long after the last fault of a server clients have found their way.
const RECOVERED: u64 = 12_000;

/// How long after its first call about a name a client knows which server has it.
const FOUND_OUT: u64 = 5_000;

/// How often a call may go ahead of an earlier one of its process, which may be about to end.
const OVERTAKEN: u32 = 3;

/// How long after its first request a writer has told the server that it waits.
const MARKED: u64 = 400;

/// How long calls of one process that nobody polls may keep others waiting.
const PASSED_BY: u64 = 2_000;

/// Keys without an expiry: the last fencing token, the server epoch of a RedLock, and the ends of permits.
pub(super) const UNENDING: [&str; 3] = ["lock_token:", "redlock_mark", ":timeout"];

impl Call {
    fn writes(&self) -> bool {
        !self.what.contains(" reads ")
    }
}

impl Judge {
    pub fn call(
        &mut self,
        (process, task): (usize, usize),
        what: String,
        limit: Option<u64>,
        names: &[usize],
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
                names: names.to_vec(),
                absent: 0,
                back: now(),
                overtaken: 0,
            },
        );
        id
    }

    /// Notes that nobody polls a call for `span` from now on. It may be granted what it asks for before it is polled
    /// again.
    pub fn unpolled(&mut self, call: u64, span: u64) {
        let Some(call) = self.calls.get_mut(&call) else {
            return;
        };
        call.absent += span;
        call.back = now() + span;
        self.is_unpolled = true;
        let names = call.names.clone();
        // In calm weather, the others go ahead of it after a second.
        let kept = match self.plan().weather {
            "calm" => span.min(self.passes()),
            _ => span,
        };
        let until = now() + kept + self.plan().command_timeout;
        names.iter().for_each(|name| self.haunt_until(*name, until));
    }

    /// Returns how long calls that nobody polls may keep the others waiting: each process has its own.
    pub(super) fn passes(&self) -> u64 {
        PASSED_BY * self.plan().processes.len() as u64
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
        if call.writes() {
            let names = call.names.iter();
            names.for_each(|name| self.names[*name].written = now());
        }
        let is_settled = self.is_settled(&call);
        // A call that nobody polled may have no time left when it is polled again.
        let timeout = self.plan().command_timeout;
        let is_late = |error: &Error| match error.kind() {
            ErrorKind::Timeout => call.absent > 0,
            ErrorKind::Backend => call.absent >= timeout,
            _ => false,
        };
        if let Some(error) = error
            && is_settled
            && !is_late(error)
            && !matches!(
                error.kind(),
                ErrorKind::LeaseLost | ErrorKind::Refused | ErrorKind::Busy | ErrorKind::NotHeld
            )
        {
            let when = match self.plan().weather {
                "calm" => "in calm weather",
                _ => "long after the last fault",
            };
            let what = format!("error {when}: {}: {error}", call.what);
            self.violation(what);
        }
        if let Some(error) = error {
            self.check_election(&call, error);
            self.check_set(&call, error);
        }
        // A call for several names may have got some of them. One that is refused got nothing.
        let has_failed = error.is_some_and(|error| error.kind() != ErrorKind::Refused);
        if outcome == "dropped" || has_failed || call.names.len() > 1 {
            call.names.iter().for_each(|name| self.owed(*name));
        }
    }

    /// Whether no fault can be the cause of an error that this call has.
    fn is_settled(&mut self, call: &Call) -> bool {
        let plan = self.plan();
        // With all servers near enough for the shortest lease.
        if plan.spread > 0 {
            return false;
        }
        // Clients connect within the first second.
        if plan.weather == "calm" {
            return call.began > self.begun + 1_000;
        }
        // The faults of links may leave connections that nobody has used since, and a server may stop for good when it
        // is about to take over slots.
        let of_servers = plan.events.iter().all(|event| is_of_server(&event.fault));
        let heirs = plan.events.iter();
        let heirs = heirs.filter(|event| matches!(event.fault, Fault::Inherit(..)));
        let [name] = call.names[..] else {
            return false;
        };
        let over = self.disturbed.unwrap_or(self.begun);
        if !of_servers
            || heirs.count() > 1
            || plan.names[name].kind == Kind::Red
            || call.began < over
            || is_over()
        {
            return false;
        }
        // The first call may be what shows a client that its server is gone.
        let tried = *self.tried.entry((call.process, name)).or_insert(call.began);
        over + RECOVERED < call.began && tried + FOUND_OUT < call.began
    }

    /// Notes that a lock was granted to a call that began at this time: those that wait since earlier were overtaken.
    pub(super) fn overtake(&mut self, name: usize, began: u64) {
        let plan = self.plan();
        let has_order = matches!(
            plan.names[name].kind,
            Kind::Reentrant | Kind::Fair | Kind::Fenced | Kind::ReadWrite
        );
        if plan.weather != "calm" || plan.spread > 0 || !has_order {
            return;
        }
        let tasks = plan.processes.iter().map(|process| process.tasks.len());
        let most = 30 + 2 * tasks.sum::<usize>() as u32 * (plan.handoffs + 1);
        // Others of its process wait for a call that nobody polls.
        let calls = self.calls.values().filter(|call| call.absent > 0);
        let unpolled: Vec<_> = calls.map(|call| call.process).collect();
        self.pass_over(most, |call| {
            call.names == [name] && call.began < began && !unpolled.contains(&call.process)
        });
    }

    /// Notes that a lock was granted to a reader that began at this time: it stands behind the first writer that waits.
    pub(super) fn overtake_writer(&mut self, name: usize, began: u64) {
        let plan = self.plan();
        let known = &self.names[name];
        // Whoever has levels without a guard may read beside others.
        let is_known = known.left.is_empty() && !self.is_unpolled;
        if plan.weather != "calm" || plan.spread > 0 || !is_known {
            return;
        }
        let calls = self.calls.values();
        let writers = calls.filter(|call| call.names == [name] && call.writes());
        let first = writers.min_by_key(|call| call.began);
        // The next writer takes the place of the first once it asks again.
        if let Some(call) = first
            && call.began + MARKED + 10 * plan.delay.least < began
            && known.written <= call.began
        {
            let text = format!(
                "a reader that began at {began} is ahead of p{}.{} {}, since {}",
                call.process, call.task, call.what, call.began
            );
            self.violation(text);
        }
    }

    /// Counts that these calls were overtaken, which they may be fewer than `most` times.
    fn pass_over(&mut self, most: u32, is_overtaken: impl Fn(&Call) -> bool) {
        let mut starved = Vec::new();
        for call in self.calls.values_mut().filter(|call| is_overtaken(call)) {
            call.overtaken += 1;
            if call.overtaken == most {
                starved.push(format!("p{}.{} {}", call.process, call.task, call.what));
            }
        }
        for call in starved {
            self.violation(format!("{call} was overtaken {most} times"));
        }
    }

    /// Notes that permits were granted to a call that began at this time. Those of its process that wait since earlier
    /// stand in front of it.
    pub(super) fn overtake_here(&mut self, name: usize, process: usize, began: u64) {
        if self.plan().weather != "calm" {
            return;
        }
        self.pass_over(OVERTAKEN, |call| {
            let is_here = call.names == [name] && call.process == process;
            is_here && call.absent == 0 && call.began + SLACK < began
        });
    }

    fn check_span(&mut self, call: &Call, outcome: &str) {
        let took = (now() - call.began).saturating_sub(call.absent);
        let (process, task, what) = (call.process, call.task, &call.what);
        // What it asked for may have been given back while nobody polled it. Then it asks once more.
        let again = match call.absent {
            0 => 0,
            _ => self.plan().command_timeout,
        };
        if let Some(limit) = call.limit
            && took > limit + again + SLACK
        {
            let text = format!("p{process}.{task} {what} took {took} ms of {limit}: {outcome}");
            self.violation(text);
        }
        let plan = self.plan();
        let calm = if self.disturbed.is_none() {
            // Each process with calls that nobody polls keeps the rest waiting in its turn.
            2_500 + self.passes() / 2
        } else {
            plan.poll_cap + 9_000
        };
        let quiet = self.disturbed.unwrap_or(0).max(call.back);
        let is_lock = |name: &usize| {
            !matches!(
                plan.names[*name].kind,
                Kind::Counted | Kind::Expirable | Kind::Latch | Kind::Job
            )
        };
        // A call for several names may have some of them.
        let others = self.calls.values().filter(|other| other.names.len() > 1);
        if let [name] = call.names[..]
            && is_lock(&name)
            && !self.holds.values().any(|hold| hold.name == name)
            && !others
                .flat_map(|other| &other.names)
                .any(|other| *other == name)
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

    /// Judges what is left on a server after a long quiet time.
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
                let counted = self.names[name].counted_down;
                if kind == Kind::Latch && self.excuse(name, 0).is_none() && count + counted < total
                {
                    self.violation(format!(
                        "{key}: {count} of {total} are left, and {counted} calls counted down"
                    ));
                }
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
            if !call.names.iter().any(|name| {
                let is_counter = matches!(
                    self.plan().names[*name].kind,
                    Kind::Counted | Kind::Expirable
                );
                is_counter || self.is_stretched(*name)
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

/// Whether a fault ends with its server.
fn is_of_server(fault: &Fault) -> bool {
    matches!(
        fault,
        Fault::Stop(..)
            | Fault::Hang(_)
            | Fault::Move(..)
            | Fault::Inherit(..)
            | Fault::Failover(_)
            | Fault::Forget(_)
    )
}
