//! A request body, read once: who is asked, how much may come back, what is to be counted, and where to
//! patch.
//!
//! Laws:
//! - `refused_before_counted`: whatever makes the amount of a request uncertain (a wrong type, a ceiling of 0
//!   or 2^63) is refused here, where it costs nothing.
//! - `untouched_but_for`: [`Ask::patched`] splices two members and copies every other byte.
//!
//! Members that decide neither amount nor route are the provider's to judge. Never fills in defaults: those
//! belong to a policy.

mod anthropic;
mod complaint;
mod fields;
mod gemini;
mod openai;
mod responses;
#[cfg(test)]
mod tests;

use std::ops::Range;

use bytes::Bytes;

use super::json::{self, Bounds, Document, Json, Object};
use super::{Dialect, Endpoint, Prompt};
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
    /// How many answers at least 1: OpenAI's `n` (for text completions that of each prompt, or `best_of` where that
    /// is more), Gemini's `candidateCount`.
    pub choices: u32,
    /// Tokens that one answer may have at most, as the caller named it; from 1 to 2^32 - 1.
    pub output_ceiling: Option<u64>,
    /// What the caller said of `stream_options.include_usage`; `None`: nothing.
    pub include_usage: Option<bool>,
    /// The caller's own user: OpenAI's `user`, else `safety_identifier`; Anthropic's `metadata.user_id`. Not
    /// empty, at most 512 bytes.
    pub user: Option<String>,
    /// What the model is given to read.
    pub prompt: Prompt,
    /// What it takes up from the provider, or leaves there.
    pub state: State,
    seams: Seams,
}

/// What a request takes up from the provider, or leaves there: ids that belong to somebody.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// The response that this one continues (`previous_response_id`).
    pub previous: Option<String>,
    /// Whether the answer is to be kept (`store` of the Responses API); `None`: the caller does not say, which for the
    /// provider is yes.
    pub store: Option<bool>,
    /// Whether the answer is made after the request is over.
    pub background: bool,
    /// Files that it names by id; at most `REFERENCES_MAX`.
    pub files: Vec<String>,
    /// The first member that names something which never came into being through this gateway, such as a conversation.
    pub foreign: Option<&'static str>,
}

impl State {
    fn name_file(&mut self, member: &str, id: &str) -> Result<(), Complaint> {
        if self.files.len() == REFERENCES_MAX {
            let predicate = format!("is one of more than {REFERENCES_MAX} files: name fewer");
            return Err(Complaint::wrong_value(member, "array_above_max_length", predicate));
        }
        self.files.push(within_bytes(member, id, MODEL_BYTES_MAX)?.to_owned());
        Ok(())
    }
}

/// What to change in a body: see [`Ask::patched_with`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Patches<'a> {
    /// The model's name at the provider.
    pub model: Option<&'a str>,
    /// Whether to have usage reported in an OpenAI stream.
    pub usage: bool,
    /// Whether to say `"store": false` where the caller said nothing of it.
    pub keep_nothing: bool,
}

/// Where a body is cut to patch it.
#[derive(Clone, Debug, PartialEq)]
struct Seams {
    body_bytes: usize,
    /// The byte after the opening brace.
    head: usize,
    /// The member `model`; `None`: the path names the model, and the body may have to be told.
    model: Option<Range<usize>>,
    /// Whether the body of this endpoint has a model at all: Gemini's have none.
    has_model: bool,
    /// What to put where to have usage reported; `None`: nothing is needed.
    usage: Option<Splice<&'static str>>,
    /// What to put where to have nothing kept; `None`: nothing is needed.
    store: Option<Splice<&'static str>>,
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

/// No model writes 2^32 tokens: a larger ceiling is a mistake of units, and would reserve a tenant's whole
/// budget.
const OUTPUT_CEILING_MAX: u64 = u32::MAX as u64;

/// Model names are kept, logged and compared; the longest in use, with their vendor's prefix, are under 100
/// bytes.
pub(in crate::route) const MODEL_BYTES_MAX: usize = 256;

/// Ids in one request, each of which is looked up.
const REFERENCES_MAX: usize = 64;

/// Twice what either provider accepts.
pub(in crate::route) const USER_BYTES_MAX: usize = 512;

impl Ask {
    /// Reads the body of a request to `endpoint`. Refuses what is wrong with what, where and what to do; see
    /// [`BadAsk::code`].
    pub fn read(endpoint: Endpoint, body: &[u8], bounds: &Bounds) -> Result<Ask, BadAsk> {
        Self::read_named(endpoint, None, body, bounds)
    }

    /// The same, where the path names the model: it decides, whatever the body says.
    pub fn read_named(
        endpoint: Endpoint,
        named: Option<&str>,
        body: &[u8],
        bounds: &Bounds,
    ) -> Result<Ask, BadAsk> {
        Self::read_for(endpoint, named, None, body, bounds)
    }

