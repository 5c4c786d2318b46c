//! Frames: what is inside a connection's sealed records, and messages cut into them and put together again.
//!
//! ```text
//! what u8 │ kind u8 │ id u64 │ length u16 │ body        all little-endian; whole frames only in a record
//! ```
//! The top bit of `what` says that more fragments of the message follow, the next one that this is not the first. The first of
//! several fragments begins with the length of the whole message, u32.
//!
//! Laws:
//! - any bytes are frames or [`Bad`]: they never panic, and what is bad ends the connection;
//! - a small message waits for one fragment of each record at most, however large the others are;
//! - the unfinished messages of a connection take at most [`UNFINISHED_MAX`] bytes at the receiver, and the sender knows the bound:
//!   it does not begin what might not fit.
//!
//! The layout is that of every wire version: what a version may change is what bodies mean. Never here: I/O.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use crate::wire::MESSAGE_MAX;

/// The most plaintext of a record: its ciphertext, 16 bytes more, must fit a length of 16 bits.
pub(super) const RECORD_MAX: usize = 65_519;

/// The most body of one frame: four of them and their headers fill most of a record.
pub(super) const FRAGMENT_MAX: usize = 16 * 1024;

/// The most bytes of messages of which a part has arrived, or has been sent.
pub(super) const UNFINISHED_MAX: usize = 2 * MESSAGE_MAX;

/// The most messages of which a part has arrived, or has been sent.
pub(super) const STREAMS_MAX: usize = 32;

const HEADER: usize = 12;
const MORE: u8 = 0x80;
const NOT_FIRST: u8 = 0x40;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum What {
    /// A question; its kind is the caller's.
    Call = 1,
    /// The answer to the call with its id.
    Answer = 2,
    /// The call with its id was not looked at: too many are being answered.
    Busy = 3,
    /// Are you there?
    Ping = 4,
    /// The answer to the ping with its id.
    Pong = 5,
    /// The sender's `Hello` is another one now.
    Hello = 6,
    /// No call follows on this connection; the sender still answers.
    Goodbye = 7,
}

impl What {
    const fn of(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Call,
            2 => Self::Answer,
            3 => Self::Busy,
            4 => Self::Ping,
            5 => Self::Pong,
            6 => Self::Hello,
            7 => Self::Goodbye,
            _ => return None,
        })
    }
}

/// A whole message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) what: What,
    pub(super) kind: u8,
    pub(super) id: u64,
    pub(super) body: Bytes,
}

impl Message {
    /// A message without a body.
    pub(super) const fn bare(what: What, id: u64) -> Self {
        Self { what, kind: 0, id, body: Bytes::new() }
    }
}

/// Why a peer's bytes end its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Bad {
    /// A frame is cut off by the end of its record.
    #[error("a frame that ends after its record")]
    Short,
    /// Not one of ours.
    #[error("a frame of no known kind")]
    What,
    /// A fragment of nothing, or a second beginning, or one that does not fit its beginning.
    #[error("a fragment that does not belong")]
    Fragment,
    /// A message beyond the bound.
    #[error("a message that is too large")]
    Large,
    /// Too many unfinished messages.
    #[error("too many unfinished messages")]
    Crowded,
    /// A record that was not sealed by the peer.
    #[error("a record that does not open")]
    Seal,
    /// A `Hello` that cannot be read.
    #[error("a greeting that cannot be read")]
    Hello,
}

/// Messages on their way out.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// At most a fragment each.
    small: VecDeque<Message>,
    /// Larger ones that have not begun.
    waiting: VecDeque<Message>,
    /// Larger ones and how much of each is sent.
    begun: VecDeque<(Message, usize)>,
    begun_bytes: usize,
    bytes: usize,
    /// How many of all are calls.
    calls: usize,
}

impl Outbox {
    /// Puts `message` in line. Its body is at most [`MESSAGE_MAX`] long: the caller has checked.
    pub(super) fn push(&mut self, message: Message) {
        self.bytes += HEADER + message.body.len();
        self.calls += usize::from(message.what == What::Call);
        if message.body.len() <= FRAGMENT_MAX {
            self.small.push_back(message);
        } else {
            self.waiting.push_back(message);
        }
    }

    /// Takes back a call of which nothing was sent. False if some may have been.
    pub(super) fn withdraw(&mut self, id: u64) -> bool {
        for line in [&mut self.small, &mut self.waiting] {
            if let Some(at) = line.iter().position(|message| message.what == What::Call && message.id == id) {
                let message = line.remove(at);
                self.calls -= 1;
                self.bytes -= message.map_or(0, |message| HEADER + message.body.len());
                return true;
            }
        }
        false
    }

