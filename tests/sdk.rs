//! The official Python SDKs of OpenAI, Anthropic and Google, as applications use them, against a running node, alone or one of three.
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
use stage::{House, Place, Played, Sdk, Stage};
use support::policy::AMPLE;
use support::{Attempt, Key};

/// One token a second with room for 200: a request for 150 fits once, the next one has to wait for minutes.
const SLOW: &str = "tokens_per_minute: 60, burst_tokens: 200, requests_per_minute: 6_000, max_inflight: 10";

/// A request every two seconds: who comes too early waits less than that.
const PACED: &str =
    "tokens_per_minute: 1_000_000, requests_per_minute: 30, burst_requests: 1, max_inflight: 10";

// Answers.

#[tokio::test]
async fn openai_plain() {
    let Some(stage) = Stage::open(AMPLE).await else { return };
    openai_answers(&stage).await;
}

async fn openai_answers(stage: &Stage) {
    let played = stage.play(Sdk::OpenAi, "plain").await;
    assert_eq!(played.report["object"], "chat.completion");
    assert_eq!(played.report["choices"].as_array().unwrap().len(), 1);
    assert_ne!(played.report["choices"][0]["text"], "");

    let attempt = played.only_attempt();
    assert_eq!(attempt.line, "POST /v1/chat/completions");
    let bill = assert_settled_as_billed(stage, attempt).await;
    assert_eq!(usage(&played.report), billed(&bill));
    assert_eq!(played.report["request_id"], bill["id"], "the provider's id is what its support asks for");
    // The limits are the tenant's own, not those of the provider's account.
    assert_eq!(attempt.answer("x-ratelimit-limit-tokens"), Some("1000000"));
    assert_eq!(attempt.answer("x-ratelimit-remaining-requests"), Some("59999"));
}

#[tokio::test]
async fn openai_stream_without_usage() {
    let Some(stage) = Stage::open(AMPLE).await else { return };
    openai_streams(&stage).await;
}

async fn openai_streams(stage: &Stage) {
    for scenario in ["stream", "stream_usage_declined"] {
        let played = stage.play(Sdk::OpenAi, scenario).await;
        let report = &played.report;
        assert_ne!(report["choices"][0]["text"], "", "{scenario}");
        assert_ne!(report["choices"][0]["finish"], Value::Null, "{scenario}");
        assert_eq!(report["usage_chunks"], 0, "{scenario}: nobody asked for usage");
        assert_eq!(report["chunks_without_choices"], 0, "{scenario}: the chunk that carried it is gone too");
        // The node had asked for it all the same, and settled on it.
        assert_settled_as_billed(stage, played.only_attempt()).await;
    }
}

#[tokio::test]
async fn openai_stream_with_usage() {
    let Some(stage) = Stage::open(AMPLE).await else { return };
    openai_streams_with_usage(&stage).await;
}

async fn openai_streams_with_usage(stage: &Stage) {
    let played = stage.play(Sdk::OpenAi, "stream_usage").await;
    assert_ne!(played.report["choices"][0]["text"], "");
    assert_eq!(played.report["usage_chunks"], 1);
    assert_eq!(played.report["chunks_without_choices"], 1);
    let bill = assert_settled_as_billed(stage, played.only_attempt()).await;
    assert_eq!(usage(&played.report), billed(&bill));
}

#[tokio::test]
async fn openai_text_completions() {
    let Some(stage) = Stage::open(AMPLE).await else { return };
    let played = stage.play(Sdk::OpenAi, "completion").await;
    assert_eq!(played.only_attempt().line, "POST /v1/completions");
    assert_eq!(played.report["texts"].as_array().map(Vec::len), Some(2));
    let bill = assert_settled_as_billed(&stage, played.only_attempt()).await;
    assert_eq!(usage(&played.report), billed(&bill));
    let played = stage.play(Sdk::OpenAi, "completion_stream").await;
    assert_eq!(played.report["texts"].as_array().map(Vec::len), Some(2));
    assert_eq!(played.report["usage_chunks"], 0, "nobody asked for usage");
    assert_settled_as_billed(&stage, played.only_attempt()).await;
}

