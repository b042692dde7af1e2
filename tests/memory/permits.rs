//! Permits: of calls that nobody polls, and of clients that close in the midst of a call.

use std::pin::Pin;
use std::task::{Context, Waker};

use redlatch::{Client, ErrorKind, MemoryServer};
use tokio::time::{sleep, timeout};

use crate::support::probe::{kind, millis, secs};
use crate::two;

/// More than a call needs until it waits to be told of a permit, or has it.
const POLLS: usize = 8;

/// Polls a future once. Returns whether it is ready. What it returns is dropped.
fn is_ready<F: Future>(future: &mut Pin<Box<F>>) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    future.as_mut().poll(&mut context).is_ready()
}

/// Polls a call `before` times while the only permit is out, `after` times once it is free, and then no more. Another
/// call of its process, or of another one, has the permit all the same, and so has the first one when it is polled
/// again.
macro_rules! unpolled_calls {
    ($semaphore:ident) => {
        let polls = (0..POLLS).flat_map(|before| (1..POLLS).map(move |after| (before, after)));
        for (before, after) in polls {
            let what = format!("polled {before} and {after} times");
            let (_server, client, other) = two().await;
            let [here, there] = [&client, &other].map(|client| client.$semaphore("s"));
            here.try_set_permits(1).await.unwrap();
            // From then on the server has the script, and one poll is enough for a grant.
            let held = there.acquire().await.unwrap();
            let mut unpolled = Box::pin(here.acquire());
            for _ in 0..before {
                assert!(!is_ready(&mut unpolled), "{what}");
                sleep(millis(1)).await;
            }
            held.release().await.unwrap();
            let mut has_ended = false;
            for _ in 0..after {
                has_ended = has_ended || is_ready(&mut unpolled);
                sleep(millis(1)).await;
            }
            if has_ended {
                continue;
            }
            let other = [&here, &there][(before + after) % 2];
            let next = timeout(secs(10), other.acquire()).await.expect(&what);
            next.unwrap().release().await.unwrap();
            let first = timeout(secs(10), unpolled).await.expect(&what).unwrap();
            assert_eq!(here.available_permits().await.unwrap(), 0, "{what}");
            first.release().await.unwrap();
            assert_eq!(here.available_permits().await.unwrap(), 1, "{what}");
        }
    };
}

