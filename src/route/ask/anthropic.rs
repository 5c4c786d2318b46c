//! Bodies of the Anthropic dialect: <https://docs.anthropic.com/en/api/messages> and
//! `…/messages-count-tokens`.

use super::complaint::Complaint;
use super::openai::decoded_bytes;
use super::{OUTPUT_CEILING_MAX, State, Wants, fields, read_user};
use crate::route::json::{Json, Object};
use crate::route::{Detail, Image, Piece, Prompt};

pub(super) fn read_messages(
    body: &Object<'_>,
    prompt: &mut Prompt,
    state: &mut State,
) -> Result<Wants, Complaint> {
    let wants = read_count_tokens(body, prompt, state)?;
    let output_ceiling = fields::whole(body, "max_tokens", 1..=OUTPUT_CEILING_MAX)?;
    if output_ceiling.is_none() {
        return Err(Complaint::missing(
            "max_tokens",
            "say how many tokens the answer may have, as `\"max_tokens\": 1024`",
        ));
    }
    Ok(Wants { output_ceiling, ..wants })
}

pub(super) fn read_count_tokens(
    body: &Object<'_>,
    prompt: &mut Prompt,
    state: &mut State,
) -> Result<Wants, Complaint> {
    if let Some(system) = fields::present(body, "system") {
        prompt.messages += 1;
        fields::text_or("blocks", "system", system, prompt, state, read_block)?;
    }
    for (at, message) in fields::messages(body)?.iter().enumerate() {
        read_message(message, prompt, state)
            .map_err(|complaint| complaint.inside(format_args!("messages[{at}]")))?;
    }
    for (at, tool) in fields::array(body, "tools")?.unwrap_or_default().iter().enumerate() {
        read_tool(tool, prompt).map_err(|complaint| complaint.inside(format_args!("tools[{at}]")))?;
    }
    // A schema to answer by, under its first and its present name.
    for name in ["output_format", "output_config"] {
        if let Some(shown) = fields::object(body, name)? {
            prompt.say_json_of(shown);
        }
    }
    let user = match fields::object(body, "metadata")? {
        Some(metadata) => {
            read_user(metadata, "user_id").map_err(|complaint| complaint.inside(format_args!("metadata")))?
        }
        None => None,
    };
    // A container keeps files and processes from one request to the next.
    if matches!(fields::present(body, "container"), Some(Json::String(_))) {
        state.foreign = Some("container");
    }
    Ok(Wants { choices: 1, output_ceiling: None, user })
}

fn read_message(message: &Json<'_>, prompt: &mut Prompt, state: &mut State) -> Result<(), Complaint> {
    let message = fields::element(message)?;
    prompt.messages += 1;
    match fields::string(message, "role")? {
        None => return Err(Complaint::missing("role", "say whose message it is, as `\"role\": \"user\"`")),
        // The usual ones are part of the framing that each message costs.
        Some("user" | "assistant" | "system") => {}
        Some(other) => prompt.say(other),
    }
    match fields::present(message, "content") {
        None => Err(Complaint::missing("content", "send a string or an array of blocks")),
        Some(content) => fields::text_or("blocks", "content", content, prompt, state, read_block),
    }
}

/// A tool of the caller's own is shown to the model as its definition. One that the provider defines is only
/// named here, by a versioned `type`, and its definition is longer than what we see.
fn read_tool(tool: &Json<'_>, prompt: &mut Prompt) -> Result<(), Complaint> {
    let object = fields::element(tool)?;
    match fields::string(object, "type")? {
        None | Some("custom") => prompt.tools += 1,
        Some(_) => prompt.provider_tools += 1,
    }
    prompt.say_json(tool);
    Ok(())
}

fn read_block(block: &Json<'_>, prompt: &mut Prompt, state: &mut State) -> Result<(), Complaint> {
    let object = fields::element(block)?;
    match fields::string(object, "type")? {
        None => {
            return Err(Complaint::missing("type", "say what kind of block it is, as `\"type\": \"text\"`"));
        }
        Some("text") => match fields::string(object, "text")? {
            Some(text) => prompt.say(text),
            None => return Err(Complaint::missing("text", "send a string")),
        },
        Some("image") => prompt.show(Piece::Image(read_image(object, state)?)),
        Some("document") => read_document(object, prompt, state)?,
        Some("thinking") => read_thinking(object, prompt)?,
        Some("redacted_thinking") => {
            let data = fields::string(object, "data")?.unwrap_or_default();
            prompt.show(Piece::Sealed { bytes: decoded_bytes(data) });
        }
        Some("tool_use") => {
            prompt.say(fields::string(object, "name")?.unwrap_or_default());
            if let Some(input) = fields::present(object, "input") {
                prompt.say_json(input);
            }
        }
        Some("tool_result") => {
            if let Some(content) = fields::present(object, "content") {
                fields::text_or("blocks", "content", content, prompt, state, read_block)?;
            }
        }
        Some(_) => prompt.say_json(block),
    }
    Ok(())
}

fn read_image(block: &Object<'_>, state: &mut State) -> Result<Image, Complaint> {
    let Some(source) = fields::object(block, "source")? else {
        return Err(Complaint::missing("source", "say where the image is"));
    };
    name_file(source, state)?;
    let data =
        fields::string(source, "data").map_err(|complaint| complaint.inside(format_args!("source")))?;
    Ok(match data {
        Some(data) => Image::from_base64(data, Detail::Auto),
        None => Image { size: None, detail: Detail::Auto },
    })
}

/// A document is a PDF in base64, plain text, blocks of its own, or lies elsewhere.
fn read_document(block: &Object<'_>, prompt: &mut Prompt, state: &mut State) -> Result<(), Complaint> {
    for name in ["title", "context"] {
        prompt.say(fields::string(block, name)?.unwrap_or_default());
    }
    let Some(source) = fields::object(block, "source")? else {
        return Err(Complaint::missing("source", "say where the document is"));
    };
    name_file(source, state)?;
    let inside = |complaint: Complaint| complaint.inside(format_args!("source"));
    let data = fields::string(source, "data").map_err(inside)?;
    match (fields::string(source, "type").map_err(inside)?, data) {
        (Some("text"), Some(text)) => prompt.say(text),
        (Some("content"), _) => {
            if let Some(content) = fields::present(source, "content") {
                fields::text_or("blocks", "content", content, prompt, state, read_block).map_err(inside)?;
            }
        }
        (_, data) => prompt.show(Piece::Document { bytes: data.map(decoded_bytes) }),
    }
    Ok(())
}

/// Reasoning that the caller was shown is counted as text; what it was not shown is in the signature.
fn read_thinking(block: &Object<'_>, prompt: &mut Prompt) -> Result<(), Complaint> {
    match fields::string(block, "thinking")?.unwrap_or_default() {
        "" => {
            let signature = fields::string(block, "signature")?.unwrap_or_default();
            prompt.show(Piece::Sealed { bytes: decoded_bytes(signature) });
        }
        thinking => prompt.say(thinking),
    }
    Ok(())
}

/// `{"type": "file", "file_id": …}`: something that was left with the provider before.
fn name_file(source: &Object<'_>, state: &mut State) -> Result<(), Complaint> {
    match fields::string(source, "file_id")? {
        Some(id) => {
            state.name_file("file_id", id).map_err(|complaint| complaint.inside(format_args!("source")))
        }
        None => Ok(()),
    }
}
