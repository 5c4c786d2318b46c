//! Whether what all nodes agree on is what happened: budgets, the crossings of their thresholds, the usage ledger, pools.
//!
//! Laws that it checks:
//! - `one_answer`: all nodes say the same of each budget, and it is a budget of the policy's; of each of those they say something;
//! - `charged_once`: used of each budget is what its tenant's requests used: in tokens, what their decisions were charged; in dollars, what the
//!   provider's bills cost by the price book, as the ledger has it too;
//! - `budget_holds`: used and held of a budget are no more than its limit, what a cheaper model may use beyond that, and what answers used beyond
//!   what was held for them;
//! - `refused_for_good`: who is refused by a budget is told not to try again, and an answer names a cheaper model where one was debited, and
//!   nowhere else;
//! - `alert_once`: the receiver was told each crossing that there was and no other, under one id with the same words in each call, signed, until it
//!   was taken; no node has said one twice (nor must each have said each: what is raised while a node becomes ready was there before it);
//! - `ledger_holds_all`: each request that was let through is one row of one node's ledger, and the rows of each tenant add up to what it was charged;
//! - `pool_holds`: what a pool can grant and what nodes hold of it together are never more than its burst.

use std::collections::{BTreeMap, BTreeSet};

use super::Report;
use crate::control::budget::Alert;
use crate::control::period::PeriodId;
use crate::demo::evidence::{BudgetSays, BudgetsSay, Evidence, LevelSays, PoolSays, Terms, Used};
use crate::demo::report::{Alerts, Budget, Pool};

/// Refusals by a budget.
const BY_BUDGETS: [&str; 2] = ["budget_exhausted", "deferred"];

/// A whole, in the millionths of a threshold and in the tokens of a price.
const MILLION: u128 = 1_000_000;

pub(super) fn audit(evidence: &Evidence, report: &mut Report) {
    let nobody = BudgetsSay::default();
    let first = evidence.nodes.first().map_or(&nobody, |node| &node.budgets);
    for node in evidence.nodes.iter().filter(|node| settled(&node.budgets) != settled(first)) {
        let (id, says) = (node.id, &node.budgets);
        report.problems.push(format!("node {id} says {says:?} of the budgets, and another {first:?}"));
    }
    let said: BTreeSet<String> = first.budgets.iter().map(BudgetSays::name).collect();
    if !said.iter().eq(evidence.terms.keys()) {
        let named: Vec<&String> = evidence.terms.keys().collect();
        report.problems.push(format!("the policy has the budgets {named:?}, the nodes {said:?}"));
    }
    for says in &first.budgets {
        if let Some(terms) = evidence.terms.get(&says.name()) {
            budget(says, terms, evidence, report);
        }
    }
    answers(evidence, report);
    alerts(&first.budgets, evidence, report);
    ledger(evidence, report);
    for pool in &evidence.pools {
        levels(pool, evidence, report);
    }
}

/// What is said of budgets, but for what nodes hold for requests to come: that moves all the time.
fn settled(says: &BudgetsSay) -> Vec<BudgetSays> {
    says.budgets.iter().map(|budget| BudgetSays { escrow: 0, ..budget.clone() }).collect()
}

/// One budget, against what its tenant did.
fn budget(says: &BudgetSays, terms: &Terms, evidence: &Evidence, report: &mut Report) {
    let decisions = || evidence.decisions.values().filter(|decision| decision.tenant == says.tenant);
    let debited = || decisions().filter(|decision| decision.is_debited());
    let expected: u64 = if says.unit == "tokens" {
        debited().filter_map(|decision| Some(decision.ending.as_ref()?.charged)).sum()
    } else {
        cost(&says.tenant, evidence)
    };
    let BudgetSays { limit, used, escrow, overage, unit, .. } = says;
    if *used != expected {
        report.problems.push(format!(
            "of the budget {} {used} {unit} are used, its requests used {expected}",
            says.name()
        ));
    }
    let rows = evidence.ledger.get(&says.tenant).copied().unwrap_or_default();
    if unit != "tokens" && *used != rows.cost_micro_dollars {
        report.problems.push(format!(
            "of the budget {} {used} {unit} are used, the ledger has {}",
            says.name(),
            rows.cost_micro_dollars
        ));
    }
    let most = limit + terms.degraded + overage;
    if used + escrow > most {
        report.problems.push(format!(
            "{used} used and {escrow} held of the budget {} are more than {most}",
            says.name()
        ));
    }
    let refused = evidence
        .seen
        .iter()
        .filter(|seen| seen.tenant == says.tenant)
        .filter(|seen| is_by_a_budget(&seen.code));
    report.budgets.push(Budget {
        tenant: says.tenant.clone(),
        cycle: says.cycle.clone(),
        unit: unit.clone(),
        limit: *limit,
        used: *used,
        held: *escrow,
        overage: *overage,
        degraded: says.degraded,
        requests_refused: refused.count() as u64,
        requests_degraded: decisions().filter(|decision| decision.outcome == "degraded").count() as u64,
        thresholds_told: told_of(says, terms, evidence),
    });
}

/// What the provider's bills of a tenant cost, each rounded up to a millionth of a dollar.
fn cost(tenant: &str, evidence: &Evidence) -> u64 {
    let bills = evidence.rows.iter().filter(|row| {
        let decision = row.decision.as_ref().and_then(|id| evidence.decisions.get(id));
        decision.is_some_and(|decision| decision.tenant == tenant)
    });
    let costs = bills.map(|row| {
        let (input, output) = evidence.prices.get(&row.model).copied().unwrap_or_default();
        let parts = u128::from(row.input_tokens) * u128::from(input)
            + u128::from(row.output_tokens) * u128::from(output);
        u64::try_from(parts.div_ceil(MILLION)).unwrap_or(u64::MAX)
    });
    costs.sum()
}

