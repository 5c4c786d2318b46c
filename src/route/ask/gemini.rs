//! Bodies of the Gemini dialect: <https://ai.google.dev/api/generate-content>, `…/api/tokens`.
//!
//! The provider reads each member under two names, `generationConfig` and `generation_config`. A body that has both is
//! refused: it could be read in two ways.

use super::complaint::Complaint;
use super::openai::decoded_bytes;
use super::{OUTPUT_CEILING_MAX, State, Wants, fields};
use crate::route::json::{Json, Object};
use crate::route::{Detail, Image, Piece, Prompt};

/// More than Gemini's own bound, which is 8.
const CANDIDATES_MAX: u64 = 128;

pub(super) fn read_generate(
    body: &Object<'_>,
    prompt: &mut Prompt,
    state: &mut State,
) -> Result<Wants, Complaint> {
    let contents = either(body, "contents", "contents")?;
    match contents {
        None => return Err(Complaint::missing("contents", "send an array of contents")),
        Some(Json::Array(contents)) if contents.is_empty() => {
            return Err(Complaint::wrong_value("contents", "empty_array", "is empty: send at least one"));
        }
        Some(Json::Array(contents)) => {
            for (at, content) in contents.iter().enumerate() {
                read_content(content, prompt, state)
                    .map_err(|complaint| complaint.inside(format_args!("contents[{at}]")))?;
            }
        }
        Some(other) => return Err(Complaint::wrong_type("contents", "an array", other)),
    }
    if let Some(system) = either(body, "systemInstruction", "system_instruction")? {
        read_content(system, prompt, state)
            .map_err(|complaint| complaint.inside(format_args!("systemInstruction")))?;
    }
    match either(body, "tools", "tools")? {
        None => {}
        Some(Json::Array(tools)) => {
            for tool in tools {
                read_tool(tool, prompt)?;
            }
        }
        Some(other) => return Err(Complaint::wrong_type("tools", "an array", other)),
    }
    if either(body, "cachedContent", "cached_content")?.is_some() {
        state.foreign = Some("cachedContent");
    }
    let config = match either(body, "generationConfig", "generation_config")? {
        None => return Ok(Wants { choices: 1, output_ceiling: None, user: None }),
        Some(Json::Object(config)) => config,
        Some(other) => return Err(Complaint::wrong_type("generationConfig", "an object", other)),
    };
    read_config(config, prompt).map_err(|complaint| complaint.inside(format_args!("generationConfig")))
}

/// Either contents, or a whole request under another name.
pub(super) fn read_count(
    body: &Object<'_>,
    model: &str,
    prompt: &mut Prompt,
    state: &mut State,
) -> Result<Wants, Complaint> {
    match either(body, "generateContentRequest", "generate_content_request")? {
        None => read_generate(body, prompt, state),
        Some(Json::Object(request)) => {
            let inside = |complaint: Complaint| complaint.inside(format_args!("generateContentRequest"));
            // The path names the model; another one here would be counted for a model that was not asked for.
            if let Some(named) = fields::string(request, "model").map_err(inside)?
                && named.strip_prefix("models/").unwrap_or(named) != model
            {
                let predicate = format!("must be `models/{model}`, as the path says");
                return Err(inside(Complaint::wrong_value("model", "invalid_value", predicate)));
            }
            read_generate(request, prompt, state).map_err(inside)
        }
        Some(other) => Err(Complaint::wrong_type("generateContentRequest", "an object", other)),
    }
}

