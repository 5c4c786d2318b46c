//! Bytes to a socket, bytes from it, and the answers among them.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tollgate::gateway::GatewayOptions;

use crate::support::inside::chat;
use crate::support::{Inside, Key, PATIENCE};

/// Limits that nothing here meets, and levels that do not refill within a test, so that what is used can be read.
pub const LIMITS: &str = "tokens_per_minute: 1, burst_tokens: 10_000_000, requests_per_minute: 1, burst_requests: 100_000, max_inflight: 20_000";

/// How long the nodes here wait for a caller: long for a socket, short for a test.
pub const SHORT: Duration = Duration::from_millis(400);

pub fn key() -> Key {
    Key::of("production")
}

/// A node that loses patience soon.
pub fn impatient(options: &mut GatewayOptions) {
    let server = &mut options.server;
    server.handshake_timeout = SHORT;
    server.first_byte_timeout = SHORT;
    server.header_timeout = SHORT;
    server.idle_timeout = SHORT;
    server.reading_timeout = SHORT;
    options.edge.pace.silence = SHORT * 2;
    options.edge.pace.grace = SHORT;
}

pub async fn northwind() -> Inside {
    Inside::with(impatient, |policy| policy.tenant("northwind", &key(), LIMITS)).await
}

/// A head with a key: `line`, the Host, the key, and `headers`, each ended by CRLF.
pub fn head(line: &str, headers: &str) -> String {
    format!("{line}\r\nHost: gateway\r\nAuthorization: {}\r\n{headers}\r\n", key().bearer())
}

/// A chat completion that would be served and billed.
pub fn good() -> String {
    let body = chat(4).to_string();
    let length = format!("Content-Length: {}\r\n", body.len());
    head("POST /v1/chat/completions HTTP/1.1", &length) + &body
}

/// One answer, as it came.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    /// A header, by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().skip(1).filter_map(|line| line.split_once(": "));
        lines.into_iter().find(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// It is the gateway's own, with a body that says so.
    #[track_caller]
    pub fn assert_ours(&self, error: &str) {
        assert_eq!(self.header("x-tollgate-error"), Some(error), "{self:?}");
        assert!(self.header("x-tollgate-decision").is_some(), "{self:?}");
        let told: Value = serde_json::from_str(&self.body).unwrap_or_else(|why| panic!("{why}: {self:?}"));
        assert!(told["error"]["message"].as_str().is_some_and(|sentence| sentence.len() > 10), "{self:?}");
    }
}

/// Sends `bytes` and reads until the node closes.
///
/// # Panics
/// When it does not within [`PATIENCE`].
pub async fn send(address: SocketAddr, bytes: impl AsRef<[u8]>) -> Vec<Answer> {
    let stream = TcpStream::connect(address).await.unwrap();
    send_over(stream, bytes).await
}

/// The same, over a stream that is there.
pub async fn send_over(stream: impl AsyncRead + AsyncWrite, bytes: impl AsRef<[u8]>) -> Vec<Answer> {
    let (mut reading, mut writing) = tokio::io::split(stream);
    let sent = async {
        // The node may have answered and closed before it has read all.
        let _closed = writing.write_all(bytes.as_ref()).await;
        let _closed = writing.flush().await;
    };
    let (_, read) = tokio::join!(sent, until_closed(&mut reading));
    answers(&read)
}

/// All that comes until the other side closes.
pub async fn until_closed(reading: &mut (impl AsyncRead + Unpin)) -> Vec<u8> {
    let mut read = Vec::new();
    let end = tokio::time::timeout(PATIENCE * 2, reading.read_to_end(&mut read)).await;
    // A reset ends a connection too.
    let _reset_after_the_answer =
        end.unwrap_or_else(|_| panic!("not closed; came: {}", String::from_utf8_lossy(&read)));
    read
}

/// The answers in what came. Interim ones are passed over.
pub fn answers(mut bytes: &[u8]) -> Vec<Answer> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let end = memchr::memmem::find(bytes, b"\r\n\r\n");
        let end = end.unwrap_or_else(|| panic!("no head: {:?}", String::from_utf8_lossy(bytes)));
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        bytes = &bytes[end + 4..];
        let status = head[9..12].parse().unwrap();
        if status == 100 {
            continue;
        }
        let mut answer = Answer { status, head, body: String::new() };
        let mut body = Vec::new();
        if answer.header("transfer-encoding") == Some("chunked") {
            loop {
                let line = memchr::memmem::find(bytes, b"\r\n").unwrap_or(bytes.len());
                let size = std::str::from_utf8(&bytes[..line]).unwrap();
                let Ok(size) = usize::from_str_radix(size, 16) else { break };
                let chunk = &bytes[line + 2..];
                body.extend_from_slice(&chunk[..size.min(chunk.len())]);
                bytes = chunk.get(size + 2..).unwrap_or_default();
                if size == 0 {
                    break;
                }
            }
        } else {
            let length = answer.header("content-length").map_or(0, |length| length.parse().unwrap());
            let (this, rest) = bytes.split_at(std::cmp::min(length, bytes.len()));
            body.extend_from_slice(this);
            bytes = rest;
        }
        answer.body = String::from_utf8_lossy(&body).into_owned();
        found.push(answer);
    }
    found
}

/// Not a token, not a request, not a word to the provider; nothing open; and the node still serves.
pub async fn assert_cost_nothing(inside: &Inside) {
    inside.assert_at_rest().await;
    assert_eq!(inside.provider.stats().requests, 0);
    assert_eq!(inside.used(&key(), "tenant", "tokens_per_minute").await, 0);
    assert_eq!(inside.used(&key(), "tenant", "requests_per_minute").await, 0);
    let answer = send(inside.gateway.callers(), good()).await;
    assert_eq!(answer[0].status, 200, "{answer:?}");
    inside.provider.reset();
}