#[tokio::test]
async fn openai_responses() {
    let Some(stage) = Stage::open(AMPLE).await else { return };
    let played = stage.play(Sdk::OpenAi, "response").await;
    assert_eq!(played.only_attempt().line, "POST /v1/responses");
    assert_eq!(played.report["store"], false, "nothing is kept that nobody may take up again");
    let bill = assert_settled_as_billed(&stage, played.only_attempt()).await;
    assert_eq!(usage(&played.report), billed(&bill));

    let streamed = stage.play(Sdk::OpenAi, "response_stream").await;
    assert_eq!(streamed.report["deltas"], streamed.report["last"]["text"]);
    let bill = assert_settled_as_billed(&stage, streamed.only_attempt()).await;
    assert_eq!(usage(&streamed.report["last"]), billed(&bill));

    let kept = stage.play(Sdk::OpenAi, "kept").await;
    assert_eq!(
        (&kept.report["class"], &kept.report["code"]),
        (&json!("BadRequestError"), &json!("stateful_not_allowed"))
    );
    assert_eq!(kept.statuses(), [400], "and does not come back");
}

#[tokio::test]
async fn azure_s_client_of_openai() {
    let Some(stage) = Stage::open(AMPLE).await else { return };
    let chat = stage.play(Sdk::OpenAi, "azure_chat").await;
    assert!(
        chat.only_attempt().line.starts_with("POST /openai/deployments/gpt-5/chat/completions?api-version=")
    );
    assert_ne!(chat.report["choices"][0]["text"], "");
    assert_settled_as_billed(&stage, chat.only_attempt()).await;
    let response = stage.play(Sdk::OpenAi, "azure_response").await;
    assert!(
        response.only_attempt().line.starts_with("POST /openai/responses"),
        "{}",
        response.only_attempt().line
    );
    assert_settled_as_billed(&stage, response.only_attempt()).await;
}

#[tokio::test]
async fn gemini_plain_and_streamed() {
    let Some(stage) = Stage::open(AMPLE).await else { return };
    for scenario in ["plain", "system", "stream"] {
        let played = stage.play(Sdk::Gemini, scenario).await;
        assert_ne!(played.report["text"], "", "{scenario}");
        let bill = assert_settled_as_billed(&stage, played.only_attempt()).await;
        assert_eq!(usage(&played.report), billed(&bill), "{scenario}");
    }
    let counted = stage.play(Sdk::Gemini, "count").await;
    assert!(counted.report["total"].as_u64() > Some(0), "{}", counted.report);
    let models = stage.play(Sdk::Gemini, "models").await;
    assert_eq!(models.report["names"], json!(["models/gemini-2.5-flash"]));
}

#[tokio::test]
async fn gemini_refusals_are_read_by_its_sdk() {
    let Some(stage) = Stage::open(SLOW).await else { return };
    for (scenario, code, word) in
        [("too_large", 429, "RESOURCE_EXHAUSTED"), ("unknown_model", 404, "NOT_FOUND")]
    {
        let played = stage.play(Sdk::Gemini, scenario).await;
        assert_eq!(
            (&played.report["code"], &played.report["status_word"]),
            (&json!(code), &json!(word)),
            "{scenario}"
        );
    }
    stage.assert_at_rest().await;
}

#[tokio::test]
async fn openai_tools() {
    let Some(stage) = Stage::open(AMPLE).await else { return };
    let whole = stage.play(Sdk::OpenAi, "tools").await;
    let streamed = stage.play(Sdk::OpenAi, "tools_stream").await;
    for played in [&whole, &streamed] {
        let choice = &played.report["choices"][0];
        assert_eq!(choice["tools"].as_array().unwrap().len(), 1, "{choice}");
        assert_eq!(choice["tools"][0]["name"], "weather", "{choice}");
        let arguments: Value =
            serde_json::from_str(choice["tools"][0]["arguments"].as_str().unwrap()).unwrap();
        assert!(arguments.is_object(), "the deltas add up to JSON: {arguments}");
        assert_settled_as_billed(&stage, played.only_attempt()).await;
    }
    assert_eq!(whole.report["choices"][0]["tools"], streamed.report["choices"][0]["tools"]);
}

