//! The id of a permit with a lease.

use std::fmt;
use std::str::FromStr;

use uuid::Uuid;

use crate::error::Error;

/// The id of a permit of an [`ExpirableSemaphore`](crate::semaphore::ExpirableSemaphore): 16 random bytes, written as
/// 32 hexadecimal digits, as in Redisson.
///
/// Any process that knows the id can release the permit with
/// [`release_permit`](crate::semaphore::ExpirableSemaphore::release_permit).
///
/// # Examples
///
/// ```
/// use redlatch::semaphore::PermitId;
///
/// let id: PermitId = "00112233445566778899aabbccddeeff".parse()?;
/// assert_eq!(id.to_string(), "00112233445566778899aabbccddeeff");
/// assert!("0011".parse::<PermitId>().is_err());
/// # Ok::<(), redlatch::Error>(())
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PermitId(u128);

impl PermitId {
    pub(crate) fn fresh() -> Self {
        Self(Uuid::new_v4().as_u128())
    }
}

impl fmt::Display for PermitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for PermitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PermitId({self})")
    }
}

impl FromStr for PermitId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let digits = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        match u128::from_str_radix(text, 16) {
            Ok(id) if digits => Ok(Self(id)),
            _ => Err(Error::invalid(format!(
                "a permit's id has 32 hex digits; {text:?} is not one"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_32_hex_digits_and_nothing_else() {
        let id = PermitId::fresh();
        assert_eq!(id.to_string().len(), 32);
        assert_eq!(id.to_string().parse::<PermitId>().unwrap(), id);
        assert!("0".repeat(31).parse::<PermitId>().is_err());
        for odd in ["+", "-", "g", " ", "é"] {
            let text = format!("{odd}{}", "0".repeat(32 - odd.len()));
            assert!(text.parse::<PermitId>().is_err(), "{text}");
        }
    }
}
