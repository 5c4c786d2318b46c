//! YAML text → a tree whose every node knows its line and column.
//!
//! A plain YAML subset, on purpose: one document of mappings, sequences and scalars. Anchors, aliases, tags and directives are
//! refused, so a document is as large as it looks (no "billion laughs") and each setting stands in one place. Scalars keep their
//! text: what a number means is for the reader of the field, who knows its unit, and no decimal passes through a float.
//!
//! Bounded: [`MAX_BYTES`], [`MAX_DEPTH`], [`MAX_NODES`].

use std::collections::HashSet;

use serde_saphyr::granit_parser::{self, Event, Marker, Parser, ScalarStyle, ScanError, Span};

use super::problem::{Problem, Step};

/// The longest document, in bytes: room for ten thousand tenants with ten keys each.
pub(super) const MAX_BYTES: usize = 8 * 1024 * 1024;
/// The deepest nesting. The format itself needs eight levels.
pub(super) const MAX_DEPTH: usize = 32;
/// The most nodes: bounds memory to a small multiple of the text.
pub(super) const MAX_NODES: usize = 2_000_000;

/// A line and a column, both from 1, the column in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) line: usize,
    pub(super) column: usize,
}

/// A value and where it begins.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) at: Position,
    pub(super) value: Value,
}

/// What a node holds.
#[derive(Debug)]
pub(super) enum Value {
    /// Nothing was written, or `null`, or `~`.
    Absent,
    /// Text, and whether it stood without quotes.
    Scalar { text: String, plain: bool },
    /// `[a, b]` or lines of `- a`.
    Sequence(Vec<Node>),
    /// `{a: b}` or lines of `a: b`, in document order, keys distinct.
    Mapping(Vec<Entry>),
}

/// A key with its value.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) key_at: Position,
    pub(super) value: Node,
}

impl Node {
    /// Where a path leads; where it leaves the document, the last place that exists.
    pub(super) fn locate(&self, steps: &[Step]) -> Position {
        let Some((step, rest)) = steps.split_first() else { return self.at };
        if let (Step::Key(name), Value::Mapping(entries)) = (step, &self.value) {
            return entries.iter().find(|entry| entry.key == *name).map_or(self.at, |entry| entry.key_at);
        }
        self.child(step).map_or(self.at, |child| child.locate(rest))
    }

    /// The node a path leads to.
    pub(super) fn find(&self, steps: &[Step]) -> Option<&Node> {
        match steps.split_first() {
            None => Some(self),
            Some((step, rest)) => self.child(step)?.find(rest),
        }
    }

    fn child(&self, step: &Step) -> Option<&Node> {
        match (step, &self.value) {
            (Step::Index(index), Value::Sequence(items)) => items.get(*index),
            (Step::Field(name) | Step::Key(name), Value::Mapping(entries)) => {
                entries.iter().find(|entry| entry.key == *name).map(|entry| &entry.value)
            }
            _ => None,
        }
    }
}

/// Reads a document into a tree.
///
/// # Errors
/// The first thing that is not the YAML described above; after it the structure is unknown, so there is no second.
pub(super) fn read(text: &str) -> Result<Node, Problem> {
    if text.len() > MAX_BYTES {
        let message = format!("the document has {} bytes; the most is {MAX_BYTES}", text.len());
        return Err(problem(
            Position { line: 1, column: 1 },
            message,
            "split the tenants over more than one cluster",
        ));
    }
    let mut options = granit_parser::Options::default();
    options.disallow_directives = true;
    options.emit_comments = false;
    options.flow_nesting_limit = MAX_DEPTH;
    options.block_nesting_limit = MAX_DEPTH;
    let mut builder = Builder { parser: Parser::new_from_str_with_options(text, options), nodes: 0 };
    builder.document()
}

struct Builder<'input> {
    parser: Parser<'input, granit_parser::StrInput<'input>>,
    nodes: usize,
}

