//! Every dialect and every door: a request in any of them is estimated, held, relayed and settled like any other, and a
//! model's limits hold whatever it is called.

mod support;

use serde_json::{Value, json};
use support::{Inside, Key, Policy, Response, policy::AMPLE};

fn key() -> Key {
    Key::of("northwind")
}

fn wide(policy: Policy) -> Policy {
    policy
        .provider("gemini", "dialect: gemini")
        .provider("azure", "dialect: openai, azure_api_version: \"2024-10-21\"")
        .model("gemini-2.5-flash", "gemini", "")
        .model("azure-gpt-4o", "azure", ", upstream_model: our-gpt-4o")
        .tenant("northwind", &key(), AMPLE)
}

async fn post(inside: &Inside, path: &str, sim: &str, body: &Value) -> Response {
    let secret = key().secret;
    let gemini = path.starts_with("/v1beta");
    let bearer = format!("Bearer {secret}");
    let credential =
        if gemini { ("x-goog-api-key", secret.as_str()) } else { ("authorization", bearer.as_str()) };
    inside.client.post(&inside.at(path), &[credential, ("x-sim", sim)], body).await
}

/// What the provider billed for its only request is what the tenant was charged.
async fn assert_billed_as_charged(inside: &Inside, answer: &Response) {
    let record = inside.decision_of(&key(), answer).await;
    assert_eq!(record["ending"]["how"], "settled", "{record}");
    let rows = inside.provider.requests();
    let row = rows.last().expect("the provider has a row");
    assert_eq!(record["ending"]["charged"], json!(row.input_tokens + row.output_tokens), "{record}");
    inside.assert_at_rest().await;
}

fn completions() -> Value {
    json!({"model": "gpt-5", "prompt": ["Once upon", "a time"], "n": 2, "max_tokens": 9})
}

fn responses() -> Value {
    json!({
        "model": "gpt-5", "instructions": "Be brief.", "max_output_tokens": 9,
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "Say something."}]}],
    })
}

fn content() -> Value {
    json!({
        "contents": [{"role": "user", "parts": [{"text": "Say something."}]}],
        "generationConfig": {"maxOutputTokens": 9, "candidateCount": 2},
    })
}

#[tokio::test]
async fn every_endpoint_settles_at_what_its_provider_billed() {
    let inside = Inside::under(wide).await;
    let embeddings = json!({"model": "text-embedding-4", "input": "Once upon a time"});
    for (path, body) in [
        ("/v1/completions", completions()),
        ("/v1/responses", responses()),
        ("/v1/embeddings", embeddings),
        ("/v1beta/models/gemini-2.5-flash:generateContent", content()),
        ("/v1/models/gemini-2.5-flash:generateContent", content()),
        ("/openai/deployments/gpt-5/chat/completions?api-version=2024-10-21", support::inside::chat(9)),
        (
            "/openai/deployments/azure-gpt-4o/chat/completions?api-version=2024-10-21",
            support::inside::chat(9),
        ),
        ("/openai/deployments/gpt-5/completions", completions()),
        ("/openai/responses", responses()),
    ] {
        let answer = post(&inside, path, "tokens=7", &body).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        assert_billed_as_charged(&inside, &answer).await;
    }
}

#[tokio::test]
async fn every_stream_settles_at_what_its_provider_billed() {
    let inside = Inside::under(wide).await;
    let streamed = support::inside::streamed;
    for (path, body, last) in [
        ("/v1/completions", streamed(completions()), "data: [DONE]"),
        ("/v1/responses", streamed(responses()), "response.completed"),
        ("/v1beta/models/gemini-2.5-flash:streamGenerateContent?alt=sse", content(), "usageMetadata"),
        ("/v1beta/models/gemini-2.5-flash:streamGenerateContent", content(), "]"),
        (
            "/openai/deployments/azure-gpt-4o/chat/completions",
            streamed(support::inside::chat(9)),
            "data: [DONE]",
        ),
    ] {
        for sim in ["tokens=7", "tokens=7,reasoning=3", "tokens=7,crlf=1", "tokens=40"] {
            if path == "/v1/completions" && sim.contains("reasoning") {
                continue;
            }
            let answer = post(&inside, path, sim, &body).await;
            assert_eq!(answer.status, 200, "{path}: {}", answer.text());
            if sim != "tokens=40" {
                let text = answer.text();
                assert!(text.contains(last), "{path}: {text}");
                assert!(!path.contains("sse") || text.starts_with("data: {"), "{text}");
            }
            assert_billed_as_charged(&inside, &answer).await;
        }
    }
    // The array is one JSON document still.
    let path = "/v1beta/models/gemini-2.5-flash:streamGenerateContent";
    let whole = post(&inside, path, "tokens=5", &content()).await.json();
    assert!(whole.as_array().is_some_and(|chunks| chunks.len() > 5), "{whole}");
}

