//! The cluster, for operators: who is in it and how it does, who goes, and the change of its secret.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};
use tollgate_cluster::id::NodeId;
use tollgate_cluster::keyring::KeyId;
use tollgate_cluster::member::{Member, Status};

use super::{Admin, json_page, problem};
use crate::node::Tenants;
use crate::node::owners::SHARDS;

/// How long a node may take to leave for good. Its lease must be over before it can be forgotten.
const LEAVE: Duration = Duration::from_secs(45);

/// The node to remove.
#[derive(Deserialize)]
pub(super) struct Remove {
    id: u64,
}

/// A step of a key's rotation.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Step {
    /// A new key, in hexadecimal.
    Install(String),
    /// The fingerprint of a key.
    Use(String),
    /// The fingerprint of a key.
    Remove(String),
}

/// The whole cluster, by the leader's view if it can be had.
pub(super) async fn page(State(admin): State<Arc<Admin>>) -> Response {
    let Some(membership) = &admin.membership else { return json_page(&alone(&admin)) };
    match membership.member().status().await {
        Some(status) => json_page(&cluster_json(&status)),
        None => unavailable(membership.waiting_for()),
    }
}

/// Hands over, is forgotten, and stops.
pub(super) async fn leave(State(admin): State<Arc<Admin>>) -> Response {
    let member = match member(&admin) {
        Ok(member) => member,
        Err(refusal) => return *refusal,
    };
    if !member.hand_over(LEAVE, true).await {
        let message = "No other node can take the shards, or not in time: nothing was removed. Look at GET /v1/cluster.";
        return problem(StatusCode::CONFLICT, "no_heir", message);
    }
    admin.leave.cancel();
    json_page(&json!({ "left": true }))
}

/// Forgets a node that is gone for good.
pub(super) async fn remove(State(admin): State<Arc<Admin>>, Json(Remove { id }): Json<Remove>) -> Response {
    let member = match member(&admin) {
        Ok(member) => member,
        Err(refusal) => return *refusal,
    };
    match member.remove(NodeId(id)).await {
        Ok(()) => json_page(&json!({ "removed": id })),
        Err(why) => problem(StatusCode::CONFLICT, "refused", &why),
    }
}

/// Takes a step of a key's rotation.
pub(super) async fn keyring(State(admin): State<Arc<Admin>>, Json(step): Json<Step>) -> Response {
    let member = match member(&admin) {
        Ok(member) => member,
        Err(refusal) => return *refusal,
    };
    let fingerprint = |text: &str| u128::from_str_radix(text, 16).map(KeyId);
    let bad = |what: &str| problem(StatusCode::BAD_REQUEST, "bad_request", what);
    let no_key = "That is no fingerprint of a key: GET /v1/cluster/keyring lists them.";
    let done = match step {
        Step::Install(secret) => match hex::decode(secret) {
            Ok(secret) => member.install_key(secret).await.map(|key| json!({ "key": key_text(key) })),
            Err(_) => return bad("The key is not hexadecimal."),
        },
        Step::Use(key) => match fingerprint(&key) {
            Ok(key) => member.use_key(key).await.map(|()| json!({ "in_use": key_text(key) })),
            Err(_) => return bad(no_key),
        },
        Step::Remove(key) => match fingerprint(&key) {
            Ok(key) => member.remove_key(key).await.map(|()| json!({ "removed": key_text(key) })),
            Err(_) => return bad(no_key),
        },
    };
    done.map_or_else(|why| problem(StatusCode::CONFLICT, "refused", &why), |page| json_page(&page))
}

fn member(admin: &Admin) -> Result<&Member<Tenants>, Box<Response>> {
    let message = "This node is its own cluster: it was started without --peer.";
    let membership = admin.membership.as_ref();
    membership
        .map(crate::node::membership::Membership::member)
        .ok_or_else(|| Box::new(problem(StatusCode::CONFLICT, "alone", message)))
}

fn unavailable(waiting: Option<String>) -> Response {
    let why = waiting.unwrap_or_else(|| "starting".to_owned());
    problem(
        StatusCode::SERVICE_UNAVAILABLE,
        "not_a_member",
        &format!("This node is not a member yet: {why}."),
    )
}

fn key_text(key: KeyId) -> String {
    format!("{:032x}", key.0)
}

/// A node without cluster flags is its own cluster: one member that owns every shard and needs no lease.
fn alone(admin: &Admin) -> Value {
    json!({
        "leader": 1,
        "epoch": 1,
        "moves": [],
        "members": [{
            "id": 1,
            "address": admin.callers.to_string(),
            "role": "leader",
            "session": admin.node.session(),
            "lease_left_ms": null,
            "shards": SHARDS,
        }],
        "keys": [],
        "warnings": ["one node: when it stops, nothing is admitted. Members of a cluster take over from each other"],
    })
}

fn cluster_json(status: &Status) -> Value {
    let members: Vec<Value> = status
        .members
        .iter()
        .map(|member| {
            json!({
                "id": member.id.0,
                "address": member.address,
                "role": member.role,
                "session": member.session.map(|session| session.to_string()),
                "lease_left_ms": member.lease_left_ms,
                "shards": member.shards,
                "in_ring": member.in_ring,
                "heard": member.heard,
                "lag": member.lag,
            })
        })
        .collect();
    let keys: Vec<Value> = status
        .keys
        .iter()
        .map(|key| {
            let held_by: Vec<u64> = key.held_by.iter().map(|node| node.0).collect();
            json!({ "key": key_text(key.key), "in_use": key.in_use, "held_by": held_by })
        })
        .collect();
    json!({
        "cluster": status.cluster.to_string(),
        "told_by": status.told_by.0,
        "leader": status.leader.map(|leader| leader.0),
        "epoch": status.epoch.0,
        "moves": status.moves,
        "unowned": status.unowned,
        "applied": status.applied,
        "members": members,
        "keys": keys,
        "warnings": status.warnings,
    })
}
