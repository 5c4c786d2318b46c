//! The policy as something agreed on: put in force through one node it is in force on all, by one version after the other.

#![allow(clippy::unwrap_used, reason = "an answer of another shape fails the test, as it should")]

mod support;

use futures_util::future::join_all;
use support::policy::AMPLE;
use support::{Cluster, Key, Peer, Policy, eventually};

fn key(tenant: &str) -> Key {
    Key::of(tenant)
}

/// A tenant that may do as it likes, and what a story says of another.
fn with_acme(limits: &str) -> impl Fn(Policy) -> Policy {
    let limits = limits.to_owned();
    move |policy| policy.tenant("other", &key("other"), AMPLE).tenant("acme", &key("acme"), &limits)
}

fn document(cluster: &Cluster, policy: impl Fn(Policy) -> Policy) -> String {
    policy(Policy::at(&cluster.provider.url)).yaml()
}

async fn statuses(nodes: &[Peer], key: &Key, each: usize) -> Vec<u16> {
    join_all((0..nodes.len() * each).map(|number| nodes[number % nodes.len()].decided(key))).await
}

/// The version that each running node has in force.
async fn versions(nodes: &[Peer]) -> Vec<u64> {
    let mut versions = Vec::new();
    for node in nodes.iter().filter(|node| node.runs()) {
        versions.push(node.look("/v1/policy").await.unwrap()["version"].as_u64().unwrap());
    }
    versions
}

#[tokio::test]
async fn what_is_applied_through_one_node_is_in_force_on_all_when_the_command_returns() {
    let cluster = Cluster::of(3, with_acme("requests_per_minute: 1, burst_requests: 9")).await;
    assert_eq!(versions(&cluster.nodes).await, [1, 1, 1]);
    assert_eq!(statuses(&cluster.nodes, &key("new"), 1).await, [401, 401, 401]);
    assert_eq!(statuses(&cluster.nodes, &key("acme"), 1).await, [200, 200, 200]);

    // Three of nine are used, and stay so: two are left of the new burst of five.
    let next = document(&cluster, |policy| {
        with_acme("requests_per_minute: 1, burst_requests: 5")(policy).tenant("new", &key("new"), AMPLE)
    });
    let (code, out, problem) = cluster.nodes[1].apply(&next, &["--expect", "1"]);
    assert_eq!(code, 0, "{problem}");
    for line in [
        "+ tenants.new.id: new",
        "~ tenants.acme.burst_requests: 9 → 5",
        "Version 2 is in force on every node. It replaces version 1.",
        // The arithmetic: what was sold of a pool against its ceiling.
        "sold/ceiling",
    ] {
        assert!(out.contains(line), "{line} is not in:\n{out}");
    }

    assert_eq!(versions(&cluster.nodes).await, [2, 2, 2]);
    assert_eq!(statuses(&cluster.nodes, &key("new"), 1).await, [200, 200, 200]);
    let answers = statuses(&cluster.nodes, &key("acme"), 4).await;
    assert_eq!(answers.iter().filter(|status| **status == 200).count(), 2, "{answers:?}");
    // A decision says under which version it was made.
    let answer = cluster.nodes[2].chat(&key("other"), "", 4).await.unwrap();
    let id = answer.header("x-tollgate-decision").unwrap().to_owned();
    let url = format!("{}/tollgate/v1/decisions/{id}", cluster.nodes[2].callers);
    let record = support::Client::new().get(&url, &[("authorization", &key("other").bearer())]).await.json();
    assert_eq!(record["policy_version"], 2);
}

#[tokio::test]
async fn a_version_replaces_the_one_it_was_made_for_and_an_earlier_one_can_come_back() {
    let mut cluster = Cluster::of(3, with_acme("max_inflight: 5")).await;
    let second = document(&cluster, with_acme("max_inflight: 6"));
    let (code, out, _) = cluster.nodes[0].apply(&second, &["--dry-run"]);
    assert_eq!(code, 0);
    assert!(out.contains("max_inflight: 5 → 6") && out.contains("Nothing was changed"), "{out}");
    assert_eq!(versions(&cluster.nodes).await, [1, 1, 1]);
    assert_eq!(cluster.nodes[0].apply(&second, &["--expect", "1"]).0, 0);

    // Another operator has looked at version 1.
    let third = document(&cluster, with_acme("max_inflight: 7"));
    let (code, _, problem) = cluster.nodes[2].apply(&third, &["--expect", "1"]);
    assert_eq!(code, 1);
    assert!(problem.contains("version 1 was to be replaced, but the policy is of version 2"), "{problem}");
    assert_eq!(versions(&cluster.nodes).await, [2, 2, 2]);
    // What cannot be used is said with its line, before anybody is asked.
    let (code, _, problem) =
        cluster.nodes[2].apply(&third.replace("max_inflight: 7", "max_inflihgt: 7"), &[]);
    assert!(code == 1 && problem.contains("applied.yaml:") && problem.contains("max_inflihgt"), "{problem}");
    // Once more the same is no new version.
    let (code, out, _) = cluster.nodes[1].apply(&second, &[]);
    assert!(code == 0 && out.contains("Version 2 says this already"), "{out}");

    let (code, out, problem) = cluster.nodes[1].command(&["policy", "rollback", "1"]);
    assert_eq!(code, 0, "{problem}");
    assert!(out.contains("max_inflight: 6 → 5") && out.contains("Version 3 is in force"), "{out}");
    assert_eq!(versions(&cluster.nodes).await, [3, 3, 3]);
    let (_, shown, _) = cluster.nodes[2].command(&["policy", "show"]);
    assert_eq!(shown.trim(), document(&cluster, with_acme("max_inflight: 5")).trim());
    let (_, shown, _) = cluster.nodes[0].command(&["policy", "show", "2"]);
    assert_eq!(shown.trim(), second.trim());
    let (_, log, _) = cluster.nodes[0].command(&["policy", "log"]);
    for words in ["3 (in force)", "rollback to 1", "seed"] {
        assert!(log.contains(words), "{log}");
    }
    assert_eq!(cluster.nodes[0].command(&["policy", "show", "9"]).0, 1);

    // All of it outlives the processes.
    for node in &mut cluster.nodes {
        node.kill();
    }
    for node in &mut cluster.nodes {
        node.start().await;
    }
    for node in &cluster.nodes {
        node.until_ready().await;
    }
    assert_eq!(versions(&cluster.nodes).await, [3, 3, 3]);
    let (_, again, _) = cluster.nodes[1].command(&["policy", "log"]);
    assert_eq!(again, log);
}

