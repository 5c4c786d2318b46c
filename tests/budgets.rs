//! Budgets, as callers and operators see them: used to their end and not beyond, by one node and by three that are killed under load.

#![allow(clippy::unwrap_used, reason = "an answer of another shape fails the test, as it should")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use ring::hmac;
use serde_json::{Value, json};
use support::cluster::{Cluster, for_a};
use support::scripted::says;
use support::{Client, Key, Node, Policy, Process, Provider, Response, eventually};

/// Room enough for any rate, in a story that is about a period.
const WIDE: &str = "tokens_per_minute: 100_000_000, requests_per_minute: 1_000_000, max_inflight: 10_000";

/// A tenant with this budget and no other limit that is met.
fn acme(budget: &str) -> impl Fn(Policy) -> Policy {
    let tenant = format!(
        "{{ id: acme, {WIDE}, budget: {budget}, keys: [{{ label: production, hash: \"{}\" }}] }}",
        Key::of("acme").hash
    );
    move |policy| policy.tenant_yaml(&tenant)
}

async fn chat(callers: &str, model: &str, max_tokens: u64) -> Response {
    let body = json!({
        "model": model,
        "max_completion_tokens": max_tokens,
        "messages": [{ "role": "user", "content": "Hello." }],
    });
    let bearer = Key::of("acme").bearer();
    let headers = [("authorization", &*bearer)];
    Client::new().post(&format!("{callers}/v1/chat/completions"), &headers, &body).await
}

/// The only budget, once its period has begun and nobody holds anything of it.
async fn settled(look: impl AsyncFn() -> Value) -> Value {
    eventually("all is settled", async || {
        let page = look().await;
        let budget = &page["budgets"][0];
        let written_off = budget["written_off"].as_u64();
        match budget["escrow"].as_u64() {
            Some(escrow) if Some(escrow) == written_off => Ok(budget.clone()),
            _ => Err(page.to_string()),
        }
    })
    .await
}

async fn start(budget: &str) -> (Provider, Node) {
    let provider = Process::provider(&[]).await;
    let policy = acme(budget)(Policy::at(&provider.url));
    let node = Process::serve(&policy.yaml(), &[]).await;
    (provider, node)
}

/// Asks until the budget is used up for good: what open requests hold comes back when they are settled. All that was served, and the refusal.
async fn exhaust(callers: &str, model: &str) -> (Vec<Response>, Response) {
    let (mut served, mut refusals) = (Vec::new(), 0);
    loop {
        let answer = chat(callers, model, 16).await;
        if answer.status == 200 {
            refusals = 0;
            served.push(answer);
            assert!(served.len() < 1_000, "it has an end");
            continue;
        }
        refusals += 1;
        if refusals == 4 {
            return (served, answer);
        }
        for_a(Duration::from_millis(500)).await;
    }
}

async fn billed(provider: &Provider) -> u64 {
    provider.stat("input_tokens").await + provider.stat("output_tokens").await
}

#[tokio::test]
async fn a_budget_is_used_to_its_end_and_then_refused_as_money() {
    let (provider, node) = start("{ period: monthly, tokens: 3_000 }").await;
    let (served, refused) = exhaust(&node.callers, "gpt-5").await;
    assert_eq!(refused.status, 429, "{}", refused.text());
    assert_eq!(refused.header("x-tollgate-error"), Some("budget_exhausted"));
    assert_eq!(refused.header("x-should-retry"), Some("false"));
    let error = &refused.json()["error"];
    assert_eq!(error["type"], "insufficient_quota");
    assert!(error["message"].as_str().unwrap().contains("It begins anew at "), "{error}");
    assert_eq!(provider.stat("requests").await as usize, served.len(), "what is refused is not sent");

    assert_eq!(served[0].header("x-tollgate-budget-limit"), Some("3000"));
    let left: u64 = served[0].header("x-tollgate-budget-remaining").unwrap().parse().unwrap();
    assert!(left <= 3_000, "{left}");
    assert!(served[0].header("x-tollgate-budget-reset").unwrap().ends_with("-01T00:00:00Z"));

    let budget = settled(async || node.operator_get("/v1/budgets?tenant=acme").await.json()).await;
    assert_eq!(budget["used"].as_u64().unwrap(), billed(&provider).await, "settled is billed: {budget}");
    assert!(budget["used"].as_u64().unwrap() <= 3_000, "{budget}");
    let page = node.operator_get("/v1/tenants/acme").await.json();
    assert_eq!(page["budgets"][0]["used"], budget["used"]);
    assert_eq!(
        node.metric("tollgate_budget_ends_total", &["outcome=\"counted\""]).await,
        served.len() as i64
    );
    // What is left is less than one more request needs.
    let left = budget["remaining"].as_u64().unwrap();
    assert!(left < 100, "{budget}");
}

