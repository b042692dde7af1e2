//! The floors: the scripts of the product, with the same keys and arguments, through a bare connection or through fred,
//! and nothing around them.
//!
//! A floor keeps no record of holds, renews nothing, and builds each request in advance. The time that the product
//! takes beyond that of the floor is the cost of the product. Each section has another acquisition id, as in the
//! product: each text that the server's scripts have not seen costs the server time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fred::interfaces::Resp3Frame;
use fred::types::Value;
use redlatch_testkit::script;

use crate::Failure;
use crate::carrier::{Carrier, Fred};
use crate::pipe::Pipe;
use crate::section::Section;

/// As long as the product's, like the acquisition id below.
const CLIENT_ID: &str = "6ba7b810-9dad-41d1-80b4-00c04fd430c8";
const ACQUISITION_ID: &str = "h0123456789abcdef";
const LEASE: &str = "30000";
/// Where the keys begin in a call's words: after the script's hash and the number of keys.
pub(crate) const KEYS_AT: usize = 2;
/// Enough for the server to have forgotten the first number when it is used again.
const NUMBERS: usize = 4096;

/// A connection over which the product's scripts are sent.
pub(crate) struct Floor(Carrier);

/// A script with its keys and arguments, loaded and ready to be sent.
#[derive(Clone)]
pub(crate) struct Call {
    carrier: Carrier,
    words: Vec<Value>,
    /// The first word of the only correct answer.
    expected: &'static str,
}

/// Two calls: one acquires a lock, or one more level of it, and the other releases it.
#[derive(Clone)]
pub(crate) struct Bare {
    pub(crate) acquire: Call,
    pub(crate) release: Call,
    /// The index of the acquisition id in the words of each call.
    number_at: [usize; 2],
    /// Acquisition ids to use in turn, and a counter that gives the index of the next.
    numbers: Arc<(Vec<Value>, AtomicUsize)>,
}

/// One side of a read-write lock.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Side {
    Read,
    Write,
}

/// A hold that the floor renews.
pub(crate) struct Lease {
    name: String,
    holder: Holder,
    number: String,
}

/// The owner of a lock on the floor, as the product's owner field and acquisition field.
struct Holder {
    field: String,
    acquisition_field: String,
}

impl Floor {
    /// Connects through fred, with the options that a careful user of it would choose.
    pub(crate) async fn of_fred(url: &str) -> Result<Self, Failure> {
        Ok(Self(Carrier::Fred(Fred::connect(url).await?)))
    }

    /// Connects through the bare connection.
    pub(crate) async fn of_pipe(url: &str) -> Result<Self, Failure> {
        Ok(Self(Carrier::Pipe(Pipe::connect(url).await?)))
    }

    /// Prepares the calls that acquire and release a lock, as the product does for an owner that holds nothing.
    pub(crate) async fn section(&self, name: &str, owner: u64) -> Result<Bare, Failure> {
        self.section_heard_on(&channel(name), name, owner).await
    }

    /// Prepares the same, with the release published on `channel`.
    pub(crate) async fn section_heard_on(
        &self,
        channel: &str,
        name: &str,
        owner: u64,
    ) -> Result<Bare, Failure> {
        let Holder {
            field,
            acquisition_field,
        } = holder(owner);
        let acquire = taking(&field, &acquisition_field, channel, "PUBLISH");
        let release = [
            &field,
            &acquisition_field,
            ACQUISITION_ID,
            "0",
            "0",
            "PUBLISH",
            channel,
        ];
        Ok(Bare {
            acquire: self
                .call(script("lock_acquire"), &[name], &acquire, "granted")
                .await?,
            release: self
                .call(script("lock_release"), &[name], &release, "released")
                .await?,
            number_at: [KEYS_AT + 1 + 2; 2],
            numbers: fresh_numbers(),
        })
    }

    /// Prepares the same for a fair lock that nobody waits for.
    pub(crate) async fn fair_section(&self, name: &str, owner: u64) -> Result<Bare, Failure> {
        let Holder {
            field,
            acquisition_field,
        } = holder(owner);
        let beside = |what: &str| format!("{what}:{{{name}}}");
        let keys = [
            name,
            &channel(name),
            &beside("redisson_lock_queue"),
            &beside("redisson_lock_timeout"),
            &beside("redlatch_lock_places"),
        ];
        let hold = [field.as_str(), acquisition_field.as_str(), ACQUISITION_ID];
        // What a place is worth: `fair_wait_timeout`, in milliseconds.
        let worth = "300000";
        let acquire = [&hold[..], &[LEASE, "wait", "0", "0", "PUBLISH", worth]].concat();
        let release = [&hold[..], &["0", "0", "PUBLISH", worth]].concat();
        Ok(Bare {
            acquire: self
                .call(script("fair_acquire"), &keys, &acquire, "granted")
                .await?,
            release: self
                .call(script("fair_release"), &keys, &release, "released")
                .await?,
            number_at: [KEYS_AT + 5 + 2; 2],
            numbers: fresh_numbers(),
        })
    }

