//! What is judged now and then: that holders are told of what no server has any more, that nothing stays on a server of
//! which nobody knows, and that nobody waits for what is free.

use super::calls::UNENDING;
use super::data::Kept;
use super::{Belief, Call, Hold, Judge};
use crate::machine::now;
use crate::plan::Kind;

/// How long something may be so that no judge can explain: calls that nobody polls, and what they owe.
const PATIENCE: u64 = 3_000;

/// A sign of life lasts for as long as clients take to be gone.
const SIGN: &str = "lock_sign";

/// What identifies a call on a counter if it arrives again.
const MARKS: [&str; 2] = ["redlatch_call", "redlatch_permit"];

impl Judge {
    /// Judges, now and then, whether what servers have is known, and whether somebody waits for what is free.
    pub fn glance(&mut self) {
        self.gone();
        self.endless_outages();
        let plan = self.plan();
        if plan.weather != "calm" {
            return;
        }
        let round_trip = 2 * (plan.delay.least + plan.delay.jitter + plan.spread);
        for name in 0..self.names.len() {
            let kind = self.plan().names[name].kind;
            if kind == Kind::Latch || self.names[name].is_wrong {
                continue;
            }
            if matches!(kind, Kind::Counted | Kind::Expirable) {
                self.unused(name, 4 * round_trip + PATIENCE);
                self.unclaimed(name, 4 * round_trip + PATIENCE);
                continue;
            }
            self.announced(name, round_trip + 1_000);
            if self.may_be_part(name) {
                self.names[name].free = now();
            }
            // Where there are sets, every call may be polled.
            let passes = match self.plan().names[name].is_of_set() && !self.is_unpolled {
                true => 0,
                false => self.passes(),
            };
            self.unknown(name, 2 * round_trip + PATIENCE + passes);
            if kind != Kind::Red {
                self.waited(name, 4 * round_trip + PATIENCE);
            }
            if kind == Kind::Fair {
                self.own(name, 4 * round_trip + PATIENCE);
                self.crowded(name, 2 * round_trip + PATIENCE + self.passes());
            }
        }
        self.halves(round_trip);
    }

    /// Judges holds that no server has any more: their holders are told, by their clients or by the server.
    fn gone(&mut self) {
        let holds = self.holds.iter();
        let gone: Vec<_> = holds
            .filter(|(_, hold)| self.is_gone(hold))
            .map(|(id, _)| *id)
            .collect();
        let mut wrong = Vec::new();
        for (id, hold) in &mut self.holds {
            if !gone.contains(id) {
                hold.gone = None;
                continue;
            }
            let since = *hold.gone.get_or_insert_with(now);
            if since + PATIENCE < now() {
                wrong.push((hold.process, hold.name, hold.since, since));
            }
        }
        for (process, name, since, gone) in wrong {
            let shown = &self.plan().names[name].name;
            let text = format!(
                "p{process} has {shown} since {since}, no server has had it since {gone}, and nobody is told"
            );
            self.names[name].is_wrong = true;
            self.violation(text);
        }
    }

    /// Whether a guard is trusted though no server has its hold.
    fn is_gone(&self, hold: &Hold) -> bool {
        let Belief::Lock(guard) = &hold.belief else {
            return false;
        };
        let known = &self.names[hold.name];
        let is_excused = guard.is_lost()
            || guard.remaining() == 0
            || self.disturbed.unwrap_or(0) + PATIENCE > now()
            || self.paused.contains_key(&hold.process)
            || self.plan().names[hold.name].kind == Kind::Red
            || known.stretched > now()
            || known.ahead.is_some()
            || known.is_wrong;
        let about = (hold.name, hold.process);
        let stands = |server: usize| self.stands(server, about, now());
        !is_excused && {
            let homes = self.homes(hold.name);
            !homes.is_empty() && !homes.into_iter().any(stands)
        }
    }

    /// Judges the places in the queue of a fair lock: no more than calls that wait.
    fn crowded(&mut self, name: usize, patience: u64) {
        let homes = self.homes(name).into_iter();
        let lines = homes.filter_map(|one| self.servers[one].stored(&self.names[name].line));
        let places = lines.map(|line| line.parts.len()).max().unwrap_or(0);
        let calls = self.calls.values();
        let waiting = calls.filter(|call| call.names.contains(&name)).count();
        if places <= waiting {
            self.names[name].crowded = None;
            return;
        }
        let since = *self.names[name].crowded.get_or_insert_with(now);
        if since + patience < now() {
            let shown = self.plan().names[name].name.clone();
            self.names[name].is_wrong = true;
            self.violation(format!(
                "{shown} has had {places} places since {since}, and {waiting} calls wait for it"
            ));
        }
    }

    /// Judges calls that wait for permits while all of them are free.
    fn unused(&mut self, name: usize, patience: u64) {
        let shared = &self.plan().names[name];
        let total = shared.total.to_string();
        let is_free = |server: &usize| {
            let stored = self.servers[*server].stored(&shared.name);
            stored.is_some_and(|one| one.parts[0].1 == total)
        };
        let Some(server) = self.homes(name).into_iter().find(is_free) else {
            return;
        };
        self.waits(name, self.names[name].kept[server].since, patience);
    }

