//! A request's body, which must keep coming: not silent for long, and not slower than a rate.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep};

/// The least that is expected of a body.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// The longest silence.
    pub silence: Duration,
    /// Bytes a second, over all of it…
    pub rate: u32,
    /// …once this long has passed.
    pub grace: Duration,
}

/// It came too slowly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Late;

impl fmt::Display for Late {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("the request body did not arrive in time")
    }
}

impl std::error::Error for Late {}

/// A body under a pace.
pub struct Paced<B> {
    inner: Pin<Box<B>>,
    pace: Pace,
    began: Instant,
    last: Instant,
    bytes: u64,
    /// Made when there is first something to wait for: most bodies are there with their heads.
    timer: Option<Pin<Box<Sleep>>>,
}

impl<B> Paced<B> {
    /// Expects `pace` of `inner` from now on.
    pub fn new(inner: B, pace: Pace) -> Self {
        let now = crate::clock::timer_now();
        Self { inner: Box::pin(inner), pace, began: now, last: now, bytes: 0, timer: None }
    }

    fn due(&self) -> Instant {
        let millis = self.bytes.saturating_mul(1_000) / u64::from(self.pace.rate.max(1));
        let slow = self.began + self.pace.grace.max(Duration::from_millis(millis));
        slow.min(self.last + self.pace.silence)
    }
}

impl<B> Body for Paced<B>
where
    B: Body<Data = bytes::Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>,
{
    type Data = bytes::Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        if let Poll::Ready(frame) = self.inner.as_mut().poll_frame(context) {
            if let Some(Ok(frame)) = &frame {
                let bytes = frame.data_ref().map_or(0, bytes::Bytes::len);
                self.bytes += bytes as u64;
                if bytes > 0 {
                    self.last = crate::clock::timer_now();
                }
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        loop {
            let due = self.due();
            if crate::clock::timer_now() >= due {
                return Poll::Ready(Some(Err(Late.into())));
            }
            let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(due)));
            if timer.deadline() > due || timer.is_elapsed() {
                timer.as_mut().reset(due);
            }
            if timer.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use bytes::Bytes;
    use http_body_util::{BodyExt, StreamBody};

    use super::*;
    use crate::clock::timer_now;

    const PACE: Pace = Pace { silence: Duration::from_secs(30), rate: 500, grace: Duration::from_secs(10) };

    /// A piece of so many bytes after each pause. How long it took to be read, or to be given up.
    async fn read(pieces: &'static [(u64, usize)]) -> (bool, u64) {
        let stream = futures_util::stream::unfold(pieces.iter(), async |mut left| {
            let (pause, size) = left.next()?;
            let silence = std::future::pending::<()>();
            let _passed = tokio::time::timeout(Duration::from_secs(*pause), silence).await;
            Some((Ok::<_, Infallible>(Frame::data(Bytes::from(vec![b' '; *size]))), left))
        });
        let began = timer_now();
        let whole = Paced::new(StreamBody::new(stream), PACE).collect().await;
        (whole.is_ok(), began.elapsed().as_secs())
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_keeps_coming_may_take_as_long_as_it_likes() {
        assert_eq!(read(&[]).await, (true, 0));
        assert_eq!(read(&[(9, 1)]).await, (true, 9));
        assert_eq!(read(&[(1, 30_000), (29, 30_000), (29, 1)]).await, (true, 59));
    }

    #[tokio::test(start_paused = true)]
    async fn silence_and_slowness_are_late() {
        assert_eq!(read(&[(100, 1)]).await, (false, 10));
        assert_eq!(read(&[(0, 1_000_000), (100, 1)]).await, (false, 30));
        assert_eq!(read(&[(1, 1); 100]).await, (false, 10));
        assert_eq!(read(&[(1, 6_000), (100, 1)]).await, (false, 12));
    }
}
