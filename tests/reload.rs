//! A policy in force is followed, whatever way its file is changed, and never half.

#![allow(clippy::unwrap_used, reason = "an answer of another shape fails the test, as it should")]

mod support;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use rustix::process::Signal;
use support::inside::{chat, message};
use support::process::{temporary_directory, tollgate};
use support::{Client, Inside, Key, Node, Policy, Process, Tap, eventually};

/// No provider is asked in these stories, but where one is started.
const NOWHERE: &str = "http://127.0.0.1:9";

fn northwind() -> Key {
    Key::of("northwind")
}

fn contoso() -> Key {
    Key::of("contoso")
}

fn one_tenant() -> String {
    Policy::at(NOWHERE).tenant("northwind", &northwind(), "max_inflight: 5").yaml()
}

fn two_tenants() -> String {
    let policy = Policy::at(NOWHERE).tenant("northwind", &northwind(), "max_inflight: 5");
    policy.tenant("contoso", &contoso(), "max_inflight: 7").yaml()
}

/// What a key gets from the one route that asks no provider.
async fn status(node: &Node, key: &Key) -> u16 {
    let url = format!("{}/v1/models", node.callers);
    Client::new().get(&url, &[("authorization", &key.bearer())]).await.status
}

async fn until_applied(node: &Node, times: i64) {
    node.until_metric("tollgate_policy_reloads_total", &["result=\"applied\""], times).await;
}

#[tokio::test]
async fn a_file_replaced_by_a_rename_is_followed() {
    let node = Process::serve(&one_tenant(), &[]).await;
    assert_eq!((status(&node, &northwind()).await, status(&node, &contoso()).await), (200, 401));
    node.replace_policy(&two_tenants());
    until_applied(&node, 1).await;
    assert_eq!((status(&node, &northwind()).await, status(&node, &contoso()).await), (200, 200));
    assert_eq!(node.metric("tollgate_policy_version", &[]).await, 2);
    node.replace_policy(&one_tenant());
    until_applied(&node, 2).await;
    assert_eq!(status(&node, &contoso()).await, 401, "a key that is gone is refused");
}

#[tokio::test]
async fn a_file_written_in_place_is_followed() {
    let node = Process::serve(&one_tenant(), &[]).await;
    fs::write(node.policy_file(), two_tenants()).unwrap();
    until_applied(&node, 1).await;
    assert_eq!(status(&node, &contoso()).await, 200);
}

#[tokio::test]
async fn a_symlink_that_swings_is_followed() {
    // As Kubernetes mounts a ConfigMap: policy.yaml → ..data/policy.yaml, and ..data → a folder for each version.
    let node = Process::serve(&one_tenant(), &[]).await;
    let folder = node.process.directory().to_owned();
    for (version, text) in [("..1", one_tenant()), ("..2", two_tenants())] {
        fs::create_dir(folder.join(version)).unwrap();
        fs::write(folder.join(version).join("policy.yaml"), text).unwrap();
    }
    symlink("..1", folder.join("..data")).unwrap();
    symlink("..data/policy.yaml", folder.join("policy.yaml.link")).unwrap();
    fs::rename(folder.join("policy.yaml.link"), node.policy_file()).unwrap();
    assert_eq!(status(&node, &contoso()).await, 401);

    symlink("..2", folder.join("..data.next")).unwrap();
    fs::rename(folder.join("..data.next"), folder.join("..data")).unwrap();
    until_applied(&node, 1).await;
    assert_eq!(status(&node, &contoso()).await, 200);
}

