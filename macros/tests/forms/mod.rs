//! Every argument, in every form that it may have.

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
