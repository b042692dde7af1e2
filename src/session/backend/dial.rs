//! Opens a connection: connects, logs in and introduces this client.
//!
//! Each step may take [`patience`](Dialer::patience), and has its own advice when it fails (`contact`). The result is a
//! [`Link`] on which every request so far has been answered.

use std::future::pending;
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::timeout;

use super::contact::{ContactStep, failed, late, refused, refused_login, unfit};
use super::identity::Identity;
use super::link::{ConnectionId, Link};
use super::network;
use super::refusal::code;
use super::resp::{Said, Version, WireRequest};
use super::sentinel::Sentinels;
use super::socket::{Opened, Socket};
#[cfg(feature = "tls")]
use super::tls::TlsDialer;
use crate::config::{Address, Config, Deployment, Protocol, Server};
use crate::error::Error;
use crate::protocol::reply::Reply;

/// Where to connect, and as which user.
///
/// Each connection has a clone.
#[derive(Clone)]
pub(super) struct Dialer {
    /// The login, the database and the version of the protocol.
    pub(super) config: Arc<Config>,
    /// Where to connect without sentinels. With sentinels it is only a name in logs.
    pub(super) server: Server,
    #[cfg(feature = "tls")]
    pub(super) tls: Option<TlsDialer>,
    /// The name of the connection, which operators see.
    pub(super) name: Arc<str>,
    /// How long each step on the way to a server may take.
    pub(super) patience: Duration,
    /// The sentinels that name the server, if there are any.
    pub(super) sentinels: Option<Arc<Sentinels>>,
}

impl Dialer {
    /// Connects to the server, or to the one that the sentinels name as the primary.
    ///
    /// If the future is dropped, so is the connection.
    pub(super) async fn dial(&self) -> Result<Link, Error> {
        while let Some(sentinels) = &self.sentinels {
            let primary = sentinels.primary().await?;
            let place = primary.to_string();
            tokio::select! {
                dialled = self.dial_primary(&primary) => {
                    sentinels.tried(dialled.is_ok());
                    // If the primary cannot be reached, the caller tries again, and the sentinels are asked more often
                    // until then.
                    return dialled;
                }
                // A former primary may be frozen, and would hold up this attempt until its time is over.
                () = sentinels.named_other_than(Some(&place)) => {}
            }
        }
        self.dial_server(&self.server).await
    }

    /// Returns where a connection made now would lead, or `None` if no sentinel has named a primary yet.
    ///
    /// Noted before an attempt, and compared afterwards.
    pub(super) fn place(&self) -> Option<String> {
        self.leads_to().map(|server| server.to_string())
    }

    /// Returns the server that a connection made now would lead to.
    pub(super) fn leads_to(&self) -> Option<Server> {
        match &self.sentinels {
            Some(sentinels) => sentinels.named(),
            None => Some(self.server.clone()),
        }
    }

    /// Waits until a new connection would lead to another place than this one. Without sentinels, waits without end.
    pub(super) async fn leads_elsewhere(&self, place: Option<&str>) {
        match &self.sentinels {
            Some(sentinels) => sentinels.named_other_than(place).await,
            None => pending().await,
        }
    }

    /// Stops following the sentinels, if there are any.
    pub(super) fn close(&self) {
        if let Some(sentinels) = &self.sentinels {
            sentinels.close();
        }
    }

    /// Connects to a server. Returns `Err` if the server says that it is not a primary.
    ///
    /// A connection to a replica could take no lock, and would not break by itself.
    async fn dial_primary(&self, server: &Server) -> Result<Link, Error> {
        let mut link = self.dial_server(server).await?;
        let [role] = self.talk(&mut link, &[WireRequest::of(&["ROLE"])]).await?;
        match is_of_replica(Some(&role)) {
            // A sentinel may learn of a failover late.
            true => {
                let text =
                    format!("the sentinels name {server} as the primary, but it is a replica");
                Err(Error::refused(text, "slave"))
            }
            false => Ok(link),
        }
    }

    async fn dial_server(&self, server: &Server) -> Result<Link, Error> {
        // The application is asked before the connection is opened, so that the server does not wait for a login.
        let identity = self.identify(server).await?;
        let link = self.open(server).await?;
        self.introduced(link, &identity).await
    }

