//! From the body of a request to what it needs: read once, its model resolved in whatever form it is named, its tokens counted,
//! and what it takes up or leaves with a provider allowed or refused.

use std::sync::Arc;

use http::header;
use http::request::Parts;

use super::pipeline::Target;
use super::reject::Rejection;
use super::users::place_in_body;
use crate::estimate::{self, OutputRule};
use crate::limit::{Amount, Name};
use crate::node::compile::encoding_of;
use crate::node::{Node, Principal, Snapshot};
use crate::policy::{Model, OutputEstimate, Route};
use crate::route::{Ask, Bounds, Dialect, Endpoint, Kept, Missing, Passed, forbidden, named};
use crate::upstream::Upstream;

/// A body that was read, as far as its endpoint has it read.
pub(super) enum Reading {
    Asked(Box<Ask>),
    Passed(Passed),
}

impl Reading {
    /// The end user that the body names.
    pub(super) fn user(&self) -> Option<&str> {
        match self {
            Self::Asked(ask) => ask.user.as_deref(),
            Self::Passed(passed) => passed.user.as_deref(),
        }
    }
}

/// A request that was read, resolved and counted.
pub(super) struct Counted {
    pub reading: Reading,
    pub model_asked: String,
    pub model: Name,
    pub upstream_model: String,
    pub upstream: Arc<Upstream>,
    pub estimate: Amount,
}

pub(super) fn count(
    node: &Node,
    snapshot: &Snapshot,
    principal: &Principal,
    target: &Target,
    body: &[u8],
    instead: Option<&str>,
) -> Result<Counted, Rejection> {
    let endpoint = target.endpoint;
    refuse_forbidden(snapshot.policy.route_of(endpoint.path()), None, JSON, body)?;
    let user_at = place_in_body(snapshot, principal);
    let ask = Ask::read_for(endpoint, target.model.as_deref(), user_at, body, &Bounds::default())
        .map_err(Rejection::bad_ask)?;
    let Some((model, name, upstream, upstream_model)) = snapshot.model_asked(instead.unwrap_or(&ask.model))
    else {
        return count_without_policy(snapshot, endpoint, ask);
    };
    // What is to serve instead, the policy itself has named.
    if instead.is_none() && !snapshot.may_use(principal, &model.name) {
        return Err(Rejection::model_not_allowed(&ask.model, "is not among those that this tenant may use"));
    }
    if upstream.dialect != endpoint.spoken() {
        let why = format!("is served by a provider that speaks {}, not on this route", upstream.dialect);
        return Err(Rejection::model_not_allowed(&ask.model, &why));
    }
    refuse_forbidden(None, Some(model), JSON, body)?;
    let context = take_up(node, snapshot, principal, &ask, upstream)?;
    let estimate = if endpoint.only_counts() {
        // Asks how many tokens there are: the provider bills none.
        Amount::default()
    } else {
        let encoding = encoding_of(&model.tokenizer);
        let input = estimate::input_tokens_for(&ask, &model.upstream_model, encoding, &node.token_cache);
        if let Some(most) = model.context_tokens {
            let reading = estimate::longest_reading(&ask, input, encoding, &node.token_cache);
            let reading = reading.saturating_add(context);
            if reading > most {
                return Err(Rejection::context_exceeded(reading, most));
            }
        }
        let rule = snapshot.policy.route_of(endpoint.path()).map(|route| route.output_estimate);
        let rule = match rule.unwrap_or_default() {
            OutputEstimate::None => OutputRule::None,
            OutputEstimate::Ceiling => ceiling(model),
            OutputEstimate::Learned { percentile } => node
                .learned
                .quantile(endpoint, name, percentile)
                .map_or_else(|| ceiling(model), |tokens| learned(model, &ask, tokens)),
        };
        let estimate = estimate::of(&ask, input.saturating_add(context), rule);
        Amount::new(estimate.input, estimate.output)
    };
    Ok(Counted {
        model_asked: ask.model.clone(),
        model: name.clone(),
        upstream_model,
        upstream: upstream.clone(),
        estimate,
        reading: Reading::Asked(Box::new(ask)),
    })
}

const JSON: &str = "application/json";

/// Refuses a body with a member that its route or its model forbids.
pub(super) fn refuse_forbidden(
    route: Option<&Route>,
    model: Option<&Model>,
    content_type: &str,
    body: &[u8],
) -> Result<(), Rejection> {
    let of_route = route.into_iter().flat_map(|route| &route.forbid_fields);
    let of_model = model.into_iter().flat_map(|model| &model.forbid_fields);
    match forbidden::first_in(of_route.chain(of_model), content_type, body, &Bounds::default()) {
        Ok(None) => Ok(()),
        Ok(Some(field)) => Err(Rejection::field_not_allowed(field)),
        Err(bad) => Err(Rejection::bad_ask(bad)),
    }
}

