//! Release by transaction: connections that are cut at each of its steps, and users without scripts.

use std::time::Duration;

use crate::support;
use crate::support::probe::{
    begin, calls_of, millis, nothing_left, reset_calls, secs, soon, stranger,
};
use crate::support::{builder, client, eventually};
use redlatch::config::ReleaseBy;
use redlatch::{Client, ErrorKind};
use redlatch_testkit::{Proxy, Reply, Server};

use super::{NAME, is, patient, scriptless, take, value};

/// Cuts the connection of a transaction while the request that contains `cut` is on its way, and runs `meanwhile`
/// before the client can have reconnected. Returns what the call answered, and the server's answer to the
/// late request.
async fn cut_at<T: Send + 'static>(
    proxy: &Proxy,
    cut: &str,
    call: impl Future<Output = T> + Send + 'static,
    meanwhile: impl FnOnce(),
) -> (T, Vec<u8>) {
    let mut parcel = proxy.hold_request(cut);
    // A new connection takes several such delays, which leaves time for `meanwhile`.
    proxy.delay(millis(100));
    let call = tokio::spawn(call);
    parcel.caught().await;
    meanwhile();
    let output = soon(call).await.unwrap();
    proxy.delay(Duration::ZERO);
    // The request that was on its way arrives late.
    (output, parcel.deliver().await)
}

