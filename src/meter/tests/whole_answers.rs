//! Answers that come as one document, shaped as in the public references:
//! <https://platform.openai.com/docs/api-reference/chat/object>,
//! <https://platform.openai.com/docs/api-reference/embeddings/create>, <https://docs.anthropic.com/en/api/messages>.

use super::input_and_output;
use crate::meter::{Metered, Usage, error_event, keep_alive, usage_of_body};
use crate::route::Dialect::{self, Anthropic, OpenAi};

fn usage_of(dialect: Dialect, body: &str) -> Metered {
    usage_of_body(dialect, body.as_bytes())
}

#[test]
fn a_chat_completion_with_three_choices_counts_its_prompt_once() {
    let body = r#"{"id":"chatcmpl-B9MBs8CjcvOU2jLn4n570S5qMJKcT","object":"chat.completion","created":1741569952,"model":"gpt-4.1-2025-04-14",
        "choices":[{"index":0,"message":{"role":"assistant","content":"Hello!","refusal":null,"annotations":[]},"logprobs":null,"finish_reason":"stop"},
                   {"index":1,"message":{"role":"assistant","content":"usage: \"usage\":{}","refusal":null},"finish_reason":"stop"},
                   {"index":2,"message":{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},"finish_reason":"tool_calls"}],
        "usage":{"prompt_tokens":1019,"completion_tokens":30,"total_tokens":1049,"prompt_tokens_details":{"cached_tokens":1000,"audio_tokens":0},
                 "completion_tokens_details":{"reasoning_tokens":12,"audio_tokens":0,"accepted_prediction_tokens":0,"rejected_prediction_tokens":0}},
        "service_tier":"default"}"#;
    let usage = Usage { uncached_input: 19, cache_read: 1000, cache_write: 0, output: 30, reasoning: 12 };
    assert_eq!(usage_of(OpenAi, body), Metered::Exact(usage));
    assert_eq!(usage.total(), 1049);
    assert_eq!(usage.limit_input(OpenAi), 1019);
}

#[test]
fn an_embedding_has_only_input() {
    let body = r#"{"object":"list","data":[{"object":"embedding","embedding":[0.0023064255,-0.009327292],"index":0}],"model":"text-embedding-ada-002","usage":{"prompt_tokens":8,"total_tokens":8}}"#;
    assert_eq!(usage_of(OpenAi, body), Metered::Exact(input_and_output(8, 0)));
}

#[test]
fn a_completion_that_does_not_report_its_output_is_unknown() {
    let body = r#"{"choices":[],"usage":{"prompt_tokens":8,"total_tokens":8}}"#;
    assert_eq!(usage_of(OpenAi, body), Metered::Unknown);
}

#[test]
fn a_message_counts_cache_reads_and_writes_beside_its_input() {
    let body = r#"{"id":"msg_013Zva2CMHLNnXjNJJKqJ2EF","type":"message","role":"assistant","model":"claude-opus-4-6",
        "content":[{"type":"thinking","thinking":"…","signature":"x"},{"type":"text","text":"Hi!"}],"stop_reason":"end_turn","stop_sequence":null,
        "usage":{"input_tokens":2095,"cache_creation_input_tokens":300,"cache_read_input_tokens":4000,
                 "cache_creation":{"ephemeral_5m_input_tokens":100,"ephemeral_1h_input_tokens":200},"output_tokens":503,
                 "output_tokens_details":{"thinking_tokens":400},"server_tool_use":{"web_search_requests":0},"service_tier":"standard"}}"#;
    let usage =
        Usage { uncached_input: 2095, cache_read: 4000, cache_write: 300, output: 503, reasoning: 400 };
    assert_eq!(usage_of(Anthropic, body), Metered::Exact(usage));
    assert_eq!(usage.input_total(), 6395);
    assert_eq!(usage.limit_input(Anthropic), 2395, "reads do not count towards input limits, writes do");
}

#[test]
fn cache_writes_are_found_in_the_breakdown_alone() {
    let body = r#"{"usage":{"input_tokens":1,"cache_creation":{"ephemeral_5m_input_tokens":100,"ephemeral_1h_input_tokens":200},"output_tokens":2}}"#;
    let usage = Usage { uncached_input: 1, cache_write: 300, output: 2, ..Usage::default() };
    assert_eq!(usage_of(Anthropic, body), Metered::Exact(usage));
}

#[test]
fn null_cache_counts_are_none() {
    let body = r#"{"usage":{"input_tokens":12,"cache_creation_input_tokens":null,"cache_read_input_tokens":null,"cache_creation":null,"output_tokens":6}}"#;
    assert_eq!(usage_of(Anthropic, body), Metered::Exact(input_and_output(12, 6)));
}

