//! Rows 32 to 34: what a request asks for that would cost more than is held for it, or that the policy forbids, is refused before
//! anything is held.

use serde_json::{Value, json};

use crate::raw::{Answer, LIMITS, assert_cost_nothing, head, impatient, key, send};
use crate::support::inside::chat;
use crate::support::{Inside, Policy};

fn post(path: &str, content_type: &str, body: &str) -> String {
    let version = if path.starts_with("/v1/messages") { "anthropic-version: 2023-06-01\r\n" } else { "" };
    let length = body.len();
    let headers =
        format!("{version}Content-Type: {content_type}\r\nContent-Length: {length}\r\nConnection: close\r\n");
    head(&format!("POST {path} HTTP/1.1"), &headers) + body
}

async fn ask(inside: &Inside, path: &str, body: &Value) -> Answer {
    let body = body.to_string();
    send(inside.gateway.callers(), post(path, "application/json", &body)).await.remove(0)
}

async fn under(policy: impl FnOnce(Policy) -> Policy) -> Inside {
    Inside::with(impatient, |base| policy(base).tenant("northwind", &key(), LIMITS)).await
}

#[tokio::test]
async fn row_32_every_answer_that_is_made_is_held_whichever_member_asks_for_it() {
    let inside = under(|policy| policy).await;
    let completion = |more: Value| {
        let mut body = json!({ "model": "gpt-5", "prompt": "x", "max_tokens": 10 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let held = async |path: &str, body: Value| {
        let answer = ask(&inside, path, &body).await;
        assert_eq!(answer.status, 200, "{body}: {answer:?}");
        let id = answer.header("x-tollgate-decision").unwrap();
        inside.decision(&key(), id).await["estimate"]["output"].as_u64().unwrap()
    };
    let text = "/v1/completions";
    assert_eq!(held(text, completion(json!({}))).await, 10);
    assert_eq!(held(text, completion(json!({ "n": 3 }))).await, 30);
    assert_eq!(held(text, completion(json!({ "best_of": 5 }))).await, 50);
    assert_eq!(held(text, completion(json!({ "n": 2, "best_of": 5 }))).await, 50);
    assert_eq!(held(text, completion(json!({ "n": 2, "best_of": 5, "prompt": ["x", "y"] }))).await, 100);
    let mut talk = chat(10);
    talk["best_of"] = json!(4);
    assert_eq!(
        held("/v1/chat/completions", talk).await,
        40,
        "servers that speak as OpenAI does know it in chats"
    );
    inside.provider.reset();

    let inside = under(|policy| policy).await;
    for best_of in [json!(0), json!(-1), json!(129), json!("5"), json!(1.5), json!(u64::MAX)] {
        let answer = ask(&inside, text, &completion(json!({ "best_of": best_of }))).await;
        assert_eq!(answer.status, 400, "{best_of}: {answer:?}");
        answer.assert_ours("invalid_request");
    }
    assert_cost_nothing(&inside).await;
}

#[tokio::test]
async fn row_33_more_to_read_than_the_context_holds() {
    let inside = under(|policy| {
        policy
            .provider("more", "dialect: openai")
            .provider("claude", "dialect: anthropic")
            .provider("google", "dialect: gemini")
            .model("small", "more", ", context_tokens: 100")
            .model("small-claude", "claude", ", context_tokens: 100")
            .model("small-gemini", "google", ", context_tokens: 100")
    })
    .await;
    let long = "word ".repeat(200);
    let said = json!([{ "role": "user", "content": long }]);
    for (path, body) in [
        ("/v1/chat/completions", json!({ "model": "small", "messages": said, "max_tokens": 4 })),
        ("/v1/chat/completions", json!({ "model": "SMALL", "messages": said, "stream": true })),
        ("/v1/completions", json!({ "model": "small", "prompt": ["x", long], "max_tokens": 4 })),
        ("/v1/embeddings", json!({ "model": "small", "input": vec![7; 101] })),
        ("/v1/responses", json!({ "model": "small", "input": long })),
        ("/openai/deployments/small/chat/completions", json!({ "messages": said })),
        ("/v1/messages", json!({ "model": "small-claude", "messages": said, "max_tokens": 4 })),
        (
            "/v1beta/models/small-gemini:generateContent",
            json!({ "contents": [{ "parts": [{ "text": long }] }] }),
        ),
    ] {
        let answer = ask(&inside, path, &body).await;
        assert_eq!(answer.status, 400, "{path}: {answer:?}");
        answer.assert_ours("context_length_exceeded");
        let told: Value = serde_json::from_str(&answer.body).unwrap();
        match path {
            "/v1/messages" => assert_eq!(told["error"]["type"], "invalid_request_error", "{told}"),
            "/v1beta/models/small-gemini:generateContent" => {
                assert_eq!(told["error"]["status"], "INVALID_ARGUMENT", "{told}");
            }
            _ => assert_eq!(told["error"]["code"], "context_length_exceeded", "{told}"),
        }
    }
    assert_cost_nothing(&inside).await;
    // Texts that are embedded each by itself are no one reading.
    let many = json!({ "model": "small", "input": vec!["word ".repeat(50); 5] });
    assert_eq!(ask(&inside, "/v1/embeddings", &many).await.status, 200);
    // Nobody reads what is only counted.
    let count = json!({ "model": "small-claude", "messages": said });
    assert_eq!(ask(&inside, "/v1/messages/count_tokens", &count).await.status, 200);
    inside.assert_at_rest().await;
}

#[tokio::test]
async fn row_34_members_that_the_policy_forbids() {
    let inside = under(|policy| {
        policy
            .provider("more", "dialect: openai")
            .provider("google", "dialect: gemini")
            .model("plain", "more", ", forbid_fields: [logit_bias]")
            .model("gemini", "google", ", forbid_fields: [generationConfig.responseLogprobs]")
            .route("{ path: /v1/chat/completions, forbid_fields: [logprobs, top_logprobs] }")
            .route("{ path: /v1/files, provider: openai, cost_tokens: 0, forbid_fields: [expires_after] }")
            .route("{ path: /v1/moderations, provider: more, cost_tokens: 5, forbid_fields: [store, a.b] }")
    })
    .await;
    let talk = "/v1/chat/completions";
    let azure = "/openai/deployments/gpt-5/chat/completions";
    let said = json!([{ "role": "user", "content": "hi" }]);
    let gemini = "/v1beta/models/gemini:generateContent";
    let contents = json!([{ "parts": [{ "text": "hi" }] }]);
    for (path, field, body) in [
        (talk, "logprobs", json!({ "model": "gpt-5", "messages": said, "logprobs": true })),
        (talk, "top_logprobs", json!({ "model": "gpt-5", "messages": said, "topLogprobs": 2 })),
        (azure, "logprobs", json!({ "messages": said, "logprobs": true })),
        (talk, "logit_bias", json!({ "model": "PLAIN", "messages": said, "logit_bias": { "50256": -100 } })),
        ("/v1/completions", "logit_bias", json!({ "model": "plain", "prompt": "x", "logit_bias": {} })),
        (
            gemini,
            "generationConfig.responseLogprobs",
            json!({ "contents": contents, "generation_config": { "response_logprobs": true } }),
        ),
        ("/v1/moderations", "store", json!({ "input": "x", "store": true })),
        ("/v1/moderations", "a.b", json!({ "input": "x", "a": { "b": 0 } })),
        ("/v1/moderations", "logit_bias", json!({ "model": "plain", "logit_bias": {} })),
    ] {
        let answer = ask(&inside, path, &body).await;
        assert_eq!(answer.status, 400, "{path} {field}: {answer:?}");
        answer.assert_ours("field_not_allowed");
        let told: Value = serde_json::from_str(&answer.body).unwrap();
        assert!(told["error"]["message"].as_str().unwrap().contains(&format!("`{field}`")), "{told}");
        if path != gemini {
            assert_eq!(
                (&told["error"]["code"], &told["error"]["param"]),
                (&json!("unsupported_parameter"), &json!(field))
            );
        }
    }
    let form = "--x\r\nContent-Disposition: form-data; name=\"Expires_After\"\r\n\r\n1\r\n--x--\r\n";
    let bytes = post("/v1/files", "multipart/form-data; boundary=x", form);
    let answer = send(inside.gateway.callers(), bytes).await.remove(0);
    assert_eq!(answer.status, 400, "{answer:?}");
    answer.assert_ours("field_not_allowed");
    assert_cost_nothing(&inside).await;
    // What asks for nothing is nothing, and other routes and models are as they were.
    for (path, body) in [
        (talk, json!({ "model": "gpt-5", "messages": said, "logprobs": false, "logit_bias": {} })),
        ("/v1/completions", json!({ "model": "gpt-5", "prompt": "x", "logprobs": 0 })),
        (gemini, json!({ "contents": contents, "generationConfig": { "responseLogprobs": false } })),
    ] {
        assert_eq!(ask(&inside, path, &body).await.status, 200, "{path} {body}");
    }
    inside.assert_at_rest().await;
}
