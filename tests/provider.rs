//! The simulated provider through its public edge: the shapes of both dialects, each item of `x-sim`, and its books.
//!
//! The shapes are written by hand from the public API references of OpenAI and Anthropic.

#![allow(clippy::unwrap_used, reason = "what goes wrong in a helper fails the test")]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use tokio::time::Instant;
use tollgate::simulated::{Ceilings, Options, Outcome, Provider, Row, Stats};

const CHAT: &str = "/v1/chat/completions";
const MESSAGES: &str = "/v1/messages";
const EMBEDDINGS: &str = "/v1/embeddings";

/// "hello world" is two tokens, the role one; around them go four a message and two for the reply.
const HELLO_TOKENS: u64 = 9;

// ---- The house: a provider and a client of it ----

struct House {
    provider: Provider,
    client: Client<HttpConnector, Full<Bytes>>,
}

struct Reply {
    status: StatusCode,
    headers: HeaderMap,
    body: Vec<u8>,
    /// Whether the connection broke before the body's end.
    cut: bool,
}

impl Reply {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error} in {}", self.text()))
    }

    fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    fn header(&self, name: &str) -> &str {
        self.headers.get(name).unwrap_or_else(|| panic!("no {name} in {:?}", self.headers)).to_str().unwrap()
    }

    /// The data of an OpenAI stream, `[DONE]` included.
    fn data(&self) -> Vec<String> {
        assert_eq!(self.header("content-type"), "text/event-stream; charset=utf-8");
        let text = self.text();
        let events = text.strip_suffix("\n\n").unwrap_or(&text).split("\n\n");
        events
            .map(|event| event.strip_prefix("data: ").unwrap_or_else(|| panic!("{event}")).to_owned())
            .collect()
    }

    /// The chunks of an OpenAI stream that ended well.
    fn chunks(&self) -> Vec<Value> {
        let mut data = self.data();
        assert_eq!(data.pop().as_deref(), Some("[DONE]"));
        data.iter().map(|chunk| serde_json::from_str(chunk).unwrap()).collect()
    }

    /// The events of an Anthropic stream; each one's name is its data's type.
    fn events(&self) -> Vec<Value> {
        let text = self.text();
        let events = text.strip_suffix("\n\n").unwrap_or(&text).split("\n\n");
        events
            .map(|event| {
                let (name, data) = event.split_once('\n').unwrap();
                let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
                assert_eq!(name.strip_prefix("event: "), data["type"].as_str());
                data
            })
            .collect()
    }
}

impl House {
    async fn open() -> Self {
        Self::with(Options::default()).await
    }

    async fn with(options: Options) -> Self {
        let provider = Provider::bind("127.0.0.1:0".parse().unwrap(), options).await.unwrap();
        Self { provider, client: Client::builder(TokioExecutor::new()).build_http() }
    }

    /// The same house, spoken to in HTTP/2 with prior knowledge.
    fn over_http2(mut self) -> Self {
        self.client = Client::builder(TokioExecutor::new()).http2_only(true).build_http();
        self
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        x_sim: &str,
        body: impl Into<Bytes>,
    ) -> Request<Full<Bytes>> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.provider.local_addr()))
            .header("authorization", "Bearer sk-any")
            .header("x-sim", x_sim);
        if path.starts_with(MESSAGES) {
            request = request.header("anthropic-version", "2023-06-01");
        }
        request.body(Full::new(body.into())).unwrap()
    }

    async fn begin(&self, path: &str, x_sim: &str, body: &Value) -> http::Response<Incoming> {
        self.client.request(self.request(Method::POST, path, x_sim, body.to_string())).await.unwrap()
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Reply {
        let response = self.client.request(request).await.unwrap();
        let (head, mut incoming) = response.into_parts();
        let mut body = Vec::new();
        let mut cut = false;
        while let Some(frame) = incoming.frame().await {
            match frame {
                Ok(frame) => body.extend_from_slice(frame.data_ref().map_or(&[], |data| data)),
                Err(_) => {
                    cut = true;
                    break;
                }
            }
        }
        Reply { status: head.status, headers: head.headers, body, cut }
    }

    async fn post(&self, path: &str, x_sim: &str, body: &Value) -> Reply {
        self.send(self.request(Method::POST, path, x_sim, body.to_string())).await
    }

    async fn get(&self, path: &str) -> Reply {
        self.send(self.request(Method::GET, path, "", "")).await
    }

    /// The only row there is.
    fn only_row(&self) -> Row {
        let rows = self.provider.requests();
        assert_eq!(rows.len(), 1, "{rows:?}");
        rows[0].clone()
    }

    /// Waits until the sums are so.
    async fn until(&self, what: &str, holds: impl Fn(&Stats) -> bool) -> Stats {
        let mut look = tokio::time::interval(Duration::from_millis(2));
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let stats = self.provider.stats();
            if holds(&stats) {
                return stats;
            }
            assert!(Instant::now() < deadline, "never came to: {what}; at the end {stats:?}");
            look.tick().await;
        }
    }

    /// The laws of the books, checked against the rows as they come over HTTP.
    async fn assert_books_balance(&self) {
        let stats: Stats = serde_json::from_value(self.get("/stats").await.json()).unwrap();
        let lines = self.get("/requests").await.text();
        let rows: Vec<Row> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(stats, self.provider.stats());
        assert_eq!(rows, self.provider.requests());

        let of = |outcome| rows.iter().filter(|row| row.outcome == outcome).count() as u64;
        let sum = |tokens: fn(&Row) -> u64| rows.iter().map(tokens).sum::<u64>();
        assert_eq!(
            stats,
            Stats {
                requests: rows.len() as u64 + stats.inflight,
                completed: of(Outcome::Completed),
                aborted: of(Outcome::Aborted),
                refused: of(Outcome::Refused),
                refused_ceiling: of(Outcome::RefusedCeiling),
                failed: of(Outcome::Failed),
                inflight: stats.inflight,
                input_tokens: sum(|row| row.input_tokens),
                output_tokens: sum(|row| row.output_tokens),
                busiest_minute_tokens: busiest_minute(&rows),
                rows_dropped: 0,
            }
        );
        let ids: HashMap<&str, &Row> = rows.iter().map(|row| (row.id.as_str(), row)).collect();
        assert_eq!(ids.len(), rows.len(), "ids are unique");
        for row in &rows {
            let refused = matches!(row.outcome, Outcome::Refused | Outcome::RefusedCeiling);
            assert_eq!(row.admitted_ms.is_none(), refused, "{row:?}");
            assert!(!refused || row.input_tokens + row.output_tokens == 0, "{row:?}");
        }
    }
}

