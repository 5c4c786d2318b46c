//! The meter of one streamed answer: relays each chunk as it comes, and reads a copy of what passes.
//!
//! A report is exact when the answer is complete (its end marker came, or the connection ended cleanly), the provider
//! reported both input and output, every choice that was asked for finished, no error came, and no event was too large
//! or too odd to read. Anything less is at least the larger of what was reported and what was counted.

use std::fmt;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use serde_json::value::RawValue;

use super::array::ArraySplitter;
use super::frames::{error_event, gemini_error};
use super::lenient::Object;
use super::progress::Progress;
use super::shape::Shape;
use super::sse::{self, Splitter};
use super::tally::Tally;
use super::usage::{Metered, Usage};
use super::{anthropic, gemini, openai, responses};
use crate::route::Dialect;

/// Counts the tokens of a text; called with at most 512 bytes at a time.
pub type CountTokens = Arc<dyn Fn(&str) -> u64 + Send + Sync>;

/// The largest event, in bytes, that is held back until it is known not to be the usage chunk. That chunk is half a
/// kilobyte; an event beyond this is something else, and is let through.
pub const MAX_HELD: usize = 64 * 1024;

/// What a meter has to know of the request.
#[derive(Clone)]
pub struct StreamMeterOptions {
    /// The shape of the answer.
    pub shape: Shape,
    /// The request's `n`. 0 is read as 1; more than 128 cannot be followed, so that such a stream is never exact.
    pub expected_choices: u32,
    /// Whether to leave out the chunk with usage and no choices, which the provider sends because Tollgate asked it to
    /// and the caller did not. OpenAI's dialect only.
    pub drop_usage_chunk: bool,
    /// Counts the text as it passes, for the streams whose end is never seen.
    pub count: CountTokens,
    /// Where in a piece of text that is counted at once the stream begins, in 256ths: by chance, so that streams that began together are
    /// not all counted together.
    pub phase: u8,
}

/// How the connection to the provider ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEnd {
    /// The provider ended the answer as its transport prescribes: last chunk, END_STREAM, or all of content-length.
    Clean,
    /// The connection broke, timed out, or was closed because the caller had gone.
    Cut,
}

/// Meters one stream.
///
/// [`feed`](Self::feed) it each chunk and send on what it returns; when the provider ended cleanly, send on what
/// [`take_held`](Self::take_held) returns; then [`finish`](Self::finish).
#[derive(Debug)]
pub struct StreamMeter {
    frames: Frames,
    reading: Reading,
    drop_usage_chunk: bool,
    /// How many bytes of the event under way have been kept from the caller, from its first on.
    held: usize,
    /// Whether the event under way grew beyond what is held, and is relayed as it comes.
    let_through: bool,
    /// Whether the last byte was the CR that ended a dropped event: an LF that follows is part of it.
    after_dropped_cr: bool,
}

/// How a stream is cut into what is read at once.
#[derive(Debug)]
enum Frames {
    Events(Splitter),
    Elements(Box<ArraySplitter>),
    Unread,
}

impl StreamMeter {
    /// A meter for a stream of which nothing has been read.
    pub fn new(options: StreamMeterOptions) -> Self {
        let StreamMeterOptions { shape, expected_choices, drop_usage_chunk, count, phase } = options;
        Self {
            frames: match shape {
                Shape::GeminiArray => Frames::Elements(Box::default()),
                Shape::Opaque => Frames::Unread,
                _ => Frames::Events(Splitter::default()),
            },
            reading: Reading {
                reported: Reported::nothing(shape),
                progress: Progress::new(expected_choices, Tally::new(count, phase)),
                end_marker_seen: false,
                error_seen: false,
                missed_something: false,
            },
            drop_usage_chunk: drop_usage_chunk && shape == Shape::OpenAi,
            held: 0,
            let_through: false,
            after_dropped_cr: false,
        }
    }

    /// Reads `chunk` and returns what to relay now: the same bytes.
    ///
    /// While the usage chunk is to be dropped, an event that `chunk` leaves incomplete is held until it is complete or
    /// larger than [`MAX_HELD`], and what is returned may be empty.
    pub fn feed(&mut self, chunk: Bytes) -> Bytes {
        if self.drop_usage_chunk {
            return self.feed_and_drop(chunk);
        }
        let Self { frames, reading, .. } = self;
        match frames {
            Frames::Events(splitter) => {
                splitter.feed(&chunk, |frame| {
                    reading.read(frame.event);
                });
            }
            Frames::Elements(splitter) => {
                splitter.feed(&chunk, |element| reading.read_element(element));
                reading.end_marker_seen |= splitter.is_closed();
                reading.missed_something |= splitter.is_odd();
            }
            Frames::Unread => {}
        }
        chunk
    }

