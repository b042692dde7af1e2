//! One run of a server, from its start to its end, and what it says of itself.

use std::time::Duration;

use crate::argument::upper;
use crate::reply::Reply;

/// One run of a server.
pub(crate) struct Life {
    /// Another one after each start.
    run_id: String,
    /// Of the data, which no other server shares.
    replication_id: String,
    started: Duration,
}

impl Life {
    pub(crate) fn begin(now: Duration) -> Self {
        Self {
            run_id: id(),
            replication_id: id(),
            started: now,
        }
    }

    /// `INFO [section..]`, of which only what a client of redlatch looks at.
    pub(crate) fn info(&self, sections: &[Vec<u8>], now: Duration) -> Reply {
        let uptime = now.saturating_sub(self.started).as_secs();
        let all = [
            (
                "Server",
                format!(
                    "redis_version:7.0.0\r\nredis_mode:standalone\r\nrun_id:{}\r\nuptime_in_seconds:{uptime}\r\n",
                    self.run_id
                ),
            ),
            ("Memory", "maxmemory_policy:noeviction\r\n".to_owned()),
            ("Persistence", "aof_enabled:0\r\n".to_owned()),
            (
                "Replication",
                format!(
                    "role:master\r\nconnected_slaves:0\r\nmaster_replid:{}\r\nmaster_replid2:{}\r\n",
                    self.replication_id,
                    "0".repeat(40)
                ),
            ),
            ("Commandstats", String::new()),
        ];
        let is_wanted = |title: &str| {
            sections.is_empty()
                || sections.iter().any(|section| {
                    let section = upper(section);
                    section == title.to_uppercase() || section == "ALL" || section == "EVERYTHING"
                })
        };
        let wanted = all.iter().filter(|(title, _)| is_wanted(title));
        let texts: Vec<_> = wanted
            .map(|(title, lines)| format!("# {title}\r\n{lines}"))
            .collect();
        Reply::bulk(texts.join("\r\n"))
    }
}

/// Returns an id in the form of a run id: 40 hexadecimal digits.
fn id() -> String {
    let number = fastrand::u128(..);
    format!("{number:032x}{:08x}", fastrand::u32(..))
}
