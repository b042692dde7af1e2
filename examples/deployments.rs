//! Deployments that a client connects to: a server with a password and a database, sentinels, a cluster, and TLS.
//!
//! `cargo run --example deployments`

use std::time::Duration;

use redlatch::config::Tls;
use redlatch::{Client, Config, Owner};
use redlatch_testkit::{Cluster, Sentinels, Server};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

#[tokio::main]
async fn main() -> Result<()> {
    let server = Server::builder().password("s3cret").start();
    let url = format!("redis://:s3cret@127.0.0.1:{}/2", server.port());
    println!("a password, and database 2: {url}");
    take_turns(Client::connect(url).await?).await?;

    let set = Sentinels::start();
    println!("sentinels, which know the primary: {}", set.url());
    take_turns(Client::connect(set.url()).await?).await?;

    // The URL names every server; any one of them would be enough.
    let cluster = Cluster::start();
    println!("a cluster: {}", cluster.url());
    take_turns(Client::connect(cluster.url()).await?).await?;

    match Server::builder().tls().try_start() {
        Ok(server) => {
            println!(
                "TLS, with a private certificate authority: {}",
                server.url()
            );
            // Once in a program: who does the cryptography. The features `tls-aws-lc-rs` and `tls-ring` choose instead.
            let provider = rustls::crypto::ring::default_provider();
            provider.install_default().ok();
            // `rediss://host:port` trusts the system's certificate authorities. This configuration trusts one that the
            // system does not know.
            let tls = Tls::new().roots(server.ca_pem());
            let config = Config::server("127.0.0.1", server.port()).tls(tls);
            take_turns(Client::builder().config(config).build().await?).await?;
        }
        Err(_) => println!("TLS: this server was built without it"),
    }
    Ok(())
}

/// Holds the lock as one owner while another owner waits for it and is woken.
async fn take_turns(client: Client) -> Result<()> {
    let lock = client.lock("invoice:42");
    let other = lock.clone().owned_by(&Owner::unique());
    let guard = lock.lock().await?;
    assert!(other.try_lock().await?.is_none());
    let waiter = tokio::spawn(async move { other.try_lock_for(Duration::from_secs(5)).await });
    guard.unlock().await?;
    let next = waiter.await??.ok_or("not within five seconds")?;
    next.unlock().await?;
    println!("    acquired, waited for, released to the waiter");
    client.close().await;
    Ok(())
}
