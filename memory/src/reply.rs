//! What a command answers, and its form on the wire in both versions of the protocol.

/// The words in which a command is refused, with their code in front.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Refusal(pub(crate) String);

/// The answer to a command.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reply {
    Status(String),
    Integer(i64),
    Bulk(Vec<u8>),
    Score(f64),
    Nil,
    List(Vec<Self>),
    /// Names and values, which are a map in RESP3 and a flat list otherwise.
    Map(Vec<(Vec<u8>, Vec<u8>)>),
    /// Members with their scores: a list of pairs in RESP3, and a flat list otherwise.
    Scored(Vec<(Vec<u8>, f64)>),
    /// Not an answer in RESP3, but something said without being asked.
    Push(Vec<Self>),
    Refusal(Refusal),
}

/// What a command returns: an answer, or the words in which it is refused.
pub(crate) type Answer = Result<Reply, Refusal>;

impl Refusal {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub(crate) fn wrong_type() -> Self {
        Self::new("WRONGTYPE Operation against a key holding the wrong kind of value")
    }

    pub(crate) fn syntax() -> Self {
        Self::new("ERR syntax error")
    }

    pub(crate) fn no_integer() -> Self {
        Self::new("ERR value is not an integer or out of range")
    }
}

impl From<Answer> for Reply {
    fn from(answer: Answer) -> Self {
        answer.unwrap_or_else(Self::Refusal)
    }
}

impl Reply {
    pub(crate) fn ok() -> Self {
        Self::Status("OK".to_owned())
    }

    pub(crate) fn bulk(bytes: impl Into<Vec<u8>>) -> Self {
        Self::Bulk(bytes.into())
    }

    pub(crate) fn bulks(all: impl IntoIterator<Item = impl Into<Vec<u8>>>) -> Self {
        Self::List(all.into_iter().map(Self::bulk).collect())
    }

    pub(crate) fn count(number: usize) -> Self {
        Self::Integer(number as i64)
    }

    /// Returns the reply in the form that it has in RESP2, without [`Score`](Self::Score), [`Map`](Self::Map),
    /// [`Scored`](Self::Scored) and [`Push`](Self::Push).
    pub(crate) fn flat(self) -> Self {
        match self {
            Self::Score(score) => Self::bulk(score_text(score)),
            Self::Map(pairs) => {
                Self::bulks(pairs.into_iter().flat_map(|(name, value)| [name, value]))
            }
            Self::Scored(scored) => Self::bulks(
                scored
                    .into_iter()
                    .flat_map(|(member, score)| [member, score_text(score).into_bytes()]),
            ),
            Self::List(items) | Self::Push(items) => {
                Self::List(items.into_iter().map(Self::flat).collect())
            }
            plain => plain,
        }
    }

    /// Appends the bytes of the reply in RESP3, or in RESP2.
    pub(crate) fn write(self, is_resp3: bool, out: &mut Vec<u8>) {
        match if is_resp3 { self } else { self.flat() } {
            Self::Status(text) => line(out, b'+', &text),
            Self::Refusal(Refusal(text)) => line(out, b'-', &text.replace(['\r', '\n'], " ")),
            Self::Integer(number) => line(out, b':', &number.to_string()),
            Self::Bulk(bytes) => bulk(out, &bytes),
            Self::Nil if is_resp3 => out.extend_from_slice(b"_\r\n"),
            Self::Nil => out.extend_from_slice(b"$-1\r\n"),
            Self::Score(score) => line(out, b',', &score_text(score)),
            Self::Map(pairs) => {
                line(out, b'%', &pairs.len().to_string());
                for bytes in pairs.into_iter().flat_map(|(name, value)| [name, value]) {
                    bulk(out, &bytes);
                }
            }
            Self::Scored(scored) => {
                line(out, b'*', &scored.len().to_string());
                for (member, score) in scored {
                    out.extend_from_slice(b"*2\r\n");
                    bulk(out, &member);
                    line(out, b',', &score_text(score));
                }
            }
            Self::Push(items) => {
                line(out, b'>', &items.len().to_string());
                items.into_iter().for_each(|item| item.write(is_resp3, out));
            }
            Self::List(items) => {
                line(out, b'*', &items.len().to_string());
                items.into_iter().for_each(|item| item.write(is_resp3, out));
            }
        }
    }
}

fn line(out: &mut Vec<u8>, mark: u8, text: &str) {
    out.push(mark);
    out.extend_from_slice(text.as_bytes());
    out.extend_from_slice(b"\r\n");
}

fn bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    line(out, b'$', &bytes.len().to_string());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// Writes a number as the server does: whole ones without a point.
pub(crate) fn score_text(score: f64) -> String {
    match score {
        _ if score.is_infinite() => if score > 0.0 { "inf" } else { "-inf" }.to_owned(),
        _ if score.fract() == 0.0 && score.abs() < 1e17 => format!("{score:.0}"),
        _ if score.abs() >= 1e17 => format!("{score:e}").replace('e', "e+"),
        _ => score.to_string(),
    }
}
