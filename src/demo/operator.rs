//! Whoever operates the nodes: what an operator's commands say, through the admin address of one node after the other.

use std::sync::atomic::{AtomicUsize, Ordering};

use http::Method;
use serde_json::Value;

use super::Stage;
use super::client::Client;

/// An operator with the admin token.
pub(super) struct Operator {
    client: Client,
    urls: Vec<String>,
    next: AtomicUsize,
    token: String,
}

impl Operator {
    /// One of these nodes.
    pub(super) fn new(stage: &Stage) -> Self {
        let token = stage.token.expose().to_owned();
        Self { client: Client::new(), urls: stage.admin_urls(), next: AtomicUsize::new(0), token }
    }

    /// Has something done through the next node; what that answers when it is done.
    pub(super) async fn does(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Result<Value, String> {
        let next = self.next.fetch_add(1, Ordering::Relaxed) % self.urls.len().max(1);
        let url = format!("{}{path}", self.urls.get(next).map_or("", String::as_str));
        self.client.operate(method, &url, &self.token, body.as_ref()).await
    }
}
