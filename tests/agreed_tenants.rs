//! Tenants that are suspended, and limits that are overridden for a while, on all nodes at once.

#![allow(clippy::unwrap_used, reason = "an answer of another shape fails the test, as it should")]

mod support;

use serde_json::Value;
use support::policy::AMPLE;
use support::{Cluster, Key, Peer, Policy, eventually};

fn two(policy: Policy) -> Policy {
    let few = "requests_per_minute: 1, burst_requests: 2";
    policy.tenant("acme", &Key::of("acme"), AMPLE).tenant("few", &Key::of("few"), few)
}

/// Runs an operator's command through a node: what it answers as JSON.
fn told(node: &Peer, words: &[&str]) -> Value {
    let (code, out, problem) = node.command(&[words, &["--json"]].concat());
    assert_eq!(code, 0, "{words:?}: {problem}");
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"))
}

fn refused(node: &Peer, words: &[&str]) -> String {
    let (code, _, problem) = node.command(words);
    assert_eq!(code, 1, "{words:?}");
    problem
}

#[tokio::test]
async fn a_suspended_tenant_is_refused_through_every_node_and_what_it_has_used_counts_on() {
    let cluster = Cluster::of(3, two).await;
    let (acme, few) = (Key::of("acme"), Key::of("few"));
    assert_eq!(cluster.nodes[0].decided(&few).await, 200);
    let page = told(&cluster.nodes[1], &["tenants", "suspend", "few"]);
    assert_eq!(page["in_force"], "on every node", "{page}");
    for node in &cluster.nodes {
        assert_eq!((node.decided(&few).await, node.decided(&acme).await), (403, 200));
    }
    let listed = told(&cluster.nodes[2], &["tenants", "list"]);
    let few_listed =
        listed["tenants"].as_array().unwrap().iter().find(|tenant| tenant["id"] == "few").unwrap();
    assert_eq!(few_listed["suspended"], true, "{listed}");
    assert!(refused(&cluster.nodes[0], &["tenants", "suspend", "few"]).contains("is suspended already"));
    assert!(refused(&cluster.nodes[0], &["tenants", "suspend", "nobody"]).contains("has no tenant nobody"));

    // A policy that is applied meanwhile does not bring it back.
    let edited = two(Policy::at(&cluster.provider.url)).tenant("beta", &Key::of("beta"), AMPLE);
    let (code, _, problem) = cluster.nodes[0].apply(&edited.yaml(), &[]);
    assert_eq!(code, 0, "{problem}");
    assert_eq!(cluster.nodes[1].decided(&few).await, 403);

    told(&cluster.nodes[2], &["tenants", "resume", "few"]);
    assert_eq!(cluster.nodes[0].decided(&few).await, 200);
    assert_eq!(cluster.nodes[1].decided(&few).await, 429, "one of two was used before");
    assert!(refused(&cluster.nodes[0], &["tenants", "resume", "few"]).contains("is not suspended"));
}

#[tokio::test]
async fn an_override_holds_everywhere_keeps_what_is_used_and_ends_by_itself() {
    let cluster = Cluster::of(3, two).await;
    let few = Key::of("few");
    for node in &cluster.nodes[..2] {
        assert_eq!(node.decided(&few).await, 200);
    }
    assert_eq!(cluster.nodes[2].decided(&few).await, 429);
    let wide = ["--tenant", "few", "--requests-per-minute", "60000", "--burst-requests", "100"];
    let page = told(&cluster.nodes[0], &[&["override", "--for", "1h"], &wide[..]].concat());
    assert_eq!(page["in_force"], "on every node", "{page}");
    eventually("a thousand requests a second are allowed by now", async || {
        match cluster.nodes[1].decided(&few).await {
            200 => Ok(()),
            status => Err(status.to_string()),
        }
    })
    .await;

    // Another takes its place, and ends without anybody's doing: the policy's one request a minute holds again.
    told(&cluster.nodes[2], &[&["override", "--for", "500ms"], &wide[..]].concat());
    eventually("the override is over", async || {
        let listed = told(&cluster.nodes[0], &["tenants", "list"]);
        let tenants = listed["tenants"].as_array().unwrap();
        match tenants.iter().all(|tenant| tenant["override"].is_null()) {
            true => Ok(()),
            false => Err(listed.to_string()),
        }
    })
    .await;
    let mut admitted = 0;
    for _ in 0..2 {
        for node in &cluster.nodes {
            admitted += u32::from(node.decided(&few).await == 200);
        }
    }
    assert!(admitted <= 2, "{admitted} of 6: no more than the policy's burst");

    let problem = refused(
        &cluster.nodes[0],
        &["override", "--tenant", "few", "--for", "1h", "--tokens-per-minute", "100000001"],
    );
    assert!(problem.contains("no pool that it can reach has a ceiling above 100000000"), "{problem}");
    let problem = refused(&cluster.nodes[0], &["override", "--tenant", "few", "--for", "1h"]);
    assert!(problem.contains("name a limit"), "{problem}");
    let problem = refused(&cluster.nodes[0], &[&["override", "--for", "200h"], &wide[..]].concat());
    assert!(problem.contains("belongs into the policy"), "{problem}");
    let problem = refused(&cluster.nodes[0], &["override", "--tenant", "few", "--end"]);
    assert!(problem.contains("no limit of tenant few is overridden"), "{problem}");
}
