//! A provider that answers from a script: for what the simulated one, which is honest, never does.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// A running script; it closes when dropped.
pub struct Scripted {
    /// Where it listens: `http://127.0.0.1:PORT`.
    pub url: String,
    asked: Arc<AtomicUsize>,
    serving: JoinHandle<()>,
}

impl Scripted {
    /// Answers request number `n`, from 0, with `script(n, request)`.
    pub async fn playing(
        script: impl Fn(usize, &Request) -> Response + Clone + Send + Sync + 'static,
    ) -> Scripted {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let address = listener.local_addr().expect("a bound listener has an address");
        let asked = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&asked);
        let app = axum::Router::new().fallback(move |request: Request| {
            let answer = script(counter.fetch_add(1, Ordering::SeqCst), &request);
            async move { answer }
        });
        let serving = tokio::spawn(async move {
            axum::serve(listener, app).await.expect("a loopback listener goes on accepting");
        });
        Scripted { url: format!("http://{address}"), asked, serving }
    }

    /// How often it was asked.
    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// An answer of the script.
pub fn says(status: u16, content_type: &str, body: impl Into<Body>) -> Response {
    Response::builder()
        .status(status)
        .header("content-type", content_type)
        .body(body.into())
        .expect("a status, a header and a body make an answer")
}

/// Where nobody listens: `http://127.0.0.1:PORT`.
pub async fn nobody() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
    format!("http://{}", listener.local_addr().expect("a bound listener has an address"))
}
