//! Encodes requests as RESP, and decodes replies within bounds.

use std::str::FromStr;

use bytes::{Buf, BytesMut};

use crate::error::quote;
use crate::protocol::reply::Reply;
use crate::protocol::script::{Arg, Script};

/// The longest reply, in bytes. Scripts of this crate answer with a few kilobytes. The slot table of a large cluster is
/// longer, and so may be a foreign hash that a caller asks about.
const LONGEST: usize = 8 << 20;
/// The most parts of a reply. Each part takes some hundred bytes until it is read.
const MOST_PARTS: usize = 1 << 18;
/// The deepest nesting of lists. No script answers with more than three levels, `CLUSTER SLOTS` with four.
const DEEPEST: usize = 8;

/// A server's reply: an answer, or the words in which it refused.
pub(super) type Said = Result<Reply, String>;

/// A reply or a push that arrived on a connection.
///
/// Told apart by the first byte of the frame.
#[derive(Debug, PartialEq)]
pub(super) enum Heard {
    Reply(Said),
    /// What the server sends without being asked, such as a message on a channel. In RESP2, it looks like a reply.
    Push(Vec<Reply>),
}

/// The protocol version that a connection speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    Resp2,
    Resp3,
}

/// Commands as they are sent, one directly after the other.
///
/// Given to a connection as a whole, so nothing comes in between.
#[derive(Debug, Default)]
pub(super) struct WireRequest {
    bytes: Vec<u8>,
    /// How many there are. Each has one reply.
    commands: usize,
    /// The script that the last command runs, if it runs one.
    script: Option<&'static Script>,
    /// Whether that command has the text of the script instead of its hash.
    is_whole: bool,
}

impl WireRequest {
    /// Creates a request of one command with these words.
    pub(super) fn of(words: &[&str]) -> Self {
        Self::default().then(words)
    }

    /// Creates a request to add a command to, which goes behind ASKING if the slot is being moved to its server.
    ///
    /// Both go in one piece: a command between them would use up the permission.
    pub(super) fn asking(asking: bool) -> Self {
        match asking {
            true => Self::of(&["ASKING"]),
            false => Self::default(),
        }
    }

    /// Adds a command with these words.
    pub(super) fn then(self, words: &[&str]) -> Self {
        let words = words.iter().map(|word| Arg::Text(word));
        self.and(words.len(), words, "")
    }

    /// Adds a command of `length` words. [`Arg::Publish`] stands for the word `publish`.
    ///
    /// `length` is a parameter, since it comes first on the wire.
    pub(super) fn and<'a>(
        mut self,
        length: usize,
        words: impl Iterator<Item = Arg<'a>> + Clone,
        publish: &str,
    ) -> Self {
        self.commands += 1;
        let longest = words.clone().map(|word| match word {
            Arg::Text(text) => LONGEST_HEADER + text.len(),
            Arg::Publish => LONGEST_HEADER + publish.len(),
            Arg::Number(_) => LONGEST_HEADER + LONGEST_NUMBER,
        });
        // Reserved at once: to grow the buffer piece by piece would cost more than everything else here.
        self.bytes.reserve(LONGEST_HEADER + longest.sum::<usize>());
        self.header(b'*', length);
        for word in words {
            match word {
                Arg::Text(text) => self.word(text.as_bytes()),
                Arg::Publish => self.word(publish.as_bytes()),
                Arg::Number(number) => {
                    let mut digits = [0; LONGEST_NUMBER];
                    self.word(decimal(number, &mut digits));
                }
            }
        }
        self
    }

    /// Records the script that the last command runs, and whether it is sent as a whole.
    pub(super) fn runs(mut self, script: &'static Script, is_whole: bool) -> Self {
        self.script = Some(script);
        self.is_whole = is_whole;
        self
    }

    /// Returns the script that the last command runs: its reply shows that the server has it.
    pub(super) fn script(&self) -> Option<&'static Script> {
        self.script
    }

    /// Returns the script whose text is in the last command: the server has it for the commands behind this one.
    pub(super) fn brings(&self) -> Option<&'static Script> {
        self.script.filter(|_| self.is_whole)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns how many replies there will be.
    pub(super) fn commands(&self) -> usize {
        self.commands
    }

    /// Adds a word, as a bulk string.
    fn word(&mut self, word: &[u8]) {
        self.header(b'$', word.len());
        self.bytes.extend_from_slice(word);
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// Adds a line that announces a length, as one piece.
    fn header(&mut self, mark: u8, length: usize) {
        let mut line = [0; LONGEST_NUMBER + 2];
        let (number, end) = line.split_at_mut(LONGEST_NUMBER);
        let start = number.len() - decimal(length as i64, number).len() - 1;
        number[start] = mark;
        end.copy_from_slice(b"\r\n");
        self.bytes.extend_from_slice(&line[start..]);
    }
}

