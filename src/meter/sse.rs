//! Where the events of a stream begin and end, and what stands in them.
//!
//! The grammar is that of the HTML standard
//! (<https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream>): lines end in CR, LF or
//! CRLF, a blank line ends an event, a line that begins with a colon is a comment, `data` lines are joined by LF, one
//! space after the colon is not part of the value, and a byte order mark may open the stream.
//!
//! # Laws
//! - Each byte is looked at as it comes and once; an event is complete with the first byte of its blank line's end, so
//!   that nothing ever waits for the LF of a CRLF.
//! - An event that lies in one chunk is read in place. Only the part of an event that a chunk leaves incomplete is
//!   copied, at most [`MAX_EVENT`] bytes of it.
//! - Comments and blank lines before an event's first field are not part of it.
//!
//! # Never
//! Looks into the data: that they are JSON is none of this file's business. Decodes: a character cut in two is whole
//! again by the time its event is.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use memchr::memchr2;

const CR: u8 = b'\r';
const LF: u8 = b'\n';
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// The largest event, in bytes, that is kept and read. Deltas are hundreds of bytes; the largest events in service,
/// search results in one block or a piece of audio, are tens of thousands.
pub const MAX_EVENT: usize = 256 * 1024;

/// A buffer larger than this is given back once its event is complete, so that one large event does not cost its
/// stream memory for as long as it lives.
const KEPT_CAPACITY: usize = 1024;

/// An event, with the fields that anyone uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    /// The value of the last `event` field; empty when there is none.
    pub name: &'a [u8],
    /// The values of the `data` fields, joined by LF; empty when there are none.
    pub data: Cow<'a, [u8]>,
}

/// A complete event and where it lay.
#[derive(Debug)]
pub struct Frame<'a> {
    /// What stands in it; `None` when it is larger than [`MAX_EVENT`].
    pub event: Option<Event<'a>>,
    /// Its bytes from the first one on, those of earlier chunks included; all of them, unless it is larger than
    /// [`MAX_EVENT`].
    pub raw: &'a [u8],
    /// Where in this chunk its bytes lie; from 0 if it began in an earlier one.
    pub span: Range<usize>,
}

