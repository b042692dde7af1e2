use std::pin::Pin;

use redlatch::{Client, Error, locked};

#[locked(client = client, name = "order:{id}")]
fn ship(client: &Client, id: u64) -> Pin<Box<dyn Future<Output = Result<u64, Error>> + Send + '_>> {
    println!("outside of the lock");
    Box::pin(async move { Ok(id) })
}

fn main() {}
