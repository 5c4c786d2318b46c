//! What is held becomes what is owed: by the usage that the provider reported, or by the estimate when there is no better number.

#![allow(clippy::unwrap_used, reason = "an answer of another shape fails the test, as it should")]

mod support;

use http_body_util::BodyExt;
use serde_json::{Value, json};
use support::inside::{chat, message, streamed};
use support::scripted::{nobody, says};
use support::{Inside, Key, Policy, Response, Scripted, eventually};
use tollgate::simulated::{self, Outcome};

const SLOW: &str =
    "tokens_per_minute: 1, burst_tokens: 10_000, requests_per_minute: 1, burst_requests: 1_000";

fn key() -> Key {
    Key::of("production")
}

async fn slow() -> Inside {
    Inside::under(|policy| policy.tenant("northwind", &key(), SLOW)).await
}

// With usage.

#[tokio::test]
async fn a_refund_is_there_for_the_very_next_request() {
    // Each holds some 210 of 300 and uses some 30: only a refund lets the next one in.
    let limits = "tokens_per_minute: 1, burst_tokens: 300";
    for kind in 0..4 {
        let inside = Inside::under(|policy| policy.tenant("northwind", &key(), limits)).await;
        for time in 0..3 {
            let answer = match kind {
                0 => inside.chat(&key(), "tokens=4", &chat(200)).await,
                1 => inside.chat(&key(), "tokens=4", &streamed(chat(200))).await,
                2 => inside.message(&key(), "tokens=4", &message(200)).await,
                _ => inside.message(&key(), "tokens=4", &streamed(message(200))).await,
            };
            assert_eq!(answer.status, 200, "kind {kind}, time {time}: {}", answer.text());
        }
        inside.assert_at_rest().await;
    }
}

#[tokio::test]
async fn what_is_settled_is_what_the_provider_billed_id_by_id() {
    let inside = slow().await;
    let three = |mut body: Value| {
        body["n"] = json!(3);
        body
    };
    let asked_for_usage = |mut body: Value| {
        body["stream_options"] = json!({ "include_usage": true });
        body
    };
    let sim = "skew=1.5,tokens=20";
    for body in [
        chat(50),
        three(chat(50)),
        streamed(chat(50)),
        streamed(three(chat(50))),
        asked_for_usage(streamed(chat(50))),
    ] {
        let answer = inside.chat(&key(), sim, &body).await;
        assert_settled(&inside, &answer, &body).await;
    }
    for body in [message(50), streamed(message(50))] {
        let answer = inside.message(&key(), "skew=1.5,tokens=20,cache_write=3", &body).await;
        assert_settled(&inside, &answer, &body).await;
    }
    let bearer = key().bearer();
    let body = json!({ "model": "text-embedding-4", "input": ["one", "and two"] });
    let url = inside.at("/v1/embeddings");
    let answer = inside.client.post(&url, &[("authorization", &bearer), ("x-sim", "skew=1.5")], &body).await;
    assert_settled(&inside, &answer, &body).await;
    inside.assert_at_rest().await;
    let stats = inside.provider.stats();
    assert_eq!(
        inside.metric("tollgate_tokens_settled_total", &[]).unsigned_abs(),
        stats.input_tokens + stats.output_tokens
    );
}

