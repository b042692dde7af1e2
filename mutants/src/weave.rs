//! One source in which the environment chooses between its bodies and those of patched ones.

use crate::bodies::bodies;

/// A source as one patch leaves it.
pub struct Variant<'a> {
    pub mutant: &'a str,
    pub source: String,
}

/// Returns a source that does what `original` does, or what one of the variants does if that mutant is chosen.
///
/// # Errors
///
/// The mutants that change something outside of the bodies of functions.
pub fn weave(original: &str, variants: &[Variant]) -> Result<String, String> {
    let places = bodies(original);
    let mut ways = vec![String::new(); places.len()];
    let mut misfits = Vec::new();
    for Variant { mutant, source } in variants {
        let patched = bodies(source);
        if outside(original, &places) != outside(source, &patched) {
            misfits.push(*mutant);
            continue;
        }
        for ((way, place), patched) in ways.iter_mut().zip(&places).zip(patched) {
            if original[place.clone()] != source[patched.clone()] {
                let body = &source[patched];
                *way += &format!("if crate::mutant::is(\"{mutant}\") {body} else ");
            }
        }
    }
    if !misfits.is_empty() {
        return Err(misfits.join(" "));
    }
    let mut woven = String::new();
    let mut end = 0;
    for (way, place) in ways.iter().zip(places) {
        woven += &original[end..place.start];
        let body = &original[place.clone()];
        woven += &match way.is_empty() {
            true => body.to_owned(),
            false => format!("{{ {way}{body} }}"),
        };
        end = place.end;
    }
    Ok(woven + &original[end..])
}

fn outside<'a>(source: &'a str, places: &[std::ops::Range<usize>]) -> Vec<&'a str> {
    let starts = places.iter().map(|place| place.start);
    let ends = places.iter().map(|place| place.end);
    let parts = std::iter::once(0).chain(ends);
    let parts = parts.zip(starts.chain([source.len()]));
    parts.map(|(from, to)| &source[from..to]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variant<'a>(mutant: &'a str, source: &str) -> Variant<'a> {
        Variant {
            mutant,
            source: source.to_owned(),
        }
    }

    #[test]
    fn bodies_that_differ_are_chosen_by_the_mutant() {
        let original = "fn f() { 1 }\nfn g() { 2 }\n";
        let variants = [
            variant("three", "fn f() { 3 }\nfn g() { 2 }\n"),
            variant("four", "fn f() { 4 }\nfn g() { 5 }\n"),
        ];
        let woven = weave(original, &variants);
        let expected = "fn f() { if crate::mutant::is(\"three\") { 3 } else if crate::mutant::is(\"four\") { 4 } else { 1 } }\nfn g() { if crate::mutant::is(\"four\") { 5 } else { 2 } }\n";
        assert_eq!(woven.as_deref(), Ok(expected));
    }

    #[test]
    fn mutant_that_changes_more_than_bodies_is_an_error() {
        let original = "const N: u8 = 1;\nfn f() {}\n";
        let variants = [variant("two", "const N: u8 = 2;\nfn f() {}\n")];
        assert_eq!(weave(original, &variants), Err("two".to_owned()));
    }
}
