//! What a request used, in one shape for all dialects.
//!
//! Providers disagree on what their numbers include; here each token is counted in exactly one of the first four
//! members, so that sums are right and prices can be applied to each.
//!
//! | member | OpenAI `usage` | Anthropic `usage` | Gemini `usageMetadata` |
//! |---|---|---|---|
//! | `uncached_input` | `prompt_tokens` less the two below | `input_tokens` | `promptTokenCount` less the one below, plus `toolUsePromptTokenCount` |
//! | `cache_read` | `prompt_tokens_details.cached_tokens` | `cache_read_input_tokens` | `cachedContentTokenCount` |
//! | `cache_write` | `prompt_tokens_details.cache_write_tokens` | `cache_creation_input_tokens` | – |
//! | `output` | `completion_tokens` | `output_tokens` | `candidatesTokenCount` plus the one below |
//! | `reasoning` | `completion_tokens_details.reasoning_tokens` | `output_tokens_details.thinking_tokens` | `thoughtsTokenCount` |
//!
//! The Responses API says `input_tokens` and `output_tokens` for the first column's, with `…_details` alike.
//!
//! Sources: <https://platform.openai.com/docs/api-reference/chat/object>,
//! <https://platform.openai.com/docs/api-reference/embeddings/create>,
//! <https://docs.anthropic.com/en/api/messages>, <https://docs.anthropic.com/en/docs/build-with-claude/prompt-caching>.

use serde::de::{Deserializer, Error, Unexpected};
use serde::{Deserialize, Serialize};

use crate::route::Dialect;

/// Tokens used by one request. Sums saturate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Usage {
    /// Input tokens that the provider processed afresh and did not store.
    pub uncached_input: u64,
    /// Input tokens that the provider read from its prompt cache.
    pub cache_read: u64,
    /// Input tokens that the provider processed and stored in its prompt cache.
    pub cache_write: u64,
    /// Output tokens, reasoning included, over all choices.
    pub output: u64,
    /// Output tokens that were spent on reasoning; already part of `output`.
    pub reasoning: u64,
}

impl Usage {
    /// All input tokens, cached or not.
    pub fn input_total(&self) -> u64 {
        self.uncached_input.saturating_add(self.cache_read).saturating_add(self.cache_write)
    }

    /// The input tokens that count towards an input limit.
    ///
    /// Anthropic leaves cache reads out of its input limits and counts cache writes
    /// (<https://docs.anthropic.com/en/api/rate-limits>); OpenAI counts the whole prompt
    /// (<https://platform.openai.com/docs/guides/prompt-caching>).
    pub fn limit_input(&self, dialect: Dialect) -> u64 {
        match dialect {
            Dialect::OpenAi | Dialect::Gemini => self.input_total(),
            Dialect::Anthropic => self.uncached_input.saturating_add(self.cache_write),
        }
    }

    /// All tokens, input and output.
    pub fn total(&self) -> u64 {
        self.input_total().saturating_add(self.output)
    }

    /// Member by member; for the parts of one request that a provider reports apart.
    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            uncached_input: self.uncached_input.saturating_add(other.uncached_input),
            cache_read: self.cache_read.saturating_add(other.cache_read),
            cache_write: self.cache_write.saturating_add(other.cache_write),
            output: self.output.saturating_add(other.output),
            reasoning: self.reasoning.saturating_add(other.reasoning),
        }
    }
}

/// How much of a request's usage is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Metered {
    /// The provider's last word on a complete answer.
    Exact(Usage),
    /// The provider billed this much or more: the answer is incomplete, or the report of it. A member that nobody
    /// reported is 0, and the estimate still stands for it. Never a ground to refund a budget.
    AtLeast(Usage),
    /// Nothing was reported, or in a shape that cannot be trusted: the estimate stands.
    Unknown,
}

impl Metered {
    /// `Exact`, unless there is nothing in it: no provider serves a request for no tokens at all.
    pub(super) fn exact(usage: Usage) -> Self {
        if usage.total() == 0 { Self::Unknown } else { Self::Exact(usage) }
    }

    /// `AtLeast`, unless there is nothing in it.
    pub(super) fn at_least(usage: Usage) -> Self {
        if usage.total() == 0 { Self::Unknown } else { Self::AtLeast(usage) }
    }
}

/// A count of tokens as it stands in JSON: a non-negative integer of a believable size.
///
/// Four billion is hundreds of times the largest context window in service; a number beyond it is a fault, and taking
/// it at its word would put a tenant in debt for years.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tokens(pub u64);

impl<'de> Deserialize<'de> for Tokens {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let count = u64::deserialize(deserializer)?;
        if count > u64::from(u32::MAX) {
            return Err(D::Error::invalid_value(
                Unexpected::Unsigned(count),
                &"a believable count of tokens",
            ));
        }
        Ok(Self(count))
    }
}
