//! What the log says to the authority, and what the authority answers.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::id::{Epoch, Identity, LogIndex, NodeId, SessionId, ShardId, Term};
use crate::keyring::{KeyringCommand, KeyringRefusal};

/// Where an entry stands: its index and the leadership that committed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Position {
    /// The index; grows from entry to entry, not always by one.
    pub index: LogIndex,
    /// The leadership.
    pub term: Term,
}

/// With what a session takes a shard over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Basis {
    /// Nobody ever held it: its state is new.
    First,
    /// With the state that the last holder exported to this session.
    Import,
    /// With nothing: what the last holder knew is lost, so everything starts empty.
    Cold,
}

/// An entry of the log. Each names all that it depends on, so that a late or repeated one is recognised and rejected.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Command {
    /// Make the folder `identity`, reached at `address`, the first member of a cluster that has none. Its number is 0: the index of
    /// the entry that began the log with it as the only voter.
    Found {
        /// The folder.
        identity: Identity,
        /// `host:port` for peers, at most [`super::ADDRESS_MAX`] bytes.
        address: String,
    },
    /// Make the folder `identity`, reached at `address`, a member, or give a member its new address.
    Admit {
        /// The folder.
        identity: Identity,
        /// `host:port` for peers, at most [`super::ADDRESS_MAX`] bytes.
        address: String,
    },
    /// A process of `node` has started. Condemns its older session.
    Register {
        /// Which node.
        node: NodeId,
        /// Its new life.
        session: SessionId,
    },
    /// `session` is over: no answer of it counts any more. Proposed by a leader that has waited its lease out.
    Fence {
        /// Which session.
        session: SessionId,
        /// The leadership that decided so.
        term: Term,
    },
    /// The ring of the next epoch.
    ChangeRing {
        /// One more than the current epoch.
        epoch: Epoch,
        /// Its members.
        members: Vec<NodeId>,
        /// The leadership that decided so.
        term: Term,
    },
    /// The holder has sealed `shard` and will give its state to `importer` and nobody else.
    Renounce {
        /// What.
        shard: ShardId,
        /// The holder.
        session: SessionId,
        /// The epoch under which the shard moves.
        epoch: Epoch,
        /// To whom.
        importer: SessionId,
    },
    /// `session` will answer for `shard` from now on.
    Claim {
        /// What.
        shard: ShardId,
        /// Who.
        session: SessionId,
        /// The epoch under which it is the owner.
        epoch: Epoch,
        /// With what state.
        basis: Basis,
    },
    /// All moves of `epoch` are over; the ring may change again.
    CloseChange {
        /// The epoch whose change it closes.
        epoch: Epoch,
        /// The leadership that decided so.
        term: Term,
    },
    /// `node` is a member no more, for ever.
    Remove {
        /// Which node.
        node: NodeId,
    },
    /// A step in the rotation of the cluster secret.
    Keyring(KeyringCommand),
    /// A command of the host, in its own encoding: at most [`crate::agreed::COMMAND_MAX`] bytes.
    Host(Arc<[u8]>),
}

/// What an entry brought about.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Effect {
    /// A folder has its number: a new one, or the one it has had.
    Admitted {
        /// Its number.
        node: NodeId,
    },
    /// A session has begun.
    Registered {
        /// Whose.
        node: NodeId,
        /// Which.
        session: SessionId,
    },
    /// A session gets no more renewals. The leader fences it after the wait.
    Condemned {
        /// Which.
        session: SessionId,
    },
    /// A session is over; its shards may start cold elsewhere.
    Fenced {
        /// Which.
        session: SessionId,
        /// Whose it was.
        node: NodeId,
    },
    /// There is a new ring, and moves to make.
    RingChanged {
        /// Its epoch.
        epoch: Epoch,
    },
    /// A shard waits for `importer`.
    Renounced {
        /// What.
        shard: ShardId,
        /// For whom.
        importer: SessionId,
    },
    /// A shard has a holder.
    Claimed {
        /// What.
        shard: ShardId,
        /// Who.
        session: SessionId,
        /// With what.
        basis: Basis,
    },
    /// The ring may change again.
    ChangeClosed {
        /// Whose change is closed.
        epoch: Epoch,
    },
    /// A number is retired.
    Removed {
        /// Which.
        node: NodeId,
    },
    /// The keys are no longer what they were.
    KeyringChanged,
    /// What the host's state answered to a command of its own.
    Host(Arc<[u8]>),
}

