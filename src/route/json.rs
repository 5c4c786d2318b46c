//! A strict reader of JSON bodies: one reading or none.
//!
//! What a body means to us must be what it means to the provider behind us: a body in which `max_tokens` stands twice could be
//! counted by the first and answered by the second. RFC 8259 §4 leaves repeated names to each parser, so they are refused, at every
//! level; so are a byte order mark, invalid UTF-8, lone surrogates, numbers that overflow, and anything after the object.
//!
//! Depth, members per object and values in all are bounded while reading, so memory is a small multiple of the bytes read.
//! Never serialises: bodies are patched by splicing at the byte ranges reported here.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::Range;

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// How large a body may be in each direction. Beyond: a [`Fault`], before the excess is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of the whole body.
    pub bytes: usize,
    /// Nested objects and arrays, the body itself being the first.
    pub depth: usize,
    /// Members of any one object.
    pub members: usize,
    /// Values of every kind, in all.
    pub values: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds {
            // What both providers take at most.
            bytes: 32 << 20,
            // JSON Schemas of tools, the deepest thing that is sent, are limited to 10 levels of nesting, each 2 or 3 here.
            depth: 64,
            // A schema may have 5,000 properties.
            members: 8_192,
            // An embeddings request may hold 300,000 token ids. At 32 bytes a value this is 16 MB, and
            // twice that while a vector grows.
            values: 500_000,
        }
    }
}

/// A JSON value, borrowing from the body what needs no unescaping.
#[derive(Clone, Debug, PartialEq)]
pub enum Json<'b> {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A number, by how it was written.
    Number(Number),
    /// A string, unescaped.
    String(Cow<'b, str>),
    /// An array.
    Array(Vec<Json<'b>>),
    /// An object.
    Object(Object<'b>),
}

/// A number, by how it was written: `5` is not `5.0`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// A whole number from 0 to 2^64 - 1.
    Whole(u64),
    /// A whole number from -2^63 to -1.
    Negative(i64),
    /// With a fraction or an exponent, or beyond the other two. Kept to be told apart, never to be calculated with.
    Real(f64),
}

/// An object: members in the order of the body, no name twice.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Object<'b> {
    members: Vec<(Cow<'b, str>, Json<'b>)>,
}

/// A body that was read: its members, and where those lie that the reader was asked to locate.
#[derive(Clone, Debug)]
pub struct Document<'b> {
    /// The body's object.
    pub object: Object<'b>,
    /// The byte after the opening brace: where a member can be put in.
    pub head: usize,
    ranges: Vec<(&'static str, Range<usize>)>,
}

/// Why a body is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What is wrong.
    pub kind: FaultKind,
    /// Line of the body, from 1; 0 where no single place is at fault.
    pub line: usize,
    /// Byte within the line, from 1.
    pub column: usize,
}

/// What is wrong with a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// More bytes than [`Bounds::bytes`].
    TooLong,
    /// Not UTF-8 (RFC 8259 §8.1).
    NotUtf8,
    /// Starts with a byte order mark (RFC 8259 §8.1).
    ByteOrderMark,
    /// Not JSON; the parser's own words.
    Syntax(String),
    /// JSON, but no object.
    NotAnObject,
    /// A member whose name is already there; the start of the name.
    DuplicateKey(String),
    /// Deeper than [`Bounds::depth`].
    TooDeep,
    /// An object wider than [`Bounds::members`].
    TooManyMembers,
    /// More values than [`Bounds::values`].
    TooManyValues,
}