#[tokio::test]
async fn the_estimate_covers_what_each_dialect_may_be_billed() {
    let inside = Inside::under(wide).await;
    for (path, body) in [
        ("/v1/completions", completions()),
        ("/v1/responses", responses()),
        ("/v1beta/models/gemini-2.5-flash:generateContent", content()),
    ] {
        let answer = post(&inside, path, "tokens=9", &body).await;
        let record = inside.decision_of(&key(), &answer).await;
        let bill = inside.provider.requests().last().map(|row| row.input_tokens + row.output_tokens);
        let estimate = record["estimate"]["total"].as_u64();
        assert!(estimate >= bill, "{path}: {estimate:?} is below {bill:?}");
    }
}

#[tokio::test]
async fn a_stream_without_its_end_keeps_the_estimate() {
    let inside = Inside::under(wide).await;
    let streamed = support::inside::streamed;
    for (path, body) in [
        ("/v1/completions", streamed(completions())),
        ("/v1/responses", streamed(responses())),
        ("/v1beta/models/gemini-2.5-flash:streamGenerateContent?alt=sse", content()),
        ("/v1beta/models/gemini-2.5-flash:streamGenerateContent", content()),
    ] {
        for sim in ["close_early=1", "usage=off", "fail_after=2"] {
            let url = inside.at(path);
            let secret = key().secret;
            let answer = inside
                .client
                .try_post(&url, &[("x-api-key", &secret), ("x-sim", sim)], body.to_string())
                .await;
            if let Ok(answer) = &answer {
                let record = inside.decision_of(&key(), answer).await;
                assert_eq!(record["ending"]["how"], "closed", "{path} {sim}: {record}");
            }
            inside.assert_at_rest().await;
        }
    }
}

#[tokio::test]
async fn a_broken_array_ends_with_an_error_of_its_own() {
    let inside = Inside::under(wide).await;
    let path = "/v1beta/models/gemini-2.5-flash:streamGenerateContent";
    let answer = post(&inside, path, "fail_after=2", &content()).await.json();
    let last = answer.as_array().and_then(|chunks| chunks.last()).expect("an array with an error").clone();
    assert_eq!(last["error"]["status"], "UNAVAILABLE", "{answer}");
}

#[tokio::test]
async fn a_model_s_limit_holds_in_every_form_of_its_name_and_on_every_route() {
    let limited = |policy: Policy| {
        wide(policy).route("{ path: /v1/images/generations, provider: openai, cost_tokens: 10 }").tenant_yaml(&format!(
            "{{ id: contoso, {AMPLE}, models: [{{ exact: gpt-5, requests_per_minute: 1, burst_requests: 1 }}], \
             keys: [{{ label: production, hash: \"{}\" }}] }}",
            Key::of("contoso").hash
        ))
    };
    let chat = |model: &str| json!({"model": model, "messages": [{"role": "user", "content": "x"}], "max_tokens": 3});
    let text = json!({"model": "gpt-5", "prompt": "x", "max_tokens": 3});
    let image = json!({"model": "GPT-5", "prompt": "x"});
    let ways = [
        ("/v1/chat/completions", chat("gpt-5")),
        ("/v1/chat/completions", chat("gpt-5-latest")),
        ("/v1/chat/completions", chat("GPT-5")),
        ("/v1/chat/completions", chat("models/gpt-5")),
        ("/v1/chat/completions", chat("gpt-5-2025-08-07")),
        ("/v1/chat/completions", chat("gpt-5-20250807")),
        ("/v1/completions", text),
        ("/v1/responses", json!({"model": "gpt-5", "input": "x", "max_output_tokens": 3})),
        ("/openai/deployments/gpt-5/chat/completions", chat("another")),
        ("/openai/deployments/Gpt-5-Latest/chat/completions", chat("another")),
        ("/v1/images/generations", image),
    ];
    let inside = Inside::under(limited).await;
    let bearer = Key::of("contoso").bearer();
    let mut first = true;
    for (path, body) in ways {
        let answer = inside.client.post(&inside.at(path), &[("authorization", &bearer)], &body).await;
        let expected = if std::mem::take(&mut first) { 200 } else { 429 };
        assert_eq!(answer.status, expected, "{path} {body}: {}", answer.text());
    }
    assert_eq!(inside.provider.stats().requests, 1);
}

