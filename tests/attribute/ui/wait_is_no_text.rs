use redlatch::{Client, Error, locked};

#[locked(client = client, name = "order:{id}", wait = 2, busy = Ok(0))]
async fn ship(client: &Client, id: u64) -> Result<u64, Error> {
    Ok(id)
}

fn main() {}
