use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::reply::Reply;
use crate::subscriber::Subscriber;

const REPLY_LIMIT: Duration = Duration::from_secs(30);

/// A blocking client that shows what the server really stores.
///
/// It panics if the network fails, since no test can continue after that.
#[derive(Debug)]
pub struct Connection {
    stream: BufReader<TcpStream>,
}

impl Connection {
    /// Connects to a port of the loopback interface.
    #[track_caller]
    pub fn open(port: u16) -> Self {
        Self::open_at("127.0.0.1", port)
    }

    /// Connects to a port of any host.
    #[track_caller]
    pub fn open_at(host: &str, port: u16) -> Self {
        let stream = TcpStream::connect((host, port))
            .unwrap_or_else(|error| panic!("connect to port {port}: {error}"));
        stream.set_nodelay(true).expect("set TCP_NODELAY");
        stream
            .set_read_timeout(Some(REPLY_LIMIT))
            .expect("set the read timeout");
        Self {
            stream: BufReader::new(stream),
        }
    }

    /// Connects to a port and subscribes to channels.
    #[track_caller]
    pub fn subscribe(port: u16, channels: &[impl AsRef<str>]) -> Subscriber {
        Self::open(port).into_subscriber(channels)
    }

    /// Subscribes to channels, and turns this connection into one that receives their messages.
    #[track_caller]
    pub fn into_subscriber(self, channels: &[impl AsRef<str>]) -> Subscriber {
        Subscriber::new(self, channels)
    }

    /// Sends one command and returns its reply, which may be an error reply.
    #[track_caller]
    pub fn command(&mut self, args: &[impl AsRef<[u8]>]) -> Reply {
        self.send(args);
        self.receive()
    }

    /// The same, where the server may close the connection.
    ///
    /// # Errors
    /// The error of the connection.
    pub fn try_command(&mut self, args: &[impl AsRef<[u8]>]) -> io::Result<Reply> {
        self.stream.get_mut().write_all(&request(args))?;
        read_reply(&mut self.stream)
    }

    /// Logs in as the default user.
    #[track_caller]
    pub fn authenticate(&mut self, password: &str) {
        let reply = self.command(&["AUTH", password]);
        assert_eq!(reply, Reply::Status("OK".to_owned()));
    }

    /// Returns all fields of a hash.
    #[track_caller]
    pub fn hgetall(&mut self, key: &str) -> BTreeMap<String, String> {
        let flat = self.command(&["HGETALL", key]).texts();
        flat.chunks_exact(2)
            .map(|pair| (pair[0].clone(), pair[1].clone()))
            .collect()
    }

    /// Returns the milliseconds that a key has left: -1 if it has no expiry, -2 if there is no such key.
    #[track_caller]
    pub fn pttl(&mut self, key: &str) -> i64 {
        self.command(&["PTTL", key]).int()
    }

    /// Returns whether a key exists.
    #[track_caller]
    pub fn exists(&mut self, key: &str) -> bool {
        self.command(&["EXISTS", key]).int() == 1
    }

    /// Returns the channels that have subscribers, sorted; without those on which a client that holds a lock is told
    /// that it was released by force.
    #[track_caller]
    pub fn channels(&mut self) -> Vec<String> {
        let mut channels = self.command(&["PUBSUB", "CHANNELS"]).texts();
        channels.retain(|channel| !channel.starts_with("redlatch:"));
        channels.sort();
        channels
    }

    /// Returns all keys, sorted.
    #[track_caller]
    pub fn keys(&mut self) -> Vec<String> {
        let mut keys = self.command(&["KEYS", "*"]).texts();
        keys.sort();
        keys
    }

    #[track_caller]
    pub(crate) fn send(&mut self, args: &[impl AsRef<[u8]>]) {
        let stream = self.stream.get_mut();
        stream.write_all(&request(args)).expect("send a command");
    }

    #[track_caller]
    pub(crate) fn receive(&mut self) -> Reply {
        read_reply(&mut self.stream).expect("read a reply")
    }

    /// Returns whether a byte of the next reply arrives within `timeout`.
    ///
    /// Separate from [`receive`](Self::receive), so that no reply is left half read.
    #[track_caller]
    pub(crate) fn is_readable(&mut self, timeout: Duration) -> bool {
        let limit = |stream: &BufReader<TcpStream>, limit| {
            stream
                .get_ref()
                .set_read_timeout(Some(limit))
                .expect("set the read timeout");
        };
        limit(&self.stream, timeout.max(Duration::from_millis(1)));
        let readable = match self.stream.fill_buf() {
            Ok([]) => panic!("the server closed the connection"),
            Ok(_) => true,
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => false,
                _ => panic!("read a reply: {error}"),
            },
        };
        limit(&self.stream, REPLY_LIMIT);
        readable
    }
}

fn request(args: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let mut request = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        let arg = arg.as_ref();
        request.extend(format!("${}\r\n", arg.len()).into_bytes());
        request.extend_from_slice(arg);
        request.extend(b"\r\n");
    }
    request
}

fn read_reply(stream: &mut impl BufRead) -> io::Result<Reply> {
    let mut line = String::new();
    stream.read_line(&mut line)?;
    let Some(line) = line.strip_suffix("\r\n").filter(|line| !line.is_empty()) else {
        return Err(io::ErrorKind::UnexpectedEof.into());
    };
    let (kind, rest) = line.split_at(1);
    Ok(match kind {
        "+" => Reply::Status(rest.to_owned()),
        "-" => Reply::Error(rest.to_owned()),
        ":" => Reply::Int(integer(rest)?),
        "$" | "*" if rest == "-1" => Reply::Nil,
        "$" => {
            let mut bytes = vec![0; integer(rest)? as usize + 2];
            stream.read_exact(&mut bytes)?;
            bytes.truncate(bytes.len() - 2);
            Reply::Text(bytes)
        }
        "*" => {
            let elements = (0..integer(rest)?).map(|_| read_reply(stream));
            Reply::Array(elements.collect::<io::Result<_>>()?)
        }
        _ => return Err(io::Error::new(io::ErrorKind::InvalidData, line)),
    })
}

fn integer(text: &str) -> io::Result<i64> {
    text.parse()
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}
