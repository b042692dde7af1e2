//! Where a client is told to connect: a URL, as a configuration of fred.

use fred::types::RespVersion;
use fred::types::config::{Config, ServerConfig};

use crate::error::Error;

/// The configuration that a URL stands for.
pub(crate) fn parse(url: &str) -> Result<Config, Error> {
    let Some((scheme, rest)) = url.split_once("://") else {
        return Err(unknown_scheme());
    };
    let (base, suffix) = match scheme.split_once('-') {
        Some((base, _)) => scheme.split_at(base.len()),
        None => (scheme, ""),
    };
    let tls = match base {
        "redis" | "valkey" => false,
        "rediss" | "valkeys" => true,
        _ => return Err(unknown_scheme()),
    };
    if !matches!(suffix, "" | "-sentinel" | "-cluster") {
        return Err(unknown_scheme());
    }
    // fred would read the certificates of the system by itself, but panics if an application has two providers of
    // cryptography in its tree; so it is shown a URL without TLS.
    let mut config = Config::from_url(&format!("redis{suffix}://{rest}")).map_err(|error| {
        Error::invalid("the server's URL cannot be understood; it looks like redis://user:password@host:6379/0")
            .caused_by(error)
    })?;
    if tls {
        secure(&mut config)?;
    }
    config.version = RespVersion::RESP3;
    Ok(config)
}

/// The URL may hold a password: it is never repeated.
fn unknown_scheme() -> Error {
    Error::invalid(
        "a server's URL begins with redis://, redis-sentinel:// or redis-cluster://, or with rediss for TLS",
    )
}

#[cfg(feature = "tls")]
fn secure(config: &mut Config) -> Result<(), Error> {
    use fred::rustls::{ClientConfig, RootCertStore, crypto};

    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(fred::rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err(Error::invalid(
            "no certificate authority is installed on this system; give a TLS configuration by ClientBuilder::config",
        ));
    }
    let tls = ClientConfig::builder_with_provider(crypto::ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::invalid("TLS cannot be set up").caused_by(error))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.tls = Some(tls.into());
    Ok(())
}

#[cfg(not(feature = "tls"))]
fn secure(_: &mut Config) -> Result<(), Error> {
    Err(Error::invalid(
        "a rediss:// URL needs the feature `tls` of redlatch",
    ))
}

/// Where a client connects if it is not told.
pub(crate) fn default() -> Config {
    Config {
        server: ServerConfig::default(),
        version: RespVersion::RESP3,
        ..Config::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn urls_that_cannot_work_are_refused_without_repeating_them() {
        for url in [
            "",
            "localhost",
            "http://u:secret@h",
            "redis://u:secret@h:notaport",
            "redis://:secret@",
        ] {
            let error = parse(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{url}");
            let shown = format!("{error} {error:?}");
            assert!(!shown.contains("secret"), "{shown}");
        }
        for url in [
            "redis://h",
            "redis://u:p@h:1/3",
            "valkey://h",
            "redis-sentinel://h?sentinelServiceName=m",
        ] {
            assert!(parse(url).is_ok(), "{url}");
        }
    }
}
