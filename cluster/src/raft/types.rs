//! What Raft is about here: an entry holds commands, its application gives outcomes. And openraft's names for our things.

use std::fmt;

use openraft::alias::{CommittedLeaderIdOf, EntryOf, LogIdOf, SnapshotMetaOf, StoredMembershipOf, VoteOf};
use serde::{Deserialize, Serialize};

use super::runtime::Runtime;
use crate::authority::{Command, Outcome};
use crate::id::{NodeId, Term};
use crate::log_time::Stamp;

openraft::declare_raft_types!(
    /// openraft's types, chosen.
    pub Types:
        D = Batch,
        R = Vec<Outcome>,
        NodeId = u64,
        Node = Address,
        AsyncRuntime = Runtime,
);

pub(super) type Entry = EntryOf<Types>;
pub(super) type LogId = LogIdOf<Types>;
pub(super) type Membership = StoredMembershipOf<Types>;
pub(super) type SnapshotMeta = SnapshotMetaOf<Types>;
pub(super) type Vote = VoteOf<Types>;

/// What one entry says: commands, proposed together at one instant of log time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// When, and in which leadership.
    pub stamp: Stamp,
    /// What.
    pub commands: Vec<Command>,
}

impl fmt::Display for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} commands of term {}", self.commands.len(), self.stamp.term)
    }
}

/// Where peers reach a node: `host:port`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address(pub String);

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A term here is both its number and its leader: one number may have several leaders in turn.
pub(super) fn term_of(leader: &CommittedLeaderIdOf<Types>) -> Term {
    Term { number: leader.term, leader: NodeId(leader.node_id) }
}
