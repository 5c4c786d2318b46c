//! Bodies of the Responses API: <https://platform.openai.com/docs/api-reference/responses/create>.
//!
//! It keeps answers for later unless told not to, and takes up again what it kept. Here is noted what a request takes
//! up and leaves; whether it may is decided elsewhere.

use super::complaint::Complaint;
use super::openai::decoded_bytes;
use super::{MODEL_BYTES_MAX, OUTPUT_CEILING_MAX, State, Wants, fields, read_user, within_bytes};
use crate::route::json::{Json, Object};
use crate::route::{Detail, Image, Piece, Prompt};

pub(super) fn read(body: &Object<'_>, prompt: &mut Prompt, state: &mut State) -> Result<Wants, Complaint> {
    if let Some(instructions) = fields::string(body, "instructions")? {
        prompt.messages += 1;
        prompt.say(instructions);
    }
    match fields::present(body, "input") {
        None => {}
        Some(Json::String(text)) => {
            prompt.messages += 1;
            prompt.say(text);
        }
        Some(Json::Array(items)) => {
            for (at, item) in items.iter().enumerate() {
                read_item(item, prompt, state)
                    .map_err(|complaint| complaint.inside(format_args!("input[{at}]")))?;
            }
        }
        Some(other) => return Err(Complaint::wrong_type("input", "a string or an array of items", other)),
    }
    for (at, tool) in fields::array(body, "tools")?.unwrap_or_default().iter().enumerate() {
        read_tool(tool, prompt, state).map_err(|complaint| complaint.inside(format_args!("tools[{at}]")))?;
    }
    if let Some(text) = fields::object(body, "text")? {
        prompt.say_json_of(text);
    }
    state.previous = fields::string(body, "previous_response_id")?
        .map(|id| within_bytes("previous_response_id", id, MODEL_BYTES_MAX).map(str::to_owned))
        .transpose()?;
    state.store = fields::flag(body, "store")?;
    state.background = fields::flag(body, "background")?.unwrap_or(false);
    // Both are kept by the account, and neither is made through this gateway.
    for name in ["conversation", "prompt"] {
        if fields::present(body, name).is_some() {
            state.foreign = Some(name);
        }
    }
    if fields::present(body, "input").is_none() && state.previous.is_none() && state.foreign.is_none() {
        return Err(Complaint::missing("input", "send a string or an array of items"));
    }
    let user = match read_user(body, "user")? {
        Some(user) => Some(user),
        None => read_user(body, "safety_identifier")?,
    };
    let output_ceiling = fields::whole(body, "max_output_tokens", 1..=OUTPUT_CEILING_MAX)?;
    Ok(Wants { choices: 1, output_ceiling, user })
}

/// A message, or what a model or a tool has said before.
fn read_item(item: &Json<'_>, prompt: &mut Prompt, state: &mut State) -> Result<(), Complaint> {
    let object = fields::element(item)?;
    match fields::string(object, "type")? {
        // A message needs no type.
        None | Some("message") => {
            prompt.messages += 1;
            match fields::present(object, "content") {
                None => Err(Complaint::missing("content", "send a string or an array of parts")),
                Some(content) => fields::text_or("parts", "content", content, prompt, state, read_part),
            }
        }
        Some("item_reference") => {
            state.foreign = Some("item_reference");
            Ok(())
        }
        Some("reasoning") => {
            prompt.messages += 1;
            let sealed = fields::string(object, "encrypted_content")?.unwrap_or_default();
            if !sealed.is_empty() {
                prompt.show(Piece::Sealed { bytes: decoded_bytes(sealed) });
            }
            for name in ["summary", "content"] {
                if let Some(shown) = fields::present(object, name) {
                    prompt.say_json(shown);
                }
            }
            Ok(())
        }
        Some("function_call_output" | "custom_tool_call_output") => {
            prompt.messages += 1;
            match fields::present(object, "output") {
                None => Ok(()),
                Some(output) => fields::text_or("parts", "output", output, prompt, state, read_part),
            }
        }
        Some(_) => {
            prompt.messages += 1;
            prompt.say_json(item);
            Ok(())
        }
    }
}

fn read_part(part: &Json<'_>, prompt: &mut Prompt, state: &mut State) -> Result<(), Complaint> {
    let object = fields::element(part)?;
    if let Some(id) = fields::string(object, "file_id")? {
        state.name_file("file_id", id)?;
    }
    match fields::string(object, "type")? {
        Some("input_text" | "output_text" | "text") => {
            prompt.say(fields::string(object, "text")?.unwrap_or_default());
        }
        Some("refusal") => prompt.say(fields::string(object, "refusal")?.unwrap_or_default()),
        Some("input_image") => {
            let detail = fields::string(object, "detail")?.map_or(Detail::Auto, Detail::from_word);
            prompt.show(Piece::Image(match fields::string(object, "image_url")? {
                Some(url) => Image::from_url(url, detail),
                None => Image { size: None, detail },
            }));
        }
        Some("input_file") => {
            let data = fields::string(object, "file_data")?;
            prompt.show(Piece::Document { bytes: data.map(decoded_bytes) });
        }
        Some("input_audio") => {
            let audio = fields::object(object, "input_audio")?;
            let data = audio.and_then(|audio| fields::string(audio, "data").transpose()).transpose()?;
            prompt.show(Piece::Audio { bytes: decoded_bytes(data.unwrap_or_default()) });
        }
        Some(_) => prompt.say_json(part),
        None => {
            return Err(Complaint::missing(
                "type",
                "say what kind of part it is, as `\"type\": \"input_text\"`",
            ));
        }
    }
    Ok(())
}

/// Functions are shown to the model as their definition. Tools that the provider runs may read what the account keeps.
fn read_tool(tool: &Json<'_>, prompt: &mut Prompt, state: &mut State) -> Result<(), Complaint> {
    let object = fields::element(tool)?;
    match fields::string(object, "type")? {
        Some("function" | "custom") => prompt.tools += 1,
        Some("file_search") => {
            prompt.provider_tools += 1;
            state.foreign = Some("file_search");
        }
        Some(_) => {
            prompt.provider_tools += 1;
            match fields::present(object, "container") {
                Some(Json::String(_)) => state.foreign = Some("container"),
                Some(Json::Object(container)) => {
                    for (at, id) in
                        fields::array(container, "file_ids")?.unwrap_or_default().iter().enumerate()
                    {
                        match id {
                            Json::String(id) => state.name_file("file_ids", id)?,
                            other => {
                                let member = format!("file_ids[{at}]");
                                return Err(Complaint::wrong_type(&member, "a string", other));
                            }
                        }
                    }
                }
                _ => {}
            }
        }
        None => return Err(Complaint::missing("type", "say what kind of tool it is")),
    }
    prompt.say_json(tool);
    Ok(())
}
