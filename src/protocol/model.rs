//! The shared part of the models: a checker visits every state that events lead to, in any order.

use std::fmt::Debug;
use std::hash::Hash;

use stateright::{Checker, Model, Path};

/// A property that some state must have, or the model has tried nothing.
pub(super) const DONE: &str = "all is done";

/// Visits every state. Returns the properties that fail in some of them.
pub(super) fn broken<M>(scenario: M) -> Vec<&'static str>
where
    M: Model + Clone + Debug + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync,
    M::Action: Clone + Debug + PartialEq,
{
    let checker = scenario.clone().checker().threads(2).spawn_bfs().join();
    println!("{} states: {scenario:?}", checker.unique_state_count());
    let mut found = checker.discoveries();
    assert!(found.remove(DONE).is_some());
    for (property, path) in &found {
        tell(property, path);
    }
    let mut properties: Vec<_> = found.into_keys().collect();
    properties.sort_unstable();
    properties
}

/// Whether a test may visit half a million states and more: with `REDLATCH_SOAK`, which `.ci/run` sets.
pub(crate) fn has_time() -> bool {
    std::env::var_os("REDLATCH_SOAK").is_some()
}

/// Prints the events that lead to a state in which a property fails.
pub(super) fn tell<State: Clone, Action: Clone + Debug>(
    property: &str,
    path: &Path<State, Action>,
) {
    println!("not {property}: {:?}", path.clone().into_actions());
}
