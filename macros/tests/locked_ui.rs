//! What the attribute takes, and where the compiler points if it is used wrong.
//!
//! After a change of its messages, or of the compiler's: `TRYBUILD=overwrite cargo test -p redlatch-macros --test
//! locked_ui`, then read the difference.

/// Compiled as a part of this test: `trybuild` would build all of the crates once more for it.
#[allow(dead_code, reason = "compiling is the test")]
mod forms;

#[test]
fn wrong_use_is_an_error_that_points_at_the_argument() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
