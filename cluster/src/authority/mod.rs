//! The replicated state: who is a member, which session of it lives, who holds each shard. Raft agrees on the log; this
//! is what the log means. (state, position, stamp, command) → effects or a rejection.
//!
//! Laws:
//! - deterministic: the same log gives the same value on every node; an entry that was applied before changes nothing;
//!   a snapshot and the entries after it give what the whole log gives;
//! - a rejected entry changes nothing but the position and log time;
//! - a decision that a leader computed is void in any other term;
//! - a number is the index of its admission, so it is never given twice; a removed folder never comes back;
//! - registering condemns the node's older session, it does not end it: only a fence does;
//! - a shard has one recorded holder, or is renounced to one importer, or was never held. It changes hands only by a claim
//!   whose predecessor cannot answer any more: it renounced, or it is fenced;
//! - one ring change at a time. A change whose new owner died can still be closed, or nobody could replace it;
//! - log time never goes back;
//! - everything is bounded: [`NODES_MAX`] members, [`ENDED_MAX`] ended sessions per node, [`REMOVED_MAX`] removed folders.
//!
//! Never here: clocks, randomness, what a node believes of another, floats, iteration over a hash map.

mod apply;
mod command;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use self::apply::{FOUNDER, Outcome};
pub use self::command::{Basis, Command, Effect, Position, Rejection};
use crate::id::{ClusterId, Epoch, Identity, LogIndex, NodeId, SessionId, ShardId};
use crate::keyring::Keyring;
use crate::log_time::LogTime;
use crate::ring::Ring;

/// The most members. Beside memory it bounds renewals per leader and re-announcements per cold start.
pub const NODES_MAX: usize = 256;

/// The longest address: a domain name of 253 bytes (RFC 1035 §2.3.4), a colon and a port.
pub const ADDRESS_MAX: usize = 259;

/// How many ended sessions of a node are remembered beside those that a shard still names. They only recognise a late
/// duplicate of a registration, and none survives 64 restarts in a queue.
pub const ENDED_MAX: usize = 64;

/// As [`ENDED_MAX`], of a node that is removed. Removing it must not make its last lives unknown: a shard that is on its way then,
/// or a node that lags, has yet to end what they left open.
pub const ENDED_REMOVED_MAX: usize = 2;

/// How many removed folders are remembered, those of the highest numbers. A folder knows itself that it ever joined; this only words the refusal
/// where its own note is gone.
pub const REMOVED_MAX: usize = 4096;

/// The replicated state. Cheap to clone: what entries of the host leave as it is, is shared.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Authority {
    cluster: ClusterId,
    applied: Option<LogIndex>,
    log_time: LogTime,
    nodes: Arc<BTreeMap<NodeId, Member>>,
    removed: Arc<BTreeMap<NodeId, Identity>>,
    sessions: Arc<BTreeMap<SessionId, Session>>,
    ring: Ring,
    change_open: bool,
    /// Shards that were ever held.
    holdings: Arc<BTreeMap<ShardId, Holding>>,
    keyring: Arc<Keyring>,
}

/// A member of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Member {
    /// Its data folder.
    pub identity: Identity,
    /// Where peers reach it.
    pub address: String,
    /// Its newest session, unless that is fenced.
    pub session: Option<SessionId>,
}

/// One life of a node process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Session {
    /// Whose.
    pub node: NodeId,
    /// The index of its registration.
    pub registered: LogIndex,
    /// Whether it may still do anything.
    pub standing: Standing,
}

/// How far a session is from its end. It only ever moves down this list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Standing {
    /// It gets leases and may claim.
    Serving,
    /// It gets no more leases; one that it has may still run.
    Condemned,
    /// It has no lease and never will.
    Fenced,
}

/// Who has a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Holding {
    /// `session` answers for it, while it has a lease.
    Held {
        /// Who.
        session: SessionId,
        /// The epoch of its claim.
        epoch: Epoch,
        /// What it began with.
        basis: Basis,
    },
    /// Nobody answers for it; its state is on the way.
    Renounced {
        /// Who held it.
        from: SessionId,
        /// The epoch under which it moves.
        epoch: Epoch,
        /// The only session that may use the state.
        importer: SessionId,
    },
}

