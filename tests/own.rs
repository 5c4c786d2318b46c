//! What a node says of itself, to callers and to operators, and how it stops.

#![allow(clippy::unwrap_used, reason = "an answer of another shape fails the test, as it should")]

mod support;

use std::time::Duration;

use http_body_util::BodyExt;
use rustix::process::Signal;
use serde_json::{Value, json};
use support::inside::{OPERATOR, chat, message, streamed};
use support::{Client, Inside, Key, Policy, Process, eventually};

fn key() -> Key {
    Key::of("production")
}

fn contoso() -> Key {
    Key::of("contoso")
}

async fn two_tenants() -> Inside {
    let northwind = format!(
        "{{ id: northwind, tokens_per_minute: 1, burst_tokens: 1_000, max_inflight: 3, allow_models: [gpt-5, claude-haiku-4-5], keys: [\
         {{ label: production, hash: \"{}\", requests_per_minute: 1, burst_requests: 5 }}, \
         {{ label: staging, hash: \"{}\", requests_per_minute: 1, burst_requests: 7 }}] }}",
        key().hash,
        Key::of("staging").hash
    );
    Inside::under(|policy| policy.tenant_yaml(&northwind).tenant("contoso", &contoso(), "max_inflight: 9"))
        .await
}

async fn get(inside: &Inside, key: &Key, path: &str) -> support::Response {
    inside.client.get(&inside.at(path), &[("authorization", &key.bearer())]).await
}

// For callers.

#[tokio::test]
async fn a_caller_sees_its_tenants_limits_and_its_own_keys() {
    let inside = two_tenants().await;
    assert_eq!(inside.chat(&key(), "usage=off", &chat(100)).await.status, 200);
    let me = get(&inside, &key(), "/tollgate/v1/me").await;
    assert_eq!((me.status, me.header("cache-control")), (200, Some("no-store")));
    let me = me.json();
    assert_eq!(
        (&me["tenant"], &me["key"], &me["enforcement"]),
        (&json!("northwind"), &json!("production"), &json!("enforce"))
    );
    let limits = me["limits"].as_array().unwrap();
    let named: Vec<(&str, &str)> = limits
        .iter()
        .map(|limit| (limit["scope"].as_str().unwrap(), limit["limit"].as_str().unwrap()))
        .collect();
    assert_eq!(
        named,
        [
            ("key", "requests_per_minute"),
            ("tenant", "tokens_per_minute"),
            ("tenant", "requests_per_minute"),
            ("tenant", "max_inflight")
        ],
        "{me}"
    );
    assert_eq!(
        (&limits[0]["burst"], &limits[0]["used"], &limits[0]["remaining"]),
        (&json!(5), &json!(1), &json!(4))
    );
    assert!(limits[1]["used"].as_u64().unwrap() >= 100, "{me}");
    assert_eq!((&limits[3]["max"], &limits[3]["used"]), (&json!(3), &json!(0)));
    let staging = get(&inside, &Key::of("staging"), "/tollgate/v1/me").await.json();
    assert_eq!((&staging["key"], &staging["limits"][0]["burst"]), (&json!("staging"), &json!(7)));
}

#[tokio::test]
async fn a_decision_is_shown_to_its_own_tenant_only() {
    let inside = two_tenants().await;
    let refused = inside.chat(&key(), "", &chat(5_000)).await;
    let id = refused.header("x-tollgate-decision").unwrap().to_owned();
    for id in [id.clone(), format!("tg_{id}")] {
        let path = format!("/tollgate/v1/decisions/{id}");
        for own in [key(), Key::of("staging")] {
            let record = get(&inside, &own, &path).await.json();
            assert_eq!(
                (&record["outcome"], &record["reason"]),
                (&json!("denied"), &json!("request_too_large_for_limit"))
            );
            assert_eq!((&record["tenant"], &record["key"]), (&json!("northwind"), &json!("production")));
            assert_eq!(refused.json()["error"]["message"], record["message"], "the same sentence");
        }
        let foreign = get(&inside, &contoso(), &path).await;
        let unknown =
            get(&inside, &contoso(), "/tollgate/v1/decisions/0123456789abcdef0123456789abcdef").await;
        assert_eq!((foreign.status, unknown.status), (404, 404));
        assert_eq!(foreign.json()["error"]["message"], unknown.json()["error"]["message"], "not told apart");
    }
    for id in ["", "x", "../me", "-1", "ffffffffffffffffffffffffffffffffff"] {
        assert_eq!(get(&inside, &key(), &format!("/tollgate/v1/decisions/{id}")).await.status, 404, "{id:?}");
    }
}

