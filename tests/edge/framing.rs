//! Rows 1 to 14, 16, 26 and 36: requests that two parsers would read differently.

use std::collections::BTreeSet;

use futures_util::future::join_all;

use crate::raw::{answers, assert_cost_nothing, good, head, key, northwind, send};
use crate::support::inside::chat;
use crate::support::{Inside, Tap};

/// What is hidden behind or within a request; were it read as one, it would be billed.
fn hidden() -> String {
    good()
}

/// Each of these heads is answered once, refused, closed; and what is hidden behind it is never read.
async fn refused(status: u16, error: &str, requests: &[String]) {
    for answer in closed(status, error, requests).await {
        assert_eq!(answer.header("connection"), Some("close"), "{answer:?}");
    }
}

/// The same of requests whose heads may be right.
async fn closed(status: u16, error: &str, requests: &[String]) -> Vec<crate::raw::Answer> {
    let inside = northwind().await;
    let mut all = Vec::new();
    for request in requests {
        let bytes = request.clone() + &hidden();
        let answers = send(inside.gateway.callers(), &bytes).await;
        assert_eq!(answers.len(), 1, "{request:?}: {answers:?}");
        assert_eq!(answers[0].status, status, "{request:?}: {answers:?}");
        answers[0].assert_ours(error);
        all.extend(answers);
    }
    assert_cost_nothing(&inside).await;
    all
}

fn chat_with(headers: &str) -> String {
    head("POST /v1/chat/completions HTTP/1.1", headers)
}

#[tokio::test]
async fn row_01_content_length_beside_transfer_encoding() {
    let body = "0\r\n\r\n";
    refused(
        400,
        "invalid_request",
        &[
            chat_with("Content-Length: 4\r\nTransfer-Encoding: chunked\r\n") + body,
            chat_with("Transfer-Encoding: chunked\r\nContent-Length: 4\r\n") + body,
            chat_with("Transfer-Encoding: chunked\r\nX: y\r\ncontent-length: 0\r\n") + body,
        ],
    )
    .await;
}

#[tokio::test]
async fn row_02_content_lengths_that_are_no_length() {
    let lengths = [
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Content-Length: 5, 5\r\n",
        "Content-Length: +5\r\n",
        "Content-Length: 0x5\r\n",
        "Content-Length: -1\r\n",
        "Content-Length: 5 5\r\n",
        "Content-Length: \r\n",
        "Content-Length: 18446744073709551616\r\n",
    ];
    refused(400, "invalid_request", &lengths.map(chat_with)).await;
}

#[tokio::test]
async fn row_03_the_same_content_length_twice() {
    refused(400, "invalid_request", &[chat_with("Content-Length: 5\r\nContent-Length: 5\r\n")]).await;
}

#[tokio::test]
async fn row_04_a_coding_before_chunked() {
    refused(400, "invalid_request", &[chat_with("Transfer-Encoding: gzip, chunked\r\n") + "0\r\n\r\n"]).await;
}

#[tokio::test]
async fn row_05_transfer_encodings_that_are_not_chunked_alone() {
    let mut requests = [
        "Transfer-Encoding: chunked, gzip\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding: identity\r\n",
        "Transfer-Encoding: \u{b}chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        "Transfer-Encoding : chunked\r\n",
        "Transfer-Encoding:\r\n chunked\r\n",
        "X: a\r\n Transfer-Encoding: chunked\r\n",
        " Transfer-Encoding: chunked\r\n",
    ]
    .map(chat_with)
    .to_vec();
    requests.push(head("POST /v1/chat/completions HTTP/1.0", "Transfer-Encoding: chunked\r\n"));
    refused(400, "invalid_request", &requests).await;
}

#[tokio::test]
async fn row_06_chunks_that_are_malformed() {
    let chunked = |body: String| chat_with("Transfer-Encoding: chunked\r\n") + &body;
    closed(
        400,
        "invalid_request",
        &[
            "0x5\r\nhello\r\n0\r\n\r\n".to_owned(),
            "10000000000000000\r\n".to_owned(),
            "FFFFFFFFFFFFFFFFF\r\n".to_owned(),
            "5\nhello\r\n0\r\n\r\n".to_owned(),
            "5\r\nhello\n0\r\n\r\n".to_owned(),
            "5\r\nhello!\r\n0\r\n\r\n".to_owned(),
            "5;a\nb\r\nhello\r\n0\r\n\r\n".to_owned(),
            format!("5;{}\r\nhello\r\n0\r\n\r\n", "x".repeat(20_000)),
            "5\r\nhello\r\n0\r\nX-Tenant: trailer\r\n\r\n".to_owned(),
            "-1\r\n\r\n".to_owned(),
        ]
        .map(chunked),
    )
    .await;
}

