//! A configuration by the names of its parts, as `serde` reads and writes it.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::server::{PORT, SENTINEL_PORT};
#[cfg(feature = "tls")]
use super::tls::{Certificate, Pem, Tls};
use super::url::duration;
use crate::config::{Config, Deployment, Login, Protocol, Secret, Server};
use crate::error::Error;

#[derive(Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
struct Parts {
    server: Option<String>,
    cluster: Option<Vec<String>>,
    sentinels: Option<Sentinels>,
    unix_socket: Option<PathBuf>,
    user: Option<String>,
    password: Option<Secret>,
    database: u32,
    #[cfg(feature = "tls")]
    tls: Option<TlsParts>,
    protocol: Protocol,
    connect_timeout: Option<String>,
    command_timeout: Option<String>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Sentinels {
    service: String,
    servers: Vec<String>,
    #[serde(default)]
    user: Option<String>,
    #[serde(default)]
    password: Option<Secret>,
}

#[cfg(feature = "tls")]
#[derive(Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
struct TlsParts {
    roots: Option<String>,
    roots_file: Option<PathBuf>,
    certificate: Option<String>,
    certificate_file: Option<PathBuf>,
    key: Option<String>,
    key_file: Option<PathBuf>,
    server_name: Option<String>,
}

impl TryFrom<Parts> for Config {
    type Error = Error;

    fn try_from(parts: Parts) -> Result<Self, Error> {
        let mut sentinel_login = Login::default();
        let deployment = match (
            parts.server,
            parts.cluster,
            parts.sentinels,
            parts.unix_socket,
        ) {
            (None, None, None, None) => Self::default().deployment,
            (Some(server), None, None, None) => Deployment::Server(address(&server, PORT)?),
            (None, Some(servers), None, None) => Deployment::Cluster(addresses(&servers, PORT)?),
            (None, None, Some(sentinels), None) => {
                sentinel_login = Login {
                    user: sentinels.user,
                    password: sentinels.password,
                };
                Deployment::Sentinels {
                    service: sentinels.service,
                    servers: addresses(&sentinels.servers, SENTINEL_PORT)?,
                }
            }
            (None, None, None, Some(path)) => Deployment::UnixSocket(path),
            _ => {
                return Err(Error::invalid(
                    "a configuration needs exactly one of `server`, `cluster`, `sentinels` and `unix_socket`",
                ));
            }
        };
        let config = Self {
            deployment,
            login: Login {
                user: parts.user,
                password: parts.password,
            },
            sentinel_login,
            database: parts.database,
            protocol: parts.protocol,
            connect_timeout: timeout("connect_timeout", parts.connect_timeout)?,
            command_timeout: timeout("command_timeout", parts.command_timeout)?,
            #[cfg(feature = "tls")]
            tls: parts.tls.map(Tls::try_from).transpose()?,
        };
        config.check()?;
        Ok(config)
    }
}

impl TryFrom<&Config> for Parts {
    type Error = Error;

    fn try_from(config: &Config) -> Result<Self, Error> {
        let mut parts = Self {
            user: config.login.user.clone(),
            password: config.login.password.clone(),
            database: config.database,
            #[cfg(feature = "tls")]
            tls: config.tls.clone().map(TlsParts::from),
            protocol: config.protocol,
            connect_timeout: config.connect_timeout.map(millis),
            command_timeout: config.command_timeout.map(millis),
            ..Self::default()
        };
        match &config.deployment {
            Deployment::Server(server) => parts.server = Some(server.to_string()),
            Deployment::Cluster(servers) => parts.cluster = Some(texts(servers)),
            Deployment::Sentinels { service, servers } => {
                parts.sentinels = Some(Sentinels {
                    service: service.clone(),
                    servers: texts(servers),
                    user: config.sentinel_login.user.clone(),
                    password: config.sentinel_login.password.clone(),
                });
            }
            Deployment::UnixSocket(path) => parts.unix_socket = Some(path.clone()),
            #[cfg(feature = "memory")]
            Deployment::Memory(_) => {
                return Err(Error::invalid(
                    "a server in memory has no address to be written down",
                ));
            }
        }
        Ok(parts)
    }
}

#[cfg(feature = "tls")]
impl TryFrom<TlsParts> for Tls {
    type Error = Error;

