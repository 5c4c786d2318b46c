//! OpenAI's Responses API, plain, streamed and in the background: <https://platform.openai.com/docs/api-reference/responses>.

use serde::Deserialize;
use serde_json::{Value, json};

use super::answer::Script;
use super::count;
use super::dialect::Refusal;
use super::order::{Order, Plan, words};
use crate::clock;

#[derive(Debug, Deserialize)]
struct Request {
    #[serde(default)]
    model: String,
    input: Option<Value>,
    instructions: Option<Value>,
    max_output_tokens: Option<u64>,
    stream: Option<bool>,
    store: Option<bool>,
    background: Option<bool>,
    previous_response_id: Option<String>,
    tools: Option<Vec<Value>>,
}

/// What a request leaves behind, and takes up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Keeping {
    /// Whether the answer is kept: unless the request says no.
    pub store: bool,
    /// Whether the answer comes later.
    pub background: bool,
    /// What it continues.
    pub previous: Option<String>,
}

/// Reads the body of `POST /v1/responses`.
///
/// # Errors
/// 400 with the field at fault.
pub fn read(body: &[u8]) -> Result<(Order, Keeping), Refusal> {
    let request: Request = serde_json::from_slice(body).map_err(|error| {
        Refusal::bad_request(format!("We could not parse the JSON body of your request: {error}."))
    })?;
    let tools = request.tools.unwrap_or_default();
    let items = match &request.input {
        Some(Value::String(text)) => vec![json!({"role": "user", "content": text})],
        Some(Value::Array(items)) => items.clone(),
        _ if request.previous_response_id.is_some() => Vec::new(),
        _ => return Err(Refusal::bad_field("input", "Missing required parameter: 'input'.")),
    };
    let order = Order {
        model: request.model,
        prompt: count::conversation(request.instructions.as_ref(), &items, &tools),
        max_output: request.max_output_tokens,
        choices: 1,
        stream: request.stream.unwrap_or(false),
        ..Order::default()
    };
    let keeping = Keeping {
        store: request.store.unwrap_or(true),
        background: request.background.unwrap_or(false),
        previous: request.previous_response_id,
    };
    Ok((order, keeping))
}

/// The body of a plain response.
#[must_use]
pub fn plain(plan: &Plan, suffix: &str, keeping: &Keeping) -> Value {
    let mut body = envelope(plan, suffix, keeping, if plan.capped { "incomplete" } else { "completed" });
    body["output"] = json!([item(plan, suffix, &words(plan.visible()), "completed")]);
    if plan.usage {
        body["usage"] = usage(plan);
    }
    body
}

/// What is answered at once to a request in the background.
#[must_use]
pub fn queued(plan: &Plan, suffix: &str, keeping: &Keeping) -> Value {
    envelope(plan, suffix, keeping, "queued")
}

/// The events of a streamed response.
#[must_use]
pub fn streamed(plan: &Plan, suffix: &str, keeping: &Keeping, line_end: &str) -> Script {
    let event = |data: Value| {
        let name = data["type"].as_str().unwrap_or_default();
        format!("event: {name}{line_end}data: {data}{line_end}{line_end}")
    };
    let place = || json!({"item_id": format!("msg_{suffix}"), "output_index": 0, "content_index": 0});
    let placed = |kind: &str, member: &str, value: Value| {
        let mut data = place();
        data["type"] = kind.into();
        data[member] = value;
        event(data)
    };
    let begun = envelope(plan, suffix, keeping, "in_progress");
    let mut script = Script::default();
    script.frame(event(json!({"type": "response.created", "sequence_number": 0, "response": begun})), 0);
    let opened = item(plan, suffix, "", "in_progress");
    let added = json!({"type": "response.output_item.added", "sequence_number": 1, "output_index": 0, "item": opened});
    script.frame(event(added), plan.reasoning);
    let part = |text: &str| json!({"type": "output_text", "text": text, "annotations": []});
    script.frame(placed("response.content_part.added", "part", part("")), 0);
    for (tokens, times) in plan.portions() {
        script.content(placed("response.output_text.delta", "delta", words(tokens).into()), tokens, times);
    }
    let text = words(plan.visible());
    script.frame(placed("response.output_text.done", "text", text.as_str().into()), 0);
    script.frame(placed("response.content_part.done", "part", part(&text)), 0);
    let whole = plain(plan, suffix, keeping);
    let done = json!({"type": "response.output_item.done", "output_index": 0, "item": whole["output"][0]});
    script.frame(event(done), 0);
    let kind = if plan.capped { "response.incomplete" } else { "response.completed" };
    script.frame(event(json!({"type": kind, "sequence_number": 9, "response": whole})), 0);
    script
}

fn envelope(plan: &Plan, suffix: &str, keeping: &Keeping, status: &str) -> Value {
    let incomplete = (status == "incomplete").then(|| json!({"reason": "max_output_tokens"}));
    json!({
        "id": format!("resp_{suffix}"), "object": "response", "created_at": clock::wall_now().as_second(),
        "model": plan.model, "status": status, "error": null, "incomplete_details": incomplete, "output": [],
        "instructions": null, "metadata": {}, "parallel_tool_calls": true, "temperature": 1.0, "top_p": 1.0,
        "tool_choice": "auto", "tools": [], "usage": null, "store": keeping.store, "background": keeping.background,
        "previous_response_id": keeping.previous,
    })
}

fn item(plan: &Plan, suffix: &str, text: &str, status: &str) -> Value {
    let _ = plan;
    let content = if text.is_empty() {
        json!([])
    } else {
        json!([{"type": "output_text", "text": text, "annotations": []}])
    };
    json!({"type": "message", "id": format!("msg_{suffix}"), "role": "assistant", "status": status, "content": content})
}

fn usage(plan: &Plan) -> Value {
    json!({
        "input_tokens": plan.bill.input, "input_tokens_details": {"cached_tokens": plan.bill.cache_read},
        "output_tokens": plan.output, "output_tokens_details": {"reasoning_tokens": plan.reasoning},
        "total_tokens": plan.bill.input + plan.output,
    })
}
