use std::fs;
use std::sync::{Mutex, PoisonError};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::connection::Connection;
use crate::port::{Port, on_free_port};
use crate::process::Process;
use crate::reply::Reply;
use crate::server::Server;

const DEAF: &str = "deaf";
/// The milliseconds without an answer after which a server counts as down. A sentinel sends its first ping to a server
/// that it begins to watch after this time or a second, whichever is less. So with a second or less it takes a server
/// that was just promoted for down before it has asked it, and one failover follows the other.
const DOWN_AFTER: u64 = 1_500;

/// One sentinel process that watches a primary.
#[derive(Debug)]
pub struct Sentinel {
    // Declared before the directory, so that the process ends before its files are removed.
    process: Mutex<Process>,
    _dir: TempDir,
    port: Port,
    service: String,
}

impl Sentinel {
    /// Starts a sentinel that knows `primary` by the name `service`.
    ///
    /// # Panics
    /// Panics if there is no server program, with a text that says what to install, and if the sentinel does not come
    /// up, with its log.
    pub fn start(primary: &Server, service: &str) -> Self {
        Self::one_of(primary, service, 1)
    }

    /// Starts a sentinel that keeps naming the server that is the primary now, whatever the other sentinels do later.
    ///
    /// Sentinels learn of each other, and of a failover, over a channel of each server that they know. This one may not
    /// use channels on the primary, nor ask it for its replicas, so that it knows no other server.
    pub(crate) fn deaf(primary: &Server, service: &str) -> Self {
        let user = [
            "SETUSER",
            DEAF,
            "on",
            &format!(">{DEAF}"),
            "~*",
            "+@all",
            "-info",
            "resetchannels",
        ];
        let words = ["ACL"].into_iter().chain(user);
        let reply = primary.connection().command(&words.collect::<Vec<_>>());
        assert_eq!(reply, Reply::Status("OK".to_owned()));
        let login =
            format!("sentinel auth-user {service} {DEAF}\nsentinel auth-pass {service} {DEAF}\n");
        let launch = |port| Self::launch(primary, service, 9, port, &login);
        on_free_port(launch).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Starts a sentinel that acts once `quorum` sentinels agree.
    pub(crate) fn one_of(primary: &Server, service: &str, quorum: usize) -> Self {
        let login = match primary.password() {
            Some(password) => format!("sentinel auth-pass {service} {password}\n"),
            None => String::new(),
        };
        let sentinel = on_free_port(|port| Self::launch(primary, service, quorum, port, &login));
        sentinel.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Returns the port that the sentinel listens on.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Returns the URL by which clients find the primary.
    pub fn url(&self) -> String {
        let (port, service) = (self.port(), &self.service);
        format!("redis-sentinel://127.0.0.1:{port}?sentinelServiceName={service}")
    }

    /// Returns the port of the server that the sentinel takes for the primary.
    pub fn primary(&self) -> u16 {
        let mut connection = Connection::open(self.port());
        primary_of(&mut connection, &self.service).expect("the sentinel knows its service")
    }

    /// Returns how many replicas, and how many other sentinels, it knows.
    pub(crate) fn company(&self) -> [usize; 2] {
        ["REPLICAS", "SENTINELS"].map(|what| {
            let mut connection = Connection::open(self.port());
            let rows = connection.command(&["SENTINEL", what, &self.service]);
            rows.array().len()
        })
    }

    /// Stops the process with SIGSTOP: its sockets stay open and silent.
    pub fn freeze(&self) {
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        process.signal(Signal::STOP);
    }

    /// Opens a connection that bypasses everything under test.
    pub fn connection(&self) -> Connection {
        Connection::open(self.port())
    }

    fn launch(
        primary: &Server,
        service: &str,
        quorum: usize,
        port: Port,
        login: &str,
    ) -> Result<Self, String> {
        let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
        let config = format!(
            "bind 127.0.0.1\n\
             port {}\n\
             sentinel monitor {service} 127.0.0.1 {} {quorum}\n\
             sentinel down-after-milliseconds {service} {DOWN_AFTER}\n\
             sentinel failover-timeout {service} 2000\n\
             {login}",
            port.number(),
            primary.port()
        );
        fs::write(dir.path().join("sentinel.conf"), config).map_err(|error| error.to_string())?;
        let mut process = Process::spawn(dir.path(), ["sentinel.conf", "--sentinel"])?;
        process.wait_until(|process| process.log().contains("+monitor master"))?;
        process.wait_until(|_| {
            let mut connection = Connection::open(port.number());
            connection.command(&["PING"]) == Reply::Status("PONG".to_owned())
                && primary_of(&mut connection, service).is_some()
        })?;
        Ok(Self {
            process: Mutex::new(process),
            _dir: dir,
            port,
            service: service.to_owned(),
        })
    }
}

fn primary_of(connection: &mut Connection, service: &str) -> Option<u16> {
    let reply = connection.command(&["SENTINEL", "get-master-addr-by-name", service]);
    match reply {
        Reply::Array(address) => address.get(1)?.text().parse().ok(),
        _ => None,
    }
}
