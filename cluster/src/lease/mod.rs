//! The lease: the right of one node session to answer for its shards until an instant on its own clock.
//!
//! A node asks the leader every quarter of a lease ([`Holder`]); the leader answers what a quorum backs ([`Grantor`]). No
//! log entry is written. A session that must go is condemned: it gets no more renewals, and once the last it can have
//! has run out on every clock, the leader commits its fence.
//!
//! Laws:
//! - `one_owner`: an instant at which a session's lease is valid comes before any instant at which its fence may be proposed;
//! - a holder counts from when it *sent* the request, `L/(1+ρ)` on its clock; a grantor waits `L·(1+ρ)` on its own, from the
//!   later of the last grant and the condemnation;
//! - a renewal is granted only by a leader that confirmed itself with a quorum by a round that *began* after the renewal arrived
//!   (ReadIndex, Ongaro's thesis §6.4); one round serves all that wait;
//! - term and condemnation are checked, and the grant is stamped, before the answer leaves, all in one step;
//! - a new leader knows no grant of its predecessors and waits from its own first applied entry;
//! - a holder takes no answer to another session, to a request it did not make, or older than one it took;
//! - a node whose disk or shard tasks stand still does not renew;
//! - a lease counts only once what was committed when it was granted is applied here.
//!
//! Never here: clocks, the network, the log; who deserves to be condemned (the host decides, on what gossip says).

mod grantor;
mod holder;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub use self::grantor::{Confirmation, Grantor};
pub use self::holder::{Holder, Ignored, LeaseRefusal, Progress, Turn};
use crate::id::{Epoch, SessionId, Version};
use crate::mutant;
use crate::time::{Drift, RHO, Span};

/// The lengths that holder and grantor agree on. The same on every node of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Timing {
    /// The length of a lease, L.
    pub lease: Span,
    /// How far clocks may drift, ρ.
    pub drift: Drift,
}

impl Timing {
    /// Three seconds: it outlasts an election (about one second), and a dead owner is replaced within five.
    pub const DEFAULT: Self = Self { lease: Span::from_millis(3000), drift: RHO };

    /// How long a holder may count on a grant, from when it asked.
    #[must_use]
    pub const fn held(self) -> Span {
        self.drift.shortened(self.lease)
    }

    /// How long a grantor waits until a grant is over for certain.
    #[must_use]
    pub const fn waited(self) -> Span {
        self.drift.lengthened(self.lease)
    }

    /// How often a lease is renewed: two lost in a row are no harm.
    #[must_use]
    pub const fn renewal(self) -> Span {
        self.lease.divided(4)
    }
}

/// A request for a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Renewal {
    /// Who asks.
    pub session: SessionId,
    /// Its how-manieth request this is, from 1.
    pub sequence: u64,
}

/// The answer to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Reply {
    /// Who asked.
    pub session: SessionId,
    /// Which request this answers.
    pub sequence: u64,
    /// The answer.
    pub answer: Answer,
}

/// What a leader answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Answer {
    /// The lease runs from when the request was sent, once this is applied.
    Granted(Required),
    /// It does not.
    Refused(RenewalRefusal),
}

/// What a node must have applied before a lease counts: what was committed when it was granted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Required {
    /// The version of what the host replicates.
    pub version: Version,
    /// The ring's.
    pub epoch: Epoch,
}

impl Required {
    /// Whether who has applied `applied` has applied this.
    #[must_use]
    pub fn is_met_by(self, applied: Self) -> bool {
        let version = self.version <= applied.version || mutant::is("old_version_answers");
        version && self.epoch <= applied.epoch
    }
}

/// Why there is no lease.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, thiserror::Error,
)]
pub enum RenewalRefusal {
    /// The asked node does not lead (any more).
    #[error("the asked node is not the leader: ask the leader")]
    NotLeading,
    /// The session is not registered, or over.
    #[error("the session is not registered: register a new one")]
    Unknown,
    /// The session must go.
    #[error("the session is condemned: stop answering and register a new one")]
    Condemned,
}
