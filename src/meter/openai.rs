//! The OpenAI dialect's shapes: only the members that the meter reads.
//!
//! Sources: <https://platform.openai.com/docs/api-reference/chat/streaming> (chunks),
//! <https://platform.openai.com/docs/api-reference/chat/object> (usage).

use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::lenient::{Object, Text};
use super::progress::Progress;
use super::tally::Tally;
use super::usage::{Tokens, Usage};

/// What a chunk of a streamed chat completion says, beside the progress that it makes.
#[derive(Debug, Default)]
pub(super) struct Chunk<'a> {
    /// Kept raw: a report that cannot be read must not hide the choices beside it.
    pub usage: Option<&'a RawValue>,
    pub has_error: bool,
    choices: Choices,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Choices {
    #[default]
    Missing,
    Empty,
    Some,
}

impl Chunk<'_> {
    /// Whether this is the chunk that `stream_options.include_usage` adds: usage, and an empty array of choices. Usage
    /// beside a choice is the provider's own doing, and so is a null usage, which `include_usage` adds to every other
    /// chunk: a client that meets one ignores it, while it would fail on `choices[0]` of an empty array.
    pub fn is_usage_only(&self) -> bool {
        self.usage.is_some() && self.choices == Choices::Empty
    }
}

/// Reads a chunk and adds what it holds to `progress`.
///
/// The parts of a chunk are taken note of where they stand: building them first would cost as much again as reading
/// them, for each token of every stream.
pub(super) fn read_chunk<'a>(json: &'a str, progress: &mut Progress) -> serde_json::Result<Chunk<'a>> {
    let mut reader = serde_json::Deserializer::from_str(json);
    let chunk = reader.deserialize_map(ChunkVisitor(progress))?;
    reader.end()?;
    Ok(chunk)
}

struct ChunkVisitor<'p>(&'p mut Progress);

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum ChunkKey {
    Choices,
    Usage,
    Error,
    #[serde(other)]
    Other,
}

impl<'de> Visitor<'de> for ChunkVisitor<'_> {
    type Value = Chunk<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a chunk of a chat completion")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Chunk<'de>, A::Error> {
        let mut chunk = Chunk::default();
        while let Some(key) = members.next_key()? {
            match key {
                ChunkKey::Choices => chunk.choices = members.next_value_seed(ChoicesReader(self.0))?,
                ChunkKey::Usage if chunk.usage.is_some() => return Err(A::Error::duplicate_field("usage")),
                ChunkKey::Usage => chunk.usage = members.next_value()?,
                ChunkKey::Error => chunk.has_error |= members.next_value::<Option<IgnoredAny>>()?.is_some(),
                ChunkKey::Other => _ = members.next_value::<IgnoredAny>()?,
            }
        }
        Ok(chunk)
    }
}

struct ChoicesReader<'p>(&'p mut Progress);

impl<'de> DeserializeSeed<'de> for ChoicesReader<'_> {
    type Value = Choices;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Choices, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ChoicesReader<'_> {
    type Value = Choices;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an array of choices")
    }

    fn visit_unit<E>(self) -> Result<Choices, E> {
        Ok(Choices::Missing)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Choices, A::Error> {
        let mut choices = Choices::Empty;
        while items.next_element_seed(ChoiceReader(self.0))?.is_some() {
            choices = Choices::Some;
        }
        Ok(choices)
    }
}

struct ChoiceReader<'p>(&'p mut Progress);

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum ChoiceKey {
    Index,
    Delta,
    /// Of text completions.
    Text,
    FinishReason,
    #[serde(other)]
    Other,
}

impl<'de> DeserializeSeed<'de> for ChoiceReader<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for ChoiceReader<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a choice")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        let mut index: Option<u32> = None;
        let mut has_finished = false;
        while let Some(key) = members.next_key()? {
            match key {
                ChoiceKey::Index => index = members.next_value()?,
                ChoiceKey::Delta => {
                    members.next_value_seed(TextReader { place: Place::Delta, tally: &mut self.0.tally })?;
                }
                ChoiceKey::Text => {
                    members.next_value_seed(TextReader { place: Place::Text, tally: &mut self.0.tally })?;
                }
                // Some servers write "" for null.
                ChoiceKey::FinishReason => has_finished = !members.next_value::<Text<'_>>()?.0.is_empty(),
                ChoiceKey::Other => _ = members.next_value::<IgnoredAny>()?,
            }
        }
        if has_finished {
            // Some servers leave the index out when there is only one choice.
            self.0.finish_choice(index.unwrap_or(0));
        }
        Ok(())
    }
}

