//! The owner that the calls of a future act for.

use std::fmt;
use std::future::Future;
use std::iter::successors;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use tokio::task::futures::TaskLocalFuture;

use crate::owner::{Owner, Owners};

tokio::task_local! {
    static FRAME: Arc<Frame>;
}

/// The owner of a future, and the owners of the futures around it.
#[derive(Debug)]
struct Frame {
    owner: Owner,
    /// Set for the body of a `run`: what is held around it can be acquired again inside it. In a scope, the owner alone
    /// counts, so that scopes exclude each other wherever they are.
    around: Option<Arc<Self>>,
}

impl Frame {
    /// Returns the innermost owner that holds the lock.
    fn holder(&self, holds: impl Fn(&Owner) -> bool) -> Option<&Owner> {
        let frames = successors(Some(self), |frame| frame.around.as_deref());
        frames.map(|frame| &frame.owner).find(|owner| holds(owner))
    }
}

fn innermost() -> Option<Arc<Frame>> {
    FRAME.try_with(Arc::clone).ok()
}

/// Returns the owner of the innermost scope.
pub(crate) fn current() -> Option<Owner> {
    innermost().map(|frame| frame.owner.clone())
}

/// Returns the owner of a call on a handle without one: the innermost in scope that holds the lock, or if none does, the
/// innermost.
pub(crate) fn acting(default: Owners, holds: impl Fn(&Owner) -> bool) -> Owner {
    match innermost() {
        Some(frame) => frame.holder(holds).unwrap_or(&frame.owner).clone(),
        None => default.of_call(),
    }
}

/// Returns the owner of a `run` on a handle without one: the innermost in scope that holds the lock, or if none does, an
/// owner of its own. Without the first, a `run` within a `run` would wait for itself.
pub(crate) fn running(default: Owners, holds: impl Fn(&Owner) -> bool) -> Owner {
    let holder = match innermost() {
        Some(frame) => frame.holder(holds).cloned(),
        None => Some(default.of_call()).filter(holds),
    };
    holder.unwrap_or_else(Owner::unique)
}

/// Makes the calls of a future act for this owner, and for those around it where they hold the lock.
pub(crate) fn within<F: Future>(owner: Owner, future: F) -> Scoped<F> {
    let task = || {
        Arc::new(Frame {
            owner: Owner::current(),
            around: None,
        })
    };
    scoped(owner, Some(innermost().unwrap_or_else(task)), future)
}

/// Makes the calls of a future act for this owner alone.
pub(crate) fn alone<F: Future>(owner: Owner, future: F) -> Scoped<F> {
    scoped(owner, None, future)
}

/// Makes the calls of a function act for this owner alone.
#[cfg(feature = "tower")]
pub(crate) fn enter<T>(owner: &Owner, function: impl FnOnce() -> T) -> T {
    let frame = Frame {
        owner: owner.clone(),
        around: None,
    };
    FRAME.sync_scope(Arc::new(frame), function)
}

fn scoped<F: Future>(owner: Owner, around: Option<Arc<Frame>>, future: F) -> Scoped<F> {
    let frame = Arc::new(Frame { owner, around });
    Scoped {
        future: FRAME.scope(frame, future),
    }
}

pin_project! {
    /// A future whose calls act for one owner. Returned by [`Owner::scope`].
    #[must_use = "futures do nothing unless they are polled"]
    pub struct Scoped<F> {
        #[pin]
        future: TaskLocalFuture<Arc<Frame>, F>,
    }
}

impl<F: Future> Future for Scoped<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        self.project().future.poll(context)
    }
}

impl<F> fmt::Debug for Scoped<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scoped").finish_non_exhaustive()
    }
}
