//! The shapes of OpenAI's Responses API: only the members that the meter reads.
//!
//! Sources: <https://platform.openai.com/docs/api-reference/responses/object>,
//! <https://platform.openai.com/docs/api-reference/responses-streaming>.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::lenient::{Object, Text};
use super::usage::{Metered, Tokens, Usage};

/// An event of a streamed response.
#[derive(Deserialize)]
pub(super) struct Event<'a> {
    #[serde(borrow, rename = "type", default)]
    pub kind: Text<'a>,
    #[serde(borrow, default)]
    delta: Text<'a>,
    #[serde(borrow, default)]
    pub response: Option<Response<'a>>,
    #[serde(default)]
    pub error: Option<IgnoredAny>,
}

#[derive(Deserialize)]
pub(super) struct Response<'a> {
    #[serde(borrow, default)]
    id: Text<'a>,
    #[serde(borrow, default)]
    status: Text<'a>,
    #[serde(borrow, default)]
    pub usage: Option<&'a RawValue>,
}

impl Response<'_> {
    /// Its id, if it has one of a believable length.
    pub fn id(&self) -> Option<&str> {
        Some(self.id.0.as_ref()).filter(|id| (1..=256).contains(&id.len()))
    }
}

impl Event<'_> {
    /// The text in it that the provider generated.
    pub fn text(&self) -> &str {
        if self.kind.0.ends_with(".delta") { &self.delta.0 } else { "" }
    }

    /// Whether the response is over.
    pub fn is_last(&self) -> bool {
        matches!(
            self.kind.0.as_ref(),
            "response.completed" | "response.incomplete" | "response.failed" | "response.cancelled"
        )
    }
}

/// The `usage` object of a response.
#[derive(Deserialize)]
pub(super) struct UsageReport {
    input_tokens: Tokens,
    #[serde(default)]
    input_tokens_details: Option<Object<InputDetails>>,
    output_tokens: Tokens,
    #[serde(default)]
    output_tokens_details: Option<Object<OutputDetails>>,
}

#[derive(Deserialize)]
struct InputDetails {
    #[serde(default)]
    cached_tokens: Option<Tokens>,
}

#[derive(Deserialize)]
struct OutputDetails {
    #[serde(default)]
    reasoning_tokens: Option<Tokens>,
}

impl UsageReport {
    /// `None` when a part exceeds the whole.
    pub fn usage(&self) -> Option<Usage> {
        let or_zero = |tokens: Option<Tokens>| tokens.map_or(0, |tokens| tokens.0);
        let cache_read = or_zero(self.input_tokens_details.as_ref().and_then(|Object(d)| d.cached_tokens));
        let reasoning = or_zero(self.output_tokens_details.as_ref().and_then(|Object(d)| d.reasoning_tokens));
        let output = self.output_tokens.0;
        let uncached_input = self.input_tokens.0.checked_sub(cache_read)?;
        (reasoning <= output).then_some(Usage {
            uncached_input,
            cache_read,
            cache_write: 0,
            output,
            reasoning,
        })
    }
}

/// What a response, whole or retrieved later, says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// Its id; empty when it has none.
    pub id: String,
    /// Whether nothing more will come of it.
    pub is_over: bool,
    /// What it used.
    pub usage: Metered,
}

/// Reads a whole response; `None` for what is none.
pub fn read_response(body: &[u8]) -> Option<Told> {
    let Object(response): Object<Response<'_>> = serde_json::from_slice(body).ok()?;
    let usage = response
        .usage
        .and_then(|raw| serde_json::from_str::<Object<UsageReport>>(raw.get()).ok())
        .and_then(|Object(report)| report.usage());
    Some(Told {
        id: response.id().unwrap_or_default().to_owned(),
        is_over: matches!(response.status.0.as_ref(), "completed" | "incomplete" | "failed" | "cancelled"),
        usage: usage.map_or(Metered::Unknown, Metered::exact),
    })
}
