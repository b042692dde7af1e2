use std::io;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::oneshot;

use crate::link::finish;

/// A request that is held back, and whose client has lost its connection.
#[derive(Debug)]
pub struct Parcel {
    arrival: oneshot::Receiver<Caught>,
    caught: Option<Caught>,
}

impl Parcel {
    pub(crate) fn new(arrival: oneshot::Receiver<Caught>) -> Self {
        Self {
            arrival,
            caught: None,
        }
    }

    /// Waits until the request has been caught.
    ///
    /// # Panics
    /// Panics if the proxy ends before that.
    pub async fn caught(&mut self) {
        if self.caught.is_none() {
            let caught = (&mut self.arrival).await;
            self.caught = Some(caught.expect("the proxy ended before the request came"));
        }
    }

    /// Passes the request to the server, and returns the bytes of the server's answer once the server has run it.
    ///
    /// # Panics
    /// Panics if the server is gone.
    pub async fn deliver(self) -> Vec<u8> {
        self.try_deliver().await.expect("deliver a request")
    }

    /// Does the same as [`deliver`](Self::deliver) where the server may have ended the connection. Returns an error or
    /// an empty answer if it has.
    pub async fn try_deliver(mut self) -> io::Result<Vec<u8>> {
        self.caught().await;
        let Caught { request, server } = self.caught.take().expect("the request was caught");
        deliver(request, server).await
    }
}

/// A caught request, and the upstream half of its connection.
#[derive(Debug)]
pub(crate) struct Caught {
    pub(crate) request: Vec<u8>,
    pub(crate) server: TcpStream,
}

async fn deliver(request: Vec<u8>, mut server: TcpStream) -> io::Result<Vec<u8>> {
    server.write_all(&request).await?;
    finish(&mut server).await
}
