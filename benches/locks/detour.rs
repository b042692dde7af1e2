//! A route to the server that takes one millisecond longer per round trip.
//!
//! It uses plain threads that sleep: the timers of tokio count in whole milliseconds, which is too coarse to delay each
//! direction by half of one.

use std::io::{Read, Write};
use std::iter;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::Failure;
use crate::worker::{self, Lines, Worker};

const EACH_WAY: Duration = Duration::from_micros(500);

pub(crate) const ROLE: &str = "detour";

/// A process that keeps detours open, so that their cost counts neither for the product nor for the floor.
#[derive(Debug)]
pub(crate) struct Detour {
    pub(crate) urls: Vec<String>,
    _worker: Worker,
}

impl Detour {
    /// Opens a detour to each of these ports of the loopback interface.
    pub(crate) async fn open(ports: impl IntoIterator<Item = u16>) -> Result<Self, Failure> {
        let ports: Vec<String> = ports.into_iter().map(|port| port.to_string()).collect();
        let args = iter::once(ROLE).chain(ports.iter().map(String::as_str));
        let mut worker = Worker::start(&args.collect::<Vec<_>>()).await?;
        let urls = worker.hear(Duration::ZERO).await?;
        Ok(Self {
            urls: urls.split(' ').map(str::to_owned).collect(),
            _worker: worker,
        })
    }
}

/// Runs the worker: opens the detours, reports their URLs, and runs until its input ends.
pub(crate) async fn work(ports: &[&str]) -> Result<(), Failure> {
    let mut orders = Lines::orders();
    let mut urls = Vec::new();
    for port in ports {
        urls.push(open(port.parse()?)?);
    }
    worker::answer("ready")?;
    worker::answer(&urls.join(" "))?;
    while orders.next().await.is_some() {}
    Ok(())
}

fn open(port: u16) -> Result<String, Failure> {
    let door = TcpListener::bind(("127.0.0.1", 0))?;
    let url = format!("redis://{}", door.local_addr()?);
    thread::spawn(move || {
        for client in door.incoming().map_while(Result::ok) {
            // If the server cannot be reached, the client sees its connection end.
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

/// Passes on what arrives, each piece when it is due. The delay of each piece counts from its own arrival.
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
        // The other side may have closed it already.
        drop(to.shutdown(Shutdown::Both));
    });
}
