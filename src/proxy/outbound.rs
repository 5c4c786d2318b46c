//! What goes to the provider: the caller's body with little changed, at the provider's own address for it.

use bytes::Bytes;
use http::Method;
use http::request::Parts;
use tokio::time::Instant;

use super::counted::{Counted, Reading};
use super::pipeline::Target;
use super::reject::Rejection;
use crate::auth::is_query_credential;
use crate::route::{Dialect, Endpoint, Patches};
use crate::upstream::{Outbound, Upstream, hygiene};

pub(super) fn outbound(
    target: &Target,
    parts: &Parts,
    counted: &Counted,
    body: &Bytes,
    keep_nothing: bool,
    deadline: Instant,
) -> Result<Outbound, Rejection> {
    let upstream = &counted.upstream;
    let body = match &counted.reading {
        Reading::Asked(ask) => ask.patched_with(
            body,
            Patches { model: Some(&counted.upstream_model), usage: upstream.include_usage, keep_nothing },
        ),
        Reading::Passed(passed) => passed
            .patched(body, &counted.upstream_model)
            .ok_or_else(|| Rejection::alias_in_form(&counted.model_asked, &counted.upstream_model))?,
    };
    Ok(Outbound {
        method: Method::POST,
        path_and_query: address(target, parts, &counted.upstream_model, upstream),
        headers: hygiene::outbound(&parts.headers),
        body,
        deadline,
    })
}

/// Path and query as the provider has them, whichever door the caller came by.
fn address(target: &Target, parts: &Parts, model: &str, upstream: &Upstream) -> String {
    let endpoint = target.endpoint;
    let azure_version = upstream.azure_api_version.as_deref();
    let mut address = match (endpoint.spoken(), azure_version) {
        _ if endpoint == Endpoint::PassedThrough => parts.uri.path().to_owned(),
        (Dialect::Gemini, _) => {
            let path = endpoint.path().replace("{model}", &as_path_segment(model));
            match target.version {
                Some("v1") => path.replacen("/v1beta/", "/v1/", 1),
                _ => path,
            }
        }
        (Dialect::OpenAi, Some(_)) if endpoint == Endpoint::Responses => "/openai/responses".to_owned(),
        (Dialect::OpenAi, Some(_)) => {
            let operation = endpoint.path().trim_start_matches("/v1");
            format!("/openai/deployments/{}{operation}", as_path_segment(model))
        }
        _ => endpoint.path().to_owned(),
    };
    let mut separator = '?';
    let mut has_version = false;
    for pair in parts.uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let name = pair.split('=').next().unwrap_or_default();
        let is_version = name == "api-version";
        if target.dialect == Dialect::Gemini && is_query_credential(name)
            || is_version && target.azure && azure_version.is_none()
        {
            continue;
        }
        has_version |= is_version;
        address.push(std::mem::replace(&mut separator, '&'));
        address.push_str(pair);
    }
    if let Some(version) = azure_version.filter(|_| !has_version) {
        address.push(separator);
        address.push_str("api-version=");
        address.push_str(version);
    }
    address
}

/// A name of the policy's as one segment of a path (RFC 3986 §2.3).
fn as_path_segment(name: &str) -> String {
    let mut segment = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~' | b'@') {
            segment.push(char::from(byte));
        } else {
            segment.push_str(&format!("%{byte:02X}"));
        }
    }
    segment
}
