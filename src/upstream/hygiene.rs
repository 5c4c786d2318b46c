//! Which headers cross, in which direction (RFC 9110 §7.6.1).
//!
//! A caller's end-to-end headers reach the provider, but for credentials, forwarding headers and anything that names a tenant. A
//! provider's reach the caller, but for its limits, its cookies and its account: those are the operator's, not the tenant's.

use std::collections::HashSet;

use http::header::{self, HeaderName};
use http::{HeaderMap, HeaderValue};

use crate::auth::CREDENTIAL_HEADERS;

/// The caller's headers that go to the provider.
#[must_use]
pub fn outbound(headers: &HeaderMap) -> HeaderMap {
    let mut kept = keep(headers, |name| {
        let text = name.as_str();
        let ours = text.starts_with("x-tollgate-") || text.starts_with("x-forwarded-");
        !ours && !is_callers_own(text) && !CREDENTIAL_HEADERS.contains(name)
    });
    // Usage is read from the answer, so it should come as it is; a provider that compresses anyway is decoded.
    kept.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    kept
}

/// The provider's headers that go to the caller.
#[must_use]
pub fn inbound(headers: &HeaderMap) -> HeaderMap {
    keep(headers, |name| {
        let text = name.as_str();
        let limits = text.starts_with("x-ratelimit-")
            || text.starts_with("anthropic-ratelimit-")
            || text.starts_with("ratelimit")
            || text.starts_with("x-tollgate-");
        !limits && !is_operators_own(text)
    })
}

/// Whether a provider's answer has both a length and chunks (RFC 9112 §6.3): one hop may have read it by the one, and one by the other.
#[must_use]
pub fn length_is_said_twice(headers: &HeaderMap) -> bool {
    let lengths = headers.get_all(header::CONTENT_LENGTH).iter().count();
    lengths > 1 || (lengths == 1 && headers.contains_key(header::TRANSFER_ENCODING))
}

/// Meant for one connection, whatever `Connection` says.
fn is_hop_by_hop(name: &str) -> bool {
    matches!(
        name,
        "connection"
            | "keep-alive"
            | "proxy-connection"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "te"
            | "trailer"
            | "transfer-encoding"
            | "upgrade"
    )
}

/// Not for a provider: framing that is made anew, who the caller is, and where it called from.
fn is_callers_own(name: &str) -> bool {
    matches!(
        name,
        "host"
            | "content-length"
            | "expect"
            | "accept-encoding"
            | "cookie"
            | "forwarded"
            | "origin"
            | "referer"
            | "openai-organization"
            | "openai-project"
            | "x-goog-user-project"
            | "via"
            | "x-real-ip"
            | "x-client-ip"
            | "x-cluster-client-ip"
            | "x-original-url"
            | "x-rewrite-url"
            | "x-request-id"
            | "cf-connecting-ip"
            | "x-tenant"
            | "x-tenant-id"
            | "true-client-ip"
    )
}

/// Not for a caller: framing that is made anew, and the operator's account.
fn is_operators_own(name: &str) -> bool {
    matches!(
        name,
        "content-length"
            | "set-cookie"
            | "openai-organization"
            | "openai-project"
            | "anthropic-organization-id"
            | "alt-svc"
            | "strict-transport-security"
    )
}

/// Room for the headers that are added to those that are kept, so that the map is made once: the limits are ten, of both dialects and
/// the IETF's.
const ADDED: usize = 16;

fn keep(headers: &HeaderMap, wanted: impl Fn(&HeaderName) -> bool) -> HeaderMap {
    let named = named_by_connection(headers);
    let mut kept = HeaderMap::with_capacity(headers.len() + ADDED);
    for (name, value) in headers {
        if !is_hop_by_hop(name.as_str()) && !named.contains(name) && wanted(name) {
            kept.append(name.clone(), value.clone());
        }
    }
    kept
}

/// What `Connection` names is hop-by-hop too.
fn named_by_connection(headers: &HeaderMap) -> HashSet<HeaderName> {
    let values = headers.get_all(header::CONNECTION);
    let tokens = values.iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
    tokens.filter_map(|token| token.trim().parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        map
    }

    #[test]
    fn no_credential_and_no_claim_of_identity_reaches_a_provider() {
        let sent = outbound(&map(&[
            ("authorization", "Bearer tg-1"),
            ("x-api-key", "tg-1"),
            ("api-key", "tg-1"),
            ("x-goog-api-key", "tg-1"),
            ("x-tenant-id", "contoso"),
            ("x-tollgate-tenant", "contoso"),
            ("x-forwarded-for", "10.0.0.1"),
            ("forwarded", "for=10.0.0.1"),
            ("via", "1.1 a"),
            ("x-original-url", "/admin"),
            ("x-request-id", "theirs"),
            ("openai-organization", "org"),
            ("cookie", "a=b"),
            ("anthropic-version", "2026-10-21"),
            ("x-sim", "tokens=3"),
            ("x-stainless-retry-count", "1"),
        ]));
        let names: Vec<&str> = sent.keys().map(HeaderName::as_str).collect();
        assert_eq!(names, ["anthropic-version", "x-sim", "x-stainless-retry-count", "accept-encoding"]);
        assert_eq!(sent["accept-encoding"], "identity");
    }

    #[test]
    fn what_connection_names_is_hop_by_hop_too() {
        let sent = outbound(&map(&[
            ("connection", "close, X-Secret"),
            ("x-secret", "1"),
            ("te", "trailers"),
            ("x-kept", "1"),
        ]));
        assert!(sent.contains_key("x-kept"));
        assert!(
            !sent.contains_key("x-secret") && !sent.contains_key("te") && !sent.contains_key("connection")
        );
    }

    #[test]
    fn the_accounts_limits_and_cookies_do_not_reach_a_caller() {
        let got = inbound(&map(&[
            ("x-ratelimit-remaining-tokens", "5"),
            ("anthropic-ratelimit-tokens-limit", "5"),
            ("set-cookie", "cf=1"),
            ("openai-organization", "org"),
            ("transfer-encoding", "chunked"),
            ("x-request-id", "req_1"),
            ("retry-after", "2"),
            ("content-type", "application/json"),
        ]));
        let names: Vec<&str> = got.keys().map(HeaderName::as_str).collect();
        assert_eq!(names, ["x-request-id", "retry-after", "content-type"]);
    }
}
