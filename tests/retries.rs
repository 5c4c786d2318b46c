//! One request, one reservation, up to three attempts: after failures that are the provider's own, and never after the first byte.

#![allow(clippy::unwrap_used, reason = "an answer of another shape fails the test, as it should")]

mod support;

use serde_json::Value;
use support::inside::{chat, message, streamed};
use support::scripted::says;
use support::{Attempt, Inside, Key, Policy, Scripted, Tap};
use tollgate::simulated;

const SLOW: &str =
    "tokens_per_minute: 1, burst_tokens: 10_000, requests_per_minute: 1, burst_requests: 1_000";

fn key() -> Key {
    Key::of("production")
}

/// A node that reaches its provider through a tap.
async fn tapped(policy: impl FnOnce(Policy) -> Policy) -> (Inside, Tap) {
    let provider = simulated::Provider::bind(([127, 0, 0, 1], 0).into(), simulated::Options::default());
    let provider = provider.await.unwrap();
    let tap = Tap::before(&format!("http://{}", provider.local_addr())).await;
    let inside =
        Inside::before(provider, &tap.url, |_| {}, |at| policy(at.tenant("northwind", &key(), SLOW))).await;
    (inside, tap)
}

fn statuses(attempts: &[Attempt]) -> Vec<u16> {
    attempts.iter().map(|attempt| attempt.status).collect()
}

#[tokio::test]
async fn two_failures_and_a_success_are_one_reservation() {
    let (inside, tap) = tapped(|policy| policy).await;
    for (round, status) in ["500", "502", "503", "504", "529", "408"].into_iter().enumerate() {
        let sim = format!("fail_first=2,key=k{round},status={status}");
        let answer = match round % 2 {
            0 => inside.chat(&key(), &sim, &chat(20)).await,
            _ => inside.message(&key(), &sim, &streamed(message(20))).await,
        };
        assert_eq!(answer.status, 200, "{status}: {}", answer.text());
        let attempts = tap.take();
        let failed: u16 = status.parse().unwrap();
        assert_eq!(statuses(&attempts), [failed, failed, 200]);
        let decision = answer.header("x-tollgate-decision").unwrap();
        for attempt in &attempts {
            assert_eq!(attempt.sent["x-tollgate-decision"], decision, "each attempt is of the same decision");
        }
        let record = inside.decision_of(&key(), &answer).await;
        assert_eq!(record["ending"]["how"], "settled", "{record}");
        assert_eq!(record["ending"]["attempts"], 3, "{record}");
    }
    assert_eq!(inside.metric("tollgate_decisions_total", &[]), 6);
    assert_eq!(inside.used(&key(), "tenant", "requests_per_minute").await, 6);
    assert_eq!(inside.metric("tollgate_upstream_attempts_total", &["outcome=\"200\""]), 6);
    assert_eq!(inside.metric("tollgate_upstream_attempts_total", &[]), 18);
    inside.assert_at_rest().await;
}

#[tokio::test]
async fn three_failures_are_enough() {
    let (inside, tap) = tapped(|policy| policy).await;
    let answer = inside.chat(&key(), "status=500", &chat(20)).await;
    assert_eq!(answer.status, 500);
    assert_eq!(statuses(&tap.take()), [500, 500, 500]);
    assert!(answer.json()["error"].is_object(), "the provider's own words: {}", answer.text());
    assert_eq!(answer.header("x-tollgate-error"), None, "it is not the gateway's");
    inside.assert_at_rest().await;
}

#[tokio::test]
async fn the_policy_may_allow_one_attempt_only() {
    let (inside, tap) = tapped(|policy| policy.providers("max_attempts: 1")).await;
    assert_eq!(inside.chat(&key(), "fail_first=1,key=a", &chat(20)).await.status, 503);
    assert_eq!(statuses(&tap.take()), [503]);
}

#[tokio::test]
async fn what_the_caller_did_wrong_is_not_tried_again() {
    let (inside, tap) = tapped(|policy| policy).await;
    for status in [400, 401, 403, 404, 409, 413, 422] {
        let answer = inside.chat(&key(), &format!("status={status}"), &chat(20)).await;
        assert_eq!(answer.status, status);
        assert_eq!(statuses(&tap.take()), [status]);
    }
    inside.assert_at_rest().await;
}

#[tokio::test]
async fn the_providers_own_limit_passes_with_its_words_and_is_told_apart() {
    let (inside, tap) = tapped(|policy| policy).await;
    // Longer than a caller is kept waiting: its SDK may wait by itself.
    let openai = inside.chat(&key(), "status=429,retry_after=20", &chat(20)).await;
    let anthropic = inside.message(&key(), "status=429,retry_after=20", &message(20)).await;
    assert_eq!(statuses(&tap.take()), [429, 429]);
    for answer in [&openai, &anthropic] {
        assert_eq!(answer.status, 429);
        assert_eq!(answer.header("x-tollgate-error"), Some("upstream_rate_limited"));
        assert_eq!(answer.header("retry-after"), Some("20"));
        assert!(!answer.text().contains("northwind"), "it is not the tenant's limit: {}", answer.text());
    }
    assert!(openai.json()["error"]["type"].is_string() && openai.json().get("type").is_none());
    assert_eq!(anthropic.json()["error"]["type"], "rate_limit_error");
    inside.assert_at_rest().await;
}