    /// The same, where the user's name lies at `user_at`. What stands there counts before the dialect's own user, and where
    /// `user_at` is one of the dialects' own places, that of this dialect counts as well.
    pub fn read_for(
        endpoint: Endpoint,
        named: Option<&str>,
        user_at: Option<&[String]>,
        body: &[u8],
        bounds: &Bounds,
    ) -> Result<Ask, BadAsk> {
        let document = json::read(body, bounds, &["model", "stream_options", "store"])?;
        let object = &document.object;
        let model = match named {
            Some(model) => model.to_owned(),
            None => read_model(object)?.to_owned(),
        };
        let stream = match endpoint {
            Endpoint::StreamGenerateContent => true,
            Endpoint::GenerateContent => false,
            _ => endpoint.has_output() && fields::flag(object, "stream")?.unwrap_or(false),
        };
        let (mut prompt, mut state) = (Prompt::default(), State::default());
        let wants = match endpoint {
            Endpoint::ChatCompletions => openai::read_chat(object, &mut prompt, &mut state)?,
            Endpoint::Completions => openai::read_completions(object, &mut prompt)?,
            Endpoint::Responses => responses::read(object, &mut prompt, &mut state)?,
            Endpoint::Embeddings => openai::read_embeddings(object, &mut prompt)?,
            Endpoint::Messages => anthropic::read_messages(object, &mut prompt, &mut state)?,
            Endpoint::CountTokens => anthropic::read_count_tokens(object, &mut prompt, &mut state)?,
            Endpoint::GenerateContent | Endpoint::StreamGenerateContent => {
                gemini::read_generate(object, &mut prompt, &mut state)?
            }
            Endpoint::CountContent => gemini::read_count(object, &model, &mut prompt, &mut state)?,
            Endpoint::Models | Endpoint::PassedThrough => return Err(no_body_here()),
        };
        let (include_usage, usage) = match endpoint {
            Endpoint::ChatCompletions | Endpoint::Completions => read_usage(&document, body, bounds)?,
            _ => (None, None),
        };
        let store = match endpoint {
            Endpoint::Responses if state.store.is_none() => Some(match document.range("store") {
                Some(null) => Splice { range: null, text: "false" },
                None => Splice {
                    range: document.head..document.head,
                    text: if object.is_empty() { r#""store":false"# } else { r#""store":false,"# },
                },
            }),
            _ => None,
        };
        let seams = Seams {
            body_bytes: body.len(),
            head: document.head,
            model: document.range("model"),
            has_model: endpoint.spoken() != Dialect::Gemini,
            usage,
            store,
        };
        let Wants { choices, output_ceiling, user } = wants;
        let user = match user_at {
            None => user,
            Some(path) => user_in(object, path)?.or_else(|| user.filter(|_| is_usual(path))),
        };
        Ok(Ask {
            endpoint,
            model,
            stream,
            choices,
            output_ceiling,
            include_usage,
            user,
            prompt,
            state,
            seams,
        })
    }

    /// The body with another model, or with usage asked for (`stream_options.include_usage`, only where the
    /// answer is an OpenAI stream), every other byte as it was.
    pub fn patched(&self, body: &Bytes, model: Option<&str>, ask_for_usage: bool) -> Bytes {
        self.patched_with(body, Patches { model, usage: ask_for_usage, keep_nothing: false })
    }

    /// The body with these changes, every other byte as it was. The same bytes, not a copy, when there is nothing to
    /// change.
    ///
    /// `body` is the one this was read from; another length is a bug and panics.
    pub fn patched_with(&self, body: &Bytes, patches: Patches<'_>) -> Bytes {
        let Seams { body_bytes, head, model: model_range, has_model, usage, store } = &self.seams;
        assert_eq!(body.len(), *body_bytes, "an ask can patch only the body it was read from");
        let renamed = patches.model.filter(|_| *has_model).and_then(|model| match model_range {
            // A path that names the model says nothing of what the body has in its place.
            Some(range) if body[range.clone()] == *Json::quoted(model).as_bytes() => None,
            Some(range) => Some(Splice { range: range.clone(), text: Json::quoted(model) }),
            None => Some(Splice { range: *head..*head, text: format!("\"model\":{},", Json::quoted(model)) }),
        });
        let owned = |splice: Splice<&str>| Splice { range: splice.range, text: splice.text.to_owned() };
        let usage = usage.clone().filter(|_| patches.usage && self.stream).map(owned);
        let store = store.clone().filter(|_| patches.keep_nothing).map(owned);
        let mut splices: Vec<Splice<String>> = renamed.into_iter().chain(usage).chain(store).collect();
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

/// The user's name at a place in a body.
pub(in crate::route) fn user_in(object: &Object<'_>, path: &[String]) -> Result<Option<String>, BadAsk> {
    let Some((last, above)) = path.split_last() else { return Ok(None) };
    let mut inner = object;
    for step in above {
        match fields::object(inner, step)? {
            Some(found) => inner = found,
            None => return Ok(None),
        }
    }
    Ok(read_user(inner, last).map_err(|complaint| match above {
        [] => complaint,
        _ => complaint.inside(format_args!("{}", above.join("."))),
    })?)
}

/// Whether a dialect has its user there.
fn is_usual(path: &[String]) -> bool {
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    matches!(path.as_slice(), ["user"] | ["safety_identifier"] | ["metadata", "user_id"])
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
