//! A duration as text.

use std::time::Duration;

use proc_macro2::TokenStream;
use quote::quote;
use syn::LitStr;
use syn::parse::{Parse, ParseStream};

/// The units, each with its length in milliseconds.
const UNITS: [(&str, u64); 4] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)];

/// A whole number of a unit, such as `250ms`, `10s`, `5m` or `1h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Time {
    millis: u64,
}

impl Parse for Time {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let wanted = "a time is text, a whole number and its unit, ms, s, m or h: \"250ms\", \"10s\", \"5m\", \"1h\"";
        let literal: LitStr = input
            .parse()
            .map_err(|error| syn::Error::new(error.span(), wanted))?;
        Self::read(&literal.value()).ok_or_else(|| syn::Error::new(literal.span(), wanted))
    }
}

impl Time {
    fn read(text: &str) -> Option<Self> {
        let unit = text.find(|c: char| !c.is_ascii_digit())?;
        let (number, unit) = text.split_at(unit);
        let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit)?;
        let millis = number.parse::<u64>().ok()?.checked_mul(*factor)?;
        Some(Self { millis })
    }

    pub(crate) fn get(self) -> Duration {
        Duration::from_millis(self.millis)
    }

    pub(crate) fn tokens(self) -> TokenStream {
        let millis = self.millis;
        quote!(::core::time::Duration::from_millis(#millis))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(text: &str) -> Option<u64> {
        Time::read(text).map(|time| time.millis)
    }

    #[test]
    fn time_is_a_number_and_a_unit() {
        assert_eq!(millis("250ms"), Some(250));
        assert_eq!(millis("10s"), Some(10_000));
        assert_eq!(millis("5m"), Some(300_000));
        assert_eq!(millis("1h"), Some(3_600_000));
        assert_eq!(millis("0s"), Some(0));
    }

    #[test]
    fn anything_else_is_none() {
        for text in [
            "",
            "10",
            "s",
            "10 s",
            "1.5s",
            "-1s",
            "10sec",
            "1m30s",
            "10S",
            "+1s",
            "١s",
            "18446744073709551615h",
            "99999999999999999999ms",
        ] {
            assert_eq!(millis(text), None, "{text:?}");
        }
    }
}
