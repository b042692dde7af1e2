use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::certificate::Certificate;
use crate::connection::Connection;
use crate::port::on_free_port;
use crate::process::Process;
use crate::reply::Reply;

/// One private server process on a free port of the loopback interface.
#[derive(Debug)]
pub struct Server {
    // Declared before the directory: the process ends before its files go.
    process: Mutex<Process>,
    dir: TempDir,
    port: u16,
    builder: ServerBuilder,
    certificate: Option<Certificate>,
}

impl Server {
    /// Starts a server without persistence.
    ///
    /// # Panics
    /// With what to install when there is no server program, and with the
    /// server's log when it does not come up.
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// A server with other options.
    pub fn builder() -> ServerBuilder {
        ServerBuilder::default()
    }

    /// The port the server listens on, with TLS or without.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL for clients, with the password and with the TLS scheme.
    pub fn url(&self) -> String {
        let scheme = if self.builder.tls { "rediss" } else { "redis" };
        let login = match &self.builder.password {
            Some(password) => format!(":{password}@"),
            None => String::new(),
        };
        format!("{scheme}://{login}127.0.0.1:{}", self.port)
    }

    /// The password that clients need.
    pub fn password(&self) -> Option<&str> {
        self.builder.password.as_deref()
    }

    /// The certificate of the authority that signed the server's own.
    ///
    /// # Panics
    /// When the server was built without TLS.
    pub fn ca_pem(&self) -> &str {
        self.certificate
            .as_ref()
            .expect("the server has no TLS")
            .ca_pem()
    }

    /// A certificate for clients, and its private key, of the same authority.
    ///
    /// # Panics
    /// When the server was built without TLS.
    pub fn client_pems(&self) -> (&str, &str) {
        self.certificate
            .as_ref()
            .expect("the server has no TLS")
            .client_pems()
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.process().pid()
    }

    /// Kills the process with SIGKILL and waits for its end.
    pub fn kill(&self) {
        self.process().kill();
    }

    /// Kills the server if it runs, and starts it again on the same port with
    /// the same directory and arguments.
    pub fn restart(&self) {
        let mut process = self.process();
        process.kill();
        *process = self
            .builder
            .launch(&self.dir, self.port, self.certificate.as_ref())
            .unwrap_or_else(|error| panic!("restart: {error}"));
    }

    /// Stops the process with SIGSTOP: its sockets stay open and silent.
    pub fn freeze(&self) {
        self.process().signal(Signal::STOP);
    }

    /// Lets a frozen process run on.
    pub fn thaw(&self) {
        self.process().signal(Signal::CONT);
    }

    /// A connection past everything under test, authenticated if need be.
    ///
    /// # Panics
    /// When the server speaks TLS only.
    pub fn connection(&self) -> Connection {
        assert!(!self.builder.tls, "a Connection speaks no TLS");
        let mut connection = Connection::open(self.port);
        if let Some(password) = self.password() {
            connection.authenticate(password);
        }
        connection
    }

    fn process(&self) -> MutexGuard<'_, Process> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A replica counts as started when it holds the data of its primary.
    fn await_replication(&self) -> Result<(), String> {
        if !self.builder.replica {
            return Ok(());
        }
        let mut connection = self.connection();
        let linked = Reply::Text(b"connected".to_vec());
        self.process()
            .wait_until(|_| connection.command(&["ROLE"]).array().contains(&linked))
    }
}

/// The options of a [`Server`].
#[derive(Clone, Debug, Default)]
pub struct ServerBuilder {
    args: Vec<String>,
    password: Option<String>,
    tls: bool,
    client_certificates: bool,
    replica: bool,
}

impl ServerBuilder {
    /// A configuration directive, passed as `--key value`.
    pub fn arg(mut self, key: &str, value: impl ToString) -> Self {
        self.args.extend([format!("--{key}"), value.to_string()]);
        self
    }

    /// A configuration directive of several words.
    pub fn directive(mut self, key: &str, values: &[&str]) -> Self {
        self.args.push(format!("--{key}"));
        self.args
            .extend(values.iter().map(|&value| value.to_owned()));
        self
    }

    /// Every write is on disk before its reply, so that a restart keeps it.
    pub fn persistent(self) -> Self {
        self.arg("appendonly", "yes").arg("appendfsync", "always")
    }

    /// The password of the default user, and of the primary for a replica.
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self.arg("requirepass", password)
            .arg("masterauth", password)
    }

    /// TLS only, with a certificate for `127.0.0.1` and `localhost`.
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// TLS only, for clients that show a certificate of the same authority.
    pub fn client_certificates(mut self) -> Self {
        self.client_certificates = true;
        self.tls()
    }

    /// Replicates the server on this port; started means synchronised.
    pub fn replica_of(mut self, port: u16) -> Self {
        self.replica = true;
        let primary = ["--replicaof", "127.0.0.1", &port.to_string()].map(str::to_owned);
        // Each word apart: Redis 6.2 would take two in one argument for one.
        self.args.extend(primary);
        self
    }

    /// Starts the server.
    ///
    /// # Panics
    /// With the text of [`try_start`](Self::try_start).
    pub fn start(self) -> Server {
        self.try_start().unwrap_or_else(|error| panic!("{error}"))
    }

    /// Starts the server; the error says what to install, or holds the log.
    pub fn try_start(self) -> Result<Server, String> {
        let certificate = match self.tls {
            true => Some(Certificate::for_loopback().map_err(|error| error.to_string())?),
            false => None,
        };
        let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
        let (port, process) = on_free_port(|port| {
            let process = self.launch(&dir, port, certificate.as_ref())?;
            Ok((port, process))
        })?;
        let server = Server {
            process: Mutex::new(process),
            dir,
            port,
            builder: self,
            certificate,
        };
        server.await_replication()?;
        Ok(server)
    }

    fn launch(
        &self,
        dir: &TempDir,
        port: u16,
        certificate: Option<&Certificate>,
    ) -> Result<Process, String> {
        let mut args: Vec<String> = [
            ("bind", "127.0.0.1"),
            ("save", ""),
            ("appendonly", "no"),
            ("loglevel", "notice"),
            // A replica synchronises at once instead of after five seconds.
            ("repl-diskless-sync-delay", "0"),
        ]
        .iter()
        .flat_map(|(key, value)| [format!("--{key}"), value.to_string()])
        .collect();
        let port = port.to_string();
        match certificate {
            None => args.extend(["--port".to_owned(), port]),
            Some(certificate) => {
                let files = certificate
                    .install(dir.path(), self.client_certificates)
                    .map_err(|error| error.to_string())?;
                args.extend(["--port", "0", "--tls-port"].map(str::to_owned));
                args.push(port);
                args.extend(files);
            }
        }
        let mut process = Process::spawn(dir.path(), args.iter().chain(&self.args))?;
        // The log, since a PING could be answered by a stranger on the port.
        process.wait_until(|process| process.log().contains("Ready to accept connections"))?;
        Ok(process)
    }
}