/// By its definition: for each admission, what was billed of the 60 s up to it.
fn busiest_minute(rows: &[Row]) -> u64 {
    let admitted: Vec<(u64, u64)> = rows
        .iter()
        .filter_map(|row| Some((row.admitted_ms?, row.input_tokens + row.output_tokens)))
        .collect();
    let minute_to = |end: u64| {
        admitted.iter().filter(move |(at, _)| *at <= end && *at + 60_000 > end).map(|(_, billed)| billed)
    };
    admitted.iter().map(|(end, _)| minute_to(*end).sum()).max().unwrap_or(0)
}

fn chat() -> Value {
    json!({"model": "gpt-5", "messages": [{"role": "user", "content": "hello world"}]})
}

fn messages() -> Value {
    json!({"model": "claude-haiku-4-5", "max_tokens": 100, "messages": [{"role": "user", "content": "hello world"}]})
}

/// The request with these fields besides.
fn with(mut request: Value, fields: Value) -> Value {
    let fields = fields.as_object().unwrap().clone();
    request.as_object_mut().unwrap().extend(fields);
    request
}

fn streamed(request: Value) -> Value {
    with(request, json!({"stream": true}))
}

fn streamed_with_usage(request: Value) -> Value {
    with(request, json!({"stream": true, "stream_options": {"include_usage": true}}))
}

fn words(tokens: usize) -> String {
    " token".repeat(tokens)
}

/// Takes a field out, after checking that it is a string with this beginning.
fn take_id(body: &mut Value, prefix: &str) -> String {
    let id = body["id"].take();
    assert!(id.as_str().is_some_and(|id| id.starts_with(prefix)), "{id}");
    id.as_str().unwrap().to_owned()
}

// ---- OpenAI's shapes ----

#[tokio::test]
async fn a_chat_completion_looks_like_openais() {
    let house = House::open().await;
    let reply = house.post(CHAT, "", &chat()).await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("content-type"), "application/json");
    assert_eq!(reply.header("content-length"), reply.body.len().to_string());

    let mut body = reply.json();
    take_id(&mut body, "chatcmpl-");
    assert!(body["created"].take().as_i64().unwrap() > 1_700_000_000);
    assert_eq!(
        body,
        json!({
            "id": null, "object": "chat.completion", "created": null, "model": "gpt-5",
            "service_tier": "default", "system_fingerprint": "fp_simulated",
            "choices": [{
                "index": 0,
                "message": {"role": "assistant", "content": words(16), "refusal": null, "annotations": []},
                "logprobs": null,
                "finish_reason": "stop",
            }],
            "usage": {
                "prompt_tokens": HELLO_TOKENS, "completion_tokens": 16, "total_tokens": HELLO_TOKENS + 16,
                "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
                "completion_tokens_details": {
                    "reasoning_tokens": 0, "audio_tokens": 0,
                    "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0,
                },
            },
        })
    );

    let row = house.only_row();
    assert_eq!(row.id, reply.header("x-request-id"));
    assert_eq!((row.model.as_str(), row.outcome), ("gpt-5", Outcome::Completed));
    assert_eq!((row.input_tokens, row.output_tokens), (HELLO_TOKENS, 16));
}