#[tokio::test]
async fn a_bad_policy_is_refused_and_the_old_one_stays() {
    let node = Process::serve(&one_tenant(), &[]).await;
    node.replace_policy(&two_tenants().replace("max_inflight: 7", "max_inflight: 7, max_inflihgt: 8"));
    node.until_metric("tollgate_policy_reloads_total", &["result=\"refused\""], 1).await;
    assert_eq!((status(&node, &northwind()).await, status(&node, &contoso()).await), (200, 401));
    assert_eq!(node.metric("tollgate_policy_version", &[]).await, 1);
    eventually("the log says why", async || {
        let log = node.process.log();
        let told =
            log.contains("the old one stays") && log.contains("max_inflihgt") && log.contains("policy.yaml:");
        if told { Ok(()) } else { Err(log) }
    })
    .await;
    // A file that is gone changes nothing either.
    fs::remove_file(node.policy_file()).unwrap();
    assert_eq!(status(&node, &northwind()).await, 200);
    node.replace_policy(&two_tenants());
    until_applied(&node, 1).await;
    assert_eq!(status(&node, &contoso()).await, 200);
}

#[tokio::test]
async fn a_file_that_says_the_same_in_other_words_changes_nothing() {
    let node = Process::serve(&one_tenant(), &[]).await;
    let unchanged = ["result=\"unchanged\""];
    node.until_metric("tollgate_policy_reloads_total", &unchanged, 1).await;
    node.replace_policy(&format!("# the same\n{}", one_tenant()));
    node.until_metric("tollgate_policy_reloads_total", &unchanged, 2).await;
    assert_eq!(node.metric("tollgate_policy_version", &[]).await, 1);
}

#[tokio::test]
async fn on_hangup_the_policy_and_its_secrets_are_read_again() {
    let provider = Process::provider(&[]).await;
    let tap = Tap::before(&provider.url).await;
    let folder = temporary_directory();
    let secret = folder.path().join("secret");
    fs::write(&secret, "sk-first\n").unwrap();
    let policy = Policy::at(&tap.url).secret(&format!("file:{}", secret.display())).tenant(
        "northwind",
        &northwind(),
        "max_inflight: 5",
    );
    let mut node = Process::serve(&policy.yaml(), &[]).await;
    let url = format!("{}/v1/chat/completions", node.callers);
    let client = Client::new();
    let bearer = northwind().bearer();
    assert_eq!(client.post(&url, &[("authorization", &bearer)], &chat(4)).await.status, 200);

    // The provider's key was rotated; the policy only says where it lies.
    fs::write(&secret, "sk-second\n").unwrap();
    node.process.signal(Signal::HUP);
    until_applied(&node, 1).await;
    assert_eq!(client.post(&url, &[("authorization", &bearer)], &chat(4)).await.status, 200);
    let sent: Vec<String> =
        tap.take().iter().map(|attempt| attempt.sent["authorization"].to_str().unwrap().to_owned()).collect();
    assert_eq!(sent, ["Bearer sk-first", "Bearer sk-second"]);
}

#[tokio::test]
async fn a_file_that_changed_while_the_node_was_starting_is_followed() {
    let folder = temporary_directory();
    let file = folder.path().join("policy.yaml");
    fs::write(&file, two_tenants()).unwrap();
    // The node has read its first policy, and the file says something else by now.
    let set = |options: &mut tollgate::gateway::GatewayOptions| options.policy_file = Some(file.clone());
    let inside =
        Inside::with(set, |policy| policy.tenant("northwind", &northwind(), "max_inflight: 5")).await;
    eventually("the file's policy is in force", async || match inside.node().snapshot().version {
        2 => Ok(()),
        version => Err(format!("version {version}")),
    })
    .await;
    let bearer = contoso().bearer();
    let answer = inside.client.get(&inside.at("/v1/models"), &[("authorization", &bearer)]).await;
    assert_eq!(answer.status, 200);
}

