//! Asks sentinels which server is the primary.

use std::sync::PoisonError;

use fred::types::config::Server;
use tracing::debug;

#[cfg(feature = "tls")]
use super::dial::tls_name;
use super::dial::{Dialer, Line};
use super::resp::Request;
use super::wire::code;
use crate::error::{Error, ErrorKind};
use crate::protocol::reply::Reply;

impl Dialer {
    /// Asks one sentinel after the other for the primary, and connects to it if it is one.
    pub(super) async fn dial_primary(
        &self,
        sentinels: &[Server],
        service: &str,
    ) -> Result<Line, Error> {
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
