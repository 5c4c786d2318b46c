//! In which shape an answer comes: its dialect does not tell alone.

use crate::route::{Dialect, Endpoint};

/// The shape of an answer, whole or streamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shape {
    /// OpenAI's chats, text completions and embeddings; streamed as `data:` events that end with `[DONE]`.
    OpenAi,
    /// OpenAI's Responses API; streamed as named events, of which the last holds the whole response.
    Responses,
    /// Anthropic's messages; streamed as named events.
    Anthropic,
    /// Gemini's; streamed as `data:` events (`alt=sse`).
    Gemini,
    /// Gemini's, streamed as one JSON array, an element at a time.
    GeminiArray,
    /// What is passed through unread.
    Opaque,
}

impl Shape {
    /// The shape of an endpoint's answers; streams as events.
    pub fn of(endpoint: Endpoint) -> Self {
        match endpoint {
            Endpoint::Responses => Self::Responses,
            Endpoint::PassedThrough => Self::Opaque,
            _ => endpoint.spoken().into(),
        }
    }
}

impl From<Dialect> for Shape {
    fn from(dialect: Dialect) -> Self {
        match dialect {
            Dialect::OpenAi => Self::OpenAi,
            Dialect::Anthropic => Self::Anthropic,
            Dialect::Gemini => Self::Gemini,
        }
    }
}
