//! Bodies that are passed through: nothing of them is counted, but whose model they name is read, for its limits hold
//! on every route.
//!
//! Laws: `one_reading`, as for every body: a form that names two models, or names one in a way that two parsers could read
//! differently, is refused. A form is never changed.

use std::ops::Range;

use bytes::Bytes;

use super::ask::BadAsk;
use super::json::{self, Bounds, Json};

/// A body that is passed through.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// The model that it names, if it names one.
    pub model: Option<String>,
    /// The caller's own user, where its place was asked for.
    pub user: Option<String>,
    /// Whether it asks for a stream.
    pub stream: bool,
    /// Where the model's name lies in a JSON body.
    seam: Option<Range<usize>>,
}

/// Parts of a form; the largest of known APIs has some twenty.
const PARTS_MAX: usize = 256;

impl Passed {
    /// Reads as much of a body as concerns its model. What is neither JSON nor a form names none.
    pub fn read(content_type: &str, body: &[u8], bounds: &Bounds) -> Result<Self, BadAsk> {
        Self::read_for(content_type, None, body, bounds)
    }

    /// The same, and whose user it is for: whose name lies at `user_at`. A form has only what lies on top.
    pub fn read_for(
        content_type: &str,
        user_at: Option<&[String]>,
        body: &[u8],
        bounds: &Bounds,
    ) -> Result<Self, BadAsk> {
        match kind(content_type, body) {
            Kind::Form => Self::read_form(content_type, user_at, body),
            Kind::Json => Self::read_json(user_at, body, bounds),
            Kind::Other => Ok(Self::default()),
        }
    }

    /// The body with another model, every other byte as it was. `None`: it cannot be changed, since it is a form.
    pub fn patched(&self, body: &Bytes, model: &str) -> Option<Bytes> {
        if self.model.as_deref().is_none_or(|named| named == model) {
            return Some(body.clone());
        }
        let Range { start, end } = self.seam.clone()?;
        Some([&body[..start], Json::quoted(model).as_bytes(), &body[end..]].concat().into())
    }

    fn read_json(user_at: Option<&[String]>, body: &[u8], bounds: &Bounds) -> Result<Self, BadAsk> {
        let document = json::read(body, bounds, &["model"])?;
        let model = match document.object.get("model") {
            None | Some(Json::Null) => None,
            Some(Json::String(model)) if model.len() <= super::ask::MODEL_BYTES_MAX => {
                Some(model.to_string())
            }
            Some(_) => return Err(bad("`model` must be a string of at most 256 bytes.")),
        };
        let stream = matches!(document.object.get("stream"), Some(Json::Bool(true)));
        let user = match user_at {
            Some(path) => super::ask::user_in(&document.object, path)?,
            None => None,
        };
        Ok(Self { model, user, stream, seam: document.range("model") })
    }

    fn read_form(content_type: &str, user_at: Option<&[String]>, body: &[u8]) -> Result<Self, BadAsk> {
        let user_at = match user_at {
            Some([name]) => Some(name.to_ascii_lowercase()),
            _ => None,
        };
        let mut passed = Self::default();
        for (name, range) in parts(content_type, body)? {
            let value = &body[range];
            match name.as_str() {
                "model" if passed.model.is_some() => return Err(bad("The form names two models.")),
                "model" => {
                    let model = std::str::from_utf8(value).ok();
                    let model =
                        model.filter(|model| (1..=super::ask::MODEL_BYTES_MAX).contains(&model.len()));
                    let model = model.ok_or_else(|| bad("`model` must be a string of at most 256 bytes."))?;
                    passed.model = Some(model.to_owned());
                }
                "stream" => passed.stream = value == b"true",
                name if user_at.as_deref() == Some(name) => {
                    if passed.user.is_some() {
                        return Err(bad("The form names two users."));
                    }
                    let user = std::str::from_utf8(value).ok();
                    let user = user.filter(|user| user.len() <= super::ask::USER_BYTES_MAX);
                    let user = user.ok_or_else(|| bad("The user must be a string of at most 512 bytes."))?;
                    passed.user = (!user.is_empty()).then(|| user.to_owned());
                }
                _ => {}
            }
        }
        Ok(passed)
    }
}

/// What a body is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Json,
    Form,
    Other,
}

