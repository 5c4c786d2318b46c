//! An answer on its way to a caller, held so that it can be taken back from one that does not read it.
//!
//! The library polls an answer only when there is room for more. A caller that shuts its window stops the polls, and with them every
//! time-out inside the answer: so the connection's watch gives the answer up from outside. Its reservation ends there and then, and
//! the provider is let go.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::Instant;

use super::super::body::AnswerBody;
use super::watch::Watch;

/// An answer that a connection's watch can give up.
pub struct Held(Mutex<State>);

struct State {
    /// None once it was given up.
    answer: Option<AnswerBody>,
    /// When the last piece was handed over; none while the next is waited for.
    unread_since: Option<Instant>,
}

impl Held {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a piece of it has lain unread so long.
    pub fn is_unread(&self, now: Instant, bound: Duration) -> bool {
        self.state().unread_since.is_some_and(|since| now >= since + bound)
    }

    /// Whether it was given up.
    pub fn is_given_up(&self) -> bool {
        self.state().answer.is_none()
    }

    /// Lets go of what is left of it.
    pub fn give_up(&self, now: Instant) {
        let mut state = self.state();
        state.unread_since = Some(now);
        let answer = state.answer.take();
        drop(state);
        drop(answer);
    }
}

/// The body that the library sends.
pub struct HeldBody {
    held: Arc<Held>,
    watch: Arc<Watch>,
    /// Whether the watch looks at when it was last read.
    is_watched: bool,
}

impl HeldBody {
    /// Begins to hold an answer; [`Watch::begins`] was called for its request.
    pub fn new(answer: AnswerBody, watch: Arc<Watch>) -> Self {
        let held = Arc::new(Held(Mutex::new(State { answer: Some(answer), unread_since: None })));
        let is_watched = watch.hold(&held);
        Self { held, watch, is_watched }
    }
}

impl Drop for HeldBody {
    fn drop(&mut self) {
        self.watch.let_go(&self.held);
        self.watch.ends(crate::clock::timer_now());
    }
}

impl Body for HeldBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let mut state = self.held.state();
        let Some(answer) = &mut state.answer else {
            return Poll::Ready(Some(Err(io::Error::new(io::ErrorKind::TimedOut, "it was not read"))));
        };
        let polled = Pin::new(answer).poll_frame(context);
        let handed_over = matches!(polled, Poll::Ready(Some(_)));
        state.unread_since = (handed_over && self.is_watched).then(crate::clock::timer_now);
        polled.map(|frame| frame.map(|frame| frame.map_err(io::Error::other)))
    }

    fn is_end_stream(&self) -> bool {
        self.held.state().answer.as_ref().is_some_and(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.held.state().answer.as_ref().map_or_else(SizeHint::default, Body::size_hint)
    }
}
