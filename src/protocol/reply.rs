//! Server answers as data, and the error for an answer that no script of ours gives.

use crate::error::{Error, ErrorKind, quote};

/// An answer of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Nil,
    Integer(i64),
    Text(String),
    List(Vec<Self>),
    /// An error, as an item of a list.
    Refusal(String),
}

/// The answers of scripts over many holds, for each hold: `0` if it is gone, `1` if it stands.
#[cfg(test)]
pub(crate) const STANDS: &[&str] = &["0", "1"];

impl Reply {
    /// Removes and returns the refusal to publish that a script may append to its answer.
    pub(crate) fn take_refusal(&mut self) -> Option<String> {
        let Self::List(items) = self else {
            return None;
        };
        match items.pop_if(|last| matches!(last, Self::Refusal(_)))? {
            Self::Refusal(text) => Some(text),
            _ => None,
        }
    }

    /// Splits an answer into its tag and the items after it.
    pub(crate) fn tagged(&self) -> Option<(&str, &[Self])> {
        match self {
            Self::List(items) => match items.split_first() {
                Some((Self::Text(tag), rest)) => Some((tag, rest)),
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns the value of `name` in a list of alternating names and values.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let Self::List(items) = self else {
            return None;
        };
        items.chunks(2).find_map(|pair| match pair {
            [Self::Text(field), Self::Text(value)] if field == name => Some(&**value),
            _ => None,
        })
    }

    /// Returns the value of one line of an `INFO` answer.
    pub(crate) fn info(&self, what: &str) -> Option<&str> {
        let Self::Text(text) = self else {
            return None;
        };
        text.lines()
            .find_map(|line| line.strip_prefix(what)?.strip_prefix(':'))
    }

    /// Decodes one answer for each key: whether that hold stands.
    pub(crate) fn standing(&self, keys: usize) -> Result<Vec<bool>, Error> {
        let Self::List(items) = self else {
            return Err(self.unexpected());
        };
        if items.len() != keys {
            return Err(self.unexpected());
        }
        let stands = |item: &Self| match item {
            Self::Integer(1) => Ok(true),
            Self::Integer(0) => Ok(false),
            _ => Err(self.unexpected()),
        };
        items.iter().map(stands).collect()
    }

    /// Makes the error for an answer that no script of ours gives.
    pub(crate) fn unexpected(&self) -> Error {
        let shown = quote(format_args!("{self:?}"));
        let message = format!(
            "the server gave an answer that no script of this crate gives; please report it: {shown}"
        );
        Error::new(ErrorKind::Protocol, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_the_wrong_shape_is_an_error_and_no_panic() {
        let list = Reply::List(vec![Reply::Integer(1), Reply::Integer(2)]);
        for (reply, keys) in [
            (Reply::Nil, 0),
            (list.clone(), 1),
            (list, 2),
            (Reply::List(vec![Reply::Nil]), 1),
        ] {
            assert_eq!(
                reply.standing(keys).unwrap_err().kind(),
                ErrorKind::Protocol
            );
        }
    }
}
