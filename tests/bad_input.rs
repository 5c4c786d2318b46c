//! What cannot be served costs nothing and says what is wrong, in the dialect of its route.

#![allow(clippy::unwrap_used, reason = "an answer of another shape fails the test, as it should")]

mod support;

use bytes::Bytes;
use futures_util::future::join_all;
use serde_json::Value;
use support::inside::{chat, message};
use support::{Client, Inside, Key, Response};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const CHAT: &str = "/v1/chat/completions";
const EMBEDDINGS: &str = "/v1/embeddings";
const MESSAGES: &str = "/v1/messages";
const COUNT: &str = "/v1/messages/count_tokens";

/// The largest body that the nodes of this story take.
const MAX_BODY: usize = 64 * 1024;

fn key() -> Key {
    Key::of("production")
}

async fn inside() -> Inside {
    let limits = "tokens_per_minute: 1, burst_tokens: 10_000, requests_per_minute: 1, burst_requests: 1_000";
    Inside::with(
        |options| options.edge.max_body = MAX_BODY,
        |policy| policy.tenant("northwind", &key(), limits),
    )
    .await
}

/// Route, body, status, `x-tollgate-error`, OpenAI's `code`, the member at fault.
type Case = (&'static str, &'static str, u16, &'static str, &'static str, Option<&'static str>);

/// Bodies that are wrong by themselves. Where the route is Anthropic's, the code and the member are in the message.
const CASES: &[Case] = &[
    // Not JSON.
    (CHAT, "", 400, "invalid_request", "invalid_json", None),
    (CHAT, "{", 400, "invalid_request", "invalid_json", None),
    (CHAT, "hello", 400, "invalid_request", "invalid_json", None),
    (CHAT, r#"{"model":"gpt-5",}"#, 400, "invalid_request", "invalid_json", None),
    (CHAT, r#"{"model":"gpt-5"} {"#, 400, "invalid_request", "invalid_json", None),
    (
        CHAT,
        r#"{"model":"gpt-5","messages":[{"role":"user","content":"\ud800"}]}"#,
        400,
        "invalid_request",
        "invalid_json",
        None,
    ),
    (CHAT, r#"{"model":"gpt-5","temperature":1e999}"#, 400, "invalid_request", "invalid_json", None),
    (CHAT, "\u{feff}{}", 400, "invalid_request", "invalid_json", None),
    (MESSAGES, "{", 400, "invalid_request", "", None),
    (EMBEDDINGS, "nul", 400, "invalid_request", "invalid_json", None),
    // JSON of another shape.
    (CHAT, "[]", 400, "invalid_request", "invalid_json", None),
    (CHAT, "{}", 400, "invalid_request", "missing_required_parameter", Some("model")),
    (CHAT, r#"{"model":5}"#, 400, "invalid_request", "invalid_type", Some("model")),
    (CHAT, r#"{"model":""}"#, 400, "invalid_request", "empty_string", Some("model")),
    (CHAT, r#"{"model":"gpt-5"}"#, 400, "invalid_request", "missing_required_parameter", Some("messages")),
    (CHAT, r#"{"model":"gpt-5","messages":{}}"#, 400, "invalid_request", "invalid_type", Some("messages")),
    (CHAT, r#"{"model":"gpt-5","messages":[]}"#, 400, "invalid_request", "empty_array", Some("messages")),
    (
        CHAT,
        r#"{"model":"gpt-5","messages":["hi"]}"#,
        400,
        "invalid_request",
        "invalid_type",
        Some("messages[0]"),
    ),
    (
        CHAT,
        r#"{"model":"gpt-5","messages":[{"content":"hi"}]}"#,
        400,
        "invalid_request",
        "missing_required_parameter",
        Some("messages[0].role"),
    ),
    (
        CHAT,
        r#"{"model":"gpt-5","messages":[{"role":"user","content":5}]}"#,
        400,
        "invalid_request",
        "invalid_type",
        Some("messages[0].content"),
    ),
    (
        CHAT,
        r#"{"model":"gpt-5","stream":"yes","messages":[{"role":"user","content":"hi"}]}"#,
        400,
        "invalid_request",
        "invalid_type",
        Some("stream"),
    ),
    (
        EMBEDDINGS,
        r#"{"model":"text-embedding-4","input":[]}"#,
        400,
        "invalid_request",
        "empty_array",
        Some("input"),
    ),
    (
        EMBEDDINGS,
        r#"{"model":"text-embedding-4","input":[1,"a"]}"#,
        400,
        "invalid_request",
        "invalid_type",
        Some("input[1]"),
    ),
    (
        MESSAGES,
        r#"{"model":"claude-haiku-4-5","max_tokens":5}"#,
        400,
        "invalid_request",
        "",
        Some("messages"),
    ),
    (
        MESSAGES,
        r#"{"model":"claude-haiku-4-5","messages":[{"role":"user","content":"hi"}]}"#,
        400,
        "invalid_request",
        "",
        Some("max_tokens"),
    ),
    (
        COUNT,
        r#"{"model":"claude-haiku-4-5","messages":[{"role":"user"}]}"#,
        400,
        "invalid_request",
        "",
        Some("messages[0].content"),
    ),
    // Ceilings and choices.
    (
        CHAT,
        r#"{"model":"gpt-5","max_tokens":0,"messages":[{"role":"user","content":"hi"}]}"#,
        400,
        "invalid_request",
        "integer_below_min_value",
        Some("max_tokens"),
    ),
    (
        CHAT,
        r#"{"model":"gpt-5","max_tokens":-1,"messages":[{"role":"user","content":"hi"}]}"#,
        400,
        "invalid_request",
        "integer_below_min_value",
        Some("max_tokens"),
    ),
    (
        CHAT,
        r#"{"model":"gpt-5","max_tokens":9223372036854775808,"messages":[{"role":"user","content":"hi"}]}"#,
        400,
        "invalid_request",
        "integer_above_max_value",
        Some("max_tokens"),
    ),
    (
        CHAT,
        r#"{"model":"gpt-5","max_tokens":"5","messages":[{"role":"user","content":"hi"}]}"#,
        400,
        "invalid_request",
        "invalid_type",
        Some("max_tokens"),
    ),
    (
        CHAT,
        r#"{"model":"gpt-5","max_tokens":5.0,"messages":[{"role":"user","content":"hi"}]}"#,
        400,
        "invalid_request",
        "invalid_type",
        Some("max_tokens"),
    ),
    (
        CHAT,
        r#"{"model":"gpt-5","max_completion_tokens":0,"messages":[{"role":"user","content":"hi"}]}"#,
        400,
        "invalid_request",
        "integer_below_min_value",
        Some("max_completion_tokens"),
    ),
    (
        CHAT,
        r#"{"model":"gpt-5","n":0,"messages":[{"role":"user","content":"hi"}]}"#,
        400,
        "invalid_request",
        "integer_below_min_value",
        Some("n"),
    ),
    (
        CHAT,
        r#"{"model":"gpt-5","n":129,"messages":[{"role":"user","content":"hi"}]}"#,
        400,
        "invalid_request",
        "integer_above_max_value",
        Some("n"),
    ),
    (
        MESSAGES,
        r#"{"model":"claude-haiku-4-5","max_tokens":0,"messages":[{"role":"user","content":"hi"}]}"#,
        400,
        "invalid_request",
        "",
        Some("max_tokens"),
    ),
    (
        MESSAGES,
        r#"{"model":"claude-haiku-4-5","max_tokens":9223372036854775808,"messages":[{"role":"user","content":"hi"}]}"#,
        400,
        "invalid_request",
        "",
        Some("max_tokens"),
    ),
    (
        MESSAGES,
        r#"{"model":"claude-haiku-4-5","max_tokens":"5","messages":[{"role":"user","content":"hi"}]}"#,
        400,
        "invalid_request",
        "",
        Some("max_tokens"),
    ),
    // Names that stand twice.
    (
        CHAT,
        r#"{"model":"gpt-5","model":"gpt-5-mini"}"#,
        400,
        "invalid_request",
        "duplicate_key",
        Some("model"),
    ),
    (
        CHAT,
        r#"{"model":"gpt-5","mod\u0065l":"gpt-5-mini"}"#,
        400,
        "invalid_request",
        "duplicate_key",
        Some("model"),
    ),
    (
        CHAT,
        r#"{"model":"gpt-5","max_tokens":1,"messages":[{"role":"user","content":"hi"}],"max_tokens":9}"#,
        400,
        "invalid_request",
        "duplicate_key",
        Some("max_tokens"),
    ),
    (
        CHAT,
        r#"{"model":"gpt-5","messages":[{"role":"user","content":"a","content":"b"}]}"#,
        400,
        "invalid_request",
        "duplicate_key",
        Some("content"),
    ),
    (
        CHAT,
        r#"{"model":"gpt-5","messages":[{"role":"user","content":[{"type":"text","text":"a","text":"b"}]}]}"#,
        400,
        "invalid_request",
        "duplicate_key",
        Some("text"),
    ),
    (
        CHAT,
        r#"{"model":"gpt-5","stream_options":{"include_usage":true,"include_usage":false}}"#,
        400,
        "invalid_request",
        "duplicate_key",
        Some("include_usage"),
    ),
    (
        MESSAGES,
        r#"{"model":"claude-haiku-4-5","max_tokens":1,"max_tokens":9}"#,
        400,
        "invalid_request",
        "",
        Some("max_tokens"),
    ),
    (
        EMBEDDINGS,
        r#"{"model":"text-embedding-4","input":"a","input":"b"}"#,
        400,
        "invalid_request",
        "duplicate_key",
        Some("input"),
    ),
    // Models.
    (
        CHAT,
        r#"{"model":"gpt-17","messages":[{"role":"user","content":"hi"}]}"#,
        404,
        "model_not_found",
        "model_not_found",
        Some("model"),
    ),
    (
        MESSAGES,
        r#"{"model":"claude-17","max_tokens":5,"messages":[{"role":"user","content":"hi"}]}"#,
        404,
        "model_not_found",
        "",
        None,
    ),
    (
        EMBEDDINGS,
        r#"{"model":"\u0000\u001b[31m","input":"a"}"#,
        404,
        "model_not_found",
        "model_not_found",
        Some("model"),
    ),
    (
        CHAT,
        r#"{"model":"claude-haiku-4-5","messages":[{"role":"user","content":"hi"}]}"#,
        403,
        "model_not_allowed",
        "model_not_allowed",
        Some("model"),
    ),
    (
        MESSAGES,
        r#"{"model":"gpt-5","max_tokens":5,"messages":[{"role":"user","content":"hi"}]}"#,
        403,
        "model_not_allowed",
        "",
        None,
    ),
];

#[tokio::test]
async fn every_wrong_body_is_named_and_costs_nothing() {
    let inside = inside().await;
    for (route, body, status, error, code, param) in CASES {
        let answer = post(&inside, route, *body).await;
        let told = answer.json();
        assert_eq!(answer.status, *status, "{body}: {told}");
        assert_ours(&answer, route, error);
        if is_anthropic(route) {
            let sentence = told["error"]["message"].as_str().unwrap();
            assert!(param.is_none_or(|param| sentence.contains(param)), "{body}: {told}");
        } else {
            assert_eq!(told["error"]["code"], *code, "{body}: {told}");
            assert_eq!(told["error"]["param"].as_str(), *param, "{body}: {told}");
        }
    }
    assert_cost_nothing(&inside).await;
}

#[tokio::test]
async fn a_body_that_is_nested_without_end_is_refused() {
    let inside = inside().await;
    for depth in [65, 1_000, 10_000] {
        let nested = format!("{{\"model\":\"gpt-5\",\"x\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
        for route in [CHAT, MESSAGES] {
            let answer = post(&inside, route, nested.clone()).await;
            assert_eq!(answer.status, 400, "{}", answer.text());
            assert_ours(&answer, route, "invalid_request");
        }
    }
    assert_cost_nothing(&inside).await;
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_whether_or_not_it_says_so() {
    let inside = inside().await;
    for route in [CHAT, MESSAGES] {
        let answer = post(&inside, route, vec![b' '; MAX_BODY + 1]).await;
        assert_eq!(answer.status, 413);
        assert_ours(&answer, route, "request_too_large");
        assert!(answer.text().contains("65,536 bytes"), "{}", answer.text());

        // Only its head says how long it would be: it is refused before a byte of it has come.
        let head = format!("content-length: {}\r\n", u64::MAX / 2);
        let (status, text) = raw(&inside, route, &head, b"").await;
        assert_eq!(status, 413, "{text}");
        assert!(text.contains("x-tollgate-error: request_too_large"), "{text}");

        // It never says how long it is.
        let mut chunked = Vec::new();
        for _ in 0..=(MAX_BODY / 4096) {
            chunked.extend_from_slice(b"1000\r\n");
            chunked.extend_from_slice(&[b' '; 4096]);
            chunked.extend_from_slice(b"\r\n");
        }
        let (status, text) = raw(&inside, route, "transfer-encoding: chunked\r\n", &chunked).await;
        assert_eq!(status, 413, "{text}");
        assert!(text.contains("x-tollgate-error: request_too_large"), "{text}");
    }
    // The largest that is taken is taken.
    let mut body = chat(4).to_string();
    body.push_str(&" ".repeat(MAX_BODY - body.len()));
    assert_eq!(post(&inside, CHAT, body).await.status, 200);
    assert_eq!(inside.provider.stats().requests, 1);
}

#[tokio::test]
async fn a_body_of_very_many_values_is_refused() {
    let inside = Inside::under(|policy| policy.tenant("northwind", &key(), "requests_per_minute: 600")).await;
    let many = format!("{{\"model\":\"text-embedding-4\",\"input\":[{}1]}}", "1,".repeat(600_000));
    let answer = post(&inside, EMBEDDINGS, many).await;
    assert_eq!(answer.status, 413, "{}", answer.text());
    assert_ours(&answer, EMBEDDINGS, "request_too_large");
    let wide: Vec<String> = (0..10_000).map(|name| format!("\"{name}\":0")).collect();
    let answer = post(&inside, CHAT, format!("{{{}}}", wide.join(","))).await;
    assert_eq!(answer.status, 413, "{}", answer.text());
    assert_eq!(inside.used(&key(), "tenant", "requests_per_minute").await, 0);
}

#[tokio::test]
async fn a_compressed_body_is_refused_before_it_is_read() {
    let inside = inside().await;
    let bearer = key().bearer();
    for encoding in ["gzip", "deflate", "br", "identity, gzip"] {
        for route in [CHAT, MESSAGES] {
            let headers = [("authorization", bearer.as_str()), ("content-encoding", encoding)];
            let answer = inside.client.post(&inside.at(route), &headers, &chat(4)).await;
            assert_eq!(answer.status, 415, "{encoding}");
            assert_ours(&answer, route, "unsupported_content_encoding");
        }
    }
    assert_cost_nothing(&inside).await;
}

#[tokio::test]
async fn bytes_that_are_no_text_are_refused() {
    let inside = inside().await;
    let answer = post(&inside, CHAT, Bytes::from_static(b"{\"model\":\"gpt-5\xff\"}")).await;
    assert_eq!(answer.json()["error"]["code"], "invalid_json");
    assert_ours(&answer, CHAT, "invalid_request");
    assert_cost_nothing(&inside).await;
}

#[tokio::test]
async fn another_method_is_told_the_right_one() {
    let inside = inside().await;
    let bearer = key().bearer();
    for (method, route, allow) in [
        ("GET", CHAT, "POST"),
        ("PUT", MESSAGES, "POST"),
        ("DELETE", EMBEDDINGS, "POST"),
        ("PATCH", COUNT, "POST"),
        ("OPTIONS", CHAT, "POST"),
        ("POST", "/v1/models", "GET"),
        ("POST", "/tollgate/v1/me", "GET"),
    ] {
        let answer = inside.client.ask(method, &inside.at(route), &[("authorization", &bearer)]).await;
        assert_eq!(answer.status, 405, "{method} {route}");
        assert_eq!(answer.header("allow"), Some(allow), "{method} {route}");
        assert_ours(&answer, route, "method_not_allowed");
    }
    assert_cost_nothing(&inside).await;
}

#[tokio::test]
async fn what_is_not_served_is_not_found_however_it_is_spelled() {
    let inside = inside().await;
    let body = chat(4).to_string();
    for path in [
        "/",
        "/v1",
        "/v1/completions/",
        "/v1/responses/resp_1",
        "/v1/images/generations",
        "/openai/deployments/gpt-5/images/generations",
        "/openai/deployments/../chat/completions",
        "/openai/deployments/gpt%2D5/chat/completions",
        "/v1/chat/completions/",
        "/v1//chat/completions",
        "/v1/./chat/completions",
        "/v1/x/../chat/completions",
        "/v1/chat%2Fcompletions",
        "/V1/chat/completions",
        "/v1/chat/completions;x=1",
        "/v1/messages/batches",
        "/v1/messages/",
        "/v1/files",
        "/metrics",
        "/tollgate/v1/",
        "/tollgate/v2/me",
        "//",
    ] {
        let (status, text) =
            raw(&inside, path, &format!("content-length: {}\r\n", body.len()), body.as_bytes()).await;
        let expected = if path.starts_with("/tollgate/v1/") { [404, 405] } else { [404, 404] };
        assert!(expected.contains(&status), "{path}: {text}");
        assert!(
            text.contains("x-tollgate-error: ") && text.contains("x-tollgate-decision: "),
            "{path}: {text}"
        );
        let body = text.split_once("\r\n\r\n").unwrap().1;
        let told: Value =
            serde_json::from_str(body).unwrap_or_else(|error| panic!("{path}: {error}: {body}"));
        assert_eq!(told["type"] == "error", path.starts_with(MESSAGES), "{path}: {told}");
    }
    assert_cost_nothing(&inside).await;
}

#[tokio::test]
async fn a_body_that_breaks_off_costs_nothing() {
    let inside = inside().await;
    let mut stream = TcpStream::connect(inside.gateway.callers()).await.unwrap();
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: gateway\r\nauthorization: {}\r\ncontent-length: 1000\r\n\r\n{{\"mod",
        key().bearer()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    drop(stream);
    assert_cost_nothing(&inside).await;
}

#[tokio::test]
async fn nothing_is_counted_for_bad_input_that_comes_in_a_crowd_over_one_connection() {
    let inside = inside().await;
    let http2 = Client::http2();
    let (bearer, url) = (key().bearer(), inside.at(CHAT));
    let headers = [("authorization", bearer.as_str())];
    let asked = (0..200).map(|_| http2.post_bytes(&url, &headers, "{"));
    assert!(join_all(asked).await.iter().all(|answer| answer.status == 400));
    assert_cost_nothing(&inside).await;
}

async fn post(inside: &Inside, route: &str, body: impl Into<Bytes>) -> Response {
    let bearer = key().bearer();
    inside.client.post_bytes(&inside.at(route), &[("authorization", &bearer)], body).await
}

/// Sends what a careful client would not, and reads one answer: its status, and all of it as text.
async fn raw(inside: &Inside, path: &str, headers: &str, body: &[u8]) -> (u16, String) {
    let mut stream = TcpStream::connect(inside.gateway.callers()).await.unwrap();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: gateway\r\nconnection: close\r\nauthorization: {}\r\n{headers}\r\n",
        key().bearer()
    );
    let (mut reading, mut writing) = stream.split();
    let sent = async {
        // The node may have answered and closed before it has read all.
        let _closed = writing.write_all(head.as_bytes()).await;
        let _closed = writing.write_all(body).await;
    };
    let mut text = Vec::new();
    let read = async {
        let _reset_after_the_answer = reading.read_to_end(&mut text).await;
    };
    tokio::join!(sent, read);
    let text = String::from_utf8_lossy(&text).into_owned();
    let status = text.get(9..12).and_then(|status| status.parse().ok());
    (status.unwrap_or_else(|| panic!("{path}: no answer: {text:?}")), text)
}

fn is_anthropic(route: &str) -> bool {
    route.starts_with(MESSAGES)
}

/// The answer is the gateway's own, in the route's dialect.
#[track_caller]
fn assert_ours(answer: &Response, route: &str, error: &str) {
    assert_eq!(answer.header("x-tollgate-error"), Some(error), "{}", answer.text());
    assert_eq!(answer.header("x-tollgate-decision").map(str::len), Some(32));
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let told = answer.json();
    assert!(told["error"]["message"].as_str().is_some_and(|sentence| sentence.len() > 10), "{told}");
    assert_eq!(told["type"] == "error", is_anthropic(route), "{told}");
    let id = if is_anthropic(route) { "request-id" } else { "x-request-id" };
    assert!(answer.header(id).is_some(), "{:?}", answer.headers);
}

/// Not a token, not a request, not a word to the provider; and the node still serves.
async fn assert_cost_nothing(inside: &Inside) {
    assert_eq!(inside.used(&key(), "tenant", "tokens_per_minute").await, 0);
    assert_eq!(inside.used(&key(), "tenant", "requests_per_minute").await, 0);
    assert_eq!(inside.provider.stats().requests, 0);
    assert_eq!(inside.metric("tollgate_decisions_total", &["outcome=\"admitted\""]), 0);
    assert_eq!(inside.chat(&key(), "", &chat(4)).await.status, 200);
    assert_eq!(inside.message(&key(), "", &message(4)).await.status, 200);
    inside.assert_at_rest().await;
}