    /// Judges permits that are not free, and that nobody has.
    fn unclaimed(&mut self, name: usize, patience: u64) {
        let (shared, known) = (&self.plan().names[name], &self.names[name]);
        let free = |server: usize| {
            let stored = self.servers[server].stored(&shared.name)?;
            Some((server, stored.parts.first()?.1.parse::<u32>().ok()?))
        };
        let Some((server, free)) = self.homes(name).into_iter().find_map(free) else {
            return;
        };
        let holds = self.holds.values().filter(|hold| hold.name == name);
        let had: u32 = holds
            .map(|hold| match hold.belief {
                Belief::Permits(permits, _) => permits,
                _ => 0,
            })
            .sum();
        // A single attempt that nobody polls keeps what it was granted.
        let timeout = Some(self.plan().command_timeout);
        let may_keep =
            |call: &Call| call.names == [name] && call.absent > 0 && call.limit == timeout;
        // The permits of an expirable one end by themselves, and are counted when somebody asks.
        let is_meant = shared.kind == Kind::Counted && known.leaked == 0;
        let since = known.kept[server].since.max(known.parted);
        let since = since.max(known.haunted);
        if is_meant
            && free + had < shared.total
            && since + patience < now()
            && !self.calls.values().any(may_keep)
        {
            let text = format!(
                "{} has {free} free permits of {}, and {had} are taken, since {since}",
                shared.name, shared.total
            );
            self.names[name].is_wrong = true;
            self.violation(text);
        }
    }

    /// Judges what is on a server soon after all clients were closed.
    pub fn left_over(&mut self, server: usize, keys: &[String]) {
        if self.plan().weather != "calm" {
            return;
        }
        for key in keys {
            // A level that was left stays until its lease ends, with what belongs to it.
            let mut names = self.plan().names.iter().zip(&self.names);
            // The count of levels that were taken over lasts no longer than the levels.
            let stored = self.servers[server].stored(key);
            let is_over = stored.is_some_and(|one| {
                key.contains(":rwlock_taken")
                    && self.until(server, &one) > now() + self.plan().longest()
            });
            // All permits are given back by now, but for those that were forgotten. Calls that nobody polls may go on.
            let is_mark = !self.is_unpolled && MARKS.iter().any(|mark| key.contains(mark));
            let is_kept = names.any(|(shared, known)| {
                let lasts = !known.left.is_empty()
                    || known.haunted > now()
                    || matches!(
                        shared.kind,
                        Kind::Counted | Kind::Expirable | Kind::Latch | Kind::Plain | Kind::Job
                    );
                let lasts = lasts && (!is_mark || known.leaked > 0);
                lasts && keys.contains(&shared.name) && key.contains(&shared.name)
            });
            // A call that nobody polls does not give up the place of its process when the client closes.
            let place = self.plan().abandons.then_some("redlatch_turns");
            let mut excused = UNENDING.iter().copied().chain([SIGN]).chain(place);
            if (is_over || !is_kept) && !excused.any(|part| key.contains(part)) {
                self.violation(format!("{key} is left on server {server}"));
            }
        }
    }

    /// Judges a lock that a server has, and nobody.
    fn unknown(&mut self, name: usize, patience: u64) {
        let Some(since) = self.unchanged(name) else {
            return;
        };
        let known = &self.names[name];
        let is_known =
            self.holds.values().any(|hold| hold.name == name) || self.may_keep(name, patience);
        let since = since.max(known.free).max(known.haunted);
        if !is_known && since + patience < now() {
            let shown = self.plan().names[name].name.clone();
            self.names[name].is_wrong = true;
            self.violation(format!(
                "a server has {shown}, and nobody has had it since {since}"
            ));
        }
    }

    /// Whether a single attempt that nobody polls may keep what it was granted, since nobody has waited in its process
    /// for long.
    fn may_keep(&self, name: usize, patience: u64) -> bool {
        let timeout = Some(self.plan().command_timeout);
        let calls = || self.calls.values().filter(|call| call.names == [name]);
        let is_waiting = |call: &Call| {
            call.limit != timeout && call.absent == 0 && call.began + patience < now()
        };
        let mut attempts = calls().filter(|call| call.limit == timeout && call.absent > 0);
        attempts.any(|one| !calls().any(|call| call.process == one.process && is_waiting(call)))
    }

    /// Judges calls that wait for a free lock.
    fn waited(&mut self, name: usize, patience: u64) {
        let ends = |kept: &Kept| kept.ends.map_or(kept.since, |ends| ends.max(kept.since));
        let free = self.names[name].kept.iter().map(ends).max().unwrap_or(0);
        // Nobody tells of the end of a level that was left, nor that its lease was cut.
        let is_told = self.names[name].left.is_empty();
        let late = if is_told { 0 } else { self.plan().poll_cap };
        self.waits(name, free, patience + late);
    }

    /// Judges calls that have waited since this time for what is free.
    fn waits(&mut self, name: usize, free: u64, patience: u64) {
        if free + patience >= now() {
            return;
        }
        // Whoever may have it next, here or elsewhere, may not come for a while.
        let is_behind = self.calls.values().any(|call| call.absent > 0);
        let patience = patience + if is_behind { self.passes() } else { 0 };
        let waiting = self.calls.values().find(|call| {
            call.names == [name] && call.absent == 0 && call.began.max(free) + patience < now()
        });
        if let Some(call) = waiting {
            let text = format!(
                "p{}.{} {} waits since {}, and it is free since {free}",
                call.process, call.task, call.what, call.began
            );
            self.names[name].is_wrong = true;
            self.violation(text);
        }
    }
}
