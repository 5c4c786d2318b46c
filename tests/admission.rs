//! Who is let in and who is not: limits as a caller meets them through HTTP, in both dialects.

#![allow(clippy::unwrap_used, reason = "an answer of another shape fails the test, as it should")]

mod support;

use futures_util::future::join_all;
use serde_json::{Value, json};
use support::inside::{chat, message, streamed};
use support::{Inside, Key, Policy, Response, eventually};

/// No more comes in the time that a test takes: one a minute.
const REQUESTS_10: &str = "requests_per_minute: 1, burst_requests: 10";

fn key() -> Key {
    Key::of("production")
}

fn northwind(limits: &'static str) -> impl FnOnce(Policy) -> Policy {
    move |policy| policy.tenant("northwind", &key(), limits)
}

/// A tenant with what stands around its one key, `KEY` for the key's hash.
fn written(yaml: &'static str) -> impl FnOnce(Policy) -> Policy {
    move |policy| policy.tenant_yaml(&yaml.replace("KEY", &format!("hash: \"{}\"", key().hash)))
}

#[tokio::test]
async fn three_keys_of_one_tenant_share_one_limit() {
    let keys = ["production", "staging", "data-science"].map(Key::of);
    let labels = keys.iter().map(|key| format!("{{ label: k{}, hash: \"{}\" }}", &key.hash[7..12], key.hash));
    let tenant =
        format!("{{ id: northwind, {REQUESTS_10}, keys: [{}] }}", labels.collect::<Vec<_>>().join(", "));
    let inside = Inside::under(|policy| policy.tenant_yaml(&tenant)).await;
    let body = chat(4);
    let asked = (0..100).map(|number| inside.chat(&keys[number % 3], "", &body));
    let statuses: Vec<u16> = join_all(asked).await.iter().map(|answer| answer.status).collect();
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 10, "{statuses:?}");
    assert_eq!(statuses.iter().filter(|status| **status == 429).count(), 90, "{statuses:?}");
    assert_eq!(inside.provider.stats().requests, 10, "what is refused never reaches the provider");
    inside.assert_at_rest().await;
}

#[tokio::test]
async fn the_first_requests_of_a_fresh_tenant_never_hold_more_than_its_burst() {
    let inside =
        Inside::under(northwind("tokens_per_minute: 1, burst_tokens: 1_000, max_inflight: 1_000")).await;
    let body = chat(100);
    let key = key();
    {
        // Nothing is refunded meanwhile: the provider answers nobody.
        let asked = (0..64).map(|_| inside.chat(&key, "hang=1", &body));
        let decided = eventually("all 64 are decided", async || {
            let told = |outcome: &str| inside.metric("tollgate_decisions_total", &[outcome]);
            let (admitted, denied) = (told("outcome=\"admitted\""), told("outcome=\"denied\""));
            if admitted + denied == 64 { Ok(admitted) } else { Err(format!("{admitted} and {denied}")) }
        });
        let admitted = tokio::select! {
            admitted = decided => admitted,
            _ = join_all(asked) => panic!("a request that hangs was answered"),
        };
        let reserved = inside.metric("tollgate_tokens_reserved_total", &[]);
        assert!(admitted > 0 && reserved <= 1_000, "{admitted} requests hold {reserved} of 1,000");
        assert!(reserved + reserved / admitted > 1_000, "one more would have fitted: {admitted}, {reserved}");
    }
    inside.assert_at_rest().await;
}

