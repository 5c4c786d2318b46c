//! What is wrong with a request, in the words of the person who has to mend it: what, where, what to do.

use std::fmt;

use crate::route::json::{Fault, FaultKind, Json};

/// Why a request is refused before anything is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadAsk {
    /// Stable code, snake case. Where OpenAI's API has a code for the fault, it is that one.
    pub code: &'static str,
    /// What is wrong, where, and what to do; one or two sentences.
    pub message: String,
    /// The member at fault, as `messages[0].content`; `None`: the body as a whole.
    pub param: Option<String>,
    /// The HTTP status it deserves: 400, or 413 for a body beyond its bounds.
    pub status_hint: u16,
}

impl fmt::Display for BadAsk {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.message)
    }
}

impl std::error::Error for BadAsk {}

/// A [`BadAsk`] on its way up, whose path still grows at the front. Nothing is formatted until something is wrong.
#[derive(Debug)]
pub(super) struct Complaint {
    code: &'static str,
    path: String,
    predicate: String,
}

impl Complaint {
    pub(super) fn missing(name: &str, remedy: &str) -> Complaint {
        Complaint {
            code: "missing_required_parameter",
            path: name.to_owned(),
            predicate: format!("is missing: {remedy}"),
        }
    }

    pub(super) fn wrong_type(name: &str, expected: &str, found: &Json<'_>) -> Complaint {
        Complaint {
            code: "invalid_type",
            path: name.to_owned(),
            predicate: format!("must be {expected}, but is {}", found.kind()),
        }
    }

    pub(super) fn wrong_value(name: &str, code: &'static str, predicate: impl Into<String>) -> Complaint {
        Complaint { code, path: name.to_owned(), predicate: predicate.into() }
    }

    /// The same, seen from the object or array around it: `outer` is a name, or `name[3]`.
    pub(super) fn inside(mut self, outer: fmt::Arguments<'_>) -> Complaint {
        let dot = if self.path.is_empty() || self.path.starts_with('[') { "" } else { "." };
        self.path = format!("{outer}{dot}{}", self.path);
        self
    }
}

impl From<Complaint> for BadAsk {
    fn from(complaint: Complaint) -> BadAsk {
        let Complaint { code, path, predicate } = complaint;
        BadAsk { code, message: format!("`{path}` {predicate}."), param: Some(path), status_hint: 400 }
    }
}

impl From<Fault> for BadAsk {
    fn from(fault: Fault) -> BadAsk {
        let (code, status_hint, remedy) = match &fault.kind {
            FaultKind::TooLong => ("request_too_large", 413, "send less, or send files by reference"),
            FaultKind::TooManyMembers | FaultKind::TooManyValues => {
                ("request_too_large", 413, "split the request")
            }
            FaultKind::TooDeep => ("json_too_deep", 400, "flatten it"),
            FaultKind::DuplicateKey(_) => ("duplicate_key", 400, "send each name once"),
            FaultKind::ByteOrderMark => ("invalid_json", 400, "send UTF-8 without it"),
            FaultKind::NotUtf8 => ("invalid_json", 400, "encode the body as UTF-8"),
            FaultKind::Syntax(_) => ("invalid_json", 400, "serialise the body with a JSON library"),
            FaultKind::NotAnObject => ("invalid_json", 400, "send `{\"model\": …}`"),
        };
        let param = match &fault.kind {
            FaultKind::DuplicateKey(name) => Some(name.clone()),
            _ => None,
        };
        BadAsk { code, message: format!("{fault}: {remedy}."), param, status_hint }
    }
}
