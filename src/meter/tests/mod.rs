//! Stories of the meter. Every transcript is played whole, cut in two at each byte, and byte by byte: the network's
//! cuts must change nothing.

mod anthropic_streams;
mod laws;
mod openai_streams;
mod splitter;
mod whole_answers;

use std::sync::Arc;

use bytes::Bytes;

use super::{Metered, Shape, StreamEnd, StreamMeter, StreamMeterOptions, Usage};

/// What came of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Played {
    relayed: String,
    metered: Metered,
    finished_choices: u32,
    error_seen: bool,
}

/// A token per byte, so that a test can read off what was counted.
fn options(shape: impl Into<Shape>) -> StreamMeterOptions {
    StreamMeterOptions {
        shape: shape.into(),
        expected_choices: 1,
        drop_usage_chunk: false,
        count: Arc::new(|text| text.len() as u64),
        phase: 0,
    }
}

/// The transcript of a stream, an event a line; a line's `|` stands for a line end within its event.
fn transcript(lines: &[&str]) -> String {
    lines.iter().map(|line| format!("{}\n\n", line.replace('|', "\n"))).collect()
}

fn play_chunks<'a>(
    options: &StreamMeterOptions,
    chunks: impl IntoIterator<Item = &'a [u8]>,
    end: StreamEnd,
) -> Played {
    let mut meter = StreamMeter::new(options.clone());
    let mut relayed = Vec::new();
    for chunk in chunks {
        relayed.extend_from_slice(&meter.feed(Bytes::copy_from_slice(chunk)));
        if !options.drop_usage_chunk {
            assert!(relayed.ends_with(chunk), "a chunk that is not relayed at once");
        }
    }
    if end == StreamEnd::Clean {
        relayed.extend_from_slice(&meter.take_held());
    }
    Played {
        relayed: String::from_utf8_lossy(&relayed).into_owned(),
        finished_choices: meter.finished_choices(),
        error_seen: meter.error_seen(),
        metered: meter.finish(end),
    }
}

/// Plays `stream` under every single cut, and returns what came of it each time.
fn play(options: &StreamMeterOptions, stream: &str, end: StreamEnd) -> Played {
    let bytes = stream.as_bytes();
    let whole = play_chunks(options, [bytes], end);
    for at in 0..=bytes.len() {
        let (head, tail) = bytes.split_at(at);
        assert_eq!(play_chunks(options, [head, tail], end), whole, "cut after byte {at}");
    }
    assert_eq!(play_chunks(options, bytes.chunks(1), end), whole, "byte by byte");
    whole
}

/// Like [`play`], for a stream that must reach the caller as it is.
fn play_untouched(options: &StreamMeterOptions, stream: &str, end: StreamEnd) -> Played {
    let played = play(options, stream, end);
    assert_eq!(played.relayed, stream);
    played
}

fn input_and_output(uncached_input: u64, output: u64) -> Usage {
    Usage { uncached_input, output, ..Usage::default() }
}