/// Reads a body that must be one object. `located`: the members whose byte ranges are wanted.
pub fn read<'b>(
    body: &'b [u8],
    bounds: &Bounds,
    located: &'static [&'static str],
) -> Result<Document<'b>, Fault> {
    if body.len() > bounds.bytes {
        return Err(Fault::everywhere(FaultKind::TooLong));
    }
    let text =
        str::from_utf8(body).map_err(|error| Fault::at(FaultKind::NotUtf8, body, error.valid_up_to()))?;
    let head = text.len() - text.trim_start_matches(WHITESPACE).len();
    match text[head..].chars().next() {
        Some('\u{feff}') => return Err(Fault::at(FaultKind::ByteOrderMark, body, head)),
        // Anything else that starts no JSON value is for the parser to name.
        Some('[' | '"' | '-' | '0'..='9' | 't' | 'f' | 'n') => {
            return Err(Fault::at(FaultKind::NotAnObject, body, head));
        }
        _ => {}
    }

    let reading = Reading { body, bounds, values: Cell::new(0), fault: RefCell::new(None) };
    let mut ranges = Vec::new();
    let top = Top { reading: &reading, located, ranges: &mut ranges };
    let object = reading.parse(text, 0, |parser| parser.deserialize_map(top))?;
    Ok(Document { object, head: head + 1, ranges })
}

impl Document<'_> {
    /// Where the value of a member lies in the body; `None`: it is absent, or was not asked for.
    pub fn range(&self, name: &str) -> Option<Range<usize>> {
        self.ranges.iter().find(|(known, _)| *known == name).map(|(_, range)| range.clone())
    }
}

impl<'b> Object<'b> {
    /// The value of a member.
    pub fn get(&self, name: &str) -> Option<&Json<'b>> {
        self.members.iter().find(|(known, _)| known == name).map(|(_, value)| value)
    }

    /// Names and values, in the order of the body.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Json<'b>)> {
        self.members.iter().map(|(name, value)| (name.as_ref(), value))
    }

    /// Whether it has no member.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }
}

impl Json<'_> {
    /// The kind, with its article, as a sentence about a wrong type needs it.
    pub fn kind(&self) -> &'static str {
        match self {
            Json::Null => "null",
            Json::Bool(_) => "a boolean",
            Json::Number(Number::Real(_)) => "a decimal number",
            Json::Number(_) => "an integer",
            Json::String(_) => "a string",
            Json::Array(_) => "an array",
            Json::Object(_) => "an object",
        }
    }

    /// A text as a JSON string, quoted and escaped.
    pub fn quoted(text: &str) -> String {
        serde_json::Value::from(text).to_string()
    }
}

/// RFC 8259 §2. Rust's `trim` would also accept what JSON does not.
const WHITESPACE: [char; 4] = [' ', '\t', '\n', '\r'];

/// Names are compared pairwise up to this many; beyond, they are sorted, or a wide object would cost the square of its width.
const PAIRWISE: usize = 16;

/// How much of a repeated name is shown: enough to find it.
const SHOWN: usize = 64;

/// One reading of one body: what it may still use, and what it found wrong. The fault travels here and not in the parser's error,
/// which can carry only text.
struct Reading<'b, 'r> {
    body: &'b [u8],
    bounds: &'r Bounds,
    values: Cell<usize>,
    fault: RefCell<Option<Fault>>,
}

