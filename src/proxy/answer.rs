//! What a provider said becomes what a caller gets, and ends the reservation.
//!
//! | the provider's answer | the caller gets | the reservation |
//! |---|---|---|
//! | success, whole, with usage | its bytes | settles with it |
//! | success, whole, without usage | its bytes | closes at the estimate |
//! | success on a route that is passed through | its bytes, unread | closes at the route's price |
//! | a stream that ends with usage | its bytes | settles with it |
//! | a stream that ends without, or breaks | its bytes, then an error event if it broke | closes at the estimate |
//! | a stream whose caller leaves | – | settles with the larger of what was reported and what was counted, or closes, as the policy says |
//! | failure | its bytes and status | closes at the estimate |

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use hyper::body::Body;
use tokio::time::{Instant, Sleep};

use super::body::AnswerBody;
use super::kept;
use super::limits;
use super::pipeline::Edge;
use super::reject::Rejection;
use crate::estimate::{Encoding, count_text};
use crate::limit::{Amount, Name};
use crate::meter::{
    Metered, Shape, StreamEnd, StreamMeter, StreamMeterOptions, Told, Usage, read_response, usage_of_body,
};
use crate::node::{Guard, Receipt, amount};
use crate::policy::OnDisconnect;
use crate::route::{Dialect, Endpoint};
use crate::upstream::decode::{self, Decoder, Undecodable};
use crate::upstream::{ProviderBody, Upstream, hygiene};

/// The most of a whole answer that is held in memory. The largest embedding batches are below it.
const MAX_WHOLE_ANSWER: usize = 64 * 1024 * 1024;

/// An exchange whose answer has begun.
pub(super) struct Exchange {
    pub edge: Arc<Edge>,
    pub guard: Guard,
    pub endpoint: Endpoint,
    pub dialect: Dialect,
    pub upstream: Arc<Upstream>,
    /// Who owns what the provider keeps of it; none when nothing is kept.
    pub keeping: Option<Keeping>,
    /// How many answers were asked for.
    pub choices: u32,
    /// Whether the caller did not ask for usage in its stream.
    pub drop_usage: bool,
    /// Whether this endpoint's answers report usage at all.
    pub has_usage: bool,
    pub on_disconnect: Option<OnDisconnect>,
    pub encoding: Encoding,
    /// When the exchange has to be over.
    pub deadline: Instant,
}

/// What becomes of a response that the provider keeps.
#[derive(Clone)]
pub(super) struct Keeping {
    /// Whose it is.
    pub tenant: Name,
    /// Whether it is made after its request is over.
    pub background: bool,
}

/// Passes a provider's answer on.
pub(super) async fn pass_on(
    exchange: Exchange,
    response: Response<ProviderBody>,
) -> Result<Response<AnswerBody>, Rejection> {
    let (mut parts, body) = response.into_parts();
    let comes_in_pieces = is_event_stream(&parts.headers)
        || matches!(exchange.endpoint, Endpoint::StreamGenerateContent | Endpoint::PassedThrough);
    let is_stream = parts.status.is_success() && comes_in_pieces;
    let bounds = if is_stream { decode::Bounds::STREAM } else { decode::Bounds::whole(MAX_WHOLE_ANSWER) };
    let decoder = match Decoder::of(&parts.headers, bounds) {
        Ok(decoder) if !hygiene::length_is_said_twice(&parts.headers) => decoder,
        refused => {
            let why = match refused {
                Ok(_) => "says in two ways how long it is",
                Err(_) => "has a Content-Encoding that was not asked for",
            };
            let provider = exchange.upstream.name.clone();
            exchange.guard.close("undecodable");
            return Err(Rejection::upstream_unreadable(&provider, why));
        }
    };
    let levels = *exchange.guard.levels();
    let dialect = exchange.dialect;
    let rate_limited = parts.status == StatusCode::TOO_MANY_REQUESTS;
    let shape = match Shape::of(exchange.endpoint) {
        // Without `alt=sse` the chunks are elements of an array.
        Shape::Gemini if !is_event_stream(&parts.headers) => Shape::GeminiArray,
        shape => shape,
    };
    parts.headers = hygiene::inbound(&parts.headers);
    if !decoder.is_identity() {
        parts.headers.remove(header::CONTENT_ENCODING);
    }
    if rate_limited {
        // The provider's own limit: it must not look like the tenant's.
        parts.headers.insert("x-tollgate-error", HeaderValue::from_static("upstream_rate_limited"));
    }
    parts.extensions.clear();
    limits::add(&mut parts.headers, dialect, &levels, crate::clock::wall_now());
    let body = if is_stream {
        AnswerBody::Stream(Box::new(MeteredStream::new(exchange, shape, body, decoder)))
    } else {
        AnswerBody::whole(whole(exchange, parts.status, body, decoder).await?)
    };
    Ok(Response::from_parts(parts, body))
}

