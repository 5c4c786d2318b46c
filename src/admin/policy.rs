//! The policy, for operators: what is in force and how this node stands to it, what was, and what is to be.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Admin, json_page, problem};
use crate::control::policy::{Entry, Origin};
use crate::node::Snapshot;
use crate::node::agreement::{Agreed, Disagreement, Proposal, fits_keys, text_of};
use crate::policy::diff::{Differences, diff};
use crate::policy::{self, Problems, summary};

/// How a document is to be taken.
#[derive(Deserialize)]
pub(super) struct Wish {
    /// The version that it replaces; 0: there is none yet.
    expect: Option<u64>,
    /// Whether it is only looked at.
    #[serde(default)]
    dry_run: bool,
    /// Who proposes it, for people.
    by: Option<String>,
}

/// Which version is to come back.
#[derive(Deserialize)]
pub(super) struct Rollback {
    to: u64,
    expect: Option<u64>,
    by: Option<String>,
}

/// `GET /v1/policy`
pub(super) async fn page(State(admin): State<Arc<Admin>>) -> Response {
    let snapshot = admin.node.snapshot();
    let policy = &snapshot.policy;
    let providers: Vec<Value> = snapshot
        .upstreams
        .iter()
        .map(|upstream| {
            json!({
                "name": upstream.name,
                "dialect": upstream.dialect.name(),
                "problem": upstream.problem(),
                "outdated": upstream.outdated(),
            })
        })
        .collect();
    let file = admin.file.as_ref().map(|file| {
        let standing = file.standing();
        json!({
            "path": file.path().display().to_string(),
            "in_step_with": standing.in_step_with,
            "conflict": standing.conflict,
        })
    });
    let control = admin.agreement.control();
    json_page(&json!({
        "version": snapshot.policy_version,
        "agreed_version": snapshot.version,
        "in_force": snapshot.version == control.version(),
        "problem": admin.agreement.waiting_for(),
        "file": file,
        "tenants": policy.tenants.len(),
        "keys": snapshot.keys.len(),
        "models": policy.models.keys().collect::<Vec<_>>(),
        "providers": providers,
        "warnings": warnings_of(policy),
        "limits_off": snapshot.everyone.is_some(),
    }))
}

/// `GET /v1/policy/log`: the versions that are kept, the newest first.
pub(super) async fn log(State(admin): State<Arc<Admin>>) -> Response {
    let control = admin.agreement.control();
    let current = control.policy().version();
    let versions: Vec<Value> =
        control.policy().entries().rev().map(|entry| entry_json(entry, entry.version == current)).collect();
    json_page(&json!({ "versions": versions }))
}

/// `GET /v1/policy/{version}`: a version's text; `current` is the last one.
pub(super) async fn show(State(admin): State<Arc<Admin>>, Path(version): Path<String>) -> Response {
    let control = admin.agreement.control();
    let current = control.policy().version();
    let entry = match version.as_str() {
        "current" => control.policy().current(),
        number => number.parse().ok().and_then(|number| kept(&control, number)),
    };
    let Some(entry) = entry else { return not_kept() };
    match text_of(entry) {
        Ok(text) => {
            let mut page = entry_json(entry, entry.version == current);
            page["text"] = Value::String(text);
            json_page(&page)
        }
        Err(why) => problem(StatusCode::INTERNAL_SERVER_ERROR, "unreadable", &why),
    }
}

/// `POST /v1/policy?expect=V`: the document is the body.
pub(super) async fn apply(
    State(admin): State<Arc<Admin>>,
    Query(wish): Query<Wish>,
    text: String,
) -> Response {
    let by = wish.by.unwrap_or_else(|| "an operator".to_owned());
    let proposal =
        Proposal { text: &text, name: "policy", expect: wish.expect, origin: Origin::Operator, by: &by };
    take(&admin, proposal, wish.dry_run).await
}

/// `POST /v1/policy/rollback`: an earlier version's document as a new version.
pub(super) async fn rollback(
    State(admin): State<Arc<Admin>>,
    Json(Rollback { to, expect, by }): Json<Rollback>,
) -> Response {
    let control = admin.agreement.control();
    let Some(entry) = kept(&control, to) else { return not_kept() };
    let text = match text_of(entry) {
        Ok(text) => text,
        Err(why) => return problem(StatusCode::INTERNAL_SERVER_ERROR, "unreadable", &why),
    };
    let by = by.unwrap_or_else(|| "an operator".to_owned());
    let name = format!("version {}", entry.version);
    let origin = Origin::Rollback(entry.version);
    take(&admin, Proposal { text: &text, name: &name, expect, origin, by: &by }, false).await
}