/// What a body is written in, as its sender says or as it looks.
pub(super) fn kind(content_type: &str, body: &[u8]) -> Kind {
    let essence = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match essence.as_str() {
        "multipart/form-data" => Kind::Form,
        "application/json" => Kind::Json,
        // Some clients do not say that what they send is JSON, and some servers do not care.
        _ if body.trim_ascii_start().first() == Some(&b'{') => Kind::Json,
        _ => Kind::Other,
    }
}

/// The parts of a form with their names, lower-cased, and where their values lie. RFC 7578, strictly: every part has one
/// disposition with one name.
pub fn parts(content_type: &str, body: &[u8]) -> Result<Vec<(String, Range<usize>)>, BadAsk> {
    let boundary =
        boundary(content_type).ok_or_else(|| bad("The form's boundary is missing or malformed."))?;
    let opening = format!("--{boundary}");
    let between = format!("\r\n--{boundary}");
    if !body.starts_with(opening.as_bytes()) {
        return Err(bad("The form does not begin with its boundary."));
    }
    let mut found = Vec::new();
    let finder = memchr::memmem::Finder::new(between.as_bytes());
    let mut at = opening.len();
    for _ in 0..PARTS_MAX {
        if body[at..].starts_with(b"--") {
            return Ok(found);
        }
        if !body[at..].starts_with(b"\r\n") {
            return Err(bad("A boundary of the form is malformed."));
        }
        let start = at + 2;
        let end =
            start + finder.find(&body[start..]).ok_or_else(|| bad("The form's last part does not end."))?;
        let part = &body[start..end];
        let head =
            memchr::memmem::find(part, b"\r\n\r\n").ok_or_else(|| bad("A part of the form has no head."))?;
        let name = name_of(&part[..head]).ok_or_else(|| bad("A part of the form has no plain name."))?;
        found.push((name, start + head + 4..end));
        at = end + between.len();
    }
    Err(bad("The form has too many parts."))
}

fn boundary(content_type: &str) -> Option<String> {
    let mut found = content_type.split(';').skip(1).filter_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        name.trim().eq_ignore_ascii_case("boundary").then(|| value.trim().trim_matches('"').to_owned())
    });
    let boundary = found.next()?;
    let plain =
        (1..=70).contains(&boundary.len()) && boundary.bytes().all(|byte| (0x20..0x7f).contains(&byte));
    (plain && found.next().is_none()).then_some(boundary)
}

/// The name that a part's head gives it: `Content-Disposition: form-data; name="model"`, lower-cased, so that no spelling of
/// `model` is overlooked.
fn name_of(head: &[u8]) -> Option<String> {
    let head = std::str::from_utf8(head).ok()?;
    let mut dispositions = head.split("\r\n").filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.trim().eq_ignore_ascii_case("content-disposition").then_some(value)
    });
    let disposition = dispositions.next()?;
    if dispositions.next().is_some() {
        return None;
    }
    let mut names = parameters(disposition).into_iter().filter(|(name, _)| name == "name" || name == "name*");
    let (form, name) = names.next()?;
    // The extended form of RFC 5987 is not for forms (RFC 7578 §4.2), and a second name is an attempt.
    (form == "name" && names.next().is_none()).then(|| name.trim().to_ascii_lowercase())
}

/// The parameters of a header's value; quoted values may hold semicolons.
fn parameters(value: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut rest = value;
    while let Some(at) = rest.find(';') {
        rest = &rest[at + 1..];
        let Some((name, after)) = rest.split_once('=') else { break };
        if name.contains(';') {
            continue;
        }
        let after = after.trim_start();
        let (value, left) = match after.strip_prefix('"') {
            Some(quoted) => match quoted.find('"') {
                Some(end) => (&quoted[..end], &quoted[end + 1..]),
                None => (quoted, ""),
            },
            None => after.split_at(after.find(';').unwrap_or(after.len())),
        };
        found.push((name.trim().to_ascii_lowercase(), value.to_owned()));
        rest = left;
    }
    found
}

