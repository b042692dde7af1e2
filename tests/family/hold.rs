//! What an owner holds: levels that it takes again, leaves, adopts and unlocks elsewhere, and leases that are renewed,
//! extended and lost.

use std::time::Instant;

use crate::family::{Guard, Lock};
use crate::support::eventually;
use crate::support::place::Place;
use crate::support::probe::{kind, millis, secs, soon, stranger};
use redlatch::{DistributedGuard, ErrorKind, Owner};

pub(super) async fn owner_gets_in_again_and_nobody_else<L: Lock>(place: Place) {
    let client = place.client().await;
    let lock = L::of(&client, place.name()).owned_by(&Owner::unique());
    assert_eq!(lock.holder().await.unwrap(), None);
    let guard = lock.lock().await.unwrap();
    assert!(stranger(&lock).try_lock().await.unwrap().is_none());
    assert!(lock.is_locked().await.unwrap() && lock.is_held().await.unwrap());
    assert!(!stranger(&lock).is_held().await.unwrap());
    assert!(lock.remaining_lease().await.unwrap().unwrap() > secs(20));
    let again = soon(lock.try_lock()).await.unwrap();
    assert_eq!(again.is_some(), L::REENTRANT);
    let levels = 1 + u64::from(L::REENTRANT);
    assert_eq!(lock.hold_count().await.unwrap(), levels);
    let holder = lock.holder().await.unwrap().unwrap();
    assert_eq!(holder.hold_count(), levels);
    if let Some(again) = again {
        again.unlock().await.unwrap();
        let third = guard.reenter().await.unwrap();
        drop(guard);
        assert!(stranger(&lock).try_lock().await.unwrap().is_none());
        third.unlock().await.unwrap();
    } else {
        guard.unlock().await.unwrap();
    }
    assert!(!lock.is_locked().await.unwrap());
    place.nothing_left([&client]).await;
}

pub(super) async fn unlock_by_one_who_holds_nothing_changes_nothing<L: Lock>(place: Place) {
    let client = place.client().await;
    let lock = L::of(&client, place.name());
    assert_eq!(kind(lock.unlock().await), ErrorKind::NotHeld);
    let guard = stranger(&lock).lock().await.unwrap();
    for stranger in [
        stranger(&lock),
        lock.clone().owned_by(&Owner::named("req-8")),
    ] {
        assert_eq!(kind(stranger.unlock().await), ErrorKind::NotHeld);
        assert!(stranger.adopt().await.unwrap().is_none());
    }
    guard.verify().await.unwrap();
    guard.unlock().await.unwrap();
    place.nothing_left([&client]).await;
}

pub(super) async fn fixed_lease_ends_and_the_next_gets_in<L: Lock>(place: Place) {
    let (client, other) = (place.client().await, place.client().await);
    let guard = L::of(&client, place.name())
        .lease(millis(400))
        .lock()
        .await
        .unwrap();
    let next = soon(L::of(&other, place.name()).lock()).await.unwrap();
    assert!(guard.is_lost(), "lost before anybody else got in");
    soon(guard.lost()).await;
    assert_eq!(kind(guard.verify().await), ErrorKind::LeaseLost);
    assert_eq!(kind(guard.unlock().await), ErrorKind::LeaseLost);
    next.verify().await.unwrap();
    next.unlock().await.unwrap();
    place.nothing_left([&client, &other]).await;
}

pub(super) async fn renewed_lease_outlives_many_terms<L: Lock>(place: Place) {
    // A request may take a sixth of the lease.
    let lease = millis(1_500);
    let client = place.builder().watchdog_lease(lease).build().await.unwrap();
    let lock = L::of(&client, place.name());
    let guard = lock.lock().await.unwrap();
    let end = Instant::now() + lease * 2;
    while Instant::now() < end {
        assert!(!guard.is_lost());
        assert!(stranger(&lock).try_lock().await.unwrap().is_none());
        tokio::time::sleep(millis(10)).await;
    }
    guard.verify().await.unwrap();
    guard.unlock().await.unwrap();
    place.nothing_left([&client]).await;
}

pub(super) async fn crashed_holder_frees_the_lock_within_its_lease<L: Lock>(place: Place) {
    let lease = secs(2);
    let client = place.client().await;
    let (builder, name) = (place.builder(), place.name().to_owned());
    // The holder's runtime ends, and with it everything that could renew or release the lock.
    let holder = std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let client = builder.watchdog_lease(lease).build().await.unwrap();
            let guard = L::of(&client, &name).lock().await.unwrap();
            std::mem::forget((guard, client));
        });
        runtime.shutdown_background();
    });
    holder.join().unwrap();
    let crashed = Instant::now();
    let guard = soon(L::of(&client, place.name()).lock()).await.unwrap();
    let took = crashed.elapsed();
    assert!(took < lease + millis(500), "{took:?}");
    guard.unlock().await.unwrap();
    place.nothing_left([&client]).await;
}

