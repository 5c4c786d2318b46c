//! Whose a request is: told by one verified credential, and by nothing else that a caller sends.

#![allow(clippy::unwrap_used, reason = "an answer of another shape fails the test, as it should")]

mod support;

use axum::response::Response as Scene;
use serde_json::{Value, json};
use support::inside::{PROVIDER_SECRET, chat, message, streamed};
use support::scripted::says;
use support::{Inside, Key, Policy, Process, Response, Scripted, Tap};
use tollgate::simulated;

const LIMITS: &str = "requests_per_minute: 1, burst_requests: 100";

fn key() -> Key {
    Key::of("production")
}

fn northwind(policy: Policy) -> Policy {
    policy.tenant("northwind", &key(), LIMITS)
}

async fn ask(inside: &Inside, headers: &[(&str, &str)]) -> Response {
    inside.client.post(&inside.at("/v1/chat/completions"), headers, &chat(4)).await
}

async fn before(url: &str) -> Inside {
    let unused = simulated::Provider::bind(([127, 0, 0, 1], 0).into(), simulated::Options::default());
    Inside::before(unused.await.unwrap(), url, |_| {}, northwind).await
}

#[tokio::test]
async fn every_header_that_sdks_use_carries_a_key_on_every_route() {
    let inside = Inside::under(northwind).await;
    let (secret, bearer) = (key().secret, key().bearer());
    for header in [
        ("authorization", bearer.as_str()),
        ("x-api-key", &secret),
        ("api-key", &secret),
        ("x-goog-api-key", &secret),
    ] {
        assert_eq!(ask(&inside, &[header]).await.status, 200, "{}", header.0);
        let version = ("anthropic-version", "2023-06-01");
        let answer = inside.client.post(&inside.at("/v1/messages"), &[header, version], &message(4)).await;
        assert_eq!(answer.status, 200, "{}", header.0);
        assert_eq!(inside.client.get(&inside.at("/v1/models"), &[header]).await.status, 200, "{}", header.0);
    }
}

#[tokio::test]
async fn two_credentials_that_differ_are_none_and_the_same_twice_is_one() {
    let contoso = Key::of("contoso");
    let inside = Inside::under(|policy| northwind(policy).tenant("contoso", &contoso, LIMITS)).await;
    let (ours, theirs) = (key().bearer(), contoso.secret.as_str());
    for second in ["x-api-key", "api-key", "x-goog-api-key"] {
        let refused = ask(&inside, &[("authorization", &ours), (second, theirs)]).await;
        assert_eq!(refused.status, 401, "{second}");
        assert_eq!(ask(&inside, &[("authorization", &ours), (second, &key().secret)]).await.status, 200);
    }
    assert_eq!(inside.used(&contoso, "tenant", "requests_per_minute").await, 0);
}

#[tokio::test]
async fn every_wrong_key_gets_the_same_answer() {
    let expired = Key::of("expired");
    let tenant = format!(
        "{{ id: contoso, keys: [{{ label: old, hash: \"{}\", expires: 2020-01-01T00:00:00Z }}] }}",
        expired.hash
    );
    let inside = Inside::under(|policy| northwind(policy).tenant_yaml(&tenant)).await;
    let mut near = key().secret;
    let last = if near.pop() == Some('0') { '1' } else { '0' };
    near.push(last);
    let long = "k".repeat(2_000);
    let (expired, upper) = (expired.bearer(), format!("Bearer {}", key().secret.to_uppercase()));
    let bearer = |secret: &str| format!("Bearer {secret}");
    let (near, hash, long) = (bearer(&near), bearer(&key().hash), bearer(&long));
    let wrong: [&[(&str, &str)]; 10] = [
        &[],
        &[("authorization", &near)],
        &[("authorization", &expired)],
        &[("authorization", &upper)],
        &[("authorization", &hash)],
        &[("authorization", &long)],
        &[("authorization", "Bearer")],
        &[("authorization", "Basic dG9sbDpnYXRl")],
        &[("x-api-key", "")],
        &[("x-tollgate-tenant", "northwind")],
    ];
    let mut answers = std::collections::BTreeSet::new();
    for headers in wrong {
        let answer = ask(&inside, headers).await;
        assert_eq!(answer.status, 401, "{headers:?}");
        assert_eq!(answer.header("x-tollgate-error"), Some("unauthenticated"));
        assert_eq!(answer.json()["error"]["code"], "invalid_api_key");
        assert!(
            answer.headers.keys().all(|name| !name.as_str().contains("ratelimit")),
            "{:?}",
            answer.headers
        );
        answers.insert((answer.text(), answer.headers.len()));
    }
    assert_eq!(answers.len(), 1, "{answers:?}");
    let told =
        inside.client.post(&inside.at("/v1/messages"), &[("x-api-key", "tg-0")], &message(4)).await.json();
    assert_eq!(told["error"]["type"], "authentication_error", "{told}");
    assert_eq!(inside.provider.stats().requests, 0);
    assert_eq!(inside.metric("tollgate_decisions_total", &["outcome=\"admitted\""]), 0);
}