    /// The calls of which nothing was sent.
    pub(super) fn unsent_calls(&self) -> impl Iterator<Item = u64> {
        let unsent = self.small.iter().chain(&self.waiting);
        unsent.filter(|message| message.what == What::Call).map(|message| message.id)
    }

    /// How many bytes wait.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether a call waits, or a part of one.
    pub(super) const fn has_calls(&self) -> bool {
        self.calls > 0
    }

    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.small.is_empty() && self.waiting.is_empty() && self.begun.is_empty()
    }

    /// Appends the frames of the next record to `record`, which is empty: a fragment of one large message, then what is small,
    /// then more fragments, each of the next large message in turn.
    pub(super) fn fill(&mut self, record: &mut Vec<u8>) {
        self.begin();
        self.fragment(record);
        while let Some(message) = self.small.pop_front() {
            if record.len() + HEADER + message.body.len() > RECORD_MAX {
                self.small.push_front(message);
                break;
            }
            self.bytes -= HEADER + message.body.len();
            self.calls -= usize::from(message.what == What::Call);
            put(record, message.what as u8, &message, &[], &message.body);
        }
        while self.fragment(record) {}
    }

    fn begin(&mut self) {
        while let Some(message) = self.waiting.front() {
            let bytes = self.begun_bytes + message.body.len();
            if bytes > UNFINISHED_MAX || self.begun.len() == STREAMS_MAX {
                break;
            }
            self.begun_bytes = bytes;
            self.begun.extend(self.waiting.pop_front().map(|message| (message, 0)));
        }
    }

    /// A fragment of the large message whose turn it is; false if there is none or no room.
    fn fragment(&mut self, record: &mut Vec<u8>) -> bool {
        if record.len() + HEADER + FRAGMENT_MAX > RECORD_MAX {
            return false;
        }
        let Some((message, sent)) = self.begun.pop_front() else { return false };
        let whole = message.body.len();
        // A message has at most MESSAGE_MAX bytes, so its length fits.
        let length = (whole as u32).to_le_bytes();
        let length: &[u8] = if sent == 0 { &length } else { &[] };
        let end = whole.min(sent + FRAGMENT_MAX - length.len());
        let mut what = message.what as u8;
        if sent > 0 {
            what |= NOT_FIRST;
        }
        if end < whole {
            what |= MORE;
        }
        put(record, what, &message, length, &message.body[sent..end]);
        if end < whole {
            self.bytes -= end - sent;
            self.begun.push_back((message, end));
        } else {
            self.bytes -= HEADER + end - sent;
            self.calls -= usize::from(message.what == What::Call);
            self.begun_bytes -= whole;
        }
        true
    }
}

fn put(record: &mut Vec<u8>, what: u8, message: &Message, before: &[u8], body: &[u8]) {
    record.push(what);
    record.push(message.kind);
    record.extend_from_slice(&message.id.to_le_bytes());
    // At most FRAGMENT_MAX, so it fits.
    record.extend_from_slice(&((before.len() + body.len()) as u16).to_le_bytes());
    record.extend_from_slice(before);
    record.extend_from_slice(body);
}

/// Messages of which a part has arrived.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    partial: BTreeMap<(What, u64), Partial>,
    /// What they will have when they are whole, which is what the bound is on.
    bytes: usize,
}

#[derive(Debug)]
struct Partial {
    kind: u8,
    whole: usize,
    body: Vec<u8>,
}

impl Inbox {
    /// Takes a record apart, and hands each message that is whole with it to `each`.
    pub(super) fn take(&mut self, mut record: &[u8], mut each: impl FnMut(Message)) -> Result<(), Bad> {
        while let Some((header, rest)) = record.split_first_chunk::<HEADER>() {
            let [flags, kind, i0, i1, i2, i3, i4, i5, i6, i7, l0, l1] = *header;
            let id = u64::from_le_bytes([i0, i1, i2, i3, i4, i5, i6, i7]);
            let length = usize::from(u16::from_le_bytes([l0, l1]));
            let (body, rest) = rest.split_at_checked(length).ok_or(Bad::Short)?;
            record = rest;
            let what = What::of(flags & !(MORE | NOT_FIRST)).ok_or(Bad::What)?;
            let body = if flags & (MORE | NOT_FIRST) == 0 {
                Some(Bytes::copy_from_slice(body))
            } else {
                self.fragment(what, kind, id, flags, body)?.map(Bytes::from)
            };
            if let Some(body) = body {
                each(Message { what, kind, id, body });
            }
        }
        if record.is_empty() { Ok(()) } else { Err(Bad::Short) }
    }

