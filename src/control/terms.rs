//! What a policy means for pools and budgets. Whoever proposes a policy computes it, so that no node reads a document while it applies one.

use std::collections::BTreeMap;

use super::budget::{BudgetKey, BudgetTerms, Part, Unit};
use super::period::Cycle;
use super::policy::Settings;
use crate::limit::{Dimension, Name, Rate, Terms};
use crate::policy::{
    ANONYMOUS, Budget, BudgetAmount, OnExhausted, Period, Policy, Pool, Ratio, RefundCredit,
};

/// How far a cheaper model may go beyond a budget where the policy does not say: a fifth of it.
const DEGRADED_PART: Ratio = Ratio::from_parts_per_million(200_000);

/// What the replicated state needs of `policy`.
#[must_use]
pub fn settings(policy: &Policy) -> Settings {
    Settings { pools: of_pools(policy), budgets: of_budgets(policy) }
}

/// What holds of each pool, by name.
#[must_use]
pub fn of_pools(policy: &Policy) -> BTreeMap<Name, Terms> {
    policy.pools.iter().map(|(name, pool)| (name.as_str().into(), of_pool(pool))).collect()
}

/// What holds of each budget: of tenants, of their projects and keys, and of callers without a credential.
#[must_use]
pub fn of_budgets(policy: &Policy) -> BTreeMap<BudgetKey, BudgetTerms> {
    let tenants = policy.tenants.iter().flat_map(|tenant| {
        let whole = named(&tenant.id, Part::Tenant, policy.budgets_of(tenant));
        let projects = tenant.projects.iter().flat_map(|project| {
            named(&tenant.id, Part::Project(project.id.as_str().into()), &project.budgets)
        });
        let keys = tenant
            .keys
            .iter()
            .flat_map(|key| named(&tenant.id, Part::Key(key.label.as_str().into()), &key.budgets));
        whole.into_iter().chain(projects).chain(keys).collect::<Vec<_>>()
    });
    let anonymous = policy.anonymous.iter();
    let anonymous = anonymous.flat_map(|category| named(ANONYMOUS, Part::Tenant, &category.budgets));
    tenants.chain(anonymous).collect()
}

/// What the policy says of a budget; nothing of one that it does not name.
#[must_use]
pub fn budget_of<'p>(policy: &'p Policy, key: &BudgetKey) -> Option<&'p Budget> {
    let tenant = || policy.tenant(&key.tenant);
    let budgets: &[Budget] = match &key.part {
        Part::Tenant if &*key.tenant == ANONYMOUS => &policy.anonymous.as_ref()?.budgets,
        Part::Tenant => policy.budgets_of(tenant()?),
        Part::Project(id) => &tenant()?.projects.iter().find(|project| project.id == **id)?.budgets,
        Part::Key(label) => &tenant()?.keys.iter().find(|known| known.label == **label)?.budgets,
    };
    budgets.iter().find(|budget| cycle_and_unit(budget) == (key.cycle, key.unit))
}

const fn cycle_and_unit(budget: &Budget) -> (Cycle, Unit) {
    let unit = match budget.amount {
        BudgetAmount::Tokens(_) => Unit::Tokens,
        BudgetAmount::Usd(_) => Unit::MicroDollars,
    };
    let cycle = match budget.period {
        Period::Hourly => Cycle::Hour,
        Period::Daily => Cycle::Day,
        Period::Weekly => Cycle::Week,
        Period::Monthly => Cycle::Month,
    };
    (cycle, unit)
}

/// The guard rate of each dimension that has a ceiling, and what may be claimed at once.
///
/// The policy states the burst in tokens, all of them; a part has its part of it. What is neither handed out as rate nor kept in reserve may be
/// claimed at once in requests.
fn of_pool(pool: &Pool) -> Terms {
    let all = pool.ceiling.all_tokens_per_minute();
    let held_back = pool.guard.parts_per_million() + pool.reserve.parts_per_million();
    let left = Ratio::from_parts_per_million(1_000_000_u32.saturating_sub(held_back));
    let limits = Dimension::ALL.map(|dimension| {
        let ceiling = match dimension {
            Dimension::Tokens => pool.ceiling.tokens_per_minute,
            Dimension::InputTokens => pool.ceiling.input_tokens_per_minute,
            Dimension::OutputTokens => pool.ceiling.output_tokens_per_minute,
            Dimension::Requests => pool.ceiling.requests_per_minute,
        }?;
        let burst = match (dimension, all) {
            (Dimension::Requests, _) | (_, None) => left.of(ceiling),
            (_, Some(all)) => part(pool.burst_tokens, ceiling, all),
        };
        Some(Rate::new(pool.guard.of(ceiling), burst))
    });
    Terms::new(limits, pool.refund_credit == RefundCredit::Full)
}

/// `amount · part / whole`, rounded down; all of it where the part is not smaller than the whole.
fn part(amount: u64, part: u64, whole: u64) -> u64 {
    let scaled = u128::from(amount) * u128::from(part.min(whole)) / u128::from(whole.max(1));
    u64::try_from(scaled).unwrap_or(amount)
}