async fn take(admin: &Admin, proposal: Proposal<'_>, dry_run: bool) -> Response {
    let control = admin.agreement.control();
    let before = control.policy().current().map(text_of).transpose().unwrap_or_default().unwrap_or_default();
    let current = control.policy().version();
    let (text, name) = (proposal.text.to_owned(), proposal.name.to_owned());
    let keys = control.keys().clone();
    // A large policy takes a second to read: not on a worker that serves requests.
    let read = tokio::task::spawn_blocking(move || {
        let policy = policy::parse(&text, &name)?;
        let fits = fits_keys(&policy, &keys);
        Ok((summary::of(&policy), diff(&before, &text).unwrap_or_default(), fits))
    });
    let (summary, differences, fits) = match read.await {
        Ok(Ok(read)) => read,
        Ok(Err(problems)) => return invalid(&problems),
        Err(_stopping) => return disagreement(&Disagreement::Unavailable("this node stops".to_owned())),
    };
    if let Err(why) = fits {
        return disagreement(&Disagreement::Refused(why));
    }
    // What is compared with is what is replaced, and nothing that came since.
    let proposal = Proposal { expect: proposal.expect.or(Some(current)), ..proposal };
    let agreed = match dry_run {
        true => {
            if let Some(expected) = proposal.expect.filter(|expected| *expected != current) {
                return disagreement(&Disagreement::Conflict { expected, ours: current });
            }
            None
        }
        false => match admin.agreement.propose(proposal).await {
            Ok(agreed) => Some(agreed),
            Err(Disagreement::Invalid(problems)) => return invalid(&problems),
            Err(why) => return disagreement(&why),
        },
    };
    json_page(&json!({
        "dry_run": dry_run,
        "replaces": current,
        "version": agreed.map_or(current, |agreed| agreed.version),
        "already": agreed.is_some_and(|agreed| agreed.already),
        "in_force": agreed.map(in_force_words),
        "diff": lines_of(&differences),
        "differences": differences,
        "summary": summary,
    }))
}

/// Where a version is in force once its proposer has an answer.
pub(super) fn in_force_words(agreed: Agreed) -> &'static str {
    match agreed.everywhere {
        true => "on every node",
        false => "on every node that may answer: those that have not said so have no lease any more",
    }
}

fn lines_of(differences: &Differences) -> Vec<String> {
    let more = (differences.untold > 0).then(|| format!("  and {} more", differences.untold));
    differences.settings.iter().map(ToString::to_string).chain(more).collect()
}

fn kept(control: &crate::control::Control, version: u64) -> Option<&Entry> {
    control.policy().at(version).filter(|_| version <= control.version())
}

fn entry_json(entry: &Entry, current: bool) -> Value {
    let origin = match entry.origin {
        Origin::Seed => "seed".to_owned(),
        Origin::File => "file".to_owned(),
        Origin::Operator => "apply".to_owned(),
        Origin::Rollback(to) => format!("rollback to {to}"),
    };
    let at = Timestamp::from_millisecond(entry.wall_millis).map(|at| at.to_string()).unwrap_or_default();
    json!({
        "version": entry.version,
        "current": current,
        "at": at,
        "origin": origin,
        "by": entry.by,
        "sha256": hex::encode(entry.digest),
    })
}

fn warnings_of(policy: &policy::Policy) -> Vec<String> {
    let told = |warning: &policy::Problem| {
        format!("{}:{}: {}: {}", warning.line, warning.column, warning.path, warning.message)
    };
    policy.warnings.iter().map(told).collect()
}

fn not_kept() -> Response {
    let message = "No such version is kept. GET /v1/policy/log lists them.";
    problem(StatusCode::NOT_FOUND, "not_found", message)
}

fn invalid(problems: &Problems) -> Response {
    let page = json!({
        "error": { "code": "invalid_policy", "message": problems.to_string() },
        "errors": problems.errors,
        "untold_errors": problems.untold,
        "warnings": problems.warnings,
    });
    (StatusCode::UNPROCESSABLE_ENTITY, [(header::CONTENT_TYPE, "application/json")], page.to_string())
        .into_response()
}

/// Why something was not agreed on.
pub(super) fn disagreement(why: &Disagreement) -> Response {
    let (status, code) = match why {
        Disagreement::Invalid(problems) => return invalid(problems),
        Disagreement::Refused(_) => (StatusCode::CONFLICT, "refused"),
        Disagreement::Conflict { .. } => (StatusCode::CONFLICT, "conflict"),
        Disagreement::Unavailable(_) => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
        Disagreement::Unknown(_) => (StatusCode::SERVICE_UNAVAILABLE, "unknown_outcome"),
    };
    problem(status, code, &why.to_string())
}

/// The number of keys that callers may use now, by tenant.
pub(super) fn keys_of(snapshot: &Snapshot, tenant: &policy::Tenant) -> usize {
    let agreed = snapshot.agreed_keys.of_tenant(&tenant.id).count();
    let own = tenant.keys.iter().filter(|key| snapshot.agreed_keys.revoked(&key.hash.0).is_none());
    own.count() + agreed
}
