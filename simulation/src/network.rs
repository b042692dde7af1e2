//! The links between processes and servers, and the connections over them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fastrand::Rng;
use redlatch::config::{Address, Connect};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::time::sleep;

use crate::machine::now;

/// The directions of a connection.
pub const UP: usize = 0;
pub const DOWN: usize = 1;

/// How long bytes travel, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Delay {
    pub least: u64,
    pub jitter: u64,
}

/// What a link does to the bytes that go over it.
#[derive(Debug)]
struct Link {
    delay: Delay,
    /// Until when bytes take longer, and by how much.
    slow: (u64, u64),
    /// Until when it holds bytes back, in each direction.
    held: [u64; 2],
    /// Until when it refuses connections.
    refused: u64,
    /// Until when attempts to connect get no answer.
    mute: u64,
    /// Until when connections tear at what is written, and how much later a request arrives all the same.
    torn: (u64, u64),
    chance: Rng,
}

/// Bytes that were written at once.
struct Chunk {
    sent: u64,
    due: u64,
    bytes: Vec<u8>,
}

/// The bytes of a connection in one direction.
#[derive(Default)]
struct Pipe {
    queue: VecDeque<Chunk>,
    last: u64,
    /// When the end arrives.
    ends: Option<u64>,
    /// Whether bytes vanish, and the end too.
    is_dead: bool,
    /// Whether the reader has gone.
    is_left: bool,
    /// Whether the reader has gone, and the writer does not know.
    is_torn: bool,
    reader: Option<Waker>,
    /// Up to when bytes in flight have arrived.
    arrived: u64,
}

struct Connection {
    link: (usize, usize),
    pipes: [Pipe; 2],
}

struct State {
    links: BTreeMap<(usize, usize), Link>,
    connections: BTreeMap<u64, Connection>,
    /// When each reader next has something to read: the time, a random number, the connection and the direction.
    due: BinaryHeap<Reverse<(u64, u32, u64, usize)>>,
    /// Draws the order of arrivals at the same time.
    chance: Rng,
    last: u64,
    /// Where each server accepts its connections, while it is up.
    doors: BTreeMap<usize, UnboundedSender<End>>,
    /// The servers that bytes have arrived for.
    busy: Vec<usize>,
    /// When the bytes that a process last read over a link were sent.
    heard: BTreeMap<(usize, usize), u64>,
}

/// All links.
#[derive(Clone)]
pub struct Network(Arc<Mutex<State>>);