#[tokio::test]
async fn a_refusal_charges_nothing() {
    let limits = "tokens_per_minute: 1, burst_tokens: 150, requests_per_minute: 1, burst_requests: 50";
    let inside = Inside::under(northwind(limits)).await;
    assert_eq!(inside.chat(&key(), "usage=off", &chat(100)).await.status, 200);
    let before = (
        inside.used(&key(), "tenant", "tokens_per_minute").await,
        inside.used(&key(), "tenant", "requests_per_minute").await,
    );
    for _ in 0..20 {
        assert_eq!(inside.chat(&key(), "", &chat(100)).await.status, 429);
        assert_eq!(inside.chat(&key(), "", &chat(100_000)).await.status, 429);
    }
    let after = (
        inside.used(&key(), "tenant", "tokens_per_minute").await,
        inside.used(&key(), "tenant", "requests_per_minute").await,
    );
    assert_eq!(before, after, "not the tokens of the refused, nor their requests");
    assert_eq!(inside.provider.stats().requests, 1);
    inside.assert_at_rest().await;
}

#[tokio::test]
async fn a_tenant_without_tokens_is_told_when_it_fits() {
    // Ten a second: what is missing comes within a minute.
    let inside = Inside::under(northwind("tokens_per_minute: 600, burst_tokens: 200")).await;
    assert_eq!(inside.chat(&key(), "usage=off", &chat(150)).await.status, 200);
    let openai = inside.chat(&key(), "", &chat(150)).await;
    let anthropic = inside.message(&key(), "", &message(150)).await;
    assert_refused(&openai, &anthropic, "tenant_rate_limit_exceeded", "tokens");
    for answer in [&openai, &anthropic] {
        let seconds: u64 = answer.header("retry-after").unwrap().parse().unwrap();
        let millis: u64 = answer.header("retry-after-ms").unwrap().parse().unwrap();
        assert!((1..=20).contains(&seconds) && millis <= seconds * 1_000, "{seconds} s, {millis} ms");
        assert_eq!(answer.header("x-should-retry"), None);
        let sentence = answer.json()["error"]["message"].as_str().unwrap().to_owned();
        for word in ["tokens_per_minute", "tenant northwind", "of 200 left", "will fit in"] {
            assert!(sentence.contains(word), "{word:?} is not in {sentence:?}");
        }
    }
}

#[tokio::test]
async fn a_long_wait_is_named_and_not_to_be_waited_for() {
    let inside = Inside::under(northwind("tokens_per_minute: 60, burst_tokens: 200")).await;
    assert_eq!(inside.chat(&key(), "usage=off", &chat(150)).await.status, 200);
    let openai = inside.chat(&key(), "", &chat(150)).await;
    let anthropic = inside.message(&key(), "", &message(150)).await;
    assert_refused(&openai, &anthropic, "tenant_rate_limit_exceeded", "tokens");
    for answer in [&openai, &anthropic] {
        assert_eq!(answer.header("x-should-retry"), Some("false"));
        assert!(answer.header("retry-after").unwrap().parse::<u64>().unwrap() > 60);
        assert_eq!(answer.header("retry-after-ms"), None);
    }
}

#[tokio::test]
async fn what_can_never_fit_is_told_apart_and_is_not_to_be_waited_for() {
    let inside = Inside::under(northwind("tokens_per_minute: 60_000, burst_tokens: 200")).await;
    let openai = inside.chat(&key(), "", &chat(201)).await;
    let anthropic = inside.message(&key(), "", &message(201)).await;
    assert_refused(&openai, &anthropic, "request_too_large_for_limit", "tokens");
    for answer in [&openai, &anthropic] {
        assert_eq!(answer.header("x-should-retry"), Some("false"));
        assert_eq!(answer.header("retry-after"), None);
        assert_eq!(answer.header("retry-after-ms"), None);
    }
    assert_eq!(inside.chat(&key(), "", &chat(150)).await.status, 200, "a smaller one fits all along");
}

#[tokio::test]
async fn choices_multiply_what_is_held() {
    let inside = Inside::under(northwind("tokens_per_minute: 60_000, burst_tokens: 350")).await;
    let mut body = chat(100);
    body["n"] = json!(3);
    assert_eq!(inside.chat(&key(), "", &body).await.status, 200);
    body["n"] = json!(4);
    let answer = inside.chat(&key(), "", &body).await;
    assert_eq!(answer.header("x-tollgate-error"), Some("request_too_large_for_limit"));
}

