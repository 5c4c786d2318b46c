//! Streams in the OpenAI dialect, shaped as in the public reference:
//! <https://platform.openai.com/docs/api-reference/chat/streaming>.

use std::sync::Arc;

use bytes::Bytes;

use super::super::stream::MAX_HELD;
use super::{Played, input_and_output, options, play, play_untouched, transcript};
use crate::meter::{Metered, StreamEnd, StreamMeter, StreamMeterOptions, Usage};
use crate::route::Dialect;

const HEAD: &str = r#""id":"chatcmpl-123","object":"chat.completion.chunk","created":1694268190,"model":"gpt-4o-mini","system_fingerprint":"fp_44709d6fcb""#;

/// A chunk with one choice, with the null usage that `include_usage` puts in.
fn delta(index: u32, delta: &str) -> String {
    format!(
        r#"data: {{{HEAD},"choices":[{{"index":{index},"delta":{delta},"logprobs":null,"finish_reason":null}}],"usage":null}}"#
    )
}

fn text(index: u32, text: &str) -> String {
    delta(index, &format!(r#"{{"content":"{text}"}}"#))
}

fn finish(index: u32, reason: &str) -> String {
    format!(
        r#"data: {{{HEAD},"choices":[{{"index":{index},"delta":{{}},"logprobs":null,"finish_reason":"{reason}"}}],"usage":null}}"#
    )
}

fn usage(prompt: u64, completion: u64) -> String {
    let total = prompt + completion;
    format!(
        r#"data: {{{HEAD},"choices":[],"usage":{{"prompt_tokens":{prompt},"completion_tokens":{completion},"total_tokens":{total},"prompt_tokens_details":{{"cached_tokens":0,"audio_tokens":0}},"completion_tokens_details":{{"reasoning_tokens":0,"audio_tokens":0,"accepted_prediction_tokens":0,"rejected_prediction_tokens":0}}}}}}"#
    )
}

const DONE: &str = "data: [DONE]";

fn stream(lines: &[String]) -> String {
    transcript(&lines.iter().map(String::as_str).collect::<Vec<_>>())
}

fn plain() -> Vec<String> {
    vec![
        delta(0, r#"{"role":"assistant","content":"","refusal":null}"#),
        text(0, "Hello"),
        text(0, " 👋 world"),
        finish(0, "stop"),
        usage(19, 10),
        DONE.to_owned(),
    ]
}

fn openai() -> StreamMeterOptions {
    options(Dialect::OpenAi)
}

fn dropping() -> StreamMeterOptions {
    StreamMeterOptions { drop_usage_chunk: true, ..openai() }
}

#[test]
fn a_complete_answer_is_exact_and_passes_untouched() {
    let played = play_untouched(&openai(), &stream(&plain()), StreamEnd::Clean);
    assert_eq!(played.metered, Metered::Exact(input_and_output(19, 10)));
    assert_eq!(played.finished_choices, 1);
    assert!(!played.error_seen);
}

#[test]
fn the_usage_chunk_that_was_not_asked_for_is_dropped_and_nothing_else() {
    let mut without = plain();
    without.remove(4);
    let played = play(&dropping(), &stream(&plain()), StreamEnd::Clean);
    assert_eq!(played.relayed, stream(&without));
    assert_eq!(played.metered, Metered::Exact(input_and_output(19, 10)));
}

#[test]
fn the_usage_chunk_is_dropped_whatever_ends_its_lines() {
    let mut without = plain();
    without.remove(4);
    for line_end in ["\r\n", "\r", "\n"] {
        let played = play(&dropping(), &stream(&plain()).replace('\n', line_end), StreamEnd::Clean);
        assert_eq!(played.relayed, stream(&without).replace('\n', line_end));
        assert_eq!(played.metered, Metered::Exact(input_and_output(19, 10)));
    }
}

#[test]
fn a_comment_before_the_dropped_chunk_is_not_part_of_it() {
    let stream = format!("{}\n\n: ping\n\n: ping\n{}\n\n{DONE}\n\n", finish(0, "stop"), usage(19, 10));
    let played = play(&dropping(), &stream, StreamEnd::Clean);
    assert_eq!(played.relayed, format!("{}\n\n: ping\n\n: ping\n{DONE}\n\n", finish(0, "stop")));
}

#[test]
fn a_keep_alive_comment_is_never_held() {
    let mut meter = StreamMeter::new(dropping());
    for piece in [": ping\n", ": pi", "ng\n", ":\r\n", "\n"] {
        assert_eq!(meter.feed(Bytes::from_static(piece.as_bytes())), piece.as_bytes());
    }
}

#[test]
fn a_dropped_chunk_without_a_blank_line_after_it_is_still_dropped() {
    let stream = format!("{}\n\n{}\n", finish(0, "stop"), usage(19, 10));
    let played = play(&dropping(), &stream, StreamEnd::Clean);
    assert_eq!(played.relayed, format!("{}\n\n", finish(0, "stop")));
    assert_eq!(played.metered, Metered::Exact(input_and_output(19, 10)));
}

#[test]
fn an_end_marker_without_a_blank_line_is_read_and_relayed() {
    let mut lines = plain();
    lines.pop();
    let stream = format!("{}{DONE}", stream(&lines));
    play_untouched(&openai(), &stream, StreamEnd::Clean);
    let played = play(&dropping(), &stream, StreamEnd::Clean);
    assert!(played.relayed.ends_with(&format!("\n\n{DONE}")));
}

#[test]
fn usage_beside_a_choice_is_the_providers_own_and_never_dropped() {
    let last = format!(
        r#"data: {{{HEAD},"choices":[{{"index":0,"delta":{{}},"finish_reason":"stop"}}],"usage":{{"prompt_tokens":7,"completion_tokens":2,"total_tokens":9}}}}"#
    );
    let stream = stream(&[text(0, "Hi"), last, DONE.to_owned()]);
    let played = play_untouched(&dropping(), &stream, StreamEnd::Clean);
    assert_eq!(played.metered, Metered::Exact(input_and_output(7, 2)));
}

#[test]
fn a_chunk_without_choices_and_without_usage_is_relayed() {
    let filter = format!(
        r#"data: {{{HEAD},"choices":[],"usage":null,"prompt_filter_results":[{{"prompt_index":0}}]}}"#
    );
    let mut lines = plain();
    lines.remove(4);
    lines.insert(0, filter);
    play_untouched(&dropping(), &stream(&lines), StreamEnd::Clean);
}

#[test]
fn running_totals_replace_one_another() {
    let with_usage = |content: &str, finish: &str, completion: u64| {
        format!(
            r#"data: {{{HEAD},"choices":[{{"index":0,"delta":{{"content":"{content}"}},"finish_reason":{finish}}}],"usage":{{"prompt_tokens":5,"completion_tokens":{completion},"total_tokens":{}}}}}"#,
            5 + completion
        )
    };
    let stream = stream(&[
        with_usage("a", "null", 1),
        with_usage("b", "null", 2),
        with_usage("c", r#""stop""#, 3),
        DONE.to_owned(),
    ]);
    let played = play_untouched(&openai(), &stream, StreamEnd::Clean);
    assert_eq!(played.metered, Metered::Exact(input_and_output(5, 3)));
}

#[test]
fn zeros_in_the_first_chunks_are_no_report() {
    let zeros = usage(0, 0);
    let mut lines = plain();
    lines.insert(1, zeros);
    let played = play_untouched(&openai(), &stream(&lines), StreamEnd::Clean);
    assert_eq!(played.metered, Metered::Exact(input_and_output(19, 10)));
}

#[test]
fn cached_and_reasoning_tokens_are_parts_of_what_is_reported() {
    let report = format!(
        r#"data: {{{HEAD},"choices":[],"usage":{{"prompt_tokens":2006,"completion_tokens":300,"total_tokens":2306,"prompt_tokens_details":{{"cached_tokens":1920,"cache_write_tokens":50}},"completion_tokens_details":{{"reasoning_tokens":192}}}}}}"#
    );
    let played =
        play_untouched(&openai(), &stream(&[finish(0, "stop"), report, DONE.to_owned()]), StreamEnd::Clean);
    assert_eq!(
        played.metered,
        Metered::Exact(Usage {
            uncached_input: 36,
            cache_read: 1920,
            cache_write: 50,
            output: 300,
            reasoning: 192
        })
    );
}

#[test]
fn three_choices_are_exact_when_all_three_have_finished() {
    let three = StreamMeterOptions { expected_choices: 3, ..openai() };
    let mut lines = vec![text(0, "a"), text(2, "b"), text(1, "c"), finish(2, "stop"), finish(0, "length")];
    lines.extend([finish(1, "stop"), usage(9, 30), DONE.to_owned()]);
    let played = play_untouched(&three, &stream(&lines), StreamEnd::Clean);
    assert_eq!(played.metered, Metered::Exact(input_and_output(9, 30)));
    assert_eq!(played.finished_choices, 3);

    lines.remove(4);
    lines.insert(4, finish(2, "stop"));
    let played = play_untouched(&three, &stream(&lines), StreamEnd::Clean);
    assert_eq!(played.metered, Metered::AtLeast(input_and_output(9, 30)), "choice 0 never finished");
    assert_eq!(played.finished_choices, 2);
}

#[test]
fn a_choice_beyond_what_was_asked_for_does_not_stand_in_for_one_that_was() {
    let two = StreamMeterOptions { expected_choices: 2, ..openai() };
    let lines =
        [finish(0, "stop"), finish(7, "stop"), finish(4_000_000, "stop"), usage(1, 1), DONE.to_owned()];
    let played = play_untouched(&two, &stream(&lines), StreamEnd::Clean);
    assert_eq!(played.finished_choices, 1);
    assert_eq!(played.metered, Metered::AtLeast(input_and_output(1, 1)));
}

#[test]
fn all_128_choices_can_be_followed_and_not_one_more() {
    let mut lines: Vec<String> = (0..129).map(|index| finish(index, "stop")).collect();
    lines.extend([usage(1, 1), DONE.to_owned()]);
    let stream = stream(&lines);
    let metered = |expected_choices| {
        let options = StreamMeterOptions { expected_choices, ..openai() };
        super::play_chunks(&options, [stream.as_bytes()], StreamEnd::Clean).metered
    };
    assert_eq!(metered(128), Metered::Exact(input_and_output(1, 1)));
    assert_eq!(metered(129), Metered::AtLeast(input_and_output(1, 1)));
}

#[test]
fn a_missing_index_counts_as_the_first_choice() {
    let lines = [
        r#"data: {"choices":[{"delta":{"content":"Hi"}}]}"#.to_owned(),
        r#"data: {"choices":[{"delta":{},"finish_reason":"stop"}]}"#.to_owned(),
        usage(3, 1),
        DONE.to_owned(),
    ];
    let played = play_untouched(&openai(), &stream(&lines), StreamEnd::Clean);
    assert_eq!(played.metered, Metered::Exact(input_and_output(3, 1)));
}

#[test]
fn an_empty_finish_reason_is_none() {
    let lines = [
        r#"data: {"choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":""}]}"#.to_owned(),
        usage(3, 1),
        DONE.to_owned(),
    ];
    let played = play_untouched(&openai(), &stream(&lines), StreamEnd::Clean);
    assert_eq!(played.metered, Metered::AtLeast(input_and_output(3, 2)));
}

#[test]
fn a_stream_that_was_cut_is_at_least_what_was_counted() {
    let lines = [
        delta(0, r#"{"role":"assistant","content":"","reasoning_content":"abc"}"#),
        delta(0, r#"{"reasoning":"de","reasoning_content":null}"#),
        text(0, "fgh"),
        delta(0, r#"{"refusal":"ij"}"#),
        delta(
            0,
            r#"{"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"f","arguments":""}}]}"#,
        ),
        delta(0, r#"{"tool_calls":[{"index":0,"function":{"arguments":"{\"k\":"}}]}"#),
        delta(
            0,
            r#"{"tool_calls":[{"index":0,"function":{"arguments":"1}"}},{"function":{"arguments":"{}"}}]}"#,
        ),
    ];
    let played = play_untouched(&openai(), &stream(&lines), StreamEnd::Cut);
    assert_eq!(played.metered, Metered::AtLeast(input_and_output(0, 3 + 2 + 3 + 2 + 5 + 2 + 2)));
}

#[test]
fn a_stream_that_was_cut_before_anything_came_is_unknown() {
    assert_eq!(play_untouched(&openai(), "", StreamEnd::Cut).metered, Metered::Unknown);
    let head = stream(&[delta(0, r#"{"role":"assistant","content":""}"#)]);
    assert_eq!(play_untouched(&openai(), &head, StreamEnd::Cut).metered, Metered::Unknown);
}

#[test]
fn a_cut_after_the_end_marker_takes_nothing_away() {
    let played = play_untouched(&openai(), &stream(&plain()), StreamEnd::Cut);
    assert_eq!(played.metered, Metered::Exact(input_and_output(19, 10)));
}

#[test]
fn a_cut_between_usage_and_end_marker_is_not_exact() {
    let mut lines = plain();
    lines.pop();
    let played = play_untouched(&openai(), &stream(&lines), StreamEnd::Cut);
    assert_eq!(played.metered, Metered::AtLeast(input_and_output(19, 16)), "more was counted than reported");
}

#[test]
fn a_cut_within_a_held_event_relays_only_whole_events() {
    let cut = format!("{}\n\n{}", text(0, "Hello"), &text(0, "lost")[..100]);
    let played = play(&dropping(), &cut, StreamEnd::Cut);
    assert_eq!(played.relayed, format!("{}\n\n", text(0, "Hello")));
    assert_eq!(played.metered, Metered::AtLeast(input_and_output(0, 5)));
}

#[test]
fn a_clean_end_without_usage_leaves_the_estimate() {
    let mut lines = plain();
    lines.remove(4);
    let played = play_untouched(&openai(), &stream(&lines), StreamEnd::Clean);
    assert_eq!(played.metered, Metered::Unknown);
}

#[test]
fn an_error_within_the_stream_is_seen() {
    let error = r#"data: {"error":{"message":"The server had an error","type":"server_error","param":null,"code":null}}"#;
    let played = play_untouched(&openai(), &stream(&[text(0, "Hel"), error.to_owned()]), StreamEnd::Clean);
    assert!(played.error_seen);
    assert_eq!(played.metered, Metered::Unknown);

    let mut lines = plain();
    lines.insert(3, error.to_owned());
    let played = play_untouched(&openai(), &stream(&lines), StreamEnd::Clean);
    assert_eq!(played.metered, Metered::AtLeast(input_and_output(19, 16)));

    let named = "event: error\ndata: overloaded\n\n";
    assert!(play_untouched(&openai(), named, StreamEnd::Clean).error_seen);
}

#[test]
fn a_null_error_is_none() {
    let lines =
        [r#"data: {"error":null,"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#.to_owned()];
    assert!(!play_untouched(&openai(), &stream(&lines), StreamEnd::Clean).error_seen);
}

#[test]
fn hostile_reports_leave_the_estimate() {
    for report in [
        r#"{"prompt_tokens":-1,"completion_tokens":10}"#,
        r#"{"prompt_tokens":19.5,"completion_tokens":10}"#,
        r#"{"prompt_tokens":"19","completion_tokens":10}"#,
        r#"{"prompt_tokens":18446744073709551616,"completion_tokens":10}"#,
        r#"{"prompt_tokens":18446744073709551615,"completion_tokens":10}"#,
        r#"{"prompt_tokens":19}"#,
        r#"{"completion_tokens":10}"#,
        r#"{"prompt_tokens":0,"completion_tokens":0}"#,
        r#"{"prompt_tokens":19,"prompt_tokens":20,"completion_tokens":10}"#,
        r#"{"prompt_tokens":19,"completion_tokens":10,"prompt_tokens_details":{"cached_tokens":20}}"#,
        r#"{"prompt_tokens":19,"completion_tokens":10,"completion_tokens_details":{"reasoning_tokens":11}}"#,
        r#"{}"#,
        r#"[19,10]"#,
        r#"29"#,
    ] {
        let chunk = format!(r#"data: {{"choices":[],"usage":{report}}}"#);
        let stream = stream(&[finish(0, "stop"), chunk, DONE.to_owned()]);
        let played = play(&dropping(), &stream, StreamEnd::Clean);
        assert_eq!(played.metered, Metered::Unknown, "{report}");
        assert!(!played.relayed.contains(r#""choices":[]"#), "{report}: dropped all the same");
    }
}

#[test]
fn a_report_that_cannot_be_read_makes_an_earlier_one_a_lower_bound() {
    let mut lines = plain();
    lines.insert(5, r#"data: {"choices":[],"usage":{"prompt_tokens":"many"}}"#.to_owned());
    let played = play_untouched(&openai(), &stream(&lines), StreamEnd::Clean);
    assert_eq!(played.metered, Metered::AtLeast(input_and_output(19, 16)));
}

#[test]
fn an_event_that_is_not_json_passes_and_makes_the_usage_inexact() {
    let mut lines = plain();
    lines.insert(2, "data: {\"choices\":[{".to_owned());
    let played = play_untouched(&openai(), &stream(&lines), StreamEnd::Clean);
    assert_eq!(played.metered, Metered::AtLeast(input_and_output(19, 16)));
}

#[test]
fn empty_data_and_odd_deltas_are_no_fault() {
    let mut lines = plain();
    lines.insert(2, "data:".to_owned());
    lines.insert(3, "id: 7|retry: 3".to_owned());
    lines.insert(4, delta(0, r#"{"content":[{"type":"text","text":"x"}],"tool_calls":null}"#));
    lines.insert(5, r#"data: {"choices":[{"index":0,"delta":null}]}"#.to_owned());
    let played = play_untouched(&openai(), &stream(&lines), StreamEnd::Clean);
    assert_eq!(played.metered, Metered::Exact(input_and_output(19, 10)));
}

#[test]
fn data_without_a_space_and_data_on_several_lines_are_read() {
    let spread =
        "data:{\"choices\":[],\ndata:\"usage\":{\"prompt_tokens\":19,\ndata: \"completion_tokens\":10}}\n\n";
    let stream = format!("{}\n\n{spread}data:[DONE]\n\n", finish(0, "stop").replace("data: ", "data:"));
    let played = play(&dropping(), &stream, StreamEnd::Cut);
    assert_eq!(played.metered, Metered::Exact(input_and_output(19, 10)));
    assert!(!played.relayed.contains("prompt_tokens"));
}

#[test]
fn an_event_too_large_to_read_passes_and_makes_the_usage_inexact() {
    let huge = text(0, &"x".repeat(300 * 1024));
    let mut lines = plain();
    lines.insert(2, huge);
    let stream = stream(&lines);
    for chunk in [stream.len(), 200 * 1024, 16 * 1024, 1000] {
        for options in [openai(), dropping()] {
            let Played { relayed, metered, .. } =
                super::play_chunks(&options, stream.as_bytes().chunks(chunk), StreamEnd::Clean);
            assert_eq!(metered, Metered::AtLeast(input_and_output(19, 16)));
            assert_eq!(
                relayed.len(),
                stream.len() - if options.drop_usage_chunk { usage(19, 10).len() + 2 } else { 0 }
            );
        }
    }
}

#[test]
fn a_large_event_is_held_no_longer_than_its_bound() {
    let large = text(0, &"x".repeat(2 * MAX_HELD));
    let mut meter = StreamMeter::new(dropping());
    let mut fed = 0;
    let mut relayed = 0;
    for chunk in large.as_bytes().chunks(1000) {
        fed += chunk.len();
        relayed += meter.feed(Bytes::copy_from_slice(chunk)).len();
        assert!(fed - relayed <= MAX_HELD, "{} bytes held", fed - relayed);
        assert_eq!(meter.between_events(), fed - relayed > 0);
    }
    assert_eq!(fed, relayed);
}

#[test]
fn the_usual_chunk_is_relayed_without_a_copy() {
    for options in [openai(), dropping()] {
        let mut meter = StreamMeter::new(options);
        for line in plain() {
            let chunk = Bytes::from(format!("{line}\n\n"));
            let relayed = meter.feed(chunk.clone());
            assert!(relayed.is_empty() || relayed.as_ptr() == chunk.as_ptr());
        }
    }
}

#[test]
fn text_is_counted_in_small_pieces_and_only_when_it_must_be() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    let longest = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&longest);
    let options = StreamMeterOptions {
        count: Arc::new(move |text| {
            seen.fetch_max(text.len(), Ordering::Relaxed);
            text.len() as u64
        }),
        ..openai()
    };
    play_untouched(&options, &stream(&plain()), StreamEnd::Clean);
    assert_eq!(longest.load(Ordering::Relaxed), 0, "the provider's own report made counting needless");

    let long = stream(&[text(0, &"añ👋".repeat(1000))]);
    let played = super::play_chunks(&options, [long.as_bytes()], StreamEnd::Cut);
    assert_eq!(played.metered, Metered::AtLeast(input_and_output(0, 7000)));
    assert!((1..=512).contains(&longest.load(Ordering::Relaxed)));
}

#[test]
fn our_own_events_are_welcome_only_between_the_providers() {
    let mut meter = StreamMeter::new(openai());
    assert!(meter.between_events());
    for (chunk, between) in
        [("data: {}", false), ("\n", false), ("\n", true), (": pi", false), ("ng\n", true), ("data", false)]
    {
        meter.feed(Bytes::from_static(chunk.as_bytes()));
        assert_eq!(meter.between_events(), between, "after {chunk:?}");
    }
}

#[test]
fn what_people_wrote_stays_out_of_the_log() {
    let mut meter = StreamMeter::new(openai());
    meter.feed(Bytes::from(format!("{}\n\n{}", text(0, "secret"), text(0, "secret"))));
    let logged = format!("{meter:?}");
    let as_bytes = format!("{:?}", b"secret").replace(['[', ']'], "");
    assert!(!logged.contains("secret") && !logged.contains(&as_bytes), "{logged}");
}
