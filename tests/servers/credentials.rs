//! Users and passwords that the application is asked for: passwords that rotate, logins that end.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use redlatch::config::{Login, Protocol, ReleaseBy};
use redlatch::{Client, Config, ErrorKind};
use redlatch_testkit::{Connection, Sentinel, Server};
use tokio::fs::read_to_string;

use crate::support::probe::{acquiring, millis, passes, secs, soon, take_turns};
use crate::support::{client, eventually};

const USER: &str = "locker";

/// Sets the user's password at the server and in the file, in this order or the other.
fn rotate(server: &mut Connection, file: &Path, password: &str) {
    let password_of = format!(">{password}");
    let set = [
        "ACL",
        "SETUSER",
        USER,
        "reset",
        "on",
        &password_of,
        "~*",
        "&*",
        "+@all",
    ];
    assert_eq!(server.command(&set).text(), "OK");
    std::fs::write(file, format!("{password}\n")).unwrap();
}

/// A server with such a user, and a configuration that reads the password from a file whenever it is asked.
struct Rotating {
    server: Server,
    file: tempfile::NamedTempFile,
    /// How often it was asked.
    asked: Arc<AtomicUsize>,
}

impl Rotating {
    fn start() -> Self {
        let this = Self {
            server: Server::start(),
            file: tempfile::NamedTempFile::new().unwrap(),
            asked: Arc::default(),
        };
        this.rotate("s3cret-1");
        this
    }

    fn rotate(&self, password: &str) {
        rotate(&mut self.server.connection(), self.file.path(), password);
    }

    /// Ends all connections of the user.
    fn cut(&self) {
        self.server
            .connection()
            .command(&["CLIENT", "KILL", "USER", USER]);
    }

    fn config(&self, valid: Option<std::time::Duration>) -> Config {
        let (path, asked) = (self.file.path().to_owned(), self.asked.clone());
        Config::server("127.0.0.1", self.server.port()).credentials(move || {
            asked.fetch_add(1, Ordering::Relaxed);
            let path = path.clone();
            async move {
                let password = read_to_string(path).await?;
                let login = Login::new(USER, password.trim());
                Ok::<_, std::io::Error>(match valid {
                    Some(time) => login.valid_for(time),
                    None => login,
                })
            }
        })
    }

    /// Returns a number of the server's statistics.
    fn count(&self, section: &str, from: &str) -> u64 {
        let info = self.server.connection().command(&["INFO", section]);
        let info = info.text();
        let found = info.split(from).nth(1);
        let digits = found.map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next());
        digits.flatten().map_or(0, |digits| digits.parse().unwrap())
    }

    /// Returns how many logins there were on connections that had one before.
    fn renewals(&self) -> u64 {
        self.count("commandstats", "cmdstat_auth:calls=")
    }
}

async fn build(config: Config) -> Client {
    let builder = Client::builder().config(config);
    builder.command_timeout(millis(300)).build().await.unwrap()
}

#[tokio::test]
async fn password_that_rotates_is_asked_for_at_each_connection_and_locks_notice_nothing() {
    let rotating = Rotating::start();
    let client = build(rotating.config(None)).await;
    let plain = client
        .plain_lock("plain")
        .release_by(ReleaseBy::Transaction);
    soon(plain.lock()).await.unwrap().unlock().await.unwrap();
    let lock = client.lock("k");
    let guard = lock.lock().await.unwrap();
    for round in 2..5 {
        let waiter = acquiring(&client.lock("other"));
        passes(waiter).await;
        rotating.rotate(&format!("s3cret-{round}"));
        // With the old password the client would not come in again.
        rotating.cut();
        eventually("the hold still stands", async || {
            guard.verify().await.is_ok()
        })
        .await;
        take_turns(&client).await;
        soon(plain.lock()).await.unwrap().unlock().await.unwrap();
    }
    assert!(!guard.is_lost());
    guard.unlock().await.unwrap();
    // At least for commands and for transactions, each time.
    assert!(rotating.asked.load(Ordering::Relaxed) >= 8);
    client.close().await;
}

#[tokio::test]
async fn login_is_renewed_on_living_connections_before_it_ends() {
    let rotating = Rotating::start();
    let client = build(rotating.config(Some(millis(1_500)))).await;
    let guard = client.lock("k").lock().await.unwrap();
    let waiter = acquiring(&client.lock("k"));
    eventually("the login is renewed", async || rotating.renewals() >= 4).await;
    // Old connections keep their old login: only a new one shows that the password was read again.
    rotating.rotate("s3cret-2");
    let renewed = rotating.renewals();
    eventually("and again", async || rotating.renewals() >= renewed + 4).await;
    let of_user = || {
        let list = rotating.server.connection().command(&["CLIENT", "LIST"]);
        list.text().matches("user=locker").count()
    };
    assert_eq!(of_user(), 2);
    guard.unlock().await.unwrap();
    passes(waiter).await;
    assert_eq!(client.stats().connections.reconnects, 0);
    client.close().await;
}

