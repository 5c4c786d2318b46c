//! Which end user a request is for, as the tenant's policy has it said.
//!
//! Laws: the caller writes it, so it subdivides its own tenant and reaches no other; the name is made a digest here
//! ([`crate::node::UserKey`]), and goes no further: it is personal data.

use http::{HeaderMap, HeaderName};

use super::reject::Rejection;
use crate::limit::UserDigest;
use crate::node::{Node, Principal, Snapshot};
use crate::policy::{UserSource, Users};

/// The longest name in a header; as in a body.
const NAME_BYTES_MAX: usize = 512;

/// Where in a body the user's name lies, if it is there that the policy looks for it.
pub(super) fn place_in_body<'s>(snapshot: &'s Snapshot, principal: &Principal) -> Option<&'s [String]> {
    match &snapshot.users_of(principal)?.from {
        UserSource::Body(path) => Some(path),
        UserSource::Header(_) => None,
    }
}

/// The user of a request whose body names `named`; none where the policy limits no users.
pub(super) fn of_request(
    node: &Node,
    snapshot: &Snapshot,
    principal: &Principal,
    headers: &HeaderMap,
    named: Option<&str>,
) -> Result<Option<UserDigest>, Rejection> {
    let Some(users) = snapshot.users_of(principal) else { return Ok(None) };
    let name = match &users.from {
        UserSource::Body(_) => named.map(str::as_bytes),
        UserSource::Header(header) => in_header(headers, header)?,
    };
    match name {
        Some(name) => Ok(Some(node.users.digest(&principal.tenant, name))),
        None if users.required => Err(missing(users)),
        None => Ok(None),
    }
}

/// The user of a request about something that a provider keeps. Its body is read for nothing else, so only a header names one.
pub(super) fn of_errand(
    node: &Node,
    snapshot: &Snapshot,
    principal: &Principal,
    headers: &HeaderMap,
) -> Result<Option<UserDigest>, Rejection> {
    match snapshot.users_of(principal) {
        Some(Users { from: UserSource::Header(_), .. }) => {
            of_request(node, snapshot, principal, headers, None)
        }
        _ => Ok(None),
    }
}

/// An empty name is none, and two that differ are one too many.
fn in_header<'h>(headers: &'h HeaderMap, header: &str) -> Result<Option<&'h [u8]>, Rejection> {
    let Ok(header) = HeaderName::from_bytes(header.as_bytes()) else { return Ok(None) };
    let mut values = headers.get_all(&header).iter().map(|value| value.as_bytes().trim_ascii());
    let Some(name) = values.next() else { return Ok(None) };
    if values.any(|other| other != name) {
        let message = format!("The header `{header}` names two users: send one.");
        return Err(Rejection::bad_user("invalid_request", message, None));
    }
    if name.len() > NAME_BYTES_MAX {
        let message = format!("The header `{header}` must be at most {NAME_BYTES_MAX} bytes long.");
        return Err(Rejection::bad_user("invalid_request", message, None));
    }
    Ok((!name.is_empty()).then_some(name))
}

fn missing(users: &Users) -> Rejection {
    let (place, param) = match &users.from {
        UserSource::Body(path) => (format!("`{}` of the body", path.join(".")), Some(path.join("."))),
        UserSource::Header(header) => (format!("the header `{header}`"), None),
    };
    let message =
        format!("Requests of this tenant must say for which of its users they are: name it in {place}.");
    Rejection::bad_user("user_required", message, param)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_names_one_user_or_none() {
        let named = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append("x-end-user", value.parse().unwrap());
            }
            in_header(&headers, "x-end-user").map(|name| name.map(<[u8]>::to_vec)).map_err(|no| no.code)
        };
        assert_eq!(named(&[" ada ", "ada"]), Ok(Some(b"ada".to_vec())));
        assert_eq!((named(&[]), named(&[""])), (Ok(None), Ok(None)));
        assert_eq!(named(&["ada", "bob"]), Err("invalid_request"));
        assert_eq!(named(&[&"a".repeat(513)]), Err("invalid_request"));
    }
}