impl Network {
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(State {
            links: BTreeMap::new(),
            connections: BTreeMap::new(),
            due: BinaryHeap::new(),
            chance: Rng::with_seed(seed),
            last: 0,
            doors: BTreeMap::new(),
            busy: Vec::new(),
            heard: BTreeMap::new(),
        })))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn add_link(&self, process: usize, server: usize, delay: Delay, seed: u64) {
        let link = Link {
            delay,
            slow: (0, 0),
            held: [0; 2],
            refused: 0,
            mute: 0,
            torn: (0, 0),
            chance: Rng::with_seed(seed),
        };
        self.lock().links.insert((process, server), link);
    }

    /// Opens or closes the door of a server, where it accepts connections.
    pub fn set_door(&self, server: usize, door: Option<UnboundedSender<End>>) {
        let before = match door {
            Some(door) => self.lock().doors.insert(server, door),
            None => self.lock().doors.remove(&server),
        };
        drop(before);
    }

    pub fn has_door(&self, server: usize) -> bool {
        self.lock().doors.contains_key(&server)
    }

    /// Returns when the first bytes arrived that are due by now.
    pub fn next(&self) -> Option<u64> {
        let state = self.lock();
        let Reverse((due, ..)) = state.due.peek()?;
        (*due <= now()).then_some(*due)
    }

    /// Wakes the readers that bytes have arrived for by this time. Returns the servers among them.
    pub fn deliver(&self, time: u64) -> Vec<usize> {
        let mut woken = Vec::new();
        let mut state = self.lock();
        while let Some(&Reverse((due, _, id, direction))) = state.due.peek() {
            if due > time {
                break;
            }
            state.due.pop();
            let Some(connection) = state.connections.get_mut(&id) else {
                continue;
            };
            let pipe = &mut connection.pipes[direction];
            pipe.arrived = time;
            woken.extend(pipe.reader.take());
            if direction == UP {
                let server = connection.link.1;
                state.busy.push(server);
            }
        }
        let mut busy = std::mem::take(&mut state.busy);
        drop(state);
        woken.into_iter().for_each(Waker::wake);
        busy.sort_unstable();
        busy.dedup();
        busy
    }

    /// Returns when the bytes that a process last read from a server were sent.
    pub fn heard(&self, process: usize, server: usize) -> Option<u64> {
        self.lock().heard.get(&(process, server)).copied()
    }

    /// Forgets what a process has read, since another one starts in its place.
    pub fn forget(&self, process: usize) {
        self.lock().heard.retain(|(one, _), _| *one != process);
    }

    /// Whether no bytes are in flight.
    pub fn is_quiet(&self) -> bool {
        let state = self.lock();
        state.due.is_empty() && state.busy.is_empty()
    }

    fn each(&self, process: Option<usize>, server: Option<usize>, mut act: impl FnMut(&mut Link)) {
        for ((one, other), link) in &mut self.lock().links {
            if process.is_none_or(|process| process == *one)
                && server.is_none_or(|server| server == *other)
            {
                act(link);
            }
        }
    }

    pub fn slow(&self, process: Option<usize>, server: Option<usize>, span: u64, by: u64) {
        self.each(process, server, |link| link.slow = (now() + span, by));
    }

    pub fn hold(&self, process: Option<usize>, server: Option<usize>, ways: [bool; 2], span: u64) {
        self.each(process, server, |link| {
            for (held, is_meant) in link.held.iter_mut().zip(ways) {
                if is_meant {
                    *held = (*held).max(now() + span);
                }
            }
        });
    }

    pub fn refuse(&self, process: Option<usize>, server: Option<usize>, span: u64) {
        self.each(process, server, |link| link.refused = now() + span);
    }

    pub fn mute(&self, process: Option<usize>, server: Option<usize>, span: u64) {
        self.each(process, server, |link| link.mute = now() + span);
    }

    pub fn tear(&self, process: Option<usize>, server: Option<usize>, span: u64, late: u64) {
        self.each(process, server, |link| link.torn = (now() + span, late));
    }

    /// Ends all faults of links, and all connections that met one.
    pub fn heal(&self) {
        self.each(None, None, |link| {
            link.slow = (0, 0);
            link.held = [0; 2];
            link.refused = 0;
            link.mute = 0;
            link.torn = (0, 0);
        });
        self.cut(None, None, 0);
    }

    /// From now on, drops all bytes of connections in one direction, as if one side had forgotten them.
    pub fn half_open(&self, process: usize, server: usize, way: usize) {
        let mut state = self.lock();
        for connection in state.connections.values_mut() {
            if connection.link == (process, server) {
                connection.pipes[way].is_dead = true;
            }
        }
    }

    /// Ends connections. Of the bytes in flight, `bytes` arrive in each direction.
    pub fn cut(&self, process: Option<usize>, server: Option<usize>, bytes: usize) {
        let mut guard = self.lock();
        let state = &mut *guard;
        for (id, connection) in &mut state.connections {
            let (one, other) = connection.link;
            if process.is_some_and(|process| process != one)
                || server.is_some_and(|server| server != other)
            {
                continue;
            }
            for (direction, pipe) in connection.pipes.iter_mut().enumerate() {
                let mut room = bytes;
                pipe.queue.retain_mut(|chunk| {
                    chunk.bytes.truncate(room);
                    room -= chunk.bytes.len();
                    !chunk.bytes.is_empty()
                });
                let last = pipe.queue.back().map_or_else(now, |chunk| chunk.due);
                let ends = last.max(now());
                pipe.ends = Some(ends);
                pipe.is_dead = false;
                state.due.push(Reverse((ends, 0, *id, direction)));
            }
        }
    }
}

impl State {
    /// Returns when bytes that are written now arrive.
    fn arrival(&mut self, link: (usize, usize), way: usize) -> u64 {
        let Some(link) = self.links.get_mut(&link) else {
            return now();
        };
        let jitter = link.chance.u64(0..=link.delay.jitter);
        let more = if link.slow.0 > now() { link.slow.1 } else { 0 };
        (now() + link.delay.least + jitter + more).max(link.held[way])
    }

    /// Returns how much later what is written now arrives, if its connection tears there.
    fn torn(&mut self, link: (usize, usize)) -> Option<u64> {
        let link = self.links.get_mut(&link)?;
        (link.torn.0 > now() && link.chance.u32(..16) == 0).then_some(link.torn.1)
    }

    /// Ends a connection for its process. The server learns it behind the last request, which arrives late.
    fn tear(&mut self, id: u64, late: u64) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let [up, down] = &mut connection.pipes;
        if let Some(last) = up.queue.back_mut() {
            last.due += late;
            up.last = last.due;
        }
        let ends = up.last.max(now());
        up.ends = Some(ends);
        down.queue.clear();
        down.ends = Some(now());
        down.is_torn = true;
        self.due.push(Reverse((ends, 0, id, UP)));
        self.due.push(Reverse((now(), 0, id, DOWN)));
    }
}

/// One end of a connection. It reads in one direction, and writes in the other.
pub struct End {
    network: Network,
    id: u64,
    reads: usize,
}