#[tokio::test(start_paused = true)]
async fn single_attempt_whose_permit_was_given_back_while_nobody_polled_it_asks_again() {
    let (_server, client, _other) = two().await;
    let semaphore = client.semaphore("s");
    semaphore.try_set_permits(1).await.unwrap();
    semaphore.acquire().await.unwrap().release().await.unwrap();
    let mut unpolled = Box::pin(semaphore.try_acquire());
    assert!(!is_ready(&mut unpolled));
    sleep(secs(10)).await;
    let permit = unpolled.await.unwrap();
    permit.expect("free").release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn permits_of_a_call_that_nobody_polls_go_to_the_next_call() {
    unpolled_calls!(semaphore);
    unpolled_calls!(expirable_semaphore);
}

#[cfg(feature = "metrics")]
mod closing {
    use std::sync::{Arc, Mutex, mpsc};
    use std::thread;
    use std::time::Duration;

    use metrics::{
        Counter, Gauge, GaugeFn, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
    };
    use redlatch::{Client, MemoryServer};
    use tokio::runtime::Handle;

    use super::is_ready;
    use crate::support::probe::{millis, secs};

    /// Runs something once, when the client next changes a gauge. It does so in the midst of its calls.
    #[derive(Default)]
    struct Midst(Mutex<Option<Box<dyn FnOnce() + Send>>>);

    impl Midst {
        fn runs(&self, act: impl FnOnce() + Send + 'static) {
            *self.0.lock().unwrap() = Some(Box::new(act));
        }

        fn comes(&self) {
            let act = self.0.lock().unwrap().take();
            if let Some(act) = act {
                act();
            }
        }
    }

    impl GaugeFn for Midst {
        fn increment(&self, _: f64) {
            self.comes();
        }

        fn decrement(&self, _: f64) {
            self.comes();
        }

        fn set(&self, _: f64) {}
    }

    struct Gauges(Arc<Midst>);

    impl Recorder for Gauges {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
            Counter::noop()
        }

        fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::from_arc(self.0.clone())
        }

        fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
            Histogram::noop()
        }
    }

    /// Connects a client with something that runs in the midst of its calls.
    async fn connect(server: &MemoryServer, command_timeout: Duration) -> (Client, Arc<Midst>) {
        let midst = Arc::new(Midst::default());
        let recorder = Gauges(midst.clone());
        let installed = metrics::set_default_local_recorder(&recorder);
        let builder = Client::builder().config(server.config());
        let client = builder.command_timeout(command_timeout).build().await;
        drop(installed);
        (client.unwrap(), midst)
    }

    /// The client gives back what it has after the call has begun, and before the call asks. What it owes to a silent
    /// server keeps it from closing its connections meanwhile.
    #[tokio::test(flavor = "multi_thread")]
    async fn call_that_begins_while_its_client_closes_leaves_no_permit_taken() {
        let server = MemoryServer::new();
        let (client, midst) = connect(&server, secs(3)).await;
        let (other, _) = connect(&server, secs(30)).await;
        let semaphore = client.semaphore("s");
        semaphore.try_set_permits(2).await.unwrap();
        let held = semaphore.acquire().await.unwrap();
        server.stop_answering();
        let (closing, runtime) = (client.clone(), Handle::current());
        midst.runs(move || {
            let close = closing.clone();
            runtime.spawn(async move { close.close().await });
            let has_none = (0..10_000).any(|_| {
                thread::sleep(millis(1));
                format!("{closing:?}").contains("permits: 0,")
            });
            assert!(has_none, "it gives back what it has");
        });
        let mut call = Box::pin(semaphore.acquire());
        is_ready(&mut call);
        client.close().await;
        drop((call, held));
        server.resume();
        let free = other.semaphore("s").available_permits().await.unwrap();
        assert_eq!(free, 2);
    }

    /// The first gauge to change is that of the calls that wait, the second that of the permits.
    #[tokio::test]
    async fn recorder_that_looks_at_its_client_is_told_of_a_permit_under_no_mutex() {
        let server = MemoryServer::new();
        let (client, midst) = connect(&server, secs(30)).await;
        let semaphore = client.semaphore("s");
        semaphore.try_set_permits(1).await.unwrap();
        let (looking, then) = (client.clone(), midst.clone());
        let (tells, told) = mpsc::channel();
        let looks = move || {
            // On another thread, so that a mutex that is locked fails the test instead of stopping it.
            thread::spawn(move || tells.send(format!("{looking:?}")));
            let seen = told.recv_timeout(secs(10)).expect("nothing is locked");
            assert!(seen.contains("permits: 1,"), "{seen}");
        };
        midst.runs(move || then.runs(looks));
        semaphore.acquire().await.unwrap().release().await.unwrap();
        assert!(midst.0.lock().unwrap().is_none(), "it has looked");
    }

    /// The client closes when the permit is no longer among those that it has, and before the request for it is
    /// written.
    #[tokio::test(flavor = "multi_thread")]
    async fn permit_that_is_dropped_while_its_client_closes_is_given_back() {
        let server = MemoryServer::new();
        let (client, midst) = connect(&server, secs(30)).await;
        let (other, _) = connect(&server, secs(30)).await;
        let semaphore = client.semaphore("s");
        semaphore.try_set_permits(1).await.unwrap();
        let permit = semaphore.acquire().await.unwrap();
        let (closing, runtime) = (client.clone(), Handle::current());
        midst.runs(move || {
            let (closed, told) = mpsc::channel();
            runtime.spawn(async move {
                closing.close().await;
                closed.send(()).ok();
            });
            // By then, a client that owes nothing has closed. This one does not until the permit is given back.
            told.recv_timeout(millis(500)).ok();
        });
        drop(permit);
        client.close().await;
        let free = other.semaphore("s").available_permits().await.unwrap();
        assert_eq!(free, 1);
    }
}

/// The keys by which the server recognizes a late copy of a request are kept for two minutes.
#[tokio::test(start_paused = true)]
async fn request_about_permits_takes_no_longer_than_a_copy_of_it_is_recognized() {
    let server = MemoryServer::new();
    let builder = Client::builder().config(server.config());
    let client = builder.command_timeout(secs(600)).build().await.unwrap();
    let semaphore = client.expirable_semaphore("s");
    semaphore.try_set_permits(2).await.unwrap();
    let permit = semaphore.acquire().await.unwrap();
    server.stop_answering();
    let extended = timeout(secs(21), permit.extend(secs(60))).await;
    assert_eq!(kind(extended.unwrap()), ErrorKind::Timeout);
    let acquired = timeout(secs(21), semaphore.try_acquire()).await;
    assert_eq!(kind(acquired.unwrap().map(drop)), ErrorKind::Timeout);
}
