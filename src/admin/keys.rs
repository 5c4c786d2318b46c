//! Keys, for operators: made, listed, rotated and revoked. A secret that is made here is shown once and kept nowhere.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use super::policy::{disagreement, in_force_words};
use super::{Admin, json_page, problem, random_key};
use crate::control::keys::{Change, Key, KeyName, Limits, Secret};
use crate::node::Snapshot;
use crate::node::agreement::{Agreed, Disagreement};
use crate::policy::{KeyHash, MAX_AMOUNT, is_name, parse_duration};

/// How long the older secrets work after a rotation, unless told otherwise.
const GRACE: &str = "24h";

/// A key to be made.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Create {
    tenant: String,
    label: String,
    /// `sha256:…` of a secret that was made elsewhere. Without it, one is made here and shown.
    hash: Option<String>,
    project: Option<String>,
    /// An instant as in RFC 3339, or a length of time from now.
    expires: Option<String>,
    tokens_per_minute: Option<u64>,
    input_tokens_per_minute: Option<u64>,
    output_tokens_per_minute: Option<u64>,
    burst_tokens: Option<u64>,
    requests_per_minute: Option<u64>,
    burst_requests: Option<u64>,
    max_inflight: Option<u64>,
}

/// A key to be given another secret.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Rotate {
    tenant: String,
    label: String,
    hash: Option<String>,
    /// How long the older secrets work.
    grace: Option<String>,
}

/// Whose keys.
#[derive(Deserialize)]
pub(super) struct Whose {
    tenant: Option<String>,
}

/// Which key.
#[derive(Deserialize)]
pub(super) struct Which {
    tenant: String,
    label: String,
}

/// What is wrong with a request, in words.
type Bad = String;

/// `GET /v1/keys?tenant=T`
pub(super) async fn list(State(admin): State<Arc<Admin>>, Query(whose): Query<Whose>) -> Response {
    let snapshot = admin.node.snapshot();
    let now = crate::clock::wall_now();
    let mut keys = Vec::new();
    for tenant in &snapshot.policy.tenants {
        if whose.tenant.as_ref().is_some_and(|wanted| *wanted != tenant.id) {
            continue;
        }
        for key in &tenant.keys {
            let revoked = snapshot.agreed_keys.revoked(&key.hash.0).is_some();
            let over = revoked || key.expires.is_some_and(|expires| expires <= now);
            keys.push(json!({
                "tenant": tenant.id,
                "label": key.label,
                "source": "policy",
                "project": key.project,
                "expires": key.expires.map(|at| at.to_string()),
                "works": !over,
                "revoked": revoked,
                "secrets": [{ "hash": short(&key.hash), "works": !over }],
            }));
        }
        let agreed = snapshot.agreed_keys.of_tenant(&tenant.id);
        keys.extend(agreed.map(|(name, key)| key_json(name, key, now)));
    }
    json_page(&json!({ "version": snapshot.version, "keys": keys }))
}

/// `POST /v1/keys`
pub(super) async fn create(State(admin): State<Arc<Admin>>, Json(wish): Json<Create>) -> Response {
    let name = KeyName { tenant: wish.tenant, label: wish.label };
    let limits = Limits {
        tokens_per_minute: wish.tokens_per_minute,
        input_tokens_per_minute: wish.input_tokens_per_minute,
        output_tokens_per_minute: wish.output_tokens_per_minute,
        burst_tokens: wish.burst_tokens,
        requests_per_minute: wish.requests_per_minute,
        burst_requests: wish.burst_requests,
        max_inflight: wish.max_inflight,
    };
    let read = checked_limits(&limits)
        .and_then(|()| checked_label(&name.label))
        .and_then(|()| wish.expires.as_deref().map(instant).transpose())
        .and_then(|expires| Ok((secret(wish.hash.as_deref())?, expires)));
    let (Made { key, hash }, expires) = match read {
        Ok(read) => read,
        Err(bad) => return bad_request(&bad),
    };
    let (project, expires) = (wish.project, expires.map(Timestamp::as_millisecond));
    let change = |_: &Snapshot| {
        let (name, project) = (name.clone(), project.clone());
        Ok(Change::Create { name, hash: hash.0, project, limits, expires })
    };
    done(admin.agreement.change_key(change).await, &name, Some((key, hash)))
}

/// `POST /v1/keys/rotate`
pub(super) async fn rotate(State(admin): State<Arc<Admin>>, Json(wish): Json<Rotate>) -> Response {
    let name = KeyName { tenant: wish.tenant, label: wish.label };
    let grace = wish.grace.as_deref().unwrap_or(GRACE);
    let read = after(grace).and_then(|until| Ok((secret(wish.hash.as_deref())?, until)));
    let (Made { key, hash }, until) = match read {
        Ok(read) => read,
        Err(bad) => return bad_request(&bad),
    };
    let until = until.as_millisecond();
    let change = |_: &Snapshot| Ok(Change::Rotate { name: name.clone(), hash: hash.0, until });
    done(admin.agreement.change_key(change).await, &name, Some((key, hash)))
}

