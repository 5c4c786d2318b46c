//! Who a verified credential speaks for.

use std::sync::OnceLock;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::Histogram;

use crate::limit::Name;
use crate::route::Endpoint;
use crate::telemetry::Metrics;

/// Tenant, key and tier, as the policy has them.
#[derive(Debug)]
pub struct Principal {
    /// Who pays.
    pub tenant: Name,
    /// The key's label: a dimension of reports, never a ceiling of its own.
    pub key: Name,
    /// The key's project.
    pub project: Option<Name>,
    /// The tenant's tier.
    pub tier: Name,
    /// The tenant's place in the policy's list; none for a caller that is let through without a policy.
    pub place: Option<usize>,
    counters: [OnceLock<RouteCounters>; Endpoint::ALL.len()],
}

/// The counters of one key on one route, looked up once.
#[derive(Debug)]
pub struct RouteCounters {
    /// Tokens held.
    pub reserved: Counter,
    /// Tokens settled.
    pub settled: Counter,
    /// Tokens held and given back.
    pub refunded: Counter,
    /// Tokens used beyond what was held.
    pub overage: Counter,
    /// Tokens that ended at the estimate.
    pub closed: Counter,
    /// Tokens that ended at the estimate because the reservation was dropped.
    pub abandoned: Counter,
    /// Used over held.
    pub error_ratio: Histogram,
    /// Of what was held, the part that was used.
    pub efficiency: Histogram,
}

impl Principal {
    /// A principal that has not asked for anything yet.
    #[must_use]
    pub fn new(tenant: Name, key: Name, project: Option<Name>, tier: Name, place: Option<usize>) -> Self {
        Self { tenant, key, project, tier, place, counters: Default::default() }
    }

    /// Its counters on `endpoint`.
    pub fn counters(&self, metrics: &Metrics, endpoint: Endpoint) -> &RouteCounters {
        self.counters[endpoint as usize].get_or_init(|| {
            let labels = || {
                vec![
                    ("tenant", self.tenant.to_string()),
                    ("key", self.key.to_string()),
                    ("route", endpoint.path().to_owned()),
                ]
            };
            let how = |how: &str| vec![("tenant", self.tenant.to_string()), ("how", how.to_owned())];
            RouteCounters {
                reserved: metrics.tokens_reserved.with(labels()),
                settled: metrics.tokens_settled.with(labels()),
                refunded: metrics.tokens_refunded.with(labels()),
                overage: metrics.tokens_overage.with(labels()),
                closed: metrics.tokens_unsettled.with(how("closed")),
                abandoned: metrics.tokens_unsettled.with(how("abandoned")),
                error_ratio: metrics.estimate_error_ratio.with(vec![("route", endpoint.path().to_owned())]),
                efficiency: metrics.reservation_efficiency.with(vec![("route", endpoint.path().to_owned())]),
            }
        })
    }
}
