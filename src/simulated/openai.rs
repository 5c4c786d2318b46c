//! OpenAI's shapes: chat completions and embeddings, plain and streamed.
//!
//! After <https://platform.openai.com/docs/api-reference/chat>, `…/chat-streaming` and `…/embeddings`. With
//! `stream_options.include_usage` every chunk has `usage: null`, and one more chunk with `choices: []` has the numbers.

use base64::Engine;
use serde::Deserialize;
use serde_json::{Value, json};

use super::answer::Script;
use super::count;
use super::dialect::Refusal;
use super::order::{Order, Plan, words};
use crate::clock;

/// The numbers an embedding has when the request does not say.
const DIMENSIONS: u64 = 1_536;

#[derive(Debug, Deserialize)]
struct ChatRequest {
    model: String,
    messages: Vec<Value>,
    n: Option<u64>,
    max_tokens: Option<u64>,
    max_completion_tokens: Option<u64>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
}

#[derive(Debug, Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct EmbeddingsRequest {
    model: String,
    input: Value,
    dimensions: Option<u64>,
    encoding_format: Option<EncodingFormat>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum EncodingFormat {
    #[default]
    Float,
    Base64,
}

/// What an embeddings request asked for.
#[derive(Debug, PartialEq, Eq)]
pub struct Embeddings {
    model: String,
    inputs: u64,
    dimensions: u64,
    format: EncodingFormat,
}

fn parse<'body, T: Deserialize<'body>>(body: &'body [u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body).map_err(|error| {
        Refusal::bad_request(format!("We could not parse the JSON body of your request: {error}."))
    })
}

/// Reads the body of `POST /v1/chat/completions`.
///
/// # Errors
/// 400 with the field at fault.
pub fn chat(body: &[u8]) -> Result<Order, Refusal> {
    let request: ChatRequest = parse(body)?;
    if request.messages.is_empty() {
        return Err(Refusal::bad_field("messages", "Invalid 'messages': empty array."));
    }
    let choices = request.n.unwrap_or(1);
    if !(1..=128).contains(&choices) {
        return Err(Refusal::bad_field("n", format!("Invalid 'n': {choices} is not from 1 to 128.")));
    }
    let max_output = request.max_completion_tokens.or(request.max_tokens);
    if max_output == Some(0) {
        let field =
            if request.max_completion_tokens.is_some() { "max_completion_tokens" } else { "max_tokens" };
        return Err(Refusal::bad_field(
            field,
            format!("Invalid '{field}': 0 is less than the minimum value 1."),
        ));
    }
    let stream = request.stream.unwrap_or(false);
    if request.stream_options.is_some() && !stream {
        let message = "The 'stream_options' parameter is only allowed when 'stream' is enabled.";
        return Err(Refusal::bad_field("stream_options", message));
    }
    let tools = request.tools.unwrap_or_default();
    let named = request.tool_choice.as_ref().and_then(|choice| choice["function"]["name"].as_str());
    let first = tools.first().and_then(|tool| tool["function"]["name"].as_str());
    let tool_forced = named.is_some() || request.tool_choice.as_ref() == Some(&json!("required"));
    if tool_forced && tools.is_empty() {
        let message =
            "Invalid value for 'tool_choice': 'tool_choice' is only allowed when 'tools' are specified.";
        return Err(Refusal::bad_field("tool_choice", message));
    }
    Ok(Order {
        prompt: count::conversation(None, &request.messages, &tools),
        max_output,
        choices,
        stream,
        include_usage: request.stream_options.and_then(|options| options.include_usage).unwrap_or(false),
        tool: named.or(first).map(str::to_owned),
        tool_forced,
        model: request.model,
    })
}

