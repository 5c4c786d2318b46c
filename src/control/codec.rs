//! The bytes of the replicated state and of what is said to it: a version, then what the log's other bytes are
//! written in.
//!
//! Laws: what is read was written by this version, whole, with nothing behind it, and takes no more memory than a snapshot may have;
//! other bytes are [`Unreadable`], whatever they are. All nodes of a cluster speak one version: the wire between them sees to it.

use serde::Serialize;
use serde::de::DeserializeOwned;
use tollgate_cluster::wire;

use super::budget::Batch;
use super::{Answer, Command, Control};

/// The version of everything below.
const VERSION: u8 = 1;

/// Bytes that this version did not write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("what was agreed on is written by another version of this program, or broken: upgrade this node")]
pub struct Unreadable;

macro_rules! messages {
    ($($encode:ident, $decode:ident: $type:ty, $what:literal;)*) => {$(
        #[doc = concat!("The bytes of ", $what, ".")]
        #[must_use]
        pub fn $encode(value: &$type) -> Vec<u8> {
            encode(value)
        }

        #[doc = concat!("Reads ", $what, ".")]
        ///
        /// # Errors
        /// [`Unreadable`]
        pub fn $decode(bytes: &[u8]) -> Result<$type, Unreadable> {
            decode(bytes)
        }
    )*};
}

messages! {
    command, read_command: Command, "a command";
    answer, read_answer: Answer, "the answer to a command";
    state, read_state: Control, "the whole state";
    batch, read_batch: Batch, "ends of reservations, as a journal keeps them";
}

fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    bytes.extend(wire::encode(value));
    bytes
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Unreadable> {
    let Some((&VERSION, body)) = bytes.split_first() else { return Err(Unreadable) };
    wire::decode(body).map_err(|_malformed| Unreadable)
}
