//! The usage ledger: each request that was served is one row, at what the provider billed, whichever node was asked; a node that dies
//! loses at most what it had not written, and says so.

#![allow(clippy::unwrap_used, reason = "an answer of another shape fails the test, as it should")]

mod support;

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;

use serde_json::{Value, json};
use support::policy::AMPLE;
use support::{Client, Cluster, Key, Peer, Policy, Response, eventually};

const PRICES: &str = "price_book:\n  - { effective: 2020-01-01, models: { gpt-5: { input: 1.25, cache_read: 0.125, output: 10.00 } } }";

fn key(tenant: &str) -> Key {
    Key::of(tenant)
}

fn priced(policy: Policy) -> Policy {
    let policy =
        policy.tenant("northwind", &key("northwind"), AMPLE).tenant("contoso", &key("contoso"), AMPLE);
    policy.tenant("spent", &key("spent"), "requests_per_minute: 1, burst_requests: 1").and(PRICES)
}

async fn chat(client: &Client, node: &Peer, tenant: &str, sim: &str, more: Value) -> Response {
    let mut body = json!({
        "model": "gpt-5", "max_tokens": 30, "messages": [{ "role": "user", "content": "Say something of some length." }],
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let bearer = key(tenant).bearer();
    let headers = [("authorization", bearer.as_str()), ("x-sim", sim)];
    client.post(&format!("{}/v1/chat/completions", node.callers), &headers, &body).await
}

async fn message(client: &Client, node: &Peer, tenant: &str, sim: &str) -> Response {
    let body = json!({
        "model": "claude-haiku-4-5", "max_tokens": 30, "messages": [{ "role": "user", "content": "Say something." }],
    });
    let secret = key(tenant).secret;
    let headers = [("x-api-key", secret.as_str()), ("anthropic-version", "2023-06-01"), ("x-sim", sim)];
    client.post(&format!("{}/v1/messages", node.callers), &headers, &body).await
}

fn header(answer: &Response, name: &str) -> String {
    answer.header(name).unwrap_or_else(|| panic!("no {name}: {}", answer.text())).to_owned()
}

/// All rows by their id, each there once.
fn rows_of(jsonl: &str) -> BTreeMap<String, Value> {
    let mut rows = BTreeMap::new();
    for line in jsonl.lines() {
        let row: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let id = row["id"].as_str().unwrap().to_owned();
        assert!(rows.insert(id, row).is_none(), "twice: {line}");
    }
    rows
}

fn export(node: &Peer, more: &[&str]) -> (i32, String, String) {
    node.command(&[&["usage", "export"], more].concat())
}

#[tokio::test]
async fn each_request_is_one_row_at_what_the_provider_billed_whichever_node_is_asked() {
    let cluster = Cluster::of(3, priced).await;
    let client = Client::new();
    // The answer's decision → the provider's id for it.
    let mut served: BTreeMap<String, String> = BTreeMap::new();
    for number in 0..48 {
        let node = &cluster.nodes[number % 3];
        let tenant = if number % 2 == 0 { "northwind" } else { "contoso" };
        // The bill differs from the estimate, as in life.
        let (answer, id) = match number % 4 {
            0 => (chat(&client, node, tenant, "skew=1.07", json!({})).await, "x-request-id"),
            1 => (chat(&client, node, tenant, "chunks=4", json!({ "stream": true })).await, "x-request-id"),
            2 => (chat(&client, node, tenant, "tokens=9", json!({ "n": 2 })).await, "x-request-id"),
            _ => (message(&client, node, tenant, "skew=1.2").await, "request-id"),
        };
        assert_eq!(answer.status, 200, "{}", answer.text());
        served.insert(header(&answer, "x-tollgate-decision"), header(&answer, id));
    }
    let failed = chat(&client, &cluster.nodes[0], "northwind", "status=400", json!({})).await;
    assert_eq!(failed.status, 400);
    assert_eq!(chat(&client, &cluster.nodes[1], "spent", "", json!({})).await.status, 200);
    let refused = chat(&client, &cluster.nodes[2], "spent", "", json!({})).await;
    assert_eq!(refused.status, 429);

    let billed: BTreeMap<String, u64> = cluster
        .provider
        .requests()
        .await
        .iter()
        .map(|row| {
            let tokens = |name: &str| row[name].as_u64().unwrap();
            (row["id"].as_str().unwrap().to_owned(), tokens("input_tokens") + tokens("output_tokens"))
        })
        .collect();
    let (code, first, said) = export(&cluster.nodes[0], &[]);
    assert_eq!((code, said.as_str()), (0, ""));
    let rows = rows_of(&first);
    assert_eq!(rows.len(), served.len() + 2, "what was refused is no row");
    for (decision, id) in &served {
        let row = &rows[decision];
        assert_eq!(row["settled"], json!(billed[id]), "{row}");
        let parts = ["uncached_tokens", "cached_tokens", "cache_written_tokens", "output_tokens"];
        assert_eq!(parts.map(|part| row[part].as_u64().unwrap()).iter().sum::<u64>(), billed[id], "{row}");
        assert_eq!((&row["basis"], &row["outcome"]), (&json!("reported"), &json!("settled")), "{row}");
        let uncached = row["uncached_tokens"].as_u64().unwrap();
        let output = row["output_tokens"].as_u64().unwrap();
        if row["model"] == "gpt-5" {
            let cost = (uncached * 1_250_000 + output * 10_000_000).div_ceil(1_000_000);
            assert_eq!(
                (&row["cost_micro_dollars"], &row["price_book"]),
                (&json!(cost), &json!("2020-01-01")),
                "{row}"
            );
        } else {
            assert_eq!(
                (&row["cost_micro_dollars"], &row["price_book"]),
                (&Value::Null, &Value::Null),
                "{row}"
            );
        }
    }
    let failed = &rows[&header(&failed, "x-tollgate-decision")];
    assert_eq!((&failed["reason"], &failed["cost_micro_dollars"]), (&json!("provider_failed"), &json!(0)));
    assert!(failed["settled"].as_u64().unwrap() > 0, "the rate keeps the estimate");
    assert!(!rows.contains_key(&header(&refused, "x-tollgate-decision")));

    // The same from every node, for one tenant, of a time, as a table, and summed up.
    for node in &cluster.nodes[1..] {
        assert_eq!(rows_of(&export(node, &[]).1), rows);
    }
    let ours = rows_of(&export(&cluster.nodes[2], &["--tenant", "northwind", "--from", "2020-01-01"]).1);
    assert!(ours.len() == 25 && ours.values().all(|row| row["tenant"] == "northwind"), "{}", ours.len());
    assert_eq!(export(&cluster.nodes[2], &["--to", "2020-01-01"]).1, "");
    let (code, table, _) = export(&cluster.nodes[1], &["--format", "csv"]);
    assert_eq!((code, table.lines().count()), (0, rows.len() + 1));
    let sums = cluster.nodes[1].look("/v1/usage?by=tenant").await.unwrap();
    let settled: u64 = rows.values().map(|row| row["settled"].as_u64().unwrap()).sum();
    assert_eq!(
        (&sums["total"]["settled"], &sums["total"]["requests"]),
        (&json!(settled), &json!(rows.len()))
    );
    let groups = sums["groups"].as_array().unwrap();
    assert_eq!(
        groups.iter().map(|group| group["group"].as_str().unwrap()).collect::<Vec<_>>(),
        ["contoso", "northwind", "spent"]
    );
    for by in ["model", "key", "day"] {
        let same = cluster.nodes[0].look(&format!("/v1/usage?by={by}")).await.unwrap();
        assert_eq!(same["total"], sums["total"], "{by}");
    }
    let (code, text, _) = cluster.nodes[0].command(&["usage", "sums", "--by", "model"]);
    assert!(code == 0 && text.contains("claude-haiku-4-5") && text.contains("without a price"), "{text}");

    for (question, why) in [("from=yesterday", "no time"), ("by=user", "one of"), ("from=1.2.3", "no time")] {
        let refused = cluster.nodes[0].look(&format!("/v1/usage?{question}")).await.unwrap_err();
        assert!(refused.contains("400") && refused.contains(why), "{refused}");
    }
    let file = cluster.nodes[0].data().join("usage.parquet");
    let (code, _, said) =
        export(&cluster.nodes[0], &["--format", "parquet", "--output", &file.display().to_string()]);
    let bytes = fs::read(file).unwrap();
    assert!(code == 0 && bytes.starts_with(b"PAR1") && bytes.ends_with(b"PAR1"), "{said}");
}

#[tokio::test]
async fn a_killed_node_has_all_that_it_had_written_and_says_what_may_be_missing() {
    let mut cluster = Cluster::of(3, priced).await;
    let client = Client::new();
    let mut asked = Vec::new();
    for number in 0..30 {
        let answer = chat(&client, &cluster.nodes[number % 3], "northwind", "", json!({})).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        asked.push((number % 3, header(&answer, "x-tollgate-decision")));
    }
    // Neither node 0, which is the seed of the others, nor the leader.
    let leader = cluster.leader().await;
    let place = if leader == 2 { 1 } else { 2 };
    eventually("its rows are written", async || {
        match cluster.nodes[place].metric("tollgate_ledger_rows_total", &[]).await {
            10 => Ok(()),
            count => Err(format!("{count} rows")),
        }
    })
    .await;
    cluster.nodes[place].kill();
    let (code, rest, said) = export(&cluster.nodes[0], &[]);
    assert_eq!(code, 3, "{said}");
    assert!(said.contains("this is not all: node"), "{said}");
    assert_eq!(rows_of(&rest).len(), 20, "the others' are there");

    // It died within a write.
    let folder = cluster.nodes[place].data().join("usage");
    let files = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let last = files.filter(|path| path.extension().is_some_and(|end| end == "usage")).max().unwrap();
    OpenOptions::new().append(true).open(last).unwrap().write_all(b"\x40\0\0\0\x01half a row").unwrap();
    cluster.nodes[place].start_and_join().await;
    let log = cluster.nodes[place].log();
    assert!(log.contains("was not closed by its last life") && log.contains("\"cut_bytes\":15"), "{log}");
    let rows = eventually("all nodes answer", async || {
        let (code, rows, said) = export(&cluster.nodes[place], &[]);
        if code == 0 { Ok(rows_of(&rows)) } else { Err(said) }
    })
    .await;
    for (_, decision) in &asked {
        assert!(rows.contains_key(decision), "{decision} is lost");
    }
    assert_eq!(rows.len(), asked.len());

    // A node that stops as it should leaves nothing to say.
    let again = eventually("it serves again", async || {
        let answer = chat(&client, &cluster.nodes[place], "northwind", "", json!({})).await;
        if answer.status == 200 { Ok(answer) } else { Err(answer.text()) }
    })
    .await;
    cluster.nodes[place].stop().await;
    cluster.nodes[place].start_and_join().await;
    assert!(!cluster.nodes[place].log().contains("was not closed"), "{}", cluster.nodes[place].log());
    let (_, rows, said) = export(&cluster.nodes[place], &[]);
    assert!(
        rows_of(&rows).contains_key(&header(&again, "x-tollgate-decision")),
        "the last row was written before it ended: {said}"
    );
}
