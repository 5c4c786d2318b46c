//! The shell around the limiter: which policy is in force, who answers a reservation, who owns it until it ends.
//!
//! Laws:
//! - admission does not know where the owner is: [`Node::reserve`] is asked the same way whether the tenant's shard is here or on
//!   another node, and a node that is its own cluster decides without looking anything up;
//! - every admitted reservation has a [`Guard`], and every guard ends its reservation once, whatever happens to the request;
//! - a policy is put in force whole: keys, models, providers and limits change together.
//!
//! Never here: HTTP.

mod admission;
pub mod agreement;
pub mod audit;
mod bill;
mod carrier;
mod charge;
pub mod closing;
pub mod codec;
pub mod compile;
pub mod crowd;
pub mod decisions;
pub mod escrow;
pub mod govern;
mod guard;
pub mod issuers;
pub mod learned;
pub mod membership;
pub mod open;
mod outbox;
pub mod owners;
pub mod possessions;
mod principal;
pub mod reason;
pub mod reports;
mod snapshot;
mod tenants;
#[cfg(test)]
mod tests;
mod users;
pub mod view;
pub mod wire;

use std::sync::Arc;

pub use admission::Reach;
use arc_swap::ArcSwap;
pub use carrier::{Carrier, Carry};
use guard::{Admitted, Holding};
pub use guard::{Guard, Receipt, amount};
pub use principal::{Principal, RouteCounters};
pub use snapshot::{Beside, Snapshot, Versions};
pub use tenants::{Audit, Instants, Tenants, Tenure, life, moment};
use tollgate_cluster::id::SessionId;
use tollgate_cluster::outside::Clock;
use tollgate_cluster::shards::Shards;
pub use users::UserKey;

use crate::estimate::TokenCache;
use crate::ledger::Ledger;
use crate::limit::{
    Amount, Denial, IdempotencyDigest, Lane, Levels, Moment, Name, Options, Request, ReservationId,
    Resolution, Resolved, UserDigest, Verdict,
};
use crate::policy::OnExhausted;
use crate::route::Endpoint;
use crate::telemetry::Metrics;
use admission::{Decided, Member};
use closing::Closing;
use crowd::Crowd;
use decisions::{Decisions, Record};
use escrow::Escrow;
use learned::Learned;
use outbox::Outbox;
use owners::Owners;
use possessions::Possessions;
use reports::{Number, Reports};
use wire::{End, Of, Reserve};

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
    /// Whose is what providers keep.
    pub possessions: Arc<Possessions>,
    /// What addresses without a credential have used.
    pub crowd: Crowd,
    /// What the names of end users are made digests with.
    pub users: UserKey,
    /// What it keeps of requests that have ended; none: nothing.
    ledger: Option<Arc<Ledger>>,
    clock: Arc<dyn Clock>,
    owners: Owners,
    /// None for a node that is its own cluster.
    member: Option<Member>,
    snapshot: ArcSwap<Snapshot>,
    /// What its gateway owes the budgets.
    reports: Reports,
    /// The life of a process that is its own cluster: the upper half of every reservation id it makes.
    session: u64,
}

/// A request that is ready to be reserved.
pub struct Asking<'a> {
    /// Its id.
    pub id: ReservationId,
    /// Who asks.
    pub principal: &'a Arc<Principal>,
    /// Where.
    pub endpoint: Endpoint,
    /// The end user, where the policy limits users.
    pub user: Option<UserDigest>,
    /// The model as the caller named it.
    pub model_asked: &'a str,
    /// The model it resolved to.
    pub model: &'a Name,
    /// The provider that is to serve it.
    pub provider: &'a str,
    /// What is needed.
    pub estimate: Amount,
    /// The caller's idempotency key.
    pub idempotency: Option<IdempotencyDigest>,
    /// Whether it goes to the model that its caller asked for.
    pub lane: Lane,
}

/// The answer to [`Node::reserve`].
pub enum Reserved {
    /// Held.
    Held(Guard),
    /// Refused; the levels are those of its path.
    Denied(Denial, Levels),
}

impl Node {
    /// A node that is its own cluster, with a policy in force.
    #[must_use]
    pub fn alone(snapshot: Snapshot, options: Options, clock: Arc<dyn Clock>) -> Self {
        let tenants = Tenants::new(options, snapshot.rules.clone(), clock.clone());
        let shards = Arc::new(Shards::alone(tenants, clock.clone()));
        Self::make(snapshot, shards, clock, None)
    }