impl<'input> Builder<'input> {
    fn document(&mut self) -> Result<Node, Problem> {
        let mut document = None;
        loop {
            let (event, span) = self.next()?;
            match event {
                Event::StreamEnd => break,
                Event::StreamStart | Event::DocumentStart(..) | Event::DocumentEnd => {}
                _ if document.is_some() => {
                    let hint = "remove the `---` between them, or keep one file per policy";
                    return Err(problem(position(span.start), "a second document begins here", hint));
                }
                event => document = Some(self.node(event, span, 0)?),
            }
        }
        Ok(document.unwrap_or(Node { at: Position { line: 1, column: 1 }, value: Value::Absent }))
    }

    fn next(&mut self) -> Result<(Event<'input>, Span), Problem> {
        match self.parser.next() {
            Some(Ok(item)) => Ok(item),
            Some(Err(error)) => Err(syntax_problem(&error)),
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    fn node(&mut self, event: Event<'input>, span: Span, depth: usize) -> Result<Node, Problem> {
        let at = position(span.start);
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            return Err(problem(at, format!("the document has more than {MAX_NODES} values"), ""));
        }
        if depth > MAX_DEPTH {
            return Err(problem(at, format!("values are nested more than {MAX_DEPTH} deep"), ""));
        }
        refuse_properties(&event, at)?;
        let value = match event {
            Event::Scalar(text, style, ..) => scalar(text.into_owned(), style),
            Event::SequenceStart(..) => self.sequence(depth)?,
            Event::MappingStart(..) => self.mapping(depth)?,
            _ => return Err(problem(at, "this is not a value", "")),
        };
        Ok(Node { at, value })
    }

    fn sequence(&mut self, depth: usize) -> Result<Value, Problem> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(Value::Sequence(items)),
                (event, span) => items.push(self.node(event, span, depth + 1)?),
            }
        }
    }

    fn mapping(&mut self, depth: usize) -> Result<Value, Problem> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut keys = HashSet::new();
        loop {
            let (event, span) = self.next()?;
            if matches!(event, Event::MappingEnd) {
                return Ok(Value::Mapping(entries));
            }
            let Node { at: key_at, value: Value::Scalar { text: key, .. } } =
                self.node(event, span, depth + 1)?
            else {
                return Err(problem(position(span.start), "this key is not text", "write `name: value`"));
            };
            if !keys.insert(key.clone()) {
                let message = format!("`{}` is here twice", key.escape_debug());
                return Err(problem(key_at, message, "keep one of the two"));
            }
            let (event, span) = self.next()?;
            let value = self.node(event, span, depth + 1)?;
            entries.push(Entry { key, key_at, value });
        }
    }
}

fn refuse_properties(event: &Event<'_>, at: Position) -> Result<(), Problem> {
    let (anchor, tagged) = match event {
        Event::Scalar(_, _, anchor, tag) => (*anchor, tag.is_some()),
        Event::SequenceStart(_, anchor, tag) | Event::MappingStart(_, anchor, tag) => {
            (*anchor, tag.is_some())
        }
        Event::Alias(_) => return Err(problem(at, "YAML aliases are not allowed", "write the value out")),
        _ => (0, false),
    };
    if anchor != 0 {
        return Err(problem(
            at,
            "YAML anchors are not allowed",
            "remove the `&name`; tiers are the way to share settings",
        ));
    }
    if tagged {
        return Err(problem(at, "YAML tags are not allowed", "remove the `!tag`"));
    }
    Ok(())
}

fn scalar(text: String, style: ScalarStyle) -> Value {
    let plain = style == ScalarStyle::Plain;
    if plain && matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL") {
        Value::Absent
    } else {
        Value::Scalar { text, plain }
    }
}

fn position(marker: Marker) -> Position {
    Position { line: marker.line(), column: marker.col() + 1 }
}

fn syntax_problem(error: &ScanError) -> Problem {
    let message = format!("this is not YAML: {}", error.info());
    problem(position(*error.marker()), message, "check indentation, quotes and brackets up to here")
}

fn problem(at: Position, message: impl Into<String>, hint: &str) -> Problem {
    Problem {
        line: at.line,
        column: at.column,
        path: String::new(),
        message: message.into(),
        hint: hint.to_owned(),
    }
}
