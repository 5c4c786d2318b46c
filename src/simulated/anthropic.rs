//! Anthropic's shapes: messages, plain and streamed, and the counting of tokens.
//!
//! After <https://docs.anthropic.com/en/api/messages> and `…/messages-streaming`. `message_start` has the input's counts and
//! the first output token; the usage of `message_delta` is cumulative, so whoever adds the two is one too high.

use serde::Deserialize;
use serde_json::{Value, json};

use super::answer::Script;
use super::count;
use super::dialect::Refusal;
use super::order::{Order, Plan, words};

#[derive(Debug, Deserialize)]
struct MessagesRequest {
    model: String,
    messages: Vec<Value>,
    max_tokens: Option<u64>,
    system: Option<Value>,
    stream: Option<bool>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
}

/// Reads the body of `POST /v1/messages`.
///
/// # Errors
/// 400 that names the field at fault.
pub fn messages(body: &[u8]) -> Result<Order, Refusal> {
    let order = counted(body)?;
    match order.max_output {
        None => Err(Refusal::bad_request("max_tokens: Field required")),
        Some(0) => Err(Refusal::bad_request("max_tokens: Input should be greater than or equal to 1")),
        Some(_) => Ok(order),
    }
}

/// Reads the body of `POST /v1/messages/count_tokens`: the same, and needs no `max_tokens`.
///
/// # Errors
/// 400 that names the field at fault.
pub fn counted(body: &[u8]) -> Result<Order, Refusal> {
    let request: MessagesRequest = serde_json::from_slice(body).map_err(|error| {
        Refusal::bad_request(format!("The request body is not valid JSON for this route: {error}"))
    })?;
    if request.messages.is_empty() {
        return Err(Refusal::bad_request("messages: at least one message is required"));
    }
    let tools = request.tools.unwrap_or_default();
    let choice = request.tool_choice.unwrap_or_default();
    let named = choice["name"].as_str();
    let first = tools.first().and_then(|tool| tool["name"].as_str());
    let tool_forced = matches!(choice["type"].as_str(), Some("any" | "tool"));
    if tool_forced && tools.is_empty() {
        return Err(Refusal::bad_request(
            "tool_choice: tool_choice may only be specified while providing tools",
        ));
    }
    Ok(Order {
        prompt: count::conversation(request.system.as_ref(), &request.messages, &tools),
        max_output: request.max_tokens,
        choices: 1,
        stream: request.stream.unwrap_or(false),
        include_usage: true,
        tool: named.or(first).map(str::to_owned),
        tool_forced,
        model: request.model,
    })
}

/// The body of a plain message.
#[must_use]
pub fn plain(plan: &Plan, suffix: &str) -> Value {
    let mut content = Vec::new();
    if plan.reasoning > 0 {
        content.push(json!({"type": "thinking", "thinking": words(plan.reasoning), "signature": SIGNATURE}));
    }
    content.push(match &plan.tool {
        None => json!({"type": "text", "text": words(plan.visible())}),
        Some(name) => json!({
            "type": "tool_use", "id": tool_use_id(suffix), "name": name, "input": {"text": words(plan.visible())},
        }),
    });
    message(plan, suffix, content, Some(stop_reason(plan)), plan.output)
}

/// The events of a streamed message.
#[must_use]
pub fn streamed(plan: &Plan, suffix: &str, line_end: &str) -> Script {
    let event = |data: Value| {
        let name = data["type"].as_str().unwrap_or_default();
        format!("event: {name}{line_end}data: {data}{line_end}{line_end}")
    };
    let start = |index: u64, block: Value| {
        event(json!({"type": "content_block_start", "index": index, "content_block": block}))
    };
    let delta = |index: u64, delta: Value| {
        event(json!({"type": "content_block_delta", "index": index, "delta": delta}))
    };
    let stop = |index: u64| event(json!({"type": "content_block_stop", "index": index}));

    let mut script = Script::default();
    let begun = message(plan, suffix, Vec::new(), None, plan.output.min(1));
    script.frame(event(json!({"type": "message_start", "message": begun})), 0);

    let mut index = 0;
    if plan.reasoning > 0 {
        script.frame(start(index, json!({"type": "thinking", "thinking": "", "signature": ""})), 0);
        script.frame(event(json!({"type": "ping"})), 0);
        let thought = json!({"type": "thinking_delta", "thinking": words(plan.reasoning)});
        script.frame(delta(index, thought), plan.reasoning);
        script.frame(delta(index, json!({"type": "signature_delta", "signature": SIGNATURE})), 0);
        script.frame(stop(index), 0);
        index += 1;
    }

    let argument = |text: &str| json!({"type": "input_json_delta", "partial_json": text});
    script.frame(
        start(
            index,
            match &plan.tool {
                None => json!({"type": "text", "text": ""}),
                Some(name) => {
                    json!({"type": "tool_use", "id": tool_use_id(suffix), "name": name, "input": {}})
                }
            },
        ),
        0,
    );
    if plan.reasoning == 0 {
        script.frame(event(json!({"type": "ping"})), 0);
    }
    if plan.tool.is_some() {
        script.frame(delta(index, argument(r#"{"text":""#)), 0);
    }
    for (tokens, times) in plan.portions() {
        let text = words(tokens);
        let said =
            if plan.tool.is_some() { argument(&text) } else { json!({"type": "text_delta", "text": text}) };
        script.content(delta(index, said), tokens, times);
    }
    if plan.tool.is_some() && !plan.capped {
        script.frame(delta(index, argument(r#""}"#)), 0);
    }
    script.frame(stop(index), 0);

    let mut end = json!({
        "type": "message_delta",
        "delta": {"stop_reason": stop_reason(plan), "stop_sequence": null},
    });
    if plan.usage {
        end["usage"] = usage(plan, plan.output);
    }
    script.frame(event(end), 0);
    script.frame(event(json!({"type": "message_stop"})), 0);
    script
}

/// The list of models.
#[must_use]
pub fn models(names: &[String]) -> Value {
    json!({
        "data": names.iter().map(|name| model(name)).collect::<Vec<_>>(),
        "has_more": false,
        "first_id": names.first(),
        "last_id": names.last(),
    })
}

/// One model.
#[must_use]
pub fn model(name: &str) -> Value {
    json!({"type": "model", "id": name, "display_name": name, "created_at": "2025-01-01T00:00:00Z"})
}

/// Stands for the opaque signature of a thinking block.
const SIGNATURE: &str = "c2ltdWxhdGVk";

fn tool_use_id(suffix: &str) -> String {
    format!("toolu_{suffix}")
}

fn message(plan: &Plan, suffix: &str, content: Vec<Value>, stop_reason: Option<&str>, output: u64) -> Value {
    let mut message = json!({
        "id": format!("msg_{suffix}"),
        "type": "message",
        "role": "assistant",
        "model": plan.model,
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": null,
    });
    if plan.usage {
        message["usage"] = usage(plan, output);
        message["usage"]["service_tier"] = "standard".into();
    }
    message
}

fn stop_reason(plan: &Plan) -> &'static str {
    match (plan.capped, &plan.tool) {
        (true, _) => "max_tokens",
        (false, Some(_)) => "tool_use",
        (false, None) => "end_turn",
    }
}

/// The input excludes what was read from the cache and what was written to it.
fn usage(plan: &Plan, output: u64) -> Value {
    let bill = plan.bill;
    json!({
        "input_tokens": bill.input - bill.cache_read - bill.cache_write,
        "cache_creation_input_tokens": bill.cache_write,
        "cache_read_input_tokens": bill.cache_read,
        "output_tokens": output,
    })
}
