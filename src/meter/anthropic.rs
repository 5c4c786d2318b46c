//! The Anthropic dialect's shapes: only the members that the meter reads.
//!
//! Sources: <https://docs.anthropic.com/en/api/messages> (usage),
//! <https://docs.anthropic.com/en/api/messages-streaming> (events),
//! <https://docs.anthropic.com/en/docs/build-with-claude/compaction> (`iterations`).

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::lenient::Text;
use super::usage::{Tokens, Usage};

/// An event of a streamed message.
#[derive(Deserialize)]
pub(super) struct Event<'a> {
    #[serde(borrow, rename = "type", default)]
    pub kind: Text<'a>,
    /// Of `message_start`.
    #[serde(borrow, default)]
    pub message: Option<Message<'a>>,
    /// Of `message_delta`.
    #[serde(borrow, default)]
    pub usage: Option<&'a RawValue>,
    /// Of `message_delta` and `content_block_delta`.
    #[serde(borrow, default)]
    pub delta: Option<Delta<'a>>,
    #[serde(default)]
    pub error: Option<IgnoredAny>,
}

#[derive(Deserialize)]
pub(super) struct Message<'a> {
    #[serde(borrow, default)]
    pub usage: Option<&'a RawValue>,
}

#[derive(Deserialize)]
pub(super) struct Delta<'a> {
    #[serde(borrow, default)]
    pub stop_reason: Text<'a>,
    #[serde(borrow, default)]
    text: Text<'a>,
    #[serde(borrow, default)]
    thinking: Text<'a>,
    #[serde(borrow, default)]
    partial_json: Text<'a>,
}

impl Delta<'_> {
    /// Every text in it that the provider generated.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        [&self.text, &self.thinking, &self.partial_json].into_iter().map(|text| text.0.as_ref())
    }
}

/// A `usage` object; of a message, or of an event, where each member that is present is a running total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct UsageReport {
    input: Option<u64>,
    cache_read: Option<u64>,
    cache_write: Option<u64>,
    output: Option<u64>,
    reasoning: Option<u64>,
    /// Compactions of the context, which the provider samples and bills beside the answer and leaves out of the other
    /// members.
    compaction: Option<Usage>,
}

impl UsageReport {
    /// Takes over each member that a later report has.
    pub fn replace_with(&mut self, later: Self) {
        self.input = later.input.or(self.input);
        self.cache_read = later.cache_read.or(self.cache_read);
        self.cache_write = later.cache_write.or(self.cache_write);
        self.output = later.output.or(self.output);
        self.reasoning = later.reasoning.or(self.reasoning);
        self.compaction = later.compaction.or(self.compaction);
    }

    /// Whether it says what went in and what came out.
    pub fn is_complete(&self) -> bool {
        self.input.is_some() && self.output.is_some()
    }

    /// Whether it says anything of what came out.
    pub fn has_output(&self) -> bool {
        self.output.is_some()
    }

    /// What it says, with 0 for what it does not.
    pub fn usage(&self) -> Usage {
        let output = self.output.unwrap_or(0);
        let answer = Usage {
            uncached_input: self.input.unwrap_or(0),
            cache_read: self.cache_read.unwrap_or(0),
            cache_write: self.cache_write.unwrap_or(0),
            output,
            reasoning: self.reasoning.unwrap_or(0).min(output),
        };
        answer.plus(self.compaction.unwrap_or_default())
    }
}

impl<'de> Deserialize<'de> for UsageReport {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let wire = WireUsage::deserialize(deserializer)?;
        Ok(Self {
            input: wire.input_tokens.map(|tokens| tokens.0),
            cache_read: wire.cache_read_input_tokens.map(|tokens| tokens.0),
            cache_write: cache_write(wire.cache_creation_input_tokens, wire.cache_creation),
            output: wire.output_tokens.map(|tokens| tokens.0),
            reasoning: wire
                .output_tokens_details
                .and_then(|details| details.thinking_tokens)
                .map(|tokens| tokens.0),
            compaction: wire.iterations.map(|iterations| {
                iterations
                    .iter()
                    .filter(|iteration| iteration.kind.0 == "compaction")
                    .fold(Usage::default(), |sum, iteration| sum.plus(iteration.usage()))
            }),
        })
    }
}

#[derive(Deserialize)]
struct WireUsage<'a> {
    #[serde(default)]
    input_tokens: Option<Tokens>,
    #[serde(default)]
    cache_read_input_tokens: Option<Tokens>,
    #[serde(default)]
    cache_creation_input_tokens: Option<Tokens>,
    #[serde(default)]
    cache_creation: Option<CacheCreation>,
    #[serde(default)]
    output_tokens: Option<Tokens>,
    #[serde(default)]
    output_tokens_details: Option<OutputDetails>,
    #[serde(borrow, default)]
    iterations: Option<Vec<Iteration<'a>>>,
}

/// Cache writes by the time they are kept.
#[derive(Clone, Copy, Deserialize)]
struct CacheCreation {
    #[serde(default)]
    ephemeral_5m_input_tokens: Option<Tokens>,
    #[serde(default)]
    ephemeral_1h_input_tokens: Option<Tokens>,
}

#[derive(Deserialize)]
struct OutputDetails {
    #[serde(default)]
    thinking_tokens: Option<Tokens>,
}

/// One sampling of the model within a request.
#[derive(Deserialize)]
struct Iteration<'a> {
    #[serde(borrow, rename = "type", default)]
    kind: Text<'a>,
    #[serde(default)]
    input_tokens: Option<Tokens>,
    #[serde(default)]
    cache_read_input_tokens: Option<Tokens>,
    #[serde(default)]
    cache_creation_input_tokens: Option<Tokens>,
    #[serde(default)]
    output_tokens: Option<Tokens>,
}

impl Iteration<'_> {
    fn usage(&self) -> Usage {
        let or_zero = |tokens: Option<Tokens>| tokens.map_or(0, |tokens| tokens.0);
        Usage {
            uncached_input: or_zero(self.input_tokens),
            cache_read: or_zero(self.cache_read_input_tokens),
            cache_write: or_zero(self.cache_creation_input_tokens),
            output: or_zero(self.output_tokens),
            reasoning: 0,
        }
    }
}

/// The total and its breakdown say the same; where one is missing or they differ, the larger counts.
fn cache_write(total: Option<Tokens>, breakdown: Option<CacheCreation>) -> Option<u64> {
    let total = total.map(|tokens| tokens.0);
    let broken_down = breakdown.map(|kept| {
        let minutes = kept.ephemeral_5m_input_tokens.map_or(0, |tokens| tokens.0);
        let hour = kept.ephemeral_1h_input_tokens.map_or(0, |tokens| tokens.0);
        minutes.saturating_add(hour)
    });
    total.max(broken_down)
}
