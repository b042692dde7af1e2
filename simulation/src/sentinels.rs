//! Simulated sentinels, and the roles of the servers that they watch.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;

use crate::front::{self, Gate, Guest, Words, command};
use crate::machine::{Machine, now};
use crate::network::{End, Network, door, host};
use crate::plan::Plan;
use crate::server::PORT;

/// The name under which sentinels know the servers.
pub const SERVICE: &str = "locks";

struct State {
    /// The primary and its epoch, as each sentinel knows them.
    known: Vec<(usize, u64)>,
    is_replica: Vec<bool>,
    /// When each sentinel first told each process its present knowledge.
    told: BTreeMap<(usize, usize), u64>,
    /// The primary that a replica takes over from, or has taken over from.
    former: Option<usize>,
    /// The names that processes have used there since the replica stopped following, each with the process.
    used: BTreeSet<(usize, usize)>,
}

/// All sentinels of the servers.
#[derive(Clone)]
pub struct Sentinels(Arc<Shared>);

struct Shared {
    plan: Arc<Plan>,
    network: Network,
    state: Mutex<State>,
    /// Signals to the listeners of a sentinel that its knowledge has changed.
    news: Vec<watch::Sender<()>>,
}

impl Sentinels {
    pub fn new(plan: &Arc<Plan>, network: &Network) -> Self {
        let topology = plan.topology;
        Self(Arc::new(Shared {
            plan: plan.clone(),
            network: network.clone(),
            state: Mutex::new(State {
                known: vec![(0, 1); topology.sentinels()],
                is_replica: (0..topology.servers()).map(|server| server > 0).collect(),
                told: BTreeMap::new(),
                former: None,
                used: BTreeSet::new(),
            }),
            news: (0..topology.sentinels())
                .map(|_| watch::Sender::new(()))
                .collect(),
        }))
    }

    /// Starts the machine of each sentinel.
    pub fn start(&self) -> Vec<Machine> {
        let start = |sentinel| {
            let machine = Machine::start(0);
            let (door, mut ends) = door();
            self.0.network.set_door(self.host(sentinel), Some(door));
            let sentinels = self.clone();
            machine.handle().spawn(async move {
                while let Some(end) = ends.recv().await {
                    let sentinels = sentinels.clone();
                    tokio::spawn(async move { sentinels.converse(sentinel, end).await });
                }
            });
            machine
        };
        (0..self.0.news.len()).map(start).collect()
    }