    /// The provider ended cleanly: reads the event that it left without a blank line, and returns the bytes still held,
    /// to be relayed last. Empty unless the usage chunk is being dropped.
    ///
    /// Not for a stream that was cut: the start of an event is of no use to the caller, and would spoil an error event
    /// sent after it.
    pub fn take_held(&mut self) -> Bytes {
        let mut relay = Bytes::new();
        let Self { frames, reading, held, .. } = self;
        if let Frames::Events(splitter) = frames {
            splitter.take_unfinished(|frame| {
                if reading.read(frame.event) != Seen::UsageChunk {
                    relay = Bytes::copy_from_slice(&frame.raw[..*held]);
                }
            });
        }
        *held = 0;
        relay
    }

    /// Whether Tollgate may write an event of its own now: what has been relayed ends with a complete event.
    ///
    /// After a stream that was cut within an event, two line ends before an error event keep the two apart.
    pub fn between_events(&self) -> bool {
        match &self.frames {
            Frames::Events(splitter) => self.held > 0 || splitter.between_events(),
            Frames::Elements(splitter) => splitter.between_elements(),
            Frames::Unread => false,
        }
    }

    /// The event that tells the caller of a failure, now; `None` where there is no way to say it: in the middle of an
    /// array's element, and in what is passed through unread.
    pub fn failure(&self, dialect: Dialect, code: &str, message: &str) -> Option<Bytes> {
        match &self.frames {
            Frames::Events(_) => {
                let event = error_event(dialect, code, message);
                // After a stream that was cut within an event, two line ends keep the two apart.
                let apart = !self.between_events();
                Some(if apart { Bytes::from([b"\n\n", event.as_ref()].concat()) } else { event })
            }
            Frames::Elements(splitter) => splitter
                .between_elements()
                .then(|| Bytes::from(format!("{}{}]", splitter.separator(), gemini_error(code, message)))),
            Frames::Unread => None,
        }
    }

    /// Whether the stream has said that it is over: `[DONE]` or `message_stop`.
    pub fn end_marker_seen(&self) -> bool {
        self.reading.end_marker_seen
    }

    /// The id of the response that is streamed, once it was seen.
    pub fn response_id(&self) -> Option<&str> {
        match &self.reading.reported {
            Reported::Responses { id, .. } => id.as_deref(),
            _ => None,
        }
    }

    /// Whether the provider reported an error within the stream.
    pub fn error_seen(&self) -> bool {
        self.reading.error_seen
    }

    /// How many of the choices that were asked for have finished.
    pub fn finished_choices(&self) -> u32 {
        self.reading.progress.finished_choices()
    }

    /// What the stream used.
    ///
    /// `Unknown` when it ended and nothing was reported, and when it was cut before anything was reported or counted.
    pub fn finish(mut self, end: StreamEnd) -> Metered {
        if end == StreamEnd::Clean {
            self.take_held();
        }
        self.reading.finish(end)
    }

    /// Bytes of memory that the stream takes.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        let pending = match &self.frames {
            Frames::Events(splitter) => splitter.memory(),
            Frames::Elements(splitter) => splitter.memory(),
            Frames::Unread => 0,
        };
        size_of::<Self>() + pending + self.reading.progress.tally.memory()
    }

    fn feed_and_drop(&mut self, chunk: Bytes) -> Bytes {
        let Self { frames, reading, held, let_through, after_dropped_cr, .. } = self;
        let Frames::Events(splitter) = frames else { return chunk };
        let mut relay = Relay::of(&chunk);
        if chunk.first().is_some_and(|&byte| std::mem::take(after_dropped_cr) && byte == b'\n') {
            relay.leave_out_to(1);
        }
        let under_way = splitter.feed(&chunk, |frame| {
            let held = std::mem::take(held);
            let was_let_through = std::mem::take(let_through);
            let seen = reading.read(frame.event);
            if seen == Seen::UsageChunk && !was_let_through && frame.raw.len() <= MAX_HELD {
                let ends_in_cr = frame.raw.last() == Some(&b'\r');
                let lf_follows = chunk.get(frame.span.end).map(|&byte| byte == b'\n');
                relay.pass_to(frame.span.start);
                relay.leave_out_to(frame.span.end + usize::from(ends_in_cr && lf_follows == Some(true)));
                *after_dropped_cr = ends_in_cr && lf_follows.is_none();
            } else {
                relay.insert(&frame.raw[..held]);
            }
        });

        let unfinished = splitter.unfinished();
        if unfinished.is_empty() || *let_through {
            return relay.pass_all();
        }
        if unfinished.len() <= MAX_HELD {
            *held = unfinished.len();
            return relay.pass_up_to(under_way);
        }
        relay.insert(&unfinished[..std::mem::take(held)]);
        *let_through = true;
        relay.pass_all()
    }
}

