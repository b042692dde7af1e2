//! A server that gives answers that no real server gives.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{self, BufRead, BufReader, Read, Write};
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

/// Starts a server that knows no command, and returns its port. It repeats what it was sent, as Redis does: in one line,
/// and not all of it.
pub fn parrot() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.unwrap();
            thread::spawn(move || {
                let mut replies = BufReader::new(client.try_clone().unwrap());
                while let Ok(words) = command(&mut replies) {
                    let mut args = String::new();
                    for word in &words[1..] {
                        let room = 128_usize.saturating_sub(args.len());
                        args += &format!("'{}' ", word.chars().take(room).collect::<String>());
                    }
                    let said = format!(
                        "ERR unknown command '{}', with args beginning with: {args}",
                        words[0]
                    );
                    let line = format!("-{}\r\n", said.replace(['\r', '\n'], " "));
                    if client.write_all(line.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    port
}

/// Reads one command.
fn command(requests: &mut impl BufRead) -> io::Result<Vec<String>> {
    let mut words = Vec::new();
    for _ in 0..length(requests)? {
        let mut word = vec![0; length(requests)? + 2];
        requests.read_exact(&mut word)?;
        word.truncate(word.len() - 2);
        words.push(String::from_utf8(word).unwrap());
    }
    Ok(words)
}

/// Reads a line that announces a length.
fn length(requests: &mut impl BufRead) -> io::Result<usize> {
    let mut line = String::new();
    requests.read_line(&mut line)?;
    let digits = line
        .trim_end()
        .get(1..)
        .and_then(|digits| digits.parse().ok());
    digits.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}
