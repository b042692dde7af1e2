//! What the tasks of a process do.

mod body;
mod counters;
mod holds;
mod jobs;
mod nested;
mod terms;

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redlatch::{Client, Config, Error, Owner};
use tokio::time::sleep;

use crate::care::cared;
use crate::judge::{judge, tell};
use crate::locks::Guard;
use crate::network::{Dialer, Network, host};
use crate::plan::{Act, Ask, Care, Kind, Plan, Section, Topology};
use crate::sentinels::SERVICE;
use crate::server::PORT;
use crate::world::is_over;

/// A guard with the numbers of its holds.
struct Held {
    guard: Arc<Guard>,
    holds: Vec<u64>,
    owner: Owner,
}

/// A call of which nothing becomes.
type Abandoned = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The state that the tasks of one process share.
pub struct Process {
    pub number: usize,
    pub plan: Arc<Plan>,
    pub clients: Vec<Client>,
    inbox: Mutex<Vec<Held>>,
    /// Calls that nobody polls any more.
    abandoned: Mutex<Vec<Abandoned>>,
    /// How many tasks have not ended.
    pub going: Arc<AtomicUsize>,
}

/// Connects, and then starts the tasks.
pub async fn start(
    number: usize,
    plan: Arc<Plan>,
    network: Network,
    going: Arc<AtomicUsize>,
    started: impl FnOnce(Arc<Process>),
) {
    let mut clients = Vec::new();
    while clients.len() < plan.topology.clients() {
        if is_over() {
            going.store(0, Ordering::Relaxed);
            return;
        }
        match connect(number, clients.len(), &plan, &network).await {
            Ok(client) => clients.push(client),
            Err(error) => {
                tell!("p{number} does not connect: {error}");
                judge(|judge| judge.unconnected(number));
                sleep(Duration::from_millis(200)).await;
            }
        }
    }
    if !plan.processes[number].is_lazy {
        judge(|judge| judge.connected(number));
    }
    let process = Arc::new(Process {
        number,
        plan: plan.clone(),
        clients,
        inbox: Mutex::default(),
        abandoned: Mutex::default(),
        going: going.clone(),
    });
    started(process.clone());
    if number == 0 {
        process.close_latches().await;
    }
    let tasks = &plan.processes[number].tasks;
    going.store(tasks.len(), Ordering::Relaxed);
    for task in 0..tasks.len() {
        let process = process.clone();
        tokio::spawn(async move {
            Task {
                process: &process,
                task,
            }
            .run()
            .await;
            process.going.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

async fn connect(
    process: usize,
    client: usize,
    plan: &Plan,
    network: &Network,
) -> Result<Client, Error> {
    let dialer = Dialer {
        network: network.clone(),
        process,
    };
    let config = match plan.topology {
        Topology::Sentinels => {
            let sentinels = plan.topology.servers()..plan.topology.hosts();
            Config::sentinels(SERVICE, sentinels.map(|number| (host(number), PORT)))
        }
        Topology::Cluster => {
            Config::cluster((0..plan.topology.servers()).map(|number| (host(number), PORT)))
        }
        Topology::Single | Topology::Independent => Config::server(host(client), PORT),
    };
    let millis = Duration::from_millis;
    let builder = Client::builder()
        .config(config.connector(dialer))
        .label(format!("p{process}"))
        .watchdog_lease(millis(plan.watchdog))
        .command_timeout(millis(plan.command_timeout))
        .poll_cap(millis(plan.poll_cap))
        .max_hold(millis(plan.max_hold))
        .local_handoff_limit(plan.handoffs);
    match plan.processes[process].is_lazy {
        true => builder.connect_lazily().build().await,
        false => builder.build().await,
    }
}

impl Process {
    async fn close_latches(&self) {
        for (at, shared) in self.plan.names.iter().enumerate() {
            if shared.kind == Kind::Latch {
                let latch = self.clients[0].latch(&shared.name);
                if latch.try_set_count(shared.total).await.is_ok() {
                    judge(|judge| judge.set(at));
                }
            }
        }
    }

    fn abandoned(&self) -> MutexGuard<'_, Vec<Abandoned>> {
        let abandoned = self.abandoned.lock();
        abandoned.unwrap_or_else(PoisonError::into_inner)
    }

    fn inbox(&self) -> MutexGuard<'_, Vec<Held>> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One task.
struct Task<'a> {
    process: &'a Process,
    task: usize,
}

impl Task<'_> {
    fn id(&self) -> (usize, usize) {
        (self.process.number, self.task)
    }

    async fn run(&self) {
        for step in &self.process.plan.processes[self.process.number].tasks[self.task] {
            if step.pause > 0 {
                sleep(Duration::from_millis(step.pause)).await;
            }
            if is_over() {
                break;
            }
            self.empty_inbox().await;
            match &step.act {
                Act::Section(section) => match self.process.plan.names[section.names[0]].kind {
                    Kind::Counted => self.permits(section).await,
                    Kind::Expirable => self.expirable_permits(section).await,
                    _ => self.section(section).await,
                },
                Act::Run(section) => self.under(section).await,
                Act::Lead(section) => self.lead(section).await,
                Act::Job(attempt) => self.job(attempt).await,
                Act::Nest(at, work) => self.nest(*at, *work).await,
                Act::Look(at) => self.look(*at).await,
                Act::Force(at) => self.force(*at).await,
                Act::Adopt => self.adopt().await,
                Act::CountDown(at) => self.count_down(*at).await,
                Act::Await(at, wait) => self.await_latch(*at, *wait).await,
            }
        }
        self.empty_inbox().await;
    }

    async fn empty_inbox(&self) {
        loop {
            let sent = self.process.inbox().pop();
            let Some(held) = sent else {
                break;
            };
            self.unlock(held, Care::default()).await;
        }
    }

    /// Makes a call, unless its future is dropped.
    async fn call<T>(
        &self,
        what: String,
        limit: Option<u64>,
        names: &[usize],
        care: Care,
        future: impl Future<Output = Result<T, Error>>,
        told: impl FnOnce(&T) -> &'static str,
    ) -> Option<Result<T, Error>> {
        let id = judge(|judge| judge.call(self.id(), what, limit, names));
        let result = cared(id, care, future).await;
        judge(|judge| match &result {
            None => judge.returned(id, "dropped", None),
            Some(Ok(value)) => judge.returned(id, told(value), None),
            Some(Err(error)) => judge.returned(id, &error.to_string(), Some(error)),
        });
        result
    }

    /// Makes a call that asks for no name, and awaits it.
    async fn just<T>(
        &self,
        what: String,
        limit: Option<u64>,
        future: impl Future<Output = Result<T, Error>>,
        told: impl FnOnce(&T) -> &'static str,
    ) -> Option<Result<T, Error>> {
        self.call(what, limit, &[], Care::default(), future, told)
            .await
    }

    /// Returns how long a call with this wait may take.
    fn limit(&self, ask: Ask, names: &[usize]) -> Option<u64> {
        let plan = &self.process.plan;
        let rounds = names.len() as u64;
        match ask {
            Ask::Wait => None,
            Ask::Once => Some(rounds * plan.command_timeout),
            Ask::For(wait) => Some(wait + rounds * plan.command_timeout),
        }
    }

    fn shown(&self, section: &Section) -> String {
        let names = section.names.iter();
        let names: Vec<_> = names
            .map(|at| &*self.process.plan.names[*at].name)
            .collect();
        let side = if section.reads { " reads" } else { "" };
        format!(
            "{}{side} {:?} by {:?} lease {:?}",
            names.join("+"),
            section.ask,
            section.by,
            section.lease
        )
    }
}
