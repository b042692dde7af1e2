//! `redlatch run`: a command under a lock.

use std::error::Error as StdError;
use std::io;
use std::iter::successors;
use std::mem;
use std::time::Duration;

use nix::sys::signal::{Signal, raise};
use redlatch::{
    Client, ClientBuilder, Error, ErrorKind, FencedGuard, Lease as LeaseOfHold, LockGuard, Owner,
};
use serde_json::json;
use tokio::time::error::Elapsed;
use tokio::time::{Instant, sleep};

use crate::args::{Kind, Lease, Run, Server};
use crate::command::{Running, Started};
use crate::exit::{self, Ending, Failure};
use crate::job;
use crate::notes::Notes;
use crate::progress;
use crate::server;
use crate::signals::Signals;
use crate::span;
use crate::warden::Warden;

/// The pause between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(500);
/// A wait that nobody sees the end of: a century.
const EVER: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
/// What a server says that takes nobody now and may do so later. The last is what a replica says of its role, which the
/// sentinels still name as the primary.
const OF_THE_MOMENT: [&str; 4] = ["ERR max number of clients", "LOADING", "BUSY", "slave"];
/// What the system says if no name server has answered: glibc and BSD, and musl. Its error has no kind.
const UNRESOLVED: [&str; 2] = ["Temporary failure in name resolution", "Try again"];

/// The guard of a lock of any kind.
#[derive(Debug)]
pub(crate) enum Guard {
    Lock(LockGuard),
    Fenced(FencedGuard),
}

impl Guard {
    pub(crate) fn lease(&self) -> &LeaseOfHold {
        match self {
            Self::Lock(guard) => guard,
            Self::Fenced(guard) => guard,
        }
    }

    pub(crate) async fn unlock(self) -> Result<(), Error> {
        match self {
            Self::Lock(guard) => guard.unlock().await,
            Self::Fenced(guard) => guard.unlock().await,
        }
    }
}

/// Why there is no guard.
enum NoGuard {
    Busy,
    Signal(Signal),
}

/// Runs the command under the lock.
pub(crate) async fn run(server: &Server, args: Run, notes: &Notes) -> Result<Ending, Failure> {
    if args
        .command
        .first()
        .is_none_or(|program| program.is_empty())
    {
        return Err(Failure::usage("the command behind -- is empty"));
    }
    let mut signals =
        Signals::listen().map_err(|error| Failure::system("cannot take signals", &error))?;
    let mut builder = server::builder(server)?;
    if let Lease::Renewed(lease) = args.lease {
        builder = builder.watchdog_lease(lease);
    }
    if let Some(label) = &args.label {
        builder = builder.label(label);
    }
    let started = Instant::now();
    // A signal ends the attempts to connect, too.
    let client = tokio::select! {
        client = connect(&builder, &args, notes) => client?,
        signal = ending(&mut signals) => return Ok(Ending::Signal(signal)),
    };
    let outcome = under_lock(&client, &args, started, notes, &mut signals).await;
    // Leaves the queue, and sends a release that was not answered once more.
    tokio::select! {
        () = client.close() => outcome,
        signal = ending(&mut signals) => Ok(Ending::Signal(signal)),
    }
}

/// Connects. While the server is away, tries again for as long as the lock is waited for.
async fn connect(builder: &ClientBuilder, args: &Run, notes: &Notes) -> Result<Client, Error> {
    let started = Instant::now();
    let mut is_told = false;
    loop {
        let error = match builder.clone().build().await {
            Ok(client) => return Ok(client),
            Err(error) => error,
        };
        let is_over = args
            .wait
            .is_some_and(|wait| started.elapsed() + PAUSE >= wait);
        if is_over || !is_away(&error) {
            return Err(error);
        }
        if !mem::replace(&mut is_told, true) {
            let text = format!("waiting for {}: {error}", args.name);
            notes.note("waiting", &text, json!({ "name": args.name, "lock": null }));
        }
        sleep(PAUSE).await;
    }
}

/// Whether an attempt to connect failed for a reason that goes by itself. Everything else is there the next time, too.
fn is_away(error: &Error) -> bool {
    // One side speaks TLS and the other does not: the error asks the user.
    let is_unclear = error.to_string().contains("TLS?");
    let mut causes = successors(error.source(), |cause| (*cause).source());
    error.kind() == ErrorKind::Backend && !is_unclear && causes.any(passes)
}

