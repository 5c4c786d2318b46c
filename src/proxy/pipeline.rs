//! The steps of a request. Each takes the value of the step before and returns a richer one: credential → principal → ask → estimate
//! → guard or denial → exchange → answer.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Body;
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use super::answer;
use super::body::AnswerBody;
use super::limits;
use super::own;
use super::reject::Rejection;
use crate::auth::Credential;
use crate::estimate::{self, Encoding, OutputRule};
use crate::limit::{Amount, IdempotencyDigest, Name, ReservationId};
use crate::node::compile::encoding_of;
use crate::node::{Asking, Node, Principal, Reserved, Snapshot};
use crate::policy::{Model, OutputEstimate};
use crate::route::{Ask, Bounds, Dialect, Endpoint, Missing};
use crate::upstream::{self, Outbound, Upstream, hygiene};

/// Bounds of the edge.
#[derive(Clone, Copy, Debug)]
pub struct EdgeOptions {
    /// The largest request body, in bytes.
    pub max_body: usize,
    /// How long a request body may take to arrive.
    pub body_timeout: Duration,
}

impl Default for EdgeOptions {
    fn default() -> Self {
        Self { max_body: 32 * 1024 * 1024, body_timeout: Duration::from_secs(30) }
    }
}

/// Bytes on their way from a caller: a connection's, or those of a test that holds them back.
pub trait RequestBody: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> {}

impl<B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>> RequestBody for B {}

/// The edge of one node.
pub struct Edge {
    /// The node.
    pub node: Arc<Node>,
    /// Its bounds.
    pub options: EdgeOptions,
}

/// Above this many bytes a body is read and counted off the async workers: at 20 MB/s it would hold one for a millisecond.
const LONG_BODY: usize = 16 * 1024;

/// A request that was read, resolved and counted.
struct Counted {
    ask: Ask,
    model: Name,
    upstream_model: String,
    upstream: Arc<Upstream>,
    estimate: Amount,
}

impl Edge {
    /// Answers one request, wherever its body comes from.
    pub async fn handle<B: RequestBody>(self: &Arc<Self>, request: Request<B>) -> Response<AnswerBody> {
        let id = self.node.new_id();
        let anthropic = request.headers().contains_key("anthropic-version");
        let found = Endpoint::find(request.method().as_str(), request.uri().path());
        let dialect = match found {
            Ok(endpoint) => endpoint.dialect(anthropic),
            Err(missing) => missing.dialect(),
        };
        let answered = match found {
            _ if asks_for_upgrade(&request) => Err(Rejection::upgrade()),
            Ok(Endpoint::Models) => self.list_models(&request, dialect),
            Ok(endpoint) => self.serve(id, endpoint, request).await,
            Err(missing) => self.own_endpoint(&request, missing),
        };
        let response = answered.unwrap_or_else(|rejection| self.reject(rejection, dialect, id));
        with_decision(response, id)
    }

    /// What a bug looks like from outside.
    pub fn failed(&self, path: &str, anthropic: bool) -> Response<AnswerBody> {
        let dialect = match Endpoint::find("POST", path) {
            Ok(endpoint) => endpoint.dialect(anthropic),
            Err(missing) => missing.dialect(),
        };
        let id = self.node.new_id();
        with_decision(self.reject(Rejection::internal(), dialect, id), id)
    }

    async fn serve<B: RequestBody>(
        self: &Arc<Self>,
        id: ReservationId,
        endpoint: Endpoint,
        request: Request<B>,
    ) -> Result<Response<AnswerBody>, Rejection> {
        let began = crate::clock::now();
        let snapshot = self.node.snapshot();
        let principal = authenticate(&snapshot, request.headers())?;
        let (parts, body) = request.into_parts();
        let body = self.read_body(&parts, body).await?;

        let counting = crate::clock::now();
        let counted = self.count(&snapshot, &principal, endpoint, &body).await?;
        let reserving = crate::clock::now();
        let asking = Asking {
            id,
            principal: &principal,
            endpoint,
            model_asked: &counted.ask.model,
            model: &counted.model,
            estimate: counted.estimate,
            idempotency: idempotency(&principal, &parts),
        };
        let mut guard = match self.node.reserve(asking).await {
            Reserved::Held(guard) => guard,
            Reserved::Denied(denial, levels) => {
                return Err(Rejection::denied(&principal.tenant, &denial, levels));
            }
        };

        let sending = crate::clock::now();
        let steps = &self.node.metrics.steps;
        steps.authenticate.observe_span(counting.since(began));
        steps.estimate.observe_span(reserving.since(counting));
        steps.reserve.observe_span(sending.since(reserving));
        let upstream = &counted.upstream;
        let deadline = crate::clock::timer_now() + upstream.timeouts.total;
        let outbound = outbound(endpoint, &parts, &counted, &body, deadline);
        drop(body);
        let exchanged = upstream::send(&mut guard, &self.node.metrics, upstream, &outbound).await;
        drop(outbound);
        steps.first_byte.observe_span(crate::clock::now().since(sending));
        match exchanged {
            Ok(response) => {
                let exchange = answer::Exchange {
                    edge: self.clone(),
                    guard,
                    dialect: endpoint.dialect(false),
                    upstream: upstream.clone(),
                    choices: counted.ask.choices,
                    drop_usage: counted.ask.stream && counted.ask.include_usage != Some(true),
                    has_usage: endpoint != Endpoint::CountTokens,
                    on_disconnect: snapshot
                        .tenant_of(&principal)
                        .and_then(|tenant| snapshot.policy.on_disconnect_of(tenant)),
                    encoding: encoding(&snapshot, &counted.model),
                    deadline,
                };
                answer::pass_on(exchange, response).await
            }
            Err(failure) => {
                tracing::warn!(provider = upstream.name, id = %id, ?failure, "no answer from the provider");
                let levels = *guard.levels();
                let receipt = guard.give_up("no_answer");
                let mut rejection = Rejection::upstream(&upstream.name, &failure, receipt.charged);
                rejection.levels = levels;
                Err(rejection)
            }
        }
    }

