//! A queue delivers a task again if its worker seems to be dead. A worker that was only paused then runs the task too.

use std::sync::Arc;
use std::time::Duration;

use apalis::prelude::*;
use redlatch::{Client, FencingToken};

/// Longer than the queue may deliver a task again.
const REMEMBERED: Duration = Duration::from_secs(60 * 60);

#[derive(Clone)]
pub struct Invoice {
    pub number: u32,
}

/// Sends an invoice. The token is higher than that of each earlier run of the task, so that the receiver can refuse a
/// lower one: that of a worker which was paused.
pub type Post = Arc<dyn Fn(&Invoice, FencingToken) -> Result<(), BoxDynError> + Send + Sync>;

/// Runs each task on one worker. If it fails, apalis may try again at once, here or elsewhere.
pub async fn send(
    invoice: Invoice,
    task: TaskId,
    client: Data<Client>,
    post: Data<Post>,
) -> Result<(), BoxDynError> {
    let once = client.job(format!("invoices:{task}"), REMEMBERED);
    match once
        .execute(async |run| post(&invoice, run.token()))
        .await?
    {
        Some(()) => println!("task {task} was done here"),
        None => println!("task {task} is, or was, another worker's"),
    }
    Ok(())
}