fn is_by_a_budget(code: &Option<String>) -> bool {
    code.as_deref().is_some_and(|code| BY_BUDGETS.contains(&code))
}

/// What answers said of budgets, against the decisions.
fn answers(evidence: &Evidence, report: &mut Report) {
    for seen in &evidence.seen {
        if is_by_a_budget(&seen.code) && seen.should_retry.as_deref() != Some("false") {
            report.problems.push(format!("refused by a budget, and not told to stay away: {seen:?}"));
        }
        let decision = seen.decision.as_ref().and_then(|id| evidence.decisions.get(id));
        let debited =
            decision.filter(|decision| decision.outcome == "degraded").map(|decision| &decision.model);
        if seen.status == Some(200) && seen.degraded.as_ref() != debited {
            report.problems.push(format!("debited for the cheaper model {debited:?}, but: {seen:?}"));
        }
    }
}

/// The receiver's calls, against the crossings that there must have been.
fn alerts(budgets: &[BudgetSays], evidence: &Evidence, report: &mut Report) {
    let crossings: BTreeSet<String> = budgets
        .iter()
        .filter_map(|says| Some(crossed(says, evidence.terms.get(&says.name())?)))
        .flatten()
        .map(|alert| alert.id())
        .collect();
    let told: BTreeSet<String> = evidence.told.iter().map(|told| told.id.clone()).collect();
    if told != crossings {
        report.problems.push(format!("thresholds were crossed: {crossings:?}, told were {told:?}"));
    }
    let mut words = BTreeMap::new();
    for told in &evidence.told {
        if !told.genuine {
            report.problems.push(format!("an alert without its sender's signature: {told:?}"));
        }
        if *words.entry(&told.id).or_insert(&told.body) != &told.body {
            report.problems.push(format!("{} was told in other words: {}", told.id, told.body));
        }
    }
    let taken: BTreeSet<&String> =
        evidence.told.iter().filter(|told| told.taken).map(|told| &told.id).collect();
    for id in told.iter().filter(|id| !taken.contains(id)) {
        report.problems.push(format!("{id} was not taken, and not told again"));
    }
    for node in &evidence.nodes {
        let said = node.metrics.sum("tollgate_budget_alerts_total", &[]);
        if said > crossings.len() as u64 {
            report.problems.push(format!(
                "node {} has said {said} crossings of {}",
                node.id,
                crossings.len()
            ));
        }
    }
    report.alerts = Alerts { crossings: told.len() as u64, calls: evidence.told.len() as u64 };
}

/// The alerts that a budget must have raised by now.
fn crossed(says: &BudgetSays, terms: &Terms) -> Vec<Alert> {
    let reached =
        |threshold: &u32| u128::from(says.used) * MILLION >= u128::from(says.limit) * u128::from(*threshold);
    let alert = |threshold: u32| Alert {
        budget: terms.key.clone(),
        period: PeriodId(says.period),
        threshold,
        limit: says.limit,
        used: says.used,
    };
    terms.thresholds.iter().copied().filter(reached).map(alert).collect()
}

fn told_of(says: &BudgetSays, terms: &Terms, evidence: &Evidence) -> Vec<f64> {
    let is_told = |id: String| evidence.told.iter().any(|told| told.taken && told.id == id);
    let crossed = crossed(says, terms).into_iter().filter(|alert| is_told(alert.id()));
    crossed.map(|alert| f64::from(alert.threshold) / 1e6).collect()
}

/// The ledgers of all nodes, against the decisions.
fn ledger(evidence: &Evidence, report: &mut Report) {
    let mut sums: BTreeMap<&str, (Used, bool)> = BTreeMap::new();
    for decision in evidence.decisions.values().filter(|decision| !decision.is_refused()) {
        let (sum, shadowed) = sums.entry(&decision.tenant).or_default();
        sum.requests += 1;
        sum.settled += decision.ending.as_ref().map_or(0, |ending| ending.charged);
        *shadowed |= !decision.is_debited();
    }
    let tenants: BTreeSet<&str> =
        sums.keys().copied().chain(evidence.ledger.keys().map(String::as_str)).collect();
    for tenant in tenants {
        let (sum, shadowed) = sums.get(tenant).copied().unwrap_or_default();
        let rows = evidence.ledger.get(tenant).copied().unwrap_or_default();
        // Of what is only watched, a row has what it would have been charged.
        if rows.requests != sum.requests || (rows.settled != sum.settled && !shadowed) {
            report
                .problems
                .push(format!("the ledger has {rows:?} of {tenant}, its decisions come to {sum:?}"));
        }
        report.ledger_rows += rows.requests;
    }
}

fn levels(pool: &PoolSays, evidence: &Evidence, report: &mut Report) {
    let refused = evidence.decisions.values().filter(|decision| {
        decision.reason.as_deref() == Some("global_capacity")
            && evidence.pool_of.get(&decision.model) == Some(&pool.id)
    });
    let refused = refused.count() as u64;
    for level in &pool.levels {
        let LevelSays { limit, guard_per_minute, burst, level, outstanding, spent, written_off } = level;
        if i128::from(*level) + i128::from(*outstanding) > i128::from(*burst) {
            report.problems.push(format!(
                "the pool {} has {level} and its nodes {outstanding}, of a burst of {burst}",
                pool.id
            ));
        }
        report.pools.push(Pool {
            pool: pool.id.clone(),
            limit: limit.clone(),
            guard_per_minute: *guard_per_minute,
            burst: *burst,
            level: *level,
            held: *outstanding,
            spent: *spent,
            written_off: *written_off,
            refused,
        });
    }
}
