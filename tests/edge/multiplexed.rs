//! Rows 9, 22, 23 and 27 to 29 over HTTP/2, frame by frame (RFC 9113), and what they cost in memory.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::raw::{LIMITS, assert_cost_nothing, key, northwind, until_closed};
use crate::support::http2::frame;
use crate::support::inside::{chat, streamed};
use crate::support::{Inside, Policy, Process, eventually};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// The preface, and settings that leave every default.
fn hello() -> Vec<u8> {
    [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()
}

/// A header block of literals without indexing (RFC 7541 §6.2.2).
fn block(headers: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in headers {
        block.push(0);
        for text in [name, value] {
            let length = text.len();
            if length < 127 {
                block.push(u8::try_from(length).unwrap());
            } else {
                block.push(127);
                let mut rest = length - 127;
                while rest >= 128 {
                    block.push(u8::try_from(rest % 128).unwrap() | 128);
                    rest /= 128;
                }
                block.push(u8::try_from(rest).unwrap());
            }
            block.extend(text.as_bytes());
        }
    }
    block
}

/// The headers of a chat completion, and more.
fn chat_headers(more: &[(&str, &str)]) -> Vec<u8> {
    let bearer = key().bearer();
    let mut headers = vec![
        (":method", "POST"),
        (":scheme", "http"),
        (":authority", "gateway"),
        (":path", "/v1/chat/completions"),
        ("authorization", &bearer),
    ];
    headers.extend_from_slice(more);
    block(&headers)
}

/// One frame that came.
#[derive(Debug)]
struct Frame {
    kind: u8,
    stream: u32,
    payload: Vec<u8>,
}

/// The frames in what came.
fn frames(mut bytes: &[u8]) -> Vec<Frame> {
    let mut found = Vec::new();
    while let Some(([high, middle, low, kind, _flags, id @ ..], rest)) = bytes.split_first_chunk::<9>() {
        let length = (u32::from_be_bytes([0, *high, *middle, *low]) as usize).min(rest.len());
        found.push(Frame { kind: *kind, stream: u32::from_be_bytes(*id), payload: rest[..length].to_vec() });
        bytes = &rest[length..];
    }
    found
}

/// Sends, and reads until the node closes.
async fn exchange(inside: &Inside, bytes: &[u8]) -> Vec<Frame> {
    let mut stream = TcpStream::connect(inside.gateway.callers()).await.unwrap();
    let (mut reading, mut writing) = stream.split();
    let sent = async {
        let _closed = writing.write_all(bytes).await;
    };
    let (_, read) = tokio::join!(sent, until_closed(&mut reading));
    frames(&read)
}

fn is_reset(frames: &[Frame], stream: u32) -> bool {
    frames.iter().any(|frame| (frame.kind == RST_STREAM && frame.stream == stream) || frame.kind == GOAWAY)
}

#[tokio::test]
async fn row_09_another_host_than_the_authority() {
    let inside = northwind().await;
    let bearer = key().bearer();
    for headers in
        [chat_headers(&[("host", "other")]), chat_headers(&[("host", "gateway"), ("host", "gateway")])]
    {
        let request = frame(HEADERS, END_HEADERS | END_STREAM, 1, &headers);
        let came = exchange(&inside, &[hello(), request].concat()).await;
        let told: Vec<u8> =
            came.iter().filter(|frame| frame.kind == DATA).flat_map(|frame| frame.payload.clone()).collect();
        let told = String::from_utf8(told).unwrap();
        assert!(told.contains("two hosts"), "{told:?} {came:?}");
    }
    let unknown = block(&[
        (":method", "TRACE"),
        (":scheme", "http"),
        (":authority", "a"),
        (":path", "/"),
        ("authorization", &bearer),
    ]);
    let came =
        exchange(&inside, &[hello(), frame(HEADERS, END_HEADERS | END_STREAM, 1, &unknown)].concat()).await;
    assert!(
        came.iter().any(|frame| frame.payload.windows(22).any(|bytes| bytes == b"method_not_implemented")),
        "{came:?}"
    );
    assert_cost_nothing(&inside).await;
}

#[tokio::test]
async fn row_22_an_idle_connection_is_told_and_closed() {
    let inside = northwind().await;
    for bytes in [hello(), PREFACE.to_vec(), [hello(), frame(HEADERS, 0, 1, &[])].concat()] {
        let came = exchange(&inside, &bytes).await;
        assert!(bytes == PREFACE || came.iter().any(|frame| frame.kind == GOAWAY), "{came:?}");
    }
    assert_eq!(inside.node().metrics.connections.get(), 0);
    assert_cost_nothing(&inside).await;
}

#[tokio::test]
async fn row_23_a_window_that_stays_shut() {
    let inside = northwind().await;
    let body = streamed(chat(900_000)).to_string();
    // SETTINGS_INITIAL_WINDOW_SIZE is 0: an answer's head may come, of its body nothing.
    let shut = frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
    let headers = chat_headers(&[("x-sim", "tokens=300000")]);
    let requests = [1, 3].map(|id| {
        [frame(HEADERS, END_HEADERS, id, &headers), frame(DATA, END_STREAM, id, body.as_bytes())].concat()
    });
    let came = exchange(&inside, &[PREFACE, &shut, &requests.concat()].concat()).await;
    assert!(came.iter().all(|frame| frame.kind != DATA), "nothing may be sent");
    assert_eq!(inside.metric("tollgate_connections_cut_total", &["why=\"unread\""]), 1);
    inside.assert_at_rest().await;
    assert_eq!(inside.limit(&key(), "tenant", "max_inflight").await["used"], 0);
    eventually("the provider is let go", async || match inside.provider.stats() {
        stats if stats.inflight == 0 && stats.requests == 2 => Ok(()),
        stats => Err(format!("{stats:?}")),
    })
    .await;
}

#[tokio::test]
async fn row_27_headers_that_http2_does_not_have() {
    let inside = northwind().await;
    let long = "a".repeat(40_000);
    for more in [
        &[("te", "gzip")][..],
        &[("connection", "close")],
        &[("transfer-encoding", "chunked")],
        &[("X-Upper", "a")],
        &[("x", "a\r\nx-tenant: b")],
        &[("x", "a\0")],
        &[(":path", "/v1/models")],
        &[("content-length", "5")],
        &[("content-length", "x")],
    ] {
        let request = frame(HEADERS, END_HEADERS | END_STREAM, 1, &chat_headers(more));
        let came = exchange(&inside, &[hello(), request].concat()).await;
        assert!(is_reset(&came, 1), "{more:?}: {came:?}");
    }
    let path = block(&[(":method", "GET"), (":scheme", "http"), (":path", "/v1/models\r\nx: y")]);
    let came =
        exchange(&inside, &[hello(), frame(HEADERS, END_HEADERS | END_STREAM, 1, &path)].concat()).await;
    assert!(is_reset(&came, 1), "{came:?}");
    // More than fits in a frame: 431 from the library, which reads no further.
    let headers = chat_headers(&[("x", &long)]);
    let (first, rest) = headers.split_at(16_384);
    let mut request = frame(HEADERS, END_STREAM, 1, first);
    let pieces: Vec<&[u8]> = rest.chunks(16_384).collect();
    for (number, piece) in pieces.iter().enumerate() {
        let last = if number + 1 == pieces.len() { END_HEADERS } else { 0 };
        request.extend(frame(CONTINUATION, last, 1, piece));
    }
    let came = exchange(&inside, &[hello(), request].concat()).await;
    assert!(came.iter().any(|frame| frame.stream == 1 || frame.kind == GOAWAY), "{came:?}");
    assert_cost_nothing(&inside).await;
}

#[tokio::test]
async fn row_28_requests_taken_back_without_end() {
    let inside = northwind().await;
    let headers = chat_headers(&[]);
    let mut bytes = hello();
    for number in 0..20_000 {
        let id = 2 * number + 1;
        bytes.extend(frame(HEADERS, END_HEADERS | END_STREAM, id, &headers));
        bytes.extend(frame(RST_STREAM, 0, id, &8_u32.to_be_bytes()));
    }
    let came = exchange(&inside, &bytes).await;
    let calm = came.iter().find(|frame| frame.kind == GOAWAY).expect("it is told to go away");
    assert_eq!(calm.payload[4..8], 11_u32.to_be_bytes(), "ENHANCE_YOUR_CALM");
    assert_cost_nothing(&inside).await;
}

/// What a process has held at most, and holds now, in KiB: proc(5).
fn memory(process: u32, line: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|text| text.strip_prefix(line)).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn row_29_floods_are_ended_in_little_memory() {
    let provider = Process::provider(&[]).await;
    let policy = Policy::at(&provider.url).tenant("northwind", &key(), LIMITS);
    let node = Process::serve(&policy.yaml(), &["--idle-timeout", "1s", "--reading-timeout", "1s"]).await;
    let address = node.callers.strip_prefix("http://").unwrap().to_owned();
    let before = memory(node.process.id(), "VmHWM:");

    let pings = frame(PING, 0, 0, &[7; 8]).repeat(100_000);
    let settings = frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 9]).repeat(100_000);
    let priorities = frame(2, 0, 1, &[0, 0, 0, 3, 9]).repeat(100_000);
    let unknown = frame(77, 0, 0, &[7; 8]).repeat(100_000);
    let opened = frame(HEADERS, END_HEADERS, 1, &chat_headers(&[]));
    let empty = [opened, frame(DATA, 0, 1, &[]).repeat(100_000)].concat();
    let endless = {
        let first = frame(HEADERS, END_STREAM, 1, &chat_headers(&[]));
        let more = frame(CONTINUATION, 0, 1, &block(&[("x", &"a".repeat(16_000))])).repeat(2_000);
        [first, more].concat()
    };
    let hollow = {
        let first = frame(HEADERS, END_STREAM, 1, &chat_headers(&[]));
        [first, frame(CONTINUATION, 0, 1, &[]).repeat(100_000)].concat()
    };
    let mut floods = 0;
    for (what, flood) in [
        ("pings", pings),
        ("settings", settings),
        ("priorities", priorities),
        ("frames of no known type", unknown),
        ("empty data", empty),
        ("a header block without end", endless),
        ("an empty header block without end", hollow),
    ] {
        let mut stream = TcpStream::connect(&address).await.unwrap();
        let (mut reading, mut writing) = stream.split();
        let sent = async { writing.write_all(&[hello(), flood].concat()).await };
        let (sent, read) = tokio::join!(sent, until_closed(&mut reading));
        let told = frames(&read).iter().any(|frame| frame.kind == GOAWAY);
        floods += i64::from(!told);
        node.until_metric("tollgate_connections_cut_total", &["why=\"flood\""], floods).await;
        println!("{what}: {}", if told { "GOAWAY" } else { "cut" });
        let _closed_before_all_was_written = sent;
    }

    // Streams without a window for any of their answers: many that are served, and more than a connection may have.
    let shut = frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
    let body = streamed(chat(64)).to_string();
    let headers = chat_headers(&[("x-sim", "tokens=60")]);
    // A connection takes 65,535 bytes of bodies before it opens its window further.
    for (streams, body) in [(500, body.as_bytes()), (10_000, b"")] {
        let mut bytes = [PREFACE, &shut].concat();
        for number in 0..streams {
            let id = 2 * number + 1;
            bytes.extend(frame(HEADERS, END_HEADERS, id, &headers));
            bytes.extend(frame(DATA, END_STREAM, id, body));
        }
        let before = provider.stat("requests").await;
        let mut stream = TcpStream::connect(&address).await.unwrap();
        let (mut reading, mut writing) = stream.split();
        let sent = async {
            let _closed = writing.write_all(&bytes).await;
        };
        let (_, read) = tokio::join!(sent, until_closed(&mut reading));
        assert!(frames(&read).iter().all(|frame| frame.kind != DATA), "nothing may be sent");
        let served = provider.stat("requests").await - before;
        assert_eq!(served, if body.is_empty() { 0 } else { 500 }, "of {streams} streams");
        node.until_metric("tollgate_inflight", &[], 0).await;
        node.until_metric("tollgate_open_reservations", &[], 0).await;
    }
    node.until_metric("tollgate_connections", &[], 0).await;
    let grown = memory(node.process.id(), "VmHWM:").saturating_sub(before);
    println!("the node grew by {grown} KiB");
    assert!(grown < 50 * 1024, "it grew by {grown} KiB");
    let bearer = key().bearer();
    let url = format!("{}/v1/chat/completions", node.callers);
    let answer = crate::support::Client::new().post(&url, &[("authorization", &bearer)], &chat(4)).await;
    assert_eq!(answer.status, 200);
    drop(provider);
}

