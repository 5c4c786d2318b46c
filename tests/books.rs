//! Thousands of requests of every kind at once, and the books balance to the token.
//!
//! `TOLLGATE_BOOKS_REQUESTS` sets how many (2,000 unless set), `TOLLGATE_BOOKS_HTTP2=1` sends all of them over HTTP/2:
//!
//! ```text
//! TOLLGATE_BOOKS_REQUESTS=10000 TOLLGATE_BOOKS_HTTP2=1 cargo test --release --test books
//! ```

#![allow(clippy::unwrap_used, reason = "an answer of another shape fails the test, as it should")]

mod support;

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use futures_util::future::join_all;
use http_body_util::BodyExt;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use support::inside::{chat, message, streamed};
use support::{Client, Inside, Key};
use tollgate::limit::ReservationId;
use tollgate::simulated::Outcome;

/// Below the streams that one HTTP/2 connection may carry, so that none waits for another.
const PER_HTTP2_CONNECTION: usize = 500;

/// What a caller does with its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Patience {
    /// Reads to the end.
    ToTheEnd,
    /// Leaves after so many pieces of the answer.
    Pieces(usize),
    /// Leaves after so many milliseconds, whatever has come.
    Millis(u64),
}

/// One request of the crowd.
struct Request {
    tenant: &'static str,
    path: &'static str,
    sim: &'static str,
    body: Value,
    patience: Patience,
}

