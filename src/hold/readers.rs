//! Readers of one process, which have a record of the server's together.
//!
//! The first asks the server, and the others join its record in memory, for as long as the server said lately that it
//! stands and that no writer waits who came before them. The last to give back releases it. So readers cost the server a
//! few requests however many they are, and a writer that waits, here or elsewhere, is passed by none that came later.

use std::pin::pin;

use futures_util::FutureExt;
use tokio::time::sleep;
use tracing::debug;

use super::guard::LockGuard;
use super::line::{Front, InLine, Passage, Turn};
use super::order::Order;
use crate::clock::Moment;
use crate::error::Error;
use crate::options::Prefer;
use crate::protocol::read_write::MARK;
use crate::protocol::wait::{Step, Wait};
use crate::session::Queue;
use crate::session::give_back::AtFront;

impl Order {
    /// Whether this reads by a record that others may have too. Other processes may know a named owner, and look for it.
    pub(super) fn may_join(&self) -> bool {
        self.kind.is_shared() && !self.owner.is_named()
    }

    /// Reads by the record of others here, if the call, which `came` then, has `passed` the writers of this process that
    /// came before, or there are none. `None` if the server has to be asked.
    pub(super) fn join_readers(
        &self,
        queue: &Queue,
        came: Moment,
        passed: bool,
    ) -> Option<Result<LockGuard, Error>> {
        if !self.may_join() || self.is_behind_a_writer(passed) {
            return None;
        }
        let hold = queue.join(&self.owner, |hold| hold.join(&self.successor(came)))?;
        debug!("joined");
        let guard = self.hand_out(&hold);
        if hold.record.is_to_be_asked_about(Moment::now()) {
            self.anchor.watchdog.confirm(&hold);
        }
        Some(guard)
    }

    /// Gives those of this process that have a read-write lock the time of one request to give it back. What is asked then is
    /// behind their release, on the same connection; what is asked before would be refused, and take as long.
    pub(super) async fn let_others_end(&self, queue: &Queue, wait: &Wait) -> Result<(), Error> {
        // A signal from before: what it tells of is seen below.
        queue.freed.notified().now_or_never();
        let freed = queue.freed.notified();
        let opened = queue.opened.notified();
        tokio::pin!(opened, freed);
        opened.as_mut().enable();
        freed.as_mut().enable();
        let other_side = self.opposite_queue();
        let own_side = (!self.kind.is_shared()).then_some(queue);
        let sides = other_side.iter().chain(own_side);
        let in_the_way = sides.filter_map(|side| side.is_taken_for(&self.owner));
        let Some(trip) = in_the_way.max() else {
            return Ok(());
        };
        let Step::Park(trip) = wait.clamp(Moment::now(), trip) else {
            return Ok(());
        };
        let ended = async {
            tokio::select! {
                () = opened => {}
                () = freed, if !self.kind.is_shared() => {}
                () = sleep(trip) => {}
            }
        };
        self.anchor.unless_closed(ended).await
    }

    /// Whether a writer of this process goes first.
    fn is_behind_a_writer(&self, passed: bool) -> bool {
        let Some(writers) = self.opposite_queue() else {
            return false;
        };
        let goes_first = match self.kind.sides().map(|sides| sides.prefer) {
            Some(Prefer::Writers) => writers.is_waited_for(),
            Some(Prefer::Arrival) => !passed && writers.gate.try_read().is_err(),
            Some(Prefer::Readers) | None => false,
        };
        // Who writes may read too, by a record that is nobody else's.
        goes_first || writers.holds().iter().any(|hold| hold.is_live())
    }

    /// Waits behind the writers of this process that came before, and then behind the reader that asks.
    pub(super) async fn behind_readers<'a>(
        &self,
        queue: &'a Queue,
        line: Option<&'a Queue>,
        in_line: &mut InLine<'_>,
        wait: &Wait,
    ) -> Result<Turn<'a>, Error> {
        let passage = match line {
            None => None,
            Some(line) => match self.behind_writers(queue, line, wait).await? {
                Some(passage) => passage,
                None => return Ok(Turn::Reenter),
            },
        };
        if !self.may_join() {
            return Ok(Turn::Front(Front::of_reader(None, passage)));
        }
        in_line.inherits();
        let at_front = |front, passage| {
            Turn::Front(Front::of_reader(Some(AtFront::new(queue, front)), passage))
        };
        let mut front = pin!(queue.front.acquire());
        if let Some(Ok(front)) = front.as_mut().now_or_never() {
            return Ok(at_front(front, passage));
        }
        // What the first one asks is for those behind it too. From then on the marks on the server keep the order.
        drop(passage);
        queue.watch_front(&self.anchor.releaser.runtime);
        let turn = async {
            let turn = pin!(async {
                tokio::select! {
                    Ok(front) = front => at_front(front, None),
                    () = self.appeared(queue) => Turn::Reenter,
                }
            });
            self.anchor.in_line(&self.name, wait, turn).await
        };
        // It has not asked so far.
        let beside = || Turn::Front(Front::of_reader(None, None));
        Ok(Box::pin(turn).await?.unwrap_or_else(beside))
    }

    /// Waits behind the writers of this process that came before. `None` if the owner reads by now, through another call.
    async fn behind_writers<'a>(
        &self,
        queue: &Queue,
        line: &'a Queue,
        wait: &Wait,
    ) -> Result<Option<Option<Passage<'a>>>, Error> {
        let passed = |gate| Some(Some(Passage::new(line, gate)));
        if let Ok(gate) = line.gate.try_read() {
            return Ok(passed(gate));
        }
        let turn = async {
            let turn = pin!(async {
                tokio::select! {
                    gate = line.gate.read() => passed(gate),
                    // By another call; whoever is before it may wait for that.
                    () = line.appeared(&self.owner) => Some(None),
                    () = self.appeared(queue) => None,
                    // One that is before it may be polled by nobody. The server keeps the order too.
                    () = sleep(MARK) => Some(None),
                }
            });
            self.anchor.in_line(&self.name, wait, turn).await
        };
        // It has not asked so far.
        Ok(Box::pin(turn).await?.unwrap_or(Some(None)))
    }
}
