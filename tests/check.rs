//! `tollgate check` and `tollgate keys` as a person at a terminal meets them.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/policy.yaml");

fn tollgate(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tollgate")).args(arguments).output().expect("the binary runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("output is UTF-8")
}

#[test]
fn the_policy_that_ships_is_good_and_summed_up() {
    let output = tollgate(&["check", EXAMPLE]);
    let summary = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(summary.contains("largest request"), "{summary}");
    let growth = summary.lines().find(|line| line.contains("growth")).unwrap();
    assert!(growth.contains("120,000") && growth.contains("40,000"), "{growth}");
    assert!(
        summary.contains(
            "northwind (growth; largest request 40,000): tokens_per_minute 150,000 (tier: 120,000)"
        ),
        "{summary}"
    );
    // 150,000 of northwind and 24,000 of evaluation against 2,000,000: 8.7 %, rounded up to hundredths.
    assert!(
        summary
            .lines()
            .any(|line| line.contains("openai-main") && line.contains("174,000") && line.contains("0.09")),
        "{summary}"
    );
}

#[test]
fn the_summary_as_json() {
    let output = tollgate(&["check", "--json", EXAMPLE]);
    let object: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(object["ok"], true);
    let growth =
        object["summary"]["tiers"].as_array().unwrap().iter().find(|tier| tier["tier"] == "growth").unwrap();
    assert_eq!((&growth["largest_request"], &growth["tenants"]), (&40_000.into(), &1.into()));
    let pool = object["summary"]["pools"]
        .as_array()
        .unwrap()
        .iter()
        .find(|pool| pool["pool"] == "openai-main")
        .unwrap();
    // 0.40 of 150,000 and 0.25 of 24,000.
    assert_eq!(pool["sum_of_floors"], 66_000);
    assert_eq!(pool["floors_guard"], 1_700_000);
}

#[test]
fn a_bad_policy_is_told_with_file_line_column_and_hint() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.yaml");
    let good = std::fs::read_to_string(EXAMPLE).unwrap();
    std::fs::write(&path, good.replace("    tier: growth", "    tier: growht")).unwrap();
    let path = path.to_str().unwrap();
    let line = good.lines().position(|line| line.starts_with("    tier: growth")).unwrap() + 1;

    let output = tollgate(&["check", path]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stdout), "");
    assert_eq!(
        text(&output.stderr),
        format!(
            "{path}:{line}:11: tenants[0].tier: there is no tier `growht`\n  hint: did you mean `growth`?\n"
        )
    );

    let output = tollgate(&["check", "--json", path]);
    assert_eq!(output.status.code(), Some(1));
    let object: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(object["ok"], false);
    assert_eq!((&object["errors"][0]["line"], &object["errors"][0]["column"]), (&line.into(), &11.into()));
}

#[test]
fn a_file_that_cannot_be_read_is_an_answer_too() {
    let output = tollgate(&["check", "/nowhere/policy.yaml"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).starts_with("/nowhere/policy.yaml: cannot be read: "));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.yaml");
    std::fs::write(&path, [0xff, 0xfe, 0x00]).unwrap();
    assert_eq!(tollgate(&["check", path.to_str().unwrap()]).status.code(), Some(1));
}

#[test]
fn a_new_key_and_its_hash_agree_with_what_hash_says() {
    let output = tollgate(&["keys", "new", "--json", "--count", "3"]);
    assert!(output.status.success());
    let object: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let keys = object["keys"].as_array().unwrap();
    assert_eq!(keys.len(), 3);
    let key = keys[0]["key"].as_str().unwrap();
    assert!(key.starts_with("tg-"));

    let mut hash = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["keys", "hash"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    writeln!(hash.stdin.take().unwrap(), "{key}").unwrap();
    let output = hash.wait_with_output().unwrap();
    assert_eq!(text(&output.stdout).trim_end(), keys[0]["hash"].as_str().unwrap());
}
