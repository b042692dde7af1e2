//! PostgreSQL refuses what a holder writes that was paused and has lost its lock without noticing.
//!
//! A token is compared in the statement that writes: PostgreSQL locks the row first, so nobody writes in between.

use redlatch::FencingToken;
use sqlx::{PgConnection, PgPool, Result, query};

pub const TABLES: &str = "
    CREATE TABLE invoice (id BIGINT PRIMARY KEY, text TEXT NOT NULL, token BIGINT NOT NULL);
    CREATE TABLE fence (lock TEXT PRIMARY KEY, token BIGINT NOT NULL);
    CREATE TABLE payment (invoice BIGINT NOT NULL, cents BIGINT NOT NULL);
";

/// Writes one row, which keeps the token of its last writer. Returns `false` if that one is higher: nothing was written.
pub async fn write_invoice(db: &PgPool, id: i64, text: &str, token: FencingToken) -> Result<bool> {
    let statement = "
        INSERT INTO invoice VALUES ($1, $2, $3)
        ON CONFLICT (id) DO UPDATE SET text = $2, token = $3 WHERE invoice.token <= $3";
    let statement = query(statement).bind(id).bind(text).bind(token.as_i64());
    Ok(statement.execute(db).await?.rows_affected() == 1)
}

/// Inserts a row, of which there is none yet that could keep a token: the lock has a row for it. Returns `false` if a
/// later holder was there.
pub async fn pay(db: &PgPool, invoice: i64, cents: i64, token: FencingToken) -> Result<bool> {
    let mut transaction = db.begin().await?;
    if !admit(&mut transaction, &format!("invoice:{invoice}"), token).await? {
        return Ok(false);
    }
    let statement = query("INSERT INTO payment VALUES ($1, $2)");
    let statement = statement.bind(invoice).bind(cents);
    statement.execute(&mut *transaction).await?;
    transaction.commit().await?;
    Ok(true)
}

/// Begins a transaction of a holder. If it returns `true`, earlier holders are kept out of all that the transaction
/// reads and writes: one that comes later is refused, and one that came before has committed.
pub async fn admit(
    transaction: &mut PgConnection,
    lock: &str,
    token: FencingToken,
) -> Result<bool> {
    let statement = "
        INSERT INTO fence VALUES ($1, $2)
        ON CONFLICT (lock) DO UPDATE SET token = $2 WHERE fence.token <= $2";
    let statement = query(statement).bind(lock).bind(token.as_i64());
    Ok(statement.execute(transaction).await?.rows_affected() == 1)
}