#[tokio::test]
async fn a_stranger_learns_nothing_of_its_body() {
    let inside = Inside::under(northwind).await;
    for body in ["{", "", "{\"model\":\"gpt-17\"}"] {
        let answer = inside
            .client
            .post_bytes(&inside.at("/v1/chat/completions"), &[("x-api-key", "tg-0")], body)
            .await;
        assert_eq!(answer.status, 401, "identity comes first: {body}");
    }
    for path in ["/v1/models", "/tollgate/v1/me", "/tollgate/v1/decisions/00000000000000000000000000000000"] {
        assert_eq!(inside.client.get(&inside.at(path), &[]).await.status, 401, "{path}");
    }
}

#[tokio::test]
async fn a_header_that_names_a_tenant_changes_nothing_and_goes_nowhere() {
    let provider = simulated::Provider::bind(([127, 0, 0, 1], 0).into(), simulated::Options::default());
    let provider = provider.await.unwrap();
    let tap = Tap::before(&format!("http://{}", provider.local_addr())).await;
    let contoso = Key::of("contoso");
    let policy = |policy| northwind(policy).tenant("contoso", &contoso, LIMITS);
    let inside = Inside::before(provider, &tap.url, |_| {}, policy).await;
    let bearer = key().bearer();
    let claims = [
        ("authorization", bearer.as_str()),
        ("x-tollgate-tenant", "contoso"),
        ("x-tenant-id", "contoso"),
        ("x-tenant", "contoso"),
        ("openai-organization", "org-contoso"),
        ("openai-project", "proj-contoso"),
        ("x-forwarded-for", "10.0.0.1"),
        ("forwarded", "for=10.0.0.1"),
        ("cookie", "session=contoso"),
        ("connection", "x-named"),
        ("x-named", "contoso"),
        ("te", "trailers"),
        ("accept-encoding", "gzip"),
        ("anthropic-version", "2026-10-21"),
        ("user-agent", "story/1"),
        ("x-stainless-retry-count", "1"),
    ];
    let answer = ask(&inside, &claims).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(inside.decision_of(&key(), &answer).await["tenant"], "northwind");
    assert_eq!(inside.used(&contoso, "tenant", "requests_per_minute").await, 0);
    assert_eq!(inside.used(&key(), "tenant", "requests_per_minute").await, 1);

    let sent = tap.take().remove(0).sent;
    for (name, value) in &sent {
        assert!(!value.to_str().unwrap().contains("contoso"), "{name}: {value:?}");
        assert!(!value.to_str().unwrap().contains(&key().secret), "{name}: {value:?}");
        assert!(!name.as_str().contains("forwarded"), "{name}: {value:?}");
    }
    assert_eq!(sent["authorization"], format!("Bearer {PROVIDER_SECRET}"));
    assert_eq!(sent["accept-encoding"], "identity");
    assert_eq!(sent["anthropic-version"], "2026-10-21", "forwarded, not overwritten");
    assert_eq!(sent["user-agent"], "story/1");
    assert_eq!(sent["x-stainless-retry-count"], "1");
}

