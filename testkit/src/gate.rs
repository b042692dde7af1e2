use tokio::sync::oneshot;

/// Keeps a connection waiting, in both directions, until the gate is opened or dropped.
#[derive(Debug)]
pub struct Gate {
    arrival: oneshot::Receiver<()>,
    _shut: oneshot::Sender<()>,
}

/// The connection's side of a [`Gate`].
#[derive(Debug)]
pub(crate) struct Waiting {
    arrived: oneshot::Sender<()>,
    opened: oneshot::Receiver<()>,
}

impl Gate {
    pub(crate) fn new() -> (Self, Waiting) {
        let ((arrived, arrival), (shut, opened)) = (oneshot::channel(), oneshot::channel());
        let gate = Self {
            arrival,
            _shut: shut,
        };
        (gate, Waiting { arrived, opened })
    }

    /// Waits until the request has reached the gate.
    ///
    /// # Panics
    /// Panics if the proxy ends before that.
    pub async fn reached(&mut self) {
        let arrived = (&mut self.arrival).await;
        arrived.expect("the proxy ended before the request came");
    }

    /// Lets everything pass, in its original order.
    pub fn open(self) {}
}

impl Waiting {
    pub(crate) fn is_open(&self) -> bool {
        self.arrived.is_closed()
    }

    pub(crate) async fn opened(self) {
        // Fails if the gate was dropped already, which opens it.
        let _ = self.arrived.send(());
        let _ = self.opened.await;
    }
}
