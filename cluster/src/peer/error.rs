//! What can go wrong between two nodes, in sentences for the person who has to put it right.

use std::time::Duration;

use crate::id::{ClusterId, Identity};
use crate::keyring::KeyId;
use crate::peer::frame::Bad;

/// Why there is no connection to a peer. `at` is the address that was dialled, or from where the peer did.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The name does not resolve.
    #[error(
        "{at} does not resolve: {why}. Check the name in --join or --advertise, and the resolver of this machine"
    )]
    Name {
        /// Where.
        at: String,
        /// What the resolver said.
        why: String,
    },
    /// Nobody answers.
    #[error(
        "nobody answers at {at}: {why}. Check that the node runs, and that its --peer port is open from here"
    )]
    Absent {
        /// Where.
        at: String,
        /// What the system said.
        why: String,
    },
    /// It answers, and then says nothing.
    #[error(
        "{at} takes connections but does not say who it is. Is a node's --peer port behind it? It may also be stalled"
    )]
    Silent {
        /// Where.
        at: String,
    },
    /// It takes longer than there was time.
    #[error("no connection to {at} within {within:?}; the attempt goes on")]
    Slow {
        /// Where.
        at: String,
        /// How long there was.
        within: Duration,
    },
    /// The connection broke before it could be used.
    #[error("the connection to {at} was lost while it began: {why}")]
    Lost {
        /// Where.
        at: String,
        /// What the system said.
        why: String,
    },
    /// Something else answers.
    #[error("what answers at {at} is not a node's --peer port: check the address and the port")]
    NotAPeer {
        /// Where.
        at: String,
    },
    /// It does not hold our secret.
    #[error(
        "{at} does not hold the cluster secret {key} that this node uses: give both the same --secret-file, or finish the \
         rotation on it (`tollgate cluster keyring`)"
    )]
    UnknownKey {
        /// Where.
        at: String,
        /// The fingerprint of the secret.
        key: KeyId,
    },
    /// We do not hold its secret.
    #[error(
        "{at} uses the cluster secret {key}, which this node does not hold: give both the same --secret-file, or finish the \
         rotation on this node (`tollgate cluster keyring`)"
    )]
    ForeignKey {
        /// Where.
        at: String,
        /// The fingerprint of the secret.
        key: KeyId,
    },
    /// It names the secret and cannot prove that it holds it.
    #[error(
        "{at} could not prove that it holds the cluster secret {key}: something between the two nodes changes what they \
         send, or pretends to be a node"
    )]
    BadProof {
        /// Where.
        at: String,
        /// The fingerprint of the secret.
        key: KeyId,
    },
    /// No wire version in common.
    #[error("{at} and this node (wire versions {} to {}) have no wire version in common: upgrade the older one first to a release between the two", ours.0, ours.1)]
    Wire {
        /// Where.
        at: String,
        /// What this node speaks.
        ours: (u16, u16),
    },
    /// It belongs to another cluster.
    #[error(
        "{at} belongs to cluster {theirs} and this node to {ours}: correct --join, or start this node with the data folder of \
         that cluster or with an empty one"
    )]
    OtherCluster {
        /// Where.
        at: String,
        /// Its cluster.
        theirs: ClusterId,
        /// This node's.
        ours: ClusterId,
    },
    /// It is this very process.
    #[error("{at} is this node itself: --join needs the address of another one")]
    Itself {
        /// Where.
        at: String,
    },
    /// It runs on a copy of this node's data folder.
    #[error(
        "{at} has the same identity {identity} as this node: one data folder was copied. Stop one of the two and give it an \
         empty --data"
    )]
    Twin {
        /// Where.
        at: String,
        /// The identity of both.
        identity: Identity,
    },
    /// Another node has this address now.
    #[error(
        "{at} is node {found}, not {expected}: the address was given to another node, or the node's data folder was wiped. \
         Correct --advertise, or remove the old node (`tollgate cluster remove`)"
    )]
    OtherIdentity {
        /// Where.
        at: String,
        /// Who should be there.
        expected: Identity,
        /// Who is.
        found: Identity,
    },
    /// It speaks, but not this language.
    #[error("{at} holds the cluster secret and sent {why}: are both nodes of the same release?")]
    Malformed {
        /// Where.
        at: String,
        /// What.
        why: Bad,
    },
    /// A bound.
    #[error(
        "this node has connections to {0} peers, which is its bound: {at} has to wait",
        crate::peer::PEERS_MAX
    )]
    Full {
        /// Where.
        at: String,
    },
    /// This node is going.
    #[error("this node is shutting down")]
    Closing,
}

impl ConnectError {
    /// One word for it, to count by.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Name { .. } => "name",
            Self::Absent { .. } => "absent",
            Self::Silent { .. } => "silent",
            Self::Slow { .. } => "slow",
            Self::Lost { .. } => "lost",
            Self::NotAPeer { .. } => "not_a_peer",
            Self::UnknownKey { .. } => "unknown_key",
            Self::ForeignKey { .. } => "foreign_key",
            Self::BadProof { .. } => "bad_proof",
            Self::Wire { .. } => "wire",
            Self::OtherCluster { .. } => "other_cluster",
            Self::Itself { .. } => "itself",
            Self::Twin { .. } => "twin",
            Self::OtherIdentity { .. } => "other_identity",
            Self::Malformed { .. } => "malformed",
            Self::Full { .. } => "full",
            Self::Closing => "closing",
        }
    }

    /// Whether it may be gone at the next attempt without anybody doing anything: not worth a warning each time.
    #[must_use]
    pub const fn may_pass(&self) -> bool {
        matches!(
            self,
            Self::Absent { .. }
                | Self::Silent { .. }
                | Self::Slow { .. }
                | Self::Lost { .. }
                | Self::Name { .. }
                | Self::Closing
        )
    }
}

/// Why a call has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// Certainly not sent.
    #[error("not sent: {0}")]
    Unreachable(String),
    /// It may have happened.
    #[error("sent, and no answer: {0}. It may have happened")]
    Unknown(String),
    /// Certainly not done.
    #[error("not done: {0}")]
    Refused(Busy),
}

/// Whose bound a call met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Busy {
    /// This node's.
    #[error("too many calls to this peer wait for their answers")]
    Here,
    /// The peer's.
    #[error("the peer answers too many calls at once")]
    There,
}