/// Splits a stream into events, whatever chunks it comes in.
#[derive(Default)]
pub struct Splitter {
    /// The bytes of the event under way, from earlier chunks.
    pending: Vec<u8>,
    /// Whether a field of an event has begun, and its blank line has not come.
    in_event: bool,
    /// Whether the event under way is larger than [`MAX_EVENT`], and not kept beyond.
    oversized: bool,
    line: Line,
    /// Whether the last byte was a CR: an LF that follows belongs to it.
    after_cr: bool,
    /// Whether the event under way opens the stream, and may have a byte order mark.
    opens_stream: Opening,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Line {
    /// The next byte is the first of a line.
    #[default]
    Start,
    Comment,
    Field,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Opening {
    #[default]
    NothingRead,
    InFirstEvent,
    Past,
}

impl Splitter {
    /// Reads `chunk` and calls `each` with every event that it completes, in order. Returns where in `chunk` the event
    /// under way begins: 0 if it began earlier, `chunk.len()` if there is none.
    pub fn feed(&mut self, chunk: &[u8], mut each: impl FnMut(Frame<'_>)) -> usize {
        if let (Opening::NothingRead, Some(&first)) = (&self.opens_stream, chunk.first()) {
            let may_have_mark = first == BYTE_ORDER_MARK[0];
            self.opens_stream = if may_have_mark { Opening::InFirstEvent } else { Opening::Past };
        }
        let mut at = 0;
        let mut event_start = 0;
        while let Some(&byte) = chunk.get(at) {
            if std::mem::take(&mut self.after_cr) && byte == LF {
                at += 1;
            } else if self.line == Line::Start && (byte == CR || byte == LF) {
                at += 1;
                self.after_cr = byte == CR;
                if self.in_event {
                    self.complete(chunk, event_start..at, &mut each);
                }
            } else {
                self.begin_line(byte);
                at = self.skip_line(chunk, at);
            }
            if !self.in_event {
                event_start = at;
            }
        }
        if self.in_event {
            self.keep(&chunk[event_start..]);
        }
        event_start
    }

    /// The event that the stream's end left without its blank line, if there is one. A browser would discard it; what
    /// it says was used has been used all the same.
    pub fn take_unfinished(&mut self, each: impl FnOnce(Frame<'_>)) {
        if std::mem::take(&mut self.in_event) {
            self.complete(&[], 0..0, each);
        }
    }

    /// The bytes of the event under way; empty when there is none, only the first [`MAX_EVENT`] when there are more.
    pub fn unfinished(&self) -> &[u8] {
        &self.pending
    }

    /// Bytes of memory that an event under way takes, or has left behind.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.pending.capacity()
    }

    /// Whether the last byte ended a line, and no event is under way.
    pub fn between_events(&self) -> bool {
        !self.in_event && self.line == Line::Start
    }

    fn begin_line(&mut self, byte: u8) {
        if self.line == Line::Start {
            self.line = if byte == b':' { Line::Comment } else { Line::Field };
        }
        if self.line == Line::Field {
            self.in_event = true;
        }
    }

    /// Where the line that goes on at `at` ends in `chunk`, its CR or LF included.
    fn skip_line(&mut self, chunk: &[u8], at: usize) -> usize {
        let Some(length) = memchr2(CR, LF, &chunk[at..]) else { return chunk.len() };
        let end = at + length;
        self.line = Line::Start;
        self.after_cr = chunk[end] == CR;
        end + 1
    }

    fn complete(&mut self, chunk: &[u8], span: Range<usize>, each: impl FnOnce(Frame<'_>)) {
        let raw = if self.pending.is_empty() {
            &chunk[span.clone()]
        } else {
            self.keep(&chunk[span.clone()]);
            self.pending.as_slice()
        };
        let oversized = self.oversized || raw.len() > MAX_EVENT;
        let lines = match self.opens_stream {
            Opening::InFirstEvent => raw.strip_prefix(BYTE_ORDER_MARK).unwrap_or(raw),
            Opening::NothingRead | Opening::Past => raw,
        };
        each(Frame { event: (!oversized).then(|| parse(lines)), raw, span });

        self.in_event = false;
        self.oversized = false;
        self.opens_stream = Opening::Past;
        if self.pending.capacity() > KEPT_CAPACITY {
            self.pending = Vec::new();
        } else {
            self.pending.clear();
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        let room = MAX_EVENT - self.pending.len();
        self.oversized |= bytes.len() > room;
        self.pending.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }
}

impl fmt::Debug for Splitter {
    /// Leaves out what people wrote: it has no place in a log.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Splitter").field("pending", &self.pending.len()).finish_non_exhaustive()
    }
}

/// What stands in the lines of one event.
fn parse(mut lines: &[u8]) -> Event<'_> {
    let mut name: &[u8] = &[];
    let mut data: Option<Cow<'_, [u8]>> = None;
    while !lines.is_empty() {
        let end = memchr2(CR, LF, lines).unwrap_or(lines.len());
        let (line, rest) = lines.split_at(end);
        // Taking the LF of a CRLF for a blank line is harmless here: there are no blank lines in an event.
        lines = rest.get(1..).unwrap_or_default();
        match field(line) {
            (b"event", value) => name = value,
            (b"data", value) => match &mut data {
                None => data = Some(Cow::Borrowed(value)),
                Some(earlier) => {
                    let joined = earlier.to_mut();
                    joined.push(LF);
                    joined.extend_from_slice(value);
                }
            },
            _ => {}
        }
    }
    Event { name, data: data.unwrap_or_default() }
}

fn field(line: &[u8]) -> (&[u8], &[u8]) {
    match memchr::memchr(b':', line) {
        None => (line, &[]),
        Some(colon) => {
            let value = &line[colon + 1..];
            (&line[..colon], value.strip_prefix(b" ").unwrap_or(value))
        }
    }
}
