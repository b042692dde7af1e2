//! The calls of several requests, on one connection.

use std::error::Error;
use std::time::Duration;

use recipe_tonic::hall_client::HallClient;
use recipe_tonic::hall_server::HallServer;
use recipe_tonic::{Hall, Seat, owner};
use redlatch::{Client, Owner};
use redlatch_testkit::Server as Redis;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};
use tonic::{Code, Request, Status};

type Failure = Box<dyn Error>;

/// Starts a service in which a booking takes this long, and connects to it.
async fn hall(redis: &Redis, takes: Duration) -> Result<HallClient<Channel>, Failure> {
    let client = Client::builder()
        .url(redis.url())
        .command_timeout(Duration::from_millis(500));
    let hall = Hall {
        client: client.build().await?,
        takes,
    };
    let incoming = TcpIncoming::bind("127.0.0.1:0".parse()?)?;
    let address = incoming.local_addr()?;
    let server = Server::builder().add_service(HallServer::with_interceptor(hall, owner));
    tokio::spawn(server.serve_with_incoming(incoming));
    Ok(HallClient::connect(format!("http://{address}")).await?)
}

/// Books seat 7 in a request with this id.
async fn book(hall: &mut HallClient<Channel>, id: &'static str) -> Result<(), Status> {
    let mut request = Request::new(Seat { number: 7 });
    request
        .metadata_mut()
        .insert("x-request-id", id.parse().expect("text"));
    hall.book(request).await.map(drop)
}

#[tokio::test]
async fn request_is_the_owner_and_busy_broken_and_lost_are_told_apart() -> Result<(), Failure> {
    let redis = Redis::start();
    let mut quick = hall(&redis, Duration::ZERO).await?;
    let mut slow = hall(&redis, Duration::MAX).await?;
    let elsewhere = Client::connect(redis.url()).await?;
    let seat = elsewhere.lock("seat:7");

    // Another service works for the first request, and calls this one.
    let guard = seat.clone().owned_by(&Owner::named("first")).lock().await?;
    book(&mut quick, "first").await?;
    let busy = book(&mut quick, "second").await.expect_err("it is held");
    assert_eq!(busy.code(), Code::Aborted, "{busy}");
    guard.unlock().await?;
    book(&mut quick, "second").await?;

    let booking = tokio::spawn(async move { book(&mut slow, "third").await });
    while seat
        .holder()
        .await?
        .is_none_or(|holder| holder.owner() != "third")
    {
        tokio::task::yield_now().await;
    }
    assert!(seat.force_unlock().await?);
    let lost = booking.await?.expect_err("it was taken away");
    assert_eq!(lost.code(), Code::Unknown, "{lost}");

    drop(redis);
    let broken = book(&mut quick, "fourth")
        .await
        .expect_err("there is no server");
    assert_eq!(broken.code(), Code::Unavailable, "{broken}");
    Ok(())
}
