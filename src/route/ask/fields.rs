//! Reads members by type. An optional member that is `null` counts as absent, as the official SDKs send it.

use std::ops::RangeInclusive;

use super::State;
use super::complaint::Complaint;
use crate::route::Prompt;
use crate::route::json::{Json, Number, Object};

type Read<T> = Result<T, Complaint>;

/// A text, or an array of what the dialect calls `elements`, each of which `read` reads.
pub(super) fn text_or(
    elements: &str,
    name: &str,
    content: &Json<'_>,
    prompt: &mut Prompt,
    state: &mut State,
    read: fn(&Json<'_>, &mut Prompt, &mut State) -> Read<()>,
) -> Read<()> {
    match content {
        Json::String(text) => prompt.say(text),
        Json::Array(array) => {
            for (at, element) in array.iter().enumerate() {
                read(element, prompt, state)
                    .map_err(|complaint| complaint.inside(format_args!("{name}[{at}]")))?;
            }
        }
        other => {
            return Err(Complaint::wrong_type(name, &format!("a string or an array of {elements}"), other));
        }
    }
    Ok(())
}

/// A member that is there and not null.
pub(super) fn present<'j, 'b>(object: &'j Object<'b>, name: &str) -> Option<&'j Json<'b>> {
    object.get(name).filter(|value| **value != Json::Null)
}

pub(super) fn string<'j>(object: &'j Object<'_>, name: &str) -> Read<Option<&'j str>> {
    match present(object, name) {
        None => Ok(None),
        Some(Json::String(text)) => Ok(Some(text)),
        Some(other) => Err(Complaint::wrong_type(name, "a string", other)),
    }
}

pub(super) fn flag(object: &Object<'_>, name: &str) -> Read<Option<bool>> {
    match present(object, name) {
        None => Ok(None),
        Some(Json::Bool(value)) => Ok(Some(*value)),
        Some(other) => Err(Complaint::wrong_type(name, "true or false", other)),
    }
}

pub(super) fn array<'j, 'b>(object: &'j Object<'b>, name: &str) -> Read<Option<&'j [Json<'b>]>> {
    match present(object, name) {
        None => Ok(None),
        Some(Json::Array(elements)) => Ok(Some(elements)),
        Some(other) => Err(Complaint::wrong_type(name, "an array", other)),
    }
}

pub(super) fn object<'j, 'b>(parent: &'j Object<'b>, name: &str) -> Read<Option<&'j Object<'b>>> {
    match present(parent, name) {
        None => Ok(None),
        Some(Json::Object(object)) => Ok(Some(object)),
        Some(other) => Err(Complaint::wrong_type(name, "an object", other)),
    }
}

/// A whole number within a range.
pub(super) fn whole(object: &Object<'_>, name: &str, range: RangeInclusive<u64>) -> Read<Option<u64>> {
    let (least, most) = (*range.start(), *range.end());
    match present(object, name) {
        None => Ok(None),
        Some(Json::Number(Number::Whole(value))) if range.contains(value) => Ok(Some(*value)),
        Some(Json::Number(Number::Whole(value))) if *value > most => Err(Complaint::wrong_value(
            name,
            "integer_above_max_value",
            format!("must be at most {most}, but is {value}"),
        )),
        Some(Json::Number(Number::Whole(value))) => Err(below(name, least, *value)),
        Some(Json::Number(Number::Negative(value))) => Err(below(name, least, *value)),
        Some(other) => Err(Complaint::wrong_type(name, "an integer", other)),
    }
}

fn below(name: &str, least: u64, value: impl std::fmt::Display) -> Complaint {
    Complaint::wrong_value(
        name,
        "integer_below_min_value",
        format!("must be at least {least}, but is {value}"),
    )
}

/// The array of messages: required, not empty.
pub(super) fn messages<'j, 'b>(body: &'j Object<'b>) -> Read<&'j [Json<'b>]> {
    match array(body, "messages")? {
        None => Err(Complaint::missing("messages", "send an array of messages")),
        Some([]) => {
            Err(Complaint::wrong_value("messages", "empty_array", "is empty: send at least one message"))
        }
        Some(messages) => Ok(messages),
    }
}

/// An element of an array that must be an object. The path of a complaint starts with its index.
pub(super) fn element<'j, 'b>(value: &'j Json<'b>) -> Read<&'j Object<'b>> {
    match value {
        Json::Object(object) => Ok(object),
        other => Err(Complaint::wrong_type("", "an object", other)),
    }
}
