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

#[test]
#[rustversion::attr(
    not(stable(1.95)),
    ignore = "recorded in the words of the compiler 1.95"
)]
fn wrong_types_are_errors_of_the_compiler_that_point_at_the_argument() {
    trybuild::TestCases::new().compile_fail("tests/types/*.rs");
}