    /// Opens a connection without sending anything on it.
    ///
    /// Used for sentinels, and for the steps below.
    pub(super) async fn open(&self, server: &Server) -> Result<Link, Error> {
        let place = server.to_string();
        let opened = self
            .step(&place, ContactStep::Connect, self.reach(server))
            .await?;
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            let secured = tls.secure(&server.host, opened);
            let secured = self.step(&place, ContactStep::Secure, secured).await?;
            return Ok(Link::new(Arc::new(secured), place));
        }
        Ok(Link::new(opened, place))
    }

    /// Reaches the server by the application's connector if there is one, otherwise over the network of this machine.
    ///
    /// The application's code may panic, which counts as a server that is out of reach.
    async fn reach(&self, server: &Server) -> io::Result<Arc<dyn Socket>> {
        let address = self.address(server);
        match &self.config.connector {
            Some(connector) => {
                let opened = AssertUnwindSafe(async { connector.0.open(address).await });
                let panicked = |_| Err(io::Error::other("the connector panicked"));
                let stream = opened.catch_unwind().await.unwrap_or_else(panicked)?;
                Ok(Arc::new(Opened::new(stream)))
            }
            None => network::open(address, self.patience).await,
        }
    }

    pub(super) fn address(&self, server: &Server) -> Address {
        match &self.config.deployment {
            Deployment::UnixSocket(path) => Address::Unix(path.clone()),
            _ => server.clone().into(),
        }
    }

    /// Logs in, selects the database and sets the name of the connection.
    ///
    /// All but the login takes one round trip. The server's id for the connection is asked for last.
    async fn introduced(&self, mut link: Link, identity: &Identity) -> Result<Link, Error> {
        let greeting = self.log_in(&mut link, identity).await?;
        link.due = identity.due;
        let number = self.config.database.to_string();
        let version = env!("CARGO_PKG_VERSION");
        // A connection begins with database 0.
        let selects = self.config.database != 0;
        let mut requests = vec![
            WireRequest::of(&["CLIENT", "SETNAME", &self.name]),
            WireRequest::of(&["CLIENT", "SETINFO", "LIB-NAME", "redlatch"]),
            WireRequest::of(&["CLIENT", "SETINFO", "LIB-VER", version]),
        ];
        if selects {
            requests.insert(0, WireRequest::of(&["SELECT", &number]));
        }
        let greeted_as = greeting.field("mode");
        if greeted_as.is_none() {
            requests.push(WireRequest::of(&["INFO", "server"]));
        }
        requests.push(WireRequest::of(&["CLIENT", "INFO"]));
        let said = self.talk_all(&mut link, &requests).await?;
        // As Valkey 9 calls it.
        let informed = || {
            said.iter()
                .flatten()
                .find_map(|told| told.info("redis_mode").or_else(|| told.info("server_mode")))
        };
        self.ensure_fit(&link.place, greeted_as.or_else(informed))?;
        match said.first() {
            // In RESP2, no password means no login, so a server that wants one says NOAUTH only here.
            Some(Err(text)) if selects || code(text) == "NOAUTH" => Err(refused(&link.place, text)),
            // Names are for operators: a server that does not know these commands, or a user that may not use them, is
            // accepted.
            _ => {
                link.connection_id = match said.last() {
                    Some(Ok(Reply::Text(info))) => ConnectionId::read(info),
                    _ => None,
                };
                Ok(link)
            }
        }
    }

    /// Returns `Err` if the `mode` in which the server runs is not what the configuration says. A sentinel would refuse
    /// every script. A server of a cluster would take the locks of its own slots, and list no others.
    ///
    /// If the server does not tell its mode, the first call that it refuses or redirects shows it.
    fn ensure_fit(&self, place: &str, mode: Option<&str>) -> Result<(), Error> {
        let scheme = if self.is_secure() { "rediss" } else { "redis" };
        let text = match (mode, &self.config.deployment) {
            (Some("sentinel"), _) => format!(
                "it is a sentinel; use the URL {scheme}-sentinel://{place}?sentinelServiceName=.."
            ),
            (Some("cluster"), Deployment::UnixSocket(_)) => {
                "it is in a cluster; use a URL redis-cluster://host:port".to_owned()
            }
            (Some("cluster"), Deployment::Server(_) | Deployment::Sentinels { .. }) => {
                format!("it is in a cluster; use the URL {scheme}-cluster://{place}")
            }
            _ => return Ok(()),
        };
        Err(unfit(place, &text))
    }

    /// Replaces a connection that is gone, and has the server end that one.
    ///
    /// Waits for the answer: until then, the server may still carry out the old requests.
    pub(super) async fn redial(&self, old: Option<&ConnectionId>) -> Result<Link, Error> {
        let mut link = self.dial().await?;
        if let Some(old) = old {
            self.replace(&mut link, old).await?;
        }
        Ok(link)
    }

    /// Has the server end the connection that this one replaces. A server that hung may have unread requests there. It
    /// must not carry them out after the requests on this connection, and once the old connection has ended, it cannot.
    /// If the server refuses because the user lacks the right, the connection is used all the same.
    ///
    /// The address is compared too, since after a restart another client may have the id.
    async fn replace(&self, link: &mut Link, old: &ConnectionId) -> Result<(), Error> {
        let kill = WireRequest::of(&["CLIENT", "KILL", "ID", &old.id, "ADDR", &old.address]);
        self.talk(link, &[kill]).await.map(drop)
    }

    /// Negotiates the version of the protocol, and logs in. Returns what the server says of itself, or [`Reply::Nil`]
    /// in RESP2.
    pub(super) async fn log_in(
        &self,
        link: &mut Link,
        identity: &Identity,
    ) -> Result<Reply, Error> {
        if self.config.protocol == Protocol::Resp3 {
            let hello = match identity.words() {
                Some((user, password)) => {
                    WireRequest::of(&["HELLO", "3", "AUTH", user.unwrap_or("default"), password])
                }
                None => WireRequest::of(&["HELLO", "3"]),
            };
            link.version = Version::Resp3;
            match self.talk(link, &[hello]).await? {
                [Ok(greeting)] => return Ok(greeting),
                // The server speaks RESP2 only, or this user may not ask for RESP3. Before a login, Valkey 9 says
                // NOAUTH of a command that it does not know.
                [Err(text)]
                    if text.starts_with("ERR unknown command")
                        || matches!(code(&text), "NOPROTO" | "NOPERM")
                        || (code(&text) == "NOAUTH" && identity.words().is_some()) =>
                {
                    link.version = Version::Resp2;
                }
                [Err(text)] => return Err(refused_login(&link.place, &text, identity)),
            }
        }
        let Some(auth) = identity.auth() else {
            return Ok(Reply::Nil);
        };
        match self.talk(link, &[auth]).await? {
            [Ok(_)] => Ok(Reply::Nil),
            [Err(text)] => Err(refused_login(&link.place, &text, identity)),
        }
    }

    /// Sends requests together, and waits for all replies.
    ///
    /// There is one reply for each request, in the same order.
    pub(super) async fn talk<const N: usize>(
        &self,
        link: &mut Link,
        requests: &[WireRequest; N],
    ) -> Result<[Said; N], Error> {
        let said = self.talk_all(link, requests).await?;
        // There are as many replies as requests.
        said.try_into()
            .map_err(|_| unfit(&link.place, "it sent an unexpected number of replies"))
    }

    async fn talk_all(
        &self,
        link: &mut Link,
        requests: &[WireRequest],
    ) -> Result<Vec<Said>, Error> {
        let place = link.place.clone();
        self.step(&place, ContactStep::Talk, link.talk(requests))
            .await
    }

    /// Runs one step of connecting, for at most `patience`.
    ///
    /// The advice depends on whether TLS was asked for.
    pub(super) async fn step<T>(
        &self,
        place: &str,
        step: ContactStep,
        done: impl Future<Output = io::Result<T>>,
    ) -> Result<T, Error> {
        match timeout(self.patience, done).await {
            Ok(done) => done.map_err(|error| failed(place, step, self.is_secure(), error)),
            Err(elapsed) => Err(late(place, step, elapsed)),
        }
    }

    fn is_secure(&self) -> bool {
        #[cfg(feature = "tls")]
        let is_secure = self.tls.is_some();
        #[cfg(not(feature = "tls"))]
        let is_secure = false;
        is_secure
    }
}

/// Whether a replica gave this answer to `ROLE`.
///
/// A server that does not tell counts as a primary. If it is not one, it refuses the first script that takes a lock.
pub(super) fn is_of_replica(role: Option<&Said>) -> bool {
    let master = Reply::Text("master".into());
    matches!(role, Some(Ok(Reply::List(role))) if role.first() != Some(&master))
}
