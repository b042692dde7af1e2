//! The judgement of holds: when one begins and when it ends.

use redlatch::{Error, ErrorKind, LossReason, Owner};

use super::{Belief, Hold, Judge, Parted, is_named};
use crate::machine::now;
use crate::plan::{Kind, Topology};

/// How long a process may pass a record on before it finds out that the record was gone.
pub(super) const PASSED_ON: u64 = 2_000;

/// How old the answer may be that a reader relies on, and what clocks of whole milliseconds add to it.
const SEEN_FOR: u64 = 10 + 5;

impl Judge {
    /// Returns an excuse if a hold of this name since this time may have ended without notice to its holder.
    pub(super) fn excuse(&self, name: usize, since: u64) -> Option<&'static str> {
        let is_after = |time: Option<u64>| time.is_some_and(|time| time + PASSED_ON >= since);
        if is_after(self.names[name].forced) {
            return Some("released by force");
        }
        if is_after(self.names[name].forgotten) {
            return Some("the server forgot it");
        }
        let is_ahead = is_after(self.names[name].ahead) && self.is_still_ahead(name);
        is_ahead.then_some("a clock was set ahead")
    }

    /// Notes that a lock was granted. Returns the number of the hold.
    pub fn granted(
        &mut self,
        (process, task): (usize, usize),
        name: usize,
        reads: bool,
        owner: &Owner,
        belief: Belief,
    ) -> u64 {
        self.figures.grants += 1;
        let shown = self.plan().names[name].name.clone();
        let (remaining, token) = match &belief {
            Belief::Lock(guard) => (Some(guard.remaining()), guard.token()),
            Belief::Body(token) => (None, *token),
            Belief::Permits(..) => (None, None),
        };
        self.tell(format_args!(
            "p{process}.{task} has {shown} for {remaining:?} ms, token {token:?}"
        ));
        if remaining == Some(0) {
            self.violation(format!("p{process}.{task} got {shown} with nothing left"));
        }
        // The lock may have been taken by force from this call, before it was polled again.
        let since = self.asked(process, task);
        let forced = self.names[name].forced;
        let was_taken = forced.is_some_and(|forced| forced + PASSED_ON >= since);
        if let Some(remaining) = remaining
            && self.excuse(name, since).is_none()
        {
            self.backed_at_first(name, process, now() + remaining);
        }
        let mut is_nested = false;
        let mut wrong = Vec::new();
        for hold in self.holds.values_mut().filter(|hold| hold.name == name) {
            let left = match &hold.belief {
                Belief::Lock(other) if !other.is_lost() => Some(other.remaining()),
                // A paused process drops nothing.
                Belief::Body(_) if !self.paused.contains_key(&hold.process) => Some(0),
                _ => None,
            };
            if hold.owner == *owner {
                is_nested |= left.is_some();
                continue;
            }
            if hold.reads && reads {
                continue;
            }
            hold.is_overtaken |= !was_taken;
            if let Some(left) = left {
                wrong.push((hold.process, hold.since, left));
            }
        }
        for (other, begun, left) in wrong {
            match was_taken || self.excuse(name, begun).is_some() {
                true => self.figures.permitted += 1,
                false => self.violation(format!(
                    "p{process}.{task} got {shown} while p{other} has it since {begun} for {left} ms more"
                )),
            }
        }
        if let Some(token) = token {
            let last = self.names[name].token;
            let known = &self.names[name];
            // A call that asked before the server knew of the last release may have joined that hold.
            let free = match is_named(owner) {
                true => known.free + self.plan().command_timeout,
                false => known.free,
            };
            // With a call that goes on, or with one that was dropped or whose process was killed.
            let may_be_there = self.may_have_part(name, known.free) || since <= known.haunted;
            let is_shared = is_named(owner) && may_be_there;
            let has_joined =
                known.token_owner.as_ref() == Some(owner) && (since <= free || is_shared);
            let is_nested = is_nested || has_joined || known.left.contains(owner);
            // A server that restarts with earlier data has old holds again, which named owners join. An unpolled call
            // learns late that its grant was taken away, and so does a process that passes a record on.
            let may_return = self
                .excuse(name, if is_named(owner) { 0 } else { since })
                .is_some()
                || self.names[name].has_no_floor;
            if !may_return && (token < last || token == last && !is_nested) {
                self.violation(format!("{shown}: token {token} after {last}"));
            }
            self.names[name].token = token.max(last);
            self.names[name].token_owner = Some(owner.clone());
        }
        if !is_nested {
            self.overtake(name, since);
            // A named owner may have joined a hold that has ended since, or the writer itself.
            if reads && !is_named(owner) {
                self.overtake_writer(name, since);
            }
        }
        let hold = self.begins(Hold {
            process,
            owner: owner.clone(),
            name,
            reads,
            since,
            began: now(),
            belief,
            is_overtaken: false,
            gone: None,
        });
        self.leads(name);
        self.runs((process, task), name, hold);
        hold
    }

    /// Judges how much of a lease is left when a lock is handed out.
    pub fn lasts(
        &mut self,
        (process, task): (usize, usize),
        name: usize,
        (left, least): (u64, u64),
    ) {
        if left + 2 < least {
            let shown = self.plan().names[name].name.clone();
            self.violation(format!(
                "p{process}.{task} got {shown} with {left} ms left, and {least} ms are promised"
            ));
        }
    }

    /// Judges what a run finds of the lock that it is under.
    pub fn within(
        &mut self,
        (process, task): (usize, usize),
        name: usize,
        is_right: bool,
        wrong: &str,
    ) {
        if self.plan().weather == "calm" && !is_right {
            let shown = self.plan().names[name].name.clone();
            self.violation(format!("p{process}.{task} runs under {shown}, and {wrong}"));
        }
    }

    /// Judges the result of a run whose work has failed.
    pub fn failed(&mut self, (process, task): (usize, usize), name: usize, is_hidden: bool) {
        if is_hidden {
            let shown = self.plan().names[name].name.clone();
            self.violation(format!(
                "p{process}.{task} is not told how its work under {shown} failed"
            ));
        }
    }

    /// Returns how many levels this owner is known to have, and `None` if it may have others.
    pub fn levels(&self, name: usize, owner: &Owner) -> Option<u64> {
        let known = &self.names[name];
        let may_have_others = self.plan().weather != "calm"
            || known.haunted > now()
            || known.forced.is_some()
            || known.left.contains(owner);
        let has = |hold: &&Hold| hold.name == name && hold.owner == *owner && !hold.reads;
        let levels = self.holds.values().filter(has).count();
        (!may_have_others).then_some(levels as u64)
    }

    /// Judges how many levels an owner was told to have, which it had when it asked.
    pub fn counted(
        &mut self,
        (process, task): (usize, usize),
        (name, owner): (usize, &Owner),
        before: Option<u64>,
        levels: u64,
    ) {
        if let (Some(before), Some(after)) = (before, self.levels(name, owner))
            && before == after
            && levels != before
        {
            let shown = self.plan().names[name].name.clone();
            self.violation(format!(
                "p{process}.{task} is told of {levels} levels of {shown}, and has {before}"
            ));
        }
    }

    /// Records a hold, and returns its number.
    fn begins(&mut self, hold: Hold) -> u64 {
        let id = self.id();
        self.haunt_beside(hold.name, &hold.owner);
        self.holds.insert(id, hold);
        id
    }

    /// Whether a call that began by then and goes on may have the name already: it is not polled, or waits for others.
    pub(super) fn may_have_part(&self, name: usize, began: u64) -> bool {
        let mut calls = self.calls.values();
        calls.any(|call| call.names.contains(&name) && call.began <= began)
    }

    /// Returns when a task requested what it was just granted.
    pub(super) fn asked(&self, process: usize, task: usize) -> u64 {
        let began = self.began.get(&(process, task)).copied();
        began.unwrap_or_else(now)
    }

    /// Notes that permits were granted, at least until a time. Returns the number of the hold.
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
        let since = self.asked(process, task);
        self.overtake_here(name, process, since);
        self.begins(Hold {
            process,
            owner: owner.clone(),
            name,
            reads: true,
            since,
            began: now(),
            belief: Belief::Permits(permits, until),
            is_overtaken: false,
            gone: None,
        })
    }

    /// Notes until when permits last now. While an extension is under way, the lease before it may count as well.
    pub fn permits_last(&mut self, hold: u64, time: u64, is_under_way: bool) {
        let hold = self.holds.get_mut(&hold);
        if let Some(Belief::Permits(_, until)) = hold.map(|hold| &mut hold.belief) {
            *until = if is_under_way { time.min(*until) } else { time };
        }
    }

    /// Notes that a holder begins to give a hold back, or has lost it. From then on, nobody relies on it.
    pub fn parted(&mut self, hold: u64) -> Option<Parted> {
        let hold = self.holds.remove(&hold)?;
        self.haunt_beside(hold.name, &hold.owner);
        self.led(&hold);
        self.names[hold.name].parted = now();
        // A call that nobody polls may keep a guard that was lost long ago.
        let is_lost =
            |other: &Hold| matches!(&other.belief, Belief::Lock(guard) if guard.is_lost());
        let mut others = self.holds.values().filter(|other| other.name == hold.name);
        if others.all(is_lost) {
            self.names[hold.name].free = now();
        }
        let may_be_lost = match &hold.belief {
            Belief::Lock(guard) => guard.is_lost(),
            Belief::Body(_) => true,
            Belief::Permits(..) => false,
        };
        if may_be_lost {
            self.may_lose(hold.process);
        }
        let deadline = match &hold.belief {
            Belief::Lock(guard) => now() + guard.remaining(),
            Belief::Permits(_, until) => *until,
            Belief::Body(_) => now(),
        };
        Some(Parted {
            name: hold.name,
            since: hold.since,
            began: hold.began,
            deadline,
            is_overtaken: hold.is_overtaken,
            ended: now(),
            reads: hold.reads,
            is_alike: self.plan().names[hold.name].kind == Kind::Plain && is_named(&hold.owner),
        })
    }

    /// Judges the answer to an unlock.
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
        // What a server said within the last moments counts for a reader. A release that is sent again may find that it
        // was carried out.
        let was_wiped = |one: &Parted| {
            let wiped = self.names[one.name].wiped;
            let is_calm = self.plan().weather == "servers" && self.disturbed < Some(one.ended);
            is_calm && wiped.is_some_and(|wiped| one.began < wiped && wiped + SEEN_FOR < one.ended)
        };
        let wiped = parted.iter().find(|one| was_wiped(one));
        if result.is_ok()
            && let Some(one) = wiped
        {
            let (shown, wiped) = (
                &self.plan().names[one.name].name,
                self.names[one.name].wiped,
            );
            let text = format!(
                "p{process}.{task}: unlock says that {shown} was held, which the server lost at {wiped:?}"
            );
            return self.violation(text);
        }
        if result.is_err() {
            parted.iter().for_each(|_| self.may_lose(process));
        }
        let round_trip = 2 * self.plan().delay.least;
        let heard = self.heard_last(process);
        let is_unasked = |one: &Parted| {
            let since = if one.reads {
                one.ended.saturating_sub(SEEN_FOR)
            } else {
                one.ended
            };
            heard.is_some_and(|heard| heard < since) || !one.reads && now() < one.ended + round_trip
        };
        match result {
            Ok(()) if parted.iter().any(is_unasked) => {
                let text = format!(
                    "p{process}.{task}: unlock vouches for what it asked no server, held since {since}"
                );
                self.violation(text);
            }
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
            Err(_) => parted.iter().for_each(|one| self.owed(one.name)),
            Ok(()) => {}
        }
    }

    /// Returns by when that was said, at the latest, which a process heard last of its only server. Without faults,
    /// two connections bring it in another order by the jitter of their link at most.
    fn heard_last(&self, process: usize) -> Option<u64> {
        let plan = self.plan();
        let is_known = plan.topology == Topology::Single && plan.weather == "calm";
        let network = self.network.as_ref().filter(|_| is_known)?;
        Some(network.heard(process, 0)? + plan.delay.jitter)
    }

    /// Notes that the future of an unlock was dropped.
    pub fn left(&mut self, process: usize, parted: &Parted) {
        self.may_lose(process);
        self.owed(parted.name);
        if parted.is_alike {
            // It is sent again, and may end the next hold.
            self.names[parted.name].forced = Some(now());
        }
    }

    /// Judges the loss that a guard reported.
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
        // The end of a client is no news.
        let is_untold =
            reason != LossReason::Closed && holds.iter().any(|hold| self.is_deposed_untold(hold));
        let shown = holds.iter().map(|hold| &*self.plan().names[hold.name].name);
        let shown = shown.collect::<Vec<_>>().join("+");
        self.tell(format_args!("p{process}.{task} lost {shown}: {reason}"));
        if is_untold {
            let text = format!("p{process}.{task}: {shown} is lost, and no report says deposed");
            self.violation(text);
        }
        if reason != LossReason::Expired && !is_excused {
            let text = format!(
                "p{process}.{task}: {shown} is called lost, {reason}, {left} ms before its end, for no reason"
            );
            self.violation(text);
        }
    }

    /// Reports a guard that is lost by the clock and has not said so.
    pub fn untold_loss(&mut self, (process, task): (usize, usize), name: usize) {
        let shown = self.plan().names[name].name.clone();
        self.violation(format!(
            "p{process}.{task}: {shown} is lost, and nobody was told"
        ));
    }

    /// Whether a hold over several servers may be lost because some of them are away or have lost data.
    fn may_be_shaken(&self, name: usize) -> bool {
        self.plan().names[name].kind == Kind::Red && self.disturbed.is_some()
    }
}