#[tokio::test]
async fn no_header_that_carries_a_credential_reaches_the_provider() {
    let provider = simulated::Provider::bind(([127, 0, 0, 1], 0).into(), simulated::Options::default());
    let provider = provider.await.unwrap();
    let tap = Tap::before(&format!("http://{}", provider.local_addr())).await;
    let inside = Inside::before(provider, &tap.url, |_| {}, northwind).await;
    for name in ["authorization", "x-api-key", "api-key", "x-goog-api-key"] {
        let value = if name == "authorization" { key().bearer() } else { key().secret };
        assert_eq!(ask(&inside, &[(name, &value)]).await.status, 200);
        let headers = [(name, value.as_str()), ("anthropic-version", "2023-06-01")];
        let answer = inside.client.post(&inside.at("/v1/messages"), &headers, &message(4)).await;
        assert_eq!(answer.status, 200);
    }
    for attempt in tap.take() {
        for (name, value) in &attempt.sent {
            assert!(!value.to_str().unwrap().contains(&key().secret), "{name}: {value:?}");
        }
        let own = if attempt.line.ends_with("/messages") { "x-api-key" } else { "authorization" };
        assert!(attempt.sent[own].to_str().unwrap().ends_with(PROVIDER_SECRET), "{attempt:?}");
    }
}

#[tokio::test]
async fn what_is_the_accounts_does_not_reach_the_caller() {
    let scripted = Scripted::playing(|_, _| {
        let mut answer = says(
            200,
            "application/json",
            "{\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1,\"total_tokens\":2}}",
        );
        for (name, value) in [
            ("x-ratelimit-limit-tokens", "77777"),
            ("anthropic-ratelimit-tokens-limit", "77777"),
            ("ratelimit", "77777"),
            ("set-cookie", "account=77777"),
            ("openai-organization", "org-77777"),
            ("anthropic-organization-id", "org-77777"),
            ("x-tollgate-error", "77777"),
            ("x-tollgate-decision", "77777"),
            ("x-request-id", "req_of_the_provider"),
            ("openai-processing-ms", "12"),
        ] {
            answer.headers_mut().insert(name, value.parse().unwrap());
        }
        answer
    })
    .await;
    let inside = before(&scripted.url).await;
    let answer = ask(&inside, &[("authorization", &key().bearer())]).await;
    assert_eq!(answer.status, 200);
    for (name, value) in &answer.headers {
        assert!(!value.to_str().unwrap().contains("77777"), "{name}: {value:?}");
    }
    assert_eq!(answer.header("x-request-id"), Some("req_of_the_provider"));
    assert_eq!(answer.header("openai-processing-ms"), Some("12"));
    assert_eq!(answer.header("x-ratelimit-limit-requests"), Some("1"), "the tenant's own instead");
}

#[tokio::test]
async fn a_provider_that_repeats_the_credential_is_not_repeated() {
    let scripted = Scripted::playing(|_, request| echo(request)).await;
    let inside = before(&scripted.url).await;
    for answer in [inside.chat(&key(), "", &chat(4)).await, inside.message(&key(), "", &message(4)).await] {
        assert_eq!(answer.status, 401);
        assert!(!answer.text().contains(PROVIDER_SECRET), "{}", answer.text());
        assert!(
            answer.text().contains("Incorrect API key provided: ")
                && answer.text().contains("[redacted]. See")
        );
    }
}

fn echo(request: &axum::extract::Request) -> Scene {
    let sent = ["authorization", "x-api-key"].into_iter().find_map(|name| request.headers().get(name));
    let key = sent.unwrap().to_str().unwrap();
    says(
        401,
        "application/json",
        json!({ "error": { "message": format!("Incorrect API key provided: {key}. See {key}.") } })
            .to_string(),
    )
}

