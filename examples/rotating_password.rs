//! A password that rotates: it is read from a file at each connection, and before it expires. The lock notices nothing.
//!
//! `cargo run --example rotating_password`

use std::path::{Path, PathBuf};
use std::time::Duration;

use redlatch::config::Login;
use redlatch::{Client, Config};
use redlatch_testkit::Server;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// How long a password is good for: an hour or a day would be more usual.
const VALID: Duration = Duration::from_secs(2);

#[tokio::main]
async fn main() -> Result<()> {
    let server = Server::start();
    let path = std::env::temp_dir().join(format!("redlatch-password-{}", server.port()));
    rotate(&server, &path, "s3cret-1")?;

    let config = Config::server("127.0.0.1", server.port()).credentials(from_file(path.clone()));
    let client = Client::builder().config(config).build().await?;
    let guard = client.lock("orders:42").lock().await?;
    println!("locked, with the first password");

    rotate(&server, &path, "s3cret-2")?;
    // The client has logged in again when its password was about to expire.
    tokio::time::sleep(VALID).await;
    println!("rotated: {} logins on living connections", logins(&server));

    rotate(&server, &path, "s3cret-3")?;
    // Whoever comes now needs the new password: the server ends all connections of this user.
    server
        .connection()
        .command(&["CLIENT", "KILL", "USER", "locker"]);
    while guard.verify().await.is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    println!("rotated, and all connections were cut: the lock is still held");

    guard.unlock().await?;
    client.close().await;
    std::fs::remove_file(path)?;
    Ok(())
}

/// Credentials that are read from a file, as a secret that is mounted into a container.
fn from_file(path: PathBuf) -> impl redlatch::config::Credentials {
    move || {
        let path = path.clone();
        async move {
            let password = tokio::fs::read_to_string(path).await?;
            let login = Login::new("locker", password.trim());
            Ok::<_, std::io::Error>(login.valid_for(VALID))
        }
    }
}

/// Replaces the password, as whoever operates the server does: there and in the file.
fn rotate(server: &Server, path: &Path, password: &str) -> Result<()> {
    let password_of = format!(">{password}");
    let user = [
        "ACL",
        "SETUSER",
        "locker",
        "reset",
        "on",
        &password_of,
        "~*",
        "&*",
        "+@all",
    ];
    server.connection().command(&user);
    Ok(std::fs::write(path, password)?)
}

/// Returns how often somebody has logged in on a connection that was there already.
fn logins(server: &Server) -> usize {
    let info = server.connection().command(&["INFO", "commandstats"]);
    let calls = info
        .text()
        .split("cmdstat_auth:calls=")
        .nth(1)
        .map(str::to_owned);
    let calls = calls.and_then(|rest| rest.split(',').next()?.parse().ok());
    calls.unwrap_or_default()
}
