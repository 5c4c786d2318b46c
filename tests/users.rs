//! End users: each has what the policy gives each, all of them together have what their tenant has, and nobody learns who they are.

#![allow(clippy::unwrap_used, reason = "an answer of another shape fails the test, as it should")]

mod support;

use serde_json::{Value, json};
use support::inside::{chat, message};
use support::{Inside, Key, Policy, Response};

const LIMITS: &str =
    "tokens_per_minute: 60, burst_tokens: 1_000_000, requests_per_minute: 1, burst_requests: 8";

/// Each user's limits, so slow that a test does not see them refill.
fn each_user(from: &str, more: &str) -> String {
    format!("{LIMITS}, users: {{ from: {from}, requests_per_minute: 1, burst_requests: 2{more} }}")
}

fn both(policy: Policy) -> Policy {
    let limits = each_user("body.user", "");
    policy.tenant("northwind", &Key::of("northwind"), &limits).tenant(
        "contoso",
        &Key::of("contoso"),
        &each_user("header.X-End-User", ""),
    )
}

fn of(user: &str, place: &str, mut body: Value) -> Value {
    match place.split_once('.') {
        Some((outer, inner)) => body[outer][inner] = json!(user),
        None => body[place] = json!(user),
    }
    body
}

fn code(answer: &Response) -> (u16, Option<&str>) {
    (answer.status, answer.header("x-tollgate-error"))
}

const REFUSED: (u16, Option<&str>) = (429, Some("user_rate_limit_exceeded"));
const SERVED: (u16, Option<&str>) = (200, None);

#[tokio::test]
async fn a_user_has_its_own_limit_in_every_dialect_and_the_tenant_has_one_for_all() {
    let inside = Inside::under(both).await;
    let key = Key::of("northwind");
    assert_eq!(code(&inside.chat(&key, "", &of("ada", "user", chat(4))).await), SERVED);
    let answer = inside.message(&key, "", &of("ada", "metadata.user_id", message(4))).await;
    assert_eq!(code(&answer), SERVED);
    // In whatever place a dialect has for it, it is the same user.
    for refused in [
        inside.chat(&key, "", &of("ada", "user", chat(4))).await,
        inside.chat(&key, "", &of("ada", "safety_identifier", chat(4))).await,
        inside.message(&key, "", &of("ada", "metadata.user_id", message(4))).await,
    ] {
        assert_eq!(code(&refused), REFUSED);
        assert!(refused.text().contains("requests_per_minute of this user of tenant northwind"));
        assert!(!refused.text().contains("ada"), "{}", refused.text());
        assert!(refused.header("retry-after").is_some());
    }
    for user in ["bob", "eve"] {
        assert_eq!(code(&inside.chat(&key, "", &of(user, "user", chat(4))).await), SERVED);
    }
    // A request that names nobody has the tenant's limits alone.
    for _ in 0..4 {
        assert_eq!(code(&inside.chat(&key, "", &chat(4)).await), SERVED);
    }
    let full = inside.chat(&key, "", &of("mallory", "user", chat(4))).await;
    assert_eq!(code(&full), (429, Some("tenant_rate_limit_exceeded")));
    // A caller is shown no other user's level, and an operator how many there are.
    let bearer = key.bearer();
    let me = inside.client.get(&inside.at("/tollgate/v1/me"), &[("authorization", &bearer)]).await.json();
    assert!(me["limits"].as_array().unwrap().iter().all(|limit| limit["scope"] != "user"), "{me}");
    assert_eq!(inside.metric("tollgate_held", &["map=\"users\""]), 3);
    inside.assert_at_rest().await;
}

