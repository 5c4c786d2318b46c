//! Shadow: what enforcement would refuse is counted, and nothing is refused.

#![allow(clippy::unwrap_used, reason = "an answer of another shape fails the test, as it should")]

mod support;

use futures_util::future::join_all;
use support::inside::{chat, message};
use support::{Inside, Key};

const ONE_REQUEST: &str = "requests_per_minute: 1, burst_requests: 1";

fn key(tenant: &str) -> Key {
    Key::of(tenant)
}

fn would_have(inside: &Inside, tenant: &str, limit: &str) -> i64 {
    let (tenant, limit) = (format!("tenant=\"{tenant}\""), format!("limit=\"{limit}\""));
    inside.metric("tollgate_shadow_rejections_total", &[&tenant, &limit])
}

#[tokio::test]
async fn a_cluster_in_shadow_refuses_nothing_and_counts_what_it_would_have() {
    let inside = Inside::under(|policy| {
        policy
            .tenant("northwind", &key("northwind"), ONE_REQUEST)
            .tenant("contoso", &key("contoso"), "tokens_per_minute: 60, burst_tokens: 60")
            .shadow()
    })
    .await;
    for _ in 0..5 {
        assert_eq!(inside.chat(&key("northwind"), "", &chat(4)).await.status, 200);
        assert_eq!(inside.message(&key("contoso"), "", &message(500)).await.status, 200);
    }
    assert_eq!(would_have(&inside, "northwind", "tenant/requests_per_minute"), 4);
    assert_eq!(would_have(&inside, "contoso", "tenant/tokens_per_minute"), 5);
    assert_eq!(inside.metric("tollgate_shadow_rejections_total", &[]), 9);
    assert_eq!(inside.metric("tollgate_decisions_total", &["outcome=\"denied\""]), 0);
    assert_eq!(inside.metric("tollgate_decisions_total", &["outcome=\"admitted\""]), 10);
    assert_eq!(inside.provider.stats().completed, 10);
    inside.assert_at_rest().await;
}

#[tokio::test]
async fn a_tenant_in_shadow_does_not_loosen_the_one_beside_it() {
    let tight = format!("enforcement: shadow, {ONE_REQUEST}");
    let inside = Inside::under(|policy| {
        policy.tenant("northwind", &key("northwind"), &tight).tenant("contoso", &key("contoso"), ONE_REQUEST)
    })
    .await;
    for _ in 0..4 {
        assert_eq!(inside.chat(&key("northwind"), "", &chat(4)).await.status, 200);
    }
    assert_eq!(inside.chat(&key("contoso"), "", &chat(4)).await.status, 200);
    for _ in 0..3 {
        assert_eq!(inside.chat(&key("contoso"), "", &chat(4)).await.status, 429);
    }
    assert_eq!(would_have(&inside, "northwind", "tenant/requests_per_minute"), 3);
    assert_eq!(inside.metric("tollgate_shadow_rejections_total", &["tenant=\"contoso\""]), 0);
    inside.assert_at_rest().await;
}

#[tokio::test]
async fn what_was_let_through_in_shadow_was_not_charged() {
    let tight = format!("enforcement: shadow, {ONE_REQUEST}");
    let inside = Inside::under(|policy| policy.tenant("northwind", &key("northwind"), &tight)).await;
    let charged = inside.chat(&key("northwind"), "", &chat(4)).await;
    let through = inside.chat(&key("northwind"), "", &chat(4)).await;
    let charged = inside.decision_of(&key("northwind"), &charged).await;
    let through = inside.decision_of(&key("northwind"), &through).await;
    assert_eq!(charged["outcome"], "admitted");
    assert!(charged["ending"]["charged"].as_u64().unwrap() > 0, "{charged}");
    assert_eq!(through["outcome"], "shadowed");
    assert_eq!(through["reason"], "tenant_rate_limit_exceeded");
    assert_eq!(through["ending"]["charged"], 0, "{through}");
    assert_eq!(inside.used(&key("northwind"), "tenant", "requests_per_minute").await, 1);
    assert_eq!(
        inside.metric("tollgate_tokens_unenforced_total", &["reason=\"shadow\""]),
        through["estimate"]["total"]
    );
    inside.assert_at_rest().await;
}

#[tokio::test]
async fn slots_would_refuse_too() {
    let tight = "enforcement: shadow, max_inflight: 1";
    let inside = Inside::under(|policy| policy.tenant("northwind", &key("northwind"), tight)).await;
    let (key, body) = (key("northwind"), chat(4));
    let asked = (0..20).map(|_| inside.chat(&key, "latency=50ms", &body));
    assert!(join_all(asked).await.iter().all(|answer| answer.status == 200));
    assert!(would_have(&inside, "northwind", "tenant/max_inflight") > 0);
    inside.assert_at_rest().await;
    assert_eq!(inside.limit(&key, "tenant", "max_inflight").await["used"], 0);
}

#[tokio::test]
async fn shadow_lets_no_stranger_in() {
    let inside =
        Inside::under(|policy| policy.tenant("northwind", &key("northwind"), ONE_REQUEST).shadow()).await;
    assert_eq!(inside.chat(&key("nobody"), "", &chat(4)).await.status, 401);
    assert_eq!(inside.provider.stats().requests, 0);
}

#[tokio::test]
async fn a_tenant_that_leaves_shadow_keeps_what_it_used() {
    let inside =
        Inside::under(|policy| policy.tenant("northwind", &key("northwind"), ONE_REQUEST).shadow()).await;
    assert_eq!(inside.chat(&key("northwind"), "", &chat(4)).await.status, 200);
    inside.edit(|policy| policy.tenant("northwind", &key("northwind"), ONE_REQUEST));
    assert_eq!(inside.chat(&key("northwind"), "", &chat(4)).await.status, 429);
}
