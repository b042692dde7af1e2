//! One run: lets time pass, runs the machines in turn, and carries out the faults of the plan.

mod clocks;
mod slots;
mod takeover;

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use fastrand::Rng;
use redlatch_memory::clock;

use crate::chance::{BEGIN, mixed};
use crate::cluster::Cluster;
use crate::judge::{Figures, Judge, judge, tell};
use crate::machine::{Machine, now, set_now, set_running};
use crate::network::{Delay, Network};
use crate::plan::{Event, Fault, Kind, Plan, Topology};
use crate::program::{self, Process};
use crate::sentinels::Sentinels;
use crate::server::{Memory, Server};
use takeover::Takeover;

/// How old the servers are when the processes begin. A RedLock trusts no server that is younger than a lease.
const AGE: u64 = 200_000;
/// How long calls may take to end once all faults are over.
const PATIENCE: u64 = 60_000;
/// Longer than any key lasts on a server. Request marks last for two minutes.
const QUIET: u64 = 150_000;

/// How often the judge looks at what lasts, in milliseconds.
const GLANCE: u64 = 20;

/// How many milliseconds processes run at a time while nothing has arrived for as long.
const QUIET_SPAN: u64 = 5;
const QUIET_AFTER: u64 = 6;

thread_local! {
    static IS_OVER: Cell<bool> = const { Cell::new(false) };
}

/// Whether tasks should begin nothing new.
pub fn is_over() -> bool {
    IS_OVER.get()
}

struct Running {
    machine: Machine,
    process: Arc<OnceLock<Arc<Process>>>,
    /// How many tasks have not ended.
    going: Arc<AtomicUsize>,
}

enum Life {
    Running(Running),
    Paused(Running),
    Killed,
}

struct World {
    plan: Arc<Plan>,
    network: Network,
    servers: Vec<Server>,
    sentinels: Option<Sentinels>,
    /// The machines of the sentinels.
    watchers: Vec<Machine>,
    takeover: Option<Takeover>,
    cluster: Option<Cluster>,
    processes: Vec<Life>,
    chance: Rng,
    /// Faults that end later.
    later: Vec<(u64, Fault)>,
    /// When bytes last arrived.
    quiet_since: u64,
}

/// The outcome of a run.
pub struct Outcome {
    pub topology: Topology,
    pub hash: u64,
    pub simulated: u64,
    pub figures: Figures,
}

/// Runs a plan.
pub fn live(plan: Plan, tells: bool) -> Outcome {
    clock::begin_at(Duration::from_secs(BEGIN));
    let topology = plan.topology;
    let plan = Arc::new(plan);
    let network = Network::new(mixed(plan.seed ^ 1));
    let is_watched = plan.topology == Topology::Sentinels;
    let sentinels = is_watched.then(|| Sentinels::new(&plan, &network));
    let has_slots = plan.topology == Topology::Cluster;
    let cluster = has_slots.then(|| Cluster::new(plan.topology.servers()));
    let gate = |number| match (&sentinels, &cluster) {
        (Some(sentinels), _) => Some(sentinels.gate(number)),
        (None, cluster) => cluster.as_ref().map(|cluster| cluster.gate(number)),
    };
    let servers = (0..plan.topology.servers())
        .map(|number| Server::start(number, plan.clocks[number], &network, gate(number)))
        .collect::<Vec<_>>();
    for process in 0..plan.processes.len() {
        for server in 0..plan.topology.hosts() {
            let seed = mixed(plan.seed ^ ((process * 16 + server) as u64) << 32);
            let least = plan.delay.least + mixed(seed) % (plan.spread + 1);
            let delay = Delay {
                least,
                ..plan.delay
            };
            network.add_link(process, server, delay, seed);
        }
    }
    set_now(AGE);
    let shown = servers.iter().map(Server::show).collect();
    judge(|judge| judge.begin(&plan, shown, &network, tells));
    let mut world = World {
        chance: Rng::with_seed(mixed(plan.seed.wrapping_add(1))),
        watchers: sentinels.as_ref().map(Sentinels::start).unwrap_or_default(),
        sentinels,
        takeover: None,
        cluster,
        plan,
        network,
        servers,
        processes: Vec::new(),
        later: Vec::new(),
        quiet_since: AGE,
    };
    world.live();
    judge(|judge| Outcome {
        topology,
        hash: judge.hash(),
        simulated: now() - AGE - QUIET,
        figures: std::mem::take(&mut judge.figures),
    })
}

