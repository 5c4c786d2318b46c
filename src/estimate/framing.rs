//! What a provider adds around the texts: the tokens that mark messages, names and tools, and files that are
//! not text.

use crate::route::{Ask, Dialect, Endpoint};

/// OpenAI's cookbook, "How to count tokens with tiktoken": every answer is primed with 3 tokens, each message
/// costs 3 and its role 1, a name 1.
const PRIMING: u64 = 3;
const MESSAGE: u64 = 3 + 1;
const NAME: u64 = 1;

/// The same page: a function costs up to 10 to open and 12 to close; its definition, which we count as JSON,
/// is longer than the form in which the model sees it.
const FUNCTION: u64 = 10 + 12;

/// Anthropic publishes no such rule. The examples of its token counting guide leave 3 to 5 tokens to a
/// message or system prompt beside its text, and single words have been seen to cost 8 in all.
const ANTHROPIC_MESSAGE: u64 = 8;

/// Anthropic's tool use guide: a system prompt is added when there are tools; 530 tokens for the model with
/// the longest.
const ANTHROPIC_TOOLS: u64 = 530;

/// The same guide: 735 tokens for the longest definition of a tool that the provider defines (computer use),
/// beside 499 of system prompt for it.
const ANTHROPIC_PROVIDER_TOOL: u64 = 735 + 499;

/// Tokens around the pieces of a prompt.
pub(super) fn tokens(ask: &Ask) -> u64 {
    let prompt = &ask.prompt;
    match (ask.endpoint, ask.endpoint.dialect(false)) {
        // What is embedded or completed has no messages, and a list of models no prompt.
        (Endpoint::Embeddings | Endpoint::Models | Endpoint::Completions | Endpoint::PassedThrough, _) => 0,
        // Google publishes no rule for Gemini; its own counter shows less than OpenAI's.
        (_, Dialect::OpenAi | Dialect::Gemini) => {
            PRIMING + prompt.messages * MESSAGE + prompt.names * NAME + prompt.tools * FUNCTION
        }
        (_, Dialect::Anthropic) => {
            let any_tool = if prompt.tools + prompt.provider_tools > 0 { ANTHROPIC_TOOLS } else { 0 };
            PRIMING
                + prompt.messages * ANTHROPIC_MESSAGE
                + prompt.tools * FUNCTION
                + prompt.provider_tools * ANTHROPIC_PROVIDER_TOOL
                + any_tool
        }
    }
}

/// Anthropic's PDF guide: 1,500 to 3,000 tokens of text per page, and each page as an image besides (up to
/// 1,600).
const PAGE: u64 = 3_000 + 1_600;

/// Bytes of a PDF per token. Without parsing it its pages are unknown: a page of text is some 10 to 40 KB,
/// fonts included.
const DOCUMENT_BYTES_PER_TOKEN: u64 = 4;

/// No provider reads more pages at once than Anthropic's 100.
const DOCUMENT_MOST: u64 = 100 * PAGE;

/// Tokens of a document that is read as pages; `None`: it lies elsewhere, and may be as long as any.
pub(super) fn document(bytes: Option<u64>) -> u64 {
    match bytes {
        Some(bytes) => (bytes / DOCUMENT_BYTES_PER_TOKEN).clamp(PAGE, DOCUMENT_MOST),
        None => DOCUMENT_MOST,
    }
}

/// OpenAI's audio guide: 10 tokens per second of speech. The lowest bit rate of MP3, 8 kbit/s, puts a second
/// into 1,000 bytes.
const AUDIO_BYTES_PER_TOKEN: u64 = 100;

/// Tokens of recorded speech.
pub(super) fn audio(bytes: u64) -> u64 {
    bytes.div_ceil(AUDIO_BYTES_PER_TOKEN)
}

/// Encrypted text is as long as its plain text, which has no fewer bytes per token than this.
const SEALED_BYTES_PER_TOKEN: u64 = 2;

/// Tokens of text that only the provider can read.
pub(super) fn sealed(bytes: u64) -> u64 {
    bytes.div_ceil(SEALED_BYTES_PER_TOKEN)
}
