//! The command `redlatch`: runs programs under a distributed lock, and shows who holds which lock.
//!
//! `redlatch --help` is its manual.
#![forbid(unsafe_code)]
#![warn(
    missing_docs,
    missing_debug_implementations,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used
)]

mod args;
mod command;
mod doctor;
mod exit;
mod family;
mod job;
mod list;
mod notes;
mod process;
mod progress;
mod run;
mod server;
mod show;
mod shown;
mod signals;
mod span;
mod terminal;
mod unlock;
mod warden;

use std::env;
use std::process::ExitCode;

use clap::Parser;

use args::{Args, Command, Warden};
use exit::{Ending, Failure};
use notes::Notes;

fn main() -> ExitCode {
    let mut words = env::args_os();
    if words.nth(1).is_some_and(|word| word == warden::WORD) {
        return match Warden::try_parse_from(env::args_os().skip(1)) {
            Ok(args) => ExitCode::from(warden::keep_watch(&args)),
            Err(error) => exit::wrong_use(&error),
        };
    }
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return exit::wrong_use(&error),
    };
    let notes = Notes::new(args.json);
    match carry_out(args, &notes) {
        Ok(ending) => ExitCode::from(ending.code()),
        Err(failure) => {
            notes.failed(&failure);
            ExitCode::from(failure.code)
        }
    }
}

fn carry_out(args: Args, notes: &Notes) -> Result<Ending, Failure> {
    let code = match args.command {
        Command::Completions(wanted) => args::completions(wanted.shell),
        Command::Man => args::man(),
        command => {
            // One thread: there is little to do, and signals of the terminal are blocked for this thread alone.
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(|error| Failure::system("cannot start", &error))?;
            let server = args.server;
            let ended = runtime.block_on(async {
                let code = match command {
                    Command::Run(run) => return run::run(&server, run, notes).await,
                    Command::Ls(ls) => list::ls(&server, &ls, notes, args.json).await,
                    Command::Inspect(wanted) => show::inspect(&server, &wanted, args.json).await,
                    Command::Watch(wanted) => show::watch(&server, &wanted, args.json).await,
                    Command::Unlock(wanted) => unlock::unlock(&server, &wanted, args.json).await,
                    Command::Doctor(wanted) => doctor::doctor(&server, &wanted, args.json).await,
                    Command::Completions(_) | Command::Man => Ok(0),
                };
                code.map(Ending::Code)
            });
            // A name server that does not answer keeps no program from its end.
            runtime.shutdown_background();
            return ended;
        }
    };
    code.map(Ending::Code)
}
