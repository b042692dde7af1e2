//! Opens a connection for commands: connects, says who we are.

use std::future::pending;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use fred::types::RespVersion;
use fred::types::config::{Config, Server, ServerConfig};
use tokio::net::TcpStream;
#[cfg(unix)]
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::line::{Line, Socket, Writer};
use super::resp::{Request, Said, Version};
use super::sentinel::Sentinels;
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
    /// Who says which server it is.
    pub(super) sentinels: Option<Arc<Sentinels>>,
}

impl Dialer {
    /// Connects to the server, or to the one that sentinels name as the primary.
    pub(super) async fn dial(&self) -> Result<Line, Error> {
        if let Some(sentinels) = &self.sentinels {
            let primary = sentinels.primary().await?;
            let dialled = self.dial_primary(&primary).await;
            sentinels.tried(dialled.is_ok());
            return dialled;
        }
        match &self.config.server {
            #[cfg(unix)]
            ServerConfig::Unix { path } => {
                let opened = timeout(self.patience, UnixStream::connect(path)).await;
                let place = path.display().to_string();
                let (reader, writer) = reached(&place, opened)?.into_split();
                let writer = Writer::Open(Arc::new(Socket::Unix(writer)));
                self.introduced(Line::new(reader, writer, place)).await
            }
            _ => self.dial_server(&self.server).await,
        }
    }

    /// Where a connection leads that is made now. None if nobody has said so yet.
    pub(super) fn place(&self) -> Option<String> {
        let Some(sentinels) = &self.sentinels else {
            return Some(self.server.to_string());
        };
        sentinels.named().map(|primary| primary.to_string())
    }

    /// Waits until a connection that is made leads to another place than this one.
    pub(super) async fn leads_elsewhere(&self, place: Option<&str>) {
        match &self.sentinels {
            Some(sentinels) => sentinels.named_other_than(place).await,
            None => pending().await,
        }
    }

    /// Asks nobody any more where to connect.
    pub(super) fn close(&self) {
        if let Some(sentinels) = &self.sentinels {
            sentinels.close();
        }
    }

    /// Connects to a server, if it is a primary.
    async fn dial_primary(&self, server: &Server) -> Result<Line, Error> {
        let mut line = self.dial_server(server).await?;
        let [role] = self.talk(&mut line, &[Request::of(&["ROLE"])]).await?;
        match role {
            // A sentinel may be late with the news.
            Ok(Reply::List(role)) if role.first() != Some(&Reply::Text("master".into())) => {
                let text =
                    format!("the sentinels name {server} as the primary, which is a replica");
                Err(Error::new(ErrorKind::Backend, text))
            }
            // A user that may not ask for the role is told by the first script.
            _ => Ok(line),
        }
    }

    async fn dial_server(&self, server: &Server) -> Result<Line, Error> {
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
            return Ok(Line::new(reader, Writer::Secured(Box::new(writer)), place));
        }
        let (reader, writer) = stream.into_split();
        let writer = Writer::Open(Arc::new(Socket::Tcp(writer)));
        Ok(Line::new(reader, writer, place))
    }

    /// Logs in, chooses the database, and tells the name of the connection.
    async fn introduced(&self, mut line: Line) -> Result<Line, Error> {
        let (user, password) = (&self.config.username, &self.config.password);
        self.log_in(&mut line, user.as_deref(), password.as_deref())
            .await?;
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

    pub(super) async fn log_in(
        &self,
        line: &mut Line,
        user: Option<&str>,
        password: Option<&str>,
    ) -> Result<(), Error> {
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

/// The address of a server that another one has named; without a host it is on the same.
pub(super) fn address(config: &Config, host: &str, port: u16, named_by: &Server) -> Server {
    let host = match host {
        "" => &named_by.host,
        host => host,
    };
    #[cfg_attr(
        not(feature = "tls"),
        allow(unused_mut, unused_variables, reason = "only TLS has more names")
    )]
    let mut address = Server::new(host, port);
    #[cfg(feature = "tls")]
    {
        address.tls_server_name = tls_name(config, host, &named_by.host).map(Into::into);
    }
    address
}

/// By which name a server proves who it is, if not by its address.
#[cfg(feature = "tls")]
fn tls_name(config: &Config, host: &str, named_by: &str) -> Option<String> {
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
