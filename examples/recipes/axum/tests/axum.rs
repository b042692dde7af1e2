//! Requests on one connection are owners of their own.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use redlatch::Client;
use redlatch_testkit::Server;
use tokio::net::TcpListener;

#[tokio::test]
async fn second_edit_on_one_connection_is_a_conflict() {
    let server = Server::start();
    let client = Client::connect(server.url()).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = recipe_axum::service(client);
    tokio::spawn(async move { axum::serve(listener, service).await });

    let http = reqwest::Client::new();
    let url = format!("http://{address}/edits/7");
    let answer = async |request: reqwest::RequestBuilder| {
        let response = request.send().await.unwrap();
        let status = response.status().as_u16();
        // Read to its end, so that the connection is used again.
        response.bytes().await.unwrap();
        status
    };
    // Under one request id too: whoever repeats a request is another owner.
    let post = || http.post(&url).header("x-request-id", "3f2a-77");
    assert_eq!(answer(post()).await, 201);
    assert_eq!(answer(post()).await, 409);
    assert_eq!(answer(http.post(&url)).await, 409);
    assert_eq!(answer(http.delete(&url)).await, 204);
    assert_eq!(answer(http.delete(&url)).await, 404);
    assert_eq!(answer(http.post(&url)).await, 201);
}
