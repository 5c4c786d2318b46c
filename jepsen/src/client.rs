//! A caller: one connection to each node, one request at a time, and a record of each attempt.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{HeaderMap, Method, Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::history::{At, Attempt, Log, Outcome};
use crate::network::{Host, Plane};
use crate::provider::Script;
use crate::sys;

/// Where nodes listen for callers.
pub const PORT: u16 = 8080;

/// How long a caller waits for a connection. It is on the same machine.
const CONNECT: Duration = Duration::from_secs(1);

/// How long a caller waits for an answer's head. A gateway asks for two seconds whoever may decide.
const PATIENCE: Duration = Duration::from_secs(8);

/// How long one waits that goes away before the answer: long enough to be let in.
const EARLY: Duration = Duration::from_millis(80);

/// What every key begins with; the tenant's name follows.
const KEY: &str = "tg-a-key-of-the-tests-with-enough-letters-for-";

/// The numbers of attempts and requests in a run.
#[derive(Default)]
pub struct Numbers {
    ops: AtomicU64,
    requests: AtomicU64,
    admitted: AtomicU64,
}

/// What a request is to be.
#[derive(Clone, Copy, Debug)]
pub struct Wish<'a> {
    /// Who asks.
    pub tenant: &'a str,
    /// With which secret, by name; the tenant's own one, if none is named.
    pub secret: Option<&'a str>,
    /// The logical request.
    pub request: u64,
    /// Whether it bears an idempotency key.
    pub keyed: bool,
    /// What the provider is to do; the attempt's number is filled in.
    pub script: Script,
    /// Output tokens to ask for at most.
    pub ceiling: u64,
    /// Go away after so many pieces of the answer; 0 is before its head.
    pub abort_after: Option<u64>,
}

impl<'a> Wish<'a> {
    /// A request without a key that is read to its end.
    pub const fn of(tenant: &'a str, request: u64, script: Script) -> Self {
        Self { tenant, secret: None, request, keyed: false, script, ceiling: 16, abort_after: None }
    }
}

/// A caller with connections of its own.
pub struct Caller {
    numbers: Arc<Numbers>,
    log: Log,
    connections: BTreeMap<Host, SendRequest<Full<Bytes>>>,
}

/// The key of a tenant, or another secret: whoever knows its name knows it.
pub fn key_of(name: &str) -> String {
    format!("{KEY}{name}")
}

/// The tenant whose key is in these headers.
pub fn tenant_of(headers: &HeaderMap) -> Option<&str> {
    let bearer = headers.get("authorization")?.to_str().ok()?;
    bearer.strip_prefix("Bearer ")?.strip_prefix(KEY)
}

impl Numbers {
    /// A logical request that was never made before.
    pub fn request(&self) -> u64 {
        self.requests.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Notes what became of an attempt.
    pub fn note(&self, outcome: Outcome) {
        self.admitted.fetch_add(u64::from(outcome == Outcome::Admitted), Ordering::Relaxed);
    }

    /// How many attempts were admitted so far.
    pub fn admitted(&self) -> u64 {
        self.admitted.load(Ordering::Relaxed)
    }
}

impl Caller {
    /// A caller that writes its attempts to `log`.
    pub fn new(numbers: Arc<Numbers>, log: Log) -> Self {
        Self { numbers, log, connections: BTreeMap::new() }
    }

    /// The numbers it draws from.
    pub fn numbers(&self) -> &Arc<Numbers> {
        &self.numbers
    }

    /// Makes one attempt at `node`, to the end of its answer or until the wish says to go away.
    pub async fn attempt(&mut self, node: Host, wish: Wish<'_>) -> Outcome {
        let op = self.numbers.ops.fetch_add(1, Ordering::Relaxed) + 1;
        let script = Script { op, ..wish.script };
        let inv = sys::now();
        let mut attempt = Attempt {
            op,
            request: wish.request,
            tenant: wish.tenant.to_owned(),
            secret: wish.secret.unwrap_or_default().to_owned(),
            node,
            inv,
            com: inv,
            stayed: inv,
            outcome: Outcome::NotSent,
            code: String::new(),
            keyed: wish.keyed,
            aborted: false,
            complete: false,
            sdk: None,
        };
        match self.exchange(node, &wish, script, &mut attempt).await {
            Ok(()) => {}
            Err(why) => {
                if attempt.com == inv {
                    attempt.com = sys::now();
                }
                attempt.code = why;
                self.connections.remove(&node);
            }
        }
        self.log.push(&attempt);
        self.numbers.note(attempt.outcome);
        attempt.outcome
    }

