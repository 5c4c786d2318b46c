//! Whether the callers, the nodes and the provider tell the same story. Pure: evidence → report.
//!
//! Laws that it checks:
//! - `books_balance`: of every tenant and in all, `reserved − refunded + overage = settled + closed + abandoned`; by the metrics, by the
//!   limiter's own books, and by the decisions added up;
//! - `settled_is_billed`: of every completed answer, what was settled is what the provider billed, id by id;
//! - `cut_within_flight`: of a stream that its caller left, the output charged lies between what had arrived and what was sent;
//! - `nothing_unknown`: every bill belongs to a decision, and every refusal is counted once and by its name;
//! - `everyone_took_part`: each tenant has an owner; whatever a node let through was decided by itself or by another node, and where
//!   there are others, both occurred;
//! - what all nodes agree on, budgets and pools among it, has laws of its own: see `agreed`;
//! - `nothing_left`: no request in flight, no reservation open;
//! - `nothing_idle`: refunds, overage and every refusal that was provoked did occur, or the play has shown nothing.

mod agreed;

use std::collections::BTreeMap;

use super::callers::Seen;
use super::evidence::{Decision, Ending, Evidence};
use super::report::{Aborted, Estimated, Node, Report, Sum, Tenant, Tokens};
use super::scenes::REASONS;
use crate::limit::Span;
use crate::simulated::{Outcome, Row};

/// The answers that carry usage of the input from the start (the other dialect tells it at the end).
const TELLS_INPUT_FIRST: &str = "/v1/messages";

/// What the provider billed for one decision, over all attempts.
#[derive(Clone, Copy, Debug, Default)]
struct Bill {
    input: u64,
    output: u64,
    completed: bool,
}

/// Compares everything with everything.
pub(super) fn audit(evidence: &Evidence, took: Span) -> Report {
    let mut report = Report {
        seconds: (took.as_nanos() / 1_000_000) as f64 / 1_000.0,
        provider: evidence.stats.clone(),
        problems: evidence.complaints.clone(),
        ..Report::default()
    };
    requests(evidence, &mut report);
    tokens(evidence, &mut report);
    nodes(evidence, &mut report);
    let bills = bills(evidence, &mut report);
    for (id, decision) in &evidence.decisions {
        end_of(id, decision, bills.get(id).copied(), evidence, &mut report);
    }
    decisions_add_up(evidence, &mut report);
    agreed::audit(evidence, &mut report);
    nothing_left(evidence, &mut report);
    nothing_idle(&mut report);
    report.balanced = report.problems.is_empty();
    report
}

/// Counts requests as their callers saw them, and compares with the node's own counts.
fn requests(evidence: &Evidence, report: &mut Report) {
    let tiers: BTreeMap<&str, &str> =
        evidence.tiers.iter().map(|(tenant, tier)| (tenant.as_str(), tier.as_str())).collect();
    for seen in &evidence.seen {
        let tenant = report.tenants.entry(seen.tenant.clone()).or_insert_with(|| Tenant {
            tier: tiers.get(seen.tenant.as_str()).copied().unwrap_or_default().to_owned(),
            ..Tenant::default()
        });
        tenant.requests += 1;
        report.requests += 1;
        if was_admitted(seen, evidence) {
            tenant.admitted += 1;
            report.admitted += 1;
        } else {
            tenant.refused += 1;
            report.refused += 1;
            let code = seen.code.clone().unwrap_or_else(|| "none".to_owned());
            *report.refusals.entry(code).or_default() += 1;
        }
    }
    let idle = evidence.tiers.iter().filter(|(tenant, _)| !report.tenants.contains_key(tenant));
    report.idle_tenants = idle.count() as u64;
    let admitted = evidence.metrics.admitted();
    if admitted != report.admitted {
        report
            .problems
            .push(format!("callers saw {} requests admitted, the nodes count {admitted}", report.admitted));
    }
    let mut refusals = BTreeMap::new();
    for outcome in ["denied", "deferred", "error"] {
        let counted = evidence.metrics.by("reason", "tollgate_decisions_total", &[("outcome", outcome)]);
        for (reason, count) in counted {
            *refusals.entry(reason).or_default() += count;
        }
    }
    if refusals != report.refusals {
        report
            .problems
            .push(format!("callers saw the refusals {:?}, the nodes count {refusals:?}", report.refusals));
    }
}

