//! The service on a real server: over TLS, by several tasks, while the password rotates.

use std::fs;

use recipe_fred::{Orders, pool};
use redlatch_testkit::{Connection, Server, skip};
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, pem::PemObject};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_add_up_while_the_password_rotates() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    // The testkit does not speak TLS, so the server has a port without it too.
    let plain = free.local_addr().unwrap().port();
    drop(free);
    let Ok(server) = Server::builder().tls().arg("port", plain).try_start() else {
        return skip("tls", "this server was built without TLS");
    };
    let mut admin = Connection::open(plain);
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut rotate = |password: &str| {
        let password_of = format!(">{password}");
        let user = [
            "ACL",
            "SETUSER",
            "orders",
            "reset",
            "on",
            &password_of,
            "~*",
            "&*",
            "+@all",
        ];
        assert_eq!(admin.command(&user).text(), "OK");
        fs::write(file.path(), password).unwrap();
        // With the old password nobody comes in again.
        admin.command(&["CLIENT", "KILL", "USER", "orders"]);
    };
    rotate("s3cret-0");
    let mut roots = RootCertStore::empty();
    let authority = CertificateDer::from_pem_slice(server.ca_pem().as_bytes());
    roots.add(authority.unwrap()).unwrap();
    let data = pool(server.port(), roots, file.path().to_owned())
        .await
        .unwrap();
    let orders = Orders::new(data).await.unwrap();

    for round in 1..4 {
        let tasks: Vec<_> = (0..8)
            .map(|_| {
                let orders = orders.clone();
                tokio::spawn(async move {
                    for _ in 0..10 {
                        orders.add("7", 1).await.unwrap();
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(orders.add("7", 0).await.unwrap(), round * 80);
        rotate(&format!("s3cret-{round}"));
        // Until both clients are back.
        while orders.add("8", 1).await.is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }
    orders.close().await;
}
