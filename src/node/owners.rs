//! The limiters of the shards that this node owns: all of them, while it is its own cluster.

use std::sync::{Arc, Mutex, MutexGuard};

use xxhash_rust::xxh3::xxh3_64;

use crate::limit::{
    Books, Decision, Expired, Limiter, Moment, Name, Options, Request, ReservationId, Resolution, Resolved,
    Rules, TenantView,
};

/// How many shards tenants are divided into.
pub const SHARDS: u16 = 1024;

/// The shard of a tenant: a function of its id alone, so that every node agrees.
#[must_use]
pub fn shard_of(tenant: &str) -> u16 {
    // The remainder is below SHARDS.
    (xxh3_64(tenant.as_bytes()) % u64::from(SHARDS)) as u16
}

/// A limiter per owned shard, each behind a lock of its own that is held for one command and never across an await.
pub struct Owners {
    shards: Box<[Mutex<Limiter>]>,
}

impl Owners {
    /// Limiters without state for every shard.
    #[must_use]
    pub fn new(options: Options, rules: &Arc<Rules>) -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::new(Limiter::new(options, rules.clone()))).collect() }
    }

    /// Puts a later version of the rules in force, shard by shard.
    pub fn apply(&self, rules: &Arc<Rules>) {
        for mut limiter in self.shards.iter().filter_map(lock) {
            limiter.apply(rules.clone());
        }
    }

    /// See [`Limiter::reserve`]. None when the shard cannot answer.
    pub fn reserve(&self, now: Moment, request: &Request<'_>) -> Option<Decision> {
        Some(self.limiter(request.tenant)?.reserve(now, request))
    }

    /// See [`Limiter::resolve`].
    pub fn resolve(&self, now: Moment, tenant: &str, id: ReservationId, resolution: Resolution) -> Resolved {
        self.limiter(tenant).map_or(Resolved::Unknown, |mut limiter| limiter.resolve(now, id, resolution))
    }

    /// See [`Limiter::tenant`].
    pub fn tenant(&self, now: Moment, tenant: &Name) -> Option<TenantView> {
        self.limiter(tenant)?.tenant(now, tenant)
    }

    /// See [`Limiter::handle_timeout`], for every shard whose time has come.
    pub fn handle_timeouts(&self, now: Moment) -> Vec<Expired> {
        let mut expired = Vec::new();
        for mut limiter in self.shards.iter().filter_map(lock) {
            if limiter.poll_timeout().is_some_and(|at| at <= now) {
                expired.extend(limiter.handle_timeout(now));
            }
        }
        expired
    }

    /// The books of all shards, as one.
    #[must_use]
    pub fn books(&self) -> Books {
        let limiters = self.shards.iter().filter_map(lock);
        limiters.fold(Books::default(), |books, limiter| books.plus(limiter.books()))
    }

    /// What the limiters hold in memory.
    #[must_use]
    pub fn held(&self) -> Held {
        let limiters = self.shards.iter().filter_map(lock);
        limiters.fold(Held::default(), |held, limiter| Held {
            open: held.open + limiter.open(),
            reservations: held.reservations + limiter.reservations_held(),
            tenants: held.tenants + limiter.tenants_held(),
        })
    }

    fn limiter(&self, tenant: &str) -> Option<MutexGuard<'_, Limiter>> {
        lock(&self.shards[usize::from(shard_of(tenant))])
    }
}

/// Entries in the limiters' maps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Reservations that have not ended.
    pub open: usize,
    /// Reservations, ended ones that are remembered among them.
    pub reservations: usize,
    /// Tenants with state.
    pub tenants: usize,
}

/// None for a limiter that broke an invariant: what it would answer could overspend, so its shard answers nothing any more and its
/// tenants are refused until the node restarts.
fn lock(shard: &Mutex<Limiter>) -> Option<MutexGuard<'_, Limiter>> {
    shard.lock().ok()
}
