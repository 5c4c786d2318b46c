//! The official Python SDKs of OpenAI and Anthropic, as applications use them, against a running node.
//!
//! The scenarios are in `tests/sdk/*.py`; each prints what the application saw, and the tests here compare it with what
//! passed on the wire and with what the provider billed.

#![allow(clippy::unwrap_used, reason = "a report of another shape fails the test, as it should")]

mod support;

#[path = "sdk/stage.rs"]
mod stage;
#[path = "sdk/venv.rs"]
mod venv;

use serde_json::{Value, json};
use stage::{Played, Sdk, Stage};
use support::Key;
use support::policy::AMPLE;

/// One token a second with room for 200: a request for 150 fits once, the next one has to wait for minutes.
const SLOW: &str = "tokens_per_minute: 60, burst_tokens: 200, requests_per_minute: 6_000, max_inflight: 10";

/// A request every two seconds: who comes too early waits less than that.
const PACED: &str =
    "tokens_per_minute: 1_000_000, requests_per_minute: 30, burst_requests: 1, max_inflight: 10";

// Answers.

#[tokio::test]
async fn openai_plain() {
    let Some(stage) = Stage::open(AMPLE).await else { return };
    let played = stage.play(Sdk::OpenAi, "plain").await;
    assert_eq!(played.report["object"], "chat.completion");
    assert_eq!(played.report["choices"].as_array().unwrap().len(), 1);
    assert_ne!(played.report["choices"][0]["text"], "");
    assert_eq!(played.only_attempt().line, "POST /v1/chat/completions");
    assert_usage_is_the_bill(&stage, &played.report).await;
}

#[tokio::test]
async fn openai_stream_without_usage() {
    let Some(stage) = Stage::open(AMPLE).await else { return };
    for scenario in ["stream", "stream_usage_declined"] {
        let played = stage.play(Sdk::OpenAi, scenario).await;
        let report = &played.report;
        assert_ne!(report["choices"][0]["text"], "", "{scenario}");
        assert_ne!(report["choices"][0]["finish"], Value::Null, "{scenario}");
        assert_eq!(report["usage_chunks"], 0, "{scenario}: nobody asked for usage");
        assert_eq!(report["chunks_without_choices"], 0, "{scenario}: the chunk that carried it is gone too");
    }
    // The node had asked for it all the same, and settled on it: nothing is left open.
    assert_eq!(stage.provider.stat("completed").await, 2);
    stage.assert_at_rest().await;
}

#[tokio::test]
async fn openai_stream_with_usage() {
    let Some(stage) = Stage::open(AMPLE).await else { return };
    let played = stage.play(Sdk::OpenAi, "stream_usage").await;
    assert_ne!(played.report["choices"][0]["text"], "");
    assert_eq!(played.report["usage_chunks"], 1);
    assert_eq!(played.report["chunks_without_choices"], 1);
    assert_usage_is_the_bill(&stage, &played.report).await;
}

#[tokio::test]
async fn openai_tools() {
    let Some(stage) = Stage::open(AMPLE).await else { return };
    let whole = stage.play(Sdk::OpenAi, "tools").await;
    let streamed = stage.play(Sdk::OpenAi, "tools_stream").await;
    for played in [&whole, &streamed] {
        let call = &played.report["choices"][0]["tools"][0];
        assert_eq!(call["name"], "weather", "{:?}", played.report);
        let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
        assert!(arguments.is_object(), "the deltas add up to JSON: {arguments}");
    }
    assert_eq!(whole.report["choices"][0]["tools"], streamed.report["choices"][0]["tools"]);
}

#[tokio::test]
async fn openai_three_choices() {
    let Some(stage) = Stage::open(AMPLE).await else { return };
    let played = stage.play(Sdk::OpenAi, "three_choices").await;
    assert_eq!(indices(&played.report), [0, 1, 2]);
    assert_usage_is_the_bill(&stage, &played.report).await;

    let streamed = stage.play(Sdk::OpenAi, "three_choices_stream").await;
    assert_eq!(indices(&streamed.report), [0, 1, 2]);
    assert_eq!(streamed.report["usage_chunks"], 0);
    for (streamed, whole) in choices(&streamed.report).iter().zip(choices(&played.report)) {
        assert_eq!(streamed, whole, "a stream says what a whole answer says");
    }
    stage.assert_at_rest().await;
}

