//! An HTTP/1 connection to a provider, driven by whoever waits for its answer.
//!
//! The library parts a connection from the handle that sends requests over it, and leaves it to somebody else to poll. A task of its
//! own for that costs two wake-ups for each piece of an answer: one to read it, one to pass it on. Here the two are polled together,
//! from the task that wants the piece, and where that task is not there to poll, nothing is read: back-pressure, and the end of an
//! exchange that was given up, come of themselves.

use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::{Body, Frame, Incoming};
use hyper::client::conn::http1;
use hyper_rustls::MaybeHttpsStream;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

pub(super) type Socket = MaybeHttpsStream<TokioIo<TcpStream>>;
type Driver = http1::Connection<Socket, Full<Bytes>>;

/// Why a request got no answer; the request itself where not a byte of it was written.
pub(super) type Unsent = hyper::client::conn::TrySendError<Request<Full<Bytes>>>;

/// A connection with nothing under way, or with one exchange.
pub(super) struct Connection {
    requests: http1::SendRequest<Full<Bytes>>,
    driven: Driven,
}

/// The half that has to be polled.
struct Driven {
    /// None once it is closed.
    driver: Option<Driver>,
    bell: Arc<Bell>,
    /// Rings the bell.
    ringer: Waker,
    /// Who was told of last when it rings: the bell's own copy is behind a lock.
    told: Waker,
}

impl Connection {
    /// A connection over which nothing was sent.
    pub fn new(requests: http1::SendRequest<Full<Bytes>>, driver: Driver) -> Self {
        let nobody = Waker::noop();
        let bell = Arc::new(Bell { state: AtomicU8::new(RUNG), task: Mutex::new(nobody.clone()) });
        let ringer = Waker::from(bell.clone());
        Self { requests, driven: Driven { driver: Some(driver), bell, ringer, told: nobody.clone() } }
    }

    /// Sends a request, and waits for the head of its answer.
    pub async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, Unsent> {
        let Self { requests, driven } = self;
        let mut answer = pin!(requests.try_send_request(request));
        std::future::poll_fn(|context| driven.poll_for(context, |context| answer.as_mut().poll(context)))
            .await
    }

    /// The next of `body`, which is that of the answer under way.
    pub fn poll_frame(
        &mut self,
        body: &mut Incoming,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = self.driven.poll_for(context, |context| Pin::new(body).poll_frame(context));
        polled.map_ok(|frame| frame.map_data(apart))
    }

    /// Whether another request can be sent over it: the last exchange is over on both sides, and the provider has neither closed it
    /// nor said anything unasked.
    pub fn is_free(&mut self) -> bool {
        let Self { requests, driven } = self;
        // Nobody waits for it meanwhile: what happens to it is seen at the next look.
        driven.tell(Waker::noop());
        poll(&mut driven.driver, &mut Context::from_waker(Waker::noop()));
        driven.bell.state.store(RUNG, Ordering::Release);
        driven.driver.is_some() && requests.is_ready()
    }
}

impl Driven {
    /// Polls the connection, and then what is waited for from it.
    fn poll_for<T>(
        &mut self,
        context: &mut Context<'_>,
        wanted: impl FnOnce(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        self.tell(context.waker());
        if !self.bell.has_rung() {
            return Poll::Pending;
        }
        poll(&mut self.driver, &mut Context::from_waker(&self.ringer));
        // It comes from the connection alone, which has just been polled: there is nothing else that could wake for it.
        let polled = wanted(&mut Context::from_waker(Waker::noop()));
        if polled.is_ready() {
            self.bell.state.store(RUNG, Ordering::Release);
        } else if !self.bell.rests() {
            // The connection has more to do and leaves others their turn first.
            context.waker().wake_by_ref();
        }
        polled
    }

    fn tell(&mut self, waker: &Waker) {
        if !self.told.will_wake(waker) {
            self.told.clone_from(waker);
            self.bell.task().clone_from(waker);
        }
    }
}

/// Lets go of it when it is closed.
fn poll(driver: &mut Option<Driver>, context: &mut Context<'_>) {
    if driver.as_mut().is_some_and(|driver| Pin::new(driver).poll(context).is_ready()) {
        *driver = None;
    }
}

/// Up to this size a piece of an answer is copied out of what was read.
const COPIED: usize = 1024;

/// A piece that does not keep the buffer that it was read into. The connection is asked for the next piece before this one is written:
/// it would have to take a new buffer each time, kilobytes for the sake of a few hundred bytes.
fn apart(piece: Bytes) -> Bytes {
    if piece.len() <= COPIED { Bytes::copy_from_slice(&piece) } else { piece }
}

/// Nothing has happened since the connection was last polled: its task is woken by what does.
const QUIET: u8 = 0;
/// It is being polled: what happens now is seen by who polls.
const BUSY: u8 = 1;
/// Something has happened, or the last poll had a result: the next poll is not for nothing.
const RUNG: u8 = 2;

/// What a connection wakes. It tells news from the echo of a poll, in which both halves of the library's connection wake each other:
/// with a task's own waker, each piece of an answer would have the whole task polled once more for nothing.
struct Bell {
    state: AtomicU8,
    /// Stays when it was woken: it is nearly always the same.
    task: Mutex<Waker>,
}

impl Bell {
    fn task(&self) -> MutexGuard<'_, Waker> {
        self.task.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is something to poll for. True: it is busy.
    fn has_rung(&self) -> bool {
        self.state.compare_exchange(RUNG, BUSY, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// The poll is over. False: it rang meanwhile.
    fn rests(&self) -> bool {
        self.state.compare_exchange(BUSY, QUIET, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.state.swap(RUNG, Ordering::AcqRel) == QUIET {
            self.task().wake_by_ref();
        }
    }
}