/// A caller that left before an answer had begun has no id; the node held a reservation for it before it left.
fn was_admitted(seen: &Seen, evidence: &Evidence) -> bool {
    match &seen.decision {
        Some(id) => evidence.decisions.get(id).is_some_and(|decision| !decision.is_refused()),
        None => seen.left_with.is_some(),
    }
}

/// The books by the metrics, against the law and the limiter's own.
fn tokens(evidence: &Evidence, report: &mut Report) {
    let counters = [
        ("tollgate_tokens_reserved_total", None),
        ("tollgate_tokens_refunded_total", None),
        ("tollgate_tokens_overage_total", None),
        ("tollgate_tokens_settled_total", None),
        ("tollgate_tokens_unsettled_total", Some("closed")),
        ("tollgate_tokens_unsettled_total", Some("abandoned")),
    ];
    for (place, (name, how)) in counters.into_iter().enumerate() {
        let only: Vec<(&str, &str)> = how.into_iter().map(|how| ("how", how)).collect();
        for (tenant, value) in evidence.metrics.by("tenant", name, &only) {
            *fields(&mut report.tenants.entry(tenant).or_default().tokens)[place] += value;
            *fields(&mut report.tokens)[place] += value;
        }
    }
    for (name, tenant) in &report.tenants {
        if !tenant.tokens.balance() {
            report.problems.push(format!("the books of {name} do not balance: {:?}", tenant.tokens));
        }
    }
    if !report.tokens.balance() {
        report.problems.push(format!("the books do not balance: {:?}", report.tokens));
    }
    owners(evidence, report);
}

/// The owners' books are what the gateways tell. What an owner held for an id that its gateway then did not use stands in the owner's
/// alone, and was given back whole.
fn owners(evidence: &Evidence, report: &mut Report) {
    let books = evidence.books;
    let unused = books.reserved.saturating_sub(u128::from(report.tokens.reserved));
    let used = [
        books.reserved - unused,
        books.refunded.saturating_sub(unused),
        books.overage,
        books.settled,
        books.closed,
        books.abandoned,
    ];
    let told = fields(&mut report.tokens).map(|field| u128::from(*field));
    let asked_again = evidence.metrics.sum("tollgate_asked_again_total", &[]) > 0;
    if used != told || !books.balance() || (unused > 0 && !asked_again) {
        report.problems.push(format!("the owners' books are {books:?}, the metrics say {:?}", report.tokens));
    }
    report.unused_tokens = u64::try_from(unused).unwrap_or(u64::MAX);
}

/// What each node did, and that together it is everything.
fn nodes(evidence: &Evidence, report: &mut Report) {
    let alone = evidence.nodes.len() == 1;
    for (place, says) in evidence.nodes.iter().enumerate() {
        let by_place = |place| says.metrics.sum("tollgate_owner_decisions_total", &[("place", place)]);
        let admitted = says.metrics.admitted();
        let node = Node {
            node: says.id,
            callers: says.callers.clone(),
            role: says.role.clone(),
            shards_owned: says.shards,
            tenants_owned: says.tenants,
            requests: evidence.seen.iter().filter(|seen| seen.node == place).count() as u64,
            // A node that is its own cluster does not count where its owners are.
            decided_here: if alone { admitted } else { by_place("here") },
            decided_elsewhere: by_place("elsewhere"),
        };
        if node.decided_here + node.decided_elsewhere != admitted {
            report.problems.push(format!("node {} let {admitted} requests through, but: {node:?}", says.id));
        }
        report.nodes.push(node);
    }
    let owned: u64 = report.nodes.iter().map(|node| node.tenants_owned).sum();
    if owned != evidence.tiers.len() as u64 {
        report.problems.push(format!("{owned} of {} tenants have an owner", evidence.tiers.len()));
    }
}

fn fields(tokens: &mut Tokens) -> [&mut u64; 6] {
    let Tokens { reserved, refunded, overage, settled, closed, abandoned } = tokens;
    [reserved, refunded, overage, settled, closed, abandoned]
}

