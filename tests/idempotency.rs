//! One `Idempotency-Key`, one request to the provider: a repetition waits, or learns that it came too late.

#![allow(clippy::unwrap_used, reason = "an answer of another shape fails the test, as it should")]

mod support;

use futures_util::future::join_all;
use serde_json::Value;
use support::inside::{chat, message};
use support::scripted::nobody;
use support::{Inside, Key, Policy, Response, eventually};
use tollgate::simulated;

const LIMITS: &str = "tokens_per_minute: 1, burst_tokens: 10_000, requests_per_minute: 1, burst_requests: 3";

fn key() -> Key {
    Key::of("production")
}

fn northwind(policy: Policy) -> Policy {
    policy.tenant("northwind", &key(), LIMITS)
}

async fn chat_once(inside: &Inside, key: &Key, idempotency: &str, sim: &str, body: &Value) -> Response {
    let bearer = key.bearer();
    let headers = [("authorization", bearer.as_str()), ("idempotency-key", idempotency), ("x-sim", sim)];
    inside.client.post(&inside.at("/v1/chat/completions"), &headers, body).await
}

async fn message_once(inside: &Inside, key: &Key, idempotency: &str) -> Response {
    let headers = [
        ("x-api-key", key.secret.as_str()),
        ("anthropic-version", "2023-06-01"),
        ("idempotency-key", idempotency),
    ];
    inside.client.post(&inside.at("/v1/messages"), &headers, &message(4)).await
}

#[tokio::test]
async fn while_the_first_is_served_the_second_is_told_to_wait() {
    let inside = Inside::under(northwind).await;
    let key = key();
    let body = chat(4);
    tokio::select! {
        answer = chat_once(&inside, &key, "one", "hang=1", &body) => panic!("answered: {answer:?}"),
        () = async {
            eventually("the first is served", async || match inside.provider.stats().inflight {
                1 => Ok(()),
                other => Err(format!("{other} in flight")),
            })
            .await;
            let openai = chat_once(&inside, &key, "one", "", &body).await;
            let anthropic = message_once(&inside, &key, "one").await;
            for answer in [&openai, &anthropic] {
                assert_eq!(answer.status, 409, "{}", answer.text());
                assert_eq!(answer.header("x-tollgate-error"), Some("idempotency_in_progress"));
                assert!(answer.header("retry-after").is_some() && answer.header("x-should-retry").is_none());
            }
            assert_eq!(openai.json()["error"]["code"], "idempotency_in_progress");
            assert_eq!(anthropic.json()["error"]["details"]["error_code"], "idempotency_in_progress");
            assert_eq!(chat_once(&inside, &key, "two", "", &body).await.status, 200, "another key is another request");
        } => {}
    }
    inside.assert_at_rest().await;
}

#[tokio::test]
async fn when_the_first_is_over_the_second_is_told_not_to_try_again() {
    let inside = Inside::under(northwind).await;
    assert_eq!(chat_once(&inside, &key(), "one", "", &chat(4)).await.status, 200);
    for answer in
        [chat_once(&inside, &key(), "one", "", &chat(4)).await, message_once(&inside, &key(), "one").await]
    {
        assert_eq!(answer.status, 409, "{}", answer.text());
        assert_eq!(answer.header("x-tollgate-error"), Some("already_dispatched"));
        assert_eq!(answer.header("x-should-retry"), Some("false"));
        assert_eq!(answer.header("retry-after"), None);
    }
    assert_eq!(inside.provider.stats().requests, 1);
    assert_eq!(inside.used(&key(), "tenant", "requests_per_minute").await, 1, "a repetition is no request");
    // Each was decided once: nothing of a refusal is counted as an error as well.
    assert_eq!(inside.metric("tollgate_decisions_total", &["outcome=\"denied\""]), 2);
    assert_eq!(inside.metric("tollgate_decisions_total", &["outcome=\"error\""]), 0);
    inside.assert_at_rest().await;
}

