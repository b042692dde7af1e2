use redlatch::{Client, locked};

#[locked(client = client, name = "order:{id}")]
async fn ship(client: &Client, id: u64) -> u64 {
    id
}

fn main() {}
