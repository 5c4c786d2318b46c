//! A possession's bytes on the disk.
//!
//! Laws: those of `crate::codec`; other bytes are nothing.

use super::Possession;
use crate::codec;
use crate::limit::Name;

/// The version of what is below.
const VERSION: u8 = 1;
/// The most bytes of one: an id and a reason are short.
const MOST: usize = 64 * 1024;

/// Whose, under which name, and what.
pub(super) type Kept = (Name, Box<str>, Possession);

/// Its bytes; none if it is longer than one may be.
pub(super) fn encode(kept: &Kept) -> Option<Vec<u8>> {
    codec::encode::<MOST, _>(VERSION, kept)
}

/// What has these bytes; none if another version wrote them.
pub(super) fn decode(bytes: &[u8]) -> Option<Kept> {
    codec::decode::<MOST, _>(VERSION, bytes)
}
