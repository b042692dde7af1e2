use redlatch::{Client, Error, locked};

#[locked(client = client, name = "order:{id}", ttl = "10s")]
async fn ship(client: &Client, id: u64) -> Result<u64, Error> {
    Ok(id)
}

fn main() {}