    fn fragment(
        &mut self,
        what: What,
        kind: u8,
        id: u64,
        flags: u8,
        body: &[u8],
    ) -> Result<Option<Vec<u8>>, Bad> {
        if flags & NOT_FIRST == 0 {
            return self.first(what, kind, id, body).map(|()| None);
        }
        let partial = self.partial.get_mut(&(what, id)).ok_or(Bad::Fragment)?;
        let ends = partial.body.len() + body.len() == partial.whole;
        let fits = partial.body.len() + body.len() <= partial.whole;
        if partial.kind != kind || body.is_empty() || !fits || ends == (flags & MORE != 0) {
            return Err(Bad::Fragment);
        }
        partial.body.extend_from_slice(body);
        if !ends {
            return Ok(None);
        }
        let whole = self.partial.remove(&(what, id)).map(|partial| partial.body);
        self.bytes -= whole.as_ref().map_or(0, Vec::len);
        Ok(whole)
    }

    fn first(&mut self, what: What, kind: u8, id: u64, body: &[u8]) -> Result<(), Bad> {
        let (length, body) = body.split_first_chunk::<4>().ok_or(Bad::Fragment)?;
        let whole = u32::from_le_bytes(*length) as usize;
        if whole > MESSAGE_MAX {
            return Err(Bad::Large);
        }
        if body.is_empty() || body.len() >= whole || self.partial.contains_key(&(what, id)) {
            return Err(Bad::Fragment);
        }
        if self.partial.len() == STREAMS_MAX || self.bytes + whole > UNFINISHED_MAX {
            return Err(Bad::Crowded);
        }
        self.bytes += whole;
        self.partial.insert((what, id), Partial { kind, whole, body: body.to_vec() });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn call(id: u64, length: usize) -> Message {
        // Bytes that differ, so that fragments in the wrong order show.
        let body = (0..length).map(|at| (at * 31 / 7 + id as usize) as u8).collect::<Vec<u8>>();
        Message { what: What::Call, kind: 9, id, body: body.into() }
    }

    /// Everything in `outbox` through an `inbox`, record by record.
    fn through(outbox: &mut Outbox) -> Vec<Vec<Message>> {
        let mut inbox = Inbox::default();
        let mut records = Vec::new();
        while !outbox.is_empty() {
            let (mut record, mut whole) = (Vec::new(), Vec::new());
            outbox.fill(&mut record);
            assert!(!record.is_empty() && record.len() <= RECORD_MAX);
            inbox.take(&record, |message| whole.push(message)).unwrap();
            records.push(whole);
        }
        assert_eq!((outbox.bytes(), outbox.begun_bytes, outbox.has_calls()), (0, 0, false));
        assert_eq!((inbox.bytes, inbox.partial.len()), (0, 0));
        records
    }

    #[test]
    fn a_large_message_does_not_hold_up_small_ones() {
        let mut outbox = Outbox::default();
        outbox.push(call(1, 10_000_000));
        outbox.push(call(2, 9_000_000));
        outbox.push(call(3, 100));
        let records = through(&mut outbox);
        assert_eq!(records[0], [call(3, 100)], "the first record has what is small");
        let order: Vec<u64> = records.into_iter().flatten().map(|message| message.id).collect();
        assert_eq!(order, [3, 2, 1], "large ones take turns");
    }

    #[test]
    fn no_more_is_begun_than_the_receiver_puts_up_with() {
        let mut outbox = Outbox::default();
        for id in 0..3 {
            outbox.push(call(id, MESSAGE_MAX));
        }
        let records = through(&mut outbox);
        assert_eq!(records.into_iter().flatten().count(), 3);
        for id in 0..2 * STREAMS_MAX as u64 {
            outbox.push(call(id, FRAGMENT_MAX + 1));
        }
        assert_eq!(through(&mut outbox).into_iter().flatten().count(), 2 * STREAMS_MAX);
    }

    #[test]
    fn what_has_not_begun_can_be_taken_back() {
        let mut outbox = Outbox::default();
        outbox.push(call(1, 100_000));
        outbox.push(call(2, 10));
        outbox.push(call(3, 10));
        assert!(outbox.withdraw(2) && !outbox.withdraw(2));
        assert_eq!(outbox.unsent_calls().collect::<Vec<_>>(), [3, 1]);
        let mut record = Vec::new();
        outbox.fill(&mut record);
        assert!(!outbox.withdraw(1) && !outbox.withdraw(3), "they may have been sent");
        while !outbox.is_empty() {
            outbox.fill(&mut Vec::new());
        }
        assert_eq!(outbox.bytes(), 0);
    }

    #[test]
    fn each_kind_of_bad_frame_has_its_name() {
        let frame = |what: u8, id: u64, body: &[u8]| {
            let mut record = Vec::new();
            put(&mut record, what, &Message::bare(What::Call, id), &[], body);
            record
        };
        let first = |id, whole: u32, body: &[u8]| frame(MORE | 1, id, &[&whole.to_le_bytes(), body].concat());
        let later =
            |id, last: bool, body: &[u8]| frame(NOT_FIRST | if last { 1 } else { MORE | 1 }, id, body);
        let taken =
            |records: &[Vec<u8>]| Inbox::default().take(&records.concat(), |_| panic!("no message in it"));
        assert_eq!(taken(&[vec![1; 11]]), Err(Bad::Short));
        assert_eq!(taken(&[frame(0, 1, b"")]), Err(Bad::What));
        assert_eq!(taken(&[frame(8, 1, b"")]), Err(Bad::What));
        assert_eq!(taken(&[later(1, true, b"x")]), Err(Bad::Fragment), "a middle without a beginning");
        assert_eq!(taken(&[first(1, 9, b"x"), first(1, 9, b"x")]), Err(Bad::Fragment), "two beginnings");
        assert_eq!(taken(&[first(1, 3, b"xyz")]), Err(Bad::Fragment), "nothing can follow");
        assert_eq!(taken(&[first(1, 3, b"x"), later(1, true, b"y")]), Err(Bad::Fragment), "ends too early");
        assert_eq!(taken(&[first(1, 3, b"x"), later(1, false, b"yz")]), Err(Bad::Fragment), "ends too late");
        assert_eq!(taken(&[first(1, 3, b"x"), later(1, false, b"")]), Err(Bad::Fragment), "nothing in it");
        assert_eq!(taken(&[first(1, MESSAGE_MAX as u32 + 1, b"x")]), Err(Bad::Large));
        let three: Vec<_> = (0..3).map(|id| first(id, MESSAGE_MAX as u32, b"x")).collect();
        assert_eq!(taken(&three), Err(Bad::Crowded));
    }

    proptest! {
        #[test]
        fn any_messages_come_out_as_they_went_in(lengths in prop::collection::vec(0usize..100_000, 0..40)) {
            let mut outbox = Outbox::default();
            let sent: Vec<Message> = lengths.iter().zip(0..).map(|(&length, id)| call(id, length)).collect();
            sent.iter().cloned().for_each(|message| outbox.push(message));
            let mut received: Vec<Message> = through(&mut outbox).into_iter().flatten().collect();
            received.sort_by_key(|message| message.id);
            prop_assert_eq!(received, sent);
        }

        #[test]
        fn any_bytes_are_messages_or_bad(records in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..20)) {
            let mut inbox = Inbox::default();
            for record in records {
                if inbox.take(&record, |_| ()).is_err() {
                    break;
                }
            }
        }

        /// Bytes that are frames more often than chance would have it.
        #[test]
        fn any_frames_are_messages_or_bad(frames in prop::collection::vec(
            (0u8..9, any::<bool>(), any::<bool>(), 0u64..3, 0u32..64, prop::collection::vec(any::<u8>(), 0..32)), 0..60,
        )) {
            let mut inbox = Inbox::default();
            for (what, more, later, id, whole, body) in frames {
                let mut record = Vec::new();
                let flags = what | if more { MORE } else { 0 } | if later { NOT_FIRST } else { 0 };
                let before = whole.to_le_bytes();
                let before: &[u8] = if more && !later { &before } else { &[] };
                put(&mut record, flags, &Message::bare(What::Call, id), before, &body);
                if inbox.take(&record, |_| ()).is_err() {
                    break;
                }
                prop_assert!(inbox.bytes <= UNFINISHED_MAX && inbox.partial.len() <= STREAMS_MAX);
            }
        }
    }
}