pub(super) async fn level_of_a_named_owner_is_adopted_and_unlocked_elsewhere<L: Lock>(
    place: Place,
) {
    let (client, other) = (place.client().await, place.client().await);
    let owner = Owner::named("req-7");
    let here = L::of(&client, place.name()).owned_by(&owner);
    let there = L::of(&other, place.name()).owned_by(&owner);
    assert_eq!(here.lock().await.unwrap().detach(), owner);
    let guard = there.adopt().await.unwrap().expect("a level to adopt");
    guard.verify().await.unwrap();
    assert_eq!(there.hold_count().await.unwrap(), 1);
    guard.unlock().await.unwrap();
    assert!(!here.is_locked().await.unwrap());

    here.lock().await.unwrap().detach();
    there.unlock().await.unwrap();
    assert!(!here.is_locked().await.unwrap());
    assert!(there.adopt().await.unwrap().is_none());
    // The client notices a level that was taken away elsewhere only by its next renewal or call.
    client.close().await;
    place.nothing_left([&client, &other]).await;
}

/// What an owner does next under a guard, after another level that was left has been unlocked elsewhere.
const NEXT: [&str; 5] = ["lock", "reenter", "unlock", "drop", "adopt"];

pub(super) async fn level_that_was_left_and_unlocked_elsewhere_is_not_counted_here<L: Lock>(
    place: Place,
) {
    if !L::REENTRANT {
        return;
    }
    let (client, other) = (place.client().await, place.client().await);
    let owner = Owner::named("req-7");
    let here = L::of(&client, place.name()).owned_by(&owner);
    let there = L::of(&other, place.name()).owned_by(&owner);
    // Twice by one hold: what was left first has been told by the time that more is left.
    for (next, then) in NEXT
        .into_iter()
        .flat_map(|next| NEXT.map(|then| (next, then)))
    {
        let what = format!("{next}, {then}");
        let mut guards = vec![here.lock().await.unwrap()];
        for next in [next, then] {
            guards.push(here.lock().await.unwrap());
            here.lock().await.unwrap().detach();
            there.unlock().await.unwrap();
            let mut levels = guards.len();
            assert_eq!(here.hold_count().await.unwrap(), levels as u64, "{what}");
            match next {
                "lock" => guards.push(here.lock().await.unwrap()),
                "reenter" => {
                    let inner = guards[0].reenter().await.unwrap();
                    guards.push(inner);
                }
                "unlock" => guards.pop().unwrap().unlock().await.unwrap(),
                "drop" => drop(guards.pop()),
                // There is nothing left: another guard of a level that has one.
                _ => drop(here.adopt().await.unwrap().unwrap().detach()),
            }
            levels = guards.len();
            eventually(&what, async || {
                here.hold_count().await.unwrap() == levels as u64
            })
            .await;
        }
        for guard in guards {
            guard.unlock().await.unwrap();
        }
        assert!(!here.is_locked().await.unwrap(), "{what}: at once");
        place.nothing_left([&client, &other]).await;
    }
}

pub(super) async fn level_that_was_left_is_found_wherever_it_is_by_now<L: Lock>(place: Place) {
    if !L::REENTRANT {
        return;
    }
    let owner = Owner::named("req-7");
    for guards in 0..3 {
        let (client, other) = (place.client().await, place.client().await);
        let here = L::of(&client, place.name()).owned_by(&owner);
        let there = L::of(&other, place.name()).owned_by(&owner);
        let mut beside = Vec::new();
        for _ in 0..guards {
            beside.push(here.lock().await.unwrap());
        }
        here.lock().await.unwrap().detach();
        // It moves there, and is left there.
        there.adopt().await.unwrap().expect("it was left").detach();
        assert_eq!(here.hold_count().await.unwrap(), guards + 1);
        let back = here.adopt().await.unwrap().expect("it was left there");
        assert_eq!(here.hold_count().await.unwrap(), guards + 1);
        back.verify().await.unwrap();
        back.unlock().await.unwrap();
        assert_eq!(here.hold_count().await.unwrap(), guards);

        if guards == 0 {
            here.lock().await.unwrap().detach();
            there.adopt().await.unwrap().expect("it was left").detach();
            here.unlock().await.unwrap();
            assert!(!here.is_locked().await.unwrap());
            assert_eq!(kind(there.unlock().await), ErrorKind::NotHeld);
            here.lock().await.unwrap().detach();
            there.unlock().await.unwrap();
            assert_eq!(kind(here.unlock().await), ErrorKind::NotHeld);
        }
        for guard in beside {
            guard.verify().await.unwrap();
            guard.unlock().await.unwrap();
        }
        assert!(!here.is_locked().await.unwrap(), "at once");
        // A client notices that its last level was taken away only by its next renewal or call.
        client.close().await;
        other.close().await;
        place.nothing_left([&client, &other]).await;
    }
}

