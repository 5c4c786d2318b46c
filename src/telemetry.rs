//! What a node says of itself: metrics (a registry per node, so that several nodes fit in one process) and logs.
//!
//! Label sets are bounded: a family takes [`SERIES`] different sets and counts the rest under `other`, so no tenant, key or model
//! name can grow a node's memory. Nothing here ever sees a prompt or a secret.

pub mod budgets;
pub mod cluster;
pub mod ledger;
mod lines;
pub mod pools;

use std::sync::atomic::AtomicI64;

pub use lines::Flusher;

use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Metric, Registry};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::limit::Span;

/// The most series of one family whose labels come from a policy.
pub const SERIES: usize = 200;

/// Labels: names known at compile time, values from anywhere.
pub type Labels = Vec<(&'static str, String)>;

/// A family of metrics whose number of series is bounded.
pub struct Bounded<M, C = fn() -> M> {
    family: Family<Labels, M, C>,
    series: std::sync::Mutex<usize>,
}

impl<M: Clone, C: MetricConstructor<M>> Bounded<M, C> {
    fn new(family: Family<Labels, M, C>) -> Self {
        Self { family, series: std::sync::Mutex::new(0) }
    }

    /// The metric with these labels, or the one whose labels all say `other` when the family is full.
    pub fn with(&self, labels: Labels) -> M {
        if let Some(metric) = self.family.get(&labels) {
            return metric.clone();
        }
        let mut series = self.series.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(metric) = self.family.get(&labels) {
            return metric.clone();
        }
        if *series < SERIES {
            *series += 1;
            return self.family.get_or_create_owned(&labels);
        }
        let other = labels.into_iter().map(|(name, _)| (name, "other".to_owned())).collect();
        self.family.get_or_create_owned(&other)
    }
}

/// A bounded family of counters.
pub type Counters = Bounded<Counter, fn() -> Counter>;
/// A bounded family of gauges.
pub type Gauges = Bounded<Gauge, fn() -> Gauge>;
/// A bounded family of histograms.
pub type Histograms = Bounded<Histogram, fn() -> Histogram>;

/// How long one step of a request takes.
pub struct Step(Histogram);

impl Step {
    /// Notes that it took `span`.
    pub fn observe_span(&self, span: Span) {
        self.0.observe(span.as_nanos() as f64 / 1e9);
    }
}

/// The steps of a request, in order.
pub struct Steps {
    /// From the request's head to its body read: whose it is, and its bytes.
    pub authenticate: Step,
    /// Reading the body and counting its tokens.
    pub estimate: Step,
    /// The decision.
    pub reserve: Step,
    /// Until the provider's answer begins, retries among it.
    pub first_byte: Step,
}

impl Steps {
    fn new(family: &Histograms) -> Self {
        let step = |name: &str| Step(family.with(vec![("step", name.to_owned())]));
        Self {
            authenticate: step("authenticate"),
            estimate: step("estimate"),
            reserve: step("reserve"),
            first_byte: step("first_byte"),
        }
    }
}

/// Every metric of one node. Names carry the prefix `tollgate_`; counters end in `_total`.
pub struct Metrics {
    registry: Registry,
    /// Decisions by outcome (admitted, denied, deferred, degraded, error) and reason.
    pub decisions: Counters,
    /// The one of them that most requests count in.
    admitted: Counter,
    /// Tokens held by reservations, by tenant, key and route.
    pub tokens_reserved: Counters,
    /// Tokens of reservations that settled with usage, by tenant, key and route.
    pub tokens_settled: Counters,
    /// Tokens held and given back, by tenant, key and route.
    pub tokens_refunded: Counters,
    /// Tokens used beyond what was held, by tenant, key and route.
    pub tokens_overage: Counters,
    /// Tokens of reservations that ended at their estimate, by tenant and how (closed, abandoned).
    pub tokens_unsettled: Counters,
    /// Reservations that were closed at their deadline.
    pub reservations_expired: Counter,
    /// Tokens let through without a limit, by reason.
    pub tokens_unenforced: Counters,
    /// Requests being served.
    pub inflight: Gauge,
    /// Reservations that have not ended.
    pub open_reservations: Gauge,
    /// What was used over what was held, by route.
    pub estimate_error_ratio: Histograms,
    /// Of what was held, the part that the provider's report says was used, by route: what is missing from 1 was kept from
    /// others while the request ran.
    pub reservation_efficiency: Histograms,
    /// Time spent in each step of a request.
    pub steps: Steps,
    /// Requests sent to providers, by provider and outcome.
    pub upstream_attempts: Counters,
    /// What enforcement would have refused, by tenant and limit.
    pub shadow_rejections: Counters,
    /// Answers whose usage had no known shape, was missing or zero, by provider: their estimate stands.
    pub usage_unknown: Counters,
    /// Policy reloads by result (applied, unchanged, refused, behind, conflict).
    pub policy_reloads: Counters,
    /// The version of policy and keys that is in force here.
    pub policy_version: Gauge,
    /// The version of policy and keys that is agreed on, as far as this node knows.
    pub agreed_version: Gauge,
    /// Decisions made by this node's own limiters.
    pub decided_here: Counter,
    /// Decisions made by another node's.
    pub decided_elsewhere: Counter,
    /// Times that a request asked again, since the holder it asked did not decide, by why.
    pub asked_again: Counters,
    /// Requests that waited for a grant from a pool or a budget.
    pub grant_waits: Counter,
    /// From a question to another node until its answer.
    pub peer_round_trip: Step,
    /// Ends of reservations sent to their owner once more.
    pub outbox_retries: Counter,
    /// Ends of reservations that no owner acknowledged in time, or that found no room.
    pub outbox_dropped: Counter,
    /// Open connections of callers.
    pub connections: Gauge,
    /// Connections refused because too many were open.
    pub connections_refused: Counter,
    /// Connections ended because their callers did not do their part, by why.
    pub connections_cut: Counters,
    /// Reloads of certificates by address (callers, admin) and result (applied, refused).
    pub tls_reloads: Counters,
    /// Providers' secrets that changed where they lie, by provider and result (applied; refused: the old one stays).
    pub secret_reloads: Counters,
    /// Token counts remembered and not, by result (hit, miss).
    pub token_cache: Counters,
    /// The budgets'.
    pub budgets: budgets::BudgetMetrics,
    /// The usage ledger's.
    pub ledger: ledger::LedgerMetrics,
    /// The cluster's.
    pub cluster: cluster::ClusterMetrics,
    /// Of pools and purses.
    pub pools: pools::PoolMetrics,
    /// Entries in each bounded map, by name.
    pub held: Family<Labels, Gauge<i64, AtomicI64>>,
}

impl Metrics {
    /// A fresh registry.
    #[must_use]
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("tollgate");
        let r = &mut registry;
        let seconds = || Histogram::new(exponential_buckets(0.000_01, 2.5, 16));
        let ratio =
            || Histogram::new([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0]);
        let part = || Histogram::new([0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0]);
        let places = counters(r, "owner_decisions", "Decisions by where their owner is");
        let cluster = cluster::ClusterMetrics::new(r);
        let ledger = ledger::LedgerMetrics::new(r);
        let budgets = budgets::BudgetMetrics::new(r);
        let decisions = counters(r, "decisions", "Decisions by outcome and reason");
        Self {
            admitted: decisions.with(decision("admitted", "none")),
            decisions,
            budgets,
            ledger,
            cluster,
            tokens_reserved: counters(r, "tokens_reserved", "Tokens held by reservations"),
            tokens_settled: counters(r, "tokens_settled", "Tokens settled with usage"),
            tokens_refunded: counters(r, "tokens_refunded", "Tokens held, not used and given back"),
            tokens_overage: counters(r, "tokens_overage", "Tokens used beyond what was held"),
            tokens_unsettled: counters(
                r,
                "tokens_unsettled",
                "Tokens of reservations that ended at their estimate",
            ),
            reservations_expired: add(
                r,
                "reservations_expired",
                "Reservations closed at their deadline",
                Counter::default(),
            ),
            tokens_unenforced: counters(r, "tokens_unenforced", "Tokens let through without a limit"),
            inflight: add(r, "inflight", "Requests being served", Gauge::default()),
            open_reservations: add(
                r,
                "open_reservations",
                "Reservations that have not ended",
                Gauge::default(),
            ),
            estimate_error_ratio: histograms(
                r,
                "estimate_error_ratio",
                "Tokens used over tokens held",
                ratio,
            ),
            reservation_efficiency: histograms(
                r,
                "reservation_efficiency_ratio",
                "Part of the tokens held that was used",
                part,
            ),
            steps: Steps::new(&histograms(
                r,
                "step_seconds",
                "Seconds spent in each step of a request",
                seconds,
            )),
            upstream_attempts: counters(r, "upstream_attempts", "Requests sent to providers"),
            shadow_rejections: counters(r, "shadow_rejections", "What enforcement would have refused"),
            usage_unknown: counters(r, "usage_unknown", "Answers without usage of a known shape"),
            policy_reloads: counters(r, "policy_reloads", "Policy reloads by result"),
            policy_version: add(r, "policy_version", "Version of policy and keys in force", Gauge::default()),
            agreed_version: add(
                r,
                "agreed_version",
                "Version of policy and keys that is agreed on",
                Gauge::default(),
            ),
            decided_here: places.with(vec![("place", "here".to_owned())]),
            decided_elsewhere: places.with(vec![("place", "elsewhere".to_owned())]),
            asked_again: counters(r, "asked_again", "Questions to an owner that it did not decide"),
            grant_waits: add(r, "grant_waits", "Requests that waited for a grant", Counter::default()),
            peer_round_trip: Step(add(
                r,
                "peer_round_trip_seconds",
                "Seconds from a question to another node until its answer",
                seconds(),
            )),
            outbox_retries: add(r, "outbox_retries", "Ends sent to an owner once more", Counter::default()),
            outbox_dropped: add(r, "outbox_dropped", "Ends that no owner acknowledged", Counter::default()),
            connections: add(r, "connections", "Open connections of callers", Gauge::default()),
            connections_refused: add(
                r,
                "connections_refused",
                "Connections over the bound",
                Counter::default(),
            ),
            connections_cut: counters(
                r,
                "connections_cut",
                "Connections ended for what their callers did not do",
            ),
            tls_reloads: counters(r, "tls_reloads", "Reloads of certificates by address and result"),
            secret_reloads: counters(
                r,
                "secret_reloads",
                "Changes of providers' secrets by provider and result",
            ),
            token_cache: counters(r, "token_cache", "Token counts looked up, by result"),
            pools: pools::PoolMetrics::new(r),
            held: add(r, "held", "Entries in each bounded map", Family::default()),
            registry,
        }
    }

    /// Counts one admitted request.
    pub fn count_admitted(&self) {
        self.admitted.inc();
    }

    /// Counts one decision.
    pub fn count_decision(&self, outcome: &'static str, reason: &'static str) {
        self.decisions.with(decision(outcome, reason)).inc();
    }

    /// Brings the count of the token cache's look-ups with this result up to what the cache itself has counted.
    pub fn tell_token_cache(&self, result: &'static str, so_far: u64) {
        let counter = self.token_cache.with(vec![("result", result.to_owned())]);
        counter.inner().fetch_max(so_far, std::sync::atomic::Ordering::Relaxed);
    }

    /// Counts one look at the policy file.
    pub fn count_reload(&self, result: &str) {
        self.policy_reloads.with(vec![("result", result.to_owned())]).inc();
    }

    /// Counts one connection that was ended for what its caller did not do.
    pub fn count_connection_cut(&self, why: &'static str) {
        self.connections_cut.with(vec![("why", why.to_owned())]).inc();
    }

    /// Counts one reload of the certificate of an address: that of callers, or of operators (`admin`).
    pub fn count_tls_reload(&self, address: &'static str, result: &'static str) {
        self.tls_reloads.with(vec![("address", address.to_owned()), ("result", result.to_owned())]).inc();
    }

    /// Counts one change of a provider's secret.
    pub fn count_secret_reload(&self, provider: &str, result: &'static str) {
        self.secret_reloads
            .with(vec![("provider", provider.to_owned()), ("result", result.to_owned())])
            .inc();
    }

    /// The counter of requests sent to a provider that ended so: a status, or what went wrong.
    pub fn attempts(&self, provider: &str, outcome: &str) -> Counter {
        self.upstream_attempts.with(vec![("provider", provider.to_owned()), ("outcome", outcome.to_owned())])
    }

    /// All metrics in the OpenMetrics text format.
    #[must_use]
    pub fn render(&self) -> String {
        let mut page = String::new();
        // Writing to a String does not fail.
        let _ = text::encode(&mut page, &self.registry);
        page
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

fn decision(outcome: &str, reason: &str) -> Labels {
    vec![("outcome", outcome.to_owned()), ("reason", reason.to_owned())]
}

fn add<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register(name, help, metric.clone());
    metric
}

fn counters(registry: &mut Registry, name: &str, help: &str) -> Counters {
    let constructor: fn() -> Counter = Counter::default;
    Bounded::new(add(registry, name, help, Family::new_with_constructor(constructor)))
}

fn gauges(registry: &mut Registry, name: &str, help: &str) -> Gauges {
    let constructor: fn() -> Gauge = Gauge::default;
    Bounded::new(add(registry, name, help, Family::new_with_constructor(constructor)))
}

fn histograms(registry: &mut Registry, name: &str, help: &str, make: fn() -> Histogram) -> Histograms {
    Bounded::new(add(registry, name, help, Family::new_with_constructor(make)))
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// For people.
    Pretty,
    /// One JSON object a line.
    Json,
}

/// Writes logs to standard error from a thread of its own: see `lines`. `filter` is in the syntax of
/// `tracing_subscriber::EnvFilter`.
///
/// The returned value writes what is left when it is dropped.
///
/// # Errors
/// A filter that does not parse; a thread that cannot be started.
pub fn init_logs(format: LogFormat, filter: &str) -> Result<Flusher, String> {
    let filter = EnvFilter::try_new(filter).map_err(|error| format!("log filter {filter:?}: {error}"))?;
    let (lines, flusher) = lines::start(std::io::stderr()).map_err(|error| format!("logs: {error}"))?;
    let registry = tracing_subscriber::registry().with(filter);
    let result = match format {
        LogFormat::Pretty => {
            registry.with(tracing_subscriber::fmt::layer().with_writer(lines).with_target(false)).try_init()
        }
        LogFormat::Json => {
            let layer = tracing_subscriber::fmt::layer().json().flatten_event(true).with_writer(lines);
            registry.with(layer.with_current_span(false).with_span_list(false)).try_init()
        }
    };
    result.map_err(|error| format!("logs: {error}"))?;
    Ok(flusher)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_pinned_ones() {
        let metrics = Metrics::new();
        metrics.decisions.with(vec![("outcome", "admitted".into()), ("reason", "none".into())]).inc();
        let page = metrics.render();
        assert!(page.contains("tollgate_decisions_total{outcome=\"admitted\",reason=\"none\"} 1"), "{page}");
        assert!(page.contains("tollgate_inflight 0"), "{page}");
    }

    #[test]
    fn a_family_counts_the_surplus_under_other() {
        let metrics = Metrics::new();
        for tenant in 0..SERIES + 50 {
            metrics.shadow_rejections.with(vec![("tenant", tenant.to_string())]).inc();
        }
        let page = metrics.render();
        let series =
            page.lines().filter(|line| line.starts_with("tollgate_shadow_rejections_total{")).count();
        assert_eq!(series, SERIES + 1);
        assert!(page.contains("tollgate_shadow_rejections_total{tenant=\"other\"} 50"), "{page}");
    }
}
