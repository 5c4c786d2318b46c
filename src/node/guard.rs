//! The guard: owns a reservation from the moment it is admitted until it ends, once.
//!
//! Settling, closing or cancelling consumes it. Dropping it abandons the reservation at its estimate if anything was sent to a
//! provider, and cancels it if nothing was: no way out of a request, a panic or a vanished caller among them, leaves it open.

use std::sync::Arc;

use jiff::tz::TimeZone;

use super::bill::{Bill, Known};
use super::charge::{charge, lines_of};
use super::decisions::{Ending, Record};
use super::open::Held;
use super::reports::Ended;
use super::wire::Of;
use super::{Node, Principal};
use crate::control::budget::UNITS_MOST;
use crate::control::pool::Feedback;
use crate::control::price::{self, Tariff};
use crate::ledger::Basis;
use crate::limit::{Amount, Denial, Levels, Moment, Paid, ReservationId, Resolution, Resolved};
use crate::meter::Usage;
use crate::route::{Dialect, Endpoint};

/// A held reservation. Whoever sends a request to a provider must show it.
#[must_use = "dropping a guard ends its reservation"]
pub struct Guard {
    node: Arc<Node>,
    principal: Arc<Principal>,
    endpoint: Endpoint,
    record: Arc<Record>,
    levels: Levels,
    decided: Moment,
    holding: Holding,
    /// What was taken from its owner's purses.
    paid: Option<Box<Paid>>,
    attempts: u32,
    /// How many of them the pool was paid for.
    attempts_paid: u32,
    upstream_status: u16,
    /// What is known of its tokens, kind by kind.
    usage: Option<(Usage, Basis)>,
    /// What was only counted is all that is charged.
    counted_counts: bool,
    /// What its model costs, as it was admitted.
    tariff: Option<Box<Tariff>>,
    over: bool,
}

/// How it was admitted.
pub(super) struct Admitted {
    /// What its path held then.
    pub(super) levels: Levels,
    /// When that was.
    pub(super) at: Moment,
    /// What was taken from its owner's purses.
    pub(super) paid: Option<Box<Paid>>,
}

