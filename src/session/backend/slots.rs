//! The slot map of a cluster: which server has which slot, as far as is known.

use std::ops::RangeInclusive;

use crc16::{State, XMODEM};

use crate::name::tag;
use crate::protocol::reply::Reply;

/// The number of slots of a cluster.
const SLOTS: u16 = 16_384;

/// Returns the slot of a key or a channel. If there is any text within its first braces, only that text counts.
pub(crate) fn slot(key: &str) -> u16 {
    State::<XMODEM>::calculate(tag(key).as_bytes()) % SLOTS
}

/// The owner of each slot.
///
/// An array of all slots, since each call looks one up.
#[derive(Debug)]
pub(super) struct Slots<N> {
    /// Indexed by slot. `None` if no owner is known.
    owners: Vec<Option<N>>,
}

/// A row of a server's answer to `CLUSTER SLOTS`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) slots: RangeInclusive<u16>,
    /// Empty for the host that was asked.
    pub(super) host: String,
    pub(super) port: u16,
}

/// A redirection to another server: by `MOVED` for good, by `ASK` for one request only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Redirect {
    pub(super) slot: u16,
    /// Empty for the host that was asked.
    pub(super) host: String,
    pub(super) port: u16,
}

impl<N: Clone + PartialEq> Slots<N> {
    pub(super) fn new() -> Self {
        Self {
            owners: vec![None; SLOTS.into()],
        }
    }

    pub(super) fn owner(&self, slot: u16) -> Option<&N> {
        self.owners.get(usize::from(slot))?.as_ref()
    }

    /// Records the owner of a slot. Returns `false` if it was known, or if there is no such slot.
    pub(super) fn learn(&mut self, slot: u16, owner: &N) -> bool {
        match self.owners.get_mut(usize::from(slot)) {
            Some(known) if known.as_ref() != Some(owner) => {
                *known = Some(owner.clone());
                true
            }
            _ => false,
        }
    }

    /// Forgets the owner of each slot for which `lost` returns `true`.
    ///
    /// A call for such a slot then goes to any server, which redirects it.
    pub(super) fn take_from(&mut self, lost: impl Fn(u16, &N) -> bool) {
        for (slot, owner) in (0..).zip(&mut self.owners) {
            owner.take_if(|owner| lost(slot, owner));
        }
    }

    /// Returns the owner of each slot. A server appears once for each slot that it has.
    pub(super) fn owners(&self) -> impl Iterator<Item = &N> {
        self.owners.iter().flatten()
    }
}

/// Reads the answer to `CLUSTER SLOTS`. Returns `None` if it is not the answer of a cluster.
///
/// One row that cannot be read makes the whole answer invalid: a table with gaps would pass for a cluster with gaps.
pub(super) fn ranges(reply: &Reply) -> Option<Vec<Range>> {
    let Reply::List(rows) = reply else {
        return None;
    };
    rows.iter().map(range).collect()
}

/// Reads one row. The replicas, which follow the primary, are not needed.
fn range(row: &Reply) -> Option<Range> {
    let Reply::List(row) = row else {
        return None;
    };
    let [
        Reply::Integer(first),
        Reply::Integer(last),
        Reply::List(primary),
        ..,
    ] = &row[..]
    else {
        return None;
    };
    let [host, Reply::Integer(port), ..] = &primary[..] else {
        return None;
    };
    let slots = u16::try_from(*first).ok()?..=u16::try_from(*last).ok()?;
    Some(Range {
        slots: (*slots.end() < SLOTS).then_some(slots)?,
        host: match host {
            Reply::Text(host) => named(host),
            _ => String::new(),
        },
        port: u16::try_from(*port).ok()?,
    })
}

