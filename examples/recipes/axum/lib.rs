//! A web service in which an edit takes several requests: the lock is acquired by one request and released by another.
//!
//! `POST /edits/7` begins an edit, and answers 409 if another one is under way; `DELETE /edits/7` ends it. Two requests
//! on one keep-alive connection are one tokio task. Without the layer that gives each request an owner of its own, the
//! second `POST` on a connection would re-enter the lock of the first.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::post;
use redlatch::tower::OwnerLayer;
use redlatch::{Client, Error, LockGuard};

/// The edits under way in this process, by document. Their locks are renewed as long as they are here.
#[derive(Clone)]
struct Edits {
    client: Client,
    guards: Arc<Mutex<HashMap<u64, LockGuard>>>,
}

/// Returns the service.
pub fn service(client: Client) -> Router {
    let edits = Edits {
        client,
        guards: Arc::default(),
    };
    Router::new()
        .route("/edits/{document}", post(begin).delete(end))
        .layer(OwnerLayer::header("x-request-id")) // and `OwnerLayer::new()` without an id
        .with_state(edits)
}

async fn begin(State(edits): State<Edits>, Path(document): Path<u64>) -> StatusCode {
    match edits
        .client
        .lock(format!("document:{document}"))
        .try_lock()
        .await
    {
        Ok(Some(guard)) => {
            edits.keep(document, Some(guard));
            StatusCode::CREATED
        }
        Ok(None) => StatusCode::CONFLICT,
        Err(error) => failed(&error),
    }
}

async fn end(State(edits): State<Edits>, Path(document): Path<u64>) -> StatusCode {
    let Some(guard) = edits.keep(document, None) else {
        return StatusCode::NOT_FOUND;
    };
    match guard.unlock().await {
        Ok(()) => StatusCode::NO_CONTENT,
        Err(error) => failed(&error),
    }
}

impl Edits {
    /// Keeps this guard, or none. Returns the one before it.
    fn keep(&self, document: u64, guard: Option<LockGuard>) -> Option<LockGuard> {
        let mut guards = self.guards.lock().unwrap_or_else(PoisonError::into_inner);
        match guard {
            Some(guard) => guards.insert(document, guard),
            None => guards.remove(&document),
        }
    }
}

fn failed(error: &Error) -> StatusCode {
    eprintln!("{error}");
    StatusCode::SERVICE_UNAVAILABLE
}
