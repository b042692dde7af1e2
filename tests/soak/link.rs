//! The connections of a client, which can be cut off.

use redlatch::Config;
use redlatch::config::Address;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, duplex, split};
use tokio::net::TcpStream;
use tokio::sync::watch;

/// What all connections of a client go through. While it is cut, nothing arrives on either side and nobody is told; what
/// was sent meanwhile arrives later, even if its sender has given up the connection.
#[derive(Clone)]
pub(super) struct Link {
    is_cut: watch::Sender<bool>,
}

impl Link {
    pub(super) fn new() -> Self {
        Self {
            is_cut: watch::Sender::new(false),
        }
    }

    pub(super) fn cut(&self, is_cut: bool) {
        self.is_cut.send_replace(is_cut);
    }

    /// Returns the configuration of a client that connects through this.
    pub(super) fn config(&self, url: &str) -> Config {
        let link = self.clone();
        let config: Config = url.parse().expect("a URL");
        config.connector(move |address| link.clone().connect(address))
    }

    async fn connect(self, address: Address) -> std::io::Result<DuplexStream> {
        let Address::Tcp { host, port } = address else {
            unreachable!("no server here has a unix socket");
        };
        let server = TcpStream::connect((host, port)).await?;
        server.set_nodelay(true)?;
        let (near, far) = duplex(1 << 16);
        let ((requests, back), (replies, out)) = (split(far), server.into_split());
        tokio::spawn(self.clone().carry(requests, out));
        tokio::spawn(self.carry(replies, back));
        Ok(near)
    }

    async fn carry(self, mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) {
        let mut is_cut = self.is_cut.subscribe();
        let mut bytes = vec![0; 1 << 14];
        while let Ok(length @ 1..) = from.read(&mut bytes).await {
            let is_open = is_cut.wait_for(|is_cut| !is_cut).await.is_ok();
            if !is_open || to.write_all(&bytes[..length]).await.is_err() {
                return;
            }
        }
        // The other side learns of the end, too.
        drop(to.shutdown().await);
    }
}