#[tokio::test]
async fn a_node_that_was_wiped_gets_what_is_agreed_on_and_not_what_its_file_says() {
    let mut cluster = Cluster::of(3, with_acme("max_inflight: 5")).await;
    let (code, _, problem) = cluster.nodes[0].apply(&document(&cluster, with_acme("max_inflight: 6")), &[]);
    assert_eq!(code, 0, "{problem}");
    let lost = cluster.nodes[2].address.to_string();
    cluster.nodes[2].kill();
    cluster.nodes[2].wipe();
    cluster.until_spread(2).await;
    let page = cluster.nodes[0].look("/v1/cluster").await.unwrap();
    let members = page["members"].as_array().unwrap();
    let id = members.iter().find(|member| member["address"] == lost.as_str()).unwrap()["id"].to_string();
    eventually("the old number is removed", async || {
        let (code, _, problem) = cluster.nodes[0].command(&["cluster", "remove", &id]);
        if code == 0 { Ok(()) } else { Err(problem) }
    })
    .await;
    cluster.nodes[2].start_and_join().await;
    assert_eq!(versions(&cluster.nodes).await, [2, 2, 2]);
    // Its file is the first one, and that is no edit.
    eventually("it says that its file is behind", async || {
        let page = cluster.nodes[2].look("/v1/policy").await?;
        let behind = page["file"]["in_step_with"] == 1 && page["file"]["conflict"].is_null();
        if behind { Ok(()) } else { Err(page["file"].to_string()) }
    })
    .await;
    assert_eq!(versions(&cluster.nodes).await, [2, 2, 2]);
}

#[tokio::test]
async fn a_file_that_is_edited_on_one_node_is_proposed_for_all_and_one_that_is_behind_is_a_conflict() {
    let cluster = Cluster::of(3, with_acme("max_inflight: 5")).await;
    cluster.nodes[2].replace_policy(&document(&cluster, |policy| {
        with_acme("max_inflight: 6")(policy).tenant("new", &key("new"), AMPLE)
    }));
    eventually("all have version 2", async || match versions(&cluster.nodes).await {
        versions if versions == [2, 2, 2] => Ok(()),
        versions => Err(format!("{versions:?}")),
    })
    .await;
    assert_eq!(statuses(&cluster.nodes, &key("new"), 1).await, [200, 200, 200]);

    // The first node's file still says what version 1 said; edited, it would undo version 2.
    cluster.nodes[0].replace_policy(&document(&cluster, with_acme("max_inflight: 7")));
    let conflict = eventually("the first node says so", async || {
        let page = cluster.nodes[0].look("/v1/policy").await?;
        page["file"]["conflict"].as_str().map(str::to_owned).ok_or_else(|| page["file"].to_string())
    })
    .await;
    assert!(conflict.contains("version 1 was to be replaced, but the policy is of version 2"), "{conflict}");
    assert!(cluster.nodes[0].log().contains("the policy file is not in force"));
    assert_eq!(versions(&cluster.nodes).await, [2, 2, 2]);

    // An operator decides for it.
    let (code, _, problem) =
        cluster.nodes[0].apply(&document(&cluster, with_acme("max_inflight: 7")), &["--expect", "2"]);
    assert_eq!(code, 0, "{problem}");
    assert_eq!(versions(&cluster.nodes).await, [3, 3, 3]);
    eventually("its file is in step again", async || {
        let page = cluster.nodes[0].look("/v1/policy").await?;
        let in_step = page["file"]["in_step_with"] == 3 && page["file"]["conflict"].is_null();
        if in_step { Ok(()) } else { Err(page["file"].to_string()) }
    })
    .await;
}
