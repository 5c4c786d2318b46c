//! Each law of the audit, broken in one place.

use super::super::evidence::{Estimate, NodeSays, Page};
use super::*;
use crate::limit::Books;
use crate::simulated::Stats;

fn decision(estimate: (u64, u64), how: &str, why: &str, charged: u64) -> Decision {
    let (total, input) = estimate;
    Decision {
        tenant: "acme".to_owned(),
        route: "/v1/chat/completions".to_owned(),
        outcome: "admitted".to_owned(),
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
        key: "tg-demo-acme".to_owned(),
        status: Some(if code.is_some() { 429 } else { 200 }),
        code: code.map(str::to_owned),
        decision: Some(id.to_owned()),
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

/// One request of each kind: refunded, over, left by its caller, closed, in shadow, and one refusal of each reason.
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
    evidence.decisions = BTreeMap::from([
        ("refunded".to_owned(), decision((100, 50), "settled", "usage", 60)),
        ("over".to_owned(), decision((100, 50), "settled", "usage", 107)),
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
    evidence
}

fn node(id: u64, tenants: u64, (here, elsewhere): (u64, u64)) -> NodeSays {
    let page = format!(
        "tollgate_decisions_total{{outcome=\"admitted\",reason=\"none\"}} {}\n\
         tollgate_owner_decisions_total{{place=\"here\"}} {here}\n\
         tollgate_owner_decisions_total{{place=\"elsewhere\"}} {elsewhere}\n",
        here + elsewhere
    );
    NodeSays { id, tenants, metrics: Page::read(&page), ..NodeSays::default() }
}

fn metrics(inflight: u64) -> Page {
    let refusals: String = REASONS
        .iter()
        .map(|reason| format!("tollgate_decisions_total{{outcome=\"denied\",reason=\"{reason}\"}} 1\n"))
        .collect();
    Page::read(&format!(
        "{refusals}tollgate_decisions_total{{outcome=\"admitted\",reason=\"none\"}} 5\n\
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
    assert_eq!((report.requests, report.admitted, report.refused), (21, 5, 16));
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
            "refunded of acme settled 60, the provider billed Some(Bill { input: 50, output: 11, completed: true })"
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
    let admitted = Page::read("tollgate_decisions_total{outcome=\"admitted\"} 5");
    evidence.nodes = vec![NodeSays { id: 1, tenants: 1, metrics: admitted, ..NodeSays::default() }];
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
