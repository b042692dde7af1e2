//! The attribute macro of the crate [`redlatch`](https://docs.rs/redlatch), which exports it with its feature `macros`.

#![forbid(unsafe_code)]
#![warn(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    clippy::unwrap_used,
    clippy::expect_used
)]

mod arguments;
mod boxed;
mod function;
mod time;

use proc_macro::TokenStream;

/// # In short
///
/// ```text
/// #[redlatch::locked(
///     client = EXPR, name = "format string" or EXPR,
///     kind = reentrant | fair | fenced | spin | plain | read | write,
///     lease = "10s", wait = "2s", busy = EXPR,
///     owner = EXPR, attempts = 5, guard = IDENTIFIER,
/// )]
/// ```
#[proc_macro_attribute]
pub fn locked(arguments: TokenStream, item: TokenStream) -> TokenStream {
    function::locked(arguments.into(), item.into()).into()
}
