//! A request body, read once: who is asked, how much may come back, what is to be counted, and where to patch.
//!
//! Laws:
//! - `refused_before_counted`: whatever makes the amount of a request uncertain (a wrong type, a ceiling of 0 or 2^63) is refused
//!   here, where it costs nothing.
//! - `untouched_but_for`: [`Ask::patched`] splices two members and copies every other byte.
//!
//! Members that decide neither amount nor route are the provider's to judge. Never fills in defaults: those belong to a policy.

mod anthropic;
mod complaint;
mod fields;
mod openai;
#[cfg(test)]
mod tests;

use std::ops::Range;

use bytes::Bytes;

use super::json::{self, Bounds, Document, Json, Object};
use super::{Endpoint, Prompt};
use complaint::Complaint;

pub use complaint::BadAsk;

/// A request body, read.
#[derive(Clone, Debug, PartialEq)]
pub struct Ask {
    /// Where it was sent.
    pub endpoint: Endpoint,
    /// The model as the caller named it: not empty, at most 256 bytes; possibly an alias, possibly unknown.
    pub model: String,
    /// Whether the answer is to come as server-sent events.
    pub stream: bool,
    /// How many answers (OpenAI's `n`), from 1 to 128.
    pub choices: u32,
    /// Tokens that one answer may have at most, as the caller named it; from 1 to 2^32 - 1.
    pub output_ceiling: Option<u64>,
    /// What the caller said of `stream_options.include_usage`; `None`: nothing.
    pub include_usage: Option<bool>,
    /// The caller's own user: OpenAI's `user`, else `safety_identifier`; Anthropic's `metadata.user_id`. Not empty, at most 512 bytes.
    pub user: Option<String>,
    /// What the model is given to read.
    pub prompt: Prompt,
    seams: Seams,
}

/// Where a body is cut to patch it.
#[derive(Clone, Debug, PartialEq)]
struct Seams {
    body_bytes: usize,
    model: Range<usize>,
    /// What to put where to have usage reported; `None`: nothing is needed.
    usage: Option<Splice<&'static str>>,
}

/// Text that takes the place of a range of bytes.
#[derive(Clone, Debug, PartialEq)]
struct Splice<T> {
    range: Range<usize>,
    text: T,
}

/// What an endpoint's own reader finds besides the prompt.
struct Wants {
    choices: u32,
    output_ceiling: Option<u64>,
    user: Option<String>,
}

/// No model writes 2^32 tokens: a larger ceiling is a mistake of units, and would reserve a tenant's whole budget.
const OUTPUT_CEILING_MAX: u64 = u32::MAX as u64;

/// Model names are kept, logged and compared; the longest in use, with their vendor's prefix, are under 100 bytes.
const MODEL_BYTES_MAX: usize = 256;

/// Twice what either provider accepts.
const USER_BYTES_MAX: usize = 512;

impl Ask {
    /// Reads the body of a request to `endpoint`. Refuses what is wrong with what, where and what to do; see [`BadAsk::code`].
    pub fn read(endpoint: Endpoint, body: &[u8], bounds: &Bounds) -> Result<Ask, BadAsk> {
        let document = json::read(body, bounds, &["model", "stream_options"])?;
        let object = &document.object;
        let model = read_model(object)?.to_owned();
        let stream = endpoint.has_output() && fields::flag(object, "stream")?.unwrap_or(false);
        let mut prompt = Prompt::default();
        let wants = match endpoint {
            Endpoint::ChatCompletions => openai::read_chat(object, &mut prompt)?,
            Endpoint::Embeddings => openai::read_embeddings(object, &mut prompt)?,
            Endpoint::Messages => anthropic::read_messages(object, &mut prompt)?,
            Endpoint::CountTokens => anthropic::read_count_tokens(object, &mut prompt)?,
            Endpoint::Models => return Err(no_body_here()),
        };
        let (include_usage, usage) = match endpoint {
            Endpoint::ChatCompletions => read_usage(&document, body, bounds)?,
            _ => (None, None),
        };
        // `model` was read, so it was located.
        let model_range = document.range("model").unwrap_or_default();
        let seams = Seams { body_bytes: body.len(), model: model_range, usage };
        let Wants { choices, output_ceiling, user } = wants;
        Ok(Ask { endpoint, model, stream, choices, output_ceiling, include_usage, user, prompt, seams })
    }

