//! Sets up TLS, and says what may be wrong if it fails.
//!
//! An error in the configuration shows when the client is made. An error of a server shows at each connection, and
//! [`advice`] puts it into words.

use std::error::Error as StdError;
use std::fs;
use std::io;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{AlertDescription, CertificateError, ClientConfig, ClientConnection, RootCertStore};
use rustls_native_certs::load_native_certs;

use super::secured::Secured;
use super::socket::Socket;
use crate::config::tls::{Certificate, Pem, Tls};
use crate::error::Error;

const NO_PROVIDER: &str = "TLS has no provider of cryptography: choose one of the features `tls-aws-lc-rs` and `tls-ring` \
     of redlatch, or call CryptoProvider::install_default of rustls before the client is built, or pass a rustls \
     configuration to Tls::rustls";

/// The settings that all connections over TLS share.
///
/// Cheap to clone.
#[derive(Clone)]
pub(super) struct TlsDialer {
    /// Authorities, and the client's certificate if there is one.
    rustls: Arc<ClientConfig>,
    /// The name by which servers prove their identity, if that is not their host.
    server_name: Option<String>,
}

impl TlsDialer {
    /// Reads the certificates, and returns `Err` if TLS cannot be set up with them.
    pub(super) fn new(tls: &Tls) -> Result<Self, Error> {
        let connector = Self {
            rustls: match &tls.rustls {
                Some(given) => given.0.clone(),
                None => configuration(tls)?.into(),
            },
            server_name: tls.server_name.clone(),
        };
        // Checks the configured server name now, not at each connection; `localhost` itself is always valid.
        connector.name("localhost").map_err(|error| {
            Error::invalid("the server name for TLS is not the name of a host").caused_by(error)
        })?;
        Ok(connector)
    }

    /// Returns the name by which the server at this host proves its identity.
    pub(super) fn server_name<'a>(&'a self, host: &'a str) -> &'a str {
        self.server_name.as_deref().unwrap_or(host)
    }

    /// Sets up TLS on a connection to `host`.
    ///
    /// Fails if the server does not prove that it has this name, or that of the configuration.
    pub(super) async fn secure(&self, host: &str, socket: Arc<dyn Socket>) -> io::Result<Secured> {
        let session = ClientConnection::new(self.rustls.clone(), self.name(host)?);
        Secured::open(socket, session.map_err(io::Error::other)?).await
    }

    /// Returns the same name as a type of rustls.
    fn name(&self, host: &str) -> io::Result<ServerName<'static>> {
        let name = self.server_name(host).to_owned();
        ServerName::try_from(name).map_err(io::Error::other)
    }
}

/// Makes a configuration from the certificates.
fn configuration(tls: &Tls) -> Result<ClientConfig, Error> {
    let roots = roots(tls)?;
    let builder = ClientConfig::builder_with_provider(provider()?)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::invalid("TLS cannot be set up").caused_by(error))?
        .with_root_certificates(roots);
    let Some(Certificate { chain, key }) = &tls.certificate else {
        return Ok(builder.with_no_client_auth());
    };
    let chain = certificates("the client certificate", chain)?;
    let built = builder.with_client_auth_cert(chain, private_key(key)?);
    built.map_err(|error| {
        Error::invalid("the client certificate and its key do not match").caused_by(error)
    })
}

/// Returns the cryptography provider that the crate features choose, or else that of the process.
///
/// The choice is never left to rustls, which panics if the application links two providers and has chosen none.
fn provider() -> Result<Arc<CryptoProvider>, Error> {
    #[cfg(all(feature = "tls-aws-lc-rs", not(feature = "tls-ring")))]
    let provider = Some(Arc::new(rustls::crypto::aws_lc_rs::default_provider()));
    #[cfg(all(feature = "tls-ring", not(feature = "tls-aws-lc-rs")))]
    let provider = Some(Arc::new(rustls::crypto::ring::default_provider()));
    // With both features, neither is chosen.
    #[cfg(any(
        all(feature = "tls-aws-lc-rs", feature = "tls-ring"),
        not(any(feature = "tls-aws-lc-rs", feature = "tls-ring"))
    ))]
    let provider = CryptoProvider::get_default().cloned();
    provider.ok_or_else(|| Error::invalid(NO_PROVIDER))
}

