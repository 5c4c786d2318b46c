//! Streams in the Anthropic dialect, shaped as in the public reference:
//! <https://docs.anthropic.com/en/api/messages-streaming>.

use super::{input_and_output, options, play_untouched, transcript};
use crate::meter::{Metered, StreamEnd, StreamMeterOptions, Usage};
use crate::route::Dialect;

const START: &str = r#"event: message_start|data: {"type":"message_start","message":{"id":"msg_1nZdL29xx5MUA1yADyHTEsnR8uuvGzszyS","type":"message","role":"assistant","content":[],"model":"claude-opus-4-6","stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":25,"cache_creation_input_tokens":100,"cache_read_input_tokens":1000,"cache_creation":{"ephemeral_5m_input_tokens":60,"ephemeral_1h_input_tokens":40},"output_tokens":1,"service_tier":"standard"}}}"#;
const BLOCK: &str = r#"event: content_block_start|data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#;
const PING: &str = r#"event: ping|data: {"type": "ping"}"#;
const HELLO: &str = r#"event: content_block_delta|data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hello"}}"#;
const BLOCK_END: &str = r#"event: content_block_stop|data: {"type":"content_block_stop","index":0}"#;
const END: &str = r#"event: message_delta|data: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":15}}"#;
const STOP: &str = r#"event: message_stop|data: {"type":"message_stop"}"#;

fn anthropic() -> StreamMeterOptions {
    options(Dialect::Anthropic)
}

fn started(output: u64) -> Usage {
    Usage { uncached_input: 25, cache_read: 1000, cache_write: 100, output, reasoning: 0 }
}

#[test]
fn a_complete_message_is_exact_and_passes_untouched() {
    let stream = transcript(&[START, BLOCK, PING, HELLO, BLOCK_END, END, STOP]);
    for line_end in ["\n", "\r\n", "\r"] {
        let played = play_untouched(&anthropic(), &stream.replace('\n', line_end), StreamEnd::Clean);
        assert_eq!(played.metered, Metered::Exact(started(15)));
        assert_eq!(played.finished_choices, 1);
    }
}

#[test]
fn nothing_is_ever_dropped_in_this_dialect() {
    let dropping = StreamMeterOptions { drop_usage_chunk: true, ..anthropic() };
    let odd = r#"data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}"#;
    play_untouched(&dropping, &transcript(&[START, odd, END, STOP]), StreamEnd::Clean);
}

#[test]
fn totals_replace_one_another_and_never_add_up() {
    let early = END.replace("15", "7").replace(r#""end_turn""#, "null");
    let stream = transcript(&[START, HELLO, &early, HELLO, END, STOP]);
    let played = play_untouched(&anthropic(), &stream, StreamEnd::Clean);
    assert_eq!(played.metered, Metered::Exact(started(15)));
}

#[test]
fn input_that_is_reported_again_replaces_the_first_report() {
    let end = END.replace(
        r#""output_tokens":15"#,
        r#""input_tokens":30,"cache_creation_input_tokens":null,"cache_read_input_tokens":2000,"output_tokens":15,"output_tokens_details":{"thinking_tokens":9}"#,
    );
    let played = play_untouched(&anthropic(), &transcript(&[START, HELLO, &end, STOP]), StreamEnd::Clean);
    let usage = Usage { uncached_input: 30, cache_read: 2000, cache_write: 100, output: 15, reasoning: 9 };
    assert_eq!(played.metered, Metered::Exact(usage));
}

#[test]
fn a_compaction_is_billed_beside_the_message() {
    let end = END.replace(
        r#""output_tokens":15"#,
        r#""output_tokens":15,"iterations":[{"type":"compaction","input_tokens":180000,"output_tokens":3500},{"type":"message","input_tokens":25,"output_tokens":15}]"#,
    );
    let played = play_untouched(&anthropic(), &transcript(&[START, &end, STOP]), StreamEnd::Clean);
    let usage =
        Usage { uncached_input: 180_025, cache_read: 1000, cache_write: 100, output: 3515, reasoning: 0 };
    assert_eq!(played.metered, Metered::Exact(usage));
}

#[test]
fn text_thinking_and_tool_input_are_counted() {
    let thinking = r#"event: content_block_delta|data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"let me"}}"#;
    let signature = r#"event: content_block_delta|data: {"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"EqQBCgIYAhIM1gbcDa9GJwZA2b3hGgxBdjrkzLoky3dl1pk"}}"#;
    let tool = r#"event: content_block_delta|data: {"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{\"location\":"}}"#;
    let stream = transcript(&[START, thinking, signature, HELLO, tool]);
    let played = play_untouched(&anthropic(), &stream, StreamEnd::Cut);
    assert_eq!(played.metered, Metered::AtLeast(started(6 + 5 + 12)));
}

#[test]
fn a_message_cut_at_its_start_is_at_least_what_was_reported() {
    let played = play_untouched(&anthropic(), &transcript(&[START, BLOCK]), StreamEnd::Cut);
    assert_eq!(played.metered, Metered::AtLeast(started(1)));
    assert_eq!(played.finished_choices, 0);
}

#[test]
fn the_output_in_message_start_is_not_the_last_word() {
    let played = play_untouched(&anthropic(), &transcript(&[START, HELLO, STOP]), StreamEnd::Clean);
    assert_eq!(played.metered, Metered::AtLeast(started(5)));
}

#[test]
fn an_error_event_is_seen_and_what_came_before_it_counts() {
    let error = r#"event: error|data: {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}"#;
    let played = play_untouched(&anthropic(), &transcript(&[START, HELLO, error]), StreamEnd::Clean);
    assert!(played.error_seen);
    assert_eq!(played.metered, Metered::AtLeast(started(5)));
}

#[test]
fn a_message_without_its_start_is_not_exact() {
    let played = play_untouched(&anthropic(), &transcript(&[HELLO, END, STOP]), StreamEnd::Clean);
    assert_eq!(played.metered, Metered::AtLeast(input_and_output(0, 15)));
}

#[test]
fn a_report_that_cannot_be_read_is_not_exact() {
    let end = END.replace("15", "-15");
    let played = play_untouched(&anthropic(), &transcript(&[START, HELLO, &end, STOP]), StreamEnd::Clean);
    assert_eq!(played.metered, Metered::AtLeast(started(5)));
}

#[test]
fn an_end_marker_of_the_other_dialect_is_one_here_too() {
    let played =
        play_untouched(&anthropic(), &transcript(&[START, END, STOP, "data: [DONE]"]), StreamEnd::Clean);
    assert_eq!(played.metered, Metered::Exact(started(15)));
}

#[test]
fn events_of_a_later_version_are_no_fault() {
    let unknown =
        r#"event: content_block_preview|data: {"type":"content_block_preview","delta":7.5,"usage":null}"#;
    let odd = r#"event: content_block_delta|data: {"type":"content_block_delta","index":0,"delta":{"type":"citations_delta","citation":{"cited_text":"The"}}}"#;
    let played = play_untouched(&anthropic(), &transcript(&[START, odd, END, STOP]), StreamEnd::Clean);
    assert_eq!(played.metered, Metered::Exact(started(15)));
    let played = play_untouched(&anthropic(), &transcript(&[START, unknown, END, STOP]), StreamEnd::Clean);
    assert_eq!(played.metered, Metered::AtLeast(started(15)), "an event that cannot be read leaves a doubt");
}