#[tokio::test]
async fn openai_embeddings() {
    let Some(stage) = Stage::open(AMPLE).await else { return };
    let played = stage.play(Sdk::OpenAi, "embeddings").await;
    assert_eq!(played.report["vectors"], 2);
    assert_ne!(played.report["lengths"][0], 0);
    assert_eq!(played.report["input"], stage.provider.stat("input_tokens").await);
    stage.assert_at_rest().await;
}

#[tokio::test]
async fn openai_models() {
    let Some(stage) = Stage::open(AMPLE).await else { return };
    let played = stage.play(Sdk::OpenAi, "models").await;
    let ids = played.report["ids"].as_array().unwrap();
    assert!(ids.contains(&json!("gpt-5")) && ids.contains(&json!("text-embedding-4")), "{ids:?}");
    assert_eq!(stage.provider.stat("requests").await, 0, "the policy knows the models: no provider is asked");
}

#[tokio::test]
async fn anthropic_plain() {
    let Some(stage) = Stage::open(AMPLE).await else { return };
    let played = stage.play(Sdk::Anthropic, "plain").await;
    assert_eq!(played.report["object"], "message");
    assert_ne!(played.report["text"], "");
    assert_eq!(played.only_attempt().line, "POST /v1/messages");
    assert_usage_is_the_bill(&stage, &played.report).await;
}

#[tokio::test]
async fn anthropic_stream() {
    let Some(stage) = Stage::open(AMPLE).await else { return };
    let played = stage.play(Sdk::Anthropic, "stream").await;
    assert_ne!(played.report["text"], "");
    let events = played.report["events"].as_array().unwrap();
    assert_eq!(events.first(), Some(&json!("message_start")), "{events:?}");
    assert_eq!(events.last(), Some(&json!("message_stop")), "{events:?}");
    assert_usage_is_the_bill(&stage, &played.report).await;
}

#[tokio::test]
async fn anthropic_tools() {
    let Some(stage) = Stage::open(AMPLE).await else { return };
    let whole = stage.play(Sdk::Anthropic, "tools").await;
    let streamed = stage.play(Sdk::Anthropic, "tools_stream").await;
    for played in [&whole, &streamed] {
        let call = &played.report["tools"][0];
        assert_eq!(call["name"], "weather", "{:?}", played.report);
        assert!(call["arguments"].is_object(), "the deltas add up to JSON: {call}");
    }
    assert_eq!(whole.report["tools"], streamed.report["tools"]);
}

#[tokio::test]
async fn anthropic_count_tokens() {
    let Some(stage) = Stage::open(AMPLE).await else { return };
    let counted = stage.play(Sdk::Anthropic, "count_tokens").await;
    let input = counted.report["input"].as_u64().unwrap();
    assert!(input > 0);
    assert_eq!(counted.only_attempt().line, "POST /v1/messages/count_tokens");
    assert_eq!(stage.provider.stat("output_tokens").await, 0, "counting answers nothing");
    stage.assert_at_rest().await;
}

#[tokio::test]
async fn anthropic_models() {
    let Some(stage) = Stage::open(AMPLE).await else { return };
    let played = stage.play(Sdk::Anthropic, "models").await;
    let ids = played.report["ids"].as_array().unwrap();
    assert!(ids.contains(&json!("claude-haiku-4-5")), "{ids:?}");
}

// Refusals.

#[tokio::test]
async fn openai_is_refused_once_what_can_never_fit() {
    let Some(stage) = Stage::open(SLOW).await else { return };
    let played = stage.play(Sdk::OpenAi, "too_large").await;
    assert_never_fits(&played);
    assert_eq!(played.report["code"], "rate_limit_exceeded");
    assert_eq!(played.report["type"], "tokens");
    assert_nothing_was_sent(&stage).await;
}