#[tokio::test(flavor = "multi_thread")]
async fn cut_between_get_and_exec_leaves_the_next_holders_key() {
    let server = scriptless();
    let proxy = Proxy::start(server.port()).await;
    let client = patient(proxy.url()).await;
    let lock = client.plain_lock(NAME);
    for cut in ["WATCH", "GET", "MULTI", "EXEC"] {
        for verb in ["unlock", "extend"] {
            let guard = take(&lock).await;
            let call = async move {
                match verb {
                    "unlock" => guard.unlock().await,
                    _ => guard.extend(secs(600)).await,
                }
            };
            let mut probe = server.connection();
            let taken = || {
                probe.command(&["DEL", NAME]);
                probe.command(&["SET", NAME, "other", "PX", "30000"]);
            };
            let (output, late) = cut_at(&proxy, cut, call, taken).await;
            // MULTI to EXEC were on their way, so this release most likely ended the hold.
            let given_back = verb == "unlock" && matches!(cut, "MULTI" | "EXEC");
            let lost = output.err().map(|error| error.kind());
            let expected = (!given_back).then_some(ErrorKind::LeaseLost);
            assert_eq!(lost, expected, "{verb}, {cut}");
            let late = String::from_utf8_lossy(&late).into_owned();
            assert!(!late.contains(":1\r\n"), "{cut}: {late}");
            assert_eq!(value(&mut probe), is("other"), "{cut}");
            assert!(probe.pttl(NAME) <= 30_000, "{cut}");
            probe.command(&["DEL", NAME]);
            support::eventually_idle(&client).await;
        }
    }
    nothing_left(&server, [&client]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn key_that_ends_while_a_release_is_cut_was_lost_if_the_release_had_not_begun() {
    let server = scriptless();
    let proxy = Proxy::start(server.port()).await;
    let client = patient(proxy.url()).await;
    let lock = client.plain_lock(NAME);
    for (cut, begun) in [("WATCH", false), ("EXEC", true)] {
        let guard = take(&lock).await;
        let mut probe = server.connection();
        let ended = || assert_eq!(probe.command(&["DEL", NAME]).int(), 1);
        let (output, _) = cut_at(&proxy, cut, guard.unlock(), ended).await;
        let lost = output.err().map(|error| error.kind());
        // With EXEC on its way it was most likely this release that ended it.
        let expected = (!begun).then_some(ErrorKind::LeaseLost);
        assert_eq!(lost, expected, "{cut}");
    }
    nothing_left(&server, [&client]).await;
}

/// What comes between the two would be carried out by itself, whatever was watched.
#[tokio::test]
async fn nothing_is_changed_without_the_right_to_multi() {
    let server = scriptless();
    let client = patient(server.url()).await;
    let mut admin = server.connection();
    admin.command(&["ACL", "SETUSER", "default", "-multi"]);
    admin.command(&["SET", NAME, "other", "PX", "30000"]);
    let forced = client.plain_lock(NAME).force_unlock().await.unwrap_err();
    assert!(forced.to_string().contains("multi"), "{forced}");
    assert_eq!(value(&mut admin), is("other"));
}

/// Runs on one thread, so that the client sees the end of the connection before it sends MULTI.
#[tokio::test]
async fn connection_that_ends_behind_the_reply_to_get_is_not_made_anew_for_exec() {
    let server = scriptless();
    let proxy = Proxy::start(server.port()).await;
    let client = patient(proxy.url()).await;
    let lock = client.plain_lock(NAME);
    let mut probe = server.connection();
    take(&lock).await.unlock().await.unwrap();
    for _ in 0..5 {
        let guard = take(&lock).await;
        reset_calls(&mut probe);
        proxy.cut_after_reply_to("WATCH");
        proxy.delay(millis(100));
        let unlocking = tokio::spawn(guard.unlock());
        eventually("it was looked at", async || {
            calls_of(&mut probe, "watch") > 0
        })
        .await;
        probe.command(&["DEL", NAME]);
        probe.command(&["SET", NAME, "other", "PX", "30000"]);
        // The test cannot tell whether EXEC was sent before the client saw the end.
        if let Err(error) = soon(unlocking).await.unwrap() {
            assert_eq!(error.kind(), ErrorKind::LeaseLost);
        }
        assert!(!proxy.cut_reply_armed());
        proxy.delay(Duration::ZERO);
        assert_eq!(value(&mut probe), is("other"));
        probe.command(&["DEL", NAME]);
    }
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn idle_connection_that_was_closed_is_made_anew() {
    let server = scriptless();
    let client = builder(server.url())
        .command_timeout(secs(60))
        .build()
        .await
        .unwrap();
    let lock = client.plain_lock(NAME);
    let mut probe = server.connection();
    for _ in 0..5 {
        take(&lock).await.unlock().await.unwrap();
        let guard = take(&lock).await;
        let list = probe.command(&["CLIENT", "LIST"]).text();
        let idle = list
            .lines()
            .find(|line| line.contains("cmd=exec"))
            .expect(&list);
        let id = idle.split(' ').next().unwrap().strip_prefix("id=").unwrap();
        assert_eq!(probe.command(&["CLIENT", "KILL", "ID", id]).int(), 1);
        soon(guard.unlock()).await.unwrap();
    }
    nothing_left(&server, [&client]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cut_transaction_is_done_again_and_its_late_half_does_nothing() {
    let server = scriptless();
    let proxy = Proxy::start(server.port()).await;
    let client = patient(proxy.url()).await;
    let lock = client.plain_lock(NAME);
    let other = support::client(&server).await.plain_lock(NAME);
    for cut in ["WATCH", "MULTI"] {
        let guard = take(&lock).await;
        let mut parcel = proxy.hold_request(cut);
        let unlocking = tokio::spawn(guard.unlock());
        parcel.caught().await;
        soon(unlocking)
            .await
            .unwrap()
            .expect("given back by the second try");
        let next = take(&other).await;
        parcel.deliver().await;
        next.verify().await.expect("the late half of the first try");
        next.unlock().await.unwrap();
    }
    nothing_left(&server, [&client]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn transaction_that_is_refused_or_dropped_half_way_spoils_no_other() {
    let server = scriptless();
    let proxy = Proxy::start(server.port()).await;
    let client = builder(proxy.url()).build().await.unwrap();
    let lock = client.plain_lock(NAME);
    let mut probe = server.connection();
    let guard = take(&lock).await;
    probe.command(&["ACL", "SETUSER", "default", "-del"]);
    let refused = lock.force_unlock().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Backend);
    assert!(refused.to_string().contains("NOPERM"), "{refused}");
    probe.command(&["ACL", "SETUSER", "default", "+del"]);
    support::eventually_idle(&client).await;
    drop(guard);

    // The call is dropped while its WATCH, or its MULTI to EXEC, is on the way.
    for held in ["WATCH", "MULTI"] {
        let guard = take(&stranger(&lock)).await;
        {
            let mut parcel = proxy.hold_request(held);
            let extending = guard.extend(secs(60));
            tokio::pin!(extending);
            tokio::select! {
                biased;
                () = parcel.caught() => {}
                // Where the machine is busy, it may be repeated and done before this task goes on.
                answered = &mut extending => {
                    answered.unwrap();
                    soon(parcel.caught()).await;
                }
            }
        }
        guard.verify().await.unwrap();
        soon(guard.unlock()).await.unwrap();
    }
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn user_without_scripts_needs_no_script_and_no_other_right() {
    let server = Server::start();
    let mut probe = server.connection();
    let rules = "on >s3cret ~* &* +@connection +@transaction +set +get +pttl +del +pexpire";
    let mut command = vec!["ACL", "SETUSER", "app"];
    command.extend(rules.split(' '));
    assert_eq!(probe.command(&command), Reply::Status("OK".to_owned()));
    let url = format!("redis://app:s3cret@127.0.0.1:{}", server.port());
    for by in [ReleaseBy::Auto, ReleaseBy::Transaction] {
        let client = builder(&url)
            .watchdog_lease(millis(600))
            .build()
            .await
            .unwrap();
        let lock = client.plain_lock(NAME).release_by(by);
        reset_calls(&mut probe);
        let guard = take(&lock).await;
        eventually("it was renewed twice", async || {
            calls_of(&mut probe, "pexpire") > 1
        })
        .await;
        guard.extend(secs(60)).await.unwrap();
        guard.verify().await.unwrap();
        assert!(stranger(&lock).try_lock().await.unwrap().is_none());
        assert!(lock.is_held().await.unwrap());
        guard.unlock().await.unwrap();
        let guard = take(&lock).await;
        assert!(lock.force_unlock().await.unwrap());
        soon(guard.lost()).await;
        for script in ["eval", "evalsha", "script"] {
            assert_eq!(calls_of(&mut probe, script), 0, "{by:?}");
        }
        let stats = probe.command(&["INFO", "commandstats"]).text();
        let tried: usize = stats
            .lines()
            .filter(|line| line.starts_with("cmdstat_eval"))
            .filter_map(|line| {
                line.split("rejected_calls=")
                    .nth(1)?
                    .split(',')
                    .next()?
                    .parse::<usize>()
                    .ok()
            })
            .sum();
        assert_eq!(tried, usize::from(by == ReleaseBy::Auto), "{stats}");
        client.close().await;
    }
    assert!(probe.keys().is_empty());
}

/// The acquisition is undone on another connection, and the undo must not overtake it.
#[tokio::test(flavor = "multi_thread")]
async fn dropped_acquisition_that_is_still_on_its_way_is_undone_once_it_arrives() {
    let server = scriptless();
    let proxy = Proxy::start(server.port()).await;
    let client = patient(proxy.url()).await;
    let lock = client.plain_lock(NAME);
    // From now on the client knows that scripts are refused.
    take(&lock).await.unlock().await.unwrap();
    let mut probe = server.connection();
    reset_calls(&mut probe);
    let mut gate = proxy.stop("$3\r\nSET\r\n");
    let call = tokio::spawn(async move { lock.lock().await });
    gate.reached().await;
    call.abort();
    eventually("the undo has begun", async || {
        calls_of(&mut probe, "watch") > 0
    })
    .await;
    gate.open();
    eventually("it was taken", async || calls_of(&mut probe, "set") > 0).await;
    eventually("it is free", async || probe.keys().is_empty()).await;
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn locks_that_need_scripts_say_so_by_name() {
    let server = scriptless();
    let client = client(&server).await;
    let by_script = client.plain_lock(NAME).release_by(ReleaseBy::Script);
    let errors = [
        (
            "a reentrant lock",
            client.lock(NAME).lock().await.unwrap_err(),
        ),
        (
            "a fenced lock",
            client.fenced_lock(NAME).try_lock().await.unwrap_err(),
        ),
        (
            "a fair lock",
            client.fair_lock(NAME).lock().await.unwrap_err(),
        ),
        (
            "a read-write lock",
            client.read_write_lock(NAME).read().await.unwrap_err(),
        ),
        (
            "a read-write lock",
            client.read_write_lock(NAME).try_write().await.unwrap_err(),
        ),
        (
            "a spin lock",
            client.spin_lock(NAME).is_locked().await.unwrap_err(),
        ),
        ("this plain lock", by_script.try_lock().await.unwrap_err()),
    ];
    for (name, error) in errors {
        assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
        let text = error.to_string();
        assert!(text.contains(name) && text.contains("NOPERM"), "{text}");
    }
    let plain = client.plain_lock(NAME);
    take(&plain).await.unlock().await.unwrap();
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn unlock_that_nobody_polls_holds_up_no_other_and_no_close() {
    let server = scriptless();
    // No reply is there at the first poll.
    let proxy = Proxy::start(server.port()).await;
    proxy.delay(millis(5));
    let client = Client::connect(proxy.url()).await.unwrap();
    let [one, forced, other] = ["one", "forced", "other"].map(|name| client.plain_lock(name));
    // The connection for transactions is there.
    take(&one).await.unlock().await.unwrap();
    let unpolled = begin(take(&one).await.unlock());
    let held = take(&forced).await;
    // It has its turn on that connection only while it is polled.
    let forcing = begin(forced.force_unlock());
    let guard = take(&other).await;
    soon(guard.verify()).await.unwrap();
    guard.extend(secs(60)).await.unwrap();
    soon(guard.unlock()).await.unwrap();
    soon(client.close()).await;
    drop((unpolled, forcing, held));
}