#[test]
fn reasoning_reported_beside_the_completion_is_output_all_the_same() {
    let body = r#"{"choices":[],"usage":{"prompt_tokens":32,"completion_tokens":9,"total_tokens":135,"completion_tokens_details":{"reasoning_tokens":94}}}"#;
    let usage = Usage { uncached_input: 32, output: 103, reasoning: 94, ..Usage::default() };
    assert_eq!(usage_of(OpenAi, body), Metered::Exact(usage));
}

#[test]
fn a_shape_that_cannot_be_trusted_is_unknown() {
    for body in [
        "",
        "null",
        "[]",
        "not json",
        r#"{"usage":null}"#,
        r#"{"usage":[]}"#,
        r#"{"usage":5}"#,
        r#"{"usage":[1,1]}"#,
        r#"[null,{"prompt_tokens":1,"completion_tokens":1}]"#,
        r#"[{"prompt_tokens":1,"completion_tokens":1}]"#,
        r#"{"usage":{"prompt_tokens":1,"completion_tokens":1,"prompt_tokens_details":[1]}}"#,
        r#"{"error":{"message":"no"}}"#,
        r#"{"usage":{"prompt_tokens":1,"completion_tokens":1}"#,
        r#"{"usage":{"prompt_tokens":1,"completion_tokens":1}} trailing"#,
        r#"{"usage":{"prompt_tokens":1,"completion_tokens":1},"usage":{"prompt_tokens":1,"completion_tokens":1}}"#,
        r#"{"usage":{"prompt_tokens":-1,"completion_tokens":1}}"#,
        r#"{"usage":{"prompt_tokens":1.0,"completion_tokens":1}}"#,
        r#"{"usage":{"prompt_tokens":1e3,"completion_tokens":1}}"#,
        r#"{"usage":{"prompt_tokens":"1","completion_tokens":1}}"#,
        r#"{"usage":{"prompt_tokens":18446744073709551616,"completion_tokens":1}}"#,
        r#"{"usage":{"prompt_tokens":4294967296,"completion_tokens":1}}"#,
        r#"{"usage":{"prompt_tokens":0,"completion_tokens":0}}"#,
        r#"{"usage":{"total_tokens":9}}"#,
        r#"{"usage":{"prompt_tokens":1,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":-5}}}"#,
    ] {
        assert_eq!(usage_of(OpenAi, body), Metered::Unknown, "{body}");
        let body =
            body.replace("prompt_tokens", "input_tokens").replace("completion_tokens", "output_tokens");
        let body =
            body.replace("input_tokens_details", "cache_creation").replace("cached", "ephemeral_5m_input");
        assert_eq!(usage_of(Anthropic, &body), Metered::Unknown, "{body}");
    }
}

#[test]
fn the_other_dialects_usage_is_unknown() {
    assert_eq!(
        usage_of(Anthropic, r#"{"usage":{"prompt_tokens":1,"completion_tokens":1}}"#),
        Metered::Unknown
    );
    assert_eq!(usage_of(OpenAi, r#"{"usage":{"input_tokens":1,"output_tokens":1}}"#), Metered::Unknown);
}

#[test]
fn a_deeply_nested_answer_is_skipped_without_a_stack() {
    let depth = 100_000;
    let body = format!(
        r#"{{"choices":{}{},"usage":{{"prompt_tokens":3,"completion_tokens":4}}}}"#,
        "[".repeat(depth),
        "]".repeat(depth)
    );
    assert_eq!(usage_of(OpenAi, &body), Metered::Exact(input_and_output(3, 4)));
}

#[test]
fn sums_saturate() {
    let usage =
        Usage { uncached_input: u64::MAX, cache_read: 5, cache_write: 5, output: u64::MAX, reasoning: 0 };
    assert_eq!(usage.total(), u64::MAX);
}

#[test]
fn an_error_event_is_one_event_whatever_its_message() {
    let openai = error_event(OpenAi, "upstream_failed", "line\none \"two\"\r");
    assert_eq!(
        openai,
        "data: {\"error\":{\"code\":\"upstream_failed\",\"message\":\"line\\none \\\"two\\\"\\r\",\"param\":null,\"type\":\"server_error\"}}\n\n"
    );
    let anthropic = error_event(Anthropic, "upstream_failed", "no answer");
    assert_eq!(
        anthropic,
        "event: error\ndata: {\"error\":{\"details\":{\"error_code\":\"upstream_failed\"},\"message\":\"no answer\",\"type\":\"api_error\"},\"type\":\"error\"}\n\n"
    );
}

#[test]
fn a_keep_alive_has_nothing_that_clients_trip_over() {
    assert_eq!(keep_alive(OpenAi), ": ping\n");
    assert_eq!(keep_alive(Anthropic), "event: ping\ndata: {\"type\":\"ping\"}\n\n");
}
