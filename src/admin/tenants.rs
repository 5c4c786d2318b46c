//! Tenants, for operators: what they hold, and what is excepted from the policy for them: suspensions, and limits that are overridden.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use super::keys::checked_limits;
use super::policy::{self, disagreement, in_force_words};
use super::{Admin, json_page, problem};
use crate::control::exceptions::{Change, OVERRIDE_LONGEST};
use crate::control::keys::Limits;
use crate::limit::Name;
use crate::node::Snapshot;
use crate::node::agreement::{Agreed, Disagreement};
use crate::node::compile::settings_of;
use crate::node::owners::shard_of;
use crate::node::view::limits_json;
use crate::policy::{Policy, Tenant, arithmetic, parse_duration};

/// Limits that are to hold instead of the policy's for a while.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Override {
    /// How long.
    r#for: String,
    #[serde(flatten)]
    limits: Limits,
}

/// `GET /v1/tenants`
pub(super) async fn list(State(admin): State<Arc<Admin>>) -> Response {
    let snapshot = admin.node.snapshot();
    let tenants: Vec<Value> = snapshot
        .policy
        .tenants
        .iter()
        .map(|tenant| json!({ "id": tenant.id, "tier": tenant.tier, "shard": shard_of(&tenant.id).number(), "keys": policy::keys_of(&snapshot, tenant), "suspended": snapshot.exceptions.suspended().contains_key(&tenant.id), "override": override_json(&snapshot, &tenant.id) }))
        .collect();
    json_page(&json!({ "tenants": tenants }))
}

/// `GET /v1/tenants/{id}`
pub(super) async fn page(State(admin): State<Arc<Admin>>, Path(id): Path<String>) -> Response {
    let snapshot = admin.node.snapshot();
    match snapshot.policy.tenant(&id) {
        Some(tenant) => json_page(&tenant_page(&admin, &snapshot, tenant).await),
        None => no_such_tenant(),
    }
}

async fn tenant_page(admin: &Admin, snapshot: &Snapshot, tenant: &Tenant) -> Value {
    let name = Name::from(tenant.id.as_str());
    let (owner, view) = admin.node.look(&name).await;
    let view = view.unwrap_or_default();
    let keys: Vec<Value> = tenant
        .keys
        .iter()
        .map(|key| json!({ "label": key.label, "project": key.project, "expires": key.expires.map(|at| at.to_string()) }))
        .collect();
    json!({
        "id": tenant.id,
        "tier": tenant.tier,
        "owner": owner.map(|node| node.0),
        "shard": shard_of(&tenant.id).number(),
        "policy_version": snapshot.version,
        "suspended": snapshot.exceptions.suspended().get(&tenant.id).map(|suspension| at(suspension.wall_millis)),
        "override": override_json(snapshot, &tenant.id),
        "limits": limits_json(&view, |_| true),
        "budgets": super::budgets::of_tenant(admin.agreement.control().budgets(), Some(&tenant.id)),
        "inflight": view.open,
        "users": view.users,
        "open_reservations": view.open,
        "keys": keys,
    })
}

/// `PUT /v1/tenants/{id}/suspension`
pub(super) async fn suspend(State(admin): State<Arc<Admin>>, Path(id): Path<String>) -> Response {
    let change = |snapshot: &Snapshot| known(snapshot, &id).map(|_| Change::Suspend);
    done(admin.agreement.except(&id, change).await, &id, &[])
}

/// `DELETE /v1/tenants/{id}/suspension`. Of a tenant that the policy no longer has as well.
pub(super) async fn resume(State(admin): State<Arc<Admin>>, Path(id): Path<String>) -> Response {
    done(admin.agreement.except(&id, |_| Ok(Change::Resume)).await, &id, &[])
}

/// `PUT /v1/tenants/{id}/override`
pub(super) async fn override_limits(
    State(admin): State<Arc<Admin>>,
    Path(id): Path<String>,
    Json(wish): Json<Override>,
) -> Response {
    let limits = wish.limits;
    let length = match checked_limits(&limits).and_then(|()| length(&wish.r#for)) {
        Ok(_) if limits == Limits::default() => {
            return problem(
                StatusCode::BAD_REQUEST,
                "bad_request",
                "name a limit that is to hold instead of the policy's",
            );
        }
        Ok(length) => length,
        Err(bad) => return problem(StatusCode::BAD_REQUEST, "bad_request", &bad),
    };
    let change = |snapshot: &Snapshot| {
        arithmetic::is_served(&overridden(snapshot, &id, &limits)?, &snapshot.document, &id)?;
        Ok(Change::Override { limits, length })
    };
    let before = admin.node.snapshot();
    let agreed = admin.agreement.except(&id, change).await;
    let sums = overridden(&before, &id, &limits).map(|then| arithmetic::compared(&before.policy, &then));
    done(agreed, &id, &sums.unwrap_or_default())
}

/// `DELETE /v1/tenants/{id}/override`. Of a tenant that the policy no longer has as well.
pub(super) async fn restore(State(admin): State<Arc<Admin>>, Path(id): Path<String>) -> Response {
    done(admin.agreement.except(&id, |_| Ok(Change::Restore)).await, &id, &[])
}

fn known<'a>(snapshot: &'a Snapshot, id: &str) -> Result<&'a Tenant, String> {
    snapshot.document.tenant(id).ok_or_else(|| format!("the policy has no tenant {id}"))
}

/// The policy as it would be with these limits for a tenant.
fn overridden(snapshot: &Snapshot, id: &str, limits: &Limits) -> Result<Policy, String> {
    let own = known(snapshot, id)?.limits;
    let mut policy = Policy::clone(&snapshot.policy);
    let tenant = policy.tenants.iter_mut().find(|tenant| tenant.id == id);
    if let Some(tenant) = tenant {
        tenant.limits = settings_of(limits).or(&own);
    }
    Ok(policy)
}

fn length(text: &str) -> Result<u64, String> {
    let length = parse_duration(text).map_err(|problem| format!("`{text}` {problem}"))?;
    match u64::try_from(length.as_nanos()) {
        Ok(nanos @ 1..=OVERRIDE_LONGEST) => Ok(nanos),
        _ => Err(format!(
            "`{text}` is not within 1ms and 168h: what is to hold longer belongs into the policy"
        )),
    }
}

fn done(agreed: Result<Agreed, Disagreement>, id: &str, sums: &[String]) -> Response {
    match agreed {
        Ok(agreed) => json_page(&json!({
            "tenant": id,
            "version": agreed.version,
            "in_force": in_force_words(agreed),
            "sums": sums,
        })),
        Err(why) => disagreement(&why),
    }
}

fn override_json(snapshot: &Snapshot, id: &str) -> Option<Value> {
    let one = snapshot.exceptions.overrides().get(id)?;
    Some(json!({ "limits": one.limits, "since": one.since, "until_about": at(one.wall_until) }))
}

fn at(millis: i64) -> String {
    Timestamp::from_millisecond(millis).map(|at| at.to_string()).unwrap_or_default()
}

fn no_such_tenant() -> Response {
    problem(StatusCode::NOT_FOUND, "not_found", "The policy has no such tenant. GET /v1/tenants lists them.")
}
