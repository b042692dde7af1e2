//! A worker that carries out commands, one after the other.

use std::time::Duration;

use redlatch::{Client, LockGuard, Owner};
use tokio::runtime::Runtime;

use super::event::{Op, Step};
use super::journal::{Journal, commands, deadline};

/// The lease of a puppet's hold that is renewed.
pub(crate) const LEASE: Duration = Duration::from_secs(2);

/// Serves the commands `take LOCK OWNER LEASE`, `give`, `look`, `block` and `end`. `OWNER` is an owner's name, or `-`
/// for an owner without a name. `LEASE` is in milliseconds, or 0 for a renewed lease. After `block`, the runtime no
/// longer runs while the puppet waits for a command.
pub(crate) fn play(runtime: &Runtime, journal: &Journal, port: u16) {
    let builder = Client::builder()
        .url(format!("redis://127.0.0.1:{port}"))
        .watchdog_lease(LEASE);
    let client = runtime.block_on(builder.build()).expect("the server is up");
    let alone = Owner::unique();
    let mut held: Option<(LockGuard, u32)> = None;
    let mut commands = commands();
    let mut blocked = false;
    loop {
        let command = if blocked {
            commands.blocking_recv()
        } else {
            runtime.block_on(commands.recv())
        };
        let command = command.expect("there is always an end");
        let note = |op, step, guard, deadline| journal.note((0, 0), op, step, guard, deadline);
        match command.split(' ').collect::<Vec<_>>()[..] {
            ["take", lock, owner, lease] => {
                let owner = if owner == "-" {
                    alone.clone()
                } else {
                    Owner::named(owner)
                };
                let mut lock = client.lock(lock).owned_by(&owner);
                if lease != "0" {
                    lock = lock.lease(Duration::from_millis(lease.parse().expect("milliseconds")));
                }
                let id = journal.next_guard();
                note(Op::Acquire, Step::Invoke, id, 0);
                match runtime.block_on(lock.lock()) {
                    Ok(guard) => {
                        note(Op::Acquire, Step::Ok, id, deadline(&guard));
                        held = Some((guard, id));
                    }
                    Err(error) => {
                        journal.error(&error);
                        note(Op::Acquire, Step::Unknown, id, 0);
                    }
                }
            }
            ["look"] => {
                let (guard, id) = held.as_ref().expect("it holds something");
                let step = if guard.is_lost() {
                    Step::Fail
                } else {
                    Step::Ok
                };
                note(Op::Hold, step, *id, deadline(guard));
            }
            ["block"] => {
                blocked = true;
                note(Op::Stay, Step::Invoke, 0, 0);
            }
            ["give"] => {
                let (guard, id) = held.take().expect("it holds something");
                note(Op::Release, Step::Invoke, id, deadline(&guard));
                let step = match runtime.block_on(guard.unlock()) {
                    Ok(()) => Step::Ok,
                    Err(error) if error.kind() == redlatch::ErrorKind::LeaseLost => Step::Fail,
                    Err(error) => {
                        journal.error(&error);
                        Step::Unknown
                    }
                };
                note(Op::Release, step, id, 0);
            }
            ["end"] => {
                runtime.block_on(client.close());
                return;
            }
            ref words => panic!("not a command: {words:?}"),
        }
    }
}