/// Returns the configured authorities, or else those of the system.
///
/// rustls cannot use some of those of a system; one that it can use is enough.
fn roots(tls: &Tls) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    match &tls.roots {
        None => {
            // Unusable certificates are ignored, unless none is left.
            roots.add_parsable_certificates(load_native_certs().certs);
            if roots.is_empty() {
                return Err(Error::invalid(
                    "no certificate authority is installed on this system; give one with Tls::roots_file, or \
                     ?tls_roots=.. in the URL",
                ));
            }
        }
        Some(pem) => {
            for certificate in certificates("the root certificates", pem)? {
                roots.add(certificate).map_err(|error| {
                    Error::invalid("a root certificate cannot be used").caused_by(error)
                })?;
            }
        }
    }
    Ok(roots)
}

/// Reads certificates in PEM: at least one, otherwise returns `Err`.
fn certificates(what: &str, pem: &Pem) -> Result<Vec<CertificateDer<'static>>, Error> {
    let text = read(what, pem)?;
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match read {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        Ok(_) => Err(Error::invalid(format!(
            "{what} {pem:?}: there is no certificate in PEM format"
        ))),
        Err(error) => {
            let text = format!("{what} {pem:?} cannot be parsed: {error}");
            Err(Error::invalid(text).caused_by(error))
        }
    }
}

fn private_key(pem: &Pem) -> Result<PrivateKeyDer<'static>, Error> {
    let text = read("the private key", pem)?;
    PrivateKeyDer::from_pem_slice(&text).map_err(|error| {
        // The error may contain a piece of the key, so it is dropped.
        drop(error);
        Error::invalid(format!(
            "the private key {pem:?} is not a key in PEM format"
        ))
    })
}

/// Reads the bytes of a text or a file. `what` names it in an error.
fn read(what: &str, pem: &Pem) -> Result<Vec<u8>, Error> {
    match pem {
        Pem::Text(text) => Ok(text.clone().into_bytes()),
        Pem::File(path) => fs::read(path).map_err(|error| {
            let text = format!("{what} {} cannot be read: {error}", path.display());
            Error::invalid(text).caused_by(error)
        }),
    }
}

/// Returns rustls's error, if the I/O error comes from TLS itself.
pub(super) fn fault(error: &io::Error) -> Option<&rustls::Error> {
    let error = error.get_ref()? as &(dyn StdError + 'static);
    error.downcast_ref()
}

/// Returns what may be wrong if TLS fails, as far as the error tells.
///
/// Only an error of rustls gives more to go by than its text.
pub(super) fn advice(error: &io::Error) -> Option<&'static str> {
    match fault(error)? {
        rustls::Error::InvalidMessage(_) => {
            Some("it does not use TLS; without TLS, the URL begins with redis://")
        }
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) => Some(
            "no trusted authority signed its certificate; give the authority with Tls::roots_file, or ?tls_roots=.. in \
             the URL",
        ),
        rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => Some(
            "its certificate is for another host; give that host with Tls::server_name, or ?tls_server_name=.. in the URL",
        ),
        rustls::Error::InvalidCertificate(
            CertificateError::Expired | CertificateError::ExpiredContext { .. },
        ) => Some("its certificate has expired, or the clock of this machine is ahead"),
        rustls::Error::InvalidCertificate(
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. },
        ) => Some("its certificate is not valid yet, or the clock of this machine is behind"),
        rustls::Error::AlertReceived(AlertDescription::CertificateRequired) => Some(
            "it needs a client certificate; give one with Tls::certificate_files, or ?tls_certificate=..&tls_key=.. in the \
             URL",
        ),
        rustls::Error::AlertReceived(
            AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::DecryptError,
        ) => Some("it does not accept the client certificate"),
        _ => None,
    }
}
