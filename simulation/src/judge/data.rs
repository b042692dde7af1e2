//! What is judged of the data of servers at each command: that a lock ends by itself, and that the server has what a
//! guard believes.

use redlatch_memory::{Stored, Watched};

use super::turns::Publication;
use super::{Belief, Hold, Judge, endings};
use crate::front::keys;
use crate::machine::now;
use crate::plan::{Kind, Shared, Topology};

/// What clocks of whole milliseconds may differ by.
pub(super) const BLUR: u64 = 5;
/// What a server has of a name.
#[derive(Clone, Copy, Default)]
pub(super) struct Kept {
    /// Since when it has it, or has it no more.
    pub(super) since: u64,
    /// When that ends. `None` if it has nothing.
    pub(super) ends: Option<u64>,
}

/// A name as a server had it before a command.
pub(super) struct Stood {
    pub(super) name: usize,
    pub(super) lock: Option<Stored>,
    /// Those that wait for it, in order.
    pub(super) line: Option<Stored>,
}

impl Judge {
    /// A server carries out a command, or has done so.
    pub fn saw(&mut self, server: usize, seen: &mut Watched<'_>) {
        self.heard[server] = (now(), seen.now);
        let Some(told) = seen.told.take() else {
            self.stood = self.found(server, seen);
            return;
        };
        for stood in std::mem::take(&mut self.stood) {
            let name = stood.name;
            let (lock, line) = (
                seen.stored(&self.plan().names[name].name),
                seen.stored(&self.names[name].line),
            );
            if let Some(lock) = &lock {
                self.shape(name, lock);
            }
            if self.plan().names[name].kind == Kind::ReadWrite {
                self.levels_of(name, &stood, lock.as_ref(), seen);
            }
            if stood.lock.as_ref() != lock.as_ref() {
                self.changed(server, name, &stood, lock.as_ref());
                self.backed(server, name, lock.as_ref(), &mut |key| seen.stored(key));
                let before = stood.lock.as_ref();
                let wrong =
                    before.and_then(|one| endings::wrong(one, lock.as_ref(), seen.words, &told));
                if let Some(wrong) = wrong {
                    let text = format!("{}: {wrong}", self.plan().names[name].name);
                    self.violation(text);
                }
            }
            let left = lock.as_ref().and_then(|lock| lock.ends);
            let left = left.map_or(0, |ends| ends.saturating_sub(seen.now));
            let is_news = |(channel, ..): &Publication| channel.ends_with(b":leader");
            if told.iter().any(is_news) {
                self.names[name].terms.told += 1;
            }
            let about = (name, left, seen.now);
            self.queued(about, &stood, (lock.as_ref(), line.as_ref()), &told);
            self.ousted(&stood, line.as_ref(), seen.words);
        }
    }

    /// Returns what a command is about.
    fn found(&self, server: usize, seen: &mut Watched<'_>) -> Vec<Stood> {
        let (names, keys) = (&self.plan().names, keys(seen.words));
        let meant = (0..names.len()).filter(|name| {
            let key = names[*name].name.as_bytes();
            keys.iter().any(|one| one == key) && self.is_home(server, *name)
        });
        let meant: Vec<_> = meant.collect();
        let stood = meant.into_iter().map(|name| Stood {
            name,
            lock: seen.stored(&names[name].name),
            line: seen.stored(&self.names[name].line),
        });
        stood.collect()
    }

    /// Whether a server counts for a name, as far as that is known here.
    fn is_home(&self, server: usize, name: usize) -> bool {
        let plan = self.plan();
        match plan.topology {
            Topology::Single => true,
            Topology::Independent => {
                plan.names[name].kind == Kind::Red || plan.names[name].client == server
            }
            Topology::Cluster | Topology::Sentinels => plan.weather == "calm",
        }
    }

    /// Returns the servers that count for a name.
    pub(super) fn homes(&self, name: usize) -> Vec<usize> {
        let servers = 0..self.servers.len();
        servers.filter(|one| self.is_home(*one, name)).collect()
    }

    /// A name is another on a server than before.
    fn changed(&mut self, server: usize, name: usize, stood: &Stood, lock: Option<&Stored>) {
        let ends = lock.map(|lock| self.until(server, lock));
        let kept = &mut self.names[name].kept[server];
        let is_other = stood.lock.as_ref().map(holds) != lock.map(holds);
        if is_other || kept.ends.is_some_and(|ends| ends < now()) {
            kept.since = now();
        }
        kept.ends = ends;
    }

    /// Returns when this ends, in the time of the world.
    pub(super) fn until(&self, server: usize, stored: &Stored) -> u64 {
        let (at, clock) = self.heard[server];
        let Some(ends) = stored.ends else {
            return u64::MAX;
        };
        let left = ends.saturating_sub(clock) as i64;
        at + (left * 1_000_000 / (1_000_000 + self.plan().clocks[server])) as u64
    }

