//! The guard: owns a reservation from the moment it is admitted until it ends, once.
//!
//! Settling, closing or cancelling consumes it. Dropping it abandons the reservation at its estimate if anything was sent to a
//! provider, and cancels it if nothing was: no way out of a request, a panic or a vanished caller among them, leaves it open.

use std::sync::Arc;

use super::decisions::{Ending, Record};
use super::{Node, Principal};
use crate::limit::{Amount, Levels, Moment, ReservationId, Resolution, Resolved};
use crate::route::Endpoint;

/// A held reservation. Whoever sends a request to a provider must show it.
#[must_use = "dropping a guard ends its reservation"]
pub struct Guard {
    node: Arc<Node>,
    principal: Arc<Principal>,
    endpoint: Endpoint,
    record: Arc<Record>,
    levels: Levels,
    decided: Moment,
    attempts: u32,
    upstream_status: u16,
    over: bool,
}

/// What a reservation cost in the end, in total tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// Charged.
    pub charged: u64,
    /// Held and given back.
    pub refunded: u64,
    /// Used beyond what was held.
    pub overage: u64,
}

impl Guard {
    pub(super) fn new(
        node: Arc<Node>,
        principal: Arc<Principal>,
        endpoint: Endpoint,
        record: Arc<Record>,
        levels: Levels,
        decided: Moment,
    ) -> Self {
        node.metrics.inflight.inc();
        Self {
            node,
            principal,
            endpoint,
            record,
            levels,
            decided,
            attempts: 0,
            upstream_status: 0,
            over: false,
        }
    }

    /// The reservation's id.
    #[must_use]
    pub fn id(&self) -> ReservationId {
        self.record.id
    }

    /// What is held.
    #[must_use]
    pub fn held(&self) -> Amount {
        self.record.estimate
    }

    /// The path's levels when it was admitted.
    #[must_use]
    pub fn levels(&self) -> &Levels {
        &self.levels
    }

    /// Says that a request is about to go to the provider: from here on the provider may bill.
    pub fn sending(&mut self) {
        self.attempts += 1;
    }

    /// Takes back the last [`Guard::sending`]: it is certain that not a byte went out.
    pub fn not_sent(&mut self) {
        self.attempts = self.attempts.saturating_sub(1);
    }

    /// Notes the provider's status.
    pub fn answered(&mut self, status: u16) {
        self.upstream_status = status;
    }

    /// Ends it with the usage of a complete answer: `used` over `choices` choices, from which the route's next estimates learn.
    pub fn settle_complete(self, used: Amount, choices: u32) -> Receipt {
        if self.endpoint.has_output() {
            let each = used.output.div_ceil(u64::from(choices.max(1)));
            self.node.learned.observe(self.endpoint, &self.record.model, each);
        }
        self.settle(used, "usage")
    }

    /// Ends it with what was used.
    pub fn settle(mut self, used: Amount, why: &'static str) -> Receipt {
        self.end(Resolution::Settle(used), why)
    }

    /// Ends it at its estimate: there is no better number.
    pub fn close(mut self, why: &'static str) -> Receipt {
        self.end(Resolution::Close, why)
    }

    /// Ends it with nothing charged if nothing was sent, and at its estimate if anything was.
    pub fn give_up(mut self, why: &'static str) -> Receipt {
        let resolution = if self.attempts == 0 { Resolution::Cancel } else { Resolution::Close };
        self.end(resolution, why)
    }

    fn end(&mut self, resolution: Resolution, why: &'static str) -> Receipt {
        self.over = true;
        let now = crate::clock::now();
        let resolved = self.node.resolve(now, &self.principal.tenant, self.record.id, resolution);
        // What was let through in shadow was not debited.
        let held = if self.record.outcome == "shadowed" { 0 } else { self.record.estimate.total };
        let (refunded, overage) = match resolved {
            Resolved::Now { refunded, overage } | Resolved::Late { refunded, overage } => (refunded, overage),
            Resolved::Already | Resolved::Unknown => (0, 0),
        };
        let receipt = Receipt { charged: (held + overage).saturating_sub(refunded), refunded, overage };
        let how = match resolution {
            Resolution::Settle(_) => "settled",
            Resolution::Close => "closed",
            Resolution::Abandon => "abandoned",
            Resolution::Cancel => "cancelled",
        };
        self.count(resolution, receipt);
        let ending = Ending {
            how,
            why,
            charged: receipt.charged,
            refunded,
            overage,
            attempts: self.attempts,
            upstream_status: self.upstream_status,
            milliseconds: now.since(self.decided).as_nanos() / 1_000_000,
        };
        // The guard ends once, so this is the only ending.
        let _ = self.record.ending.set(ending);
        super::log_decision(&self.record);
        receipt
    }

    fn count(&self, resolution: Resolution, receipt: Receipt) {
        self.node.metrics.inflight.dec();
        if self.record.outcome == "shadowed" {
            // It was never debited, so the books have nothing of it.
            return;
        }
        let counters = self.principal.counters(&self.node.metrics, self.endpoint);
        counters.refunded.inc_by(receipt.refunded);
        counters.overage.inc_by(receipt.overage);
        match resolution {
            Resolution::Settle(used) => {
                counters.settled.inc_by(used.total);
                if self.record.estimate.total > 0 {
                    counters.error_ratio.observe(used.total as f64 / self.record.estimate.total as f64);
                }
            }
            Resolution::Close => {
                counters.closed.inc_by(receipt.charged);
            }
            Resolution::Abandon => {
                counters.abandoned.inc_by(receipt.charged);
            }
            Resolution::Cancel => {}
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.over {
            let resolution = if self.attempts == 0 { Resolution::Cancel } else { Resolution::Abandon };
            self.end(resolution, "dropped");
        }
    }
}
