//! What this gateway holds open, by shard: each reservation from before its admission is believed until its owner has acknowledged
//! its end. A holder that begins cold learns of it from here.
//!
//! An entry is made before the asked holder is looked at once more: so who adopts a new holder and then collects what is open
//! either finds the entry, or the look finds the new holder.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashbrown::HashMap;
use tollgate_cluster::id::ShardId;

use super::Principal;
use crate::limit::{Amount, Announced, IdempotencyDigest, Moment, Name, Paid, ReservationId, UserDigest};

/// The most reservations that one gateway holds open: as many as one owner would take from it.
pub const MOST: usize = 1_000_000;

/// A reservation that is open.
#[derive(Clone, Debug)]
pub struct Held {
    /// Who asked.
    pub principal: Arc<Principal>,
    /// The end user.
    pub user: Option<UserDigest>,
    /// The resolved model.
    pub model: Name,
    /// The estimate.
    pub amount: Amount,
    /// When its owner closes it.
    pub deadline: Moment,
    /// The caller's idempotency key.
    pub idempotency: Option<IdempotencyDigest>,
    /// What it took from its owner's purses.
    pub paid: Option<Box<Paid>>,
}

impl Held {
    /// As its owner is told of it.
    #[must_use]
    pub fn announce(&self, id: ReservationId, now: Moment) -> Announced {
        Announced {
            id,
            tenant: self.principal.tenant.clone(),
            key: self.principal.key.clone(),
            user: self.user,
            project: self.principal.project.clone(),
            model: self.model.clone(),
            held: self.amount,
            remaining: self.deadline.since(now),
            idempotency: self.idempotency,
            paid: self.paid.clone(),
        }
    }
}

/// Everything that is open.
pub struct Open {
    shards: Box<[Mutex<HashMap<ReservationId, Held>>]>,
    count: AtomicUsize,
}

impl Open {
    /// Nothing.
    #[must_use]
    pub fn new() -> Self {
        let shards = ShardId::all().map(|_| Mutex::default()).collect();
        Self { shards, count: AtomicUsize::new(0) }
    }

    /// Enters a reservation. Whether there was room.
    #[must_use]
    pub fn add(&self, shard: ShardId, id: ReservationId, held: Held) -> bool {
        if self.count.load(Ordering::Relaxed) >= MOST {
            return false;
        }
        if self.shard(shard).insert(id, held).is_none() {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
        true
    }

    /// It is over, and its owner knows.
    pub fn remove(&self, shard: ShardId, id: ReservationId) {
        if self.shard(shard).remove(&id).is_some() {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// All that is open under `shard`, by id.
    #[must_use]
    pub fn announce(&self, shard: ShardId, now: Moment) -> Vec<Announced> {
        let mut open: Vec<Announced> =
            self.shard(shard).iter().map(|(id, held)| held.announce(*id, now)).collect();
        open.sort_unstable_by_key(|open| open.id);
        open
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn shard(&self, shard: ShardId) -> MutexGuard<'_, HashMap<ReservationId, Held>> {
        self.shards[usize::from(shard.number())].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Open {
    fn default() -> Self {
        Self::new()
    }
}
