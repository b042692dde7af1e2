use redlatch::{Client, Error, locked};

#[locked("order:{id}")]
async fn ship(client: &Client, id: u64) -> Result<u64, Error> {
    Ok(id)
}

fn main() {}
