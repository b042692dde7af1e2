//! Three machines have the same schedule.

use std::error::Error;
use std::time::{Duration, Instant};

use redlatch::Client;
use redlatch_testkit::Server;
use tokio::sync::mpsc;

#[tokio::test]
async fn one_of_three_machines_sends_the_report_of_a_period() -> Result<(), Box<dyn Error>> {
    let server = Server::start();
    let (sent, mut reports) = mpsc::unbounded_channel();
    let mut machines = Vec::new();
    for _ in 0..3 {
        let sent = sent.clone();
        let send = move |token| {
            sent.send((Instant::now(), token))
                .expect("the test goes on");
            async { Ok(()) }
        };
        let client = Client::connect(server.url()).await?;
        machines.push(recipe_tokio_cron_scheduler::start(client, send).await?);
    }
    let (mut last, mut highest) = reports.recv().await.expect("a report");
    for _ in 0..2 {
        let (at, token) = reports.recv().await.expect("a report");
        let apart = at.duration_since(last);
        assert!(apart > Duration::from_secs(1), "sent again after {apart:?}");
        assert!(token > highest);
        (last, highest) = (at, token);
    }
    for mut machine in machines {
        machine.shutdown().await?;
    }
    Ok(())
}
