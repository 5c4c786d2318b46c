//! The laws on the module's first page, for streams that nobody would write.

use bytes::Bytes;
use proptest::prelude::*;

use super::splitter::plain_events;
use super::{options, play_chunks};
use crate::meter::{Metered, StreamEnd, StreamMeter, StreamMeterOptions, usage_of_body};
use crate::route::Dialect;

/// `stream` in pieces, cut at each of `cuts` modulo its length.
pub(super) fn cut<'a>(stream: &'a [u8], cuts: &[usize]) -> Vec<&'a [u8]> {
    let mut places: Vec<usize> = cuts.iter().map(|place| place % (stream.len() + 1)).collect();
    places.extend([0, stream.len()]);
    places.sort_unstable();
    places.windows(2).map(|pair| &stream[pair[0]..pair[1]]).collect()
}

const USAGE_CHUNK: &str = r#"data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":5}}"#;

/// Streams made of what streams are made of, in any order.
fn odd_stream() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        3 => prop::sample::select(vec!["\n", "\r", "\r\n", "\n\n", "\r\n\r\n", "\r\r"]),
        3 => prop::sample::select(vec![
            USAGE_CHUNK,
            "data: [DONE]",
            r#"data: {"choices":[{"index":0,"delta":{"content":"añb"},"finish_reason":null}],"usage":null}"#,
            r#"data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#,
            r#"data: {"type":"message_start","message":{"usage":{"input_tokens":2,"output_tokens":1}}}"#,
            r#"data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":9}}"#,
            r#"data: {"type":"message_stop"}"#,
        ]),
        1 => prop::sample::select(vec![": ping", ":", "data:", "data: {", "event: error", "event: x", "\u{feff}", "id: 1"]),
    ];
    prop::collection::vec(piece, 0..30).prop_map(|pieces| pieces.concat().into_bytes())
}

fn any_stream() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![3 => odd_stream(), 1 => prop::collection::vec(any::<u8>(), 0..200)]
}

fn any_end() -> impl Strategy<Value = StreamEnd> {
    prop_oneof![Just(StreamEnd::Clean), Just(StreamEnd::Cut)]
}

fn any_options() -> impl Strategy<Value = StreamMeterOptions> {
    (any::<bool>(), any::<bool>(), 0..3_u32).prop_map(|(anthropic, drop_usage_chunk, expected_choices)| {
        let dialect = if anthropic { Dialect::Anthropic } else { Dialect::OpenAi };
        StreamMeterOptions { drop_usage_chunk, expected_choices, ..options(dialect) }
    })
}

/// Lossless for comparison: one character a byte.
fn as_text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The largest cost of a stream between two events: twice what one in use takes, for the remains of a cut event.
const MEMORY: usize = 2048;

#[test]
fn bounded() {
    let mut meter = StreamMeter::new(options(Dialect::OpenAi));
    let text = "añ👋 ".repeat(20);
    let event = format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n");
    for _ in 0..1000 {
        meter.feed(Bytes::from(event.clone()));
        assert!(meter.memory() < 1024, "{} bytes for a stream of whole events", meter.memory());
    }
    let large = event.replace(&text, &text.repeat(300));
    for chunk in [event.as_bytes(), large.as_bytes()].concat().chunks(100) {
        meter.feed(Bytes::copy_from_slice(chunk));
        assert!(meter.memory() < MEMORY + 2 * large.len());
    }
    assert!(meter.memory() < MEMORY, "{} bytes after a large event", meter.memory());
}

proptest! {
    #[test]
    fn split_blind(options in any_options(), stream in any_stream(), end in any_end(), cuts in prop::collection::vec(any::<usize>(), 0..8)) {
        let whole = play_chunks(&options, [stream.as_slice()], end);
        prop_assert_eq!(&play_chunks(&options, cut(&stream, &cuts), end), &whole);
        prop_assert_eq!(&play_chunks(&options, stream.chunks(1), end), &whole);
    }

    #[test]
    fn relay_untouched(options in any_options(), stream in any_stream(), cuts in prop::collection::vec(any::<usize>(), 0..8)) {
        let options = StreamMeterOptions { drop_usage_chunk: false, ..options };
        let played = play_chunks(&options, cut(&stream, &cuts), StreamEnd::Clean);
        prop_assert_eq!(played.relayed, as_text(&stream));
    }

    #[test]
    fn relay_untouched_but_for_the_usage_chunk(stream in odd_stream(), cuts in prop::collection::vec(any::<usize>(), 0..8)) {
        // Ended by blank lines, so that every event is complete and the plain grammar sees it.
        let stream = [stream.as_slice(), b"\n\n"].concat();
        let usage_chunk = USAGE_CHUNK.as_bytes().strip_prefix(b"data: ").unwrap();
        let mut expected = Vec::new();
        let mut next = 0;
        for event in plain_events(&stream).iter().filter(|event| event.data.trim_ascii() == usage_chunk) {
            expected.extend_from_slice(&stream[next..event.span.start]);
            next = event.span.end;
        }
        expected.extend_from_slice(&stream[next..]);

        let options = StreamMeterOptions { drop_usage_chunk: true, ..options(Dialect::OpenAi) };
        let played = play_chunks(&options, cut(&stream, &cuts), StreamEnd::Clean);
        prop_assert_eq!(played.relayed, as_text(&expected));
    }

    #[test]
    fn exact_or_less(options in any_options(), stream in any_stream(), end in any_end()) {
        let played = play_chunks(&options, [stream.as_slice()], end);
        if let Metered::Exact(usage) = played.metered {
            prop_assert!(usage.total() > 0);
            prop_assert!(!played.error_seen);
            prop_assert_eq!(played.finished_choices, options.expected_choices.max(1));
            let text = as_text(&stream);
            prop_assert!(end == StreamEnd::Clean || text.contains("[DONE]") || text.contains("message_stop"));
        }
    }

    #[test]
    fn no_body_is_too_odd(body in prop::collection::vec(any::<u8>(), 0..300)) {
        for dialect in [Dialect::OpenAi, Dialect::Anthropic] {
            prop_assert_eq!(usage_of_body(dialect, &body), Metered::Unknown);
        }
    }
}
