//! The estimate's laws and worked examples: it errs high, by known amounts, on every kind of prompt.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::route::{Bounds, Endpoint};

fn ask(endpoint: Endpoint, body: &Value) -> Ask {
    Ask::read(endpoint, body.to_string().as_bytes(), &Bounds::default()).unwrap()
}

fn input(endpoint: Endpoint, body: &Value, encoding: Encoding) -> u64 {
    input_tokens(&ask(endpoint, body), encoding, &TokenCache::new(7, 100))
}

fn chat(messages: Value) -> u64 {
    input(Endpoint::ChatCompletions, &json!({"model": "gpt-4o", "messages": messages}), Encoding::O200k)
}

#[test]
fn a_chat_costs_what_openais_cookbook_says() {
    // The page's own example, which the API billed with 124 tokens on gpt-4o and 129 on gpt-4.
    let messages = json!([
        {"role": "system", "content": "You are a helpful, pattern-following assistant that translates corporate jargon into plain English."},
        {"role": "system", "name": "example_user", "content": "New synergies will help drive top-line growth."},
        {"role": "system", "name": "example_assistant", "content": "Things working well together will increase revenue."},
        {"role": "system", "name": "example_user", "content": "Let's circle back when we have more bandwidth to touch base on opportunities for increased leverage."},
        {"role": "system", "name": "example_assistant", "content": "Let's talk later when we're less busy about how to do better."},
        {"role": "user", "content": "This late pivot means we don't have time to boil the ocean for the client deliverable."},
    ]);
    assert_eq!(chat(messages.clone()), 124);
    let body = json!({"model": "gpt-4", "messages": messages});
    assert_eq!(input(Endpoint::ChatCompletions, &body, Encoding::Cl100k), 129);
}

#[test]
fn messages_parts_and_images_add_up() {
    assert_eq!(chat(json!([{"role": "user", "content": "hello world"}])), 3 + 4 + 2);
    assert_eq!(chat(json!([{"role": "user", "content": ""}])), 3 + 4);
    let parts = json!([{"role": "user", "content": [
        {"type": "text", "text": "hello world"},
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png", "detail": "low"}},
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
    ]}]);
    assert_eq!(chat(parts), 3 + 4 + 2 + 85 + 1_445);
}

#[test]
fn tools_cost_at_least_what_the_cookbook_measured() {
    // The page's own example: 105 tokens on gpt-4 and 101 on gpt-4o.
    let body = json!({
        "model": "gpt-4o",
        "messages": [
            {"role": "system", "content": "You are a helpful assistant that can answer to questions about the weather."},
            {"role": "user", "content": "What's the weather like in San Francisco?"},
        ],
        "tools": [{"type": "function", "function": {
            "name": "get_current_weather",
            "description": "Get the current weather in a given location",
            "parameters": {
                "type": "object",
                "properties": {
                    "location": {"type": "string", "description": "The city and state, e.g. San Francisco, CA"},
                    "unit": {"type": "string", "description": "The unit of temperature to return", "enum": ["celsius", "fahrenheit"]},
                },
                "required": ["location"],
            },
        }}],
    });
    for (encoding, billed) in [(Encoding::O200k, 101), (Encoding::Cl100k, 105)] {
        let tokens = input(Endpoint::ChatCompletions, &body, encoding);
        assert!((billed..2 * billed).contains(&tokens), "{tokens} for {billed}");
    }
}

#[test]
fn claude_costs_at_least_what_its_guide_counts() {
    // The examples of the token counting guide, by the API's own answers.
    let encoding = Encoding::for_model("claude-opus-4-1");
    let plain = json!({
        "model": "claude-opus-4-1",
        "system": "You are a scientist",
        "messages": [{"role": "user", "content": "Hello, Claude"}],
    });
    let tokens = input(Endpoint::CountTokens, &plain, encoding);
    assert!((14..3 * 14).contains(&tokens), "{tokens} for 14");
    let tools = json!({
        "model": "claude-opus-4-1",
        "tools": [{
            "name": "get_weather",
            "description": "Get the current weather in a given location",
            "input_schema": {
                "type": "object",
                "properties": {"location": {"type": "string", "description": "The city and state, e.g. San Francisco, CA"}},
                "required": ["location"],
            },
        }],
        "messages": [{"role": "user", "content": "What's the weather like in San Francisco?"}],
    });
    let tokens = input(Endpoint::CountTokens, &tools, encoding);
    assert!((403..2 * 403).contains(&tokens), "{tokens} for 403");
}

#[test]
fn files_and_provider_tools_cost_by_their_stated_rules() {
    let content = |block: Value| {
        let body = json!({"model": "claude-haiku-4-5", "max_tokens": 1, "messages": [{"role": "user", "content": [block]}]});
        input(Endpoint::Messages, &body, Encoding::bytes(2_590)) - 3 - 8
    };
    let document =
        |data: String| content(json!({"type": "document", "source": {"type": "base64", "data": data}}));
    assert_eq!(document("A".repeat(4)), 4_600, "a page at least");
    assert_eq!(document("A".repeat(400_000)), 75_000);
    assert_eq!(document("A".repeat(20_000_000)), 460_000, "a hundred pages at most");
    assert_eq!(
        content(json!({"type": "document", "source": {"type": "url", "url": "https://example.com/a.pdf"}})),
        460_000
    );
    assert_eq!(content(json!({"type": "redacted_thinking", "data": "A".repeat(400)})), 150);
    let body = json!({"model": "claude-haiku-4-5", "max_tokens": 1, "messages": [{"role": "user", "content": ""}],
        "tools": [{"type": "computer_20250124", "name": "computer"}]});
    assert!(input(Endpoint::Messages, &body, Encoding::bytes(2_590)) > 735 + 499);
    let audio = json!([{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "A".repeat(4_000)}}]}]);
    assert_eq!(chat(audio), 3 + 4 + 30);
}