impl World {
    fn live(&mut self) {
        let plan = self.plan.clone();
        for process in 0..plan.processes.len() {
            let running = self.start(process);
            self.processes.push(running);
        }
        let mut events = plan.events.iter().peekable();
        while now() < AGE + plan.length {
            while let Some(event) = events.next_if(|event| AGE + event.at <= now()) {
                self.begin(event);
            }
            self.end_due(false);
            self.go_on_with_takeover(false);
            self.tick();
            let is_quiet = self.later.is_empty() && self.takeover.is_none();
            if self.is_done() && events.peek().is_none() && is_quiet {
                break;
            }
        }
        tell!("the weather ends");
        self.end_due(true);
        self.go_on_with_takeover(true);
        if !plan.events.is_empty() {
            self.network.heal();
            judge(Judge::healed);
        }
        IS_OVER.set(true);
        let patience = now() + PATIENCE;
        while !self.is_done() && now() < patience {
            self.tick();
        }
        judge(|judge| judge.end_calls());
        self.count(false);
        self.close();
        self.count(true);
        self.inspect();
    }

    fn start(&self, number: usize) -> Life {
        tell!("p{number} starts");
        if let Some(sentinels) = &self.sentinels {
            sentinels.forget(number);
        }
        let machine = Machine::start(0);
        let process = Arc::new(OnceLock::new());
        let going = Arc::new(AtomicUsize::new(1));
        let started = {
            let process = process.clone();
            move |started| drop(process.set(started))
        };
        let start = program::start(
            number,
            self.plan.clone(),
            self.network.clone(),
            going.clone(),
            started,
        );
        machine.handle().spawn(start);
        Life::Running(Running {
            machine,
            process,
            going,
        })
    }

    /// Lets a millisecond pass.
    fn tick(&mut self) {
        // Processes may have run for longer than a millisecond. What they sent arrives in order.
        while let Some(due) = self.network.next() {
            let servers = self.network.deliver(due);
            // Answers without delay have arrived before the processes run.
            for host in servers {
                let machine = self.machine(host);
                machine.jump();
                machine.run(1);
            }
            self.quiet_since = now();
        }
        // If nothing has been in flight for long, the machines are independent of each other for a while.
        let is_quiet = self.network.is_quiet() && now() > self.quiet_since + QUIET_AFTER;
        let span = if is_quiet { QUIET_SPAN } else { 1 };
        let count = self.processes.len();
        let first = self.chance.usize(..count);
        for at in 0..count {
            let process = (first + at) % count;
            if let Life::Running(running) = &self.processes[process] {
                set_running(process);
                running.machine.run(span);
            }
        }
        set_now(now() + span);
        if now() / GLANCE != (now() - span) / GLANCE {
            judge(|judge| judge.glance());
        }
    }

    /// Returns the machine of a server or a sentinel.
    fn machine(&self, host: usize) -> &Machine {
        match self.servers.get(host) {
            Some(server) => &server.machine,
            None => &self.watchers[host - self.servers.len()],
        }
    }

    fn is_done(&self) -> bool {
        self.processes.iter().all(|life| match life {
            Life::Running(running) => running.going.load(Ordering::Relaxed) == 0,
            Life::Paused(_) => false,
            Life::Killed => true,
        })
    }