/// What to relay of a chunk: usually a slice of it, copied only when something is left out or comes before.
struct Relay<'a> {
    chunk: &'a Bytes,
    /// The first byte of the chunk about which nothing has been said.
    next: usize,
    copied: BytesMut,
}

impl<'a> Relay<'a> {
    fn of(chunk: &'a Bytes) -> Self {
        Self { chunk, next: 0, copied: BytesMut::new() }
    }

    fn pass_to(&mut self, end: usize) {
        self.copied.extend_from_slice(&self.chunk[self.next..end]);
        self.next = end;
    }

    fn leave_out_to(&mut self, end: usize) {
        self.next = end;
    }

    /// Bytes of earlier chunks, which come before what is next.
    fn insert(&mut self, earlier: &[u8]) {
        self.copied.extend_from_slice(earlier);
    }

    fn pass_up_to(mut self, end: usize) -> Bytes {
        if self.copied.is_empty() {
            return self.chunk.slice(self.next..end);
        }
        self.pass_to(end);
        self.copied.freeze()
    }

    fn pass_all(self) -> Bytes {
        let end = self.chunk.len();
        self.pass_up_to(end)
    }
}

/// What the events of a stream have said so far.
#[derive(Debug)]
struct Reading {
    reported: Reported,
    progress: Progress,
    end_marker_seen: bool,
    error_seen: bool,
    /// Whether an event or a report of usage could not be read.
    missed_something: bool,
}

/// The part of an event's meaning that matters to the relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    UsageChunk,
    AnythingElse,
}

/// The provider's reports of usage: running totals, in its dialect.
#[derive(Debug)]
enum Reported {
    OpenAi(Option<Usage>),
    Anthropic {
        so_far: anthropic::UsageReport,
        /// Whether the closing event has come, which alone knows the output.
        closed: bool,
    },
    Responses {
        usage: Option<Usage>,
        /// The id under which the provider keeps it.
        id: Option<Box<str>>,
    },
    Gemini {
        so_far: Option<Usage>,
        /// Whether it came when all candidates had finished: what came before is less than the whole.
        closed: bool,
    },
    Opaque,
}

impl Reported {
    fn nothing(shape: Shape) -> Self {
        match shape {
            Shape::OpenAi => Self::OpenAi(None),
            Shape::Anthropic => Self::Anthropic { so_far: anthropic::UsageReport::default(), closed: false },
            Shape::Responses => Self::Responses { usage: None, id: None },
            Shape::Gemini | Shape::GeminiArray => Self::Gemini { so_far: None, closed: false },
            Shape::Opaque => Self::Opaque,
        }
    }

    fn so_far(&self) -> Usage {
        match self {
            Self::OpenAi(usage) | Self::Responses { usage, .. } | Self::Gemini { so_far: usage, .. } => {
                usage.unwrap_or_default()
            }
            Self::Anthropic { so_far, .. } => so_far.usage(),
            Self::Opaque => Usage::default(),
        }
    }

    fn is_last_word(&self) -> bool {
        match self {
            Self::OpenAi(usage) | Self::Responses { usage, .. } => usage.is_some(),
            Self::Anthropic { so_far, closed } => *closed && so_far.is_complete(),
            Self::Gemini { so_far, closed } => *closed && so_far.is_some(),
            Self::Opaque => false,
        }
    }
}

impl Reading {
    /// Reads an event; `None` stands for one too large to be read.
    fn read(&mut self, event: Option<sse::Event<'_>>) -> Seen {
        let Some(event) = event else {
            self.missed_something = true;
            return Seen::AnythingElse;
        };
        if event.name == b"error" {
            self.error_seen = true;
        }
        let data = event.data.trim_ascii();
        if data.is_empty() {
            return Seen::AnythingElse;
        }
        // Checked once here, rather than string by string.
        let Ok(json) = std::str::from_utf8(data) else {
            self.missed_something = true;
            return Seen::AnythingElse;
        };
        match self.reported {
            // OpenAI's, and of servers that speak Anthropic's dialect beside it.
            _ if json == "[DONE]" => self.end_marker_seen = true,
            Reported::OpenAi(_) => match openai::read_chunk(json, &mut self.progress) {
                Ok(chunk) => return self.read_openai(&chunk),
                Err(_) => self.missed_something = true,
            },
            Reported::Anthropic { .. } => match serde_json::from_str(json) {
                Ok(Object(event)) => self.read_anthropic(&event),
                Err(_) => self.missed_something = true,
            },
            Reported::Responses { .. } => match serde_json::from_str(json) {
                Ok(Object(event)) => self.read_response(&event),
                Err(_) => self.missed_something = true,
            },
            Reported::Gemini { .. } => self.read_element(Some(json.as_bytes())),
            Reported::Opaque => {}
        }
        Seen::AnythingElse
    }