impl End {
    /// Returns the process at one side.
    pub fn process(&self) -> Option<usize> {
        let state = self.network.lock();
        state.connections.get(&self.id).map(|one| one.link.0)
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut guard = self.network.lock();
        let state = &mut *guard;
        let way = 1 - self.reads;
        let link = state.connections.get(&self.id).map(|one| one.link);
        let link = link.ok_or(io::ErrorKind::ConnectionReset)?;
        let (arrival, torn) = (state.arrival(link, way), state.torn(link));
        let connection = state.connections.get_mut(&self.id);
        let pipe = &mut connection.ok_or(io::ErrorKind::ConnectionReset)?.pipes[way];
        if pipe.is_torn {
            return Ok(bytes.len());
        }
        if pipe.ends.is_some() || pipe.is_left {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        // An empty write would look like the end.
        if !pipe.is_dead && !bytes.is_empty() {
            pipe.last = pipe.last.max(arrival);
            pipe.queue.push_back(Chunk {
                sent: now(),
                due: pipe.last,
                bytes: bytes.to_vec(),
            });
            let turn = state.chance.u32(..);
            state.due.push(Reverse((pipe.last, turn, self.id, way)));
        }
        if let Some(late) = torn {
            state.tear(self.id, late);
        }
        Ok(bytes.len())
    }

    fn read(&self, buffer: &mut ReadBuf<'_>, context: &Context<'_>) -> (bool, Option<Waker>) {
        let mut guard = self.network.lock();
        let state = &mut *guard;
        let Some(connection) = state.connections.get_mut(&self.id) else {
            return (true, None);
        };
        let pipe = &mut connection.pipes[self.reads];
        let mut has_read = false;
        while let Some(Chunk { sent, due, bytes }) = pipe.queue.front_mut() {
            if *due > pipe.arrived || buffer.remaining() == 0 {
                break;
            }
            let count = bytes.len().min(buffer.remaining());
            buffer.put_slice(&bytes[..count]);
            has_read = true;
            if count < bytes.len() {
                drop(bytes.drain(..count));
                break;
            }
            if self.reads == DOWN {
                state.heard.insert(connection.link, *sent);
            }
            pipe.queue.pop_front();
        }
        let has_ended = pipe.queue.is_empty() && pipe.ends.is_some_and(|ends| ends <= pipe.arrived);
        if has_read || has_ended {
            return (true, None);
        }
        (false, pipe.reader.replace(context.waker().clone()))
    }

    /// Writes nothing more.
    fn finish(&self) {
        let mut guard = self.network.lock();
        let state = &mut *guard;
        let way = 1 - self.reads;
        let Some(link) = state.connections.get(&self.id).map(|one| one.link) else {
            return;
        };
        let arrival = state.arrival(link, way);
        if let Some(connection) = state.connections.get_mut(&self.id) {
            let pipe = &mut connection.pipes[way];
            if !pipe.is_dead && pipe.ends.is_none() {
                let ends = pipe.last.max(arrival);
                pipe.ends = Some(ends);
                state.due.push(Reverse((ends, 0, self.id, way)));
            }
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.finish();
        let mut state = self.network.lock();
        let Some(connection) = state.connections.get_mut(&self.id) else {
            return;
        };
        connection.pipes[self.reads].is_left = true;
        let gone = connection.pipes.iter().all(|pipe| pipe.is_left);
        let gone = gone.then(|| state.connections.remove(&self.id));
        drop(state);
        drop(gone);
    }
}

impl AsyncRead for End {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let (is_ready, _replaced) = self.read(buffer, context);
        match is_ready {
            true => Poll::Ready(Ok(())),
            false => Poll::Pending,
        }
    }
}

impl AsyncWrite for End {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(self.write(bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.finish();
        Poll::Ready(Ok(()))
    }
}

/// Connects a process to servers.
pub struct Dialer {
    pub network: Network,
    pub process: usize,
}

/// Returns the host of a server.
pub fn host(server: usize) -> String {
    format!("server-{server}")
}

/// Returns the server at an address.
fn server_at(address: &Address) -> Option<usize> {
    match address {
        Address::Tcp { host, .. } => host.strip_prefix("server-")?.parse().ok(),
        _ => None,
    }
}

impl Connect for Dialer {
    type Stream = End;

    async fn connect(&self, address: Address) -> io::Result<End> {
        let server = server_at(&address).ok_or(io::ErrorKind::NotFound)?;
        let link = (self.process, server);
        let wait = {
            let mut state = self.network.lock();
            let held = state.arrival(link, UP).max(state.arrival(link, DOWN));
            let mute = state.links.get(&link).map_or(0, |link| link.mute);
            held.max(mute).saturating_sub(now()).max(1)
        };
        sleep(Duration::from_millis(wait)).await;
        let mut guard = self.network.lock();
        let state = &mut *guard;
        let is_refused = state
            .links
            .get(&link)
            .is_some_and(|link| link.refused > now());
        let door = state.doors.get(&server).filter(|_| !is_refused);
        let door = door.ok_or(io::ErrorKind::ConnectionRefused)?.clone();
        state.last += 1;
        let id = state.last;
        let pipes = [Pipe::default(), Pipe::default()];
        state.connections.insert(id, Connection { link, pipes });
        state.busy.push(server);
        drop(guard);
        let end = |reads| End {
            network: self.network.clone(),
            id,
            reads,
        };
        let near = end(DOWN);
        door.send(end(UP))
            .map_err(|_| io::ErrorKind::ConnectionRefused)?;
        Ok(near)
    }
}

/// Returns a door for a server, and the receiver of its connections.
pub fn door() -> (
    UnboundedSender<End>,
    tokio::sync::mpsc::UnboundedReceiver<End>,
) {
    unbounded_channel()
}