pub(super) async fn levels_that_are_adopted_to_and_fro_are_counted_once<L: Lock>(place: Place) {
    if !L::REENTRANT {
        return;
    }
    let owner = Owner::named("req-7");
    for (levels, adopted) in [(1, 1), (2, 1), (2, 2), (3, 2)] {
        let (client, other) = (place.client().await, place.client().await);
        let here = L::of(&client, place.name()).owned_by(&owner);
        let there = L::of(&other, place.name()).owned_by(&owner);
        let mut guards = vec![there.lock().await.unwrap()];
        for _ in 0..levels {
            guards.push(here.lock().await.unwrap());
        }
        let all = levels + 1;
        for (lock, times) in [(&there, adopted), (&here, adopted), (&there, 1)] {
            for _ in 0..times {
                guards.push(soon(lock.adopt()).await.unwrap().expect("it is held"));
                assert_eq!(here.hold_count().await.unwrap(), all);
            }
        }
        // As many are given back as there were locked. The other guards have lost theirs.
        let mut given_back = 0;
        for guard in guards {
            given_back += u64::from(guard.unlock().await.is_ok());
            assert!(here.hold_count().await.unwrap() >= all - given_back);
        }
        assert!(!here.is_locked().await.unwrap(), "{levels} {adopted}");
        client.close().await;
        other.close().await;
        place.nothing_left([&client, &other]).await;
    }
}

pub(super) async fn forced_unlock_ends_the_hold<L: Lock>(place: Place) {
    let (client, other) = (place.client().await, place.client().await);
    let lock = L::of(&client, place.name());
    assert!(!lock.force_unlock().await.unwrap());
    let guard = lock.lock().await.unwrap();
    assert!(stranger(&lock).force_unlock().await.unwrap());
    soon(guard.lost()).await;
    assert_eq!(kind(guard.unlock().await), ErrorKind::LeaseLost);
    let guard = lock.lock().await.unwrap();
    assert!(L::of(&other, place.name()).force_unlock().await.unwrap());
    assert_eq!(kind(guard.verify().await), ErrorKind::LeaseLost);
    place.nothing_left([&client, &other]).await;
}

pub(super) async fn extended_lease_lasts_longer<L: Lock>(place: Place) {
    let client = place.client().await;
    let lock = L::of(&client, place.name()).lease(secs(1));
    let guard = lock.lock().await.unwrap();
    guard.extend(secs(60)).await.unwrap();
    assert!(guard.remaining() > secs(50));
    assert!(lock.remaining_lease().await.unwrap().unwrap() > secs(50));
    guard.extend(secs(5)).await.unwrap();
    assert!(lock.remaining_lease().await.unwrap().unwrap() <= secs(5));
    assert!(guard.remaining() <= secs(5));
    guard.unlock().await.unwrap();
    place.nothing_left([&client]).await;
}

pub(super) async fn lost_key_is_noticed_by_renewal_and_verify<L: Lock>(place: Place) {
    let client = place
        .builder()
        .watchdog_lease(secs(3))
        .build()
        .await
        .unwrap();
    let mut probe = place.probe();
    let lock = L::of(&client, place.name());
    let guard = lock.lock().await.unwrap();
    probe.command(&["DEL", place.name()]);
    assert_eq!(kind(guard.verify().await), ErrorKind::LeaseLost);
    drop(guard);
    let guard = lock.lock().await.unwrap();
    probe.command(&["DEL", place.name()]);
    let stranger = stranger(&L::of(&client, place.name()));
    let ends = Instant::now() + guard.remaining();
    soon(guard.lost()).await;
    assert!(
        Instant::now() < ends,
        "by the renewal, long before the lease would have told"
    );
    stranger.lock().await.unwrap().unlock().await.unwrap();
    assert_eq!(kind(guard.unlock().await), ErrorKind::LeaseLost);
    place.nothing_left([&client]).await;
}

pub(super) async fn hold_is_lost_when_its_client_closes<L: Lock>(place: Place) {
    let (client, other) = (place.client().await, place.client().await);
    let guard = L::of(&client, place.name()).lock().await.unwrap();
    client.close().await;
    soon(guard.lost()).await;
    assert_eq!(kind(guard.unlock().await), ErrorKind::Closed);
    assert_eq!(
        kind(L::of(&client, place.name()).lock().await),
        ErrorKind::Closed
    );
    let next = L::of(&other, place.name()).try_lock().await.unwrap();
    next.expect("released by the close").unlock().await.unwrap();
    place.nothing_left([&other]).await;
}
