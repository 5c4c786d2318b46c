//! Connections to a provider, against sockets that are scripted byte by byte.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use super::pool::{Client, ProviderBody, Unanswered};
use crate::policy::Timeouts;

const WHOLE: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi";
const CHUNKED: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n";
const STREAM: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";

/// A provider of which the test plays every byte.
struct Played {
    listener: TcpListener,
    client: Client,
}

impl Played {
    async fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self { listener, client: Client::new(&Timeouts::default()) }
    }

    fn ask(&self) -> impl Future<Output = Result<Response<ProviderBody>, Unanswered>> + use<> {
        let (client, address) = (self.client.clone(), self.listener.local_addr().unwrap());
        let request = Request::post(format!("http://{address}/v1/chat/completions?a=b"));
        let request = request.body(Full::new(Bytes::from_static(b"body"))).unwrap();
        async move { client.request(request).await }
    }

    async fn accept(&self) -> TcpStream {
        self.listener.accept().await.unwrap().0
    }

    /// A request, answered with `said` on its own new connection.
    async fn asked_anew(&self, said: &str) -> (Response<ProviderBody>, TcpStream) {
        let (answer, socket) = tokio::join!(self.ask(), async {
            let mut socket = self.accept().await;
            read_request(&mut socket).await;
            socket.write_all(said.as_bytes()).await.unwrap();
            socket
        });
        (answer.unwrap(), socket)
    }

    /// A request over the connection that there is already.
    async fn asked_again(&self, socket: &mut TcpStream, said: &str) -> Response<ProviderBody> {
        let (answer, ()) = tokio::join!(self.ask(), async {
            read_request(socket).await;
            socket.write_all(said.as_bytes()).await.unwrap();
        });
        answer.unwrap()
    }
}

/// What stands before the body, in lower case.
async fn read_request(socket: &mut TcpStream) -> String {
    let mut read = Vec::new();
    while !read.ends_with(b"\r\n\r\nbody") {
        assert_ne!(socket.read_buf(&mut read).await.unwrap(), 0, "closed before a request came");
    }
    String::from_utf8(read).unwrap().to_lowercase()
}

async fn text(answer: Response<ProviderBody>) -> Bytes {
    answer.into_body().collect().await.unwrap().to_bytes()
}

/// Whether the other side has closed; a reset is a close as well.
async fn is_closed(socket: &mut TcpStream) -> bool {
    matches!(socket.read(&mut [0; 64]).await, Ok(0) | Err(_))
}

#[tokio::test]
async fn a_connection_serves_one_request_after_another() {
    let played = Played::new().await;
    let (answer, mut socket) = played.asked_anew(WHOLE).await;
    assert_eq!(text(answer).await, "hi");
    for said in [CHUNKED, WHOLE, CHUNKED, "HTTP/1.1 204 No Content\r\n\r\n", WHOLE] {
        assert_eq!(played.client.idle_connections(), 1);
        let answer = played.asked_again(&mut socket, said).await;
        let expected = if answer.status() == 204 { "" } else { "hi" };
        assert_eq!(text(answer).await, expected, "{said}");
    }
    let under_way = played.asked_again(&mut socket, STREAM).await;
    assert_eq!(played.client.idle_connections(), 0);
    drop(under_way);
}

#[tokio::test]
async fn a_request_names_its_host_and_its_path_alone() {
    let played = Played::new().await;
    let address = played.listener.local_addr().unwrap();
    let asking = tokio::spawn(played.ask());
    let head = read_request(&mut played.accept().await).await;
    assert!(head.starts_with("post /v1/chat/completions?a=b http/1.1\r\n"), "{head}");
    assert!(head.contains(&format!("\r\nhost: {address}\r\n")), "{head}");
    asking.abort();
}

#[tokio::test]
async fn requests_at_once_have_a_connection_each() {
    let played = Played::new().await;
    let (first, _first) = played.asked_anew(STREAM).await;
    let (second, _second) = played.asked_anew(WHOLE).await;
    assert_eq!(text(second).await, "hi");
    drop(first);
}

#[tokio::test]
async fn what_the_provider_has_closed_is_not_used_again() {
    let played = Played::new().await;
    let (answer, socket) = played.asked_anew(WHOLE).await;
    assert_eq!(text(answer).await, "hi");
    drop(socket);
    // The runtime hears of it.
    tokio::task::yield_now().await;
    let (answer, _socket) = played.asked_anew(WHOLE).await;
    assert_eq!(text(answer).await, "hi");
}

#[tokio::test]
async fn nor_is_one_over_which_something_came_unasked() {
    let played = Played::new().await;
    let (answer, mut socket) = played.asked_anew(WHOLE).await;
    assert_eq!(text(answer).await, "hi");
    socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nwrong").await.unwrap();
    tokio::task::yield_now().await;
    let (answer, _socket) = played.asked_anew(WHOLE).await;
    assert_eq!(text(answer).await, "hi");
}

#[tokio::test]
async fn nor_one_whose_last_answer_is_not_to_be_trusted() {
    let played = Played::new().await;
    let (mut answer, mut socket) = played.asked_anew(WHOLE).await;
    answer.body_mut().is_the_last();
    assert_eq!(text(answer).await, "hi");
    assert!(is_closed(&mut socket).await);
}