#[tokio::test]
async fn what_is_used_beyond_the_estimate_becomes_debt_and_is_repaid_first() {
    let limits = "tokens_per_minute: 1, burst_tokens: 500";
    let inside = Inside::under(|policy| policy.tenant("northwind", &key(), limits)).await;
    let mut body = chat(20);
    body["messages"][0]["content"] = json!("word ".repeat(300));
    let answer = inside.chat(&key(), "skew=5", &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let record = inside.decision_of(&key(), &answer).await;
    let billed = billed(&inside, &answer).await;
    assert_eq!(number(&record["ending"]["overage"]), billed - number(&record["estimate"]["total"]));
    let level = inside.limit(&key(), "tenant", "tokens_per_minute").await["level"].as_i64().unwrap();
    assert_eq!(level, 500 - i64::try_from(billed).unwrap());
    assert_eq!(inside.chat(&key(), "", &chat(4)).await.status, 429);
    inside.assert_at_rest().await;
}

#[tokio::test]
async fn counting_tokens_is_free_of_tokens() {
    let inside = slow().await;
    let key = key();
    let headers = [("x-api-key", key.secret.as_str()), ("anthropic-version", "2023-06-01")];
    let mut body = message(1);
    body.as_object_mut().unwrap().remove("max_tokens");
    let answer = inside.client.post(&inside.at("/v1/messages/count_tokens"), &headers, &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(number(&answer.json()["input_tokens"]) > 0);
    assert_eq!(inside.used(&key, "tenant", "tokens_per_minute").await, 0);
    assert_eq!(inside.used(&key, "tenant", "requests_per_minute").await, 1);
    inside.assert_at_rest().await;
}

#[tokio::test]
async fn a_compressed_answer_is_decoded_and_metered() {
    let inside = slow().await;
    for body in [chat(50), streamed(chat(50))] {
        let answer = inside.chat(&key(), "gzip=1", &body).await;
        assert_eq!(answer.header("content-encoding"), None);
        assert_settled(&inside, &answer, &body).await;
    }
    let answer = inside.message(&key(), "gzip=1", &streamed(message(50))).await;
    assert_eq!(answer.header("content-encoding"), None);
    assert!(answer.text().ends_with("\n\n") && answer.text().contains("event: message_stop"));
    assert_settled(&inside, &answer, &streamed(message(50))).await;
    inside.assert_at_rest().await;
}

#[tokio::test]
async fn a_stream_with_crlf_is_relayed_as_it_came_and_metered() {
    let inside = slow().await;
    let answer = inside.chat(&key(), "crlf=1", &streamed(chat(50))).await;
    assert!(answer.text().ends_with("data: [DONE]\r\n\r\n"), "{:?}", answer.text());
    assert!(!answer.text().contains("\"usage\":{"), "nobody asked for usage: {}", answer.text());
    assert_settled(&inside, &answer, &streamed(chat(50))).await;
    let answer = inside.message(&key(), "crlf=1", &streamed(message(50))).await;
    assert!(answer.text().contains("event: message_stop\r\n"), "{:?}", answer.text());
    assert_settled(&inside, &answer, &streamed(message(50))).await;
    inside.assert_at_rest().await;
}

#[tokio::test]
async fn the_bytes_of_a_stream_are_the_providers_own() {
    let key = key();
    let frames = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"grüß\u{1f600}\"},\"finish_reason\":null}]}\n\n\
                  : a comment\n\n\
                  data:{\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n\
                  data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":9,\"total_tokens\":16}}\n\n\
                  data: [DONE]\n\n";
    let scripted = Scripted::playing(move |_, _| says(200, "text/event-stream", frames)).await;
    let inside = before(&scripted.url, |policy| policy.tenant("northwind", &key, SLOW)).await;
    let mut body = streamed(chat(50));
    body["stream_options"] = json!({ "include_usage": true });
    let answer = inside.chat(&key, "", &body).await;
    assert_eq!(answer.text(), frames);
    assert_eq!(number(&inside.decision_of(&key, &answer).await["ending"]["charged"]), 16);
    inside.assert_at_rest().await;
}

// Without.

#[tokio::test]
async fn an_answer_without_full_usage_is_charged_at_its_estimate() {
    let inside = slow().await;
    let three = |mut body: Value| {
        body["n"] = json!(3);
        body
    };
    for (sim, body, why) in [
        ("usage=off", chat(50), "no_usage"),
        ("usage=off", streamed(chat(50)), "no_usage"),
        ("close_early=1", streamed(chat(50)), "no_usage"),
        ("n_finish=1", streamed(three(chat(50))), "incomplete"),
    ] {
        let answer = inside.chat(&key(), sim, &body).await;
        assert_eq!(answer.status, 200, "{sim}");
        let record = inside.decision_of(&key(), &answer).await;
        assert_closed(&record, "closed", why);
    }
    for (sim, why) in [("usage=off", "no_usage"), ("close_early=1", "incomplete")] {
        let answer = inside.message(&key(), sim, &streamed(message(50))).await;
        let record = inside.decision_of(&key(), &answer).await;
        assert_eq!(record["ending"]["how"], "closed", "{sim} {why}: {record}");
        assert_eq!(record["ending"]["charged"], record["estimate"]["total"], "{record}");
    }
    assert!(inside.metric("tollgate_usage_unknown_total", &["provider=\"openai\""]) >= 2);
    inside.assert_at_rest().await;
}

#[tokio::test]
async fn a_providers_cut_is_told_in_the_stream_and_charged_at_the_estimate() {
    let inside = slow().await;
    let openai = inside.chat(&key(), "fail_after=3", &streamed(chat(50))).await;
    assert_eq!(openai.status, 200);
    let text = openai.text();
    let last = text.trim_end().rsplit("\n\n").next().unwrap();
    let event: Value = serde_json::from_str(last.strip_prefix("data: ").unwrap()).unwrap();
    assert_eq!(event["error"]["code"], "upstream_broken", "{text}");
    assert!(!text.contains("[DONE]"), "a broken answer does not look whole: {text}");
    assert_closed(&inside.decision_of(&key(), &openai).await, "closed", "provider_failed");

    let anthropic = inside.message(&key(), "fail_after=3", &streamed(message(50))).await;
    let text = anthropic.text();
    let last = text.trim_end().rsplit("\n\n").next().unwrap();
    let (name, data) = last.split_once('\n').unwrap();
    assert_eq!(name, "event: error");
    let event: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
    assert_eq!(event["type"], "error", "{text}");
    assert_closed(&inside.decision_of(&key(), &anthropic).await, "closed", "provider_failed");

    let plain = inside.chat(&key(), "fail_after=3", &chat(50)).await;
    assert_eq!(plain.status, 502);
    assert_eq!(plain.header("x-tollgate-error"), Some("upstream_unreadable"));
    assert_closed(&inside.decision_of(&key(), &plain).await, "closed", "provider_failed");
    inside.assert_at_rest().await;
}

#[tokio::test]
async fn a_providers_error_in_the_stream_passes_and_is_charged_at_the_estimate() {
    let key = key();
    let scripted = Scripted::playing(|_, request| match request.uri().path() {
        "/v1/messages" => says(
            200,
            "text/event-stream",
            "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":5,\"output_tokens\":1}}}\n\n\
             event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n",
        ),
        _ => says(
            200,
            "text/event-stream",
            "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\ndata: {\"error\":{\"message\":\"no\",\"type\":\"server_error\"}}\n\n",
        ),
    })
    .await;
    let inside = before(&scripted.url, |policy| policy.tenant("northwind", &key, SLOW)).await;
    let openai = inside.chat(&key, "", &streamed(chat(50))).await;
    assert!(openai.text().ends_with("\"server_error\"}}\n\n"), "{}", openai.text());
    assert_closed(&inside.decision_of(&key, &openai).await, "closed", "provider_failed");
    let anthropic = inside.message(&key, "", &streamed(message(50))).await;
    assert!(anthropic.text().ends_with("\"Overloaded\"}}\n\n"), "{}", anthropic.text());
    assert_closed(&inside.decision_of(&key, &anthropic).await, "closed", "provider_failed");
    inside.assert_at_rest().await;
}

#[tokio::test]
async fn a_providers_failure_is_charged_at_the_estimate() {
    let inside =
        Inside::under(|policy| policy.providers("max_attempts: 1").tenant("northwind", &key(), SLOW)).await;
    // Its 429 comes last: it pauses the pool.
    for status in ["status=400", "status=500", "status=529", "status=429"] {
        let answer = inside.chat(&key(), status, &chat(50)).await;
        assert_eq!(format!("status={}", answer.status), status);
        assert_closed(&inside.decision_of(&key(), &answer).await, "closed", "provider_failed");
    }
    inside.assert_at_rest().await;
}

#[tokio::test]
async fn a_provider_that_cannot_be_reached_costs_nothing() {
    let url = nobody().await;
    let inside =
        before(&url, |policy| policy.providers("max_attempts: 2").tenant("northwind", &key(), SLOW)).await;
    let openai = inside.chat(&key(), "", &chat(50)).await;
    let anthropic = inside.message(&key(), "", &message(50)).await;
    for answer in [&openai, &anthropic] {
        assert_eq!(answer.status, 502, "{}", answer.text());
        assert_eq!(answer.header("x-tollgate-error"), Some("upstream_unreachable"));
        assert!(answer.text().contains("Nothing was charged"), "{}", answer.text());
        let record = inside.decision_of(&key(), answer).await;
        assert_eq!(record["ending"]["how"], "cancelled", "{record}");
        assert_eq!(record["ending"]["charged"], 0, "{record}");
        assert_eq!(record["ending"]["attempts"], 0, "{record}");
    }
    assert_eq!(inside.used(&key(), "tenant", "tokens_per_minute").await, 0);
    assert_eq!(inside.used(&key(), "tenant", "requests_per_minute").await, 0);
    inside.assert_at_rest().await;
}

#[tokio::test]
async fn a_provider_that_vanishes_after_it_was_asked_is_charged_and_the_caller_is_told_so() {
    let key = key();
    // It closes the connection and its port after the first answer, as a provider that restarts does.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let (mut stream, _) = listener.accept().await.unwrap();
        drop(listener);
        assert_ne!(stream.read(&mut [0; 4096]).await.unwrap(), 0);
        let answer = "HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        stream.write_all(answer.as_bytes()).await.unwrap();
    });
    let inside =
        before(&url, |policy| policy.providers("max_attempts: 2").tenant("northwind", &key, SLOW)).await;
    let answer = inside.chat(&key, "", &chat(50)).await;
    assert_eq!(answer.header("x-tollgate-error"), Some("upstream_unreachable"), "{}", answer.text());
    let record = inside.decision_of(&key, &answer).await;
    assert_closed(&record, "closed", "no_answer");
    assert!(!answer.text().contains("Nothing was charged"), "it was: {} {record}", answer.text());
    inside.assert_at_rest().await;
}

