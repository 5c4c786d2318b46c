//! Secrets that lie in files are followed: what replaces one, by whatever way, is what the next request is sent with.

#![allow(clippy::unwrap_used, reason = "an answer of another shape fails the test, as it should")]

mod support;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use serde_json::{Value, json};
use support::inside::chat;
use support::process::temporary_directory;
use support::scripted::says;
use support::{Client, Inside, Key, Node, Policy, Process, Scripted, eventually};

/// A provider that serves whoever has the key that it has given out last, and the key.
async fn strict() -> (Scripted, Arc<Mutex<String>>) {
    let key = Arc::new(Mutex::new("sk-first".to_owned()));
    let asked_for = key.clone();
    let provider = Scripted::playing(move |_, request| {
        let sent = request.headers().get("authorization").and_then(|value| value.to_str().ok());
        let wanted = format!("Bearer {}", asked_for.lock().unwrap());
        if sent != Some(wanted.as_str()) {
            return says(401, "application/json", r#"{ "error": { "message": "no such key" } }"#);
        }
        let answer = json!({
            "id": "c", "object": "chat.completion", "created": 1, "model": "gpt-5",
            "choices": [{ "index": 0, "finish_reason": "stop", "message": { "role": "assistant", "content": "Hi." } }],
            "usage": { "prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11 },
        });
        says(200, "application/json", answer.to_string())
    })
    .await;
    (provider, key)
}

async fn before(provider: &Scripted, secret: &Path) -> Node {
    let policy = Policy::at(&provider.url).secret(&format!("file:{}", secret.display()));
    Process::serve(&policy.tenant("northwind", &Key::of("northwind"), "max_inflight: 5").yaml(), &[]).await
}

async fn status(node: &Node) -> u16 {
    let (url, bearer) = (format!("{}/v1/chat/completions", node.callers), Key::of("northwind").bearer());
    Client::new().post(&url, &[("authorization", &bearer)], &chat(4)).await.status
}

/// Waits until so many changes of the provider's secret were found, that could be used or not.
async fn until_found(node: &Node, result: &str, times: i64) {
    let labels = ["provider=\"openai\"", &*format!("result=\"{result}\"")];
    node.until_metric("tollgate_secret_reloads_total", &labels, times).await;
}

/// What `/v1/policy` says of the provider's secret.
async fn outdated(node: &Node) -> Value {
    let page = node.operator_get("/v1/policy").await.json();
    let providers = page["providers"].as_array().unwrap().clone();
    providers.iter().find(|provider| provider["name"] == "openai").unwrap()["outdated"].clone()
}

#[tokio::test]
async fn a_secret_replaced_by_a_rename_is_what_the_next_request_is_sent_with() {
    let (provider, key) = strict().await;
    let folder = temporary_directory();
    let (secret, next) = (folder.path().join("secret"), folder.path().join("secret.next"));
    fs::write(&secret, "sk-first\n").unwrap();
    let node = before(&provider, &secret).await;
    assert_eq!(status(&node).await, 200);
    for (times, text) in [(1, "sk-second"), (2, "sk-third")] {
        text.clone_into(&mut key.lock().unwrap());
        assert_eq!(status(&node).await, 401, "the provider has changed it, and nobody has told the node");
        fs::write(&next, text).unwrap();
        fs::rename(&next, &secret).unwrap();
        until_found(&node, "applied", times).await;
        assert_eq!(status(&node).await, 200);
    }
    let log = node.process.log();
    assert!(!log.contains("sk-second") && !log.contains("sk-third"), "{log}");
}

#[tokio::test]
async fn a_secret_that_kubernetes_swings_over_is_followed() {
    let (provider, key) = strict().await;
    let folder = temporary_directory();
    let mounted = |name: &str| folder.path().join(name);
    fs::create_dir(mounted("..2026_11_29")).unwrap();
    fs::write(mounted("..2026_11_29").join("openai"), "sk-first").unwrap();
    symlink("..2026_11_29", mounted("..data")).unwrap();
    symlink("..data/openai", mounted("openai")).unwrap();
    let node = before(&provider, &mounted("openai")).await;
    assert_eq!(status(&node).await, 200);

    "sk-second".clone_into(&mut key.lock().unwrap());
    fs::create_dir(mounted("..2026_11_30")).unwrap();
    fs::write(mounted("..2026_11_30").join("openai"), "sk-second").unwrap();
    symlink("..2026_11_30", mounted("..data_tmp")).unwrap();
    fs::rename(mounted("..data_tmp"), mounted("..data")).unwrap();
    fs::remove_dir_all(mounted("..2026_11_29")).unwrap();
    until_found(&node, "applied", 1).await;
    assert_eq!(status(&node).await, 200);
    assert_eq!(node.metric("tollgate_secret_reloads_total", &["result=\"refused\""]).await, 0);
}

#[tokio::test]
async fn a_secret_that_cannot_be_used_leaves_the_old_one_and_is_said_once() {
    let (provider, key) = strict().await;
    let folder = temporary_directory();
    let (secret, next) = (folder.path().join("secret"), folder.path().join("secret.next"));
    let replace = |text: &str| {
        fs::write(&next, text).unwrap();
        fs::rename(&next, &secret).unwrap();
    };
    fs::write(&secret, "sk-first").unwrap();
    let mut node = before(&provider, &secret).await;

    replace("\n");
    until_found(&node, "refused", 1).await;
    assert_eq!(status(&node).await, 200, "the old one stays");
    assert!(outdated(&node).await.as_str().unwrap().ends_with("is empty"));
    // Who looks again, and puts another policy in force, finds the same, and the secret that works is still there.
    node.process.signal(rustix::process::Signal::HUP);
    node.until_metric("tollgate_policy_reloads_total", &["result=\"applied\""], 1).await;
    let text = fs::read_to_string(node.policy_file()).unwrap();
    node.replace_policy(&text.replace("max_inflight: 5", "max_inflight: 6"));
    node.until_metric("tollgate_policy_reloads_total", &["result=\"applied\""], 2).await;
    assert_eq!(status(&node).await, 200);

    fs::remove_file(&secret).unwrap();
    until_found(&node, "refused", 2).await;
    assert_eq!(status(&node).await, 200, "a file that is gone changes nothing");
    // What would break out of its header is no secret.
    replace("sk-\u{1}");
    until_found(&node, "refused", 3).await;
    assert_eq!(status(&node).await, 200);

    "sk-second".clone_into(&mut key.lock().unwrap());
    replace("sk-second");
    until_found(&node, "applied", 1).await;
    assert_eq!(status(&node).await, 200);
    assert_eq!(outdated(&node).await, Value::Null);
    let log = node.process.log();
    let said = |why: &str| {
        let refused = |line: &&str| line.contains("the old one stays") && line.contains("openai");
        log.lines().filter(refused).filter(|line| line.contains(why)).count()
    };
    assert_eq!((said("is empty"), said("cannot be read"), said("is not a header value")), (1, 1, 1), "{log}");
}

#[tokio::test]
async fn a_secret_that_was_missing_at_the_start_is_found_when_it_comes() {
    let (provider, _key) = strict().await;
    let folder = temporary_directory();
    // Not even its folder is there.
    let secret = folder.path().join("later").join("secret");
    let node = before(&provider, &secret).await;
    assert_eq!(status(&node).await, 502);
    fs::create_dir(secret.parent().unwrap()).unwrap();
    fs::write(&secret, "sk-first").unwrap();
    until_found(&node, "applied", 1).await;
    assert_eq!(status(&node).await, 200);
}

#[tokio::test]
async fn the_secret_of_an_issuer_is_followed_too() {
    let folder = temporary_directory();
    let secret = folder.path().join("secret");
    let (first, second) =
        ("the first secret of an issuer, long enough", "the second one, of which as much is true");
    fs::write(&secret, first).unwrap();
    let inside = Inside::under(|policy| {
        policy.tenant("northwind", &Key::of("northwind"), "max_inflight: 5").and(&format!(
            "identity: [ {{ issuer: 'https://id.test', audience: tollgate, algorithms: [HS256], secret: 'file:{}', tenant_claim: tenant }} ]",
            secret.display()
        ))
    })
    .await;
    let token = |secret: &str| {
        let claims = json!({
            "iss": "https://id.test", "aud": "tollgate", "exp": 4_102_444_800_u64, "tenant": "northwind",
        });
        let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let message = format!("{}.{}", encode(&json!({ "alg": "HS256" })), encode(&claims));
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()), message.as_bytes());
        format!("{message}.{}", URL_SAFE_NO_PAD.encode(tag))
    };
    let accepts = |secret: &str| {
        let now = tollgate::clock::wall_now();
        inside.node().snapshot().issuers.tenant(token(secret).as_bytes(), now).is_some()
    };
    assert_eq!((accepts(first), accepts(second)), (true, false));
    fs::write(folder.path().join("next"), second).unwrap();
    fs::rename(folder.path().join("next"), &secret).unwrap();
    eventually("the new one is in force", async || match (accepts(first), accepts(second)) {
        (false, true) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
}
