//! What `redlatch run` says while it waits.

use std::convert::Infallible;
use std::future::pending;
use std::time::Duration;

use redlatch::admin::Inspection;
use redlatch::{Client, Error};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::args::Run;
use crate::notes::Notes;
use crate::show;
use crate::shown::shown;
use crate::span;

/// A shorter wait is not worth a word.
const QUIET: Duration = Duration::from_millis(300);

/// Says who holds the lock: again and again on a terminal, else once; with `--quiet`, only if that cannot be found out.
/// Does not end.
pub(crate) async fn show(client: &Client, args: &Run, notes: &Notes) -> Infallible {
    if args.wait.is_some_and(|wait| wait.is_zero()) {
        return pending().await;
    }
    let started = Instant::now();
    sleep(QUIET).await;
    loop {
        let found = client.admin().inspect(&args.name).await;
        if args.quiet && found.is_ok() {
            return pending().await;
        }
        let text = line(args, &found, started.elapsed());
        if notes.are_live() && !args.quiet {
            notes.live(&text);
            sleep(Duration::from_secs(1)).await;
        } else {
            let lock = found.ok().flatten().as_ref().map(show::json);
            notes.note("waiting", &text, json!({ "name": args.name, "lock": lock }));
            return pending().await;
        }
    }
}

fn line(args: &Run, found: &Result<Option<Inspection>, Error>, waited: Duration) -> String {
    let held = match found {
        Ok(Some(found)) => format!("held by {}", show::holders(found)),
        Ok(None) => "others go first".to_owned(),
        // Such as a name that is in use for something else: the wait itself may last for ever.
        Err(error) => error.to_string(),
    };
    let waited = match (waited.as_secs(), args.wait) {
        (0, None) => String::new(),
        (0, Some(limit)) => format!(" for up to {}", span::show(limit)),
        (waited, None) => format!(", {}", span::show(Duration::from_secs(waited))),
        (waited, Some(limit)) => {
            let waited = span::show(Duration::from_secs(waited));
            format!(", {waited} of {}", span::show(limit))
        }
    };
    format!("waiting for {}{waited}: {held}", shown(&args.name))
}
