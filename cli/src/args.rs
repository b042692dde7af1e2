//! The command line. Its help texts are the manual.

use std::ffi::OsString;
use std::io::{self, Write};
use std::time::Duration;

use clap::{CommandFactory, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::exit::Failure;
use crate::span;

/// Runs programs under a distributed lock on Redis or Valkey, and shows who holds which lock.
///
/// The command uses the same locks as Redisson and the Rust crate redlatch. Programs that use either of them, and this
/// command, take turns on a name.
#[derive(Debug, Parser)]
#[command(name = "redlatch", version, about, after_help = EXAMPLES, after_long_help = MANUAL)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) server: Server,

    /// Print JSON: an object for each line, or one list.
    ///
    /// Everything that `redlatch` itself writes to stderr is then JSON, too, including usage errors.
    #[arg(long, global = true, help_heading = "Output")]
    pub(crate) json: bool,

    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXAMPLES: &str = "\
Examples:
  redlatch run nightly-report -- ./report.sh     one at a time, over all machines
  redlatch run --wait 0 cleanup -- ./cleanup.sh  skip it if another machine is at it
  redlatch ls                                    which locks are held, by whom
  redlatch doctor                                what on this server would break a lock";

const MANUAL: &str = "\
Examples:
  One at a time, over all machines; wait for its turn:
    redlatch run nightly-report -- ./report.sh

  In a crontab: skip it if it still runs, here or on another machine:
    */5 * * * * REDIS_URL=redis://db1 redlatch run --wait 0 cleanup -- ./cleanup.sh

  Which locks are held, and by whom; who holds this one:
    redlatch ls 'nightly-*'
    redlatch inspect nightly-report

  What on this server would break a lock:
    redlatch doctor

Exit codes:
  0      done
  1      `inspect`: nobody holds it; `unlock`: nothing was released;
         `doctor`: something breaks a promise; `ls`: not every key could be read
  2      wrong use; nothing was done
  69     the server cannot be reached, or refuses; the name is in use for another
         kind of lock, or for something else; `run`: the lock was lost before the
         command was started; `ls`: one server of a cluster is away
  71     the operating system failed, for example to start a process
  75     `run`: somebody else holds the lock, and the time to wait is over
  76     `run`: the lock was lost while the command ran
  126    `run`: the command cannot be run
  127    `run`: there is no such command
  128+n  signal n ended the command of `run`, or `redlatch` itself. If INT, TERM
         or HUP ended `redlatch`, this is the code that a shell shows
  other  the exit code of the command of `run`

Servers:
  redis://user:password@host:6379/0           a single server; rediss:// for TLS
  redis+unix:///path?db=0                     a unix socket
  redis-sentinel://host:26379?sentinelServiceName=main
  redis-cluster://host:7000?node=other:7000
  Everyone on the machine can read the command line, so put a URL with a password into REDIS_URL.

Spans of time:
  A number with a unit: 250ms, 10s, 5m, 2h, 1d, or several of them: 1m30s.";

/// Which server, and how names become keys.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Server {
    /// The server's URL, such as redis://127.0.0.1:6379.
    #[arg(
        long,
        global = true,
        env = "REDIS_URL",
        hide_env_values = true,
        help_heading = "Server"
    )]
    pub(crate) url: Option<String>,

    /// Text put before every name, as `name_prefix` in the programs that share the locks.
    #[arg(
        long,
        global = true,
        value_name = "TEXT",
        value_parser = prefix,
        help_heading = "Server"
    )]
    pub(crate) prefix: Option<String>,

    /// How long one request to the server may take.
    #[arg(
        long,
        global = true,
        value_name = "SPAN",
        value_parser = timeout,
        allow_hyphen_values = true,
        default_value = "1s",
        help_heading = "Server"
    )]
    pub(crate) timeout: Duration,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(Run),
    Ls(Ls),
    Inspect(Inspect),
    Watch(Watch),
    Unlock(Unlock),
    Doctor(Doctor),
    Completions(Completions),
    /// Print the manual page, in roff.
    ///
    /// `redlatch man | man -l -` shows it.
    Man,
}

