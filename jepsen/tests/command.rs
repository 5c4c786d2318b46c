//! The command line as a script sees it: how it ends says what is known.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::json;

/// Runs the harness with these words.
fn harness(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tollgate-jepsen")).args(words).output().expect("the harness starts")
}

/// The folder of a run in which a tenant that may have one request a minute was admitted `admitted` times in a second.
fn a_run(folder: &Path, admitted: u64) {
    let limits = json!({"burst": 1, "per_minute": 1, "in_flight": null, "tokens": null});
    let plan = json!({
        "seed": 1, "nodes": 3, "lease": 1_500_000_000_u64, "tenants": {"acme": limits}, "saturated": [],
        "binary": "tollgate", "audited": false, "windows": 0, "admissions": 0, "workload": "all",
    });
    let write = |name: &str, text: &str| fs::write(folder.join(name), text).expect("a folder to write to");
    write("plan.json", &plan.to_string());
    let (mut attempts, mut arrivals) = (String::new(), String::new());
    for op in 1..=admitted {
        let at = op * 100_000_000;
        let attempt = json!({
            "op": op, "request": op, "tenant": "acme", "node": 1, "inv": at, "com": at + 20, "stayed": at + 20,
            "outcome": "admitted", "code": "200", "keyed": false, "aborted": false, "complete": true,
        });
        let arrival = json!({
            "op": op, "decision": format!("{op:032x}"), "node": 1, "at": at + 5, "end": at + 10, "billed": 9,
            "reported": true, "whole": true,
        });
        attempts += &format!("{attempt}\n");
        arrivals += &format!("{arrival}\n");
    }
    write("clients.jsonl", &attempts);
    write("provider.jsonl", &arrivals);
    for empty in ["nemesis.jsonl", "views.jsonl", "ends.jsonl", "revoked.jsonl", "probes.jsonl"] {
        write(empty, "");
    }
}

#[test]
fn a_run_that_broke_a_guarantee_ends_with_1_and_one_that_tells_too_little_with_2() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    a_run(folder.path(), 3);
    let broken = harness(&["recheck", path]);
    let said = String::from_utf8_lossy(&broken.stdout).into_owned();
    assert_eq!(broken.status.code(), Some(1), "{said}");
    assert!(said.contains("INVALID  no_overspend") && said.contains("acme"), "{said}");
    assert!(folder.path().join("report.html").exists());
    a_run(folder.path(), 1);
    let little = harness(&["recheck", path]);
    assert_eq!(little.status.code(), Some(2), "{}", String::from_utf8_lossy(&little.stdout));
}

#[test]
fn what_cannot_be_done_ends_with_2_and_says_why() {
    let missing = harness(&["recheck", "/nowhere"]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("/nowhere/plan.json"));
    let unknown = harness(&["one", "--nemesis", "earthquake"]);
    assert_eq!(unknown.status.code(), Some(2));
}