#[test]
fn embeddings_cost_their_tokens_and_nothing_else() {
    let embed = |input_value: Value| {
        input(
            Endpoint::Embeddings,
            &json!({"model": "text-embedding-3-small", "input": input_value}),
            Encoding::Cl100k,
        )
    };
    assert_eq!(embed(json!("hello world")), 2);
    assert_eq!(embed(json!(["hello world", "hello world"])), 4);
    assert_eq!(embed(json!([1, 2, 3])), 3);
    assert_eq!(embed(json!([[1, 2], [3, 4, 5]])), 5);
}

#[test]
fn an_alias_is_counted_as_the_model_behind_it() {
    let body = json!({"model": "fast", "messages": [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]}]});
    let ask = ask(Endpoint::ChatCompletions, &body);
    let cache = TokenCache::new(7, 100);
    assert_eq!(input_tokens_for(&ask, "gpt-4o", Encoding::O200k, &cache), 3 + 4 + 1_445);
    assert_eq!(input_tokens_for(&ask, "gpt-4o-mini", Encoding::O200k, &cache), 3 + 4 + 2_833 + 8 * 5_667);
}

#[test]
fn output_is_the_ceiling_times_the_choices() {
    let body = |more: Value| {
        let mut body = json!({"model": "gpt-4o", "messages": [{"role": "user", "content": "hi"}]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ask(Endpoint::ChatCompletions, &body)
    };
    let rule = OutputRule::Ceiling { default: 1_024, model_max: Some(4_096) };
    let output = |ask: &Ask, rule| of(ask, 10, rule).output;
    assert_eq!(output(&body(json!({})), rule), 1_024, "the default");
    assert_eq!(output(&body(json!({"n": 3})), rule), 3 * 1_024);
    assert_eq!(output(&body(json!({"max_tokens": 50, "n": 2})), rule), 100);
    assert_eq!(
        output(&body(json!({"max_tokens": 50_000, "n": 2})), rule),
        2 * 4_096,
        "no model writes more than it can"
    );
    let unknown = OutputRule::Ceiling { default: 1_024, model_max: None };
    assert_eq!(output(&body(json!({"max_tokens": 50_000})), unknown), 50_000);
    assert_eq!(
        output(&body(json!({})), OutputRule::Ceiling { default: 9_999, model_max: Some(4_096) }),
        4_096
    );
    assert_eq!(
        output(&body(json!({"n": 128})), OutputRule::Ceiling { default: u64::MAX, model_max: None }),
        u64::MAX
    );
    assert_eq!(of(&body(json!({"max_tokens": 50})), 10, OutputRule::None), Estimate { input: 10, output: 0 });
}

#[test]
fn what_writes_nothing_reserves_no_output() {
    let rule = OutputRule::Ceiling { default: 1_024, model_max: None };
    let embeddings = ask(Endpoint::Embeddings, &json!({"model": "m", "input": "x"}));
    assert_eq!(of(&embeddings, 1, rule), Estimate { input: 1, output: 0 });
    let count =
        ask(Endpoint::CountTokens, &json!({"model": "m", "messages": [{"role": "user", "content": "x"}]}));
    assert_eq!(of(&count, 1, rule).output, 0);
    assert_eq!(Estimate { input: u64::MAX, output: 1 }.total(), u64::MAX);
}

proptest! {
    #[test]
    fn more_text_never_costs_less(
        words in prop::collection::vec("[A-Z]?[a-zäöü的]{1,9}", 2..60),
        model in prop::sample::select(vec!["gpt-4o", "gpt-4", "claude-haiku-4-5"]),
    ) {
        let encoding = Encoding::for_model(model);
        let cost = |count: usize| {
            let body = json!({"model": model, "messages": [{"role": "user", "content": words[..count].join(" ")}]});
            input(Endpoint::ChatCompletions, &body, encoding)
        };
        prop_assert!(cost(words.len() - 1) <= cost(words.len()));
        prop_assert!(cost(1) <= cost(words.len()));
    }

    #[test]
    fn one_more_message_always_costs_more(texts in prop::collection::vec(".{0,80}", 1..6), model in prop::sample::select(vec!["gpt-4o", "claude-haiku-4-5"])) {
        let encoding = Encoding::for_model(model);
        let messages: Vec<Value> = texts.iter().map(|text| json!({"role": "user", "content": text})).collect();
        let cost = |count: usize| input(
            Endpoint::CountTokens,
            &json!({"model": model, "messages": messages[..count]}),
            encoding,
        );
        for count in 1..messages.len() {
            prop_assert!(cost(count) < cost(count + 1));
        }
    }
}
