//! Counts the commands that clients send to a server.
//!
//! The server's own statistics would also count the commands inside scripts, and some locks send from their clients
//! what others call in a script. `MONITOR` tells them apart. It slows the server down, so nothing is timed meanwhile.

use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use redlatch_testkit::{Connection, Server};
use tokio::time::sleep;

use crate::Failure;

/// Time for what a client still sends after its last answer, as Redisson does.
const LAG: Duration = Duration::from_millis(20);
const LIMIT: Duration = Duration::from_secs(5);
/// What tells the monitor that everything before was counted.
const MARK: &str = "\"ECHO\" \"counted\"";
/// What connections send for themselves: pools open and check theirs whenever they want.
const OF_CONNECTIONS: [&str; 7] = ["PING", "ECHO", "HELLO", "CLIENT", "AUTH", "SELECT", "INFO"];

pub(super) struct Monitor {
    stream: TcpStream,
    marker: Connection,
    counts: Receiver<u64>,
}

impl Monitor {
    pub(super) fn start(server: &Server) -> Result<Self, Failure> {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port()))?;
        stream.write_all(b"MONITOR\r\n")?;
        let mut lines = BufReader::new(stream.try_clone()?);
        lines.read_line(&mut String::new())?;
        let (sender, counts) = mpsc::channel();
        thread::spawn(move || {
            let mut commands = 0;
            for line in lines.lines().map_while(Result::ok) {
                commands += u64::from(is_about_locks(&line));
                if line.ends_with(MARK) && sender.send(commands).is_err() {
                    return;
                }
            }
        });
        Ok(Self {
            stream,
            marker: server.connection(),
            counts,
        })
    }

    /// Returns how many commands the clients have sent so far.
    pub(super) async fn commands(&mut self) -> Result<u64, Failure> {
        sleep(LAG).await;
        self.marker.command(&["ECHO", "counted"]);
        Ok(self.counts.recv_timeout(LIMIT)?)
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        // Ends the thread. The server may have closed the connection already.
        drop(self.stream.shutdown(Shutdown::Both));
    }
}

/// Returns whether this line of `MONITOR` is a command of a client, neither of a script nor of a connection for itself.
fn is_about_locks(line: &str) -> bool {
    // +1700000000.123456 [0 127.0.0.1:50000] "EVALSHA" ..
    let Some((from, command)) = line.split_once("] \"") else {
        return false;
    };
    let verb = command.split('"').next().unwrap_or_default();
    let is_own = OF_CONNECTIONS
        .iter()
        .any(|own| own.eq_ignore_ascii_case(verb));
    !from.ends_with(" lua") && !is_own
}
