use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::certificate::Certificate;
use crate::connection::Connection;
use crate::port::{Port, on_free_port};
use crate::process::Process;
use crate::reply::Reply;

/// One private server process on a free port of the loopback interface.
#[derive(Debug)]
pub struct Server {
    // Declared before the directory, so that the process ends before its files are removed.
    process: Mutex<Process>,
    dir: TempDir,
    port: Port,
    builder: ServerBuilder,
    certificate: Option<Certificate>,
}

impl Server {
    /// Starts a server without persistence.
    ///
    /// # Panics
    /// Panics if there is no server program, with a text that says what to install, and if the server does not come up,
    /// with its log.
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// Returns a builder for a server with other options.
    pub fn builder() -> ServerBuilder {
        ServerBuilder::default()
    }

    /// Returns the port that the server listens on, with TLS or without.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Returns the URL for clients, with the password and with the TLS scheme.
    pub fn url(&self) -> String {
        let scheme = if self.builder.tls { "rediss" } else { "redis" };
        let login = match &self.builder.password {
            Some(password) => format!(":{password}@"),
            None => String::new(),
        };
        format!("{scheme}://{login}127.0.0.1:{}", self.port())
    }

    /// Returns the password that clients need.
    pub fn password(&self) -> Option<&str> {
        self.builder.password.as_deref()
    }

    /// Returns the certificate of the authority that signed the server's own certificate.
    ///
    /// # Panics
    /// Panics if the server was started without TLS.
    pub fn ca_pem(&self) -> &str {
        self.certificate
            .as_ref()
            .expect("the server has no TLS")
            .ca_pem()
    }

    /// Returns a certificate for clients, signed by the same authority, and its private key.
    ///
    /// # Panics
    /// Panics if the server was started without TLS.
    pub fn client_pems(&self) -> (&str, &str) {
        self.certificate
            .as_ref()
            .expect("the server has no TLS")
            .client_pems()
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.process().pid()
    }

    /// Kills the process with SIGKILL and waits for its end.
    pub fn kill(&self) {
        self.process().kill();
    }

    /// Kills the server if it runs, and starts it again on the same port, with the same directory and arguments.
    pub fn restart(&self) {
        let mut process = self.process();
        process.kill();
        *process = self
            .builder
            .launch(&self.dir, self.port(), self.certificate.as_ref())
            .unwrap_or_else(|error| panic!("restart: {error}"));
    }

    /// Stops the process with SIGSTOP: its sockets stay open and silent.
    pub fn freeze(&self) {
        self.process().signal(Signal::STOP);
    }

    /// Lets a frozen process continue.
    pub fn thaw(&self) {
        self.process().signal(Signal::CONT);
    }

    /// Opens a connection that bypasses everything under test, authenticated if the server has a password.
    ///
    /// # Panics
    /// Panics if the server speaks only TLS.
    pub fn connection(&self) -> Connection {
        assert!(!self.builder.tls, "a Connection speaks no TLS");
        let mut connection = Connection::open(self.port());
        if let Some(password) = self.password() {
            connection.authenticate(password);
        }
        connection
    }

    fn process(&self) -> MutexGuard<'_, Process> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits, if this is a replica, until it has the data of its primary: only then does it count as started.
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
    expired_certificate: bool,
    replica: bool,
}

impl ServerBuilder {
    /// Adds a configuration directive, passed as `--key value`.
    pub fn arg(mut self, key: &str, value: impl ToString) -> Self {
        self.args.extend([format!("--{key}"), value.to_string()]);
        self
    }

    /// Adds a configuration directive with several values.
    pub fn directive(mut self, key: &str, values: &[&str]) -> Self {
        self.args.push(format!("--{key}"));
        self.args
            .extend(values.iter().map(|&value| value.to_owned()));
        self
    }

    /// Has every write on disk before its reply, so that a restart keeps it.
    pub fn persistent(self) -> Self {
        self.arg("appendonly", "yes").arg("appendfsync", "always")
    }

    /// Sets the password of the default user. A replica also uses it for its primary.
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self.arg("requirepass", password)
            .arg("masterauth", password)
    }

    /// Serves only TLS, with a certificate for `127.0.0.1` and `localhost`.
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Serves only TLS, and only clients with a certificate of the same authority.
    pub fn client_certificates(mut self) -> Self {
        self.client_certificates = true;
        self.tls()
    }

    /// Serves only TLS, with a certificate that has expired.
    pub fn expired_certificate(mut self) -> Self {
        self.expired_certificate = true;
        self.tls()
    }

    /// Replicates the server on this port. The replica counts as started once it is synchronised.
    pub fn replica_of(mut self, port: u16) -> Self {
        self.replica = true;
        let primary = ["--replicaof", "127.0.0.1", &port.to_string()].map(str::to_owned);
        // Each word is an argument of its own: Redis 6.2 would take two words in one argument for one word.
        self.args.extend(primary);
        self
    }

    /// Starts the server.
    ///
    /// # Panics
    /// Panics with the error text of [`try_start`](Self::try_start).
    pub fn start(self) -> Server {
        self.try_start().unwrap_or_else(|error| panic!("{error}"))
    }

    /// Starts the server. The error says what to install, or contains the log.
    pub fn try_start(self) -> Result<Server, String> {
        let certificate = match self.tls {
            true => {
                let certificate = Certificate::for_loopback(self.expired_certificate);
                Some(certificate.map_err(|error| error.to_string())?)
            }
            false => None,
        };
        let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
        let (port, process) = on_free_port(|port| {
            let process = self.launch(&dir, port.number(), certificate.as_ref())?;
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
        // The log decides, since another process on the port could answer a PING.
        process.wait_until(|process| process.log().contains("Ready to accept connections"))?;
        Ok(process)
    }
}
