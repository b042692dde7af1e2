//! Parses a configuration from a URL. No error repeats the URL, which may contain a password.

use std::str::FromStr;
use std::time::Duration;

use percent_encoding::percent_decode_str;

use super::server::{PORT, SENTINEL_PORT};
use crate::config::{Config, Deployment, Protocol, Server};
use crate::error::Error;

const SCHEMES: &str = "a server's URL begins with redis://, redis-sentinel://, redis-cluster:// or redis+unix://, or with \
                       rediss for TLS";

const UNKNOWN_PARAMETER: &str =
    "it has an unknown parameter; in a password, write ? as %3F and & as %26";

/// The parameters of some URLs that an error may name: any other may be a part of a password.
const NAMED: &str = "node password sentinelServiceName sentinelUsername sentinelPassword tls_roots tls_certificate \
                     tls_key tls_server_name";

const BARE_LOGIN: &str = "it has a / or a ? in front of an @; percent-encode a user or password: / as %2F, ? as %3F, \
                          @ as %40";

const HOST_LIST: &str = "it has a list of hosts; write redis-cluster://a:1?node=b:2 for a cluster, or \
                         redis-sentinel://a:1?node=b:2&sentinelServiceName=main for sentinels";

/// The kind of deployment that a URL describes, by its scheme.
#[derive(Clone, Copy)]
enum Form {
    Server,
    Cluster,
    Sentinels,
    UnixSocket,
}

impl FromStr for Config {
    type Err = Error;

    /// Parses a URL, as [`Config::from_url`] does.
    fn from_str(url: &str) -> Result<Self, Error> {
        let (scheme, rest) = url
            .split_once("://")
            .ok_or_else(|| Error::invalid(SCHEMES))?;
        let (form, is_secure) = form(&scheme.to_ascii_lowercase())?;
        if rest.contains('#') {
            return Err(misread("it has a #; in a password, write it as %23"));
        }
        let (front, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = front.split_at(front.find('/').unwrap_or(front.len()));
        let (login, host) = authority.rsplit_once('@').unwrap_or(("", authority));
        let mut query = Query::read(query)?;
        let is_file = matches!(form, Form::UnixSocket) && matches!(host, "" | "localhost");
        if path.contains('@') && !is_file {
            return Err(misread(BARE_LOGIN));
        }
        let mut config = match form {
            Form::UnixSocket => unix_socket(host, path, &mut query)?,
            _ => servers(form, host, path, &mut query)?,
        };
        let (user, password) = login.split_once(':').unwrap_or((login, ""));
        if !user.is_empty() {
            config = config.user(decoded(user)?);
        }
        if !password.is_empty() {
            config = config.password(decoded(password)?);
        }
        if is_secure {
            config = secure(config, &mut query)?;
        }
        config.connect_timeout = query.timeout("connect_timeout")?;
        config.command_timeout = query.timeout("command_timeout")?;
        if let Some(protocol) = query.take("protocol")? {
            let read = Protocol::read(&protocol);
            config.protocol = read.ok_or_else(|| misread("its protocol is neither 2 nor 3"))?;
        }
        query.ensure_empty()?;
        config.check()?;
        Ok(config)
    }
}

fn form(scheme: &str) -> Result<(Form, bool), Error> {
    let (base, suffix) = scheme.split_at(scheme.find(['-', '+']).unwrap_or(scheme.len()));
    let is_secure = match base {
        "redis" | "valkey" => false,
        "rediss" | "valkeys" => true,
        _ => return Err(Error::invalid(SCHEMES)),
    };
    let form = match suffix {
        "" => Form::Server,
        "-cluster" => Form::Cluster,
        "-sentinel" => Form::Sentinels,
        "+unix" if is_secure => return Err(misread("a unix socket cannot use TLS")),
        "+unix" => Form::UnixSocket,
        _ => return Err(Error::invalid(SCHEMES)),
    };
    Ok((form, is_secure))
}

fn servers(form: Form, host: &str, path: &str, query: &mut Query) -> Result<Config, Error> {
    let port = match form {
        Form::Sentinels => SENTINEL_PORT,
        _ => PORT,
    };
    if host.contains(',') {
        return Err(misread(HOST_LIST));
    }
    let first = Server::parse(&decoded(host)?, port).map_err(|flaw| match query.has_at {
        true => misread(BARE_LOGIN),
        false => misread(flaw),
    })?;
    let all = |query: &mut Query| {
        let others = query.take_all("node");
        let others = others
            .iter()
            .map(|node| Server::parse(node, port).map_err(misread));
        std::iter::once(Ok(first.clone()))
            .chain(others)
            .collect::<Result<Vec<_>, _>>()
    };
    let mut config = match form {
        Form::Cluster => Config::of(Deployment::Cluster(all(query)?)),
        Form::Sentinels => {
            let service = query.take("sentinelServiceName")?.unwrap_or_default();
            let servers = all(query)?;
            let mut config = Config::of(Deployment::Sentinels { service, servers });
            if let Some(user) = query.take("sentinelUsername")? {
                config = config.sentinel_user(user);
            }
            if let Some(password) = query.take("sentinelPassword")? {
                config = config.sentinel_password(password);
            }
            config
        }
        Form::Server | Form::UnixSocket => Config::of(Deployment::Server(first)),
    };
    if let Some(number) = path.strip_prefix('/').filter(|number| !number.is_empty()) {
        config.database = database(number)?;
    }
    Ok(config)
}

fn unix_socket(host: &str, path: &str, query: &mut Query) -> Result<Config, Error> {
    if !matches!(host, "" | "localhost") {
        return Err(misread(
            "a unix socket has no host: redis+unix:///path has three slashes",
        ));
    }
    let mut config = Config::unix_socket(decoded(path)?);
    if let Some(number) = query.take("db")? {
        config.database = database(&number)?;
    }
    Ok(config)
}

#[cfg(feature = "tls")]
fn secure(config: Config, query: &mut Query) -> Result<Config, Error> {
    let mut tls = super::tls::Tls::new();
    if let Some(path) = query.take("tls_roots")? {
        tls = tls.roots_file(path);
    }
    tls = match (query.take("tls_certificate")?, query.take("tls_key")?) {
        (None, None) => tls,
        (Some(chain), Some(key)) => tls.certificate_files(chain, key),
        _ => return Err(misread("give tls_certificate and tls_key together")),
    };
    if let Some(name) = query.take("tls_server_name")? {
        tls = tls.server_name(name);
    }
    Ok(config.tls(tls))
}

#[cfg(not(feature = "tls"))]
fn secure(_: Config, _: &mut Query) -> Result<Config, Error> {
    Err(Error::invalid(super::WITHOUT_TLS))
}

fn database(number: &str) -> Result<u32, Error> {
    let read = match number.bytes().all(|byte| byte.is_ascii_digit()) {
        true => number.parse().ok(),
        false => None,
    };
    read.ok_or_else(|| misread("its database is not a number, or it has two"))
}

/// The parameters after the question mark that have not been taken yet.
struct Query {
    left: Vec<(String, String)>,
    /// The last @ separates the login: one that is behind the question mark shows that the login may have reached into
    /// the parameters.
    has_at: bool,
}

impl Query {
    fn read(query: &str) -> Result<Self, Error> {
        let has_at = query.contains('@');
        let parts = query.split('&').filter(|part| !part.is_empty());
        let parts = parts.map(|part| {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            Ok((decoded(key)?, decoded(value)?))
        });
        let left = parts.collect::<Result<_, Error>>()?;
        Ok(Self { left, has_at })
    }