/// Counts every text in a delta that the provider generated, and tells whether there was any. What is not of the
/// expected kind holds no text.
struct TextReader<'t> {
    place: Place,
    tally: &'t mut Tally,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Delta,
    ToolCalls,
    ToolCall,
    Function,
    Text,
    Elsewhere,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum DeltaKey {
    Content,
    Refusal,
    /// DeepSeek's and vLLM's name for visible reasoning.
    ReasoningContent,
    /// OpenRouter's name for the same.
    Reasoning,
    ToolCalls,
    Function,
    FunctionCall,
    Arguments,
    #[serde(other)]
    Other,
}

impl Place {
    fn member(self, key: DeltaKey) -> Self {
        use DeltaKey as Key;
        match (self, key) {
            (Self::Delta, Key::Content | Key::Refusal | Key::ReasoningContent | Key::Reasoning)
            | (Self::Function, Key::Arguments) => Self::Text,
            (Self::Delta, Key::ToolCalls) => Self::ToolCalls,
            (Self::Delta, Key::FunctionCall) | (Self::ToolCall, Key::Function) => Self::Function,
            _ => Self::Elsewhere,
        }
    }

    fn item(self) -> Self {
        if self == Self::ToolCalls { Self::ToolCall } else { Self::Elsewhere }
    }
}

impl<'de> DeserializeSeed<'de> for TextReader<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        match self.place {
            Place::Elsewhere => IgnoredAny::deserialize(deserializer).map(|_| false),
            _ => deserializer.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for TextReader<'_> {
    type Value = bool;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("any value")
    }

    fn visit_str<E>(self, text: &str) -> Result<bool, E> {
        if self.place == Place::Text {
            self.tally.add(text);
        }
        Ok(!text.is_empty())
    }

    fn visit_unit<E>(self) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_bool<E>(self, _: bool) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_u64<E>(self, _: u64) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_i64<E>(self, _: i64) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_f64<E>(self, _: f64) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<bool, A::Error> {
        let mut any = false;
        let place = self.place.item();
        while let Some(found) = items.next_element_seed(TextReader { place, tally: &mut *self.tally })? {
            any |= found;
        }
        Ok(any)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<bool, A::Error> {
        let mut any = false;
        let mut reasoning = false;
        while let Some(key) = members.next_key()? {
            let is_reasoning = matches!(key, DeltaKey::ReasoningContent | DeltaKey::Reasoning);
            // Who sends reasoning under both names sends the same text twice.
            let place = if is_reasoning && reasoning { Place::Elsewhere } else { self.place.member(key) };
            let found = members.next_value_seed(TextReader { place, tally: &mut *self.tally })?;
            reasoning |= is_reasoning && found;
            any |= found;
        }
        Ok(any)
    }
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
    prompt_tokens_details: Option<Object<PromptDetails>>,
    #[serde(default)]
    completion_tokens_details: Option<Object<CompletionDetails>>,
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
        let cache_read = or_zero(prompt_details.and_then(|details| details.0.cached_tokens));
        let cache_write = or_zero(prompt_details.and_then(|details| details.0.cache_write_tokens));
        let uncached_input = prompt.checked_sub(cache_read.saturating_add(cache_write))?;

        let completion_details = self.completion_tokens_details.as_ref();
        let reasoning = or_zero(completion_details.and_then(|details| details.0.reasoning_tokens));
        // OpenAI's completion includes reasoning, some others' does not, and their total tells.
        let apart = prompt.saturating_add(completion).saturating_add(reasoning);
        let is_apart = self.total_tokens.is_some_and(|total| total.0 == apart);
        let output = if is_apart { completion.saturating_add(reasoning) } else { completion };
        (reasoning <= output).then_some(Usage { uncached_input, cache_read, cache_write, output, reasoning })
    }
}
