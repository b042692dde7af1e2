//! Two workers are given the same tasks.

use std::collections::HashMap;
use std::error::Error;
use std::sync::{Arc, Mutex};

use apalis::prelude::*;
use recipe_apalis::{Invoice, Post, send};
use redlatch::Client;
use redlatch_testkit::Server;
use tokio::sync::mpsc;

#[tokio::test]
async fn task_that_is_delivered_twice_is_done_once() -> Result<(), Box<dyn Error>> {
    let server = Server::start();
    let tries = Arc::new(Mutex::new(HashMap::new()));
    let tried = tries.clone();
    let post: Post = Arc::new(move |invoice, _| {
        let mut tries = tried.lock().expect("a count");
        let tries = tries.entry(invoice.number).or_insert(0);
        *tries += 1;
        if *tries > 1 {
            Ok(())
        } else {
            Err("the post office is closed".into())
        }
    });

    let (done, mut tasks) = mpsc::unbounded_channel();
    for name in ["first", "second"] {
        let mut queue = MemoryStorage::new();
        for number in 0..5 {
            let task =
                TaskBuilder::new(Invoice { number }).task_id(TaskId::from_int(number.into()));
            queue.push_task(task.build()).await?;
        }
        let done = done.clone();
        let worker = WorkerBuilder::new(name)
            .backend(queue)
            .retry(RetryPolicy::retries(3))
            .on_event(move |_, event| {
                if let Event::Success(_) = event {
                    done.send(()).expect("the test goes on");
                }
            })
            .data(Client::connect(server.url()).await?)
            .data(post.clone())
            .build(send);
        tokio::spawn(worker.run());
    }
    for _ in 0..10 {
        tasks.recv().await.expect("a worker");
    }
    let tries = tries.lock().expect("a count");
    assert_eq!(
        *tries,
        (0..5).map(|number| (number, 2)).collect(),
        "one failed, and one sent it"
    );
    Ok(())
}
