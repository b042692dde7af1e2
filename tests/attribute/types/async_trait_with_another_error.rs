use async_trait::async_trait;
use redlatch::{Client, locked};

#[async_trait]
trait Ship {
    async fn ship(&self, id: u64) -> Result<u64, std::fmt::Error>;
}

#[async_trait]
impl Ship for Client {
    #[locked(client = self, name = "order:{id}")]
    async fn ship(&self, id: u64) -> Result<u64, std::fmt::Error> {
        Ok(id)
    }
}

fn main() {}
