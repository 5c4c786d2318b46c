//! Each law of the audit, broken in one place.

use super::super::evidence::{
    BudgetSays, BudgetsSay, Estimate, LevelSays, NodeSays, Page, PoolSays, Terms, Used,
};
use super::super::receiver::Told;
use super::*;
use crate::control::budget::{BudgetKey, Part, Unit};
use crate::limit::{Books, Cycle};
use crate::simulated::Stats;

fn decision(estimate: (u64, u64), how: &str, why: &str, charged: u64) -> Decision {
    let (total, input) = estimate;
    Decision {
        tenant: "acme".to_owned(),
        route: "/v1/chat/completions".to_owned(),
        model: "gpt-5".to_owned(),
        outcome: "admitted".to_owned(),
        reason: None,
        estimate: Estimate { total, input },
        ending: Some(Ending {
            how: how.to_owned(),
            why: why.to_owned(),
            charged,
            refunded: total.saturating_sub(charged),
            overage: charged.saturating_sub(total),
        }),
    }
}

fn seen(id: &str, code: Option<&str>, left_with: Option<u64>) -> Seen {
    Seen {
        node: 0,
        tenant: "acme".to_owned(),
        status: Some(if code.is_some() { 429 } else { 200 }),
        code: code.map(str::to_owned),
        decision: Some(id.to_owned()),
        should_retry: code.map(|_| "false".to_owned()),
        degraded: None,
        left_with,
    }
}

fn row(id: &str, outcome: Outcome, input_tokens: u64, output_tokens: u64) -> Row {
    Row {
        id: format!("req_{id}"),
        decision: Some(id.to_owned()),
        model: "gpt-5".to_owned(),
        outcome,
        input_tokens,
        output_tokens,
        cache_read_tokens: 0,
        cache_write_tokens: 0,
        arrived_ms: 0,
        admitted_ms: Some(0),
        ended_ms: 1,
    }
}

/// One request of each kind: refunded, over and by a cheaper model, left by its caller, closed, in shadow, and one refusal of each reason.
fn good() -> Evidence {
    let mut evidence = Evidence {
        seen: vec![
            seen("refunded", None, None),
            seen("over", None, None),
            seen("left", None, Some(5)),
            seen("closed", None, None),
            seen("shadowed", None, None),
        ],
        tiers: vec![("acme".to_owned(), "starter".to_owned())],
        ..Evidence::default()
    };
    evidence.seen.extend(REASONS.map(|reason| seen(reason, Some(reason), None)));
    let mut shadowed = decision((100, 50), "settled", "usage", 100);
    shadowed.outcome = "shadowed".to_owned();
    let mut crowded = decision((100, 50), "", "", 0);
    (crowded.outcome, crowded.ending) = ("denied".to_owned(), None);
    crowded.reason = Some("global_capacity".to_owned());
    let mut cheaper = decision((100, 50), "settled", "usage", 107);
    (cheaper.outcome, cheaper.model) = ("degraded".to_owned(), "gpt-5-mini".to_owned());
    evidence.decisions = BTreeMap::from([
        ("global_capacity".to_owned(), crowded),
        ("refunded".to_owned(), decision((100, 50), "settled", "usage", 60)),
        ("over".to_owned(), cheaper),
        ("left".to_owned(), decision((100, 50), "settled", "client_gone", 57)),
        ("closed".to_owned(), decision((100, 50), "closed", "no_usage", 100)),
        ("shadowed".to_owned(), shadowed),
    ]);
    evidence.rows = vec![
        row("refunded", Outcome::Completed, 50, 10),
        row("over", Outcome::Completed, 57, 50),
        row("left", Outcome::Aborted, 54, 9),
        row("closed", Outcome::Completed, 54, 20),
        row("shadowed", Outcome::Completed, 54, 20),
    ];
    evidence.stats = Stats { requests: 5, input_tokens: 269, output_tokens: 109, ..Stats::default() };
    evidence.books =
        Books { reserved: 400, refunded: 83, overage: 7, settled: 224, closed: 100, ..Books::default() };
    evidence.metrics = metrics(0);
    // Its one tenant is owned by the first; the second has asked it three times.
    evidence.nodes = vec![node(0, 1, (2, 0)), node(1, 0, (0, 3))];
    for seen in evidence.seen.iter_mut().take(3) {
        seen.node = 1;
    }
    evidence.seen[1].degraded = Some("gpt-5-mini".to_owned());
    evidence.rows[1].model = "gpt-5-mini".to_owned();
    agreed(&mut evidence);
    evidence
}

