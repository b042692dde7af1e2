use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::TcpListener;
use std::ops::Range;

/// Below the ephemeral ports, and so is the port of the cluster bus, which is higher by 10,000: while a server is down,
/// no outgoing connection can take its port, and a client that reconnects cannot reach itself.
const RANGE: Range<u16> = 12_000..22_000;

/// The words of glibc, and those of musl.
const IN_USE: [&str; 2] = ["Address already in use", "Address in use"];

const ATTEMPTS: usize = 10;

/// Starts something on a free port. Makes at most `ATTEMPTS` attempts, each on another port, if the port was taken
/// between the check and the start.
pub(crate) fn on_free_port<T>(
    mut start: impl FnMut(u16) -> Result<T, String>,
) -> Result<T, String> {
    let mut outcome = start(free());
    for _ in 1..ATTEMPTS {
        match &outcome {
            Err(text) if IN_USE.iter().any(|words| text.contains(words)) => outcome = start(free()),
            _ => break,
        }
    }
    outcome
}

fn free() -> u16 {
    loop {
        let random = RandomState::new().build_hasher().finish();
        let port = RANGE.start + (random % RANGE.len() as u64) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
