//! Who is told when a budget crosses a threshold: a webhook as an operator would write one, which notes each call.
//!
//! It refuses the very first call, as a receiver that is down for a moment does: that alert must come again, under the same id.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use ring::hmac;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// The longest body that is read: an alert's has some hundred bytes.
const LONGEST: usize = 64 * 1024;

/// One call of the webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Told {
    /// `idempotency-key`: the crossing's name.
    pub id: String,
    /// What it says.
    pub body: String,
    /// Whether the signature is that of whoever has the secret.
    pub genuine: bool,
    /// Whether it was taken: answered with a 2xx.
    pub taken: bool,
}

/// A running receiver. Dropped, it ends.
pub(super) struct Receiver {
    address: SocketAddr,
    notes: Arc<Notes>,
    serving: JoinHandle<()>,
}

struct Notes {
    secret: hmac::Key,
    told: Mutex<Vec<Told>>,
}

impl Receiver {
    /// Starts one whose callers share `secret` with it.
    pub(super) async fn bind(address: SocketAddr, secret: &str) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let secret = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
        let notes = Arc::new(Notes { secret, told: Mutex::default() });
        let serving = tokio::spawn(serve(listener, notes.clone()));
        Ok(Self { address, notes, serving })
    }

    /// Where it listens.
    pub(super) fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// All calls until now, in their order.
    pub(super) fn told(&self) -> Vec<Told> {
        self.notes.told().clone()
    }

    /// Ends it.
    pub(super) fn shut_down(&self) {
        self.serving.abort();
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.shut_down();
    }
}

impl Notes {
    fn told(&self) -> MutexGuard<'_, Vec<Told>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a call, and says whether it is taken.
    fn note(&self, headers: &HeaderMap, body: &[u8]) -> bool {
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let signed = [header("x-tollgate-timestamp").as_bytes(), b".", body].concat();
        let signature =
            header("x-tollgate-signature").strip_prefix("v1=").and_then(|tag| hex::decode(tag).ok());
        let genuine = signature.is_some_and(|tag| hmac::verify(&self.secret, &signed, &tag).is_ok());
        let mut told = self.told();
        let taken = !told.is_empty();
        let (id, body) = (header("idempotency-key").to_owned(), String::from_utf8_lossy(body).into_owned());
        told.push(Told { id, body, genuine, taken });
        taken
    }
}

/// Serves until it is aborted, its connections with it.
async fn serve(listener: TcpListener, notes: Arc<Notes>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        connections.spawn(connection(stream, notes.clone()));
        while connections.try_join_next().is_some() {}
    }
}

async fn connection(stream: TcpStream, notes: Arc<Notes>) {
    let service = service_fn(|request| answer(request, &notes));
    // A node that breaks a connection off calls again.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(request: Request<Incoming>, notes: &Notes) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let taken = match Limited::new(body, LONGEST).collect().await {
        Ok(body) => notes.note(&head.headers, &body.to_bytes()),
        Err(_broken_off) => false,
    };
    let mut answer = Response::new(Full::default());
    *answer.status_mut() = if taken { StatusCode::NO_CONTENT } else { StatusCode::SERVICE_UNAVAILABLE };
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_call_is_refused_and_only_the_secret_signs() {
        let notes = Notes { secret: hmac::Key::new(hmac::HMAC_SHA256, b"secret"), told: Mutex::default() };
        let call = |key: &'static str, signature: &str| {
            let mut headers = HeaderMap::new();
            let all = [
                ("idempotency-key", key),
                ("x-tollgate-timestamp", "1793491200"),
                ("x-tollgate-signature", signature),
            ];
            for (name, value) in all {
                headers.insert(name, value.parse().unwrap());
            }
            notes.note(&headers, b"{}")
        };
        // HMAC-SHA256 of "1793491200.{}" under "secret".
        let signature = "v1=e95113f1e83deaee99146b2c0526420284cde289ef0910130297b2ad5a1b0b8d";
        assert!(!call("first", signature));
        assert!(call("first", signature));
        assert!(call("second", &signature.replace("v1=e9", "v1=e8")));
        let told = notes.told();
        let seen: Vec<_> = told.iter().map(|told| (told.id.as_str(), told.genuine, told.taken)).collect();
        assert_eq!(seen, [("first", true, false), ("first", true, true), ("second", false, true)]);
    }
}
