//! A caller's socket, behind which only strict HTTP arrives.
//!
//! Over HTTP/1 each request head is held back until it is whole and [`head::check`] has let it through; then the library gets it byte
//! for byte, and of what follows exactly the body that the head announced. Where a head is refused the library gets one of ours in
//! its place, so that the refusal is answered in its turn like any request, and not a byte more of the connection: what follows a
//! refused head has no meaning. HTTP/2 is told by its preface and passes, its idle frames counted.
//!
//! Memory: at most the bound of one head, and only while one arrives.

use std::future::Future;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::chunks::Chunks;
use super::frames::Frames;
use super::head::{self, Bounds, Framing, Look, Refusal, Scan};
use super::watch::Watch;

/// The method of the request that stands for a refused head. No caller can send it: over HTTP/1 it is a refused head itself, and over
/// HTTP/2 a method like any that nobody knows.
pub const REFUSED: &str = "TOLLGATE-REFUSED";

/// RFC 9113 §3.4.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Read at once while a head arrives.
const PIECE: usize = 2 * 1024;
/// What is written in pieces is copied together up to this size, which a piece of a stream rarely exceeds: the kernel takes one piece
/// for less than three, and the copy is cheaper than the difference.
const COPIED: usize = 1024;
/// Empty lines that are passed over before a request line: RFC 9112 §2.2 has some old callers send one.
const EMPTY_LINES: usize = 2;
/// What is read and thrown away after our last word, so that the caller gets to read it: a socket that is closed with bytes unread
/// is reset, and a reset may overtake the answer.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES: usize = 1024 * 1024;

/// A caller's socket.
pub struct Wire<S> {
    inner: S,
    watch: Arc<Watch>,
    bounds: Bounds,
    reading: Reading,
    /// Read and not handed on yet: a head that is not whole, or what came with the end of a body.
    held: BytesMut,
    /// Let through and not handed on yet.
    passed: BytesMut,
    scan: Scan,
    first: bool,
    empty_lines: usize,
    ended: bool,
    lingering: Option<(Pin<Box<Sleep>>, usize)>,
}

enum Reading {
    Head,
    Length(u64),
    Chunked(Chunks),
    Http2(Box<Frames>),
    Refused,
}

impl<S> Wire<S> {
    /// Watches over `inner`, of which nothing was read yet.
    pub fn new(inner: S, watch: Arc<Watch>, bounds: Bounds) -> Self {
        Self {
            inner,
            watch,
            bounds,
            reading: Reading::Head,
            held: BytesMut::new(),
            passed: BytesMut::new(),
            scan: Scan::default(),
            first: true,
            empty_lines: 0,
            ended: false,
            lingering: None,
        }
    }

    /// Looks at what is held of a head. False: more of it has to be read.
    fn judge(&mut self) -> bool {
        if self.watch.is_late() {
            self.refuse(Refusal::Late);
            return true;
        }
        if self.held.is_empty() {
            return false;
        }
        let now = crate::clock::timer_now();
        if std::mem::take(&mut self.first)
            && PREFACE.starts_with(&self.held[..self.held.len().min(PREFACE.len())])
        {
            self.first = self.held.len() < PREFACE.len();
            if !self.first {
                self.watch.is_multiplexed(now);
                let mut frames = Box::new(Frames::new(now));
                // What came with the preface is a few frames at most.
                let _few = frames.pass(&self.held[PREFACE.len()..], crate::clock::timer_now);
                self.reading = Reading::Http2(frames);
                self.passed = std::mem::take(&mut self.held);
            }
            return !self.first;
        }
        while self.scan.is_at_start() && self.held.starts_with(b"\r\n") && self.empty_lines < EMPTY_LINES {
            self.held.advance(2);
            self.empty_lines += 1;
        }
        if self.scan.is_at_start() && *self.held == *b"\r" {
            return false;
        }
        let verdict = self.scan.look(&self.held, &self.bounds).and_then(|look| match look {
            Look::Unfinished => Ok(None),
            Look::Ends(end) => {
                head::check(&self.held[..end], &self.bounds).map(|framing| Some((end, framing)))
            }
        });
        match verdict {
            Ok(None) => return false,
            Ok(Some((end, framing))) => {
                self.passed = self.held.split_to(end);
                if self.held.is_empty() {
                    // An idle connection keeps no buffer.
                    self.held = BytesMut::new();
                }
                (self.scan, self.empty_lines) = (Scan::default(), 0);
                self.watch.head_ends(now);
                self.reading = match framing {
                    Framing::Length(0) => Reading::Head,
                    Framing::Length(length) => Reading::Length(length),
                    Framing::Chunked => Reading::Chunked(Chunks::new()),
                };
                if matches!(self.reading, Reading::Head) && !self.held.is_empty() {
                    self.watch.head_begins(now);
                }
            }
            Err(refusal) => self.refuse(refusal),
        }
        true
    }

    /// Puts a request of ours in the place of the head that is held.
    fn refuse(&mut self, refusal: Refusal) {
        // The route is told by the target, wherever the rest went wrong, so that the answer has the right shape.
        let path =
            if memchr::memmem::find(&self.held, b" /v1/messages").is_some() { "/v1/messages" } else { "/" };
        let head = format!("{REFUSED} {path} HTTP/1.1\r\nhost: refused\r\nconnection: close\r\n\r\n");
        self.watch.refuse(refusal);
        self.watch.head_ends(crate::clock::timer_now());
        self.held = BytesMut::new();
        self.passed = BytesMut::from(head.as_bytes());
        self.reading = Reading::Refused;
    }

