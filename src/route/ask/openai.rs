//! Bodies of the OpenAI dialect: <https://platform.openai.com/docs/api-reference/chat/create> and
//! `…/embeddings/create`; `…/completions/create` for text as before there were chats.

use super::complaint::Complaint;
use super::{OUTPUT_CEILING_MAX, State, Wants, fields, read_user};
use crate::route::json::{Json, Number, Object};
use crate::route::{Detail, Image, Piece, Prompt};

/// OpenAI's own bound.
const CHOICES_MAX: u64 = 128;

pub(super) fn read_chat(
    body: &Object<'_>,
    prompt: &mut Prompt,
    state: &mut State,
) -> Result<Wants, Complaint> {
    for (at, message) in fields::messages(body)?.iter().enumerate() {
        read_message(message, prompt, state)
            .map_err(|complaint| complaint.inside(format_args!("messages[{at}]")))?;
    }
    for name in ["tools", "functions"] {
        let definitions = fields::array(body, name)?.unwrap_or_default();
        for (at, definition) in definitions.iter().enumerate() {
            fields::element(definition)
                .map_err(|complaint| complaint.inside(format_args!("{name}[{at}]")))?;
            prompt.tools += 1;
            prompt.say_json(definition);
        }
    }
    // A schema to answer by is shown to the model; a prediction is billed whether it proves right or not.
    for name in ["response_format", "prediction"] {
        if let Some(shown) = fields::object(body, name)? {
            prompt.say_json_of(shown);
        }
    }
    let asked = fields::whole(body, "n", 1..=CHOICES_MAX)?.unwrap_or(1);
    // No setting of OpenAI's own chats, but of servers that speak as it does, which write and bill them all.
    let choices = fields::whole(body, "best_of", 1..=CHOICES_MAX)?.unwrap_or(1).max(asked);
    // The two are old and new names of one thing. Which of them a provider honours when both are given is its
    // affair: the larger counts.
    let old = fields::whole(body, "max_tokens", 1..=OUTPUT_CEILING_MAX)?;
    let new = fields::whole(body, "max_completion_tokens", 1..=OUTPUT_CEILING_MAX)?;
    // `safety_identifier` is the newer name, but a policy that limits by `user` must not be dodged by adding
    // it.
    let user = match read_user(body, "user")? {
        Some(user) => Some(user),
        None => read_user(body, "safety_identifier")?,
    };
    Ok(Wants { choices: u32::try_from(choices).unwrap_or(u32::MAX), output_ceiling: old.max(new), user })
}

/// Text completions: each of the prompts is answered `n` times, and billed `best_of` times.
pub(super) fn read_completions(body: &Object<'_>, prompt: &mut Prompt) -> Result<Wants, Complaint> {
    let prompts = match fields::present(body, "prompt") {
        // The provider begins a text of its own.
        None => 1,
        Some(Json::String(text)) => {
            prompt.say(text);
            1
        }
        Some(Json::Array(prompts)) => read_inputs("prompt", prompts, prompt)?,
        Some(other) => return Err(Complaint::wrong_type("prompt", "a string or an array", other)),
    };
    if let Some(suffix) = fields::string(body, "suffix")? {
        prompt.say(suffix);
    }
    let asked = fields::whole(body, "n", 1..=CHOICES_MAX)?.unwrap_or(1);
    let made = fields::whole(body, "best_of", 1..=CHOICES_MAX)?.unwrap_or(1).max(asked);
    Ok(Wants {
        choices: u32::try_from(made.saturating_mul(prompts)).unwrap_or(u32::MAX),
        output_ceiling: fields::whole(body, "max_tokens", 1..=OUTPUT_CEILING_MAX)?,
        user: read_user(body, "user")?,
    })
}

fn read_message(message: &Json<'_>, prompt: &mut Prompt, state: &mut State) -> Result<(), Complaint> {
    let message = fields::element(message)?;
    prompt.messages += 1;
    if fields::string(message, "role")?.is_none() {
        return Err(Complaint::missing("role", "say whose message it is, as `\"role\": \"user\"`"));
    }
    for (name, value) in message.iter() {
        match (name, value) {
            (_, Json::Null) => {}
            ("role", Json::String(role)) => {
                // The usual ones are part of the framing that each message costs.
                if !ROLES.contains(&role.as_ref()) {
                    prompt.say(role);
                }
            }
            ("name", Json::String(text)) => {
                prompt.names += 1;
                prompt.say(text);
            }
            ("name", other) => return Err(Complaint::wrong_type("name", "a string", other)),
            ("content", Json::String(text)) => prompt.say(text),
            ("content", Json::Array(parts)) => {
                for (at, part) in parts.iter().enumerate() {
                    read_part(part, prompt, state)
                        .map_err(|complaint| complaint.inside(format_args!("content[{at}]")))?;
                }
            }
            ("content", other) => {
                return Err(Complaint::wrong_type("content", "a string or an array of parts", other));
            }
            (_, other) => prompt.say_json(other),
        }
    }
    Ok(())
}

const ROLES: [&str; 6] = ["system", "developer", "user", "assistant", "tool", "function"];

