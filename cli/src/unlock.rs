//! `redlatch unlock --force`: releases a lock, whoever holds it.

use std::io::{IsTerminal, Write, stderr, stdin};

use redlatch::Client;
use redlatch::admin::Inspection;
use serde_json::json;

use crate::args::{Server, Unlock};
use crate::exit::{self, Failure};
use crate::server;
use crate::show;
use crate::shown::shown;

pub(crate) async fn unlock(server: &Server, args: &Unlock, as_json: bool) -> Result<u8, Failure> {
    if !args.yes && !stdin().is_terminal() {
        return Err(Failure::usage(
            "there is no terminal to ask on: use --yes to release the lock without a question",
        ));
    }
    let client = server::connect(server).await?;
    let outcome = release(&client, args).await;
    client.close().await;
    let outcome = outcome?;
    let is_released = matches!(outcome, Outcome::Released(_));
    if as_json {
        let lock = outcome.found().map(show::json);
        show::print(&json!({ "released": is_released, "lock": lock }).to_string())?;
    } else {
        show::print(&outcome.text(&shown(&args.name)))?;
    }
    Ok(match is_released {
        true => 0,
        false => exit::NO,
    })
}

/// What has become of the lock, with what was found of it last.
enum Outcome {
    Free,
    Released(Inspection),
    /// The answer was no.
    Kept(Inspection),
    /// It had other holders than those that were shown.
    Changed(Option<Inspection>),
}

impl Outcome {
    fn found(&self) -> Option<&Inspection> {
        match self {
            Self::Free => None,
            Self::Released(found) | Self::Kept(found) => Some(found),
            Self::Changed(found) => found.as_ref(),
        }
    }

    fn text(&self, name: &str) -> String {
        let by = self.found().map(show::holders).unwrap_or_default();
        match self {
            Self::Free => format!("{name} is free: nobody held it"),
            Self::Released(_) => format!("{name} is released; it was held by {by}"),
            Self::Kept(_) => format!("{name} stays held by {by}"),
            Self::Changed(Some(_)) => {
                format!("{name} has changed hands, and was not released; now it is held by {by}")
            }
            Self::Changed(None) => format!("{name} became free by itself"),
        }
    }
}

async fn release(client: &Client, args: &Unlock) -> Result<Outcome, Failure> {
    let held = |found: &Inspection| !found.holders.is_empty();
    let admin = client.admin();
    let Some(found) = admin.inspect(&args.name).await? else {
        return Ok(Outcome::Free);
    };
    if found.count.is_some() {
        let text = format!("{} is a semaphore or a latch, not a lock", args.name);
        return Err(Failure::usage(text));
    }
    if !held(&found) {
        return Ok(Outcome::Free);
    }
    if !args.yes && !ask(&found) {
        return Ok(Outcome::Kept(found));
    }
    // Only from those whom the answer was about: somebody else may hold it by now.
    if admin.force_unlock(&found).await? {
        return Ok(Outcome::Released(found));
    }
    let now = admin.inspect(&args.name).await?;
    Ok(Outcome::Changed(now.filter(held)))
}

fn ask(found: &Inspection) -> bool {
    let mut out = stderr().lock();
    write!(
        out,
        "{} is held by {}.\nIts holder will not be asked, and may work on for a while. Release it? [y/N] ",
        shown(&found.name),
        show::holders(found)
    )
    .ok();
    out.flush().ok();
    let mut answer = String::new();
    stdin()
        .read_line(&mut answer)
        .is_ok_and(|_| matches!(answer.trim(), "y" | "Y" | "yes"))
}
