//! `redlatch ls`: which locks are held.

use std::io::{IsTerminal, stdout};
use std::pin::pin;
use std::time::Duration;

use redlatch::admin::{Inspection, Listing, Unread};
use serde_json::json;
use tokio::time::{Instant, sleep_until};

use crate::args::{Ls, Server};
use crate::exit::{self, Failure};
use crate::notes::Notes;
use crate::server;
use crate::show::{self, Reader};
use crate::shown::shown;

/// How many locks are put in order before they are printed.
const TOGETHER: usize = 1_000;
/// How long they may wait for that.
const PATIENCE: Duration = Duration::from_secs(1);
/// How many of the keys that cannot be read are named.
const NAMED: usize = 10;

pub(crate) async fn ls(
    server: &Server,
    args: &Ls,
    notes: &Notes,
    as_json: bool,
) -> Result<u8, Failure> {
    let client = server::connect(server).await?;
    let mut gaps = Gaps::new(notes);
    let mut page = Page::new(as_json);
    let list = client.admin().list(&args.pattern)?;
    let printed = print(list, &mut page, &mut gaps).await;
    client.close().await;
    // A list in JSON is closed even if something went wrong.
    if printed.and_then(|reader| page.end(reader))? == Reader::There {
        gaps.count();
    }
    Ok(gaps.code)
}

/// Prints what is found while more is looked for, in order as far as it is found together.
async fn print(mut list: Listing, page: &mut Page, gaps: &mut Gaps<'_>) -> Result<Reader, Failure> {
    let mut found: Vec<Inspection> = Vec::new();
    let mut due = Instant::now() + PATIENCE;
    loop {
        let mut next = pin!(list.next());
        let next = tokio::select! {
            next = &mut next => next,
            () = sleep_until(due), if !found.is_empty() => {
                if page.print(&mut found)? == Reader::Gone {
                    return Ok(Reader::Gone);
                }
                next.await
            }
        };
        match next {
            Some(Ok(lock)) => found.push(lock),
            Some(Err(unread)) => gaps.tell(&unread),
            None => return page.print(&mut found),
        }
        if found.len() == 1 {
            due = Instant::now() + PATIENCE;
        }
        if found.len() >= TOGETHER && page.print(&mut found)? == Reader::Gone {
            return Ok(Reader::Gone);
        }
    }
}

/// What could not be read.
struct Gaps<'a> {
    notes: &'a Notes,
    unnamed: usize,
    named: usize,
    code: u8,
}

impl<'a> Gaps<'a> {
    fn new(notes: &'a Notes) -> Self {
        Self {
            notes,
            unnamed: 0,
            named: 0,
            code: 0,
        }
    }

    fn tell(&mut self, unread: &Unread) {
        let code = match &unread.name {
            Some(_) => exit::NO,
            None => Failure::from(unread.error.clone()).code,
        };
        // That a server is away weighs more than any key.
        self.code = self.code.max(code);
        if unread.name.is_some() && self.named >= NAMED {
            self.unnamed += 1;
            return;
        }
        self.named += usize::from(unread.name.is_some());
        let fields = json!({ "name": unread.name, "server": unread.server });
        self.notes.note("unread", &unread.to_string(), fields);
    }

    /// Says how many there were that were not named.
    fn count(&self) {
        if self.unnamed > 0 {
            let text = format!("{} more cannot be read", self.unnamed);
            let fields = json!({ "more": self.unnamed });
            self.notes.note("unread", &text, fields);
        }
    }
}

/// The list as it is printed: a table, or a list in JSON.
struct Page {
    as_json: bool,
    is_begun: bool,
    widths: [usize; 4],
}

impl Page {
    fn new(as_json: bool) -> Self {
        Self {
            as_json,
            is_begun: false,
            widths: [0; 4],
        }
    }

    /// Prints locks in the order of their names, and takes them.
    fn print(&mut self, found: &mut Vec<Inspection>) -> Result<Reader, Failure> {
        let mut locks = std::mem::take(found);
        locks.sort_by(|one, other| one.name.cmp(&other.name));
        if locks.is_empty() {
            return Ok(Reader::There);
        }
        let lines: Vec<String> = match self.as_json {
            true => self.objects(&locks),
            false => self.rows(&locks),
        };
        self.is_begun = true;
        show::write(&lines.join("\n"))
    }

    fn objects(&self, locks: &[Inspection]) -> Vec<String> {
        let mut mark = if self.is_begun { ',' } else { '[' };
        let objects = locks.iter().map(|lock| {
            let mark = std::mem::replace(&mut mark, ',');
            format!("{mark}{}", show::json(lock))
        });
        objects.collect()
    }

    fn rows(&mut self, locks: &[Inspection]) -> Vec<String> {
        let head = ["NAME", "KIND", "LEASE", "WAITERS", "HELD BY"].map(str::to_owned);
        let head = (!self.is_begun).then_some(head);
        let rows = locks.iter().map(|lock| {
            [
                shown(&lock.name),
                show::kind(lock.kind).to_owned(),
                show::left(lock.remaining_lease),
                show::waiting(lock).unwrap_or_else(|| "-".to_owned()),
                show::owners(lock),
            ]
        });
        let rows: Vec<[String; 5]> = head.into_iter().chain(rows).collect();
        for row in &rows {
            for (width, cell) in self.widths.iter_mut().zip(row) {
                *width = cell.chars().count().max(*width);
            }
        }
        let [a, b, c, d] = self.widths;
        let lines = rows.iter().map(|[name, kind, lease, waiters, owners]| {
            format!("{name:a$}  {kind:b$}  {lease:c$}  {waiters:d$}  {owners}")
        });
        lines.collect()
    }

    /// Ends the list.
    fn end(&self, reader: Reader) -> Result<Reader, Failure> {
        match (reader, self.as_json, self.is_begun) {
            (Reader::Gone, ..) => Ok(Reader::Gone),
            (_, true, true) => show::write("]"),
            (_, true, false) => show::write("[]"),
            // A program that reads the list wants no heading over nothing.
            (_, false, false) if stdout().is_terminal() => show::write("nothing is held"),
            (_, false, _) => Ok(Reader::There),
        }
    }
}