    /// Judges what a lock is made of.
    fn shape(&mut self, name: usize, lock: &Stored) {
        let (kind, shown) = (self.plan().names[name].kind, &self.plan().names[name].name);
        if matches!(kind, Kind::Counted | Kind::Expirable | Kind::Latch) {
            return;
        }
        if lock.ends.is_none() {
            let text = format!("{shown} has no end");
            return self.violation(text);
        }
        if matches!(kind, Kind::Plain | Kind::ReadWrite) {
            return;
        }
        let (shares, counts): (Vec<_>, Vec<_>) = lock
            .parts
            .iter()
            .filter(|(field, _)| !field.starts_with("||") && field != "|token")
            .partition(|(field, _)| field.starts_with('|'));
        let share = |text: &str| text.split(':').nth(1)?.parse::<u64>().ok();
        let shares: u64 = shares.iter().filter_map(|(_, one)| share(one)).sum();
        let counts: u64 = counts
            .iter()
            .filter_map(|(_, one)| one.parse::<u64>().ok())
            .sum();
        if shares != counts && !self.names[name].is_wrong {
            let text = format!(
                "{shown} has {counts} levels, and shares of {shares}: {:?}",
                lock.parts
            );
            self.names[name].is_wrong = true;
            self.violation(text);
        }
    }

    /// Judges the levels of a read-write lock: they end with its hash, and what it counts is there.
    fn levels_of(
        &mut self,
        name: usize,
        stood: &Stood,
        lock: Option<&Stored>,
        seen: &mut Watched<'_>,
    ) {
        if self.plan().weather != "calm" {
            return;
        }
        let shown = self.plan().names[name].name.clone();
        let keys = |lock: Option<&Stored>| {
            let parts = lock.map_or(&[][..], |lock| &lock.parts).iter();
            let levels = parts.flat_map(|(field, count)| {
                (1..=count.parse::<u64>().unwrap_or(0)).map(move |level| (field.clone(), level))
            });
            let keys =
                levels.map(|(field, level)| format!("{{{shown}}}:{field}:rwlock_timeout:{level}"));
            keys.collect::<Vec<_>>()
        };
        let counted = keys(lock);
        // What has ended by now may still be there.
        let mut stands = |key: &String| {
            let ends = seen.stored(key).map(|level| level.ends.unwrap_or(u64::MAX));
            ends.is_some_and(|ends| ends > seen.now + BLUR)
        };
        let mut before = keys(stood.lock.as_ref()).into_iter();
        let beyond = before.find(|key| !counted.contains(key) && stands(key));
        let ends = counted
            .iter()
            .filter_map(|key| seen.stored(key)?.ends)
            .max()
            .unwrap_or(0);
        let end = lock.and_then(|lock| lock.ends).unwrap_or(0);
        if let Some(key) = beyond {
            self.violation(format!("{key} is a level of nobody"));
        } else if end.abs_diff(ends) > BLUR && self.names[name].left.is_empty() {
            // A level that was left to its owner may have ended, and a writer's could be one of Redisson's then.
            let text = format!(
                "{shown} ends in {} ms, and its levels in {} ms",
                end.saturating_sub(seen.now),
                ends.saturating_sub(seen.now)
            );
            self.violation(text);
        }
    }

    /// Judges whether a server has what guards rely on.
    fn backed(
        &mut self,
        server: usize,
        name: usize,
        lock: Option<&Stored>,
        look: &mut dyn FnMut(&str) -> Option<Stored>,
    ) {
        let known = &self.names[name];
        if self.plan().names[name].kind == Kind::Red
            || known.stretched > now()
            || known.ahead.is_some()
        {
            return;
        }
        // Guards tell the time by the clock of the server that runs.
        let shift = now() as i64 * self.plan().clocks[server] / 1_000_000;
        let mut wrong = Vec::new();
        for hold in self.holds.values().filter(|hold| hold.name == name) {
            let Belief::Lock(guard) = &hold.belief else {
                continue;
            };
            let left = guard.remaining();
            let until = (now() + left).saturating_add_signed(shift);
            // A process that is paused learns nothing.
            let is_over = left == 0 || until <= now();
            let is_told = is_over || guard.is_lost() || self.excuse(name, hold.since).is_some();
            let about = (name, hold.process);
            let is_backed = is_told
                || self.has(server, about, until, lock, look) && self.has_all_levels(hold, lock);
            if !is_backed {
                wrong.push((hold.process, hold.since, until));
            }
        }
        for (process, since, until) in wrong {
            let shown = &self.plan().names[name].name;
            let text = format!(
                "p{process} has {shown} since {since} until {until}, and the server has {lock:?}, until {:?}",
                lock.map(|lock| self.until(server, lock)),
            );
            self.violation(text);
        }
    }

