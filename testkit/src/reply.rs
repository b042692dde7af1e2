/// A reply of the server in version 2 of its protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A simple string such as `OK`.
    Status(String),
    /// An error, with its code as the first word.
    Error(String),
    /// An integer.
    Int(i64),
    /// A bulk string.
    Text(Vec<u8>),
    /// The absent bulk string or array.
    Nil,
    /// An array.
    Array(Vec<Reply>),
}

impl Reply {
    /// Returns the integer.
    ///
    /// # Panics
    /// Panics on any other kind of reply, as `text`, `array` and `texts` do.
    #[track_caller]
    pub fn int(&self) -> i64 {
        match self {
            Self::Int(value) => *value,
            other => panic!("not an integer: {other:?}"),
        }
    }

    /// Returns the text of a bulk string or of a status.
    #[track_caller]
    pub fn text(&self) -> String {
        match self {
            Self::Status(text) => text.clone(),
            Self::Text(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            other => panic!("not a text: {other:?}"),
        }
    }

    /// Returns whether there is no value.
    pub fn is_nil(&self) -> bool {
        *self == Self::Nil
    }

    /// Returns the elements of the array.
    #[track_caller]
    pub fn array(self) -> Vec<Reply> {
        match self {
            Self::Array(elements) => elements,
            other => panic!("not an array: {other:?}"),
        }
    }

    /// Returns the elements of the array as texts.
    #[track_caller]
    pub fn texts(self) -> Vec<String> {
        self.array().iter().map(Self::text).collect()
    }
}