#[tokio::test]
async fn row_07_lines_that_end_in_lf_alone() {
    let crlf = chat_with("Content-Length: 0\r\n");
    refused(
        400,
        "invalid_request",
        &[
            crlf.replace("\r\n", "\n"),
            crlf.replacen("\r\n", "\n", 1),
            crlf.replace("Host: gateway\r\n", "Host: gateway\n"),
            crlf.replace("0\r\n\r\n", "0\r\n\n"),
        ],
    )
    .await;
}

#[tokio::test]
async fn row_08_control_characters_in_a_value() {
    let values =
        ["X: a\rb\r\n", "X: a\0b\r\n", "X: a\u{1b}b\r\n", "X: a\u{7f}b\r\n", "X\0: a\r\n", "X\r: a\r\n"];
    refused(400, "invalid_request", &values.map(chat_with)).await;
}

#[tokio::test]
async fn row_09_no_host_or_two() {
    let authorization = format!("Authorization: {}\r\nContent-Length: 0\r\n\r\n", key().bearer());
    let with = |line: &str, hosts: &str| format!("{line} HTTP/1.1\r\n{hosts}{authorization}");
    let post = "POST /v1/chat/completions";
    refused(
        400,
        "invalid_request",
        &[
            with(post, ""),
            with(post, "Host: a\r\nHost: a\r\n"),
            with(post, "Host: a\r\nHost: b\r\n"),
            with(post, "Host:\r\n"),
            with(post, "Host: a b\r\n"),
            with(post, "Host: a,b\r\n"),
            with(post, "Host: user@a\r\n"),
            with(post, "Host: a/b\r\n"),
            with("POST http://b/v1/chat/completions", "Host: a\r\n"),
            with("POST http://a:81/v1/chat/completions", "Host: a\r\n"),
            with("POST http://user@a/v1/chat/completions", "Host: a\r\n"),
            with("POST ftp://a/v1/chat/completions", "Host: a\r\n"),
        ],
    )
    .await;
}

#[tokio::test]
async fn row_10_methods_that_tunnel_trace_or_are_unknown() {
    refused(501, "upgrade_not_supported", &[head("CONNECT gateway:443 HTTP/1.1", "")]).await;
    let inside = northwind().await;
    for method in ["TRACE", "PROPFIND", "chat", "PRI", "TOLLGATE-REFUSED", "Get"] {
        for path in ["/v1/chat/completions", "/", "/v1/models"] {
            let answers =
                send(inside.gateway.callers(), head(&format!("{method} {path} HTTP/1.1"), "")).await;
            assert_eq!((answers.len(), answers[0].status), (1, 501), "{method}: {answers:?}");
            answers[0].assert_ours("method_not_implemented");
        }
    }
    let answers = send(inside.gateway.callers(), head("GET / HTTP/2.0", "")).await;
    assert_eq!((answers.len(), answers[0].status), (1, 505), "{answers:?}");
    answers[0].assert_ours("http_version_not_supported");
    assert_cost_nothing(&inside).await;
}

/// A node whose provider is behind a tap.
async fn tapped() -> (Inside, Tap) {
    let unused = ([127, 0, 0, 1], 0).into();
    let provider = tollgate::simulated::Provider::bind(unused, tollgate::simulated::Options::default()).await;
    let provider = provider.unwrap();
    let tap = Tap::before(&format!("http://{}", provider.local_addr())).await;
    let url = tap.url.clone();
    let inside = Inside::before(provider, &url, crate::raw::impatient, |policy| {
        policy.tenant("northwind", &key(), crate::raw::LIMITS)
    })
    .await;
    (inside, tap)
}

fn with_body(headers: &str) -> String {
    let body = chat(4).to_string();
    chat_with(&format!("{headers}Content-Length: {}\r\n", body.len())) + &body
}

#[tokio::test]
async fn row_11_an_offer_to_upgrade_and_a_second_request_behind_it() {
    let (inside, tap) = tapped().await;
    for offer in [
        "Connection: Upgrade\r\nUpgrade: foo\r\n",
        "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n",
    ] {
        let answers = send(inside.gateway.callers(), with_body(offer) + &good()).await;
        assert_eq!(answers.iter().map(|answer| answer.status).collect::<Vec<_>>(), [200, 200], "{offer}");
        let attempts = tap.take();
        assert_eq!(attempts.len(), 2, "each was limited and sent on its own");
        for attempt in attempts {
            for name in ["upgrade", "http2-settings"] {
                assert!(!attempt.sent.contains_key(name), "{name}: {:?}", attempt.sent);
            }
        }
    }
    assert_eq!(inside.used(&key(), "tenant", "requests_per_minute").await, 4);
    let web_socket =
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let answers = send(inside.gateway.callers(), head("GET /v1/realtime HTTP/1.1", web_socket)).await;
    assert_eq!(answers[0].status, 501);
    answers[0].assert_ours("upgrade_not_supported");
    assert!(tap.take().is_empty());
}

