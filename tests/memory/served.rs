//! What a server in memory answers to peers that are no clients of this process.

use redlatch::MemoryServer;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use crate::client;

/// Returns a peer that is served.
fn peer(server: &MemoryServer) -> DuplexStream {
    let (near, far) = duplex(1 << 16);
    let server = server.clone();
    tokio::spawn(async move { server.serve(far).await });
    near
}

/// Returns all that the server sends until it ends the connection.
async fn all_of(mut peer: DuplexStream) -> String {
    let mut said = String::new();
    peer.read_to_string(&mut said).await.unwrap();
    said
}

#[tokio::test]
async fn peer_that_closes_its_half_gets_its_answers() {
    let server = MemoryServer::new();
    let mut peer = peer(&server);
    let asked = b"*1\r\n$4\r\nPING\r\n*0\r\n*2\r\n$4\r\nPING\r\n$2\r\nhi\r\n*1\r\n$4\r\nPI";
    peer.write_all(asked).await.unwrap();
    peer.shutdown().await.unwrap();
    let said = all_of(peer).await;
    assert_eq!(said, "+PONG\r\n$2\r\nhi\r\n");
}

#[tokio::test]
async fn peer_that_closes_its_half_is_owed_what_a_silent_server_did_not_answer() {
    let server = MemoryServer::new();
    server.stop_answering();
    let mut peer = peer(&server);
    peer.write_all(b"*1\r\n$4\r\nPING\r\n").await.unwrap();
    peer.shutdown().await.unwrap();
    tokio::task::yield_now().await;
    server.resume();
    assert_eq!(all_of(peer).await, "+PONG\r\n");
}

#[tokio::test]
async fn bytes_that_are_no_command_are_refused_and_the_server_goes_on() {
    let server = MemoryServer::new();
    let client = client(&server).await;
    let nested = "*1\r\n".repeat(100_000);
    for asked in [
        &*nested,
        "*2\r\n$4\r\nPING\r\n*1\r\n",
        "*-1\r\n",
        "*1048577\r\n",
        "*1\r\n$536870913\r\n",
        "*1\r\n$-1\r\n",
        "PING\r\n",
        "\r\n",
        "*11111111111111111111111111111111111111111",
    ] {
        let mut peer = peer(&server);
        // The server may end the connection meanwhile.
        peer.write_all(asked.as_bytes()).await.ok();
        peer.shutdown().await.ok();
        let said = all_of(peer).await;
        let begin: String = asked.chars().take(30).collect();
        assert!(
            said.starts_with("-ERR Protocol error: "),
            "{begin:?}: {said}"
        );
    }
    let guard = client.lock("job").lock().await.unwrap();
    guard.unlock().await.unwrap();
}
