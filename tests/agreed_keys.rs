//! Keys that are made, rotated and revoked beside those of the policy, on all nodes at once.

#![allow(clippy::unwrap_used, reason = "an answer of another shape fails the test, as it should")]

mod support;

use std::time::Instant;

use serde_json::Value;
use support::policy::AMPLE;
use support::{Cluster, Key, Peer, Policy, eventually};

fn acme(policy: Policy) -> Policy {
    policy.tenant("acme", &Key::of("acme"), AMPLE)
}

/// Runs `tollgate keys` through a node: what it answers as JSON.
fn keys(node: &Peer, words: &[&str]) -> Value {
    let (code, out, problem) = node.command(&[&["keys"], words, &["--json"]].concat());
    assert_eq!(code, 0, "{words:?}: {problem}");
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"))
}

fn made(page: &Value) -> Key {
    Key { secret: page["key"].as_str().unwrap().to_owned(), hash: page["hash"].as_str().unwrap().to_owned() }
}

async fn status(node: &Peer, key: &Key) -> u16 {
    node.decided(key).await
}

const PRODUCTION: [&str; 4] = ["--tenant", "acme", "--label", "batch"];

#[allow(clippy::disallowed_methods, reason = "a test's stopwatch")]
fn stopwatch() -> Instant {
    Instant::now()
}

#[tokio::test]
async fn a_key_works_through_every_node_when_it_is_made_and_through_none_when_it_is_revoked() {
    let cluster = Cluster::of(3, acme).await;
    let page = keys(&cluster.nodes[0], &[&["create"], &PRODUCTION[..]].concat());
    let key = made(&page);
    assert!(key.secret.starts_with("tg-") && page["in_force"] == "on every node", "{page}");
    for node in &cluster.nodes {
        assert_eq!(status(node, &key).await, 200);
    }
    let listed = keys(&cluster.nodes[2], &["list", "--tenant", "acme"]);
    let labels: Vec<&str> =
        listed["keys"].as_array().unwrap().iter().map(|key| key["label"].as_str().unwrap()).collect();
    assert_eq!(labels, ["production", "batch"]);
    assert!(!listed.to_string().contains(&key.secret) && !listed.to_string().contains(&key.hash));

    let began = stopwatch();
    keys(&cluster.nodes[1], &[&["revoke"], &PRODUCTION[..]].concat());
    for node in &cluster.nodes {
        assert_eq!(status(node, &key).await, 401);
    }
    println!("from before the command to the last refusal: {:?}", began.elapsed());
    // The tenant's other key is none of its business.
    assert_eq!(status(&cluster.nodes[0], &Key::of("acme")).await, 200);
}

#[tokio::test]
async fn a_rotated_key_has_what_was_left_and_the_old_secret_works_until_its_grace_is_over() {
    let cluster = Cluster::of(3, acme).await;
    let limits = ["--requests-per-minute", "1", "--burst-requests", "5"];
    let old = made(&keys(&cluster.nodes[0], &[&["create"], &PRODUCTION[..], &limits[..]].concat()));
    for node in &cluster.nodes {
        assert_eq!(status(node, &old).await, 200);
    }
    let rotate = [&["rotate", "--grace", "3s"], &PRODUCTION[..]].concat();
    let new = made(&keys(&cluster.nodes[1], &rotate));
    // Three of five are used. Either secret draws on the same two.
    assert_eq!(status(&cluster.nodes[2], &new).await, 200);
    assert_eq!(status(&cluster.nodes[0], &old).await, 200);
    assert_eq!(status(&cluster.nodes[1], &new).await, 429);
    assert_eq!(status(&cluster.nodes[2], &old).await, 429);
    for node in &cluster.nodes {
        eventually("the grace is over", async || match status(node, &old).await {
            401 => Ok(()),
            status => Err(status.to_string()),
        })
        .await;
        assert_eq!(status(node, &new).await, 429);
    }
}

#[tokio::test]
async fn what_contradicts_the_policy_is_refused_in_words_and_its_keys_can_be_revoked_too() {
    let cluster = Cluster::of(3, acme).await;
    let refused = |words: &[&str]| {
        let (code, _, problem) = cluster.nodes[0].command(&[&["keys"], words].concat());
        assert_eq!(code, 1, "{words:?}");
        problem
    };
    let problem = refused(&["create", "--tenant", "nobody", "--label", "a"]);
    assert!(problem.contains("the policy has no tenant nobody"), "{problem}");
    let problem = refused(&["create", "--tenant", "acme", "--label", "production"]);
    assert!(problem.contains("is the policy document's: change it there"), "{problem}");
    let problem = refused(&["create", "--tenant", "acme", "--label", "no name"]);
    assert!(problem.contains("is not a name"), "{problem}");
    let problem = refused(&["create", "--tenant", "acme", "--label", "a", "--project", "p"]);
    assert!(problem.contains("has no project"), "{problem}");
    let problem = refused(&["rotate", "--tenant", "acme", "--label", "a"]);
    assert!(problem.contains("no key \"a\""), "{problem}");
    let problem = refused(&["revoke", "--tenant", "acme", "--label", "a"]);
    assert!(problem.contains("no key \"a\""), "{problem}");

    let key = made(&keys(&cluster.nodes[0], &[&["create"], &PRODUCTION[..]].concat()));
    let problem = refused(&[&["create"], &PRODUCTION[..]].concat());
    assert!(problem.contains("has a key \"batch\" already"), "{problem}");
    // Nor does a document that names the same key go with it.
    let twice = acme(Policy::at(&cluster.provider.url))
        .tenant_yaml(&format!("{{ id: beta, tier: ample, keys: [{{ label: x, hash: \"{}\" }}] }}", key.hash));
    let (code, _, problem) = cluster.nodes[1].apply(&twice.yaml(), &[]);
    assert!(code == 1 && problem.contains("is there already as key \"batch\" of tenant acme"), "{problem}");

    keys(&cluster.nodes[2], &["revoke", "--tenant", "acme", "--label", "production"]);
    for node in &cluster.nodes {
        assert_eq!((status(node, &Key::of("acme")).await, status(node, &key).await), (401, 200));
    }
    // The document, applied again, does not bring it back.
    let again = acme(Policy::at(&cluster.provider.url)).tenant("beta", &Key::of("beta"), AMPLE);
    let (code, _, problem) = cluster.nodes[1].apply(&again.yaml(), &[]);
    assert_eq!(code, 0, "{problem}");
    assert_eq!(status(&cluster.nodes[0], &Key::of("beta")).await, 200);
    assert_eq!(status(&cluster.nodes[0], &Key::of("acme")).await, 401);
}