    fn begin(&mut self, event: &Event) {
        if matches!(event.fault, Fault::Failover(_)) && self.takeover.is_some() {
            return;
        }
        tell!("FAULT {:?} for {} ms", event.fault, event.span);
        let (span, network) = (event.span, &self.network);
        let fault = event.fault.clone();
        let lasts = match &fault {
            Fault::Tear(_, _, late) => span + late,
            _ => span,
        };
        judge(|judge| judge.fault(name(&fault), lasts));
        match fault {
            Fault::Slow(process, server, by) => network.slow(process, server, span, by),
            Fault::Hold(process, server, ways) => network.hold(process, server, ways, span),
            Fault::HalfOpen(process, server, way) => network.half_open(process, server, way),
            Fault::Cut(process, server, bytes) => network.cut(process, server, bytes),
            Fault::Refuse(process, server) => {
                network.refuse(process, server, span);
                network.cut(process, server, 0);
            }
            Fault::Mute(process, server) => {
                network.mute(process, server, span);
                network.hold(process, server, [true; 2], span);
            }
            Fault::Tear(process, server, late) => {
                network.tear(process, server, span, late);
                judge(|judge| judge.copied(lasts));
            }
            Fault::Stop(server, memory) => {
                if memory == Memory::Earlier {
                    self.servers[server].machine.jump();
                    self.servers[server].keep();
                }
                if memory != Memory::Earlier {
                    self.servers[server].stop(64);
                    judge(Judge::is_away);
                }
                self.later.push((now() + span, fault));
            }
            Fault::Hang(server) => {
                self.servers[server].hang();
                self.later.push((now() + span, fault));
            }
            Fault::Forget(server) => {
                self.servers[server].ask(&["SCRIPT", "FLUSH"]);
            }
            Fault::Deny(server, text) => {
                self.servers[server].refuse(Some(text));
                self.later.push((now() + span, fault));
            }
            Fault::Clock(server, by) => self.set_clock(server, by),
            Fault::Move(name, next) => {
                if self.begin_move(name, next) {
                    self.later.push((now() + span, fault));
                }
            }
            Fault::Inherit(server, next, _) => {
                let heir = (server + 1 + next) % self.servers.len();
                if self.servers[server].is_well() && self.servers[heir].is_well() {
                    self.servers[server].stop(64);
                    self.later.push((now() + span, fault));
                }
            }
            Fault::Failover(failover) => self.fail_over(&failover),
            Fault::Kill(process) => self.kill(process, span),
            Fault::Pause(process) => {
                if matches!(self.processes[process], Life::Running(_)) {
                    self.turn(process, Life::Paused);
                    judge(|judge| judge.paused(process));
                    self.later.push((now() + span, fault));
                }
            }
        }
    }

    /// Ends the faults that are due, or all of them.
    fn end_due(&mut self, all: bool) {
        let mut due = Vec::new();
        self.later.retain(|(at, fault)| {
            let is_due = all || *at <= now();
            if is_due {
                due.push(fault.clone());
            }
            !is_due
        });
        for fault in due {
            tell!("ends {fault:?}");
            match fault {
                Fault::Stop(server, memory) => {
                    judge(Judge::is_back);
                    let one = &mut self.servers[server];
                    one.machine.jump();
                    one.stop(64);
                    one.restart(memory);
                    self.delete_strangers(server);
                    if memory != Memory::All {
                        self.forgets(server);
                    }
                    if memory == Memory::Nothing && !self.plan.topology.shares_data() {
                        judge(|judge| judge.wiped(server));
                    }
                }
                Fault::Move(name, _) => self.finish_move(name),
                Fault::Inherit(server, next, is_back) => self.inherit(server, next, is_back),
                Fault::Hang(server) => {
                    self.servers[server].machine.jump();
                    self.servers[server].go_on();
                    self.servers[server].machine.run(1);
                }
                Fault::Deny(server, _) => self.servers[server].refuse(None),
                Fault::Kill(process) => self.processes[process] = self.start(process),
                Fault::Pause(process) if matches!(self.processes[process], Life::Paused(_)) => {
                    judge(|judge| judge.resumed(process));
                    self.turn(process, Life::Running);
                    if let Life::Running(running) = &self.processes[process] {
                        set_running(process);
                        running.machine.jump();
                    }
                }
                _ => {}
            }
        }
    }

    /// Tells the judge that a server has lost data.
    fn forgets(&self, server: usize) {
        for (at, shared) in self.plan.names.iter().enumerate() {
            let is_there = match &self.sentinels {
                Some(sentinels) => !sentinels.is_replica(server),
                None if self.cluster.is_some() => self.keeper(at) == Some(server),
                None => shared.client == server && shared.kind != Kind::Red,
            };
            if is_there {
                judge(|judge| judge.server_forgot(at));
            }
        }
    }

    fn turn(&mut self, process: usize, into: fn(Running) -> Life) {
        let before = std::mem::replace(&mut self.processes[process], Life::Killed);
        if let Life::Running(running) | Life::Paused(running) = before {
            self.processes[process] = into(running);
        }
    }

