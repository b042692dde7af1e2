//! Reaches servers over the network of this machine.

use std::fs::{Metadata, metadata};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::time::timeout;

use super::socket::Socket;
use crate::config::Address;

/// Connects to an address, within about `patience`.
pub(super) async fn open(address: Address, patience: Duration) -> io::Result<Arc<dyn Socket>> {
    match address {
        Address::Tcp { host, port } => {
            let found = lookup_host((host.as_str(), port)).await?;
            let stream = reach(&found.collect::<Vec<_>>(), patience).await?;
            stream.set_nodelay(true).ok();
            Ok(Arc::new(stream))
        }
        Address::Unix(path) => Ok(Arc::new(reach_socket(&path).await?)),
    }
}

/// Connects to the first of a host's addresses that answers. Each gets a share of the time, so that a silent address
/// does not hide those after it.
async fn reach(addresses: &[SocketAddr], patience: Duration) -> io::Result<TcpStream> {
    let mut share = patience;
    let Some((last, others)) = addresses.split_last() else {
        return Err(io::Error::other("its name resolves to no address"));
    };
    for address in others {
        // Half of the remaining time. The last address has all of it, which the caller limits.
        share /= 2;
        if let Ok(Ok(stream)) = timeout(share, TcpStream::connect(address)).await {
            return Ok(stream);
        }
    }
    TcpStream::connect(last).await
}

/// Connects to a unix socket. For any other kind of file, the system would say only that nothing listens there.
async fn reach_socket(path: &Path) -> io::Result<UnixStream> {
    let is_other = |found: Metadata| !found.file_type().is_socket();
    match UnixStream::connect(path).await {
        Err(_) if metadata(path).is_ok_and(is_other) => {
            Err(io::Error::other("this file is not a socket"))
        }
        reached => reached,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::{TcpListener, TcpSocket};

    /// Returns an address that does not answer: the queue of its listener is full, which Linux answers with silence.
    async fn silent() -> (SocketAddr, impl Sized) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(1).unwrap();
        let address = listener.local_addr().unwrap();
        let mut waiting = Vec::new();
        let patience = Duration::from_millis(100);
        while let Ok(stream) = timeout(patience, TcpStream::connect(address)).await {
            waiting.push(stream.unwrap());
        }
        (address, (listener, waiting))
    }

    #[tokio::test]
    #[cfg_attr(
        not(target_os = "linux"),
        ignore = "other systems answer in another way"
    )]
    async fn a_silent_address_hides_none_behind_it() {
        let (silent, _full) = silent().await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let good = listener.local_addr().unwrap();
        let patience = Duration::from_secs(2);
        for addresses in [
            &[silent, good][..],
            &[silent, silent, good],
            &[good, silent],
        ] {
            let reached = timeout(patience, reach(addresses, patience)).await;
            assert_eq!(reached.unwrap().unwrap().peer_addr().unwrap(), good);
        }
        assert!(reach(&[], patience).await.is_err());
    }
}
