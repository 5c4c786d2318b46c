//! What is left to check once the library has parsed a request, of either version.

use http::{Method, Request, Version, header};

use super::super::reject::Rejection;
use super::head::{Bounds, Refusal};

/// Checks a parsed request's method, its target's length, the number of its headers and whom it is for.
pub fn vet<B>(request: &Request<B>, bounds: &Bounds) -> Result<(), Rejection> {
    let known = [
        Method::GET,
        Method::HEAD,
        Method::POST,
        Method::PUT,
        Method::PATCH,
        Method::DELETE,
        Method::OPTIONS,
        // Refused later, as every attempt to switch protocols is.
        Method::CONNECT,
    ];
    if !known.contains(request.method()) {
        return Err(Rejection::unknown_method());
    }
    if request.version() != Version::HTTP_2 {
        return Ok(());
    }
    let uri = request.uri();
    if uri.path_and_query().is_some_and(|target| target.as_str().len() > bounds.target) {
        return Err(Rejection::bad_head(Refusal::TargetTooLong));
    }
    if request.headers().len() > bounds.headers {
        return Err(Rejection::bad_head(Refusal::TooManyHeaders));
    }
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let (host, another) = (hosts.next(), hosts.next());
    let differs = |authority: &str| {
        host.is_some_and(|host| !host.as_bytes().eq_ignore_ascii_case(authority.as_bytes()))
    };
    if another.is_some() || uri.authority().is_some_and(|authority| differs(authority.as_str())) {
        return Err(Rejection::bad_head(Refusal::Malformed(":authority and the Host header name two hosts")));
    }
    if request.headers().get_all(header::CONTENT_LENGTH).iter().count() > 1 {
        return Err(Rejection::bad_head(Refusal::Malformed("there are two Content-Length headers")));
    }
    Ok(())
}
