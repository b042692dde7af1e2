use redlatch::locked;

#[locked(client = client, name = "order")]
struct Order;

fn main() {}
