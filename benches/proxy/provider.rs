//! A provider that costs next to nothing: bytes made beforehand, no HTTP library. It answers what the load sends and nothing else.

use std::io;
use std::net::SocketAddr;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, MissedTickBehavior};

const CHUNK_EVERY: Duration = Duration::from_millis(20);

/// Stands in each chunk once, before [`STAMP`] digits: when it was sent, in nanoseconds of this process's clock.
pub const MARK: u8 = b'~';
pub const STAMP: usize = 20;

/// The stamp is in the id: a provider sends a token at a time, and what is not in the text is not counted.
const CHUNK_HEAD: &str = r#"data: {"id":"chatcmpl-B9MBs8"#;
const CHUNK_TAIL: &str = r#"","object":"chat.completion.chunk","created":1741569952,"model":"gpt-5","service_tier":"default","choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}]}"#;

static STREAMS: AtomicU64 = AtomicU64::new(0);

/// Starts it on a free port.
pub async fn start() -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            // A proxy that closes its connection is no news.
            tokio::spawn(async move { serve(stream).await.unwrap_or_default() });
        }
    });
    Ok(address)
}

async fn serve(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let answer = whole_answer();
    let mut read = Vec::with_capacity(4096);
    loop {
        let Some(length) = request_length(&read) else {
            if stream.read_buf(&mut read).await? == 0 {
                return Ok(());
            }
            continue;
        };
        if memchr::memmem::find(&read[..length], b"\"stream\":true").is_some() {
            return stream_answer(stream).await;
        }
        stream.write_all(&answer).await?;
        read.drain(..length);
    }
}

/// The length of the first request in `read`; none when it is not all there.
fn request_length(read: &[u8]) -> Option<usize> {
    let head = memchr::memmem::find(read, b"\r\n\r\n")? + 4;
    let length = head + super::load::header(&read[..head], "content-length").unwrap_or(0);
    (read.len() >= length).then_some(length)
}

fn whole_answer() -> Vec<u8> {
    let body = r#"{"id":"chatcmpl-B9MBs8CjcvOU2jLn4n570","object":"chat.completion","created":1741569952,"model":"gpt-5","choices":[{"index":0,"message":{"role":"assistant","content":"The parcel left Rotterdam on Monday and should be with you by Thursday at the latest.","refusal":null},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":131,"completion_tokens":18,"total_tokens":149,"prompt_tokens_details":{"cached_tokens":0},"completion_tokens_details":{"reasoning_tokens":0}}}"#;
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-request-id: req_0123456789abcdef\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// When a new stream has its first chunk. Streams take turns at the milliseconds between two chunks, counted from when the process began and
/// not from when they were opened: a proxy that opens them at another pace would else have other bursts.
fn first_chunk() -> Instant {
    static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
    let place = STREAMS.fetch_add(1, Ordering::Relaxed) % CHUNK_EVERY.as_millis() as u64;
    let rounds = BEGAN.elapsed().as_millis() / CHUNK_EVERY.as_millis() + 1;
    *BEGAN + CHUNK_EVERY * rounds as u32 + Duration::from_millis(place)
}

/// Sends until the connection breaks: the load decides when a stream has been long enough.
async fn stream_answer(mut stream: TcpStream) -> io::Result<()> {
    stream
        .write_all(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
        )
        .await?;
    let mut ticks = tokio::time::interval_at(first_chunk(), CHUNK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        ticks.tick().await;
        let sent = tollgate::clock::now().as_nanos();
        let event = format!("{CHUNK_HEAD}~{sent:020}{CHUNK_TAIL}\n\n");
        stream.write_all(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes()).await?;
    }
}
