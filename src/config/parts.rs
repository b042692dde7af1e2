//! A configuration by the names of its parts, as `serde` reads and writes it.

use std::fmt;
use std::marker::PhantomData;
use std::path::PathBuf;
use std::time::Duration;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error as _, MapAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::server::{PORT, SENTINEL_PORT};
#[cfg(feature = "tls")]
use super::tls::{Certificate, Pem, Tls};
use super::url::duration;
use crate::config::{Config, Deployment, Protocol, Secret, Server};
use crate::error::Error;

/// Makes a function for each field that reads it. Serde's own error about a value of another type repeats the value,
/// which may be a password in the wrong place.
macro_rules! fields {
    ($module:ident: $($field:ident = $what:literal,)*) => {
        mod $module {
            use serde::de::Error as _;
            use serde::{Deserialize, Deserializer};

            $(pub(super) fn $field<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
                given: D,
            ) -> Result<T, D::Error> {
                let flaw = concat!("`", stringify!($field), "` must be ", $what);
                T::deserialize(given).map_err(|_| D::Error::custom(flaw))
            })*
        }
    };
}

fields! { field:
    server = "text: host:port",
    cluster = "a list of texts: host:port",
    unix_socket = "a path, as text",
    user = "text in quotes",
    password = "text in quotes",
    database = "a number from 0 on",
    protocol = "\"resp3\" or \"resp2\"",
    connect_timeout = "text with a unit, as in \"500ms\" or \"2s\"",
    command_timeout = "text with a unit, as in \"500ms\" or \"2s\"",
    service = "text in quotes",
    servers = "a list of texts: host:port",
}

#[cfg(feature = "tls")]
fields! { tls_field:
    roots = "text in quotes",
    roots_file = "a path, as text",
    certificate = "text in quotes",
    certificate_file = "a path, as text",
    key = "text in quotes",
    key_file = "a path, as text",
    server_name = "text in quotes",
}

#[derive(Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
struct Parts {
    #[serde(deserialize_with = "field::server")]
    server: Option<String>,
    #[serde(deserialize_with = "field::cluster")]
    cluster: Option<Vec<String>>,
    #[serde(deserialize_with = "table")]
    sentinels: Option<SentinelParts>,
    #[serde(deserialize_with = "field::unix_socket")]
    unix_socket: Option<PathBuf>,
    #[serde(deserialize_with = "field::user")]
    user: Option<String>,
    #[serde(deserialize_with = "field::password")]
    password: Option<Secret>,
    #[serde(deserialize_with = "field::database")]
    database: u32,
    #[serde(deserialize_with = "table")]
    tls: Option<TlsParts>,
    #[serde(deserialize_with = "field::protocol")]
    protocol: Protocol,
    #[serde(deserialize_with = "field::connect_timeout")]
    connect_timeout: Option<String>,
    #[serde(deserialize_with = "field::command_timeout")]
    command_timeout: Option<String>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct SentinelParts {
    #[serde(deserialize_with = "field::service")]
    service: String,
    #[serde(deserialize_with = "field::servers")]
    servers: Vec<String>,
    #[serde(default, deserialize_with = "field::user")]
    user: Option<String>,
    #[serde(default, deserialize_with = "field::password")]
    password: Option<Secret>,
}

/// In a build without TLS: read as an error that names the feature, whatever it holds.
#[cfg(not(feature = "tls"))]
#[derive(Serialize)]
struct TlsParts {}

#[cfg(not(feature = "tls"))]
impl<'de> Deserialize<'de> for TlsParts {
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(D::Error::custom(super::WITHOUT_TLS))
    }
}