#[tokio::test]
async fn the_providers_word_on_when_to_come_back_is_a_lower_bound() {
    let inside = Inside::under(|policy| policy.tenant("northwind", &key(), SLOW)).await;
    let answer = inside.chat(&key(), "fail_first=1,key=a,status=429,retry_after=1", &chat(20)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let rows = inside.provider.requests();
    assert_eq!(rows.len(), 2);
    let waited = rows[1].arrived_ms - rows[0].arrived_ms;
    assert!(waited >= 1_000, "asked for a second, given {waited} ms");
}

#[tokio::test]
async fn nothing_is_tried_again_after_the_first_byte() {
    let (inside, tap) = tapped(|policy| policy).await;
    for body in [chat(20), streamed(chat(20))] {
        let _broken = inside.chat(&key(), "fail_after=1", &body).await;
        assert_eq!(statuses(&tap.take()), [200]);
    }
    assert_eq!(inside.provider.stats().requests, 2);
    inside.assert_at_rest().await;
}

#[tokio::test]
async fn an_answer_that_does_not_begin_in_time_is_not_asked_for_again() {
    let timeouts = "timeouts: { first_byte: 200ms }";
    let inside = Inside::under(|policy| policy.providers(timeouts).tenant("northwind", &key(), SLOW)).await;
    for (answer, kind) in [
        (inside.chat(&key(), "hang=1", &chat(20)).await, "server_error"),
        (inside.message(&key(), "hang=1", &message(20)).await, "timeout_error"),
    ] {
        assert_eq!(answer.status, 504, "{}", answer.text());
        assert_eq!(answer.header("x-tollgate-error"), Some("upstream_timeout"));
        assert_eq!(answer.json()["error"]["type"], kind);
        let record = inside.decision_of(&key(), &answer).await;
        assert_eq!(
            record["ending"]["charged"], record["estimate"]["total"],
            "it may have been billed: {record}"
        );
        assert_eq!(record["ending"]["attempts"], 1, "{record}");
    }
    inside.assert_at_rest().await;
    support::eventually("the provider is let go", async || {
        let stats = inside.provider.stats();
        if stats.aborted == 2 && stats.inflight == 0 { Ok(()) } else { Err(format!("{stats:?}")) }
    })
    .await;
}

#[tokio::test]
async fn a_stream_that_falls_silent_is_ended_with_an_error() {
    let timeouts = "timeouts: { idle: 200ms }";
    let inside = Inside::under(|policy| policy.providers(timeouts).tenant("northwind", &key(), SLOW)).await;
    let answer = inside.chat(&key(), "gap=60s", &streamed(chat(20))).await;
    assert_eq!(answer.status, 200);
    assert_eq!(last_event(&answer.text())["error"]["code"], "upstream_timeout");
    let record = inside.decision_of(&key(), &answer).await;
    assert_eq!(
        (&record["ending"]["how"], &record["ending"]["why"]),
        (&"closed".into(), &"provider_failed".into())
    );
    inside.assert_at_rest().await;
}

#[tokio::test]
async fn a_stream_that_goes_on_for_too_long_is_ended_with_an_error() {
    let timeouts = "timeouts: { first_byte: 300ms, idle: 10s, total: 300ms }";
    let inside = Inside::under(|policy| policy.providers(timeouts).tenant("northwind", &key(), SLOW)).await;
    let answer = inside.chat(&key(), "gap=20ms,tokens=2000", &streamed(chat(2_000))).await;
    assert_eq!(last_event(&answer.text())["error"]["code"], "upstream_timeout", "{}", answer.text());
    inside.assert_at_rest().await;
}

#[tokio::test]
async fn an_answer_in_an_encoding_that_nobody_knows_is_refused_and_charged() {
    let scripted = Scripted::playing(|_, _| {
        let mut answer = says(200, "application/json", "??");
        answer.headers_mut().insert("content-encoding", "zstd".parse().unwrap());
        answer
    })
    .await;
    let unused = simulated::Provider::bind(([127, 0, 0, 1], 0).into(), simulated::Options::default());
    let policy = |policy: Policy| policy.tenant("northwind", &key(), SLOW);
    let inside = Inside::before(unused.await.unwrap(), &scripted.url, |_| {}, policy).await;
    let answer = inside.chat(&key(), "", &chat(20)).await;
    assert_eq!(answer.status, 502);
    assert_eq!(answer.header("x-tollgate-error"), Some("upstream_unreadable"));
    assert_eq!(scripted.asked(), 1);
    let record = inside.decision_of(&key(), &answer).await;
    assert_eq!(record["ending"]["charged"], record["estimate"]["total"], "{record}");
    assert_eq!(inside.metric("tollgate_decisions_total", &[]), 1);
    inside.assert_at_rest().await;
}

/// The data of a stream's last event.
fn last_event(text: &str) -> Value {
    let last = text.trim_end().rsplit("\n\n").next().unwrap();
    let data = last.lines().find_map(|line| line.strip_prefix("data: "));
    serde_json::from_str(data.unwrap_or_else(|| panic!("no event in {text:?}"))).unwrap()
}