    async fn read_body<B: RequestBody>(&self, parts: &Parts, body: B) -> Result<Bytes, Rejection> {
        if parts.headers.contains_key(header::CONTENT_ENCODING) {
            return Err(Rejection::encoded_body());
        }
        let bound = self.options.max_body;
        if body.size_hint().lower() > bound as u64 {
            return Err(Rejection::body_too_large(bound));
        }
        let collecting = tokio::time::timeout(self.options.body_timeout, Limited::new(body, bound).collect());
        match collecting.await {
            Ok(Ok(collected)) => Ok(collected.to_bytes()),
            Ok(Err(error)) if error.is::<LengthLimitError>() => Err(Rejection::body_too_large(bound)),
            Ok(Err(_)) => Err(Rejection::body_broken()),
            Err(_elapsed) => Err(Rejection::body_late()),
        }
    }

    /// Reads the body, resolves its model and counts its tokens: off the async workers when that takes long.
    async fn count(
        self: &Arc<Self>,
        snapshot: &Arc<Snapshot>,
        principal: &Arc<Principal>,
        endpoint: Endpoint,
        body: &Bytes,
    ) -> Result<Counted, Rejection> {
        if body.len() <= LONG_BODY {
            return count(&self.node, snapshot, principal, endpoint, body);
        }
        let (node, snapshot, principal, body) =
            (self.node.clone(), snapshot.clone(), principal.clone(), body.clone());
        let counting =
            tokio::task::spawn_blocking(move || count(&node, &snapshot, &principal, endpoint, &body));
        counting.await.unwrap_or_else(|_| Err(Rejection::internal()))
    }

    fn list_models<B>(
        &self,
        request: &Request<B>,
        dialect: Dialect,
    ) -> Result<Response<AnswerBody>, Rejection> {
        let snapshot = self.node.snapshot();
        let principal = authenticate(&snapshot, request.headers())?;
        Ok(own::models(&snapshot, &principal, dialect))
    }

    /// Tollgate's own endpoints, else nothing.
    fn own_endpoint<B>(
        &self,
        request: &Request<B>,
        missing: Missing,
    ) -> Result<Response<AnswerBody>, Rejection> {
        let path = request.uri().path();
        let Some(own) = path.strip_prefix("/tollgate/v1/") else { return Err(Rejection::missing(missing)) };
        if request.method() != Method::GET {
            return Err(Rejection::missing(Missing::Method { dialect: missing.dialect(), allow: "GET" }));
        }
        let snapshot = self.node.snapshot();
        let principal = authenticate(&snapshot, request.headers())?;
        match (own, own.strip_prefix("decisions/")) {
            ("me", _) => Ok(own::me(&self.node, &snapshot, &principal)),
            (_, Some(id)) => own::decision(&self.node, &principal, id),
            _ => Err(Rejection::missing(missing)),
        }
    }

    pub(super) fn reject(
        &self,
        rejection: Rejection,
        dialect: Dialect,
        id: ReservationId,
    ) -> Response<AnswerBody> {
        if !rejection.decided {
            self.node.metrics.count_decision("error", rejection.code);
        }
        let levels = rejection.levels;
        let response = rejection.into_response(dialect, id, rand::random());
        let (mut parts, body) = response.into_parts();
        limits::add(&mut parts.headers, dialect, &levels, crate::clock::wall_now());
        Response::from_parts(parts, AnswerBody::whole(body))
    }
}

fn with_decision(mut response: Response<AnswerBody>, id: ReservationId) -> Response<AnswerBody> {
    if let Ok(value) = HeaderValue::try_from(id.to_string()) {
        response.headers_mut().insert("x-tollgate-decision", value);
    }
    response
}