#[tokio::test]
async fn models_are_listed_in_the_callers_dialect_and_only_those_it_may_use() {
    let inside = two_tenants().await;
    let ids = |page: &Value| -> Vec<String> {
        page["data"]
            .as_array()
            .unwrap()
            .iter()
            .map(|model| model["id"].as_str().unwrap().to_owned())
            .collect()
    };
    let page = get(&inside, &key(), "/v1/models").await.json();
    assert_eq!(page["object"], "list");
    assert_eq!(ids(&page), ["gpt-5", "gpt-5-latest"], "neither gpt-5-mini nor another dialect's");
    assert_eq!(ids(&get(&inside, &contoso(), "/v1/models").await.json()).len(), 4);

    let headers = [("x-api-key", key().secret), ("anthropic-version", "2023-06-01".to_owned())];
    let headers = headers.each_ref().map(|(name, value)| (*name, value.as_str()));
    let page = inside.client.get(&inside.at("/v1/models"), &headers).await.json();
    assert_eq!(ids(&page), ["claude-haiku-4-5"]);
    assert_eq!((&page["has_more"], &page["first_id"]), (&json!(false), &json!("claude-haiku-4-5")));
    assert_eq!(page["data"][0]["type"], "model");
    assert_eq!(inside.provider.stats().requests, 0);
}

// For operators.

#[tokio::test]
async fn everything_but_life_and_readiness_needs_the_operators_token() {
    let inside = two_tenants().await;
    let admin = format!("http://{}", inside.gateway.operators());
    let get = async |path: &str, token: Option<&str>| {
        let bearer = format!("Bearer {}", token.unwrap_or_default());
        let headers = [("authorization", bearer.as_str())];
        inside.client.get(&format!("{admin}{path}"), if token.is_some() { &headers } else { &[] }).await
    };
    for path in ["/livez", "/readyz"] {
        assert_eq!(get(path, None).await.status, 200, "{path}");
    }
    for path in ["/metrics", "/v1/cluster", "/v1/policy", "/v1/tenants", "/v1/tenants/northwind"] {
        for wrong in [None, Some(""), Some("x"), Some(&OPERATOR[1..]), Some(key().secret.as_str())] {
            let refused = get(path, wrong).await;
            assert_eq!(refused.status, 401, "{path} {wrong:?}");
            assert_eq!(refused.json()["error"]["code"], "unauthenticated");
        }
        assert_eq!(get(path, Some(OPERATOR)).await.status, 200, "{path}");
    }
    let tenant = get("/v1/tenants/northwind", Some(OPERATOR)).await.json();
    assert_eq!(
        (&tenant["id"], &tenant["inflight"], &tenant["open_reservations"]),
        (&json!("northwind"), &json!(0), &json!(0))
    );
    assert_eq!(tenant["keys"].as_array().unwrap().len(), 2);
    assert_eq!(tenant["limits"].as_array().unwrap().len(), 5, "those of every key: {tenant}");
    assert_eq!(get("/v1/tenants/nobody", Some(OPERATOR)).await.status, 404);
    assert_eq!(get("/nowhere", Some(OPERATOR)).await.status, 404);
    assert_eq!(get("/v1/cluster", Some(OPERATOR)).await.json()["members"][0]["shards"], 1024);
    // Each of the two edges serves its own alone.
    assert_eq!(inside.client.get(&inside.at("/metrics"), &[("authorization", OPERATOR)]).await.status, 404);
    assert_eq!(get("/v1/models", Some(OPERATOR)).await.status, 404);
}

