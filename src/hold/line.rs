//! A call's place in the line of its process, and how it leaves it.

use tokio::sync::{RwLockReadGuard, RwLockWriteGuard};

use super::guard::LockGuard;
use super::order::{Order, Terms};
use crate::protocol::lock;
use crate::session::Queue;
use crate::session::give_back::{AtFront, LeftHere};
use crate::session::queue;

/// How standing in line ended.
pub(super) enum Turn<'a> {
    Front(Front<'a>),
    /// The line is on the server.
    Queue {
        priority: i32,
    },
    Granted(LockGuard),
    /// The owner holds the lock by now, through another call.
    Reenter,
    GaveUp,
}

/// What stands at the front has, until dropped.
pub(super) struct Front<'a> {
    /// Of one that stands there alone.
    _front: Option<AtFront<'a>>,
    /// Of a writer.
    _gate: Option<RwLockWriteGuard<'a, ()>>,
    /// Of a reader.
    pub(super) passage: Option<Passage<'a>>,
}

impl<'a> Front<'a> {
    pub(super) fn alone(front: AtFront<'a>, gate: Option<RwLockWriteGuard<'a, ()>>) -> Self {
        Self {
            _front: Some(front),
            _gate: gate,
            passage: None,
        }
    }

    /// Of one without the place at the front: it asks though others do.
    pub(super) fn of_reader(front: Option<AtFront<'a>>, passage: Option<Passage<'a>>) -> Self {
        Self {
            _front: front,
            _gate: None,
            passage,
        }
    }
}

/// Of a reader that has not asked so far: the writers behind it wait.
pub(super) struct Passage<'a> {
    pub(super) line: &'a Queue,
    _gate: RwLockReadGuard<'a, ()>,
}

impl<'a> Passage<'a> {
    pub(super) fn new(line: &'a Queue, gate: RwLockReadGuard<'a, ()>) -> Self {
        Self { line, _gate: gate }
    }
}

/// A place in line here. With the last one to go, this process also gives up its place in line on the server.
pub(super) struct InLine<'a> {
    order: &'a Order,
    queue: &'a Queue,
    place: Option<queue::InLine<'a, LeftHere>>,
}

impl<'a> InLine<'a> {
    pub(super) fn new(order: &'a Order, queue: &'a Queue) -> Self {
        Self {
            order,
            queue,
            place: Some(queue.stand()),
        }
    }

    /// From now on a hold that is given back here may be left for this call.
    pub(super) fn inherits(&mut self) {
        if let Some(place) = &mut self.place {
            place.inherits();
        }
    }
}

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        drop(self.place.take());
        let Terms { anchor, name, .. } = &**self.order;
        // If it is not sent, or lost, others leave the lock to this process once.
        let leave = || drop(anchor.backend.post(&lock::leave(name, &anchor.client_id)));
        self.queue.give_up_place(leave);
    }
}

/// How the front of the line was left.
pub(super) enum Outcome {
    Granted(LockGuard),
    Reenter,
    GaveUp,
}
