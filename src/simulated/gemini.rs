//! Gemini's shapes: content, plain, as events and as an array: <https://ai.google.dev/api/generate-content>.
//!
//! Every chunk carries `usageMetadata`, cumulative; thoughts are counted beside the candidates.

use serde::Deserialize;
use serde_json::{Value, json};

use super::answer::Script;
use super::count;
use super::dialect::Refusal;
use super::order::{Order, Plan, words};

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Request {
    contents: Option<Vec<Value>>,
    #[serde(alias = "system_instruction")]
    system_instruction: Option<Value>,
    #[serde(default, alias = "generation_config")]
    generation_config: Config,
    tools: Option<Vec<Value>>,
    #[serde(alias = "generate_content_request")]
    generate_content_request: Option<Box<Request>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Config {
    #[serde(alias = "max_output_tokens")]
    max_output_tokens: Option<u64>,
    #[serde(alias = "candidate_count")]
    candidate_count: Option<u64>,
}

/// How a stream is framed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// `alt=sse`.
    Events,
    /// One JSON array.
    Array,
}

/// Reads the body of a request for content, or for its count.
///
/// # Errors
/// 400.
pub fn read(body: &[u8], model: &str, stream: bool) -> Result<Order, Refusal> {
    let mut request: Request = serde_json::from_slice(body)
        .map_err(|error| Refusal::bad_request(format!("Invalid JSON payload received. {error}")))?;
    if let Some(whole) = request.generate_content_request.take() {
        request = *whole;
    }
    let Some(contents) = request.contents.filter(|contents| !contents.is_empty()) else {
        return Err(Refusal::bad_request("* GenerateContentRequest.contents: contents is not specified"));
    };
    // The parts of Gemini's contents are the blocks of others.
    let message = |content: &Value| json!({"role": content["role"], "content": content["parts"]});
    let messages: Vec<Value> = contents.iter().map(message).collect();
    let system = request.system_instruction.as_ref().map(|system| system["parts"].clone());
    Ok(Order {
        model: model.to_owned(),
        prompt: count::conversation(system.as_ref(), &messages, &request.tools.unwrap_or_default()),
        max_output: request.generation_config.max_output_tokens,
        choices: request.generation_config.candidate_count.unwrap_or(1).clamp(1, 8),
        stream,
        ..Order::default()
    })
}

/// The body of plain content.
#[must_use]
pub fn plain(plan: &Plan, suffix: &str) -> Value {
    let text = words(plan.visible());
    let candidates = (0..plan.choices).map(|index| candidate(index, &text, Some(finish_reason(plan))));
    chunk(plan, suffix, candidates.collect(), plan.visible() * plan.choices, plan.reasoning * plan.choices)
}

/// The chunks of a stream.
#[must_use]
pub fn streamed(plan: &Plan, suffix: &str, framing: Framing, line_end: &str) -> Script {
    let mut script = Script::default();
    let mut first = true;
    let mut framed = |data: &Value| match framing {
        Framing::Events => format!("data: {data}{line_end}{line_end}"),
        Framing::Array => format!("{}{data}", if std::mem::take(&mut first) { "[" } else { ",\r\n" }),
    };
    // Reported as it goes: the last chunk alone has the whole.
    let mut said = 0;
    let opening = chunk(plan, suffix, Vec::new(), 0, plan.reasoning * plan.choices);
    script.frame(framed(&opening), plan.reasoning * plan.choices);
    for (tokens, times) in plan.portions() {
        for _ in 0..times {
            for index in 0..plan.choices {
                said += tokens;
                let candidates = vec![candidate(index, &words(tokens), None)];
                let said = chunk(plan, suffix, candidates, said, plan.reasoning * plan.choices);
                script.content(framed(&said), tokens, 1);
            }
        }
    }
    let last = (0..plan.finishing).map(|index| candidate(index, "", Some(finish_reason(plan))));
    let last =
        chunk(plan, suffix, last.collect(), plan.visible() * plan.finishing, plan.reasoning * plan.finishing);
    script.frame(framed(&last), 0);
    if framing == Framing::Array {
        script.frame("\r\n]", 0);
    }
    script
}

/// The list of models.
#[must_use]
pub fn models(names: &[String]) -> Value {
    let model = |name: &String| json!({"name": format!("models/{name}"), "supportedGenerationMethods": ["generateContent", "countTokens"]});
    json!({"models": names.iter().map(model).collect::<Vec<_>>()})
}

fn candidate(index: u64, text: &str, finish: Option<&str>) -> Value {
    let mut candidate = json!({"content": {"role": "model", "parts": [{"text": text}]}, "index": index});
    if let Some(finish) = finish {
        candidate["finishReason"] = finish.into();
    }
    candidate
}

fn chunk(plan: &Plan, suffix: &str, candidates: Vec<Value>, written: u64, thought: u64) -> Value {
    let mut chunk =
        json!({"candidates": candidates, "modelVersion": plan.model, "responseId": format!("gen-{suffix}")});
    if plan.usage {
        let mut usage = json!({
            "promptTokenCount": plan.bill.input,
            "candidatesTokenCount": written,
            "totalTokenCount": plan.bill.input + written + thought,
        });
        if thought > 0 {
            usage["thoughtsTokenCount"] = thought.into();
        }
        if plan.bill.cache_read > 0 {
            usage["cachedContentTokenCount"] = plan.bill.cache_read.into();
        }
        chunk["usageMetadata"] = usage;
    }
    chunk
}

fn finish_reason(plan: &Plan) -> &'static str {
    if plan.capped { "MAX_TOKENS" } else { "STOP" }
}