/// A budget in tokens that has crossed its one threshold, one in dollars, the ledger, and a pool.
fn agreed(evidence: &mut Evidence) {
    evidence.terms = BTreeMap::from([
        (
            "acme/month/tokens".to_owned(),
            Terms { key: key(Unit::Tokens), degraded: 20, thresholds: vec![500_000, 900_000] },
        ),
        (
            "acme/month/micro_dollars".to_owned(),
            Terms { key: key(Unit::MicroDollars), degraded: 0, thresholds: Vec::new() },
        ),
    ]);
    evidence.told = [false, true]
        .map(|taken| Told { id: CROSSING.to_owned(), body: "{}".to_owned(), genuine: true, taken })
        .to_vec();
    evidence.prices = BTreeMap::from([
        ("gpt-5".to_owned(), (1_000_000, 2_000_000)),
        ("gpt-5-mini".to_owned(), (1_000_000, 1_000_000)),
    ]);
    let rows = Used { requests: 5, settled: 424, cost_micro_dollars: 437 };
    evidence.ledger = BTreeMap::from([("acme".to_owned(), rows)]);
    evidence.pool_of = BTreeMap::from([("gpt-5".to_owned(), "openai".to_owned())]);
    let level = LevelSays {
        limit: "tokens_per_minute".to_owned(),
        guard_per_minute: 1_000,
        burst: 100,
        level: 60,
        outstanding: 40,
        spent: 324,
        written_off: 0,
    };
    evidence.pools = vec![PoolSays { id: "openai".to_owned(), levels: vec![level] }];
}

fn key(unit: Unit) -> BudgetKey {
    BudgetKey { tenant: "acme".into(), part: Part::Tenant, cycle: Cycle::Month, unit }
}

const CROSSING: &str = "acme/Month/Tokens/1793491200/500000";

/// A budget in tokens of which everything is used or held, what a cheaper model may use beyond it as well; and one in dollars.
fn budgets() -> BudgetsSay {
    let tokens = BudgetSays {
        tenant: "acme".to_owned(),
        cycle: "month".to_owned(),
        unit: "tokens".to_owned(),
        period: 1_793_491_200,
        limit: 400,
        used: 324,
        escrow: 103,
        overage: 7,
        degraded: 107,
    };
    let dollars = BudgetSays {
        unit: "micro_dollars".to_owned(),
        limit: 1_000,
        used: 437,
        escrow: 0,
        overage: 0,
        ..tokens.clone()
    };
    BudgetsSay { budgets: vec![tokens, dollars], alerts_waiting: 0 }
}

fn node(id: u64, tenants: u64, (here, elsewhere): (u64, u64)) -> NodeSays {
    let page = format!(
        "tollgate_decisions_total{{outcome=\"admitted\",reason=\"none\"}} {}\n\
         tollgate_owner_decisions_total{{place=\"here\"}} {here}\n\
         tollgate_owner_decisions_total{{place=\"elsewhere\"}} {elsewhere}\n\
         tollgate_budget_alerts_total{{tenant=\"acme\",threshold=\"0.5\"}} 1\n",
        here + elsewhere
    );
    NodeSays { id, tenants, metrics: Page::read(&page), budgets: budgets(), ..NodeSays::default() }
}

fn metrics(inflight: u64) -> Page {
    let refusals: String = REASONS
        .iter()
        .map(|reason| {
            let outcome = if *reason == "deferred" { "deferred" } else { "denied" };
            format!("tollgate_decisions_total{{outcome=\"{outcome}\",reason=\"{reason}\"}} 1\n")
        })
        .collect();
    Page::read(&format!(
        "{refusals}tollgate_decisions_total{{outcome=\"admitted\",reason=\"none\"}} 4\n\
         tollgate_decisions_total{{outcome=\"degraded\",reason=\"budget_exhausted\"}} 1\n\
         tollgate_tokens_reserved_total{{tenant=\"acme\"}} 400\ntollgate_tokens_refunded_total{{tenant=\"acme\"}} 83\n\
         tollgate_tokens_overage_total{{tenant=\"acme\"}} 7\ntollgate_tokens_settled_total{{tenant=\"acme\"}} 224\n\
         tollgate_tokens_unsettled_total{{tenant=\"acme\",how=\"closed\"}} 100\ntollgate_inflight {inflight}\n"
    ))
}