    /// The body with another model, or with usage asked for (`stream_options.include_usage`, only where the answer is an OpenAI
    /// stream), every other byte as it was. The same bytes, not a copy, when there is nothing to change.
    ///
    /// `body` is the one this was read from; another length is a bug and panics.
    pub fn patched(&self, body: &Bytes, model: Option<&str>, ask_for_usage: bool) -> Bytes {
        assert_eq!(body.len(), self.seams.body_bytes, "an ask can patch only the body it was read from");
        let renamed = model
            .filter(|model| *model != self.model)
            .map(|model| Splice { range: self.seams.model.clone(), text: Json::quoted(model) });
        let usage = self.seams.usage.clone().filter(|_| ask_for_usage && self.stream);
        let usage = usage.map(|splice| Splice { range: splice.range, text: splice.text.to_owned() });
        let mut splices: Vec<Splice<String>> = renamed.into_iter().chain(usage).collect();
        if splices.is_empty() {
            return body.clone();
        }
        splices.sort_by_key(|splice| splice.range.start);

        let added: usize = splices.iter().map(|splice| splice.text.len()).sum();
        let mut patched = Vec::with_capacity(body.len() + added);
        let mut copied = 0;
        for splice in splices {
            patched.extend_from_slice(&body[copied..splice.range.start]);
            patched.extend_from_slice(splice.text.as_bytes());
            copied = splice.range.end;
        }
        patched.extend_from_slice(&body[copied..]);
        patched.into()
    }
}

fn read_model<'j>(body: &'j Object<'_>) -> Result<&'j str, Complaint> {
    match fields::string(body, "model")? {
        None => Err(Complaint::missing("model", "name the model, as `\"model\": \"gpt-4o\"`")),
        Some("") => Err(Complaint::wrong_value("model", "empty_string", "is empty: name the model")),
        Some(model) => within_bytes("model", model, MODEL_BYTES_MAX),
    }
}

fn within_bytes<'j>(name: &str, text: &'j str, most: usize) -> Result<&'j str, Complaint> {
    if text.len() > most {
        let predicate = format!("must be at most {most} bytes long, but is {}", text.len());
        return Err(Complaint::wrong_value(name, "string_above_max_length", predicate));
    }
    Ok(text)
}

/// A user's name; an empty one names nobody.
fn read_user(object: &Object<'_>, name: &str) -> Result<Option<String>, Complaint> {
    match fields::string(object, name)? {
        None | Some("") => Ok(None),
        Some(user) => within_bytes(name, user, USER_BYTES_MAX).map(|user| Some(user.to_owned())),
    }
}

type UsageSeam = (Option<bool>, Option<Splice<&'static str>>);

/// What the caller said of usage, and the splice that asks for it.
fn read_usage(document: &Document<'_>, body: &[u8], bounds: &Bounds) -> Result<UsageSeam, BadAsk> {
    let splice = |range, text| Some(Splice { range, text });
    let Some(range) = document.range("stream_options") else {
        let text = r#""stream_options":{"include_usage":true},"#;
        return Ok((None, splice(document.head..document.head, text)));
    };
    let Some(options) = fields::object(&document.object, "stream_options")? else {
        return Ok((None, splice(range, r#"{"include_usage":true}"#)));
    };
    let include_usage = fields::flag(options, "include_usage")
        .map_err(|complaint| complaint.inside(format_args!("stream_options")))?;
    if include_usage == Some(true) {
        return Ok((include_usage, None));
    }
    let inner = json::read(&body[range.clone()], bounds, &["include_usage"])?;
    let patch = match inner.range("include_usage") {
        Some(member) => splice(range.start + member.start..range.start + member.end, "true"),
        None => {
            let head = range.start + inner.head;
            let text =
                if options.is_empty() { r#""include_usage":true"# } else { r#""include_usage":true,"# };
            splice(head..head, text)
        }
    };
    Ok((include_usage, patch))
}

fn no_body_here() -> BadAsk {
    BadAsk {
        code: "unexpected_body",
        message: "This endpoint takes no body: send a GET without one.".to_owned(),
        param: None,
        status_hint: 400,
    }
}
