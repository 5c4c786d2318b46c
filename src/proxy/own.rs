//! Tollgate's own endpoints on the callers' port: the models that may be used, a caller's own limits, its own decisions.

use bytes::Bytes;
use http::{HeaderValue, Response, header};
use serde_json::{Value, json};

use super::body::AnswerBody;
use super::reject::Rejection;
use crate::limit::{ReservationId, Scope};
use crate::node::view::{budget_json, limits_json};
use crate::node::{Node, Principal, Snapshot};
use crate::route::Dialect;

/// `GET /v1/models`: those that the caller's tenant may use, by name and alias, in its dialect.
pub(super) fn models(snapshot: &Snapshot, principal: &Principal, dialect: Dialect) -> Response<AnswerBody> {
    let allowed = |model: &str| snapshot.may_use(principal, model);
    let mut names: Vec<(&str, &str)> = Vec::new();
    for model in snapshot.policy.models.values() {
        let Some(upstream) = snapshot.upstreams.get(&model.provider) else { continue };
        if upstream.dialect == dialect && allowed(&model.name) {
            names.push((&model.name, &model.provider));
            names.extend(model.aliases.iter().map(|alias| (alias.as_str(), model.provider.as_str())));
        }
    }
    names.sort_unstable();
    let page = match dialect {
        Dialect::OpenAi => {
            let data = names
                .iter()
                .map(|(id, owner)| json!({ "id": id, "object": "model", "created": 0, "owned_by": owner }));
            json!({ "object": "list", "data": data.collect::<Vec<_>>() })
        }
        Dialect::Gemini => {
            let models = names.iter().map(|(id, _)| {
                json!({
                    "name": format!("models/{id}"), "displayName": id,
                    "supportedGenerationMethods": ["generateContent", "countTokens"],
                })
            });
            json!({ "models": models.collect::<Vec<_>>() })
        }
        Dialect::Anthropic => {
            let data = names.iter().map(|(id, _)| {
                json!({ "type": "model", "id": id, "display_name": id, "created_at": "1970-01-01T00:00:00Z" })
            });
            json!({
                "data": data.collect::<Vec<_>>(),
                "has_more": false,
                "first_id": names.first().map(|(id, _)| id),
                "last_id": names.last().map(|(id, _)| id),
            })
        }
    };
    answer(&page)
}

/// `GET /tollgate/v1/me`: the caller's tenant, what its limits hold now, and where its budgets stand.
pub(super) async fn me(node: &Node, snapshot: &Snapshot, principal: &Principal) -> Response<AnswerBody> {
    let view = node.look(&principal.tenant).await.1.unwrap_or_default();
    let budgets = node.escrow().budgets_of(&principal.tenant, principal.project.as_deref(), &principal.key);
    let budgets: Vec<Value> =
        budgets.iter().map(|(budget, view)| budget_json(budget, view.as_ref())).collect();
    answer(&json!({
        "tenant": &*principal.tenant,
        "key": &*principal.key,
        "project": principal.project.as_deref(),
        "tier": &*principal.tier,
        "policy_version": snapshot.version,
        "enforcement": snapshot.tenant_of(principal).map_or("none", |tenant| {
            match snapshot.policy.enforcement_of(tenant) {
                crate::policy::Enforcement::Enforce => "enforce",
                crate::policy::Enforcement::Shadow => "shadow",
            }
        }),
        "limits": limits_json(&view, |scope| is_on_path(scope, principal)),
        "budgets": budgets,
        "open_reservations": view.open,
    }))
}

/// `GET /tollgate/v1/decisions/{id}`: one of the caller's own.
pub(super) fn decision(
    node: &Node,
    principal: &Principal,
    id: &str,
) -> Result<Response<AnswerBody>, Rejection> {
    let id = id.strip_prefix("tg_").unwrap_or(id);
    let found = id.parse::<ReservationId>().ok().and_then(|id| node.decisions.find(&principal.tenant, id));
    let record = found.ok_or_else(|| Rejection::not_found("This decision"))?;
    Ok(answer(&record.to_json()))
}

/// A caller sees its tenant's limits and its own key's, not those of the tenant's other keys.
fn is_on_path(scope: &Scope, principal: &Principal) -> bool {
    match scope {
        Scope::Key(label) => *label == principal.key,
        Scope::Project(id) => principal.project.as_ref() == Some(id),
        Scope::Tenant | Scope::Model(_) => true,
        // Which user's, the question does not say.
        Scope::User => false,
    }
}

fn answer(page: &Value) -> Response<AnswerBody> {
    let mut response = Response::new(AnswerBody::whole(Bytes::from(page.to_string())));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