/// The audit's problems after one change to evidence that has none.
fn problems_after(change: impl FnOnce(&mut Evidence)) -> Vec<String> {
    let mut evidence = good();
    change(&mut evidence);
    let report = audit(&evidence, Span::default());
    assert_eq!(report.balanced, report.problems.is_empty());
    report.problems
}

fn told(problems: &[String], what: &str) -> bool {
    problems.iter().any(|problem| problem.contains(what))
}

#[test]
fn a_story_that_everyone_tells_alike_balances() {
    let report = audit(&good(), Span::from_millis(1_500));
    assert_eq!(report.problems, Vec::<String>::new());
    assert!(report.balanced);
    assert_eq!((report.requests, report.admitted, report.refused), (24, 5, 19));
    assert_eq!((report.matched, report.provider_tokens, report.unenforced_tokens), (2, 378, 74));
    let aborted = &report.aborted[0];
    assert_eq!((aborted.difference, aborted.input_difference, aborted.in_flight), (6, 4, 4));
}

#[test]
fn the_report_has_the_names_that_programs_read() {
    let json: serde_json::Value =
        serde_json::from_str(&audit(&good(), Span::from_millis(1_500)).to_json()).unwrap();
    for name in ["requests", "admitted", "refused", "reserved_tokens", "settled_tokens", "provider_tokens"] {
        assert!(json[name].is_u64(), "{name}: {json}");
        assert!(name == "requests" || json["tenants"]["acme"][name].is_u64(), "{name} of a tenant: {json}");
    }
    assert_eq!(json["balanced"], true);
    assert_eq!(json["seconds"], 1.5);
    assert_eq!(json["nodes"].as_array().map(Vec::len), Some(2));
    let second = &json["nodes"][1];
    for (name, expected) in
        [("requests", 3), ("tenants_owned", 0), ("decided_here", 0), ("decided_elsewhere", 3)]
    {
        assert_eq!(second[name], expected, "{name}: {second}");
    }
}

#[test]
fn a_bill_that_differs_from_its_settlement_by_one_token_is_found() {
    let problems = problems_after(|evidence| {
        evidence.rows[0].output_tokens += 1;
        evidence.stats.output_tokens += 1;
    });
    assert_eq!(
        problems,
        [
            "refunded of acme settled 60, the provider billed Some(Bill { input: 50, output: 11, completed: true })",
            "of the budget acme/month/micro_dollars 437 micro_dollars are used, its requests used 439",
        ]
    );
}

#[test]
fn an_aborted_stream_is_charged_no_less_than_arrived_and_no_more_than_was_sent() {
    for charged in [54, 60] {
        let problems = problems_after(|evidence| {
            evidence
                .decisions
                .insert("left".to_owned(), decision((100, 50), "settled", "client_gone", charged));
        });
        assert_eq!(
            told(&problems, "left of acme: its caller left"),
            charged == 54 || charged > 59,
            "{charged}: {problems:?}"
        );
    }
}

#[test]
fn a_bill_without_a_decision_is_found() {
    let problems = problems_after(|evidence| evidence.rows[3].decision = None);
    assert!(told(&problems, "belongs to no decision"), "{problems:?}");
}

#[test]
fn a_refusal_that_was_billed_is_found() {
    let problems = problems_after(|evidence| {
        if let Some(decision) = evidence.decisions.get_mut("closed") {
            decision.outcome = "denied".to_owned();
        }
    });
    assert!(told(&problems, "closed was refused, and billed"), "{problems:?}");
}

#[test]
fn books_that_do_not_balance_are_found_by_tenant_and_in_all() {
    let problems = problems_after(|evidence| {
        evidence.metrics = Page::read("tollgate_tokens_reserved_total{tenant=\"acme\"} 1");
    });
    assert!(told(&problems, "the books of acme do not balance"), "{problems:?}");
    assert!(told(&problems, "the books do not balance"), "{problems:?}");
    assert!(told(&problems, "the owners' books are"), "{problems:?}");
    assert!(told(&problems, "the decisions of acme add up to"), "{problems:?}");
}

