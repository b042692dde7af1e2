//! A tower layer that gives every request an owner of its own.

use std::fmt;
use std::task::{Context, Poll};

use http::Request;

use tower_layer::Layer;
use tower_service::Service;

use crate::owner::Owner;
use crate::scope::{self, Scoped};

/// A [tower](https://docs.rs/tower) layer that gives every request an owner of its own. Requires the feature `tower`.
///
/// Without it, the owner of a lock is the tokio task, and a server may handle several requests in one task: HTTP/1.1
/// servers run all requests of a keep-alive connection in the task of that connection. If a handler keeps a guard when
/// it returns, for example in a map of sessions, the next request on that connection then acquires the lock *again*
/// instead of finding it busy. Over HTTP/2, where each request is a task, the next request finds the lock busy. With
/// this layer, each request has an owner of its own, whatever carries the request.
///
/// Calls of a handler on any client act for the owner of its request, except on handles with an owner of their own
/// ([`owned_by`](crate::ReentrantLock::owned_by)) and in the body of a [`run`](crate::ReentrantLock::run). Tasks that
/// the handler spawns do not: give them the owner with [`Owner::scope`].
///
/// # Owners that people can read
///
/// With [`header`](Self::header), the logs and errors of this process show the owner with the id of the request.
/// [`by`](Self::by) makes any owner from the request.
///
/// # Examples
///
/// With axum, `Router::new().route(..).layer(OwnerLayer::new())`. With any other service:
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use redlatch::tower::OwnerLayer;
/// use redlatch::Owner;
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
#[derive(Clone, Copy)]
pub struct OwnerLayer<O = UniqueOwner> {
    owners: O,
}

impl OwnerLayer {
    /// Returns a layer that gives each request an [`Owner::unique`].
    ///
    /// # Examples
    ///
    /// ```
    /// use redlatch::tower::OwnerLayer;
    ///
    /// let layer = OwnerLayer::new(); // axum: `Router::new().layer(layer)`
    /// ```
    #[must_use]
    pub fn new() -> Self {
        Self {
            owners: UniqueOwner(()),
        }
    }

    /// Returns a layer that gives each request an owner of its own, shown with the value of this header, as in `unique
    /// 5 (3f2a-77)`: an [`Owner::labelled`]. For a request without the header, or with a value that is not text, it is
    /// an [`Owner::unique`].
    ///
    /// Two requests with the same value are still two owners, which exclude each other. If a caller repeats a request
    /// under the same id while the first one still runs, the second one does not re-enter the locks of the first. To
    /// have requests with one id share what they hold, even in several services, name the owner: see [`by`](Self::by).
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// use http::Request;
    /// use redlatch::tower::OwnerLayer;
    /// use redlatch::Owner;
    /// use tower_layer::Layer;
    /// use tower_service::Service;
    /// # #[derive(Clone)] struct Handler;
    /// # impl<B> Service<Request<B>> for Handler {
    /// #     type Response = Owner; type Error = std::convert::Infallible;
    /// #     type Future = std::pin::Pin<Box<dyn Future<Output = Result<Owner, Self::Error>>>>;
    /// #     fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Self::Error>> {
    /// #         std::task::Poll::Ready(Ok(()))
    /// #     }
    /// #     fn call(&mut self, _: Request<B>) -> Self::Future { Box::pin(async { Ok(Owner::current()) }) }
    /// # }
    ///
    /// // `Handler` answers with the owner that its calls act for.
    /// let mut service = OwnerLayer::header("x-request-id").layer(Handler);
    /// let request = || Request::builder().header("x-request-id", "3f2a-77").body(()).unwrap();
    /// let owner = service.call(request()).await.unwrap();
    /// assert!(owner.to_string().ends_with("(3f2a-77)"));
    /// assert_ne!(owner, service.call(request()).await.unwrap());
    /// # }
    /// ```
    #[must_use]
    pub fn header(name: &'static str) -> OwnerLayer<HeaderOwner> {
        OwnerLayer {
            owners: HeaderOwner(name),
        }
    }

    /// Returns a layer that gives each request the owner that this function makes from it.
    ///
    /// With an [`Owner::named`], requests of one name **share** what they hold, in this process and in others: each of
    /// them re-enters the locks of the others. Use that only if nobody else can choose the name, and if no two requests
    /// with one name run at the same time without knowing of each other. A client that repeats a request under its id
    /// breaks this rule.
    ///
    /// # Examples
    ///
    /// ```
    /// use http::Request;
    /// use redlatch::tower::OwnerLayer;
    /// use redlatch::Owner;
    ///
    /// // With axum: `Router::new().layer(layer)`.
    /// let layer = OwnerLayer::by(|request: &Request<String>| {
    ///     Owner::labelled(format!("{} {}", request.method(), request.uri().path()))
    /// });
    /// # drop(layer);
    /// ```
    #[must_use]
    pub fn by<F>(owner: F) -> OwnerLayer<F> {
        OwnerLayer { owners: owner }
    }
}

impl Default for OwnerLayer {
    fn default() -> Self {
        Self::new()
    }
}

impl<O> fmt::Debug for OwnerLayer<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnerLayer").finish_non_exhaustive()
    }
}

/// Makes the owner of a request, for an [`OwnerLayer`]. Implemented by [`UniqueOwner`], [`HeaderOwner`] and functions.
pub trait RequestOwner<R> {
    /// Returns the owner that the calls for this request act for.
    fn owner(&self, request: &R) -> Owner;
}

/// Makes a unique owner for each request: what [`OwnerLayer::new`] does.
#[derive(Clone, Copy, Debug)]
pub struct UniqueOwner(());

/// Makes a unique owner for each request, shown with a header of it: what [`OwnerLayer::header`] does.
#[derive(Clone, Copy, Debug)]
pub struct HeaderOwner(&'static str);

impl<R> RequestOwner<R> for UniqueOwner {
    fn owner(&self, _: &R) -> Owner {
        Owner::unique()
    }
}

impl<B> RequestOwner<Request<B>> for HeaderOwner {
    fn owner(&self, request: &Request<B>) -> Owner {
        let value = request.headers().get(self.0);
        let text = value.and_then(|value| value.to_str().ok());
        text.map_or_else(Owner::unique, Owner::labelled)
    }
}

impl<R, F: Fn(&R) -> Owner> RequestOwner<R> for F {
    fn owner(&self, request: &R) -> Owner {
        self(request)
    }
}

impl<S, O: Clone> Layer<S> for OwnerLayer<O> {
    type Service = OwnerService<S, O>;

    fn layer(&self, inner: S) -> OwnerService<S, O> {
        OwnerService {
            inner,
            owners: self.owners.clone(),
        }
    }
}

/// A service that gives every request an owner of its own. Made by [`OwnerLayer`].
#[derive(Clone, Copy)]
pub struct OwnerService<S, O = UniqueOwner> {
    inner: S,
    owners: O,
}

impl<S: fmt::Debug, O> fmt::Debug for OwnerService<S, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnerService")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}

impl<S: Service<R>, R, O: RequestOwner<R>> Service<R> for OwnerService<S, O> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = Scoped<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: R) -> Scoped<S::Future> {
        let owner = self.owners.owner(&request);
        // A service may make calls before it returns its future.
        let future = scope::enter(&owner, || self.inner.call(request));
        owner.scope(future)
    }
}