#[tokio::test]
async fn an_exchange_that_is_given_up_takes_its_connection_along() {
    let played = Played::new().await;
    let (answer, mut socket) = played.asked_anew(&format!("{STREAM}2\r\nhi\r\n")).await;
    let mut body = answer.into_body();
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "hi");
    drop(body);
    assert!(is_closed(&mut socket).await, "within its answer");

    let asking = tokio::spawn(played.ask());
    let mut socket = played.accept().await;
    read_request(&mut socket).await;
    asking.abort();
    assert!(is_closed(&mut socket).await, "before its answer");
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_an_error_and_not_an_end() {
    let played = Played::new().await;
    for said in [
        format!("{STREAM}2\r\nhi\r\n5\r\nhal"),
        "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf".to_owned(),
    ] {
        let (answer, socket) = played.asked_anew(&said).await;
        drop(socket);
        assert!(answer.into_body().collect().await.is_err(), "{said}");
    }
    let (answered, ()) = tokio::join!(played.ask(), async {
        read_request(&mut played.accept().await).await;
    });
    assert!(matches!(answered, Err(Unanswered::Broken(_))), "it may have been read");
}

#[tokio::test]
async fn nobody_listens() {
    let played = Played::new().await;
    let asking = played.ask();
    drop(played);
    assert!(matches!(asking.await, Err(Unanswered::NotConnected(_))));
}

#[tokio::test]
async fn a_connection_that_nobody_needs_is_closed() {
    let played = Played::new().await;
    let (answer, mut socket) = played.asked_anew(WHOLE).await;
    assert_eq!(text(answer).await, "hi");
    tokio::time::pause();
    let idle_since = crate::clock::timer_now();
    assert!(is_closed(&mut socket).await);
    let waited = idle_since.elapsed();
    assert!((29..=30).contains(&waited.as_secs()), "{waited:?}");
}

/// A waker that counts.
struct Counting(Arc<AtomicUsize>, Waker);

impl Wake for Counting {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
        self.1.wake_by_ref();
    }
}

/// The whole point of driving a connection from the task that waits for it: each piece of an answer wakes it once.
#[tokio::test]
async fn a_piece_of_an_answer_is_one_wake_up() {
    const PIECES: usize = 100;
    let played = Played::new().await;
    let (answer, mut socket) = played.asked_anew(STREAM).await;
    let mut body = answer.into_body();
    let (arrived, mut arrivals) = mpsc::unbounded_channel();
    let provider = tokio::spawn(async move {
        for _ in 0..PIECES {
            socket.write_all(b"5\r\npiece\r\n").await.unwrap();
            arrivals.recv().await.unwrap();
        }
        socket.write_all(b"0\r\n\r\n").await.unwrap();
        socket
    });
    let mut reading = pin!(async {
        let mut pieces = 0;
        while let Some(frame) = body.frame().await {
            assert_eq!(frame.unwrap().into_data().unwrap(), "piece");
            pieces += 1;
            arrived.send(()).unwrap();
        }
        pieces
    });
    let wakes = Arc::new(AtomicUsize::new(0));
    let pieces = std::future::poll_fn(|context| {
        let counting = Waker::from(Arc::new(Counting(wakes.clone(), context.waker().clone())));
        reading.as_mut().poll(&mut Context::from_waker(&counting))
    });
    assert_eq!(pieces.await, PIECES);
    let wakes = wakes.load(Ordering::Relaxed);
    // One for each piece, and one for the end.
    assert!(wakes <= PIECES + 1, "{wakes} wake-ups for {PIECES} pieces");
    drop(provider.await.unwrap());
}

/// Over TLS a provider may choose HTTP/2: then one connection carries all requests, and another one when that is gone.
#[tokio::test]
async fn over_http_2_requests_share_a_connection() {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let ring = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let trusting =
        rustls::ClientConfig::builder_with_provider(ring.clone()).with_safe_default_protocol_versions();
    let trusting = trusting.unwrap().with_root_certificates(roots).with_no_client_auth();
    let client = Client::over(HttpsConnectorBuilder::new().with_tls_config(trusting), &Timeouts::default());

    let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let serving = rustls::ServerConfig::builder_with_provider(ring).with_safe_default_protocol_versions();
    let serving = serving.unwrap().with_no_client_auth();
    let mut serving = serving.with_single_cert(vec![made.cert.der().clone()], key).unwrap();
    serving.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(serving));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (opened, mut connections) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let socket = TokioIo::new(acceptor.accept(socket).await.unwrap());
            let service = hyper::service::service_fn(|request: Request<hyper::body::Incoming>| async move {
                assert_eq!(request.version(), http::Version::HTTP_2);
                let asked = Bytes::from(request.uri().to_string());
                Ok::<_, std::convert::Infallible>(Response::new(Full::new(asked)))
            });
            let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            opened.send(tokio::spawn(connection.serve_connection(socket, service))).unwrap();
        }
    });

    let url = format!("https://localhost:{port}/v1/messages");
    let ask = async || {
        let request = Request::post(&url).body(Full::new(Bytes::from_static(b"body"))).unwrap();
        text(client.request(request).await.unwrap()).await
    };
    assert_eq!(ask().await, url);
    let (one, other) = tokio::join!(ask(), ask());
    assert_eq!((one, other), (Bytes::from(url.clone()), Bytes::from(url.clone())));
    let connection = connections.try_recv().unwrap();
    assert!(connections.try_recv().is_err(), "one for all");

    connection.abort();
    assert!(connection.await.unwrap_err().is_cancelled());
    let closed = async {
        while client.shares_a_connection() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), closed).await.unwrap();
    assert_eq!(ask().await, url);
    assert!(connections.try_recv().is_ok());
}