    fn try_from(parts: TlsParts) -> Result<Self, Error> {
        let certificate = match (
            pem("certificate", parts.certificate, parts.certificate_file)?,
            pem("key", parts.key, parts.key_file)?,
        ) {
            (None, None) => None,
            (Some(chain), Some(key)) => Some(Certificate { chain, key }),
            _ => return Err(Error::invalid("give a certificate and its key together")),
        };
        Ok(Self {
            roots: pem("roots", parts.roots, parts.roots_file)?,
            certificate,
            server_name: parts.server_name,
        })
    }
}

#[cfg(feature = "tls")]
impl From<Tls> for TlsParts {
    fn from(tls: Tls) -> Self {
        let parted = |pem| match pem {
            None => (None, None),
            Some(Pem::Text(text)) => (Some(text), None),
            Some(Pem::File(path)) => (None, Some(path)),
        };
        let (chain, key) = tls.certificate.map(|own| (own.chain, own.key)).unzip();
        let (roots, roots_file) = parted(tls.roots);
        let (certificate, certificate_file) = parted(chain);
        let (key, key_file) = parted(key);
        Self {
            roots,
            roots_file,
            certificate,
            certificate_file,
            key,
            key_file,
            server_name: tls.server_name,
        }
    }
}

#[cfg(feature = "tls")]
fn pem(what: &str, text: Option<String>, file: Option<PathBuf>) -> Result<Option<Pem>, Error> {
    match (text, file) {
        (Some(_), Some(_)) => Err(Error::invalid(format!(
            "`{what}` and `{what}_file` are both given; give only one"
        ))),
        (text, file) => Ok(text.map(Pem::Text).or_else(|| file.map(Pem::File))),
    }
}

fn address(text: &str, default_port: u16) -> Result<Server, Error> {
    Server::parse(text, default_port)
        .map_err(|flaw| Error::invalid(format!("the address of a server is invalid: {flaw}")))
}

fn addresses(texts: &[String], default_port: u16) -> Result<Vec<Server>, Error> {
    texts
        .iter()
        .map(|text| address(text, default_port))
        .collect()
}

fn texts(servers: &[Server]) -> Vec<String> {
    servers.iter().map(Server::to_string).collect()
}

fn timeout(what: &str, text: Option<String>) -> Result<Option<Duration>, Error> {
    let read = |text: String| {
        duration(&text).ok_or_else(|| {
            Error::invalid(format!("`{what}` needs a unit, as in \"500ms\" or \"2s\""))
        })
    };
    text.map(read).transpose()
}

fn millis(time: Duration) -> String {
    format!("{}ms", time.as_millis())
}

impl<'de> Deserialize<'de> for Config {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct UrlOrParts;

        impl<'de> Visitor<'de> for UrlOrParts {
            type Value = Config;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a server's URL, or the parts of a configuration")
            }

            fn visit_str<E: serde::de::Error>(self, url: &str) -> Result<Config, E> {
                url.parse().map_err(E::custom)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Config, A::Error> {
                let parts = Parts::deserialize(MapAccessDeserializer::new(map))?;
                parts.try_into().map_err(A::Error::custom)
            }
        }

        deserializer.deserialize_any(UrlOrParts)
    }
}

impl Serialize for Config {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let parts = Parts::try_from(self).map_err(serde::ser::Error::custom)?;
        parts.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // The error is replaced: serde's error about a value of another type repeats the value.
        let text = String::deserialize(deserializer);
        text.map(Self::new)
            .map_err(|_| D::Error::custom("a password must be text in quotes"))
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.reveal().serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json, to_value};

    use super::*;

    #[test]
    fn parts_and_urls_are_read_and_what_is_written_is_read_again() {
        let url = |url: &str| url.parse::<Config>().unwrap();
        for (written, config) in [
            (json!({}), Config::default()),
            (json!("redis://u:p@h:1/3"), url("redis://u:p@h:1/3")),
            (
                json!({"server": "h:1", "user": "u", "password": "p", "database": 3}),
                url("redis://u:p@h:1/3"),
            ),
            (json!({"server": "[::1]"}), url("redis://[::1]")),
            (
                json!({"cluster": ["h:1", "i"]}),
                url("redis-cluster://h:1?node=i"),
            ),
            (
                json!({"sentinels": {"service": "m", "servers": ["h", "i:2"], "user": "w", "password": "q"}}),
                url(
                    "redis-sentinel://h?sentinelServiceName=m&node=i:2&sentinelUsername=w&sentinelPassword=q",
                ),
            ),
            (
                json!({"unix_socket": "/r.sock", "protocol": "resp2"}),
                url("redis+unix:///r.sock?protocol=2"),
            ),
            (
                json!({"connect_timeout": "1s", "command_timeout": "250ms"}),
                url("redis://127.0.0.1?connect_timeout=1000ms&command_timeout=250ms"),
            ),
            #[cfg(feature = "tls")]
            (json!({"server": "h", "tls": {}}), url("rediss://h")),
            #[cfg(feature = "tls")]
            (
                json!({"server": "h", "tls": {
                    "roots": "text", "certificate_file": "/c", "key_file": "/k", "server_name": "n",
                }}),
                Config::server("h", 6379).tls(
                    Tls::new()
                        .roots("text")
                        .certificate_files("/c", "/k")
                        .server_name("n"),
                ),
            ),
        ] {
            let read: Config = from_value(written.clone()).unwrap();
            assert_eq!(read, config, "{written}");
            let again: Config = from_value(to_value(&read).unwrap()).unwrap();
            assert_eq!(again, config, "{written}");
        }
    }

    #[test]
    fn what_is_no_configuration_is_refused_without_its_passwords() {
        for (written, word) in [
            (json!("redis://u:77@h?db=3"), "redis://host:6379/3"),
            (json!({"server": "h", "cluster": ["h"]}), "one of `server`"),
            (json!({"servers": ["h"], "password": "77"}), "`servers`"),
            (json!({"server": "h:x", "password": "77"}), "port"),
            (json!({"cluster": [], "password": "77"}), "no server"),
            (json!({"cluster": ["h"], "database": 3}), "database 0 only"),
            (json!({"password": 77}), "in quotes"),
            (json!({"sentinels": {"servers": ["h"]}}), "service"),
            (json!({"connect_timeout": "5"}), "unit"),
            (json!(6379), "URL"),
            #[cfg(feature = "tls")]
            (json!({"tls": {"key": "77"}}), "key together"),
            #[cfg(feature = "tls")]
            (
                json!({"tls": {"roots": "77", "roots_file": "/ca"}}),
                "`roots_file`",
            ),
        ] {
            let error = from_value::<Config>(written.clone())
                .expect_err("refused")
                .to_string();
            assert!(error.contains(word), "{written}: {error}");
            assert!(!error.contains("77"), "{error}");
        }
    }
}
