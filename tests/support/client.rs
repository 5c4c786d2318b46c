//! A small HTTP client: one request, one whole answer; or the head of an answer whose body is still arriving.
//!
//! It never retries and never follows a redirect: a test sees what was sent.

use bytes::Bytes;
use http::{HeaderMap, Method, Request};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::{self, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

use super::PATIENCE;

/// An HTTP/1.1 client with a connection pool of its own.
#[derive(Clone)]
pub struct Client(legacy::Client<HttpConnector, Full<Bytes>>);

/// A whole answer.
#[derive(Debug)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// The headers, names in lower case.
    pub headers: HeaderMap,
    /// The body, as it came.
    pub body: Bytes,
}

impl Client {
    /// A client without open connections.
    pub fn new() -> Client {
        Client(legacy::Client::builder(TokioExecutor::new()).build_http())
    }

    /// A client that speaks HTTP/2 from the first byte, and so shares one connection among its requests.
    pub fn http2() -> Client {
        Client(legacy::Client::builder(TokioExecutor::new()).http2_only(true).build_http())
    }

    /// `GET url`.
    pub async fn get(&self, url: &str, headers: &[(&str, &str)]) -> Response {
        self.try_get(url, headers).await.unwrap_or_else(|why| panic!("GET {url}: {why}"))
    }

    /// `GET url`, where no answer is an answer too.
    pub async fn try_get(&self, url: &str, headers: &[(&str, &str)]) -> Result<Response, String> {
        whole(self.open(request(Method::GET, url, headers, Bytes::new())).await?).await
    }

    /// `POST url` with a JSON body.
    pub async fn post(&self, url: &str, headers: &[(&str, &str)], body: &Value) -> Response {
        self.post_bytes(url, headers, body.to_string()).await
    }

    /// `POST url` with any bytes, sent as `application/json`: for bodies that are not JSON after all.
    pub async fn post_bytes(&self, url: &str, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Response {
        self.try_post(url, headers, body).await.unwrap_or_else(|why| panic!("POST {url}: {why}"))
    }

    /// `POST url`, where an answer that breaks off is an answer too.
    pub async fn try_post(
        &self,
        url: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Result<Response, String> {
        whole(self.open(request(Method::POST, url, headers, body.into())).await?).await
    }

    /// Any method, with an empty body.
    pub async fn ask(&self, method: &str, url: &str, headers: &[(&str, &str)]) -> Response {
        let method = method.parse().unwrap_or_else(|error| panic!("{method}: {error}"));
        let answer = async { whole(self.open(request(method, url, headers, Bytes::new())).await?).await };
        answer.await.unwrap_or_else(|why| panic!("{url}: {why}"))
    }

    /// `POST url`, returning at the head of the answer. Dropping the answer closes the connection: that is how a caller aborts.
    pub async fn post_open(
        &self,
        url: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> http::Response<Incoming> {
        self.try_post_open(url, headers, body).await.unwrap_or_else(|why| panic!("POST {url}: {why}"))
    }

    /// The same, where no answer is an answer too.
    pub async fn try_post_open(
        &self,
        url: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> Result<http::Response<Incoming>, String> {
        self.open(request(Method::POST, url, headers, body.to_string().into())).await
    }

    /// Sends `request` and returns the head of the answer.
    pub async fn open(&self, request: Request<Full<Bytes>>) -> Result<http::Response<Incoming>, String> {
        match tokio::time::timeout(PATIENCE, self.0.request(request)).await {
            Ok(answer) => answer.map_err(|error| format!("{error:?}")),
            Err(_) => Err(format!("no answer within {PATIENCE:?}")),
        }
    }
}

impl Response {
    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("not JSON ({error}): {} {}", self.status, self.text()))
    }

    /// The one value of a header, if the answer has it and it is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

fn request(method: Method, url: &str, headers: &[(&str, &str)], body: Bytes) -> Request<Full<Bytes>> {
    let mut request = Request::builder().method(method).uri(url);
    if !body.is_empty() {
        request = request.header("content-type", "application/json");
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Full::new(body)).unwrap_or_else(|error| panic!("{url}: not a request: {error}"))
}

async fn whole(answer: http::Response<Incoming>) -> Result<Response, String> {
    let (head, body) = answer.into_parts();
    let body = match tokio::time::timeout(PATIENCE, body.collect()).await {
        Ok(body) => body.map_err(|error| format!("the body broke off: {error:?}"))?.to_bytes(),
        Err(_) => return Err(format!("the body did not end within {PATIENCE:?}")),
    };
    Ok(Response { status: head.status.as_u16(), headers: head.headers, body })
}
