//! Where the servers may be: a password and a database, sentinels, a cluster, TLS.
//!
//! `cargo run --example deployments`

use std::sync::Arc;
use std::time::Duration;

use redlatch::fred::rustls::pki_types::CertificateDer;
use redlatch::fred::rustls::pki_types::pem::PemObject;
use redlatch::fred::rustls::{self, ClientConfig, RootCertStore};
use redlatch::fred::types::config::{Config, ServerConfig};
use redlatch::{Client, Owner};
use redlatch_testkit::{Cluster, Sentinels, Server};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

#[tokio::main]
async fn main() -> Result<()> {
    let server = Server::builder().password("s3cret").start();
    let url = format!("redis://:s3cret@127.0.0.1:{}/2", server.port());
    println!("a password, and database 2: {url}");
    take_turns(Client::connect(url).await?).await?;

    let set = Sentinels::start();
    println!("sentinels, who know the primary: {}", set.url());
    take_turns(Client::connect(set.url()).await?).await?;

    // Any one of its servers would do.
    let cluster = Cluster::start();
    println!("a cluster: {}", cluster.url());
    take_turns(Client::connect(cluster.url()).await?).await?;

    match Server::builder().tls().try_start() {
        Ok(server) => {
            println!("TLS, with an authority of one's own: {}", server.url());
            take_turns(Client::builder().config(tls(&server)?).build().await?).await?;
        }
        Err(_) => println!("TLS: this server was built without it"),
    }
    Ok(())
}

/// One holds the lock, another waits for it and is woken.
async fn take_turns(client: Client) -> Result<()> {
    let lock = client.lock("invoice:42");
    let other = lock.clone().owned_by(&Owner::unique());
    let guard = lock.lock().await?;
    assert!(other.try_lock().await?.is_none());
    let waiter = tokio::spawn(async move { other.try_lock_for(Duration::from_secs(5)).await });
    guard.unlock().await?;
    let next = waiter.await??.ok_or("not within five seconds")?;
    next.unlock().await?;
    println!("    taken, waited for, handed on");
    client.close().await;
    Ok(())
}

/// `rediss://host:port` trusts the authorities of the system; this trusts one that it does not know.
fn tls(server: &Server) -> Result<Config> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(server.ca_pem().as_bytes())?)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Config {
        server: ServerConfig::new_centralized("127.0.0.1", server.port()),
        tls: Some(tls.into()),
        ..Config::default()
    })
}
