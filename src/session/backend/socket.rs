//! An open connection as a stream of bytes, which any task can read and write without waiting.
//!
//! # Invariants
//!
//! 1. Every sender calls [`try_write`](Socket::try_write), even from a `Drop`. It neither wakes nor displaces a task
//!    that waits. Only one task at a time waits to write, and only one to read.
//! 2. A stream that can only be polled remembers the last waker for each direction. So it is always polled with the
//!    same waker, which wakes both tasks: see [`Opened`].

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker, ready};

use bytes::BytesMut;
use futures_util::task::AtomicWaker;
use tokio::net::{TcpStream, UnixStream};
use tokio::task::unconstrained;
use tokio_util::io::poll_read_buf;

use crate::config::Stream;

/// A connection that takes and gives bytes.
pub(super) trait Socket: Send + Sync {
    /// Writes as many bytes as are taken now, and returns how many; `WouldBlock` if none.
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize>;

    /// Waits until more may be taken. For one task at a time.
    fn poll_writable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Waits for bytes, appends them, and returns how many; 0 at the end. For one task at a time.
    fn poll_read(&self, context: &mut Context<'_>, into: &mut BytesMut) -> Poll<io::Result<usize>>;
}

impl dyn Socket + '_ {
    /// Waits until more may be taken.
    pub(super) async fn writable(&self) -> io::Result<()> {
        poll_fn(|context| self.poll_writable(context)).await
    }

    /// Waits for bytes, appends them, and returns how many; 0 at the end. Cancel safe: none are lost.
    pub(super) async fn read(&self, into: &mut BytesMut) -> io::Result<usize> {
        poll_fn(|context| self.poll_read(context, into)).await
    }

    /// Writes all the bytes, and waits for room where necessary.
    pub(super) async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.writable().await?;
            match self.try_write(bytes) {
                Ok(taken) => bytes = &bytes[taken..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// tokio's sockets have all of these operations themselves.
macro_rules! socket {
    ($stream:ty) => {
        impl Socket for $stream {
            fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
                self.try_write(bytes)
            }

            fn poll_writable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
                self.poll_write_ready(context)
            }

            fn poll_read(
                &self,
                context: &mut Context<'_>,
                into: &mut BytesMut,
            ) -> Poll<io::Result<usize>> {
                loop {
                    ready!(self.poll_read_ready(context))?;
                    match self.try_read_buf(into) {
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                        read => return Poll::Ready(read),
                    }
                }
            }
        }
    };
}

socket!(TcpStream);
socket!(UnixStream);

/// A stream opened by the application.
pub(super) struct Opened {
    polled: Mutex<PolledStream>,
    progress: Arc<Progress>,
    /// The waker of `progress`.
    waker: Waker,
}

struct PolledStream {
    stream: Stream,
    /// Whether bytes that the stream has taken have yet to be flushed. The reading task goes on with that.
    is_flushing: bool,
}

/// The tasks that wait for the stream. The stream wakes both whenever it may be ready, in either direction.
#[derive(Default)]
struct Progress {
    reader: AtomicWaker,
    writer: AtomicWaker,
    /// Whether the stream refused bytes, and has woken nobody since.
    is_blocked: AtomicBool,
}

impl Wake for Progress {
    fn wake(self: Arc<Self>) {
        self.is_blocked.store(false, Ordering::Release);
        self.reader.wake();
        self.writer.wake();
    }
}

impl Opened {
    pub(super) fn new(stream: Stream) -> Self {
        let progress = Arc::new(Progress::default());
        let polled = PolledStream {
            stream,
            is_flushing: false,
        };
        Self {
            polled: Mutex::new(polled),
            waker: progress.clone().into(),
            progress,
        }
    }

    fn lock(&self) -> MutexGuard<'_, PolledStream> {
        self.polled.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PolledStream {
    /// Flushes what the stream has taken, as far as possible without waiting.
    fn flush(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        self.is_flushing = true;
        if let Poll::Ready(flushed) = self.stream.as_mut().poll_flush(context) {
            flushed?;
            self.is_flushing = false;
        }
        Ok(())
    }
}

impl Socket for Opened {
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut polled = self.lock();
        // Set before the poll, since a wake during the poll clears it.
        self.progress.is_blocked.store(true, Ordering::Release);
        let write = poll_fn(|context| {
            let taken = ready!(polled.stream.as_mut().poll_write(context, bytes))?;
            // The stream has taken the bytes, and they may arrive. So the reader reports whatever goes wrong from here
            // on.
            if polled.flush(context).is_err() {
                context.waker().wake_by_ref();
            }
            Poll::Ready(Ok(taken))
        });
        // Writes even if the task has used up its cooperative budget: the caller may be a `Drop`, which is not called
        // again.
        let written = pin!(unconstrained(write)).poll(&mut Context::from_waker(&self.waker));
        let Poll::Ready(written) = written else {
            return Err(io::ErrorKind::WouldBlock.into());
        };
        self.progress.is_blocked.store(false, Ordering::Release);
        // Another task may have found it blocked during the poll.
        self.progress.writer.wake();
        match written {
            Ok(0) if !bytes.is_empty() => Err(io::ErrorKind::WriteZero.into()),
            written => written,
        }
    }

    fn poll_writable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Registered before the check, so that no wake in between is missed.
        self.progress.writer.register(context.waker());
        match self.progress.is_blocked.load(Ordering::Acquire) {
            true => Poll::Pending,
            false => Poll::Ready(Ok(())),
        }
    }

    fn poll_read(&self, context: &mut Context<'_>, into: &mut BytesMut) -> Poll<io::Result<usize>> {
        self.progress.reader.register(context.waker());
        let context = &mut Context::from_waker(&self.waker);
        let mut polled = self.lock();
        if polled.is_flushing {
            polled.flush(context)?;
        }
        poll_read_buf(polled.stream.as_mut(), context, into)
    }
}
