use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{TcpListener, UdpSocket};
use std::ops::Range;

/// Below the ephemeral ports, and so is the port of the cluster bus, which is higher by 10,000: while a server is down,
/// no outgoing connection can take its port, and a client that reconnects cannot reach itself.
const RANGE: Range<u16> = 12_000..22_000;

/// The words of glibc, and those of musl.
const IN_USE: [&str; 2] = ["Address already in use", "Address in use"];

const ATTEMPTS: usize = 10;

/// A port for something that is started, and for nothing else that the tests start, though it may be down for a while.
#[derive(Debug)]
pub(crate) struct Port {
    number: u16,
    /// Has the UDP port of the same number, which nobody else needs. It ends with this process, however that ends.
    _reservation: UdpSocket,
}

impl Port {
    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    fn free() -> Self {
        loop {
            let random = RandomState::new().build_hasher().finish();
            let number = RANGE.start + (random % RANGE.len() as u64) as u16;
            if let Ok(reservation) = UdpSocket::bind(("127.0.0.1", number))
                && TcpListener::bind(("127.0.0.1", number)).is_ok()
            {
                return Self {
                    number,
                    _reservation: reservation,
                };
            }
        }
    }
}

/// Starts something on a free port. Makes at most `ATTEMPTS` attempts, each on another port, if the port was taken
/// between the check and the start.
pub(crate) fn on_free_port<T>(
    mut start: impl FnMut(Port) -> Result<T, String>,
) -> Result<T, String> {
    let mut outcome = start(Port::free());
    for _ in 1..ATTEMPTS {
        match &outcome {
            Err(text) if IN_USE.iter().any(|words| text.contains(words)) => {
                outcome = start(Port::free());
            }
            _ => break,
        }
    }
    outcome
}