/// The most characters of a 64-bit number, its sign included.
const LONGEST_NUMBER: usize = 20;
/// The most bytes around a word: its mark, its length, and two line ends. No length has more than 8 digits.
const LONGEST_HEADER: usize = 1 + 8 + 4;

/// Writes `number` to the end of `digits`, without an allocation, and returns the part that it takes.
fn decimal(number: i64, digits: &mut [u8]) -> &[u8] {
    let mut rest = number.unsigned_abs();
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if number < 0 {
        at -= 1;
        digits[at] = b'-';
    }
    &digits[at..]
}

/// Why the bytes that arrived are not a reply, or not one within the bounds. Where later replies begin is then unknown
/// too.
#[derive(Debug, thiserror::Error)]
pub(super) enum Garbled {
    #[error(
        "a reply of the server is longer than {LONGEST} bytes, or has more than {MOST_PARTS} parts"
    )]
    TooLong,
    #[error("a reply of the server is nested more than {DEEPEST} deep")]
    TooDeep,
    #[error("the server sent something that is not a reply of its protocol")]
    NoReply,
}

/// Takes the first complete reply out of the bytes that have arrived, and skips pushes. Returns `None` if there is none
/// yet.
///
/// For connections that subscribe to nothing.
pub(super) fn take(arrived: &mut BytesMut) -> Result<Option<Said>, Garbled> {
    loop {
        match next(arrived)? {
            Some(Heard::Reply(said)) => return Ok(Some(said)),
            Some(Heard::Push(_)) => {}
            None => return Ok(None),
        }
    }
}

/// Takes the first complete reply or push out of the bytes that have arrived, in either version of the protocol.
/// Returns `None` if there is none yet.
///
/// On an error the bytes stay where they are; nothing after them can be read.
pub(super) fn next(arrived: &mut BytesMut) -> Result<Option<Heard>, Garbled> {
    let mut reader = Reader {
        arrived: &*arrived,
        at: 0,
        parts: 0,
    };
    let reply = match reader.value(0) {
        Ok(reply) => reply,
        Err(NoValue::Incomplete) => return Ok(None),
        Err(NoValue::Garbled(garbled)) => return Err(garbled),
    };
    let (length, is_push) = (reader.at, arrived.starts_with(b">"));
    arrived.advance(length);
    Ok(Some(match reply {
        Reply::List(parts) if is_push => Heard::Push(parts),
        Reply::Refusal(text) => Heard::Reply(Err(text)),
        reply => Heard::Reply(Ok(reply)),
    }))
}

/// Why there is no value.
enum NoValue {
    /// More has to arrive.
    Incomplete,
    Garbled(Garbled),
}

impl From<Garbled> for NoValue {
    fn from(garbled: Garbled) -> Self {
        Self::Garbled(garbled)
    }
}

/// Reads values one after the other.
///
/// A value that arrives in pieces is read from its beginning each time. A length takes no memory before its bytes are
/// there, and one beyond the bounds is refused at once.
struct Reader<'a> {
    arrived: &'a [u8],
    /// How many bytes have been read.
    at: usize,
    /// How many values have been begun.
    parts: usize,
}

