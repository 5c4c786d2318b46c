//! Fetches a small document, such as an issuer's keys.
//!
//! Bounded in time and size; follows no redirect: whoever answers at the address that an operator wrote is who was meant.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Uri, header};
use http_body_util::{BodyExt, Full, Limited};

use super::pool::Client;
use crate::policy::Timeouts;

/// How long it may take in all.
const PATIENCE: Duration = Duration::from_secs(10);
/// The largest document.
const MOST: usize = 256 * 1024;

/// The document at `url`.
///
/// # Errors
/// A sentence: what kept it from being fetched.
pub async fn fetch(url: &str) -> Result<Bytes, String> {
    let uri: Uri = url.parse().map_err(|error| format!("{url} is no address: {error}"))?;
    let client = Client::new(&Timeouts::default());
    let request = Request::get(uri).header(header::ACCEPT, "application/json").body(Full::new(Bytes::new()));
    let request = request.map_err(|error| error.to_string())?;
    let fetching = async {
        let answer = client.request(request).await.map_err(|error| error.to_string())?;
        if !answer.status().is_success() {
            return Err(format!("answered {}", answer.status().as_u16()));
        }
        let body = Limited::new(answer.into_body(), MOST).collect().await;
        body.map(|body| body.to_bytes()).map_err(|error| error.to_string())
    };
    match tokio::time::timeout(PATIENCE, fetching).await {
        Ok(fetched) => fetched,
        Err(_elapsed) => Err("did not answer in time".to_owned()),
    }
}