/// The provider's bills by decision, against their own sum and the decisions.
fn bills(evidence: &Evidence, report: &mut Report) -> BTreeMap<String, Bill> {
    let mut bills: BTreeMap<String, Bill> = BTreeMap::new();
    for row in &evidence.rows {
        report.provider_tokens += row.input_tokens + row.output_tokens;
        let decision = row.decision.as_deref().and_then(|id| Some((id, evidence.decisions.get(id)?)));
        let Some((id, decision)) = decision else {
            report
                .problems
                .push(format!("the provider billed {row:?}, which belongs to no decision of any node"));
            continue;
        };
        if let Some(tenant) = report.tenants.get_mut(&decision.tenant) {
            tenant.provider_tokens += row.input_tokens + row.output_tokens;
        }
        bills.entry(id.to_owned()).or_default().add(row);
    }
    let stats = &evidence.stats;
    let sums = (stats.input_tokens + stats.output_tokens, stats.requests);
    if sums != (report.provider_tokens, evidence.rows.len() as u64) {
        report
            .problems
            .push(format!("the provider's sums differ from its {} bills: {stats:?}", evidence.rows.len()));
    }
    bills
}

impl Bill {
    fn add(&mut self, row: &Row) {
        self.input += row.input_tokens;
        self.output += row.output_tokens;
        self.completed |= row.outcome == Outcome::Completed;
    }

    fn total(&self) -> u64 {
        self.input + self.output
    }
}

/// How one decision ended, against what the provider billed for it.
fn end_of(id: &str, decision: &Decision, bill: Option<Bill>, evidence: &Evidence, report: &mut Report) {
    if decision.is_refused() {
        if let Some(bill) = bill {
            report.problems.push(format!("{id} was refused, and billed all the same: {bill:?}"));
        }
        return;
    }
    let Some(ending) = &decision.ending else {
        report.problems.push(format!("{id} of {} has not ended", decision.tenant));
        return;
    };
    let billed = bill.unwrap_or_default();
    let sum = |of: &mut Sum, charged: u64| {
        of.count += 1;
        of.charged_tokens += charged;
        of.provider_tokens += billed.total();
    };
    if decision.outcome == "shadowed" {
        // Not debited, so not in the books.
        report.unenforced_tokens += billed.total();
        sum(report.endings.entry("unenforced: shadow".to_owned()).or_default(), 0);
        return;
    }
    sum(report.endings.entry(format!("{}: {}", ending.how, ending.why)).or_default(), ending.charged);
    match (ending.how.as_str(), ending.why.as_str()) {
        ("settled", "client_gone") => aborted(id, decision, ending, billed, evidence, report),
        ("settled", _) => {
            let nothing = bill.is_none() && ending.charged == 0;
            if nothing || (billed.completed && billed.total() == ending.charged) {
                report.matched += 1;
            } else {
                let (tenant, charged) = (&decision.tenant, ending.charged);
                report
                    .problems
                    .push(format!("{id} of {tenant} settled {charged}, the provider billed {bill:?}"));
            }
        }
        ("closed" | "abandoned", _) => report.estimated.push(Estimated {
            decision: id.to_owned(),
            tenant: decision.tenant.clone(),
            how: ending.how.clone(),
            why: ending.why.clone(),
            charged_tokens: ending.charged,
            provider_tokens: billed.total(),
        }),
        ("cancelled", _) if ending.charged == 0 && bill.is_none() => {}
        _ => report
            .problems
            .push(format!("{id} of {} ended as {ending:?}, and was billed {bill:?}", decision.tenant)),
    }
}

