//! An HTTP client as a caller has one: it sends a request once, and may leave before the answer is over.

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

/// The most of an answer that is read: the provider's list of a demo's requests has some hundred kilobytes.
const MAX_ANSWER: usize = 64 * 1024 * 1024;

/// A client with a pool of HTTP/1.1 connections.
#[derive(Clone)]
pub(super) struct Client(legacy::Client<HttpConnector, Full<Bytes>>);

impl Client {
    pub(super) fn new() -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        Self(legacy::Client::builder(TokioExecutor::new()).build(connector))
    }

    /// Sends a request and returns when the head of its answer is there.
    pub(super) async fn send(&self, request: Request<Full<Bytes>>) -> Result<Answer, String> {
        let uri = request.uri().clone();
        let answer = self.0.request(request).await.map_err(|error| format!("{uri}: {error}"))?;
        let (head, body) = answer.into_parts();
        Ok(Answer { status: head.status, headers: head.headers, body })
    }

    /// A page, whole, if its status is 200; none if it is 404.
    pub(super) async fn page(&self, url: &str, bearer: Option<&str>) -> Result<Option<Bytes>, String> {
        let mut request = Request::get(url);
        if let Some(bearer) = bearer {
            request = request.header(header::AUTHORIZATION, format!("Bearer {bearer}"));
        }
        let request = request.body(Full::default()).map_err(|error| format!("{url}: {error}"))?;
        let answer = self.send(request).await?;
        match answer.status {
            StatusCode::OK => answer.rest().await.map(Some),
            StatusCode::NOT_FOUND => Ok(None),
            status => Err(format!("{url} answers {status}")),
        }
    }

    /// What an operator does: a request with the admin token, and a JSON body where there is one. The page that answers it, if it was done.
    pub(super) async fn operate(
        &self,
        method: Method,
        url: &str,
        token: &str,
        body: Option<&Value>,
    ) -> Result<Value, String> {
        let problem = |problem: &dyn std::fmt::Display| format!("{method} {url}: {problem}");
        let request = Request::builder()
            .method(&method)
            .uri(url)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::AUTHORIZATION, format!("Bearer {token}"))
            .body(Full::from(body.map(Value::to_string).unwrap_or_default()))
            .map_err(|error| problem(&error))?;
        let answer = self.send(request).await?;
        let status = answer.status;
        let page = answer.rest().await?;
        if !status.is_success() {
            return Err(problem(&format!("{status}, {}", String::from_utf8_lossy(&page))));
        }
        serde_json::from_slice(&page).map_err(|error| problem(&error))
    }
}

/// An answer whose body is still arriving. Dropping it closes its connection.
pub(super) struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    body: Incoming,
}

impl Answer {
    /// A header that is text.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The next piece of the body; none at its end.
    pub(super) async fn next(&mut self) -> Option<Result<Bytes, String>> {
        loop {
            match self.body.frame().await? {
                Ok(frame) => match frame.into_data() {
                    Ok(data) => return Some(Ok(data)),
                    Err(_trailers) => continue,
                },
                Err(error) => return Some(Err(error.to_string())),
            }
        }
    }

    /// What is left of the body.
    pub(super) async fn rest(self) -> Result<Bytes, String> {
        let collected = Limited::new(self.body, MAX_ANSWER).collect().await;
        collected.map(|body| body.to_bytes()).map_err(|error| format!("the answer broke off: {error}"))
    }
}
