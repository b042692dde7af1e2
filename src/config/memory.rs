//! The configuration of a client whose server is in memory.

use std::future::ready;

use super::Config;
use super::server::PORT;
use crate::memory::MemoryServer;

impl MemoryServer {
    /// Returns the configuration that leads to this server, for
    /// [`ClientBuilder::config`](crate::ClientBuilder::config).
    ///
    /// The client keeps the server. A password and a database may be set as for any server, and any password lets the
    /// user `default` in; there is no other user. A URL for this server does not exist.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), redlatch::Error> {
    /// use std::time::Duration;
    /// use redlatch::{Client, MemoryServer};
    ///
    /// let server = MemoryServer::new();
    /// let one = Client::builder().config(server.config()).build().await?;
    /// let two = Client::builder()
    ///     .config(server.config())
    ///     .watchdog_lease(Duration::from_secs(5)) // all settings work as with other servers
    ///     .build()
    ///     .await?;
    ///
    /// let guard = one.lock("orders:42").lock().await?;
    /// assert!(two.lock("orders:42").try_lock().await?.is_none());
    /// guard.unlock().await?;
    /// # Ok(()) }
    /// ```
    pub fn config(&self) -> Config {
        let server = self.clone();
        Config::server(self.to_string(), PORT).connector(move |_| ready(server.connect()))
    }
}