    /// Prepares the same for one side of a read-write lock that nobody else wants.
    pub(crate) async fn side_section(
        &self,
        side: Side,
        name: &str,
        owner: u64,
    ) -> Result<Bare, Failure> {
        let Holder { field, .. } = holder(owner);
        let beside = |what: &str| format!("{what}:{{{name}}}");
        let (stem, channel) = (format!("{{{name}}}"), beside("redisson_rwlock"));
        let [writer, reader] =
            ["writer", "reader"].map(|side| beside(&format!("redlatch_rwlock_{side}")));
        let keys = [name, &stem, &writer, &reader];
        let (field, own_mark, script_name, message) = match side {
            Side::Read => (field, &reader, "read_acquire", "0"),
            Side::Write => (format!("{field}:write"), &writer, "write_acquire", "1"),
        };
        let hold = [field.as_str(), ACQUISITION_ID];
        // The call has not waited so far, and would leave a waiter mark if it were refused.
        let acquire = [&hold[..], &["1", LEASE, "arrival", "-1", "1000", "take"]].concat();
        let release = [&hold[..], &["0", message, "PUBLISH", "take"]].concat();
        Ok(Bare {
            acquire: self
                .call(script(script_name), &keys, &acquire, "granted")
                .await?,
            release: self
                .call(
                    script("rw_release"),
                    &[name, &channel, &stem, own_mark],
                    &release,
                    "released",
                )
                .await?,
            number_at: [KEYS_AT + 4 + 1; 2],
            numbers: fresh_numbers(),
        })
    }

    /// Prepares the same for one member of a lock over several servers. The server must already have been used for one.
    pub(crate) async fn vote(&self, name: &str, owner: u64) -> Result<Bare, Failure> {
        let Holder {
            field,
            acquisition_field,
        } = holder(owner);
        let (keys, channel) = ([name, "redlatch_redlock_mark"], channel(name));
        let taking = taking(&field, &acquisition_field, &channel, "");
        let acquire = [&taking[..], &["60000", "run", "trust", "0"]].concat();
        Ok(Bare {
            acquire: self
                .call(script("red_acquire"), &keys, &acquire, "granted")
                .await?,
            number_at: [KEYS_AT + 2 + 2, KEYS_AT + 1 + 2],
            ..self.section(name, owner).await?
        })
    }

    /// Prepares the calls that acquire and release a second level of a lock, as the product does for the holder.
    pub(crate) async fn second_level(&self, name: &str, owner: u64) -> Result<Bare, Failure> {
        let Holder {
            field,
            acquisition_field,
        } = holder(owner);
        let channel = channel(name);
        let reenter = [&field, &acquisition_field, ACQUISITION_ID, "2", LEASE];
        let release = [
            &field,
            &acquisition_field,
            ACQUISITION_ID,
            "1",
            "0",
            "PUBLISH",
            &channel,
        ];
        Ok(Bare {
            acquire: self
                .call(script("lock_reenter"), &[name], &reenter, "granted")
                .await?,
            release: self
                .call(script("lock_release"), &[name], &release, "kept")
                .await?,
            number_at: [KEYS_AT + 1 + 2; 2],
            // That of the hold that exists already.
            numbers: numbers([ACQUISITION_ID.to_owned()]),
        })
    }

    /// Prepares the call that renews one batch of [`Lease`]s.
    pub(crate) async fn renewal(&self, leases: &[Lease]) -> Result<Call, Failure> {
        let names: Vec<&str> = leases.iter().map(|lease| lease.name.as_str()).collect();
        let args = leases.iter().flat_map(|lease| {
            [
                &lease.holder.acquisition_field,
                lease.number.as_str(),
                LEASE,
            ]
        });
        self.call(script("lock_renew"), &names, &args.collect::<Vec<_>>(), "1")
            .await
    }

    /// Loads any script and prepares a call of it, with the first word of the answer that it must give.
    pub(crate) async fn call(
        &self,
        source: &str,
        keys: &[&str],
        args: &[&str],
        expected: &'static str,
    ) -> Result<Call, Failure> {
        let load = [Value::from("LOAD"), source.into()];
        let hash = match self.0.ask("SCRIPT", load.to_vec()).await? {
            Resp3Frame::BlobString { data, .. } => String::from_utf8(data.to_vec())?,
            refused => return Err(format!("a script is refused: {refused:?}").into()),
        };
        let mut words: Vec<Value> = vec![hash.into(), keys.len().to_string().into()];
        words.extend(keys.iter().chain(args).map(|word| Value::from(*word)));
        Ok(Call {
            carrier: self.0.clone(),
            words,
            expected,
        })
    }
}

