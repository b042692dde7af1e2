//! What TLS is set up with.

use std::fmt;
use std::path::PathBuf;

use crate::error::Error;

/// Sets up TLS: whom to trust, and how to prove who we are. By rustls. Taken by [`Config::tls`](crate::Config::tls).
///
/// Certificates and keys are given in PEM, as text or by the path of a file. Files are read when the client is built;
/// what cannot be read or is none is [`InvalidInput`](crate::ErrorKind::InvalidInput) then.
///
/// # Examples
///
/// ```no_run
/// # async fn f() -> Result<(), redlatch::Error> {
/// use redlatch::{Client, Config, Tls};
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
    /// The system's, if none are given.
    pub(crate) roots: Option<Pem>,
    pub(crate) certificate: Option<Certificate>,
    pub(crate) server_name: Option<String>,
}

/// Proves who the client is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Certificate {
    pub(crate) chain: Pem,
    pub(crate) key: Pem,
}

/// A text in PEM, or where it is.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Pem {
    Text(String),
    File(PathBuf),
}

impl Tls {
    /// Trusts the authorities that this system trusts, and shows no certificate.
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts the authorities with these certificates, and not those of the system.
    pub fn roots(mut self, pem: impl Into<String>) -> Self {
        self.roots = Some(Pem::Text(pem.into()));
        self
    }

    /// Trusts the authorities with the certificates in this file, and not those of the system.
    pub fn roots_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.roots = Some(Pem::File(path.into()));
        self
    }

    /// Shows the server this certificate, followed by those that it hangs on, and proves it with this private key.
    pub fn certificate(mut self, chain: impl Into<String>, key: impl Into<String>) -> Self {
        self.certificate = Some(Certificate {
            chain: Pem::Text(chain.into()),
            key: Pem::Text(key.into()),
        });
        self
    }

    /// Shows the server the certificate in one file, and proves it with the private key in another; both may be in one.
    pub fn certificate_files(mut self, chain: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.certificate = Some(Certificate {
            chain: Pem::File(chain.into()),
            key: Pem::File(key.into()),
        });
        self
    }

    /// Expects the certificates of all servers to be for this name, whatever the host is that was connected to: for
    /// servers that are reached by an address, through a tunnel, or that a cluster or sentinels name by address.
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.server_name = Some(name.into());
        self
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        match &self.server_name {
            Some(name) if name.is_empty() => {
                Err(Error::invalid("the server name for TLS is empty"))
            }
            _ => Ok(()),
        }
    }
}

/// Without the text, which may be a key.
impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(_) => f.write_str(".."),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}
