use async_trait::async_trait;
use redlatch::{Client, Error, locked};

#[async_trait]
trait Ship {
    #[locked(client = client, name = "order:{id}")]
    async fn ship(client: &Client, id: u64) -> Result<u64, Error>;
}

fn main() {}
