//! Opens a connection for commands: finds the server, connects, says who we are.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
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
use tracing::debug;

use super::resp::{self, Request, Said, Version};
use super::wire::code;
use crate::error::{Error, ErrorKind};
use crate::protocol::reply::Reply;

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

    async fn dial_server(&self, server: &Server) -> Result<Line, Error> {
        let line = self.open(server).await?;
        self.introduced(line).await
    }

    /// Asks one sentinel after the other for the primary, and connects to it if it is one.
    async fn dial_primary(&self, sentinels: &[Server], service: &str) -> Result<Line, Error> {
        let mut failure = Error::invalid("the configuration names no sentinel");
        let known = || {
            self.sentinels
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
        };
        let told: Vec<_> = known()
            .iter()
            .filter(|told| !sentinels.contains(told))
            .cloned()
            .collect();
        for sentinel in sentinels.iter().chain(&told) {
            let (primary, others) = match self.ask_sentinel(sentinel, service).await {
                Ok(primary) => primary,
                Err(error) => {
                    debug!(%sentinel, %error, "the sentinel names no primary");
                    failure = error;
                    continue;
                }
            };
            let role = async {
                let mut line = self.dial_server(&primary).await?;
                let [role] = self.talk(&mut line, &[Request::of(&["ROLE"])]).await?;
                Ok((line, role))
            };
            match role.await {
                Ok((line, role)) => match role {
                    // A sentinel may be late with the news.
                    Ok(Reply::List(role))
                        if role.first() != Some(&Reply::Text("master".into())) =>
                    {
                        failure = Error::new(
                            ErrorKind::Backend,
                            format!(
                                "the sentinel {sentinel} names {primary} as primary of {service:?}, which is a replica"
                            ),
                        );
                    }
                    // A user that may not ask for the role is told by the first script.
                    _ => {
                        *known() = others;
                        return Ok(line);
                    }
                },
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// The primary that a sentinel names, and the other sentinels.
    async fn ask_sentinel(
        &self,
        sentinel: &Server,
        service: &str,
    ) -> Result<(Server, Vec<Server>), Error> {
        let mut line = self.open(sentinel).await?;
        let requests = [
            Request::of(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", service]),
            Request::of(&["SENTINEL", "SENTINELS", service]),
        ];
        let [mut said, mut others] = self.talk(&mut line, &requests).await?;
        if matches!(&said, Err(text) if code(text) == "NOAUTH") {
            // fred has one user and password for servers and sentinels.
            self.log_in(&mut line).await?;
            [said, others] = self.talk(&mut line, &requests).await?;
        }
        let others = others.map(|others| addresses(&others)).unwrap_or_default();
        let place = &line.place;
        let refused = |text: &str| {
            let text =
                format!("the sentinel {place} does not tell the primary of {service:?}: {text}");
            Error::new(ErrorKind::Backend, text)
        };
        match said {
            Ok(Reply::List(parts)) => match &parts[..] {
                [Reply::Text(host), Reply::Text(port)] => {
                    let port = port.parse().map_err(|_| refused("its port is no number"))?;
                    let mut primary = Server::new(host.clone(), port);
                    self.name_for_tls(&mut primary, sentinel);
                    Ok((primary, others))
                }
                _ => Err(refused("its answer is no address")),
            },
            Ok(_) => Err(refused("it knows no such service")),
            Err(text) => Err(refused(&text)),
        }
    }

    #[cfg(feature = "tls")]
    fn name_for_tls(&self, primary: &mut Server, sentinel: &Server) {
        primary.tls_server_name =
            tls_name(&self.config, &primary.host, &sentinel.host).map(Into::into);
    }

    #[cfg(not(feature = "tls"))]
    fn name_for_tls(&self, _: &mut Server, _: &Server) {}

    /// A connection on which nothing was said.
    async fn open(&self, server: &Server) -> Result<Line, Error> {
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

    async fn log_in(&self, line: &mut Line) -> Result<(), Error> {
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

    async fn talk<const N: usize>(
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

/// The addresses in an answer to `SENTINEL SENTINELS`, which tells of each by names and values in turn.
fn addresses(told: &Reply) -> Vec<Server> {
    let Reply::List(told) = told else {
        return Vec::new();
    };
    let address = |one: &Reply| {
        let Reply::List(fields) = one else {
            return None;
        };
        let value = |name: &str| {
            fields.chunks(2).find_map(|pair| match pair {
                [Reply::Text(field), Reply::Text(value)] if field == name => Some(value),
                _ => None,
            })
        };
        Some(Server::new(
            value("ip")?.clone(),
            value("port")?.parse().ok()?,
        ))
    };
    told.iter().filter_map(address).collect()
}
