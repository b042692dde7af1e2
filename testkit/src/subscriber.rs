use std::time::{Duration, Instant};

use crate::connection::Connection;

/// A connection that receives the messages of its channels.
#[derive(Debug)]
pub struct Subscriber {
    connection: Connection,
}

impl Subscriber {
    #[track_caller]
    pub(crate) fn new(mut connection: Connection, channels: &[impl AsRef<str>]) -> Self {
        for channel in channels {
            let confirmed = connection.command(&["SUBSCRIBE", channel.as_ref()]);
            assert_eq!(confirmed.array()[0].text(), "subscribe");
        }
        Self { connection }
    }

    /// Returns the channel and payload of the next message, or `None` if none arrives within `timeout`.
    #[track_caller]
    pub fn next(&mut self, timeout: Duration) -> Option<(String, String)> {
        let deadline = Instant::now() + timeout;
        while self
            .connection
            .is_readable(deadline.saturating_duration_since(Instant::now()))
        {
            if let [kind, channel, payload] = &self.connection.receive().array()[..]
                && kind.text() == "message"
            {
                return Some((channel.text(), payload.text()));
            }
        }
        None
    }
}
