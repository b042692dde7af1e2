//! A gRPC service whose work is done under a lock. Its owner is the request, over all services that the request passes
//! through; and busy, broken and lost are three status codes.

use std::time::Duration;

use redlatch::{Client, Error, ErrorKind, Owner};
use tonic::{Request, Response, Status};

include!(concat!(env!("OUT_DIR"), "/recipe.Hall.rs"));

#[derive(Clone, PartialEq, prost::Message)]
pub struct Seat {
    #[prost(uint32, tag = "1")]
    pub number: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Booked {}

/// Gives each request an owner: for `HallServer::with_interceptor(hall, owner)`.
///
/// Requests with one id are one owner, so a service that holds a lock may call another one that takes it too. Have the
/// first service of yours that sees a request choose the id; from outside, anybody could send that of somebody else.
pub fn owner(mut request: Request<()>) -> Result<Request<()>, Status> {
    let id = request.metadata().get("x-request-id");
    let id = id.and_then(|id| id.to_str().ok());
    let owner = id.map_or_else(Owner::unique, Owner::named);
    request.extensions_mut().insert(owner);
    Ok(request)
}

/// Returns the status of a call that failed because of its lock.
pub fn status(error: Error) -> Status {
    let text = error.to_string();
    match error.kind() {
        // The work was stopped in the middle: look at what it did before you try again.
        ErrorKind::LeaseLost => Status::unknown(text),
        // The request has a name or an id that cannot work.
        ErrorKind::InvalidInput => Status::invalid_argument(text),
        ErrorKind::Backend | ErrorKind::Timeout | ErrorKind::Closed => Status::unavailable(text),
        _ => Status::internal(text),
    }
}

pub struct Hall {
    pub client: Client,
    /// How long it takes to book a seat.
    pub takes: Duration,
}

#[tonic::async_trait]
impl hall_server::Hall for Hall {
    async fn book(&self, request: Request<Seat>) -> Result<Response<Booked>, Status> {
        let owner = request.extensions().get::<Owner>().cloned();
        let owner = owner.ok_or_else(|| Status::internal("no interceptor"))?;
        let seat = request.into_inner().number;
        let lock = self.client.lock(format!("seat:{seat}")).owned_by(&owner);
        // Nothing was done, so the caller may try again.
        let Some(guard) = lock.try_lock().await.map_err(status)? else {
            return Err(Status::aborted(format!(
                "another request books seat {seat}"
            )));
        };
        let work = tokio::time::sleep(self.takes);
        guard.run_until_lost(work).await.map_err(status)?;
        // What is not answered now is released in the background; the seat is booked.
        match guard.unlock().await {
            Err(error) if error.kind() == ErrorKind::LeaseLost => Err(status(error)),
            _ => Ok(Response::new(Booked {})),
        }
    }
}