impl<'a> Reader<'a> {
    /// Reads the next value, which lies within `depth` lists. A type that answers no command of this crate becomes
    /// [`Reply::Nil`].
    fn value(&mut self, depth: usize) -> Result<Reply, NoValue> {
        self.parts += 1;
        if self.parts > MOST_PARTS {
            return Err(Garbled::TooLong.into());
        }
        let (mark, line) = self.line()?;
        Ok(match mark {
            b'$' | b'*' if line == b"-1" => Reply::Nil,
            b'_' | b',' | b'#' | b'(' => Reply::Nil,
            b':' => Reply::Integer(number(line)?),
            b'+' => Reply::Text(text(line)),
            b'$' => Reply::Text(text(self.bulk(line)?)),
            // Its first four bytes name the format of the text.
            b'=' => Reply::Text(text(self.bulk(line)?.get(4..).ok_or(Garbled::NoReply)?)),
            b'-' => refusal(line),
            b'!' => refusal(self.bulk(line)?),
            b'*' | b'~' | b'>' => self.list(number(line)?, depth)?,
            // As in RESP2: names and values in turn.
            b'%' => self.list(number::<usize>(line)?.saturating_mul(2), depth)?,
            _ => return Err(Garbled::NoReply.into()),
        })
    }

    /// Reads `members` values, one list deeper than `depth`.
    fn list(&mut self, members: usize, depth: usize) -> Result<Reply, NoValue> {
        if members > 0 && depth == DEEPEST {
            return Err(Garbled::TooDeep.into());
        }
        let members = (0..members).map(|_| self.value(depth + 1));
        members.collect::<Result<_, _>>().map(Reply::List)
    }

    /// Reads a line, and returns its mark and the rest.
    fn line(&mut self) -> Result<(u8, &'a [u8]), NoValue> {
        let rest = &self.arrived[self.at..];
        let Some(end) = rest.iter().position(|byte| *byte == b'\n') else {
            // The length of a line is bounded too.
            bounded(self.arrived.len())?;
            return Err(NoValue::Incomplete);
        };
        self.at += end + 1;
        bounded(self.at)?;
        match &rest[..end] {
            [mark, text @ .., b'\r'] => Ok((*mark, text)),
            _ => Err(Garbled::NoReply.into()),
        }
    }

    /// Reads as many bytes as `line` announces.
    fn bulk(&mut self, line: &[u8]) -> Result<&'a [u8], NoValue> {
        let end = number::<usize>(line)?.saturating_add(self.at + 2);
        bounded(end)?;
        let bytes = self.arrived.get(self.at..end).ok_or(NoValue::Incomplete)?;
        self.at = end;
        Ok(bytes.strip_suffix(b"\r\n").ok_or(Garbled::NoReply)?)
    }
}

/// Returns `Err` for a reply that is longer than [`LONGEST`].
fn bounded(length: usize) -> Result<(), Garbled> {
    match length > LONGEST {
        true => Err(Garbled::TooLong),
        false => Ok(()),
    }
}

fn number<T: FromStr>(line: &[u8]) -> Result<T, Garbled> {
    let digits = str::from_utf8(line).map_err(|_| Garbled::NoReply)?;
    digits.parse().map_err(|_| Garbled::NoReply)
}

/// A refusal, cut to the length that errors show.
fn refusal(bytes: &[u8]) -> Reply {
    Reply::Refusal(quote(format_args!("{}", text(bytes))))
}

