//! Connects to the server that the options name.

use std::time::Duration;

use redlatch::{Client, ClientBuilder};
use rustls::crypto::ring;

use crate::args::Server;
use crate::exit::Failure;

/// Returns a builder for a client of the server that the options name.
pub(crate) fn builder(server: &Server) -> Result<ClientBuilder, Failure> {
    let url = server.url.as_deref().filter(|url| !url.is_empty());
    let url = url.ok_or_else(|| {
        Failure::usage("no server is named: set REDIS_URL, or use --url redis://HOST:6379")
    })?;
    // For TLS. It fails if a provider was chosen before, which is as good.
    drop(ring::default_provider().install_default());
    let mut builder = Client::builder().url(url).command_timeout(server.timeout);
    if let Some(prefix) = server.prefix.as_deref().filter(|prefix| !prefix.is_empty()) {
        builder = builder.name_prefix(prefix);
    }
    Ok(builder)
}

/// Connects with default settings.
pub(crate) async fn connect(server: &Server) -> Result<Client, Failure> {
    Ok(builder(server)?.build().await?)
}

/// Returns the seconds of a span, for JSON.
pub(crate) fn seconds(span: Option<Duration>) -> Option<f64> {
    span.map(|span| span.as_millis() as f64 / 1_000.0)
}