#[tokio::test]
async fn openai_three_choices() {
    let Some(stage) = Stage::open(AMPLE).await else { return };
    let whole = stage.play(Sdk::OpenAi, "three_choices").await;
    assert_eq!(indices(&whole.report), [0, 1, 2]);
    let bill = assert_settled_as_billed(&stage, whole.only_attempt()).await;
    assert_eq!(usage(&whole.report), billed(&bill));

    let streamed = stage.play(Sdk::OpenAi, "three_choices_stream").await;
    assert_eq!(streamed.report["usage_chunks"], 0);
    assert_eq!(streamed.report["choices"], whole.report["choices"], "a stream says what a whole answer says");
    assert_settled_as_billed(&stage, streamed.only_attempt()).await;

    for played in [&whole, &streamed] {
        let decision = stage.decision(played.only_attempt()).await;
        assert_eq!(decision["estimate"]["output"], 3 * 16, "the ceiling is reserved for each choice");
    }
}

#[tokio::test]
async fn openai_embeddings() {
    let Some(stage) = Stage::open(AMPLE).await else { return };
    let played = stage.play(Sdk::OpenAi, "embeddings").await;
    assert_eq!(played.report["vectors"], 2);
    assert_ne!(played.report["lengths"][0], 0);
    let bill = assert_settled_as_billed(&stage, played.only_attempt()).await;
    assert_eq!(json!([played.report["input"], 0]), billed(&bill));
    let decision = stage.decision(played.only_attempt()).await;
    assert_eq!(decision["estimate"]["output"], 0, "vectors are no tokens");
}

#[tokio::test]
async fn openai_models() {
    let Some(stage) = Stage::open(AMPLE).await else { return };
    let played = stage.play(Sdk::OpenAi, "models").await;
    let ids = played.report["ids"].as_array().unwrap();
    assert!(ids.contains(&json!("gpt-5")) && ids.contains(&json!("text-embedding-4")), "{ids:?}");
    assert!(!ids.contains(&json!("claude-haiku-4-5")), "it cannot be called in this dialect: {ids:?}");
    assert_eq!(played.only_attempt().status, 200);
    assert_nothing_was_sent(&stage).await;
}

#[tokio::test]
async fn anthropic_plain() {
    let Some(stage) = Stage::open(AMPLE).await else { return };
    anthropic_answers(&stage).await;
}

async fn anthropic_answers(stage: &Stage) {
    let played = stage.play(Sdk::Anthropic, "plain").await;
    assert_eq!(played.report["object"], "message");
    assert_ne!(played.report["text"], "");

    let attempt = played.only_attempt();
    assert_eq!(attempt.line, "POST /v1/messages");
    let bill = assert_settled_as_billed(stage, attempt).await;
    assert_eq!(usage(&played.report), billed(&bill));
    assert_eq!(played.report["request_id"], bill["id"], "the provider's id is what its support asks for");
    assert_eq!(attempt.answer("anthropic-ratelimit-tokens-limit"), Some("1000000"));
    assert_eq!(attempt.answer("anthropic-ratelimit-requests-remaining"), Some("59999"));
}

#[tokio::test]
async fn anthropic_stream() {
    let Some(stage) = Stage::open(AMPLE).await else { return };
    anthropic_streams(&stage).await;
}

async fn anthropic_streams(stage: &Stage) {
    let played = stage.play(Sdk::Anthropic, "stream").await;
    assert_ne!(played.report["text"], "");
    let events = played.report["events"].as_array().unwrap();
    assert_eq!(events.first(), Some(&json!("message_start")), "{events:?}");
    assert_eq!(events.last(), Some(&json!("message_stop")), "{events:?}");
    let bill = assert_settled_as_billed(stage, played.only_attempt()).await;
    assert_eq!(usage(&played.report), billed(&bill));
}

