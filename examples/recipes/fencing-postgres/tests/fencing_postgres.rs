//! A holder whose lease ended in a pause writes too late.

use std::error::Error;
use std::time::Duration;

use recipe_fencing_postgres::{TABLES, admit, pay, write_invoice};
use redlatch::Client;
use redlatch_testkit::Server;
use sqlx::{PgPool, query_scalar, raw_sql};

#[tokio::test]
async fn late_writer_loses() -> Result<(), Box<dyn Error>> {
    let url = std::env::var("DATABASE_URL").expect("an empty database: scripts/recipes starts one");
    let db = PgPool::connect(&url).await?;
    raw_sql(TABLES).execute(&db).await?;
    let server = Server::start();
    let (first, second) = (
        Client::connect(server.url()).await?,
        Client::connect(server.url()).await?,
    );

    let lock = first
        .fenced_lock("invoice:42")
        .lease(Duration::from_millis(200));
    let paused = lock.lock().await?;
    assert!(write_invoice(&db, 42, "draft", paused.token()).await?);
    assert!(pay(&db, 42, 100, paused.token()).await?);

    // The first holder is paused here. Its lease ends, and the second one gets the lock.
    let guard = second.fenced_lock("invoice:42").lock().await?;
    assert!(write_invoice(&db, 42, "sent", guard.token()).await?);
    let mut transaction = db.begin().await?;
    assert!(admit(&mut transaction, "invoice:42", guard.token()).await?);

    // The first holder wakes up while the second one is in the middle of its transaction.
    let (late, token) = (db.clone(), paused.token());
    let late_payment = tokio::spawn(async move { pay(&late, 42, 100, token).await });
    assert!(
        !write_invoice(&db, 42, "draft", paused.token()).await?,
        "a late update"
    );
    transaction.commit().await?;
    assert!(!late_payment.await??, "a late insert");

    let text: String = query_scalar("SELECT text FROM invoice")
        .fetch_one(&db)
        .await?;
    let payments: i64 = query_scalar("SELECT count(*) FROM payment")
        .fetch_one(&db)
        .await?;
    assert_eq!((&*text, payments), ("sent", 1));
    assert!(
        pay(&db, 42, 200, guard.token()).await?,
        "the holder goes on"
    );
    guard.unlock().await?;
    Ok(())
}
