//! What a body that is passed through names: every word of it that could be an id of something a provider keeps.
//!
//! Law: `wherever_it_stands`: members' names and values at any depth, parts of a form, and what is within an address
//! (`…/files/file-1/content`). A text with a space in it is prose, and names nothing.

use super::ask::BadAsk;
use super::json::{self, Bounds, Json, Object};
use super::passed;

/// The longest id, as in a path that has one.
const ID_MAX: usize = 128;
/// The longest text that may hold one: longer than an address may be.
const TEXT_MAX: usize = 4 * 1024;

/// Tells every word of a body that could be an id, until `tell` says that it has heard enough.
///
/// # Errors
/// A body that cannot be read. One that is neither JSON nor a form names nothing.
pub fn ids_in(
    content_type: &str,
    body: &[u8],
    bounds: &Bounds,
    tell: &mut dyn FnMut(&str) -> bool,
) -> Result<bool, BadAsk> {
    match passed::kind(content_type, body) {
        passed::Kind::Json => Ok(in_object(&json::read(body, bounds, &[])?.object, tell)),
        passed::Kind::Form => {
            let parts = passed::parts(content_type, body)?;
            let texts = parts.into_iter().filter_map(|(_, range)| std::str::from_utf8(&body[range]).ok());
            Ok(texts.into_iter().any(|text| ids_of(text, tell)))
        }
        passed::Kind::Other => Ok(false),
    }
}

/// The same of one text. Percent signs stand for what they mean in an address.
pub fn ids_of(text: &str, tell: &mut dyn FnMut(&str) -> bool) -> bool {
    if text.len() > TEXT_MAX || text.contains(char::is_whitespace) {
        return false;
    }
    let is_of_id = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    let mut words = |text: &str| {
        let words = text.split(|c| !is_of_id(c)).filter(|word| (1..=ID_MAX).contains(&word.len()));
        words.into_iter().any(&mut *tell)
    };
    words(text) || (text.contains('%') && words(&decoded(text)))
}

fn in_object(object: &Object<'_>, tell: &mut dyn FnMut(&str) -> bool) -> bool {
    object.iter().any(|(name, value)| ids_of(name, tell) || in_value(value, tell))
}

fn in_value(value: &Json<'_>, tell: &mut dyn FnMut(&str) -> bool) -> bool {
    match value {
        Json::String(text) => ids_of(text, tell),
        Json::Array(elements) => elements.iter().any(|element| in_value(element, tell)),
        Json::Object(object) => in_object(object, tell),
        Json::Null | Json::Bool(_) | Json::Number(_) => false,
    }
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let digits = after.get(..2).filter(|_| *first == b'%').and_then(|digits| hex::decode(digits).ok());
        match digits.as_deref() {
            Some([byte]) => {
                bytes.push(*byte);
                rest = &after[2..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(content_type: &str, body: &str) -> Vec<String> {
        let mut names = Vec::new();
        let mut tell = |word: &str| {
            names.push(word.to_owned());
            false
        };
        ids_in(content_type, body.as_bytes(), &Bounds::default(), &mut tell).unwrap();
        names
    }

    #[test]
    fn an_id_is_found_wherever_it_stands() {
        let json = |body: &str| named("application/json", body);
        assert!(json(r#"{"image":{"file_id":"file-1"}}"#).contains(&"file-1".to_owned()));
        assert!(json(r#"{"a":[["file_1"]]}"#).contains(&"file_1".to_owned()));
        assert!(json(r#"{"file-1":null}"#).contains(&"file-1".to_owned()));
        assert!(json(r#"{"url":"https://a/v1/files/file-1/content?x=1"}"#).contains(&"file-1".to_owned()));
        assert!(json(r#"{"url":"https://a/v1/files/%66ile%2D1"}"#).contains(&"file-1".to_owned()));
        assert!(!json(r#"{"prompt":"about file-1, say"}"#).contains(&"file-1".to_owned()));
        let form = "--x\r\nContent-Disposition: form-data; name=\"image_id\"\r\n\r\nfile-1\r\n--x--\r\n";
        assert_eq!(named("multipart/form-data; boundary=x", form), ["file-1"]);
        assert!(named("audio/mpeg", "file-1").is_empty());
    }

    #[test]
    fn whoever_has_heard_enough_is_told_no_more() {
        let mut heard = 0;
        let found = ids_in("application/json", br#"{"a":"b","c":"d"}"#, &Bounds::default(), &mut |_| {
            heard += 1;
            heard == 2
        });
        assert_eq!((found, heard), (Ok(true), 2));
    }
}