    /// Reads what Gemini sends at once, an element or the data of an event; `None` stands for one too large to be read.
    fn read_element(&mut self, element: Option<&[u8]>) {
        match element.map(serde_json::from_slice) {
            Some(Ok(Object(chunk))) => self.read_gemini(&chunk),
            Some(Err(_)) | None => self.missed_something = true,
        }
    }

    fn read_gemini(&mut self, chunk: &gemini::Chunk<'_>) {
        self.error_seen |= chunk.error.is_some();
        chunk.add_to(&mut self.progress);
        let Some(raw) = chunk.usage_metadata else { return };
        match parse_usage(raw, |Object(report): Object<gemini::UsageReport>| report.usage()) {
            Some(usage) => {
                let closed = self.progress.all_finished();
                self.reported = Reported::Gemini { so_far: Some(usage), closed };
            }
            // The first chunks of some models report a prompt and nothing else.
            None if !self.progress.all_finished() => {}
            None => self.missed_something = true,
        }
    }

    fn read_response(&mut self, event: &responses::Event<'_>) {
        self.error_seen |= event.kind.0 == "error" || event.error.is_some();
        self.progress.tally.add(event.text());
        if let (Reported::Responses { id: id @ None, .. }, Some(response)) =
            (&mut self.reported, &event.response)
        {
            *id = response.id().map(Box::from);
        }
        if !event.is_last() {
            return;
        }
        self.end_marker_seen = true;
        self.progress.finish_choice(0);
        let raw = event.response.as_ref().and_then(|response| response.usage);
        match raw.map(|raw| parse_usage(raw, |Object(report): Object<responses::UsageReport>| report.usage()))
        {
            Some(Some(last)) => {
                if let Reported::Responses { usage, .. } = &mut self.reported {
                    *usage = Some(last);
                }
            }
            Some(None) => self.missed_something = true,
            None => self.error_seen |= event.kind.0 == "response.failed",
        }
    }

    fn read_openai(&mut self, chunk: &openai::Chunk<'_>) -> Seen {
        self.error_seen |= chunk.has_error;
        if let Some(raw) = chunk.usage {
            match parse_usage(raw, |Object(report): Object<openai::UsageReport>| report.of_completion()) {
                // Servers that report from the first chunk on may begin with zeros.
                Some(usage) if usage.total() == 0 => {}
                Some(usage) => self.reported = Reported::OpenAi(Some(usage)),
                None => self.missed_something = true,
            }
        }
        if chunk.is_usage_only() { Seen::UsageChunk } else { Seen::AnythingElse }
    }

    fn read_anthropic(&mut self, event: &anthropic::Event<'_>) {
        self.error_seen |= event.error.is_some();
        for text in event.delta.iter().flat_map(anthropic::Delta::texts) {
            self.progress.tally.add(text);
        }
        if event.delta.as_ref().is_some_and(|delta| !delta.stop_reason.0.is_empty()) {
            self.progress.finish_choice(0);
        }
        if event.kind.0 == "message_stop" {
            self.end_marker_seen = true;
        }
        let opening = event.message.as_ref().and_then(|message| message.usage);
        for (raw, closes) in [(opening, false), (event.usage, true)] {
            let Some(raw) = raw else { continue };
            match (parse_usage(raw, Some::<anthropic::UsageReport>), &mut self.reported) {
                (Some(report), Reported::Anthropic { so_far, closed }) => {
                    so_far.replace_with(report);
                    *closed |= closes && report.has_output();
                }
                _ => self.missed_something = true,
            }
        }
    }

    fn finish(self, end: StreamEnd) -> Metered {
        let ended = self.end_marker_seen || end == StreamEnd::Clean;
        let reported = self.reported.so_far();
        let nothing_missing = !self.error_seen && !self.missed_something && self.reported.is_last_word();
        if ended && self.progress.all_finished() && nothing_missing {
            return Metered::exact(reported);
        }
        // An answer that ended without a word on its usage is the provider's habit or a fault, and not the caller's
        // doing: its estimate stands.
        if ended && reported.total() == 0 {
            return Metered::Unknown;
        }
        Metered::at_least(Usage { output: reported.output.max(self.progress.tally.total()), ..reported })
    }
}

fn parse_usage<'a, T: serde::Deserialize<'a>, U>(
    raw: &'a RawValue,
    normalise: impl FnOnce(T) -> Option<U>,
) -> Option<U> {
    normalise(serde_json::from_str(raw.get()).ok()?)
}

impl fmt::Debug for StreamMeterOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("StreamMeterOptions")
            .field("shape", &self.shape)
            .field("expected_choices", &self.expected_choices)
            .field("drop_usage_chunk", &self.drop_usage_chunk)
            .finish_non_exhaustive()
    }
}
