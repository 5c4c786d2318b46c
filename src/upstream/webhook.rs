//! Posts a short message to an address that an operator wrote, and to nobody else.
//!
//! Laws:
//! - an address inside the operator's own network is called only where the policy says so: a name is resolved first, what is private
//!   among its addresses is dropped, and the connection goes to what is left ([`is_public`]);
//! - no redirect is followed, and nothing of the answer is read but its status;
//! - bounded in time.

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode, Uri, header};
use http_body_util::Full;
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::Name;
use hyper_util::rt::{TokioExecutor, TokioTimer};

/// How long all of it may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// The longest head of an answer.
const LARGEST_HEAD: usize = 16 * 1024;

/// Posts `body` to `url`; the status of the answer, whichever it is.
///
/// # Errors
/// A sentence without the address, which may be a secret: what kept it from being answered.
pub async fn post(url: &str, headers: HeaderMap, body: Bytes, private: bool) -> Result<StatusCode, String> {
    let uri: Uri = url.parse().map_err(|_| "the webhook's URL cannot be read".to_owned())?;
    let host = uri.host().ok_or("the webhook's URL has no host")?;
    // A literal is not resolved, so nobody else looks at it.
    let literal = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    if literal.is_ok_and(|address| !private && !is_public(address)) {
        return Err(REFUSED.to_owned());
    }
    let mut tcp = HttpConnector::new_with_resolver(Resolver { private });
    tcp.enforce_http(false);
    tcp.set_connect_timeout(Some(PATIENCE));
    let connector =
        HttpsConnectorBuilder::new().with_webpki_roots().https_or_http().enable_http1().wrap_connector(tcp);
    let client: Client<_, Full<Bytes>> = Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_max_idle_per_host(0)
        .http1_max_buf_size(LARGEST_HEAD)
        .retry_canceled_requests(false)
        .build(connector);
    let mut request = Request::post(uri).body(Full::new(body)).map_err(|error| error.to_string())?;
    *request.headers_mut() = headers;
    request.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    match tokio::time::timeout(PATIENCE, client.request(request)).await {
        Ok(Ok(answer)) => Ok(answer.status()),
        Ok(Err(error)) => Err(innermost(&error)),
        Err(_elapsed) => Err("no answer in time".to_owned()),
    }
}

const REFUSED: &str = "the webhook's host has no public address: set `alerts.allow_private: true` to call one inside your own network";

/// What went wrong at the bottom: what stands above it names the address.
fn innermost(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => innermost(cause),
        None => error.to_string(),
    }
}

/// Names → the addresses that may be called.
#[derive(Clone, Copy, Debug)]
struct Resolver {
    private: bool,
}

impl tower_service::Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let private = self.private;
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let allowed: Vec<SocketAddr> =
                found.filter(|address| private || is_public(address.ip())).collect();
            if allowed.is_empty() {
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, REFUSED));
            }
            Ok(allowed.into_iter())
        })
    }
}

/// Whether an address is one of the open network: not of this machine, of a private network, of a link, or of none at all.
#[must_use]
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let shared = a == 100 && (64..128).contains(&b);
    let protocol = (a, b, c) == (192, 0, 0);
    let relay = (a, b, c) == (192, 88, 99);
    let benchmark = a == 198 && (18..20).contains(&b);
    !(a == 0
        || a >= 240
        || shared
        || protocol
        || relay
        || benchmark
        || address.is_loopback()
        || address.is_private()
        || address.is_link_local()
        || address.is_multicast()
        || address.is_documentation())
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let segments = address.segments();
    let [.., high, low] = segments;
    let embedded = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match segments {
        // Mapped, and translated by the well-known prefix: what it leads to counts.
        [0, 0, 0, 0, 0, 0xffff, ..] | [0x64, 0xff9b, 0, 0, 0, 0, ..] => is_public_v4(embedded(high, low)),
        [0x2002, high, low, ..] => is_public_v4(embedded(high, low)),
        // Global unicast, without what is set aside in it for protocols and documents.
        [0x2001, 0..=0x1ff, ..] | [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => false,
        [first, ..] => first & 0xe000 == 0x2000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_open_network_is_public() {
        let public = [
            "8.8.8.8",
            "1.1.1.1",
            "172.32.0.1",
            "100.128.0.1",
            "2606:4700::1111",
            "::ffff:8.8.8.8",
            "64:ff9b::808:808",
        ];
        for address in public {
            assert!(is_public(address.parse().unwrap()), "{address}");
        }
        let private = [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "127.0.0.1",
            "127.9.9.9",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.8",
            "192.0.2.1",
            "192.168.1.1",
            "198.18.0.1",
            "203.0.113.9",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "fc00::1",
            "fd12:3456::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b::a9fe:a9fe",
            "2002:7f00:1::",
            "2002:a00:1::",
            "2001:db8::1",
            "2001::1",
            "::7f00:1",
        ];
        for address in private {
            assert!(!is_public(address.parse().unwrap()), "{address}");
        }
    }

    #[tokio::test]
    async fn a_private_address_is_refused_by_number_and_by_name() {
        for url in ["http://127.0.0.1:9/x", "http://[::1]:9/x", "http://localhost:9/x", "http://0.0.0.0:9/"] {
            let refused = post(url, HeaderMap::new(), Bytes::new(), false).await.unwrap_err();
            assert_eq!(refused, REFUSED, "{url}");
        }
        let tried = post("http://127.0.0.1:9/x", HeaderMap::new(), Bytes::new(), true).await.unwrap_err();
        assert_ne!(tried, REFUSED);
    }
}
