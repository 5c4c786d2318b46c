//! A request may be dropped at any moment: nothing stays open, and what is charged follows from how far it had come.

#![allow(clippy::unwrap_used, reason = "an answer of another shape fails the test, as it should")]

mod support;

use std::convert::Infallible;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use serde_json::{Value, json};
use support::inside::{chat, message, streamed};
use support::{Inside, Key, eventually, http2};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tollgate::proxy::{Edge, EdgeOptions};
use tollgate::simulated::Outcome;

const LIMITS: &str = "tokens_per_minute: 1, burst_tokens: 1_000_000, requests_per_minute: 1, burst_requests: 100_000, max_inflight: 2";

/// More steps than any request here has; a request that takes more would wake without end.
const MOST_STEPS: usize = 500;

fn key() -> Key {
    Key::of("production")
}

async fn northwind() -> Inside {
    Inside::under(|policy| policy.tenant("northwind", &key(), LIMITS)).await
}

// At every await.

#[tokio::test]
async fn a_plain_answer_dropped_at_every_step() {
    drop_at_every_step("/v1/chat/completions", chat(20), "latency=2ms").await;
}

#[tokio::test]
async fn a_long_prompt_dropped_at_every_step() {
    // Counted off the async workers: one await more.
    let mut body = chat(20);
    body["messages"][0]["content"] = json!("word ".repeat(10_000));
    drop_at_every_step("/v1/chat/completions", body, "").await;
}

#[tokio::test]
async fn a_stream_dropped_at_every_step() {
    drop_at_every_step("/v1/chat/completions", streamed(chat(20)), "gap=1ms,tokens=6").await;
}

#[tokio::test]
async fn an_anthropic_stream_dropped_at_every_step() {
    drop_at_every_step("/v1/messages", streamed(message(20)), "gap=1ms,tokens=6").await;
}

#[tokio::test]
async fn a_request_that_is_tried_again_dropped_at_every_step() {
    drop_at_every_step("/v1/chat/completions", chat(20), "status=503").await;
}

#[tokio::test]
async fn a_broken_stream_dropped_at_every_step() {
    drop_at_every_step("/v1/chat/completions", streamed(chat(20)), "gap=1ms,fail_after=2").await;
}

/// Polls a request once, twice, … and drops it there, until one is answered to its end.
async fn drop_at_every_step(path: &str, body: Value, sim: &str) {
    let inside = northwind().await;
    let edge = Arc::new(Edge { node: inside.node().clone(), options: EdgeOptions::default() });
    let text = body.to_string();
    let mut endings = std::collections::BTreeSet::new();
    for steps in 0..MOST_STEPS {
        let handling = handle(&edge, path, &text, sim);
        let whole = Steps { inner: pin!(handling), left: steps }.await.is_some();
        endings.insert(assert_ended_as_far_as_it_had_come(&inside, steps).await);
        if whole {
            // How often a request wakes is not fixed, so no step is sure to fall between the sending and the answer: one more
            // drop is made there on purpose.
            endings.insert(drop_while_the_provider_works(&inside, &edge, path, &text).await);
            assert!(endings.len() > 2, "only {endings:?} in {steps} steps: not much was dropped");
            return;
        }
    }
    panic!("not answered after {MOST_STEPS} steps");
}

/// Drops a request that has reached the provider and has no answer yet.
async fn drop_while_the_provider_works(inside: &Inside, edge: &Arc<Edge>, path: &str, text: &str) -> String {
    let mut handling = Box::pin(handle(edge, path, text, "hang=1"));
    tokio::select! {
        () = &mut handling => panic!("answered by a provider that hangs"),
        () = eventually("the provider is at work", async || match inside.provider.stats().inflight {
            1 => Ok(()),
            other => Err(format!("{other} in flight")),
        }) => {}
    }
    drop(handling);
    let ending = assert_ended_as_far_as_it_had_come(inside, usize::MAX).await;
    assert_eq!(ending, "abandoned, dropped");
    ending
}