#[tokio::test]
async fn streams_that_are_read_share_a_connection_with_one_that_is_not() {
    let inside = northwind().await;
    let mut stream = TcpStream::connect(inside.gateway.callers()).await.unwrap();
    let unread = streamed(chat(900_000)).to_string();
    let request = |id, sim: &str, body: &str| {
        let headers = chat_headers(&[("x-sim", sim)]);
        [frame(HEADERS, END_HEADERS, id, &headers), frame(DATA, END_STREAM, id, body.as_bytes())].concat()
    };
    // The connection's own window is opened wide; stream 1 has no more than the 64 KiB that it began with.
    let wide = frame(8, 0, 0, &0x3fff_0000_u32.to_be_bytes());
    stream.write_all(&[hello(), wide, request(1, "tokens=300000", &unread)].concat()).await.unwrap();
    let mut id = 3;
    let mut read = Vec::new();
    // Others come and go meanwhile, and are answered.
    while inside.provider.stats().aborted == 0 {
        stream.write_all(&request(id, "", &chat(4).to_string())).await.unwrap();
        id += 2;
        let mut piece = [0; 16 * 1024];
        let got =
            tokio::time::timeout(Duration::from_secs(30), stream.read(&mut piece)).await.unwrap().unwrap();
        assert!(got > 0, "the connection was closed");
        read.extend_from_slice(&piece[..got]);
    }
    let came = frames(&read);
    assert!(!came.iter().any(|frame| frame.kind == GOAWAY), "only the one is given up");
    let answered = came.iter().filter(|frame| frame.kind == HEADERS).count();
    assert!(answered > 2, "{answered} were answered");
    drop(stream);
    inside.assert_at_rest().await;
}
