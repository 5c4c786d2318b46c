//! What a prompt costs here: the provider's own count, made without looking at the gateway's.
//!
//! Text is counted by a real tokenizer. Around it go overheads that are this provider's own and differ a little from what
//! the documentation of the real ones says (3 a message and 3 for the reply), because real bills differ from estimates too.
//! Values that are not text, like image data, are never tokenized.

use serde_json::Value;

/// Tokens around each message.
const PER_MESSAGE: u64 = 4;
/// Tokens that introduce the reply.
const PER_REPLY: u64 = 2;
/// Tokens around each tool definition.
const PER_TOOL: u64 = 8;
/// Tokens for a picture of any size.
const PER_IMAGE: u64 = 800;
/// Tokens for a document or a sound of any length.
const PER_FILE: u64 = 2_000;

/// Counts text as the current models do.
#[must_use]
pub fn text(text: &str) -> u64 {
    bpe_openai::o200k_base().count(text) as u64
}

/// Counts text as the embedding models do.
#[must_use]
pub fn embedded_text(text: &str) -> u64 {
    bpe_openai::cl100k_base().count(text) as u64
}

/// Counts a conversation in either dialect: an instruction apart from the messages, the messages, the tools.
#[must_use]
pub fn conversation(system: Option<&Value>, messages: &[Value], tools: &[Value]) -> u64 {
    let system = system.map_or(0, |system| PER_MESSAGE + content(system));
    let messages: u64 = messages.iter().map(message).sum();
    let tools: u64 = tools.iter().map(|tool| PER_TOOL + text(&tool.to_string())).sum();
    system + messages + tools + PER_REPLY
}

fn message(message: &Value) -> u64 {
    let named = ["role", "name"].iter().filter_map(|field| message[field].as_str()).map(text).sum::<u64>();
    let calls = message["tool_calls"].as_array().into_iter().flatten().map(|call| {
        let function = &call["function"];
        ["name", "arguments"].iter().filter_map(|field| function[field].as_str()).map(text).sum::<u64>()
    });
    PER_MESSAGE + named + content(&message["content"]) + calls.sum::<u64>()
}

/// Counts a message's content: a string, or a list of blocks.
fn content(content: &Value) -> u64 {
    match content {
        Value::String(string) => text(string),
        Value::Array(blocks) => blocks.iter().map(block).sum(),
        _ => 0,
    }
}

fn block(block: &Value) -> u64 {
    match block["type"].as_str() {
        Some("image_url" | "image") => PER_IMAGE,
        Some("input_audio" | "file" | "document") => PER_FILE,
        Some("tool_use") => {
            text(block["name"].as_str().unwrap_or_default()) + text(&block["input"].to_string())
        }
        Some("tool_result") => content(&block["content"]),
        Some("thinking") => text(block["thinking"].as_str().unwrap_or_default()),
        _ => text(block["text"].as_str().unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_message_is_its_words_and_the_overheads() {
        let messages = [json!({"role": "user", "content": "hello world"})];
        assert_eq!(text("hello world"), 2);
        assert_eq!(conversation(None, &messages, &[]), 4 + 1 + 2 + 2);
        assert_eq!(conversation(Some(&json!("be brief")), &messages, &[]), 4 + 2 + 4 + 1 + 2 + 2);
    }

    #[test]
    fn both_ways_to_write_text_cost_the_same() {
        let plain = [json!({"role": "user", "content": "hello world"})];
        let blocks = [json!({"role": "user", "content": [{"type": "text", "text": "hello world"}]})];
        assert_eq!(conversation(None, &plain, &[]), conversation(None, &blocks, &[]));
    }

    #[test]
    fn a_picture_costs_the_same_whatever_its_data() {
        let picture = |data: &str| json!({"type": "image", "source": {"type": "base64", "data": data}});
        let with = |block: Value| conversation(None, &[json!({"role": "user", "content": [block]})], &[]);
        assert_eq!(with(picture("AA==")), with(picture(&"A".repeat(100_000))));
        assert_eq!(with(picture("")), 4 + 1 + PER_IMAGE + 2);
    }

    #[test]
    fn tools_and_their_calls_are_counted() {
        let tool = json!({"type": "function", "function": {"name": "look", "parameters": {}}});
        let bare = conversation(None, &[], &[]);
        assert_eq!(
            conversation(None, &[], std::slice::from_ref(&tool)),
            bare + PER_TOOL + text(&tool.to_string())
        );
        let call = json!({"role": "assistant", "content": null,
            "tool_calls": [{"id": "1", "function": {"name": "look", "arguments": "{}"}}]});
        assert_eq!(conversation(None, &[call], &[]), bare + PER_MESSAGE + 1 + 1 + 1);
    }
}