    fn host(&self, sentinel: usize) -> usize {
        self.0.plan.topology.servers() + sentinel
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the gate of a server.
    pub fn gate(&self, server: usize) -> Arc<dyn Gate> {
        Arc::new(Role {
            sentinels: self.clone(),
            server,
        })
    }

    pub fn is_replica(&self, server: usize) -> bool {
        self.lock().is_replica[server]
    }

    /// Returns the primary.
    pub fn primary(&self) -> usize {
        let newest = self
            .lock()
            .known
            .iter()
            .max_by_key(|(_, epoch)| *epoch)
            .copied();
        newest.map_or(0, |(primary, _)| primary)
    }

    /// Begins a failover: from now on, writes to this primary may be lost.
    pub fn begin(&self, former: usize) {
        let mut state = self.lock();
        state.former = Some(former);
        state.used.clear();
    }

    pub fn promote(&self, server: usize) {
        self.lock().is_replica[server] = false;
    }

    /// Turns the former primary into a replica.
    pub fn convert(&self, server: usize) {
        let mut state = self.lock();
        state.is_replica[server] = true;
        state.former = None;
    }

    /// Tells a sentinel of the primary.
    pub fn learn(&self, sentinel: usize, primary: usize) {
        let mut state = self.lock();
        let epoch = state.known[sentinel].1 + 1;
        state.known[sentinel] = (primary, epoch);
        state.told.retain(|(one, _), _| *one != sentinel);
        drop(state);
        self.0.news[sentinel].send_replace(());
    }

    /// Forgets what a process was told, since another one starts in its place.
    pub fn forget(&self, process: usize) {
        self.lock().told.retain(|(_, one), _| *one != process);
        self.0.network.forget(process);
    }

    /// Returns the names that may have lost data: those used at the former primary by `all` processes, or by processes
    /// that no sentinel has told of the new one yet.
    pub fn at_stake(&self, all: bool) -> BTreeSet<usize> {
        let state = self.lock();
        let newest = state.known.iter().map(|(_, epoch)| *epoch).max();
        let is_told = |process: usize| {
            (0..state.known.len()).any(|sentinel| {
                let heard = self.0.network.heard(process, self.host(sentinel));
                let told = state.told.get(&(sentinel, process)).copied();
                Some(state.known[sentinel].1) == newest && told.is_some() && heard >= told
            })
        };
        let used = state
            .used
            .iter()
            .filter(|(_, process)| all || !is_told(*process));
        used.map(|(name, _)| *name).collect()
    }

    /// Answers questions on a connection, and announces changes there.
    async fn converse(&self, sentinel: usize, mut end: End) {
        let process = end.process().unwrap_or_default();
        let mut news = self.0.news[sentinel].subscribe();
        let (mut inbox, mut listens) = (Vec::new(), false);
        loop {
            let read = tokio::select! {
                biased;
                _ = news.changed(), if listens => None,
                read = end.read_buf(&mut inbox) => Some(read),
            };
            let mut said = String::new();
            match read {
                None => {
                    let (primary, _) = self.lock().known[sentinel];
                    let text = format!("{SERVICE} old 0 {} {PORT}", host(primary));
                    said = format!(">3\r\n{}", bulks(&["message", "+switch-master", &text]));
                }
                Some(Ok(1..)) => {
                    while let Some(words) = command(&mut inbox) {
                        listens |= front::name(&words) == "SUBSCRIBE";
                        said += &self.answer(sentinel, process, &words);
                    }
                }
                Some(_) => return,
            }
            if end.write_all(said.as_bytes()).await.is_err() {
                return;
            }
        }
    }

    fn answer(&self, sentinel: usize, process: usize, words: &[Vec<u8>]) -> String {
        let mut state = self.lock();
        let (primary, epoch) = state.known[sentinel];
        let port = PORT.to_string();
        let words: Vec<_> = words
            .iter()
            .map(|word| String::from_utf8_lossy(word))
            .collect();
        let words: Vec<_> = words.iter().map(|word| &**word).collect();
        match words[..] {
            ["HELLO", ..] => format!("%1\r\n{}", bulks(&["mode", "sentinel"])),
            ["PING"] => "+PONG\r\n".to_owned(),
            ["SUBSCRIBE", ref channels @ ..] => {
                let told = channels.iter().zip(1..).map(|(channel, number)| {
                    format!(">3\r\n{}:{number}\r\n", bulks(&["subscribe", *channel]))
                });
                told.collect()
            }
            ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE] => {
                state.told.entry((sentinel, process)).or_insert_with(now);
                format!("*2\r\n{}", bulks(&[&host(primary), &port]))
            }
            ["SENTINEL", "MASTER", SERVICE] => {
                format!("%1\r\n{}", bulks(&["config-epoch", &epoch.to_string()]))
            }
            ["SENTINEL", "SENTINELS", SERVICE] => {
                let others = (0..state.known.len()).filter(|other| *other != sentinel);
                let told = others.map(|other| {
                    let (host, id) = (host(self.host(other)), id(other));
                    let told = ["ip", &host, "port", &port, "runid", &id];
                    format!("%3\r\n{}", bulks(&told))
                });
                let told: Vec<_> = told.collect();
                format!("*{}\r\n{}", told.len(), told.concat())
            }
            ["SENTINEL", "MYID"] => bulks(&[&id(sentinel)]),
            _ => format!("-ERR unknown command '{}'\r\n", words.join(" ")),
        }
    }
}

fn id(sentinel: usize) -> String {
    format!("{sentinel:040x}")
}

fn bulks(words: &[&str]) -> String {
    let words = words.iter();
    words
        .map(|word| format!("${}\r\n{word}\r\n", word.len()))
        .collect()
}

/// The role of a server behind sentinels.
struct Role {
    sentinels: Sentinels,
    server: usize,
}

impl Gate for Role {
    fn admit(&self, guest: &mut Guest, words: &[Vec<u8>]) -> Option<Words> {
        let mut state = self.sentinels.lock();
        let name = front::name(words);
        if state.is_replica[self.server] {
            return match &*name {
                "EVAL" | "EVALSHA" => Some(front::refusal(
                    "READONLY You can't write against a read only replica.",
                )),
                "ROLE" => Some(front::answer(
                    "return {'slave', 'server', 0, 'connected', 0}",
                    &[],
                )),
                _ => None,
            };
        }
        if state.former == Some(self.server) {
            for (at, shared) in self.sentinels.0.plan.names.iter().enumerate() {
                let is_of = |key: &Vec<u8>| String::from_utf8_lossy(key).contains(&shared.name);
                if front::keys(words).iter().any(is_of) {
                    state.used.insert((at, guest.process));
                }
            }
        }
        None
    }
}