fn bad(message: &str) -> BadAsk {
    BadAsk { code: "invalid_request", message: message.to_owned(), param: None, status_hint: 400 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(parts: &[(&str, &str)]) -> Vec<u8> {
        let parts = parts.iter().map(|(head, value)| format!("--x\r\n{head}\r\n\r\n{value}\r\n"));
        format!("{}--x--\r\n", parts.collect::<String>()).into_bytes()
    }

    fn read(parts: &[(&str, &str)]) -> Result<Passed, BadAsk> {
        Passed::read("multipart/form-data; boundary=x", &form(parts), &Bounds::default())
    }

    const MODEL: &str = "Content-Disposition: form-data; name=\"model\"";
    const FILE: &str = "Content-Disposition: form-data; name=\"file\"; filename=\"a;name=model.mp3\"\r\nContent-Type: audio/mpeg";

    #[test]
    fn a_form_names_its_model() {
        let passed = read(&[(FILE, "\u{0}\r\n--y"), (MODEL, "whisper-1")]).unwrap();
        assert_eq!(passed.model.as_deref(), Some("whisper-1"));
        assert_eq!(read(&[(FILE, "x")]).unwrap().model, None);
        let body = Bytes::from(form(&[(MODEL, "whisper-1")]));
        let passed = read(&[(MODEL, "whisper-1")]).unwrap();
        assert_eq!(passed.patched(&body, "whisper-1"), Some(body.clone()));
        assert_eq!(passed.patched(&body, "other"), None);
    }

    #[test]
    fn a_form_that_could_be_read_in_two_ways_is_refused() {
        for parts in [
            vec![(MODEL, "a"), (MODEL, "b")],
            vec![(MODEL, "a"), ("content-disposition: form-data; name=MODEL", "b")],
            vec![("Content-Disposition: form-data; name=\"a\"; name=\"model\"", "b")],
            vec![("Content-Disposition: form-data; name*=utf-8''model", "b")],
            vec![("Content-Type: text/plain", "b")],
            vec![(
                "Content-Disposition: form-data; name=a\r\nContent-Disposition: form-data; name=model",
                "b",
            )],
        ] {
            assert!(read(&parts).is_err(), "{parts:?}");
        }
        for body in ["", "--x", "--x\r\n", "--y\r\n", "--x\r\nA: b\r\n\r\nunfinished"] {
            let read = Passed::read("multipart/form-data; boundary=x", body.as_bytes(), &Bounds::default());
            assert!(read.is_err(), "{body:?}");
        }
        assert!(Passed::read("multipart/form-data", b"--x--", &Bounds::default()).is_err());
    }

    #[test]
    fn a_body_names_its_user_where_it_is_asked_for() {
        const USER: &str = "Content-Disposition: form-data; name=\"User\"";
        let at = |path: &[&str]| path.iter().map(|step| (*step).to_owned()).collect::<Vec<_>>();
        let read = |parts: &[(&str, &str)]| {
            let content_type = "multipart/form-data; boundary=x";
            Passed::read_for(content_type, Some(&at(&["user"])), &form(parts), &Bounds::default())
        };
        assert_eq!(read(&[(USER, "ada"), (MODEL, "m")]).unwrap().user.as_deref(), Some("ada"));
        assert_eq!(read(&[(USER, "")]).unwrap().user, None);
        assert!(read(&[(USER, "ada"), (USER, "bob")]).is_err());
        assert!(read(&[(USER, &"a".repeat(513))]).is_err());
        let json = |body: &[u8], path: &[&str]| {
            Passed::read_for("application/json", Some(&at(path)), body, &Bounds::default())
        };
        let body = br#"{"metadata":{"user":"ada"},"user":null}"#;
        assert_eq!(json(body, &["metadata", "user"]).unwrap().user.as_deref(), Some("ada"));
        assert_eq!(json(body, &["user"]).unwrap().user, None);
        assert_eq!(json(body, &["user", "id"]).unwrap().user, None);
        assert_eq!(json(body, &["metadata"]).unwrap_err().param.as_deref(), Some("metadata"));
        let odd = json(br#"{"metadata":{"user":7}}"#, &["metadata", "user"]).unwrap_err();
        assert_eq!(odd.param.as_deref(), Some("metadata.user"));
    }

    #[test]
    fn a_json_body_is_patched_and_others_name_no_model() {
        let body = Bytes::from_static(br#"{"n":1, "model" : "dall-e-3"}"#);
        let passed = Passed::read("application/json; charset=utf-8", &body, &Bounds::default()).unwrap();
        assert_eq!(passed.patched(&body, "image-1").unwrap(), &br#"{"n":1, "model" : "image-1"}"#[..]);
        assert!(
            Passed::read("application/json", br#"{"model":"a","model":"b"}"#, &Bounds::default()).is_err()
        );
        assert_eq!(Passed::read("audio/mpeg", b"\xff\xfb", &Bounds::default()).unwrap(), Passed::default());
    }
}
