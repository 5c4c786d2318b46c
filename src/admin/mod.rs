//! The edge for operators: its own address, its own token.
//!
//! `/livez` and `/readyz` are open, everything else needs `Authorization: Bearer TOKEN`. Answers are JSON, errors among them, and say
//! what, where and what to do. Never here: a decision, a secret, a prompt.

mod budgets;
pub mod client;
mod cluster;
mod keys;
mod listener;
mod made;
mod policy;
mod pools;
mod tenants;
mod token;
mod usage;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use serde_json::{Value, json};
use subtle::ConstantTimeEq;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::node::Node;
use crate::node::agreement::Agreement;
use crate::node::membership::Membership;
use crate::policy::MAX_BYTES;
use crate::proxy::{Tls, TlsFiles};
use crate::reload::PolicyFile;
use listener::TlsListener;
pub use made::random_key;
pub use token::{AdminToken, TokenProblem};

/// The longest of the router's own refusals, which name a member and say what is wrong with it.
const LONGEST_REFUSAL: usize = 64 * 1024;

/// What the admin edge serves from.
pub struct Admin {
    /// The node.
    pub node: Arc<Node>,
    /// What is agreed on.
    pub agreement: Arc<Agreement>,
    /// The policy file that is followed, if there is one.
    pub file: Option<Arc<PolicyFile>>,
    /// Who may ask.
    pub token: AdminToken,
    /// Whether the node takes new requests: false while it starts and from the first moment of its stop.
    pub ready: Arc<AtomicBool>,
    /// Where callers reach it.
    pub callers: SocketAddr,
    /// A certificate and its key; none: plain HTTP.
    pub tls: Option<TlsFiles>,
    /// The node's part in a cluster, if it has one.
    pub membership: Option<Membership>,
    /// To be cancelled when the node has left its cluster for good and is to stop.
    pub leave: CancellationToken,
}

/// A listening admin edge.
pub struct AdminServer {
    address: SocketAddr,
    is_tls: bool,
    stopping: CancellationToken,
    task: tokio::task::JoinHandle<std::io::Result<()>>,
}

impl AdminServer {
    /// Listens on `address` until [`AdminServer::shut_down`].
    ///
    /// # Errors
    /// The address cannot be listened on, or the certificate cannot be used.
    pub async fn bind(address: SocketAddr, admin: Admin) -> std::io::Result<Self> {
        let tls = admin.tls.clone().map(Tls::load).transpose();
        let tls = tls.map_err(|problem| std::io::Error::new(std::io::ErrorKind::InvalidInput, problem))?;
        let is_tls = tls.is_some();
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let stopping = CancellationToken::new();
        let stopped = stopping.clone().cancelled_owned();
        let node = admin.node.clone();
        let router = router(Arc::new(admin));
        let task = if let Some(tls) = tls {
            let tell = move |result| node.metrics.count_tls_reload("admin", result);
            tokio::spawn(tls.clone().follow(stopping.clone(), tell));
            let serving = axum::serve(TlsListener::new(listener, tls), router);
            tokio::spawn(async move { serving.with_graceful_shutdown(stopped).await })
        } else {
            let serving = axum::serve(listener, router);
            tokio::spawn(async move { serving.with_graceful_shutdown(stopped).await })
        };
        Ok(Self { address, is_tls, stopping, task })
    }

    /// Whether it speaks TLS.
    #[must_use]
    pub const fn is_tls(&self) -> bool {
        self.is_tls
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
        .route("/v1/cluster", get(cluster::page))
        .route("/v1/cluster/leave", post(cluster::leave))
        .route("/v1/cluster/remove", post(cluster::remove))
        .route("/v1/cluster/keyring", get(cluster::page).post(cluster::keyring))
        .route("/v1/policy", get(policy::page).post(policy::apply))
        .route("/v1/policy/log", get(policy::log))
        .route("/v1/policy/rollback", post(policy::rollback))
        .route("/v1/policy/{version}", get(policy::show))
        .route("/v1/keys", get(keys::list).post(keys::create).delete(keys::revoke))
        .route("/v1/keys/rotate", post(keys::rotate))
        .route("/v1/pools", get(pools::page))
        .route("/v1/budgets", get(budgets::list))
        .route("/v1/budgets/used", post(budgets::set_used))
        .route("/v1/budgets/release", post(budgets::release))
        .route("/v1/usage", get(usage::sums))
        .route("/v1/usage/rows", get(usage::rows))
        .route("/v1/tenants", get(tenants::list))
        .route("/v1/tenants/{id}", get(tenants::page))
        .route("/v1/tenants/{id}/suspension", put(tenants::suspend).delete(tenants::resume))
        .route("/v1/tenants/{id}/override", put(tenants::override_limits).delete(tenants::restore))
        // A byte beyond the longest document, by which its reader knows that there is more, and says so.
        .layer(DefaultBodyLimit::max(MAX_BYTES + 1))
        .route_layer(middleware::from_fn_with_state(admin.clone(), authorised));
    Router::new()
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .merge(guarded)
        .fallback(async || problem(StatusCode::NOT_FOUND, "not_found", "Nothing is served at this path."))
        .layer(middleware::map_response(in_json))
        .with_state(admin)
}

/// What the router and its extractors refuse by themselves, they refuse in plain text: here it becomes an error like any other.
async fn in_json(answer: Response) -> Response {
    let status = answer.status();
    let is_plain =
        answer.headers().get(header::CONTENT_TYPE).is_none_or(|kind| kind.as_bytes().starts_with(b"text/"));
    if !status.is_client_error() || !is_plain {
        return answer;
    }
    let allow = answer.headers().get(header::ALLOW).cloned();
    let said = axum::body::to_bytes(answer.into_body(), LONGEST_REFUSAL).await.unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    let (code, message) = match status {
        StatusCode::METHOD_NOT_ALLOWED => ("method_not_allowed", "This path does not take this method."),
        StatusCode::PAYLOAD_TOO_LARGE => ("too_large", &*said),
        _ => ("bad_request", &*said),
    };
    let mut answer = problem(status, code, message);
    if let Some(allow) = allow {
        answer.headers_mut().insert(header::ALLOW, allow);
    }
    answer
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
    if !admin.ready.load(Ordering::Acquire) {
        return (StatusCode::SERVICE_UNAVAILABLE, "not ready: starting or stopping\n").into_response();
    }
    let membership = admin.membership.as_ref().and_then(Membership::waiting_for);
    match membership.or_else(|| admin.agreement.waiting_for()) {
        None => "ready\n".into_response(),
        Some(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {why}\n")).into_response(),
    }
}

async fn metrics(State(admin): State<Arc<Admin>>) -> Response {
    if let Some(membership) = &admin.membership {
        membership.tell(&admin.node.metrics);
    }
    admin.agreement.tell(&admin.node.metrics);
    let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, content_type)], admin.node.render_metrics()).into_response()
}

fn json_page(page: &Value) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], page.to_string()).into_response()
}

fn problem(status: StatusCode, code: &'static str, message: &str) -> Response {
    let page = json!({ "error": { "code": code, "message": message } });
    (status, [(header::CONTENT_TYPE, "application/json")], page.to_string()).into_response()
}
