//! What a request gives the model to read, in the pieces by which it is counted.
//!
//! Law: `nothing_is_free`: whatever a model may read is in here. What we do not know (a new kind of part, an
//! unknown member of a message) is held as its JSON text, never left out. Never counts tokens itself.

use std::fmt::Write as _;
use std::ops::Range;

use super::Image;
use super::json::{Json, Number, Object};

/// What a request gives the model to read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Prompt {
    /// All texts, end to end: one allocation however many there are.
    text: String,
    pieces: Vec<Piece>,
    /// Messages, the system prompt of the Anthropic dialect among them.
    pub messages: u64,
    /// Messages that carry a name.
    pub names: u64,
    /// Tools and functions that the caller defines.
    pub tools: u64,
    /// Tools that the provider defines and the caller only names.
    pub provider_tools: u64,
}

/// One piece of a prompt.
#[derive(Clone, Debug, PartialEq)]
pub enum Piece {
    /// A text: ask [`Prompt::text`] for it.
    Text(Range<usize>),
    /// An image.
    Image(Image),
    /// A document that is read as pages, such as a PDF.
    Document {
        /// Bytes of the file; `None`: it lies elsewhere.
        bytes: Option<u64>,
    },
    /// Recorded speech.
    Audio {
        /// Bytes of the file.
        bytes: u64,
    },
    /// Text that only the provider can read, such as encrypted reasoning.
    Sealed {
        /// Bytes of the sealed text.
        bytes: u64,
    },
    /// Token ids.
    TokenIds {
        /// How many.
        count: u64,
    },
}

impl Prompt {
    /// The pieces, in the order of the body.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// The text of a [`Piece::Text`] of this prompt.
    pub fn text(&self, range: &Range<usize>) -> &str {
        &self.text[range.clone()]
    }

    /// The texts alone.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Text(range) => Some(self.text(range)),
            _ => None,
        })
    }

    pub(super) fn say(&mut self, text: &str) {
        self.compose(|whole| whole.push_str(text));
    }

    pub(super) fn say_json(&mut self, value: &Json<'_>) {
        self.compose(|whole| write_json(value, whole));
    }

    pub(super) fn say_json_of(&mut self, object: &Object<'_>) {
        self.compose(|whole| write_object(object, whole));
    }

    pub(super) fn show(&mut self, piece: Piece) {
        self.pieces.push(piece);
    }

    fn compose(&mut self, write: impl FnOnce(&mut String)) {
        let start = self.text.len();
        write(&mut self.text);
        if self.text.len() > start {
            self.pieces.push(Piece::Text(start..self.text.len()));
        }
    }
}

/// Compact JSON for counting: strings stand unescaped, as a model is shown them.
fn write_json(value: &Json<'_>, out: &mut String) {
    match value {
        Json::Null => out.push_str("null"),
        Json::Bool(true) => out.push_str("true"),
        Json::Bool(false) => out.push_str("false"),
        Json::Number(number) => write_number(*number, out),
        Json::String(text) => write_string(text, out),
        Json::Array(elements) => {
            out.push('[');
            for (at, element) in elements.iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                write_json(element, out);
            }
            out.push(']');
        }
        Json::Object(object) => write_object(object, out),
    }
}

fn write_object(object: &Object<'_>, out: &mut String) {
    out.push('{');
    for (at, (name, member)) in object.iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        write_string(name, out);
        out.push(':');
        write_json(member, out);
    }
    out.push('}');
}

fn write_string(text: &str, out: &mut String) {
    out.push('"');
    out.push_str(text);
    out.push('"');
}

fn write_number(number: Number, out: &mut String) {
    // Writing to a String cannot fail. The exponent form keeps 1e300 from growing to 301 digits.
    let _ = match number {
        Number::Whole(value) => write!(out, "{value}"),
        Number::Negative(value) => write!(out, "{value}"),
        Number::Real(value) => write!(out, "{value:e}"),
    };
}