#[tokio::test]
async fn a_cheaper_model_goes_on_as_far_as_the_policy_lets_it_and_the_answer_says_so() {
    let budget =
        "{ period: daily, tokens: 2_000, on_exhausted: degrade, degrade_to: gpt-5-mini, degrade_limit: 0.5 }";
    let (provider, node) = start(budget).await;
    let (served, refused) = exhaust(&node.callers, "gpt-5").await;
    let (mut regular, mut degraded) = (0, 0);
    for answer in &served {
        match answer.header("x-tollgate-degraded") {
            None => regular += 1,
            Some(model) => {
                assert_eq!(model, "gpt-5-mini");
                assert_eq!(answer.json()["model"], "gpt-5-mini");
                degraded += 1;
            }
        }
    }
    assert_eq!(refused.header("x-tollgate-error"), Some("budget_exhausted"), "{}", refused.text());
    assert!(regular > 0 && degraded > 0, "{regular} {degraded}");
    let budget = settled(async || node.operator_get("/v1/budgets").await.json()).await;
    let used = budget["used"].as_u64().unwrap();
    assert!((2_900..=3_000).contains(&used), "{budget}");
    assert_eq!(used, billed(&provider).await);
    assert!(budget["degraded"].as_u64().unwrap() > 0, "{budget}");
    assert_eq!(node.metric("tollgate_decisions_total", &["outcome=\"degraded\""]).await, degraded);
}

#[tokio::test]
async fn what_is_to_be_queued_is_deferred_and_nothing_is_sent() {
    let (provider, node) = start("{ period: hourly, tokens: 10, on_exhausted: queue }").await;
    let refused = chat(&node.callers, "gpt-5", 100).await;
    assert_eq!(
        (refused.status, refused.header("x-tollgate-error")),
        (429, Some("deferred")),
        "{}",
        refused.text()
    );
    assert_eq!(provider.stat("requests").await, 0);
}

#[tokio::test]
async fn dollars_are_counted_by_the_price_book_and_an_operator_says_what_was_used_before() {
    let provider = Process::provider(&[]).await;
    let prices =
        "price_book: [ { effective: 2026-01-01, models: { gpt-5: { input: 1_000, output: 2_000 } } } ]";
    let policy = acme("{ period: monthly, usd: 5.00 }")(Policy::at(&provider.url)).and(prices);
    let node = Process::serve(&policy.yaml(), &[]).await;
    assert_eq!(chat(&node.callers, "gpt-5", 100).await.status, 200);
    let look = async || node.operator_get("/v1/budgets").await.json();
    let budget = settled(look).await;
    let (input, output) = (provider.stat("input_tokens").await, provider.stat("output_tokens").await);
    assert_eq!(budget["used"].as_u64().unwrap(), input * 1_000 + output * 2_000, "{budget}");

    let bearer = format!("Bearer {}", node.admin_token);
    let wish = json!({ "tenant": "acme", "cycle": "month", "unit": "micro_dollars", "used": 4_999_000 });
    let url = format!("{}/v1/budgets/used", node.admin);
    let told = Client::new().post(&url, &[("authorization", &bearer)], &wish).await;
    assert_eq!((told.status, told.json()["budget"]["used"].clone()), (200, json!(4_999_000)));
    let refused = chat(&node.callers, "gpt-5", 100).await;
    assert_eq!(refused.header("x-tollgate-error"), Some("budget_exhausted"), "{}", refused.text());
    let unknown = json!({ "tenant": "acme", "cycle": "week", "unit": "tokens", "used": 1 });
    assert_eq!(Client::new().post(&url, &[("authorization", &bearer)], &unknown).await.status, 404);
}