    fn take_all(&mut self, key: &str) -> Vec<String> {
        let taken = self.left.extract_if(.., |(given, _)| given == key);
        taken.map(|(_, value)| value).collect()
    }

    fn take(&mut self, key: &str) -> Result<Option<String>, Error> {
        let mut values = self.take_all(key);
        match values.len() {
            0 | 1 => Ok(values.pop()),
            _ => Err(misread(&format!("it has {key} twice"))),
        }
    }

    fn timeout(&mut self, key: &str) -> Result<Option<Duration>, Error> {
        let read = |text: String| {
            duration(&text).ok_or_else(|| {
                misread(&format!(
                    "{key} needs a unit, as in {key}=500ms or {key}=2s"
                ))
            })
        };
        self.take(key)?.map(read).transpose()
    }

    /// Refuses a parameter that nobody has taken.
    fn ensure_empty(self) -> Result<(), Error> {
        let Some((key, _)) = self.left.first() else {
            return Ok(());
        };
        Err(misread(&match key.as_str() {
            _ if self.has_at => BARE_LOGIN.to_owned(),
            "db" | "database" => format!(
                "{key:?} is not a parameter: write a database as redis://host:6379/3, for a unix socket as \
                 redis+unix:///path?db=3"
            ),
            key if NAMED.split(' ').all(|name| name != key) => UNKNOWN_PARAMETER.to_owned(),
            key if key.starts_with("tls_") => format!("{key:?} is a parameter of rediss URLs only"),
            key => format!("{key:?} is not a parameter of a URL with this scheme"),
        }))
    }
}

impl Protocol {
    pub(super) fn read(text: &str) -> Option<Self> {
        match text {
            "2" | "resp2" => Some(Self::Resp2),
            "3" | "resp3" => Some(Self::Resp3),
            _ => None,
        }
    }
}

/// Parses a time with its unit: `500ms`, `2s` or `1m`.
pub(super) fn duration(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    let number = number.parse().ok()?;
    match unit {
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_secs(number.checked_mul(60)?)),
        _ => None,
    }
}