impl<'b> Reading<'b, '_> {
    /// Parses `text`, which starts at byte `start` of the body, to its end.
    fn parse<T>(
        &self,
        text: &'b str,
        start: usize,
        take: impl FnOnce(&mut serde_json::Deserializer<serde_json::de::StrRead<'b>>) -> serde_json::Result<T>,
    ) -> Result<T, Fault> {
        let mut parser = serde_json::Deserializer::from_str(text);
        let parsed = take(&mut parser).and_then(|value| parser.end().map(|()| value));
        parsed.map_err(|error| {
            let line = text.split_inclusive('\n').take(error.line().saturating_sub(1));
            let offset = start + line.map(str::len).sum::<usize>() + error.column().saturating_sub(1);
            match self.fault.take() {
                Some(placed) if placed.line > 0 => placed,
                Some(fault) => Fault::at(fault.kind, self.body, offset),
                None => Fault::at(FaultKind::Syntax(words_of(&error)), self.body, offset),
            }
        })
    }

    fn refuse<E: de::Error>(&self, kind: FaultKind) -> E {
        self.fail(Fault::everywhere(kind))
    }

    fn fail<E: de::Error>(&self, fault: Fault) -> E {
        self.fault.replace(Some(fault));
        E::custom("refused")
    }

    fn count_value<E: de::Error>(&self) -> Result<(), E> {
        let values = self.values.get() + 1;
        if values > self.bounds.values {
            return Err(self.refuse(FaultKind::TooManyValues));
        }
        self.values.set(values);
        Ok(())
    }

    fn check_depth<E: de::Error>(&self, depth: usize) -> Result<(), E> {
        if depth > self.bounds.depth { Err(self.refuse(FaultKind::TooDeep)) } else { Ok(()) }
    }

    fn add<E: de::Error>(
        &self,
        object: &mut Object<'b>,
        name: Cow<'b, str>,
        value: Json<'b>,
    ) -> Result<(), E> {
        if object.members.len() == self.bounds.members {
            return Err(self.refuse(FaultKind::TooManyMembers));
        }
        if object.members.len() < PAIRWISE && object.get(&name).is_some() {
            return Err(self.refuse(FaultKind::duplicate(&name)));
        }
        object.members.push((name, value));
        Ok(())
    }

    fn check_names<E: de::Error>(&self, object: &Object<'b>) -> Result<(), E> {
        if object.members.len() <= PAIRWISE {
            return Ok(());
        }
        let mut names: Vec<&str> = object.members.iter().map(|(name, _)| name.as_ref()).collect();
        names.sort_unstable();
        match names.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(self.refuse(FaultKind::duplicate(pair[0]))),
            None => Ok(()),
        }
    }
}

/// The body's own object, some of whose members are located.
struct Top<'b, 'r> {
    reading: &'r Reading<'b, 'r>,
    located: &'static [&'static str],
    ranges: &'r mut Vec<(&'static str, Range<usize>)>,
}

impl<'b> Visitor<'b> for Top<'b, '_> {
    type Value = Object<'b>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object")
    }

    fn visit_map<A: MapAccess<'b>>(self, mut map: A) -> Result<Object<'b>, A::Error> {
        let reading = self.reading;
        reading.check_depth(1)?;
        reading.count_value()?;
        let mut object = Object::default();
        while let Some(name) = map.next_key_seed(Name)? {
            let located = self.located.iter().find(|located| **located == name);
            let value = match located {
                None => map.next_value_seed(Node { reading, depth: 2 })?,
                Some(located) => {
                    let raw = map.next_value::<&'b RawValue>()?.get();
                    let start = raw.as_ptr().addr() - reading.body.as_ptr().addr();
                    self.ranges.push((located, start..start + raw.len()));
                    let node = Node { reading, depth: 2 };
                    match reading.parse(raw, start, |parser| node.deserialize(parser)) {
                        Ok(value) => value,
                        Err(fault) => return Err(reading.fail(fault)),
                    }
                }
            };
            reading.add(&mut object, name, value)?;
        }
        reading.check_names(&object)?;
        Ok(object)
    }
}

/// A value at some depth: an object or array that it may turn out to be would be the `depth`-th.
#[derive(Clone, Copy)]
struct Node<'b, 'r> {
    reading: &'r Reading<'b, 'r>,
    depth: usize,
}

impl<'b> DeserializeSeed<'b> for Node<'b, '_> {
    type Value = Json<'b>;

    fn deserialize<D: Deserializer<'b>>(self, parser: D) -> Result<Json<'b>, D::Error> {
        self.reading.count_value()?;
        parser.deserialize_any(self)
    }
}

