//! The edge for operators: its own address, its own token.
//!
//! `/livez` and `/readyz` are open, everything else needs `Authorization: Bearer TOKEN`. Answers are JSON, errors among them, and say
//! what, where and what to do. Never here: a decision, a secret, a prompt.

mod token;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::{Value, json};
use subtle::ConstantTimeEq;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::limit::Name;
use crate::node::owners::{SHARDS, shard_of};
use crate::node::view::limits_json;
use crate::node::{Node, Snapshot};
use crate::policy::Tenant;
pub use token::{AdminToken, TokenProblem};

/// What the admin edge serves from.
pub struct Admin {
    /// The node.
    pub node: Arc<Node>,
    /// Who may ask.
    pub token: AdminToken,
    /// Whether the node takes new requests: false while it starts and from the first moment of its stop.
    pub ready: Arc<AtomicBool>,
    /// Where callers reach it.
    pub callers: SocketAddr,
}

/// A listening admin edge.
pub struct AdminServer {
    address: SocketAddr,
    stopping: CancellationToken,
    task: tokio::task::JoinHandle<std::io::Result<()>>,
}

impl AdminServer {
    /// Listens on `address` until [`AdminServer::shut_down`].
    ///
    /// # Errors
    /// The address cannot be listened on.
    pub async fn bind(address: SocketAddr, admin: Admin) -> std::io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let stopping = CancellationToken::new();
        let stopped = stopping.clone().cancelled_owned();
        let serving = axum::serve(listener, router(Arc::new(admin))).with_graceful_shutdown(stopped);
        let task = tokio::spawn(async move { serving.await });
        Ok(Self { address, stopping, task })
    }

    /// Where it listens.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Stops listening. Whoever still asks is cut after a second.
    pub async fn shut_down(self) {
        self.stopping.cancel();
        let mut task = self.task;
        if tokio::time::timeout(std::time::Duration::from_secs(1), &mut task).await.is_err() {
            task.abort();
        }
    }
}

fn router(admin: Arc<Admin>) -> Router {
    let guarded = Router::new()
        .route("/metrics", get(metrics))
        .route("/v1/cluster", get(cluster))
        .route("/v1/policy", get(policy))
        .route("/v1/tenants", get(tenants))
        .route("/v1/tenants/{id}", get(tenant))
        .route_layer(middleware::from_fn_with_state(admin.clone(), authorised));
    Router::new()
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .merge(guarded)
        .fallback(async || problem(StatusCode::NOT_FOUND, "not_found", "Nothing is served at this path."))
        .with_state(admin)
}

async fn authorised(State(admin): State<Arc<Admin>>, request: Request, next: Next) -> Response {
    let given = request.headers().get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
    let given = given.and_then(|value| value.strip_prefix(b"Bearer ")).unwrap_or_default();
    if bool::from(given.ct_eq(admin.token.expose().as_bytes())) {
        return next.run(request).await;
    }
    let message = "Send the admin token as `Authorization: Bearer TOKEN`; it is in TOLLGATE_ADMIN_TOKEN or in admin.token of the data folder.";
    problem(StatusCode::UNAUTHORIZED, "unauthenticated", message)
}

async fn readyz(State(admin): State<Arc<Admin>>) -> Response {
    if admin.ready.load(Ordering::Acquire) {
        "ready\n".into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "not ready: starting or stopping\n").into_response()
    }
}

async fn metrics(State(admin): State<Arc<Admin>>) -> Response {
    let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, content_type)], admin.node.render_metrics()).into_response()
}

async fn cluster(State(admin): State<Arc<Admin>>) -> Response {
    // A node without cluster flags is its own cluster: one member that owns every shard and needs no lease.
    json_page(&json!({
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
    }))
}

async fn policy(State(admin): State<Arc<Admin>>) -> Response {
    let snapshot = admin.node.snapshot();
    let policy = &snapshot.policy;
    let providers: Vec<Value> = snapshot
        .upstreams
        .iter()
        .map(|upstream| json!({ "name": upstream.name, "dialect": upstream.dialect.name(), "problem": upstream.problem() }))
        .collect();
    let warnings: Vec<String> = policy
        .warnings
        .iter()
        .map(|warning| format!("{}:{}: {}: {}", warning.line, warning.column, warning.path, warning.message))
        .collect();
    json_page(&json!({
        "version": snapshot.version,
        "tenants": policy.tenants.len(),
        "keys": snapshot.keys.len(),
        "models": policy.models.keys().collect::<Vec<_>>(),
        "providers": providers,
        "warnings": warnings,
        "limits_off": snapshot.everyone.is_some(),
    }))
}

async fn tenants(State(admin): State<Arc<Admin>>) -> Response {
    let snapshot = admin.node.snapshot();
    let tenants: Vec<Value> = snapshot
        .policy
        .tenants
        .iter()
        .map(|tenant| json!({ "id": tenant.id, "tier": tenant.tier, "shard": shard_of(&tenant.id), "keys": tenant.keys.len() }))
        .collect();
    json_page(&json!({ "tenants": tenants }))
}

async fn tenant(State(admin): State<Arc<Admin>>, Path(id): Path<String>) -> Response {
    let snapshot = admin.node.snapshot();
    match snapshot.policy.tenant(&id) {
        Some(tenant) => json_page(&tenant_page(&admin, &snapshot, tenant)),
        None => problem(
            StatusCode::NOT_FOUND,
            "not_found",
            "The policy has no such tenant. GET /v1/tenants lists them.",
        ),
    }
}

fn tenant_page(admin: &Admin, snapshot: &Snapshot, tenant: &Tenant) -> Value {
    let name = Name::from(tenant.id.as_str());
    let view = admin.node.owners().tenant(crate::clock::now(), &name).unwrap_or_default();
    let keys: Vec<Value> = tenant
        .keys
        .iter()
        .map(|key| json!({ "label": key.label, "project": key.project, "expires": key.expires.map(|at| at.to_string()) }))
        .collect();
    json!({
        "id": tenant.id,
        "tier": tenant.tier,
        "owner": 1,
        "shard": shard_of(&tenant.id),
        "policy_version": snapshot.version,
        "limits": limits_json(&view, |_| true),
        "budgets": [],
        "inflight": view.open,
        "open_reservations": view.open,
        "keys": keys,
    })
}

fn json_page(page: &Value) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], page.to_string()).into_response()
}

fn problem(status: StatusCode, code: &'static str, message: &str) -> Response {
    let page = json!({ "error": { "code": code, "message": message } });
    (status, [(header::CONTENT_TYPE, "application/json")], page.to_string()).into_response()
}