    /// How many of `bytes`, the next after the head, are its body's.
    fn portion(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let (portion, over) = match &mut self.reading {
            Reading::Length(left) => {
                let portion = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                *left -= portion as u64;
                (portion, *left == 0)
            }
            Reading::Chunked(chunks) => match chunks.pass(bytes) {
                Ok(end) => (end.unwrap_or(bytes.len()), end.is_some()),
                Err(bad) => return Err(self.broken(bad.0)),
            },
            Reading::Http2(frames) => {
                if frames.pass(bytes, crate::clock::timer_now).is_err() {
                    self.watch.is_flooded();
                    return Err(self.broken("a flood of frames that do nothing"));
                }
                (bytes.len(), false)
            }
            Reading::Head | Reading::Refused => (bytes.len(), false),
        };
        if over {
            self.reading = Reading::Head;
            if portion < bytes.len() {
                self.watch.head_begins(crate::clock::timer_now());
            }
        }
        Ok(portion)
    }

    fn broken(&mut self, why: &'static str) -> io::Error {
        self.reading = Reading::Refused;
        io::Error::new(io::ErrorKind::InvalidData, why)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Wire<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while this.passed.is_empty() {
            match this.reading {
                // The library has all that it will get; it closes when it has answered.
                Reading::Refused => return Poll::Pending,
                Reading::Head => {
                    if this.judge() {
                        continue;
                    }
                    // Not zeroed: the library asks with each piece of an answer, and there is nothing.
                    let mut piece = [MaybeUninit::uninit(); PIECE];
                    let mut piece = ReadBuf::uninit(&mut piece);
                    ready!(Pin::new(&mut this.inner).poll_read(context, &mut piece))?;
                    if piece.filled().is_empty() {
                        this.ended = true;
                        return Poll::Ready(Ok(()));
                    }
                    if this.held.is_empty() {
                        this.watch.head_begins(crate::clock::timer_now());
                    }
                    this.held.extend_from_slice(piece.filled());
                }
                _ if this.held.is_empty() => {
                    let before = out.filled().len();
                    ready!(Pin::new(&mut this.inner).poll_read(context, out))?;
                    this.ended = out.filled().len() == before;
                    let portion = this.portion(&out.filled()[before..])?;
                    this.held = BytesMut::from(&out.filled()[before + portion..]);
                    out.set_filled(before + portion);
                    return Poll::Ready(Ok(()));
                }
                _ => {
                    let mut held = std::mem::take(&mut this.held);
                    let portion = this.portion(&held[..held.len().min(out.remaining())])?;
                    out.put_slice(&held[..portion]);
                    held.advance(portion);
                    this.held = if held.is_empty() { BytesMut::new() } else { held };
                    return Poll::Ready(Ok(()));
                }
            }
        }
        let ready = this.passed.len().min(out.remaining());
        out.put_slice(&this.passed[..ready]);
        this.passed.advance(ready);
        if this.passed.is_empty() {
            this.passed = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Wire<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.inner).poll_write(context, bytes);
        this.noted(written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let size: usize = pieces.iter().map(|piece| piece.len()).sum();
        if size > COPIED {
            let written = Pin::new(&mut this.inner).poll_write_vectored(context, pieces);
            return this.noted(written);
        }
        let mut copied = [MaybeUninit::uninit(); COPIED];
        let mut copied = ReadBuf::uninit(&mut copied);
        pieces.iter().for_each(|piece| copied.put_slice(piece));
        let written = Pin::new(&mut this.inner).poll_write(context, copied.filled());
        this.noted(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.inner).poll_flush(context);
        if flushed.is_pending() {
            this.watch.full(crate::clock::timer_now());
        }
        flushed
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.lingering.is_none() {
            ready!(Pin::new(&mut this.inner).poll_shutdown(context))?;
            let unread = !matches!(this.reading, Reading::Head | Reading::Http2(_)) || !this.held.is_empty();
            if !unread || this.ended {
                return Poll::Ready(Ok(()));
            }
            this.lingering = Some((Box::pin(tokio::time::sleep(LINGER)), LINGER_BYTES));
        }
        this.linger(context).map(Ok)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Wire<S> {
    fn noted(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match &written {
            Poll::Ready(Ok(bytes)) => self.watch.taken(*bytes),
            Poll::Ready(Err(_)) => {}
            Poll::Pending => self.watch.full(crate::clock::timer_now()),
        }
        written
    }

    /// Reads and throws away what the caller still sends: until it closes, for a while, up to a bound.
    fn linger(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some((timer, left)) = &mut self.lingering else { return Poll::Ready(()) };
        let mut piece = [0; PIECE];
        loop {
            let mut piece = ReadBuf::new(&mut piece);
            match Pin::new(&mut self.inner).poll_read(context, &mut piece) {
                Poll::Ready(Ok(())) if !piece.filled().is_empty() && *left > 0 => {
                    *left = left.saturating_sub(piece.filled().len());
                }
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => return timer.as_mut().poll(context),
            }
        }
    }
}
