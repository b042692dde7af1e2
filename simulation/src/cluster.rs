//! The slot map of a simulated cluster, while slots move.

use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::front::{self, Gate, Guest, Words};
use crate::network::host;
use crate::server::PORT;

/// The number of slots.
const SLOTS: u16 = 16_384;

struct State {
    /// By slot.
    owners: Vec<usize>,
    /// A slot that is being moved: its keys are already at the new server.
    moving: Option<(u16, usize)>,
}

/// The slots of all servers.
#[derive(Clone)]
pub struct Cluster(Arc<Mutex<State>>);

impl Cluster {
    pub fn new(servers: usize) -> Self {
        let each = usize::from(SLOTS).div_ceil(servers);
        let owners = (0..usize::from(SLOTS)).map(|slot| slot / each).collect();
        Self(Arc::new(Mutex::new(State {
            owners,
            moving: None,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the gate of a server.
    pub fn gate(&self, server: usize) -> Arc<dyn Gate> {
        Arc::new(Member {
            cluster: self.clone(),
            server,
        })
    }

    /// Returns the server that has a slot.
    pub fn owner(&self, slot: u16) -> usize {
        self.lock().owners[usize::from(slot)]
    }

    /// Returns the server that has the keys of a slot.
    pub fn keeper(&self, slot: u16) -> usize {
        let state = self.lock();
        let moving = state.moving.filter(|(moving, _)| *moving == slot);
        moving.map_or_else(|| state.owners[usize::from(slot)], |(_, to)| to)
    }

    /// Begins to move a slot: from now on, its keys are at another server, to which clients are redirected by `ASK`.
    /// Returns `false` if another slot is moving.
    pub fn begin(&self, slot: u16, to: usize) -> bool {
        let mut state = self.lock();
        let is_free = state.moving.is_none();
        state.moving = state.moving.or(Some((slot, to)));
        is_free
    }

    /// Gives all slots of one server to another.
    pub fn inherit(&self, from: usize, to: usize) {
        let mut state = self.lock();
        for owner in &mut state.owners {
            if *owner == from {
                *owner = to;
            }
        }
        if let Some((slot, target)) = state.moving {
            let target = if target == from { to } else { target };
            let moves = state.owners[usize::from(slot)] != target;
            state.moving = moves.then_some((slot, target));
        }
    }

    /// Ends the move of the slot.
    pub fn finish(&self) {
        let mut state = self.lock();
        if let Some((slot, to)) = state.moving.take() {
            state.owners[usize::from(slot)] = to;
        }
    }
}

impl State {
    /// Returns the ranges of slots, each with its server.
    fn ranges(&self) -> Vec<(RangeInclusive<usize>, usize)> {
        let mut ranges: Vec<(RangeInclusive<usize>, usize)> = Vec::new();
        for (slot, owner) in self.owners.iter().enumerate() {
            match ranges.last_mut() {
                Some((range, last)) if last == owner => *range = *range.start()..=slot,
                _ => ranges.push((slot..=slot, *owner)),
            }
        }
        ranges
    }
}

/// Returns the slot of a key or a channel: a CRC of what is within its first braces, or of all of it.
pub fn slot(key: &str) -> u16 {
    let inside = key
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'));
    let tag = inside.map(|(tag, _)| tag).filter(|tag| !tag.is_empty());
    crc16::State::<crc16::XMODEM>::calculate(tag.unwrap_or(key).as_bytes()) % SLOTS
}

/// One of the servers.
struct Member {
    cluster: Cluster,
    server: usize,
}

impl Gate for Member {
    fn admit(&self, guest: &mut Guest, words: &[Vec<u8>]) -> Option<Words> {
        let name = front::name(words);
        let is_asking = std::mem::take(&mut guest.is_asking);
        let state = self.cluster.lock();
        let (key, is_channel) = match &*name {
            "ASKING" => {
                guest.is_asking = true;
                return Some(front::answer("return redis.status_reply('OK')", &[]));
            }
            "CLUSTER" => {
                let rows = state.ranges().into_iter().map(|(range, owner)| {
                    let (first, last, host) = (range.start(), range.end(), host(owner));
                    format!("{{{first},{last},{{'{host}',{PORT},'{owner:040x}'}}}}")
                });
                let rows: Vec<_> = rows.collect();
                return Some(front::answer(
                    &format!("return {{{}}}", rows.join(",")),
                    &[],
                ));
            }
            "SSUBSCRIBE" | "SUNSUBSCRIBE" | "SPUBLISH" => (words.get(1)?, true),
            _ => (front::keys(words).first()?, false),
        };
        let slot = slot(&String::from_utf8_lossy(key));
        let owner = state.owners[usize::from(slot)];
        // Channels stay until the slot has moved.
        let moving = state.moving.filter(|(one, _)| *one == slot && !is_channel);
        let (word, to) = match moving {
            Some((_, to)) if to == self.server && is_asking => return None,
            Some((_, to)) if owner == self.server => ("ASK", to),
            _ if owner == self.server => return None,
            _ => ("MOVED", owner),
        };
        Some(front::refusal(&format!(
            "{word} {slot} {}:{PORT}",
            host(to)
        )))
    }
}
