//! What is wrong with a document: where, what, and what to do about it.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use super::tree::{Node, Value};

/// How many problems of a document are told at once. More than a person reads; a generated document may have one per line.
const MAX_PROBLEMS: usize = 100;

/// One thing wrong with a document, or suspicious about it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// The setting, such as `tenants[2].keys[0].hash`; empty for the document as a whole.
    pub path: String,
    /// What is wrong.
    pub message: String,
    /// What to do about it; empty when the message says it.
    pub hint: String,
}

impl Problem {
    /// This problem as a line for people, `FILE:LINE:COLUMN: path: message`, and a second one with the hint if there is one.
    #[must_use]
    pub fn render(&self, source_name: &str) -> String {
        let mut text = format!("{source_name}:{}:{}: ", self.line, self.column);
        if !self.path.is_empty() {
            text.push_str(&self.path);
            text.push_str(": ");
        }
        text.push_str(&self.message);
        if !self.hint.is_empty() {
            text.push_str("\n  hint: ");
            text.push_str(&self.hint);
        }
        text
    }
}

/// Why a document was refused: everything wrong with it, in document order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problems {
    /// What the document is called, as a rule its path.
    pub source_name: String,
    /// What is wrong with it; never empty.
    pub errors: Vec<Problem>,
    /// What is suspicious about it.
    pub warnings: Vec<Problem>,
    /// Errors found beyond those told.
    pub untold: usize,
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.errors.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}{}", problem.render(&self.source_name))?;
        }
        if self.untold > 0 {
            write!(f, "\n{}: and {} more", self.source_name, self.untold)?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

/// A place in a document's structure. Cheap to clone and to extend.
#[derive(Debug, Clone, Default)]
pub(super) struct Path(Option<Rc<Segment>>);

#[derive(Debug)]
struct Segment {
    parent: Path,
    step: Step,
}

/// One step into a document's structure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// To the value of a mapping's key.
    Field(String),
    /// To a sequence's element.
    Index(usize),
    /// To a mapping's key itself.
    Key(String),
}

impl Path {
    /// The document itself.
    pub(super) fn root() -> Path {
        Path(None)
    }

    /// The value of a key in the mapping here.
    pub(super) fn field(&self, name: &str) -> Path {
        self.step(Step::Field(name.to_owned()))
    }

    /// A key of the mapping here: its problems are told where the key stands, not its value.
    pub(super) fn key(&self, name: &str) -> Path {
        self.step(Step::Key(name.to_owned()))
    }

    /// An element of the sequence here.
    pub(super) fn index(&self, index: usize) -> Path {
        self.step(Step::Index(index))
    }

    fn step(&self, step: Step) -> Path {
        Path(Some(Rc::new(Segment { parent: self.clone(), step })))
    }

    /// The steps from the document to here.
    pub(super) fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        let mut here = self;
        while let Some(segment) = &here.0 {
            steps.push(segment.step.clone());
            here = &segment.parent;
        }
        steps.reverse();
        steps
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (depth, step) in self.steps().iter().enumerate() {
            match step {
                Step::Index(index) => write!(f, "[{index}]")?,
                Step::Field(name) | Step::Key(name) => {
                    write!(f, "{}{}", if depth == 0 { "" } else { "." }, name.escape_debug())?;
                }
            }
        }
        Ok(())
    }
}

/// Collects problems while a document is read and checked, and finds where each stands.
#[derive(Debug)]
pub(super) struct Report<'t> {
    document: &'t Node,
    found: RefCell<Found>,
}

#[derive(Debug, Default)]
struct Found {
    errors: Vec<Problem>,
    warnings: Vec<Problem>,
    untold: usize,
    shifted: bool,
}

impl<'t> Report<'t> {
    /// An empty report on a document.
    pub(super) fn on(document: &'t Node) -> Report<'t> {
        Report { document, found: RefCell::default() }
    }

    /// Something wrong: the document will be refused.
    pub(super) fn error(&self, path: &Path, message: impl Into<String>, hint: impl Into<String>) {
        let mut found = self.found.borrow_mut();
        if found.errors.len() < MAX_PROBLEMS {
            found.errors.push(self.problem(path, message.into(), hint.into()));
        } else {
            found.untold += 1;
        }
    }

    /// Something suspicious: the document stands.
    pub(super) fn warn(&self, path: &Path, message: impl Into<String>, hint: impl Into<String>) {
        let mut found = self.found.borrow_mut();
        if found.warnings.len() < MAX_PROBLEMS {
            found.warnings.push(self.problem(path, message.into(), hint.into()));
        }
    }

    /// Whether anything wrong was found so far.
    pub(super) fn has_errors(&self) -> bool {
        !self.found.borrow().errors.is_empty()
    }

    /// Notes that an element of a list was left out: what follows it no longer stands where its index says.
    pub(super) fn positions_shifted(&self) {
        self.found.borrow_mut().shifted = true;
    }

    /// Whether indices still mean positions in the document.
    pub(super) fn positions_hold(&self) -> bool {
        !self.found.borrow().shifted
    }

    /// Whether the document has anything at this path.
    pub(super) fn has_value(&self, path: &Path) -> bool {
        self.document.find(&path.steps()).is_some()
    }

    /// Whether the document has a list at this path.
    pub(super) fn is_list(&self, path: &Path) -> bool {
        matches!(self.document.find(&path.steps()), Some(Node { value: Value::Sequence(_), .. }))
    }

    /// Whether there is room to tell more: beyond it nobody reads suggestions, and looking for them costs.
    pub(super) fn has_room(&self) -> bool {
        self.found.borrow().errors.len() < MAX_PROBLEMS
    }

    /// The warnings when nothing was wrong, else everything, in document order.
    pub(super) fn finish(self, source_name: &str) -> Result<Vec<Problem>, Problems> {
        let Found { mut errors, mut warnings, untold, .. } = self.found.into_inner();
        errors.sort();
        errors.dedup();
        warnings.sort();
        if errors.is_empty() {
            Ok(warnings)
        } else {
            Err(Problems { source_name: source_name.to_owned(), errors, warnings, untold })
        }
    }

    fn problem(&self, path: &Path, message: String, hint: String) -> Problem {
        let at = self.document.locate(&path.steps());
        Problem { line: at.line, column: at.column, path: path.to_string(), message, hint }
    }
}

/// `did you mean X?` when one of the candidates is close to what was written, else what there is, else nothing.
pub(super) fn suggestion<'a>(written: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    // Long names are not typed by hand, and the distance costs the product of the lengths.
    const LONGEST_COMPARED: usize = 64;
    const MOST_LISTED: usize = 12;
    let mut listed: Vec<&str> = Vec::new();
    let mut nearest: Option<(usize, &str)> = None;
    for candidate in candidates {
        if listed.len() <= MOST_LISTED {
            listed.push(candidate);
        }
        if written.len() > LONGEST_COMPARED || candidate.len() > LONGEST_COMPARED {
            continue;
        }
        let distance = strsim::damerau_levenshtein(written, candidate);
        let close_enough = 1.max(written.chars().count().max(candidate.chars().count()) / 3);
        if distance <= close_enough && nearest.is_none_or(|(best, _)| distance < best) {
            nearest = Some((distance, candidate));
        }
    }
    match nearest {
        Some((_, name)) => format!("did you mean `{name}`?"),
        None if listed.is_empty() => "there are none in this document".to_owned(),
        None if listed.len() > MOST_LISTED => String::new(),
        None => format!("known here: {}", listed.join(", ")),
    }
}
