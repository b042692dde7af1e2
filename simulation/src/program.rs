//! What the tasks of a process do.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use redlatch::{Client, Config, Error, Owner};
use tokio::time::{sleep, timeout};

use crate::judge::{judge, tell};
use crate::locks::{Guard, Lock};
use crate::machine::now;
use crate::network::{Dialer, Network};
use crate::plan::{Act, Ask, By, Care, Ending, Kind, Plan, Section};
use crate::world::is_over;

/// A guard, with the numbers of its holds.
struct Held {
    guard: Arc<Guard>,
    holds: Vec<u64>,
    owner: Owner,
}

/// What the tasks of one process share.
pub struct Process {
    pub number: usize,
    pub plan: Arc<Plan>,
    pub clients: Vec<Client>,
    inbox: Mutex<Vec<Held>>,
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
    while clients.len() < plan.servers {
        if is_over() {
            going.store(0, Ordering::Relaxed);
            return;
        }
        match connect(number, clients.len(), &plan, &network).await {
            Ok(client) => clients.push(client),
            Err(error) => {
                tell!("p{number} does not connect: {error}");
                sleep(Duration::from_millis(200)).await;
            }
        }
    }
    let process = Arc::new(Process {
        number,
        plan: plan.clone(),
        clients,
        inbox: Mutex::default(),
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
    server: usize,
    plan: &Plan,
    network: &Network,
) -> Result<Client, Error> {
    let dialer = Dialer {
        network: network.clone(),
        process,
        server,
    };
    let millis = Duration::from_millis;
    let builder = Client::builder()
        .config(Config::server(format!("server-{server}"), 6379).connector(dialer))
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

    fn inbox(&self) -> std::sync::MutexGuard<'_, Vec<Held>> {
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
        waits: &[usize],
        care: Care,
        future: impl Future<Output = Result<T, Error>>,
        told: impl FnOnce(&T) -> &'static str,
    ) -> Option<Result<T, Error>> {
        let id = judge(|judge| judge.call(self.id(), what, limit, waits));
        let result = cared(id, care, future).await;
        judge(|judge| match &result {
            None => judge.returned(id, "dropped", None),
            Some(Ok(value)) => judge.returned(id, told(value), None),
            Some(Err(error)) => judge.returned(id, &error.to_string(), Some(error)),
        });
        result
    }

    /// Returns how long a call with this wait may take.
    fn limit(&self, ask: Ask, names: &[usize]) -> Option<u64> {
        let plan = &self.process.plan;
        // The first call of a handle for a RedLock asks its servers who they are.
        let rounds = match plan.names[names[0]].kind {
            Kind::Red => 2,
            _ => names.len() as u64,
        };
        match ask {
            Ask::Wait => None,
            Ask::Once => Some(rounds * plan.command_timeout),
            Ask::For(wait) => Some(wait + rounds * plan.command_timeout),
        }
    }

    fn owner(by: By) -> Owner {
        match by {
            By::Task => Owner::current(),
            By::Unique => Owner::unique(),
            By::Named(number) => Owner::named(format!("owner-{number}")),
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

    async fn section(&self, section: &Section) {
        let owner = Self::owner(section.by);
        let lock = Lock::of(&self.process.plan, &self.process.clients, section, &owner);
        let mut levels = Vec::new();
        for level in 0..section.levels {
            let ask = if level == 0 { section.ask } else { Ask::Once };
            let waits = if ask == Ask::Once {
                &[][..]
            } else {
                &section.names
            };
            let care = if level == 0 {
                section.care
            } else {
                Care::default()
            };
            let limit = self.limit(ask, &section.names);
            let told = |guard: &Option<Guard>| if guard.is_some() { "granted" } else { "busy" };
            let asked = self.call(
                format!("lock {}", self.shown(section)),
                limit,
                waits,
                care,
                lock.ask(ask),
                told,
            );
            match asked.await {
                Some(Ok(Some(guard))) => levels.push(self.held(section, &owner, guard)),
                None if ask == Ask::Once => {
                    judge(|judge| section.names.iter().for_each(|name| judge.haunt(*name)));
                }
                _ => {}
            }
            if levels.len() as u32 != level + 1 {
                break;
            }
        }
        let Some(last) = levels.last() else {
            return;
        };
        self.work(section, last).await;
        while let Some(held) = levels.pop() {
            self.part(section, held).await;
        }
    }

    fn held(&self, section: &Section, owner: &Owner, guard: Guard) -> Held {
        let guard = Arc::new(guard);
        let holds = section.names.iter().map(|name| {
            judge(|judge| judge.granted(self.id(), *name, section.reads, owner, Some(&guard)))
        });
        let holds = holds.collect();
        let owner = owner.clone();
        Held {
            guard,
            holds,
            owner,
        }
    }

    /// Works under a lock, until that is lost.
    async fn work(&self, section: &Section, held: &Held) {
        let guard = &held.guard;
        let plan = &self.process.plan;
        let limit = Some(2 * plan.command_timeout * section.names.len() as u64);
        if let Some(lease) = section.extend {
            let what = format!("extend {} by {lease}", self.shown(section));
            self.call(
                what,
                limit,
                &[],
                Care::default(),
                guard.extend(lease),
                |()| "done",
            )
            .await;
        }
        if section.verifies {
            let what = format!("verify {}", self.shown(section));
            self.call(
                what,
                limit,
                &[],
                Care::default(),
                guard.verify(),
                |()| "done",
            )
            .await;
        }
        if section.work == 0 {
            return;
        }
        let mut left = guard.remaining();
        let mut lost = pin!(guard.lost());
        let work = Duration::from_millis(section.work);
        let mut worked = pin!(sleep(work));
        let reason = poll_fn(|context| {
            if let Poll::Ready(reason) = lost.as_mut().poll(context) {
                return Poll::Ready(Some(reason));
            }
            left = guard.remaining();
            worked.as_mut().poll(context).map(|()| None)
        });
        let mut reason = reason.await;
        if reason.is_none() && guard.is_lost() {
            reason = timeout(Duration::from_millis(3), lost).await.ok();
            if reason.is_none() {
                judge(|judge| judge.untold_loss(self.id(), section.names[0]));
            }
        }
        if let Some(reason) = reason {
            judge(|judge| judge.told_of_loss(self.id(), &held.holds, left, reason));
        }
    }

    async fn part(&self, section: &Section, held: Held) {
        match section.ending {
            Ending::Unlock => self.unlock(held, Care::default()).await,
            Ending::Unfinished(polls) => {
                let dropped = Some((polls, true));
                self.unlock(
                    held,
                    Care {
                        dropped,
                        unpolled: None,
                    },
                )
                .await;
            }
            Ending::Drop => {
                tell!(
                    "p{}.{} drops {}",
                    self.id().0,
                    self.id().1,
                    self.shown(section)
                );
                let guard = self.parted(held).0;
                judge(|judge| section.names.iter().for_each(|name| judge.haunt(*name)));
                drop(guard);
            }
            Ending::Forget => {
                tell!(
                    "p{}.{} forgets {}",
                    self.id().0,
                    self.id().1,
                    self.shown(section)
                );
                let owner = held.owner.clone();
                let guard = self.parted(held).0;
                judge(|judge| {
                    section
                        .names
                        .iter()
                        .for_each(|name| judge.forgotten(*name, &owner));
                });
                std::mem::forget(guard);
            }
            Ending::Sent => self.process.inbox().push(held),
            Ending::Detached => {
                let guard = self.parted(held).0;
                match guard.map(Guard::detach) {
                    Some(Ok(owner)) => {
                        tell!(
                            "p{}.{} leaves {}",
                            self.id().0,
                            self.id().1,
                            self.shown(section)
                        );
                        judge(|judge| judge.detached(section.names[0], owner, self.process.number));
                    }
                    other => drop(other),
                }
            }
        }
    }

    /// Takes a guard out of the judge's hands.
    fn parted(&self, held: Held) -> (Option<Guard>, Vec<crate::judge::Parted>) {
        let parted = held
            .holds
            .iter()
            .filter_map(|hold| judge(|judge| judge.parted(*hold)));
        let parted = parted.collect();
        (Arc::into_inner(held.guard), parted)
    }

    async fn unlock(&self, held: Held, care: Care) {
        let (guard, parted) = self.parted(held);
        let Some(guard) = guard else {
            return;
        };
        let limit = 4 * self.process.plan.command_timeout * parted.len() as u64;
        let called = self.call(
            "unlock".to_owned(),
            Some(limit),
            &[],
            care,
            guard.unlock(),
            |()| "done",
        );
        let result = called.await;
        judge(|judge| match &result {
            Some(result) => judge.unlocked(self.id(), &parted, result),
            None => parted.iter().for_each(|parted| judge.left(parted)),
        });
    }

    async fn under(&self, section: &Section) {
        let owner = Self::owner(section.by);
        let lock = Lock::of(&self.process.plan, &self.process.clients, section, &owner);
        let wait = match section.ask {
            Ask::For(wait) => wait,
            _ => 0,
        };
        let limit = self.limit(Ask::For(wait), &section.names);
        let limit = limit.map(|limit| {
            limit
                + section.work
                + 4 * self.process.plan.command_timeout * section.names.len() as u64
        });
        let parted = Mutex::new(Vec::new());
        let work = async {
            let bodies: Vec<_> = section
                .names
                .iter()
                .map(|name| {
                    let hold =
                        judge(|judge| judge.granted(self.id(), *name, section.reads, &owner, None));
                    Body {
                        hold,
                        parted: &parted,
                    }
                })
                .collect();
            sleep(Duration::from_millis(section.work)).await;
            drop(bodies);
        };
        let what = format!("run under {}", self.shown(section));
        let told = |ran: &bool| if *ran { "ran" } else { "busy" };
        // What runs drops what it has when the lock is lost, if it is polled.
        let care = Care {
            unpolled: None,
            ..section.care
        };
        let result = self
            .call(what, limit, &[], care, lock.run(wait, work), told)
            .await;
        let parted = parted.into_inner().unwrap_or_else(PoisonError::into_inner);
        judge(|judge| match &result {
            Some(Ok(_)) => judge.unlocked(self.id(), &parted, &Ok(())),
            _ => section.names.iter().for_each(|name| judge.haunt(*name)),
        });
    }

    fn reading(&self, at: usize) -> Section {
        Section {
            names: vec![at],
            reads: false,
            ask: Ask::Once,
            by: By::Task,
            lease: None,
            levels: 1,
            permits: 1,
            work: 0,
            extend: None,
            verifies: false,
            ending: Ending::Unlock,
            care: Care::default(),
        }
    }

    async fn look(&self, at: usize) {
        let plan = &self.process.plan;
        let shared = &plan.names[at];
        let client = &self.process.clients[shared.server];
        let what = format!("look at {}", shared.name);
        let limit = Some(6 * plan.command_timeout);
        let care = Care::default();
        match shared.kind {
            Kind::Counted => {
                let semaphore = client.semaphore(&shared.name);
                self.call(
                    what,
                    limit,
                    &[],
                    care,
                    semaphore.available_permits(),
                    |_| "done",
                )
                .await;
            }
            Kind::Expirable => {
                let semaphore = client.expirable_semaphore(&shared.name);
                self.call(
                    what,
                    limit,
                    &[],
                    care,
                    semaphore.available_permits(),
                    |_| "done",
                )
                .await;
            }
            Kind::Latch | Kind::Red => {}
            _ => {
                let lock = Lock::of(
                    plan,
                    &self.process.clients,
                    &self.reading(at),
                    &Owner::current(),
                );
                self.call(what, limit, &[], care, lock.look(), |()| "done")
                    .await;
            }
        }
    }

    async fn force(&self, at: usize) {
        let plan = &self.process.plan;
        if matches!(
            plan.names[at].kind,
            Kind::Latch | Kind::Red | Kind::Counted | Kind::Expirable
        ) {
            return;
        }
        let lock = Lock::of(
            plan,
            &self.process.clients,
            &self.reading(at),
            &Owner::current(),
        );
        let what = format!("force {}", plan.names[at].name);
        judge(|judge| judge.forced(at));
        let limit = Some(2 * plan.command_timeout);
        self.call(what, limit, &[], Care::default(), lock.force(), |_| "done")
            .await;
        // A call whose answer was lost is carried out later.
        judge(|judge| judge.forced(at));
    }

    async fn adopt(&self) {
        let plan = &self.process.plan;
        let Some((at, owner)) = judge(|judge| judge.adoptable(self.process.number)) else {
            return;
        };
        let section = self.reading(at);
        let lock = Lock::of(plan, &self.process.clients, &section, &owner);
        let what = format!("adopt {} of {owner}", plan.names[at].name);
        judge(|judge| judge.forced(at));
        let limit = Some(2 * plan.command_timeout);
        let told = |guard: &Option<Guard>| if guard.is_some() { "adopted" } else { "gone" };
        let adopted = self
            .call(what, limit, &[], Care::default(), lock.adopt(), told)
            .await;
        judge(|judge| judge.forced(at));
        if let Some(Ok(Some(guard))) = adopted {
            let held = self.held(&section, &owner, guard);
            self.unlock(held, Care::default()).await;
        }
    }

    async fn count_down(&self, at: usize) {
        let plan = &self.process.plan;
        let shared = &plan.names[at];
        judge(|judge| judge.counted_down(at));
        let latch = self.process.clients[shared.server].latch(&shared.name);
        let what = format!("count {} down", shared.name);
        let limit = Some(plan.command_timeout);
        self.call(
            what,
            limit,
            &[],
            Care::default(),
            latch.count_down(),
            |()| "done",
        )
        .await;
    }

    async fn await_latch(&self, at: usize, wait: u64) {
        let plan = &self.process.plan;
        let shared = &plan.names[at];
        if !judge(|judge| judge.is_set(at)) {
            return;
        }
        let latch = self.process.clients[shared.server].latch(&shared.name);
        let limit = Some(wait + plan.command_timeout);
        let wait = Duration::from_millis(wait);
        let what = format!("wait for {}", shared.name);
        let told = |open: &bool| if *open { "open" } else { "closed" };
        let result = self
            .call(
                what,
                limit,
                &[],
                Care::default(),
                latch.wait_for(wait),
                told,
            )
            .await;
        if let Some(Ok(true)) = result {
            judge(|judge| judge.open(at));
        }
    }
}

macro_rules! permits {
    ($name:ident, $of:ident, $semaphore:ident => $with_lease:expr) => {
        impl Task<'_> {
            async fn $name(&self, section: &Section) {
                let at = section.names[0];
                let plan = &self.process.plan;
                let shared = &plan.names[at];
                let lease = section.lease.unwrap_or(3_000);
                let $semaphore = self.process.clients[shared.server].$of(&shared.name);
                let semaphore = $with_lease(lease);
                let what = format!("set {} to {}", shared.name, shared.total);
                let set = semaphore.try_set_permits(shared.total);
                let limit = Some(plan.command_timeout);
                self.call(what, limit, &[], Care::default(), set, |_| "done")
                    .await;
                let wanted = section.permits;
                let limit = self.limit(section.ask, &section.names);
                let began = now();
                let asked = async {
                    match section.ask {
                        Ask::Wait => semaphore.acquire_many(wanted).await.map(Some),
                        Ask::Once => semaphore.try_acquire_many(wanted).await,
                        Ask::For(wait) => {
                            let wait = Duration::from_millis(wait);
                            semaphore.try_acquire_many_for(wanted, wait).await
                        }
                    }
                };
                let what = format!("acquire {wanted} of {}", self.shown(section));
                let told = |permit: &Option<_>| if permit.is_some() { "granted" } else { "busy" };
                let waits = &section.names;
                let asked = self
                    .call(what, limit, waits, section.care, asked, told)
                    .await;
                let Some(Ok(Some(permit))) = asked else {
                    return;
                };
                let owner = Owner::unique();
                let until = match shared.kind {
                    Kind::Expirable => began + lease - lease / 100,
                    _ => u64::MAX,
                };
                let hold = judge(|judge| judge.permitted(self.id(), at, wanted, &owner, until));
                if section.work > 0 {
                    sleep(Duration::from_millis(section.work)).await;
                }
                judge(|judge| judge.parted(hold));
                match section.ending {
                    Ending::Drop | Ending::Sent => drop(permit),
                    Ending::Forget => {
                        judge(|judge| judge.forgotten(at, &owner));
                        permit.forget();
                    }
                    _ => {
                        let what = format!("release {}", shared.name);
                        let limit = Some(4 * plan.command_timeout);
                        let released = permit.release();
                        let released =
                            self.call(what, limit, &[], Care::default(), released, |()| "done");
                        if !matches!(released.await, Some(Ok(()))) {
                            judge(|judge| judge.haunt(at));
                        }
                    }
                }
            }
        }
    };
}

permits!(permits, semaphore, semaphore => |_: u64| semaphore);
permits!(expirable_permits, expirable_semaphore, semaphore => |lease| semaphore.lease(Duration::from_millis(lease)));

/// A future that runs under a lock.
struct Body<'a> {
    hold: u64,
    parted: &'a Mutex<Vec<crate::judge::Parted>>,
}

impl Drop for Body<'_> {
    fn drop(&mut self) {
        let parted = judge(|judge| judge.parted(self.hold));
        let mut all = self.parted.lock().unwrap_or_else(PoisonError::into_inner);
        all.extend(parted);
    }
}

/// Polls a future as is wanted. Returns `None` if it is dropped before it is done.
async fn cared<T>(call: u64, care: Care, future: impl Future<Output = T>) -> Option<T> {
    let mut future = Box::pin(future);
    let mut polls = 0;
    let mut unpolled = care.unpolled;
    loop {
        let step = poll_fn(|context| {
            if care.dropped.is_some_and(|(most, _)| polls >= most) {
                return Poll::Ready(Step::Dropped);
            }
            if let Some((at, span)) = unpolled
                && polls == at
            {
                unpolled = None;
                return Poll::Ready(Step::Unpolled(span));
            }
            polls += 1;
            match future.as_mut().poll(context) {
                Poll::Ready(done) => Poll::Ready(Step::Done(done)),
                Poll::Pending if care.dropped == Some((polls, true)) => Poll::Ready(Step::Dropped),
                Poll::Pending => Poll::Pending,
            }
        });
        match step.await {
            Step::Done(done) => return Some(done),
            Step::Dropped => return None,
            Step::Unpolled(span) => {
                sleep(Duration::from_millis(span)).await;
                judge(|judge| judge.unpolled(call, span));
            }
        }
    }
}

enum Step<T> {
    Done(T),
    Dropped,
    Unpolled(u64),
}
