//! The provider that the cluster stands in front of: it does what a request's script says, and writes down what it saw. Its record is the
//! ground truth of what was let through, when, and of what is billed.
//!
//! The script is the header `x-script: op=17,latency=100,chunks=5,gap=20,tokens=8,usage=1`, which a gateway passes on like any other.

mod words;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt, StreamBody, combinators::BoxBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

use crate::history::{Arrival, Log};
use crate::sys;
use words::Dialect;

/// What one request asks of the provider.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Script {
    /// The attempt's number.
    pub op: u64,
    /// Before the answer's head, in milliseconds.
    pub latency: u64,
    /// Pieces of a stream; none for an answer in one piece.
    pub chunks: u64,
    /// Between two of them, in milliseconds.
    pub gap: u64,
    /// Output tokens to bill.
    pub tokens: u64,
    /// Whether to say what is billed.
    pub usage: bool,
}

/// Input tokens that are billed for every prompt of the harness.
pub const PROMPT: u64 = 5;

impl Script {
    /// As a header.
    pub fn header(&self) -> String {
        let Self { op, latency, chunks, gap, tokens, usage } = *self;
        let usage = u8::from(usage);
        format!("op={op},latency={latency},chunks={chunks},gap={gap},tokens={tokens},usage={usage}")
    }

    fn read(text: &str) -> Self {
        let mut script = Self::default();
        for (name, value) in text.split(',').filter_map(|item| item.split_once('=')) {
            let number = value.parse().unwrap_or(0);
            match name {
                "op" => script.op = number,
                "latency" => script.latency = number,
                "chunks" => script.chunks = number,
                "gap" => script.gap = number,
                "tokens" => script.tokens = number,
                "usage" => script.usage = number == 1,
                _ => {}
            }
        }
        script
    }
}

/// Serves at `address` until the runtime ends.
///
/// # Errors
/// The address cannot be listened on.
pub async fn serve(address: SocketAddr, log: Log) -> Result<(), String> {
    let listener = TcpListener::bind(address).await.map_err(|error| format!("{address}: {error}"))?;
    tokio::spawn(async move {
        loop {
            if let Ok((stream, peer)) = listener.accept().await {
                let node = match peer {
                    SocketAddr::V4(peer) => peer.ip().octets()[3],
                    SocketAddr::V6(_) => 0,
                };
                tokio::spawn(connection(stream, node, log.clone()));
            }
        }
    });
    Ok(())
}

async fn connection(stream: TcpStream, node: u8, log: Log) {
    let _unsupported = stream.set_nodelay(true);
    let service = service_fn(move |request| answer(request, node, log.clone()));
    // However it ends: each request's own record says how that one did.
    let _ended =
        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

/// Writes the record when it is dropped, whatever the reason: answered, or the gateway gone.
struct Visit {
    log: Log,
    arrival: Arrival,
}

impl Visit {
    /// Before the last piece goes out: afterwards the gateway may be faster than this record.
    fn last_piece(&mut self) {
        self.arrival.whole = true;
        self.arrival.end = sys::now();
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        if !self.arrival.whole {
            self.arrival.end = sys::now();
        }
        self.log.push(&self.arrival);
    }
}

async fn answer(
    request: Request<Incoming>,
    node: u8,
    log: Log,
) -> Result<Response<BoxBody<Bytes, Infallible>>, Infallible> {
    let at = sys::now();
    let text = |headers: &HeaderMap, name: &str| {
        headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
    };
    let dialect = Dialect::of(request.uri().path());
    let script = Script::read(&text(request.headers(), "x-script"));
    let decision = text(request.headers(), "x-tollgate-decision");
    let arrival =
        Arrival { op: script.op, decision, node, at, end: at, billed: PROMPT, reported: false, whole: false };
    let mut visit = Visit { log, arrival };
    let _body_of_no_interest = request.into_body().collect().await;
    tokio::time::sleep(Duration::from_millis(script.latency)).await;
    let kind = if script.chunks > 0 { "text/event-stream" } else { "application/json" };
    let body = if script.chunks > 0 {
        streamed(dialect, script, visit).boxed()
    } else {
        visit.arrival.billed = PROMPT + script.tokens;
        visit.arrival.reported = script.usage;
        whole(dialect, script, visit).boxed()
    };
    let response = Response::builder()
        .header("content-type", kind)
        .header(dialect.id_header(), format!("req-{}", script.op));
    Ok(response.body(body).expect("these headers are headers"))
}

type Piece = Result<Frame<Bytes>, Infallible>;

fn whole(dialect: Dialect, script: Script, visit: Visit) -> StreamBody<impl stream::Stream<Item = Piece>> {
    let text = dialect.whole(script);
    StreamBody::new(stream::unfold((Some(text), visit), |(text, mut visit)| async move {
        let text = text?;
        visit.last_piece();
        Some((Ok(Frame::data(Bytes::from(text))), (None, visit)))
    }))
}

fn streamed(dialect: Dialect, script: Script, visit: Visit) -> StreamBody<impl stream::Stream<Item = Piece>> {
    // The pieces, then the end of the choice, then the usage, then the mark.
    StreamBody::new(stream::unfold((0, visit), move |(number, mut visit)| async move {
        let text = match number {
            n if n < script.chunks => {
                tokio::time::sleep(Duration::from_millis(script.gap)).await;
                let each = script.tokens.div_ceil(script.chunks);
                visit.arrival.billed = PROMPT + script.tokens.min(each * (n + 1));
                dialect.piece(n)
            }
            n if n == script.chunks => dialect.finish(),
            n if n == script.chunks + 1 && script.usage => {
                visit.arrival.reported = true;
                dialect.usage(script)
            }
            n if n <= script.chunks + 2 => {
                visit.last_piece();
                let mark = Frame::data(Bytes::from(dialect.mark()));
                return Some((Ok(mark), (script.chunks + 3, visit)));
            }
            _ => return None,
        };
        Some((Ok(Frame::data(Bytes::from(text))), (number + 1, visit)))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_reads_as_it_is_written() {
        let script = Script { op: 17, latency: 100, chunks: 5, gap: 20, tokens: 8, usage: true };
        assert_eq!(Script::read(&script.header()), script);
        assert_eq!(Script::read("nonsense"), Script::default());
    }
}