#[tokio::test]
async fn a_tenant_without_requests_is_refused_by_requests() {
    let inside = Inside::under(northwind("requests_per_minute: 1, burst_requests: 1")).await;
    assert_eq!(inside.chat(&key(), "", &chat(4)).await.status, 200);
    let openai = inside.chat(&key(), "", &chat(4)).await;
    let anthropic = inside.message(&key(), "", &message(4)).await;
    assert_refused(&openai, &anthropic, "tenant_rate_limit_exceeded", "requests");
}

#[tokio::test]
async fn a_keys_own_limit_is_named_as_the_keys() {
    let inside = Inside::under(written(
        "{ id: northwind, requests_per_minute: 600, keys: [{ label: staging, KEY, requests_per_minute: 1, burst_requests: 1 }] }",
    ))
    .await;
    assert_eq!(inside.chat(&key(), "", &chat(4)).await.status, 200);
    let openai = inside.chat(&key(), "", &chat(4)).await;
    let anthropic = inside.message(&key(), "", &message(4)).await;
    assert_refused(&openai, &anthropic, "key_rate_limit_exceeded", "requests");
    assert!(openai.text().contains("key staging of tenant northwind"), "{}", openai.text());
}

#[tokio::test]
async fn a_projects_limit_is_named_as_the_projects() {
    let inside = Inside::under(written(
        "{ id: northwind, requests_per_minute: 600, projects: [{ id: search, requests_per_minute: 1, burst_requests: 1 }], \
         keys: [{ label: production, KEY, project: search }] }",
    ))
    .await;
    assert_eq!(inside.chat(&key(), "", &chat(4)).await.status, 200);
    let openai = inside.chat(&key(), "", &chat(4)).await;
    let anthropic = inside.message(&key(), "", &message(4)).await;
    assert_refused(&openai, &anthropic, "project_rate_limit_exceeded", "requests");
    assert!(openai.text().contains("project search of tenant northwind"), "{}", openai.text());
}

#[tokio::test]
async fn a_models_rule_holds_for_its_aliases_and_the_exact_one_beats_the_prefix() {
    let inside = Inside::under(written(
        "{ id: northwind, requests_per_minute: 600, models: [{ exact: gpt-5, requests_per_minute: 1, burst_requests: 1 }, \
         { prefix: gpt-, requests_per_minute: 2, burst_requests: 2 }], keys: [{ label: production, KEY }] }",
    ))
    .await;
    let of = |model: &str| {
        let mut body = chat(4);
        body["model"] = json!(model);
        body
    };
    assert_eq!(inside.chat(&key(), "", &of("gpt-5-latest")).await.status, 200);
    for name in ["gpt-5", "gpt-5-latest"] {
        let refused = inside.chat(&key(), "", &of(name)).await;
        assert_eq!(refused.status, 429, "{name}");
        assert_eq!(refused.header("x-tollgate-error"), Some("model_rate_limit_exceeded"), "{name}");
    }
    for _ in 0..2 {
        assert_eq!(
            inside.chat(&key(), "", &of("gpt-5-mini")).await.status,
            200,
            "gpt-5 used nothing of the prefix's"
        );
    }
    assert_eq!(inside.chat(&key(), "", &of("gpt-5-mini")).await.status, 429);
    let names: Vec<String> = inside.provider.requests().into_iter().map(|row| row.model).collect();
    assert_eq!(names, ["gpt-5", "gpt-5-mini", "gpt-5-mini"], "the provider is asked by the model's own name");
}

