//! The limiters of the shards that this node serves: all of them, while it is its own cluster.

use std::sync::Arc;

use tollgate_cluster::id::{Epoch, SessionId, ShardId};
use tollgate_cluster::shards::Shards;
use xxhash_rust::xxh3::xxh3_64;

use super::tenants::{Tenants, moment};
use crate::limit::{
    Books, Decision, Denial, Expired, Moment, Name, Request, ReservationId, Resolution, Resolved, Rules,
    TenantView,
};

pub use tollgate_cluster::id::SHARDS;

/// The shard of a tenant: a function of its id alone, so that every node agrees.
#[must_use]
pub fn shard_of(tenant: &str) -> ShardId {
    ShardId::of_hash(xxh3_64(tenant.as_bytes()))
}

/// A limiter per served shard, each behind a lock of its own that is held for one command and never across an await.
pub struct Owners {
    shards: Arc<Shards<Tenants>>,
}

/// Whom a node that is its own cluster asks: the arguments are not looked at.
const ALONE: (Epoch, SessionId) = (Epoch(0), SessionId(0));

impl Owners {
    /// The limiters in `shards`.
    #[must_use]
    pub const fn new(shards: Arc<Shards<Tenants>>) -> Self {
        Self { shards }
    }

    /// The shards.
    #[must_use]
    pub const fn shards(&self) -> &Arc<Shards<Tenants>> {
        &self.shards
    }

    /// Puts a later version of the rules in force, shard by shard: first for those that begin from now on, so that none is missed.
    pub fn apply(&self, rules: &Arc<Rules>) {
        self.shards.host().follow(rules);
        self.shards.look_at_all(|_, limiter, _| limiter.apply(rules.clone()));
    }

    /// See [`crate::limit::Limiter::reserve`], for a node that is its own cluster. None when the shard cannot answer.
    pub(super) fn reserve_alone(&self, life: SessionId, request: &Request<'_>) -> Option<(Decision, Moment)> {
        let (epoch, session) = ALONE;
        let mut hand = self.shards.host().escrow().hand(life);
        let decided =
            self.shards.decide(shard_of(request.tenant), epoch, session, |limiter, now, complete| {
                (limiter.reserve_paid(moment(now), request, complete, &mut hand), moment(now))
            });
        decided.ok()
    }

    /// See [`crate::limit::Limiter::attempt`], for a node that is its own cluster.
    pub(super) fn attempt_alone(
        &self,
        life: SessionId,
        tenant: &str,
        id: ReservationId,
        attempt: u32,
    ) -> Result<(), Denial> {
        let (epoch, session) = ALONE;
        let mut hand = self.shards.host().escrow().hand(life);
        let decided = self.shards.decide(shard_of(tenant), epoch, session, |limiter, now, _| {
            limiter.attempt(moment(now), id, attempt, &mut hand)
        });
        decided.unwrap_or(Err(Denial::Unavailable))
    }

    /// See [`crate::limit::Limiter::resolve`], for a node that is its own cluster.
    pub(super) fn resolve_alone(
        &self,
        life: SessionId,
        tenant: &str,
        id: ReservationId,
        how: Resolution,
    ) -> Resolved {
        let (epoch, session) = ALONE;
        let mut hand = self.shards.host().escrow().hand(life);
        let decided = self.shards.decide(shard_of(tenant), epoch, session, |limiter, now, _| {
            limiter.resolve_paid(moment(now), id, how, &mut hand)
        });
        decided.unwrap_or(Resolved::Unknown)
    }

    /// See [`crate::limit::Limiter::tenant`]. None when it is not served here.
    pub fn tenant(&self, tenant: &Name) -> Option<TenantView> {
        self.shards.look(shard_of(tenant), |limiter, now| limiter.tenant(moment(now), tenant)).flatten()
    }

    /// See [`crate::limit::Limiter::handle_timeout`], for every shard whose time has come.
    pub fn handle_timeouts(&self) -> Vec<Expired> {
        let expired = self.shards.look_at_all(|_, limiter, now| {
            let now = moment(now);
            let due = limiter.poll_timeout().is_some_and(|at| at <= now);
            if due { limiter.handle_timeout(now) } else { Vec::new() }
        });
        expired.into_iter().flatten().collect()
    }

    /// The books of all shards, as one.
    #[must_use]
    pub fn books(&self) -> Books {
        let books = self.shards.look_at_all(|_, limiter, _| limiter.books());
        books.into_iter().fold(Books::default(), Books::plus)
    }

    /// What the limiters hold in memory.
    #[must_use]
    pub fn held(&self) -> Held {
        let held = self.shards.look_at_all(|_, limiter, _| Held {
            open: limiter.open(),
            reservations: limiter.reservations_held(),
            tenants: limiter.tenants_held(),
            users: limiter.users_held(),
        });
        held.into_iter().fold(Held::default(), |all, one| Held {
            open: all.open + one.open,
            reservations: all.reservations + one.reservations,
            tenants: all.tenants + one.tenants,
            users: all.users + one.users,
        })
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
    /// End users with buckets of their own.
    pub users: usize,
}
