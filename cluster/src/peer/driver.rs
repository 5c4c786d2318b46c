//! The task of a connection: reads records, hands calls to the host, and writes what waits.
//!
//! One task does both directions, so that a call answered at once costs no other task's waking: what arrived together is answered
//! together, in as few writes as it fits. It writes when nothing more is to be read, or a record is full; there is no timer to wait
//! for company, and the network does not wait either.
//!
//! Laws:
//! - a peer that is silent for [`SILENT_MAX`] ticks is gone: each side says something every [`MUTE_MAX`] ticks;
//! - ticks count only while this task runs, so that a stall of this process does not look like one of the peer;
//! - a bad record ends the connection, and is counted by what is bad about it.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use snow::TransportState;
use tokio::io::ReadBuf;
use tokio::time::{Interval, MissedTickBehavior};

use crate::outside::Stream;
use crate::peer::frame::{Bad, Inbox, Message, RECORD_MAX, What};
use crate::peer::handshake::{Begun, Greeting, SEAL, compatible};
use crate::peer::link::Link;
use crate::peer::{ADDRESS_MAX, Answer, Busy, CallError, Caller, Hello, Serve};
use crate::wire;

/// The unit in which silence is measured.
const TICK: Duration = Duration::from_millis(500);
/// After so many ticks without a word of our own, a ping.
const MUTE_MAX: u32 = 2;
/// After so many ticks without a byte of the peer, it is gone.
pub(super) const SILENT_MAX: u32 = 6;
/// After so many, it may be: another connection of it is believed rather than this one.
pub(super) const SUSPECT: u32 = 3;

/// A record and its length.
const SEALED_MAX: usize = 2 + RECORD_MAX + SEAL;
/// Two records, so that one can arrive while another is cut off.
const READ_BUFFER: usize = 2 * SEALED_MAX;
/// Records are packed while less than this waits for the network: what is packed cannot be overtaken by what is urgent.
const WRITE_BUFFER: usize = SEALED_MAX;
/// After so many rounds, other tasks get their turn.
const ROUNDS: usize = 32;

/// Why a connection ended.
pub(super) enum End {
    /// Both sides were done, or this one closed it.
    Done(String),
    /// The network lost it.
    Lost(String),
    /// The peer broke a rule.
    Bad(Bad),
    /// The peer's new `Hello` does not go with this node.
    Stranger(crate::peer::ConnectError),
}

/// The task of a connection.
pub(super) struct Driver {
    link: Arc<Link>,
    serve: Arc<dyn Serve>,
    /// What this node says of itself, for comparison with what the peer says later.
    ours: Arc<arc_swap::ArcSwap<Greeting>>,
    stream: Box<dyn Stream>,
    noise: TransportState,
    inbox: Inbox,
    read: Vec<u8>,
    /// Of `read`: what has arrived and is not taken apart.
    arrived: std::ops::Range<usize>,
    plain: Vec<u8>,
    write: Vec<u8>,
    written: usize,
    ticks: Interval,
    heard: bool,
    said: bool,
    mute: u32,
}

