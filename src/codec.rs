//! How what is exchanged and kept becomes bytes and comes back: a version, then bincode. What a version is of, and how much it may be, each
//! user says: [`crate::node::codec`], [`crate::ledger::codec`].
//!
//! Laws: what is read was written by that version, whole, with nothing behind it, and is no larger than its bound; other bytes are nothing,
//! whatever they are.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The bytes of `value`, the version ahead of them; none if they are more than `MOST`.
pub(crate) fn encode<const MOST: usize, T: Serialize>(version: u8, value: &T) -> Option<Vec<u8>> {
    let mut bytes = vec![version];
    bincode::serde::encode_into_std_write(value, &mut bytes, bincode::config::standard()).ok()?;
    (bytes.len() <= MOST).then_some(bytes)
}

/// The value whose bytes these are; none if that version did not write them, or they are more than `MOST`.
pub(crate) fn decode<const MOST: usize, T: DeserializeOwned>(version: u8, bytes: &[u8]) -> Option<T> {
    let (&written_by, body) = bytes.split_first().filter(|_| bytes.len() <= MOST)?;
    if written_by != version {
        return None;
    }
    let config = bincode::config::standard().with_limit::<MOST>();
    let (value, read) = bincode::serde::decode_from_slice(body, config).ok()?;
    (read == body.len()).then_some(value)
}
