//! One call for any kind of lock or semaphore, to test what all kinds have in common.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::any::Any;

use redlatch::{Client, Error, Member, MultiLock};

pub const KINDS: [&str; 10] = [
    "reentrant",
    "fenced",
    "fair",
    "spin",
    "plain",
    "read",
    "write",
    "multi",
    "semaphore",
    "expirable",
];

/// What was acquired, held until it is dropped.
pub type Taken = Box<dyn Any + Send>;

/// Attempts to acquire a lock or permit of this kind without waiting. The permits of a semaphore must have been set.
pub async fn try_take(client: &Client, kind: &str, name: &str) -> Result<Option<Taken>, Error> {
    fn boxed<G: Any + Send>(taken: Option<G>) -> Option<Taken> {
        taken.map(|taken| Box::new(taken) as Taken)
    }
    Ok(match kind {
        "reentrant" => boxed(client.lock(name).try_lock().await?),
        "fenced" => boxed(client.fenced_lock(name).try_lock().await?),
        "fair" => boxed(client.fair_lock(name).try_lock().await?),
        "spin" => boxed(client.spin_lock(name).try_lock().await?),
        "plain" => boxed(client.plain_lock(name).try_lock().await?),
        "read" => boxed(client.read_write_lock(name).try_read().await?),
        "write" => boxed(client.read_write_lock(name).try_write().await?),
        "multi" => {
            let members =
                ["a", "b"].map(|part| Member::from(client.lock(format!("{name}:{part}"))));
            boxed(MultiLock::new(members).try_lock().await?)
        }
        "semaphore" => boxed(client.semaphore(name).try_acquire().await?),
        _ => boxed(client.expirable_semaphore(name).try_acquire().await?),
    })
}