#[tokio::test]
async fn row_12_a_body_that_nobody_reads_is_never_read_as_a_request() {
    let inside = northwind().await;
    let smuggled = hidden();
    let length = smuggled.len();
    for (line, status) in [
        ("GET /v1/models HTTP/1.1", 200),
        ("GET /nowhere HTTP/1.1", 404),
        ("DELETE /v1/chat/completions HTTP/1.1", 405),
    ] {
        // The request behind the body is read, if the body was; nothing within the body is.
        let next = head("GET /tollgate/v1/me HTTP/1.1", "");
        let bytes = head(line, &format!("Content-Length: {length}\r\n")) + &smuggled + &next;
        let answers = send(inside.gateway.callers(), bytes).await;
        assert_eq!(answers[0].status, status, "{line}: {answers:?}");
        assert!(answers.len() <= 2, "{line}: {answers:?}");
        assert!(answers.get(1).is_none_or(|answer| answer.body.contains("northwind")), "{answers:?}");
    }
    // Refused before its body is read.
    let stranger = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer tg-0\r\nContent-Length: {}\r\n\r\n{smuggled}",
        length * 1_000
    );
    let answers = send(inside.gateway.callers(), stranger + &smuggled.repeat(100)).await;
    assert_eq!((answers.len(), answers[0].status), (1, 401), "{answers:?}");
    assert_cost_nothing(&inside).await;
}

#[tokio::test]
async fn row_13_connection_names_what_it_may_not_take_away() {
    let (inside, tap) = tapped().await;
    let named = "Connection: X-Tenant, Authorization, X-Forwarded-For, X-Tollgate-Decision, Host, Accept-Encoding, X-Own\r\n\
                 X-Own: 1\r\nX-Tenant: contoso\r\nX-Kept: 1\r\n";
    let answers = send(inside.gateway.callers(), with_body(named)).await;
    assert_eq!(answers[0].status, 200, "{answers:?}");
    let sent = &tap.take()[0].sent;
    assert_eq!(sent["authorization"], "Bearer sk-simulated");
    assert_eq!(sent["accept-encoding"], "identity");
    assert!(sent.contains_key("x-tollgate-decision") && sent.contains_key("x-kept"), "{sent:?}");
    for name in ["x-own", "x-tenant", "x-forwarded-for", "connection"] {
        assert!(!sent.contains_key(name), "{name}: {sent:?}");
    }
}

#[tokio::test]
async fn row_14_headers_that_claim_where_a_request_comes_from() {
    let (inside, tap) = tapped().await;
    let claims = [
        "Forwarded",
        "X-Forwarded-For",
        "X-Forwarded-Host",
        "X-Forwarded-Proto",
        "X-Real-IP",
        "X-Request-Id",
        "X-Tenant-Id",
        "X-Tollgate-Tenant",
        "X-Tollgate-Anything",
        "X-Original-URL",
        "X-Rewrite-URL",
        "Via",
    ];
    let headers: String = claims.iter().map(|name| format!("{name}: forged\r\n")).collect();
    let answers = send(inside.gateway.callers(), with_body(&headers)).await;
    assert_eq!(answers[0].status, 200, "{answers:?}");
    let sent = &tap.take()[0].sent;
    assert!(!sent.values().any(|value| value == "forged"), "{sent:?}");
    assert!(!answers[0].head.contains("forged"), "{answers:?}");
}

#[tokio::test]
async fn row_16_spellings_of_a_path() {
    let inside = northwind().await;
    for (path, status) in [
        ("//v1/chat/completions", 404),
        ("/v1/../admin", 404),
        ("/v1/chat/completions/..", 404),
        ("/v1/%2e%2e/chat/completions", 404),
        ("/%2e%2e/metrics", 404),
        ("/v1/chat/completions;x", 404),
        ("/V1/CHAT/COMPLETIONS", 404),
        ("/v1/chat%2fcompletions", 404),
        ("/v1/chat/completions%00", 400),
        ("/%00", 400),
        ("/v1/chat/completions%", 400),
        ("/v1/chat\\completions", 400),
        ("/v1/chat/completions#x", 400),
        ("/v1/chat/complet ions", 400),
        ("*", 400),
        ("v1/chat/completions", 400),
        ("/v1/chat/completions\u{e9}", 400),
    ] {
        let request = with_body("").replace(" /v1/chat/completions ", &format!(" {path} "));
        let answers = send(inside.gateway.callers(), request).await;
        assert_eq!((answers.len(), answers[0].status), (1, status), "{path}: {answers:?}");
        answers[0].assert_ours(if status == 404 { "not_found" } else { "invalid_request" });
    }
    // A key in the query is no credential.
    let query = format!(
        "POST /v1/chat/completions?key={} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
        key().secret
    );
    assert_eq!(send(inside.gateway.callers(), query).await[0].status, 401);
    // An absolute target is the same route when it names the same host.
    let absolute = with_body("").replace(" /v1", " http://gateway/v1");
    assert_eq!(send(inside.gateway.callers(), absolute).await[0].status, 200);
    inside.provider.reset();
    inside.assert_at_rest().await;
}

