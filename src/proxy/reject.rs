//! The only place where a refusal or a fault becomes HTTP: status, code, body in the route's dialect, and whether to come back.
//!
//! SDKs retry 408, 409, 429 and 5xx by themselves, sleep as long as `Retry-After` says however long that is, and are stopped by
//! `x-should-retry: false` alone. So a wait of up to a minute is named, jittered upwards so that callers do not return in step; a
//! longer one also says not to retry; and where no wait helps there is no `Retry-After` at all.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use serde_json::json;

use super::edge::head::Refusal;
use crate::limit::{Denial, Dimension, Lack, Levels, ReservationId, Span};
use crate::node::crowd::Crowded;
use crate::node::reason;
use crate::route::{BadAsk, Dialect, FieldPath, Missing};
use crate::upstream::Failure;

/// Whether to come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// After this long.
    After(Span),
    /// It would not help.
    Never,
    /// After this long, and not by itself: it is long, or money.
    Later(Span),
    /// As the caller's own habits have it.
    AsUsual,
}

/// A refusal or a fault, on its way to the caller.
#[derive(Clone, Debug)]
pub struct Rejection {
    /// The HTTP status.
    pub status: StatusCode,
    /// The stable code, `x-tollgate-error`.
    pub code: &'static str,
    /// For a person: what, where, what to do.
    pub message: String,
    /// The member at fault.
    pub param: Option<String>,
    /// Whether to come back.
    pub retry: Retry,
    /// What OpenAI's `type` says, where it is not told by the status.
    openai_type: Option<&'static str>,
    /// What OpenAI's `code` says, where it is not our own code.
    openai_code: Option<&'static str>,
    /// The levels of the path, where there is one.
    pub levels: Levels,
    /// Whether the limiter decided on the request, and so counted it, before this came of it.
    pub decided: bool,
    /// Ids that another node may know to be the tenant's, if this one does not.
    pub unknown: Vec<String>,
    allow: Option<&'static str>,
}

