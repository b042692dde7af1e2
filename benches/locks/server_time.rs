//! The server's own time for one acquire and one release, next to scripts that perform the steps of Redisson's.

use redlatch::Client;
use redlatch_testkit::{Connection, Server};

use crate::Failure;
use crate::alternation::{Alternation, median};
use crate::effort::Effort;
use crate::floor::{Call, Floor, KEYS_AT, channel};
use crate::report::{Chapter, Figure, Line, Target};
use crate::section::Section;
use crate::stats::{self, Stats};

const NAME: &str = "bench:product";
const REFERENCE_NAME: &str = "bench:redisson";
const PHASES: usize = 4;

/// If the lock is free or the owner's own, adds one level and renews the lease. Otherwise returns the remaining TTL.
const REFERENCE_ACQUIRE: &str = "
local lock, lease, owner = KEYS[1], ARGV[1], ARGV[2]
local taken = redis.call('exists', lock) == 1
if taken and redis.call('hexists', lock, owner) == 0 then
  return redis.call('pttl', lock)
end
redis.call('hincrby', lock, owner, 1)
redis.call('pexpire', lock, lease)
return nil
";

/// Returns the answer of an earlier run of the same request, from its latch. Otherwise removes one level; with the last
/// level, deletes the lock and publishes a message. The latch keeps the answer.
const REFERENCE_RELEASE: &str = "
local lock, latch, owner = KEYS[1], KEYS[3], ARGV[3]
local answered = redis.call('get', latch)
if answered then
  return tonumber(answered)
end
if redis.call('hexists', lock, owner) == 0 then
  return nil
end
local answer = 0
if redis.call('hincrby', lock, owner, -1) > 0 then
  redis.call('pexpire', lock, ARGV[2])
else
  redis.call('del', lock)
  redis.call(ARGV[4], KEYS[2], ARGV[1])
  answer = 1
end
redis.call('set', latch, answer, 'px', ARGV[5])
return answer
";

pub(crate) async fn run(effort: &Effort) -> Result<Chapter, Failure> {
    let server = Server::start();
    let client = Client::connect(server.url()).await?;
    let floor = Floor::of_fred(&server.url()).await?;
    let reference = Reference::new(&floor).await?;
    let lock = client.lock(NAME);
    // Loads the scripts of the product.
    lock.pass().await?;
    let measured = Alternation::run(
        PHASES,
        async || {
            let mut connection = server.connection();
            stats::reset(&mut connection);
            for _ in 0..effort.sections {
                lock.pass().await?;
            }
            micros_per_section(&mut connection, effort.sections)
        },
        async || {
            let mut connection = server.connection();
            stats::reset(&mut connection);
            for _ in 0..effort.sections {
                reference.pass().await?;
            }
            let micros = micros_per_section(&mut connection, effort.sections);
            reference.forget_latches(&mut connection);
            micros
        },
    )
    .await?;
    client.close().await;
    let (product, floor) = (median(measured.product), median(measured.floor));
    Ok(Chapter {
        title: "Server time",
        how: "The time that the server counts for EVALSHA (`INFO commandstats`), for one acquire plus one release \
              of a free lock, next to scripts of our own that perform the documented steps of Redisson's, \
              including its latch. The separate DEL of the latch is not counted. Medians of four alternating \
              phases each.",
        lines: vec![Line {
            shape: "acquire and release, in the server".to_owned(),
            product: format!("{product:.2} µs"),
            floor: format!("{floor:.2} µs, the steps of Redisson"),
            figure: Some(Figure::new(
                "server_time_ratio",
                product / floor,
                Target::AtMost(1.15),
            )),
        }],
        curves: Vec::new(),
        comparison: None,
    })
}

fn micros_per_section(connection: &mut Connection, sections: usize) -> Result<f64, Failure> {
    let scripts = Stats::read(connection).of("evalsha");
    if scripts.calls != 2 * sections as u64 {
        let calls = scripts.calls;
        return Err(
            format!("{calls} scripts for {sections} sections: something else ran too").into(),
        );
    }
    Ok(scripts.micros as f64 / sections as f64)
}

/// Scripts that perform the steps of Redisson's.
struct Reference {
    acquire: Call,
    release: Call,
}

impl Reference {
    async fn new(floor: &Floor) -> Result<Self, Failure> {
        let owner = "6ba7b810-9dad-41d1-80b4-00c04fd430c8:1";
        let keys = [REFERENCE_NAME, &channel(REFERENCE_NAME), ""];
        let release = ["0", "30000", owner, "PUBLISH", "18000"];
        Ok(Self {
            acquire: floor
                .call(
                    REFERENCE_ACQUIRE,
                    &[REFERENCE_NAME],
                    &["30000", owner],
                    "nil",
                )
                .await?,
            release: floor.call(REFERENCE_RELEASE, &keys, &release, "1").await?,
        })
    }

    async fn pass(&self) -> Result<(), Failure> {
        self.acquire.send().await?;
        // Every request to unlock has a latch of its own.
        let request = u128::from(fastrand::u64(..)) << 64 | u128::from(fastrand::u64(..));
        let latch = format!("redisson_unlock_latch:{{{REFERENCE_NAME}}}:{request:032x}");
        self.release.send_with(KEYS_AT + 2, latch.into()).await
    }

    /// Deletes the latches, as the client does after each answer, but outside the measurement.
    fn forget_latches(&self, connection: &mut Connection) {
        connection.command(&["FLUSHALL"]);
    }
}