impl Driver {
    pub(super) fn new(
        link: Arc<Link>,
        serve: Arc<dyn Serve>,
        ours: Arc<arc_swap::ArcSwap<Greeting>>,
        begun: Begun,
    ) -> Self {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            link,
            serve,
            ours,
            stream: begun.stream,
            noise: begun.noise,
            inbox: Inbox::default(),
            read: vec![0; READ_BUFFER],
            arrived: 0..0,
            plain: Vec::with_capacity(RECORD_MAX),
            write: Vec::with_capacity(SEALED_MAX),
            written: 0,
            ticks,
            heard: true,
            said: true,
            mute: 0,
        }
    }

    /// Drives the connection to its end. Dropped before that, its calls end too.
    pub(super) async fn run(mut self) -> End {
        let end = poll_fn(|cx| self.poll(cx)).await;
        match &end {
            End::Done(reason) | End::Lost(reason) => self.link.end(reason),
            End::Bad(bad) => self.link.end(&bad.to_string()),
            End::Stranger(error) => self.link.end(&error.to_string()),
        }
        end
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        if let Some(reason) = self.link.state().over() {
            return Poll::Ready(End::Done(reason.clone()));
        }
        for _ in 0..ROUNDS {
            let read = match self.poll_read(cx) {
                Ok(read) => read,
                Err(end) => return Poll::Ready(end),
            };
            let wrote = match self.poll_write(cx) {
                Ok(wrote) => wrote,
                Err(error) => return Poll::Ready(End::Lost(error.to_string())),
            };
            let ticked = self.ticks.poll_tick(cx).is_ready();
            if ticked && let Some(end) = self.tick() {
                return Poll::Ready(end);
            }
            if !read && !wrote && !ticked {
                let blocked = self.written < self.write.len();
                let mut state = self.link.state();
                if let Some(reason) = state.over() {
                    return Poll::Ready(End::Done(reason.clone()));
                }
                if !blocked && state.is_done() {
                    return Poll::Ready(End::Done(String::from("both sides were done with it")));
                }
                if blocked || !state.has_work() {
                    state.sleeper = Some(cx.waker().clone());
                    return Poll::Pending;
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Reads what there is and takes it apart. True if there was something.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Result<bool, End> {
        if self.arrived.end == self.read.len() {
            self.read.copy_within(self.arrived.clone(), 0);
            self.arrived = 0..self.arrived.len();
        }
        let mut space = ReadBuf::new(&mut self.read[self.arrived.end..]);
        match Pin::new(&mut *self.stream).poll_read(cx, &mut space) {
            Poll::Pending => return Ok(false),
            Poll::Ready(Err(error)) => return Err(End::Lost(error.to_string())),
            Poll::Ready(Ok(())) => {}
        }
        let count = space.filled().len();
        if count == 0 {
            return Err(End::Lost(String::from("the peer closed it")));
        }
        self.heard = true;
        self.arrived.end += count;
        while let Some(record) = self.next_record() {
            self.open(record)?;
        }
        if self.arrived.is_empty() {
            self.arrived = 0..0;
        }
        Ok(true)
    }

    /// Where in `read` the next whole record is.
    fn next_record(&mut self) -> Option<std::ops::Range<usize>> {
        let (length, rest) = self.read[self.arrived.clone()].split_first_chunk::<2>()?;
        let length = usize::from(u16::from_be_bytes(*length));
        if rest.len() < length {
            return None;
        }
        let start = self.arrived.start + 2;
        self.arrived.start = start + length;
        Some(start..start + length)
    }

    fn open(&mut self, record: std::ops::Range<usize>) -> Result<(), End> {
        self.plain.resize(RECORD_MAX, 0);
        let length =
            self.noise.read_message(&self.read[record], &mut self.plain).map_err(|_| End::Bad(Bad::Seal))?;
        let (link, serve, ours) = (&self.link, &self.serve, &self.ours);
        let mut end = None;
        let taken = self.inbox.take(&self.plain[..length], |message| {
            if let Err(why) = take(link, serve, ours, message) {
                end.get_or_insert(why);
            }
        });
        match end {
            Some(end) => Err(end),
            None => taken.map_err(End::Bad),
        }
    }

    /// Packs and writes what waits. True if something was written.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        let mut wrote = false;
        loop {
            if self.written == self.write.len() {
                self.write.clear();
                self.written = 0;
                self.pack();
                if self.write.is_empty() {
                    break;
                }
            }
            match Pin::new(&mut *self.stream).poll_write(cx, &self.write[self.written..]) {
                Poll::Pending => break,
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(count)) => {
                    self.written += count;
                    self.said = true;
                    wrote = true;
                }
            }
        }
        if wrote && let Poll::Ready(Err(error)) = Pin::new(&mut *self.stream).poll_flush(cx) {
            return Err(error);
        }
        Ok(wrote)
    }

    /// Moves records from the outbox to the empty write buffer.
    fn pack(&mut self) {
        while self.write.len() < WRITE_BUFFER {
            self.plain.clear();
            self.link.state().fill(&mut self.plain);
            if self.plain.is_empty() {
                break;
            }
            let start = self.write.len();
            let sealed = self.plain.len() + SEAL;
            // RECORD_MAX and the seal are what a length of 16 bits can say.
            self.write.extend_from_slice(&(sealed as u16).to_be_bytes());
            self.write.resize(start + 2 + sealed, 0);
            if let Err(error) = self.noise.write_message(&self.plain, &mut self.write[start + 2..]) {
                // Only after 2^64 records.
                self.link.close(&error.to_string());
                self.write.truncate(start);
                break;
            }
        }
    }

    fn tick(&mut self) -> Option<End> {
        let mut state = self.link.state();
        state.silent = if std::mem::take(&mut self.heard) { 0 } else { state.silent + 1 };
        self.mute = if std::mem::take(&mut self.said) { 0 } else { self.mute + 1 };
        if state.silent >= SILENT_MAX {
            return Some(End::Lost(format!("the peer was silent for {:?}", TICK * SILENT_MAX)));
        }
        if self.mute >= MUTE_MAX - 1 {
            state.send(Message::bare(What::Ping, 0));
        }
        None
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.link.end("its task ended");
    }
}

/// Does what a message asks for.
fn take(
    link: &Arc<Link>,
    serve: &Arc<dyn Serve>,
    ours: &arc_swap::ArcSwap<Greeting>,
    message: Message,
) -> Result<(), End> {
    let Message { what, kind, id, body } = message;
    match what {
        What::Call => called(link, serve, kind, id, body),
        What::Answer => link.answered(id, Ok(body)),
        What::Busy => {
            link.counters.refused_there.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            link.answered(id, Err(CallError::Refused(Busy::There)));
        }
        What::Ping => link.send(Message::bare(What::Pong, id)),
        What::Pong => {}
        What::Goodbye => link.state().left(),
        What::Hello => {
            let hello: Hello = wire::decode(&body).map_err(|_| End::Bad(Bad::Hello))?;
            let before = link.caller.load();
            if hello.identity != before.hello.identity || hello.address.len() > ADDRESS_MAX {
                return Err(End::Bad(Bad::Hello));
            }
            compatible(&ours.load().hello, &hello, &before.from).map_err(End::Stranger)?;
            link.caller.store(Arc::new(Caller { hello, from: before.from.clone() }));
        }
    }
    Ok(())
}

fn called(link: &Arc<Link>, serve: &Arc<dyn Serve>, kind: u8, id: u64, body: Bytes) {
    if link.is_crowded() {
        return link.send(Message::bare(What::Busy, id));
    }
    match Arc::clone(serve).serve(&link.caller.load(), kind, body) {
        Answer::Now(body) => link.state().answer(kind, id, body),
        Answer::Later(answer) => match link.owe(kind, id) {
            None => link.send(Message::bare(What::Busy, id)),
            Some(owed) => {
                tokio::spawn(async move { owed.pay(answer.await) });
            }
        },
    }
}
