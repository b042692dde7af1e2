//! What a server has counted.

use redlatch_testkit::Connection;

/// How many script calls the server has answered, whatever the answer.
pub fn scripts_run(server: &mut Connection) -> u64 {
    let stats = server.command(&["INFO", "commandstats"]).text();
    let calls = |command: &str| {
        let prefix = format!("cmdstat_{command}:calls=");
        let rest = stats.lines().find_map(|line| line.strip_prefix(&*prefix));
        rest.and_then(|rest| rest.split(',').next()?.parse::<u64>().ok())
            .unwrap_or(0)
    };
    calls("eval") + calls("evalsha")
}
