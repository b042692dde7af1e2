//! How long each shape is measured.

use std::time::Duration;

/// How much time, or how many rounds, each shape gets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// For calls that alternate one by one with those of the floor.
    pub(crate) calls: Duration,
    /// One block of an alternating pair.
    pub(crate) block: Duration,
    pub(crate) pairs: usize,
    /// One uninterrupted run in which waits are collected.
    pub(crate) waits: Duration,
    /// One run of many processes: the largest crowd here, the others in `smaller_crowds`.
    pub(crate) crowd: Duration,
    pub(crate) smaller_crowds: Duration,
    /// How many turns each process of a herd should have.
    pub(crate) turns: u32,
    pub(crate) wakeups: usize,
    /// Sections in one phase of the measurement of the server's own time.
    pub(crate) sections: usize,
    /// Pairs of phases in which leases are renewed.
    pub(crate) renewals: usize,
    /// How long a server is away.
    pub(crate) outage: Duration,
    pub(crate) sizing: Sizing,
}

/// How large the fleets are whose costs are measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizing {
    /// One measurement of a cost.
    pub(crate) span: Duration,
    /// Clients that lose their connections at the same time.
    pub(crate) clients: usize,
    /// The processes of each fleet.
    pub(crate) fleets: &'static [usize],
    /// The leases of one client.
    pub(crate) leases: &'static [usize],
}

/// For the record: about twenty minutes.
pub(crate) const FULL: Effort = Effort {
    calls: Duration::from_secs(20),
    block: Duration::from_secs(1),
    pairs: 15,
    waits: Duration::from_secs(20),
    crowd: Duration::from_secs(20),
    smaller_crowds: Duration::from_secs(20),
    turns: 10,
    wakeups: 1000,
    sections: 20_000,
    renewals: 4,
    outage: Duration::from_secs(60),
    sizing: Sizing {
        span: Duration::from_secs(5),
        clients: 2_000,
        fleets: &[1, 10, 50, 200],
        leases: &[1_000, 10_000, 100_000],
    },
};

/// For scripts: about four minutes.
pub(crate) const QUICK: Effort = Effort {
    calls: Duration::from_secs(4),
    block: Duration::from_millis(300),
    pairs: 10,
    waits: Duration::from_secs(4),
    crowd: Duration::from_secs(5),
    smaller_crowds: Duration::from_secs(2),
    turns: 6,
    wakeups: 250,
    sections: 6_000,
    renewals: 2,
    outage: Duration::from_secs(10),
    sizing: Sizing {
        span: Duration::from_secs(1),
        clients: 200,
        fleets: &[20],
        leases: &[10_000],
    },
};

/// Checks that the suite works. The figures mean nothing.
pub(crate) const TRIAL: Effort = Effort {
    calls: Duration::from_millis(300),
    block: Duration::from_millis(50),
    pairs: 3,
    waits: Duration::from_millis(500),
    crowd: Duration::from_secs(1),
    smaller_crowds: Duration::from_millis(300),
    turns: 1,
    wakeups: 10,
    sections: 300,
    renewals: 1,
    outage: Duration::from_secs(2),
    sizing: Sizing {
        span: Duration::from_millis(400),
        clients: 20,
        fleets: &[2],
        leases: &[1_000],
    },
};
