//! What is judged of owners: that none waits for what it has itself, or is refused for what it does not have.

use redlatch::Owner;

use super::{Belief, Call, Hold, Judge, is_named};
use crate::machine::now;

impl Judge {
    /// Judges calls for a fair lock that have waited for so long for what their owners have. Each has a place of its own
    /// in the queue, so that nobody in front of it keeps it waiting.
    pub(super) fn own(&mut self, name: usize, patience: u64) {
        let since = now().saturating_sub(patience);
        let has_it = |call: &Call, hold: &Hold| {
            let owner = hold.owner.to_string();
            let number = owner.strip_prefix("owner-");
            let is_own =
                number.is_some_and(|number| call.what.contains(&format!("by Named({number})")));
            let lasts = match &hold.belief {
                Belief::Lock(guard) => guard.remaining() > 0 && !guard.is_lost(),
                _ => false,
            };
            hold.name == name && hold.began < since && is_own && lasts
        };
        let waits = |call: &&Call| {
            call.names == [name]
                && call.absent == 0
                && call.began < since
                && self.holds.values().any(|hold| has_it(call, hold))
        };
        if self.names[name].forced.is_none()
            && let Some(call) = self.calls.values().find(waits)
        {
            let text = format!("its own owner keeps it waiting: {}", call.what);
            self.names[name].is_wrong = true;
            self.violation(text);
        }
    }

    /// Judges that an owner was refused a lock because of what it has.
    pub fn refused(&mut self, (process, task): (usize, usize), name: usize, owner: &Owner) {
        let known = &self.names[name];
        let (delay, spread) = (&self.plan().delay, self.plan().spread);
        let may_have = self.plan().weather != "calm"
            || known.haunted > now()
            || known.forced.is_some()
            || known.left.contains(owner)
            // In another process it may have what it had, or asks for, during the call. What gives it back may be longer
            // on its way than the call.
            || known.parted + delay.jitter + spread >= self.asked(process, task)
            || is_named(owner) && self.may_have_part(name, now());
        let mut holds = self.holds.values();
        if !may_have && !holds.any(|hold| hold.name == name && hold.owner == *owner) {
            let shown = self.plan().names[name].name.clone();
            self.violation(format!(
                "p{process}.{task} is refused {shown}, of which it has nothing"
            ));
        }
    }
}
