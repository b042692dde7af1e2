//! Server answers as data, and the error for one that no script of ours gives.

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

/// What scripts over many holds answer for each: gone, or standing.
#[cfg(test)]
pub(crate) const STANDS: &[&str] = &["0", "1"];

impl Reply {
    /// Takes out the refusal to publish that a script may put behind its answer.
    pub(crate) fn take_refusal(&mut self) -> Option<String> {
        let Self::List(items) = self else {
            return None;
        };
        match items.pop_if(|last| matches!(last, Self::Refusal(_)))? {
            Self::Refusal(text) => Some(text),
            _ => None,
        }
    }

    /// The tag of an answer and what comes with it.
    pub(crate) fn tagged(&self) -> Option<(&str, &[Self])> {
        match self {
            Self::List(items) => match items.split_first() {
                Some((Self::Text(tag), rest)) => Some((tag, rest)),
                _ => None,
            },
            _ => None,
        }
    }

    /// A value of a list in which names and values stand in turn.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let Self::List(items) = self else {
            return None;
        };
        items.chunks(2).find_map(|pair| match pair {
            [Self::Text(field), Self::Text(value)] if field == name => Some(&**value),
            _ => None,
        })
    }

    /// One line of what the server tells of itself.
    pub(crate) fn info(&self, what: &str) -> Option<&str> {
        let Self::Text(text) = self else {
            return None;
        };
        text.lines()
            .find_map(|line| line.strip_prefix(what)?.strip_prefix(':'))
    }

    /// One answer a key: does this hold stand?
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
