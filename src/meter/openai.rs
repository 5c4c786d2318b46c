//! The OpenAI dialect's shapes: only the members that the meter reads.
//!
//! Sources: <https://platform.openai.com/docs/api-reference/chat/streaming> (chunks),
//! <https://platform.openai.com/docs/api-reference/chat/object> (usage).

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::lenient::{Few, Text};
use super::usage::{Tokens, Usage};

/// A chunk of a streamed chat completion.
#[derive(Deserialize)]
pub(super) struct Chunk<'a> {
    #[serde(borrow, default)]
    pub choices: Option<Few<Choice<'a>>>,
    /// Kept raw: a report that cannot be read must not hide the choices beside it.
    #[serde(borrow, default)]
    pub usage: Option<&'a RawValue>,
    #[serde(default)]
    pub error: Option<IgnoredAny>,
}

impl Chunk<'_> {
    /// Whether this is the chunk that `stream_options.include_usage` adds: usage, and an empty array of choices. Usage
    /// beside a choice is the provider's own doing, and so is a null usage, which `include_usage` adds to every other
    /// chunk: a client that meets one ignores it, while it would fail on `choices[0]` of an empty array.
    pub fn is_usage_only(&self) -> bool {
        self.usage.is_some() && self.choices.as_ref().is_some_and(Few::is_empty)
    }
}

#[derive(Deserialize)]
pub(super) struct Choice<'a> {
    /// Some servers leave it out when there is only one choice.
    #[serde(default)]
    pub index: Option<u32>,
    #[serde(borrow, default)]
    pub delta: Option<Delta<'a>>,
    /// Empty until the choice has ended: some servers write `""` for null.
    #[serde(borrow, default)]
    pub finish_reason: Text<'a>,
}

#[derive(Deserialize)]
pub(super) struct Delta<'a> {
    #[serde(borrow, default)]
    content: Text<'a>,
    #[serde(borrow, default)]
    refusal: Text<'a>,
    /// DeepSeek's and vLLM's name for visible reasoning.
    #[serde(borrow, default)]
    reasoning_content: Text<'a>,
    /// OpenRouter's name for the same; who sends both sends the same text twice.
    #[serde(borrow, default)]
    reasoning: Text<'a>,
    #[serde(borrow, default)]
    tool_calls: Option<Few<ToolCall<'a>>>,
    #[serde(borrow, default)]
    function_call: Option<Function<'a>>,
}

impl Delta<'_> {
    /// Every text in it that the provider generated.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        let reasoning =
            if self.reasoning_content.0.is_empty() { &self.reasoning } else { &self.reasoning_content };
        let tools = self.tool_calls.iter().flat_map(Few::iter).filter_map(|call| call.function.as_ref());
        let arguments = tools.chain(&self.function_call).map(|function| &function.arguments);
        [reasoning, &self.content, &self.refusal].into_iter().chain(arguments).map(|text| text.0.as_ref())
    }
}

#[derive(Deserialize)]
struct ToolCall<'a> {
    #[serde(borrow, default)]
    function: Option<Function<'a>>,
}

#[derive(Deserialize)]
struct Function<'a> {
    #[serde(borrow, default)]
    arguments: Text<'a>,
}

/// The `usage` object of chats and embeddings.
#[derive(Deserialize)]
pub(super) struct UsageReport {
    prompt_tokens: Tokens,
    #[serde(default)]
    completion_tokens: Option<Tokens>,
    #[serde(default)]
    total_tokens: Option<Tokens>,
    #[serde(default)]
    prompt_tokens_details: Option<PromptDetails>,
    #[serde(default)]
    completion_tokens_details: Option<CompletionDetails>,
}

#[derive(Deserialize)]
struct PromptDetails {
    #[serde(default)]
    cached_tokens: Option<Tokens>,
    #[serde(default)]
    cache_write_tokens: Option<Tokens>,
}

#[derive(Deserialize)]
struct CompletionDetails {
    #[serde(default)]
    reasoning_tokens: Option<Tokens>,
}

impl UsageReport {
    /// The usage of an answer that has choices; `None` without the tokens of the completion, or when the parts exceed
    /// the whole.
    pub fn of_completion(&self) -> Option<Usage> {
        self.normalised(self.completion_tokens?.0)
    }

    /// The usage of an answer that has none, such as embeddings: there is no output to report.
    pub fn of_embeddings(&self) -> Option<Usage> {
        self.normalised(self.completion_tokens.map_or(0, |tokens| tokens.0))
    }

    fn normalised(&self, completion: u64) -> Option<Usage> {
        let or_zero = |tokens: Option<Tokens>| tokens.map_or(0, |tokens| tokens.0);
        let prompt = self.prompt_tokens.0;
        let prompt_details = self.prompt_tokens_details.as_ref();
        let cache_read = or_zero(prompt_details.and_then(|details| details.cached_tokens));
        let cache_write = or_zero(prompt_details.and_then(|details| details.cache_write_tokens));
        let uncached_input = prompt.checked_sub(cache_read.saturating_add(cache_write))?;

        let completion_details = self.completion_tokens_details.as_ref();
        let reasoning = or_zero(completion_details.and_then(|details| details.reasoning_tokens));
        // OpenAI's completion includes reasoning, some others' does not, and their total tells.
        let apart = prompt.saturating_add(completion).saturating_add(reasoning);
        let is_apart = self.total_tokens.is_some_and(|total| total.0 == apart);
        let output = if is_apart { completion.saturating_add(reasoning) } else { completion };
        (reasoning <= output).then_some(Usage { uncached_input, cache_read, cache_write, output, reasoning })
    }
}
