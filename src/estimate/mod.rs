//! How many tokens a request may cost, before it is sent: input by counting, output by its ceiling.
//!
//! Laws:
//! - `errs_high`: where a provider publishes a rule, the estimate is at least what the rule gives; where it
//!   publishes a range, the end that costs more; where it publishes nothing, a stated ratio. Settlement
//!   corrects what was too much.
//! - `monotone`: more words, messages, tools or choices never cost less.
//! - `bounded`: the cache holds a fixed number of counts however many texts go by; counting is linear in the
//!   text, hostile or not.
//!
//! Never here: I/O, async, clocks, prices, or what was billed (that is the meter's). No floats: ratios are in
//! thousandths.

mod cache;
mod encoding;
mod framing;
mod images;
pub mod learned;
#[cfg(test)]
mod tests;

use crate::route::{Ask, Endpoint, Piece};

pub use cache::{CacheStats, TokenCache};
pub use encoding::{Encoding, count_text, warm_up};
pub use images::ImageRule;
pub use learned::LearnedOutput;

/// What a request is expected to cost at most, in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    /// Tokens that the model reads.
    pub input: u64,
    /// Tokens that it may write, over all choices.
    pub output: u64,
}

impl Estimate {
    /// Both together; saturates.
    pub fn total(self) -> u64 {
        self.input.saturating_add(self.output)
    }
}

/// How a route reserves for output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputRule {
    /// What the request names, else the model's default, and never more than the model can write; each per
    /// choice.
    Ceiling {
        /// Tokens reserved for a choice when the request names no ceiling.
        default: u64,
        /// Tokens that the model writes at most; `None`: not known.
        model_max: Option<u64>,
    },
    /// Nothing is reserved for output; it is debited when the answer is settled.
    None,
}

/// The estimate of a request whose input was counted.
pub fn of(ask: &Ask, input: u64, rule: OutputRule) -> Estimate {
    let output = match rule {
        OutputRule::Ceiling { default, model_max } if ask.endpoint.has_output() => {
            let named = ask.output_ceiling.unwrap_or(default);
            named.min(model_max.unwrap_or(u64::MAX)).saturating_mul(u64::from(ask.choices))
        }
        OutputRule::Ceiling { .. } | OutputRule::None => 0,
    };
    Estimate { input, output }
}

/// Input tokens of a request to the model that it names.
pub fn input_tokens(ask: &Ask, encoding: Encoding, cache: &TokenCache) -> u64 {
    input_tokens_for(ask, &ask.model, encoding, cache)
}

/// How much of a request's `input` one reading of the model has in its context: all of it, but for texts that are embedded or
/// completed each by itself, of which it is the longest.
pub fn longest_reading(ask: &Ask, input: u64, encoding: Encoding, cache: &TokenCache) -> u64 {
    match ask.endpoint {
        Endpoint::Embeddings | Endpoint::Completions => {
            let prompt = &ask.prompt;
            let texts = prompt.texts().map(|text| cache.count(text, encoding));
            let ids = prompt.pieces().iter().filter_map(|piece| match piece {
                Piece::TokenIds { count } => Some(*count),
                _ => None,
            });
            texts.chain(ids).max().unwrap_or(input)
        }
        _ => input,
    }
}

/// Input tokens of a request that is sent to `model`, whatever it names itself: for aliases and fallbacks,
/// which may have another rule for images.
pub fn input_tokens_for(ask: &Ask, model: &str, encoding: Encoding, cache: &TokenCache) -> u64 {
    let images = ImageRule::for_model(model);
    let prompt = &ask.prompt;
    prompt.pieces().iter().fold(framing::tokens(ask), |sum, piece| {
        let tokens = match piece {
            Piece::Text(range) => cache.count(prompt.text(range), encoding),
            Piece::Image(image) => images.tokens(image),
            Piece::Document { bytes } => framing::document(*bytes),
            Piece::Audio { bytes } => framing::audio(*bytes),
            Piece::Sealed { bytes } => framing::sealed(*bytes),
            Piece::TokenIds { count } => *count,
        };
        sum.saturating_add(tokens)
    })
}
