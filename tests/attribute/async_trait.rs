//! The attribute `locked` in traits and implementations that `async_trait` has expanded before.
#![deny(
    unused_variables,
    reason = "so that a function whose attributes were lost does not compile"
)]

use std::fmt::Display;
use std::rc::Rc;
use std::sync::Arc;

use async_trait::async_trait;
use redlatch::{Client, Error, ErrorKind, Owner, locked};
use tokio::sync::oneshot;

use crate::support::probe::{nothing_left, soon};
use crate::support::{start, start_two};

/// What a shop does, for callers that do not know which one it is.
#[async_trait]
trait Shop: Send + Sync {
    fn client(&self) -> &Client;

    async fn ship(&self, order: u64) -> Result<u64, Error>;

    async fn ship_all(&mut self, orders: &[u64]) -> Result<usize, Error>;

    async fn pass(&self, ran: Result<u8, Error>) -> Result<u8, Error>;

    async fn close(self: Box<Self>) -> Result<Vec<u64>, Error>;

    async fn serve(self: Arc<Self>, mut done: u64) -> Result<u64, Error>;

    /// Runs here unless a shop has another way to count.
    #[locked(client = self.client(), name = "stock:{shelf}", wait = "0s", busy = Ok(None))]
    async fn count(&self, shelf: &str) -> Result<Option<bool>, Error> {
        let stock = self.client().lock(format!("stock:{shelf}"));
        stock.is_held().await.map(Some)
    }
}

struct Corner {
    client: Client,
    shipped: Vec<u64>,
}

#[async_trait]
impl Shop for Corner {
    fn client(&self) -> &Client {
        &self.client
    }

    #[locked(client = self.client, name = "order:{order}")]
    async fn ship(&self, order: u64) -> Result<u64, Error> {
        if !self.client.lock(format!("order:{order}")).is_held().await? {
            return Ok(0);
        }
        Ok(order)
    }

    #[locked(client = self.client, name = format!("order:{}", orders[0]), guard = held)]
    async fn ship_all(&mut self, orders: &[u64]) -> Result<usize, Error> {
        for order in orders {
            let shipped = self.ship(*order).await?; // the first is locked already
            self.shipped.push(shipped);
        }
        held.verify().await?;
        Ok(self.shipped.len())
    }

    #[locked(client = self.client, name = "shop")]
    async fn pass(&self, ran: Result<u8, Error>) -> Result<u8, Error> {
        ran
    }

    #[locked(client = self.client, name = "shop")]
    async fn close(self: Box<Self>) -> Result<Vec<u64>, Error> {
        Ok(self.shipped)
    }

    #[locked(client = self.client, name = "shop")]
    async fn serve(self: Arc<Self>, mut done: u64) -> Result<u64, Error> {
        done += u64::from(self.client.lock("shop").is_held().await?);
        Ok(done)
    }
}

#[tokio::test]
async fn methods_of_an_object_run_under_their_locks() {
    let (server, client, other) = start_two().await;
    let shop = || Corner {
        client: client.clone(),
        shipped: Vec::new(),
    };
    let mut object: Box<dyn Shop> = Box::new(shop());
    assert_eq!(object.ship(7).await.unwrap(), 7);
    assert_eq!(soon(object.ship_all(&[7, 8])).await.unwrap(), 2);
    assert_eq!(object.pass(Ok(9)).await.unwrap(), 9);
    assert_eq!(object.count("a").await.unwrap(), Some(true));
    let held = other.lock("stock:a").lock().await.unwrap();
    assert_eq!(object.count("a").await.unwrap(), None);
    held.unlock().await.unwrap();
    assert_eq!(object.close().await.unwrap(), [7, 8]);
    let shared: Arc<dyn Shop> = Arc::new(shop());
    assert_eq!(shared.serve(1).await.unwrap(), 2);
    nothing_left(&server, [&client, &other]).await;
}

/// Signals that the body has begun, and never ends.
type Begun = oneshot::Sender<()>;

#[async_trait]
trait Work<'a, T: Sync>: Sized {
    async fn first<'b, D>(
        &'a self,
        all: &'b [T],
        client: Client,
        name: D,
        _: (u8, u8),
    ) -> Result<&'b T, Box<dyn std::error::Error + Send + Sync>>
    where
        D: Display + Send + Sync;

    async fn without_self(client: &Client, (left, right): (u8, u8)) -> Result<u8, Error>;

    async fn for_ever(client: Client, begun: Begun) -> Result<(), Error>;
}

struct Worker;

#[async_trait]
impl<'a, T: Sync> Work<'a, T> for Worker {
    #[locked(client = client, name = "{name}", owner = Owner::named(name.to_string()), wait = "1s", busy = Err("busy".into()))]
    async fn first<'b, D>(
        &'a self,
        all: &'b [T],
        client: Client,
        name: D,
        _: (u8, u8),
    ) -> Result<&'b T, Box<dyn std::error::Error + Send + Sync>>
    where
        D: Display + Send + Sync,
    {
        let holder = client.lock(name.to_string()).holder().await?;
        assert_eq!(holder.ok_or("nobody")?.owner(), name.to_string());
        Ok(all.first().ok_or("empty")?)
    }

    #[locked(client = client, name = "pair:{left}")]
    async fn without_self(client: &Client, (left, right): (u8, u8)) -> Result<u8, Error> {
        assert!(client.lock(format!("pair:{left}")).is_held().await?);
        Ok(left + right)
    }

    #[locked(client = client, name = "for-ever")]
    async fn for_ever(client: Client, begun: Begun) -> Result<(), Error> {
        begun.send(()).ok();
        std::future::pending().await
    }
}

#[tokio::test]
async fn methods_may_have_generics_lifetimes_and_patterns() {
    let (server, client) = start().await;
    let all = ['x', 'y'];
    let first = Worker.first(&all, client.clone(), "l", (0, 0));
    assert_eq!(first.await.unwrap(), &'x');
    let none = Worker.first(&[(); 0], client.clone(), 'l', (0, 0));
    assert_eq!(none.await.unwrap_err().to_string(), "empty");
    let held = client.lock("l").lock().await.unwrap();
    let busy = Worker.first(&all, client.clone(), "l", (0, 0));
    assert_eq!(busy.await.unwrap_err().to_string(), "busy");
    held.unlock().await.unwrap();
    let sum = <Worker as Work<'_, ()>>::without_self(&client, (1, 2));
    assert_eq!(sum.await.unwrap(), 3);
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn lost_lease_drops_the_body_of_a_boxed_future_too() {
    let (server, client) = start().await;
    let (begun, has_begun) = oneshot::channel();
    let working = tokio::spawn(<Worker as Work<'_, ()>>::for_ever(client.clone(), begun));
    soon(has_begun).await.unwrap();
    client.lock("for-ever").force_unlock().await.unwrap();
    let error = soon(working).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LeaseLost);
    nothing_left(&server, [&client]).await;
}

#[async_trait(?Send)]
trait OnThisThread {
    async fn count(&self, count: Rc<u32>) -> Result<u32, Error>;
}

#[async_trait(?Send)]
impl OnThisThread for Client {
    #[locked(client = self, name = "local")]
    async fn count(&self, count: Rc<u32>) -> Result<u32, Error> {
        assert!(self.lock("local").is_held().await?);
        Ok(*count + 1)
    }
}

#[tokio::test]
async fn future_need_not_be_send() {
    let (server, client) = start().await;
    assert_eq!(client.count(Rc::new(1)).await.unwrap(), 2);
    nothing_left(&server, [&client]).await;
}