fn read_config(config: &Object<'_>, prompt: &mut Prompt) -> Result<Wants, Complaint> {
    for (camel, snake) in
        [("responseSchema", "response_schema"), ("responseJsonSchema", "response_json_schema")]
    {
        if let Some(schema) = either(config, camel, snake)? {
            prompt.say_json(schema);
        }
    }
    let whole = |camel, snake, most| match either(config, camel, snake)? {
        None => Ok(None),
        Some(_) if fields::present(config, camel).is_some() => fields::whole(config, camel, 1..=most),
        Some(_) => fields::whole(config, snake, 1..=most),
    };
    let choices = whole("candidateCount", "candidate_count", CANDIDATES_MAX)?.unwrap_or(1);
    let output_ceiling = whole("maxOutputTokens", "max_output_tokens", OUTPUT_CEILING_MAX)?;
    Ok(Wants { choices: u32::try_from(choices).unwrap_or(u32::MAX), output_ceiling, user: None })
}

fn read_content(content: &Json<'_>, prompt: &mut Prompt, state: &mut State) -> Result<(), Complaint> {
    let object = fields::element(content)?;
    prompt.messages += 1;
    for (at, part) in fields::array(object, "parts")?.unwrap_or_default().iter().enumerate() {
        read_part(part, prompt, state).map_err(|complaint| complaint.inside(format_args!("parts[{at}]")))?;
    }
    Ok(())
}

fn read_part(part: &Json<'_>, prompt: &mut Prompt, state: &mut State) -> Result<(), Complaint> {
    let object = fields::element(part)?;
    if let Some(signature) = either(object, "thoughtSignature", "thought_signature")?
        && let Json::String(signature) = signature
    {
        prompt.show(Piece::Sealed { bytes: decoded_bytes(signature) });
    }
    if let Some(text) = fields::string(object, "text")? {
        prompt.say(text);
        return Ok(());
    }
    if let Some(inline) = either(object, "inlineData", "inline_data")? {
        let inline =
            fields::element(inline).map_err(|complaint| complaint.inside(format_args!("inlineData")))?;
        let kind = match either(inline, "mimeType", "mime_type")? {
            Some(Json::String(kind)) => kind.as_ref(),
            _ => "",
        };
        let data = fields::string(inline, "data")?.unwrap_or_default();
        prompt.show(match kind.split('/').next() {
            Some("image") => Piece::Image(Image::from_base64(data, Detail::Auto)),
            // 32 tokens a second, where OpenAI's rule, by which sound is counted, has 10.
            Some("audio") => Piece::Audio { bytes: decoded_bytes(data).saturating_mul(4) },
            _ => Piece::Document { bytes: Some(decoded_bytes(data)) },
        });
        return Ok(());
    }
    if let Some(file) = either(object, "fileData", "file_data")? {
        let file = fields::element(file).map_err(|complaint| complaint.inside(format_args!("fileData")))?;
        if let Some(Json::String(uri)) = either(file, "fileUri", "file_uri")?
            && (uri.starts_with("files/") || uri.contains("generativelanguage.googleapis.com"))
        {
            state.name_file("fileUri", uri)?;
        }
        prompt.show(Piece::Document { bytes: None });
        return Ok(());
    }
    prompt.say_json(part);
    Ok(())
}

fn read_tool(tool: &Json<'_>, prompt: &mut Prompt) -> Result<(), Complaint> {
    let object = fields::element(tool).map_err(|complaint| complaint.inside(format_args!("tools")))?;
    match either(object, "functionDeclarations", "function_declarations")? {
        Some(Json::Array(functions)) => prompt.tools += functions.len() as u64,
        Some(other) => return Err(Complaint::wrong_type("functionDeclarations", "an array", other)),
        None => prompt.provider_tools += 1,
    }
    prompt.say_json(tool);
    Ok(())
}

/// A member under either of its names.
fn either<'j, 'b>(
    object: &'j Object<'b>,
    camel: &str,
    snake: &str,
) -> Result<Option<&'j Json<'b>>, Complaint> {
    match (fields::present(object, camel), fields::present(object, snake)) {
        (Some(_), Some(_)) if camel != snake => {
            let predicate = format!("is here a second time as `{snake}`: send it once");
            Err(Complaint::wrong_value(camel, "duplicate_key", predicate))
        }
        (camel, snake) => Ok(camel.or(snake)),
    }
}
