//! The statements of sentinels about the primary, and the rule which of them counts.
//!
//! A [`Report`] holds what one sentinel said last, and the [`View`] holds the conclusion from all reports. [`decisive`]
//! is the rule, without I/O: see invariant 1 of [`sentinel`](super::sentinel).

use crate::clock::BootInstant;
use crate::config::Server;
use crate::error::Error;

/// What all sentinels together say.
///
/// Never replaced by an older statement, unless a majority makes it.
#[derive(Clone, Debug, Default)]
pub(super) struct View {
    /// The server that connections lead to. Stays the same when sentinels fall silent.
    pub(super) primary: Option<Server>,
    /// The epoch of the statement that named it.
    pub(super) epoch: u64,
    /// Whether each configured sentinel has made a statement, or failed to.
    pub(super) is_complete: bool,
    /// Whether all known sentinels say the same.
    pub(super) is_united: bool,
    /// Whether the last attempt to reach the primary failed.
    pub(super) is_unreachable: bool,
}

/// What a sentinel has said last.
#[derive(Debug, Default)]
pub(super) struct Report {
    /// The last statement. `None` before the first, and after a long silence.
    pub(super) word: Option<Word>,
    /// Since when it has been silent, and why.
    pub(super) silence: Option<(BootInstant, Error)>,
}

/// A sentinel's statement of which server is the primary.
#[derive(Clone, Debug)]
pub(super) struct Word {
    pub(super) primary: Server,
    /// The epoch of the configuration that this comes from.
    pub(super) epoch: u64,
    /// The id of the sentinel itself, which may be known by several addresses.
    pub(super) id: String,
    /// The ids and addresses of the other sentinels that it knows.
    pub(super) others: Vec<(String, Server)>,
}

impl View {
    /// Whether there is no need to ask often: a message will announce the next change.
    pub(super) fn is_calm(&self) -> bool {
        self.is_united && !self.is_unreachable
    }

    /// Adopts a statement. Returns `false` if the primary is the same as before.
    pub(super) fn follow(&mut self, word: &Word) -> bool {
        self.epoch = word.epoch;
        let is_news = self.primary.as_ref() != Some(&word.primary);
        self.primary = Some(word.primary.clone());
        is_news
    }
}

/// Returns the newest statement; of equally new ones, the one that names the present primary. A statement that is older
/// than the view counts only if a majority of all known sentinels makes it now.
///
/// `known` is the number of all known sentinels, silent ones included: those that can be heard may be a minority.
pub(super) fn decisive<'a>(
    reports: impl Iterator<Item = &'a Report> + Clone,
    known: usize,
    view: &View,
) -> Option<&'a Word> {
    let live = reports.clone().filter(|report| report.silence.is_none());
    let said = live.filter_map(|report| report.word.as_ref());
    let is_majority = |word: &Word| {
        let agreeing = said.clone().filter(|said| said.primary == word.primary);
        agreeing.count() * 2 > known
    };
    reports
        .filter_map(|report| report.word.as_ref())
        .filter(|word| word.epoch >= view.epoch || is_majority(word))
        .max_by_key(|word| (word.epoch, Some(&word.primary) == view.primary.as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(primary: u16, epoch: u64) -> Report {
        Report {
            word: Some(Word {
                primary: Server::new("h", primary),
                epoch,
                id: String::new(),
                others: Vec::new(),
            }),
            silence: None,
        }
    }

    /// A silent sentinel whose statement still counts.
    fn said(primary: u16, epoch: u64) -> Report {
        Report {
            silence: Some((BootInstant::now(), Error::invalid("gone"))),
            ..says(primary, epoch)
        }
    }

    /// A sentinel that has been silent until its statement was forgotten.
    fn forgotten() -> Report {
        Report {
            word: None,
            ..said(0, 0)
        }
    }

    /// Returns the primary and its epoch that follow from these reports of all known sentinels.
    fn after(view: &View, reports: &[Report]) -> (u16, u64) {
        let mut view = view.clone();
        if let Some(word) = decisive(reports.iter(), reports.len(), &view) {
            view.follow(word);
        }
        (view.primary.map_or(0, |primary| primary.port), view.epoch)
    }

    fn view(primary: u16, epoch: u64) -> View {
        View {
            primary: Some(Server::new("h", primary)),
            epoch,
            ..View::default()
        }
    }

    #[test]
    fn newest_word_counts_and_of_equal_ones_that_for_the_present() {
        for words in [[says(1, 3), says(2, 4)], [says(2, 4), says(1, 3)]] {
            for view in [View::default(), view(1, 3), view(2, 4)] {
                assert_eq!(after(&view, &words), (2, 4));
            }
        }
        for words in [[says(2, 4), says(3, 4)], [says(3, 4), says(2, 4)]] {
            assert_eq!(after(&view(2, 4), &words), (2, 4));
            assert_eq!(after(&view(3, 4), &words), (3, 4));
        }
        assert_eq!(after(&view(1, 3), &[]), (1, 3));
    }

    #[test]
    fn sentinel_that_is_behind_leads_nobody_back_when_the_others_are_forgotten() {
        let behind = [forgotten(), forgotten(), says(1, 4)];
        assert_eq!(after(&view(2, 5), &behind), (2, 5));
        let word_is_old = [forgotten(), said(1, 4), says(1, 4)];
        assert_eq!(after(&view(2, 5), &word_is_old), (2, 5));
        assert_eq!(
            after(&view(2, 5), &[forgotten(), says(1, 6), forgotten()]),
            (1, 6)
        );
    }

    #[test]
    fn service_that_most_monitor_anew_begins_with_a_low_epoch() {
        let anew = [says(1, 0), says(1, 0), forgotten()];
        assert_eq!(after(&view(2, 5), &anew), (1, 0));
        let beside_one_that_is_behind = [says(1, 0), says(1, 0), says(3, 4)];
        assert_eq!(after(&view(2, 5), &beside_one_that_is_behind), (1, 0));
        let half = [says(1, 0), says(1, 0), forgotten(), forgotten()];
        assert_eq!(after(&view(2, 5), &half), (2, 5));
        let one_is_ahead = [says(1, 0), says(1, 0), said(2, 5)];
        assert_eq!(after(&view(2, 5), &one_is_ahead), (2, 5));
    }
}
