//! What members say to each other. Each kind has a number on the wire that is never used for anything else.

use serde::{Deserialize, Serialize};

use crate::authority::{Command, Effect};
use crate::handoff::{Announcement, Export};
use crate::id::{ClusterId, Identity, NodeId, SessionId, Version};
use crate::keyring::KeyId;
use crate::lease::{Renewal, Reply};
use crate::shards::Payload;

/// The kinds of calls. Those of Raft have numbers from [`kind::RAFT`] on.
pub mod kind {
    /// The host's own question, answered by the holder of a shard.
    pub const HOST: u8 = 1;
    /// `Join`: a folder asks to be admitted.
    pub const JOIN: u8 = 2;
    /// `Propose`: commands for the log.
    pub const PROPOSE: u8 = 3;
    /// `Renew`: a session asks for its lease.
    pub const RENEW: u8 = 4;
    /// A sealed shard.
    pub const EXPORT: u8 = 5;
    /// What a gateway holds open.
    pub const ANNOUNCE: u8 = 6;
    /// `Leave`: a node wants to hand over.
    pub const LEAVE: u8 = 7;
    /// The cluster as the leader sees it.
    pub const STATUS: u8 = 8;
    /// A new key of the cluster's secret.
    pub const KEY: u8 = 9;
    /// `InForce`: a session says what its host has in force.
    pub const IN_FORCE: u8 = 10;
    /// The host's own question, answered at leisure.
    pub const LOOK_UP: u8 = 11;
    /// The first kind of Raft's.
    pub const RAFT: u8 = 64;
}

/// "Admit me": to any member, which asks the leader.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Join {
    /// The folder that wants to join.
    pub identity: Identity,
    /// Where peers reach it.
    pub address: String,
}

/// The answer to [`Join`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Joined {
    /// It is a member.
    Admitted {
        /// Of which cluster.
        cluster: ClusterId,
        /// Its number.
        node: NodeId,
    },
    /// It is not, and asking again will not help unless somebody does something: why, in words.
    Refused(String),
    /// Not now: ask again.
    Later(String),
    /// It was a member, and is removed for ever.
    Removed {
        /// The number that it had.
        node: NodeId,
    },
}

/// "Have this committed": to the leader.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Propose {
    /// What, in order.
    pub commands: Vec<Command>,
}

/// The answer to [`Propose`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Proposed {
    /// Committed and applied; of each command what came of it, a rejection in words.
    Committed(Vec<Result<Vec<Effect>, String>>),
    /// The asked node does not lead; perhaps this one does.
    NotLeader(Option<NodeId>),
    /// It may or may not be committed one day.
    Unknown(String),
}

/// "Renew my lease": to the leader.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Renew {
    /// Whose, and which request it is.
    pub renewal: Renewal,
    /// What the asking node's wall clock read, in milliseconds since 1970. Nothing about the lease rests on it.
    pub wall_millis: u64,
}

/// The answer to a renewal: nothing when the leader could not confirm itself.
pub type Renewed = Option<Reply>;

/// A sealed shard on its way.
pub type Exported = Export<Payload>;

/// The answer to an export: whether the importer has it now.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Taken(pub bool);

/// What a gateway holds open, for a holder that started cold: told to it, or to another member that passes it on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Announce {
    /// Whose shards these are.
    pub to: NodeId,
    /// For each shard, to its holder.
    pub shards: Vec<(Announcement, Payload)>,
}

/// The answer to [`Announce`]: of each shard, whether it was heard in the tenure that was meant.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Heard(pub Vec<bool>);

/// "I want to hand over": to the leader, again and again until it is done.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Leave {
    /// Who.
    pub session: SessionId,
    /// Whether its node is to be removed from the cluster afterwards, for ever.
    pub for_good: bool,
}

/// The answer to `Leave`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Leaving {
    /// Its shards go to others.
    Noted,
    /// The node is not a member any more.
    Forgotten,
    /// There is nobody who could take them.
    NoHeir,
    /// The asked node does not lead.
    NotLeader,
}

/// "My host has this in force": to the leader, whenever either changes. What was said before is not unsaid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InForce {
    /// Who.
    pub session: SessionId,
    /// The host's version.
    pub version: Version,
}

/// The answer to [`InForce`]: whether a leader has taken note.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Noted(pub bool);

/// A key of the cluster's secret, for a node to hold.
#[derive(Clone, Serialize, Deserialize)]
pub struct Key {
    /// Its bytes.
    pub secret: Vec<u8>,
}

/// The answer to [`Key`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Held(pub KeyId);