#[tokio::test]
async fn anthropic_tools() {
    let Some(stage) = Stage::open(AMPLE).await else { return };
    let whole = stage.play(Sdk::Anthropic, "tools").await;
    let streamed = stage.play(Sdk::Anthropic, "tools_stream").await;
    for played in [&whole, &streamed] {
        let calls = played.report["tools"].as_array().unwrap();
        assert_eq!(calls.len(), 1, "{:?}", played.report);
        assert_eq!(calls[0]["name"], "weather", "{:?}", played.report);
        assert!(calls[0]["arguments"].is_object(), "the deltas add up to JSON: {:?}", calls[0]);
        assert_eq!(played.report["finish"], "tool_use");
        let bill = assert_settled_as_billed(&stage, played.only_attempt()).await;
        assert_eq!(usage(&played.report), billed(&bill));
    }
    assert_eq!(whole.report["tools"], streamed.report["tools"]);
}

#[tokio::test]
async fn anthropic_count_tokens() {
    let Some(stage) = Stage::open(AMPLE).await else { return };
    let counted = stage.play(Sdk::Anthropic, "count_tokens").await;
    let attempt = counted.only_attempt();
    assert_eq!(attempt.line, "POST /v1/messages/count_tokens");
    let decision = stage.decision(attempt).await;
    assert_eq!(decision["ending"]["upstream_status"], 200, "the provider counted: {decision}");
    assert_eq!(decision["estimate"]["total"], 0, "{decision}");
    assert_eq!(decision["ending"]["charged"], 0, "{decision}");
    assert_eq!(stage.sent().await, 0, "it bills nothing for counting");
    stage.assert_at_rest().await;

    let asked = stage.play(Sdk::Anthropic, "plain").await;
    let bill = stage.bill(asked.only_attempt()).await;
    assert_eq!(
        counted.report["input"], bill["input_tokens"],
        "what was counted is what the same prompt costs"
    );
}

#[tokio::test]
async fn anthropic_models() {
    let Some(stage) = Stage::open(AMPLE).await else { return };
    let played = stage.play(Sdk::Anthropic, "models").await;
    let ids = played.report["ids"].as_array().unwrap();
    assert!(ids.contains(&json!("claude-haiku-4-5")), "{ids:?}");
    assert!(!ids.contains(&json!("gpt-5")), "it cannot be called in this dialect: {ids:?}");
    assert_eq!(played.only_attempt().status, 200);
    assert_nothing_was_sent(&stage).await;
}

// Refusals.

#[tokio::test]
async fn openai_is_refused_once_what_can_never_fit() {
    let Some(stage) = Stage::open(SLOW).await else { return };
    openai_is_told_never(&stage).await;
}

async fn openai_is_told_never(stage: &Stage) {
    let played = stage.play(Sdk::OpenAi, "too_large").await;
    assert_never_fits(stage, &played).await;
    assert_eq!(played.report["code"], "rate_limit_exceeded");
    assert_eq!(played.report["type"], "tokens");
}

#[tokio::test]
async fn anthropic_is_refused_once_what_can_never_fit() {
    let Some(stage) = Stage::open(SLOW).await else { return };
    anthropic_is_told_never(&stage).await;
}

async fn anthropic_is_told_never(stage: &Stage) {
    let played = stage.play(Sdk::Anthropic, "too_large").await;
    assert_never_fits(stage, &played).await;
    let error = &played.report["body"]["error"];
    assert_eq!(error["type"], "rate_limit_error");
    assert_eq!(error["details"]["error_code"], "request_too_large_for_limit");
}

#[tokio::test]
async fn openai_is_refused_once_when_the_wait_is_long() {
    let Some(stage) = Stage::open(SLOW).await else { return };
    openai_is_told_to_wait(&stage).await;
}

async fn openai_is_told_to_wait(stage: &Stage) {
    let played = stage.play(Sdk::OpenAi, "spent").await;
    assert_long_wait(stage, &played).await;
    assert_eq!(played.report["then"]["code"], "rate_limit_exceeded");
    assert_eq!(played.report["then"]["type"], "tokens");
}

#[tokio::test]
async fn anthropic_is_refused_once_when_the_wait_is_long() {
    let Some(stage) = Stage::open(SLOW).await else { return };
    anthropic_is_told_to_wait(&stage).await;
}