#[tokio::test]
async fn of_many_at_once_one_is_sent() {
    let inside = Inside::under(northwind).await;
    let (key, body) = (key(), chat(4));
    let asked = (0..50).map(|_| chat_once(&inside, &key, "one", "", &body));
    let statuses: Vec<u16> = join_all(asked).await.iter().map(|answer| answer.status).collect();
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 1, "{statuses:?}");
    assert_eq!(statuses.iter().filter(|status| **status == 409).count(), 49, "{statuses:?}");
    assert_eq!(inside.provider.stats().requests, 1);
    inside.assert_at_rest().await;
}

#[tokio::test]
async fn a_failure_of_the_provider_was_sent_all_the_same() {
    let inside = Inside::under(|policy| northwind(policy).providers("max_attempts: 1")).await;
    assert_eq!(chat_once(&inside, &key(), "one", "status=500", &chat(4)).await.status, 500);
    let again = chat_once(&inside, &key(), "one", "", &chat(4)).await;
    assert_eq!(again.header("x-tollgate-error"), Some("already_dispatched"));
}

#[tokio::test]
async fn what_was_denied_may_be_asked_again() {
    let inside = Inside::under(northwind).await;
    let refused = chat_once(&inside, &key(), "one", "", &chat(100_000)).await;
    assert_eq!(refused.header("x-tollgate-error"), Some("request_too_large_for_limit"));
    assert_eq!(chat_once(&inside, &key(), "one", "", &chat(4)).await.status, 200);
}

#[tokio::test]
async fn what_was_malformed_may_be_asked_again() {
    let inside = Inside::under(northwind).await;
    assert_eq!(chat_once(&inside, &key(), "one", "", &Value::Null).await.status, 400);
    assert_eq!(chat_once(&inside, &key(), "one", "", &chat(4)).await.status, 200);
}

#[tokio::test]
async fn what_was_never_sent_may_be_asked_again() {
    let url = nobody().await;
    let unused = simulated::Provider::bind(([127, 0, 0, 1], 0).into(), simulated::Options::default());
    let policy = |policy| northwind(policy).providers("max_attempts: 1");
    let inside = Inside::before(unused.await.unwrap(), &url, |_| {}, policy).await;
    for _ in 0..5 {
        let answer = chat_once(&inside, &key(), "one", "", &chat(4)).await;
        assert_eq!(answer.header("x-tollgate-error"), Some("upstream_unreachable"), "{}", answer.text());
    }
    // Now the provider can be reached.
    inside.edit(northwind);
    assert_eq!(chat_once(&inside, &key(), "one", "", &chat(4)).await.status, 200);
    inside.assert_at_rest().await;
}

#[tokio::test]
async fn one_tenants_keys_are_nothing_to_another() {
    let contoso = Key::of("contoso");
    let inside = Inside::under(|policy| northwind(policy).tenant("contoso", &contoso, LIMITS)).await;
    assert_eq!(chat_once(&inside, &key(), "one", "", &chat(4)).await.status, 200);
    assert_eq!(chat_once(&inside, &contoso, "one", "", &chat(4)).await.status, 200);
    assert_eq!(chat_once(&inside, &contoso, "one", "", &chat(4)).await.status, 409);
}

#[tokio::test]
async fn two_keys_of_one_tenant_share_theirs() {
    let staging = Key::of("staging");
    let tenant = format!(
        "{{ id: northwind, keys: [{{ label: production, hash: \"{}\" }}, {{ label: staging, hash: \"{}\" }}] }}",
        key().hash,
        staging.hash
    );
    let inside = Inside::under(|policy| policy.tenant_yaml(&tenant)).await;
    assert_eq!(chat_once(&inside, &key(), "one", "", &chat(4)).await.status, 200);
    assert_eq!(chat_once(&inside, &staging, "one", "", &chat(4)).await.status, 409);
}

#[tokio::test]
async fn an_empty_key_is_none() {
    let inside = Inside::under(northwind).await;
    let key = key();
    for _ in 0..2 {
        let answer = chat_once(&inside, &key, "", "", &chat(4)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
}
