//! One connection, as its callers see it: calls that wait, messages on their way out, and what was measured.
//!
//! A caller puts its message straight into the outbox, under a short lock, and wakes the task of the connection only if that
//! sleeps; [`crate::peer::driver`] is that task. Laws:
//! - a call ends exactly once: answered, refused, certainly not sent, or unknown;
//! - what was not packed into a record when the connection ended was certainly not sent;
//! - an answer to a call that was given up is dropped;
//! - the calls that wait, the calls being answered and the bytes on their way out are bounded.
//!
//! Never here: I/O, and which connection to use.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use tokio::sync::oneshot;

use crate::keyring::KeyId;
use crate::outside::Clock;
use crate::peer::frame::{Message, Outbox, UNFINISHED_MAX, What};
use crate::peer::stats::Counters;
use crate::peer::{Busy, CallError, Caller, Hello};
use crate::time::Moment;
use crate::wire;

/// How many calls of the peer are answered at once, beyond those answered at once and inline.
pub(super) const OWED_MAX: usize = 4096;

/// From so many bytes on their way out, no call is added and none of the peer's is taken: the largest message, and as much again.
const CROWDED: usize = UNFINISHED_MAX;

/// From so many, the peer does not read what it asked for, and the connection ends.
const OVERRUN: usize = 2 * UNFINISHED_MAX;

/// Why a connection ended, for people.
pub(super) type Reason = String;

/// One connection.
pub(super) struct Link {
    /// Names it among this node's, in the order of their beginning.
    pub(super) serial: u64,
    /// The address that this node dialled; `None` if the peer did.
    pub(super) dialled: Option<String>,
    /// The secret that it began with.
    pub(super) key: KeyId,
    /// Which life of the peer it leads to.
    pub(super) start: u128,
    /// Who is at its other end, as it last said.
    pub(super) caller: ArcSwap<Caller>,
    pub(super) counters: Arc<Counters>,
    clock: Arc<dyn Clock>,
    calls_max: usize,
    state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) outbox: Outbox,
    /// Ordered, so that they end in the order of their beginning.
    calls: BTreeMap<u64, Waiting>,
    next: u64,
    /// Calls of the peer that are being answered.
    owed: usize,
    /// This side calls no more.
    leaving: bool,
    /// It has said so, after its last call: what is small overtakes what is large.
    goodbye: bool,
    /// The other has said so.
    left: bool,
    over: Option<Reason>,
    /// How many ticks the peer has been silent for.
    pub(super) silent: u32,
    /// Of the task that drives it, while that sleeps.
    pub(super) sleeper: Option<Waker>,
}

struct Waiting {
    end: oneshot::Sender<Result<Bytes, CallError>>,
    since: Moment,
}

/// Why a call did not even begin.
pub(super) enum NotBegun {
    /// The connection takes no more: another one may.
    Gone,
    /// A bound.
    Busy,
}

impl Link {
    #[expect(clippy::too_many_arguments, reason = "each is a field, and it is called once")]
    pub(super) fn new(
        serial: u64,
        dialled: Option<String>,
        key: KeyId,
        start: u128,
        caller: Caller,
        counters: Arc<Counters>,
        clock: Arc<dyn Clock>,
        calls_max: usize,
    ) -> Self {
        let caller = ArcSwap::from_pointee(caller);
        Self { serial, dialled, key, start, caller, counters, clock, calls_max, state: Mutex::default() }
    }

