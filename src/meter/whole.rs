//! The usage of an answer that comes as one JSON document.
//!
//! Only `usage` is read; the rest is skipped without being built. A document that says it twice is not believed.

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::usage::{Metered, Usage};
use super::{anthropic, openai};
use crate::route::Dialect;

/// What `body`, a whole answer with a status of success, says it used: `Exact` or `Unknown`.
///
/// Takes a chat completion (any number of choices), an embedding list or a message. `Unknown` for anything else: an
/// error document, invalid JSON, counts that are missing, negative, fractional, quoted, zero throughout or
/// unbelievably large.
pub fn usage_of_body(dialect: Dialect, body: &[u8]) -> Metered {
    let usage = match dialect {
        Dialect::OpenAi => openai_usage(body),
        Dialect::Anthropic => anthropic_usage(body),
    };
    usage.map_or(Metered::Unknown, Metered::exact)
}

fn openai_usage(body: &[u8]) -> Option<Usage> {
    #[derive(Deserialize)]
    struct Answer {
        #[serde(default)]
        choices: Option<IgnoredAny>,
        usage: openai::UsageReport,
    }
    let answer: Answer = serde_json::from_slice(body).ok()?;
    if answer.choices.is_some() { answer.usage.of_completion() } else { answer.usage.of_embeddings() }
}

fn anthropic_usage(body: &[u8]) -> Option<Usage> {
    #[derive(Deserialize)]
    struct Answer {
        usage: anthropic::UsageReport,
    }
    let answer: Answer = serde_json::from_slice(body).ok()?;
    answer.usage.is_complete().then(|| answer.usage.usage())
}
