//! The functions that the attribute `locked` generates.
#![deny(
    unused_variables,
    reason = "so that a function whose attributes were lost does not compile"
)]

use std::fmt::Display;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::support::probe::{
    calls_of, eventually_attending, eventually_free, eventually_heard, millis, nothing_left,
    reset_calls, secs, soon,
};
use crate::support::{builder, eventually, start, start_two};
use redlatch::{Client, ErrorKind, FencingToken, Owner, locked};
use redlatch_testkit::Server;
use tokio::sync::oneshot;

/// The error of the functions here: one of the crate's, or one of their own.
#[derive(Debug)]
enum Failure {
    Lock(redlatch::Error),
    Busy(u64),
    Refused,
}

impl From<redlatch::Error> for Failure {
    fn from(error: redlatch::Error) -> Self {
        Self::Lock(error)
    }
}

impl Failure {
    fn kind(&self) -> Option<ErrorKind> {
        match self {
            Self::Lock(error) => Some(error.kind()),
            Self::Busy(_) | Self::Refused => None,
        }
    }
}

/// Signals that a body has begun, and lets it go on when the [`Keeper`] says so.
struct Gate {
    begun: oneshot::Sender<()>,
    go: oneshot::Receiver<()>,
}

/// The other side of a [`Gate`].
struct Keeper {
    begun: oneshot::Receiver<()>,
    go: oneshot::Sender<()>,
}

fn gate() -> (Gate, Keeper) {
    let (begin, begun) = oneshot::channel();
    let (let_go, go) = oneshot::channel();
    let gate = Gate { begun: begin, go };
    (gate, Keeper { begun, go: let_go })
}

