//! Levels that were left to a named owner and are taken over by another client, while replies are lost: what the first
//! client counts is what the server has.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::family::{Guard, Lock};
use crate::support::probe::soon;
use crate::support::scene::{Scene, patient};
use crate::support::{eventually, sha};
use fastrand::Rng;
use redlatch::{
    DistributedGuard, FairLock, FencedLock, Owner, ReadLock, ReentrantLock, SpinLock, WriteLock,
};
use redlatch_testkit::{Connection, Proxy, Server};
use tokio::time::timeout;

const NAME: &str = "job";
const OWNER: &str = "req-7";
/// What a fenced lock leaves next to a free lock: its last token.
const KEPT: &str = "redisson_lock_token:";

/// Returns at once the fields of the lock, and what its level keys hold.
const LOOK: &str = "local levels = {}
for _, key in ipairs(redis.call('KEYS', '*:rwlock_timeout:*')) do
  levels[#levels + 1] = redis.call('GET', key)
end
return {redis.call('HGETALL', KEYS[1]), levels}";

/// Returns how many levels each hold has on the server, the fewest first. Their sum is what the server counts.
fn shares(probe: &mut Connection) -> Vec<u64> {
    let found = probe.command(&["EVAL", LOOK, "1", NAME]).array();
    let [fields, levels] = [0, 1].map(|at| found[at].clone().texts());
    let (mut shares, mut count) = (BTreeMap::new(), 0);
    for hold in levels {
        *shares.entry(hold).or_insert(0) += 1;
    }
    for pair in fields.chunks(2) {
        let number = |text: &str| text.parse::<u64>().expect("a number");
        match (&*pair[0], &*pair[1]) {
            (OWNER, total) => count = number(total),
            (field, total) if field.ends_with(":write") => count = number(total),
            ("|token", _) => {}
            (field, record) if field.starts_with('|') && !field.starts_with("||") => {
                let share = record.split(':').nth(1);
                shares.insert(field.to_owned(), number(share.expect("a share")));
            }
            _ => {}
        }
    }
    let mut shares: Vec<_> = shares.into_values().collect();
    shares.sort_unstable();
    assert_eq!(shares.iter().sum::<u64>(), count, "{found:?}");
    shares
}

/// Returns how many levels the server counts for the owner.
fn levels(probe: &mut Connection) -> u64 {
    shares(probe).iter().sum()
}

async fn nothing_is_left(server: &Server) {
    let mut probe = server.connection();
    eventually("no key is left", async || {
        probe.keys().iter().all(|key| key.starts_with(KEPT))
    })
    .await;
}

/// What the first client asks for while it has one guard, and two levels that it has left.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Request {
    Lock,
    Unlock,
    Drop,
    UnlockLeft,
    AdoptLeft,
    AdoptThere,
}

impl Request {
    /// Returns how many of the levels that were left it takes.
    fn of_left(self) -> u64 {
        match self {
            Self::Lock | Self::Unlock | Self::Drop => 0,
            Self::UnlockLeft | Self::AdoptLeft | Self::AdoptThere => 1,
        }
    }

    /// Asks for it. Returns the guards that there are then.
    async fn carried_out<L: Lock>(self, lock: L, guard: L::Guard) -> Vec<L::Guard> {
        match self {
            Self::Lock => vec![guard, lock.lock().await.unwrap()],
            Self::Unlock => {
                guard.unlock().await.unwrap();
                Vec::new()
            }
            Self::Drop => Vec::new(),
            Self::UnlockLeft => {
                lock.unlock().await.unwrap();
                vec![guard]
            }
            Self::AdoptLeft | Self::AdoptThere => {
                let adopted = lock.adopt().await.unwrap();
                vec![guard, adopted.expect("one is left")]
            }
        }
    }
}