/// What a webhook was sent: its key, its timestamp, its signature and its body.
type Sent = Arc<Mutex<Vec<(String, String, String, String)>>>;

/// A webhook that takes nothing at first, so that each alert comes at least twice.
async fn webhook(sent: Sent) -> (String, tokio::task::JoinHandle<()>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/alerts", listener.local_addr().unwrap());
    let app = axum::Router::new().fallback(move |headers: axum::http::HeaderMap, body: String| {
        let header = |name: &str| {
            headers.get(name).map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default()
        };
        let all =
            (header("idempotency-key"), header("x-tollgate-timestamp"), header("x-tollgate-signature"), body);
        let mut sent = sent.lock().unwrap();
        let again = sent.iter().any(|(key, ..)| *key == all.0);
        sent.push(all);
        let status = if again { 200 } else { 503 };
        async move { says(status, "text/plain", "") }
    });
    (url, tokio::spawn(async move { axum::serve(listener, app).await.unwrap() }))
}

#[tokio::test]
async fn each_threshold_calls_the_webhook_under_one_name_until_it_is_taken() {
    let provider = Process::provider(&[]).await;
    let sent = Sent::default();
    let (url, _serving) = webhook(sent.clone()).await;
    let alerts = alerts_to(&url);
    let budget = "{ period: monthly, tokens: 3_000, soft_thresholds: [0.5, 0.9] }";
    let policy = acme(budget)(Policy::at(&provider.url)).and(&alerts);
    let node = Process::serve(&policy.yaml(), &[]).await;
    exhaust(&node.callers, "gpt-5").await;
    let by_key = || {
        let mut by_key: BTreeMap<String, usize> = BTreeMap::new();
        for (key, ..) in &*sent.lock().unwrap() {
            *by_key.entry(key.clone()).or_default() += 1;
        }
        by_key
    };
    eventually("both are taken", async || {
        let by_key = by_key();
        if by_key.len() == 2 && by_key.values().all(|times| *times >= 2) {
            Ok(())
        } else {
            Err(format!("{by_key:?}"))
        }
    })
    .await;
    eventually("nothing waits", async || {
        let page = node.operator_get("/v1/budgets").await.json();
        if page["alerts_waiting"] == 0 { Ok(()) } else { Err(page.to_string()) }
    })
    .await;
    let taken = by_key();
    assert_eq!(taken.values().copied().collect::<Vec<_>>(), [2, 2], "what was taken is not sent again");
    assert!(
        taken.keys().any(|key| key.ends_with("/500000")) && taken.keys().any(|key| key.ends_with("/900000"))
    );
    let secret = hmac::Key::new(hmac::HMAC_SHA256, b"sk-simulated");
    for (key, timestamp, signature, body) in &*sent.lock().unwrap() {
        let tag = hmac::sign(&secret, format!("{timestamp}.{body}").as_bytes());
        assert_eq!(*signature, format!("v1={}", hex::encode(tag)));
        let body: Value = serde_json::from_str(body).unwrap();
        assert_eq!((&body["id"], &body["tenant"]), (&json!(key), &json!("acme")));
    }
    assert_eq!(node.metric("tollgate_budget_alerts_total", &["tenant=\"acme\""]).await, 2);
}

/// What a policy says so that alerts go there.
fn alerts_to(url: &str) -> String {
    format!("alerts: {{ webhook: \"{url}\", secret: env:SIMULATED_PROVIDER_KEY, allow_private: true }}")
}

/// Asks through these nodes in turn, so many at once, until the budget is used up or `stop` says so; how many were served.
async fn drive(callers: Vec<String>, at_once: usize, stop: impl Fn(usize) -> bool + Sync) -> usize {
    let served = std::sync::atomic::AtomicUsize::new(0);
    let one = async |worker: usize| {
        let mut refused = 0;
        for turn in worker.. {
            let url = format!("{}/v1/chat/completions", callers[turn % callers.len()]);
            let body = json!({
                "model": "gpt-5",
                "max_completion_tokens": 2_000,
                "messages": [{ "role": "user", "content": "Hello." }],
            });
            let bearer = Key::of("acme").bearer();
            let headers = [("authorization", &*bearer), ("x-sim", "tokens=1500,latency=20ms")];
            let answer = Client::new().try_post(&url, &headers, body.to_string()).await;
            let so_far = served.load(std::sync::atomic::Ordering::Relaxed);
            match answer {
                Ok(answer) if answer.status == 200 => {
                    refused = 0;
                    served.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                }
                // Others may yet give back what they held and did not use.
                Ok(answer) if answer.header("x-tollgate-error") == Some("budget_exhausted") => {
                    refused += 1;
                    for_a(Duration::from_millis(100)).await;
                }
                _ => for_a(Duration::from_millis(50)).await,
            }
            if refused > 30 || stop(so_far) {
                return;
            }
        }
    };
    join_all((0..at_once).map(one)).await;
    served.into_inner()
}

