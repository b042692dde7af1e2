//! Where the bodies of functions are in a Rust source.

use std::ops::Range;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// Returns the places of the bodies, braces included, of the functions that lie in no other function's body.
///
/// # Panics
/// If the source is no Rust.
pub fn bodies(source: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    find(source.parse().expect("a source of Rust"), &mut found);
    found
}

fn find(tokens: TokenStream, found: &mut Vec<Range<usize>>) {
    let mut in_signature = false;
    for token in tokens {
        match token {
            TokenTree::Ident(word) if word == "fn" => in_signature = true,
            TokenTree::Punct(end) if end.as_char() == ';' => in_signature = false,
            TokenTree::Group(body) if in_signature && body.delimiter() == Delimiter::Brace => {
                in_signature = false;
                found.push(body.span().byte_range());
            }
            TokenTree::Group(items) if !in_signature => find(items.stream(), found),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_of_all_forms_are_found() {
        let source = "impl<'a> X<'a> { async fn a(self: &'a Self) -> [u8; 2] where T: Fn() -> u8 { b(|| { fn c() {} }) } fn d(); }
            fn e<const N: usize>() { \"ä } fn f() {}\" } type G = fn(u8) -> u8; struct H { i: fn() } // fn j() {}
            macro_rules! k { () => { fn l() { m } } }";
        let found = bodies(source).into_iter().map(|at| &source[at]);
        let expected = ["{ b(|| { fn c() {} }) }", "{ \"ä } fn f() {}\" }", "{ m }"];
        assert_eq!(found.collect::<Vec<_>>(), expected);
    }
}
