//! A road to the server that takes one millisecond longer, there and back.
//!
//! Plain threads that sleep: the timers of tokio count in whole milliseconds, which is too coarse to delay each
//! direction by half of one.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::Failure;

const EACH_WAY: Duration = Duration::from_micros(500);

/// Opens the detour to a port of the loopback interface, and tells its URL. It lasts as long as this process.
pub(crate) fn open(port: u16) -> Result<String, Failure> {
    let door = TcpListener::bind(("127.0.0.1", 0))?;
    let url = format!("redis://{}", door.local_addr()?);
    thread::spawn(move || {
        for client in door.incoming().map_while(Result::ok) {
            // A client whose connection cannot be made sees it end.
            if let Ok(server) = TcpStream::connect(("127.0.0.1", port)) {
                drop(relay(&client, &server));
            }
        }
    });
    Ok(url)
}

fn relay(client: &TcpStream, server: &TcpStream) -> std::io::Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    delay(client.try_clone()?, server.try_clone()?);
    delay(server.try_clone()?, client.try_clone()?);
    Ok(())
}

/// Passes on what comes, each piece when its time has come, without holding back the next one's clock.
fn delay(mut from: TcpStream, mut to: TcpStream) {
    let (pieces, arrived) = mpsc::channel::<(Instant, Vec<u8>)>();
    thread::spawn(move || {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            let due = Instant::now() + EACH_WAY;
            if pieces.send((due, buffer[..length].to_vec())).is_err() {
                return;
            }
        }
    });
    thread::spawn(move || {
        for (due, piece) in arrived {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&piece).is_err() {
                break;
            }
        }
        // It may have been closed from the other side already.
        drop(to.shutdown(Shutdown::Both));
    });
}