/// Run a command while holding a lock.
///
/// Acquires the lock, runs the command, and releases the lock when the command has ended. While the command runs,
/// `redlatch` renews the lock's lease. The environment of the command has the lock's name in REDLATCH_LOCK.
/// REDLATCH_OWNER has the owner that the server records; with `--kind plain`, it is in the middle of the server's
/// value. With `--kind fenced`, REDLATCH_TOKEN has the fencing token.
///
/// The lock is lost if its lease cannot be renewed in time, or if the server reports that the lock is gone or that
/// somebody else holds it. A lost connection alone loses nothing: until the lease ends, nobody else can acquire the
/// lock. When the lock is lost, and not earlier, `redlatch` ends the command. With `--on-loss term`, the command still
/// has the grace time to tidy up, and somebody else may already hold the lock then. Use `--on-loss kill` if the command
/// must not write anything after the loss. Use `--kind fenced` if the store can check fencing tokens: that is the only
/// complete protection.
///
/// To end the command, `redlatch` ends the process group that the command was started in, and the command itself,
/// whichever group it is in. On Linux, it also ends all descendants of the command, even those that `timeout`, `setsid`
/// or a shell with jobs has put into a group or session of their own. It does not end a daemon, which is a descendant
/// that has left the group and whose parent had ended before the loss. Nor does it end what another service runs for
/// the command, such as a container, or a process of another user.
///
/// If `redlatch` itself is killed, or is stopped for longer than the lease, a small process next to it, with the same
/// name, ends the command, unless `--on-loss ignore` was given. If this process is killed, `redlatch` starts another
/// one. The small process cannot end a command that runs as another user, and `pkill -KILL redlatch` kills both.
///
/// As the first process of a container, `redlatch` also waits for orphaned processes, as an init process does.
///
/// `redlatch` passes every INT, TERM, HUP and QUIT on to the process group that the command was started in, and to the
/// one that it is in now. It passes USR1 and USR2 on to the command alone. The command decides what a signal does: a
/// shell on a terminal ignores TERM, for example, and goes on with the lock. While no command runs, because `redlatch`
/// still waits for the lock or already releases it, these signals end `redlatch`. A second signal ends it at once, and
/// the lock is then free when its lease ends. If INT, TERM or HUP ends the command, the same signal ends `redlatch`.
///
/// On a terminal, the command is in the foreground. If Ctrl-C ends the command, it also ends a script around
/// `redlatch`. Ctrl-Z stops the command, `redlatch` and a script around it. If the lease ends before `fg`, the command
/// is ended. Where no shell could continue the command, as in a container, Ctrl-Z stops nothing, and a command that
/// waits for a terminal which somebody else has gets HUP. Children that the command leaves behind go on without the
/// lock, unless the lock was lost.
#[derive(Debug, clap::Args)]
#[command(after_help = RUN_EXAMPLES)]
pub(crate) struct Run {
    /// The name of the lock.
    #[arg(value_parser = name)]
    pub(crate) name: String,

    /// How long to wait for the lock; 0 makes one attempt. Without it, waits until the lock is free.
    ///
    /// The wait goes on while the server cannot be reached, even if it was never reached before. If the server refuses,
    /// the wait ends.
    #[arg(long, value_name = "SPAN", value_parser = span::parse, allow_hyphen_values = true)]
    pub(crate) wait: Option<Duration>,

    /// `renewed:SPAN` renews a lease of this length while the command runs; a SPAN alone is never renewed.
    ///
    /// If `redlatch` and its machine die, the lock is free after at most one lease. `renewed` means `renewed:30s`.
    #[arg(
        long,
        value_name = "LEASE",
        value_parser = lease,
        allow_hyphen_values = true,
        default_value = "renewed"
    )]
    pub(crate) lease: Lease,

    /// The kind of lock. All programs that share a name must use the same one.
    #[arg(long, value_enum, default_value_t = Kind::Reentrant)]
    pub(crate) kind: Kind,

    /// What happens to the command if the lock is lost.
    #[arg(long, value_enum, default_value_t = OnLoss::Term)]
    pub(crate) on_loss: OnLoss,

    /// How long the command may live after TERM, before it is killed.
    #[arg(long, value_name = "SPAN", value_parser = span::parse, allow_hyphen_values = true, default_value = "10s")]
    pub(crate) grace: Duration,

    /// What `ls` and `inspect` show in front of the owner, such as job@host; by default host/pid, of this `redlatch`.
    ///
    /// It has 1 to 64 characters, each a letter, a digit or one of `@`, `.`, `_`, `-` and `/`.
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,

    /// Do not say who holds the lock while waiting for it. What goes wrong is still said.
    #[arg(long, short)]
    pub(crate) quiet: bool,

    /// The command and its arguments, after `--`.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

