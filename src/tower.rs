//! A tower layer that gives every request an owner of its own.

use std::task::{Context, Poll};

use tower_layer::Layer;
use tower_service::Service;

use crate::owner::Owner;
use crate::scope::{self, Scoped};

/// A [tower](https://docs.rs/tower) layer that gives every request an owner of its own. Requires the feature `tower`.
///
/// Without it, the owner of a lock is the tokio task, and a server may handle several requests in one task: HTTP/1.1
/// servers run all requests of a keep-alive connection in the task of that connection. If a handler keeps a guard when it
/// returns, for example in a map of sessions, the next request on that connection then acquires the lock *again* instead
/// of finding it busy. Over HTTP/2, where each request is a task, it finds the lock busy. With this layer, each request
/// is an owner of its own whatever carries it.
///
/// Calls of a handler on any client act for the owner of its request, except on handles with an owner of their own
/// ([`owned_by`](crate::ReentrantLock::owned_by)) and in the body of a [`run`](crate::ReentrantLock::run). Tasks that the
/// handler spawns do not: give them the owner with [`Owner::scope`].
///
/// # Examples
///
/// With axum, `Router::new().route(..).layer(OwnerLayer::new())`. With any other service:
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use redlatch::{Owner, OwnerLayer};
/// use tower_layer::Layer;
/// use tower_service::Service;
/// # #[derive(Clone)] struct Handler;
/// # impl Service<()> for Handler {
/// #     type Response = Owner; type Error = std::convert::Infallible;
/// #     type Future = std::pin::Pin<Box<dyn Future<Output = Result<Owner, Self::Error>>>>;
/// #     fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Self::Error>> {
/// #         std::task::Poll::Ready(Ok(()))
/// #     }
/// #     fn call(&mut self, (): ()) -> Self::Future { Box::pin(async { Ok(Owner::current()) }) }
/// # }
///
/// // `Handler` answers with the owner that its calls act for.
/// let mut service = OwnerLayer::new().layer(Handler);
/// let first = service.call(()).await.unwrap();
/// let second = service.call(()).await.unwrap();
/// assert_ne!(first, second);
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct OwnerLayer(());

impl OwnerLayer {
    /// Returns the layer.
    #[must_use]
    pub fn new() -> Self {
        Self(())
    }
}

impl<S> Layer<S> for OwnerLayer {
    type Service = OwnerService<S>;

    fn layer(&self, inner: S) -> OwnerService<S> {
        OwnerService { inner }
    }
}

/// A service that gives every request an owner of its own. Made by [`OwnerLayer`].
#[derive(Clone, Copy, Debug)]
pub struct OwnerService<S> {
    inner: S,
}

impl<S: Service<R>, R> Service<R> for OwnerService<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = Scoped<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: R) -> Scoped<S::Future> {
        let owner = Owner::unique();
        // A service may make calls before it returns its future.
        let future = scope::enter(&owner, || self.inner.call(request));
        owner.scope(future)
    }
}
