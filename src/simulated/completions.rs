//! OpenAI's text completions, plain and streamed: <https://platform.openai.com/docs/api-reference/completions>.

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
    prompt: Option<Value>,
    n: Option<u64>,
    max_tokens: Option<u64>,
    stream: Option<bool>,
    stream_options: Option<Value>,
}

/// Reads the body of `POST /v1/completions`.
///
/// # Errors
/// 400 with the field at fault.
pub fn read(body: &[u8]) -> Result<Order, Refusal> {
    let request: Request = serde_json::from_slice(body).map_err(|error| {
        Refusal::bad_request(format!("We could not parse the JSON body of your request: {error}."))
    })?;
    let wrong =
        || Refusal::bad_field("prompt", "Invalid 'prompt': not a string, a list of strings or of tokens.");
    let ids = |list: &[Value]| list.iter().all(Value::is_u64).then_some(list.len() as u64);
    let (prompts, prompt) = match request.prompt.as_ref() {
        None | Some(Value::Null) => (1, 0),
        Some(Value::String(text)) => (1, count::text(text)),
        Some(Value::Array(list)) if list.first().is_some_and(Value::is_u64) => {
            (1, ids(list).ok_or_else(wrong)?)
        }
        Some(Value::Array(list)) if !list.is_empty() => {
            let each = list.iter().map(|prompt| match prompt {
                Value::String(text) => Some(count::text(text)),
                Value::Array(list) => ids(list),
                _ => None,
            });
            (list.len() as u64, each.sum::<Option<u64>>().ok_or_else(wrong)?)
        }
        Some(_) => return Err(wrong()),
    };
    let usage = request.stream_options.as_ref().and_then(|options| options["include_usage"].as_bool());
    Ok(Order {
        model: request.model,
        prompt,
        max_output: Some(request.max_tokens.unwrap_or(16)),
        choices: prompts * request.n.unwrap_or(1).clamp(1, 128),
        stream: request.stream.unwrap_or(false),
        include_usage: usage.unwrap_or(false),
        ..Order::default()
    })
}

/// The body of a plain completion.
#[must_use]
pub fn plain(plan: &Plan, suffix: &str) -> Value {
    let choice = |index: u64| json!({"text": words(plan.output), "index": index, "logprobs": null, "finish_reason": finish_reason(plan)});
    let mut body = envelope(plan, suffix);
    body["choices"] = (0..plan.choices).map(choice).collect();
    if plan.usage {
        body["usage"] = usage(plan, plan.choices);
    }
    body
}

/// The chunks of a streamed completion.
#[must_use]
pub fn streamed(plan: &Plan, suffix: &str, line_end: &str) -> Script {
    let event = |choices: Value, usage: Option<Value>| {
        let mut chunk = envelope(plan, suffix);
        chunk["choices"] = choices;
        if plan.include_usage && plan.usage {
            chunk["usage"] = usage.unwrap_or(Value::Null);
        }
        format!("data: {chunk}{line_end}{line_end}")
    };
    let said = |index: u64, text: &str, finish: Option<&str>| {
        event(json!([{"text": text, "index": index, "logprobs": null, "finish_reason": finish}]), None)
    };
    let mut script = Script::default();
    for (tokens, times) in plan.portions() {
        for _ in 0..times {
            (0..plan.choices).for_each(|index| script.content(said(index, &words(tokens), None), tokens, 1));
        }
    }
    if plan.reasoning > 0 {
        script.frame(": hidden\n\n", plan.reasoning * plan.choices);
    }
    for index in 0..plan.finishing {
        script.frame(said(index, "", Some(finish_reason(plan))), 0);
    }
    if plan.include_usage && plan.usage {
        script.frame(event(json!([]), Some(usage(plan, plan.finishing))), 0);
    }
    script.frame(format!("data: [DONE]{line_end}{line_end}"), 0);
    script
}

fn envelope(plan: &Plan, suffix: &str) -> Value {
    json!({
        "id": format!("cmpl-{suffix}"), "object": "text_completion", "created": clock::wall_now().as_second(),
        "model": plan.model,
    })
}

fn finish_reason(plan: &Plan) -> &'static str {
    if plan.capped { "length" } else { "stop" }
}

fn usage(plan: &Plan, choices: u64) -> Value {
    let (input, output) = (plan.bill.input, plan.output * choices);
    json!({"prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output})
}
