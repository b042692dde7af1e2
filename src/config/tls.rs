//! The settings for TLS.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::ClientConfig;

use super::Config;
use super::Given;
use crate::error::Error;

/// A TLS configuration, for rustls: which authorities to trust, and how the client proves its identity. Passed to
/// [`Config::tls`](crate::Config::tls).
///
/// Certificates and keys are given in PEM, as text or as the path of a file. Files are read when the client is built.
/// That call fails with [`InvalidInput`](crate::ErrorKind::InvalidInput) if a file cannot be read, or if a file or text
/// contains no certificate or key. An application that has a rustls configuration already passes it to
/// [`rustls`](Self::rustls).
///
/// # The provider of cryptography
///
/// Rustls leaves cryptography to a provider, and an application should have only one. So the feature `tls` brings none:
///
/// | features | provider |
/// |---|---|
/// | `tls-aws-lc-rs` | aws-lc-rs |
/// | `tls-ring` | ring |
/// | `tls` alone, or both of them | that of the process, which the application has installed by `CryptoProvider::install_default` |
///
/// Without a provider, building the client fails with [`InvalidInput`](crate::ErrorKind::InvalidInput). This crate
/// installs nothing for the process, and affects other crates in only one way: if the application contains both
/// providers, rustls chooses none by itself, and crates that rely on that choice panic until the application installs
/// one. So choose the provider that the application has already: with its feature `enable-rustls`, fred has aws-lc-rs.
///
/// # Examples
///
/// ```no_run
/// # async fn f() -> Result<(), redlatch::Error> {
/// use redlatch::config::Tls;
/// use redlatch::{Client, Config};
///
/// let tls = Tls::new()
///     .roots_file("/etc/redis/ca.pem")
///     .certificate_files("/etc/redis/client.pem", "/etc/redis/client.key");
/// let config = Config::server("redis.internal", 6379).tls(tls);
/// let client = Client::builder().config(config).build().await?;
/// # Ok(()) }
/// ```
#[must_use = "this sets nothing up by itself, give it to `Config::tls`"]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// Those of the system, if `None`.
    pub(crate) roots: Option<Pem>,
    pub(crate) certificate: Option<Certificate>,
    pub(crate) server_name: Option<String>,
    /// Made by the application, in place of roots and certificate.
    pub(crate) rustls: Option<Given<ClientConfig>>,
    /// Why the configuration of another client cannot be used.
    pub(crate) flaw: Option<&'static str>,
}

/// The certificate chain and the private key with which the client proves its identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Certificate {
    pub(crate) chain: Pem,
    pub(crate) key: Pem,
}

/// A text in PEM, or the path of a file that contains it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Pem {
    Text(String),
    File(PathBuf),
}

impl Tls {
    /// Trusts the certificate authorities that this system trusts, and presents no client certificate.
    ///
    /// # Examples
    ///
    /// ```
    /// use redlatch::config::Tls;
    /// use redlatch::Config;
    ///
    /// // A managed server, with a certificate that a public authority signed.
    /// let config = Config::server("locks.example.com", 6379).tls(Tls::new());
    /// assert_eq!(config, Config::from_url("rediss://locks.example.com")?);
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    pub fn new() -> Self {
        Self::default()
    }

    /// Uses this rustls configuration of the application as it is: its cryptography provider, its authorities, its
    /// certificate and its versions of TLS. Only [`server_name`](Self::server_name) can be set in addition.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use rustls;
    /// # async fn f(roots: rustls::RootCertStore) -> Result<(), redlatch::Error> {
    /// use std::sync::Arc;
    /// use redlatch::config::Tls;
    /// use redlatch::{Client, Config};
    ///
    /// // As the application gives it to its other clients.
    /// let rustls = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    /// let rustls = Arc::new(rustls);
    ///
    /// let config = Config::server("redis.internal", 6379).tls(Tls::rustls(rustls.clone()));
    /// let client = Client::builder().config(config).build().await?;
    /// # Ok(()) }
    /// ```
    pub fn rustls(config: impl Into<Arc<ClientConfig>>) -> Self {
        Self {
            rustls: Some(Given(config.into())),
            ..Self::default()
        }
    }

    /// Creates a configuration in place of one that cannot be used. It is an error unless another one replaces it.
    #[cfg(any(feature = "fred-10", feature = "redis-1"))]
    pub(crate) fn unusable(flaw: &'static str) -> Self {
        Self {
            flaw: Some(flaw),
            ..Self::default()
        }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        if let Some(flaw) = self.flaw {
            return Err(Error::invalid(flaw));
        }
        if self.server_name.as_deref() == Some("") {
            return Err(Error::invalid("the server name for TLS is empty"));
        }
        if self.rustls.is_some() && (self.roots.is_some() || self.certificate.is_some()) {
            return Err(Error::invalid(
                "a rustls configuration has its own roots and certificate: set them there, or leave out Tls::rustls",
            ));
        }
        Ok(())
    }
}