impl Authority {
    /// The state before the first entry of `cluster`'s log.
    #[must_use]
    pub fn new(cluster: ClusterId) -> Self {
        Self {
            cluster,
            applied: None,
            log_time: LogTime::default(),
            nodes: Arc::default(),
            removed: Arc::default(),
            sessions: Arc::default(),
            ring: Ring::new(Epoch::default(), []),
            change_open: false,
            holdings: Arc::default(),
            keyring: Arc::default(),
        }
    }

    /// Which cluster's state this is.
    #[must_use]
    pub const fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// The last entry applied.
    #[must_use]
    pub const fn applied(&self) -> Option<LogIndex> {
        self.applied
    }

    /// Whether the entries between the two changed nothing here but the place in the log and its time, as those of the host do.
    #[must_use]
    pub fn is_but_later(&self, before: &Self) -> bool {
        // What is shared is compared by its address.
        let place = Self { applied: before.applied, log_time: before.log_time, ..self.clone() };
        place == *before
    }

    /// The log time of the last entry applied.
    #[must_use]
    pub const fn log_time(&self) -> LogTime {
        self.log_time
    }

    /// The members, by number.
    #[must_use]
    pub fn nodes(&self) -> &BTreeMap<NodeId, Member> {
        &self.nodes
    }

    /// The number of the member whose data folder is `identity`.
    #[must_use]
    pub fn node_of(&self, identity: Identity) -> Option<NodeId> {
        self.nodes.iter().find(|(_, member)| member.identity == identity).map(|(&node, _)| node)
    }

    /// Whether `node` was a member and is removed, as far as that is remembered. One whose admission is not applied here yet is not.
    #[must_use]
    pub fn is_removed(&self, node: NodeId) -> bool {
        self.removed.contains_key(&node)
    }

    /// The number that the removed member had whose data folder is `identity`, as far as that is remembered. It never comes back, so
    /// any log that says so is right, however old.
    #[must_use]
    pub fn removed_as(&self, identity: Identity) -> Option<NodeId> {
        self.removed.iter().find(|&(_, &removed)| removed == identity).map(|(&node, _)| node)
    }

    /// The ring.
    #[must_use]
    pub const fn ring(&self) -> &Ring {
        &self.ring
    }

    /// The ring's version.
    #[must_use]
    pub const fn epoch(&self) -> Epoch {
        self.ring.epoch()
    }

    /// Whether moves of the current epoch may be under way.
    #[must_use]
    pub const fn is_changing(&self) -> bool {
        self.change_open
    }

    /// The secret's rotation.
    #[must_use]
    pub fn keyring(&self) -> &Keyring {
        &self.keyring
    }

    /// A session that is known: it lives, a shard names it, or it ended not long ago.
    #[must_use]
    pub fn session(&self, session: SessionId) -> Option<Session> {
        self.sessions.get(&session).copied()
    }

    /// Every session that is not fenced: each may still hold a lease.
    pub fn unfenced(&self) -> impl Iterator<Item = (SessionId, Session)> {
        self.sessions
            .iter()
            .filter(|(_, session)| session.standing < Standing::Fenced)
            .map(|(&id, &session)| (id, session))
    }

    /// Every session that is known to be over, in order of their names.
    pub fn ended(&self) -> impl Iterator<Item = SessionId> {
        self.sessions.iter().filter(|(_, session)| session.standing == Standing::Fenced).map(|(&id, _)| id)
    }

    /// Whether `session` is known to be over. What is not known is not known to be over.
    #[must_use]
    pub fn is_fenced(&self, session: SessionId) -> bool {
        self.standing(session) == Some(Standing::Fenced)
    }

    /// How far `session` is from its end.
    #[must_use]
    pub fn standing(&self, session: SessionId) -> Option<Standing> {
        self.sessions.get(&session).map(|known| known.standing)
    }