#[test]
fn what_an_owner_held_for_an_id_that_was_not_used_was_asked_for_again_and_given_back() {
    let held_twice = |given_back: u128, again: &'static str| {
        move |evidence: &mut Evidence| {
            evidence.books.reserved += 100;
            evidence.books.refunded += given_back;
            evidence.books.open += 100 - given_back;
            evidence.metrics = Page::all([metrics(0), Page::read(again)]);
        }
    };
    let again = "tollgate_asked_again_total{reason=\"stale_grant\"} 1";
    assert_eq!(problems_after(held_twice(100, again)), Vec::<String>::new());
    for problems in [problems_after(held_twice(99, again)), problems_after(held_twice(100, ""))] {
        assert!(told(&problems, "the owners' books are"), "{problems:?}");
    }
}

#[test]
fn a_tenant_without_an_owner_and_a_decision_of_nobody_are_found() {
    let problems = problems_after(|evidence| evidence.nodes[0] = node(0, 0, (2, 0)));
    assert_eq!(problems, ["0 of 1 tenants have an owner"]);
    let problems = problems_after(|evidence| {
        evidence.nodes[1].metrics = Page::read("tollgate_decisions_total{outcome=\"admitted\"} 3");
    });
    assert!(told(&problems, "node 1 let 3 requests through"), "{problems:?}");
    assert!(told(&problems, "there was no decision by another node"), "{problems:?}");
}

#[test]
fn a_node_that_is_its_own_cluster_decides_everything_itself() {
    let mut evidence = good();
    let metrics = Page::read(
        "tollgate_decisions_total{outcome=\"admitted\"} 5\ntollgate_budget_alerts_total{tenant=\"acme\"} 1",
    );
    evidence.nodes = vec![NodeSays { id: 1, tenants: 1, metrics, budgets: budgets(), ..NodeSays::default() }];
    let report = audit(&evidence, Span::default());
    assert_eq!(report.problems, Vec::<String>::new());
    assert_eq!((report.nodes[0].decided_here, report.nodes[0].decided_elsewhere), (5, 0));
}

#[test]
fn what_is_left_running_is_found() {
    let problems = problems_after(|evidence| evidence.metrics = metrics(1));
    assert_eq!(problems, ["1 requests in flight when all is over"]);
}

#[test]
fn a_refusal_that_did_not_occur_or_was_counted_otherwise_is_found() {
    let problems = problems_after(|evidence| {
        evidence.seen.retain(|seen| seen.code.as_deref() != Some("model_not_found"));
    });
    assert!(told(&problems, "there was no model_not_found"), "{problems:?}");
    assert!(told(&problems, "callers saw the refusals"), "{problems:?}");
}

#[test]
fn a_complaint_of_a_caller_is_a_problem() {
    let problems = problems_after(|evidence| evidence.complaints.push("no answer".to_owned()));
    assert_eq!(problems, ["no answer"]);
}

/// The problems after one change to what each node says of the budget in tokens.
fn problems_after_all_say(change: impl Fn(&mut BudgetSays)) -> Vec<String> {
    problems_after(|evidence| {
        evidence.nodes.iter_mut().for_each(|node| change(&mut node.budgets.budgets[0]));
    })
}

#[test]
fn what_is_agreed_on_is_in_the_report() {
    let report = audit(&good(), Span::default());
    let [tokens, dollars] = report.budgets.as_slice() else { panic!("{:?}", report.budgets) };
    assert_eq!((tokens.used, tokens.requests_refused, tokens.requests_degraded), (324, 2, 1));
    assert_eq!(
        (tokens.thresholds_told.as_slice(), dollars.thresholds_told.as_slice()),
        (&[0.5][..], &[][..])
    );
    assert_eq!((report.alerts.crossings, report.alerts.calls, report.ledger_rows), (1, 2, 5));
    assert_eq!((report.pools[0].refused, report.pools[0].held), (1, 40));
}

#[test]
fn a_budget_that_is_charged_one_token_more_or_less_is_found() {
    for used in [323, 325] {
        let problems = problems_after_all_say(|budget| (budget.used, budget.escrow) = (used, 0));
        assert_eq!(
            problems,
            [format!("of the budget acme/month/tokens {used} tokens are used, its requests used 324")]
        );
    }
}

#[test]
fn a_budget_of_which_more_is_used_and_held_than_it_has_is_found() {
    let problems = problems_after_all_say(|budget| budget.escrow += 1);
    assert_eq!(problems, ["324 used and 104 held of the budget acme/month/tokens are more than 427"]);
}

#[test]
fn a_budget_that_only_the_policy_or_only_the_nodes_have_is_found() {
    let problems = problems_after(|evidence| {
        evidence.nodes.iter_mut().for_each(|node| drop(node.budgets.budgets.remove(1)));
    });
    assert!(told(&problems, "the policy has the budgets"), "{problems:?}");
    let problems = problems_after(|evidence| drop(evidence.terms.remove("acme/month/micro_dollars")));
    assert!(told(&problems, "the policy has the budgets"), "{problems:?}");
}

