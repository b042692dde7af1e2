//! wip
mod support;
use redlatch::*;
use redlatch_testkit::Server;
use std::time::*;
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn speed() {
    let server = Server::start();
    let client = Client::connect(server.url()).await.unwrap();
    let lock = client.lock("k");
    let c0 = server
        .connection()
        .command(&["INFO", "commandstats"])
        .text()
        .lines()
        .find(|l| l.starts_with("cmdstat_evalsha"))
        .map(str::to_owned);
    let t = Instant::now();
    let tasks: Vec<_> = (0..64)
        .map(|_| {
            let lock = lock.clone();
            tokio::spawn(async move {
                for _ in 0..100 {
                    lock.lock().await.unwrap().unlock().await.unwrap();
                }
            })
        })
        .collect();
    for t in tasks {
        t.await.unwrap();
    }
    let e = t.elapsed();
    println!("64 tasks x 100: {e:?}, {:?} a section {client:?}", e / 6400);
    println!(
        "{c0:?} {}",
        server
            .connection()
            .command(&["INFO", "commandstats"])
            .text()
            .lines()
            .filter(|l| l.contains("evalsha") || l.contains("publish") || l.contains("subscribe"))
            .collect::<Vec<_>>()
            .join("\n")
    );
    let t = Instant::now();
    for _ in 0..2000 {
        lock.lock().await.unwrap().unlock().await.unwrap();
    }
    println!("uncontended {:?} a section", t.elapsed() / 2000);
}