#[tokio::test]
async fn a_model_that_is_not_allowed_is_not_allowed_by_its_alias_either() {
    let inside = Inside::under(written(
        "{ id: northwind, requests_per_minute: 600, allow_models: [gpt-5-mini], keys: [{ label: production, KEY }] }",
    ))
    .await;
    for name in ["gpt-5", "gpt-5-latest"] {
        let mut body = chat(4);
        body["model"] = json!(name);
        let refused = inside.chat(&key(), "", &body).await;
        assert_eq!(refused.status, 403, "{name}");
        assert_eq!(refused.header("x-tollgate-error"), Some("model_not_allowed"), "{name}");
        assert_eq!(refused.json()["error"]["param"], "model");
    }
    let refused = inside.message(&key(), "", &message(4)).await;
    assert_eq!(refused.status, 403);
    assert_eq!(refused.json()["error"]["type"], "permission_error");
    assert_eq!(inside.provider.stats().requests, 0);
    assert_eq!(inside.used(&key(), "tenant", "requests_per_minute").await, 0);
}

#[tokio::test]
async fn a_slot_is_taken_until_the_stream_has_ended() {
    let inside = Inside::under(northwind("max_inflight: 1")).await;
    let (bearer, body) = (key().bearer(), streamed(chat(4)));
    let headers = [("authorization", bearer.as_str()), ("x-sim", "gap=60s")];
    let open = inside.client.post_open(&inside.at("/v1/chat/completions"), &headers, &body).await;
    assert_eq!(open.status(), 200);
    let openai = inside.chat(&key(), "", &chat(4)).await;
    let anthropic = inside.message(&key(), "", &message(4)).await;
    assert_refused(&openai, &anthropic, "inflight_limit_exceeded", "requests");
    for answer in [&openai, &anthropic] {
        assert!(answer.header("retry-after").is_some() && answer.header("x-should-retry").is_none());
    }
    assert_eq!(inside.limit(&key(), "tenant", "max_inflight").await["remaining"], 0);

    drop(open);
    inside.assert_at_rest().await;
    assert_eq!(inside.chat(&key(), "", &streamed(chat(4))).await.status, 200);
    // The end of a stream frees its slot before the caller sees the end.
    assert_eq!(inside.chat(&key(), "", &streamed(chat(4))).await.status, 200);
}

#[tokio::test]
async fn every_answer_says_what_is_left() {
    let limits = "tokens_per_minute: 120, burst_tokens: 1_000, requests_per_minute: 60, burst_requests: 5";
    let inside = Inside::under(northwind(limits)).await;
    let openai = inside.chat(&key(), "", &chat(100)).await;
    assert_eq!(openai.status, 200);
    assert_eq!(openai.header("ratelimit-policy"), Some("\"tpm\";q=120;w=60, \"rpm\";q=60;w=60"));
    let state = openai.header("ratelimit").unwrap();
    assert!(state.starts_with("\"tpm\";r=") && state.contains(", \"rpm\";r=4;t=1"), "{state}");
    assert_eq!(openai.header("x-ratelimit-limit-requests"), Some("60"));
    assert_eq!(openai.header("x-ratelimit-remaining-requests"), Some("4"));
    assert_eq!(openai.header("x-ratelimit-reset-requests"), Some("1s"));
    assert_eq!(openai.header("x-ratelimit-limit-tokens"), Some("120"));
    let left: u64 = openai.header("x-ratelimit-remaining-tokens").unwrap().parse().unwrap();
    assert!((800..900).contains(&left), "1,000 less the prompt and 100: {left}");
    assert!(openai.header("x-ratelimit-reset-tokens").is_some());
    assert!(openai.headers.keys().all(|name| !name.as_str().starts_with("anthropic-ratelimit")));

    let anthropic = inside.message(&key(), "", &message(100)).await;
    assert_eq!(anthropic.header("anthropic-ratelimit-requests-limit"), Some("60"));
    assert!(anthropic.header("anthropic-ratelimit-tokens-remaining").is_some());
    let reset = anthropic.header("anthropic-ratelimit-tokens-reset").unwrap();
    assert!(reset.parse::<jiff::Timestamp>().is_ok(), "{reset} is no RFC 3339 instant");
    assert!(anthropic.headers.keys().all(|name| !name.as_str().starts_with("x-ratelimit")));
    assert!(anthropic.header("ratelimit").is_some());
}