#[tokio::test]
async fn no_secret_and_no_prompt_is_written_anywhere() {
    let provider = Process::provider(&[]).await;
    let stranger = Key::of("a stranger");
    let policy = Policy::at(&provider.url).providers("max_attempts: 1").tenant(
        "northwind",
        &key(),
        "tokens_per_minute: 60, burst_tokens: 4_000, users: { from: body.user, tokens_per_minute: 60, burst_tokens: 3_950 }",
    );
    let node = Process::serve(&policy.yaml(), &["--log", "debug"]).await;
    let client = support::Client::new();
    let prompt = "canary-of-the-prompt";
    let said = |mut body: Value| {
        body["messages"][0]["content"] = json!(prompt);
        body["user"] = json!("canary-of-the-user");
        body
    };
    let chat_url = format!("{}/v1/chat/completions", node.callers);
    let message_url = format!("{}/v1/messages", node.callers);
    let (bearer, other) = (key().bearer(), stranger.bearer());
    let mut shown = Vec::new();
    for (url, sim, body) in [
        (&chat_url, "", said(chat(20))),
        (&chat_url, "", said(streamed(chat(20)))),
        (&message_url, "", said(streamed(message(20)))),
        (&chat_url, "usage=off", said(chat(20))),
        (&chat_url, "status=500", said(chat(20))),
        (&chat_url, "fail_after=1", said(chat(20))),
        (&chat_url, "fail_after=1", said(streamed(chat(20)))),
        (&chat_url, "", said(chat(3_900))),
        (&message_url, "", said(message(900_000))),
        (&chat_url, "", said(chat(0))),
        (
            &chat_url,
            "",
            json!({ "model": "gpt-5", "messages": [{ "role": "user", "content": [{ "type": prompt }, 5] }] }),
        ),
    ] {
        for credential in [&bearer, &other] {
            let headers =
                [("authorization", credential.as_str()), ("anthropic-version", "2023-06-01"), ("x-sim", sim)];
            let answer = client.post(url, &headers, &body).await;
            shown.push((format!("the answer to {sim} {body}"), answer.text()));
            if let Some(id) = answer.header("x-tollgate-decision") {
                let url = format!("{}/tollgate/v1/decisions/{id}", node.callers);
                let record = client.get(&url, &[("authorization", &bearer)]).await;
                shown.push(("a decision".to_owned(), record.text()));
            }
        }
    }
    let broken = format!("{{\"model\":\"gpt-5\",\"messages\":\"{prompt}");
    let answer = client.post_bytes(&chat_url, &[("authorization", &bearer)], broken).await;
    shown.push(("the answer to a broken body".to_owned(), answer.text()));
    let me = client.get(&format!("{}/tollgate/v1/me", node.callers), &[("authorization", &bearer)]).await;
    shown.push(("/tollgate/v1/me".to_owned(), me.text()));
    for path in ["/metrics", "/v1/policy", "/v1/tenants", "/v1/tenants/northwind", "/v1/cluster", "/nowhere"]
    {
        shown.push((path.to_owned(), node.operator_get(path).await.text()));
    }
    let decided = node.metric("tollgate_decisions_total", &[]).await;
    assert!(decided >= 20, "{decided}: the traffic was not what it should have been");

    let (log, token) = (node.process.directory().to_owned(), node.admin_token.clone());
    let mut node = node;
    node.process.stop();
    shown.push(("stderr".to_owned(), node.process.log()));
    shown.push(("stdout".to_owned(), std::fs::read_to_string(log.join("stdout")).unwrap()));
    assert!(
        shown.iter().any(|(sink, text)| sink == "stderr" && text.contains("provider_failed")),
        "nothing was logged"
    );
    for secret in [
        key().secret.as_str(),
        &key().hash["sha256:".len()..],
        &stranger.secret,
        "sk-simulated",
        &token,
        "canary-of-the-user",
        prompt,
    ] {
        for (sink, text) in &shown {
            assert!(!text.contains(secret), "{secret} stands in {sink}: {text}");
        }
    }
}