// The caller leaves.

#[tokio::test]
async fn a_caller_that_leaves_mid_stream_pays_what_was_seen_and_takes_its_request_along() {
    let inside = slow().await;
    let key = key();
    for anthropic in [false, true] {
        let seen = leave_after(&inside, &key, anthropic, 5).await;
        let record = inside.decision(&key, &seen.decision).await;
        assert_eq!(record["ending"]["how"], "settled", "{record}");
        assert_eq!(record["ending"]["why"], "client_gone", "{record}");
        let charged = number(&record["ending"]["charged"]);
        let (input, total) = (number(&record["estimate"]["input"]), number(&record["estimate"]["total"]));
        // The provider's own count of the prompt, where it has told it, may be a little below ours.
        assert!(charged + 10 >= input + seen.tokens, "{} tokens were seen: {record}", seen.tokens);
        assert!(charged < total / 2, "far from all of it was: {record}");
    }
    eventually("the provider has let go of both", async || {
        let stats = inside.provider.stats();
        if stats.aborted == 2 && stats.inflight == 0 { Ok(()) } else { Err(format!("{stats:?}")) }
    })
    .await;
    inside.assert_at_rest().await;
}

#[tokio::test]
async fn a_caller_that_leaves_pays_the_estimate_where_the_policy_says_so() {
    let key = key();
    let tenant = format!("on_disconnect: estimate, {SLOW}");
    let inside = Inside::under(|policy| policy.tenant("northwind", &key, &tenant)).await;
    let seen = leave_after(&inside, &key, false, 2).await;
    assert_closed(&inside.decision(&key, &seen.decision).await, "closed", "client_gone");
    inside.assert_at_rest().await;
}

