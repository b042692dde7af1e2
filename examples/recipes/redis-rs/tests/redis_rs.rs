//! The service on a real server: by several tasks, while most of its pool is blocked.

use recipe_redis_rs::Orders;
use redlatch_testkit::Server;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_add_up_though_most_of_the_pool_is_blocked() {
    let server = Server::builder().password("s3cret").start();
    let url = format!("redis://:s3cret@127.0.0.1:{}/2", server.port());
    let orders = Orders::connect(&url).await.unwrap();
    let waiting: Vec<_> = (0..3)
        .map(|_| {
            let orders = orders.clone();
            tokio::spawn(async move { orders.next_job().await.is_ok() })
        })
        .collect();
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let orders = orders.clone();
            tokio::spawn(async move {
                for _ in 0..10 {
                    orders.add("7", 1).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(orders.add("7", 0).await.unwrap(), 80);
    waiting.iter().for_each(|task| task.abort());
    orders.close().await;
}