    /// The session of `node` that may claim, if it has one.
    #[must_use]
    pub fn serving(&self, node: NodeId) -> Option<SessionId> {
        let session = self.nodes.get(&node)?.session?;
        (self.standing(session) == Some(Standing::Serving)).then_some(session)
    }

    /// Who has `shard`; `None` when nobody ever held it.
    #[must_use]
    pub fn holding(&self, shard: ShardId) -> Option<Holding> {
        self.holdings.get(&shard).copied()
    }

    /// The session that started `shard` cold and holds it, and the epoch of its claim.
    #[must_use]
    pub fn cold_tenure(&self, shard: ShardId) -> Option<(SessionId, Epoch)> {
        match self.holding(shard)? {
            Holding::Held { session, epoch, basis: Basis::Cold } => Some((session, epoch)),
            _ => None,
        }
    }

    /// The shards that were started cold and are held, in order: each with its [`Authority::cold_tenure`].
    pub fn cold_tenures(&self) -> impl Iterator<Item = (ShardId, SessionId, Epoch)> {
        let cold = |shard: ShardId| self.cold_tenure(shard).map(|(session, epoch)| (shard, session, epoch));
        self.holdings.keys().filter_map(move |shard| cold(*shard))
    }

    /// Whom to ask about `shard` now: its recorded holder. `None` while it has none.
    #[must_use]
    pub fn holder(&self, shard: ShardId) -> Option<(NodeId, SessionId)> {
        let Some(Holding::Held { session, .. }) = self.holding(shard) else { return None };
        Some((self.sessions.get(&session)?.node, session))
    }

    /// Whether any shard names `session`: it holds it, has renounced it, or is to import it.
    #[must_use]
    pub fn holds(&self, session: SessionId) -> bool {
        self.holdings.values().any(|holding| match *holding {
            Holding::Held { session: holder, .. } => holder == session,
            Holding::Renounced { from, importer, .. } => from == session || importer == session,
        })
    }

    /// How many shards each session is recorded to hold.
    #[must_use]
    pub fn shares(&self) -> BTreeMap<SessionId, usize> {
        let mut shares = BTreeMap::new();
        for holding in self.holdings.values() {
            if let Holding::Held { session, .. } = *holding {
                *shares.entry(session).or_default() += 1;
            }
        }
        shares
    }

    /// Whether `session` may take `shard` over with `basis`, as far as the last holder is concerned.
    ///
    /// A cold start is legal when the recorded holder is fenced, or the shard is renounced and the session its export names
    /// is fenced. One case more: the importer itself, when the renouncer is fenced. The export is lost with its maker
    /// unless it has arrived, nobody else could use it, and this claim voids it: else the shard would wait until a node that
    /// is well is fenced.
    #[must_use]
    pub fn may_start(&self, shard: ShardId, session: SessionId, basis: Basis) -> bool {
        match (basis, self.holding(shard)) {
            (Basis::First, None) => true,
            (Basis::Import, Some(Holding::Renounced { importer, epoch, .. })) => {
                importer == session && epoch == self.epoch()
            }
            (Basis::Cold, Some(Holding::Held { session: last, .. })) => self.is_fenced(last),
            (Basis::Cold, Some(Holding::Renounced { from, importer, .. })) => {
                self.is_fenced(importer) || (importer == session && self.is_fenced(from))
            }
            _ => false,
        }
    }

    /// The shards that are still on their way: held by another node's session, or nobody's, though the ring's owner has a session
    /// to take them. In order. One that nobody ever held is not among them: there is nothing to move.
    pub fn moving(&self) -> impl Iterator<Item = ShardId> {
        self.holdings.keys().copied().filter(|&shard| {
            self.ring.owner(shard).is_some_and(|owner| {
                let arrived = self.holder(shard).is_some_and(|(node, _)| node == owner);
                !arrived && self.nodes.get(&owner).is_some_and(|member| member.session.is_some())
            })
        })
    }

    fn live_nodes(&self) -> BTreeSet<NodeId> {
        self.unfenced().map(|(_, session)| session.node).collect()
    }
}