    /// Calls the peer. The future's drop gives the call up.
    pub(super) fn call(
        self: &Arc<Self>,
        kind: u8,
        body: Bytes,
        within: Duration,
    ) -> Result<impl Future<Output = Result<Bytes, CallError>> + Send + use<>, NotBegun> {
        let (end, ended) = oneshot::channel();
        let (id, sleeper) = {
            let mut state = self.state();
            if state.over.is_some() || state.leaving || state.left {
                return Err(NotBegun::Gone);
            }
            if state.calls.len() >= self.calls_max || state.outbox.bytes() > CROWDED {
                self.counters.refused_here.fetch_add(1, Ordering::Relaxed);
                return Err(NotBegun::Busy);
            }
            let id = state.next;
            state.next += 1;
            state.calls.insert(id, Waiting { end, since: self.clock.now() });
            state.outbox.push(Message { what: What::Call, kind, id, body });
            (id, state.sleeper.take())
        };
        wake(sleeper);
        let mut call = Call { link: Arc::clone(self), id, over: false };
        Ok(async move {
            let end = tokio::time::timeout(within, ended).await;
            match end {
                Ok(Ok(end)) => {
                    call.ended();
                    end
                }
                Ok(Err(_)) => Err(CallError::Unknown(String::from("the connection was lost"))),
                Err(_) if call.give_up() => Err(CallError::Unreachable(format!(
                    "the connection was busy for the {within:?} that the call had"
                ))),
                Err(_) => {
                    call.link.counters.timed_out.fetch_add(1, Ordering::Relaxed);
                    Err(CallError::Unknown(format!("no answer within {within:?}")))
                }
            }
        })
    }

    /// Whether new calls can go this way.
    pub(super) fn is_usable(&self) -> bool {
        let state = self.state();
        state.over.is_none() && !state.leaving && !state.left
    }

    /// For how many ticks the peer has been silent.
    pub(super) fn silent(&self) -> u32 {
        self.state().silent
    }

    /// How many calls wait for an answer.
    pub(super) fn in_flight(&self) -> usize {
        self.state().calls.len()
    }

    /// Calls no more on this connection. It ends when both sides have said so and nothing is unanswered.
    pub(super) fn leave(&self) {
        let sleeper = {
            let mut state = self.state();
            state.leave();
            state.sleeper.take()
        };
        wake(sleeper);
    }

    /// Ends the connection now.
    pub(super) fn close(&self, reason: &str) {
        let sleeper = {
            let mut state = self.state();
            state.over.get_or_insert_with(|| reason.to_owned());
            state.sleeper.take()
        };
        wake(sleeper);
    }

    /// Tells the peer that this node's `Hello` is another one.
    pub(super) fn introduce(&self, hello: &Hello) {
        let body = Bytes::from(wire::encode(hello));
        self.send(Message { what: What::Hello, kind: 0, id: 0, body });
    }

    /// Puts a message that is no call in line.
    pub(super) fn send(&self, message: Message) {
        let sleeper = {
            let mut state = self.state();
            state.send(message);
            state.sleeper.take()
        };
        wake(sleeper);
    }

    /// The answer to one of the peer's calls that was not answered at once.
    fn answer(&self, kind: u8, id: u64, body: Option<Vec<u8>>) {
        let sleeper = {
            let mut state = self.state();
            state.owed -= 1;
            if let Some(body) = body {
                state.answer(kind, id, body);
            }
            state.sleeper.take()
        };
        wake(sleeper);
    }

    /// Counts a call that will be answered later; `None` if there are too many.
    pub(super) fn owe(self: &Arc<Self>, kind: u8, id: u64) -> Option<Owed> {
        let mut state = self.state();
        if state.owed == OWED_MAX {
            return None;
        }
        state.owed += 1;
        Some(Owed { link: Arc::clone(self), kind, id, body: None })
    }

    /// Whether the peer's call cannot be taken.
    pub(super) fn is_crowded(&self) -> bool {
        self.state().outbox.bytes() > CROWDED
    }

    /// A call has ended at the peer.
    pub(super) fn answered(&self, id: u64, end: Result<Bytes, CallError>) {
        let waiting = self.state().calls.remove(&id);
        // Given up: nobody wants it any more.
        let Some(waiting) = waiting else { return };
        self.counters.round_trips.record(self.clock.now().since(waiting.since));
        let _ = waiting.end.send(end);
    }