    /// Whether a lock counts as many levels of a process as that has guards of a hold's owner. Only in calm weather: a
    /// late copy of a release that keeps levels takes off what was counted since, until the next release.
    fn has_all_levels(&self, hold: &Hold, lock: Option<&Stored>) -> bool {
        let (plan, shared) = (self.plan(), &self.plan().names[hold.name]);
        // The readers of a process share a level.
        let has_levels = !matches!(shared.kind, Kind::Plain | Kind::ReadWrite);
        if plan.weather != "calm" || !has_levels || shared.is_of_set() {
            return true;
        }
        let ours = format!("|p{}/", hold.process);
        let parts = lock.map_or(&[][..], |lock| &lock.parts).iter();
        let levels: usize = parts
            .filter(|(field, _)| field.starts_with(&ours))
            .filter_map(|(_, text)| text.split(':').nth(1)?.parse::<usize>().ok())
            .sum();
        let lasts = |one: &Hold| match &one.belief {
            Belief::Lock(guard) => guard.remaining() > 0 && !guard.is_lost(),
            _ => false,
        };
        let is_alike = |one: &&Hold| {
            let is_here = one.name == hold.name && one.process == hold.process;
            is_here && one.owner == hold.owner && lasts(one)
        };
        levels >= self.holds.values().filter(is_alike).count()
    }

    /// Whether a server has a lock for a process for so long.
    fn has(
        &self,
        server: usize,
        (name, process): (usize, usize),
        until: u64,
        lock: Option<&Stored>,
        look: &mut dyn FnMut(&str) -> Option<Stored>,
    ) -> bool {
        let shared = &self.plan().names[name];
        let lasts = |stored: &Stored| self.until(server, stored) + BLUR >= until;
        let Some(lock) = lock.filter(|lock| lasts(lock)) else {
            return false;
        };
        match shared.kind {
            Kind::Plain => true,
            Kind::ReadWrite => lock.parts.iter().any(|(field, count)| {
                let levels = count.parse::<u64>().unwrap_or(0);
                (1..=levels).any(|level| {
                    let key = format!("{{{}}}:{field}:rwlock_timeout:{level}", shared.name);
                    let ours = |one: &Stored| one.parts[0].1.ends_with(&format!("/p{process}"));
                    look(&key).is_some_and(|one| ours(&one) && lasts(&one))
                })
            }),
            _ => {
                let ours = format!("|p{process}/");
                lock.parts.iter().any(|(field, _)| field.starts_with(&ours))
            }
        }
    }

    /// The same, by what it has now.
    pub(super) fn stands(&self, server: usize, about: (usize, usize), until: u64) -> bool {
        let memory = &self.servers[server];
        let lock = memory.stored(&self.plan().names[about.0].name);
        let look = &mut |key: &str| memory.stored(key);
        self.has(server, about, until, lock.as_ref(), look)
    }

    /// Judges a grant by the data of the servers.
    pub(super) fn backed_at_first(&mut self, name: usize, process: usize, until: u64) {
        let is_red = self.plan().names[name].kind == Kind::Red;
        let servers = self.homes(name);
        let known = &self.names[name];
        // A server may lose what it granted while others are asked.
        let is_shaken = is_red && self.disturbed.is_some();
        if servers.is_empty() || is_shaken || known.stretched > now() || known.ahead.is_some() {
            return;
        }
        let stands = |server: &&usize| self.stands(**server, (name, process), until);
        let has = servers.iter().filter(stands).count();
        let least = if is_red {
            self.servers.len() / 2 + 1
        } else {
            1
        };
        if has < least {
            let shown = self.plan().names[name].name.clone();
            self.violation(format!(
                "p{process} is granted {shown} until {until}, which {has} servers have"
            ));
        }
    }

    /// The keys of a name are at another server from now on.
    pub fn moved(&mut self, name: usize, from: usize, to: usize) {
        let kept = &mut self.names[name].kept;
        kept[to] = std::mem::take(&mut kept[from]);
    }
}

/// Returns the key of those that wait for a name.
pub(super) fn line(shared: &Shared) -> String {
    match shared.kind {
        Kind::Fair => format!("redisson_lock_queue:{{{}}}", shared.name),
        _ => format!("redlatch_turns:{{{}}}", shared.name),
    }
}

/// Returns who has a lock, by which acquisitions.
pub(super) fn holds(lock: &Stored) -> Vec<(String, String)> {
    let number = |text: &str| text.split(':').next().unwrap_or_default().to_owned();
    lock.parts
        .iter()
        .map(|(field, value)| (field.clone(), number(value)))
        .collect()
}
