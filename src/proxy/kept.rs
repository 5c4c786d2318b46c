//! What providers keep for the operator's account: whose it is, who may look at it, and what it costs.
//!
//! Laws:
//! - an id that the caller's tenant did not make through this gateway is not found, whoever made it;
//! - what the whole account has is told to nobody;
//! - work that goes on after its request keeps its reservation until its end is seen, or until its deadline at the estimate.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use tokio::sync::oneshot;

use super::answer::Keeping;
use super::body::AnswerBody;
use super::counted::{count, refuse_forbidden};
use super::pipeline::{Edge, RequestBody, Target, authenticate};
use super::reject::Rejection;
use super::users;
use crate::limit::{Amount, Lane, Name, ReservationId};
use crate::meter::{Metered, Told, read_response};
use crate::node::possessions::{Ending, Possession, Unasked};
use crate::node::{Asking, Guard, Principal, Reserved, Snapshot};
use crate::route::{Bounds, Dialect, Endpoint, Kept, Missing, Passed, Wish, batch, passed};
use crate::upstream::{self, Outbound, hygiene};

/// How long a reservation waits for the end of what goes on in the background: a little less than the limiter holds one.
const BACKGROUND: Duration = Duration::from_secs(60 * 60);

/// The largest document of a provider's about what it keeps. Contents of files may be larger, and are as large as a body.
const MOST: usize = 64 * 1024 * 1024;

/// Gives a response to its tenant. What goes on in the background takes the guard with it; otherwise the guard comes back.
pub(super) fn keep(
    edge: &Arc<Edge>,
    keeping: &Keeping,
    provider: &str,
    told: &Told,
    guard: Guard,
) -> Option<Guard> {
    let context = match told.usage {
        Metered::Exact(usage) | Metered::AtLeast(usage) => usage.total(),
        Metered::Unknown => guard.held().total,
    };
    if !keeping.background || told.is_over || told.id.is_empty() {
        own(edge, keeping, provider, &told.id, context);
        return Some(guard);
    }
    let what = Possession { context, held_by: edge.node.number(), ..Possession::at(provider) };
    edge.node.possessions.give(&keeping.tenant, &told.id, what, Some(hold(guard)));
    None
}

/// Gives a response to its tenant.
pub(super) fn own(edge: &Edge, keeping: &Keeping, provider: &str, id: &str, context: u64) {
    let what = Possession { context, ..Possession::at(provider) };
    edge.node.possessions.give(&keeping.tenant, id, what, None);
}

/// Holds a reservation until somebody says what came of it, or its time is over.
fn hold(guard: Guard) -> Ending {
    let (ending, ended) = oneshot::channel();
    tokio::spawn(async move {
        match tokio::time::timeout(BACKGROUND, ended).await {
            Ok(Ok(Some(used))) => guard.settle_complete(used, Dialect::OpenAi, 1),
            Ok(Ok(None)) => guard.close("no_usage"),
            // Its owner has forgotten it, or nobody asked.
            Ok(Err(_)) => guard.close("background_forgotten"),
            Err(_elapsed) => guard.close("background_deadline"),
        }
    });
    ending
}

/// A request for something kept, before it goes to the provider.
struct Errand {
    provider: Box<str>,
    estimate: Amount,
    model: Name,
    /// Whether its reservation stays open after it.
    lasting: bool,
    /// What a file would cost as a batch.
    batch: Option<Result<(Name, Amount), Box<str>>>,
}

impl Edge {
    /// Answers a request below a path that keeps something.
    pub(super) async fn kept<B: RequestBody>(
        self: &Arc<Self>,
        id: ReservationId,
        kept: Kept,
        wish: Wish<'_>,
        request: Request<B>,
        missing: Missing,
    ) -> Result<Response<AnswerBody>, Rejection> {
        let snapshot = self.node.snapshot();
        let principal = authenticate(&snapshot, request.headers(), None, Dialect::OpenAi)?;
        let Some(provider) = provider_of(&snapshot, kept) else {
            return Err(Rejection::missing(missing));
        };
        let (parts, body) = request.into_parts();
        let body = self.read_body(&parts, body).await?;
        let content_type = parts.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let route = snapshot.policy.route_of(kept.path());
        refuse_forbidden(route, None, content_type.unwrap_or_default(), &body)?;
        let errand = match wish {
            Wish::List => {
                let what = match kept {
                    Kept::Files => "The files",
                    Kept::Batches => "The batches",
                    Kept::Responses => "The responses",
                };
                return Err(Rejection::account_wide(what));
            }
            Wish::Make => self.make(&snapshot, &principal, kept, provider, &parts, &body).await?,
            Wish::Read(thing) | Wish::Cancel(thing) | Wish::Delete(thing) => {
                self.look_for([thing]).await?;
                let found = self.node.possessions.of(&principal.tenant, thing, |what| what.provider.clone());
                let provider = found.ok_or_else(|| Rejection::not_found("This id"))?;
                let estimate = Amount::default();
                Errand { provider, estimate, model: kept.path().into(), lasting: false, batch: None }
            }
        };
        self.run(id, &snapshot, &principal, wish, errand, &parts, body).await
    }

