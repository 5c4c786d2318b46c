//! Reading a tree: a cursor stands at one node, knows the way there, and reports what it cannot read.
//!
//! Law: a reader that answers `None` has reported an error. The caller goes on with a placeholder, so that one mistake does not
//! hide the next; the placeholder is never seen, since a document with an error is refused.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use super::problem::{Path, Report, suggestion};
use super::tree::{Entry, Node, Value};

/// A node, the way there, and where to report.
#[derive(Debug, Clone)]
pub(super) struct Cursor<'t> {
    node: &'t Node,
    path: Path,
    report: &'t Report<'t>,
}

impl<'t> Cursor<'t> {
    /// At the document itself.
    pub(super) fn at(node: &'t Node, report: &'t Report<'t>) -> Cursor<'t> {
        Cursor { node, path: Path::root(), report }
    }

    /// The way here.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Reports an error here.
    pub(super) fn error(&self, message: impl Into<String>, hint: impl Into<String>) {
        self.report.error(&self.path, message, hint);
    }

    /// Whether a sequence stands here.
    pub(super) fn is_sequence(&self) -> bool {
        matches!(self.node.value, Value::Sequence(_))
    }

    /// A scalar's text, whatever it looks like; names may look like numbers.
    pub(super) fn text(&self) -> Option<&'t str> {
        match &self.node.value {
            Value::Scalar { text, .. } => Some(text),
            _ => self.unexpected("text"),
        }
    }

    /// A scalar read by a function that answers a reason when it cannot.
    pub(super) fn parse<T>(
        &self,
        read: impl FnOnce(&str) -> Result<T, &'static str>,
        hint: &str,
    ) -> Option<T> {
        let text = self.text()?;
        read(text).map_err(|reason| self.error(format!("`{}` {reason}", excerpt(text)), hint)).ok()
    }

    /// A whole number within a range.
    pub(super) fn count(&self, allowed: RangeInclusive<u64>) -> Option<u64> {
        let hint = format!("write a whole number from {} to {}", allowed.start(), allowed.end());
        if !matches!(self.node.value, Value::Scalar { plain: true, .. }) {
            return self.unexpected("a whole number without quotes");
        }
        self.parse(
            |text| match super::units::parse_count(text)? {
                number if number < *allowed.start() => Err("is too small"),
                number if number > *allowed.end() => Err("is too large"),
                number => Ok(number),
            },
            &hint,
        )
    }

    /// `true` or `false`.
    pub(super) fn truth(&self) -> Option<bool> {
        match &self.node.value {
            Value::Scalar { text, plain: true } if text == "true" => Some(true),
            Value::Scalar { text, plain: true } if text == "false" => Some(false),
            _ => self.unexpected("true or false"),
        }
    }

    /// One of the words of a list.
    pub(super) fn choice<T: Clone>(&self, words: &[(&str, T)]) -> Option<T> {
        let text = self.text()?;
        let chosen = words.iter().find(|(word, _)| *word == text).map(|(_, value)| value.clone());
        if chosen.is_none() {
            self.error(
                format!("`{}` is not one of the words allowed here", excerpt(text)),
                suggestion(text, words.iter().map(|(word, _)| *word)),
            );
        }
        chosen
    }

    /// A sequence; elements that cannot be read are left out, and the report knows that positions have shifted.
    pub(super) fn list<T>(&self, mut read: impl FnMut(Cursor<'t>) -> Option<T>) -> Option<Vec<T>> {
        let Value::Sequence(items) = &self.node.value else { return self.unexpected("a list") };
        let indexed = items.iter().enumerate();
        let elements: Vec<T> =
            indexed.filter_map(|(index, node)| read(self.child(node, self.path.index(index)))).collect();
        if elements.len() < items.len() {
            self.report.positions_shifted();
        }
        Some(elements)
    }

    /// A mapping from names to values; values that cannot be read are left out.
    pub(super) fn map<T>(
        &self,
        mut read: impl FnMut(&str, Cursor<'t>) -> Option<T>,
    ) -> Option<BTreeMap<String, T>> {
        let entries = self.entries()?;
        Some(
            entries
                .iter()
                .filter_map(|Entry { key, value, .. }| {
                    Some((key.clone(), read(key, self.child(value, self.path.field(key)))?))
                })
                .collect(),
        )
    }

    /// A mapping with known keys.
    pub(super) fn fields(&self) -> Option<Fields<'t>> {
        let entries = self.entries()?;
        Some(Fields { here: self.clone(), taken: vec![false; entries.len()], entries, asked: Vec::new() })
    }

    fn entries(&self) -> Option<&'t [Entry]> {
        match &self.node.value {
            Value::Mapping(entries) => Some(entries),
            _ => self.unexpected("settings (`name: value`)"),
        }
    }

    fn child(&self, node: &'t Node, path: Path) -> Cursor<'t> {
        Cursor { node, path, report: self.report }
    }

    fn unexpected<T>(&self, wanted: &str) -> Option<T> {
        let (found, hint) = match &self.node.value {
            Value::Absent => ("nothing", "give it a value, or remove it"),
            Value::Scalar { plain: true, .. } => ("a plain word", ""),
            Value::Scalar { plain: false, .. } => ("text in quotes", ""),
            Value::Sequence(_) => ("a list", ""),
            Value::Mapping(_) => ("settings (`name: value`)", ""),
        };
        self.error(format!("expected {wanted}, found {found}"), hint);
        None
    }
}

/// A mapping with known keys: each is asked for by name, and [`Fields::finish`] reports those nobody asked for.
#[derive(Debug)]
#[must_use = "finish() is what refuses unknown fields"]
pub(super) struct Fields<'t> {
    here: Cursor<'t>,
    entries: &'t [Entry],
    taken: Vec<bool>,
    asked: Vec<&'static str>,
}

impl<'t> Fields<'t> {
    /// A field's value if it is there and can be read.
    pub(super) fn optional<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(Cursor<'t>) -> Option<T>,
    ) -> Option<T> {
        self.take(name).and_then(read)
    }

    /// A field's value; its absence is an error.
    pub(super) fn required<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(Cursor<'t>) -> Option<T>,
    ) -> Option<T> {
        let found = self.take(name);
        if found.is_none() {
            self.here.error(format!("`{name}` is missing"), "");
        }
        found.and_then(read)
    }

    /// Whether a field is there.
    pub(super) fn has(&self, name: &str) -> bool {
        self.entries.iter().any(|entry| entry.key == name)
    }

    /// Whether the mapping has no fields at all.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// A cursor at the mapping itself.
    pub(super) fn here(&self) -> &Cursor<'t> {
        &self.here
    }

    /// Reports every field nobody asked for.
    pub(super) fn finish(self) {
        for (entry, _) in self.entries.iter().zip(&self.taken).filter(|(_, taken)| !**taken) {
            let report = self.here.report;
            let hint = if report.has_room() {
                suggestion(&entry.key, self.asked.iter().copied())
            } else {
                String::new()
            };
            report.error(&self.here.path.key(&entry.key), "unknown field", hint);
        }
    }

    fn take(&mut self, name: &'static str) -> Option<Cursor<'t>> {
        self.asked.push(name);
        let index = self.entries.iter().position(|entry| entry.key == name)?;
        self.taken[index] = true;
        Some(self.here.child(&self.entries[index].value, self.here.path.field(name)))
    }
}

/// The beginning of a text, safe to print on one line.
pub(super) fn excerpt(text: &str) -> String {
    const LONGEST: usize = 60;
    let mut shown: String = text.chars().take(LONGEST).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown.escape_debug().to_string()
}
