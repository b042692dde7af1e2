//! The base of semaphores and latches: a count on the server, and calls that change it once, however often they are
//! sent.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::BootInstant;
use crate::error::Error;
use crate::name::LockName;
use crate::options::Deadline;
use crate::protocol::counter::{LONGEST, RequestMark};
use crate::protocol::policy::COUNTER;
use crate::protocol::reply::Reply;
use crate::protocol::script::{Call, Request};
use crate::protocol::sent_over::SentOver;
use crate::protocol::wait::{Wait, WakeSource};
use crate::session::ClientHandle;
use crate::session::hold::fresh_acquisition_id;
use crate::wait::Waiting;

/// The largest count: Java counts in an `int`.
const MOST: u32 = i32::MAX as u32;

/// A handle to a count on the server.
#[derive(Clone, Debug)]
pub(crate) struct Counter {
    pub(crate) client: Arc<ClientHandle>,
    /// Checked by each call, so that making a handle cannot fail.
    name: Result<LockName, Error>,
}

impl Counter {
    pub(crate) fn new(client: Arc<ClientHandle>, name: Result<LockName, Error>) -> Self {
        Self { client, name }
    }

    /// Returns the name for people: empty if it is one that cannot work.
    pub(crate) fn shown_name(&self) -> &str {
        self.name.as_ref().map_or("", |name| name.key())
    }

    /// Shows a handle of this type in one line.
    pub(crate) fn show(&self, title: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct(title);
        shown.field("name", &self.shown_name()).finish()
    }

    /// Returns the name, or an error if the name is invalid or the client is closed.
    pub(crate) fn open(&self) -> Result<&LockName, Error> {
        let name = self.name.as_ref().map_err(Clone::clone)?;
        self.client.ensure_open()?;
        Ok(name)
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.client.settings.command_timeout.min(LONGEST)
    }

    /// Sends a query, and returns the reply. A query has no request mark: carrying it out again does no harm.
    pub(crate) async fn ask(&self, call: &Call<'_>) -> Result<Reply, Error> {
        Ok(self.client.run(call, self.timeout()).await?.reply)
    }

    /// Sends a call that changes the count, and returns the reply. The call takes effect at most once, however often it
    /// is sent: it leaves a request mark on the server, by which the server recognizes a copy.
    pub(crate) async fn change(
        &self,
        name: &LockName,
        call: impl for<'a> FnOnce(&'a LockName, &'a RequestMark) -> Call<'a> + Send,
    ) -> Result<Reply, Error> {
        let mark = Arc::new(RequestMark::new(name, fresh_acquisition_id()));
        let mut sent = Sent {
            client: &self.client,
            mark: &mark,
            over: SentOver::default(),
            is_answered: false,
        };
        let answer = {
            let call = call(name, &mark).over(&sent.over);
            self.client.run(&call, self.timeout()).await?
        };
        sent.is_answered = true;
        // A call that was sent once and answered cannot arrive again. Otherwise the mark has to outlive a late copy.
        if !answer.repeated {
            self.forget(mark.clone());
        }
        Ok(answer.reply)
    }

    /// Removes a request mark in the background. This is only for tidiness, since a mark expires by itself. So a try
    /// that fails is not repeated: the request ends now.
    pub(crate) fn forget(&self, mark: Arc<RequestMark>) {
        let timeout = self.timeout();
        self.client.reaper.send(mark, timeout, BootInstant::now());
    }

    pub(crate) fn wait(&self, deadline: Deadline) -> Wait {
        let settings = &self.client.settings;
        let poll_cap = settings.poll_cap;
        let (now, wake_source) = (BootInstant::now(), WakeSource::Messages { poll_cap });
        Wait::new(now, deadline, settings.watchdog_lease, wake_source)
    }

    pub(crate) fn waiting<'a>(&'a self, name: &'a LockName, wait: &'a mut Wait) -> Waiting<'a> {
        Waiting::new(&self.client, name, wait, COUNTER)
    }
}

/// A call that was sent and changes the count. If nobody waits for its answer any more, its mark is removed behind it,
/// where no copy can follow. Elsewhere the mark stays until it expires.
struct Sent<'a> {
    client: &'a ClientHandle,
    mark: &'a RequestMark,
    over: SentOver,
    is_answered: bool,
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            let forget = self.mark.call().over(&self.over);
            drop(self.client.backend.post(&forget));
        }
    }
}

/// Returns `count` if it lies between `least` and the largest count that Java can read. `what` names it in the
/// [`InvalidInput`](crate::ErrorKind::InvalidInput) error.
pub(crate) fn check(what: &str, count: u32, least: u32) -> Result<u32, Error> {
    if count < least || count > MOST {
        return Err(Error::invalid(format!(
            "{what} must be between {least} and 2^31 - 1, not {count}"
        )));
    }
    Ok(count)
}