/// Loses the reply to each request that sets the first client's share; before it is sent again, the other client takes
/// levels over.
async fn take_over_between_copies<L: Lock + Sync>(reenter: &str, release: &str, adopt: &str) {
    let scene = Scene::open(patient).await;
    let mut probe = scene.server.connection();
    let owner = Owner::named(OWNER);
    let (here, there) = (
        L::of(&scene.client, NAME).owned_by(&owner),
        L::of(&scene.other, NAME).owned_by(&owner),
    );
    let requests = [
        (Request::Lock, reenter),
        (Request::Unlock, release),
        (Request::Drop, release),
        (Request::UnlockLeft, release),
        (Request::AdoptLeft, adopt),
        (Request::AdoptThere, adopt),
    ];
    for (request, script) in requests {
        // Once as the first request since the levels were left, once as a later one.
        for (is_later, taken) in [(false, 0), (false, 1), (true, 0), (true, 1), (true, 2)] {
            let what = format!("{request:?} {is_later} {taken}");
            let guard = here.lock().await.unwrap();
            let mut left = if request == Request::AdoptThere { 1 } else { 2 };
            for _ in 0..left {
                here.lock().await.unwrap().detach();
            }
            if request == Request::AdoptThere {
                there.adopt().await.unwrap().unwrap().detach();
            }
            if is_later || request == Request::AdoptThere {
                here.lock().await.unwrap().unlock().await.unwrap();
            }
            scene.proxy.cut_reply_to(sha(script));
            let mut gate = scene.proxy.stop(sha(script));
            let call = tokio::spawn(request.carried_out(here.clone(), guard));
            gate.reached().await;
            let taken = taken.min(left - request.of_left());
            for _ in 0..taken {
                there
                    .adopt()
                    .await
                    .unwrap()
                    .unwrap()
                    .unlock()
                    .await
                    .unwrap();
                left -= 1;
            }
            gate.open();
            let guards = call.await.unwrap();
            assert!(!scene.proxy.cut_reply_armed(), "{what}: it was sent");
            left -= request.of_left();
            let expected = guards.len() as u64 + left;
            eventually(&what, async || levels(&mut probe) == expected).await;
            for guard in guards {
                guard.unlock().await.unwrap();
            }
            assert_eq!(levels(&mut probe), left, "{what}");
            for _ in 0..left {
                there.unlock().await.unwrap();
            }
            assert!(!there.is_locked().await.unwrap(), "{what}: at once");
            nothing_is_left(&scene.server).await;
        }
    }
}

