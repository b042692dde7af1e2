use async_trait::async_trait;
use redlatch::locked;

#[async_trait]
trait Ship {
    #[locked(client = self, name = "order:{id}")]
    async fn ship(&self, id: u64) {
        drop(id);
    }
}

fn main() {}
