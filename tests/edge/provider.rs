//! Rows 15, 17 and 31 to 35, and compressed answers: a provider that misbehaves, and callers that give up.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Body;
use futures_util::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tollgate::simulated;

use crate::raw::{LIMITS, head, impatient, key, northwind};
use crate::support::inside::{chat, streamed};
use crate::support::scripted::says;
use crate::support::{Inside, Key, Response, Scripted, eventually};

/// A provider that answers every request with these bytes, the last part of them without end, and counts its connections.
struct Rogue {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
    serving: JoinHandle<()>,
}

impl Rogue {
    async fn saying(first: Vec<u8>, ever_again: Vec<u8>) -> Rogue {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let counter = connections.clone();
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                counter.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(answer_all(stream, first.clone(), ever_again.clone()));
            }
        });
        Rogue { address, connections, serving }
    }
}

impl Drop for Rogue {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn answer_all(mut stream: TcpStream, first: Vec<u8>, ever_again: Vec<u8>) -> std::io::Result<()> {
    let mut read = Vec::new();
    loop {
        let mut piece = [0; 4096];
        let got = stream.read(&mut piece).await?;
        if got == 0 {
            return Ok(());
        }
        read.extend_from_slice(&piece[..got]);
        // A chat completion ends with its object, a message likewise.
        if read.ends_with(b"}") {
            read.clear();
            stream.write_all(&first).await?;
            while !ever_again.is_empty() {
                stream.write_all(&ever_again).await?;
            }
        }
    }
}

async fn before(url: &str, settings: &str) -> Inside {
    let unused = simulated::Provider::bind(([127, 0, 0, 1], 0).into(), simulated::Options::default());
    let set = |policy: crate::support::Policy| policy.providers(settings).tenant("northwind", &key(), LIMITS);
    Inside::before(unused.await.unwrap(), url, impatient, set).await
}

/// Its answer is not passed on, its connection not used again, the slot is free and the estimate charged.
async fn assert_given_up(what: &str, first: &str, ever_again: &str, status: u16) {
    let rogue = Rogue::saying(first.as_bytes().to_vec(), ever_again.as_bytes().to_vec()).await;
    let settings = "max_attempts: 1, timeouts: { first_byte: 1s, total: 20s }";
    let inside = before(&format!("http://{}", rogue.address), settings).await;
    for asked in 1..=2 {
        let answer: Response = inside.chat(&key(), "", &chat(4)).await;
        assert_eq!(answer.status, status, "{what}: {}", answer.text());
        assert!(
            answer.header("x-tollgate-error").is_some_and(|code| code.starts_with("upstream_")),
            "{what}"
        );
        let record = inside.decision_of(&key(), &answer).await;
        assert_eq!(record["ending"]["charged"], record["estimate"]["total"], "{what}: {record}");
        assert_eq!(
            rogue.connections.load(Ordering::SeqCst),
            asked,
            "{what}: its connection is not used again"
        );
    }
    inside.assert_at_rest().await;
    assert_eq!(inside.limit(&key(), "tenant", "max_inflight").await["used"], 0, "{what}");
}

#[tokio::test]
async fn row_15_a_provider_whose_answer_has_two_lengths() {
    let body = "2\r\n{}\r\n0\r\n\r\n";
    for lengths in
        ["Content-Length: 2\r\nTransfer-Encoding: chunked", "Transfer-Encoding: chunked\r\nContent-Length: 2"]
    {
        assert_given_up(lengths, &format!("HTTP/1.1 200 OK\r\n{lengths}\r\n\r\n{body}"), "", 502).await;
    }
    assert_given_up(
        "lengths that differ",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}}",
        "",
        502,
    )
    .await;
}

#[tokio::test]
async fn row_15_a_provider_that_never_comes_to_the_point() {
    assert_given_up("a flood of interim answers", "", "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", 504)
        .await;
    assert_given_up(
        "a head without end",
        "HTTP/1.1 200 OK\r\n",
        "X-Y: zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz\r\n",
        502,
    )
    .await;
}

#[tokio::test]
async fn row_15_a_provider_with_a_head_of_64_kib() {
    let long = format!("HTTP/1.1 200 OK\r\nX: {}\r\nContent-Length: 2\r\n\r\n{{}}", "a".repeat(64 * 1024));
    assert_given_up("a long header", &long, "", 502).await;
}

#[tokio::test]
async fn row_15_a_provider_whose_body_has_no_end() {
    let chunk = format!("10000\r\n{}\r\n", " ".repeat(0x10000));
    assert_given_up(
        "a body without end",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        &chunk,
        502,
    )
    .await;
    assert_given_up(
        "chunks that are none",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        "",
        502,
    )
    .await;
}

#[tokio::test]
async fn row_15_a_provider_that_sends_trailers() {
    let usage = r#"{"usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7}}"#;
    let first = format!(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Tollgate-Error\r\n\r\n{:x}\r\n{usage}\r\n0\r\nX-Tollgate-Error: forged\r\n\r\n",
        usage.len()
    );
    let rogue = Rogue::saying(first.into_bytes(), Vec::new()).await;
    let inside = before(&format!("http://{}", rogue.address), "max_attempts: 1").await;
    let answer = inside.chat(&key(), "", &chat(4)).await;
    assert_eq!((answer.status, answer.text().as_str()), (200, usage));
    assert_eq!(
        (answer.header("trailer"), answer.header("x-tollgate-error")),
        (None, None),
        "none is passed on"
    );
    inside.assert_at_rest().await;
}