/// Returns bytes as text, with what is not UTF-8 replaced: a server may cut a name in the middle of a character.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::test_runner::{Config, TestRunner};

    use super::*;

    fn replies(bytes: &[u8]) -> Result<Vec<Said>, Garbled> {
        let mut arrived = BytesMut::from(bytes);
        let mut replies = Vec::new();
        while let Some(said) = take(&mut arrived)? {
            replies.push(said);
        }
        Ok(replies)
    }

    fn texts(items: &[&str]) -> Reply {
        Reply::List(
            items
                .iter()
                .map(|text| Reply::Text((*text).into()))
                .collect(),
        )
    }

    #[test]
    fn a_request_is_written_as_the_protocol_says() {
        let request = WireRequest::of(&["GET", "k"]);
        assert_eq!(request.bytes(), b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n");
        let words = [
            Arg::Text(""),
            Arg::Number(i64::MIN),
            Arg::Publish,
            Arg::Number(0),
        ];
        let request = request.and(4, words.into_iter(), "SPUBLISH");
        assert_eq!(request.commands(), 2);
        let expected = "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n*4\r\n$0\r\n\r\n$20\r\n-9223372036854775808\r\n$8\r\nSPUBLISH\r\n$1\r\n0\r\n";
        assert_eq!(str::from_utf8(request.bytes()).unwrap(), expected);
    }

    #[test]
    fn replies_of_either_version_are_read_and_what_was_not_asked_for_is_passed_over() {
        let three = b">2\r\n+invalidate\r\n*1\r\n$1\r\nk\r\n+OK\r\n:-7\r\n_\r\n*2\r\n$1\r\na\r\n*0\r\n%1\r\n+k\r\n:1\r\n-ERR no\r\n!3\r\nBAD\r\n*2\r\n+done\r\n-NOPERM x\r\n=7\r\ntxt:run\r\n~1\r\n,1.5\r\n";
        let read = replies(three).unwrap();
        let map = Reply::List(vec![Reply::Text("k".into()), Reply::Integer(1)]);
        let list = Reply::List(vec![Reply::Text("a".into()), Reply::List(Vec::new())]);
        let expected = [
            Ok(Reply::Text("OK".into())),
            Ok(Reply::Integer(-7)),
            Ok(Reply::Nil),
            Ok(list),
            Ok(map),
            Err("ERR no".to_owned()),
            Err("BAD".to_owned()),
            Ok(Reply::List(vec![
                Reply::Text("done".into()),
                Reply::Refusal("NOPERM x".into()),
            ])),
            Ok(Reply::Text("run".into())),
            Ok(Reply::List(vec![Reply::Nil])),
        ];
        assert_eq!(read, expected);
        let two = b"*-1\r\n$-1\r\n*2\r\n$2\r\na\n\r\n$0\r\n\r\n-NOPERM x\r\n:3\r\n";
        let expected = [
            Ok(Reply::Nil),
            Ok(Reply::Nil),
            Ok(texts(&["a\n", ""])),
            Err("NOPERM x".to_owned()),
            Ok(Reply::Integer(3)),
        ];
        assert_eq!(replies(two).unwrap(), expected);
    }

    #[test]
    fn a_reply_in_pieces_is_read_when_its_last_byte_is_there() {
        let whole = b"*3\r\n$7\r\ngranted\r\n*2\r\n:1\r\n$2\r\n\r\n\r\n%1\r\n+k\r\n+v\r\n";
        for end in 0..whole.len() {
            let mut arrived = BytesMut::from(&whole[..end]);
            assert!(matches!(take(&mut arrived), Ok(None)), "{end}");
            assert_eq!(arrived.len(), end);
            arrived.extend_from_slice(&whole[end..]);
            assert!(matches!(take(&mut arrived), Ok(Some(Ok(_)))));
            assert!(arrived.is_empty());
        }
    }

    #[test]
    fn what_has_no_bounds_ends_the_reading_and_not_the_process() {
        let deep = "*1\r\n".repeat(2_000_000);
        let garbled = replies(deep.as_bytes());
        assert!(matches!(garbled, Err(Garbled::TooDeep)));
        for long in [
            "$99999999999\r\n",
            "$18446744073709551615\r\n",
            "*1\r\n$9000000\r\n",
        ] {
            let garbled = replies(long.as_bytes());
            assert!(matches!(garbled, Err(Garbled::TooLong)), "{long}");
        }
        let many = [
            b"*300000\r\n".as_slice(),
            b"_\r\n".repeat(300_000).as_slice(),
        ]
        .concat();
        let garbled = replies(&many);
        assert!(matches!(garbled, Err(Garbled::TooLong)));
        // Announced members that do not arrive take no memory.
        assert_eq!(replies(b"*2000000000\r\n").unwrap(), []);
        let endless = vec![b'+'; LONGEST + 1];
        assert!(matches!(replies(&endless), Err(Garbled::TooLong)));
        for nonsense in [
            "x\r\n",
            "\r\n",
            "$x\r\n",
            "$-2\r\n",
            "$1\r\nabc",
            ">-1\r\n",
            "=2\r\nab\r\n",
            ":1x\r\n",
            "*1.5\r\n",
            "+a\n",
            "|1\r\n",
        ] {
            let garbled = replies(nonsense.as_bytes());
            assert!(matches!(garbled, Err(Garbled::NoReply)), "{nonsense:?}");
        }
        let cut = replies(b"-ERR unknown \xc3\r\n").unwrap();
        assert_eq!(cut, [Err("ERR unknown \u{fffd}".to_owned())]);
        let refusal = format!("-ERR {}\r\n", "ä".repeat(2_000_000));
        let said = replies(refusal.as_bytes()).unwrap();
        let [Err(text)] = &said[..] else {
            panic!("{}", said.len());
        };
        assert!(text.len() < 500 && text.starts_with("ERR ä"));
    }

    /// Returns all replies, and how the reading ended.
    fn read(mut arrive: impl FnMut(&mut BytesMut) -> bool) -> String {
        let (mut arrived, mut replies) = (BytesMut::new(), Vec::new());
        while arrive(&mut arrived) {
            loop {
                match take(&mut arrived) {
                    Ok(Some(said)) => replies.push(said),
                    Ok(None) => break,
                    Err(garbled) => return format!("{replies:?}, then {garbled}"),
                }
            }
        }
        format!("{replies:?}, then {} bytes", arrived.len())
    }

    /// Runs once, or for as many seconds as `REDLATCH_SOAK` says, a minute at most.
    #[test]
    fn whatever_arrives_is_read_in_pieces_as_it_is_in_one() {
        let soak = std::env::var("REDLATCH_SOAK").unwrap_or_default();
        let span = Duration::from_secs(soak.parse().unwrap_or(0).min(60));
        let part = prop_oneof![
            "([*$+:_%>~=!#,(-]-?[0-9a-z]{0,2}\r\n){1,12}".prop_map(String::into_bytes),
            "[*>~%][0-6]\r\n".prop_map(String::into_bytes),
            any::<i64>().prop_map(|number| format!(":{number}\r\n").into_bytes()),
            vec(any::<u8>(), 0..64).prop_map(|bytes| {
                let head = format!("${}\r\n", bytes.len()).into_bytes();
                [&head[..], &bytes, b"\r\n"].concat()
            }),
            vec(any::<u8>(), 0..8),
        ];
        let bytes = vec(part, 0..12).prop_map(|parts| parts.concat());
        let pieces = vec(1usize..24, 1..16);
        let started = Instant::now();
        loop {
            let config = Config {
                failure_persistence: None,
                ..Config::default()
            };
            TestRunner::new(config)
                .run(&(&bytes, &pieces), |(bytes, pieces)| {
                    let mut whole = Some(&bytes);
                    let at_once = read(|arrived| {
                        let bytes = whole.take();
                        arrived.extend_from_slice(bytes.map_or(&[], Vec::as_slice));
                        bytes.is_some()
                    });
                    let (mut rest, mut lengths) = (&bytes[..], pieces.iter().cycle());
                    let by_pieces = read(|arrived| {
                        let length = lengths.next().map_or(1, |length| *length);
                        let (piece, behind) = rest.split_at(length.min(rest.len()));
                        arrived.extend_from_slice(piece);
                        rest = behind;
                        !piece.is_empty()
                    });
                    prop_assert_eq!(at_once, by_pieces);
                    Ok(())
                })
                .unwrap();
            if started.elapsed() >= span {
                return;
            }
        }
    }
}