#[tokio::test]
async fn a_chat_stream_looks_like_openais() {
    let house = House::open().await;
    let chunks = house.post(CHAT, "tokens=5,chunks=2", &streamed(chat())).await.chunks();
    let choices: Vec<Value> = chunks.iter().map(|chunk| chunk["choices"].clone()).collect();
    let choice = |delta: Value, finish: Option<&str>| json!([{"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish}]);
    assert_eq!(
        choices,
        [
            choice(json!({"role": "assistant", "content": "", "refusal": null}), None),
            choice(json!({"content": words(3)}), None),
            choice(json!({"content": words(2)}), None),
            choice(json!({}), Some("stop")),
        ]
    );
    for chunk in &chunks {
        assert_eq!(chunk["object"], "chat.completion.chunk");
        assert_eq!((&chunk["id"], &chunk["created"]), (&chunks[0]["id"], &chunks[0]["created"]));
        assert_eq!(chunk.get("usage"), None, "usage was not asked for");
    }
    assert_eq!(house.only_row().output_tokens, 5);
}

#[tokio::test]
async fn usage_in_a_stream_comes_last_and_only_if_asked_for() {
    let house = House::open().await;
    let mut chunks = house.post(CHAT, "tokens=5", &streamed_with_usage(chat())).await.chunks();
    let last = chunks.pop().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["prompt_tokens"], HELLO_TOKENS);
    assert_eq!(last["usage"]["completion_tokens"], 5);
    assert_eq!(last["usage"]["total_tokens"], HELLO_TOKENS + 5);
    for chunk in chunks {
        assert_eq!(chunk.get("usage"), Some(&Value::Null), "every other chunk has a null usage");
    }

    let declined = with(chat(), json!({"stream": true, "stream_options": {"include_usage": false}}));
    for chunk in house.post(CHAT, "", &declined).await.chunks() {
        assert_eq!(chunk.get("usage"), None);
    }
}

#[tokio::test]
async fn choices_count_the_prompt_once() {
    let house = House::open().await;
    let body = house.post(CHAT, "tokens=4", &with(chat(), json!({"n": 3}))).await.json();
    assert_eq!(body["choices"].as_array().unwrap().len(), 3);
    assert_eq!(body["usage"]["prompt_tokens"], HELLO_TOKENS);
    assert_eq!(body["usage"]["completion_tokens"], 12);

    let request = with(streamed_with_usage(chat()), json!({"n": 3}));
    let chunks = house.post(CHAT, "tokens=4", &request).await.chunks();
    let mut texts = HashMap::<u64, String>::new();
    for choice in chunks.iter().filter_map(|chunk| chunk["choices"].get(0)) {
        let text = choice["delta"]["content"].as_str().unwrap_or_default();
        texts.entry(choice["index"].as_u64().unwrap()).or_default().push_str(text);
    }
    assert_eq!(texts, HashMap::from([(0, words(4)), (1, words(4)), (2, words(4))]));
    assert_eq!(chunks.last().unwrap()["usage"]["completion_tokens"], 12);
    assert_eq!(house.provider.stats().output_tokens, 24);
}

#[tokio::test]
async fn a_forced_tool_is_called() {
    let house = House::open().await;
    let tools = json!({
        "tools": [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}],
        "tool_choice": "required",
    });
    let body = house.post(CHAT, "", &with(chat(), tools.clone())).await.json();
    let choice = &body["choices"][0];
    assert_eq!(
        (&choice["finish_reason"], &choice["message"]["content"]),
        (&json!("tool_calls"), &Value::Null)
    );
    let call = &choice["message"]["tool_calls"][0];
    assert_eq!((&call["type"], &call["function"]["name"]), (&json!("function"), &json!("look_up")));
    let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(arguments, json!({"text": words(16)}));

    let chunks = house.post(CHAT, "chunks=4", &streamed(with(chat(), tools))).await.chunks();
    let calls: Vec<&Value> = chunks
        .iter()
        .map(|chunk| &chunk["choices"][0]["delta"]["tool_calls"][0])
        .filter(|call| !call.is_null())
        .collect();
    assert!(calls[0]["id"].as_str().unwrap().starts_with("call_"));
    assert_eq!(calls[0]["function"], json!({"name": "look_up", "arguments": ""}));
    assert!(calls.iter().all(|call| call["index"] == 0));
    assert!(calls[1..].iter().all(|call| call.get("id").is_none()), "only the first delta names the call");
    let arguments: String =
        calls.iter().map(|call| call["function"]["arguments"].as_str().unwrap()).collect();
    assert_eq!(serde_json::from_str::<Value>(&arguments).unwrap(), json!({"text": words(16)}));
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
    assert_eq!(house.provider.stats().output_tokens, 32);
}

#[tokio::test]
async fn a_tool_is_offered_and_called_only_when_steered() {
    let house = House::open().await;
    let tools = json!({"tools": [{"type": "function", "function": {"name": "look_up"}}]});
    let offered = with(chat(), tools);
    let free = house.post(CHAT, "", &offered).await.json();
    assert_eq!(free["choices"][0]["finish_reason"], "stop");
    let steered = house.post(CHAT, "tool=1", &offered).await.json();
    assert_eq!(steered["choices"][0]["finish_reason"], "tool_calls");
    let without = house.post(CHAT, "tool=1", &chat()).await;
    assert_eq!(without.status, 400);
    assert!(without.text().contains("needs `tools`"));
}

#[tokio::test]
async fn embeddings_bill_input_only() {
    let house = House::open().await;
    let request = json!({"model": "text-embedding-4", "input": ["hello world", "hello"], "dimensions": 4});
    let body = house.post(EMBEDDINGS, "", &request).await.json();
    assert_eq!(
        body,
        json!({
            "object": "list", "model": "text-embedding-4",
            "data": [
                {"object": "embedding", "index": 0, "embedding": [1, 0, 0, 0]},
                {"object": "embedding", "index": 1, "embedding": [1, 0, 0, 0]},
            ],
            "usage": {"prompt_tokens": 3, "total_tokens": 3},
        })
    );
    let encoded =
        house.post(EMBEDDINGS, "", &with(request, json!({"encoding_format": "base64"}))).await.json();
    assert_eq!(
        encoded["data"][0]["embedding"], "AACAPwAAAAAAAAAAAAAAAA==",
        "1.0 and three zeros, little-endian"
    );

    for (input, tokens) in [(json!("hello world"), 2), (json!([1, 2, 3]), 3), (json!([[1, 2], [3]]), 3)] {
        let request = json!({"model": "text-embedding-4", "input": input});
        let body = house.post(EMBEDDINGS, "", &request).await.json();
        assert_eq!(body["usage"]["prompt_tokens"], tokens, "{input}");
    }
    for input in [json!([]), json!(5), json!(["a", 1]), json!([[1], "a", null])] {
        let request = json!({"model": "text-embedding-4", "input": input});
        assert_eq!(house.post(EMBEDDINGS, "", &request).await.status, 400, "{input}");
    }
    let stats = house.provider.stats();
    assert_eq!((stats.input_tokens, stats.output_tokens), (3 + 3 + 2 + 3 + 3, 0));
    house.assert_books_balance().await;
}

#[tokio::test]
async fn openais_errors_have_openais_shape() {
    let house = House::open().await;
    let error = |status: u16, reply: Reply| {
        assert_eq!(reply.status, status, "{}", reply.text());
        let mut body = reply.json();
        assert_eq!(body.as_object().unwrap().keys().collect::<Vec<_>>(), ["error"]);
        let error = body["error"].take();
        let mut fields: Vec<&String> = error.as_object().unwrap().keys().collect();
        fields.sort();
        assert_eq!(fields, ["code", "message", "param", "type"]);
        assert!(!error["message"].as_str().unwrap().is_empty());
        (error["type"].as_str().unwrap().to_owned(), error["param"].clone(), error["code"].clone())
    };
    let invalid = |param: Value, code: Value| ("invalid_request_error".to_owned(), param, code);

    for (request, param) in [
        (with(chat(), json!({"max_tokens": 0})), json!("max_tokens")),
        (with(chat(), json!({"max_completion_tokens": 0})), json!("max_completion_tokens")),
        (with(chat(), json!({"n": 0})), json!("n")),
        (with(chat(), json!({"messages": []})), json!("messages")),
        (with(chat(), json!({"stream_options": {}})), json!("stream_options")),
        (with(chat(), json!({"tool_choice": "required"})), json!("tool_choice")),
        (with(chat(), json!({"max_tokens": -1})), Value::Null),
        (with(chat(), json!({"max_tokens": "5"})), Value::Null),
    ] {
        let reply = house.post(CHAT, "", &request).await;
        assert_eq!(error(400, reply), invalid(param, Value::Null), "{request}");
    }
    let broken = house.request(Method::POST, CHAT, "", "{\"model\":");
    assert_eq!(error(400, house.send(broken).await), invalid(Value::Null, Value::Null));

    let mut anonymous = house.request(Method::POST, CHAT, "", chat().to_string());
    anonymous.headers_mut().remove("authorization");
    assert_eq!(error(401, house.send(anonymous).await), invalid(Value::Null, Value::Null));

    assert_eq!(error(404, house.get("/v1/nothing").await), invalid(Value::Null, Value::Null));
    assert_eq!(error(405, house.get(CHAT).await), invalid(Value::Null, Value::Null));
    let rate = error(429, house.post(CHAT, "status=429", &chat()).await);
    assert_eq!(rate, ("requests".to_owned(), Value::Null, json!("rate_limit_exceeded")));
    for status in [500, 502, 503] {
        let reply = house.post(CHAT, &format!("status={status}"), &chat()).await;
        assert_eq!(error(status, reply), ("server_error".to_owned(), Value::Null, Value::Null));
    }

    let stats = house.provider.stats();
    assert_eq!((stats.requests, stats.refused, stats.input_tokens), (14, 14, 0), "refusals bill nothing");
    house.assert_books_balance().await;
}

#[tokio::test]
async fn only_the_models_it_was_told_to_serve_exist() {
    let house = House::with(Options { models: vec!["gpt-5".to_owned()], ..Options::default() }).await;
    assert_eq!(house.post(CHAT, "", &chat()).await.status, 200);
    let other = house.post(CHAT, "", &with(chat(), json!({"model": "gpt-6"}))).await;
    assert_eq!(
        (other.status, &other.json()["error"]["code"]),
        (StatusCode::NOT_FOUND, &json!("model_not_found"))
    );
    let other = house.post(MESSAGES, "", &messages()).await;
    assert_eq!(other.status, 404);
    assert_eq!(
        other.json()["error"],
        json!({"type": "not_found_error", "message": "model: claude-haiku-4-5"})
    );
    assert_eq!(house.get("/v1/models/gpt-5").await.json()["id"], "gpt-5");
    assert_eq!(house.get("/v1/models/gpt-6").await.status, 404);
}

#[tokio::test]
async fn models_are_listed_in_the_dialect_of_the_caller() {
    let house =
        House::with(Options { models: vec!["a".to_owned(), "b".to_owned()], ..Options::default() }).await;
    let body = house.get("/v1/models").await.json();
    let model = |name: &str| json!({"id": name, "object": "model", "created": 1_735_689_600, "owned_by": "simulated"});
    assert_eq!(body, json!({"object": "list", "data": [model("a"), model("b")]}));

    let mut request = house.request(Method::GET, "/v1/models", "", "");
    request.headers_mut().insert("anthropic-version", "2023-06-01".parse().unwrap());
    let body = house.send(request).await.json();
    let model = |name: &str| json!({"type": "model", "id": name, "display_name": name, "created_at": "2025-01-01T00:00:00Z"});
    assert_eq!(
        body,
        json!({"data": [model("a"), model("b")], "has_more": false, "first_id": "a", "last_id": "b"})
    );
}

// ---- Anthropic's shapes ----

#[tokio::test]
async fn a_message_looks_like_anthropics() {
    let house = House::open().await;
    let reply = house.post(MESSAGES, "", &messages()).await;
    assert_eq!(reply.status, 200);
    let mut body = reply.json();
    take_id(&mut body, "msg_");
    assert_eq!(
        body,
        json!({
            "id": null, "type": "message", "role": "assistant", "model": "claude-haiku-4-5",
            "content": [{"type": "text", "text": words(16)}],
            "stop_reason": "end_turn", "stop_sequence": null,
            "usage": {
                "input_tokens": HELLO_TOKENS, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
                "output_tokens": 16, "service_tier": "standard",
            },
        })
    );
    assert_eq!(house.only_row().id, reply.header("request-id"));
}

#[tokio::test]
async fn a_message_stream_looks_like_anthropics() {
    let house = House::open().await;
    let mut events = house.post(MESSAGES, "tokens=5,chunks=2", &streamed(messages())).await.events();
    take_id(&mut events[0]["message"], "msg_");
    let usage = |output: u64| {
        json!({
            "input_tokens": HELLO_TOKENS, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
            "output_tokens": output,
        })
    };
    let text = |tokens: usize| json!({"type": "text_delta", "text": words(tokens)});
    assert_eq!(
        events,
        [
            json!({"type": "message_start", "message": {
                "id": null, "type": "message", "role": "assistant", "model": "claude-haiku-4-5", "content": [],
                "stop_reason": null, "stop_sequence": null,
                "usage": with(usage(1), json!({"service_tier": "standard"})),
            }}),
            json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
            json!({"type": "ping"}),
            json!({"type": "content_block_delta", "index": 0, "delta": text(3)}),
            json!({"type": "content_block_delta", "index": 0, "delta": text(2)}),
            json!({"type": "content_block_stop", "index": 0}),
            json!({
                "type": "message_delta",
                "delta": {"stop_reason": "end_turn", "stop_sequence": null},
                "usage": usage(5),
            }),
            json!({"type": "message_stop"}),
        ]
    );
    assert_eq!(house.only_row().output_tokens, 5);
}

#[tokio::test]
async fn a_forced_tool_is_used() {
    let house = House::open().await;
    let tools = json!({
        "tools": [{"name": "look_up", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "tool", "name": "look_up"},
    });
    let body = house.post(MESSAGES, "", &with(messages(), tools.clone())).await.json();
    assert_eq!(body["stop_reason"], "tool_use");
    let mut block = body["content"][0].clone();
    take_id(&mut block, "toolu_");
    assert_eq!(
        block,
        json!({"type": "tool_use", "id": null, "name": "look_up", "input": {"text": words(16)}})
    );

    let events = house.post(MESSAGES, "chunks=4", &streamed(with(messages(), tools))).await.events();
    let start = events.iter().find(|event| event["type"] == "content_block_start").unwrap();
    assert_eq!(
        (&start["content_block"]["type"], &start["content_block"]["input"]),
        (&json!("tool_use"), &json!({}))
    );
    let input: String = events
        .iter()
        .filter(|event| event["delta"]["type"] == "input_json_delta")
        .map(|event| event["delta"]["partial_json"].as_str().unwrap())
        .collect();
    assert_eq!(serde_json::from_str::<Value>(&input).unwrap(), json!({"text": words(16)}));
}

#[tokio::test]
async fn counting_tokens_is_free_and_right() {
    let house = House::open().await;
    let mut request = messages();
    request.as_object_mut().unwrap().remove("max_tokens");
    let counted = house.post("/v1/messages/count_tokens", "skew=1.5", &request).await;
    assert_eq!((counted.status, counted.json()), (StatusCode::OK, json!({"input_tokens": 14})));
    assert_eq!(house.provider.stats(), Stats::default());

    let billed = house.post(MESSAGES, "skew=1.5", &messages()).await.json();
    assert_eq!(billed["usage"]["input_tokens"], 14);
}

#[tokio::test]
async fn anthropics_errors_have_anthropics_shape() {
    let house = House::open().await;
    let error = |reply: Reply| {
        let id = reply.header("request-id").to_owned();
        let mut body = reply.json();
        assert!(!body["error"]["message"].take().as_str().unwrap().is_empty());
        let kind = body["error"]["type"].take();
        assert_eq!(
            body,
            json!({"type": "error", "error": {"type": null, "message": null}, "request_id": id})
        );
        (reply.status.as_u16(), kind.as_str().unwrap().to_owned())
    };
    for (status, kind) in [
        (400, "invalid_request_error"),
        (402, "billing_error"),
        (403, "permission_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (504, "timeout_error"),
        (529, "overloaded_error"),
    ] {
        let reply = house.post(MESSAGES, &format!("status={status}"), &messages()).await;
        assert_eq!(error(reply), (status, kind.to_owned()));
    }
    for request in [
        with(messages(), json!({"max_tokens": 0})),
        with(messages(), json!({"max_tokens": null})),
        with(messages(), json!({"messages": []})),
        with(messages(), json!({"tool_choice": {"type": "any"}})),
    ] {
        let reply = house.post(MESSAGES, "", &request).await;
        assert_eq!(error(reply), (400, "invalid_request_error".to_owned()), "{request}");
    }
    let mut anonymous = house.request(Method::POST, MESSAGES, "", messages().to_string());
    anonymous.headers_mut().remove("authorization");
    assert_eq!(error(house.send(anonymous).await), (401, "authentication_error".to_owned()));

    let mut unversioned = house.request(Method::POST, MESSAGES, "", messages().to_string());
    unversioned.headers_mut().remove("anthropic-version");
    assert_eq!(error(house.send(unversioned).await), (400, "invalid_request_error".to_owned()));

    let mut by_key = house.request(Method::POST, MESSAGES, "", messages().to_string());
    let key = by_key.headers_mut().remove("authorization").unwrap();
    by_key.headers_mut().insert("x-api-key", key);
    assert_eq!(house.send(by_key).await.status, 200);
}

// ---- x-sim ----

#[tokio::test]
async fn the_requests_own_ceiling_caps_the_output() {
    let house = House::open().await;
    for field in ["max_tokens", "max_completion_tokens"] {
        let body = house.post(CHAT, "tokens=200", &with(chat(), json!({field: 7}))).await.json();
        assert_eq!(body["usage"]["completion_tokens"], 7);
        assert_eq!(body["choices"][0]["finish_reason"], "length");
    }
    let body = house.post(MESSAGES, "tokens=200", &messages()).await.json();
    assert_eq!((&body["usage"]["output_tokens"], &body["stop_reason"]), (&json!(100), &json!("max_tokens")));
    let whole = house.post(CHAT, "tokens=200", &with(chat(), json!({"max_tokens": 200}))).await.json();
    assert_eq!(whole["choices"][0]["finish_reason"], "stop");
}

#[tokio::test]
async fn latency_comes_before_the_head_and_gaps_between_chunks() {
    let house = House::open().await;
    let started = Instant::now();
    let response = house.begin(CHAT, "latency=80ms,tokens=4,gap=40ms", &streamed(chat())).await;
    let head = started.elapsed();
    assert!(head >= Duration::from_millis(80), "{head:?}");
    response.into_body().collect().await.unwrap();
    let whole = started.elapsed();
    assert!(whole >= head + Duration::from_millis(110), "three gaps of 40 ms: {head:?}, {whole:?}");
}

#[tokio::test]
async fn usage_off_bills_and_does_not_tell() {
    let house = House::open().await;
    let plain = house.post(CHAT, "usage=off", &chat()).await.json();
    assert_eq!(plain.get("usage"), None);
    for chunk in house.post(CHAT, "usage=off", &streamed_with_usage(chat())).await.chunks() {
        assert_eq!(chunk.get("usage"), None);
    }
    assert_eq!(house.post(MESSAGES, "usage=off", &messages()).await.json().get("usage"), None);
    for event in house.post(MESSAGES, "usage=off", &streamed(messages())).await.events() {
        assert!(!event.to_string().contains("usage"), "{event}");
    }
    let stats = house.provider.stats();
    assert_eq!((stats.completed, stats.input_tokens, stats.output_tokens), (4, 4 * HELLO_TOKENS, 4 * 16));
}

#[tokio::test]
async fn a_refusal_can_name_a_wait() {
    let house = House::open().await;
    let reply = house.post(CHAT, "status=429,retry_after=2", &chat()).await;
    assert_eq!(
        (reply.status.as_u16(), reply.header("retry-after"), reply.header("retry-after-ms")),
        (429, "2", "2000")
    );
    let reply = house.post(MESSAGES, "status=529,retry_after=7", &messages()).await;
    assert_eq!((reply.status.as_u16(), reply.header("retry-after")), (529, "7"));
    let reply = house.post(CHAT, "status=503", &chat()).await;
    assert_eq!(reply.headers.get("retry-after"), None);
}

#[tokio::test]
async fn the_first_of_a_group_fail() {
    let house = House::open().await;
    let mut statuses = Vec::new();
    for x_sim in ["fail_first=2,key=a"; 3].iter().chain(&["fail_first=1,key=b,status=429,retry_after=1"; 2]) {
        statuses.push(house.post(CHAT, x_sim, &chat()).await.status.as_u16());
    }
    assert_eq!(statuses, [503, 503, 200, 429, 200]);
}

#[tokio::test]
async fn a_stream_that_fails_bills_what_it_had_sent() {
    for house in [House::open().await, House::open().await.over_http2()] {
        let reply = house.post(CHAT, "tokens=20,chunks=10,fail_after=3", &streamed_with_usage(chat())).await;
        assert!(reply.cut);
        assert_eq!(reply.data().len(), 1 + 3, "the opening and three chunks");
        let row = house.only_row();
        assert_eq!((row.outcome, row.input_tokens, row.output_tokens), (Outcome::Failed, HELLO_TOKENS, 6));

        let reply = house.post(MESSAGES, "fail_after=0", &streamed(messages())).await;
        assert!(reply.cut);
        assert!(reply.events().iter().all(|event| event["type"] != "content_block_delta"));

        let whole = house.post(CHAT, "tokens=2,fail_after=3", &streamed(chat())).await;
        assert_eq!((whole.cut, whole.chunks().len()), (false, 4), "it never came to three");
        house.assert_books_balance().await;
    }
}

#[tokio::test]
async fn a_plain_answer_that_fails_is_cut_halfway() {
    let house = House::open().await;
    let reply = house.post(CHAT, "fail_after=3", &chat()).await;
    assert!(reply.cut);
    assert!(reply.body.len() < reply.header("content-length").parse().unwrap());
    let row = house.only_row();
    assert_eq!((row.outcome, row.input_tokens, row.output_tokens), (Outcome::Failed, HELLO_TOKENS, 0));
}

#[tokio::test]
async fn a_stream_can_end_cleanly_before_its_end() {
    let house = House::open().await;
    let reply = house.post(CHAT, "tokens=10,close_early=1", &streamed_with_usage(chat())).await;
    assert!(!reply.cut);
    let data = reply.data();
    assert_eq!(data.len(), 1 + 5);
    assert!(
        data.iter()
            .all(|chunk| chunk.contains(r#""finish_reason":null"#) && chunk.contains(r#""usage":null"#))
    );
    let row = house.only_row();
    assert_eq!((row.outcome, row.output_tokens), (Outcome::Failed, 5));
}

#[tokio::test]
async fn choices_that_do_not_finish_are_billed_and_not_reported() {
    let house = House::open().await;
    let request = with(streamed_with_usage(chat()), json!({"n": 3}));
    let chunks = house.post(CHAT, "tokens=4,n_finish=1", &request).await.chunks();
    let finished: Vec<&Value> = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"].get(0))
        .filter(|choice| !choice["finish_reason"].is_null())
        .map(|choice| &choice["index"])
        .collect();
    assert_eq!(finished, [0]);
    assert_eq!(chunks.last().unwrap()["usage"]["completion_tokens"], 4);
    assert_eq!(house.only_row().output_tokens, 12);
}

#[tokio::test]
async fn skew_is_billed_and_reported() {
    let house = House::with(Options { skew: "2".parse().unwrap(), ..Options::default() }).await;
    let prompt =
        async |x_sim| house.post(CHAT, x_sim, &chat()).await.json()["usage"]["prompt_tokens"].clone();
    assert_eq!(prompt("").await, 2 * HELLO_TOKENS);
    assert_eq!(prompt("skew=1.07").await, 10, "9.63 is rounded up");
    assert_eq!(house.provider.stats().input_tokens, 2 * HELLO_TOKENS + 10);
}

#[tokio::test]
async fn cached_input_is_inside_openais_count_and_outside_anthropics() {
    let house = House::open().await;
    let usage = house.post(CHAT, "cache_read=5", &chat()).await.json()["usage"].clone();
    assert_eq!(
        (&usage["prompt_tokens"], &usage["prompt_tokens_details"]["cached_tokens"]),
        (&json!(9), &json!(5))
    );
    let usage = house.post(MESSAGES, "cache_read=5,cache_write=3", &messages()).await.json()["usage"].clone();
    assert_eq!(usage["input_tokens"], 1);
    assert_eq!(usage["cache_read_input_tokens"], 5);
    assert_eq!(usage["cache_creation_input_tokens"], 3);
    for row in house.provider.requests() {
        assert_eq!((row.input_tokens, row.cache_read_tokens), (9, 5));
    }
}

#[tokio::test]
async fn reasoning_is_part_of_the_output() {
    let house = House::open().await;
    let body = house.post(CHAT, "tokens=30,reasoning=20", &chat()).await.json();
    assert_eq!(body["choices"][0]["message"]["content"], words(10));
    assert_eq!(body["usage"]["completion_tokens"], 30);
    assert_eq!(body["usage"]["completion_tokens_details"]["reasoning_tokens"], 20);

    let body = house.post(MESSAGES, "tokens=30,reasoning=20", &messages()).await.json();
    assert_eq!(
        (&body["content"][0]["type"], &body["content"][0]["thinking"]),
        (&json!("thinking"), &json!(words(20)))
    );
    assert_eq!(
        (&body["content"][1]["text"], &body["usage"]["output_tokens"]),
        (&json!(words(10)), &json!(30))
    );

    let events =
        house.post(MESSAGES, "tokens=30,reasoning=20,chunks=1", &streamed(messages())).await.events();
    let deltas: Vec<&str> = events.iter().filter_map(|event| event["delta"]["type"].as_str()).collect();
    assert_eq!(deltas, ["thinking_delta", "signature_delta", "text_delta"]);
    assert_eq!(house.provider.stats().output_tokens, 90);
}

#[tokio::test]
async fn a_compressed_stream_can_be_read_as_it_comes() {
    let house = House::open().await;
    let plain = house.post(CHAT, "gzip=1", &chat()).await;
    assert_eq!((plain.header("content-encoding"), plain.headers.get("content-length")), ("gzip", None));
    let mut text = String::new();
    flate2::read::GzDecoder::new(plain.body.as_slice()).read_to_string(&mut text).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["usage"]["completion_tokens"], 16);

    let mut body = house.begin(CHAT, "gzip=1,tokens=3,gap=5ms", &streamed(chat())).await.into_body();
    let mut decoder = flate2::write::GzDecoder::new(Vec::new());
    let mut events = 0;
    while let Some(frame) = body.frame().await {
        std::io::Write::write_all(&mut decoder, frame.unwrap().data_ref().unwrap()).unwrap();
        std::io::Write::flush(&mut decoder).unwrap();
        assert!(decoder.get_ref().ends_with(b"\n\n"), "each piece ends with whole events");
        events += 1;
    }
    assert!(events >= 3);
    assert!(decoder.finish().unwrap().ends_with(b"data: [DONE]\n\n"));
}

#[tokio::test]
async fn lines_can_end_with_cr_lf() {
    let house = House::open().await;
    let openai = house.post(CHAT, "crlf=1", &streamed(chat())).await.text();
    assert!(openai.ends_with("data: [DONE]\r\n\r\n"));
    let anthropic = house.post(MESSAGES, "crlf=1", &streamed(messages())).await.text();
    assert!(anthropic.starts_with("event: message_start\r\ndata: {"));
    for text in [openai, anthropic] {
        assert_eq!(text.matches('\n').count(), text.matches("\r\n").count());
    }
}

#[tokio::test]
async fn what_it_does_not_understand_it_refuses() {
    let house = House::open().await;
    let reply = house.post(CHAT, "tokens=5,colour=red", &chat()).await;
    assert_eq!(reply.status, 400);
    assert_eq!(reply.json()["error"]["message"], "x-sim: there is no item `colour`");
    assert_eq!(
        house.post(MESSAGES, "tokens=many", &messages()).await.json()["error"]["type"],
        "invalid_request_error"
    );
}

// ---- Books ----

#[tokio::test]
async fn a_caller_that_leaves_pays_for_what_was_sent() {
    for house in [House::open().await, House::open().await.over_http2()] {
        let mut body =
            house.begin(CHAT, "tokens=400,chunks=200,gap=10ms", &streamed(chat())).await.into_body();
        let mut read = 0;
        while read < 3 {
            let frame = body.frame().await.unwrap().unwrap();
            read += String::from_utf8_lossy(frame.data_ref().unwrap()).matches(" token token").count();
        }
        assert_eq!(house.provider.stats().inflight, 1);
        assert_eq!(
            house.provider.stats().busiest_minute_tokens,
            HELLO_TOKENS + 400,
            "open requests count as judged"
        );
        drop(body);
        let stats = house.until("one aborted", |stats| stats.aborted == 1).await;
        assert_eq!((stats.inflight, stats.input_tokens), (0, HELLO_TOKENS));
        assert!((6..400).contains(&stats.output_tokens), "at least what was read: {stats:?}");
        assert_eq!(stats.output_tokens % 2, 0, "whole chunks");
        assert_eq!(stats.busiest_minute_tokens, stats.input_tokens + stats.output_tokens);
        house.assert_books_balance().await;
    }
}

#[tokio::test]
async fn a_caller_that_gives_up_waiting_pays_for_its_prompt() {
    for house in [House::open().await, House::open().await.over_http2()] {
        for x_sim in ["hang=1", "latency=1000s"] {
            let before = house.provider.stats().aborted;
            let request = chat();
            let call = house.post(CHAT, x_sim, &request);
            assert!(tokio::time::timeout(Duration::from_millis(50), call).await.is_err());
            house.until("one more aborted", |stats| stats.aborted == before + 1).await;
        }
        let stats = house.provider.stats();
        assert_eq!((stats.input_tokens, stats.output_tokens), (2 * HELLO_TOKENS, 0));
        house.assert_books_balance().await;
    }
}

#[tokio::test]
async fn rows_carry_the_callers_own_id() {
    let house = House::open().await;
    let mut request = house.request(Method::POST, CHAT, "", chat().to_string());
    request.headers_mut().insert("x-tollgate-decision", "d-42".parse().unwrap());
    let reply = house.send(request).await;
    let row = house.only_row();
    assert_eq!((row.decision.as_deref(), row.id.as_str()), (Some("d-42"), reply.header("x-request-id")));
    let listed = house.get("/requests").await.text();
    assert!(!listed.contains("sk-any"), "credentials stay out of the books");
}

#[tokio::test]
async fn a_ceiling_refuses_what_would_go_beyond_it() {
    let ceilings = Ceilings { tokens: Some(60), requests: None };
    let house = House::with(Options { ceilings, ..Options::default() }).await;
    let first = house.post(CHAT, "", &chat()).await;
    assert_eq!((first.status.as_u16(), first.header("x-ratelimit-limit-tokens")), (200, "60"));
    assert_eq!(first.header("x-ratelimit-remaining-tokens"), "35");
    let second = house.post(MESSAGES, "", &messages()).await;
    assert_eq!(second.header("anthropic-ratelimit-tokens-remaining"), "10");

    let refused = house.post(CHAT, "", &chat()).await;
    assert_eq!(refused.status, 429);
    let error = refused.json()["error"].clone();
    assert_eq!((&error["type"], &error["code"]), (&json!("tokens"), &json!("rate_limit_exceeded")));
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("Limit 60, Used 50, Requested 25"), "{message}");
    let wait: u64 = refused.header("retry-after").parse().unwrap();
    assert!((50..=60).contains(&wait), "{wait}");

    let refused = house.post(MESSAGES, "", &messages()).await;
    assert_eq!(
        (refused.status.as_u16(), &refused.json()["error"]["type"]),
        (429, &json!("rate_limit_error"))
    );
    let fits = house.post(CHAT, "tokens=1", &chat()).await;
    assert_eq!(fits.status, 200);
    let never = house.post(CHAT, "tokens=60", &chat()).await;
    assert_eq!((never.status.as_u16(), never.headers.get("retry-after")), (429, None));

    let stats = house.provider.stats();
    assert_eq!((stats.completed, stats.refused_ceiling, stats.refused), (3, 3, 0));
    assert_eq!(stats.busiest_minute_tokens, 60);
    house.assert_books_balance().await;
}

#[tokio::test]
async fn requests_have_a_ceiling_too() {
    let ceilings = Ceilings { tokens: None, requests: Some(1) };
    let house = House::with(Options { ceilings, ..Options::default() }).await;
    assert_eq!(house.post(CHAT, "", &chat()).await.header("x-ratelimit-remaining-requests"), "0");
    assert_eq!(house.post(CHAT, "", &chat()).await.json()["error"]["type"], "requests");
}

#[tokio::test]
async fn new_books_are_empty() {
    let house = House::open().await;
    for (method, path) in [(Method::DELETE, "/stats"), (Method::POST, "/reset")] {
        house.post(CHAT, "", &chat()).await;
        assert_eq!(house.provider.stats().requests, 1);
        let reply = house.send(house.request(method, path, "", "")).await;
        let stats: Stats = serde_json::from_value(reply.json()).unwrap();
        assert_eq!((stats, house.provider.requests()), (Stats::default(), vec![]));
    }
}

#[tokio::test]
async fn two_hundred_at_once_balance() {
    for house in [House::open().await, House::open().await.over_http2()] {
        let calls = (0..200).map(|index| {
            let house = &house;
            async move {
                let x_sim = format!("tokens={},latency={}ms", index % 50, index % 20);
                match index % 5 {
                    0 => drop(house.post(CHAT, &x_sim, &chat()).await),
                    1 => drop(house.post(CHAT, &x_sim, &streamed_with_usage(chat())).await),
                    2 => drop(house.post(MESSAGES, &x_sim, &streamed(messages())).await),
                    3 => drop(house.post(CHAT, &format!("{x_sim},status=500"), &chat()).await),
                    _ => drop(house.begin(CHAT, "tokens=90,gap=10ms", &streamed(chat())).await),
                }
            }
        });
        futures_util::future::join_all(calls).await;
        let stats = house.until("nothing in flight", |stats| stats.inflight == 0).await;
        assert_eq!((stats.requests, stats.completed, stats.refused, stats.aborted), (200, 120, 40, 40));
        house.assert_books_balance().await;
    }
}

#[tokio::test]
async fn long_prompts_are_counted_like_short_ones() {
    let house = House::open().await;
    let request = json!({"model": "gpt-5", "messages": [{"role": "user", "content": words(20_000)}]});
    let body = house.post(CHAT, "", &request).await.json();
    assert_eq!(body["usage"]["prompt_tokens"], 20_000 + 7);

    let huge = vec![b' '; 33 * 1024 * 1024];
    let reply = house.send(house.request(Method::POST, CHAT, "", huge)).await;
    assert_eq!(reply.status, 413);
}

// ---- Coming and going ----

#[tokio::test]
async fn shutting_down_lets_answers_end_and_cuts_the_rest() {
    let options = Options { shutdown_grace: Duration::from_millis(400), ..Options::default() };
    let house = House::with(options).await;
    let ending = house.begin(CHAT, "tokens=5,gap=20ms", &streamed(chat())).await;
    let endless = house.begin(CHAT, "tokens=5,gap=1000s", &streamed(chat())).await;
    let House { provider, .. } = house;
    let address = provider.local_addr();
    let (ending, endless, ()) =
        tokio::join!(ending.into_body().collect(), endless.into_body().collect(), provider.shutdown());
    assert!(ending.unwrap().to_bytes().ends_with(b"data: [DONE]\n\n"));
    assert!(endless.is_err());
    assert!(tokio::net::TcpStream::connect(address).await.is_err(), "the port is free again");
}

/// A child process that does not outlive the test.
struct Process(std::process::Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_command_prints_its_address_and_ends_on_sigterm() {
    let child = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args([
            "provider",
            "--listen",
            "127.0.0.1:0",
            "--skew",
            "1.07",
            "--ceiling-tokens-per-minute",
            "1000",
        ])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let Process(child) = &mut Process(child);
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    let address = line.trim_end().strip_prefix("listening on http://").unwrap().to_owned();

    let mut connection = std::net::TcpStream::connect(&address).unwrap();
    let request = format!("GET /stats HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    std::io::Write::write_all(&mut connection, request.as_bytes()).unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains(r#""busiest_minute_tokens":0"#), "{answer}");

    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    assert!(child.wait().unwrap().success());
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "", "one line and no more");
}
