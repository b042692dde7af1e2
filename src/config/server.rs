//! The address of a server.

use std::fmt;
use std::net::Ipv6Addr;

use super::Address;
use crate::error::Error;

/// The default port of a server.
pub(crate) const PORT: u16 = 6379;
/// The default port of a sentinel.
pub(crate) const SENTINEL_PORT: u16 = 26379;

/// The address on which a server listens: host and port. A unix socket is stored as its path with port 0.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Server {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl Server {
    pub(crate) fn new(host: impl Into<String>, port: u16) -> Self {
        let mut host = host.into();
        // In a URL, an IPv6 address is enclosed in brackets.
        if let Some(bare) = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')) {
            host = bare.to_owned();
        }
        Self { host, port }
    }

    /// Returns the address of a server that this server has named. An empty host means the host of this server.
    pub(crate) fn named(&self, host: &str, port: u16) -> Self {
        match host {
            "" => Self::new(self.host.clone(), port),
            host => Self::new(host, port),
        }
    }

    /// Parses `host`, `host:port` or `[address]:port`. The error describes the fault without repeating any of the text.
    pub(crate) fn parse(text: &str, default_port: u16) -> Result<Self, &'static str> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']').ok_or("its host has no closing ]")?;
                let port = match port {
                    "" => None,
                    port => Some(port.strip_prefix(':').ok_or("its port is not a number")?),
                };
                (host, port)
            }
            None => match text.split_once(':') {
                Some((_, port)) if port.contains(':') => {
                    return Err("put an IPv6 address in brackets, as in [::1]:6379");
                }
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            },
        };
        let port = match port {
            Some(port) if !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()) => {
                port.parse().map_err(|_| "its port is above 65535")?
            }
            Some(_) => return Err("its port is not a number"),
            None => default_port,
        };
        let server = Self::new(host, port);
        server.flaw().map_or(Ok(server), Err)
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.flaw() {
            Some(flaw) => Err(Error::invalid(format!(
                "the address of a server is invalid: {flaw}"
            ))),
            None => Ok(()),
        }
    }

    /// Returns the reason why this cannot be an address, if there is one.
    fn flaw(&self) -> Option<&'static str> {
        let stray = |c: char| c.is_whitespace() || c.is_control() || "/?#@[],".contains(c);
        // An IPv6 address may be followed by a zone.
        let address = self.host.split('%').next().unwrap_or_default();
        if self.host.is_empty() {
            Some("its host is empty")
        } else if self.host.contains([':', '%']) && address.parse::<Ipv6Addr>().is_err() {
            Some("its host is neither a name nor an address; give the port separately")
        } else if self.host.contains(stray) {
            Some("its host has a character that is not allowed")
        } else if self.port == 0 {
            Some("its port is 0")
        } else {
            None
        }
    }
}

impl From<Server> for Address {
    fn from(Server { host, port }: Server) -> Self {
        Self::Tcp { host, port }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        match port {
            0 => write!(f, "{host}"),
            _ if host.contains(':') => write!(f, "[{host}]:{port}"),
            _ => write!(f, "{host}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_written() {
        for (text, host, port, shown) in [
            ("h", "h", 1, "h:1"),
            ("h:7", "h", 7, "h:7"),
            ("10.0.0.7:65535", "10.0.0.7", 65535, "10.0.0.7:65535"),
            ("[::1]", "::1", 1, "[::1]:1"),
            ("[fe80::1%lo]:7", "fe80::1%lo", 7, "[fe80::1%lo]:7"),
            (
                "my_redis.internal",
                "my_redis.internal",
                1,
                "my_redis.internal:1",
            ),
        ] {
            let server = Server::parse(text, 1).unwrap();
            assert_eq!((server.host.as_str(), server.port), (host, port), "{text}");
            assert_eq!(server.to_string(), shown);
        }
        for text in [
            "", ":7", "h:", "h:x", "h:+7", "h:65536", "h:0", "::1", "[::1", "[::1]7", "[]:7",
            "a b", "a,b:7", "u@h", "a:1,b:2", "h\n",
        ] {
            let refused = Server::parse(text, 1);
            assert!(refused.is_err(), "{text}: {refused:?}");
        }
    }
}
