//! The log that a majority agrees on, behind an API of our own.
//!
//! Laws:
//! - an answer with outcomes means: committed, on the disks of a majority, applied and visible here. Any other answer that is not a plain
//!   refusal means that nothing is known;
//! - who leads says so only once an entry of its own term is applied here: before that it knows neither the log's end nor log time;
//! - [`Raft::confirm`] asks a majority after it was called: what it says of leadership was true at some instant since;
//! - changes of the membership are made one after the other, and one that was left half-way is finished first;
//! - when the disk fails, nothing is acknowledged and this node leads nobody.
//!
//! openraft is used in this folder and nowhere else; what it is told is in [`RaftOptions`]. Never here: what a command does, who should
//! vote, who is alive.

mod handle;
mod log;
mod machine;
mod members;
mod network;
mod runtime;
mod serve;
#[cfg(test)]
mod tests;
mod types;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

pub use self::handle::Raft;
pub use self::network::{RpcKind, Transport, TransportError};
pub use self::runtime::seed_for_this_thread;
use crate::agreed::Agreed;
use crate::authority::Authority;
use crate::id::{LogIndex, NodeId, Term};
use crate::store::Broken;
use crate::time::Moment;

/// The most commands in one entry.
pub const COMMANDS_MAX: usize = 1024;

/// The most bytes of one entry.
pub const ENTRY_MAX: usize = 1024 * 1024;

/// The times and sizes of Raft.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RaftOptions {
    /// How often a leader shows that it lives.
    pub heartbeat: Duration,
    /// A follower that hears nothing for a time between these two asks to be elected. The longer one is also how long a leader that reaches
    /// no majority still takes commands.
    pub election: (Duration, Duration),
    /// After so many entries there is a snapshot; 5,000 at most.
    pub snapshot_every: u64,
    /// So many entries before a snapshot are kept, for followers that are a little behind.
    pub keep: u64,
    /// How long a proposal, a confirmation or a change of the membership takes at most, before nothing is known of it.
    pub within: Duration,
}

impl Default for RaftOptions {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_millis(100),
            election: (Duration::from_millis(300), Duration::from_millis(600)),
            snapshot_every: 1000,
            keep: 500,
            within: Duration::from_secs(5),
        }
    }
}

/// The log as far as it is applied here.
#[derive(Clone, Debug)]
pub struct State {
    /// What it means.
    pub authority: Arc<Authority>,
    /// What it means to the host.
    pub agreed: Arc<dyn Agreed>,
    /// Its last entry, whatever it holds.
    pub applied: Option<LogIndex>,
}

/// Who leads, as this node sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leadership {
    /// Who, if it is known.
    pub leader: Option<NodeId>,
    /// In which leadership, once its leader is elected.
    pub term: Option<Term>,
    /// If it is this node and it may act.
    pub leading: Option<Leading>,
}

/// A leadership of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leading {
    /// Which.
    pub term: Term,
    /// When its first entry was applied here, on the lease clock.
    pub since: Moment,
}

/// Who has the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RaftMembers {
    /// Who votes. While a change is under way: who votes before it or after it.
    pub voters: BTreeSet<NodeId>,
    /// Who only follows.
    pub learners: BTreeSet<NodeId>,
    /// Where each is reached.
    pub addresses: BTreeMap<NodeId, String>,
    /// Whether a change is under way.
    pub changing: bool,
}

/// How far a member is, as its leader knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The last entry that it is known to have.
    pub matched: Option<LogIndex>,
    /// How many entries it lacks.
    pub lag: u64,
    /// How long ago what it last acknowledged was sent.
    pub heard: Option<Duration>,
}

/// Numbers for whoever watches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RaftStats {
    /// Entries with commands applied since this process started.
    pub entries_total: u64,
    /// The Raft term.
    pub term: u64,
    /// The last entry in the log.
    pub last_log: Option<u64>,
    /// The last entry applied.
    pub applied: Option<u64>,
    /// The last entry in the snapshot.
    pub snapshot: Option<u64>,
    /// The last entry that is gone from the log.
    pub purged: Option<u64>,
    /// Who leads.
    pub leader: Option<NodeId>,
}

/// Why Raft did not start.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The options contradict one another.
    #[error("the times of Raft do not fit together: {0}")]
    Options(String),
    /// What the store holds cannot be used.
    #[error("the data folder {folder} cannot be used: {why}")]
    Store {
        /// Where.
        folder: String,
        /// What is wrong.
        why: String,
    },
}

/// Why a log was not begun.
#[derive(Debug, thiserror::Error)]
pub enum FoundError {
    /// Only node 0 begins a log.
    #[error("node {node} cannot found a cluster: the founder is node 0")]
    NotFounder {
        /// This node.
        node: NodeId,
    },
    /// There is a log already.
    #[error("this node has a log already: its cluster is founded")]
    Founded,
    /// Raft has stopped.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// Raft runs no more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stopped {
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] Broken),
    /// It was shut down, or failed.
    #[error("raft has stopped: {0}")]
    Other(String),
}

/// Why there are no outcomes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// Nothing was proposed: another node leads, or nobody.
    #[error("this node does not lead{}", match .0 { Some(node) => format!(": node {node} does"), None => String::new() })]
    NotLeader(Option<NodeId>),
    /// It may be committed, now or later, or never.
    #[error("the outcome is not known: look at the state before trying again")]
    Unknown,
    /// Nothing was proposed.
    #[error(
        "{commands} commands of {bytes} bytes are more than one entry takes ({COMMANDS_MAX} and {ENTRY_MAX}): propose them in parts"
    )]
    TooLarge {
        /// How many.
        commands: usize,
        /// How long.
        bytes: usize,
    },
    /// It may be committed or not; this node will not know.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// Why leadership is not confirmed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotConfirmed {
    /// Another node leads, or nobody.
    #[error("this node does not lead{}", match .0 { Some(node) => format!(": node {node} does"), None => String::new() })]
    NotLeader(Option<NodeId>),
    /// No majority answered in time.
    #[error("no majority answered in time")]
    NoMajority,
    /// Raft has stopped.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// Why the membership is not known to be changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// Nothing was changed: another node leads, or nobody.
    #[error("this node does not lead{}", match .0 { Some(node) => format!(": node {node} does"), None => String::new() })]
    NotLeader(Option<NodeId>),
    /// A node that is not a member cannot vote.
    #[error("node {0} is not a member: add it as a learner first")]
    NotMember(NodeId),
    /// Somebody must vote.
    #[error("the last voter cannot go: let another node vote first")]
    NoVoters,
    /// It may be changed, now or later, or never.
    #[error("the outcome is not known: look at the members before trying again")]
    Unknown,
    /// The change is refused.
    #[error("the change is refused: {0}")]
    Refused(String),
    /// Raft has stopped.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}
