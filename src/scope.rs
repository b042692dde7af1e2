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
    // Outside of all scopes no lock is looked at: the task is the owner, whatever it holds.
    let holder = innermost().and_then(|frame| frame.holder(holds).cloned());
    holder.unwrap_or_else(|| of_call(default))
}

/// Returns the owner of a call for a lock that no owner in scope holds.
pub(crate) fn of_call(default: Owners) -> Owner {
    match (innermost(), default) {
        // The body of a `run` does not make its branches one owner where each call is one.
        (Some(frame), Owners::Call) if frame.around.is_some() => Owner::unique(),
        (Some(frame), _) => frame.owner.clone(),
        (None, _) => default.of_call(),
    }
}

/// Returns the innermost owner in scope, the task included, that holds the lock.
pub(crate) fn holder(default: Owners, holds: impl Fn(&Owner) -> bool) -> Option<Owner> {
    match innermost() {
        Some(frame) => frame.holder(holds).cloned(),
        None => Some(default.of_call()).filter(holds),
    }
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

/// Makes the calls of a future act for this owner. If that is the owner of the current scope, which is passed on, what is
/// held around that scope can be acquired again in the future too.
pub(crate) fn pass_on<F: Future>(owner: Owner, future: F) -> Scoped<F> {
    let same = innermost().filter(|frame| frame.owner == owner);
    let around = same.and_then(|frame| frame.around.clone());
    scoped(owner, around, future)
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