async fn anthropic_is_told_to_wait(stage: &Stage) {
    let played = stage.play(Sdk::Anthropic, "spent").await;
    assert_long_wait(stage, &played).await;
    let error = &played.report["then"]["body"]["error"];
    assert_eq!(error["type"], "rate_limit_error");
    assert_eq!(error["details"]["error_code"], "tenant_rate_limit_exceeded");
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
    for (sdk, error, expected) in [
        (Sdk::OpenAi, "/code", "invalid_api_key"),
        (Sdk::Anthropic, "/body/error/type", "authentication_error"),
    ] {
        let played = stage.play_as(sdk, "refused", &Key::of("a stranger")).await;
        assert_told_once(&played, "AuthenticationError", 401, "unauthenticated");
        assert_eq!(played.report.pointer(error).unwrap(), expected, "{sdk:?} {}", played.report);
    }
    assert_eq!(faults(&stage, "unauthenticated").await, 2);
    assert_nothing_was_sent(&stage).await;
}

#[tokio::test]
async fn an_unknown_model_is_told_so_once() {
    let Some(stage) = Stage::open(AMPLE).await else { return };
    for (sdk, error, expected) in
        [(Sdk::OpenAi, "/code", "model_not_found"), (Sdk::Anthropic, "/body/error/type", "not_found_error")]
    {
        let played = stage.play(sdk, "unknown_model").await;
        assert_told_once(&played, "NotFoundError", 404, "model_not_found");
        let message = played.report["message"].as_str().unwrap();
        assert!(message.contains("no-such-model"), "{sdk:?}: the message names it: {message}");
        assert_eq!(played.report.pointer(error).unwrap(), expected, "{sdk:?} {}", played.report);
    }
    assert_eq!(faults(&stage, "model_not_found").await, 2);
    assert_nothing_was_sent(&stage).await;
}

// Aborts.

#[tokio::test]
async fn an_aborted_stream_is_aborted_upstream_and_costs_what_was_seen() {
    let Some(stage) = Stage::open(AMPLE).await else { return };
    for sdk in [Sdk::OpenAi, Sdk::Anthropic] {
        leaves_in_the_middle(&stage, sdk).await;
    }
}

async fn leaves_in_the_middle(stage: &Stage, sdk: Sdk) {
    let played = stage.play(sdk, "aborted").await;
    let attempt = played.only_attempt();
    assert_eq!(attempt.status, 200, "{sdk:?}");
    assert_ne!(played.report["chunks"], 0, "{sdk:?}");

    // At ten chunks a second the whole answer would have taken a hundred seconds.
    let bill = stage.bill(attempt).await;
    assert_eq!(bill["outcome"], "aborted", "{sdk:?} {bill}");
    let decision = stage.decision(attempt).await;
    let ending = &decision["ending"];
    assert_eq!(json!([ending["how"], ending["why"]]), json!(["settled", "client_gone"]), "{decision}");
    assert_conserved(&decision);
    // Counted here from what passed, so not to the token what the provider had sent; but the ceiling it was, it is not.
    let (charged, held) = (number(&ending["charged"]), number(&decision["estimate"]["total"]));
    assert!(charged >= number(&bill["input_tokens"]), "the prompt was read: {decision} {bill}");
    assert!(charged < held / 10, "a few chunks of a thousand tokens: {decision} {bill}");
    stage.assert_at_rest().await;
    assert_eq!(stage.provider().stat("inflight").await, 0);
}

// One node of three: the owner of the tenant, or one that asks it. An application cannot tell.

const TENANTS: [(&str, &str); 3] = [("ample", AMPLE), ("slow", SLOW), ("paced", PACED)];

#[tokio::test]
async fn openai_at_the_owner_of_three_nodes() {
    openai_among_three(Place::AtTheOwner).await;
}

#[tokio::test]
async fn openai_at_another_node_of_three() {
    openai_among_three(Place::Elsewhere).await;
}

#[tokio::test]
async fn anthropic_at_the_owner_of_three_nodes() {
    anthropic_among_three(Place::AtTheOwner).await;
}