/// One request, from its first byte to the last of its answer.
async fn handle(edge: &Arc<Edge>, path: &str, text: &str, sim: &str) {
    let (first, second) = text.split_at(text.len() / 2);
    let (first, second) = (Bytes::from(first.to_owned()), Bytes::from(second.to_owned()));
    // In two pieces with a pause between, so that reading it can be interrupted.
    let pieces = async_pieces([first, second]);
    let request = http::Request::post(path)
        .header("authorization", key().bearer())
        .header("anthropic-version", "2023-06-01")
        .header("x-sim", sim)
        .body(StreamBody::new(pieces))
        .unwrap();
    let mut answer = edge.handle(request).await.into_body();
    while let Some(frame) = answer.frame().await {
        frame.unwrap();
    }
}

fn async_pieces(pieces: [Bytes; 2]) -> impl futures_util::Stream<Item = Result<Frame<Bytes>, Infallible>> {
    futures_util::stream::unfold(pieces.into_iter(), async |mut pieces| {
        tokio::task::yield_now().await;
        let piece = pieces.next()?;
        Some((Ok(Frame::data(piece)), pieces))
    })
}

/// Polls `inner` so many times, whenever it wakes, and gives up then.
struct Steps<'f, F> {
    inner: Pin<&'f mut F>,
    left: usize,
}

impl<F: Future> Future for Steps<'_, F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(left) = self.left.checked_sub(1) else { return Poll::Ready(None) };
        self.left = left;
        self.inner.as_mut().poll(context).map(Some)
    }
}

/// Nothing is open, and the last request was charged by the table of the answers. Returns how it ended.
async fn assert_ended_as_far_as_it_had_come(inside: &Inside, steps: usize) -> String {
    // Not eventually: when the drop is over, so is the reservation.
    let held = inside.node().owners().held();
    assert_eq!((held.open, inside.node().metrics.inflight.get()), (0, 0), "after {steps} steps");
    inside.assert_at_rest().await;
    assert_eq!(inside.limit(&key(), "tenant", "max_inflight").await["used"], 0, "after {steps} steps");
    eventually("the provider is let go", async || match inside.provider.stats().inflight {
        0 => Ok(()),
        open => Err(format!("{open} open")),
    })
    .await;
    let rows = inside.provider.requests();
    inside.provider.reset();
    let Some(id) = rows.last().and_then(|row| row.decision.clone()) else {
        // It was dropped before it reached the provider, so before anything could be billed.
        return "never sent".to_owned();
    };
    let record = inside.decision(&key(), &id).await;
    let (ending, estimate) = (&record["ending"], &record["estimate"]);
    let (how, why) = (ending["how"].as_str().unwrap(), ending["why"].as_str().unwrap());
    let charged = ending["charged"].as_u64().unwrap();
    let last = rows.last().unwrap();
    match (how, why) {
        ("abandoned", "dropped") | ("closed", "provider_failed") => {
            assert_eq!(ending["charged"], estimate["total"], "after {steps} steps: {record}");
        }
        ("settled", "usage") => {
            assert_eq!(
                charged,
                last.input_tokens + last.output_tokens,
                "after {steps} steps: {record} {last:?}"
            );
        }
        ("settled", "client_gone") => {
            assert_ne!(last.outcome, Outcome::Refused, "after {steps} steps: {record}");
            let (input, total) = (estimate["input"].as_u64().unwrap(), estimate["total"].as_u64().unwrap());
            assert!(charged > 0 && charged <= total, "after {steps} steps: {record}");
            assert!(charged + 10 >= input, "the prompt was read: after {steps} steps: {record}");
        }
        other => panic!("{other:?} after {steps} steps: {record}"),
    }
    format!("{how}, {why}")
}

// At any byte, over a socket.

#[tokio::test]
async fn a_caller_that_vanishes_at_any_byte_of_its_request() {
    let inside = northwind().await;
    let body = streamed(chat(20)).to_string();
    let request = http_text(&body, "gap=60s");
    for cut in (0..request.len()).step_by(7) {
        let mut stream = TcpStream::connect(inside.gateway.callers()).await.unwrap();
        stream.write_all(&request.as_bytes()[..cut]).await.unwrap();
        drop(stream);
    }
    inside.assert_at_rest().await;
    assert_eq!(inside.provider.stats().requests, 0, "a request that is not whole is not sent");
    assert_eq!(inside.used(&key(), "tenant", "requests_per_minute").await, 0);
}