macro_rules! each_kind {
    ($($test:ident $lock:ty: $reenter:literal, $release:literal, $adopt:literal;)*) => {$(
        mod $test {
            use super::*;

            #[tokio::test(flavor = "multi_thread")]
            async fn what_is_taken_over_between_two_copies_of_a_request_is_no_effect_of_it() {
                take_over_between_copies::<$lock>($reenter, $release, $adopt).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn levels_that_move_between_clients_are_counted_once_whatever_is_lost() {
                for seed in 0..4 {
                    wander::<$lock>(seed).await;
                    roam::<$lock>(seed).await;
                }
            }
        }
    )*};
}

each_kind! {
    reentrant ReentrantLock: "lock_reenter_spare", "lock_release_spare", "lock_adopt_spare";
    fenced FencedLock: "lock_reenter_spare", "lock_release_spare", "lock_adopt_spare";
    spin SpinLock: "lock_reenter_spare", "lock_release_spare", "lock_adopt_spare";
    fair FairLock: "lock_reenter_spare", "fair_release_spare", "lock_adopt_spare";
    write WriteLock: "rw_reenter_spare", "rw_release_spare", "rw_adopt_spare";
    read ReadLock: "rw_reenter_spare", "rw_release_spare", "rw_adopt_spare";
}

/// A client of the owner, as it is meant to be.
struct Side<L: Lock> {
    lock: L,
    proxy: Proxy,
    guards: Vec<L::Guard>,
    /// Levels of its share that it has left.
    left: u64,
}

impl<L: Lock> Side<L> {
    async fn open(server: &Server) -> Self {
        let proxy = Proxy::start(server.port()).await;
        let client = patient(crate::support::builder(proxy.url())).build().await;
        let client = client.expect("the server is up");
        Self {
            lock: L::of(&client, NAME).owned_by(&Owner::named(OWNER)),
            proxy,
            guards: Vec::new(),
            left: 0,
        }
    }

    fn share(&self) -> u64 {
        self.guards.len() as u64 + self.left
    }
}

/// Waits until the server has what each client of the owner is meant to have.
async fn settled<L: Lock>(sides: &[Side<L>], probe: &mut Connection, what: &str) {
    let expected = sides.iter().map(Side::share).filter(|share| *share > 0);
    let mut expected: Vec<_> = expected.collect();
    expected.sort_unstable();
    let what = format!("{what}, {expected:?}");
    eventually(&what, async || shares(probe) == expected).await;
}

/// Has clients of one owner do at random what they may, lose replies and drop calls. Once that has settled, the server has
/// what each of them is meant to have.
async fn wander<L: Lock>(seed: u64) {
    let server = Server::start();
    let mut probe = server.connection();
    let mut sides = vec![
        Side::<L>::open(&server).await,
        Side::<L>::open(&server).await,
    ];
    // Of three, the one that a level comes from is known only where the third has settled, and has none.
    if seed % 2 == 1 {
        sides.push(Side::open(&server).await);
    }
    let is_settled = sides.len() > 2;
    let mut rng = Rng::with_seed(seed);
    let mut steps = Vec::new();
    for _ in 0..60 {
        if rng.u8(..3) == 0 {
            let at = rng.usize(..sides.len());
            sides[at].proxy.cut_reply_to("EVAL");
        }
        rng.shuffle(&mut sides);
        let [side, others @ ..] = &mut *sides else {
            unreachable!("there are two at least");
        };
        let at = rng.usize(..side.guards.len().max(1));
        let has_guard = !side.guards.is_empty();
        // A level of this process goes first, so none that has a guard may be here.
        let may_unlock = !has_guard || side.left > 0;
        // A level that is left, here or else there.
        let mut with_levels = others.iter_mut().filter(|other| other.share() > 0);
        let found = match (side.left, with_levels.next(), with_levels.next()) {
            (0, Some(other), None) if other.left > 0 => Some(&mut other.left),
            (0, ..) => None,
            _ => Some(&mut side.left),
        };
        let step = match (rng.u8(..9), found) {
            (0 | 1, _) => {
                side.guards.push(side.lock.lock().await.unwrap());
                "lock"
            }
            (2, _) if has_guard => {
                let guard = side.guards[at].reenter().await.unwrap();
                side.guards.push(guard);
                "reenter"
            }
            (3, _) if has_guard => {
                side.guards.swap_remove(at).unlock().await.unwrap();
                "unlock"
            }
            (4, _) if has_guard => {
                drop(side.guards.swap_remove(at));
                "drop"
            }
            (5, _) if has_guard => {
                side.guards.swap_remove(at).detach();
                side.left += 1;
                "detach"
            }
            (6, Some(left)) => {
                *left -= 1;
                let adopted = side.lock.adopt().await.unwrap();
                side.guards.push(adopted.expect("one is left"));
                "adopt"
            }
            // It may be granted, under way, or not sent so far.
            (7, _) => {
                let time = Duration::from_micros(rng.u64(..400));
                drop(timeout(time, side.lock.lock()).await);
                "lock and drop the call"
            }
            (8, _) if has_guard => {
                let time = Duration::from_micros(rng.u64(..400));
                drop(timeout(time, side.guards.swap_remove(at).unlock()).await);
                "unlock and drop the call"
            }
            (_, Some(left)) if may_unlock => {
                *left -= 1;
                side.lock.unlock().await.unwrap();
                "unlock one that is left"
            }
            _ => continue,
        };
        steps.push(step);
        // Otherwise the next step meets what goes on in the background.
        if !is_settled && rng.bool() {
            continue;
        }
        settled(&sides, &mut probe, &format!("seed {seed}: {steps:?}")).await;
    }
    settled(&sides, &mut probe, &format!("seed {seed}: {steps:?}")).await;
    for guard in sides.iter_mut().flat_map(|side| side.guards.drain(..)) {
        guard.unlock().await.unwrap();
    }
    for _ in 0..sides.iter().map(|side| side.left).sum() {
        let at = rng.usize(..sides.len());
        sides[at].lock.unlock().await.unwrap();
    }
    assert_eq!(levels(&mut probe), 0, "seed {seed}: {steps:?}");
    nothing_is_left(&server).await;
}

/// Has two clients of one owner do whatever they can, and take levels over that have guards. Each level is in one share at
/// any time, no call goes on for ever, and what is left can be given back.
async fn roam<L: Lock>(seed: u64) {
    let server = Server::start();
    let mut probe = server.connection();
    let mut sides = [
        Side::<L>::open(&server).await,
        Side::<L>::open(&server).await,
    ];
    let mut rng = Rng::with_seed(seed);
    for _ in 0..40 {
        if rng.u8(..4) == 0 {
            sides[rng.usize(..2)].proxy.cut_reply_to("EVAL");
        }
        let side = &mut sides[rng.usize(..2)];
        let guard = match side.guards.len() {
            0 => None,
            guards => Some(side.guards.swap_remove(rng.usize(..guards))),
        };
        // A guard of a level that was taken over, and a level that nobody has, are errors.
        let step = async {
            match (rng.u8(..5), guard) {
                (0, Some(guard)) => drop(guard.unlock().await),
                (1, Some(guard)) => drop(guard.detach()),
                (2, guard) => {
                    side.guards.extend(guard);
                    side.guards.extend(side.lock.adopt().await.unwrap());
                }
                (3, guard) => {
                    side.guards.extend(guard);
                    drop(side.lock.unlock().await);
                }
                (_, guard) => {
                    side.guards.extend(guard);
                    side.guards.push(side.lock.lock().await.unwrap());
                }
            }
        };
        soon(step).await;
        shares(&mut probe);
    }
    for guard in sides.iter_mut().flat_map(|side| side.guards.drain(..)) {
        drop(guard.unlock().await);
    }
    for side in sides {
        while side.lock.unlock().await.is_ok() {}
    }
    nothing_is_left(&server).await;
}