/// In RESP2 a connection that listens to channels takes no login: it is replaced, and waiters notice nothing.
#[tokio::test]
async fn login_is_renewed_in_the_older_protocol_too() {
    let rotating = Rotating::start();
    let config = rotating.config(Some(millis(1_500)));
    let client = build(config.protocol(Protocol::Resp2)).await;
    let guard = client.lock("k").lock().await.unwrap();
    let waiter = acquiring(&client.lock("k"));
    rotating.rotate("s3cret-2");
    eventually("both connections have another login", async || {
        rotating.asked.load(Ordering::Relaxed) >= 6
    })
    .await;
    assert_eq!(client.stats().connections.reconnects, 0);
    guard.unlock().await.unwrap();
    passes(waiter).await;
    client.close().await;
}

#[tokio::test]
async fn transactions_begin_on_a_connection_whose_login_has_not_ended() {
    let rotating = Rotating::start();
    let client = build(rotating.config(Some(millis(100)))).await;
    let plain = client
        .plain_lock("plain")
        .release_by(ReleaseBy::Transaction);
    soon(plain.lock()).await.unwrap().unlock().await.unwrap();
    let connections = || rotating.count("stats", "total_connections_received:");
    let before = connections();
    tokio::time::sleep(millis(100)).await;
    soon(plain.lock()).await.unwrap().unlock().await.unwrap();
    // Another one for transactions, and that of the question itself.
    assert_eq!(connections() - before, 2);
    client.close().await;
}

#[tokio::test]
async fn connection_whose_login_cannot_be_renewed_is_kept_and_the_renewal_tried_again() {
    let rotating = Rotating::start();
    let client = build(rotating.config(Some(millis(1_500)))).await;
    let guard = client.lock("k").lock().await.unwrap();
    std::fs::write(rotating.file.path(), "outdated").unwrap();
    let asked = || rotating.asked.load(Ordering::Relaxed);
    let before = asked();
    eventually("it was refused on both connections, twice", async || {
        asked() >= before + 4
    })
    .await;
    guard.verify().await.unwrap();
    passes(acquiring(&client.lock("other"))).await;
    rotating.rotate("s3cret-2");
    let renewed = rotating.renewals();
    eventually("it is renewed", async || rotating.renewals() > renewed).await;
    assert_eq!(client.stats().connections.reconnects, 0);
    guard.unlock().await.unwrap();
    client.close().await;
}

#[tokio::test]
async fn password_that_has_expired_is_an_error_that_says_so() {
    let rotating = Rotating::start();
    std::fs::write(rotating.file.path(), "expired-s3cret").unwrap();
    let here = Config::server("127.0.0.1", rotating.server.port());
    for protocol in [Protocol::Resp2, Protocol::Resp3] {
        let asked = rotating.config(None).protocol(protocol);
        let fixed = here
            .clone()
            .user(USER)
            .password("expired-s3cret")
            .protocol(protocol);
        for (config, is_told) in [(asked, true), (fixed, false)] {
            let shown = format!("{config:?}");
            let error = Client::builder().config(config).build().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Backend);
            let text = error.to_string();
            assert_eq!(
                text.contains("has expired or was replaced"),
                is_told,
                "{text}"
            );
            let shown = format!("{shown} {error:?} {text}");
            assert!(!shown.contains("s3cret"), "{shown}");
        }
    }
    let both = rotating.config(None).user(USER);
    let error = Client::builder().config(both).build().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

#[tokio::test]
async fn credentials_that_fail_hang_or_panic_are_errors_within_the_connect_timeout() {
    let server = Server::start();
    let here = || Config::server("127.0.0.1", server.port()).connect_timeout(millis(50));
    let fails = here().credentials(async || Err::<Login, _>("the vault is sealed"));
    let hangs = here().credentials(async || std::future::pending::<Result<Login, &str>>().await);
    let panics = here().credentials(async || -> Result<Login, &str> { panic!("no") });
    for (config, words) in [
        (fails, "the vault is sealed"),
        (hangs, "connect_timeout"),
        (panics, "panicked"),
    ] {
        let lazy = Client::builder().config(config.clone()).connect_lazily();
        let error = soon(Client::builder().config(config).build())
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Backend);
        let text = error.to_string();
        assert!(
            text.contains(words) && text.contains("credentials"),
            "{text}"
        );
        // A client that is there already is told the same.
        let client = lazy.command_timeout(millis(200)).build().await.unwrap();
        eventually("the reason is known", async || {
            let error = client.lock("k").try_lock().await.unwrap_err();
            error.to_string().contains(words)
        })
        .await;
        client.close().await;
    }
}

#[tokio::test]
async fn sentinels_have_credentials_of_their_own() {
    let primary = Server::start();
    let file = tempfile::NamedTempFile::new().unwrap();
    rotate(&mut primary.connection(), file.path(), "s3cret");
    let sentinel = Sentinel::start(&primary, "main");
    let set = ["ACL", "SETUSER", "default", "resetpass", ">w4tch"];
    sentinel.connection().command(&set);
    let config = |watch: &'static str| {
        Config::sentinels("main", [("127.0.0.1", sentinel.port())])
            .credentials(async || Ok::<_, String>(Login::new(USER, "s3cret")))
            .sentinel_credentials(move || async move { Ok::<_, String>(Login::password(watch)) })
    };
    let client = build(config("w4tch")).await;
    take_turns(&client).await;
    client.close().await;
    let builder = Client::builder().config(config("other"));
    let error = builder.command_timeout(secs(1)).build().await.unwrap_err();
    assert!(error.to_string().contains("sentinel"), "{error}");
    drop(self::client(&primary).await);
}