const MILLION: u64 = 1_000_000;

/// What the provider billed and what the nodes' ledgers say of it, joined by the id of the decision.
#[derive(Debug, Default)]
struct Ids {
    /// Completed: of each, what was settled is what was billed.
    settled: usize,
    by_settled: u64,
    /// Ended otherwise: its id, how, what was settled and what was billed.
    others: Vec<(String, String, u64, u64)>,
    by_others: u64,
    /// Billed, and in no ledger, since the gateway was killed before it ended: its id and what was billed.
    without_row: Vec<(String, u64)>,
    billed_without_row: u64,
}

impl Ids {
    async fn of(cluster: &Cluster) -> Ids {
        let mut billed: BTreeMap<String, u64> = BTreeMap::new();
        for row in cluster.provider.requests().await {
            let id = row["decision"].as_str().expect("each is sent with its decision").to_owned();
            let tokens = row["input_tokens"].as_u64().unwrap() + row["output_tokens"].as_u64().unwrap();
            assert_eq!(billed.insert(id, tokens), None, "it was forwarded twice: {row}");
        }
        let mut ids = Ids::default();
        let mut cursor = String::new();
        loop {
            let page = cluster.nodes[0].look(&format!("/v1/usage/rows?tenant=acme{cursor}")).await.unwrap();
            assert_eq!(
                (page["missing"].clone(), page["unreadable"].clone()),
                (json!([]), json!(0)),
                "{page}"
            );
            for row in page["rows"].as_array().unwrap() {
                let text = |column: &str| row[column].as_str().unwrap().to_owned();
                let (id, settled) = (text("id"), row["settled"].as_u64().unwrap());
                let billed = billed.remove(&id);
                if row["outcome"] == "settled" {
                    assert_eq!(billed, Some(settled), "settled is billed, and once: {row}");
                    ids.settled += 1;
                    ids.by_settled += settled;
                } else {
                    ids.by_others += settled;
                    ids.others.push((id, text("outcome"), settled, billed.unwrap_or(0)));
                }
            }
            match page["next"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        ids.billed_without_row = billed.values().sum();
        ids.without_row = billed.into_iter().collect();
        ids
    }

    /// Lists those that were not settled as they were billed.
    fn tell(&self) {
        println!("{} settled as billed, {} tokens", self.settled, self.by_settled);
        for (id, outcome, settled, billed) in &self.others {
            println!(
                "{id} {outcome}: settled {settled}, billed {billed}: {:+}",
                i128::from(*settled) - i128::from(*billed)
            );
        }
        for (id, billed) in &self.without_row {
            println!("{id} has no row: its gateway was killed; billed {billed}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_million_tokens_through_three_nodes_are_used_to_the_last_and_not_beyond() {
    let cluster = Cluster::of(3, acme("{ period: monthly, tokens: 1_000_000 }")).await;
    let callers: Vec<String> = cluster.nodes.iter().map(|node| node.callers.clone()).collect();
    let served = drive(callers, 12, |_| false).await;
    let budget = settled(async || cluster.nodes[0].look("/v1/budgets").await.unwrap()).await;
    let (used, billed) = (budget["used"].as_u64().unwrap(), billed(&cluster.provider).await);
    println!("served {served}, used {used} of {MILLION}, billed {billed}: {budget}");
    assert_eq!(used, billed, "settled is billed: {budget}");
    let ids = Ids::of(&cluster).await;
    assert_eq!((ids.settled, ids.by_settled), (served, used), "{ids:?}");
    assert!(ids.others.is_empty() && ids.without_row.is_empty(), "{ids:?}");
    assert!(used <= MILLION, "{budget}");
    assert!(used * 100 >= 97 * MILLION, "{budget}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_of_owner_leader_and_gateway_overspend_nothing() {
    let sent = Sent::default();
    let (url, _serving) = webhook(sent.clone()).await;
    let alerts = alerts_to(&url);
    let tenant = acme("{ period: monthly, tokens: 1_000_000, soft_thresholds: [0.2, 0.5, 0.8] }");
    let policy = |policy| tenant(policy).and(&alerts);
    let mut cluster = Cluster::with(3, policy, &["--orphan-grace", "2s"]).await;
    let callers: Vec<String> = cluster.nodes.iter().map(|node| node.callers.clone()).collect();
    let done = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let driving = {
        let (callers, done) = (callers.clone(), done.clone());
        tokio::spawn(
            async move { drive(callers, 8, |_| done.load(std::sync::atomic::Ordering::Relaxed)).await },
        )
    };
    let mut victims = Vec::new();
    for round in 0..3 {
        for_a(Duration::from_millis(800)).await;
        let victim = match round {
            0 => cluster.owner_of("acme").await,
            1 => cluster.leader().await,
            // A gateway that is neither, if there is one.
            _ => {
                let (owner, leader) = (cluster.owner_of("acme").await, cluster.leader().await);
                (0..3).find(|place| *place != owner && *place != leader).unwrap_or(owner)
            }
        };
        victims.push(victim);
        cluster.nodes[victim].kill();
        for_a(Duration::from_millis(500)).await;
        cluster.nodes[victim].start_and_join().await;
        cluster.until_spread(3).await;
    }
    let served = driving.await.unwrap();
    done.store(true, std::sync::atomic::Ordering::Relaxed);
    let budget = settled(async || cluster.nodes[0].look("/v1/budgets").await.unwrap()).await;
    let number = |name: &str| budget[name].as_u64().unwrap();
    let billed = billed(&cluster.provider).await;
    println!("killed {victims:?}; served {served}, billed {billed}: {budget}");
    let (used, written_off) = (number("used"), number("written_off"));
    assert!(used + written_off <= MILLION + number("overage"), "{budget}");
    assert!(billed <= used + written_off, "what was billed is charged or written off: {billed}, {budget}");
    assert!(used + written_off >= 90 * MILLION / 100, "it was used: {budget}");
    let ids = Ids::of(&cluster).await;
    ids.tell();
    // What has no row was on its way when its gateway died: it is charged at what was held for it, at what it used, or is written off.
    let with_rows = ids.by_settled + ids.by_others;
    assert!(with_rows <= used, "each row is charged: {with_rows}, {budget}");
    assert!(
        ids.billed_without_row <= used - with_rows + written_off,
        "so is what has none: {ids:?}, {budget}"
    );
    assert!(ids.without_row.len() <= 8 * victims.len(), "no more had none than were on their way: {ids:?}");
    let told = eventually("each threshold is told", async || {
        let told: BTreeSet<String> = sent.lock().unwrap().iter().map(|(key, ..)| key.clone()).collect();
        let page = cluster.nodes[0].look("/v1/budgets").await?;
        if told.len() == 3 && page["alerts_waiting"] == 0 {
            Ok(told)
        } else {
            Err(format!("{told:?} {page}"))
        }
    })
    .await;
    for (key, threshold) in told.iter().zip(["/200000", "/500000", "/800000"]) {
        assert!(key.ends_with(threshold), "each under one name, whoever told it: {told:?}");
    }
    // On every node the same.
    for node in &cluster.nodes {
        eventually(&format!("{} has the same", node.address), async || {
            let page = node.look("/v1/budgets").await?;
            if page["budgets"][0]["used"] == budget["used"] { Ok(()) } else { Err(page.to_string()) }
        })
        .await;
    }
    // What is written off can be given back.
    let (code, out, err) = cluster.nodes[0].command(&["budgets", "release", "--tenant", "acme", "--json"]);
    assert_eq!(code, 0, "{out} {err}");
    // The log has it; this node follows.
    eventually("nothing is written off any more", async || {
        let page = cluster.nodes[0].look("/v1/budgets").await?;
        if page["budgets"][0]["written_off"] == 0 { Ok(()) } else { Err(page.to_string()) }
    })
    .await;
}
