//! The steps of a request. Each takes the value of the step before and returns a richer one: credential → principal → ask → estimate
//! → guard or denial → exchange → answer.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Body;
use sha2::{Digest, Sha256};

use super::admit::{Admitted, Wish};
use super::answer;
use super::body::AnswerBody;
use super::counted::{Counted, Reading, count, count_passed, keeps};
use super::edge::pace::{Late, Pace, Paced};
use super::edge::places::Claim;
use super::limits;
use super::outbound::outbound;
use super::own;
use super::reject::Rejection;
use super::users;
use crate::auth::{Credential, caller_address, neighbourhood};
use crate::estimate::Encoding;
use crate::limit::{IdempotencyDigest, ReservationId};
use crate::node::compile::encoding_of;
use crate::node::{Node, Principal, Snapshot};
use crate::route::{Dialect, Door, Endpoint, Found, Kept, Missing};
use crate::upstream;

/// Bounds of the edge.
#[derive(Clone, Copy, Debug)]
pub struct EdgeOptions {
    /// The largest request body, in bytes.
    pub max_body: usize,
    /// The least that is expected of a request body.
    pub pace: Pace,
}

impl Default for EdgeOptions {
    fn default() -> Self {
        let pace = Pace { silence: Duration::from_secs(30), rate: 500, grace: Duration::from_secs(10) };
        Self { max_body: 32 * 1024 * 1024, pace }
    }
}

/// The address at the other end of a request's connection, in the request's extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(pub IpAddr);

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

/// Where a request is to go: an endpoint, by one of its doors.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub endpoint: Endpoint,
    /// Whose shapes to answer in.
    pub dialect: Dialect,
    /// Whether it came by Azure's door.
    pub azure: bool,
    /// The version of Gemini's API, where the path has one.
    pub version: Option<&'static str>,
    /// The model that the path names.
    pub model: Option<String>,
}

impl Target {
    /// An endpoint by its own door.
    pub(super) fn to(endpoint: Endpoint) -> Self {
        Self { endpoint, dialect: endpoint.spoken(), azure: false, version: None, model: None }
    }

    fn of(found: &Found<'_>, anthropic: bool) -> Self {
        Self {
            endpoint: found.endpoint,
            dialect: found.dialect(anthropic),
            azure: matches!(found.door, Door::Azure(_)),
            version: match found.door {
                Door::Gemini { version, .. } => Some(version),
                Door::Own | Door::Azure(_) => None,
            },
            model: found.model().map(str::to_owned),
        }
    }
}

impl Edge {
    /// Answers one request, wherever its body comes from.
    pub async fn handle<B: RequestBody>(self: &Arc<Self>, request: Request<B>) -> Response<AnswerBody> {
        // What the request becomes is reserved under its own number. Let go of at the end, that is void, unless budgets pay for it.
        let number = self.node.begin();
        let id = number.id();
        let anthropic = request.headers().contains_key("anthropic-version");
        let target = self.target(request.method().as_str(), request.uri().path(), anthropic);
        let dialect = match &target {
            Ok(target) if target.endpoint == Endpoint::Models && speaks_gemini(request.headers()) => {
                Dialect::Gemini
            }
            Ok(target) => target.dialect,
            Err(missing) => missing.dialect(),
        };
        let answered = match target {
            _ if asks_for_upgrade(&request) => Err(Rejection::upgrade()),
            Ok(target) if target.endpoint == Endpoint::Models => self.list_models(&request, dialect),
            Ok(target) => self.serve(id, target, request).await,
            Err(missing) => {
                // The path lives in the request, which is given away.
                let (method, path) = (request.method().clone(), request.uri().path().to_owned());
                match Kept::find(method.as_str(), &path) {
                    Some((kept, wish)) => self.kept(id, kept, wish, request, missing).await,
                    None => self.own_endpoint(&method, &path, request.headers(), missing).await,
                }
            }
        };
        let response = answered.unwrap_or_else(|rejection| self.reject(rejection, dialect, id));
        with_decision(response, id)
    }

    /// Answers a request that is not handled: what its head, or a bug, looks like from outside.
    pub(super) fn refuse(&self, rejection: Rejection, path: &str, anthropic: bool) -> Response<AnswerBody> {
        let dialect = match self.target("POST", path, anthropic) {
            Ok(target) => target.dialect,
            Err(missing) => missing.dialect(),
        };
        let id = self.node.new_id();
        with_decision(self.reject(rejection, dialect, id), id)
    }

    /// An endpoint of our own, else a route of the policy that is passed through.
    fn target(&self, method: &str, path: &str, anthropic: bool) -> Result<Target, Missing> {
        let missing = match Endpoint::find(method, path) {
            Ok(found) => return Ok(Target::of(&found, anthropic)),
            Err(missing) => missing,
        };
        let snapshot = self.node.snapshot();
        let Some(upstream) = snapshot.passed_through(path).filter(|_| Kept::of_route(path).is_none()) else {
            return Err(missing);
        };
        let dialect = upstream.dialect;
        match method {
            "POST" => Ok(Target {
                endpoint: Endpoint::PassedThrough,
                dialect,
                azure: false,
                version: None,
                model: None,
            }),
            _ => Err(Missing::Method { dialect, allow: "POST" }),
        }
    }