#[tokio::test]
async fn row_26_a_body_whose_length_is_a_lie() {
    let inside = northwind().await;
    let body = chat(4).to_string();
    // Shorter than the body: what is left over is no request.
    let short = chat_with(&format!("Content-Length: {}\r\n", body.len() - 5)) + &body + "\r\n\r\n";
    let answers = send(inside.gateway.callers(), short).await;
    assert!(answers.iter().all(|answer| answer.status == 400), "{answers:?}");
    // Longer: the rest never comes.
    let long = chat_with(&format!("Content-Length: {}\r\n", body.len() + 5)) + &body;
    let answers = send(inside.gateway.callers(), long).await;
    assert_eq!((answers.len(), answers[0].status), (1, 408), "{answers:?}");
    answers[0].assert_ours("request_timeout");
    // Far longer than is allowed: refused before a byte of it.
    let huge = chat_with("Content-Length: 9223372036854775807\r\n");
    let answers = send(inside.gateway.callers(), huge).await;
    assert_eq!((answers.len(), answers[0].status), (1, 413), "{answers:?}");
    assert_cost_nothing(&inside).await;
}

#[tokio::test]
async fn a_refused_head_is_answered_in_its_turn_and_in_its_dialect() {
    let inside = northwind().await;
    let bad = "POST /v1/messages HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n";
    let answers = send(inside.gateway.callers(), good() + &good() + bad + &hidden()).await;
    let statuses: Vec<u16> = answers.iter().map(|answer| answer.status).collect();
    assert_eq!(statuses, [200, 200, 400], "{answers:?}");
    let told: serde_json::Value = serde_json::from_str(&answers[2].body).unwrap();
    assert_eq!((told["type"].as_str(), inside.provider.stats().requests), (Some("error"), 2), "{told}");
    inside.assert_at_rest().await;
}

#[tokio::test]
async fn requests_arrive_whole_however_their_bytes_are_cut() {
    use tokio::io::AsyncWriteExt;
    let inside = northwind().await;
    let body = chat(4).to_string();
    let (first, second) = body.split_at(7);
    let chunked = chat_with("Transfer-Encoding: chunked\r\n")
        + &format!("7;x=y\r\n{first}\r\n{:X}\r\n{second}\r\n0\r\n\r\n", second.len());
    let bytes = format!("\r\n{}{chunked}{}", good(), good());
    for size in [1, 2, 3, 7, 64, 500, bytes.len()] {
        let mut stream = tokio::net::TcpStream::connect(inside.gateway.callers()).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let (mut reading, mut writing) = stream.split();
        let sent = async {
            for piece in bytes.as_bytes().chunks(size) {
                writing.write_all(piece).await.unwrap();
                tokio::task::yield_now().await;
            }
        };
        let (_, read) = tokio::join!(sent, crate::raw::until_closed(&mut reading));
        let statuses: Vec<u16> = answers(&read).iter().map(|answer| answer.status).collect();
        assert_eq!(statuses, [200, 200, 200], "in pieces of {size}");
    }
    assert_eq!(inside.provider.stats().requests, 21);
    inside.assert_at_rest().await;
}

#[tokio::test]
async fn row_36_many_first_requests_of_a_new_key_at_once() {
    let limits = "tokens_per_minute: 1, burst_tokens: 1_000_000, requests_per_minute: 1, burst_requests: 10";
    let inside = Inside::under(|policy| policy.tenant("northwind", &key(), limits)).await;
    let asked = (0..64).map(|_| async {
        let answer = send(inside.gateway.callers(), with_body("Connection: close\r\n")).await;
        answer[0].status
    });
    let statuses = join_all(asked).await;
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 10, "{statuses:?}");
    assert_eq!(statuses.iter().copied().collect::<BTreeSet<_>>(), [200, 429].into());
    assert_eq!(inside.provider.stats().requests, 10);
    inside.assert_at_rest().await;
}