#[test]
fn dollars_that_the_ledger_has_otherwise_are_found() {
    let problems = problems_after(|evidence| {
        evidence.ledger.entry("acme".to_owned()).or_default().cost_micro_dollars -= 1;
    });
    assert_eq!(
        problems,
        ["of the budget acme/month/micro_dollars 437 micro_dollars are used, the ledger has 436"]
    );
}

#[test]
fn nodes_that_do_not_agree_are_found_but_for_what_they_hold() {
    let problems = problems_after(|evidence| evidence.nodes[1].budgets.budgets[0].escrow = 0);
    assert_eq!(problems, Vec::<String>::new());
    let problems = problems_after(|evidence| evidence.nodes[1].budgets.budgets[0].used -= 1);
    assert!(told(&problems, "node 1 says"), "{problems:?}");
}

#[test]
fn an_answer_that_hides_the_cheaper_model_or_invites_to_try_again_is_found() {
    let problems = problems_after(|evidence| evidence.seen[1].degraded = None);
    assert!(told(&problems, "debited for the cheaper model Some(\"gpt-5-mini\")"), "{problems:?}");
    let problems = problems_after(|evidence| evidence.seen[0].degraded = Some("gpt-5-mini".to_owned()));
    assert!(told(&problems, "debited for the cheaper model None"), "{problems:?}");
    for code in ["budget_exhausted", "deferred"] {
        let problems = problems_after(|evidence| {
            let refused = evidence.seen.iter_mut().filter(|seen| seen.code.as_deref() == Some(code));
            refused.for_each(|seen| seen.should_retry = None);
        });
        assert!(told(&problems, "and not told to stay away"), "{problems:?}");
    }
}

#[test]
fn a_crossing_is_told_once_under_its_id_and_signed() {
    type Change = fn(&mut Vec<Told>);
    let breaks: [(Change, &str); 6] = [
        (Vec::clear, "thresholds were crossed"),
        (|told| told[1].id = "acme/Month/Tokens/1793491200/900000".to_owned(), "thresholds were crossed"),
        (|told| told[1].body = "{ }".to_owned(), "was told in other words"),
        (|told| told[1].genuine = false, "without its sender's signature"),
        (|told| told[1].taken = false, "was not taken, and not told again"),
        (|told| drop(told.remove(0)), "there was no crossing that was told again"),
    ];
    for (change, expected) in breaks {
        let problems = problems_after(|evidence| change(&mut evidence.told));
        assert!(told(&problems, expected), "{expected}: {problems:?}");
    }
    let problems = problems_after(|evidence| {
        let twice = Page::read("tollgate_budget_alerts_total{tenant=\"acme\",threshold=\"0.5\"} 1");
        evidence.nodes[0].metrics = Page::all([evidence.nodes[0].metrics.clone(), twice]);
    });
    assert_eq!(problems, ["node 0 has said 2 crossings of 1"]);
}

#[test]
fn a_row_too_few_and_a_row_that_was_charged_otherwise_are_found() {
    let without_shadow = |evidence: &mut Evidence| {
        evidence.decisions.remove("shadowed");
        evidence
            .ledger
            .insert("acme".to_owned(), Used { requests: 4, settled: 324, cost_micro_dollars: 437 });
    };
    assert!(!told(&problems_after(without_shadow), "the ledger has Used"));
    for (requests, settled) in [(3, 324), (4, 323)] {
        let problems = problems_after(|evidence| {
            without_shadow(evidence);
            evidence.ledger.insert("acme".to_owned(), Used { requests, settled, cost_micro_dollars: 437 });
        });
        assert!(told(&problems, "the ledger has Used"), "{problems:?}");
    }
    let problems = problems_after(|evidence| {
        evidence.ledger.insert("nobody".to_owned(), Used { requests: 1, ..Used::default() });
    });
    assert!(told(&problems, "of nobody, its decisions come to"), "{problems:?}");
}

#[test]
fn a_pool_that_could_let_more_through_than_its_burst_is_found() {
    let problems = problems_after(|evidence| evidence.pools[0].levels[0].level += 1);
    assert_eq!(problems, ["the pool openai has 61 and its nodes 40, of a burst of 100"]);
}