#[tokio::test]
async fn a_caller_that_vanishes_at_any_byte_of_its_answer() {
    let inside = northwind().await;
    let request = http_text(&streamed(chat(300)).to_string(), "gap=1ms,tokens=200");
    for bytes in [1, 10, 100, 500, 1_000, 2_000, 3_000, 5_000, 8_000] {
        let mut stream = TcpStream::connect(inside.gateway.callers()).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut read = vec![0; bytes];
        stream.read_exact(&mut read).await.unwrap();
        drop(stream);
        inside.assert_at_rest().await;
    }
    eventually("the provider has let go of all", async || {
        let stats = inside.provider.stats();
        let over = stats.completed + stats.aborted;
        if over == 9 && stats.inflight == 0 { Ok(()) } else { Err(format!("{stats:?}")) }
    })
    .await;
    assert!(inside.provider.stats().aborted >= 8, "{:?}", inside.provider.stats());
    assert_eq!(inside.limit(&key(), "tenant", "max_inflight").await["used"], 0);
}

#[tokio::test]
async fn a_caller_that_stays_and_reads_nothing_does_not_hold_its_slot_for_ever() {
    let inside = Inside::with(
        |options| options.server.reading_timeout = Duration::from_millis(500),
        |policy| policy.tenant("northwind", &key(), LIMITS),
    )
    .await;
    // Far more than fits in the sockets' buffers between the two.
    let request = http_text(&streamed(chat(900_000)).to_string(), "tokens=300000");
    let mut stream = TcpStream::connect(inside.gateway.callers()).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    stream.read_exact(&mut [0; 100]).await.unwrap();
    inside.assert_at_rest().await;
    assert_eq!(inside.provider.stats().requests, 1);
    eventually("the provider is let go", async || match inside.provider.stats().aborted {
        1 => Ok(()),
        _ => Err(format!("{:?}", inside.provider.stats())),
    })
    .await;
    drop(stream);
}

#[tokio::test]
async fn a_caller_that_takes_much_back_at_once_does_not_cut_off_who_shares_its_connection() {
    let inside = northwind().await;
    let mut stream = TcpStream::connect(inside.gateway.callers()).await.unwrap();
    let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    sent.extend(http2::frame(SETTINGS, 0, 0, &[]));
    // `:method POST`, `:scheme http`, `:path /`, by their places in the static table of RFC 7541.
    let request = |id| http2::frame(HEADERS, END_STREAM_AND_HEADERS, id, &[0x83, 0x86, 0x84]);
    let taken_back = (0..300).map(|number| 2 * number + 1);
    for id in taken_back {
        sent.extend(request(id));
        sent.extend(http2::frame(RST_STREAM, 0, id, &8_u32.to_be_bytes()));
    }
    let meant = 1_001;
    sent.extend(request(meant));
    stream.write_all(&sent).await.unwrap();
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.unwrap();
        let [high, middle, low, kind, _, id @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, high, middle, low]) as usize];
        stream.read_exact(&mut payload).await.unwrap();
        assert_ne!(kind, GOAWAY, "the connection is cut: {payload:?}");
        if kind == HEADERS && u32::from_be_bytes(id) == meant {
            break;
        }
    }
    inside.assert_at_rest().await;
}

// Frame types and flags of RFC 9113 §6.
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const END_STREAM_AND_HEADERS: u8 = 5;

#[tokio::test]
async fn a_reservation_that_outlives_its_deadline_is_in_the_books_once() {
    let short = tollgate::limit::Span::from_millis(200);
    for on_disconnect in ["counted", "estimate"] {
        let tenant = format!("on_disconnect: {on_disconnect}, {LIMITS}");
        let inside = Inside::with(
            |options| options.limiter.reservation_deadline = short,
            |policy| policy.tenant("northwind", &key(), &tenant),
        )
        .await;
        let bearer = key().bearer();
        let headers = [("authorization", bearer.as_str()), ("x-sim", "gap=60s")];
        let url = inside.at("/v1/chat/completions");
        let open = inside.client.post_open(&url, &headers, &streamed(chat(20))).await;
        eventually("the deadline has passed", async || {
            match inside.metric("tollgate_reservations_expired_total", &[]) {
                1 => Ok(()),
                expired => Err(format!("{expired} expired")),
            }
        })
        .await;
        drop(open);
        inside.assert_at_rest().await;
    }
}

fn http_text(body: &str, sim: &str) -> String {
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\nauthorization: {}\r\nx-sim: {sim}\r\ncontent-length: {}\r\n\r\n{body}",
        key().bearer(),
        body.len()
    )
}