#[tokio::test]
async fn a_caller_that_leaves_before_the_first_byte_pays_the_estimate() {
    let inside = slow().await;
    let key = key();
    for body in [chat(50), streamed(chat(50))] {
        inside.provider.reset();
        tokio::select! {
            answer = inside.chat(&key, "latency=60s", &body) => panic!("answered: {answer:?}"),
            () = eventually("the provider is asked", async || match inside.provider.stats().inflight {
                1 => Ok(()),
                other => Err(format!("{other} in flight")),
            }) => {}
        }
        let row = eventually("the provider is let go", async || {
            inside.provider.requests().pop().ok_or_else(|| format!("{:?}", inside.provider.stats()))
        })
        .await;
        assert_eq!(row.outcome, Outcome::Aborted);
        assert_closed(&inside.decision(&key, &row.decision.unwrap()).await, "abandoned", "dropped");
    }
    inside.assert_at_rest().await;
}

#[tokio::test]
async fn a_caller_that_leaves_after_the_end_mark_changes_nothing() {
    let key = key();
    // The provider says it is done and keeps the connection open.
    let scripted = Scripted::playing(|_, _| {
        let said = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"},\"finish_reason\":\"stop\"}]}\n\n\
                    data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":9,\"total_tokens\":16}}\n\n\
                    data: [DONE]\n\n";
        let whole = futures_util::stream::once(async move { Ok::<_, std::io::Error>(bytes::Bytes::from(said)) });
        let open = futures_util::StreamExt::chain(whole, futures_util::stream::pending());
        says(200, "text/event-stream", axum::body::Body::from_stream(open))
    })
    .await;
    let inside = before(&scripted.url, |policy| policy.tenant("northwind", &key, SLOW)).await;
    let bearer = key.bearer();
    let url = inside.at("/v1/chat/completions");
    let mut open = inside.client.post_open(&url, &[("authorization", &bearer)], &streamed(chat(50))).await;
    let id = open.headers()["x-tollgate-decision"].to_str().unwrap().to_owned();
    let mut text = String::new();
    while !text.contains("[DONE]") {
        let frame = open.frame().await.unwrap().unwrap();
        text.push_str(&String::from_utf8_lossy(frame.data_ref().unwrap()));
    }
    // Settled before the mark was seen: no waiting here.
    let url = inside.at(&format!("/tollgate/v1/decisions/{id}"));
    let record = inside.client.get(&url, &[("authorization", &bearer)]).await.json();
    assert_eq!((&record["ending"]["how"], &record["ending"]["charged"]), (&json!("settled"), &json!(16)));
    drop(open);
    inside.assert_at_rest().await;
    assert_eq!(inside.decision(&key, &id).await["ending"]["charged"], 16);
}