    /// A member of a cluster, with a policy in force, that reaches the others by `carrier`. Whoever has `shards` follows the cluster with
    /// them, and runs [`Node::tell_owners`].
    #[must_use]
    pub fn member(
        snapshot: Snapshot,
        shards: Arc<Shards<Tenants>>,
        clock: Arc<dyn Clock>,
        carrier: Arc<dyn Carrier>,
        reach: Reach,
    ) -> Self {
        let member = Member { carrier, outbox: Outbox::default(), reach };
        Self::make(snapshot, shards, clock, Some(member))
    }

    fn make(
        snapshot: Snapshot,
        shards: Arc<Shards<Tenants>>,
        clock: Arc<dyn Clock>,
        member: Option<Member>,
    ) -> Self {
        let metrics = Metrics::new();
        metrics.policy_version.set(i64::try_from(snapshot.version).unwrap_or(i64::MAX));
        shards.host().escrow().follow(&snapshot.tariff);
        if member.is_some() {
            shards.host().possessions().tell_others();
        }
        Self {
            metrics,
            token_cache: TokenCache::new(rand::random(), TokenCache::CAPACITY),
            learned: Learned::default(),
            decisions: Decisions::new(),
            possessions: shards.host().possessions().clone(),
            crowd: Crowd::default(),
            users: UserKey::random(),
            ledger: None,
            clock,
            owners: Owners::new(shards),
            member,
            snapshot: ArcSwap::from_pointee(snapshot),
            reports: Reports::default(),
            session: rand::random(),
        }
    }

    /// Has users' names made digests with this key.
    #[must_use]
    pub fn with_users(mut self, key: UserKey) -> Self {
        self.users = key;
        self
    }

    /// Has requests that have ended noted in `ledger`.
    #[must_use]
    pub fn with_ledger(mut self, ledger: Option<Arc<Ledger>>) -> Self {
        self.ledger = ledger;
        self
    }

    /// What it keeps of requests that have ended.
    #[must_use]
    pub const fn ledger(&self) -> Option<&Arc<Ledger>> {
        self.ledger.as_ref()
    }

    /// The lease clock's reading, and the wall clock's in milliseconds since 1970.
    pub(crate) fn clocks(&self) -> (tollgate_cluster::time::Moment, u64) {
        (self.clock.now(), self.clock.wall_millis())
    }

    /// The lease clock's reading.
    #[must_use]
    pub fn now(&self) -> Moment {
        moment(self.clock.now())
    }

    /// The policy in force.
    #[must_use]
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// Puts a later policy in force: the limits first, so that a key that is new never meets limits that are old. Only once all of it
    /// is, this node says so, and may use a lease that asks for it.
    pub fn apply(&self, snapshot: Snapshot) {
        let version = snapshot.version;
        self.owners.apply(&snapshot.rules);
        self.escrow().follow(&snapshot.tariff);
        self.metrics.policy_version.set(i64::try_from(snapshot.version).unwrap_or(i64::MAX));
        self.snapshot.store(Arc::new(snapshot));
        self.owners.shards().host().put_in_force(version);
    }

    /// This life of the process.
    #[must_use]
    pub fn session(&self) -> String {
        format!("{:016x}", self.life())
    }

    /// The session of a member is known to its cluster: when that is over, owners end what this gateway left open.
    fn life(&self) -> u64 {
        let facts = self.member.as_ref().and_then(|_| self.owners.shards().facts());
        facts.map_or(self.session, |facts| tenants::life(facts.holder.session()))
    }

    fn carrier(&self) -> Option<&dyn Carrier> {
        self.member.as_ref().map(|member| &*member.carrier)
    }

    /// Whether it is its own cluster.
    #[must_use]
    pub const fn is_alone(&self) -> bool {
        self.member.is_none()
    }

    /// The purses of this node's session.
    #[must_use]
    pub fn escrow(&self) -> &Arc<Escrow> {
        self.owners.shards().host().escrow()
    }

    /// The session whose purses pay what owners here admit: none before this node is a member of its cluster.
    #[must_use]
    pub fn purse_session(&self) -> Option<SessionId> {
        match &self.member {
            None => Some(self.alone_session()),
            Some(_) => self.owners.shards().facts().map(|facts| facts.holder.session()),
        }
    }

    fn alone_session(&self) -> SessionId {
        SessionId(u128::from(self.session))
    }

    /// An id that no other request has had.
    #[must_use]
    pub fn new_id(&self) -> ReservationId {
        self.begin().id()
    }

