//! An application with fred over TLS adds redlatch: both connect, whatever redlatch's features, and fred does not panic.
//!
//! A program can install one provider of cryptography, once. So each choice of features is a program of its own:
//! `scripts/test` runs this one with none of them, with each, and with both providers.
#![cfg(test)]

use std::sync::Arc;

use fred::prelude::{Builder, ClientLike, Config, KeysInterface, TlsConnector};
use redlatch::{Client, ErrorKind};
use redlatch_testkit::{Server, skip};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

const HAS_TLS: bool = cfg!(feature = "tls");
const HAS_AWS_LC_RS: bool = cfg!(feature = "tls-aws-lc-rs");
const HAS_RING: bool = cfg!(feature = "tls-ring");

#[tokio::test]
async fn fred_and_redlatch_connect_side_by_side() {
    let Ok(server) = Server::builder().tls().try_start() else {
        return skip("tls", "this server was built without TLS");
    };
    let roots = std::env::temp_dir().join(format!("redlatch-roots-{}.pem", server.port()));
    std::fs::write(&roots, server.ca_pem()).unwrap();
    let url = format!("{}?tls_roots={}", server.url(), roots.display());

    // Before anybody has installed a provider.
    let error = Client::connect(&url).await.err();
    let chooses = HAS_AWS_LC_RS != HAS_RING;
    assert_eq!(error.is_none(), chooses, "{error:?}");
    if let Some(error) = error {
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        let text = error.to_string();
        let what = if HAS_TLS {
            "provider of cryptography"
        } else {
            "no TLS"
        };
        for word in [what, "`tls-aws-lc-rs`", "`tls-ring`"] {
            assert!(text.contains(word), "{text}");
        }
    }
    if HAS_RING {
        // The application has two providers now, and chooses.
        use fred::rustls::crypto::aws_lc_rs;
        aws_lc_rs::default_provider().install_default().unwrap();
    }

    let config = application(&server);
    let fred = fred(&server, config.clone()).await;
    let () = fred.set("answer", 42, None, None, false).await.unwrap();

    if HAS_TLS {
        // By redlatch's provider, or by that of the process, which fred has installed if nobody else has.
        take(Client::connect(&url).await.unwrap()).await;
    }
    #[cfg(feature = "tls")]
    {
        let config = redlatch::Config::server("127.0.0.1", server.port());
        let config = config.tls(redlatch::config::Tls::rustls(application_of(&fred)));
        take(Client::builder().config(config).build().await.unwrap()).await;
    }
    let plain = Server::start();
    take(Client::connect(plain.url()).await.unwrap()).await;
    assert_eq!(fred.get::<u32, _>("answer").await.unwrap(), 42);
    fred.quit().await.unwrap();
    std::fs::remove_file(roots).unwrap();
}

/// The application's configuration of TLS, made as fred makes its own: rustls finds the provider by itself.
fn application(server: &Server) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    let authority = CertificateDer::from_pem_slice(server.ca_pem().as_bytes()).unwrap();
    roots.add(authority).unwrap();
    ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth()
}

/// The same, as the application's client has it.
#[cfg_attr(
    not(feature = "tls"),
    expect(dead_code, reason = "redlatch takes none")
)]
fn application_of(fred: &fred::clients::Client) -> Arc<ClientConfig> {
    match fred.client_config().tls.unwrap().connector {
        TlsConnector::Rustls(connector) => connector.config().clone(),
    }
}

async fn fred(server: &Server, tls: ClientConfig) -> fred::clients::Client {
    let mut config = Config::from_url(&format!("redis://127.0.0.1:{}", server.port())).unwrap();
    config.tls = Some(TlsConnector::from(tls).into());
    let client = Builder::from_config(config).build().unwrap();
    client.init().await.unwrap();
    client
}

async fn take(client: Client) {
    let guard = client.lock("orders:42").lock().await.unwrap();
    guard.unlock().await.unwrap();
    client.close().await;
}
