//! The settings of what a client tells by `tracing`.

use crate::config::setters;
use std::time::Duration;

use super::ClientBuilder;

setters! { ClientBuilder:
    /// Sets how long a call waits for a lock before the client logs the warning `long wait`, once for each call. The
    /// warning names the lock, the owner that waits and, if it is in this process, the owner that has the lock. For a
    /// call that waits for permits, there is a warning only if nobody has set their number. By default, there is no
    /// such warning. At least 1 ms.
    ///
    /// Use it to find tasks that wait for each other, or for a holder that hangs. See [`tracing`](crate::tracing) for
    /// all events.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// use std::time::Duration;
    /// use redlatch::Client;
    ///
    /// let client = Client::builder().url(url).long_wait(Duration::from_secs(5)).build().await?;
    /// let guard = client.lock("orders:42").lock().await?; // a warning if it takes longer than 5 seconds
    /// guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    long_wait(after: Duration) => settings.long_wait = Some(after);

    /// Sets whether each hold of a lock has a span, `hold`, at the level info, from its grant to its end, `false` by
    /// default. The span costs an allocation for each hold, even if no subscriber records it. See
    /// [`tracing`](crate::tracing) for its fields.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// use redlatch::Client;
    ///
    /// let client = Client::builder().url(url).trace_holds(true).build().await?;
    /// let guard = client.lock("orders:42").lock().await?; // the span begins
    /// guard.unlock().await?; // and ends
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    trace_holds(trace: bool) => settings.trace_holds = trace;
}