fn named(tenant: &str, part: Part, budgets: &[Budget]) -> Vec<(BudgetKey, BudgetTerms)> {
    budgets
        .iter()
        .map(|budget| {
            let amount = match budget.amount {
                BudgetAmount::Tokens(tokens) => tokens,
                BudgetAmount::Usd(money) => money.0,
            };
            let (cycle, unit) = cycle_and_unit(budget);
            let degraded = match &budget.on_exhausted {
                OnExhausted::Degrade { limit, .. } => limit.unwrap_or(DEGRADED_PART).of(amount),
                OnExhausted::Refuse | OnExhausted::Queue => 0,
            };
            let thresholds = budget.soft_thresholds.iter().map(|part| part.parts_per_million()).collect();
            let key = BudgetKey { tenant: tenant.into(), part: part.clone(), cycle, unit };
            (key, BudgetTerms { limit: amount, degraded, zone: budget.zone.as_str().into(), thresholds })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(pools: &str, tenants: &str) -> Policy {
        let text = format!(
            "version: 1\nproviders: {{ p: {{ dialect: openai, base_url: 'http://127.0.0.1:1' }} }}\n\
             pools: {{ main: {{ provider: p, {pools} }} }}\n\
             models: {{ m: {{ provider: p, pool: main }}, cheap: {{ provider: p, pool: main }} }}\n\
             price_book: [ {{ effective: 2026-01-01, models: {{ m: {{ input: 1, output: 1 }}, cheap: {{ input: 1, output: 1 }} }} }} ]\n\
             tiers: {{ t: {{ tokens_per_minute: 10 }} }}\ntenants: [ {tenants} ]\n"
        );
        crate::policy::parse(&text, "t").unwrap_or_else(|problems| panic!("{problems:?}"))
    }

    fn limits(pools: &str) -> [Option<(u64, u64)>; 4] {
        let terms = of_pools(&policy(pools, "{ id: acme, tier: t }"));
        terms["main"].limits.map(|limit| limit.map(|rate| (rate.per_minute, rate.burst)))
    }

    #[test]
    fn guard_and_burst_come_from_the_ceiling() {
        assert_eq!(
            limits("ceiling: { tokens_per_minute: 600_000, requests_per_minute: 1_000 }"),
            [Some((510_000, 60_000)), None, None, Some((850, 100))]
        );
        // A part has its part of the burst.
        assert_eq!(
            limits("ceiling: { input_tokens_per_minute: 800_000, output_tokens_per_minute: 200_000 }"),
            [None, Some((680_000, 80_000)), Some((170_000, 20_000)), None]
        );
        assert_eq!(
            limits("burst_tokens: 5_000, guard: 0.5, ceiling: { tokens_per_minute: 100_000 }"),
            [Some((50_000, 5_000)), None, None, None]
        );
        let refunds = |pools| of_pools(&policy(pools, "{ id: acme, tier: t }"))["main"].refunds;
        assert!(refunds("ceiling: { tokens_per_minute: 1_000 }"));
        assert!(!refunds("refund_credit: none, ceiling: { tokens_per_minute: 1_000 }"));
    }

    #[test]
    fn nothing_that_a_minute_can_send_is_above_the_ceiling() {
        for pools in ["", "guard: 0.9, ", "guard: 0.7, reserve: 0.2, "] {
            let limits = limits(&format!("{pools}ceiling: {{ tokens_per_minute: 600_000 }}"));
            let (per_minute, burst) = limits[0].unwrap();
            assert!(per_minute + burst <= 600_000, "{pools}");
        }
    }

    #[test]
    fn each_budget_has_its_key_and_its_terms() {
        let tenants = "{ id: acme, tier: t, budget: [ { period: monthly, tokens: 1_000, zone: Europe/Berlin }, \
             { period: daily, usd: 2.50, soft_thresholds: [0.5], on_exhausted: degrade, degrade_to: cheap } ], \
             projects: [ { id: lab, budget: { period: hourly, tokens: 10, soft_thresholds: [] } } ], \
             keys: [ { label: staging, hash: 'sha256:1924aba5ac03f6f419315cac34dc1fd62f3c33db1e325e889fc31c972929200d', \
             budget: { period: weekly, tokens: 20 } } ] }";
        let policy = policy("ceiling: { tokens_per_minute: 1_000 }", tenants);
        let budgets = of_budgets(&policy);
        let key = |part, cycle, unit| BudgetKey { tenant: "acme".into(), part, cycle, unit };
        let terms = |limit, degraded, zone: &str, thresholds: &[u32]| BudgetTerms {
            limit,
            degraded,
            zone: zone.into(),
            thresholds: thresholds.to_vec(),
        };
        let two = [800_000, 950_000];
        let expected = BTreeMap::from([
            (key(Part::Tenant, Cycle::Month, Unit::Tokens), terms(1_000, 0, "Europe/Berlin", &two)),
            (key(Part::Tenant, Cycle::Day, Unit::MicroDollars), terms(2_500_000, 500_000, "UTC", &[500_000])),
            (key(Part::Project("lab".into()), Cycle::Hour, Unit::Tokens), terms(10, 0, "UTC", &[])),
            (key(Part::Key("staging".into()), Cycle::Week, Unit::Tokens), terms(20, 0, "UTC", &two)),
        ]);
        assert_eq!(budgets, expected);
        for (key, terms) in &budgets {
            let found = budget_of(&policy, key).unwrap();
            assert_eq!(found.zone, *terms.zone, "{key:?}");
        }
        let daily = key(Part::Tenant, Cycle::Day, Unit::Tokens);
        assert_eq!(budget_of(&policy, &daily), None, "it has none in tokens");
    }
}
