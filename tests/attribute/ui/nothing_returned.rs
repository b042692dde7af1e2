use redlatch::{Client, locked};

#[locked(client = client, name = "order:{id}")]
async fn ship(client: &Client, id: u64) {
    drop((client, id));
}

fn main() {}
