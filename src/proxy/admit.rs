//! Admission of a request that was counted, and what comes of it when a budget is used up: what the policy says of that budget.
//!
//! | `on_exhausted` | |
//! |---|---|
//! | `refuse` | it is refused until the period ends |
//! | `degrade` | it is counted and admitted anew for the cheaper model that the policy names: under that model's limits, at its price and from its pool, as far beyond the budget as `degrade_limit` goes. The answer says so |
//! | `queue` | it is refused as deferred: nothing waits here |
//!
//! Law: without such a policy no request goes to a model that its caller did not ask for.

use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;

use super::counted::Counted;
use super::pipeline::{Edge, Target};
use super::reject::Rejection;
use crate::limit::{IdempotencyDigest, Lane, ReservationId, UserDigest};
use crate::node::{Asking, Guard, Principal, Reserved, Snapshot};
use crate::policy::OnExhausted;

/// Who wants what.
pub(super) struct Wish<'a> {
    pub id: ReservationId,
    pub snapshot: &'a Arc<Snapshot>,
    pub principal: &'a Arc<Principal>,
    pub target: &'a Arc<Target>,
    pub parts: &'a Parts,
    pub body: &'a Bytes,
    pub user: Option<UserDigest>,
    pub idempotency: Option<IdempotencyDigest>,
}

/// What is admitted.
pub(super) struct Admitted {
    pub counted: Counted,
    pub guard: Guard,
    /// It goes to a cheaper model than was asked for.
    pub degraded: bool,
}

impl Wish<'_> {
    fn asking<'a>(&'a self, counted: &'a Counted, lane: Lane) -> Asking<'a> {
        Asking {
            id: self.id,
            principal: self.principal,
            endpoint: self.target.endpoint,
            user: self.user,
            model_asked: &counted.model_asked,
            model: &counted.model,
            provider: &counted.upstream.name,
            estimate: counted.estimate,
            idempotency: self.idempotency,
            lane,
        }
    }
}

impl Edge {
    /// Reserves what `counted` needs, or what the cheaper model does.
    pub(super) async fn admit(
        self: &Arc<Self>,
        wish: Wish<'_>,
        counted: Counted,
    ) -> Result<Admitted, Rejection> {
        let (denial, levels) = match self.node.reserve(wish.asking(&counted, Lane::Regular)).await {
            Reserved::Held(guard) => return Ok(Admitted { counted, guard, degraded: false }),
            Reserved::Denied(denial, levels) => (denial, levels),
        };
        let tenant = &wish.principal.tenant;
        if wish.snapshot.on_exhausted(&denial) == Some(&OnExhausted::Queue) {
            return Err(Rejection::deferred(tenant, &denial, levels));
        }
        let Some(to) = wish.snapshot.cheaper(&denial, wish.target.endpoint) else {
            return Err(Rejection::denied(tenant, &denial, levels));
        };
        let Wish { snapshot, principal, target, parts, body, .. } = &wish;
        let counted = self.count(snapshot, principal, target, parts, body, Some(to)).await?;
        match self.node.reserve(wish.asking(&counted, Lane::Degraded)).await {
            Reserved::Held(guard) => Ok(Admitted { counted, guard, degraded: true }),
            Reserved::Denied(denial, levels) => Err(Rejection::denied(tenant, &denial, levels)),
        }
    }
}