/// Whether this is a cause that goes by itself.
fn passes(cause: &(dyn StdError + 'static)) -> bool {
    let said = cause.to_string();
    match cause.downcast_ref::<io::Error>().map(io::Error::kind) {
        Some(
            io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::TimedOut
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable
            // Of a unix socket: the server has not made it yet.
            | io::ErrorKind::NotFound,
        ) => true,
        Some(_) => UNRESOLVED.iter().any(|words| said.ends_with(words)),
        None => cause.is::<Elapsed>() || OF_THE_MOMENT.iter().any(|words| said.starts_with(words)),
    }
}

async fn under_lock(
    client: &Client,
    args: &Run,
    started: Instant,
    notes: &Notes,
    signals: &mut Signals,
) -> Result<Ending, Failure> {
    let guard = match wait(client, args, started, notes, signals).await? {
        Ok(guard) => guard,
        Err(NoGuard::Signal(signal)) => return Ok(Ending::Signal(signal)),
        Err(NoGuard::Busy) => {
            let text = match args.wait.filter(|wait| !wait.is_zero()) {
                Some(wait) => format!("{} is still held after {}", args.name, span::show(wait)),
                None => format!("{} is held by somebody else", args.name),
            };
            return Err(Failure::new(exit::BUSY, text));
        }
    };
    // Before the command, so that there is never a command without a warden.
    let warden = tokio::select! {
        biased;
        // The guard that is dropped writes its release.
        signal = ending(signals) => return Ok(Ending::Signal(signal)),
        warden = Warden::start(args, notes) => warden,
    };
    let started = match Started::new(client, &guard, args, warden) {
        Ok(started) => started,
        Err(failure) => {
            guard.unlock().await.ok();
            return Err(failure);
        }
    };
    let mut running = Running::new(started, guard, args, notes);
    // If it fails, the warden ends the command.
    let status = running.go_on(signals).await?;
    tokio::select! {
        // First, since it dismisses the warden.
        biased;
        ended = running.release(status) => ended,
        // The lock stays held until its lease ends.
        signal = ending(signals) => Ok(Ending::Signal(signal)),
    }
}

/// Waits for the lock, and says so meanwhile.
async fn wait(
    client: &Client,
    args: &Run,
    started: Instant,
    notes: &Notes,
    signals: &mut Signals,
) -> Result<Result<Guard, NoGuard>, Failure> {
    let taken = tokio::select! {
        taken = acquire(client, args, started) => Ok(taken),
        signal = ending(signals) => Err(NoGuard::Signal(signal)),
        never = progress::show(client, args, notes) => match never {},
    };
    if notes.are_live() && !args.quiet {
        notes.clear();
    }
    match taken {
        Ok(taken) => Ok(taken?.ok_or(NoGuard::Busy)),
        Err(ended) => Ok(Err(ended)),
    }
}

/// Waits for a signal that ends `redlatch` as long as there is no command.
async fn ending(signals: &mut Signals) -> Signal {
    loop {
        match signals.next().await {
            Signal::SIGTSTP if job::can_be_continued() => {
                raise(Signal::SIGSTOP).ok();
            }
            Signal::SIGTSTP | Signal::SIGCONT => {}
            Signal::SIGCHLD => job::reap(&[]),
            Signal::SIGUSR1 | Signal::SIGUSR2 => {}
            signal => return signal,
        }
    }
}

async fn acquire(client: &Client, args: &Run, started: Instant) -> Result<Option<Guard>, Error> {
    let owner = Owner::unique();
    // With a limit, a wait goes on through outages.
    let left = args.wait.unwrap_or(EVER).saturating_sub(started.elapsed());
    macro_rules! acquire {
        ($lock:expr, $guard:path) => {{
            let mut lock = $lock.owned_by(&owner);
            if let Lease::Fixed(lease) = args.lease {
                lock = lock.lease(lease);
            }
            let taken = lock.try_lock_for(left).await;
            taken.map(|guard| guard.map($guard))
        }};
    }
    let name = &args.name;
    match args.kind {
        Kind::Reentrant => acquire!(client.lock(name), Guard::Lock),
        Kind::Fair => acquire!(client.fair_lock(name), Guard::Lock),
        Kind::Fenced => acquire!(client.fenced_lock(name), Guard::Fenced),
        Kind::Spin => acquire!(client.spin_lock(name), Guard::Lock),
        Kind::Plain => acquire!(client.plain_lock(name), Guard::Lock),
        Kind::Read => acquire!(client.read_write_lock(name).reader(), Guard::Lock),
        Kind::Write => acquire!(client.read_write_lock(name).writer(), Guard::Lock),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_server_that_does_not_answer_goes_by_and_a_name_that_is_none_does_not() {
        for (says, expected) in [
            ("Temporary failure in name resolution", true),
            ("Try again", true),
            ("Name or service not known", false),
        ] {
            let failed = format!("failed to lookup address information: {says}");
            assert_eq!(passes(&io::Error::other(failed)), expected, "{says}");
        }
    }
}
