//! Whose shapes a route speaks. Never holds a behaviour: the shapes of errors and headers live at the edge.

use std::fmt;

/// The API whose request, response, error and header shapes a route speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// <https://platform.openai.com/docs/api-reference>
    OpenAi,
    /// <https://docs.anthropic.com/en/api>
    Anthropic,
    /// <https://ai.google.dev/api>
    Gemini,
}

impl Dialect {
    /// Lower-case name, as in policies, logs and metric labels.
    pub fn name(self) -> &'static str {
        match self {
            Dialect::OpenAi => "openai",
            Dialect::Anthropic => "anthropic",
            Dialect::Gemini => "gemini",
        }
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}