#[tokio::test]
async fn a_snapshot_reaches_the_provider_as_it_was_asked_for() {
    let inside = Inside::under(wide).await;
    for (asked, told) in
        [("gpt-5-2025-08-07", "gpt-5-2025-08-07"), ("GPT-5", "gpt-5"), ("gpt-5-latest", "gpt-5")]
    {
        let body = json!({"model": asked, "messages": [{"role": "user", "content": "x"}], "max_tokens": 3});
        assert_eq!(post(&inside, "/v1/chat/completions", "", &body).await.status, 200);
        let rows = inside.provider.requests();
        assert_eq!(rows.last().map(|row| row.model.as_str()), Some(told));
    }
}

#[tokio::test]
async fn nothing_is_kept_with_the_provider_unless_the_policy_says_so() {
    let inside = Inside::under(wide).await;
    let kept = post(&inside, "/v1/responses", "", &responses()).await.json();
    assert_eq!(kept["store"], false, "{kept}");
    for (member, value) in [
        ("store", json!(true)),
        ("background", json!(true)),
        ("previous_response_id", json!("resp_1")),
        ("conversation", json!("conv_1")),
        ("prompt", json!({"id": "pmpt_1"})),
    ] {
        let mut body = responses();
        body[member] = value;
        let answer = post(&inside, "/v1/responses", "", &body).await;
        assert_eq!((answer.status, answer.header("x-tollgate-error")), (400, Some("stateful_not_allowed")));
        assert_eq!(answer.json()["error"]["param"], member);
    }
    inside.assert_at_rest().await;
}

#[tokio::test]
async fn what_a_route_of_the_policy_passes_through_is_untouched_and_has_its_price() {
    let inside = Inside::under(|policy| {
        wide(policy)
            .route("{ path: /v1/audio/transcriptions, provider: openai, cost_tokens: 400 }")
            .route("{ path: /v1/moderations, provider: openai, cost_tokens: 0 }")
    })
    .await;
    let form = "--x\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nwhisper-1\r\n--x\r\n\
                Content-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n\u{1}\u{2}\r\n--x--\r\n";
    let bearer = key().bearer();
    let headers = [("authorization", bearer.as_str()), ("content-type", "multipart/form-data; boundary=x")];
    let request = http::Request::post(inside.at("/v1/audio/transcriptions"));
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    let request = request.body(http_body_util::Full::new(bytes::Bytes::from(form))).unwrap();
    let answer = inside.client.open(request).await.unwrap();
    assert_eq!(answer.status(), 200);
    let id = answer.headers()["x-tollgate-decision"].to_str().unwrap().to_owned();
    let body = http_body_util::BodyExt::collect(answer.into_body()).await.unwrap().to_bytes();
    let body: Value = serde_json::from_slice(&body).unwrap();
    use sha2::Digest;
    assert_eq!(body["sha256"], hex::encode(sha2::Sha256::digest(form)));
    let record = inside.decision(&key(), &id).await;
    assert_eq!((&record["ending"]["charged"], &record["ending"]["why"]), (&json!(400), &json!("fixed_cost")));

    let free = post(&inside, "/v1/moderations", "", &json!({"input": "x"})).await;
    assert_eq!(inside.decision_of(&key(), &free).await["ending"]["charged"], 0);
    // What no route names is not there.
    assert_eq!(post(&inside, "/v1/images/generations", "", &json!({"prompt": "x"})).await.status, 404);
    let got = inside.client.get(&inside.at("/v1/moderations"), &[("authorization", &bearer)]).await;
    assert_eq!((got.status, got.header("allow")), (405, Some("POST")));
    inside.assert_at_rest().await;
}

#[tokio::test]
async fn gemini_speaks_its_own_shape() {
    let inside = Inside::under(wide).await;
    let path = "/v1beta/models/gemini-2.5-flash:generateContent";
    let secret = key().secret;

    let by_query = inside.client.post(&inside.at(&format!("{path}?key={secret}")), &[], &content()).await;
    assert_eq!(by_query.status, 200, "{}", by_query.text());
    for (query, headers) in [
        ("", vec![]),
        ("?key=tg-wrong", vec![]),
        (&*format!("?key={secret}"), vec![("x-goog-api-key", "tg-another")]),
    ] {
        let answer = inside.client.post(&inside.at(&format!("{path}{query}")), &headers, &content()).await;
        assert_eq!(answer.status, 401, "{query}");
        assert_eq!(answer.json()["error"]["status"], "UNAUTHENTICATED");
    }
    let unknown = post(&inside, "/v1beta/models/gemini-9:generateContent", "", &content()).await;
    assert_eq!((unknown.status, &unknown.json()["error"]["status"]), (404, &json!("NOT_FOUND")));
    let foreign = post(&inside, "/v1beta/models/gpt-5:generateContent", "", &content()).await;
    assert_eq!((foreign.status, &foreign.json()["error"]["status"]), (403, &json!("PERMISSION_DENIED")));
    let twice = json!({"contents": [], "generationConfig": {}, "generation_config": {}});
    assert_eq!(post(&inside, path, "", &twice).await.json()["error"]["status"], "INVALID_ARGUMENT");

    let counted = post(&inside, "/v1beta/models/gemini-2.5-flash:countTokens", "", &content()).await;
    assert!(counted.json()["totalTokens"].as_u64() > Some(0), "{}", counted.text());
    let models = inside.client.get(&inside.at("/v1beta/models"), &[("x-goog-api-key", &secret)]).await.json();
    assert_eq!(models["models"][0]["name"], "models/gemini-2.5-flash");
    inside.assert_at_rest().await;
}

