//! Opens a connection for commands: connects, says who we are.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fred::bytes::BytesMut;
use fred::types::RespVersion;
use fred::types::config::{Config, Server, ServerConfig};
use tokio::io::{AsyncRead, AsyncReadExt};
#[cfg(feature = "tls")]
use tokio::io::{AsyncWrite, AsyncWriteExt};
#[cfg(unix)]
use tokio::net::UnixStream;
#[cfg(unix)]
use tokio::net::unix;
use tokio::net::{TcpStream, tcp};
use tokio::time::timeout;

use super::resp::{self, Request, Said, Version};
use super::wire::code;
use crate::error::{Error, ErrorKind};

/// Where to connect, and as whom.
#[derive(Clone)]
pub(super) struct Dialer {
    pub(super) config: Config,
    pub(super) server: Server,
    /// What operators see of the connection.
    pub(super) name: Arc<str>,
    /// How long one way to a server may take.
    pub(super) patience: Duration,
    /// Sentinels that others have told of: those that are configured may all be gone one day.
    pub(super) sentinels: Arc<Mutex<Vec<Server>>>,
}

/// A connection that is ready for commands.
pub(super) struct Line {
    pub(super) reader: Box<dyn AsyncRead + Send + Unpin>,
    pub(super) writer: Writer,
    pub(super) version: Version,
    /// Where it leads.
    pub(super) place: String,
}

/// The side of a connection that is written to.
pub(super) enum Writer {
    /// It can be written to from everywhere, without waiting.
    Open(Arc<Socket>),
    /// It has a state of its own, and one that writes.
    #[cfg(feature = "tls")]
    Secured(Box<dyn AsyncWrite + Send + Unpin>),
}

pub(super) enum Socket {
    Tcp(tcp::OwnedWriteHalf),
    #[cfg(unix)]
    Unix(unix::OwnedWriteHalf),
}

impl Socket {
    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(half) => half.try_write(bytes),
            #[cfg(unix)]
            Self::Unix(half) => half.try_write(bytes),
        }
    }

    pub(super) async fn writable(&self) -> io::Result<()> {
        match self {
            Self::Tcp(half) => half.writable().await,
            #[cfg(unix)]
            Self::Unix(half) => half.writable().await,
        }
    }
}

impl Dialer {
    /// Connects to the server, or to the one that sentinels name as the primary.
    pub(super) async fn dial(&self) -> Result<Line, Error> {
        match &self.config.server {
            ServerConfig::Sentinel {
                hosts,
                service_name,
                ..
            } => self.dial_primary(hosts, service_name).await,
            #[cfg(unix)]
            ServerConfig::Unix { path } => {
                let opened = timeout(self.patience, UnixStream::connect(path)).await;
                let place = path.display().to_string();
                let (reader, writer) = reached(&place, opened)?.into_split();
                let line = Line {
                    reader: Box::new(reader),
                    writer: Writer::Open(Arc::new(Socket::Unix(writer))),
                    version: Version::Resp2,
                    place,
                };
                self.introduced(line).await
            }
            _ => self.dial_server(&self.server).await,
        }
    }

    pub(super) async fn dial_server(&self, server: &Server) -> Result<Line, Error> {
        let line = self.open(server).await?;
        self.introduced(line).await
    }

    /// A connection on which nothing was said.
    pub(super) async fn open(&self, server: &Server) -> Result<Line, Error> {
        let place = server.to_string();
        let opened = TcpStream::connect((bare(&server.host), server.port));
        let stream = reached(&place, timeout(self.patience, opened).await)?;
        stream.set_nodelay(true).ok();
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.config.tls {
            let stream = timeout(self.patience, secured(tls, server, stream)).await;
            let (reader, writer) = tokio::io::split(reached(&place, stream)?);
            return Ok(Line {
                reader: Box::new(reader),
                writer: Writer::Secured(Box::new(writer)),
                version: Version::Resp2,
                place,
            });
        }
        let (reader, writer) = stream.into_split();
        Ok(Line {
            reader: Box::new(reader),
            writer: Writer::Open(Arc::new(Socket::Tcp(writer))),
            version: Version::Resp2,
            place,
        })
    }

    /// Logs in, chooses the database, and tells the name of the connection.
    async fn introduced(&self, mut line: Line) -> Result<Line, Error> {
        self.log_in(&mut line).await?;
        let database = self.config.database.unwrap_or_default();
        let number = database.to_string();
        let version = env!("CARGO_PKG_VERSION");
        let requests = [
            Request::of(&["SELECT", &number]),
            Request::of(&["CLIENT", "SETNAME", &self.name]),
            Request::of(&["CLIENT", "SETINFO", "LIB-NAME", "redlatch"]),
            Request::of(&["CLIENT", "SETINFO", "LIB-VER", version]),
        ];
        let requests = match database {
            0 => &requests[1..],
            _ => &requests[..],
        };
        let said = self.talk_all(&mut line, requests).await?;
        if database != 0
            && let Some(Err(text)) = said.first()
        {
            return Err(refused(&line.place, &format!("database {number}: {text}")));
        }
        // Names are for operators: a server, or a user, that knows nothing of them does as well.
        Ok(line)
    }