    fn kill(&mut self, process: usize, span: u64) {
        if matches!(self.processes[process], Life::Killed) {
            return;
        }
        self.network.cut(Some(process), None, 64);
        let killed = std::mem::replace(&mut self.processes[process], Life::Killed);
        // A killed process runs no code, so nothing is dropped.
        std::mem::forget(killed);
        judge(|judge| judge.killed(process));
        self.later.push((now() + span, Fault::Kill(process)));
    }

    /// Closes the clients of all processes.
    fn close(&mut self) {
        tell!("all close");
        for life in &self.processes {
            if let Life::Running(running) = life
                && let Some(process) = running.process.get()
            {
                let process = process.clone();
                running.going.store(1, Ordering::Relaxed);
                running.machine.handle().spawn(async move {
                    if process.plan.abandons {
                        process.abandon().await;
                    }
                    for client in &process.clients {
                        client.close().await;
                    }
                    process.going.store(0, Ordering::Relaxed);
                });
            }
        }
        let until = now() + 20_000;
        while now() < until && !self.is_done() {
            self.tick();
        }
        let until = now() + 3_000;
        while now() < until {
            self.tick();
        }
        for (number, server) in self.servers.iter().enumerate() {
            let keys = server.ask(&["KEYS", "*"]);
            judge(|judge| judge.left_over(number, &keys));
        }
        self.forsake();
        for (number, life) in self.processes.iter().enumerate() {
            if let Life::Running(running) = life {
                judge(|judge| judge.tasks_left(number, running.machine.tasks()));
            }
        }
    }

    /// Has all processes drop the calls that they have abandoned.
    fn forsake(&mut self) {
        if !self.plan.abandons {
            return;
        }
        for life in &self.processes {
            if let Life::Running(running) = life
                && let Some(process) = running.process.get()
            {
                let process = process.clone();
                running.machine.handle().spawn(async move {
                    process.forsake();
                });
            }
        }
        let until = now() + 100;
        while now() < until {
            self.tick();
        }
    }

    /// Has the numbers judged that processes count, unless some of their calls go on.
    fn count(&self, is_closed: bool) {
        for (number, life) in self.processes.iter().enumerate() {
            if let Life::Running(running) = life
                && running.going.load(Ordering::Relaxed) == 0
                && let Some(process) = running.process.get()
            {
                for client in &process.clients {
                    judge(|judge| judge.counts(number, &client.stats(), is_closed));
                }
            }
        }
    }

    /// Checks what is left on the servers.
    fn inspect(&mut self) {
        set_now(now() + QUIET);
        for (number, server) in self.servers.iter().enumerate() {
            let mut keys = Vec::new();
            let is_replica = self
                .sentinels
                .as_ref()
                .is_some_and(|all| all.is_replica(number));
            let pattern = if is_replica { "" } else { "*" };
            for key in server.ask(&["KEYS", pattern]) {
                let ttl = server.ask(&["PTTL", &key]).concat().parse().unwrap_or(-1);
                let value = server.ask(&["GET", &key]).concat();
                keys.push((key, ttl, value));
            }
            let mut channels = server.ask(&["PUBSUB", "CHANNELS"]);
            channels.extend(server.ask(&["PUBSUB", "SHARDCHANNELS"]));
            judge(|judge| judge.end(number, &keys, &channels));
        }
    }
}

fn name(fault: &Fault) -> &'static str {
    match fault {
        Fault::Slow(..) => "slow",
        Fault::Hold(..) => "held",
        Fault::HalfOpen(..) => "half-open",
        Fault::Cut(..) => "cut",
        Fault::Refuse(..) => "refused",
        Fault::Mute(..) => "mute",
        Fault::Tear(..) => "torn",
        Fault::Stop(_, Memory::All) => "restart",
        Fault::Stop(_, Memory::Earlier) => "restart-earlier",
        Fault::Stop(_, Memory::Nothing) => "restart-empty",
        Fault::Hang(_) => "hang",
        Fault::Forget(_) => "scripts",
        Fault::Deny(..) => "denied",
        Fault::Clock(_, 0..) => "clock-ahead",
        Fault::Clock(..) => "clock-back",
        Fault::Kill(_) => "kill",
        Fault::Pause(_) => "pause",
        Fault::Failover(_) => "failover",
        Fault::Move(..) => "slot",
        Fault::Inherit(..) => "slots",
    }
}