#[tokio::test]
async fn anthropic_is_refused_once_what_can_never_fit() {
    let Some(stage) = Stage::open(SLOW).await else { return };
    let played = stage.play(Sdk::Anthropic, "too_large").await;
    assert_never_fits(&played);
    let error = &played.report["body"]["error"];
    assert_eq!(error["type"], "rate_limit_error");
    assert_eq!(error["details"]["error_code"], "request_too_large_for_limit");
    assert_nothing_was_sent(&stage).await;
}

#[tokio::test]
async fn openai_is_refused_once_when_the_wait_is_long() {
    let Some(stage) = Stage::open(SLOW).await else { return };
    let played = stage.play(Sdk::OpenAi, "spent").await;
    assert_long_wait(&played);
    assert_eq!(played.report["then"]["code"], "rate_limit_exceeded");
    assert_eq!(played.report["then"]["type"], "tokens");
    assert_eq!(stage.provider.stat("requests").await, 1);
}

#[tokio::test]
async fn anthropic_is_refused_once_when_the_wait_is_long() {
    let Some(stage) = Stage::open(SLOW).await else { return };
    let played = stage.play(Sdk::Anthropic, "spent").await;
    assert_long_wait(&played);
    let error = &played.report["then"]["body"]["error"];
    assert_eq!(error["type"], "rate_limit_error");
    assert_eq!(error["details"]["error_code"], "tenant_rate_limit_exceeded");
    assert_eq!(stage.provider.stat("requests").await, 1);
}

#[tokio::test]
async fn openai_succeeds_on_the_next_attempt_when_the_wait_is_short() {
    let Some(stage) = Stage::open(PACED).await else { return };
    let played = stage.play(Sdk::OpenAi, "hasty").await;
    assert_patience_is_rewarded(&stage, &played).await;
}

#[tokio::test]
async fn anthropic_succeeds_on_the_next_attempt_when_the_wait_is_short() {
    let Some(stage) = Stage::open(PACED).await else { return };
    let played = stage.play(Sdk::Anthropic, "hasty").await;
    assert_patience_is_rewarded(&stage, &played).await;
}

#[tokio::test]
async fn a_wrong_key_is_told_so_once() {
    let Some(stage) = Stage::open(AMPLE).await else { return };
    for sdk in [Sdk::OpenAi, Sdk::Anthropic] {
        let played = stage.play_as(sdk, "refused", &Key::of("a stranger")).await;
        assert_eq!(played.report["class"], "AuthenticationError", "{sdk:?}");
        assert_eq!(played.only_attempt().status, 401, "{sdk:?}");
        assert_eq!(played.only_attempt().answer("x-tollgate-error"), Some("unauthenticated"), "{sdk:?}");
    }
    assert_nothing_was_sent(&stage).await;
}

#[tokio::test]
async fn an_unknown_model_is_told_so_once() {
    let Some(stage) = Stage::open(AMPLE).await else { return };
    for sdk in [Sdk::OpenAi, Sdk::Anthropic] {
        let played = stage.play(sdk, "unknown_model").await;
        assert_eq!(played.report["class"], "NotFoundError", "{sdk:?}");
        assert_eq!(played.only_attempt().status, 404, "{sdk:?}");
        let message = played.report["message"].as_str().unwrap();
        assert!(message.contains("no-such-model"), "{sdk:?}: the message names it: {message}");
    }
    assert_nothing_was_sent(&stage).await;
}

// Aborts.

