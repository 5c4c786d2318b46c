//! What the two dialects say differently around an answer: errors and headers. The answers are in `openai` and `anthropic`.

use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use serde_json::json;

use super::answer::Answer;
use super::books::{Outcome, Standing};
use super::window::{OverCeiling, Unit, WINDOW_MS};
use crate::clock;

/// The limits named in headers when there is no ceiling: as high as the largest accounts have.
const NOMINAL_TOKENS: u64 = 1_000_000_000;
const NOMINAL_REQUESTS: u64 = 1_000_000;

/// Whose API a request speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// OpenAI's.
    OpenAi,
    /// Anthropic's.
    Anthropic,
    /// Google's.
    Gemini,
}

/// Why a request is not served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The HTTP status, 400 to 599.
    pub status: u16,
    /// For a person.
    pub message: String,
    /// The request's field at fault (OpenAI).
    pub param: Option<&'static str>,
    /// The stable code (OpenAI).
    pub code: Option<&'static str>,
    /// The error's type where the status does not tell (OpenAI).
    pub kind: Option<&'static str>,
    /// The wait to name, in milliseconds.
    pub retry_after_ms: Option<u64>,
    /// How the row of the request ends.
    pub outcome: Outcome,
}

impl Refusal {
    /// A refusal with this status and message, and nothing else.
    #[must_use]
    pub fn new(status: u16, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
            param: None,
            code: None,
            kind: None,
            retry_after_ms: None,
            outcome: Outcome::Refused,
        }
    }

    /// A request that makes no sense: 400.
    #[must_use]
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, message)
    }

    /// A request with a field that makes no sense: 400.
    #[must_use]
    pub fn bad_field(param: &'static str, message: impl Into<String>) -> Self {
        Self { param: Some(param), ..Self::new(400, message) }
    }

    /// No credential: 401.
    #[must_use]
    pub fn no_credential(dialect: Dialect) -> Self {
        Self::new(
            401,
            match dialect {
                Dialect::OpenAi => {
                    "You didn't provide an API key. You need to provide your API key in an Authorization header \
                     using Bearer auth (i.e. Authorization: Bearer YOUR_KEY)."
                }
                Dialect::Anthropic => "x-api-key header is required",
                Dialect::Gemini => "Method doesn't allow unregistered callers. Please use API Key.",
            },
        )
    }

    /// A model that is not served: 404.
    #[must_use]
    pub fn no_model(dialect: Dialect, model: &str) -> Self {
        let message = match dialect {
            Dialect::OpenAi => format!("The model `{model}` does not exist or you do not have access to it."),
            Dialect::Anthropic => format!("model: {model}"),
            Dialect::Gemini => format!("models/{model} is not found for API version v1beta"),
        };
        Self { code: Some("model_not_found"), ..Self::new(404, message) }
    }

    /// A status that `x-sim` asked for.
    #[must_use]
    pub fn asked_for(status: u16, retry_after: Option<u64>) -> Self {
        let rate = status == 429;
        Self {
            code: rate.then_some("rate_limit_exceeded"),
            kind: rate.then_some("requests"),
            retry_after_ms: retry_after.map(|seconds| seconds.saturating_mul(1000)),
            ..Self::new(status, format!("Simulated: x-sim asked for status {status}."))
        }
    }

    /// A ceiling that was hit: 429.
    #[must_use]
    pub fn over_ceiling(model: &str, over: &OverCeiling) -> Self {
        let (kind, short) = match over.unit {
            Unit::Tokens => ("tokens", "TPM"),
            Unit::Requests => ("requests", "RPM"),
        };
        let OverCeiling { limit, used, need, .. } = over;
        let message = match over.fits_in_ms {
            Some(wait) => format!(
                "Rate limit reached for {model} on {kind} per min ({short}): Limit {limit}, Used {used}, Requested {need}. \
                 Please try again in {}.",
                span(wait)
            ),
            None => format!(
                "Request too large for {model} on {kind} per min ({short}): Limit {limit}, Requested {need}. \
                 The input or output tokens must be reduced in order to run successfully."
            ),
        };
        Self {
            code: Some("rate_limit_exceeded"),
            kind: Some(kind),
            retry_after_ms: over.fits_in_ms,
            outcome: Outcome::RefusedCeiling,
            ..Self::new(429, message)
        }
    }

    /// The answer that carries it.
    #[must_use]
    pub fn into_response(self, dialect: Dialect, id: Option<&str>) -> Response<Answer> {
        let body = match dialect {
            Dialect::OpenAi => json!({"error": {
                "message": self.message,
                "type": self.kind.unwrap_or(if self.status < 500 { "invalid_request_error" } else { "server_error" }),
                "param": self.param,
                "code": self.code,
            }}),
            Dialect::Anthropic => json!({
                "type": "error",
                "error": {"type": anthropic_type(self.status), "message": self.message},
                "request_id": id,
            }),
            Dialect::Gemini => json!({"error": {
                "code": self.status, "message": self.message, "status": gemini_status(self.status),
            }}),
        };
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = json_response(status, &body);
        if let Some(wait) = self.retry_after_ms {
            let headers = response.headers_mut();
            headers.insert(header::RETRY_AFTER, HeaderValue::from(wait.div_ceil(1000)));
            if dialect == Dialect::OpenAi {
                headers.insert("retry-after-ms", HeaderValue::from(wait));
            }
        }
        response
    }
}

