//! Every argument, in every form that it may have, and functions of every form, without a warning.
#![deny(
    warnings,
    clippy::all,
    reason = "users see the lints of what is generated in their code"
)]

use std::pin::Pin;
use std::sync::{Arc, LazyLock, OnceLock};

use redlatch::{Client, Error, Owner, locked};

static CLIENT: OnceLock<Client> = OnceLock::new();
static LAZY: LazyLock<Client> = LazyLock::new(|| unreachable!("this is compiled only"));

fn client() -> Option<&'static Client> {
    CLIENT.get()
}

#[derive(Debug)]
enum Failure {
    NotConnected,
    Lock(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Lock(error)
    }
}

#[locked(client = client().ok_or(Failure::NotConnected)?, name = "job")]
async fn by_a_call() -> Result<(), Failure> {
    Ok(())
}

#[redlatch::locked(client = LAZY, name = "job", kind = reentrant,)]
async fn by_a_static() -> Result<(), Error> {
    Ok(())
}

#[locked(client = client.clone().scoped("jobs:"), name = String::from("job"), kind = fair, lease = "250ms")]
async fn by_a_value(client: &Client) -> Result<(), Error> {
    Ok(())
}

#[locked(
    client = client,
    name = "{{job}}:{id:>4}",
    kind = spin,
    attempts = 3,
    lease = "5m",
    wait = "1h",
    busy = {
        println!("busy");
        Ok(None)
    },
    owner = owner,
    guard = held,
)]
async fn all_at_once(
    client: Arc<Client>,
    id: u64,
    owner: &Owner,
) -> Result<Option<u64>, Box<dyn std::error::Error>> {
    drop(client);
    held.verify().await?;
    Ok(Some(id))
}

const NAME: &str = "page";

mod elsewhere {
    #[redlatch::locked(client = client, name = super::NAME, kind = write, wait = "0ms", busy = Ok(()))]
    pub(super) async fn function(client: redlatch::Client) -> Result<(), redlatch::Error> {
        Ok(())
    }
}

/// Bodies of one line, around which rustc takes a second pair of braces for superfluous.
#[rustfmt::skip]
mod on_one_line {
    use async_trait::async_trait;
    use redlatch::{Client, Error, locked};

    #[locked(client = client, name = "job")]
    async fn function(client: &Client) -> Result<u8, Error> { Ok(1) }

    #[locked(client = client, name = "job", wait = "0s", busy = Ok(0))]
    async fn call(client: &Client) -> Result<u8, Error> { function(client).await }

    #[async_trait]
    trait Job {
        async fn run(&self, job: (u8, u8)) -> Result<u8, Error>;

        #[locked(client = client, name = "job")]
        async fn all(client: &Client) -> Result<u8, Error> where Self: Sized { call(client).await }
    }

    #[async_trait]
    impl Job for Client {
        #[locked(client = self, name = "job:{id}")]
        async fn run(&self, (id, count): (u8, u8)) -> Result<u8, Error> { Ok(count) }
    }
}

/// A function that boxes its future itself.
#[locked(client = client, name = "job:{id}")]
fn boxed(
    client: &Client,
    id: u64,
) -> Pin<Box<dyn Future<Output = Result<u64, Error>> + Send + '_>> {
    Box::pin(async move {
        if id == 0 {
            Ok(0)
        } else {
            boxed(client, id - 1).await
        }
    })
}