/// Reads a whole answer and ends the reservation before the caller sees it: who asks again at once finds its refund.
async fn whole(
    exchange: Exchange,
    status: StatusCode,
    body: ProviderBody,
    mut decoder: Decoder,
) -> Result<Bytes, Rejection> {
    let reading = tokio::time::timeout_at(exchange.deadline, Limited::new(body, MAX_WHOLE_ANSWER).collect());
    let bytes = match reading.await {
        Ok(Ok(collected)) => decoded(&mut decoder, collected.to_bytes()).map_err(|_| "cannot be decoded"),
        Ok(Err(_)) => Err("broke off or is too large"),
        Err(_elapsed) => Err("did not end in time"),
    };
    let Exchange { guard, endpoint, upstream, has_usage, edge, choices, keeping, .. } = exchange;
    let bytes = match bytes {
        Ok(bytes) => bytes,
        Err(why) => {
            guard.close("provider_failed");
            return Err(Rejection::upstream_unreadable(&upstream.name, why));
        }
    };
    if !status.is_success() {
        guard.close("provider_failed");
        return Ok(upstream.redacted(bytes));
    }
    if let Some(keeping) = keeping
        && let Some(told) = read_response(&bytes)
    {
        let guard = kept::keep(&edge, &keeping, &upstream.name, &told, guard);
        if let Some(guard) = guard {
            match told.usage {
                Metered::Exact(usage) => guard.settle_complete(usage, endpoint.spoken(), choices),
                Metered::AtLeast(_) | Metered::Unknown => guard.close("no_usage"),
            };
        }
        return Ok(bytes);
    }
    if !has_usage {
        guard.settle(Amount::default(), "nothing_billed");
    } else {
        match usage_of_body(Shape::of(endpoint), &bytes) {
            Metered::Exact(usage) => guard.settle_complete(usage, endpoint.spoken(), choices),
            Metered::AtLeast(_) | Metered::Unknown => {
                edge.node.metrics.usage_unknown.with(vec![("provider", upstream.name.clone())]).inc();
                guard.close("no_usage")
            }
        };
    }
    Ok(bytes)
}

fn decoded(decoder: &mut Decoder, body: Bytes) -> Result<Bytes, Undecodable> {
    let bytes = decoder.feed(body)?;
    let rest = decoder.finish()?;
    Ok(if rest.is_empty() { bytes } else { Bytes::from([bytes, rest].concat()) })
}

fn is_event_stream(headers: &http::HeaderMap) -> bool {
    let essence = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    essence.split(';').next().is_some_and(|essence| essence.trim().eq_ignore_ascii_case("text/event-stream"))
}

/// The provider's stream broke where nothing can be said of it: the connection to the caller is cut as well, so that what came
/// is not taken for the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the provider's answer broke off")]
pub struct Cut;

/// A provider's stream on its way to a caller. Its reservation ends with it, whichever way that is.
pub struct MeteredStream {
    /// None when the stream is over.
    live: Option<Live>,
    inner: ProviderBody,
    decoder: Decoder,
    dialect: Dialect,
    /// Looked at when it fires, not moved with every chunk.
    timer: Pin<Box<Sleep>>,
    last_chunk: Instant,
    idle_timeout: Duration,
    deadline: Instant,
    inner_over: bool,
}

struct Live {
    guard: Guard,
    meter: StreamMeter,
    choices: u32,
    on_disconnect: Option<OnDisconnect>,
    edge: Arc<Edge>,
    provider: Arc<Upstream>,
    /// Whether it is passed through at a price.
    unread: bool,
    keeping: Option<Keeping>,
}

impl MeteredStream {
    fn new(exchange: Exchange, shape: Shape, inner: ProviderBody, decoder: Decoder) -> Self {
        let Exchange {
            edge,
            guard,
            dialect,
            upstream,
            choices,
            drop_usage,
            on_disconnect,
            encoding,
            deadline,
            keeping,
            ..
        } = exchange;
        let meter = StreamMeter::new(StreamMeterOptions {
            shape,
            expected_choices: choices,
            drop_usage_chunk: drop_usage && upstream.include_usage,
            count: Arc::new(move |text| count_text(text, encoding)),
            phase: rand::random(),
        });
        let unread = shape == Shape::Opaque;
        let now = crate::clock::timer_now();
        let idle_timeout = upstream.timeouts.idle;
        Self {
            live: Some(Live {
                guard,
                meter,
                choices,
                on_disconnect,
                edge,
                provider: upstream,
                unread,
                keeping,
            }),
            inner,
            decoder,
            dialect,
            timer: Box::pin(tokio::time::sleep_until(deadline.min(now + idle_timeout))),
            last_chunk: now,
            idle_timeout,
            deadline,
            inner_over: false,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.inner_over
    }

    pub(super) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Cut>>> {
        loop {
            if self.inner_over {
                return Poll::Ready(None);
            }
            let frame = match Pin::new(&mut self.inner).poll_frame(context) {
                Poll::Ready(frame) => frame,
                Poll::Pending => match self.check_time(context) {
                    None => return Poll::Pending,
                    Some(why) => return Poll::Ready(self.broken("upstream_timeout", why)),
                },
            };
            self.last_chunk = crate::clock::timer_now();
            let data = match frame {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => data,
                    Err(_trailers) => continue,
                },
                Some(Err(_)) => {
                    return Poll::Ready(self.broken("upstream_broken", "The provider's stream broke off."));
                }
                None => return Poll::Ready(self.ended()),
            };
            let Ok(data) = self.decoder.feed(data) else {
                return Poll::Ready(
                    self.broken("upstream_unreadable", "The provider's stream cannot be decoded."),
                );
            };
            let relayed = self.meter(data);
            if !relayed.is_empty() {
                return Poll::Ready(Some(Ok(relayed)));
            }
        }
    }

