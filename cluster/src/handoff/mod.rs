//! The handoff: how a shard's state moves from one session to another without ever being used twice.
//!
//! The old owner seals (answers nothing more), has its renunciation committed, and only then exports. The new owner
//! claims, with that state or cold, and serves only once its claim is committed. What they wait for is read from the applied
//! log, so a lost message or proposal is simply made again, and a late one finds nothing to change.
//!
//! ```text
//! old owner:  Serving → Sealed → Renounced (committed) → Exported, again and again → gone, once the claim is committed
//! new owner:  Waiting → Imported | ColdLegal → Claimed (committed) → Serving
//! ```
//!
//! Laws:
//! - a sealed shard never unseals: if the ring gives it back, it is handed over to its own session like to any other;
//! - an export names epoch, giver, importer session and the version it was made under; it is used by that session, once, and
//!   only where the log says that exactly this giver renounced to exactly this importer in that epoch;
//! - `resolved_once` for shards: of all claims on one renunciation the log accepts one, and a start is handed out once per claim;
//! - after a cold start, what depends on all open work waits until every session that was unfenced at the claim has announced its
//!   own to this very tenure, or is fenced. An import needs no announcement: the seal came after every debit, so the export
//!   holds all that is open.
//!
//! The payload is the host's and opaque. Never here: clocks, leases (the view combines them), the network.

mod incoming;
mod outgoing;
mod slot;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub use self::incoming::{ImportRefusal, Incoming, Serving};
pub use self::outgoing::{Outgoing, Progress};
pub use self::slot::{Change, NotServing, Slot};
use crate::id::{Epoch, SessionId, ShardId, Version};

/// A shard's sealed state on its way.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Export<P> {
    /// Of what.
    pub shard: ShardId,
    /// Under which ring it moves.
    pub epoch: Epoch,
    /// Who sealed it.
    pub from: SessionId,
    /// Who alone may use it.
    pub importer: SessionId,
    /// The version of the host's replicated state that it was made under. The importer must have applied it.
    pub version: Version,
    /// The state.
    pub payload: P,
}

/// What a session begins to serve a shard with.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Start<P> {
    /// Nobody ever held it: the host's state for what is new.
    First,
    /// The last holder's state.
    Imported(P),
    /// The last holder's state is lost: the host's state for what may have been used up, and nothing gained before now.
    Cold,
}

/// "I have adopted `holder` for this shard, take no answer of another any more, and have told it all that I hold open."
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Announcement {
    /// About what.
    pub shard: ShardId,
    /// The holder that was adopted.
    pub holder: SessionId,
    /// The epoch of that holder's claim: an announcement to an earlier tenure is none to this one.
    pub epoch: Epoch,
    /// Who announces.
    pub from: SessionId,
}
