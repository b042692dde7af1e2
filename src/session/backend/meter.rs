//! The traffic counters of connections, as a trait.

use std::fmt;

use crate::clock::BootInstant;

/// Counts what goes over the connections of a client. Every request calls it, so it must not block.
pub(crate) trait Meter: fmt::Debug + Send + Sync {
    /// A connection for commands was made, `again` if another one broke before.
    fn connected(&self, again: bool);

    /// A connection for commands has ended.
    fn disconnected(&self);

    /// A request of this size was given to a connection.
    fn requested(&self, bytes: usize);

    /// This much arrived on a connection for commands.
    fn received(&self, bytes: usize);

    /// The reply has arrived to a request that was given to the connection at `since`.
    fn replied(&self, since: BootInstant);

    /// A message was published on a channel that the client listens to.
    fn messaged(&self);
}

/// Counts a connection for commands as open, until dropped.
#[must_use = "the connection counts as closed when this is dropped"]
pub(super) struct OpenConnection<'a>(&'a dyn Meter);

impl<'a> OpenConnection<'a> {
    /// Counts a connection, which was made `again` if another one broke before.
    pub(super) fn new(meter: &'a dyn Meter, again: bool) -> Self {
        meter.connected(again);
        Self(meter)
    }
}

impl Drop for OpenConnection<'_> {
    fn drop(&mut self) {
        self.0.disconnected();
    }
}
