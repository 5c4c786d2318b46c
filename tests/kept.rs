//! What a provider keeps for the operator's account belongs to the tenant that made it: others do not find it, nobody lists it,
//! and what goes on in the background is paid for.

#![allow(clippy::unwrap_used, reason = "an answer of another shape fails the test, as it should")]

mod support;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use support::{Inside, Key, Policy, Response, eventually, policy::AMPLE};

fn ours() -> Key {
    Key::of("northwind")
}

fn theirs() -> Key {
    Key::of("contoso")
}

fn stateful(policy: Policy) -> Policy {
    policy
        .route("{ path: /v1/responses, stateful: true }")
        .route("{ path: /v1/files, provider: openai, cost_tokens: 0 }")
        .route("{ path: /v1/batches, provider: openai, class: batch }")
        .tenant("northwind", &ours(), AMPLE)
        .tenant("contoso", &theirs(), AMPLE)
}

async fn ask(inside: &Inside, key: &Key, method: &str, path: &str) -> Response {
    inside.client.ask(method, &inside.at(path), &[("authorization", &key.bearer())]).await
}

async fn respond(inside: &Inside, key: &Key, more: Value) -> Response {
    let mut body = json!({"model": "gpt-5", "input": "Say something.", "max_output_tokens": 9});
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    inside.client.post(&inside.at("/v1/responses"), &[("authorization", &key.bearer())], &body).await
}

async fn upload(inside: &Inside, key: &Key, purpose: &str, file: &str) -> Value {
    let form = format!(
        "--x\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\n{purpose}\r\n--x\r\n\
         Content-Disposition: form-data; name=\"file\"; filename=\"f.jsonl\"\r\n\r\n{file}\r\n--x--\r\n"
    );
    let request = http::Request::post(inside.at("/v1/files"))
        .header("authorization", key.bearer())
        .header("content-type", "multipart/form-data; boundary=x")
        .body(Full::new(Bytes::from(form)))
        .unwrap();
    let answer = inside.client.open(request).await.unwrap();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    serde_json::from_slice(&body).unwrap()
}

fn line(model: &str, max_tokens: u64) -> String {
    let body =
        json!({"model": model, "messages": [{"role": "user", "content": "x"}], "max_tokens": max_tokens});
    json!({"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": body}).to_string()
        + "\n"
}

#[tokio::test]
async fn state_is_off_unless_it_is_named() {
    let inside = Inside::under(|policy| policy.tenant("northwind", &ours(), AMPLE)).await;
    for (method, path) in [
        ("GET", "/v1/files"),
        ("GET", "/v1/files/file-1"),
        ("GET", "/v1/batches/b"),
        ("GET", "/v1/responses/resp_1"),
    ] {
        let answer = ask(&inside, &ours(), method, path).await;
        assert_eq!(answer.status, 404, "{method} {path}");
    }
    let list = ask(&inside, &ours(), "GET", "/v1/responses").await;
    assert_eq!((list.status, list.header("allow")), (405, Some("POST")));
    assert_eq!(respond(&inside, &ours(), json!({"store": true})).await.status, 400);
    assert_eq!(inside.provider.stats().requests, 0);
}

