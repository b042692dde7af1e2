use async_trait::async_trait;
use redlatch::{Client, Error, locked};

#[async_trait]
trait Ship {
    async fn ship(&self, id: u64) -> Result<u64, Error>;
}

#[locked(client = self, name = "order:{id}")]
#[async_trait]
impl Ship for Client {
    async fn ship(&self, id: u64) -> Result<u64, Error> {
        Ok(id)
    }
}

fn main() {}
