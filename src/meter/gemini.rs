//! The Gemini dialect's shapes: only the members that the meter reads.
//!
//! Source: <https://ai.google.dev/api/generate-content#v1beta.GenerateContentResponse>. `usageMetadata` is on every chunk of
//! a stream and cumulative. `promptTokenCount` includes what was cached; thoughts are beside the candidates, and so are
//! the prompts of tools beside the prompt.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::lenient::{Object, Text};
use super::progress::Progress;
use super::usage::{Tokens, Usage};

/// A chunk of a stream, or a whole answer.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Chunk<'a> {
    #[serde(borrow, default)]
    pub usage_metadata: Option<&'a RawValue>,
    #[serde(borrow, default)]
    candidates: Option<Vec<Object<Candidate<'a>>>>,
    #[serde(default)]
    pub error: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Candidate<'a> {
    #[serde(default)]
    index: Option<u32>,
    #[serde(borrow, default)]
    content: Option<Content<'a>>,
    #[serde(borrow, default)]
    finish_reason: Text<'a>,
}

#[derive(Deserialize)]
struct Content<'a> {
    #[serde(borrow, default)]
    parts: Option<Vec<Object<Part<'a>>>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Part<'a> {
    #[serde(borrow, default)]
    text: Text<'a>,
    #[serde(borrow, default)]
    function_call: Option<&'a RawValue>,
}

impl Chunk<'_> {
    /// Adds what the chunk holds to `progress`.
    pub fn add_to(&self, progress: &mut Progress) {
        for Object(candidate) in self.candidates.iter().flatten() {
            let parts = candidate.content.iter().filter_map(|content| content.parts.as_ref());
            for Object(part) in parts.flatten() {
                progress.tally.add(&part.text.0);
                if let Some(call) = part.function_call {
                    progress.tally.add(call.get());
                }
            }
            if !candidate.finish_reason.0.is_empty() {
                progress.finish_choice(candidate.index.unwrap_or(0));
            }
        }
    }
}

/// `usageMetadata`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct UsageReport {
    prompt_token_count: Tokens,
    #[serde(default)]
    cached_content_token_count: Option<Tokens>,
    #[serde(default)]
    candidates_token_count: Option<Tokens>,
    #[serde(default)]
    thoughts_token_count: Option<Tokens>,
    #[serde(default)]
    tool_use_prompt_token_count: Option<Tokens>,
    #[serde(default)]
    total_token_count: Option<Tokens>,
}

impl UsageReport {
    /// `None` when the parts exceed the whole, or nothing says what came out.
    pub fn usage(&self) -> Option<Usage> {
        let or_zero = |tokens: Option<Tokens>| tokens.map_or(0, |tokens| tokens.0);
        let cache_read = or_zero(self.cached_content_token_count);
        let prompt = self.prompt_token_count.0;
        let uncached_input =
            prompt.checked_sub(cache_read)?.saturating_add(or_zero(self.tool_use_prompt_token_count));
        let reasoning = or_zero(self.thoughts_token_count);
        let named = self.candidates_token_count.map(|candidates| candidates.0.saturating_add(reasoning));
        let output = match (named, self.total_token_count) {
            (named, None) => named?,
            // What the total has beyond its named parts is billed, and was written.
            (named, Some(total)) => {
                let rest = total.0.checked_sub(uncached_input.saturating_add(cache_read))?;
                if rest < named.unwrap_or(reasoning) {
                    return None;
                }
                rest
            }
        };
        Some(Usage { uncached_input, cache_read, cache_write: 0, output, reasoning })
    }
}
