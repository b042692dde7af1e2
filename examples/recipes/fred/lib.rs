//! A service that has a pool of fred's, over TLS and with a password that rotates, and takes its locks where the pool
//! connects. What fred was told is not told again: server, certificate authorities, user and password.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use fred::clients::Pool;
use fred::prelude::{Builder, ClientLike, Config, Error, KeysInterface, TlsConnector};
use fred::types::config::{CredentialProvider, ReconnectPolicy, Server};
use rustls::{ClientConfig, RootCertStore};

/// How often fred logs in again, and so do the locks.
const ROTATES: Duration = Duration::from_secs(60);

/// Reads the password from a file, which is replaced when the password rotates.
#[derive(Debug)]
struct FromFile(PathBuf);

#[async_trait]
impl CredentialProvider for FromFile {
    async fn fetch(&self, _: Option<&Server>) -> Result<(Option<String>, Option<String>), Error> {
        let password = tokio::fs::read_to_string(&self.0).await?;
        Ok((Some("orders".to_owned()), Some(password.trim().to_owned())))
    }

    fn refresh_interval(&self) -> Option<Duration> {
        Some(ROTATES)
    }
}

/// Connects as the service did before it had locks.
pub async fn pool(port: u16, roots: RootCertStore, password: PathBuf) -> Result<Pool, Error> {
    let mut config = Config::from_url(&format!("redis://127.0.0.1:{port}"))?;
    let tls = ClientConfig::builder().with_root_certificates(roots);
    config.tls = Some(TlsConnector::from(tls.with_no_client_auth()).into());
    config.credential_provider = Some(Arc::new(FromFile(password)));
    let pool = Builder::from_config(config)
        .set_policy(ReconnectPolicy::new_constant(0, 10))
        .build_pool(2)?;
    pool.init().await?;
    Ok(pool)
}

/// A service that changes orders.
#[derive(Clone)]
pub struct Orders {
    data: Pool,
    locks: redlatch::Client,
}

impl Orders {
    /// Takes its locks where the pool connects.
    pub async fn new(data: Pool) -> Result<Self, redlatch::Error> {
        let locks = redlatch::Client::builder()
            .fred(&data)
            .label("orders")
            .build()
            .await?;
        Ok(Self { data, locks })
    }

    /// Adds to an order: reads and writes it by two commands, with nobody between them.
    pub async fn add(
        &self,
        order: &str,
        pieces: u64,
    ) -> Result<u64, Box<dyn std::error::Error + Send + Sync>> {
        let key = format!("pieces:{order}");
        let guard = self.locks.lock(format!("order:{order}")).lock().await?;
        let before: Option<u64> = self.data.get(&key).await?;
        let after = before.unwrap_or_default() + pieces;
        let () = self.data.set(&key, after, None, None, false).await?;
        guard.unlock().await?;
        Ok(after)
    }

    pub async fn close(self) {
        self.locks.close().await;
        self.data.quit().await.ok();
    }
}