impl Lease {
    pub(crate) fn new(name: String, owner: u64) -> Self {
        Self {
            name,
            holder: holder(owner),
            number: hold_number(),
        }
    }

    /// Returns the commands that set up the hold, with a TTL in milliseconds that a renewal raises.
    pub(crate) fn commands(&self) -> [Vec<String>; 2] {
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
        let (
            name,
            Holder {
                field,
                acquisition_field,
            },
        ) = (self.name.as_str(), &self.holder);
        let share = format!("{}:1", self.number);
        [
            words(&["HSET", name, field, "1", acquisition_field, &share]),
            words(&["PEXPIRE", name, "10000"]),
        ]
    }
}

/// Returns the arguments of a script that acquires a lock. If `publish` is empty, the script ignores the waiters.
fn taking<'a>(
    field: &'a str,
    acquisition_field: &'a str,
    channel: &'a str,
    publish: &'a str,
) -> [&'a str; 10] {
    [
        field,
        acquisition_field,
        ACQUISITION_ID,
        "1",
        LEASE,
        "take",
        channel,
        publish,
        "0",
        "0",
    ]
}

/// Returns the channel on which a release is published.
pub(crate) fn channel(name: &str) -> String {
    format!("redisson_lock__channel:{{{name}}}")
}

fn hold_number() -> String {
    format!("h{:016x}", fastrand::u64(..))
}

fn fresh_numbers() -> Arc<(Vec<Value>, AtomicUsize)> {
    numbers((0..NUMBERS).map(|_| hold_number()))
}

fn numbers(numbers: impl IntoIterator<Item = String>) -> Arc<(Vec<Value>, AtomicUsize)> {
    let numbers = numbers.into_iter().map(Value::from).collect();
    Arc::new((numbers, AtomicUsize::new(0)))
}

fn holder(owner: u64) -> Holder {
    Holder {
        field: format!("{CLIENT_ID}:{owner}"),
        acquisition_field: format!("|{CLIENT_ID}"),
    }
}

impl Call {
    /// Sends the call once. Returns an error if the answer is not the expected one.
    pub(crate) async fn send(&self) -> Result<(), Failure> {
        self.send_words(self.words.clone()).await
    }

    /// Sends the call with `word` in place of the one at `index`.
    pub(crate) async fn send_with(&self, index: usize, word: Value) -> Result<(), Failure> {
        let mut words = self.words.clone();
        words[index] = word;
        self.send_words(words).await
    }

    async fn send_words(&self, words: Vec<Value>) -> Result<(), Failure> {
        let frame = self.carrier.ask("EVALSHA", words).await?;
        if says(&frame, self.expected) {
            Ok(())
        } else {
            let expected = self.expected;
            Err(format!("the floor was answered {frame:?}, and expects {expected:?}: do its arguments still fit the scripts in lua/?").into())
        }
    }
}

/// Returns whether the answer is this word, or an array that begins with it.
fn says(frame: &Resp3Frame, word: &str) -> bool {
    match frame {
        Resp3Frame::Array { data, .. } => data.first().is_some_and(|first| says(first, word)),
        Resp3Frame::BlobString { data, .. } | Resp3Frame::SimpleString { data, .. } => {
            **data == *word.as_bytes()
        }
        Resp3Frame::Number { data, .. } => word.parse() == Ok(*data),
        Resp3Frame::Null => word == "nil",
        _ => false,
    }
}

impl Section for Bare {
    async fn pass(&self) -> Result<Duration, Failure> {
        let asked = Instant::now();
        let number = self.take().await?;
        let waited = asked.elapsed();
        self.give_back(number).await?;
        Ok(waited)
    }
}

impl Bare {
    /// Acquires the lock, and returns the acquisition id that it used.
    pub(crate) async fn take(&self) -> Result<Value, Failure> {
        let (numbers, next) = &*self.numbers;
        let number = &numbers[next.fetch_add(1, Ordering::Relaxed) % numbers.len()];
        let [in_acquire, _] = self.number_at;
        self.acquire.send_with(in_acquire, number.clone()).await?;
        Ok(number.clone())
    }

    pub(crate) async fn give_back(&self, number: Value) -> Result<(), Failure> {
        let [_, in_release] = self.number_at;
        self.release.send_with(in_release, number).await
    }

    /// Measures a round trip: the mean over the calls of one task, made one after the other for `span`.
    pub(crate) async fn round_trip(&self, span: Duration) -> Result<Duration, Failure> {
        let bare = self.clone();
        let calls = tokio::spawn(async move {
            let (started, mut calls) = (Instant::now(), 0);
            while started.elapsed() < span {
                bare.pass().await?;
                calls += 2;
            }
            Ok::<_, Failure>(started.elapsed() / calls.max(1))
        });
        calls.await?
    }
}