const RUN_EXAMPLES: &str = "\
Examples:
  redlatch run nightly-report -- ./report.sh
  redlatch run --wait 0 cleanup -- ./cleanup.sh || [ $? = 75 ]
  redlatch run --kind fenced ledger -- sh -c './post --token \"$REDLATCH_TOKEN\"'
  redlatch run --kind read catalogue -- ./copy.sh
  redlatch run --lease renewed:5s --on-loss kill leader -- ./worker";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// Redisson's RLock, the usual one.
    Reentrant,
    /// Granted in order of arrival, over all processes.
    Fair,
    /// With a fencing token that rises with each hold.
    Fenced,
    /// Waiters poll, and need no messages.
    Spin,
    /// A string, as redis-py's Lock and redsync store it; needs no right to run scripts.
    Plain,
    /// The shared side of a read-write lock.
    Read,
    /// The exclusive side of a read-write lock.
    Write,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLoss {
    /// TERM at once, KILL after the grace time.
    Term,
    /// KILL at once.
    Kill,
    /// Nothing: the command goes on without the lock.
    Ignore,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lease {
    Renewed(Duration),
    Fixed(Duration),
}

impl Lease {
    pub(crate) fn span(self) -> Duration {
        match self {
            Self::Renewed(span) | Self::Fixed(span) => span,
        }
    }
}

fn lease(text: &str) -> Result<Lease, String> {
    let lease = mode(text)?;
    between(lease.span(), LEASES)?;
    Ok(lease)
}

fn mode(text: &str) -> Result<Lease, String> {
    match text.strip_prefix("renewed") {
        Some("") => Ok(Lease::Renewed(Duration::from_secs(30))),
        Some(rest) => {
            let span = rest.strip_prefix(':').ok_or_else(|| {
                format!("{text:?} is neither a span of time, nor renewed, nor renewed:SPAN")
            })?;
            span::parse(span).map(Lease::Renewed)
        }
        None => span::parse(text).map(Lease::Fixed),
    }
}

/// The longest name in bytes.
const LONGEST_NAME: usize = 1024;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// What the library accepts.
const LEASES: [Duration; 2] = [
    Duration::from_millis(50),
    Duration::from_secs(100 * 365 * 24 * 60 * 60),
];
const TIMEOUTS: [Duration; 2] = [Duration::from_millis(20), DAY];
const INTERVALS: [Duration; 2] = [Duration::from_millis(10), DAY];

fn name(text: &str) -> Result<String, String> {
    match text.len() {
        0 => Err("a name must not be empty".to_owned()),
        1..=LONGEST_NAME => Ok(text.to_owned()),
        long => Err(format!(
            "a name has at most {LONGEST_NAME} bytes, not {long}"
        )),
    }
}

fn prefix(text: &str) -> Result<String, String> {
    match text.len() {
        0..LONGEST_NAME => Ok(text.to_owned()),
        long => Err(format!(
            "a prefix and a name have at most {LONGEST_NAME} bytes, not {long}"
        )),
    }
}

fn timeout(text: &str) -> Result<Duration, String> {
    between(span::parse(text)?, TIMEOUTS)
}

fn interval(text: &str) -> Result<Duration, String> {
    between(span::parse(text)?, INTERVALS)
}

fn between(span: Duration, [least, most]: [Duration; 2]) -> Result<Duration, String> {
    match span < least || span > most {
        true => {
            let [least, most] = [least, most].map(span::show);
            Err(format!("it must be from {least} to {most}"))
        }
        false => Ok(span),
    }
}

/// List the locks that are held.
///
/// Scans every key of the server, or of each server of a cluster, without blocking the server. Lists locks of all kinds
/// that redlatch and Redisson write. A plain lock is listed only if redlatch chose its value, since other strings may
/// be anything; `inspect` shows any string that has a lease. Each line was true at some time during the scan.
///
/// Once a second, prints what it has found since, in alphabetical order, so a short list is sorted as a whole. Reports
/// on stderr what it could not read, and lists the rest. Exits with 1 if this user may not read a key, and with 69 if a
/// server of a cluster is away.
#[derive(Debug, clap::Args)]
pub(crate) struct Ls {
    /// Which names, with `*` for any text and `?` for any character. All names if it is left out.
    #[arg(default_value = "*", hide_default_value = true)]
    pub(crate) pattern: String,
}

/// Show who holds a lock, how many times, for how long, and who waits.
///
/// Exits with 1 if nobody holds the lock, even if something of it remains, such as its last token, or others wait for
/// it. Exits with 0 if the name is that of a semaphore or a latch.
#[derive(Debug, clap::Args)]
pub(crate) struct Inspect {
    /// The name of the lock.
    #[arg(value_parser = name)]
    pub(crate) name: String,
}

/// Print a line at each change of a lock, until interrupted.
///
/// Looks at the lock at each message on its channel, and once in each interval. Does not see a hold that begins and
/// ends between two looks.
#[derive(Debug, clap::Args)]
pub(crate) struct Watch {
    /// The name of the lock.
    #[arg(value_parser = name)]
    pub(crate) name: String,

    /// How often to look if no message arrives.
    #[arg(long, value_name = "SPAN", value_parser = interval, allow_hyphen_values = true, default_value = "1s")]
    pub(crate) interval: Duration,
}

/// Release a lock, whoever holds it.
///
/// The holder is not asked. It is told of the loss by a message; if none arrives, it learns of the loss at its next
/// renewal, or at the end of a fixed lease. It works on until then, perhaps together with the next holder. Unless
/// `--yes` is given, asks for confirmation, or refuses if there is no terminal to ask on. Releases the lock only from
/// the holders that the question named: if others hold it by then, they keep it. Exits with 1 if nothing was released,
/// because the lock was free, had changed hands, or the answer was no.
#[derive(Debug, clap::Args)]
pub(crate) struct Unlock {
    /// The name of the lock.
    #[arg(value_parser = name)]
    pub(crate) name: String,

    /// Confirms that you mean to release a lock of somebody else; this command has no other kind of unlock.
    #[arg(long, required = true)]
    pub(crate) force: bool,

    /// Do not ask.
    #[arg(long, short)]
    pub(crate) yes: bool,
}

/// Check whether the server keeps locks, and whether this user may use them.
///
/// Reads the settings of each server, tries each right that this user needs, then acquires and releases a lock of each
/// kind under a name of its own, `redlatch_doctor:..`, and sends itself a message. Each line says which promise is
/// broken, or which right is missing for which kind, and how to fix it. Exits with 1 if a promise is broken. A warning
/// does not count, such as a clock that is off, or a missing right that only a RedLock needs. If this user may use only
/// one prefix, pass it with `--prefix`.
#[derive(Debug, clap::Args)]
pub(crate) struct Doctor {
    /// Look only; do not try locks and messages.
    #[arg(long)]
    pub(crate) read_only: bool,
}

/// Print completions for a shell.
///
/// For bash: redlatch completions bash > /etc/bash_completion.d/redlatch
#[derive(Debug, clap::Args)]
pub(crate) struct Completions {
    /// Which shell.
    pub(crate) shell: Shell,
}

/// The command line of the process that ends the command if `redlatch` cannot. No help and no completion shows it.
#[derive(Debug, Parser)]
pub(crate) struct Warden {
    /// The name of the lock.
    #[arg(long)]
    pub(crate) name: String,
    #[arg(long)]
    pub(crate) json: bool,
    #[arg(long, value_enum)]
    pub(crate) on_loss: OnLoss,
    #[arg(long, value_parser = span::parse)]
    pub(crate) grace: Duration,
}

pub(crate) fn completions(shell: Shell) -> Result<u8, Failure> {
    let mut out = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "redlatch", &mut out);
    print(&out)
}

