//! The shell around the limiter: which policy is in force, who answers a reservation, who owns it until it ends.
//!
//! Laws:
//! - admission does not know where the owner is: [`Node::reserve`] is asked the same way whether the tenant's shard is here or, one
//!   day, on a peer;
//! - every admitted reservation has a [`Guard`], and every guard ends its reservation once, whatever happens to the request;
//! - a policy is put in force whole: keys, models, providers and limits change together.
//!
//! Never here: HTTP.

pub mod compile;
pub mod decisions;
mod guard;
pub mod learned;
pub mod owners;
mod principal;
pub mod reason;
mod snapshot;
pub mod view;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
pub use guard::{Guard, Receipt};
pub use principal::{Principal, RouteCounters};
pub use snapshot::Snapshot;

use crate::estimate::TokenCache;
use crate::limit::{
    Amount, Decision, Denial, IdempotencyDigest, Levels, Moment, Name, Options, Request, ReservationId,
    Resolution, Resolved, Verdict,
};
use crate::route::Endpoint;
use crate::telemetry::Metrics;
use decisions::{Decisions, Record};
use learned::Learned;
use owners::Owners;

/// One node.
pub struct Node {
    /// What it counts.
    pub metrics: Metrics,
    /// Token counts of texts seen before.
    pub token_cache: TokenCache,
    /// How much each model writes on each route.
    pub learned: Learned,
    /// What it decided lately.
    pub decisions: Decisions,
    owners: Owners,
    snapshot: ArcSwap<Snapshot>,
    /// One life of this process: the upper half of every reservation id it makes.
    session: u64,
    next: AtomicU64,
}

/// A request that is ready to be reserved.
pub struct Asking<'a> {
    /// Its id.
    pub id: ReservationId,
    /// Who asks.
    pub principal: &'a Arc<Principal>,
    /// Where.
    pub endpoint: Endpoint,
    /// The model as the caller named it.
    pub model_asked: &'a str,
    /// The model it resolved to.
    pub model: &'a Name,
    /// What is needed.
    pub estimate: Amount,
    /// The caller's idempotency key.
    pub idempotency: Option<IdempotencyDigest>,
}

/// The answer to [`Node::reserve`].
pub enum Reserved {
    /// Held.
    Held(Guard),
    /// Refused; the levels are those of its path.
    Denied(Denial, Levels),
}

impl Node {
    /// A node with a policy in force.
    #[must_use]
    pub fn new(snapshot: Snapshot, options: Options) -> Self {
        let metrics = Metrics::new();
        metrics.policy_version.set(i64::try_from(snapshot.version).unwrap_or(i64::MAX));
        Self {
            metrics,
            token_cache: TokenCache::new(rand::random(), TokenCache::CAPACITY),
            learned: Learned::default(),
            decisions: Decisions::new(),
            owners: Owners::new(options, &snapshot.rules),
            snapshot: ArcSwap::from_pointee(snapshot),
            session: rand::random(),
            next: AtomicU64::new(0),
        }
    }

    /// The policy in force.
    #[must_use]
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// Puts a later policy in force: the limits first, so that a key that is new never meets limits that are old.
    pub fn apply(&self, snapshot: Snapshot) {
        self.owners.apply(&snapshot.rules);
        self.metrics.policy_version.set(i64::try_from(snapshot.version).unwrap_or(i64::MAX));
        self.snapshot.store(Arc::new(snapshot));
    }

    /// This life of the process.
    #[must_use]
    pub fn session(&self) -> String {
        format!("{:016x}", self.session)
    }

    /// An id that no other request has had.
    #[must_use]
    pub fn new_id(&self) -> ReservationId {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        ReservationId(u128::from(self.session) << 64 | u128::from(number))
    }

