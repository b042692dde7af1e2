//! Cleanliness: nothing is left once all workers are done.

/// What remains once all workers are quiet.
#[derive(Clone, Debug, Default)]
pub(crate) struct Leftover {
    /// All keys except the counters.
    pub(crate) keys: Vec<String>,
    pub(crate) channels: Vec<String>,
    pub(crate) connections: usize,
    pub(crate) connections_expected: usize,
    pub(crate) workers: Vec<Quiet>,
}

/// The state of a worker that has nothing left to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Quiet {
    pub(crate) process: u32,
    pub(crate) tasks: usize,
    pub(crate) tasks_before: usize,
    /// The `Debug` output of its client.
    pub(crate) client: String,
}

impl Quiet {
    pub(crate) fn line(&self) -> String {
        let Self {
            process,
            tasks,
            tasks_before,
            client,
        } = self;
        format!("{process} {tasks} {tasks_before} {client}")
    }

    pub(crate) fn parse(line: &str) -> Option<Self> {
        let mut words = line.splitn(4, ' ');
        Some(Self {
            process: words.next()?.parse().ok()?,
            tasks: words.next()?.parse().ok()?,
            tasks_before: words.next()?.parse().ok()?,
            client: words.next()?.to_owned(),
        })
    }

    /// Returns what the worker has not let go of.
    pub(crate) fn leaks(&self) -> Vec<String> {
        let mut found = Vec::new();
        if self.tasks != self.tasks_before {
            found.push(format!(
                "{} tasks, before {}",
                self.tasks, self.tasks_before
            ));
        }
        for part in ["locks: 0,", "holds: 0,", "channels: 0,"] {
            if !self.client.contains(part) {
                found.push(format!("not {part:?} but {}", self.client));
            }
        }
        found
    }
}

impl Leftover {
    pub(crate) fn leaks(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (what, left) in [("key", &self.keys), ("channel", &self.channels)] {
            found.extend(left.iter().map(|name| format!("the {what} {name} is left")));
        }
        if self.connections != self.connections_expected {
            found.push(format!(
                "{} connections and not {}",
                self.connections, self.connections_expected
            ));
        }
        for worker in &self.workers {
            let leaks = worker.leaks().into_iter();
            found.extend(leaks.map(|leak| format!("process {}: {leak}", worker.process)));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clean() -> Leftover {
        Leftover {
            connections: 7,
            connections_expected: 7,
            workers: vec![Quiet {
                process: 2,
                tasks: 9,
                tasks_before: 9,
                client: "Session { locks: 0, holds: 0, channels: 0, .. }".to_owned(),
            }],
            ..Leftover::default()
        }
    }

    #[test]
    fn nothing_left_is_accepted_and_anything_left_is_rejected() {
        assert_eq!(clean().leaks(), Vec::<String>::new());
        let spoil: [fn(&mut Leftover); 7] = [
            |left| left.keys.push("lock".to_owned()),
            |left| left.channels.push("channel".to_owned()),
            |left| left.connections += 1,
            |left| left.workers[0].tasks += 1,
            |left| left.workers[0].client = "locks: 1, holds: 0, channels: 0,".to_owned(),
            |left| left.workers[0].client = "locks: 0, holds: 10, channels: 0,".to_owned(),
            |left| left.workers[0].client = "locks: 0, holds: 0, channels: 2,".to_owned(),
        ];
        for (n, spoil) in spoil.iter().enumerate() {
            let mut left = clean();
            spoil(&mut left);
            assert_eq!(left.leaks().len(), 1, "{n}");
        }
    }

    #[test]
    fn report_of_a_worker_survives_its_line() {
        let quiet = clean().workers.remove(0);
        assert_eq!(Quiet::parse(&quiet.line()), Some(quiet));
    }
}
