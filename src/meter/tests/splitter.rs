//! The splitter against the grammar, written again in the plainest way: the whole stream at hand, a line at a time.

use std::ops::Range;

use proptest::prelude::*;

use super::super::sse::{MAX_EVENT, Splitter};

/// An event as the grammar has it, and the bytes that it takes, the LF of a last CRLF included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plain {
    pub name: Vec<u8>,
    pub data: Vec<u8>,
    pub span: Range<usize>,
}

/// The events of a whole stream.
pub(super) fn plain_events(stream: &[u8]) -> Vec<Plain> {
    let mut events = Vec::new();
    let mut name = Vec::new();
    let mut data: Vec<Vec<u8>> = Vec::new();
    let mut start = None;
    let mut at = 0;
    while at < stream.len() {
        let line_start = at;
        while at < stream.len() && stream[at] != b'\r' && stream[at] != b'\n' {
            at += 1;
        }
        let mut line = &stream[line_start..at];
        if at == stream.len() {
            break;
        }
        at += if stream[at..].starts_with(b"\r\n") { 2 } else { 1 };
        if let (0, Some(unmarked)) = (line_start, line.strip_prefix(b"\xef\xbb\xbf")) {
            start = Some(0);
            line = unmarked;
            if line.is_empty() {
                continue;
            }
        }
        if line.is_empty() {
            if let Some(start) = start.take() {
                let data = std::mem::take(&mut data).join(&b'\n');
                events.push(Plain { name: std::mem::take(&mut name), data, span: start..at });
            }
            continue;
        }
        let colon = line.iter().position(|&byte| byte == b':');
        if colon != Some(0) {
            start.get_or_insert(line_start);
        }
        let (field, value) = match colon {
            None => (line, &line[..0]),
            Some(colon) => (&line[..colon], &line[colon + 1..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"event" => name = value.to_vec(),
            b"data" => data.push(value.to_vec()),
            _ => {}
        }
    }
    events
}

fn split_events<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut splitter = Splitter::default();
    let mut events = Vec::new();
    for chunk in chunks {
        splitter.feed(chunk, |frame| {
            let event = frame.event.expect("none of these events is too large");
            events.push((event.name.to_vec(), event.data.into_owned()));
        });
    }
    events
}

fn data_of(stream: &str) -> Vec<String> {
    let whole = split_events([stream.as_bytes()]);
    assert_eq!(split_events(stream.as_bytes().chunks(1)), whole, "byte by byte");
    whole.into_iter().map(|(_, data)| String::from_utf8(data).unwrap()).collect()
}

#[test]
fn the_examples_of_the_standard() {
    assert_eq!(data_of("data: YHOO\ndata: +2\ndata: 10\n\n"), ["YHOO\n+2\n10"]);
    assert_eq!(
        data_of(
            ": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n"
        ),
        ["first event", "second event", " third event"]
    );
    assert_eq!(data_of("data\n\ndata\ndata\n\ndata:"), ["", "\n"]);
    assert_eq!(data_of("data:test\n\ndata: test\n\n"), ["test", "test"]);
}

#[test]
fn line_ends_may_be_mixed() {
    assert_eq!(data_of("data: a\r\n\ndata: b\r\rdata: c\n\r\ndata: d\r\n\r\n"), ["a", "b", "c", "d"]);
}

#[test]
fn a_byte_order_mark_opens_a_stream_and_nothing_else() {
    assert_eq!(data_of("\u{feff}data: a\n\n\u{feff}data: b\n\n"), ["a", ""]);
}

#[test]
fn a_character_cut_in_two_is_whole_again() {
    assert_eq!(data_of("data: naïve 👩‍👩‍👧 文字\n\n"), ["naïve 👩‍👩‍👧 文字"]);
}

#[test]
fn an_event_is_complete_with_the_cr_of_its_blank_line() {
    let mut splitter = Splitter::default();
    let mut seen = 0;
    splitter.feed(b"data: a\r\n\r", |_| seen += 1);
    assert_eq!(seen, 1);
    splitter.feed(b"\n", |_| seen += 1);
    assert_eq!(seen, 1, "the LF of that CRLF is not another blank line");
    assert!(splitter.between_events());
}

#[test]
fn only_an_event_cut_in_two_is_copied() {
    let chunk = b"data: whole\n\ndata: cut";
    let mut splitter = Splitter::default();
    let under_way = splitter.feed(chunk, |frame| assert!(std::ptr::eq(frame.raw, &chunk[..13])));
    assert_eq!(under_way, 13);
    assert_eq!(splitter.unfinished(), b"data: cut");
}

#[test]
fn the_bound_on_an_event_does_not_depend_on_the_cuts() {
    for (excess, readable) in [(0, true), (1, false)] {
        let event = format!("data:{}\n\n", "x".repeat(MAX_EVENT - 7 + excess));
        assert_eq!(event.len(), MAX_EVENT + excess);
        for size in [event.len(), event.len() - 1, MAX_EVENT / 2, 4096] {
            let mut splitter = Splitter::default();
            let mut seen = Vec::new();
            for chunk in event.as_bytes().chunks(size) {
                splitter.feed(chunk, |frame| seen.push(frame.event.is_some()));
                assert!(splitter.unfinished().len() <= MAX_EVENT);
            }
            assert_eq!(seen, [readable], "in chunks of {size}");
        }
    }
}

proptest! {
    #[test]
    fn the_splitter_agrees_with_the_grammar(
        pieces in prop::collection::vec(
            prop::sample::select(vec![
                "data", "data: ", "data:", "event: ", "id", ":", ": ", " ", "\r", "\n", "\r\n", "\n\n", "x", "é", "{}", "\u{feff}",
            ]),
            0..40,
        ),
        cuts in prop::collection::vec(0..1000_usize, 0..6),
    ) {
        let stream = pieces.concat();
        let plain: Vec<_> = plain_events(stream.as_bytes()).into_iter().map(|event| (event.name, event.data)).collect();
        prop_assert_eq!(split_events(super::laws::cut(stream.as_bytes(), &cuts)), plain);
    }
}