#[tokio::test]
async fn anthropic_at_another_node_of_three() {
    anthropic_among_three(Place::Elsewhere).await;
}

async fn openai_among_three(place: Place) {
    let Some(house) = House::open(&TENANTS).await else { return };
    let stage = house.stage("ample", place).await;
    openai_answers(&stage).await;
    openai_streams(&stage).await;
    openai_streams_with_usage(&stage).await;
    leaves_in_the_middle(&stage, Sdk::OpenAi).await;
    assert_decided(&stage, place).await;
    openai_is_told_never(&house.stage("slow", place).await).await;
    openai_is_told_to_wait(&house.stage("slow", place).await).await;
    let stage = house.stage("paced", place).await;
    let played = stage.play(Sdk::OpenAi, "hasty").await;
    assert_patience_is_rewarded(&stage, &played).await;
}

async fn anthropic_among_three(place: Place) {
    let Some(house) = House::open(&TENANTS).await else { return };
    let stage = house.stage("ample", place).await;
    anthropic_answers(&stage).await;
    anthropic_streams(&stage).await;
    leaves_in_the_middle(&stage, Sdk::Anthropic).await;
    assert_decided(&stage, place).await;
    anthropic_is_told_never(&house.stage("slow", place).await).await;
    anthropic_is_told_to_wait(&house.stage("slow", place).await).await;
    let stage = house.stage("paced", place).await;
    let played = stage.play(Sdk::Anthropic, "hasty").await;
    assert_patience_is_rewarded(&stage, &played).await;
}

/// Everything so far was decided where the story says.
async fn assert_decided(stage: &Stage, place: Place) {
    let here = stage.counted("tollgate_owner_decisions_total", &["place=\"here\""]).await;
    let elsewhere = stage.counted("tollgate_owner_decisions_total", &["place=\"elsewhere\""]).await;
    match place {
        Place::AtTheOwner => assert!(here > 0 && elsewhere == 0, "{here} here, {elsewhere} elsewhere"),
        Place::Elsewhere => assert!(here == 0 && elsewhere > 0, "{here} here, {elsewhere} elsewhere"),
    }
}

// What several stories assert.

/// The attempt was served once, and the node settled it with what the provider billed for it. Returns the bill.
async fn assert_settled_as_billed(stage: &Stage, attempt: &Attempt) -> Value {
    let bill = stage.bill(attempt).await;
    assert_eq!(bill["outcome"], "completed", "{bill}");
    assert_ne!(bill["input_tokens"], 0, "{bill}");
    let decision = stage.decision(attempt).await;
    assert_eq!(decision["outcome"], "admitted", "{decision}");
    let ending = &decision["ending"];
    assert_eq!(json!([ending["how"], ending["why"]]), json!(["settled", "usage"]), "{decision}");
    assert_eq!(json!([ending["attempts"], ending["upstream_status"]]), json!([1, 200]), "{decision}");
    let total = number(&bill["input_tokens"]) + number(&bill["output_tokens"]);
    assert_eq!(number(&ending["charged"]), total, "{decision} {bill}");
    assert_conserved(&decision);
    stage.assert_at_rest().await;
    bill
}

/// Held − refunded + overage = charged.
fn assert_conserved(decision: &Value) {
    let (held, ending) = (number(&decision["estimate"]["total"]), &decision["ending"]);
    let charged = held + number(&ending["overage"]) - number(&ending["refunded"]);
    assert_eq!(charged, number(&ending["charged"]), "{decision}");
}

async fn assert_nothing_was_sent(stage: &Stage) {
    assert_eq!(stage.counted("tollgate_upstream_attempts_total", &[]).await, 0, "the node sent nothing");
    assert_eq!(stage.sent().await, 0, "the provider was never asked");
    stage.assert_at_rest().await;
}