/// Reads the body of `POST /v1/embeddings`.
///
/// # Errors
/// 400 with the field at fault.
pub fn embeddings(body: &[u8]) -> Result<(Order, Embeddings), Refusal> {
    let request: EmbeddingsRequest = parse(body)?;
    let wrong =
        || Refusal::bad_field("input", "Invalid 'input': not a string, a list of strings or of tokens.");
    let tokens = |list: &[Value]| list.iter().all(Value::is_u64).then_some(list.len() as u64);
    let (inputs, prompt) = match &request.input {
        Value::String(text) => (1, count::embedded_text(text)),
        Value::Array(list) if list.is_empty() || list.len() > 2_048 => return Err(wrong()),
        Value::Array(list) if list[0].is_u64() => (1, tokens(list).ok_or_else(wrong)?),
        Value::Array(list) => {
            let each = list.iter().map(|input| match input {
                Value::String(text) => Some(count::embedded_text(text)),
                Value::Array(list) => tokens(list),
                _ => None,
            });
            (list.len() as u64, each.sum::<Option<u64>>().ok_or_else(wrong)?)
        }
        _ => return Err(wrong()),
    };
    let dimensions = request.dimensions.unwrap_or(DIMENSIONS);
    if !(1..=4_096).contains(&dimensions) {
        return Err(Refusal::bad_field(
            "dimensions",
            format!("Invalid 'dimensions': {dimensions} is not from 1 to 4096."),
        ));
    }
    let order =
        Order { model: request.model.clone(), prompt, max_output: Some(0), choices: 1, ..Order::default() };
    let format = request.encoding_format.unwrap_or_default();
    Ok((order, Embeddings { model: request.model, inputs, dimensions, format }))
}

/// The body of a plain chat completion.
#[must_use]
pub fn plain(plan: &Plan, suffix: &str) -> Value {
    let choices: Vec<Value> = (0..plan.choices)
        .map(|index| {
            let text = words(plan.visible());
            let message = match &plan.tool {
                None => json!({"role": "assistant", "content": text, "refusal": null, "annotations": []}),
                Some(name) => json!({
                    "role": "assistant", "content": null, "refusal": null, "annotations": [],
                    "tool_calls": [tool_call(plan, name, suffix, index, &arguments(plan, &text))],
                }),
            };
            json!({"index": index, "message": message, "logprobs": null, "finish_reason": finish_reason(plan)})
        })
        .collect();
    let mut body = envelope(plan, suffix, "chat.completion");
    body["choices"] = choices.into();
    if plan.usage {
        body["usage"] = usage(plan, plan.choices);
    }
    body
}

/// The chunks of a streamed chat completion.
#[must_use]
pub fn streamed(plan: &Plan, suffix: &str, line_end: &str) -> Script {
    let event = |choices: Value, usage: Option<Value>| {
        let mut chunk = envelope(plan, suffix, "chat.completion.chunk");
        chunk["choices"] = choices;
        if plan.include_usage && plan.usage {
            chunk["usage"] = usage.unwrap_or(Value::Null);
        }
        format!("data: {chunk}{line_end}{line_end}")
    };
    let delta = |index: u64, delta: Value, finish: Option<&str>| {
        event(json!([{"index": index, "delta": delta, "logprobs": null, "finish_reason": finish}]), None)
    };
    let argument = |text: &str| json!({"tool_calls": [{"index": 0, "function": {"arguments": text}}]});
    let said = |text: &str| if plan.tool.is_some() { argument(text) } else { json!({"content": text}) };

    let mut script = Script::default();
    for index in 0..plan.choices {
        let opening = match &plan.tool {
            None => json!({"role": "assistant", "content": "", "refusal": null}),
            Some(name) => json!({
                "role": "assistant", "content": null, "refusal": null,
                "tool_calls": [tool_call(plan, name, suffix, index, "")],
            }),
        };
        script.frame(delta(index, opening, None), plan.reasoning);
        if plan.tool.is_some() {
            script.frame(delta(index, argument(ARGUMENT_OPENS), None), 0);
        }
    }

    for (tokens, times) in plan.portions() {
        let text = words(tokens);
        let chunks: Vec<bytes::Bytes> =
            (0..plan.choices).map(|index| delta(index, said(&text), None).into()).collect();
        match chunks.as_slice() {
            [only] => script.content(only.clone(), tokens, times),
            _ => (0..times)
                .for_each(|_| chunks.iter().for_each(|chunk| script.content(chunk.clone(), tokens, 1))),
        }
    }

    for index in 0..plan.finishing {
        if plan.tool.is_some() && !plan.capped {
            script.frame(delta(index, argument(ARGUMENT_CLOSES), None), 0);
        }
        script.frame(delta(index, json!({}), Some(finish_reason(plan))), 0);
    }
    if plan.include_usage && plan.usage {
        script.frame(event(json!([]), Some(usage(plan, plan.finishing))), 0);
    }
    script.frame(format!("data: [DONE]{line_end}{line_end}"), 0);
    script
}

