//! The usage of an answer that comes as one JSON document.
//!
//! Only `usage` is read; the rest is skipped without being built. A document that says it twice is not believed.

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::lenient::Object;
use super::responses::read_response;
use super::shape::Shape;
use super::usage::{Metered, Usage};
use super::{anthropic, gemini, openai};

/// What `body`, a whole answer with a status of success, says it used: `Exact` or `Unknown`.
///
/// Takes a chat or text completion (any number of choices), an embedding list, a response, a message or Gemini's content. `Unknown` for anything else: an
/// error document, invalid JSON, counts that are missing, negative, fractional, quoted, zero throughout or
/// unbelievably large.
pub fn usage_of_body(shape: impl Into<Shape>, body: &[u8]) -> Metered {
    // What is skipped is not checked for it, and what is not UTF-8 is not JSON.
    if std::str::from_utf8(body).is_err() {
        return Metered::Unknown;
    }
    let usage = match shape.into() {
        Shape::OpenAi => openai_usage(body),
        Shape::Anthropic => anthropic_usage(body),
        Shape::Gemini | Shape::GeminiArray => gemini_usage(body),
        Shape::Responses => return read_response(body).map_or(Metered::Unknown, |told| told.usage),
        Shape::Opaque => None,
    };
    usage.map_or(Metered::Unknown, Metered::exact)
}

fn openai_usage(body: &[u8]) -> Option<Usage> {
    #[derive(Deserialize)]
    struct Answer {
        #[serde(default)]
        choices: Option<IgnoredAny>,
        usage: Object<openai::UsageReport>,
    }
    let Object(answer): Object<Answer> = serde_json::from_slice(body).ok()?;
    let Object(report) = answer.usage;
    if answer.choices.is_some() { report.of_completion() } else { report.of_embeddings() }
}

fn anthropic_usage(body: &[u8]) -> Option<Usage> {
    #[derive(Deserialize)]
    struct Answer {
        usage: anthropic::UsageReport,
    }
    let Object(answer): Object<Answer> = serde_json::from_slice(body).ok()?;
    answer.usage.is_complete().then(|| answer.usage.usage())
}

fn gemini_usage(body: &[u8]) -> Option<Usage> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Answer {
        usage_metadata: Object<gemini::UsageReport>,
    }
    let Object(answer): Object<Answer> = serde_json::from_slice(body).ok()?;
    let Object(report) = answer.usage_metadata;
    report.usage()
}
