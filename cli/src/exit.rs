//! Exit codes, and failures that end the command.

use std::env;
use std::error::Error as _;
use std::fmt::Display;
use std::process::{self, ExitCode};

use clap::error::{ContextKind, ContextValue, ErrorKind as Wrong};
use nix::sys::signal::Signal;
use redlatch::{Error, ErrorKind};
use signal_hook::low_level::emulate_default_handler;

use crate::job;
use crate::notes::Notes;

/// Wrong use, as of most commands.
pub(crate) const USAGE: u8 = 2;
/// `doctor` found something that breaks a promise; `inspect` found no holder; `ls` could not read everything.
pub(crate) const NO: u8 = 1;
/// The server cannot be reached, or refuses, or the lock did not last until its command was started. `EX_UNAVAILABLE`
/// of sysexits.h.
pub(crate) const SERVER: u8 = 69;
/// The system lacks something, such as memory for another process. `EX_OSERR`.
pub(crate) const SYSTEM: u8 = 71;
/// Somebody else holds the lock. `EX_TEMPFAIL`.
pub(crate) const BUSY: u8 = 75;
/// The lock was lost while the command ran. `EX_PROTOCOL`.
pub(crate) const LOST: u8 = 76;
/// The command exists but cannot be run, as in shells.
pub(crate) const NOT_RUN: u8 = 126;
/// There is no such command, as in shells.
pub(crate) const NOT_FOUND: u8 = 127;

/// How `redlatch` ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Code(u8),
    /// By this signal, or as the command has ended by it.
    Signal(Signal),
    /// As the command has ended by a key on its terminal, which is meant for a script around `redlatch`, too.
    Keyboard(Signal),
}

impl Ending {
    /// Ends this process by the signal, as far as that is what programs do: a shell that runs a script looks at it to
    /// find out whether to go on. Otherwise returns the exit code.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Code(code) => code,
            Self::Keyboard(signal) => {
                job::tell(signal);
                Self::Signal(signal).code()
            }
            Self::Signal(signal) => {
                // Others have a core dump as a rule, which would be that of `redlatch`.
                let is_usual = matches!(signal, Signal::SIGINT | Signal::SIGTERM | Signal::SIGHUP);
                // The first process of a container is ended by no signal, but would be aborted for that.
                if is_usual && process::id() != 1 {
                    emulate_default_handler(signal as i32).ok();
                }
                128_u8.saturating_add(signal as u8)
            }
        }
    }
}

/// Why `redlatch` ends other than by doing what it was asked for.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn new(code: u8, text: impl Display) -> Self {
        let text = text.to_string();
        Self { code, text }
    }

    pub(crate) fn usage(text: impl Display) -> Self {
        Self::new(USAGE, text)
    }

    pub(crate) fn system(what: &str, error: &dyn Display) -> Self {
        Self::new(SYSTEM, format_args!("{what}: {error}"))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match error.kind() {
            ErrorKind::InvalidInput => USAGE,
            // Also of a lock that was granted too late: no command was started.
            _ => SERVER,
        };
        let mut text = error.to_string();
        // A cause that the text does not contain says what to look at.
        if let Some(cause) = error.source().map(ToString::to_string)
            && !text.contains(&cause)
        {
            text = format!("{text}: {cause}");
        }
        Self::new(code, text)
    }
}

/// Prints what a wrong use of the command line is about, in one line, or the help that was asked for.
pub(crate) fn wrong_use(error: &clap::Error) -> ExitCode {
    if matches!(error.kind(), Wrong::DisplayHelp | Wrong::DisplayVersion) {
        // A reader that has gone away is no error.
        error.print().ok();
        return ExitCode::SUCCESS;
    }
    let about = match error.kind() {
        Wrong::DisplayHelpOnMissingArgumentOrSubcommand | Wrong::MissingSubcommand => {
            "say what to do, for example `redlatch run NAME -- COMMAND`".to_owned()
        }
        Wrong::InvalidUtf8
            if env::var_os("REDIS_URL").is_some_and(|url| url.to_str().is_none()) =>
        {
            "REDIS_URL is not valid UTF-8".to_owned()
        }
        _ => what_is_wrong(error),
    };
    // The words behind `--` are the command's.
    let mut own = env::args_os().take_while(|word| word != "--");
    let notes = Notes::new(own.any(|word| word == "--json"));
    let failure = Failure::usage(format_args!("{about}; see redlatch --help"));
    notes.failed(&failure);
    ExitCode::from(failure.code)
}

/// Returns the first part of what clap says, in one line.
fn what_is_wrong(error: &clap::Error) -> String {
    let text = error.render().to_string();
    if error.kind() == Wrong::UnknownArgument
        && text.contains("Usage: redlatch run")
        && let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg)
        && !word.starts_with('-')
    {
        return format!("{word:?} is neither an option nor the name: put the command behind `--`");
    }
    let about: Vec<&str> = text
        .lines()
        .map(str::trim)
        .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"))
        .filter(|line| !line.is_empty())
        .collect();
    let about = about.join(" ");
    about.strip_prefix("error: ").unwrap_or(&about).to_owned()
}

#[cfg(test)]
mod tests {
    use redlatch::LossReason;

    use super::*;

    #[test]
    fn lock_that_was_granted_too_late_is_no_loss_of_a_command() {
        let failure = Failure::from(Error::lost(LossReason::Expired));
        assert_eq!(failure.code, SERVER);
    }
}