/// The codes of <https://cloud.google.com/apis/design/errors>.
fn gemini_status(status: u16) -> &'static str {
    match status {
        401 => "UNAUTHENTICATED",
        403 => "PERMISSION_DENIED",
        404 => "NOT_FOUND",
        429 => "RESOURCE_EXHAUSTED",
        400..500 => "INVALID_ARGUMENT",
        503 => "UNAVAILABLE",
        _ => "INTERNAL",
    }
}

/// The error types of <https://docs.anthropic.com/en/api/errors>.
fn anthropic_type(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        402 => "billing_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        504 => "timeout_error",
        529 => "overloaded_error",
        400..500 => "invalid_request_error",
        _ => "api_error",
    }
}

/// A JSON answer that bills nothing.
#[must_use]
pub fn json_response(status: StatusCode, body: &serde_json::Value) -> Response<Answer> {
    let mut response = Response::new(Answer::plain(body.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Adds the request id, and what the provider of this dialect says on every answer.
pub fn sign(headers: &mut HeaderMap, dialect: Dialect, id: &str, elapsed_ms: u64) {
    let Ok(id) = HeaderValue::from_str(id) else { return };
    match dialect {
        Dialect::OpenAi => {
            headers.insert("x-request-id", id);
            headers.insert("openai-processing-ms", HeaderValue::from(elapsed_ms));
            headers.insert("openai-version", HeaderValue::from_static("2020-10-01"));
            headers.insert("openai-organization", HeaderValue::from_static("simulated"));
        }
        Dialect::Anthropic => {
            headers.insert("request-id", id);
            headers.insert("anthropic-organization-id", HeaderValue::from_static("simulated"));
        }
        Dialect::Gemini => {}
    }
}

/// Adds the limit headers: what the account has and has left. A sliding window is back at its initial state a minute after
/// the last request, which is this one.
pub fn limit_headers(headers: &mut HeaderMap, dialect: Dialect, standing: &Standing) {
    let tokens = standing.ceilings.tokens.unwrap_or(NOMINAL_TOKENS);
    let requests = standing.ceilings.requests.unwrap_or(NOMINAL_REQUESTS);
    let tokens_left = tokens.saturating_sub(standing.used_tokens);
    let requests_left = requests.saturating_sub(standing.used_requests);
    let mut insert = |name: &'static str, value: HeaderValue| {
        headers.insert(HeaderName::from_static(name), value);
    };
    match dialect {
        Dialect::OpenAi => {
            let reset = HeaderValue::from_static("1m0s");
            insert("x-ratelimit-limit-requests", requests.into());
            insert("x-ratelimit-limit-tokens", tokens.into());
            insert("x-ratelimit-remaining-requests", requests_left.into());
            insert("x-ratelimit-remaining-tokens", tokens_left.into());
            insert("x-ratelimit-reset-requests", reset.clone());
            insert("x-ratelimit-reset-tokens", reset);
        }
        Dialect::Anthropic => {
            let reset = reset_instant();
            insert("anthropic-ratelimit-requests-limit", requests.into());
            insert("anthropic-ratelimit-requests-remaining", requests_left.into());
            insert("anthropic-ratelimit-requests-reset", reset.clone());
            insert("anthropic-ratelimit-tokens-limit", tokens.into());
            insert("anthropic-ratelimit-tokens-remaining", tokens_left.into());
            insert("anthropic-ratelimit-tokens-reset", reset.clone());
            // One ceiling binds input and output together, so either has all of what is left.
            insert("anthropic-ratelimit-input-tokens-limit", tokens.into());
            insert("anthropic-ratelimit-input-tokens-remaining", tokens_left.into());
            insert("anthropic-ratelimit-input-tokens-reset", reset.clone());
            insert("anthropic-ratelimit-output-tokens-limit", tokens.into());
            insert("anthropic-ratelimit-output-tokens-remaining", tokens_left.into());
            insert("anthropic-ratelimit-output-tokens-reset", reset);
        }
        Dialect::Gemini => {}
    }
}

/// A minute from now, RFC 3339 in whole seconds.
fn reset_instant() -> HeaderValue {
    let seconds = clock::wall_now().as_second() + (WINDOW_MS / 1000) as i64;
    let text = jiff::Timestamp::from_second(seconds).map(|instant| instant.to_string()).unwrap_or_default();
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(""))
}

/// A span as OpenAI writes it: `634ms`, `1.5s`, `6m0s`.
fn span(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms}ms"),
        1_000..60_000 if ms.is_multiple_of(1000) => format!("{}s", ms / 1000),
        1_000..60_000 => format!("{}.{:03}s", ms / 1000, ms % 1000),
        _ => format!("{}m{}s", ms / 60_000, ms / 1000 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_read_like_openais() {
        assert_eq!([634, 2_000, 59_800, 360_000].map(span), ["634ms", "2s", "59.800s", "6m0s"]);
    }
}
