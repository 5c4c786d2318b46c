//! Rows 19 to 25 and 30: callers that take their time, send too much head, or come too often.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::raw::{
    LIMITS, SHORT, answers, assert_cost_nothing, good, head, key, northwind, send, until_closed,
};
use crate::support::inside::{chat, streamed};
use crate::support::{Inside, Key, eventually};

async fn connect(inside: &Inside) -> TcpStream {
    TcpStream::connect(inside.gateway.callers()).await.unwrap()
}

/// Writes a byte, or a piece, ever again, until the node closes; returns what came.
async fn drip(stream: TcpStream, pieces: impl Iterator<Item = String>, pause: Duration) -> Vec<u8> {
    let (mut reading, mut writing) = stream.into_split();
    let mut ticks = tokio::time::interval(pause);
    let sent = async move {
        for piece in pieces {
            ticks.tick().await;
            if writing.write_all(piece.as_bytes()).await.is_err() {
                break;
            }
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = sent => unreachable!("it waits for ever"),
        read = until_closed(&mut reading) => read,
    }
}

async fn no_connection_is_left(inside: &Inside) {
    eventually("no connection is open", async || match inside.node().metrics.connections.get() {
        0 => Ok(()),
        open => Err(format!("{open} open")),
    })
    .await;
}

fn cut(inside: &Inside, why: &str) -> i64 {
    inside.metric("tollgate_connections_cut_total", &[&format!("why=\"{why}\"")])
}

#[tokio::test]
async fn row_19_a_connection_that_says_nothing() {
    let inside = northwind().await;
    let began = tokio::time::Instant::now();
    assert!(until_closed(&mut connect(&inside).await).await.is_empty());
    assert!(began.elapsed() >= SHORT, "not before its time");
    no_connection_is_left(&inside).await;
    assert_eq!(cut(&inside, "silent"), 1);
    assert_cost_nothing(&inside).await;
}

#[tokio::test]
async fn row_20_a_head_that_comes_too_slowly() {
    let inside = northwind().await;
    let lines = std::iter::once("POST /v1/messages HTTP/1.1\r\n".to_owned());
    let lines = lines.chain((0..10_000).map(|number| format!("X-{number}: y\r\n")));
    let dripped = answers(&drip(connect(&inside).await, lines, SHORT / 10).await);
    assert_eq!(dripped[0].status, 408, "{dripped:?}");
    dripped[0].assert_ours("request_timeout");

    // The first bytes of both protocols, and half a head after a whole request.
    for half in ["P", "PRI * HTTP/2.0\r\n", "POST / HTTP/1.1\r\nHost: a"] {
        let answers = send(inside.gateway.callers(), half).await;
        assert_eq!((answers.len(), answers[0].status), (1, 408), "{half:?}: {answers:?}");
    }
    let answers = send(inside.gateway.callers(), good() + "POST / HTT").await;
    assert_eq!(answers.iter().map(|answer| answer.status).collect::<Vec<_>>(), [200, 408]);
    inside.provider.reset();
    no_connection_is_left(&inside).await;
    inside.assert_at_rest().await;
}

#[tokio::test]
async fn row_21_a_body_that_comes_too_slowly() {
    let inside = northwind().await;
    let announced = head("POST /v1/chat/completions HTTP/1.1", "Content-Length: 100000\r\n");
    let chunked = head("POST /v1/chat/completions HTTP/1.1", "Transfer-Encoding: chunked\r\n");
    for silent in [announced.clone(), chunked.clone(), chunked.clone() + "10\r\n"] {
        let answers = send(inside.gateway.callers(), silent).await;
        assert_eq!((answers.len(), answers[0].status), (1, 408), "{answers:?}");
        answers[0].assert_ours("request_timeout");
    }
    for (head, piece) in [(announced, " "), (chunked, "1\r\n \r\n")] {
        let pieces = std::iter::once(head).chain((0..100_000).map(|_| piece.to_owned()));
        let answers = answers(&drip(connect(&inside).await, pieces, SHORT / 20).await);
        assert_eq!((answers.len(), answers[0].status), (1, 408), "{answers:?}");
    }
    no_connection_is_left(&inside).await;
    assert_cost_nothing(&inside).await;
}

#[tokio::test]
async fn row_22_a_connection_that_is_idle() {
    let inside = northwind().await;
    let began = tokio::time::Instant::now();
    let answers = send(inside.gateway.callers(), good()).await;
    assert_eq!((answers.len(), answers[0].status), (1, 200));
    assert!(began.elapsed() >= SHORT, "not before its time");
    no_connection_is_left(&inside).await;
    assert_eq!(cut(&inside, "idle"), 1);
    // An answer that takes longer than that is not idle.
    let slow = good().replacen("\r\n", "\r\nX-Sim: latency=1200ms\r\n", 1);
    let answers = send(inside.gateway.callers(), slow).await;
    assert_eq!((answers.len(), answers[0].status), (1, 200));
    no_connection_is_left(&inside).await;
}

#[tokio::test]
async fn row_23_a_caller_that_reads_a_byte_at_a_time() {
    let inside = northwind().await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4 * 1024).unwrap();
    let mut stream = socket.connect(inside.gateway.callers()).await.unwrap();
    let body = streamed(chat(900_000)).to_string();
    let headers = format!("X-Sim: tokens=300000\r\nContent-Length: {}\r\n", body.len());
    stream
        .write_all((head("POST /v1/chat/completions HTTP/1.1", &headers) + &body).as_bytes())
        .await
        .unwrap();
    stream.read_exact(&mut [0; 100]).await.unwrap();
    let mut ticks = tokio::time::interval(SHORT / 10);
    let reading = async {
        loop {
            ticks.tick().await;
            if stream.read_exact(&mut [0; 1]).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    };
    tokio::select! {
        () = reading => unreachable!("it reads for ever"),
        () = inside.assert_at_rest() => {}
    }
    assert_eq!(inside.limit(&key(), "tenant", "max_inflight").await["used"], 0);
    let charged = inside.used(&key(), "tenant", "tokens_per_minute").await;
    assert!(charged > 0 && charged < 300_000, "what was seen of it: {charged}");
    eventually("the provider is let go", async || match inside.provider.stats().aborted {
        1 => Ok(()),
        _ => Err(format!("{:?}", inside.provider.stats())),
    })
    .await;
}

#[tokio::test]
async fn row_25_heads_over_a_bound() {
    let inside = northwind().await;
    let long = |bytes: usize| head("GET /v1/models HTTP/1.1", &format!("X: {}\r\n", "a".repeat(bytes)));
    let uri = |bytes: usize| head(&format!("GET /v1/models?{} HTTP/1.1", "a".repeat(bytes)), "");
    for (request, status, error) in [
        (head("GET /v1/models HTTP/1.1", &"X: y\r\n".repeat(99)), 431, "request_head_too_large"),
        (head("GET /v1/models HTTP/1.1", &"X: y\r\n".repeat(50_000)), 431, "request_head_too_large"),
        (long(17_000), 431, "request_head_too_large"),
        (long(500_000), 431, "request_head_too_large"),
        (long(2_000_000), 431, "request_head_too_large"),
        (uri(8_200), 414, "uri_too_long"),
        (uri(70_000), 414, "uri_too_long"),
    ] {
        let answers = send(inside.gateway.callers(), &request).await;
        assert_eq!((answers.len(), answers[0].status), (1, status), "{} bytes: {answers:?}", request.len());
        answers[0].assert_ours(error);
    }
    for request in [head("GET /v1/models HTTP/1.1", &"X: y\r\n".repeat(98)), long(16_000), uri(8_000)] {
        let answers = send(inside.gateway.callers(), &request).await;
        assert_eq!(answers[0].status, 200, "{} bytes: {answers:?}", request.len());
    }
    assert_cost_nothing(&inside).await;
}

#[tokio::test]
async fn row_30_connections_of_one_address_and_of_one_key() {
    let other = Key::of("other");
    let inside = Inside::with(
        |options| {
            options.server.max_connections_per_ip = 8;
            options.server.max_connections_per_key = 3;
        },
        |policy| policy.tenant("northwind", &key(), LIMITS).tenant("contoso", &other, LIMITS),
    )
    .await;
    // Of one key.
    let mut held = Vec::new();
    for number in 0..5 {
        let mut stream = connect(&inside).await;
        stream.write_all(good().as_bytes()).await.unwrap();
        let mut answer = vec![0; 12];
        stream.read_exact(&mut answer).await.unwrap();
        let expected: &[u8] = if number < 3 { b"HTTP/1.1 200" } else { b"HTTP/1.1 429" };
        assert_eq!(answer, expected, "number {number}");
        if number < 3 {
            held.push(stream);
        } else {
            let rest = until_closed(&mut stream).await;
            let text = String::from_utf8_lossy(&rest).into_owned();
            assert!(
                text.contains("x-tollgate-error: connection_limit_exceeded")
                    && text.contains("retry-after: "),
                "{text}"
            );
        }
    }
    assert_eq!(inside.used(&key(), "tenant", "requests_per_minute").await, 3, "a refused one costs nothing");
    assert_eq!(inside.chat(&other, "", &chat(4)).await.status, 200, "another key has its own");
    drop(held);
    eventually("the key's connections are free again", async || {
        match inside
            .client
            .post(&inside.at("/v1/chat/completions"), &[("authorization", &key().bearer())], &chat(4))
            .await
        {
            answer if answer.status == 200 => Ok(()),
            answer => Err(answer.text()),
        }
    })
    .await;

    // Of one address.
    let mut held = Vec::new();
    eventually("the address has all its places", async || {
        let mut stream = connect(&inside).await;
        let refused = tokio::time::timeout(SHORT, stream.read(&mut [0; 1])).await;
        if matches!(refused, Ok(Ok(0) | Err(_))) {
            return Ok(());
        }
        held.push(stream);
        Err(format!("{} held", held.len()))
    })
    .await;
    assert!(held.len() <= 8);
    let neighbour = TcpSocket::new_v4().unwrap();
    neighbour.bind(SocketAddr::from(([127, 0, 0, 2], 0))).unwrap();
    let neighbour = neighbour.connect(inside.gateway.callers()).await.unwrap();
    let asked =
        good().replace(&key().bearer(), &other.bearer()).replacen("\r\n", "\r\nConnection: close\r\n", 1);
    let answers = crate::raw::send_over(neighbour, asked).await;
    assert_eq!(answers[0].status, 200, "another address has its own: {answers:?}");
    assert!(inside.metric("tollgate_connections_refused_total", &[]) >= 1);
    drop(held);
}

#[tokio::test]
async fn a_node_that_stops_ends_what_is_idle_or_half_said_at_once() {
    let inside = Inside::under(|policy| policy.tenant("northwind", &key(), LIMITS)).await;
    let mut held = Vec::new();
    for said in ["", "POST / HTTP/1.1\r\nHo"] {
        let mut stream = connect(&inside).await;
        stream.write_all(said.as_bytes()).await.unwrap();
        held.push(stream);
    }
    let mut idle = connect(&inside).await;
    idle.write_all(good().as_bytes()).await.unwrap();
    idle.read_exact(&mut [0; 12]).await.unwrap();
    held.push(idle);
    eventually("all are connected", async || match inside.node().metrics.connections.get() {
        3 => Ok(()),
        open => Err(format!("{open} open")),
    })
    .await;
    let patience = Duration::from_secs(600);
    let stopped =
        tokio::time::timeout(crate::support::PATIENCE, inside.gateway.shut_down(Duration::ZERO, patience));
    stopped.await.expect("nobody is waited for");
    for mut stream in held {
        until_closed(&mut stream).await;
    }
}