/// Why an entry changed nothing but the position and the log time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Rejection {
    /// The entry was applied before.
    #[error("entry {index} was applied before: nothing to do")]
    Repeated {
        /// Its index.
        index: LogIndex,
    },
    /// The decision is of another leadership than the entry.
    #[error("decided in term {decided}, committed in term {committed}: the new leader decides again")]
    OtherTerm {
        /// When it was decided.
        decided: Term,
        /// When it was committed.
        committed: Term,
    },
    /// The cluster has had members.
    #[error("this cluster has been founded: join it instead")]
    Founded,
    /// The entry's number was given to another node by an earlier command of it.
    #[error("entry {index} has given its number to a node: admit one new node per entry, and try again")]
    NumberGiven {
        /// The entry.
        index: LogIndex,
    },
    /// No such member.
    #[error("node {node} is not a member: join the cluster first")]
    NoSuchNode {
        /// Which.
        node: NodeId,
    },
    /// The folder was removed from the cluster.
    #[error(
        "this data folder was node {node}, which was removed for good: start with an empty folder to join again"
    )]
    RemovedIdentity {
        /// The number it had.
        node: NodeId,
    },
    /// Another folder is known at this address.
    #[error(
        "node {node} is known at {address}: if its disk is gone, remove it first (`tollgate cluster remove {node}`), then start again"
    )]
    AddressTaken {
        /// Where.
        address: String,
        /// Whose.
        node: NodeId,
    },
    /// The address is empty or too long.
    #[error("an address has 1 to {max} bytes, this one has {length}: advertise a shorter one", max = super::ADDRESS_MAX)]
    BadAddress {
        /// Its length in bytes.
        length: usize,
    },
    /// The cluster is full.
    #[error("the cluster has {max} nodes, the most it can have: remove one first", max = super::NODES_MAX)]
    Full,
    /// No such session, or forgotten.
    #[error("session {session} is not registered: register first")]
    NoSuchSession {
        /// Which.
        session: SessionId,
    },
    /// The session was registered before and is over, or belongs to another node.
    #[error("session {session} has been used: choose another nonce and register again")]
    SessionUsed {
        /// Which.
        session: SessionId,
    },
    /// The session is condemned or fenced.
    #[error("session {session} is over: register a new one")]
    SessionOver {
        /// Which.
        session: SessionId,
    },
    /// The command is of another epoch.
    #[error("made for epoch {theirs}, the ring is at epoch {ours}: look at the new ring and try again")]
    OtherEpoch {
        /// What the command names.
        theirs: Epoch,
        /// What holds.
        ours: Epoch,
    },
    /// A ring change is under way.
    #[error("the change to epoch {epoch} is not finished: wait for its moves")]
    ChangeOpen {
        /// Whose change.
        epoch: Epoch,
    },
    /// No ring change is under way.
    #[error("no ring change is open: nothing to close")]
    NoChangeOpen,
    /// A ring needs members, and other ones than now.
    #[error("the ring would be empty or as it is: name other members")]
    SameRing,
    /// A move is not over.
    #[error("shard {shard} has not reached its new owner: wait for it")]
    Moving {
        /// The first such shard.
        shard: ShardId,
    },
    /// The session is not the recorded holder.
    #[error("shard {shard} is not recorded as held by session {session}: it cannot renounce it")]
    NotHolder {
        /// What.
        shard: ShardId,
        /// Who.
        session: SessionId,
    },
    /// The session's node is not the owner in the ring.
    #[error(
        "shard {shard} belongs to another node in this epoch than that of session {session}: look at the ring"
    )]
    NotOwner {
        /// What.
        shard: ShardId,
        /// Who.
        session: SessionId,
    },
    /// The shard may not be taken over so.
    #[error(
        "shard {shard} cannot be claimed so: its last holder may still answer, or holds its state for another session"
    )]
    NotYours {
        /// What.
        shard: ShardId,
    },
    /// A node in the ring, or with a session that may still answer, cannot be removed.
    #[error(
        "node {node} is still in the ring or has a session that is not over: let it leave, or stop it and wait for its fence"
    )]
    InService {
        /// Which.
        node: NodeId,
    },
    /// A step of a key rotation was refused.
    #[error(transparent)]
    Keyring(#[from] KeyringRefusal),
}