    /// Asks the owner of the tenant's shard to hold `asking.estimate`.
    #[allow(
        clippy::unused_async,
        reason = "the owner may be on another node one day, and callers must not notice"
    )]
    pub async fn reserve(self: &Arc<Self>, asking: Asking<'_>) -> Reserved {
        let now = crate::clock::now();
        let principal = asking.principal;
        let request = Request {
            id: asking.id,
            tenant: &principal.tenant,
            key: &principal.key,
            project: principal.project.as_deref(),
            model: asking.model,
            need: asking.estimate,
            idempotency: asking.idempotency,
        };
        let unavailable =
            || Decision { verdict: Verdict::Denied(Denial::Full), levels: Levels::default(), version: 0 };
        let decision = self.owners.reserve(now, &request).unwrap_or_else(unavailable);
        self.decided(now, &asking, decision)
    }

    /// Ends a reservation at its owner.
    pub(crate) fn resolve(
        &self,
        now: Moment,
        tenant: &str,
        id: ReservationId,
        resolution: Resolution,
    ) -> Resolved {
        self.owners.resolve(now, tenant, id, resolution)
    }

    /// The live state of the shards that this node owns.
    #[must_use]
    pub fn owners(&self) -> &Owners {
        &self.owners
    }

    /// Closes reservations whose deadline has passed; call it a few times a second.
    pub fn tick(&self) {
        for expired in self.owners.handle_timeouts(crate::clock::now()) {
            // Its tokens are counted by its guard, which is alive: in which way, shows when that ends.
            self.metrics.reservations_expired.inc();
            tracing::warn!(
                id = %expired.id, tenant = &*expired.tenant, charged = expired.held.total,
                "a reservation reached its deadline and was closed at its estimate"
            );
        }
    }

    /// The page of `/metrics`, with the gauges that are read rather than kept.
    #[must_use]
    pub fn render_metrics(&self) -> String {
        let held = self.owners.held();
        let gauge = |value: usize| i64::try_from(value).unwrap_or(i64::MAX);
        self.metrics.open_reservations.set(gauge(held.open));
        let maps = [
            ("reservations", held.reservations),
            ("tenants", held.tenants),
            ("decisions", self.decisions.len()),
            ("token_cache", self.token_cache.len()),
            ("learned", self.learned.len()),
        ];
        for (map, entries) in maps {
            self.metrics.held.get_or_create_owned(&vec![("map", map.to_owned())]).set(gauge(entries));
        }
        let cached = self.token_cache.stats();
        self.metrics.tell_token_cache("hit", cached.hits);
        self.metrics.tell_token_cache("miss", cached.misses);
        self.metrics.render()
    }

    fn decided(self: &Arc<Self>, now: Moment, asking: &Asking<'_>, decision: Decision) -> Reserved {
        let principal = asking.principal;
        let (outcome, denial) = match &decision.verdict {
            Verdict::Admitted => ("admitted", None),
            Verdict::Shadowed(denial) => ("shadowed", Some(denial)),
            Verdict::Denied(denial) => ("denied", Some(denial)),
        };
        let reason = denial.map(reason::code);
        let record = Arc::new(Record {
            id: asking.id,
            at: crate::clock::wall_now(),
            tenant: principal.tenant.clone(),
            key: principal.key.clone(),
            project: principal.project.clone(),
            route: asking.endpoint.path(),
            model_asked: asking.model_asked.into(),
            model: asking.model.clone(),
            estimate: asking.estimate,
            outcome,
            reason,
            sentence: denial.map(|denial| reason::sentence(&principal.tenant, denial).into()),
            policy_version: decision.version,
            ending: std::sync::OnceLock::new(),
        });
        self.decisions.remember(record.clone());
        match reason.filter(|_| outcome == "denied") {
            Some(reason) => self.metrics.count_decision("denied", reason),
            None => self.metrics.count_admitted(),
        }
        match decision.verdict {
            Verdict::Denied(denial) => {
                log_decision(&record);
                return Reserved::Denied(denial, decision.levels);
            }
            Verdict::Shadowed(denial) => {
                let labels =
                    vec![("tenant", principal.tenant.to_string()), ("limit", reason::limit(&denial))];
                self.metrics.shadow_rejections.with(labels).inc();
                let labels = vec![("reason", "shadow".to_owned())];
                self.metrics.tokens_unenforced.with(labels).inc_by(asking.estimate.total);
            }
            Verdict::Admitted => {
                if self.snapshot.load().everyone.is_some() {
                    let labels = vec![("reason", "invalid_policy".to_owned())];
                    self.metrics.tokens_unenforced.with(labels).inc_by(asking.estimate.total);
                }
                principal.counters(&self.metrics, asking.endpoint).reserved.inc_by(asking.estimate.total);
            }
        }
        let guard =
            Guard::new(self.clone(), principal.clone(), asking.endpoint, record, decision.levels, now);
        Reserved::Held(guard)
    }
}

/// The decision line: one for each request that was decided, when it has ended.
fn log_decision(record: &Record) {
    let ending = record.ending.get();
    tracing::info!(
        target: "tollgate::decision",
        id = %record.id,
        tenant = &*record.tenant,
        key = &*record.key,
        route = record.route,
        model = &*record.model,
        outcome = record.outcome,
        reason = record.reason.unwrap_or("none"),
        estimate = record.estimate.total,
        ended = ending.map_or("refused", |ending| ending.how),
        why = ending.map_or("none", |ending| ending.why),
        charged = ending.map_or(0, |ending| ending.charged),
        refunded = ending.map_or(0, |ending| ending.refunded),
        overage = ending.map_or(0, |ending| ending.overage),
        attempts = ending.map_or(0, |ending| ending.attempts),
        upstream_status = ending.map_or(0, |ending| ending.upstream_status),
        ms = ending.map_or(0, |ending| ending.milliseconds),
        policy = record.policy_version,
        "decision"
    );
}