fn read_part(part: &Json<'_>, prompt: &mut Prompt, state: &mut State) -> Result<(), Complaint> {
    let object = fields::element(part)?;
    match fields::string(object, "type")? {
        Some("text") => prompt.say(required_text(object, "text")?),
        Some("refusal") => prompt.say(required_text(object, "refusal")?),
        Some("image_url") => prompt.show(Piece::Image(read_image(object)?)),
        Some("input_audio") => {
            let audio = fields::object(object, "input_audio")?;
            let data = audio.and_then(|audio| fields::string(audio, "data").transpose()).transpose();
            let data = data.map_err(|complaint| complaint.inside(format_args!("input_audio")))?;
            prompt.show(Piece::Audio { bytes: decoded_bytes(data.unwrap_or_default()) });
        }
        Some("file") => {
            let file = fields::object(object, "file")?;
            let data = file.and_then(|file| fields::string(file, "file_data").transpose()).transpose();
            let data = data.map_err(|complaint| complaint.inside(format_args!("file")))?;
            if let Some(file) = file
                && let Some(id) = fields::string(file, "file_id")?
            {
                state.name_file("file_id", id)?;
            }
            prompt.show(Piece::Document { bytes: data.map(decoded_bytes) });
        }
        Some(_) => prompt.say_json(part),
        None => {
            return Err(Complaint::missing("type", "say what kind of part it is, as `\"type\": \"text\"`"));
        }
    }
    Ok(())
}

fn required_text<'j>(part: &'j Object<'_>, name: &str) -> Result<&'j str, Complaint> {
    fields::string(part, name)?.ok_or_else(|| Complaint::missing(name, "send a string"))
}

/// `{"image_url": {"url", "detail"}}`; some providers of this dialect also take `{"image_url": "…"}`.
pub(super) fn read_image(part: &Object<'_>) -> Result<Image, Complaint> {
    let inside = |complaint: Complaint| complaint.inside(format_args!("image_url"));
    match fields::present(part, "image_url") {
        Some(Json::String(url)) => Ok(Image::from_url(url, Detail::Auto)),
        Some(Json::Object(image)) => {
            let url = required_text(image, "url").map_err(inside)?;
            let detail = fields::string(image, "detail").map_err(inside)?;
            Ok(Image::from_url(url, detail.map_or(Detail::Auto, Detail::from_word)))
        }
        Some(other) => Err(Complaint::wrong_type("image_url", "an object with a `url`", other)),
        None => Err(Complaint::missing("image_url", "send an object with a `url`")),
    }
}

/// Bytes of a file from its base64 text, bare or as a `data:` URL, without decoding it.
pub(super) fn decoded_bytes(data: &str) -> u64 {
    let encoded = data.split_once(',').map_or(data, |(_, encoded)| encoded);
    (encoded.len() as u64).div_ceil(4).saturating_mul(3)
}

pub(super) fn read_embeddings(body: &Object<'_>, prompt: &mut Prompt) -> Result<Wants, Complaint> {
    match fields::present(body, "input") {
        None => {
            return Err(Complaint::missing("input", "send a string, or an array of strings or token ids"));
        }
        Some(Json::String(text)) if text.is_empty() => return Err(empty_input("input", "empty_string")),
        Some(Json::String(text)) => prompt.say(text),
        Some(Json::Array(inputs)) => _ = read_inputs("input", inputs, prompt)?,
        Some(other) => return Err(Complaint::wrong_type("input", "a string or an array", other)),
    }
    Ok(Wants { choices: 1, output_ceiling: None, user: read_user(body, "user")? })
}

/// How many there are. Strings, or token ids, or arrays of token ids: the first element says which.
fn read_inputs(name: &str, inputs: &[Json<'_>], prompt: &mut Prompt) -> Result<u64, Complaint> {
    let Some(first) = inputs.first() else {
        return Err(empty_input(name, "empty_array"));
    };
    if matches!(first, Json::Number(_)) {
        let count = count_ids(inputs, name)?;
        prompt.show(Piece::TokenIds { count });
        return Ok(1);
    }
    for (at, input) in inputs.iter().enumerate() {
        match (first, input) {
            (Json::String(_), Json::String(text)) if text.is_empty() => {
                return Err(empty_input(&format!("{name}[{at}]"), "empty_string"));
            }
            (Json::String(_), Json::String(text)) => prompt.say(text),
            (Json::Array(_), Json::Array(ids)) if ids.is_empty() => {
                return Err(empty_input(&format!("{name}[{at}]"), "empty_array"));
            }
            (Json::Array(_), Json::Array(ids)) => {
                let count = count_ids(ids, &format!("{name}[{at}]"))?;
                prompt.show(Piece::TokenIds { count });
            }
            (Json::String(_), other) => {
                return Err(Complaint::wrong_type(
                    &format!("{name}[{at}]"),
                    "a string, as the first is",
                    other,
                ));
            }
            (Json::Array(_), other) => {
                return Err(Complaint::wrong_type(
                    &format!("{name}[{at}]"),
                    "an array of token ids, as the first is",
                    other,
                ));
            }
            (_, other) => {
                return Err(Complaint::wrong_type(
                    &format!("{name}[{at}]"),
                    "a string, a token id or an array of token ids",
                    other,
                ));
            }
        }
    }
    Ok(inputs.len() as u64)
}

fn count_ids(ids: &[Json<'_>], path: &str) -> Result<u64, Complaint> {
    let wrong = ids.iter().enumerate().find(|(_, id)| !matches!(id, Json::Number(Number::Whole(_))));
    match wrong {
        Some((at, other)) => Err(Complaint::wrong_type(&format!("{path}[{at}]"), "a token id", other)),
        None => Ok(ids.len() as u64),
    }
}

fn empty_input(path: &str, code: &'static str) -> Complaint {
    Complaint::wrong_value(path, code, "is empty: send something to read")
}