#[tokio::test]
async fn row_17_a_provider_that_sends_elsewhere() {
    let elsewhere = Scripted::playing(|_, _| says(200, "application/json", "{}")).await;
    let target = elsewhere.url.clone();
    for status in [301, 302, 303, 307, 308] {
        let location = target.clone();
        let scripted = Scripted::playing(move |_, _| {
            let mut answer = says(status, "text/plain", "over there");
            answer.headers_mut().insert("location", location.parse().unwrap());
            answer
        })
        .await;
        let inside = before(&scripted.url, "max_attempts: 3").await;
        let answer = inside.chat(&key(), "", &chat(4)).await;
        assert_eq!((answer.status, scripted.asked()), (status, 1), "told, and not followed");
        inside.assert_at_rest().await;
    }
    assert_eq!(elsewhere.asked(), 0);
    // Nor does a caller choose where its request goes.
    let inside = northwind().await;
    let body = chat(4).to_string();
    let length = format!("Connection: close\r\nContent-Length: {}\r\n", body.len());
    let aimed = head("POST http://169.254.169.254/v1/chat/completions HTTP/1.1", &length);
    let aimed = aimed.replace("Host: gateway", "Host: 169.254.169.254") + &body;
    assert_eq!(crate::raw::send(inside.gateway.callers(), aimed).await[0].status, 200);
    assert_eq!(inside.provider.stats().requests, 1, "it went where the policy says");
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

async fn compressed(content_type: &'static str, body: Vec<u8>) -> Inside {
    let scripted = Scripted::playing(move |_, _| {
        let mut answer = says(200, content_type, Body::from(body.clone()));
        answer.headers_mut().insert("content-encoding", "gzip".parse().unwrap());
        answer
    })
    .await;
    let url = scripted.url.clone();
    // It answers as long as the test runs.
    std::mem::drop(tokio::spawn(async move {
        let _scripted = scripted;
        std::future::pending::<()>().await;
    }));
    before(&url, "max_attempts: 1").await
}

#[tokio::test]
async fn row_31_a_bomb_from_the_provider_is_given_up() {
    let bomb = gzip(&vec![b' '; 65 * 1024 * 1024]);
    let inside = compressed("application/json", bomb.clone()).await;
    let answer = inside.chat(&key(), "", &chat(4)).await;
    assert_eq!((answer.status, answer.header("x-tollgate-error")), (502, Some("upstream_unreadable")));
    inside.assert_at_rest().await;

    let inside = compressed("text/event-stream", bomb).await;
    let answer = inside.chat(&key(), "", &streamed(chat(4))).await;
    assert_eq!(answer.status, 200, "its head was out");
    let text = answer.text();
    assert!(text.contains("upstream_unreadable"), "{} bytes", text.len());
    assert!(text.len() < 8 * 1024 * 1024, "{} bytes", text.len());
    inside.assert_at_rest().await;
}

#[tokio::test]
async fn row_31_a_provider_that_compresses_is_understood() {
    let usage = r#"{"usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7}}"#;
    let inside = compressed("application/json", gzip(usage.as_bytes())).await;
    let answer = inside.chat(&key(), "", &chat(4)).await;
    assert_eq!((answer.status, answer.text().as_str()), (200, usage));
    assert_eq!((answer.header("content-encoding"), answer.header("content-length")), (None, Some("68")));
    assert_eq!(inside.decision_of(&key(), &answer).await["ending"]["charged"], 7);
    inside.assert_at_rest().await;
}

#[tokio::test]
async fn row_35_a_storm_of_callers_that_give_up() {
    let inside = northwind().await;
    let url = inside.at("/v1/chat/completions");
    let bearer = key().bearer();
    let headers = [("authorization", bearer.as_str()), ("x-sim", "gap=2ms,tokens=200")];
    for round in 0..10 {
        let storm = (0..100_usize).map(|number| {
            let (inside, url, headers) = (&inside, &url, &headers);
            async move {
                use http_body_util::BodyExt;
                let mut open = inside.client.post_open(url, headers, &streamed(chat(300))).await;
                for _ in 0..(number * 7 + round) % 40 {
                    let _ = open.frame().await;
                }
            }
        });
        join_all(storm).await;
    }
    inside.assert_at_rest().await;
    eventually("the provider has let go of all", async || match inside.provider.stats() {
        stats if stats.inflight == 0 && stats.completed + stats.aborted == 1_000 => Ok(()),
        stats => Err(format!("{stats:?}")),
    })
    .await;
    assert!(inside.provider.stats().aborted > 900, "{:?}", inside.provider.stats());
    assert_eq!(inside.limit(&key(), "tenant", "max_inflight").await["used"], 0);
}

#[tokio::test]
async fn row_37_names_that_nobody_knows_leave_nothing_behind() {
    let inside = northwind().await;
    assert_eq!(inside.chat(&key(), "", &chat(4)).await.status, 200);
    inside.assert_at_rest().await;
    let (held, page) = (inside.node().owners().held(), inside.node().render_metrics().lines().count());
    let http2 = crate::support::Client::http2();
    for round in 0..20 {
        let asked = (0..100).map(|number| {
            let stranger = Key::of(&format!("stranger {round} {number}"));
            let (http2, url) = (&http2, inside.at("/v1/chat/completions"));
            async move {
                let mut body = chat(4);
                let unknown = http2.post(&url, &[("authorization", &stranger.bearer())], &body).await.status;
                body["model"] = format!("model-{round}-{number}").into();
                body["user"] = format!("user-{round}-{number}").into();
                let model = http2.post(&url, &[("authorization", &key().bearer())], &body).await.status;
                (unknown, model)
            }
        });
        assert!(join_all(asked).await.iter().all(|statuses| *statuses == (401, 404)));
    }
    inside.assert_at_rest().await;
    assert_eq!(format!("{:?}", inside.node().owners().held()), format!("{held:?}"));
    let grown = inside.node().render_metrics().lines().count() - page;
    assert!(grown < 10, "{grown} new series");
}