/// The body of an embeddings answer: each vector is the first axis.
#[must_use]
pub fn embedded(embeddings: &Embeddings, plan: &Plan) -> Value {
    let vector = match embeddings.format {
        EncodingFormat::Float => {
            let axis = (0..embeddings.dimensions).map(|axis| Value::from(u8::from(axis == 0)));
            Value::Array(axis.collect())
        }
        EncodingFormat::Base64 => {
            let axis = (0..embeddings.dimensions).map(|axis| if axis == 0 { 1f32 } else { 0f32 });
            let bytes: Vec<u8> = axis.flat_map(f32::to_le_bytes).collect();
            Value::String(base64::engine::general_purpose::STANDARD.encode(bytes))
        }
    };
    let data: Vec<Value> = (0..embeddings.inputs)
        .map(|index| json!({"object": "embedding", "index": index, "embedding": vector}))
        .collect();
    let mut body = json!({"object": "list", "model": embeddings.model, "data": data});
    if plan.usage {
        body["usage"] = json!({"prompt_tokens": plan.bill.input, "total_tokens": plan.bill.input});
    }
    body
}

/// The list of models.
#[must_use]
pub fn models(names: &[String]) -> Value {
    json!({"object": "list", "data": names.iter().map(|name| model(name)).collect::<Vec<_>>()})
}

/// One model.
#[must_use]
pub fn model(name: &str) -> Value {
    json!({"id": name, "object": "model", "created": 1_735_689_600, "owned_by": "simulated"})
}

const ARGUMENT_OPENS: &str = r#"{"text":""#;
const ARGUMENT_CLOSES: &str = r#""}"#;

/// The arguments of a tool call, as the model writes them: cut short where the output is.
fn arguments(plan: &Plan, text: &str) -> String {
    let closes = if plan.capped { "" } else { ARGUMENT_CLOSES };
    format!("{ARGUMENT_OPENS}{text}{closes}")
}

fn tool_call(plan: &Plan, name: &str, suffix: &str, choice: u64, arguments: &str) -> Value {
    let id = format!("call_{suffix}{choice:02x}");
    let mut call = json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    if plan.stream {
        call["index"] = 0.into();
    }
    call
}

fn envelope(plan: &Plan, suffix: &str, object: &str) -> Value {
    json!({
        "id": format!("chatcmpl-{suffix}"),
        "object": object,
        "created": clock::wall_now().as_second(),
        "model": plan.model,
        "service_tier": "default",
        "system_fingerprint": "fp_simulated",
    })
}

fn finish_reason(plan: &Plan) -> &'static str {
    match (plan.capped, &plan.tool) {
        (true, _) => "length",
        (false, Some(_)) => "tool_calls",
        (false, None) => "stop",
    }
}

/// The usage of so many of the choices. The prompt counts once, and includes what was read from the cache.
fn usage(plan: &Plan, choices: u64) -> Value {
    let (input, output) = (plan.bill.input, plan.output * choices);
    json!({
        "prompt_tokens": input,
        "completion_tokens": output,
        "total_tokens": input + output,
        "prompt_tokens_details": {"cached_tokens": plan.bill.cache_read, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": plan.reasoning * choices, "audio_tokens": 0,
            "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0,
        },
    })
}