impl Rejection {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
            param: None,
            retry: Retry::AsUsual,
            openai_type: None,
            openai_code: None,
            levels: Levels::default(),
            decided: false,
            unknown: Vec::new(),
            allow: None,
        }
    }

    /// No credential, or not one that is known. The same answer for every reason.
    #[must_use]
    pub fn unauthenticated() -> Self {
        let message = "No valid API key was given. Send one key of this gateway as `Authorization: Bearer KEY`, `x-api-key`, `api-key` or `x-goog-api-key`.";
        let mut rejection = Self::new(StatusCode::UNAUTHORIZED, "unauthenticated", message);
        rejection.openai_code = Some("invalid_api_key");
        rejection
    }

    /// This node has no policy yet, so it cannot know whom a key is of.
    #[must_use]
    pub fn without_policy() -> Self {
        let message = "This node does not know its policy yet. Try again shortly, or at another node.";
        let mut rejection = Self::new(StatusCode::SERVICE_UNAVAILABLE, "limiter_unavailable", message);
        rejection.retry = Retry::After(Span::from_secs(1));
        rejection
    }

    /// Nothing is served there.
    #[must_use]
    pub fn missing(missing: Missing) -> Self {
        let status = StatusCode::from_u16(missing.status()).unwrap_or(StatusCode::NOT_FOUND);
        let code = match missing {
            Missing::Path { .. } => "not_found",
            Missing::Method { .. } => "method_not_allowed",
        };
        let mut rejection = Self::new(status, code, capitalised(&missing.to_string()));
        rejection.allow = match missing {
            Missing::Path { .. } => None,
            Missing::Method { allow, .. } => Some(allow),
        };
        rejection
    }

    /// Protocols other than HTTP's own requests.
    #[must_use]
    pub fn upgrade() -> Self {
        Self::new(
            StatusCode::NOT_IMPLEMENTED,
            "upgrade_not_supported",
            "This gateway does not switch protocols. Send a plain request.",
        )
    }

    /// A request head that is not let through.
    #[must_use]
    pub fn bad_head(refusal: Refusal) -> Self {
        let (status, code, why) = match refusal {
            Refusal::Malformed(why) => {
                let message = format!("The request head is malformed: {why}.");
                return Self::new(StatusCode::BAD_REQUEST, "invalid_request", message);
            }
            Refusal::Tunnel => return Self::upgrade(),
            Refusal::TooLong => (431, "request_head_too_large", "The request head is too long."),
            Refusal::TooManyHeaders => (431, "request_head_too_large", "The request has too many headers."),
            Refusal::TargetTooLong => (414, "uri_too_long", "The request target is too long."),
            Refusal::Version => (505, "http_version_not_supported", "Send HTTP/1.1 or HTTP/2."),
            Refusal::Late => (408, "request_timeout", "The request head did not arrive in time."),
        };
        Self::new(StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_REQUEST), code, why)
    }

    /// A method that HTTP's own requests do not have, or that is of no use here.
    #[must_use]
    pub fn unknown_method() -> Self {
        Self::new(StatusCode::NOT_IMPLEMENTED, "method_not_implemented", "No route here has this method.")
    }

    /// The code of [`Rejection::too_many_connections`].
    pub const TOO_MANY_CONNECTIONS: &str = "connection_limit_exceeded";

    /// A key that is shown on more connections than it may be.
    #[must_use]
    pub fn too_many_connections() -> Self {
        let message = "This key is in use on too many connections. Reuse one, or close some.";
        let mut rejection = Self::new(StatusCode::TOO_MANY_REQUESTS, Self::TOO_MANY_CONNECTIONS, message);
        rejection.openai_code = Some("rate_limit_exceeded");
        rejection.retry = Retry::After(Span::from_secs(1));
        rejection
    }

    /// A body that cannot be read.
    #[must_use]
    pub fn bad_ask(bad: BadAsk) -> Self {
        let status = StatusCode::from_u16(bad.status_hint).unwrap_or(StatusCode::BAD_REQUEST);
        let code =
            if status == StatusCode::PAYLOAD_TOO_LARGE { "request_too_large" } else { "invalid_request" };
        let mut rejection = Self::new(status, code, bad.message);
        rejection.openai_code = Some(bad.code);
        rejection.param = bad.param;
        rejection
    }

    /// A body over the bound.
    #[must_use]
    pub fn body_too_large(bound: usize) -> Self {
        let message = format!("The request body is larger than {} bytes.", reason::thousands(bound as u64));
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "request_too_large", message)
    }

    /// A body that did not come in time, or broke off.
    #[must_use]
    pub fn body_late() -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "request_timeout", "The request body did not arrive in time.")
    }

    /// A body that broke off.
    #[must_use]
    pub fn body_broken() -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            "invalid_request",
            "The request body could not be read to its end.",
        )
    }

    /// A compressed body.
    #[must_use]
    pub fn encoded_body() -> Self {
        let message = "A request body with a Content-Encoding is not accepted. Send it uncompressed.";
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_content_encoding", message)
    }

    /// A model that the policy does not have.
    #[must_use]
    pub fn unknown_model(model: &str) -> Self {
        let message = format!("The model {model:?} does not exist here. GET /v1/models lists those that do.");
        let mut rejection = Self::new(StatusCode::NOT_FOUND, "model_not_found", message);
        rejection.param = Some("model".to_owned());
        rejection
    }

    /// A model that the policy has, for others or for another route.
    #[must_use]
    pub fn model_not_allowed(model: &str, why: &str) -> Self {
        let message = format!("The model {model:?} {why}. GET /v1/models lists those that may be used.");
        let mut rejection = Self::new(StatusCode::FORBIDDEN, "model_not_allowed", message);
        rejection.param = Some("model".to_owned());
        rejection
    }

    /// More to read than the model's context holds, by our count. The words are those by which SDKs of either dialect know it.
    #[must_use]
    pub fn context_exceeded(input: u64, context: u64) -> Self {
        let message = format!(
            "The prompt is too long: {input} tokens > {context} maximum, as this gateway counts. This model's maximum context length is \
             {context} tokens. Send less."
        );
        Self::new(StatusCode::BAD_REQUEST, "context_length_exceeded", message)
    }

    /// A member that the policy forbids.
    #[must_use]
    pub fn field_not_allowed(field: &FieldPath) -> Self {
        let message = format!("`{field}` is not allowed by this gateway's policy. Leave it out.");
        let mut rejection = Self::new(StatusCode::BAD_REQUEST, "field_not_allowed", message);
        rejection.openai_code = Some("unsupported_parameter");
        rejection.param = Some(field.to_string());
        rejection
    }

    /// Something that only state kept by the provider could answer, which the policy does not switch on.
    #[must_use]
    pub fn stateful(param: &str, setting: &str) -> Self {
        let message = format!(
            "`{param}` needs something that the provider keeps, and this gateway's policy does not allow that. Leave it out, or \
             ask the operator to set {setting}."
        );
        let mut rejection = Self::new(StatusCode::BAD_REQUEST, "stateful_not_allowed", message);
        rejection.param = Some(param.to_owned());
        rejection
    }

    /// Something that the account keeps and that never came into being through this gateway.
    #[must_use]
    pub fn foreign(param: &str) -> Self {
        let message = format!(
            "`{param}` names something of the provider's account that belongs to nobody here. Leave it out."
        );
        let mut rejection = Self::new(StatusCode::BAD_REQUEST, "stateful_not_allowed", message);
        rejection.param = Some(param.to_owned());
        rejection
    }

    /// A list of all that the provider keeps for the account: it is nobody's own.
    #[must_use]
    pub fn account_wide(what: &str) -> Self {
        let message = format!("{what} of the whole account cannot be listed. Keep the ids of your own.");
        Self::new(StatusCode::FORBIDDEN, "account_wide_list", message)
    }

    /// A batch that cannot be counted.
    #[must_use]
    pub fn bad_batch(why: &str) -> Self {
        let mut rejection = Self::new(StatusCode::BAD_REQUEST, "invalid_request", why);
        rejection.param = Some("input_file_id".to_owned());
        rejection
    }

    /// A model's other name in a form, which is passed through as it is.
    #[must_use]
    pub fn alias_in_form(model: &str, name: &str) -> Self {
        let message = format!(
            "The form names the model {model:?}, which the provider knows as {name:?}. Name that one."
        );
        let mut rejection = Self::new(StatusCode::BAD_REQUEST, "invalid_request", message);
        rejection.param = Some("model".to_owned());
        rejection
    }

    /// A request that does not name its end user, or names it in a way that two could read differently.
    #[must_use]
    pub fn bad_user(code: &'static str, message: String, param: Option<String>) -> Self {
        let mut rejection = Self::new(StatusCode::BAD_REQUEST, code, message);
        rejection.param = param;
        rejection
    }

    /// A denial of the limiter.
    #[must_use]
    pub fn denied(tenant: &str, denial: &Denial, levels: Levels) -> Self {
        if let Denial::Granting(inside) = denial {
            return Self::denied(tenant, inside, levels);
        }
        let status = match denial {
            Denial::Rate { .. }
            | Denial::Never { .. }
            | Denial::Inflight { .. }
            | Denial::Pool { .. }
            | Denial::Budget { .. } => StatusCode::TOO_MANY_REQUESTS,
            Denial::IdempotencyInProgress | Denial::AlreadyDispatched => StatusCode::CONFLICT,
            Denial::Cancelled
            | Denial::UnknownTenant
            | Denial::Full
            | Denial::Recovering
            | Denial::Granting(_)
            | Denial::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Denial::Suspended => StatusCode::FORBIDDEN,
            Denial::Revoked => StatusCode::UNAUTHORIZED,
        };
        let mut rejection = Self::new(status, reason::code(denial), reason::sentence(tenant, denial));
        rejection.levels = levels;
        rejection.decided = true;
        rejection.retry = match denial {
            Denial::Rate { wait, .. } => Retry::After(*wait),
            Denial::Pool { lack: Lack::Later { wait, .. } | Lack::Paused { wait }, .. } => {
                Retry::After(*wait)
            }
            Denial::Budget { resets, .. } => resets.map_or(Retry::Never, |at| Retry::Later(until(at))),
            Denial::Never { .. }
            | Denial::AlreadyDispatched
            | Denial::Suspended
            | Denial::Revoked
            | Denial::Pool { lack: Lack::Never { .. }, .. } => Retry::Never,
            Denial::Inflight { .. }
            | Denial::IdempotencyInProgress
            | Denial::Cancelled
            | Denial::UnknownTenant
            | Denial::Full
            | Denial::Recovering
            | Denial::Granting(_)
            | Denial::Unavailable => Retry::After(Span::from_secs(1)),
        };
        if status == StatusCode::TOO_MANY_REQUESTS {
            let requests = matches!(
                denial,
                Denial::Inflight { .. }
                    | Denial::Rate { dimension: Dimension::Requests, .. }
                    | Denial::Pool { lack: Lack::Later { dimension: Dimension::Requests, .. }, .. }
            );
            rejection.openai_type = Some(if requests { "requests" } else { "tokens" });
            rejection.openai_code = Some("rate_limit_exceeded");
        }
        if let Denial::Budget { .. } = denial {
            rejection.openai_type = Some("insufficient_quota");
            rejection.openai_code = Some("project_spend_limit_exceeded");
        }
        rejection
    }

    /// A budget is used up, and the policy has such requests wait: nothing waits here, so it is refused until the period ends.
    #[must_use]
    pub fn deferred(tenant: &str, denial: &Denial, levels: Levels) -> Self {
        let mut rejection = Self::denied(tenant, denial, levels);
        rejection.code = "deferred";
        rejection.message = format!("{} Send it again then: it is deferred.", rejection.message);
        rejection
    }

    /// An address without a credential has used what it may have.
    #[must_use]
    pub fn crowded(crowded: Crowded) -> Self {
        let message = format!(
            "Without an API key, too many {} come from this address. Send a key, or come back later.",
            crowded.dimension.unit()
        );
        let mut rejection = Self::new(StatusCode::TOO_MANY_REQUESTS, "ip_rate_limit_exceeded", message);
        rejection.retry = crowded.wait.map_or(Retry::Never, Retry::After);
        rejection.openai_code = Some("rate_limit_exceeded");
        rejection
    }

    /// No answer came from the provider, and this many tokens were charged all the same.
    #[must_use]
    pub fn upstream(provider: &str, failure: &Failure, charged: u64) -> Self {
        let mut rejection = Self::no_answer(provider, failure);
        let charged = match charged {
            0 => "Nothing was charged.".to_owned(),
            _ => format!(
                "Charged were {} tokens, since the provider may bill them.",
                reason::thousands(charged)
            ),
        };
        rejection.message = format!("{} {charged}", rejection.message);
        rejection.decided = true;
        rejection
    }

    fn no_answer(provider: &str, failure: &Failure) -> Self {
        match failure {
            Failure::NotConfigured(_) => Self::new(
                StatusCode::BAD_GATEWAY,
                "upstream_not_configured",
                format!(
                    "This gateway cannot call the provider {provider}: its operator finds the reason in the log."
                ),
            ),
            Failure::Unreachable(_) => Self::new(
                StatusCode::BAD_GATEWAY,
                "upstream_unreachable",
                format!("The provider {provider} could not be reached."),
            ),
            Failure::Broken(_) => Self::new(
                StatusCode::BAD_GATEWAY,
                "upstream_broken",
                format!("The connection to the provider {provider} broke before it answered."),
            ),
            Failure::TimedOut => Self::new(
                StatusCode::GATEWAY_TIMEOUT,
                "upstream_timeout",
                format!("The provider {provider} did not begin to answer in time."),
            ),
        }
    }

    /// The provider's answer cannot be passed on.
    #[must_use]
    pub fn upstream_unreadable(provider: &str, why: &str) -> Self {
        let message = format!("The answer of the provider {provider} {why}.");
        let mut rejection = Self::new(StatusCode::BAD_GATEWAY, "upstream_unreadable", message);
        rejection.decided = true;
        rejection
    }

    /// Something of ours that was asked for by id and is not there, or not the caller's.
    #[must_use]
    pub fn not_found(what: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", format!("{what} was not found."))
    }

    /// One of these ids is not known to be the tenant's on this node; another may know.
    #[must_use]
    pub fn not_known_here(ids: impl IntoIterator<Item = String>) -> Self {
        let mut rejection = Self::not_found("What the request names by its id");
        rejection.unknown = ids.into_iter().collect();
        rejection
    }

    /// A node that may know whose it is cannot be asked.
    #[must_use]
    pub fn owner_unknown() -> Self {
        let message =
            "Whose this is cannot be said now: a node that may know does not answer. Try again in a moment.";
        let mut rejection = Self::new(StatusCode::SERVICE_UNAVAILABLE, "limiter_unavailable", message);
        rejection.retry = Retry::After(Span::from_secs(1));
        rejection
    }

    /// A bug. Nothing of it is told.
    #[must_use]
    pub fn internal() -> Self {
        let message = "The gateway failed to handle this request. Its operator finds the reason in the log.";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", message)
    }

    /// The answer, in `dialect`. `random` is uniform in 0..=u32::MAX and spreads callers over the time after the wait.
    #[must_use]
    pub fn into_response(self, dialect: Dialect, id: ReservationId, random: u32) -> Response<Bytes> {
        let body = self.body(dialect, id);
        let mut response = Response::new(Bytes::from(body.to_string()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert("x-tollgate-error", HeaderValue::from_static(self.code));
        if let Some(allow) = self.allow {
            headers.insert(header::ALLOW, HeaderValue::from_static(allow));
        }
        if let Ok(id) = HeaderValue::try_from(format!("tg_{id}")) {
            headers.insert(if dialect == Dialect::Anthropic { "request-id" } else { "x-request-id" }, id);
        }
        retry_headers(headers, self.retry, random);
        response
    }

    fn body(&self, dialect: Dialect, id: ReservationId) -> serde_json::Value {
        match dialect {
            Dialect::OpenAi => json!({
                "error": {
                    "message": self.message,
                    "type": self.openai_type.unwrap_or_else(|| openai_type(self.status)),
                    "param": self.param,
                    "code": self.openai_code.unwrap_or(self.code),
                }
            }),
            Dialect::Anthropic => json!({
                "type": "error",
                "error": {
                    "type": anthropic_type(self.status),
                    "message": self.message,
                    "details": { "error_code": self.code },
                },
                "request_id": format!("tg_{id}"),
            }),
            Dialect::Gemini => {
                let mut details = vec![json!({
                    "@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": self.code, "domain": "tollgate",
                })];
                if let Retry::After(wait) = self.retry
                    && wait <= PATIENCE
                {
                    let seconds = wait.as_millis_up().div_ceil(1000).max(1);
                    details.push(json!({
                        "@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": format!("{seconds}s"),
                    }));
                }
                json!({
                    "error": {
                        "code": self.status.as_u16(), "message": self.message,
                        "status": gemini_status(self.status), "details": details,
                    }
                })
            }
        }
    }
}

/// How long until an instant, in seconds since 1970.
fn until(at: i64) -> Span {
    let left = at.saturating_sub(crate::clock::wall_now().as_second());
    Span::from_secs(u64::try_from(left).unwrap_or(0))
}

/// Up to a minute, a caller may well wait.
const PATIENCE: Span = Span::from_secs(60);
/// From 24.8 days on, a timer in milliseconds overflows in some SDKs.
const LONGEST_RETRY_AFTER: u64 = 24 * 24 * 3600;

fn retry_headers(headers: &mut HeaderMap, retry: Retry, random: u32) {
    match retry {
        Retry::AsUsual => {}
        Retry::Never => {
            headers.insert("x-should-retry", HeaderValue::from_static("false"));
        }
        Retry::After(wait) if wait <= PATIENCE => {
            let wait = wait.as_millis_up();
            let spread = (wait / 10).clamp(50, 2_000);
            let millis = wait + spread * u64::from(random) / u64::from(u32::MAX);
            headers.insert(header::RETRY_AFTER, HeaderValue::from(millis.div_ceil(1000).max(1)));
            headers.insert("retry-after-ms", HeaderValue::from(millis.max(1)));
        }
        Retry::After(wait) | Retry::Later(wait) => {
            headers.insert("x-should-retry", HeaderValue::from_static("false"));
            let seconds = wait.as_millis_up().div_ceil(1000);
            if seconds < LONGEST_RETRY_AFTER {
                headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
            }
        }
    }
}

/// <https://platform.openai.com/docs/guides/error-codes>
fn openai_type(status: StatusCode) -> &'static str {
    match status.as_u16() {
        401 => "authentication_error",
        403 => "permission_error",
        429 => "requests",
        400..=499 => "invalid_request_error",
        _ => "server_error",
    }
}