#[cfg(feature = "tls")]
#[derive(Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
struct TlsParts {
    #[serde(deserialize_with = "tls_field::roots")]
    roots: Option<String>,
    #[serde(deserialize_with = "tls_field::roots_file")]
    roots_file: Option<PathBuf>,
    #[serde(deserialize_with = "tls_field::certificate")]
    certificate: Option<String>,
    #[serde(deserialize_with = "tls_field::certificate_file")]
    certificate_file: Option<PathBuf>,
    #[serde(deserialize_with = "tls_field::key")]
    key: Option<String>,
    #[serde(deserialize_with = "tls_field::key_file")]
    key_file: Option<PathBuf>,
    #[serde(deserialize_with = "tls_field::server_name")]
    server_name: Option<String>,
}

impl TryFrom<Parts> for Config {
    type Error = Error;

    fn try_from(parts: Parts) -> Result<Self, Error> {
        let given = (
            parts.server,
            parts.cluster,
            parts.sentinels,
            parts.unix_socket,
        );
        let mut config = match given {
            (None, None, None, None) => Self::default(),
            (Some(server), None, None, None) => {
                Self::of(Deployment::Server(address(&server, PORT)?))
            }
            (None, Some(servers), None, None) => {
                Self::of(Deployment::Cluster(addresses(&servers, PORT)?))
            }
            (None, None, Some(sentinels), None) => {
                let (service, servers) = (sentinels.service, &sentinels.servers);
                let servers = addresses(servers, SENTINEL_PORT)?;
                let mut config = Self::of(Deployment::Sentinels { service, servers });
                config.sentinel_login.user = sentinels.user;
                config.sentinel_login.password = sentinels.password;
                config
            }
            (None, None, None, Some(path)) => Self::unix_socket(path),
            _ => {
                return Err(Error::invalid(
                    "a configuration needs exactly one of `server`, `cluster`, `sentinels` and `unix_socket`",
                ));
            }
        };
        (config.login.user, config.login.password) = (parts.user, parts.password);
        (config.database, config.protocol) = (parts.database, parts.protocol);
        config.connect_timeout = timeout("connect_timeout", parts.connect_timeout)?;
        config.command_timeout = timeout("command_timeout", parts.command_timeout)?;
        #[cfg(feature = "tls")]
        (config.tls = parts.tls.map(Tls::try_from).transpose()?);
        config.check()?;
        Ok(config)
    }
}

impl TryFrom<&Config> for Parts {
    type Error = Error;

    fn try_from(config: &Config) -> Result<Self, Error> {
        if config.connector.is_some()
            || config.credentials.is_some()
            || config.sentinel_credentials.is_some()
        {
            return Err(Error::invalid(
                "a connector, and credentials that are asked for, cannot be written down",
            ));
        }
        let mut parts = Self {
            user: config.login.user.clone(),
            password: config.login.password.clone(),
            database: config.database,
            #[cfg(feature = "tls")]
            tls: config.tls.clone().map(TlsParts::try_from).transpose()?,
            protocol: config.protocol,
            connect_timeout: config.connect_timeout.map(millis),
            command_timeout: config.command_timeout.map(millis),
            ..Self::default()
        };
        match &config.deployment {
            Deployment::Server(server) => parts.server = Some(server.to_string()),
            Deployment::Cluster(servers) => parts.cluster = Some(texts(servers)),
            Deployment::Sentinels { service, servers } => {
                parts.sentinels = Some(SentinelParts {
                    service: service.clone(),
                    servers: texts(servers),
                    user: config.sentinel_login.user.clone(),
                    password: config.sentinel_login.password.clone(),
                });
            }
            Deployment::UnixSocket(path) => parts.unix_socket = Some(path.clone()),
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
            rustls: None,
            flaw: None,
        })
    }
}

#[cfg(feature = "tls")]
impl TryFrom<Tls> for TlsParts {
    type Error = Error;