/// What a guard owns.
pub(super) enum Holding {
    /// The estimate, debited under this id; with what its owner may have to be told of it, if that can be another node.
    Estimate(ReservationId, Option<Held>),
    /// An id under which nothing was debited: let through in shadow.
    Shadow(ReservationId),
    /// Nothing: let through because nobody could be asked.
    Nothing,
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
    #[allow(
        clippy::too_many_arguments,
        reason = "what a decision comes to, in the one place where guards are made"
    )]
    pub(super) fn new(
        node: Arc<Node>,
        principal: Arc<Principal>,
        endpoint: Endpoint,
        record: Arc<Record>,
        admitted: Admitted,
        holding: Holding,
    ) -> Self {
        node.metrics.inflight.inc();
        let day = record.at.to_zoned_datetime(TimeZone::UTC).date();
        let tariff = price::in_force(&node.snapshot.load().policy.price_book, &record.model, day);
        Self {
            node,
            principal,
            endpoint,
            record,
            levels: admitted.levels,
            decided: admitted.at,
            holding,
            paid: admitted.paid,
            attempts: 0,
            attempts_paid: 1,
            upstream_status: 0,
            usage: None,
            counted_counts: false,
            tariff: tariff.map(Box::new),
            over: false,
        }
    }

    /// The request's id.
    #[must_use]
    pub fn id(&self) -> ReservationId {
        self.record.id
    }

    /// The id under which its owner holds it: another than the request's where an earlier one was given up. None if nothing is held.
    #[must_use]
    pub const fn reservation(&self) -> Option<ReservationId> {
        match self.holding {
            Holding::Estimate(id, _) | Holding::Shadow(id) => Some(id),
            Holding::Nothing => None,
        }
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

    /// Has the pool paid for one more attempt, if those that were paid for have all gone out: the provider counts each.
    ///
    /// # Errors
    /// It is not paid for: there is to be no further attempt.
    pub async fn pay_again(&mut self) -> Result<(), Denial> {
        let pool = self.paid.as_ref().and_then(|paid| paid.pool.as_ref());
        if pool.is_none() || self.attempts < self.attempts_paid {
            return Ok(());
        }
        let number = self.attempts_paid + 1;
        let Some(of) = self.of(self.node.now()) else { return Ok(()) };
        self.node.pay_attempt(of, number).await?;
        self.attempts_paid = number;
        Ok(())
    }

    /// The provider has said how much its account still takes.
    pub fn heard(&self, feedback: Feedback) {
        if let Some(pool) = self.paid.as_ref().and_then(|paid| paid.pool.as_ref()) {
            self.node.escrow().hear(pool, feedback);
        }
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

    /// Ends it with the usage of a complete answer over `choices` choices, from which the route's next estimates learn.
    pub fn settle_complete(mut self, usage: Usage, dialect: Dialect, choices: u32) -> Receipt {
        if self.endpoint.has_output() {
            let each = usage.output.div_ceil(u64::from(choices.max(1)));
            self.node.learned.observe(self.endpoint, &self.record.model, each);
        }
        self.usage = Some((usage, Basis::Reported));
        self.settle(amount(usage, dialect), "usage")
    }

    /// Ends it with what was seen of an answer whose caller has gone: `used` in all, of which `seen` is known kind by kind. Budgets charge
    /// the estimate all the same, since the provider may go on and bill it, unless `counted_counts`.
    pub fn settle_seen(
        mut self,
        used: Amount,
        seen: Usage,
        counted_counts: bool,
        why: &'static str,
    ) -> Receipt {
        self.usage = Some((seen, Basis::Counted));
        self.counted_counts = counted_counts;
        self.settle(used, why)
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
        let now = self.node.now();
        let receipt = self.resolve(now, resolution);
        let Receipt { refunded, overage, .. } = receipt;
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
        let known = Known::at_end(self.usage, resolution, why, self.record.estimate);
        self.report(&known, resolution);
        if let Some(ledger) = self.node.ledger() {
            let bill = Bill {
                record: &self.record,
                ending,
                resolution,
                known,
                tariff: self.tariff.as_deref().copied(),
            };
            ledger.note(bill.row(&self.node.snapshot().policy));
        }
        super::log_decision(&self.record);
        receipt
    }

    /// Ends it at its owner. An owner that is told later will come to what the guard says now.
    fn resolve(&self, now: Moment, resolution: Resolution) -> Receipt {
        let Some(of) = self.of(now) else { return Receipt { charged: 0, refunded: 0, overage: 0 } };
        let held = match &self.holding {
            Holding::Estimate(..) => self.record.estimate.total,
            Holding::Shadow(_) | Holding::Nothing => 0,
        };
        let (refunded, overage) = match (self.node.resolve(of, resolution), resolution) {
            (Some(Resolved::Now { refunded, overage } | Resolved::Late { refunded, overage }), _) => {
                (refunded, overage)
            }
            (Some(Resolved::Already | Resolved::Unknown), _) => (0, 0),
            (None, _) if held == 0 => (0, 0),
            (None, Resolution::Settle(used)) => {
                (held.saturating_sub(used.total), used.total.saturating_sub(held))
            }
            (None, Resolution::Close | Resolution::Abandon) => (0, 0),
            (None, Resolution::Cancel) => (held, 0),
        };
        Receipt { charged: (held + overage).saturating_sub(refunded), refunded, overage }
    }

    /// Has the budgets that paid for it told how it ended. What was cancelled where it was debited is back in the purse it came from, and
    /// of what was cancelled elsewhere nobody knows whether it is: so nobody pays for the number, and no budget frees it.
    fn report(&self, known: &Known, resolution: Resolution) {
        let (Some(paid), Holding::Estimate(id, _)) = (&self.paid, &self.holding) else { return };
        if paid.budgets.is_empty() {
            return;
        }
        if resolution == Resolution::Cancel {
            self.node.reports().void(*id, true);
            return;
        }
        let ended = lines_of(paid).map(|(line, reserved)| {
            let unit = line.budget.unit;
            let actual = charge(unit, reserved, known, self.tariff.as_deref(), self.counted_counts);
            Ended { line, reserved, actual: actual.min(UNITS_MOST) }
        });
        let last = self.node.escrow().is_last(paid);
        self.node.reports().end(*id, ended.collect(), last);
    }

    /// What its owner knows it as; nothing if nobody does.
    fn of(&self, now: Moment) -> Option<Of> {
        let tenant = self.principal.tenant.clone();
        match &self.holding {
            Holding::Estimate(id, Some(held)) => Some(Of::Held(held.announce(*id, now))),
            Holding::Estimate(id, None) | Holding::Shadow(id) => Some(Of::Id { tenant, id: *id }),
            Holding::Nothing => None,
        }
    }

    fn count(&self, resolution: Resolution, receipt: Receipt) {
        self.node.metrics.inflight.dec();
        if !matches!(self.holding, Holding::Estimate(..)) {
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
                    let held = self.record.estimate.total;
                    counters.error_ratio.observe(used.total as f64 / held as f64);
                    counters.efficiency.observe(used.total.min(held) as f64 / held as f64);
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

/// What a provider's report comes to for limits.
#[must_use]
pub fn amount(usage: Usage, dialect: Dialect) -> Amount {
    Amount::with_total(usage.total(), usage.limit_input(dialect), usage.output)
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.over {
            let resolution = if self.attempts == 0 { Resolution::Cancel } else { Resolution::Abandon };
            self.end(resolution, "dropped");
        }
    }
}