#[tokio::test]
async fn a_limit_in_gemini_s_shape_names_the_wait() {
    let inside = Inside::under(|policy| {
        wide(policy).tenant("small", &Key::of("small"), "requests_per_minute: 60, burst_requests: 1")
    })
    .await;
    let url = inside.at("/v1beta/models/gemini-2.5-flash:generateContent");
    let secret = Key::of("small").secret;
    let ask = async || inside.client.post(&url, &[("x-goog-api-key", &secret)], &content()).await;
    assert_eq!(ask().await.status, 200);
    let refused = ask().await;
    let error = &refused.json()["error"];
    assert_eq!((refused.status, &error["status"]), (429, &json!("RESOURCE_EXHAUSTED")));
    let details = error["details"].as_array().unwrap();
    assert!(details.iter().any(|detail| detail["retryDelay"].is_string()), "{error}");
    assert!(refused.header("retry-after").is_some());
}

#[tokio::test]
async fn a_web_socket_is_refused_in_every_dialect() {
    let inside = Inside::under(wide).await;
    for path in ["/v1/realtime", "/v1/responses", "/v1beta/models/gemini-2.5-flash:generateContent"] {
        let headers = [("upgrade", "websocket"), ("connection", "upgrade")];
        let answer = inside.client.get(&inside.at(path), &headers).await;
        assert_eq!((answer.status, answer.header("x-tollgate-error")), (501, Some("upgrade_not_supported")));
    }
}

/// The Node SDKs are not run here. These headers were put together from what is written of `openai` 6.49 and `@anthropic-ai/sdk` 1.14,
/// their documentation and sources: nobody has seen them sent.
#[tokio::test]
async fn what_the_node_sdks_send_is_served_and_what_they_read_is_there() {
    let inside = Inside::under(|policy| {
        wide(policy).tenant("small", &Key::of("small"), "tokens_per_minute: 60, burst_tokens: 200")
    })
    .await;
    let bearer = Key::of("small").bearer();
    let common = [
        ("accept", "application/json"),
        ("authorization", bearer.as_str()),
        ("x-stainless-retry-count", "0"),
        ("x-stainless-lang", "js"),
        ("x-stainless-package-version", "6.49.0"),
        ("x-stainless-os", "Linux"),
        ("x-stainless-arch", "x64"),
        ("x-stainless-runtime", "node"),
        ("x-stainless-runtime-version", "v24.1.0"),
        ("x-stainless-timeout", "600"),
        ("connection", "keep-alive"),
        ("accept-language", "*"),
        ("sec-fetch-mode", "cors"),
        ("accept-encoding", "gzip, deflate"),
    ];
    let openai = [&common[..], &[("user-agent", "OpenAI/JS 6.49.0")]].concat();
    let anthropic =
        [&common[..], &[("user-agent", "Anthropic/JS 1.14.0"), ("anthropic-version", "2026-10-21")]].concat();
    let (chat, message) = (support::inside::chat, support::inside::message);
    let spent = inside.client.post(&inside.at("/v1/chat/completions"), &openai, &chat(90)).await;
    assert_eq!(spent.status, 200, "{}", spent.text());
    assert!(spent.header("x-request-id").is_some());
    let answer = inside.client.post(&inside.at("/v1/messages"), &anthropic, &message(20)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(answer.header("request-id").is_some());

    let never = inside.client.post(&inside.at("/v1/chat/completions"), &openai, &chat(900)).await;
    assert_eq!(
        (never.status, never.header("x-should-retry"), never.header("retry-after")),
        (429, Some("false"), None)
    );
    let never = inside.client.post(&inside.at("/v1/messages"), &anthropic, &message(900)).await;
    assert_eq!((never.status, never.header("x-should-retry")), (429, Some("false")));
    assert_eq!(never.json()["error"]["type"], "rate_limit_error");
}