impl<'b> Visitor<'b> for Node<'b, '_> {
    type Value = Json<'b>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Json<'b>, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json<'b>, E> {
        Ok(Json::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json<'b>, E> {
        Ok(Json::Number(Number::Whole(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json<'b>, E> {
        Ok(Json::Number(u64::try_from(value).map_or(Number::Negative(value), Number::Whole)))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Json<'b>, E> {
        Ok(Json::Number(Number::Real(value)))
    }

    fn visit_borrowed_str<E>(self, value: &'b str) -> Result<Json<'b>, E> {
        Ok(Json::String(Cow::Borrowed(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Json<'b>, E> {
        Ok(Json::String(Cow::Owned(value.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'b>>(self, mut seq: A) -> Result<Json<'b>, A::Error> {
        self.reading.check_depth(self.depth)?;
        let element = Node { depth: self.depth + 1, ..self };
        let mut elements = Vec::new();
        while let Some(value) = seq.next_element_seed(element)? {
            elements.push(value);
        }
        Ok(Json::Array(elements))
    }

    fn visit_map<A: MapAccess<'b>>(self, mut map: A) -> Result<Json<'b>, A::Error> {
        self.reading.check_depth(self.depth)?;
        let member = Node { depth: self.depth + 1, ..self };
        let mut object = Object::default();
        while let Some(name) = map.next_key_seed(Name)? {
            let value = map.next_value_seed(member)?;
            self.reading.add(&mut object, name, value)?;
        }
        self.reading.check_names(&object)?;
        Ok(Json::Object(object))
    }
}

/// The name of a member.
struct Name;

impl<'b> DeserializeSeed<'b> for Name {
    type Value = Cow<'b, str>;

    fn deserialize<D: Deserializer<'b>>(self, parser: D) -> Result<Cow<'b, str>, D::Error> {
        parser.deserialize_str(self)
    }
}

impl<'b> Visitor<'b> for Name {
    type Value = Cow<'b, str>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("the name of a member")
    }

    fn visit_borrowed_str<E>(self, name: &'b str) -> Result<Cow<'b, str>, E> {
        Ok(Cow::Borrowed(name))
    }

    fn visit_str<E>(self, name: &str) -> Result<Cow<'b, str>, E> {
        Ok(Cow::Owned(name.to_owned()))
    }
}

/// The parser's words without the place, which we name ourselves.
fn words_of(error: &serde_json::Error) -> String {
    let words = error.to_string();
    match words.rfind(" at line ") {
        Some(end) => words[..end].to_owned(),
        None => words,
    }
}

impl FaultKind {
    fn duplicate(name: &str) -> FaultKind {
        FaultKind::DuplicateKey(name.chars().take(SHOWN).collect())
    }
}

impl Fault {
    fn everywhere(kind: FaultKind) -> Fault {
        Fault { kind, line: 0, column: 0 }
    }

    fn at(kind: FaultKind, body: &[u8], offset: usize) -> Fault {
        let before = &body[..offset.min(body.len())];
        let line_start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1);
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        Fault { kind, line, column: 1 + before.len() - line_start }
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FaultKind::TooLong => out.write_str("the body is too long"),
            FaultKind::NotUtf8 => out.write_str("the body is not UTF-8"),
            FaultKind::ByteOrderMark => out.write_str("the body starts with a byte order mark"),
            FaultKind::Syntax(words) => write!(out, "the body is not valid JSON: {words}"),
            FaultKind::NotAnObject => out.write_str("the body must be a JSON object"),
            FaultKind::DuplicateKey(name) => write!(out, "the name {name:?} stands twice in one object"),
            FaultKind::TooDeep => out.write_str("the body is nested too deeply"),
            FaultKind::TooManyMembers => out.write_str("an object has too many members"),
            FaultKind::TooManyValues => out.write_str("the body has too many values"),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.kind)?;
        if self.line > 0 {
            write!(out, " (line {}, column {})", self.line, self.column)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    const BOUNDS: Bounds = Bounds { bytes: 1 << 20, depth: 64, members: 1_000, values: 10_000 };

    fn read_plain(body: &[u8]) -> Result<Document<'_>, Fault> {
        read(body, &BOUNDS, &[])
    }

    fn kind_of(body: impl AsRef<[u8]>) -> FaultKind {
        read_plain(body.as_ref()).map(|document| document.object).expect_err("was accepted").kind
    }

    fn is_syntax(body: impl AsRef<[u8]>) -> bool {
        matches!(kind_of(body), FaultKind::Syntax(_))
    }

    #[test]
    fn members_come_back_in_order_by_name_and_by_place() {
        let body = br#" {"a": 1, "model" : "gpt", "s":{"x":[null,true]}}"#;
        let document = read(body, &BOUNDS, &["model", "s", "absent"]).unwrap();
        assert_eq!(document.object.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["a", "model", "s"]);
        assert_eq!(&body[document.range("model").unwrap()], br#""gpt""#);
        assert_eq!(&body[document.range("s").unwrap()], br#"{"x":[null,true]}"#);
        assert_eq!(document.range("absent"), None);
        assert_eq!(document.range("a"), None, "was not asked for");
        assert_eq!(&body[..document.head], b" {");
    }

    #[test]
    fn a_name_that_stands_twice_is_refused_at_every_level() {
        for body in [
            r#"{"model":"a","model":"b"}"#,
            r#"{"model":"a","mod\u0065l":"b"}"#,
            r#"{"messages":[{"role":"user","content":"a","content":"b"}]}"#,
            r#"{"a":{"b":{"c":1,"c":1}}}"#,
            r#"{"a":[[[{"":1,"":2}]]]}"#,
        ] {
            assert!(matches!(kind_of(body), FaultKind::DuplicateKey(_)), "{body}");
        }
        let located = read(br#"{"s":{"x":1,"x":2}}"#, &BOUNDS, &["s"]).unwrap_err();
        assert_eq!(located.kind, FaultKind::DuplicateKey("x".to_owned()));
        assert_eq!(located.line, 1);
    }

    #[test]
    fn a_repeated_name_is_found_among_many() {
        for (first, second) in [(0, 1), (0, 16), (15, 16), (16, 17), (3, 299), (298, 299)] {
            let mut names: Vec<String> = (0..300).map(|at| format!("name{at}")).collect();
            names[second] = names[first].clone();
            let members: Vec<String> = names.iter().map(|name| format!("\"{name}\":0")).collect();
            let body = format!("{{{}}}", members.join(","));
            assert_eq!(kind_of(&body), FaultKind::DuplicateKey(format!("name{first}")), "{first}, {second}");
        }
    }

    #[test]
    fn depth_members_values_and_bytes_are_bounded_exactly() {
        let nested = |depth: usize| format!("{{\"a\":{}{}}}", "[".repeat(depth - 1), "]".repeat(depth - 1));
        assert!(read_plain(nested(64).as_bytes()).is_ok());
        assert_eq!(kind_of(nested(65)), FaultKind::TooDeep);
        assert_eq!(kind_of(nested(10_000)), FaultKind::TooDeep);

        let wide = |members: usize| {
            let members: Vec<String> = (0..members).map(|at| format!("\"{at}\":0")).collect();
            format!("{{{}}}", members.join(","))
        };
        assert!(read_plain(wide(1_000).as_bytes()).is_ok());
        assert_eq!(kind_of(wide(1_001)), FaultKind::TooManyMembers);

        // The body itself and the array are values too.
        let long = |elements: usize| format!("{{\"a\":[{}0]}}", "0,".repeat(elements - 1));
        assert!(read_plain(long(9_998).as_bytes()).is_ok());
        assert_eq!(kind_of(long(9_999)), FaultKind::TooManyValues);

        let short = Bounds { bytes: 10, ..BOUNDS };
        assert!(read(br#"{"abc":12}"#, &short, &[]).is_ok());
        assert_eq!(read(br#"{"abc":123}"#, &short, &[]).unwrap_err().kind, FaultKind::TooLong);
    }

    #[test]
    fn a_deep_located_member_is_refused_without_a_deep_stack() {
        let body = format!("{{\"model\":{}{}}}", "[".repeat(200_000), "]".repeat(200_000));
        assert_eq!(read(body.as_bytes(), &BOUNDS, &["model"]).unwrap_err().kind, FaultKind::TooDeep);
    }

    #[test]
    fn what_parsers_disagree_about_is_refused() {
        assert_eq!(kind_of("\u{feff}{}"), FaultKind::ByteOrderMark);
        assert_eq!(kind_of(" \u{feff}{}"), FaultKind::ByteOrderMark);
        assert_eq!(kind_of(b"{\"a\":\"\xff\"}"), FaultKind::NotUtf8);
        assert_eq!(kind_of(b"{\"a\":\"\xed\xa0\x80\"}"), FaultKind::NotUtf8, "a surrogate in UTF-8");
        assert_eq!(kind_of(b"{\0\"\0a\0\"\0:\x001\0}\0"), kind_of("{\0\"\0a\0"), "UTF-16");
        for body in [
            r#"{"a":"\ud800"}"#,
            r#"{"a":"\udc00"}"#,
            r#"{"a":"\ud800\ud800"}"#,
            r#"{"\ud800":1}"#,
            r#"{"a":"\ud800x"}"#,
            r#"{"a":1e309}"#,
            r#"{"a":-1e309}"#,
            r#"{"a":1e999999999999}"#,
            r#"{"a":NaN}"#,
            r#"{"a":Infinity}"#,
            r#"{"a":-Infinity}"#,
            r#"{"a":01}"#,
            r#"{"a":+1}"#,
            r#"{"a":.5}"#,
            r#"{"a":5.}"#,
            r#"{"a":0x10}"#,
            r#"{"a":1_000}"#,
            r#"{"a":- 1}"#,
            "{\"a\":\"\u{1}\"}",
            "{\"a\":\"\n\"}",
            r#"{"a":"\x41"}"#,
            r#"{"a":"\u12"}"#,
            r#"{'a':1}"#,
            r#"{a:1}"#,
            r#"{"a":1,}"#,
            r#"{,"a":1}"#,
            r#"{"a":[1,]}"#,
            r#"{"a":1 "b":2}"#,
            r#"{"a" 1}"#,
            r#"{"a"}"#,
            r#"{"a":}"#,
            r#"{"a":1}x"#,
            r#"{"a":1}{"a":1}"#,
            "{\"a\":1}\0",
            r#"{"a":1}]"#,
            r#"{"a":1"#,
            r#"{"a":"#,
            "{",
            "",
            " ",
            "nul",
            "tru",
            "{\"a\":1}\u{a0}",
            "\u{a0}{\"a\":1}",
            "{/* */\"a\":1}",
            "{\"a\":1}//",
            r#"{"a":tRue}"#,
            r#"{1:1}"#,
            r#"{null:1}"#,
        ] {
            if !matches!(body, "nul" | "tru") {
                assert!(is_syntax(body), "{body:?}: {:?}", kind_of(body));
            }
            let located = read(body.as_bytes(), &BOUNDS, &["a"]);
            assert!(located.is_err(), "{body:?} was accepted where `a` is located");
        }
    }

    #[test]
    fn only_an_object_is_a_body() {
        for body in ["[]", "\"a\"", "1", "-1", "true", "false", "null", " [1]"] {
            assert_eq!(kind_of(body), FaultKind::NotAnObject, "{body}");
        }
    }

    #[test]
    fn numbers_are_told_apart_as_they_were_written() {
        let body = br#"{"a":5,"b":5.0,"c":-5,"d":18446744073709551615,"e":18446744073709551616,"f":5e0,"g":-9223372036854775808,"h":0,"i":1e308}"#;
        let document = read_plain(body).unwrap();
        let number = |name| match document.object.get(name) {
            Some(Json::Number(number)) => *number,
            other => panic!("{name} is {other:?}"),
        };
        assert_eq!(number("a"), Number::Whole(5));
        assert_eq!(number("b"), Number::Real(5.0));
        assert_eq!(number("c"), Number::Negative(-5));
        assert_eq!(number("d"), Number::Whole(u64::MAX));
        assert_eq!(number("e"), Number::Real(18_446_744_073_709_551_616.0));
        assert_eq!(number("f"), Number::Real(5.0));
        assert_eq!(number("g"), Number::Negative(i64::MIN));
        assert_eq!(number("h"), Number::Whole(0));
        assert_eq!(number("i"), Number::Real(1e308));
    }

    #[test]
    fn what_needs_no_unescaping_is_borrowed() {
        let document = read_plain(br#"{"plain":"text","escaped":"a\nb"}"#).unwrap();
        assert!(matches!(document.object.get("plain"), Some(Json::String(Cow::Borrowed("text")))));
        assert_eq!(document.object.get("escaped"), Some(&Json::String(Cow::Owned("a\nb".to_owned()))));
    }

    #[test]
    fn a_fault_names_its_place() {
        let fault = read_plain(b"{\n  \"a\": 1,\n  \"b\": x\n}").unwrap_err();
        assert_eq!((fault.line, fault.column), (3, 8), "{fault}");
        let fault = read(b"{\n  \"a\": 1,\n  \"b\":  1e309\n}", &BOUNDS, &["b"]).unwrap_err();
        assert_eq!(fault.line, 3, "{fault}");
        assert!(fault.to_string().contains("line 3, column"), "{fault}");
    }

    #[test]
    fn a_value_takes_no_more_than_its_bounds_assume() {
        assert!(size_of::<Json<'_>>() <= 32, "{}", size_of::<Json<'_>>());
    }

    fn json_values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>()
                .prop_filter("JSON has finite numbers", |number| number.is_finite())
                .prop_map(Value::from),
            ".*".prop_map(Value::from),
        ];
        leaf.prop_recursive(6, 64, 8, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
                prop::collection::btree_map(".{0,6}", inner, 0..24)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    fn json_bodies() -> impl Strategy<Value = Value> {
        prop::collection::btree_map(".{0,6}", json_values(), 0..24)
            .prop_map(|map| Value::Object(map.into_iter().collect()))
    }

    fn to_value(json: &Json<'_>) -> Value {
        match json {
            Json::Null => Value::Null,
            Json::Bool(value) => Value::from(*value),
            Json::Number(Number::Whole(value)) => Value::from(*value),
            Json::Number(Number::Negative(value)) => Value::from(*value),
            Json::Number(Number::Real(value)) => Value::from(*value),
            Json::String(text) => Value::from(text.as_ref()),
            Json::Array(elements) => elements.iter().map(to_value).collect(),
            Json::Object(object) => object_to_value(object),
        }
    }

    fn object_to_value(object: &Object<'_>) -> Value {
        Value::Object(object.iter().map(|(name, value)| (name.to_owned(), to_value(value))).collect())
    }

    proptest! {
        #[test]
        fn a_valid_body_reads_as_any_parser_reads_it(value in json_bodies(), pretty in any::<bool>()) {
            let body = if pretty { serde_json::to_vec_pretty(&value) } else { serde_json::to_vec(&value) }.unwrap();
            let document = read_plain(&body).unwrap();
            let again: Value = serde_json::from_slice(&body).unwrap();
            prop_assert_eq!(object_to_value(&document.object), again);
        }

        #[test]
        fn any_bytes_are_read_or_refused(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&body, &BOUNDS, &["a"]);
        }

        #[test]
        fn any_text_of_json_marks_is_read_as_any_parser_reads_it(body in r#"\{("[ab]"|[\[\]{}:,]|-?[0-9]{1,3}|[.eE+]|"\\u[0-9a-fd]{4}"|true|null| ){0,12}\}"#) {
            match read(body.as_bytes(), &BOUNDS, &["a"]) {
                Ok(document) => {
                    let again: Value = serde_json::from_str(&body).unwrap();
                    prop_assert_eq!(object_to_value(&document.object), again);
                }
                Err(Fault { kind: FaultKind::DuplicateKey(_), .. }) => {}
                Err(fault) => prop_assert!(serde_json::from_str::<Value>(&body).is_err(), "{fault}"),
            }
        }
    }
}