/// The application got the one answer of the one attempt, and no reason to try again.
fn assert_told_once(played: &Played, class: &str, status: u16, code: &str) {
    let (report, attempt) = (&played.report, played.only_attempt());
    assert_eq!(report["class"], class, "{report}");
    assert_eq!(attempt.status, status, "{report}");
    assert_eq!(attempt.answer("x-tollgate-error"), Some(code), "{report}");
    let decision = attempt.answer("x-tollgate-decision").unwrap();
    assert_eq!(report["request_id"], format!("tg_{decision}"), "what to quote when asking the operator");
}

async fn assert_never_fits(stage: &Stage, played: &Played) {
    assert_told_once(played, "RateLimitError", 429, "request_too_large_for_limit");
    let attempt = played.only_attempt();
    assert_eq!(attempt.answer("x-should-retry"), Some("false"));
    assert_eq!(attempt.answer("retry-after"), None, "no wait would help");
    let message = played.report["message"].as_str().unwrap();
    assert!(message.contains("200"), "the message names the limit: {message}");
    assert_denied(stage, attempt, "request_too_large_for_limit").await;
    assert_nothing_was_sent(stage).await;
}

async fn assert_long_wait(stage: &Stage, played: &Played) {
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
    assert_settled_as_billed(stage, &played.attempts[0]).await;
    assert_denied(stage, refusal, "tenant_rate_limit_exceeded").await;
    assert_eq!(stage.sent().await, 1);
}

async fn assert_denied(stage: &Stage, attempt: &Attempt, reason: &str) {
    let decision = stage.decision(attempt).await;
    assert_eq!(json!([decision["outcome"], decision["reason"]]), json!(["denied", reason]), "{decision}");
    let label = format!("reason=\"{reason}\"");
    let denied = stage.counted("tollgate_decisions_total", &["outcome=\"denied\"", &label]).await;
    assert_eq!(denied, 1);
}

async fn assert_patience_is_rewarded(stage: &Stage, played: &Played) {
    let finishes = played.report["finishes"].as_array().unwrap();
    assert_eq!(finishes.len(), 3, "each call succeeded in the end");
    let statuses = played.statuses();
    assert_eq!(
        statuses,
        [200, 429, 200, 429, 200],
        "two calls came too early; one wait was enough each time"
    );
    for pair in played.attempts.windows(2).filter(|pair| pair[0].status == 429) {
        let [refusal, success] = pair else { unreachable!("windows of two") };
        let milliseconds: u64 =
            refusal.answer("retry-after-ms").expect("a short wait is told exactly").parse().unwrap();
        assert!(
            (1..=2_200).contains(&milliseconds),
            "at most two seconds and their jitter: {milliseconds} ms"
        );
        let seconds: u64 = refusal.answer("retry-after").expect("and in seconds").parse().unwrap();
        assert_eq!(seconds, milliseconds.div_ceil(1_000));
        assert_ne!(refusal.answer("x-should-retry"), Some("false"));
        assert_eq!(
            success.sent["x-stainless-retry-count"], "1",
            "the SDK's own retry, not the application's"
        );
        assert_settled_as_billed(stage, success).await;
    }
    let milliseconds = number(&played.report["milliseconds"]);
    assert!(milliseconds >= 4_000, "the third of three calls, one every two seconds: {milliseconds} ms");
    let denied = stage.counted("tollgate_decisions_total", &["outcome=\"denied\""]).await;
    assert_eq!(denied, 2);
    assert_eq!(stage.sent().await, 3, "the refused attempts stayed here");
}

/// How many requests the node refused as faulty for this reason, before any limit was asked.
async fn faults(stage: &Stage, reason: &str) -> i64 {
    let label = format!("reason=\"{reason}\"");
    stage.counted("tollgate_decisions_total", &["outcome=\"error\"", &label]).await
}

/// Input and output as the SDK reports them.
fn usage(report: &Value) -> Value {
    json!([report["usage"]["input"], report["usage"]["output"]])
}

/// Input and output as the provider billed them.
fn billed(bill: &Value) -> Value {
    json!([bill["input_tokens"], bill["output_tokens"]])
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("not a number: {value}"))
}

fn indices(report: &Value) -> Vec<u64> {
    report["choices"].as_array().unwrap().iter().map(|choice| number(&choice["index"])).collect()
}