#[tokio::test]
async fn a_tenant_in_debt_has_nothing_left_and_not_less() {
    let inside = Inside::under(northwind("tokens_per_minute: 60, burst_tokens: 400")).await;
    // The provider counts the prompt ten times as high as the node does.
    let mut body = chat(100);
    body["messages"][0]["content"] = json!("word ".repeat(200));
    let openai = inside.chat(&key(), "skew=10", &body).await;
    assert_eq!(openai.status, 200, "{}", openai.text());
    assert!(inside.limit(&key(), "tenant", "tokens_per_minute").await["level"].as_i64().unwrap() < -1_000);
    assert_eq!(inside.limit(&key(), "tenant", "tokens_per_minute").await["remaining"], 0);
    let refused = [inside.chat(&key(), "", &chat(4)).await, inside.message(&key(), "", &message(4)).await];
    for answer in &refused {
        assert_eq!(answer.status, 429);
        assert!(answer.text().contains("in debt"), "{}", answer.text());
        for (name, value) in &answer.headers {
            let limits = name.as_str().contains("ratelimit");
            assert!(!limits || !value.to_str().unwrap().contains("=-"), "{name}: {value:?}");
            assert!(!limits || !value.as_bytes().starts_with(b"-"), "{name}: {value:?}");
        }
    }
    assert_eq!(refused[0].header("x-ratelimit-remaining-tokens"), Some("0"));
    assert_eq!(refused[1].header("anthropic-ratelimit-tokens-remaining"), Some("0"));
}

#[tokio::test]
async fn editing_a_limit_keeps_what_is_used() {
    let inside = Inside::under(northwind("tokens_per_minute: 1, burst_tokens: 1_000")).await;
    assert_eq!(inside.chat(&key(), "usage=off", &chat(500)).await.status, 200);
    let used = inside.used(&key(), "tenant", "tokens_per_minute").await;
    assert!(used >= 500, "{used}");
    for burst in [2_000, 600, 1_000] {
        let limits = format!("tokens_per_minute: 1, burst_tokens: {burst}");
        inside.edit(|policy| policy.tenant("northwind", &key(), &limits));
        assert_eq!(inside.used(&key(), "tenant", "tokens_per_minute").await, used, "with a burst of {burst}");
    }
    let tight = "tokens_per_minute: 1, burst_tokens: 100";
    inside.edit(|policy| policy.tenant("northwind", &key(), tight));
    assert_eq!(inside.limit(&key(), "tenant", "tokens_per_minute").await["remaining"], 0);
    assert_eq!(inside.chat(&key(), "", &chat(4)).await.status, 429, "what was used is not forgiven");
}

/// The same refusal in both dialects: status, code, body, and who decided.
#[track_caller]
fn assert_refused(openai: &Response, anthropic: &Response, code: &str, kind: &str) {
    let body = openai.json();
    assert_eq!(openai.status, 429, "{body}");
    assert_eq!(openai.header("x-tollgate-error"), Some(code), "{body}");
    assert_eq!(body["error"]["type"], kind, "{body}");
    assert_eq!(body["error"]["code"], "rate_limit_exceeded", "{body}");
    assert_eq!(body["error"]["param"], Value::Null, "{body}");
    assert!(openai.header("x-request-id").is_some());

    let body = anthropic.json();
    assert_eq!(anthropic.status, 429, "{body}");
    assert_eq!(anthropic.header("x-tollgate-error"), Some(code), "{body}");
    assert_eq!(body["type"], "error", "{body}");
    assert_eq!(body["error"]["type"], "rate_limit_error", "{body}");
    assert_eq!(body["error"]["details"]["error_code"], code, "{body}");
    assert_eq!(body["request_id"].as_str(), anthropic.header("request-id"));
    for answer in [openai, anthropic] {
        assert_eq!(answer.header("content-type"), Some("application/json"));
        assert_eq!(answer.header("x-tollgate-decision").map(str::len), Some(32));
    }
}
