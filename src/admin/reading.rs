//! Reads what is under a name: one look at its keys, and more where the answers ask for it.

use super::Admin;
use super::found::FoundKind;
use super::inspection::{self, Inspection, LockKeys};
use crate::error::Error;
use crate::protocol::reply::Reply;

/// How many levels of a read-write lock are asked about together.
const LEVELS: usize = 1_000;

impl Admin {
    /// Reads what is under a name, and is small enough.
    pub(super) async fn read(&self, name: &str) -> Result<Option<(Inspection, bool)>, Error> {
        let keys = self.keys(name)?;
        let backend = &self.client.backend;
        let questions = keys.questions(backend.counts_by());
        let told = backend.look_at(keys.key(), &questions).await?;
        let is_own = told.first().is_some_and(inspection::has_own_field);
        let Some(mut found) = inspection::read(name, &keys, told)? else {
            return Ok(None);
        };
        if found.kind == FoundKind::ReadWrite {
            self.look_at_levels(&keys, &mut found).await?;
        }
        if found.kind == FoundKind::Fair && !found.waiters.is_empty() {
            self.look_at_places(&keys, &mut found).await?;
        }
        Ok(Some((found, is_own)))
    }

    /// Reads how long each holder of a read-write lock remains, and which client it is.
    async fn look_at_levels(&self, keys: &LockKeys, found: &mut Inspection) -> Result<(), Error> {
        let levels: Vec<_> = found
            .holders
            .iter()
            .map(|holder| keys.levels(holder))
            .collect();
        let backend = &self.client.backend;
        let mut left = Vec::new();
        for together in levels.concat().chunks(LEVELS) {
            let questions: Vec<_> = together
                .iter()
                .flat_map(|key| [vec!["PTTL", &**key], vec!["GET", &**key]])
                .collect();
            let told = backend.look_at(keys.key(), &questions).await?;
            let each = told.chunks(2).map(|told| match told {
                [left, record] => (inspection::left_of(left), inspection::label_of(record)),
                _ => (None, None),
            });
            left.extend(each);
        }
        let mut left = left.into_iter();
        for (holder, levels) in found.holders.iter_mut().zip(levels) {
            let (left, labels): (Vec<_>, Vec<_>) = left.by_ref().take(levels.len()).unzip();
            // Redisson's writer has no keys for its levels: it lasts as long as the lock.
            holder.remaining_lease = left.into_iter().flatten().max().or(holder.remaining_lease);
            holder.label = labels.into_iter().flatten().next();
        }
        Ok(())
    }

    /// Reads which clients the waiters for a fair lock are.
    async fn look_at_places(&self, keys: &LockKeys, found: &mut Inspection) -> Result<(), Error> {
        let places = keys.places(&found.waiters);
        let told = self.client.backend.look_at(keys.key(), &[places]).await?;
        // Without the right to read them, the waiters have no labels.
        if let Some(Ok(Reply::List(places))) = told.first() {
            let waiters = found.waiters.iter_mut().zip(places);
            waiters.for_each(|(waiter, place)| waiter.tell(place));
        }
        Ok(())
    }
}
