//! What was made through one node belongs to its tenant on every other: at once, after a restart, and when the node that made it is gone.

#![allow(clippy::unwrap_used, reason = "an answer of another shape fails the test, as it should")]

mod support;

use serde_json::{Value, json};
use support::cluster::{Cluster, Peer};
use support::{Client, Key, Policy, Response, eventually, policy::AMPLE};

fn ours() -> Key {
    Key::of("northwind")
}

fn theirs() -> Key {
    Key::of("contoso")
}

async fn three_nodes() -> Cluster {
    let policy = |policy: Policy| {
        policy.route("{ path: /v1/responses, stateful: true }").tenant("northwind", &ours(), AMPLE).tenant(
            "contoso",
            &theirs(),
            AMPLE,
        )
    };
    Cluster::patient(3, policy).await
}

async fn respond(node: &Peer, key: &Key, more: Value) -> Response {
    let mut body = json!({"model": "gpt-5", "input": "Say something.", "max_output_tokens": 9});
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    let url = format!("{}/v1/responses", node.callers);
    Client::new().post(&url, &[("authorization", &key.bearer())], &body).await
}

async fn ask(node: &Peer, key: &Key, method: &str, id: &str) -> Response {
    let url = format!("{}/v1/responses/{id}", node.callers);
    Client::new().ask(method, &url, &[("authorization", &key.bearer())]).await
}

fn id_of(answer: &Response) -> String {
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["id"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_made_through_one_node_is_found_through_every_other_and_by_its_tenant_alone() {
    let mut cluster = three_nodes().await;
    let made = id_of(&respond(&cluster.nodes[0], &ours(), json!({})).await);
    for node in &cluster.nodes {
        assert_eq!(ask(node, &ours(), "GET", &made).await.status, 200, "{}", node.address);
        assert_eq!(ask(node, &theirs(), "GET", &made).await.status, 404, "{}", node.address);
        assert_eq!(ask(node, &ours(), "GET", "resp_unknown").await.status, 404, "{}", node.address);
        let continued = json!({"previous_response_id": made});
        assert_eq!(respond(node, &theirs(), continued.clone()).await.status, 404);
        assert_eq!(respond(node, &ours(), continued).await.status, 200);
    }

    // Everybody is told of what nobody asks for.
    let told = id_of(&respond(&cluster.nodes[0], &ours(), json!({})).await);
    eventually("all nodes know of all", async || {
        let mut known = Vec::new();
        for node in &cluster.nodes {
            known.push(node.metric("tollgate_held", &["map=\"possessions\""]).await);
        }
        if known == [5; 3] { Ok(()) } else { Err(format!("{known:?}")) }
    })
    .await;
    cluster.nodes[0].kill();
    assert_eq!(ask(&cluster.nodes[1], &ours(), "GET", &told).await.status, 200);
    let unknown = ask(&cluster.nodes[1], &ours(), "GET", "resp_unknown").await;
    assert_eq!(
        (unknown.status, unknown.header("x-tollgate-error")),
        (503, Some("limiter_unavailable")),
        "the node that is gone may know"
    );

    // Its next life knows, though nobody else is there to be asked.
    cluster.nodes[0].start_and_join().await;
    assert_eq!(cluster.nodes[0].metric("tollgate_held", &["map=\"possessions\""]).await, 5);
    assert_eq!(ask(&cluster.nodes[0], &theirs(), "GET", &told).await.status, 404);
    assert_eq!(ask(&cluster.nodes[0], &ours(), "DELETE", &told).await.status, 200);
    eventually("all nodes know that it is gone", async || {
        for node in &cluster.nodes {
            let answer = ask(node, &ours(), "GET", &told).await;
            if answer.header("x-tollgate-error") != Some("not_found") {
                return Err(format!("{}: {}", node.address, answer.text()));
            }
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_goes_on_in_the_background_settles_whichever_node_sees_its_end() {
    let cluster = three_nodes().await;
    let begun = respond(&cluster.nodes[0], &ours(), json!({"background": true})).await;
    let id = id_of(&begun);
    let decision = begun.header("x-tollgate-decision").unwrap().to_owned();
    let ending = async || {
        let url = format!("{}/tollgate/v1/decisions/{decision}", cluster.nodes[0].callers);
        Client::new().get(&url, &[("authorization", &ours().bearer())]).await.json()["ending"].clone()
    };
    assert_eq!(ending().await, Value::Null, "it is still being made");
    assert_eq!(ask(&cluster.nodes[1], &theirs(), "GET", &id).await.status, 404);
    assert_eq!(ending().await, Value::Null, "a stranger ends nothing");
    let done = ask(&cluster.nodes[1], &ours(), "GET", &id).await.json();
    let ending = eventually("its reservation is settled", async || match ending().await {
        Value::Null => Err("it is open".to_owned()),
        ending => Ok(ending),
    })
    .await;
    assert_eq!((&ending["how"], &ending["charged"]), (&json!("settled"), &done["usage"]["total_tokens"]));
    assert_eq!(
        ask(&cluster.nodes[2], &ours(), "GET", &id).await.status,
        200,
        "and is there for who asks next"
    );
}