/// Prints the manual pages of the command and of its subcommands, one after the other.
pub(crate) fn man() -> Result<u8, Failure> {
    let mut command = Args::command();
    command.build();
    let mut out = Vec::new();
    let rendered = (|| {
        Man::new(command.clone()).render(&mut out)?;
        for sub in command.get_subcommands() {
            let man = Man::new(sub.clone());
            man.render_synopsis_section(&mut out)?;
            man.render_description_section(&mut out)?;
            man.render_options_section(&mut out)?;
            man.render_extra_section(&mut out)?;
        }
        io::Result::Ok(())
    })();
    rendered.map_err(|error| Failure::system("cannot write the manual", &error))?;
    print(&out)
}

/// Writes to stdout. A reader that has gone away, such as `head`, is no failure.
fn print(text: &[u8]) -> Result<u8, Failure> {
    match io::stdout().write_all(text) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::system("cannot print", &error))
        }
        _ => Ok(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn leases_are_renewed_or_fixed() {
        let span = Duration::from_secs;
        assert_eq!(lease("renewed"), Ok(Lease::Renewed(span(30))));
        assert_eq!(lease("renewed:5s"), Ok(Lease::Renewed(span(5))));
        assert_eq!(lease("5s"), Ok(Lease::Fixed(span(5))));
        for text in [
            "",
            "renewed:",
            "renewed5s",
            "renew",
            "5",
            "1ms",
            "renewed:0",
        ] {
            assert!(lease(text).is_err(), "{text}");
        }
    }
}
