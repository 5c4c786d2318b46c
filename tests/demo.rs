//! The demo, run as a newcomer runs it: its books balance over all nodes, it has shown what it promises, and it leaves nothing behind.

#[path = "support/mod.rs"]
mod support;

use std::fs;
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;
use support::Process;
use support::process::{temporary_directory, tollgate};
use tempfile::TempDir;

/// What can be made to be refused from outside while all nodes are well.
const REFUSALS: [&str; 19] = [
    "already_dispatched",
    "budget_exhausted",
    "deferred",
    "global_capacity",
    "idempotency_in_progress",
    "inflight_limit_exceeded",
    "invalid_request",
    "key_rate_limit_exceeded",
    "method_not_allowed",
    "model_not_allowed",
    "model_not_found",
    "model_rate_limit_exceeded",
    "not_found",
    "project_rate_limit_exceeded",
    "request_too_large",
    "request_too_large_for_limit",
    "tenant_rate_limit_exceeded",
    "tenant_suspended",
    "unauthenticated",
];

/// Starts a demo whose temporary folders lie in one that is returned.
fn demo(arguments: &[&str]) -> (Process, TempDir) {
    let folder = temporary_directory();
    let mut command = tollgate("demo");
    command.args(arguments).env("TMPDIR", folder.path());
    (Process::start("tollgate demo", command, temporary_directory()), folder)
}

fn printed(demo: &Process) -> String {
    fs::read_to_string(demo.directory().join("stdout")).expect("its output is in a file of its own")
}

fn assert_nothing_is_left(folder: &TempDir) {
    let left: Vec<_> = fs::read_dir(folder.path()).expect("the folder is the test's own").collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Runs a demo to its end: what it tells a program.
async fn report_of(arguments: &[&str]) -> Value {
    let (mut demo, folder) = demo(arguments);
    let status = demo.ended().await;
    let printed = printed(&demo);
    let report: Value =
        serde_json::from_str(&printed).unwrap_or_else(|error| panic!("not JSON alone ({error}): {printed}"));
    assert_eq!(report["balanced"], true, "{:#}", report["problems"]);
    assert!(status.success(), "it balances, and ends with {status}");
    assert_nothing_is_left(&folder);
    report
}

fn number(report: &Value, name: &str) -> u64 {
    report[name].as_u64().unwrap_or_else(|| panic!("no number {name}: {report:#}"))
}

#[tokio::test]
async fn the_demo_balances_over_three_nodes_and_says_so_to_a_program() {
    let report = report_of(&["--once", "--json", "--seconds", "4"]).await;
    let number = |name: &str| number(&report, name);
    assert_eq!(number("requests"), number("admitted") + number("refused"));
    assert_eq!(
        number("reserved_tokens") + number("overage_tokens"),
        number("refunded_tokens")
            + number("settled_tokens")
            + number("closed_tokens")
            + number("abandoned_tokens")
    );
    for name in
        ["requests", "admitted", "refunded_tokens", "overage_tokens", "closed_tokens", "provider_tokens"]
    {
        assert!(number(name) > 0, "no {name}: {report:#}");
    }
    for code in REFUSALS {
        assert!(report["refusals"][code].as_u64() > Some(0), "nothing was refused with {code}: {report:#}");
    }
    assert_eq!(report["tenants"]["t20"]["tier"], "enterprise");
    assert!(!report["aborted"].as_array().unwrap().is_empty(), "nobody left in the middle: {report:#}");
    assert!(report["seconds"].is_f64(), "{report:#}");

    // Each budget stands where the same requests take it each time.
    let budgets = report["budgets"].as_array().unwrap();
    let seen: Vec<_> = budgets
        .iter()
        .map(|budget| {
            let number =
                |name: &str| budget[name].as_u64().unwrap_or_else(|| panic!("no {name}: {budget:#}"));
            let counts = [number("used"), number("requests_refused"), number("requests_degraded")];
            (budget["tenant"].as_str().unwrap(), counts, budget["thresholds_told"].as_array().unwrap().len())
        })
        .collect();
    assert_eq!(
        seen,
        [("allowance", [933, 1, 0], 2), ("frugal", [6_186, 1, 2], 2), ("patient", [311, 1, 0], 0),]
    );
    assert_eq!((&report["alerts"]["crossings"], &report["alerts"]["calls"]), (&4.into(), &5.into()));
    let narrow = report["pools"].as_array().unwrap().iter().find(|pool| pool["pool"] == "narrow").unwrap();
    assert!(narrow["refused"].as_u64() > Some(0), "{narrow:#}");
    assert!(number("ledger_rows") == number("admitted"), "{report:#}");

    let nodes = report["nodes"].as_array().unwrap();
    assert_eq!(nodes.len(), 3, "{report:#}");
    for node in nodes {
        for name in ["requests", "tenants_owned", "shards_owned", "decided_here", "decided_elsewhere"] {
            assert!(node[name].as_u64() > Some(0), "no {name}: {node:#}");
        }
    }
    let sum = |name: &str| nodes.iter().filter_map(|node| node[name].as_u64()).sum::<u64>();
    assert_eq!(sum("requests"), number("requests"));
    assert_eq!(sum("shards_owned"), 1024);
    assert_eq!(sum("decided_here") + sum("decided_elsewhere"), number("admitted"));
}

#[tokio::test]
async fn a_demo_of_one_node_is_a_node_alone() {
    let report = report_of(&["--once", "--json", "--seconds", "2", "--nodes", "1"]).await;
    let [node] = report["nodes"].as_array().unwrap().as_slice() else { panic!("{report:#}") };
    assert_eq!(number(node, "decided_here"), number(&report, "admitted"));
    assert_eq!(number(node, "decided_elsewhere"), 0);
}

#[tokio::test]
async fn a_demo_that_stays_up_shows_lines_to_try_and_ends_when_told() {
    let (mut demo, folder) = demo(&["--seconds", "1", "--nodes", "2"]);
    demo.line("Ctrl-C ends it.").await;
    let printed = printed(&demo);
    let line =
        printed.lines().find(|line| line.contains("cluster status")).expect("a line about the cluster");
    let tried = Command::new("sh").args(["-c", line]).output().unwrap();
    let shown = String::from_utf8_lossy(&tried.stdout);
    assert!(tried.status.success(), "{line}: {shown}{}", String::from_utf8_lossy(&tried.stderr));
    assert!(shown.contains("leader") && shown.contains("two voters"), "{shown}");
    demo.signal(Signal::TERM);
    let status = demo.ended().await;
    assert!(status.success(), "{status}");
    assert_nothing_is_left(&folder);
}
