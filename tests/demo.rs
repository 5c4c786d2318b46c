//! The demo, run as a newcomer runs it: its books balance, and it has shown what it promises.

#[path = "support/mod.rs"]
mod support;

use std::fs;

use serde_json::Value;
use support::Process;
use support::process::{temporary_directory, tollgate};

/// What a single node can be made to refuse from outside.
const REFUSALS: [&str; 15] = [
    "already_dispatched",
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
    "unauthenticated",
];

#[tokio::test]
async fn the_demo_balances_and_says_so_to_a_program() {
    let mut command = tollgate("demo");
    command.args(["--once", "--json", "--seconds", "4"]);
    let mut demo = Process::start("tollgate demo", command, temporary_directory());
    let status = demo.ended().await;
    let printed = fs::read_to_string(demo.directory().join("stdout")).unwrap();
    let report: Value =
        serde_json::from_str(&printed).unwrap_or_else(|error| panic!("not JSON alone ({error}): {printed}"));

    assert_eq!(report["balanced"], true, "{:#}", report["problems"]);
    assert!(status.success(), "it balances, and ends with {status}");
    let number = |name: &str| report[name].as_u64().unwrap_or_else(|| panic!("no number {name}: {report:#}"));
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
}