    async fn serve<B: RequestBody>(
        self: &Arc<Self>,
        id: ReservationId,
        target: Target,
        request: Request<B>,
    ) -> Result<Response<AnswerBody>, Rejection> {
        let began = crate::clock::now();
        let snapshot = self.node.snapshot();
        let principal = authenticate(&snapshot, request.headers(), request.uri().query(), target.dialect)?;
        let (parts, body) = request.into_parts();
        show_key(&parts, &principal)?;
        let body = self.read_body(&parts, body).await?;

        let counting = crate::clock::now();
        let target = Arc::new(target);
        let endpoint = target.endpoint;
        let counted = self.count(&snapshot, &principal, &target, &parts, &body, None).await?;
        let reserving = crate::clock::now();
        let user =
            users::of_request(&self.node, &snapshot, &principal, &parts.headers, counted.reading.user())?;
        let bump = self.pass_bump(&snapshot, &principal, &parts, counted.estimate.total)?;
        let estimate = counted.estimate.total;
        let wish = Wish {
            id,
            snapshot: &snapshot,
            principal: &principal,
            target: &target,
            parts: &parts,
            body: &body,
            user,
            idempotency: idempotency(&principal, &parts),
        };
        let Admitted { counted, mut guard, degraded } =
            self.admit(wish, counted).await.inspect_err(|_denied| {
                if let Some(address) = bump {
                    self.node.crowd.give_back(address, estimate);
                }
            })?;

        let sending = crate::clock::now();
        let steps = &self.node.metrics.steps;
        steps.authenticate.observe_span(counting.since(began));
        steps.estimate.observe_span(reserving.since(counting));
        steps.reserve.observe_span(sending.since(reserving));
        let upstream = &counted.upstream;
        let deadline = crate::clock::timer_now() + upstream.timeouts.total;
        let keeps = keeps(&snapshot, endpoint);
        let outbound = outbound(&target, &parts, &counted, &body, !keeps, deadline)?;
        drop(body);
        let exchanged = upstream::send(&mut guard, &self.node.metrics, upstream, &outbound).await;
        drop(outbound);
        steps.first_byte.observe_span(crate::clock::now().since(sending));
        match exchanged {
            Ok(response) => {
                let (choices, drop_usage) = match &counted.reading {
                    Reading::Asked(ask) => (ask.choices, ask.stream && ask.include_usage != Some(true)),
                    Reading::Passed(_) => (1, false),
                };
                let exchange = answer::Exchange {
                    edge: self.clone(),
                    guard,
                    endpoint,
                    dialect: target.dialect,
                    upstream: upstream.clone(),
                    keeping: match &counted.reading {
                        Reading::Asked(ask)
                            if keeps && (ask.state.store != Some(false) || ask.state.background) =>
                        {
                            let background = ask.state.background;
                            Some(answer::Keeping { tenant: principal.tenant.clone(), background })
                        }
                        _ => None,
                    },
                    choices,
                    drop_usage,
                    has_usage: !endpoint.only_counts(),
                    on_disconnect: snapshot
                        .tenant_of(&principal)
                        .and_then(|tenant| snapshot.policy.on_disconnect_of(tenant)),
                    encoding: encoding(&snapshot, &counted.model),
                    deadline,
                };
                let mut answer = answer::pass_on(exchange, response).await?;
                let Principal { tenant, project, key, .. } = &*principal;
                let budget = self.node.escrow().tightest_budget(tenant, project.as_deref(), key);
                limits::add_budget(answer.headers_mut(), budget);
                if degraded && let Ok(model) = HeaderValue::try_from(&*counted.model) {
                    answer.headers_mut().insert("x-tollgate-degraded", model);
                }
                Ok(answer)
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

    pub(super) async fn read_body<B: RequestBody>(&self, parts: &Parts, body: B) -> Result<Bytes, Rejection> {
        if parts.headers.contains_key(header::CONTENT_ENCODING) {
            return Err(Rejection::encoded_body());
        }
        let bound = self.options.max_body;
        if body.size_hint().lower() > bound as u64 {
            return Err(Rejection::body_too_large(bound));
        }
        match Limited::new(Paced::new(body, self.options.pace), bound).collect().await {
            Ok(collected) => Ok(collected.to_bytes()),
            Err(error) if error.is::<LengthLimitError>() => Err(Rejection::body_too_large(bound)),
            Err(error) if error.is::<Late>() => Err(Rejection::body_late()),
            Err(_) => Err(Rejection::body_broken()),
        }
    }

    /// Reads the body, resolves its model, or takes the one that is to serve `instead`, and counts its tokens. What the body names by an id that
    /// this node does not know is asked for.
    pub(super) async fn count(
        self: &Arc<Self>,
        snapshot: &Arc<Snapshot>,
        principal: &Arc<Principal>,
        target: &Arc<Target>,
        parts: &Parts,
        body: &Bytes,
        instead: Option<&str>,
    ) -> Result<Counted, Rejection> {
        match self.count_known(snapshot, principal, target, parts, body, instead).await {
            Err(rejection) if !rejection.unknown.is_empty() && !self.node.is_alone() => {
                self.look_for(&rejection.unknown).await?;
                self.count_known(snapshot, principal, target, parts, body, instead).await
            }
            counted => counted,
        }
    }

    /// Counts off the async workers when that takes long.
    async fn count_known(
        self: &Arc<Self>,
        snapshot: &Arc<Snapshot>,
        principal: &Arc<Principal>,
        target: &Arc<Target>,
        parts: &Parts,
        body: &Bytes,
        instead: Option<&str>,
    ) -> Result<Counted, Rejection> {
        if target.endpoint == Endpoint::PassedThrough {
            return count_passed(&self.node, snapshot, principal, parts, body);
        }
        if body.len() <= LONG_BODY {
            return count(&self.node, snapshot, principal, target, body, instead);
        }
        let (node, snapshot, principal, target, body) =
            (self.node.clone(), snapshot.clone(), principal.clone(), target.clone(), body.clone());
        let instead = instead.map(str::to_owned);
        let counting = tokio::task::spawn_blocking(move || {
            count(&node, &snapshot, &principal, &target, &body, instead.as_deref())
        });
        counting.await.unwrap_or_else(|_| Err(Rejection::internal()))
    }

    /// Takes a request without a credential from what its address may have; the address, so that it can be given back.
    fn pass_bump(
        &self,
        snapshot: &Snapshot,
        principal: &Principal,
        parts: &Parts,
        tokens: u64,
    ) -> Result<Option<IpAddr>, Rejection> {
        let Some(anonymous) = snapshot.anonymous_limits(principal) else { return Ok(None) };
        // Without a connection, as in a test, all call from one place.
        let peer =
            parts.extensions.get::<Peer>().map_or(IpAddr::from([0, 0, 0, 0]), |Peer(address)| *address);
        let trusts = |address| snapshot.policy.trusts_proxy(address);
        let address = neighbourhood(caller_address(peer, &parts.headers, trusts));
        let limits = anonymous.per_ip.resolve();
        let admitted = self.node.crowd.admit(crate::clock::now(), address, &limits, tokens);
        admitted.map(|()| Some(address)).map_err(Rejection::crowded)
    }

    fn list_models<B>(
        &self,
        request: &Request<B>,
        dialect: Dialect,
    ) -> Result<Response<AnswerBody>, Rejection> {
        let snapshot = self.node.snapshot();
        let principal = authenticate(&snapshot, request.headers(), request.uri().query(), dialect)?;
        Ok(own::models(&snapshot, &principal, dialect))
    }

    /// Tollgate's own endpoints, else nothing.
    async fn own_endpoint(
        &self,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
        missing: Missing,
    ) -> Result<Response<AnswerBody>, Rejection> {
        let Some(own) = path.strip_prefix("/tollgate/v1/") else { return Err(Rejection::missing(missing)) };
        if method != Method::GET {
            return Err(Rejection::missing(Missing::Method { dialect: missing.dialect(), allow: "GET" }));
        }
        let snapshot = self.node.snapshot();
        let principal = authenticate(&snapshot, headers, None, missing.dialect())?;
        match (own, own.strip_prefix("decisions/")) {
            ("me", _) => Ok(own::me(&self.node, &snapshot, &principal).await),
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

/// Every SDK of Gemini's sends one of these, and no other does; only `/v1/models`, which three APIs have, is told apart by it.
fn speaks_gemini(headers: &HeaderMap) -> bool {
    !headers.contains_key("anthropic-version")
        && (headers.contains_key("x-goog-api-client") || headers.contains_key("x-goog-api-key"))
}

fn with_decision(mut response: Response<AnswerBody>, id: ReservationId) -> Response<AnswerBody> {
    if let Ok(value) = HeaderValue::try_from(id.to_string()) {
        response.headers_mut().insert("x-tollgate-decision", value);
    }
    response
}

/// Counts the connection among those of its key.
fn show_key(parts: &Parts, principal: &Principal) -> Result<(), Rejection> {
    let claim = parts.extensions.get::<Arc<Claim>>();
    if claim.is_none_or(|claim| claim.show(&principal.tenant, &principal.key)) {
        return Ok(());
    }
    Err(Rejection::too_many_connections())
}

pub(super) fn authenticate(
    snapshot: &Snapshot,
    headers: &HeaderMap,
    query: Option<&str>,
    dialect: Dialect,
) -> Result<Arc<Principal>, Rejection> {
    let query = query.filter(|_| dialect == Dialect::Gemini);
    let credential = Credential::find_with(headers, query);
    let principal = snapshot.principal(credential, crate::clock::wall_now());
    principal.cloned().ok_or_else(|| match snapshot.is_nothing() {
        true => Rejection::without_policy(),
        false => Rejection::unauthenticated(),
    })
}

fn encoding(snapshot: &Snapshot, model: &str) -> Encoding {
    snapshot.model(model).map_or(Encoding::O200k, |(model, ..)| encoding_of(&model.tokenizer))
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