#[tokio::test]
async fn what_one_tenant_made_is_not_found_by_another_and_listed_by_nobody() {
    let inside = Inside::under(stateful).await;
    let response = respond(&inside, &ours(), json!({})).await.json();
    let file = upload(&inside, &ours(), "batch", &line("gpt-5", 9)).await;
    let batch =
        json!({"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"});
    let url = inside.at("/v1/batches");
    let stolen = inside.client.post(&url, &[("authorization", &theirs().bearer())], &batch).await;
    assert_eq!(stolen.status, 404, "{}", stolen.text());
    let batch = inside.client.post(&url, &[("authorization", &ours().bearer())], &batch).await.json();

    let id = |thing: &Value| thing["id"].as_str().unwrap().to_owned();
    for (path, thing) in [("/v1/responses", &response), ("/v1/files", &file), ("/v1/batches", &batch)] {
        let one = format!("{path}/{}", id(thing));
        assert_eq!(ask(&inside, &ours(), "GET", &one).await.status, 200, "{one}");
        let unknown = ask(&inside, &ours(), "GET", &format!("{path}/unknown-1")).await;
        let borrowed = ask(&inside, &theirs(), "GET", &one).await;
        assert_eq!((borrowed.status, unknown.status), (404, 404), "{one}");
        assert_eq!(borrowed.json(), unknown.json(), "a stranger cannot tell whether it is there");
        let list = ask(&inside, &ours(), "GET", path).await;
        assert_eq!((list.status, list.header("x-tollgate-error")), (403, Some("account_wide_list")));
    }
    for (method, path) in [
        ("DELETE", format!("/v1/responses/{}", id(&response))),
        ("POST", format!("/v1/responses/{}/cancel", id(&response))),
        ("GET", format!("/v1/responses/{}/input_items", id(&response))),
        ("DELETE", format!("/v1/files/{}", id(&file))),
        ("GET", format!("/v1/files/{}/content", id(&file))),
        ("POST", format!("/v1/batches/{}/cancel", id(&batch))),
    ] {
        assert_eq!(ask(&inside, &theirs(), method, &path).await.status, 404, "{method} {path}");
    }
    let continued = json!({"previous_response_id": response["id"]});
    assert_eq!(respond(&inside, &theirs(), continued.clone()).await.status, 404);
    let by_file =
        json!({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": file["id"]}]}]});
    assert_eq!(respond(&inside, &theirs(), by_file).await.status, 404);
    assert_eq!(respond(&inside, &theirs(), json!({"conversation": "conv_1"})).await.status, 400);

    // Nobody else was charged for any of it.
    assert_eq!(inside.used(&theirs(), "tenant", "tokens_per_minute").await, 0);
    assert_eq!(respond(&inside, &ours(), continued).await.status, 200);
    let deleted = ask(&inside, &ours(), "DELETE", &format!("/v1/files/{}", id(&file))).await;
    assert_eq!(deleted.status, 200);
    assert_eq!(ask(&inside, &ours(), "GET", &format!("/v1/files/{}", id(&file))).await.status, 404);
}

#[tokio::test]
async fn what_another_made_is_not_found_through_a_route_that_is_passed_through() {
    let images = "/v1/images/generations";
    let inside = Inside::under(|policy| {
        stateful(policy).route(&format!("{{ path: {images}, provider: openai, cost_tokens: 10 }}"))
    })
    .await;
    let file = upload(&inside, &ours(), "vision", "x").await;
    let id = file["id"].as_str().unwrap();
    let unknown = ask(&inside, &theirs(), "GET", "/v1/files/unknown-1").await;
    let sent = || inside.metric("tollgate_upstream_attempts_total", &[]);
    let before = sent();
    for body in [
        json!({"prompt": "x", "image": {"file_id": id}}),
        json!({"prompt": "x", "images": [["x", id]]}),
        json!({"prompt": "x", "image": format!("https://api.openai.com/v1/files/{id}/content")}),
        json!({"prompt": "x", id: true}),
    ] {
        let asked = async |key: &Key, path: &str| {
            inside.client.post(&inside.at(path), &[("authorization", &key.bearer())], &body).await
        };
        let borrowed = asked(&theirs(), images).await;
        assert_eq!(borrowed.status, 404, "{body}: {}", borrowed.text());
        assert_eq!(borrowed.header("x-tollgate-error"), unknown.header("x-tollgate-error"));
        assert_eq!(asked(&ours(), images).await.status, 200, "{body}");
    }
    let plain = json!({"prompt": format!("about {id}, say")});
    let url = inside.at(images);
    let query = format!("{url}?file={id}");
    let theirs_bearer = theirs().bearer();
    let header = [("authorization", theirs_bearer.as_str())];
    assert_eq!(inside.client.post(&query, &header, &plain).await.status, 404);
    assert_eq!(inside.client.post(&url, &header, &plain).await.status, 200, "prose names nothing");
    assert_eq!(sent() - before, 5, "what was refused went nowhere");
    inside.assert_at_rest().await;
}

#[tokio::test]
async fn what_is_continued_is_read_again_and_counted_again() {
    let inside = Inside::under(stateful).await;
    let first = respond(&inside, &ours(), json!({"input": "word ".repeat(500)})).await;
    let plain = inside.decision_of(&ours(), &first).await["estimate"]["input"].as_u64().unwrap();
    let continued = respond(&inside, &ours(), json!({"previous_response_id": first.json()["id"]})).await;
    let again = inside.decision_of(&ours(), &continued).await["estimate"]["input"].as_u64().unwrap();
    assert!(again > 500, "{again} after {plain}");
    inside.assert_at_rest().await;
}

#[tokio::test]
async fn a_streamed_response_belongs_to_its_tenant_too() {
    let inside = Inside::under(stateful).await;
    let streamed = respond(&inside, &ours(), json!({"stream": true})).await.text();
    let id = streamed
        .split("\"id\":\"")
        .find_map(|rest| rest.split('"').next().filter(|id| id.starts_with("resp_")));
    let path = format!("/v1/responses/{}", id.unwrap());
    assert_eq!(ask(&inside, &ours(), "GET", &path).await.status, 200);
    assert_eq!(ask(&inside, &theirs(), "GET", &path).await.status, 404);
    inside.assert_at_rest().await;
}

#[tokio::test]
async fn a_response_in_the_background_settles_when_it_is_retrieved() {
    let inside = Inside::under(stateful).await;
    let begun = respond(&inside, &ours(), json!({"background": true})).await;
    assert_eq!(begun.json()["status"], "queued");
    assert_eq!(inside.node().owners().held().open, 1, "it is still being made");

    let path = format!("/v1/responses/{}", begun.json()["id"].as_str().unwrap());
    assert_eq!(ask(&inside, &theirs(), "GET", &path).await.status, 404);
    assert_eq!(inside.node().owners().held().open, 1, "a stranger ends nothing");
    let done = ask(&inside, &ours(), "GET", &path).await.json();
    let usage = done["usage"]["total_tokens"].clone();
    let record = inside.decision_of(&ours(), &begun).await;
    assert_eq!((&record["ending"]["how"], &record["ending"]["charged"]), (&json!("settled"), &usage));
    assert_eq!(ask(&inside, &ours(), "GET", &path).await.status, 200, "and is there for the next who asks");
    inside.assert_at_rest().await;
}

#[tokio::test]
async fn a_batch_reserves_every_line_of_its_file() {
    let inside = Inside::under(|policy| {
        stateful(policy).tenant(
            "small",
            &Key::of("small"),
            "tokens_per_minute: 100, requests_per_minute: 1_000",
        )
    })
    .await;
    let url = inside.at("/v1/batches");
    let create = async |key: &Key, file: &Value| {
        let body = json!({"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"});
        inside.client.post(&url, &[("authorization", &key.bearer())], &body).await
    };
    let small = Key::of("small");
    let file = upload(&inside, &small, "batch", &line("gpt-5", 40).repeat(3)).await;
    let refused = create(&small, &file).await;
    assert_eq!(
        (refused.status, refused.header("x-tollgate-error")),
        (429, Some("request_too_large_for_limit"))
    );
    let file = upload(&inside, &small, "batch", &line("gpt-5", 10).repeat(2)).await;
    let batch = create(&small, &file).await;
    assert_eq!(batch.status, 200, "{}", batch.text());
    assert!(inside.used(&small, "tenant", "tokens_per_minute").await > 20);
    assert_eq!(inside.node().owners().held().open, 1);
    let path = format!("/v1/batches/{}", batch.json()["id"].as_str().unwrap());
    let over = ask(&inside, &small, "GET", &path).await.json();
    eventually("the batch is over", async || match inside.node().owners().held().open {
        0 => Ok(()),
        open => Err(format!("{open} open")),
    })
    .await;
    let output = format!("/v1/files/{}", over["output_file_id"].as_str().unwrap());
    assert_eq!(ask(&inside, &theirs(), "GET", &output).await.header("x-tollgate-error"), Some("not_found"));

    for (purpose, file, why) in [
        ("assistants", line("gpt-5", 9), "purpose"),
        ("batch", line("gpt-17", 9), "line 1"),
        ("batch", line("gpt-5", 9) + &line("gpt-5-mini", 9), "another model"),
        ("batch", line("gpt-5-latest", 9), "as the provider does"),
        ("batch", "{}\n".to_owned(), "line 1"),
        ("batch", String::new(), "no line"),
    ] {
        let file = upload(&inside, &small, purpose, &file).await;
        let refused = create(&small, &file).await;
        let message = refused.json()["error"]["message"].as_str().unwrap_or_default().to_owned();
        assert_eq!(refused.status, 400, "{message}");
        assert!(message.contains(why), "{message}");
    }
    inside.assert_at_rest().await;
}