/// `DELETE /v1/keys?tenant=T&label=L`: one that is agreed on is gone, one of the policy's document works no more.
pub(super) async fn revoke(State(admin): State<Arc<Admin>>, Query(which): Query<Which>) -> Response {
    let name = KeyName { tenant: which.tenant, label: which.label };
    let change = |snapshot: &Snapshot| {
        let tenant = snapshot.policy.tenant(&name.tenant);
        let own = tenant.into_iter().flat_map(|tenant| &tenant.keys).filter(|key| key.label == name.label);
        let hashes: Vec<_> = own.map(|key| key.hash.0).collect();
        if hashes.is_empty() && snapshot.agreed_keys.get(&name).is_none() {
            return Err(format!("tenant {} has no key {:?}", name.tenant, name.label));
        }
        Ok(Change::Revoke { name: name.clone(), hashes })
    };
    done(admin.agreement.change_key(change).await, &name, None)
}

/// A secret, if it was made here, and its hash.
struct Made {
    key: Option<String>,
    hash: KeyHash,
}

fn secret(given: Option<&str>) -> Result<Made, Bad> {
    match given {
        Some(text) => {
            let hash = KeyHash::parse(text).ok_or(
                "`hash` is not `sha256:` and 64 lowercase hexadecimal digits: `tollgate keys hash` makes it",
            )?;
            Ok(Made { key: None, hash })
        }
        None => {
            let (key, hash) = random_key()?;
            Ok(Made { key: Some(key), hash })
        }
    }
}

fn done(
    agreed: Result<Agreed, Disagreement>,
    name: &KeyName,
    made: Option<(Option<String>, KeyHash)>,
) -> Response {
    let agreed = match agreed {
        Ok(agreed) => agreed,
        Err(why) => return disagreement(&why),
    };
    let mut page = json!({
        "tenant": name.tenant,
        "label": name.label,
        "version": agreed.version,
        "in_force": in_force_words(agreed),
    });
    if let Some((key, hash)) = made {
        page["hash"] = json!(hash.to_string());
        page["key"] = json!(key);
    }
    json_page(&page)
}

fn key_json(name: &KeyName, key: &Key, now: Timestamp) -> Value {
    let at = |millis: i64| Timestamp::from_millisecond(millis).map(|at| at.to_string()).unwrap_or_default();
    let expired = key.expires.is_some_and(|expires| expires <= now.as_millisecond());
    let works = |secret: &Secret| !expired && secret.until.is_none_or(|until| now.as_millisecond() < until);
    let secrets: Vec<Value> = key
        .secrets
        .iter()
        .map(|secret| {
            json!({
                "hash": short(&KeyHash(secret.hash)),
                "made": at(secret.made),
                "until": secret.until.map(at),
                "works": works(secret),
            })
        })
        .collect();
    json!({
        "tenant": name.tenant,
        "label": name.label,
        "source": "agreed",
        "project": key.project,
        "expires": key.expires.map(at),
        "works": !expired,
        "revoked": false,
        "since": key.since,
        "limits": key.limits,
        "secrets": secrets,
    })
}

/// Enough of a hash to tell keys apart.
fn short(hash: &KeyHash) -> String {
    hash.to_string().chars().take("sha256:".len() + 12).collect()
}

fn checked_label(label: &str) -> Result<(), Bad> {
    match is_name(label) {
        true => Ok(()),
        false => Err("`label` is not a name: use 1 to 64 letters, digits and . _ - : / @, beginning with a letter or digit".to_owned()),
    }
}

pub(super) fn checked_limits(limits: &Limits) -> Result<(), Bad> {
    let all = [
        ("tokens_per_minute", limits.tokens_per_minute),
        ("input_tokens_per_minute", limits.input_tokens_per_minute),
        ("output_tokens_per_minute", limits.output_tokens_per_minute),
        ("burst_tokens", limits.burst_tokens),
        ("requests_per_minute", limits.requests_per_minute),
        ("burst_requests", limits.burst_requests),
        ("max_inflight", limits.max_inflight),
    ];
    let bad = all.iter().find(|(_, limit)| limit.is_some_and(|limit| !(1..=MAX_AMOUNT).contains(&limit)));
    match bad {
        Some((name, _)) => Err(format!("`{name}` is not from 1 to {MAX_AMOUNT}")),
        None => Ok(()),
    }
}

/// An instant, or one that is so long from now.
fn instant(text: &str) -> Result<Timestamp, Bad> {
    match text.parse::<Timestamp>() {
        Ok(at) => Ok(at),
        Err(_) => after(text).map_err(|_| {
            format!("`{text}` is no instant: write it as in 2027-03-31T00:00:00Z, or as a length of time such as 720h")
        }),
    }
}

fn after(text: &str) -> Result<Timestamp, Bad> {
    let length = parse_duration(text).map_err(|problem| format!("`{text}` {problem}"))?;
    let length = jiff::SignedDuration::try_from(length).map_err(|_| format!("`{text}` is too long"))?;
    crate::clock::wall_now().checked_add(length).map_err(|_| format!("`{text}` is too long"))
}

fn bad_request(why: &str) -> Response {
    problem(StatusCode::BAD_REQUEST, "bad_request", why)
}
