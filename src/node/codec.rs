//! The bytes that nodes exchange of what the rest of the program speaks of.
//!
//! Laws: those of `crate::codec`; other bytes are [`Unreadable`].

use super::wire::{Question, Reply};
use crate::codec;
use crate::limit::{Announced, Exported};

/// The version of everything below. Another one is not read: a mixed cluster refuses, and its requesters ask again.
const VERSION: u8 = 3;

/// The most bytes of a question or its reply: 64 ends with the longest names fit many times.
const MESSAGE_MOST: usize = 256 * 1024;
/// The most bytes of what a gateway holds open under one shard.
const ANNOUNCED_MOST: usize = 16 * 1024 * 1024;
/// The most bytes of a shard's state: some 300,000 reservations, a hundred times a shard's share of a busy cluster. Below what a
/// message between nodes may have: a larger one would never arrive, and its shard be served by nobody.
const EXPORT_MOST: usize = 48 * 1024 * 1024;
const _: () = assert!(EXPORT_MOST + 4096 < tollgate_cluster::wire::MESSAGE_MAX);

/// Bytes that this version did not write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("written by another version of this program, or broken")]
pub struct Unreadable;

/// Too much for one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("larger than a message may be")]
pub struct TooLarge;

macro_rules! messages {
    ($($encode:ident, $decode:ident: $type:ty, $most:ident, $what:literal;)*) => {$(
        #[doc = concat!("The bytes of ", $what, ".")]
        ///
        /// # Errors
        /// [`TooLarge`]
        pub fn $encode(value: &$type) -> Result<Vec<u8>, TooLarge> {
            codec::encode::<$most, _>(VERSION, value).ok_or(TooLarge)
        }

        #[doc = concat!("Reads ", $what, ".")]
        ///
        /// # Errors
        /// [`Unreadable`]
        pub fn $decode(bytes: &[u8]) -> Result<$type, Unreadable> {
            codec::decode::<$most, _>(VERSION, bytes).ok_or(Unreadable)
        }
    )*};
}

messages! {
    question, read_question: Question, MESSAGE_MOST, "a question";
    reply, read_reply: Reply, MESSAGE_MOST, "the answer to a question";
    announced, read_announced: Vec<Announced>, ANNOUNCED_MOST, "what a gateway holds open";
    exported, read_exported: Exported, EXPORT_MOST, "a shard's state";
}
