//! A process that leads or runs a job: this test program, started once more.

use std::env;
use std::future::pending;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use redlatch::{Client, Error, ErrorKind};
use redlatch_testkit::{Connection, Server};
use rustix::time::{ClockId, clock_gettime};
use tokio::time::sleep;

use crate::items;
use crate::support::builder;
use crate::support::probe::{millis, secs};
use crate::support::scene::patient;
use crate::support::stop;

/// The environment variable that makes the test program a worker. Its value is the server's port and the part.
const PART: &str = "REDLATCH_TEST_LEADERS";
/// The lease of each worker's client.
pub(crate) const LEASE: Duration = Duration::from_millis(1_500);
/// How often a leader shows that it is at work.
const BEAT: Duration = Duration::from_millis(5);

/// Something that a worker did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) what: String,
    /// The fencing token, or 0.
    pub(crate) token: u64,
    /// `CLOCK_MONOTONIC`: the same clock in all processes of a machine.
    pub(crate) at: Duration,
}

/// Returns the time on the clock of all events.
pub(crate) fn now() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Waits for a line on the standard input, or for its end.
pub(crate) fn read_line() {
    io::stdin().read_line(&mut String::new()).ok();
}

pub(crate) fn say(what: &str, token: u64) {
    let mut out = io::stdout().lock();
    writeln!(out, "@{what} {token} {}", now().as_nanos()).expect("somebody reads");
    out.flush().expect("somebody reads");
}

impl FromStr for Event {
    type Err = ();