    fn try_from(tls: Tls) -> Result<Self, Error> {
        if tls.rustls.is_some() {
            return Err(Error::invalid(
                "a rustls configuration of the application cannot be written down",
            ));
        }
        let parted = |pem| match pem {
            None => (None, None),
            Some(Pem::Text(text)) => (Some(text), None),
            Some(Pem::File(path)) => (None, Some(path)),
        };
        let (chain, key) = tls.certificate.map(|own| (own.chain, own.key)).unzip();
        let (roots, roots_file) = parted(tls.roots);
        let (certificate, certificate_file) = parted(chain);
        let (key, key_file) = parted(key);
        Ok(Self {
            roots,
            roots_file,
            certificate,
            certificate_file,
            key,
            key_file,
            server_name: tls.server_name,
        })
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

/// Reads a part that has parts of its own, if it is given. A text in its place is not repeated.
fn table<'de, D: Deserializer<'de>, T: Deserialize<'de>>(given: D) -> Result<Option<T>, D::Error> {
    struct Table<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Table<T> {
        type Value = Option<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a table")
        }

        fn visit_none<E>(self) -> Result<Option<T>, E> {
            Ok(None)
        }

        fn visit_some<D: Deserializer<'de>>(self, given: D) -> Result<Option<T>, D::Error> {
            given.deserialize_any(self)
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Option<T>, A::Error> {
            T::deserialize(MapAccessDeserializer::new(map)).map(Some)
        }

        fn visit_str<E: serde::de::Error>(self, _: &str) -> Result<Option<T>, E> {
            Err(E::invalid_type(Unexpected::Other("something else"), &self))
        }

        fn visit_i64<E: serde::de::Error>(self, _: i64) -> Result<Option<T>, E> {
            self.visit_str("")
        }

        fn visit_u64<E: serde::de::Error>(self, _: u64) -> Result<Option<T>, E> {
            self.visit_str("")
        }

        fn visit_f64<E: serde::de::Error>(self, _: f64) -> Result<Option<T>, E> {
            self.visit_str("")
        }
    }

    given.deserialize_option(Table(PhantomData))
}

impl Serialize for Config {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let parts = Parts::try_from(self).map_err(serde::ser::Error::custom)?;
        parts.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::new)
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.reveal().serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{from_str, from_value, json, to_value};

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
            let text = written.to_string();
            for error in [
                from_value::<Config>(written).expect_err("refused"),
                from_str::<Config>(&text).expect_err("refused"),
            ] {
                let shown = format!("{error} {error:?}");
                assert!(shown.contains(word), "{text}: {shown}");
                assert!(!shown.contains("77"), "{shown}");
            }
        }
    }

    #[test]
    fn what_stands_in_the_wrong_place_is_not_repeated() {
        let wrong = [
            json!("77"),
            json!(77),
            json!(-77),
            json!(7.7),
            json!(["77"]),
            json!({"x": 77}),
        ];
        let fields = [
            "server",
            "cluster",
            "sentinels",
            "unix_socket",
            "user",
            "password",
            "database",
            "protocol",
            "connect_timeout",
            "command_timeout",
            #[cfg(feature = "tls")]
            "tls",
        ];
        let inside = [
            ("sentinels", "service"),
            ("sentinels", "servers"),
            ("sentinels", "user"),
            ("sentinels", "password"),
            #[cfg(feature = "tls")]
            ("tls", "roots"),
            #[cfg(feature = "tls")]
            ("tls", "key"),
            #[cfg(feature = "tls")]
            ("tls", "key_file"),
            #[cfg(feature = "tls")]
            ("tls", "server_name"),
        ];
        let mut refused = 0;
        for value in wrong {
            let plain = fields.map(|field| json!({ field: value }));
            let nested = inside.map(|(field, part)| json!({ field: { part: value } }));
            for written in plain.into_iter().chain(nested) {
                let text = written.to_string();
                let errors = [
                    from_value::<Config>(written).err(),
                    from_str::<Config>(&text).err(),
                ];
                for error in errors.into_iter().flatten() {
                    let shown = format!("{error} {error:?}");
                    assert!(
                        !shown.contains("77") && !shown.contains("7.7"),
                        "{text}: {shown}"
                    );
                    refused += 1;
                }
            }
        }
        assert!(refused > 150, "{refused}");
    }
}