#[tokio::test]
async fn a_user_named_like_another_tenant_s_changes_nothing_there() {
    let inside = Inside::under(both).await;
    let (ours, theirs) = (Key::of("northwind"), Key::of("contoso"));
    for _ in 0..3 {
        inside.chat(&ours, "", &of("ada", "user", chat(4))).await;
    }
    assert_eq!(code(&inside.chat(&ours, "", &of("ada", "user", chat(4))).await), REFUSED);
    assert_eq!(inside.used(&theirs, "tenant", "requests_per_minute").await, 0);
    let bearer = theirs.bearer();
    let as_user = async |user: &str, body: Value| {
        let headers = [("authorization", bearer.as_str()), ("x-end-user", user)];
        inside.client.post(&inside.at("/v1/chat/completions"), &headers, &body).await
    };
    // By the header that their policy names; what their body says is nobody's level.
    for _ in 0..2 {
        assert_eq!(code(&as_user("ada", of("bob", "user", chat(4))).await), SERVED);
    }
    assert_eq!(code(&as_user("ada", of("bob", "user", chat(4))).await), REFUSED);
    assert_eq!(code(&as_user("bob", of("ada", "user", chat(4))).await), SERVED);
    // And ours is where it was: a name in a header is not where our policy looks.
    let headers = [("authorization", ours.bearer())];
    let headers = [("authorization", headers[0].1.as_str()), ("x-end-user", "ada")];
    let answer = inside.client.post(&inside.at("/v1/chat/completions"), &headers, &chat(4)).await;
    assert_eq!(code(&answer), SERVED);
    assert_eq!(inside.used(&ours, "tenant", "requests_per_minute").await, 3);
    assert_eq!(inside.used(&theirs, "tenant", "requests_per_minute").await, 3);
}

#[tokio::test]
async fn a_policy_may_ask_for_a_user_and_an_edit_keeps_what_each_has_used() {
    let key = Key::of("northwind");
    let policy = |more: &'static str| {
        move |policy: Policy| {
            policy.tenant("northwind", &Key::of("northwind"), &each_user("body.end_user.id", more))
        }
    };
    let inside = Inside::under(policy(", required: true")).await;
    let none = inside.chat(&key, "", &chat(4)).await;
    assert_eq!(code(&none), (400, Some("user_required")));
    assert_eq!(none.json()["error"]["param"], "end_user.id");
    // Another place than the dialect's own names nobody else.
    assert_eq!(code(&inside.chat(&key, "", &of("ada", "user", chat(4))).await), (400, Some("user_required")));
    let odd =
        inside.chat(&key, "", &json!({ "model": "gpt-5", "messages": [], "end_user": { "id": 7 } })).await;
    assert_eq!(code(&odd), (400, Some("invalid_request")));
    assert_eq!(inside.used(&key, "tenant", "requests_per_minute").await, 0);
    let ada = of("ada", "end_user.id", chat(4));
    for _ in 0..2 {
        assert_eq!(code(&inside.chat(&key, "", &ada).await), SERVED);
    }
    inside.edit(policy(", max_inflight: 9"));
    assert_eq!(code(&inside.chat(&key, "", &ada).await), REFUSED);
    assert_eq!(code(&inside.chat(&key, "", &chat(4)).await), SERVED);
}

#[tokio::test]
async fn a_tier_s_users_hold_for_its_tenants_on_a_route_that_is_passed_through() {
    let key = Key::of("northwind");
    let tenant =
        format!("{{ id: northwind, tier: crowded, keys: [{{ label: k, hash: \"{}\" }}] }}", key.hash);
    let yaml = |policy: Policy| {
        policy
            .tenant_yaml(&tenant)
            .route("{ path: /v1/images/generations, provider: openai, cost_tokens: 5 }")
    };
    let inside = Inside::under(|policy| yaml(policy).tier(
        "crowded: { tokens_per_minute: 1_000_000, users: { from: body.user, requests_per_minute: 1, burst_requests: 1 } }",
    ))
    .await;
    let bearer = key.bearer();
    let post = async |user: &str| {
        let headers = [("authorization", bearer.as_str())];
        let body = json!({ "model": "image-1", "prompt": "a hat", "user": user });
        inside.client.post(&inside.at("/v1/images/generations"), &headers, &body).await
    };
    assert_eq!(post("ada").await.header("x-tollgate-error"), None);
    assert_eq!(code(&post("ada").await), REFUSED);
    assert_eq!(post("bob").await.header("x-tollgate-error"), None);
}
