//! The operators' edge: whatever is wrong with a request, the answer is an error in JSON with words that help.

#![allow(clippy::unwrap_used, reason = "an answer of another shape fails the test, as it should")]

mod support;

use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use serde_json::Value;
use support::inside::{OPERATOR, chat};
use support::{Client, Inside, Key};

async fn ask(inside: &Inside, method: &str, path: &str, body: &str) -> (u16, Value) {
    let request = Request::builder()
        .method(method.parse::<Method>().unwrap())
        .uri(format!("http://{}{path}", inside.gateway.operators()))
        .header("authorization", format!("Bearer {OPERATOR}"))
        .header("content-type", "application/json")
        .body(Full::new(body.to_owned().into()))
        .unwrap();
    let answer = Client::new().open(request).await.unwrap();
    let status = answer.status().as_u16();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    let page = serde_json::from_slice(&body)
        .unwrap_or_else(|error| panic!("{method} {path}: {error}: {}", String::from_utf8_lossy(&body)));
    (status, page)
}

#[tokio::test]
async fn whatever_is_wrong_is_said_in_json() {
    let inside = Inside::under(|policy| policy.tenant("acme", &Key::of("acme"), "max_inflight: 5")).await;
    let cases = [
        ("POST", "/v1/keys", "{", 400, "bad_request", "EOF"),
        ("POST", "/v1/keys", r#"{ "tenant": "acme" }"#, 422, "bad_request", "missing field `label`"),
        (
            "POST",
            "/v1/keys",
            r#"{ "tenant": "acme", "label": "x", "colour": 1 }"#,
            422,
            "bad_request",
            "unknown field `colour`",
        ),
        ("DELETE", "/v1/keys?tenant=acme", "", 400, "bad_request", "missing field `label`"),
        ("POST", "/v1/policy?expect=many", "", 400, "bad_request", "expect"),
        ("POST", "/v1/budgets/used", r#"{ "tenant": "acme" }"#, 422, "bad_request", "missing field"),
        ("POST", "/v1/policy/rollback", r#"{ "to": -1 }"#, 422, "bad_request", "to"),
        ("PATCH", "/v1/keys", "", 405, "method_not_allowed", "method"),
        ("GET", "/v1/nothing", "", 404, "not_found", "path"),
        ("GET", "/v1/tenants/nobody", "", 404, "not_found", "tenant"),
    ];
    for (method, path, body, status, code, words) in cases {
        let (answered, page) = ask(&inside, method, path, body).await;
        assert_eq!((answered, &page["error"]["code"]), (status, &code.into()), "{method} {path}: {page}");
        assert!(page["error"]["message"].as_str().unwrap().contains(words), "{method} {path}: {page}");
    }
    // Which methods there are is still said, and what is well stays as it is.
    let url = format!("http://{}", inside.gateway.operators());
    let bearer = format!("Bearer {OPERATOR}");
    let refused = Client::new().ask("PATCH", &format!("{url}/v1/keys"), &[("authorization", &bearer)]).await;
    assert!(refused.header("allow").unwrap().contains("POST"), "{refused:?}");
    assert_eq!(Client::new().get(&format!("{url}/livez"), &[]).await.text(), "ok\n");
}

#[tokio::test]
async fn each_map_of_what_is_agreed_on_is_told_by_name() {
    let inside = Inside::under(|policy| {
        policy.tenant("acme", &Key::of("acme"), "max_inflight: 5, budget: { period: monthly, tokens: 1_000 }")
    })
    .await;
    assert_eq!(ask(&inside, "PUT", "/v1/tenants/acme/suspension", "").await.0, 200);
    let bearer = format!("Bearer {OPERATOR}");
    let url = format!("http://{}/metrics", inside.gateway.operators());
    let page = Client::new().get(&url, &[("authorization", &bearer)]).await.text();
    let held = |map: &str| {
        let series = format!("tollgate_held{{map=\"{map}\"}} ");
        page.lines()
            .find_map(|line| line.strip_prefix(&series))
            .unwrap_or_else(|| panic!("no {map} in {page}"))
            .to_owned()
    };
    let maps = ["policy_versions", "suspensions", "overrides", "budgets", "budget_gateways", "budget_alerts"];
    assert_eq!(maps.map(held), ["1", "1", "0", "1", "0", "0"]);
    assert!(page.contains("tollgate_budget_alerts_lost_total 0"), "{page}");
}

/// A tenant with a budget of each kind, which the policy promises more requests than its pool can serve.
const WITH_BUDGETS: &str = "requests_per_minute: 60_000, max_inflight: 5, \
    budget: [{ period: monthly, tokens: 100_000 }, { period: hourly, tokens: 90_000 }], \
    projects: [{ id: lab, budget: { period: daily, tokens: 20_000 } }, { id: shop, budget: { period: daily, tokens: 7 } }]";

async fn with_budgets() -> Inside {
    let hash = Key::of("acme").hash;
    let key = format!(
        "{{ label: production, hash: \"{hash}\", project: lab, budget: {{ period: weekly, tokens: 30_000 }} }}"
    );
    let tenant = format!("{{ id: acme, {WITH_BUDGETS}, keys: [{key}] }}");
    Inside::under(|policy| {
        let pool = "ceiling: { tokens_per_minute: 1_000_000, requests_per_minute: 6_000 }";
        policy.pool(pool).tenant_yaml(&tenant)
    })
    .await
}

#[tokio::test]
async fn a_caller_sees_its_own_budgets_and_where_they_stand() {
    let inside = with_budgets().await;
    let key = Key::of("acme");
    let answer = inside.chat(&key, "", &chat(4)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let billed = answer.json()["usage"]["total_tokens"].as_u64().unwrap();
    let bearer = key.bearer();
    support::eventually("it is counted", async || {
        let url = inside.at("/tollgate/v1/me");
        let me = inside.client.get(&url, &[("authorization", &bearer)]).await.json();
        let budgets = me["budgets"].as_array().unwrap().iter();
        let standing = budgets.map(|budget| {
            let text = |name: &str| budget[name].as_str().unwrap_or("-").to_owned();
            let numbers = (budget["limit"].as_u64().unwrap_or(0), budget["used"].as_u64().unwrap_or(0));
            (text("cycle"), text("project"), text("key"), numbers)
        });
        let mut standing: Vec<_> = standing.collect();
        standing.sort();
        let expected = [
            ("day", "lab", "-", 20_000),
            ("hour", "-", "-", 90_000),
            ("month", "-", "-", 100_000),
            ("week", "-", "production", 30_000),
        ];
        let expected = expected.map(|(cycle, project, key, limit)| {
            (cycle.to_owned(), project.to_owned(), key.to_owned(), (limit, billed))
        });
        if standing == expected { Ok(()) } else { Err(format!("{standing:?}")) }
    })
    .await;
}

#[tokio::test]
async fn an_override_answers_for_what_it_raises_and_not_for_what_the_policy_promises() {
    let inside = with_budgets().await;
    let path = "/v1/tenants/acme/override";
    // The requests that the policy promises are more than the pool serves: that is no fault of this override.
    let (status, page) = ask(&inside, "PUT", path, r#"{ "for": "1h", "tokens_per_minute": 500000 }"#).await;
    assert_eq!(status, 200, "{page}");
    // More tokens than the pool of any model serves.
    let raised = r#"{ "for": "1h", "tokens_per_minute": 200000000 }"#;
    let (status, page) = ask(&inside, "PUT", path, raised).await;
    assert_eq!((status, page["error"]["code"].as_str()), (409, Some("refused")), "{page}");
    // Nor is a project without a limit pointless that has a budget.
    let warnings = ask(&inside, "GET", "/v1/policy", "").await.1["warnings"].to_string();
    assert!(!warnings.contains("sets no limit"), "{warnings}");
}