/// What a caller saw before it left.
struct Seen {
    decision: String,
    tokens: u64,
}

/// Asks for a stream of 500 tokens, a token a chunk, reads some, and leaves.
async fn leave_after(inside: &Inside, key: &Key, anthropic: bool, chunks: u64) -> Seen {
    let sim = ("x-sim", "tokens=500,gap=2ms");
    let mut open = if anthropic {
        let headers = [("x-api-key", key.secret.as_str()), ("anthropic-version", "2023-06-01"), sim];
        inside.client.post_open(&inside.at("/v1/messages"), &headers, &streamed(message(2_000))).await
    } else {
        let bearer = key.bearer();
        let headers = [("authorization", bearer.as_str()), sim];
        inside.client.post_open(&inside.at("/v1/chat/completions"), &headers, &streamed(chat(2_000))).await
    };
    let decision = open.headers()["x-tollgate-decision"].to_str().unwrap().to_owned();
    let (mut text, mark) = (String::new(), if anthropic { "\"text_delta\"" } else { "\"content\":\"" });
    let seen = |text: &str| text.matches(mark).count() as u64;
    while seen(&text) < chunks + 1 {
        let frame = open.frame().await.unwrap().unwrap();
        text.push_str(&String::from_utf8_lossy(frame.data_ref().unwrap()));
    }
    // The first of OpenAI's deltas has the role and no text.
    Seen { decision, tokens: seen(&text) - 1 }
}

async fn before(url: &str, policy: impl FnOnce(Policy) -> Policy) -> Inside {
    let unused = simulated::Provider::bind(([127, 0, 0, 1], 0).into(), simulated::Options::default());
    Inside::before(unused.await.unwrap(), url, |_| {}, policy).await
}

/// The provider's bill of an answer: input and output.
async fn billed(inside: &Inside, answer: &Response) -> u64 {
    let decision = answer.header("x-tollgate-decision").unwrap();
    eventually("the provider has closed its row", async || {
        let rows = inside.provider.requests();
        let row = rows.iter().find(|row| row.decision.as_deref() == Some(decision));
        row.map(|row| row.input_tokens + row.output_tokens).ok_or_else(|| format!("{rows:?}"))
    })
    .await
}

async fn assert_settled(inside: &Inside, answer: &Response, body: &Value) {
    assert_eq!(answer.status, 200, "{body}: {}", answer.text());
    let record = inside.decision_of(&key(), answer).await;
    assert_eq!(record["ending"]["how"], "settled", "{body}: {record}");
    let billed = billed(inside, answer).await;
    assert_eq!(number(&record["ending"]["charged"]), billed, "{body}: {record}");
    let held = number(&record["estimate"]["total"]);
    assert_eq!(number(&record["ending"]["refunded"]), held.saturating_sub(billed), "{body}: {record}");
    assert_eq!(number(&record["ending"]["overage"]), billed.saturating_sub(held), "{body}: {record}");
}

/// Charged at the estimate.
#[track_caller]
fn assert_closed(record: &Value, how: &str, why: &str) {
    let ending = &record["ending"];
    assert_eq!((&ending["how"], &ending["why"]), (&json!(how), &json!(why)), "{record}");
    assert_eq!(ending["charged"], record["estimate"]["total"], "{record}");
    assert_eq!((&ending["refunded"], &ending["overage"]), (&json!(0), &json!(0)), "{record}");
}

#[track_caller]
fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is not a number"))
}
