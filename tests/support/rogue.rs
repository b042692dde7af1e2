//! A server that gives answers that no real server gives.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use redlatch_testkit::Server;

/// Starts the rogue server and returns its URL. It answers every script with `answer`, or closes the connection if
/// `answer` is empty. It forwards everything else to `server`.
pub fn rogue(server: &Server, answer: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let upstream = server.port();
    thread::spawn(move || {
        for client in listener.incoming() {
            let (mut client, answer) = (client.unwrap(), answer.clone());
            let mut server = TcpStream::connect(("127.0.0.1", upstream)).unwrap();
            let (mut replies, mut back) =
                (server.try_clone().unwrap(), client.try_clone().unwrap());
            thread::spawn(move || io::copy(&mut replies, &mut back));
            thread::spawn(move || {
                let mut bytes = [0; 65_536];
                while let Ok(read @ 1..) = client.read(&mut bytes) {
                    let script = bytes[..read].windows(4).any(|word| word == b"EVAL");
                    let sent = match script {
                        true if answer.is_empty() => return,
                        true => client.write_all(&answer),
                        false => server.write_all(&bytes[..read]),
                    };
                    if sent.is_err() {
                        return;
                    }
                }
            });
        }
    });
    format!("redis://{address}")
}