setters! { Tls:
    /// Trusts only the authorities with these certificates, not those of the system.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn f() -> Result<(), Box<dyn std::error::Error>> {
    /// use redlatch::config::Tls;
    /// use redlatch::{Client, Config};
    ///
    /// // A container that gets the authority in a variable, and has no file of it.
    /// let tls = Tls::new().roots(std::env::var("REDIS_CA_PEM")?);
    /// let config = Config::server("redis.internal", 6379).tls(tls);
    /// let client = Client::builder().config(config).build().await?;
    /// # Ok(()) }
    /// ```
    roots(pem: impl Into<String>) => roots = Some(Pem::Text(pem.into()));

    /// Trusts only the authorities with the certificates in this file, not those of the system.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |_| {
    /// use redlatch::config::Tls;
    /// use redlatch::{Client, Config, ErrorKind};
    ///
    /// let tls = Tls::new().roots_file("/nonexistent/ca.pem");
    /// let config = Config::server("redis.internal", 6379).tls(tls);
    ///
    /// // The file is read here, before anything is sent.
    /// let error = Client::builder().config(config).build().await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::InvalidInput);
    /// assert!(error.to_string().contains("/nonexistent/ca.pem"));
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    roots_file(path: impl Into<PathBuf>) => roots = Some(Pem::File(path.into()));

    /// Presents this client certificate, followed by the certificates that it depends on, with this private key.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn f() -> Result<(), Box<dyn std::error::Error>> {
    /// use redlatch::config::Tls;
    /// use redlatch::{Client, Config};
    ///
    /// // Instead of a password: a certificate from a secret store, which is never written to a disk.
    /// let chain = std::env::var("REDIS_CLIENT_PEM")?;
    /// let key = std::env::var("REDIS_CLIENT_KEY")?;
    /// let tls = Tls::new().certificate(chain, key);
    /// assert!(!format!("{tls:?}").contains("PRIVATE KEY"));
    ///
    /// let config = Config::server("redis.internal", 6379).tls(tls);
    /// let client = Client::builder().config(config).build().await?;
    /// # Ok(()) }
    /// ```
    certificate(chain: impl Into<String>, key: impl Into<String>) => certificate = Some(Certificate {
            chain: Pem::Text(chain.into()),
            key: Pem::Text(key.into()),
        });

    /// Presents the client certificate in one file, with the private key in another. Both may be in the same file.
    ///
    /// # Examples
    ///
    /// ```
    /// use redlatch::config::Tls;
    /// use redlatch::Config;
    ///
    /// let both = "/etc/redis/client.pem"; // the chain, and behind it the key
    /// let tls = Tls::new().certificate_files(both, both);
    /// let config = Config::server("redis.internal", 6379).tls(tls);
    ///
    /// let url = format!("rediss://redis.internal?tls_certificate={both}&tls_key={both}");
    /// assert_eq!(config, Config::from_url(url)?);
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    certificate_files(chain: impl Into<PathBuf>, key: impl Into<PathBuf>) => certificate = Some(Certificate {
            chain: Pem::File(chain.into()),
            key: Pem::File(key.into()),
        });

    /// Expects the certificates of all servers to be for this name, whatever host the client connects to. For servers
    /// that are reached by address or through a tunnel, or that a cluster or sentinels name by address.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn f() -> Result<(), redlatch::Error> {
    /// use redlatch::config::Tls;
    /// use redlatch::{Client, Config};
    ///
    /// // The servers of this cluster name each other by address; their certificates are for one name.
    /// let tls = Tls::new().roots_file("/etc/redis/ca.pem").server_name("redis.internal");
    /// let config = Config::cluster([("10.0.0.1", 7000), ("10.0.0.2", 7000)]).tls(tls);
    /// let client = Client::builder().config(config).build().await?;
    /// # Ok(()) }
    /// ```
    server_name(name: impl Into<String>) => server_name = Some(name.into());
}

setters! { Config:
    /// Enables TLS, for the connections to servers as well as to sentinels.
    ///
    /// # Examples
    ///
    /// ```
    /// use redlatch::config::Tls;
    /// use redlatch::Config;
    ///
    /// // For the sentinels, and for the primary that they name.
    /// let tls = Tls::new().roots_file("/etc/redis/ca.pem");
    /// let config = Config::sentinels("main", [("redis-a.internal", 26379)]).tls(tls);
    ///
    /// let url = "rediss-sentinel://redis-a.internal?sentinelServiceName=main&tls_roots=/etc/redis/ca.pem";
    /// assert_eq!(config, Config::from_url(url)?);
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    tls(tls: Tls) => tls = Some(tls);
}

/// Omits the text, which may be a key.
impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(_) => f.write_str(".."),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}