fn decoded(text: &str) -> Result<String, Error> {
    let decoded = percent_decode_str(text).decode_utf8();
    let decoded = decoded.map_err(|_| misread("it is not valid UTF-8"))?;
    Ok(decoded.into_owned())
}

fn misread(flaw: &str) -> Error {
    Error::invalid(format!("the server's URL is invalid: {flaw}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn read(url: &str) -> Config {
        url.parse().unwrap_or_else(|error| panic!("{url}: {error}"))
    }

    #[test]
    fn every_form_is_read_as_its_parts() {
        let server = Config::server;
        for (url, config) in [
            ("redis://h", server("h", 6379)),
            ("REDIS://h", server("h", 6379)),
            ("valkey://h:1/", server("h", 1)),
            ("redis://h:1/0", server("h", 1)),
            ("redis://h:1/300", server("h", 1).database(300)),
            ("redis://[::1]:1/3", server("::1", 1).database(3)),
            ("redis://:p@h", server("h", 6379).password("p")),
            ("redis://u@h", server("h", 6379).user("u")),
            (
                "redis://u:p:q+@h",
                server("h", 6379).user("u").password("p:q+"),
            ),
            (
                "redis://u:p@q@h",
                server("h", 6379).user("u").password("p@q"),
            ),
            (
                "redis://a%3Ab:%2F%3F%23%40%25%20%F0%9F%94%92@h/3",
                server("h", 6379)
                    .user("a:b")
                    .password("/?#@% \u{1f512}")
                    .database(3),
            ),
            ("redis://h?", server("h", 6379)),
            (
                "redis://h?connect_timeout=500ms&command_timeout=2s&protocol=2",
                server("h", 6379)
                    .connect_timeout(Duration::from_millis(500))
                    .command_timeout(Duration::from_secs(2))
                    .protocol(Protocol::Resp2),
            ),
            (
                "redis://h?protocol=resp3&connect_timeout=1m",
                server("h", 6379).connect_timeout(Duration::from_secs(60)),
            ),
            (
                "redis+unix:///run/r.sock",
                Config::unix_socket("/run/r.sock"),
            ),
            (
                "valkey+unix://localhost/run/r.sock?db=0",
                Config::unix_socket("/run/r.sock"),
            ),
            (
                "redis+unix:///run/a@b.sock",
                Config::unix_socket("/run/a@b.sock"),
            ),
            (
                "redis+unix://u:p@/run/a%20b.sock?db=3",
                Config::unix_socket("/run/a b.sock")
                    .user("u")
                    .password("p")
                    .database(3),
            ),
            ("redis-cluster://h", Config::cluster([("h", 6379)])),
            (
                "valkey-cluster://u:p@h:1/0?node=i:2&node=[::1]:3&node=j",
                Config::cluster([("h", 1), ("i", 2), ("::1", 3), ("j", 6379)])
                    .user("u")
                    .password("p"),
            ),
            (
                "redis-sentinel://:p@h/3?sentinelServiceName=main&node=i:2&sentinelUsername=w&sentinelPassword=q%26",
                Config::sentinels("main", [("h", 26379), ("i", 2)])
                    .password("p")
                    .database(3)
                    .sentinel_user("w")
                    .sentinel_password("q&"),
            ),
        ] {
            assert_eq!(read(url), config, "{url}");
        }
    }

    #[cfg(feature = "tls")]
    #[test]
    fn forms_with_tls_are_read_as_their_parts() {
        use crate::config::tls::Tls;
        let server = || Config::server("h", 6379);
        for (url, config) in [
            ("rediss://h", server().tls(Tls::new())),
            ("valkeys://h", server().tls(Tls::new())),
            (
                "rediss-cluster://h",
                Config::cluster([("h", 6379)]).tls(Tls::new()),
            ),
            (
                "rediss://h?tls_roots=/ca.pem&tls_certificate=/my.pem&tls_key=/my.key&tls_server_name=n",
                server().tls(
                    Tls::new()
                        .roots_file("/ca.pem")
                        .certificate_files("/my.pem", "/my.key")
                        .server_name("n"),
                ),
            ),
        ] {
            assert_eq!(read(url), config, "{url}");
        }
    }

    /// Each URL is followed by a word of its error.
    #[test]
    fn what_cannot_be_understood_is_refused_by_name_and_not_repeated() {
        for (url, word) in [
            ("", "begins with redis://"),
            ("localhost", "begins with"),
            ("://h", "begins with"),
            ("http://u:secret@h", "begins with"),
            ("redis-what://u:secret@h", "begins with"),
            ("redis+tls://u:secret@h", "begins with"),
            ("unix:///secret", "begins with"),
            ("redis://", "host is empty"),
            ("redis://:secret@", "host is empty"),
            ("redis:///3", "host is empty"),
            ("redis://u:secret@h:notaport", "port"),
            ("redis://u:secret@h:70000", "port"),
            ("redis://u:secret@h:0", "port is 0"),
            ("redis://u:secret@::1", "brackets"),
            ("redis://u:secret@a:1,b:2", "redis-cluster://a:1?node=b:2"),
            ("redis://u:secret@a,b", "redis-sentinel://a:1?node=b:2"),
            ("rediss-cluster://u:secret@a:1,b:2", "?node=b:2"),
            ("redis-sentinel://u:secret@a:1,b:2", "?node=b:2"),
            ("redis://u:secret@h/notanumber", "database"),
            ("redis://u:secret@h/-1", "database"),
            ("redis://u:secret@h/+1", "database"),
            ("redis://u:secret@h/4294967296", "database"),
            ("redis://u:secret@h/0/1", "database"),
            ("redis://u:secret@h/0,1", "database"),
            ("redis://u:secret@h/3/", "database"),
            ("redis://u:secret@h?db=3", "redis://host:6379/3"),
            ("redis://u:secret@h/3?db=3", "redis://host:6379/3"),
            ("redis-cluster://u:secret@h?db=3", "redis://host:6379/3"),
            ("redis://u:secret@h?database=3", "redis://host:6379/3"),
            ("redis://u:secret@h?node=i:1", "\"node\" is not a parameter"),
            ("redis://u:secret@h?ssl_cert_reqs=none", "unknown parameter"),
            (
                "redis://u:secret@h?password=secret",
                "\"password\" is not a parameter",
            ),
            ("redis://u:p@ss/secret@h", "percent-encode"),
            ("redis://u:p@ss/secret@h:6379/0", "%2F"),
            ("redis://u:/secret@h", "%2F"),
            ("redis-cluster://u:p@ss/secret@h", "%40"),
            ("redis+unix://u:p/secret@/run/r.sock", "%2F"),
            ("redis://u:p?secret@h", "%3F"),
            ("redis://u:12?secret@h", "%3F"),
            ("redis://u:12?secret&x@h", "%3F"),
            ("redis://u:12?tls_secret=&x@h", "%3F"),
            ("redis-sentinel://h?sentinelPassword=a&secret", "%26"),
            ("redis-sentinel://h?sentinelPassword=a&tls_secret", "%26"),
            ("redis://u:12?db=secret@h", "%3F"),
            ("redis://h?tls_server_redis://u:secreth=n", "%3F"),
            ("redis://u:secret@h#secret", "%23"),
            ("redis://u:#secret@h", "%23"),
            ("redis://u:%FFsecret@h", "UTF-8"),
            ("redis://u:secret@h?protocol=4", "protocol"),
            ("redis://u:secret@h?protocol=2&protocol=3", "protocol twice"),
            ("redis://u:secret@h?connect_timeout=5", "unit"),
            ("redis://u:secret@h?connect_timeout=1ms", "connect_timeout"),
            ("redis://u:secret@h?command_timeout=1h", "unit"),
            ("redis://u:secret@h?tls_roots=/ca.pem", "rediss"),
            ("redis+unix://u:secret@h/run/r.sock", "no host"),
            ("redis+unix://", "path"),
            ("redis+unix:///run/r.sock?db=x", "database"),
            ("redis+unix:///run/r.sock?db=1&db=2", "db twice"),
            ("rediss+unix:///run/r.sock", "unix socket"),
            ("redis-cluster://u:secret@h/3", "database 0 only"),
            ("redis-cluster://u:secret@h?node=", "host is empty"),
            ("redis-sentinel://u:secret@h", "sentinelServiceName"),
            (
                "redis-cluster://h?sentinelPassword=secret",
                "\"sentinelPassword\" is not a parameter",
            ),
        ] {
            let error = url.parse::<Config>().expect_err(url);
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{url}");
            let shown = format!("{error} {error:?}");
            assert!(shown.contains(word), "{url}: {error}");
            assert!(!shown.contains("secret"), "{shown}");
        }
    }

    #[test]
    fn what_is_shown_of_a_configuration_holds_no_password() {
        let config =
            read("redis-sentinel://u:secret@h?sentinelServiceName=m&sentinelPassword=secret");
        let shown = format!("{config:?} {config:#?}");
        assert!(
            shown.contains("\"u\"") && !shown.contains("secret"),
            "{shown}"
        );
    }
}
