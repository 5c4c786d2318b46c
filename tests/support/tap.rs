//! A tap on the wire: an HTTP reverse proxy between a client and the node that writes down every attempt.
//!
//! It changes nothing but `host`, relays streams frame by frame, and lets go of the node's answer when its client goes away,
//! so that an abort is an abort on both sides.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use http::{HeaderMap, StatusCode};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// A running tap; it closes when dropped.
pub struct Tap {
    /// Where clients connect: `http://127.0.0.1:PORT`.
    pub url: String,
    attempts: Arc<Mutex<Vec<Attempt>>>,
    serving: JoinHandle<()>,
}

/// One request that passed, and the head of its answer.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// Method and path, such as `POST /v1/messages`.
    pub line: String,
    /// The request's headers.
    pub sent: HeaderMap,
    /// The answer's status code.
    pub status: u16,
    /// The answer's headers.
    pub answered: HeaderMap,
}

impl Attempt {
    /// A header of the answer, as text.
    pub fn answer(&self, name: &str) -> Option<&str> {
        self.answered.get(name).and_then(|value| value.to_str().ok())
    }
}

impl Tap {
    /// Opens a tap in front of `target`, an `http://HOST:PORT` URL.
    pub async fn before(target: &str) -> Tap {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let address: SocketAddr = listener.local_addr().expect("a bound listener has an address");
        let attempts = Arc::new(Mutex::new(Vec::new()));
        let relay = Relay {
            target: target.to_owned(),
            client: Client::builder(TokioExecutor::new()).build_http(),
            attempts: Arc::clone(&attempts),
        };
        let app = axum::Router::new().fallback(pass).with_state(relay);
        let serving = tokio::spawn(async move {
            axum::serve(listener, app).await.expect("a loopback listener goes on accepting");
        });
        Tap { url: format!("http://{address}"), attempts, serving }
    }

    /// What has passed since the last call, in the order the answers began.
    pub fn take(&self) -> Vec<Attempt> {
        std::mem::take(&mut self.attempts.lock().expect("no holder panics"))
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

#[derive(Clone)]
struct Relay {
    target: String,
    client: Client<HttpConnector, Body>,
    attempts: Arc<Mutex<Vec<Attempt>>>,
}

async fn pass(State(relay): State<Relay>, mut request: Request) -> Response {
    let line = format!("{} {}", request.method(), request.uri());
    let sent = request.headers().clone();
    request.headers_mut().remove("host");
    *request.uri_mut() =
        format!("{}{}", relay.target, request.uri()).parse().expect("an origin and a path make a URI");
    let answer = match relay.client.request(request).await {
        Ok(answer) => answer.map(Body::new),
        Err(error) => {
            let mut answer = Response::new(Body::from(format!("the tap reached nobody: {error:?}")));
            *answer.status_mut() = StatusCode::BAD_GATEWAY;
            answer
        }
    };
    let attempt =
        Attempt { line, sent, status: answer.status().as_u16(), answered: answer.headers().clone() };
    relay.attempts.lock().expect("no holder panics").push(attempt);
    answer
}