fn authenticate(snapshot: &Snapshot, headers: &http::HeaderMap) -> Result<Arc<Principal>, Rejection> {
    let known = Credential::find(headers)
        .ok()
        .and_then(|credential| snapshot.keys.find(credential, crate::clock::wall_now()));
    known.or(snapshot.everyone.as_ref()).cloned().ok_or_else(Rejection::unauthenticated)
}

fn count(
    node: &Node,
    snapshot: &Snapshot,
    principal: &Principal,
    endpoint: Endpoint,
    body: &[u8],
) -> Result<Counted, Rejection> {
    let ask = Ask::read(endpoint, body, &Bounds::default()).map_err(Rejection::bad_ask)?;
    let Some((model, name, upstream)) = snapshot.model(&ask.model) else {
        return count_without_policy(snapshot, endpoint, ask);
    };
    if snapshot.tenant_of(principal).is_some_and(|tenant| !tenant.allows_model(&model.name)) {
        return Err(Rejection::model_not_allowed(&ask.model, "is not among those that this tenant may use"));
    }
    if upstream.dialect != endpoint.dialect(false) {
        let why = format!("is served by a provider that speaks {}, not on this route", upstream.dialect);
        return Err(Rejection::model_not_allowed(&ask.model, &why));
    }
    let estimate = match endpoint {
        // Asks how many tokens there are: the provider bills none.
        Endpoint::CountTokens => Amount::default(),
        _ => {
            let encoding = encoding_of(&model.tokenizer);
            let input = estimate::input_tokens_for(&ask, &model.upstream_model, encoding, &node.token_cache);
            let rule = snapshot.policy.route_of(endpoint.path()).map(|route| route.output_estimate);
            let rule = match rule.unwrap_or_default() {
                OutputEstimate::None => OutputRule::None,
                OutputEstimate::Ceiling => ceiling(model),
                OutputEstimate::Learned { percentile } => node
                    .learned
                    .quantile(endpoint, name, percentile)
                    .map_or_else(|| ceiling(model), |tokens| learned(model, &ask, tokens)),
            };
            let estimate = estimate::of(&ask, input, rule);
            Amount::new(estimate.input, estimate.output)
        }
    };
    Ok(Counted {
        model: name.clone(),
        upstream_model: model.upstream_model.clone(),
        upstream: upstream.clone(),
        estimate,
        ask,
    })
}

fn ceiling(model: &Model) -> OutputRule {
    OutputRule::Ceiling { default: model.default_output_tokens, model_max: model.max_output_tokens }
}

/// What was learned, but never more than the request's own ceiling.
fn learned(model: &Model, ask: &Ask, tokens: u64) -> OutputRule {
    let named = ask.output_ceiling.unwrap_or(u64::MAX).min(model.max_output_tokens.unwrap_or(u64::MAX));
    OutputRule::Ceiling { default: tokens, model_max: Some(tokens.min(named)) }
}

/// A model that the policy does not have: refused, unless the limits are off.
fn count_without_policy(snapshot: &Snapshot, endpoint: Endpoint, ask: Ask) -> Result<Counted, Rejection> {
    let Some(upstream) = snapshot.any_upstream(endpoint.dialect(false)) else {
        return Err(Rejection::unknown_model(&ask.model));
    };
    Ok(Counted {
        model: ask.model.as_str().into(),
        upstream_model: ask.model.clone(),
        upstream: upstream.clone(),
        estimate: Amount::default(),
        ask,
    })
}

fn encoding(snapshot: &Snapshot, model: &str) -> Encoding {
    snapshot.model(model).map_or(Encoding::O200k, |(model, ..)| encoding_of(&model.tokenizer))
}

fn outbound(
    endpoint: Endpoint,
    parts: &Parts,
    counted: &Counted,
    body: &Bytes,
    deadline: Instant,
) -> Outbound {
    let query = parts.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let ask_for_usage = counted.upstream.include_usage;
    Outbound {
        method: Method::POST,
        path_and_query: format!("{}{query}", endpoint.path()),
        headers: hygiene::outbound(&parts.headers),
        body: counted.ask.patched(body, Some(&counted.upstream_model), ask_for_usage),
        deadline,
    }
}

/// The key with its tenant, so that one tenant's keys are nothing to another.
fn idempotency(principal: &Principal, parts: &Parts) -> Option<IdempotencyDigest> {
    let key = parts.headers.get("idempotency-key").filter(|key| !key.is_empty())?;
    let mut hash = Sha256::new();
    hash.update(principal.tenant.as_bytes());
    hash.update([0]);
    hash.update(key.as_bytes());
    let mut digest = [0; 16];
    digest.copy_from_slice(&hash.finalize()[..16]);
    Some(IdempotencyDigest(u128::from_be_bytes(digest)))
}

fn asks_for_upgrade<B>(request: &Request<B>) -> bool {
    // An offer of HTTP/2 may be passed over (RFC 9110 §7.8); a WebSocket handshake waits for an answer to it.
    let web_socket = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"websocket");
    request.method() == Method::CONNECT || request.headers().get_all(header::UPGRADE).iter().any(web_socket)
}