/// Whether a request may take up, and leave, what it names; with the tokens that it takes up.
fn take_up(
    node: &Node,
    snapshot: &Snapshot,
    principal: &Principal,
    ask: &Ask,
    upstream: &Upstream,
) -> Result<u64, Rejection> {
    let state = &ask.state;
    if let Some(param) = state.foreign {
        return Err(Rejection::foreign(param));
    }
    if !keeps(snapshot, ask.endpoint)
        && let Some(param) = stateful_param(ask)
    {
        return Err(Rejection::stateful(param, "`stateful: true` on the route /v1/responses"));
    }
    if !state.files.is_empty() && snapshot.policy.route_of(Kept::Files.path()).is_none() {
        return Err(Rejection::stateful("file_id", "a route with the path /v1/files"));
    }
    let mut context: u64 = 0;
    for id in state.previous.iter().chain(&state.files) {
        let found = node
            .possessions
            .of(&principal.tenant, id, |what| (*what.provider == *upstream.name).then_some(what.context));
        let named = || state.previous.iter().chain(&state.files).map(|id| id.to_string());
        let tokens = found.flatten().ok_or_else(|| Rejection::not_known_here(named()))?;
        context = context.saturating_add(tokens);
    }
    Ok(context)
}

/// Whether answers of an endpoint may be kept by the provider.
pub(super) fn keeps(snapshot: &Snapshot, endpoint: Endpoint) -> bool {
    endpoint == Endpoint::Responses
        && snapshot.policy.route_of(endpoint.path()).is_some_and(|route| route.stateful)
}

/// The member by which a request takes up, or leaves, something that the provider keeps.
fn stateful_param(ask: &Ask) -> Option<&'static str> {
    let state = &ask.state;
    if state.previous.is_some() {
        Some("previous_response_id")
    } else if state.background {
        Some("background")
    } else if state.store == Some(true) && ask.endpoint == Endpoint::Responses {
        Some("store")
    } else {
        None
    }
}

/// A route of the policy: its price is the policy's, its body is not counted. A model that it names is held by its limits all
/// the same.
pub(super) fn count_passed(
    node: &Node,
    snapshot: &Snapshot,
    principal: &Principal,
    parts: &Parts,
    body: &[u8],
) -> Result<Counted, Rejection> {
    let path = parts.uri.path();
    let (Some(route), Some(upstream)) = (snapshot.policy.route_of(path), snapshot.passed_through(path))
    else {
        return Err(Rejection::missing(Missing::Path { dialect: Dialect::guess(path) }));
    };
    let content_type = parts.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let user_at = place_in_body(snapshot, principal);
    let content_type = content_type.unwrap_or_default();
    let passed =
        Passed::read_for(content_type, user_at, body, &Bounds::default()).map_err(Rejection::bad_ask)?;
    refuse_forbidden(Some(route), None, content_type, body)?;
    refuse_borrowed(node, principal, parts.uri.query(), content_type, body)?;
    let (model_asked, model, upstream_model) = match &passed.model {
        None => (String::new(), Name::from(path), String::new()),
        Some(asked) => match snapshot.model_asked(asked) {
            Some((model, name, serving, upstream_model)) => {
                if !snapshot.may_use(principal, &model.name) {
                    let why = "is not among those that this tenant may use";
                    return Err(Rejection::model_not_allowed(asked, why));
                }
                if serving.name != upstream.name {
                    return Err(Rejection::model_not_allowed(
                        asked,
                        "is served by another provider than this route",
                    ));
                }
                refuse_forbidden(None, Some(model), content_type, body)?;
                (asked.clone(), name.clone(), upstream_model)
            }
            // A model that only this route knows.
            None => {
                if snapshot.allowed_models(principal).is_some() {
                    let why = "is not among those that this tenant may use";
                    return Err(Rejection::model_not_allowed(asked, why));
                }
                (asked.clone(), Name::from(asked.to_ascii_lowercase()), asked.clone())
            }
        },
    };
    let cost = route.cost_tokens.unwrap_or(0);
    Ok(Counted {
        model_asked,
        model,
        upstream_model,
        upstream: upstream.clone(),
        estimate: Amount::new(cost, 0),
        reading: Reading::Passed(passed),
    })
}

/// Refuses a request that names what another tenant has made, in its body or in its query.
fn refuse_borrowed(
    node: &Node,
    principal: &Principal,
    query: Option<&str>,
    content_type: &str,
    body: &[u8],
) -> Result<(), Rejection> {
    if node.possessions.is_empty() {
        return Ok(());
    }
    let mut is_anothers = |word: &str| node.possessions.is_anothers(&principal.tenant, word);
    let borrowed = query.is_some_and(|query| named::ids_of(query, &mut is_anothers))
        || named::ids_in(content_type, body, &Bounds::default(), &mut is_anothers)
            .map_err(Rejection::bad_ask)?;
    if borrowed { Err(Rejection::not_found("What the request names by its id")) } else { Ok(()) }
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
    let Some(upstream) = snapshot.any_upstream(endpoint.spoken()) else {
        return Err(Rejection::unknown_model(&ask.model));
    };
    Ok(Counted {
        model_asked: ask.model.clone(),
        model: ask.model.as_str().into(),
        upstream_model: ask.model.clone(),
        upstream: upstream.clone(),
        estimate: Amount::default(),
        reading: Reading::Asked(Box::new(ask)),
    })
}
