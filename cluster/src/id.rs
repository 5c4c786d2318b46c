//! Names of things that outlive a message: nodes, data folders, clusters, sessions, epochs, shards, leaderships.
//!
//! Each is a type of its own, so that one is never passed for another. None of them is chosen by its bearer to gain
//! anything: a node's number comes from the log, the random ones are 128 bits and are only ever compared.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How many shards there are: the unit of ownership is a 1,024th of the keys. Fixed for ever, since every node must map alike.
pub const SHARDS: u16 = 1024;

/// The position of an entry in the replicated log, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LogIndex(pub u64);

/// A node's number: the log index of the entry that admitted it. An index happens once, so a number is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeId(pub u64);

/// What a data folder is: 128 random bits written when it was made. A wiped disk has another one and is another node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Identity(pub u128);

/// Which cluster a folder belongs to: 128 random bits chosen when it was founded.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClusterId(pub u128);

/// One life of a node process: 128 random bits per registration. A late message to an earlier life names another session.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SessionId(pub u128);

/// The version of the ring. Grows by one with each ring change; 0 is the empty ring of a cluster without members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Epoch(pub u64);

/// The version of what the host replicates beside the cluster's own state. Grows with each commit of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Version(pub u64);

/// One leadership: its Raft term and its leader. Where a term may have several leaders in turn, the number alone would
/// let one of them speak for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Term {
    /// The Raft term.
    pub number: u64,
    /// Who leads in it.
    pub leader: NodeId,
}

/// A shard: `0..`[`SHARDS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u16", into = "u16")]
pub struct ShardId(u16);

impl Epoch {
    /// The epoch of the next ring change.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl ShardId {
    /// The shard numbered `number`; `None` unless it is under [`SHARDS`].
    #[must_use]
    pub const fn new(number: u16) -> Option<Self> {
        if number < SHARDS { Some(Self(number)) } else { None }
    }

    /// The shard that a key belongs to, from a 64-bit hash of it.
    #[must_use]
    pub const fn of_hash(hash: u64) -> Self {
        // A power of two: the remainder is unbiased and below SHARDS.
        Self((hash % SHARDS as u64) as u16)
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u16 {
        self.0
    }

    /// Every shard, in order.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..SHARDS).map(Self)
    }
}

/// A number that is no shard's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("shard {0} does not exist: shards are numbered 0 to 1023, and every node must use the same count")]
pub struct NoSuchShard(pub u16);

impl TryFrom<u16> for ShardId {
    type Error = NoSuchShard;

    fn try_from(number: u16) -> Result<Self, NoSuchShard> {
        Self::new(number).ok_or(NoSuchShard(number))
    }
}

impl From<ShardId> for u16 {
    fn from(shard: ShardId) -> Self {
        shard.0
    }
}

impl fmt::Display for LogIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of node {}", self.number, self.leader)
    }
}

/// The random names read as hex, in full: a person compares them between two nodes.
macro_rules! reads_as_hex {
    ($($name:ident),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:032x}", self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({:x})", stringify!($name), self.0)
            }
        }
    )*};
}

reads_as_hex!(Identity, ClusterId, SessionId);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_is_one_of_1024_wherever_its_number_comes_from() {
        assert_eq!(ShardId::all().count(), 1024);
        assert_eq!(ShardId::new(1023).map(ShardId::number), Some(1023));
        assert_eq!(ShardId::new(1024), None);
        assert_eq!(ShardId::try_from(1024), Err(NoSuchShard(1024)));
        assert_eq!(ShardId::of_hash(u64::MAX).number(), 1023);
    }

    #[test]
    fn two_leaders_of_one_term_are_two_leaderships() {
        let first = Term { number: 7, leader: NodeId(1) };
        let second = Term { number: 7, leader: NodeId(2) };
        assert_ne!(first, second);
        assert!(second < Term { number: 8, leader: NodeId(0) });
    }

    #[test]
    fn random_names_read_as_32_hex_digits() {
        assert_eq!(SessionId(0xab).to_string(), format!("{}ab", "0".repeat(30)));
    }
}
