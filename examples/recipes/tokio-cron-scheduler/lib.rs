//! A service runs on several machines, and each of them has the same schedule. A report is sent by one of them.

use std::time::Duration;

use redlatch::{Client, Error, FencingToken};
use tokio_cron_scheduler::{Job, JobScheduler, JobSchedulerError};

/// Starts the schedule of one machine: a report in every second second. The token rises with each report, so that
/// where the reports go, a lower one can be refused: that of a machine which was paused.
pub async fn start<F: Future<Output = Result<(), Error>> + Send>(
    client: Client,
    send: impl Fn(FencingToken) -> F + Clone + Send + Sync + 'static,
) -> Result<JobScheduler, JobSchedulerError> {
    // Longer than the clocks of the machines are apart, and shorter than the period.
    let job = client.job("report", Duration::from_millis(1_500));
    let report = move |_, _| {
        let (job, send) = (job.clone(), send.clone());
        Box::pin(async move {
            match job.execute(async |run| send(run.token()).await).await {
                Ok(Some(())) => println!("sent here"),
                Ok(None) => println!("another machine sends it, or has sent it"),
                // It was not sent, and the next machine whose timer goes off may try.
                Err(error) => eprintln!("{error}"),
            }
        }) as _
    };
    let scheduler = JobScheduler::new().await?;
    scheduler
        .add(Job::new_async("*/2 * * * * *", report)?)
        .await?;
    scheduler.start().await?;
    Ok(scheduler)
}
