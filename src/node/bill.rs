//! What the ledger keeps of a request: its decision, its end, and what is known of its tokens, as one row.

use super::decisions::{Ending, Record};
use crate::control::price::{self, Tariff};
use crate::ledger::{Basis, Row};
use crate::limit::{Amount, Name, Resolution};
use crate::meter::Usage;
use crate::policy::Policy;

/// A request that has ended.
pub(super) struct Bill<'a> {
    pub(super) record: &'a Record,
    pub(super) ending: Ending,
    pub(super) resolution: Resolution,
    /// What is known of its tokens.
    pub(super) known: Known,
    /// What its model cost when it was admitted.
    pub(super) tariff: Option<Tariff>,
}

/// What is known of the tokens of a request that has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    /// Kind by kind.
    pub(super) usage: Usage,
    /// Who says so.
    pub(super) basis: Basis,
    /// All of them that were settled, if that is more.
    pub(super) total: u64,
}

impl Known {
    /// What is known at the end of a reservation that held `estimate`: `usage` where there is any. A request that failed without a report is
    /// billed by no provider.
    pub(super) fn at_end(
        usage: Option<(Usage, Basis)>,
        resolution: Resolution,
        why: &str,
        estimate: Amount,
    ) -> Self {
        let total = if let Resolution::Settle(used) = resolution { used.total } else { 0 };
        if let Some((usage, basis)) = usage {
            return Self { usage, basis, total };
        }
        let of = |input, output| Usage { uncached_input: input, output, ..Usage::default() };
        let (usage, basis) = match (resolution, why) {
            (Resolution::Settle(used), _) if used.total > 0 => (of(used.input, used.output), Basis::Counted),
            (Resolution::Settle(_) | Resolution::Cancel, _)
            | (Resolution::Close | Resolution::Abandon, "provider_failed" | "no_answer" | "undecodable") => {
                (Usage::default(), Basis::Nothing)
            }
            (Resolution::Close | Resolution::Abandon, "fixed_cost") => (Usage::default(), Basis::Fixed),
            (Resolution::Close | Resolution::Abandon, _) => {
                (of(estimate.input, estimate.output), Basis::Estimate)
            }
        };
        Self { usage, basis, total }
    }
}

impl Bill<'_> {
    /// Its row, with the pool that `policy` has for its model.
    pub(super) fn row(&self, policy: &Policy) -> Row {
        let Self { record, ending, .. } = self;
        let Known { usage, basis, .. } = self.known;
        let tariff = self.tariff.as_ref().filter(|_| basis != Basis::Fixed);
        let pool = policy.models.get(&*record.model).map_or("", |model| model.pool.as_str());
        Row {
            id: record.id,
            at_ms: record.at.as_millisecond(),
            milliseconds: ending.milliseconds,
            tenant: record.tenant.clone(),
            project: record.project.clone(),
            key: record.key.clone(),
            user: record.user,
            route: record.route.into(),
            model_asked: record.model_asked.clone(),
            model: record.model.clone(),
            provider: record.provider.clone(),
            pool: Name::from(pool),
            uncached: usage.uncached_input,
            cached: usage.cache_read,
            cache_written: usage.cache_write,
            output: usage.output,
            basis,
            estimate: record.estimate.total,
            settled: self.settled(),
            cost_micro_dollars: tariff.map(|tariff| price::cost(&tariff.price, &usage)),
            price_book: tariff.map(|tariff| tariff.since.to_string().into()),
            policy_version: record.policy_version,
            decision: record.outcome.into(),
            outcome: ending.how.into(),
            reason: ending.why.into(),
            attempts: ending.attempts,
            status: ending.upstream_status,
        }
    }

    /// What its limits were charged; of one that was let through without any, what they would have been.
    fn settled(&self) -> u64 {
        match self.resolution {
            Resolution::Settle(used) => used.total,
            Resolution::Close | Resolution::Abandon => self.record.estimate.total,
            Resolution::Cancel => 0,
        }
    }
}
