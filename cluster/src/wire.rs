//! How values become bytes and come back: the one place of the crate that knows the codec.
//!
//! Laws:
//! - what [`encode`] wrote, [`decode`] of the same version reads back;
//! - a decode takes at most [`MESSAGE_MAX`] bytes of memory for what it reads, whatever lengths the bytes claim, and takes all of
//!   the bytes or none: what is left over is malformed;
//! - bytes from outside never panic.
//!
//! The format says nothing about itself. Adding or reordering a field or a variant changes it, so every frame, record and
//! datagram that holds such bytes begins with a version of its own. Never here: what any message means.

use bincode::config::{Configuration, Limit, LittleEndian, Varint};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The most bytes of one message, both ways: a snapshot or an export has to fit.
pub const MESSAGE_MAX: usize = 64 * 1024 * 1024;

const FORMAT: Configuration<LittleEndian, Varint, Limit<MESSAGE_MAX>> =
    bincode::config::standard().with_limit::<MESSAGE_MAX>();

/// Without the bound of [`FORMAT`], which would count a value's size in memory: what is written is our own.
const WRITTEN: Configuration = bincode::config::standard();

/// Bytes that are no value of the expected type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed bytes: {0}")]
pub struct Malformed(String);

impl Malformed {
    /// Bytes that were read, and whose content cannot be.
    #[must_use]
    pub fn because(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

/// The bytes of `value`.
///
/// # Panics
/// If the type cannot be written at all (a map of unknown length, a derive that asks for its own format): every value of it would
/// fail, so its first test does.
#[must_use]
pub fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    match bincode::serde::encode_to_vec(value, WRITTEN) {
        Ok(bytes) => bytes,
        Err(error) => unreachable!("a type that cannot be written: {error}"),
    }
}

/// The value whose bytes these are, all of them.
///
/// # Errors
/// They are no such value, or more than one, or larger than a message may be.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Malformed> {
    if bytes.len() > MESSAGE_MAX {
        return Err(Malformed::because(format!("{} bytes are more than a message has", bytes.len())));
    }
    match bincode::serde::decode_from_slice(bytes, FORMAT) {
        Ok((value, taken)) if taken == bytes.len() => Ok(value),
        Ok((_, taken)) => Err(Malformed::because(format!("{} bytes too many", bytes.len() - taken))),
        Err(error) => Err(Malformed::because(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    type Value = (Option<u128>, BTreeMap<u16, Vec<u8>>, String);

    proptest! {
        #[test]
        fn what_was_written_is_read_back(value: Value) {
            prop_assert_eq!(decode::<Value>(&encode(&value)), Ok(value));
        }

        #[test]
        fn any_bytes_are_a_value_or_malformed(bytes: Vec<u8>) {
            if let Ok(value) = decode::<Value>(&bytes) {
                prop_assert!(decode::<Value>(&encode(&value)).is_ok());
            }
        }
    }

    #[test]
    fn bytes_left_over_are_malformed_and_so_are_bytes_that_lack() {
        let bytes = encode(&(7u64, String::from("seven")));
        let more = [&bytes[..], &[0]].concat();
        assert_eq!(decode::<(u64, String)>(&more), Err(Malformed::because("1 bytes too many")));
        assert!(decode::<(u64, String)>(&bytes[..bytes.len() - 1]).is_err());
    }

    #[test]
    fn a_length_that_lies_takes_no_memory() {
        let claim = encode(&(u64::MAX / 2));
        assert!(decode::<Vec<u64>>(&claim).is_err());
        assert!(decode::<String>(&claim).is_err());
    }
}