#[tokio::test]
async fn requests_go_on_while_the_policy_changes() {
    let inside = Inside::under(|policy| policy.tenant("northwind", &northwind(), "max_inflight: 50")).await;
    let (key, body) = (northwind(), chat(4));
    let asking = async {
        for _ in 0..100 {
            let answer = inside.chat(&key, "", &body).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
    };
    let editing = async {
        for round in 0..40 {
            let limits = format!("max_inflight: {}, tokens_per_minute: {}", 40 + round, 1_000_000 + round);
            inside.edit(|policy| policy.tenant("northwind", &northwind(), &limits));
            tokio::task::yield_now().await;
        }
    };
    tokio::join!(asking, editing);
    inside.assert_at_rest().await;
}

// At the start.

#[tokio::test]
async fn an_invalid_policy_ends_the_start_and_says_where() {
    let directory = temporary_directory();
    let policy = directory.path().join("policy.yaml");
    let text = one_tenant().replace("max_inflight: 5", "max_inflihgt: 5");
    fs::write(&policy, &text).unwrap();
    let line = 1 + text.lines().position(|line| line.contains("max_inflihgt")).unwrap();
    let column = 1 + text.lines().nth(line - 1).unwrap().find("max_inflihgt").unwrap();
    let log = start_that_fails(directory, &policy).await;
    let place = format!("policy.yaml:{line}:{column}: ");
    for words in [place.as_str(), "max_inflihgt", "max_inflight", "does not start"] {
        assert!(log.contains(words), "{words:?} is not in: {log}");
    }
}

#[tokio::test]
async fn a_policy_that_is_not_there_ends_the_start_and_says_which() {
    let directory = temporary_directory();
    let policy = directory.path().join("absent.yaml");
    let log = start_that_fails(directory, &policy).await;
    assert!(log.contains("absent.yaml") && log.contains("cannot be read"), "{log}");
}

async fn start_that_fails(directory: tempfile::TempDir, policy: &PathBuf) -> String {
    let mut command = tollgate("serve");
    command.args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--policy"]).arg(policy);
    command.arg("--data").arg(directory.path().join("data"));
    let mut process = Process::start("tollgate serve", command, directory);
    assert_eq!(process.ended().await.code(), Some(1));
    process.log()
}

#[tokio::test]
async fn the_gate_opens_loudly_when_it_is_told_to_and_closes_with_a_valid_policy() {
    let provider = Process::provider(&[]).await;
    let valid = Policy::at(&provider.url).tenant(
        "northwind",
        &northwind(),
        "requests_per_minute: 1, burst_requests: 1",
    );
    let invalid = valid.yaml().replace("burst_requests: 1", "burst_requests: many");
    let node = Process::serve(&invalid, &["--without-limits-on-invalid-policy"]).await;
    let client = Client::new();
    let url = format!("{}/v1/chat/completions", node.callers);
    let bearer = northwind().bearer();
    let known = [("authorization", bearer.as_str())];
    for headers in [&known[..], &[]] {
        for _ in 0..3 {
            assert_eq!(client.post(&url, headers, &chat(4)).await.status, 200, "{headers:?}");
        }
    }
    let messages = format!("{}/v1/messages", node.callers);
    let version = [("anthropic-version", "2023-06-01")];
    assert_eq!(client.post(&messages, &version, &message(4)).await.status, 200);
    let log = node.process.log();
    assert!(log.contains("NO LIMIT IS ENFORCED") && log.contains("burst_requests"), "{log}");
    assert_eq!(node.operator_get("/v1/policy").await.json()["limits_off"], true);
    assert!(node.metric("tollgate_tokens_unenforced_total", &["reason=\"invalid_policy\""]).await > 0);

    node.replace_policy(&valid.yaml());
    until_applied(&node, 1).await;
    assert_eq!(node.operator_get("/v1/policy").await.json()["limits_off"], false);
    assert_eq!(client.post(&url, &[], &chat(4)).await.status, 401, "a stranger is one again");
    // What the tenant used while nothing was enforced is not held against a limit that did not exist.
    assert_eq!(client.post(&url, &known, &chat(4)).await.status, 200);
    assert_eq!(client.post(&url, &known, &chat(4)).await.status, 429, "and its limit holds");
}