/// Every kind in turn: the first letters of a tenant's name and of the kind repeat with different periods.
fn request(number: usize) -> Request {
    use Patience::{Millis, Pieces, ToTheEnd};
    let tenant = ["northwind", "contoso", "fabrikam"][number / 16 % 3];
    let three = |mut body: Value| {
        body["n"] = json!(3);
        body
    };
    let (openai, anthropic) = ("/v1/chat/completions", "/v1/messages");
    let (path, sim, body, patience) = match number % 16 {
        0 => (openai, "skew=1.07", chat(40), ToTheEnd),
        1 => (openai, "skew=1.07,tokens=30", streamed(chat(40)), ToTheEnd),
        2 => (openai, "tokens=20,gap=1ms", streamed(three(chat(40))), ToTheEnd),
        3 => (anthropic, "skew=3", message(16), ToTheEnd),
        4 => (anthropic, "tokens=30,gap=1ms,latency=5ms", streamed(message(40)), ToTheEnd),
        5 => (openai, "tokens=200,gap=2ms", streamed(chat(300)), Pieces(1 + number % 7)),
        6 => (anthropic, "tokens=200,gap=2ms", streamed(message(300)), Pieces(1 + number % 7)),
        7 => (openai, "latency=40ms", chat(40), Millis(1 + number as u64 % 60)),
        8 => (openai, "latency=10ms,gap=1ms", streamed(chat(40)), Millis(1 + number as u64 % 60)),
        9 => (openai, "status=500", chat(40), ToTheEnd),
        10 => (openai, "status=429,retry_after=30", chat(40), ToTheEnd),
        11 => (openai, "fail_after=2", streamed(chat(40)), ToTheEnd),
        12 => (anthropic, "fail_after=1", message(40), ToTheEnd),
        13 => (openai, "usage=off", streamed(chat(40)), ToTheEnd),
        14 => (openai, "", json!({ "model": "gpt-5", "max_tokens": 0 }), ToTheEnd),
        _ => (openai, "", chat(4_000_000_000), ToTheEnd),
    };
    Request { tenant, path, sim, body, patience }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_leaves_nothing_behind_and_the_books_balance() {
    let requests = number("TOLLGATE_BOOKS_REQUESTS").unwrap_or(2_000);
    let all_http2 = number("TOLLGATE_BOOKS_HTTP2") == Some(1);
    allow_many_connections();
    let keys: BTreeMap<&str, Key> =
        ["northwind", "contoso", "fabrikam"].into_iter().map(|tenant| (tenant, Key::of(tenant))).collect();
    let inside = Inside::under(|policy| {
        policy
            .tenant(
                "northwind",
                &keys["northwind"],
                "tokens_per_minute: 100_000_000, requests_per_minute: 1_000_000",
            )
            .tenant("contoso", &keys["contoso"], "tokens_per_minute: 6_000, burst_tokens: 4_000")
            .tenant("fabrikam", &keys["fabrikam"], "max_inflight: 20")
    })
    .await;

    let http1 = Client::new();
    let http2: Vec<Client> = (0..=requests / PER_HTTP2_CONNECTION).map(|_| Client::http2()).collect();
    let asked = (0..requests).map(|number| {
        let request = request(number);
        let over_http2 = all_http2 || number % 2 == 0;
        let client = if over_http2 { &http2[number / PER_HTTP2_CONNECTION] } else { &http1 }.clone();
        let (url, bearer) = (inside.at(request.path), keys[request.tenant].bearer());
        tokio::spawn(play(client, url, bearer, request))
    });
    for played in join_all(asked).await {
        played.expect("no caller panics");
    }
    drop((http1, http2));

    inside.assert_at_rest().await;
    for (tenant, key) in &keys {
        let scopes = inside.node().owners().tenant(&(*tenant).into()).unwrap().scopes;
        assert!(scopes.iter().all(|scope| scope.inflight == 0), "{tenant}: a slot is still taken");
        assert_eq!(inside.chat(key, "", &json!({})).await.status, 400, "{tenant} is still served");
    }
    assert_books(&inside);
    assert_each_decision_is_what_was_billed(&inside).await;
}

async fn play(client: Client, url: String, bearer: String, request: Request) {
    let headers =
        [("authorization", bearer.as_str()), ("anthropic-version", "2023-06-01"), ("x-sim", request.sim)];
    match request.patience {
        Patience::ToTheEnd => {
            // A crowd may meet a connection that is just closing; what it leaves behind is what counts.
            let _answer = client.try_post(&url, &headers, request.body.to_string()).await;
        }
        Patience::Pieces(pieces) => {
            let Ok(mut open) = client.try_post_open(&url, &headers, &request.body).await else { return };
            for _ in 0..pieces {
                let Some(Ok(_)) = open.frame().await else { return };
            }
        }
        Patience::Millis(millis) => {
            let asking = client.try_post(&url, &headers, request.body.to_string());
            let _answer = tokio::time::timeout(Duration::from_millis(millis), asking).await;
        }
    }
}

fn assert_books(inside: &Inside) {
    let told = |name: &str| inside.metric(name, &[]);
    let (reserved, refunded) =
        (told("tollgate_tokens_reserved_total"), told("tollgate_tokens_refunded_total"));
    let (overage, settled) = (told("tollgate_tokens_overage_total"), told("tollgate_tokens_settled_total"));
    let ended = |how: &str| inside.metric("tollgate_tokens_unsettled_total", &[how]);
    let (closed, abandoned) = (ended("how=\"closed\""), ended("how=\"abandoned\""));
    eprintln!(
        "reserved {reserved} - refunded {refunded} + overage {overage} = settled {settled} + closed {closed} + abandoned {abandoned}"
    );
    assert_eq!(reserved - refunded + overage, settled + closed + abandoned);
    for (name, tokens) in [
        ("refunded", refunded),
        ("overage", overage),
        ("settled", settled),
        ("closed", closed),
        ("abandoned", abandoned),
    ] {
        assert!(tokens > 0, "nothing was {name}: the crowd has not what it should have");
    }
    for reason in ["tenant_rate_limit_exceeded", "inflight_limit_exceeded", "request_too_large_for_limit"] {
        assert!(
            inside.metric("tollgate_decisions_total", &["outcome=\"denied\"", reason]) > 0,
            "nobody met {reason}"
        );
    }
}

async fn assert_each_decision_is_what_was_billed(inside: &Inside) {
    support::eventually("the provider has closed every row", async || {
        match inside.provider.stats().inflight {
            0 => Ok(()),
            open => Err(format!("{open} open")),
        }
    })
    .await;
    let (mut completed, mut aborted, mut difference) = (0, 0, 0);
    for row in inside.provider.requests() {
        let id = ReservationId::from_str(row.decision.as_deref().unwrap()).unwrap();
        let found = ["northwind", "contoso", "fabrikam"]
            .into_iter()
            .find_map(|tenant| inside.node().decisions.find(tenant, id));
        let record = found.unwrap_or_else(|| panic!("{row:?} was decided by nobody"));
        let ending = record.ending.get().unwrap_or_else(|| panic!("{record:?} has not ended"));
        let billed = row.input_tokens + row.output_tokens;
        match (row.outcome, ending.how, ending.why) {
            (_, "settled", "usage") => {
                assert_eq!(ending.charged, billed, "{row:?} {record:?}");
                completed += 1;
            }
            // The caller left in the middle, or when all of it was on its way.
            (Outcome::Aborted | Outcome::Completed, "settled", "client_gone") => {
                aborted += 1;
                difference += ending.charged.abs_diff(billed);
            }
            (Outcome::Aborted | Outcome::Completed, "abandoned", "dropped")
            | (Outcome::Completed, "closed", "no_usage")
            | (Outcome::Failed, "closed", "provider_failed")
            | (Outcome::Failed, "settled" | "abandoned", "client_gone" | "dropped")
            | (Outcome::Refused, "closed", "provider_failed")
            | (Outcome::Refused, "abandoned", "dropped") => {}
            other => panic!("{other:?} of {row:?}: {record:?}"),
        }
    }
    eprintln!(
        "{completed} completed, each charged as billed; {aborted} cut, {difference} tokens apart in all"
    );
    assert!(completed > 0 && aborted > 0, "{completed} completed, {aborted} aborted");
}

/// Each request has up to four ends of a connection in this one process.
fn allow_many_connections() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })
        .expect("a soft limit may rise to the hard one");
}

fn number(variable: &str) -> Option<usize> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|error| panic!("{variable}={text}: {error}")))
}