    /// Meters a chunk. With the stream's own end mark the reservation ends, before the caller sees the mark: who asks again at once
    /// finds its refund and its slot.
    fn meter(&mut self, chunk: Bytes) -> Bytes {
        let Some(live) = &mut self.live else { return chunk };
        let relayed = live.meter.feed(chunk);
        if live.meter.end_marker_seen()
            && let Some(live) = self.live.take()
        {
            live.finish(StreamEnd::Clean);
        }
        relayed
    }

    fn ended(&mut self) -> Option<Result<Bytes, Cut>> {
        let Ok(rest) = self.decoder.finish() else {
            return self.broken("upstream_unreadable", "The provider's stream ended within its encoding.");
        };
        let rest = self.meter(rest);
        self.inner_over = true;
        let held = self.live.take().map(|mut live| {
            let held = live.meter.take_held();
            live.finish(StreamEnd::Clean);
            held
        });
        let last = match held {
            Some(held) if !held.is_empty() => Bytes::from([rest, held].concat()),
            _ => rest,
        };
        (!last.is_empty()).then_some(Ok(last))
    }

    /// The status line has gone out, so the failure is told in the stream.
    fn broken(&mut self, code: &'static str, message: &str) -> Option<Result<Bytes, Cut>> {
        self.inner_over = true;
        let live = self.live.take()?;
        let told = live.meter.failure(self.dialect, code, message);
        live.guard.close("provider_failed");
        Some(told.ok_or(Cut))
    }

    fn check_time(&mut self, context: &mut Context<'_>) -> Option<&'static str> {
        while self.timer.as_mut().poll(context).is_ready() {
            let now = crate::clock::timer_now();
            if now >= self.deadline {
                return Some("The answer took longer than this gateway allows.");
            }
            if now >= self.last_chunk + self.idle_timeout {
                return Some("The provider's stream fell silent.");
            }
            let next = self.deadline.min(self.last_chunk + self.idle_timeout);
            self.timer.as_mut().reset(next);
        }
        None
    }
}

impl Live {
    /// The provider's side is over.
    fn finish(self, end: StreamEnd) -> Receipt {
        let Self { guard, meter, choices, edge, provider, unread, keeping, .. } = self;
        if unread {
            return guard.close("fixed_cost");
        }
        let failed = meter.error_seen();
        if let (Some(keeping), Some(id)) = (&keeping, meter.response_id()) {
            let context = guard.held().total;
            kept::own(&edge, keeping, &provider.name, id, context);
        }
        match meter.finish(end) {
            Metered::Exact(usage) => guard.settle_complete(usage, provider.dialect, choices),
            _ if failed => guard.close("provider_failed"),
            Metered::AtLeast(_) => guard.close("incomplete"),
            Metered::Unknown => {
                edge.node.metrics.usage_unknown.with(vec![("provider", provider.name.clone())]).inc();
                guard.close("no_usage")
            }
        }
    }

    /// The caller's side is over. Dropping the provider's stream cancels it.
    fn caller_gone(self) {
        let Self { guard, meter, on_disconnect, provider, unread, keeping, edge, .. } = self;
        if let (Some(keeping), Some(id)) = (&keeping, meter.response_id()) {
            let told = Told { id: id.to_owned(), is_over: false, usage: Metered::Unknown };
            // In the background it goes on without its caller.
            let Some(guard) = kept::keep(&edge, keeping, &provider.name, &told, guard) else { return };
            return Self::left(guard, meter, on_disconnect, &provider, unread);
        }
        Self::left(guard, meter, on_disconnect, &provider, unread);
    }

    fn left(
        guard: Guard,
        meter: StreamMeter,
        on_disconnect: Option<OnDisconnect>,
        provider: &Upstream,
        unread: bool,
    ) {
        if unread || on_disconnect == Some(OnDisconnect::Estimate) {
            guard.close("client_gone");
            return;
        }
        let held = guard.held();
        let mut seen = match meter.finish(StreamEnd::Cut) {
            Metered::Exact(usage) | Metered::AtLeast(usage) => usage,
            Metered::Unknown => Usage::default(),
        };
        let used = if seen.input_total() == 0 {
            // Whoever reported no input has read it all the same.
            seen.uncached_input = held.input;
            Amount::with_total(held.input + seen.output, held.input, seen.output)
        } else {
            amount(seen, provider.dialect)
        };
        let counted_counts = on_disconnect == Some(OnDisconnect::Counted);
        guard.settle_seen(used, seen, counted_counts, "client_gone");
    }
}

impl Drop for MeteredStream {
    fn drop(&mut self) {
        if let Some(live) = self.live.take() {
            live.caller_gone();
        }
    }
}
