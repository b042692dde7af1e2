use redlatch::{Client, locked};

struct Failure;

#[locked(client = client, name = "order:{id}")]
async fn ship(client: &Client, id: u64) -> Result<u64, Failure> {
    Ok(id)
}

fn main() {}