    /// Begins a request, which may become a reservation, in this gateway's present session.
    pub fn begin(&self) -> Number<'_> {
        self.reports.begin(self.present_session())
    }

    /// Begins a reservation under the id of its request, if that is of the present session. Under another where that was denied already:
    /// it may be barred.
    fn begin_for(&self, asking: &Asking<'_>) -> Number<'_> {
        match asking.lane {
            Lane::Regular => self.reports.begin_as(asking.id, self.present_session()),
            Lane::Degraded => self.begin(),
        }
    }

    fn present_session(&self) -> SessionId {
        self.purse_session().unwrap_or_else(|| self.alone_session())
    }

    /// What its gateway owes the budgets.
    #[must_use]
    pub const fn reports(&self) -> &Reports {
        &self.reports
    }

    /// What its owners are to close.
    #[must_use]
    pub fn closing(&self) -> &Closing {
        self.owners.shards().host().closing()
    }

    /// Asks the owner of the tenant's shard to hold `asking.estimate`.
    pub async fn reserve(self: &Arc<Self>, asking: Asking<'_>) -> Reserved {
        let decided = match &self.member {
            None => self.reserve_alone(&asking).await,
            // In a box, so that a node that is its own cluster does not carry its size.
            Some(member) => Box::pin(self.reserve_at_holder(member, &asking)).await,
        };
        self.decided(&asking, decided)
    }

    async fn reserve_alone(&self, asking: &Asking<'_>) -> Decided {
        let mut wait = self.wait();
        let number = self.begin_for(asking);
        loop {
            if let Some(decision) = self.refusal(asking) {
                return Decided { decision, at: self.now(), id: number.id(), held: None };
            }
            let decided = self.owners.reserve_alone(self.alone_session(), &asking.request(number.id()));
            let (mut decision, at) = decided.unwrap_or_else(|| (admission::unavailable(), self.now()));
            if decision.is_granting() && wait.for_grant().await {
                continue;
            }
            decision.give_up_waiting();
            if decision.is_paid_by_budgets() {
                number.keep();
            }
            return Decided { decision, at, id: number.id(), held: None };
        }
    }

    /// Has the pool paid for one more attempt of a reservation that is open.
    ///
    /// # Errors
    /// Why it is not.
    pub(crate) async fn pay_attempt(&self, of: Of, number: u32) -> Result<(), Denial> {
        let Some(member) = &self.member else {
            let mut wait = self.wait();
            loop {
                let life = self.alone_session();
                let attempted = self.owners.attempt_alone(life, of.tenant(), of.id(), number);
                let Err(denial) = attempted else { return Ok(()) };
                if !denial.is_passing() || !wait.for_grant().await {
                    return Err(denial);
                }
            }
        };
        Box::pin(self.attempt_at_holder(member, of, number)).await
    }

    /// Ends a reservation at its owner. What that did, if the owner has said so already.
    pub(crate) fn resolve(&self, of: Of, how: Resolution) -> Option<Resolved> {
        match &self.member {
            None => Some(self.owners.resolve_alone(self.alone_session(), of.tenant(), of.id(), how)),
            Some(member) => self.end_at_holder(member, End { of, how }),
        }
    }

    /// Waits until owners on other nodes know of everything that has ended, `within` that time.
    pub async fn told(&self, within: std::time::Duration) {
        let Some(member) = &self.member else { return };
        let all_told = async {
            let mut looks = tokio::time::interval(std::time::Duration::from_millis(10));
            while !member.outbox.is_empty() {
                looks.tick().await;
            }
        };
        if tokio::time::timeout(within, all_told).await.is_err() {
            tracing::warn!(
                "owners could not be told of everything that has ended: they close it at its estimate"
            );
        }
    }

    /// Gives back what the purses of this node's session hold, `within` that time.
    pub async fn return_purses(&self, within: std::time::Duration) {
        let escrow = self.escrow();
        escrow.drain();
        let returned = async {
            let mut answered = escrow.answered();
            while !escrow.is_empty() && answered.changed().await.is_ok() {}
        };
        if tokio::time::timeout(within, returned).await.is_err() {
            tracing::warn!("what the purses hold could not be given back: it is written off");
        }
    }

    /// Has `audit` hear of everything that owners on this node decide. Only the first is heard.
    pub fn audited_by(&self, audit: Arc<dyn Audit>) {
        self.owners.shards().host().audited_by(audit);
    }

    /// The live state of the shards that this node owns.
    #[must_use]
    pub fn owners(&self) -> &Owners {
        &self.owners
    }

    /// Closes reservations whose deadline has passed; call it a few times a second.
    pub fn tick(&self) {
        for expired in self.owners.handle_timeouts() {
            // Its tokens are counted by its guard, which is alive: in which way, shows when that ends.
            self.metrics.reservations_expired.inc();
            if let (Some(gateway), Some(paid)) = (self.session_of(expired.id), &expired.paid) {
                self.closing().expired(gateway, expired.id, paid.clone());
            }
            tracing::warn!(
                id = %expired.id, tenant = &*expired.tenant, charged = expired.held.total,
                "a reservation reached its deadline and was closed at its estimate"
            );
        }
    }

    /// The session of the gateway that made an id, while the log knows it.
    fn session_of(&self, id: ReservationId) -> Option<SessionId> {
        let is_it = |session: &SessionId| tenants::life(*session) == id.life();
        if self.member.is_none() {
            return Some(self.alone_session()).filter(is_it);
        }
        let facts = self.owners.shards().facts()?;
        let living = facts.authority.unfenced().map(|(session, _)| session);
        living.chain(facts.authority.ended()).find(is_it)
    }

    /// Waits until what this gateway owes the budgets is told, `within` that time.
    pub async fn reported(&self, within: std::time::Duration) {
        let all_told = async {
            let mut looks = tokio::time::interval(std::time::Duration::from_millis(10));
            while !self.reports.is_told() {
                self.reports.hurry();
                looks.tick().await;
            }
        };
        if tokio::time::timeout(within, all_told).await.is_err() {
            tracing::warn!(
                "not all usage could be reported: it is in the journal, and reported by the next life of this node"
            );
        }
    }

    /// The page of `/metrics`, with the gauges that are read rather than kept.
    #[must_use]
    pub fn render_metrics(&self) -> String {
        let held = self.owners.held();
        let gauge = |value: usize| i64::try_from(value).unwrap_or(i64::MAX);
        self.metrics.open_reservations.set(gauge(held.open));
        let stats = self.reports.stats();
        self.metrics.budgets.tell(&stats, self.closing().dropped());
        let maps = [
            ("reservations", held.reservations),
            ("tenants", held.tenants),
            ("users", held.users),
            ("gateway_open", self.owners.shards().host().open().len()),
            ("outbox", self.member.as_ref().map_or(0, |member| member.outbox.len())),
            ("decisions", self.decisions.len()),
            ("token_cache", self.token_cache.len()),
            ("learned", self.learned.len()),
            ("crowd", self.crowd.len()),
            ("possessions", self.possessions.len()),
            ("possessions_untold", self.possessions.untold()),
            ("purses", self.escrow().len()),
            ("unreported_ends", stats.fresh + stats.kept),
            ("open_numbers", stats.open),
            ("closing", self.closing().len()),
            ("ended_unreported", self.closing().remembered()),
            ("idle_connections", self.snapshot.load().upstreams.idle_connections()),
        ];
        for (map, entries) in maps {
            self.metrics.held.get_or_create_owned(&vec![("map", map.to_owned())]).set(gauge(entries));
        }
        if let Some(ledger) = &self.ledger {
            self.metrics.ledger.tell(ledger);
        }
        let cached = self.token_cache.stats();
        self.metrics.tell_token_cache("hit", cached.hits);
        self.metrics.tell_token_cache("miss", cached.misses);
        self.metrics.render()
    }

    fn decided(self: &Arc<Self>, asking: &Asking<'_>, decided: Decided) -> Reserved {
        let principal = asking.principal;
        let Decided { decision, at, id, held } = decided;
        let unenforced = self.admits_unavailable(asking, &decision.verdict);
        let policy = self.snapshot.load();
        let (outcome, denial) = match &decision.verdict {
            // A cheaper model is asked next: nothing is decided yet.
            Verdict::Denied(denial)
                if asking.lane == Lane::Regular && policy.cheaper(denial, asking.endpoint).is_some() =>
            {
                return Reserved::Denied(denial.clone(), decision.levels);
            }
            Verdict::Denied(denial) if policy.on_exhausted(denial) == Some(&OnExhausted::Queue) => {
                ("deferred", Some(denial))
            }
            Verdict::Admitted if asking.lane == Lane::Degraded => ("degraded", None),
            Verdict::Admitted => ("admitted", None),
            Verdict::Shadowed(denial) => ("shadowed", Some(denial)),
            Verdict::Denied(denial) if unenforced => ("unenforced", Some(denial)),
            Verdict::Denied(denial) => ("denied", Some(denial)),
        };
        let reason =
            denial.map(|denial| if outcome == "deferred" { "deferred" } else { reason::code(denial) });
        let record = Arc::new(Record {
            id: asking.id,
            at: self.wall_now(),
            tenant: principal.tenant.clone(),
            key: principal.key.clone(),
            project: principal.project.clone(),
            user: asking.user,
            provider: asking.provider.into(),
            route: asking.endpoint.path(),
            model_asked: asking.model_asked.into(),
            model: asking.model.clone(),
            estimate: asking.estimate,
            outcome,
            reason,
            sentence: denial.map(|denial| reason::sentence(&principal.tenant, denial).into()),
            // Nobody decided: it was refused by what this gateway knows.
            policy_version: if decision.version == 0 {
                self.snapshot.load().version
            } else {
                decision.version
            },
            ending: std::sync::OnceLock::new(),
        });
        self.decisions.remember(record.clone());
        match (outcome, reason) {
            ("denied" | "deferred", Some(reason)) => self.metrics.count_decision(outcome, reason),
            ("degraded", _) => self.metrics.count_decision("degraded", "budget_exhausted"),
            _ => self.metrics.count_admitted(),
        }
        let holding = match decision.verdict {
            Verdict::Denied(_) if unenforced => {
                self.count_unenforced("unavailable", asking.estimate);
                tracing::warn!(
                    id = %asking.id, tenant = &*principal.tenant, tokens = asking.estimate.total,
                    "let through without a limit: nobody who may decide could be asked, and the policy admits then"
                );
                Holding::Nothing
            }
            Verdict::Denied(denial) => {
                log_decision(&record);
                return Reserved::Denied(denial, decision.levels);
            }
            Verdict::Shadowed(denial) => {
                let labels =
                    vec![("tenant", principal.tenant.to_string()), ("limit", reason::limit(&denial))];
                self.metrics.shadow_rejections.with(labels).inc();
                self.count_unenforced("shadow", asking.estimate);
                Holding::Shadow(id)
            }
            Verdict::Admitted => {
                if self.snapshot.load().everyone.is_some() {
                    self.count_unenforced("invalid_policy", asking.estimate);
                }
                principal.counters(&self.metrics, asking.endpoint).reserved.inc_by(asking.estimate.total);
                Holding::Estimate(id, held)
            }
        };
        let (node, principal) = (self.clone(), principal.clone());
        let admitted = Admitted { levels: decision.levels, at, paid: decision.paid };
        Reserved::Held(Guard::new(node, principal, asking.endpoint, record, admitted, holding))
    }

    /// Whether a request that nobody could decide on is let through. Whatever else was refused stays so.
    fn admits_unavailable(&self, asking: &Asking<'_>, verdict: &Verdict) -> bool {
        let snapshot = self.snapshot.load();
        *verdict == Verdict::Denied(Denial::Unavailable)
            && snapshot.tenant_of(asking.principal).is_some_and(|tenant| {
                snapshot.policy.on_unavailable_of(tenant) == crate::policy::OnUnavailable::Admit
            })
    }

    fn count_unenforced(&self, reason: &str, estimate: Amount) {
        let labels = vec![("reason", reason.to_owned())];
        self.metrics.tokens_unenforced.with(labels).inc_by(estimate.total);
    }

    /// The day, UTC, by the wall clock.
    fn today(&self) -> jiff::civil::Date {
        self.wall_now().to_zoned_datetime(jiff::tz::TimeZone::UTC).date()
    }

    fn wall_now(&self) -> jiff::Timestamp {
        let millis = i64::try_from(self.clock.wall_millis()).unwrap_or(i64::MAX);
        jiff::Timestamp::from_millisecond(millis).unwrap_or(jiff::Timestamp::MAX)
    }
}

impl Asking<'_> {
    /// As the limiter takes it, by this id.
    fn request(&self, id: ReservationId) -> Request<'_> {
        Request {
            id,
            tenant: &self.principal.tenant,
            key: &self.principal.key,
            user: self.user,
            project: self.principal.project.as_deref(),
            model: self.model,
            need: self.estimate,
            idempotency: self.idempotency,
            lane: self.lane,
        }
    }

    /// As another node is asked, by this id.
    fn on_the_wire(&self, id: ReservationId) -> Reserve {
        Reserve {
            id,
            tenant: self.principal.tenant.clone(),
            key: self.principal.key.clone(),
            user: self.user,
            project: self.principal.project.clone(),
            model: self.model.clone(),
            need: self.estimate,
            idempotency: self.idempotency,
            lane: self.lane,
        }
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
