use std::sync::{Mutex, MutexGuard, PoisonError};

use sha1_smol::Sha1;
use tokio::sync::oneshot;

use crate::gate::Waiting;
use crate::parcel::Caught;
use crate::script::scripts;

/// A fate for the first request that contains the needle.
#[derive(Debug)]
pub(crate) struct Trap {
    needle: Vec<u8>,
    /// The text of the script whose hash the needle is: a request may have either.
    text: Option<&'static str>,
    fate: Fate,
}

impl Trap {
    pub(crate) fn new(needle: Vec<u8>, fate: Fate) -> Self {
        let hash = |text: &str| Sha1::from(text).digest().to_string();
        let text = scripts().find(|text| hash(text).as_bytes() == needle);
        Self { needle, text, fate }
    }

    fn is_for(&self, request: &[u8]) -> bool {
        let contains = |part: &[u8]| request.windows(part.len()).any(|bytes| bytes == part);
        contains(&self.needle) || self.text.is_some_and(|text| contains(text.as_bytes()))
    }
}

#[derive(Debug)]
pub(crate) enum Fate {
    CutReply,
    CutAfterReply,
    Hold(oneshot::Sender<Caught>),
    Wait(Waiting),
}

/// The traps of a proxy that still wait, each for one request.
#[derive(Debug, Default)]
pub(crate) struct Traps {
    waiting: Mutex<Vec<Trap>>,
}

impl Traps {
    pub(crate) fn set(&self, trap: Trap) {
        self.waiting().push(trap);
    }

    /// Returns whether a trap that cuts a reply, or the connection after one, still waits.
    pub(crate) fn cuts_a_reply(&self) -> bool {
        let cuts = |trap: &Trap| matches!(trap.fate, Fate::CutReply | Fate::CutAfterReply);
        self.waiting().iter().any(cuts)
    }

    /// Removes the first trap that this request sets off, and returns its fate. Also removes traps that nobody needs
    /// any more, whose parcel or gate was dropped.
    pub(crate) fn spring(&self, request: &[u8]) -> Option<Fate> {
        let mut waiting = self.waiting();
        waiting.retain(|trap| match &trap.fate {
            Fate::Hold(parcel) => !parcel.is_closed(),
            Fate::Wait(waiting) => !waiting.is_open(),
            Fate::CutReply | Fate::CutAfterReply => true,
        });
        let sprung = waiting.iter().position(|trap| trap.is_for(request))?;
        Some(waiting.remove(sprung).fate)
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<Trap>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
