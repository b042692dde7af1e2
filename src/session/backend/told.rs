//! The pub/sub messages of a connection: the commands about channels, and the parser of what arrives.

use super::resp::Heard;
use crate::protocol::reply::Reply;

pub(super) const PING: &str = "PING";

/// The commands about channels. The server confirms each with a message that begins with the same word.
const COMMANDS: [&str; 4] = ["SUBSCRIBE", "SSUBSCRIBE", "UNSUBSCRIBE", "SUNSUBSCRIBE"];

/// A message or an answer that has arrived.
#[derive(Debug, PartialEq)]
pub(super) enum Told {
    Message {
        channel: String,
        text: String,
    },
    /// A subscription began or ended. Names the command that asks for this, and the channel.
    Done(&'static str, String),
    Pong,
    Refused(String),
}

/// Parses what has arrived, in either version of the protocol. Returns `None` if it is neither a message nor an answer.
///
/// A message that names the command confirms a subscription; a reply does not.
pub(super) fn told(heard: Heard) -> Option<Told> {
    let parts = match heard {
        Heard::Reply(Err(text)) => return Some(Told::Refused(text)),
        Heard::Reply(Ok(Reply::List(parts))) | Heard::Push(parts) => parts,
        Heard::Reply(Ok(_)) => return Some(Told::Pong),
    };
    let mut texts = parts.into_iter().filter_map(|part| match part {
        Reply::Text(text) => Some(text),
        _ => None,
    });
    let (kind, channel) = (texts.next()?, texts.next()?);
    let kind = kind.to_uppercase();
    Some(match &*kind {
        "MESSAGE" | "SMESSAGE" => Told::Message {
            channel,
            text: texts.next().unwrap_or_default(),
        },
        // In RESP2 a connection with subscriptions answers a PING with a list.
        "PONG" => Told::Pong,
        kind => Told::Done(COMMANDS.into_iter().find(|word| *word == kind)?, channel),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_and_answers_are_read_in_both_versions() {
        let text = |text: &str| Reply::Text(text.to_owned());
        let row = |kind: &str| vec![text(kind), text("ch"), Reply::Integer(1)];
        let both = |kind: &str| {
            let newer = told(Heard::Push(row(kind)));
            assert_eq!(newer, told(Heard::Reply(Ok(Reply::List(row(kind))))));
            newer
        };
        for kind in ["message", "smessage"] {
            let (channel, text) = ("ch".to_owned(), String::new());
            assert_eq!(both(kind), Some(Told::Message { channel, text }));
        }
        for command in COMMANDS {
            let kind = command.to_lowercase();
            assert_eq!(both(&kind), Some(Told::Done(command, "ch".into())));
        }
        assert_eq!(both("invalidate"), None);
        let pong = Reply::List(vec![text("pong"), text("")]);
        for pong in [text("PONG"), pong] {
            assert_eq!(told(Heard::Reply(Ok(pong))), Some(Told::Pong));
        }
        let refused = told(Heard::Reply(Err("NOPERM".into())));
        assert_eq!(refused, Some(Told::Refused("NOPERM".into())));
        assert_eq!(told(Heard::Push(Vec::new())), None);
    }
}