#[tokio::test]
async fn an_aborted_stream_is_aborted_upstream_and_holds_nothing() {
    let Some(stage) = Stage::open(AMPLE).await else { return };
    for (sdk, aborted) in [(Sdk::OpenAi, 1), (Sdk::Anthropic, 2)] {
        let played = stage.play(sdk, "aborted").await;
        assert_eq!(played.only_attempt().status, 200, "{sdk:?}");
        support::eventually("the provider sees the abort", async || {
            match stage.provider.stat("aborted").await {
                count if count == aborted => Ok(()),
                count => Err(format!("{count} aborted")),
            }
        })
        .await;
        // At ten chunks a second the whole answer would have taken a hundred seconds.
        assert_eq!(stage.provider.stat("completed").await, 0, "{sdk:?}");
        assert_eq!(stage.provider.stat("inflight").await, 0, "{sdk:?}");
        stage.assert_at_rest().await;
    }
    let admitted = stage.node.metric("tollgate_decisions_total", &["outcome=\"admitted\""]).await;
    assert_eq!(admitted, 2, "both were counted, so a gauge at zero means something");
}

// What several stories assert.

/// The SDK's usage, the provider's bill and what the node settled are one number.
async fn assert_usage_is_the_bill(stage: &Stage, report: &Value) {
    let billed = json!({ "input": stage.provider.stat("input_tokens").await, "output": stage.provider.stat("output_tokens").await });
    for unit in ["input", "output"] {
        assert_eq!(report["usage"][unit], billed[unit], "{unit}: {report}");
        assert_ne!(billed[unit], 0, "{unit}");
    }
    stage.assert_at_rest().await;
    let settled = stage.node.metric("tollgate_tokens_settled_total", &[]).await;
    assert_eq!(json!(settled), json!(billed["input"].as_i64().unwrap() + billed["output"].as_i64().unwrap()));
}

async fn assert_nothing_was_sent(stage: &Stage) {
    assert_eq!(stage.provider.stat("requests").await, 0, "the provider was never asked");
    stage.assert_at_rest().await;
}

fn assert_never_fits(played: &Played) {
    let attempt = played.only_attempt();
    assert_eq!(attempt.answer("x-tollgate-error"), Some("request_too_large_for_limit"));
    assert_eq!(attempt.answer("x-should-retry"), Some("false"));
    assert_eq!(attempt.answer("retry-after"), None, "no wait would help");
    assert_eq!(played.report["class"], "RateLimitError", "{}", played.report);
    let message = played.report["message"].as_str().unwrap();
    assert!(message.contains("200"), "the message names the limit: {message}");
}

fn assert_long_wait(played: &Played) {
    assert_eq!(played.statuses(), [200, 429], "one attempt after the one that spent it all");
    let refusal = &played.attempts[1];
    assert_eq!(
        refusal.answer("x-should-retry"),
        Some("false"),
        "the SDK would sleep for minutes, or not at all"
    );
    let seconds: u64 = refusal.answer("retry-after").expect("waiting does help").parse().unwrap();
    assert!((61..=200).contains(&seconds), "{seconds} seconds");
    assert_eq!(played.report["then"]["class"], "RateLimitError", "{}", played.report);
}

async fn assert_patience_is_rewarded(stage: &Stage, played: &Played) {
    let finishes = played.report["finishes"].as_array().unwrap();
    assert_eq!(finishes.len(), 3, "each call succeeded in the end");
    let statuses = played.statuses();
    assert!(statuses.contains(&429), "three calls at once, one every two seconds: {statuses:?}");
    assert!(
        !statuses.windows(2).any(|pair| pair == [429, 429]),
        "one wait was enough each time: {statuses:?}"
    );
    for refusal in played.attempts.iter().filter(|attempt| attempt.status == 429) {
        let milliseconds: u64 =
            refusal.answer("retry-after-ms").expect("a short wait is told exactly").parse().unwrap();
        assert!((1..=4_000).contains(&milliseconds), "{milliseconds} ms");
        let seconds: u64 = refusal.answer("retry-after").expect("and in seconds").parse().unwrap();
        assert!((1..=4).contains(&seconds), "{seconds} s");
        assert_ne!(refusal.answer("x-should-retry"), Some("false"));
    }
    assert_eq!(stage.provider.stat("requests").await, 3);
    stage.assert_at_rest().await;
}

fn choices(report: &Value) -> &[Value] {
    report["choices"].as_array().unwrap()
}

fn indices(report: &Value) -> Vec<u64> {
    choices(report).iter().map(|choice| choice["index"].as_u64().unwrap()).collect()
}