/// <https://docs.anthropic.com/en/api/errors>
fn anthropic_type(status: StatusCode) -> &'static str {
    match status.as_u16() {
        401 => "authentication_error",
        403 => "permission_error",
        404 | 405 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        400..=499 => "invalid_request_error",
        503 | 529 => "overloaded_error",
        504 => "timeout_error",
        _ => "api_error",
    }
}

/// <https://cloud.google.com/apis/design/errors#handling_errors>
fn gemini_status(status: StatusCode) -> &'static str {
    match status.as_u16() {
        401 => "UNAUTHENTICATED",
        403 => "PERMISSION_DENIED",
        404 => "NOT_FOUND",
        409 => "ABORTED",
        429 => "RESOURCE_EXHAUSTED",
        400..=499 => "INVALID_ARGUMENT",
        501 => "UNIMPLEMENTED",
        502 | 503 => "UNAVAILABLE",
        504 => "DEADLINE_EXCEEDED",
        _ => "INTERNAL",
    }
}

fn capitalised(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    format!("{first}{}.", chars.as_str().trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Scope;

    const ID: ReservationId = ReservationId(7);

    fn rate(wait: Span) -> Denial {
        Denial::Rate {
            scope: Scope::Tenant,
            dimension: Dimension::Tokens,
            need: 5_000,
            level: 100,
            capacity: 24_000,
            wait,
        }
    }

    fn header<'r>(response: &'r Response<Bytes>, name: &str) -> Option<&'r str> {
        response.headers().get(name).map(|value| value.to_str().unwrap())
    }

    #[test]
    fn a_short_wait_is_named_and_jittered_upwards() {
        let denied = |random| {
            Rejection::denied("acme", &rate(Span::from_millis(1_500)), Levels::default()).into_response(
                Dialect::OpenAi,
                ID,
                random,
            )
        };
        let soonest = denied(0);
        assert_eq!(header(&soonest, "retry-after"), Some("2"));
        assert_eq!(header(&soonest, "retry-after-ms"), Some("1500"));
        assert_eq!(header(&soonest, "x-should-retry"), None);
        assert_eq!(header(&denied(u32::MAX), "retry-after-ms"), Some("1650"));
    }

    #[test]
    fn a_long_wait_stops_the_sdk_and_one_without_end_names_nothing() {
        let long = Rejection::denied("acme", &rate(Span::from_secs(90)), Levels::default());
        let long = long.into_response(Dialect::OpenAi, ID, 0);
        assert_eq!(header(&long, "x-should-retry"), Some("false"));
        assert_eq!(header(&long, "retry-after"), Some("90"));
        assert_eq!(header(&long, "retry-after-ms"), None);

        let month = Rejection::denied("acme", &rate(Span::from_secs(30 * 24 * 3600)), Levels::default());
        assert_eq!(header(&month.into_response(Dialect::OpenAi, ID, 0), "retry-after"), None);

        let never =
            Denial::Never { scope: Scope::Tenant, dimension: Dimension::Tokens, need: 9, capacity: 5 };
        let never =
            Rejection::denied("acme", &never, Levels::default()).into_response(Dialect::Anthropic, ID, 0);
        assert_eq!(header(&never, "x-should-retry"), Some("false"));
        assert_eq!(header(&never, "retry-after"), None);
        assert_eq!(never.status(), 429);
    }

    #[test]
    fn each_dialect_gets_its_own_shape() {
        let openai = Rejection::denied("acme", &rate(Span::from_secs(2)), Levels::default());
        let body: serde_json::Value =
            serde_json::from_slice(openai.into_response(Dialect::OpenAi, ID, 0).body()).unwrap();
        assert_eq!(body["error"]["type"], "tokens");
        assert_eq!(body["error"]["code"], "rate_limit_exceeded");
        assert!(body["error"]["param"].is_null());

        let anthropic = Rejection::unauthenticated().into_response(Dialect::Anthropic, ID, 0);
        let body: serde_json::Value = serde_json::from_slice(anthropic.body()).unwrap();
        assert_eq!(body["type"], "error");
        assert_eq!(body["error"]["type"], "authentication_error");
        assert_eq!(body["error"]["details"]["error_code"], "unauthenticated");
        assert_eq!(body["request_id"], header(&anthropic, "request-id").unwrap());
    }
}