    async fn exchange(
        &mut self,
        node: Host,
        wish: &Wish<'_>,
        script: Script,
        attempt: &mut Attempt,
    ) -> Result<(), String> {
        if self.connections.get(&node).is_none_or(SendRequest::is_closed) {
            self.connections.insert(node, connect(node, Plane::Callers, PORT).await?);
        }
        let sender = self.connections.get_mut(&node).ok_or("no connection")?;
        timeout(CONNECT, sender.ready())
            .await
            .map_err(|_late| "no connection")?
            .map_err(|error| error.to_string())?;
        attempt.inv = sys::now();
        attempt.outcome = Outcome::Unknown;
        let leaves_early = wish.abort_after == Some(0);
        let patience = if leaves_early { EARLY } else { PATIENCE };
        let response = timeout(patience, sender.send_request(request(node, wish, script))).await;
        attempt.com = sys::now();
        attempt.aborted = leaves_early && response.is_err();
        // Who is tired of waiting has left at the end of its patience, a little before it gets to say so.
        let patience = patience.as_nanos() as u64;
        attempt.stayed =
            if response.is_err() { attempt.com.min(attempt.inv + patience) } else { attempt.com };
        let response = response.map_err(|_late| "no answer")?.map_err(|error| error.to_string())?;
        let word = |name: &str| {
            response.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
        };
        let (status, code) = (response.status().as_u16(), word("x-tollgate-error"));
        attempt.outcome = outcome(status, &code);
        attempt.code = format!("{status} {code}").trim_end().to_owned();
        (attempt.aborted, attempt.complete) = drain(response, wish.abort_after, &mut attempt.stayed).await;
        if !attempt.complete {
            self.connections.remove(&node);
        }
        Ok(())
    }
}

/// What an answer with this status and Tollgate's own code says.
pub fn outcome(status: u16, code: &str) -> Outcome {
    match (status, code) {
        (200, "") => Outcome::Admitted,
        (
            429,
            "tenant_rate_limit_exceeded"
            | "inflight_limit_exceeded"
            | "key_rate_limit_exceeded"
            | "request_too_large_for_limit"
            | "budget_exhausted",
        ) => Outcome::Limited,
        (503, "limiter_unavailable") => Outcome::Unavailable,
        (409, _) => Outcome::Duplicate,
        _ => Outcome::Unknown,
    }
}

fn request(node: Host, wish: &Wish<'_>, script: Script) -> Request<Full<Bytes>> {
    let stream =
        if script.chunks > 0 { r#","stream":true,"stream_options":{"include_usage":true}"# } else { "" };
    let ceiling = wish.ceiling;
    let body = format!(
        r#"{{"model":"gpt-5-mini","max_completion_tokens":{ceiling},"messages":[{{"role":"user","content":"Hello."}}]{stream}}}"#
    );
    let mut request = Request::builder()
        .method(Method::POST)
        .uri("/v1/chat/completions")
        .header("host", Plane::Callers.socket(node, PORT).to_string())
        .header("authorization", format!("Bearer {}", key_of(wish.secret.unwrap_or(wish.tenant))))
        .header("content-type", "application/json")
        .header("x-script", script.header());
    if wish.keyed {
        request = request.header("idempotency-key", format!("r-{}", wish.request));
    }
    request.body(Full::from(body)).expect("these headers are headers")
}

/// A connection to `node`.
///
/// # Errors
/// There is none to be had in time.
pub async fn connect(node: Host, plane: Plane, port: u16) -> Result<SendRequest<Full<Bytes>>, String> {
    let stream = timeout(CONNECT, TcpStream::connect(plane.socket(node, port))).await;
    let stream =
        stream.map_err(|_late| "no connection")?.map_err(|error| format!("no connection: {error}"))?;
    let _unsupported = stream.set_nodelay(true);
    let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    tokio::spawn(connection);
    Ok(sender)
}

/// Reads an answer to its end, or goes away: whether it went, and whether it saw the end. `stayed` is when it was last still there.
async fn drain(response: Response<Incoming>, abort_after: Option<u64>, stayed: &mut At) -> (bool, bool) {
    let mut body = response.into_body();
    let mut pieces = 0;
    loop {
        match timeout(PATIENCE, body.frame()).await {
            Ok(Some(Ok(_piece))) => {
                pieces += 1;
                *stayed = sys::now();
            }
            Ok(None) => return (false, true),
            Ok(Some(Err(_))) | Err(_) => return (false, false),
        }
        if abort_after.is_some_and(|after| pieces >= after) {
            return (true, false);
        }
    }
}