    fn from_str(line: &str) -> Result<Self, ()> {
        let words: Vec<&str> = line.strip_prefix('@').ok_or(())?.split(' ').collect();
        let [what, token, at] = words[..] else {
            return Err(());
        };
        Ok(Self {
            what: what.to_owned(),
            token: token.parse().map_err(drop)?,
            at: Duration::from_nanos(at.parse().map_err(drop)?),
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a process of its own, started by the other tests here"]
async fn worker() {
    let part = env::var(PART).expect("started by a test");
    // The test harness leaves its own line unfinished.
    println!();
    let words: Vec<&str> = part.split(' ').collect();
    let [port, ref part @ ..] = words[..] else {
        panic!("not a part: {part}");
    };
    let builder = builder(format!("redis://127.0.0.1:{port}"));
    let builder = match *part {
        // Its items are counted, and none of them is to be lost on a loaded machine.
        ["items"] => patient(builder).command_timeout(secs(10)),
        _ => builder.watchdog_lease(LEASE),
    };
    let client = builder.build().await.expect("the server is up");
    match *part {
        ["lead", identity] => lead(&client, identity).await,
        ["job", within, job] => {
            let within = Duration::from_millis(within.parse().expect("milliseconds"));
            run_job(&client, within, job).await;
        }
        ["items"] => {
            let redis = Connection::open(port.parse().expect("a port"));
            items::go_through(&client, redis).await;
        }
        ref words => panic!("not a part: {words:?}"),
    }
    client.close().await;
}

/// Leads until the standard input has a line.
async fn lead(client: &Client, identity: &str) {
    let election = client.leader("k").identity(identity);
    let told = tokio::task::spawn_blocking(read_line);
    let leading = election.lead(async |term| {
        let token = term.token().get();
        say("begins", token);
        let _ends = Ends(token);
        loop {
            sleep(BEAT).await;
            say("beats", token);
        }
    });
    tokio::select! {
        led = leading => led.expect("nothing that a campaign does not endure"),
        _ = told => say("leaves", 0),
    }
}

/// Says that a term has ended, however it ends.
struct Ends(u64);

impl Drop for Ends {
    fn drop(&mut self) {
        say("ends", self.0);
    }
}

async fn run_job(client: &Client, within: Duration, job: &str) {
    let once = client.job("k", within);
    let ran = loop {
        let ran = once.execute(async |run| -> Result<u64, Error> {
            say("begins", run.token().get());
            match job {
                "hang" => pending().await,
                took => {
                    sleep(Duration::from_millis(took.parse().expect("milliseconds"))).await;
                    Ok(run.token().get())
                }
            }
        });
        match ran.await {
            // On a loaded machine. The job was not begun.
            Err(error) if error.kind() == ErrorKind::Timeout => {}
            ran => break ran,
        }
    };
    match ran {
        Ok(Some(token)) => say("ran", token),
        Ok(None) => say("none", 0),
        Err(error) => say(&format!("{:?}", error.kind()), 0),
    }
    // The client stays until the process is told, or killed.
    read_line();
}

/// A worker as seen by the test. Killed on drop.
#[derive(Debug)]
pub(crate) struct Worker {
    child: Child,
    events: Receiver<Event>,
}

impl Worker {
    pub(crate) fn start(server: &Server, part: &str) -> Self {
        let mut child = Command::new(env::current_exe().expect("this program has a path"))
            .args(["worker::worker", "--exact", "--ignored", "--nocapture"])
            .env(PART, format!("{} {part}", server.port()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start this program once more");
        let output = child.stdout.take().expect("a pipe");
        let (sender, events) = channel();
        thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            for event in lines.filter_map(|line| line.parse().ok()) {
                if sender.send(event).is_err() {
                    return;
                }
            }
        });
        Self { child, events }
    }

    /// Waits for the next event of this kind.
    #[track_caller]
    pub(crate) fn event(&self, what: &str) -> Event {
        self.within(secs(20), what)
            .unwrap_or_else(|| panic!("no {what:?} from {self:?}"))
    }

    /// Waits until the worker says how its job ended.
    #[track_caller]
    pub(crate) fn outcome(&self) -> String {
        loop {
            match self.events.recv_timeout(secs(20)) {
                Ok(event) if event.what == "begins" => {}
                Ok(event) => return event.what,
                Err(error) => panic!("{error} for {self:?}"),
            }
        }
    }

    /// Waits for the next event of this kind, for at most this time.
    pub(crate) fn within(&self, limit: Duration, what: &str) -> Option<Event> {
        let end = Instant::now() + limit;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let event = self.events.recv_timeout(left).ok()?;
            if event.what == what {
                return Some(event);
            }
        }
    }

    /// Waits for the next event of this kind. Returns it, and all events before it.
    #[track_caller]
    pub(crate) fn until(&self, what: &str) -> (Vec<Event>, Event) {
        let mut before = Vec::new();
        loop {
            match self.events.recv_timeout(secs(20)) {
                Ok(event) if event.what == what => return (before, event),
                Ok(event) => before.push(event),
                Err(error) => panic!("{error} for {what:?} from {self:?}"),
            }
        }
    }

    /// Returns all events so far.
    pub(crate) fn events(&self) -> Vec<Event> {
        // What the worker has written may not have been read yet.
        thread::sleep(millis(50));
        self.events.try_iter().collect()
    }

    /// Kills the process with `SIGKILL`. Returns when.
    pub(crate) fn kill(&mut self) -> Duration {
        let at = now();
        self.child.kill().expect("kill the worker");
        self.child.wait().expect("the worker ends");
        at
    }

    /// Stops the process, and returns when it has stopped.
    pub(crate) fn pause(&self) {
        stop::pause(&self.child);
    }

    /// Lets the process continue. Returns when.
    pub(crate) fn resume(&self) -> Duration {
        let at = now();
        stop::resume(&self.child);
        at
    }

    /// Tells the worker to end, and waits for that. Returns all of its events that were not taken.
    #[track_caller]
    pub(crate) fn finish(mut self) -> Vec<Event> {
        writeln!(self.child.stdin.as_mut().expect("a pipe")).expect("the worker listens");
        let status = self.child.wait().expect("the worker ends");
        assert!(status.success(), "{status}");
        self.events.iter().collect()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
