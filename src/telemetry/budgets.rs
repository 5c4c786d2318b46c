//! What a node says of budgets: how far they are used, what is told of it, and what its own gateway still owes them.

use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::cluster::so_far_by;
use super::{Bounded, Counters, Labels, add, counters};
use crate::control::budget::Budgets;
use crate::node::reports::Stats;

/// The budgets' metrics.
pub struct BudgetMetrics {
    /// Soft thresholds that were crossed, by tenant and threshold: each once on each node.
    pub alerts: Counters,
    /// Calls of the alerts' webhook by this node, by outcome (taken, failed).
    pub webhooks: Counters,
    /// Used of each budget's current period, as a part of its limit, by tenant and period.
    pub used_ratio: Bounded<Gauge<f64, AtomicU64>>,
    ends: Counters,
    again: Counter,
    alerts_lost: Counter,
}

impl BudgetMetrics {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let r = registry;
        let used = "Used of a budget's current period, as a part of its limit";
        let family: Family<Labels, Gauge<f64, AtomicU64>> = Family::default();
        Self {
            alerts: counters(r, "budget_alerts", "Soft thresholds that were crossed"),
            webhooks: counters(r, "alert_webhooks", "Calls of the alerts' webhook, by outcome"),
            used_ratio: Bounded::new(add(r, "budget_used_ratio", used, family)),
            ends: counters(
                r,
                "budget_ends",
                "Ends of reservations that budgets pay for, by what became of their report",
            ),
            alerts_lost: add(
                r,
                "budget_alerts_lost",
                "Alerts given up undelivered because too many waited",
                Counter::default(),
            ),
            again: add(r, "budget_reports_again", "Reports of usage sent once more", Counter::default()),
        }
    }

    /// Tells how far the budgets are used, and how many alerts were given up.
    pub fn tell_used(&self, budgets: &Budgets) {
        super::cluster::so_far(&self.alerts_lost, budgets.alerts_lost());
        for (key, period) in budgets.current() {
            let Some(view) = period.and_then(|_| budgets.view(key, None)) else { continue };
            let limit = view.terms.map_or(0, |terms| terms.limit).max(1);
            let labels = vec![("tenant", key.tenant.to_string()), ("period", key.label())];
            self.used_ratio.with(labels).set(view.used as f64 / limit as f64);
        }
    }

    /// Tells what reports have counted, and how many reservations found no place to be closed from.
    pub fn tell(&self, stats: &Stats, not_closed: u64) {
        so_far_by(&self.ends, "outcome", "not_closed", not_closed);
        so_far_by(&self.ends, "outcome", "counted", stats.counted);
        so_far_by(&self.ends, "outcome", "repeated", stats.repeated);
        so_far_by(&self.ends, "outcome", "refused", stats.refused);
        so_far_by(&self.ends, "outcome", "dropped", stats.dropped);
        super::cluster::so_far(&self.again, stats.again);
    }
}
