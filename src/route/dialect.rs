//! The two ways of speaking that Tollgate understands.

/// The provider API whose shapes a route uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// <https://platform.openai.com/docs/api-reference>
    OpenAi,
    /// <https://docs.anthropic.com/en/api>
    Anthropic,
}
