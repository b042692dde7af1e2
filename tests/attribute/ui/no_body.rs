use redlatch::{Client, Error, locked};

trait Ship {
    #[locked(client = client, name = "order:{id}")]
    async fn ship(client: &Client, id: u64) -> Result<u64, Error>;
}

fn main() {}