    /// The connection is over: ends every call that waits.
    pub(super) fn end(&self, reason: &str) {
        let (unsent, calls) = {
            let mut state = self.state();
            state.over.get_or_insert_with(|| reason.to_owned());
            let unsent: Vec<u64> = state.outbox.unsent_calls().collect();
            state.outbox = Outbox::default();
            (unsent, std::mem::take(&mut state.calls))
        };
        let unsent: std::collections::BTreeSet<u64> = unsent.into_iter().collect();
        for (id, waiting) in calls {
            let end = match unsent.contains(&id) {
                true => CallError::Unreachable(format!("the connection ended first: {reason}")),
                false => CallError::Unknown(format!("the connection ended: {reason}")),
            };
            let _ = waiting.end.send(Err(end));
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // Nothing that can panic runs under it but allocation.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    pub(super) const fn over(&self) -> Option<&Reason> {
        self.over.as_ref()
    }

    /// Calls no more.
    pub(super) const fn leave(&mut self) {
        self.leaving = true;
    }

    /// The peer said goodbye.
    pub(super) const fn left(&mut self) {
        self.left = true;
        self.leaving = true;
    }

    /// Whether there is something to write.
    pub(super) fn has_work(&self) -> bool {
        !self.outbox.is_empty() || (self.leaving && !self.goodbye)
    }

    /// Appends the frames of the next record to `record`.
    pub(super) fn fill(&mut self, record: &mut Vec<u8>) {
        if self.leaving && !self.goodbye && !self.outbox.has_calls() {
            self.goodbye = true;
            self.outbox.push(Message::bare(What::Goodbye, 0));
        }
        self.outbox.fill(record);
    }

    /// Whether both sides are done.
    pub(super) fn is_done(&self) -> bool {
        self.goodbye && self.left && self.calls.is_empty() && self.owed == 0 && self.outbox.is_empty()
    }

    pub(super) fn send(&mut self, message: Message) {
        if self.over.is_some() {
            return;
        }
        self.outbox.push(message);
        if self.outbox.bytes() > OVERRUN {
            self.over = Some(String::from("the peer does not read what it asked for"));
        }
    }

    pub(super) fn answer(&mut self, kind: u8, id: u64, body: Vec<u8>) {
        if body.len() > wire::MESSAGE_MAX {
            tracing::error!(
                kind,
                bytes = body.len(),
                "an answer is too large to be sent: its call will time out"
            );
            return;
        }
        self.send(Message { what: What::Answer, kind, id, body: Bytes::from(body) });
    }
}

fn wake(sleeper: Option<Waker>) {
    if let Some(sleeper) = sleeper {
        sleeper.wake();
    }
}

/// A call that waits. Its drop gives it up.
struct Call {
    link: Arc<Link>,
    id: u64,
    over: bool,
}

impl Call {
    /// It has ended at the peer.
    fn ended(&mut self) {
        self.over = true;
    }

    /// Waits no more. True if nothing of the call was sent, and nothing will be.
    fn give_up(&mut self) -> bool {
        if std::mem::replace(&mut self.over, true) {
            return false;
        }
        let mut state = self.link.state();
        state.calls.remove(&self.id);
        let unsent = state.outbox.withdraw(self.id);
        // It may have been all that the connection waited for.
        let sleeper = if state.leaving { state.sleeper.take() } else { None };
        drop(state);
        wake(sleeper);
        unsent
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// A call of the peer that is being answered. Its drop without an answer lets the peer's call time out.
pub(super) struct Owed {
    link: Arc<Link>,
    kind: u8,
    id: u64,
    body: Option<Vec<u8>>,
}

impl Owed {
    pub(super) fn pay(mut self, body: Vec<u8>) {
        self.body = Some(body);
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        self.link.answer(self.kind, self.id, self.body.take());
    }
}

/// Counts upwards for ever.
#[derive(Debug, Default)]
pub(super) struct Serials(AtomicU64);

impl Serials {
    pub(super) fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

impl From<Busy> for CallError {
    fn from(busy: Busy) -> Self {
        Self::Refused(busy)
    }
}