    pub(super) async fn log_in(&self, line: &mut Line) -> Result<(), Error> {
        let user = self.config.username.as_deref();
        let password = self.config.password.as_deref();
        let password = password.or_else(|| user.map(|_| ""));
        if self.config.version != RespVersion::RESP2 {
            let hello = match password {
                Some(password) => {
                    Request::of(&["HELLO", "3", "AUTH", user.unwrap_or("default"), password])
                }
                None => Request::of(&["HELLO", "3"]),
            };
            line.version = Version::Resp3;
            match self.talk(line, &[hello]).await? {
                [Ok(_)] => return Ok(()),
                // It speaks the older version only, or this user may not ask for the newer.
                [Err(text)]
                    if text.starts_with("ERR unknown command")
                        || matches!(code(&text), "NOPROTO" | "NOPERM") =>
                {
                    line.version = Version::Resp2;
                }
                [Err(text)] => return Err(refused(&line.place, &text)),
            }
        }
        let Some(password) = password else {
            return Ok(());
        };
        let auth = match user {
            Some(user) => Request::of(&["AUTH", user, password]),
            None => Request::of(&["AUTH", password]),
        };
        match self.talk(line, &[auth]).await? {
            [Ok(_)] => Ok(()),
            [Err(text)] => Err(refused(&line.place, &text)),
        }
    }

    pub(super) async fn talk<const N: usize>(
        &self,
        line: &mut Line,
        requests: &[Request; N],
    ) -> Result<[Said; N], Error> {
        let said = self.talk_all(line, requests).await?;
        said.try_into().map_err(|_| silent(&line.place))
    }

    async fn talk_all(&self, line: &mut Line, requests: &[Request]) -> Result<Vec<Said>, Error> {
        let said = timeout(self.patience, line.talk(requests)).await;
        match said {
            Ok(said) => said.map_err(|error| silent(&line.place).caused_by(error)),
            Err(late) => Err(silent(&line.place).caused_by(late)),
        }
    }
}

impl Line {
    /// Sends commands together, and waits for their replies.
    pub(super) async fn talk(&mut self, requests: &[Request]) -> io::Result<Vec<Said>> {
        let bytes: Vec<u8> = requests.iter().flat_map(Request::bytes).copied().collect();
        self.writer.write_all(&bytes).await?;
        let mut arrived = BytesMut::new();
        let mut replies = Vec::new();
        while replies.len() < requests.len() {
            match resp::take(&mut arrived, self.version).map_err(io::Error::other)? {
                Some(said) => replies.push(said),
                None if self.reader.read_buf(&mut arrived).await? == 0 => {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                None => {}
            }
        }
        // Whoever reads next would take the rest for another's.
        match arrived.is_empty() {
            true => Ok(replies),
            false => Err(io::Error::other("the server answers what nobody asked")),
        }
    }
}

impl Writer {
    pub(super) async fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        match self {
            #[cfg(feature = "tls")]
            Self::Secured(writer) => {
                writer.write_all(bytes).await?;
                writer.flush().await
            }
            Self::Open(socket) => {
                while !bytes.is_empty() {
                    socket.writable().await?;
                    match socket.try_write(bytes) {
                        Ok(taken) => bytes = &bytes[taken..],
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                        Err(error) => return Err(error),
                    }
                }
                Ok(())
            }
        }
    }
}

#[cfg(feature = "tls")]
async fn secured(
    tls: &fred::types::config::TlsConfig,
    server: &Server,
    stream: TcpStream,
) -> io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
    use fred::types::config::TlsConnector;
    use tokio_rustls::rustls::pki_types::ServerName;

    #[allow(
        irrefutable_let_patterns,
        reason = "there is another one where a dependent asks fred for it"
    )]
    let TlsConnector::Rustls(connector) = &tls.connector else {
        return Err(io::Error::other("TLS goes by rustls only"));
    };
    let name = server.tls_server_name.as_ref().unwrap_or(&server.host);
    let name = ServerName::try_from(bare(name).to_owned()).map_err(io::Error::other)?;
    connector.connect(name, stream).await
}

/// By which name a server proves who it is, if not by its address.
#[cfg(feature = "tls")]
pub(super) fn tls_name(config: &Config, host: &str, named_by: &str) -> Option<String> {
    use fred::types::config::TlsHostMapping;

    let address = host.parse().ok()?;
    match &config.tls.as_ref()?.hostnames {
        TlsHostMapping::None => None,
        TlsHostMapping::DefaultHost => Some(named_by.to_owned()),
        TlsHostMapping::Custom(mapping) => mapping.map(&address, named_by),
    }
}

fn reached<T>(
    place: &str,
    opened: Result<io::Result<T>, tokio::time::error::Elapsed>,
) -> Result<T, Error> {
    let failed = |what: &str| {
        Error::new(
            ErrorKind::Backend,
            format!("cannot connect to {place}: {what}"),
        )
    };
    match opened {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(failed(&error.to_string()).caused_by(error)),
        Err(late) => Err(failed("no answer").caused_by(late)),
    }
}

fn refused(place: &str, text: &str) -> Error {
    Error::new(
        ErrorKind::Backend,
        format!("cannot connect to {place}: {text}"),
    )
}

fn silent(place: &str) -> Error {
    let text = format!(
        "{place} accepted the connection, and gave no answer; is TLS wanted there, or not?"
    );
    Error::new(ErrorKind::Backend, text)
}

/// A host without the brackets that an address of IPv6 has in a URL.
fn bare(host: &str) -> &str {
    let inner = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    inner.unwrap_or(host)
}