    /// Finds out whose these are, from other nodes where this one does not know.
    pub(super) async fn look_for(
        &self,
        ids: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<(), Rejection> {
        for id in ids {
            self.node.look_for(id.as_ref()).await.map_err(|Unasked| Rejection::owner_unknown())?;
        }
        Ok(())
    }

    /// What making something costs.
    async fn make(
        self: &Arc<Self>,
        snapshot: &Arc<Snapshot>,
        principal: &Arc<Principal>,
        kept: Kept,
        provider: Box<str>,
        parts: &Parts,
        body: &Bytes,
    ) -> Result<Errand, Rejection> {
        let route = snapshot.policy.route_of(kept.path());
        let cost = Amount::new(route.and_then(|route| route.cost_tokens).unwrap_or(0), 0);
        let model = Name::from(kept.path());
        if kept == Kept::Files {
            let content_type = parts.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
            let content_type = content_type.unwrap_or_default().to_owned();
            let (edge, snapshot, principal, body) =
                (self.clone(), snapshot.clone(), principal.clone(), body.clone());
            let counting = tokio::task::spawn_blocking(move || {
                edge.count_file(&snapshot, &principal, &content_type, &body)
            });
            let batch = counting.await.unwrap_or_else(|_| Err(Rejection::internal()))?;
            return Ok(Errand { provider, estimate: cost, model, lasting: false, batch });
        }
        let passed =
            Passed::read("application/json", body, &Bounds::default()).map_err(Rejection::bad_ask)?;
        if passed.model.is_some() {
            return Err(Rejection::bad_batch("A batch takes its model from its file: leave `model` out."));
        }
        let asked: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
        let file = asked["input_file_id"].as_str().unwrap_or_default();
        self.look_for([file]).await?;
        let counted = self.node.possessions.of(&principal.tenant, file, |what| what.batch.clone());
        match counted {
            None => Err(Rejection::not_found("The input file")),
            Some(None) => {
                Err(Rejection::bad_batch("The input file was not uploaded with the purpose `batch`."))
            }
            Some(Some(Err(why))) => {
                Err(Rejection::bad_batch(&format!("The input file cannot be counted: {why}.")))
            }
            Some(Some(Ok((model, estimate)))) => {
                Ok(Errand { provider, estimate: sum(estimate, cost), model, lasting: true, batch: None })
            }
        }
    }

    /// What the lines of a file cost, if it is to be a batch.
    #[allow(clippy::type_complexity, reason = "a count, or why there is none, of what may be no batch")]
    fn count_file(
        &self,
        snapshot: &Snapshot,
        principal: &Principal,
        content_type: &str,
        body: &[u8],
    ) -> Result<Option<Result<(Name, Amount), Box<str>>>, Rejection> {
        let parts = passed::parts(content_type, body).map_err(Rejection::bad_ask)?;
        let part = |wanted: &str| {
            parts.iter().find(|(name, _)| name == wanted).map(|(_, range)| &body[range.clone()])
        };
        if part("purpose") != Some(b"batch") {
            return Ok(None);
        }
        let file = part("file").unwrap_or_default();
        Ok(Some(self.count_lines(snapshot, principal, file).map_err(Box::from)))
    }

    fn count_lines(
        &self,
        snapshot: &Snapshot,
        principal: &Principal,
        file: &[u8],
    ) -> Result<(Name, Amount), String> {
        let mut total: Option<(Name, Amount)> = None;
        for line in batch::lines(file) {
            let (number, endpoint, body) = line?;
            let target = Target::to(endpoint);
            let counted = count(&self.node, snapshot, principal, &target, body, None)
                .map_err(|rejection| format!("line {number}: {}", rejection.message))?;
            // The file goes to the provider as it is.
            if counted.model_asked != counted.upstream_model {
                return Err(format!(
                    "line {number} must name its model as the provider does: {}",
                    counted.upstream_model
                ));
            }
            total = match total {
                None => Some((counted.model, counted.estimate)),
                Some((model, so_far)) if model == counted.model => {
                    Some((model, sum(so_far, counted.estimate)))
                }
                Some((model, _)) => {
                    return Err(format!(
                        "line {number} names another model than {model}: make a file of each"
                    ));
                }
            };
        }
        total.ok_or_else(|| "it has no line".to_owned())
    }

    /// Reserves, asks the provider, and notes what came into being, ended or went.
    #[allow(clippy::too_many_arguments, reason = "one value of each step before")]
    async fn run(
        self: &Arc<Self>,
        id: ReservationId,
        snapshot: &Arc<Snapshot>,
        principal: &Arc<Principal>,
        wish: Wish<'_>,
        errand: Errand,
        parts: &Parts,
        body: Bytes,
    ) -> Result<Response<AnswerBody>, Rejection> {
        let Some(upstream) = snapshot.upstreams.get(&errand.provider) else {
            return Err(Rejection::not_found("The provider of this id"));
        };
        let asking = Asking {
            id,
            principal,
            endpoint: Endpoint::PassedThrough,
            user: users::of_errand(&self.node, snapshot, principal, &parts.headers)?,
            model_asked: "",
            model: &errand.model,
            provider: &upstream.name,
            estimate: errand.estimate,
            idempotency: None,
            lane: Lane::Regular,
        };
        let mut guard = match self.node.reserve(asking).await {
            Reserved::Held(guard) => guard,
            Reserved::Denied(denial, levels) => {
                return Err(Rejection::denied(&principal.tenant, &denial, levels));
            }
        };
        let query = parts.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
        let outbound = Outbound {
            method: parts.method.clone(),
            path_and_query: format!("{}{query}", parts.uri.path()),
            headers: hygiene::outbound(&parts.headers),
            body,
            deadline: crate::clock::timer_now() + upstream.timeouts.total,
        };
        let answer = match upstream::send(&mut guard, &self.node.metrics, upstream, &outbound).await {
            Ok(answer) => answer,
            Err(failure) => {
                let receipt = guard.give_up("no_answer");
                return Err(Rejection::upstream(&upstream.name, &failure, receipt.charged));
            }
        };
        let (mut head, answer) = answer.into_parts();
        let reading = tokio::time::timeout_at(outbound.deadline, Limited::new(answer, MOST).collect());
        let Ok(Ok(bytes)) = reading.await else {
            guard.close("provider_failed");
            return Err(Rejection::upstream_unreadable(&upstream.name, "broke off or is too large"));
        };
        let bytes = bytes.to_bytes();
        head.headers = hygiene::inbound(&head.headers);
        head.extensions.clear();
        if head.status.is_success() {
            self.note(principal, wish, errand, &upstream.name, &bytes, guard).await;
            Ok(Response::from_parts(head, AnswerBody::whole(bytes)))
        } else {
            if head.status == StatusCode::TOO_MANY_REQUESTS {
                head.headers
                    .insert("x-tollgate-error", http::HeaderValue::from_static("upstream_rate_limited"));
            }
            guard.close("provider_failed");
            Ok(Response::from_parts(head, AnswerBody::whole(upstream.redacted(bytes))))
        }
    }

    async fn note(
        &self,
        principal: &Principal,
        wish: Wish<'_>,
        errand: Errand,
        provider: &str,
        bytes: &[u8],
        guard: Guard,
    ) {
        let possessions = &self.node.possessions;
        let tenant = &principal.tenant;
        match wish {
            Wish::Make => {
                let id = read_response(bytes).map(|told| told.id).unwrap_or_default();
                let what = Possession { batch: errand.batch, ..Possession::at(provider) };
                if errand.lasting && !id.is_empty() {
                    let what = Possession { held_by: self.node.number(), ..what };
                    possessions.give(tenant, &id, what, Some(hold(guard)));
                } else {
                    guard.close("fixed_cost");
                    possessions.give(tenant, &id, what, None);
                }
                return;
            }
            Wish::Read(thing) | Wish::Cancel(thing) => {
                let about = serde_json::from_slice::<serde_json::Value>(bytes).unwrap_or_default();
                // Files that a batch has written are its owner's as well.
                for made in ["output_file_id", "error_file_id"] {
                    if let Some(file) = about[made].as_str() {
                        possessions.give(tenant, file, Possession::at(provider), None);
                    }
                }
                if let Some(told) = read_response(bytes).filter(|told| told.id == thing) {
                    let is_over = told.is_over || matches!(about["status"].as_str(), Some("expired"));
                    if is_over {
                        let used = match told.usage {
                            Metered::Exact(usage) => Some(usage),
                            Metered::AtLeast(_) | Metered::Unknown => None,
                        };
                        self.node.is_over(tenant, thing, used).await;
                    }
                }
            }
            Wish::Delete(thing) => possessions.forget(tenant, thing),
            Wish::List => {}
        }
        guard.settle(Amount::default(), "nothing_billed");
    }
}

/// The provider that keeps it, if the policy switches it on.
fn provider_of(snapshot: &Snapshot, kept: Kept) -> Option<Box<str>> {
    let route = snapshot.policy.route_of(kept.path())?;
    match kept {
        // Each response knows its own.
        Kept::Responses => route.stateful.then(Box::default),
        Kept::Files | Kept::Batches => route.provider.as_deref().map(Box::from),
    }
}

fn sum(left: Amount, right: Amount) -> Amount {
    Amount::with_total(
        left.total.saturating_add(right.total),
        left.input.saturating_add(right.input),
        left.output.saturating_add(right.output),
    )
}
