//! `redlatch unlock --force`: releases a lock, whoever holds it.

use std::io::{IsTerminal, Write, stderr, stdin};

use redlatch::Client;
use redlatch::admin::{FoundKind, FoundSide, Inspection};
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
    let (found, is_released) = outcome?;
    if as_json {
        let lock = found.as_ref().map(show::json);
        show::print(&json!({ "released": is_released, "lock": lock }).to_string())?;
    } else {
        let name = shown(&args.name);
        match (is_released, found) {
            (true, Some(found)) => show::print(&format!(
                "{name} is released; it was held by {}",
                show::holders(&found)
            ))?,
            (false, Some(found)) if !found.holders.is_empty() => {
                show::print(&format!("{name} stays held by {}", show::holders(&found)))?
            }
            _ => show::print(&format!("{name} is free: nobody held it"))?,
        };
    }
    Ok(match is_released {
        true => 0,
        false => exit::NO,
    })
}

/// Returns what was found, and whether it was released.
async fn release(client: &Client, args: &Unlock) -> Result<(Option<Inspection>, bool), Failure> {
    let name = &args.name;
    let Some(found) = show::look(client, name).await? else {
        return Ok((None, false));
    };
    if found.count.is_some() {
        let text = format!("{} is a semaphore or a latch, not a lock", shown(name));
        return Err(Failure::usage(text));
    }
    if found.holders.is_empty() || !args.yes && !ask(&found) {
        return Ok((Some(found), false));
    }
    let is_released = match found.kind {
        FoundKind::Fair => client.fair_lock(name).force_unlock().await,
        FoundKind::Plain => client.plain_lock(name).force_unlock().await,
        FoundKind::ReadWrite => {
            let sides = client.read_write_lock(name);
            let is_held = |side| found.holders.iter().any(|holder| holder.side == Some(side));
            // Only the sides that were held: whoever waits may get in as soon as one is free. The readers first, since a
            // writer that reads too keeps others out.
            let read = match is_held(FoundSide::Read) {
                true => sides.reader().force_unlock().await,
                false => Ok(false),
            };
            let write = match is_held(FoundSide::Write) {
                true => sides.writer().force_unlock().await,
                false => Ok(false),
            };
            read.and_then(|read| write.map(|write| read || write))
        }
        _ => client.lock(name).force_unlock().await,
    };
    Ok((Some(found), is_released?))
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