impl Gate {
    async fn pass(self) {
        self.begun.send(()).expect("a keeper");
        // Without its keeper the gate never opens.
        if self.go.await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

#[locked(client = client, name = "order:{id}")]
async fn ship(client: &Client, id: u64, gate: Gate) -> Result<u64, Failure> {
    gate.pass().await;
    Ok(id)
}

#[tokio::test]
async fn body_runs_under_the_lock_that_its_arguments_name() {
    let (server, client, other) = start_two().await;
    let (gate, keeper) = gate();
    let shipping = tokio::spawn({
        let client = client.clone();
        async move { ship(&client, 42, gate).await }
    });
    soon(keeper.begun).await.unwrap();
    assert!(other.lock("order:42").try_lock().await.unwrap().is_none());
    assert!(!other.lock("order:43").is_locked().await.unwrap());
    assert_eq!(
        other
            .lock("order:42")
            .holder()
            .await
            .unwrap()
            .unwrap()
            .hold_count(),
        1
    );

    keeper.go.send(()).unwrap();
    assert_eq!(soon(shipping).await.unwrap().unwrap(), 42);
    // The lock was released before the function returned.
    assert!(!server.connection().exists("order:42"));
    nothing_left(&server, [&client, &other]).await;
}

#[tokio::test]
async fn caller_waits_for_as_long_as_it_takes_and_is_woken_by_the_release() {
    let (server, client, other) = start_two().await;
    let held = other.lock("order:1").lock().await.unwrap();
    let (gate, keeper) = gate();
    keeper.go.send(()).unwrap();
    let shipping = tokio::spawn({
        let client = client.clone();
        async move { ship(&client, 1, gate).await }
    });
    eventually_heard(&server, "order:1", 1).await;
    held.unlock().await.unwrap();
    // The poll cap is five seconds, so only a message can be this quick.
    let shipped = tokio::time::timeout(secs(3), shipping).await;
    assert_eq!(shipped.unwrap().unwrap().unwrap(), 1);
    nothing_left(&server, [&client, &other]).await;
}

#[derive(Clone, Copy)]
enum End {
    Tail,
    Return,
    Question,
    Panic,
}

#[locked(client = client, name = "end")]
async fn end(client: &Client, end: End) -> Result<u8, Failure> {
    match end {
        End::Tail => {}
        End::Return => return Ok(1),
        End::Question => Err(Failure::Refused)?,
        End::Panic => panic!("as the test wants it"),
    }
    Ok(0)
}

#[tokio::test]
async fn lock_is_free_after_every_end_of_the_body() {
    let (server, client) = start().await;
    assert_eq!(end(&client, End::Tail).await.unwrap(), 0);
    assert!(!server.connection().exists("end"));
    assert_eq!(end(&client, End::Return).await.unwrap(), 1);
    assert!(!server.connection().exists("end"));
    let failure = end(&client, End::Question).await.unwrap_err();
    assert!(matches!(failure, Failure::Refused));
    assert!(!server.connection().exists("end"));

    let panicking = tokio::spawn({
        let client = client.clone();
        async move { end(&client, End::Panic).await }
    });
    assert!(soon(panicking).await.unwrap_err().is_panic());
    eventually_free(&server, "end").await;
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn lock_is_free_after_the_future_was_dropped() {
    let (server, client) = start().await;
    let (gate, keeper) = gate();
    let shipping = tokio::spawn({
        let client = client.clone();
        async move { ship(&client, 7, gate).await }
    });
    soon(keeper.begun).await.unwrap();
    shipping.abort();
    assert!(soon(shipping).await.unwrap_err().is_cancelled());
    eventually_free(&server, "order:7").await;
    nothing_left(&server, [&client]).await;
}

/// Counts how often it was dropped.
struct Dropped(Arc<AtomicU32>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[locked(client = client, name = "work", lease = "300ms")]
async fn work_for_ever(
    client: &Client,
    begun: oneshot::Sender<()>,
    work: Dropped,
) -> Result<(), Failure> {
    begun.send(()).expect("a receiver");
    std::future::pending::<()>().await;
    drop(work);
    Ok(())
}

#[tokio::test]
async fn lost_lease_drops_the_body_and_is_told_in_the_error_of_the_function() {
    let (server, client) = start().await;
    let drops = Arc::new(AtomicU32::new(0));
    let (begin, mut begun) = oneshot::channel();
    let started = Instant::now();
    let failure = soon(work_for_ever(&client, begin, Dropped(drops.clone()))).await;
    assert_eq!(failure.unwrap_err().kind(), Some(ErrorKind::LeaseLost));
    begun.try_recv().expect("the body ran");
    assert_eq!(drops.load(Ordering::Relaxed), 1);
    // The lease is the one in the attribute, and is not renewed.
    assert!(started.elapsed() >= millis(200));
    nothing_left(&server, [&client]).await;
}

#[locked(client = client, name = "long")]
async fn long(client: &Client, gate: Gate) -> Result<(), redlatch::Error> {
    gate.pass().await;
    Ok(())
}

#[tokio::test]
async fn without_a_lease_the_lock_is_renewed_for_as_long_as_the_body_runs() {
    let server = Server::start();
    let lease = millis(300);
    let client = builder(server.url())
        .watchdog_lease(lease)
        .build()
        .await
        .unwrap();
    let (gate, keeper) = gate();
    let running = tokio::spawn({
        let client = client.clone();
        async move { long(&client, gate).await }
    });
    soon(keeper.begun).await.unwrap();
    let mut probe = server.connection();
    reset_calls(&mut probe);
    eventually("renewals for three leases", async || {
        calls_of(&mut probe, "evalsha") >= 9
    })
    .await;
    assert!(probe.exists("long"));
    keeper.go.send(()).unwrap();
    soon(running).await.unwrap().unwrap();
    nothing_left(&server, [&client]).await;
}

#[locked(client = client, name = "job:{id}", wait = "400ms", busy = Err(Failure::Busy(id)))]
async fn job(client: &Client, id: u64, runs: &AtomicU32) -> Result<&'static str, Failure> {
    runs.fetch_add(1, Ordering::Relaxed);
    Ok("done")
}

#[tokio::test]
async fn wait_ends_in_what_busy_says_and_the_body_never_runs() {
    let (server, client, other) = start_two().await;
    let runs = AtomicU32::new(0);
    let held = other.lock("job:3").lock().await.unwrap();
    let started = Instant::now();
    let failure = soon(job(&client, 3, &runs)).await.unwrap_err();
    assert!(matches!(failure, Failure::Busy(3)));
    assert!(started.elapsed() >= millis(400));
    assert!(started.elapsed() < secs(5));
    assert_eq!(runs.load(Ordering::Relaxed), 0);

    held.unlock().await.unwrap();
    assert_eq!(job(&client, 3, &runs).await.unwrap(), "done");
    assert_eq!(runs.load(Ordering::Relaxed), 1);
    nothing_left(&server, [&client, &other]).await;
}

#[locked(client = client, name = "once", wait = "0s", busy = Ok(None))]
async fn once(client: &Client, value: String) -> Result<Option<String>, redlatch::Error> {
    Ok(Some(value))
}

#[tokio::test]
async fn wait_of_zero_is_one_attempt_and_busy_may_be_a_success() {
    let (server, client, other) = start_two().await;
    let held = other.lock("once").lock().await.unwrap();
    let mut probe = server.connection();
    reset_calls(&mut probe);
    assert_eq!(once(&client, "a".to_owned()).await.unwrap(), None);
    assert_eq!(calls_of(&mut probe, "evalsha"), 1);
    held.unlock().await.unwrap();
    assert_eq!(once(&client, "b".to_owned()).await.unwrap().unwrap(), "b");
    nothing_left(&server, [&client, &other]).await;
}

#[tokio::test]
async fn error_of_the_acquisition_is_told_in_the_error_of_the_function() {
    let (server, client) = start().await;
    server.connection().command(&["SET", "order:9", "a string"]);
    let (gate, keeper) = gate();
    let failure = soon(ship(&client, 9, gate)).await.unwrap_err();
    assert_eq!(failure.kind(), Some(ErrorKind::WrongKind));
    assert!(keeper.begun.await.is_err(), "the body did not run");

    server.connection().command(&["SET", "job:9", "a string"]);
    let runs = AtomicU32::new(0);
    let failure = soon(job(&client, 9, &runs)).await.unwrap_err();
    assert_eq!(failure.kind(), Some(ErrorKind::WrongKind));
    assert_eq!(runs.load(Ordering::Relaxed), 0);
}

#[locked(client = client, name = "account:{id}")]
async fn transfer(client: &Client, id: u64) -> Result<[u64; 3], redlatch::Error> {
    let account = client.lock(format!("account:{id}"));
    let before = account.hold_count().await?;
    let inside = book(client, id).await?;
    Ok([before, inside, account.hold_count().await?])
}

#[locked(client = client, name = "account:{number}", wait = "0s", busy = Ok(0))]
async fn book(client: &Client, number: u64) -> Result<u64, redlatch::Error> {
    client.lock(format!("account:{number}")).hold_count().await
}

#[tokio::test]
async fn function_that_calls_another_on_the_same_name_takes_the_lock_again() {
    let (server, client) = start().await;
    assert_eq!(soon(transfer(&client, 5)).await.unwrap(), [1, 2, 1]);
    nothing_left(&server, [&client]).await;
}

/// A service of the usual form.
struct Orders {
    client: Client,
    shipped: Vec<String>,
}

impl Orders {
    /// Locks by a field of `self` instead of an argument.
    #[locked(client = self.client, name = format!("shelf:{}", self.shipped.len()))]
    async fn shelf(&self) -> Result<bool, redlatch::Error> {
        let shelf = format!("shelf:{}", self.shipped.len());
        self.client.lock(shelf).is_held().await
    }

    #[locked(client = self.client, name = "orders")]
    async fn push(&mut self, mut order: String) -> Result<&mut String, Failure> {
        order.push('!');
        self.shipped.push(order);
        self.shipped.last_mut().ok_or(Failure::Refused)
    }

    #[locked(client = self.client, name = "orders")]
    async fn push_both(&mut self, one: &str, two: &str) -> Result<usize, Failure> {
        self.push(one.to_owned()).await?;
        self.push(two.to_owned()).await?.push('!');
        Ok(self.shipped.len())
    }

    #[locked(client = self.client, name = "orders")]
    async fn into_shipped(self) -> Result<Vec<String>, Failure> {
        Ok(self.shipped)
    }
}

#[tokio::test]
async fn methods_are_locked_and_may_call_each_other() {
    let (server, client) = start().await;
    let mut orders = Orders {
        client: client.clone(),
        shipped: Vec::new(),
    };
    assert!(orders.shelf().await.unwrap());
    orders.push("a".to_owned()).await.unwrap().push('?');
    assert_eq!(soon(orders.push_both("b", "c")).await.unwrap(), 3);
    assert!(orders.shelf().await.unwrap());
    assert_eq!(orders.into_shipped().await.unwrap(), ["a!?", "b!", "c!!"]);
    nothing_left(&server, [&client]).await;
}

trait Ship {
    async fn ship(&mut self, order: &str) -> Result<usize, Failure>;
}

impl Ship for Orders {
    #[locked(client = self.client, name = "trait:{order}")]
    async fn ship(&mut self, order: &str) -> Result<usize, Failure> {
        assert!(self.client.lock(format!("trait:{order}")).is_held().await?);
        self.shipped.push(order.to_owned());
        Ok(self.shipped.len())
    }
}

#[tokio::test]
async fn method_of_a_trait_is_locked() {
    let (server, client) = start().await;
    let mut orders = Orders {
        client: client.clone(),
        shipped: Vec::new(),
    };
    assert_eq!(orders.ship("a").await.unwrap(), 1);
    nothing_left(&server, [&client]).await;
}

/// Uses names that the generated code around the body may have too, patterns, lifetimes, generics and `impl`.
#[locked(client = body, name = "{lock}:{guard}:{owner}", owner = &Owner::named(owner), wait = "1s", busy = busy)]
async fn everything<'a, T, const N: usize>(
    body: &Client,
    lock: impl Display + Clone,
    guard: &'a str,
    owner: &str,
    client: &'a [T; N],
    (error, mut outcome): (u8, Vec<u8>),
    busy: Result<(&'a T, Vec<u8>), Box<dyn std::error::Error>>,
) -> Result<(&'a T, Vec<u8>), Box<dyn std::error::Error>>
where
    T: PartialEq + 'a,
{
    drop(busy);
    outcome.push(error);
    if outcome.len() > 3 {
        return Err(Box::new(std::fmt::Error));
    }
    let never = format!("{lock}:{guard}:{owner}");
    let holder = body.lock(never).holder().await?;
    let holder = holder.ok_or("nobody holds it")?;
    assert_eq!(holder.owner(), owner);
    Ok((client.first().ok_or("empty")?, outcome))
}

#[tokio::test]
async fn arguments_may_be_of_every_form() {
    let (server, client) = start().await;
    let letters = ['x', 'y'];
    let call = |numbers: Vec<u8>| {
        let busy = Err("busy".into());
        everything(&client, 'l', "g", "o", &letters, (3, numbers), busy)
    };
    let (letter, numbers) = call(vec![1, 2]).await.unwrap();
    assert_eq!((letter, numbers), (&'x', vec![1, 2, 3]));
    let failure = call(vec![0; 3]).await.unwrap_err();
    assert!(failure.is::<std::fmt::Error>());
    let held = client.lock("l:g:o").lock().await.unwrap();
    assert_eq!(call(vec![]).await.unwrap_err().to_string(), "busy");
    held.unlock().await.unwrap();
    nothing_left(&server, [&client]).await;
}

#[locked(client = client, name = "iterator")]
async fn squares(client: &Client, to: u32) -> Result<impl Iterator<Item = u32> + use<>, Failure> {
    Ok((0..to).map(|n| n * n))
}

#[locked(client = client, name = "local")]
async fn on_this_thread(client: &Client, count: Rc<u32>) -> Result<u32, Failure> {
    tokio::task::yield_now().await;
    Ok(*count + 1)
}

#[tokio::test]
async fn future_is_send_if_the_body_is_and_the_result_may_be_an_impl() {
    fn sent<F: Future + Send>(future: F) -> F {
        future
    }
    let (server, client) = start().await;
    let squares = sent(squares(&client, 4)).await.unwrap();
    assert_eq!(squares.collect::<Vec<_>>(), [0, 1, 4, 9]);
    assert_eq!(on_this_thread(&client, Rc::new(1)).await.unwrap(), 2);
    nothing_left(&server, [&client]).await;
}

#[locked(client = client, name = "request", owner = Owner::named(request), wait = "0s", busy = Ok(0))]
async fn for_request(client: &Client, request: &str) -> Result<u64, redlatch::Error> {
    let lock = client.lock("request").owned_by(&Owner::named(request));
    lock.hold_count().await
}

#[tokio::test]
async fn owner_is_the_request_that_the_attribute_names() {
    let (server, client, other) = start_two().await;
    let lock = other.lock("request").owned_by(&Owner::named("req-7"));
    let held = lock.lock().await.unwrap();
    assert_eq!(for_request(&client, "req-8").await.unwrap(), 0);
    assert_eq!(for_request(&client, "req-7").await.unwrap(), 2);
    assert_eq!(lock.hold_count().await.unwrap(), 1);
    held.unlock().await.unwrap();
    nothing_left(&server, [&client, &other]).await;
}

#[locked(client = client, name = "spin", kind = spin, attempts = 2, busy = Err(Failure::Busy(2)))]
async fn spin_twice(client: &Client) -> Result<(), Failure> {
    Ok(())
}

#[locked(client = client, name = "spin", kind = spin, attempts = 1000, wait = "200ms", busy = Err(Failure::Busy(0)))]
async fn spin_a_while(client: &Client) -> Result<(), Failure> {
    Ok(())
}

#[tokio::test]
async fn spin_lock_gives_up_after_its_attempts_or_its_wait() {
    let (server, client, other) = start_two().await;
    let held = other.spin_lock("spin").lock().await.unwrap();
    let mut probe = server.connection();
    eventually_attending(&mut probe, &other).await;
    reset_calls(&mut probe);
    let failure = soon(spin_twice(&client)).await.unwrap_err();
    assert!(matches!(failure, Failure::Busy(2)));
    assert_eq!(calls_of(&mut probe, "evalsha"), 2);
    let failure = soon(spin_a_while(&client)).await.unwrap_err();
    assert!(matches!(failure, Failure::Busy(0)));
    assert_eq!(calls_of(&mut probe, "subscribe"), 0);
    held.unlock().await.unwrap();
    spin_twice(&client).await.unwrap();
    nothing_left(&server, [&client, &other]).await;
}

#[locked(client = client, name = "queued", kind = fair)]
async fn queued(client: &Client) -> Result<(), Failure> {
    Ok(())
}

#[tokio::test]
async fn caller_of_a_fair_lock_stands_in_the_queue_on_the_server() {
    let (server, client, other) = start_two().await;
    let held = other.fair_lock("queued").lock().await.unwrap();
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { queued(&client).await }
    });
    let mut probe = server.connection();
    eventually("a place in the queue", async || {
        probe.exists("redisson_lock_queue:{queued}")
    })
    .await;
    held.unlock().await.unwrap();
    soon(waiting).await.unwrap().unwrap();
    nothing_left(&server, [&client, &other]).await;
}

#[locked(client = client, name = "fenced", kind = fenced, guard = held)]
async fn token(client: &Client) -> Result<FencingToken, Failure> {
    held.verify().await?;
    Ok(held.token())
}

#[tokio::test]
async fn body_reads_the_token_from_its_guard() {
    let (server, client) = start().await;
    let first = token(&client).await.unwrap();
    assert!(token(&client).await.unwrap() > first);
    eventually_free(&server, "fenced").await;
}

#[locked(client = client, name = "plain", kind = plain, wait = "0s", busy = Ok(false))]
async fn plain(client: &Client, gate: Gate) -> Result<bool, Failure> {
    gate.pass().await;
    Ok(true)
}

#[locked(client = client, name = "page", kind = read, wait = "0s", busy = Ok(false))]
async fn read(client: &Client, gate: Gate) -> Result<bool, Failure> {
    gate.pass().await;
    Ok(true)
}

#[locked(client = client, name = "page", kind = write, wait = "0s", busy = Ok(false))]
async fn write(client: &Client, gate: Gate) -> Result<bool, Failure> {
    gate.pass().await;
    Ok(true)
}

/// Returns a gate that is open.
fn open() -> Gate {
    let (gate, keeper) = gate();
    keeper.go.send(()).expect("a gate");
    std::mem::forget(keeper.begun);
    gate
}

#[tokio::test]
async fn plain_lock_is_a_string() {
    let (server, client) = start().await;
    let (gate, keeper) = gate();
    let held = tokio::spawn({
        let client = client.clone();
        async move { plain(&client, gate).await }
    });
    soon(keeper.begun).await.unwrap();
    let shape = server.connection().command(&["TYPE", "plain"]).text();
    assert_eq!(shape, "string");
    keeper.go.send(()).unwrap();
    assert!(soon(held).await.unwrap().unwrap());
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn readers_run_together_and_a_writer_alone() {
    let (server, client, other) = start_two().await;
    let (gate_of_reader, reader) = gate();
    let reading = tokio::spawn({
        let client = client.clone();
        async move { read(&client, gate_of_reader).await }
    });
    soon(reader.begun).await.unwrap();
    assert!(read(&other, open()).await.unwrap());
    assert!(!write(&other, open()).await.unwrap());
    reader.go.send(()).unwrap();
    assert!(soon(reading).await.unwrap().unwrap());

    let (gate_of_writer, writer) = gate();
    let writing = tokio::spawn({
        let client = client.clone();
        async move { write(&client, gate_of_writer).await }
    });
    soon(writer.begun).await.unwrap();
    assert!(!read(&other, open()).await.unwrap());
    assert!(!write(&other, open()).await.unwrap());
    writer.go.send(()).unwrap();
    assert!(soon(writing).await.unwrap().unwrap());
    nothing_left(&server, [&client, &other]).await;
}

/// Loses the lock while it runs, and nobody notices yet.
#[locked(client = client, name = "stolen")]
async fn robbed(client: &Client, server: &Server, end: Result<(), Failure>) -> Result<(), Failure> {
    server.connection().command(&["DEL", "stolen"]);
    end
}

#[tokio::test]
async fn lock_that_was_lost_by_the_end_of_the_body_is_an_error() {
    let (server, client) = start().await;
    let failure = soon(robbed(&client, &server, Ok(()))).await.unwrap_err();
    assert_eq!(failure.kind(), Some(ErrorKind::LeaseLost));
    // The body's own error takes precedence.
    let failure = soon(robbed(&client, &server, Err(Failure::Refused))).await;
    assert!(matches!(failure.unwrap_err(), Failure::Refused));
    nothing_left(&server, [&client]).await;
}

/// Carries documentation and lint attributes of its own.
#[locked(client = client, name = "quiet", lease = "1h")]
#[allow(unused_variables, reason = "the attributes of a function stay with it")]
#[must_use]
async fn quiet(client: &Client, unused: u8) -> Result<Option<Duration>, redlatch::Error> {
    #![allow(unused_mut, reason = "inner attributes too")]
    let mut lock = client.lock("quiet");
    lock.remaining_lease().await
}

#[tokio::test]
async fn lease_is_what_the_attribute_says() {
    let (server, client) = start().await;
    let left = quiet(&client, 0).await.unwrap().unwrap();
    assert!(left > secs(3_500) && left <= secs(3_600), "{left:?}");
    nothing_left(&server, [&client]).await;
}

#[locked(client = client, name = "deep", wait = "1s", busy = Ok(()))]
async fn with_a_kilobyte(client: &Client) -> Result<(), redlatch::Error> {
    let kilobyte = [1_u8; 1024];
    tokio::task::yield_now().await;
    assert_eq!(kilobyte.len(), 1024);
    Ok(())
}

#[locked(client = client, name = "deep")]
async fn nested_once(client: &Client) -> Result<(), redlatch::Error> {
    with_a_kilobyte(client).await
}

#[locked(client = client, name = "deep")]
async fn nested_twice(client: &Client) -> Result<(), redlatch::Error> {
    nested_once(client).await
}

#[tokio::test]
async fn nesting_does_not_double_the_size_of_the_future() {
    let (server, client) = start().await;
    let inner = size_of_val(&with_a_kilobyte(&client));
    let outer = nested_twice(&client);
    assert!(
        size_of_val(&outer) < 2 * inner,
        "{} of {inner}",
        size_of_val(&outer)
    );
    outer.await.unwrap();
    nothing_left(&server, [&client]).await;
}