/// Reads the redirection in `MOVED` or `ASK`: `<slot> <host>:<port>`.
///
/// Returns `None` unless it has a slot, a host and a port. The text then counts as an ordinary refusal.
pub(super) fn redirect(text: &str) -> Option<Redirect> {
    let mut words = text.split(' ').skip(1);
    let slot = words.next()?.parse().ok()?;
    // From the right, since an IPv6 address has colons of its own.
    let (host, port) = words.next()?.rsplit_once(':')?;
    Some(Redirect {
        slot: (slot < SLOTS).then_some(slot)?,
        host: named(host),
        port: port.parse().ok()?,
    })
}

/// Returns the host that a server names. Empty for `?`, which stands for a host that the server does not know or may
/// not tell.
fn named(host: &str) -> String {
    match host {
        "?" => String::new(),
        host => host.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_share_the_slot_of_their_tag() {
        // The example of the cluster specification.
        assert_eq!(slot("123456789"), 0x31C3);
        assert_eq!(slot("{t}:x"), slot("t"));
        assert_ne!(slot("{}x"), slot("{}y"));
        assert_eq!(slot("a{t}b{u}"), slot("t"));
        assert_eq!(slot("{{t}}"), slot("{t"));
        assert_ne!(slot("{t"), slot("t"));
    }

    #[test]
    fn a_redirection_names_slot_and_address() {
        let shown = |text| redirect(text).map(|to| (to.slot, to.host, to.port));
        let to = |slot, host: &str, port| Some((slot, host.to_owned(), port));
        assert_eq!(
            shown("MOVED 3999 10.0.0.1:6381"),
            to(3999, "10.0.0.1", 6381)
        );
        assert_eq!(shown("ASK 0 ::1:7000"), to(0, "::1", 7000));
        assert_eq!(shown("MOVED 1 :7000"), to(1, "", 7000));
        assert_eq!(shown("MOVED 1 ?:7000"), to(1, "", 7000));
        assert_eq!(shown("ASK 1 ?:7000"), to(1, "", 7000));
        for text in [
            "",
            "MOVED",
            "MOVED 1",
            "MOVED x h:1",
            "MOVED 1 h",
            "MOVED 1 h:x",
            "MOVED 16384 h:1",
        ] {
            assert_eq!(shown(text), None, "{text}");
        }
    }

    #[test]
    fn the_table_of_a_server_is_read_and_nonsense_is_not() {
        let row = |first, last, host: Reply, port| {
            let primary = Reply::List(vec![host, Reply::Integer(port), Reply::Text("id".into())]);
            Reply::List(vec![Reply::Integer(first), Reply::Integer(last), primary])
        };
        let text = |text: &str| Reply::Text(text.to_owned());
        let table = |rows: Vec<Reply>| ranges(&Reply::List(rows));
        let read = table(vec![
            row(0, 99, text("h"), 7000),
            row(100, 16_383, Reply::Nil, 7001),
            row(5, 5, text("?"), 7001),
        ]);
        let expected = [
            (0..=99, "h", 7000),
            (100..=16_383, "", 7001),
            (5..=5, "", 7001),
        ];
        let expected = expected.map(|(slots, host, port)| Range {
            slots,
            host: host.to_owned(),
            port,
        });
        assert_eq!(read.unwrap(), expected);
        for nonsense in [
            row(0, 16_384, text("h"), 1),
            row(-1, 3, text("h"), 1),
            row(0, 3, text("h"), 70_000),
            Reply::List(Vec::new()),
            Reply::Nil,
        ] {
            assert_eq!(table(vec![nonsense]), None);
        }
        assert_eq!(ranges(&Reply::Nil), None);
    }

    #[test]
    fn only_a_change_is_news() {
        let mut slots = Slots::new();
        assert!(slots.learn(7, &'a') && !slots.learn(7, &'a') && slots.learn(7, &'b'));
        assert_eq!(slots.owner(7), Some(&'b'));
        assert_eq!(slots.owner(8), None);
        assert!(!slots.learn(u16::MAX, &'a'));
        assert_eq!(slots.owners().count(), 1);
    }
}