#[tokio::test]
async fn without_a_token_given_one_is_made_for_the_owner_of_the_folder_alone() {
    use std::os::unix::fs::PermissionsExt;
    let directory = support::process::temporary_directory();
    let data = directory.path().join("data");
    let token = tollgate::admin::AdminToken::of_folder(&data).unwrap();
    let mode = std::fs::metadata(data.join("admin.token")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(token.expose().len(), 64);
    assert!(tollgate::admin::AdminToken::of_folder(&data).unwrap() == token, "a restart keeps it");
}

// Stopping.

#[tokio::test]
async fn a_node_that_is_told_to_stop_is_not_ready_and_serves_on_while_balancers_notice() {
    let provider = Process::provider(&[]).await;
    let policy = Policy::at(&provider.url).tenant("northwind", &key(), support::policy::AMPLE);
    let mut node = Process::serve(&policy.yaml(), &["--drain-delay", "10m"]).await;
    let client = Client::new();
    node.process.signal(Signal::TERM);
    let readyz = format!("{}/readyz", node.admin);
    eventually("the node is no longer ready", async || match client.get(&readyz, &[]).await.status {
        503 => Ok(()),
        status => Err(format!("it answers {status}")),
    })
    .await;
    let url = format!("{}/v1/chat/completions", node.callers);
    assert_eq!(client.post(&url, &[("authorization", &key().bearer())], &chat(4)).await.status, 200);
    // Who asks a second time does not want to wait.
    assert!(node.process.stop().success());
}

#[tokio::test]
async fn a_stream_that_runs_may_end_while_nobody_new_is_let_in() {
    let inside = two_tenants().await;
    let bearer = key().bearer();
    let headers = [("authorization", bearer.as_str()), ("x-sim", "gap=20ms,tokens=20")];
    let url = inside.at("/v1/chat/completions");
    let open = inside.client.post_open(&url, &headers, &streamed(chat(40))).await;
    let (node, callers) = (inside.node().clone(), inside.gateway.callers());
    let stopping = tokio::spawn(inside.gateway.shut_down(Duration::ZERO, Duration::from_secs(60)));
    eventually("nobody listens", async || match tokio::net::TcpStream::connect(callers).await {
        Err(_) => Ok(()),
        Ok(_) => Err("somebody does".to_owned()),
    })
    .await;
    let text = open.into_body().collect().await.unwrap().to_bytes();
    assert!(text.ends_with(b"data: [DONE]\n\n"), "{}", String::from_utf8_lossy(&text));
    stopping.await.unwrap();
    let books = node.owners().books();
    assert!(books.open == 0 && books.settled > 0 && books.closed == 0, "{books:?}");
}

#[tokio::test]
async fn what_has_not_ended_by_the_deadline_is_cut_and_settled_with_what_was_seen() {
    for client in [Client::new(), Client::http2()] {
        let inside = two_tenants().await;
        let bearer = key().bearer();
        let headers = [("authorization", bearer.as_str()), ("x-sim", "gap=30ms,tokens=700")];
        let url = inside.at("/v1/chat/completions");
        let mut open = client.post_open(&url, &headers, &streamed(chat(800))).await;
        for _ in 0..3 {
            open.frame().await.unwrap().unwrap();
        }
        let node = inside.node().clone();
        inside.gateway.shut_down(Duration::ZERO, Duration::from_millis(50)).await;
        while let Some(Ok(_)) = open.frame().await {}
        eventually("nothing is open", async || match node.owners().books() {
            books if books.open == 0 => Ok(()),
            books => Err(format!("{books:?}")),
        })
        .await;
        let books = node.owners().books();
        assert!(books.settled > 3 && books.settled < 400, "a little of 800: {books:?}");
        assert_eq!((books.closed, books.abandoned), (0, 0));
        eventually("the provider is let go", async || match inside.provider.stats() {
            stats if stats.aborted == 1 && stats.inflight == 0 => Ok(()),
            stats => Err(format!("{stats:?}")),
        })
        .await;
    }
}

#[tokio::test]
async fn connections_that_say_nothing_do_not_hold_up_a_stop() {
    let inside = two_tenants().await;
    let silent = tokio::net::TcpStream::connect(inside.gateway.callers()).await.unwrap();
    // One that idles between two requests.
    assert_eq!(inside.message(&key(), "", &message(4)).await.status, 200);
    let stopping = inside.gateway.shut_down(Duration::ZERO, Duration::from_secs(600));
    tokio::time::timeout(support::PATIENCE, stopping).await.expect("nobody was waited for");
    drop(silent);
}

#[tokio::test]
async fn a_web_socket_is_refused_and_an_offer_of_http2_passed_over() {
    let key = Key::of("production");
    let inside = Inside::under(|policy| policy.tenant("northwind", &key, support::policy::AMPLE)).await;
    let bearer = key.bearer();
    let ask = async |upgrade: &str| {
        let headers = [("authorization", bearer.as_str()), ("connection", "upgrade"), ("upgrade", upgrade)];
        inside.client.post(&inside.at("/v1/chat/completions"), &headers, &support::inside::chat(4)).await
    };
    let refused = ask("websocket").await;
    assert_eq!((refused.status, refused.header("x-tollgate-error")), (501, Some("upgrade_not_supported")));
    assert_eq!(ask("h2c").await.status, 200);
}

#[tokio::test]
async fn a_text_that_comes_again_is_counted_once_and_metrics_say_so() {
    let key = Key::of("production");
    let inside = Inside::under(|policy| policy.tenant("northwind", &key, support::policy::AMPLE)).await;
    let mut body = support::inside::chat(4);
    body["messages"][0]["content"] = serde_json::json!("the same long prompt again ".repeat(20));
    for _ in 0..3 {
        assert_eq!(inside.chat(&key, "", &body).await.status, 200);
    }
    let looked_up = |result: &str| inside.metric("tollgate_token_cache_total", &[result]);
    assert_eq!((looked_up("result=\"miss\""), looked_up("result=\"hit\"")), (1, 2));
}
