//! Members of a body that a policy forbids, such as `logprobs`: looked for where a policy forbids any, and nowhere else.
//!
//! Law: `no_other_spelling`: a name is found in any case and with or without underscores, since some providers read
//! `response_logprobs` and `responseLogprobs` alike. What is null or false asks for nothing, and is let through.

use std::fmt;

use super::ask::BadAsk;
use super::json::{self, Bounds, Json, Object};
use super::passed;

/// Where a member lies: its name, below the names of those around it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldPath(Vec<String>);

/// Deeper than any known setting of a request lies.
const STEPS_MAX: usize = 4;
/// Longer than any known setting is called.
const NAME_MAX: usize = 64;

impl FieldPath {
    /// Reads `logit_bias` or `generationConfig.responseLogprobs`; `None` for what is no such path.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let steps: Vec<String> = text.split('.').map(str::to_owned).collect();
        let is_name = |step: &String| {
            (1..=NAME_MAX).contains(&step.len())
                && step.bytes().any(|byte| byte.is_ascii_alphanumeric())
                && step.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
        };
        (steps.len() <= STEPS_MAX && steps.iter().all(is_name)).then_some(Self(steps))
    }

    /// Whether this and another are spellings of one.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.0.len() == other.0.len() && self.0.iter().zip(&other.0).all(|(a, b)| alike(a, b))
    }

    fn is_in(&self, body: &Object<'_>) -> bool {
        is_below(&self.0, body)
    }

    /// A form has what lies on top, and no more.
    fn is_part(&self, name: &str) -> bool {
        matches!(self.0.as_slice(), [only] if alike(only, name))
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("."))
    }
}

/// The first of `fields` that a body has, be it JSON or a form.
///
/// # Errors
/// A body that cannot be read. One that is neither JSON nor a form has no members.
pub fn first_in<'f>(
    fields: impl Iterator<Item = &'f FieldPath>,
    content_type: &str,
    body: &[u8],
    bounds: &Bounds,
) -> Result<Option<&'f FieldPath>, BadAsk> {
    let mut fields = fields.peekable();
    if fields.peek().is_none() {
        return Ok(None);
    }
    match passed::kind(content_type, body) {
        passed::Kind::Json => {
            let document = json::read(body, bounds, &[])?;
            Ok(fields.find(|field| field.is_in(&document.object)))
        }
        passed::Kind::Form => {
            let parts = passed::parts(content_type, body)?;
            Ok(fields.find(|field| parts.iter().any(|(name, _)| field.is_part(name))))
        }
        passed::Kind::Other => Ok(None),
    }
}

fn is_below(steps: &[String], object: &Object<'_>) -> bool {
    let Some((step, rest)) = steps.split_first() else { return false };
    object.iter().filter(|(name, _)| alike(step, name)).any(|(_, value)| match (rest, value) {
        ([], value) => !matches!(value, Json::Null | Json::Bool(false)),
        (rest, Json::Object(inner)) => is_below(rest, inner),
        _ => false,
    })
}

fn alike(one: &str, other: &str) -> bool {
    letters(one).eq(letters(other))
}

fn letters(name: &str) -> impl Iterator<Item = u8> {
    name.bytes().filter(|byte| *byte != b'_').map(|byte| byte.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, body: &str) -> bool {
        let field = FieldPath::parse(path).unwrap();
        first_in([&field].into_iter(), "application/json", body.as_bytes(), &Bounds::default())
            .unwrap()
            .is_some()
    }

    #[test]
    fn a_member_is_found_in_every_spelling() {
        assert!(found("logprobs", r#"{"logprobs":true}"#));
        assert!(found("logprobs", r#"{"logprobs":0}"#), "the chosen token's own probability");
        assert!(found("logit_bias", r#"{"a":1,"LogitBias":{"50256":-100}}"#));
        let nested = "generationConfig.responseLogprobs";
        assert!(found(nested, r#"{"generationConfig":{"responseLogprobs":true}}"#));
        assert!(found(nested, r#"{"generation_config":{"response_logprobs":true}}"#));
        assert!(found(nested, r#"{"generationConfig":{},"generation_config":{"responseLogprobs":true}}"#));
    }

    #[test]
    fn what_asks_for_nothing_or_lies_elsewhere_is_let_through() {
        assert!(!found("logprobs", r#"{"logprobs":null}"#));
        assert!(!found("logprobs", r#"{"logprobs":false,"top_logprobs":null}"#));
        assert!(!found("logprobs", r#"{"metadata":{"logprobs":"yes"}}"#));
        assert!(!found("a.b", r#"{"a":[{"b":1}],"b":1}"#));
    }

    #[test]
    fn a_form_has_members_too() {
        let field = FieldPath::parse("user").unwrap();
        let form = "--x\r\nContent-Disposition: form-data; name=\"User\"\r\n\r\nada\r\n--x--\r\n";
        let first = |field| {
            let kind = "multipart/form-data; boundary=x";
            first_in([field].into_iter(), kind, form.as_bytes(), &Bounds::default()).unwrap()
        };
        assert_eq!(first(&field), Some(&field));
        assert_eq!(first(&FieldPath::parse("model").unwrap()), None);
    }

    #[test]
    fn paths_are_short_and_plain() {
        for text in ["", ".", "a.", "a b", "a.b.c.d.e", "_", &"a".repeat(65)] {
            assert!(FieldPath::parse(text).is_none(), "{text:?}");
        }
        assert_eq!(FieldPath::parse("a.b_c").unwrap().to_string(), "a.b_c");
        assert!(FieldPath::parse("topLogprobs").unwrap().is_same(&FieldPath::parse("top_logprobs").unwrap()));
    }
}