/// A stream that its caller left: the output charged is no less than what had arrived, no more than what was sent.
fn aborted(
    id: &str,
    decision: &Decision,
    ending: &Ending,
    bill: Bill,
    evidence: &Evidence,
    report: &mut Report,
) {
    let input = if decision.route == TELLS_INPUT_FIRST { bill.input } else { decision.estimate.input };
    let seen = evidence.seen.iter().find(|seen| seen.decision.as_deref() == Some(id));
    let arrived = seen.and_then(|seen| seen.left_with);
    let charged_output = ending.charged.checked_sub(input);
    let within = match (arrived, charged_output) {
        (Some(arrived), Some(output)) => (arrived..=bill.output).contains(&output),
        _ => false,
    };
    if !within {
        report.problems.push(format!(
            "{id} of {}: its caller left with {arrived:?} tokens of output, {charged_output:?} were charged, {} were billed",
            decision.tenant, bill.output
        ));
    }
    if let Some(tenant) = report.tenants.get_mut(&decision.tenant) {
        tenant.aborted += 1;
    }
    report.aborted.push(Aborted {
        decision: id.to_owned(),
        tenant: decision.tenant.clone(),
        settled_tokens: ending.charged,
        provider_tokens: bill.total(),
        difference: i128::from(bill.total()) - i128::from(ending.charged),
        input_difference: i128::from(bill.input) - i128::from(input),
        in_flight: bill.output.saturating_sub(arrived.unwrap_or(0)),
    });
}

/// The decisions, added up by tenant, are the books.
fn decisions_add_up(evidence: &Evidence, report: &mut Report) {
    let mut sums: BTreeMap<&str, Tokens> = BTreeMap::new();
    for decision in evidence.decisions.values().filter(|decision| decision.is_debited()) {
        let sum = sums.entry(&decision.tenant).or_default();
        sum.reserved += decision.estimate.total;
        let Some(ending) = &decision.ending else { continue };
        sum.refunded += ending.refunded;
        sum.overage += ending.overage;
        match ending.how.as_str() {
            "settled" => sum.settled += ending.charged,
            "closed" => sum.closed += ending.charged,
            "abandoned" => sum.abandoned += ending.charged,
            _ => {}
        }
    }
    for (name, tenant) in &report.tenants {
        let sum = sums.remove(name.as_str()).unwrap_or_default();
        if sum != tenant.tokens {
            report.problems.push(format!(
                "the decisions of {name} add up to {sum:?}, its metrics are {:?}",
                tenant.tokens
            ));
        }
    }
    for (name, sum) in sums {
        report.problems.push(format!("decisions of {name}, who asked for nothing: {sum:?}"));
    }
}

fn nothing_left(evidence: &Evidence, report: &mut Report) {
    let left = [
        ("requests in flight", i128::from(evidence.metrics.gauge("tollgate_inflight"))),
        ("open reservations", i128::from(evidence.metrics.gauge("tollgate_open_reservations"))),
        ("tokens held", i128::try_from(evidence.books.open).unwrap_or(i128::MAX)),
        ("requests at the provider", i128::from(evidence.stats.inflight)),
        (
            "ends that no owner was told",
            i128::from(evidence.metrics.sum("tollgate_outbox_dropped_total", &[])),
        ),
    ];
    for (what, count) in left.into_iter().filter(|(_, count)| *count != 0) {
        report.problems.push(format!("{count} {what} when all is over"));
    }
}

fn nothing_idle(report: &mut Report) {
    let alone = report.nodes.len() == 1;
    let decided = |of: fn(&Node) -> u64| report.nodes.iter().map(of).sum::<u64>();
    let occurred = [
        ("decision by the node that was asked", decided(|node| node.decided_here) > 0),
        ("decision by another node than was asked", alone || decided(|node| node.decided_elsewhere) > 0),
        ("refund", report.tokens.refunded > 0),
        ("overage", report.tokens.overage > 0),
        ("settlement that was compared with its bill", report.matched > 0),
        ("stream that its caller left", !report.aborted.is_empty()),
        ("reservation that ended at its estimate", !report.estimated.is_empty()),
        ("request without an enforced limit", report.unenforced_tokens > 0),
        ("answer of a cheaper model", report.budgets.iter().any(|budget| budget.degraded > 0)),
        ("crossing that was told again under its id", report.alerts.calls > report.alerts.crossings),
        ("pool that refused", report.pools.iter().any(|pool| pool.refused > 0)),
    ];
    let refusals = REASONS.map(|reason| (reason, report.refusals.contains_key(reason)));
    for (what, _) in occurred.into_iter().chain(refusals).filter(|(_, occurred)| !occurred) {
        report.problems.push(format!("there was no {what}"));
    }
}

#[cfg(test)]
mod tests;
