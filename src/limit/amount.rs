//! What a request needs, or has used, in each dimension that a limit can bind.

use serde::{Deserialize, Serialize};

use super::bucket::Rate;

/// What a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Dimension {
    /// Tokens, input and output together.
    Tokens,
    /// Input tokens.
    InputTokens,
    /// Output tokens.
    OutputTokens,
    /// Requests.
    Requests,
}

impl Dimension {
    /// Every dimension, in the order in which answers list them.
    pub const ALL: [Self; 4] = [Self::Tokens, Self::InputTokens, Self::OutputTokens, Self::Requests];

    /// The dimension's place in [`Dimension::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The name of a limit on it, as the policy spells it.
    #[must_use]
    pub const fn limit_name(self) -> &'static str {
        match self {
            Self::Tokens => "tokens_per_minute",
            Self::InputTokens => "input_tokens_per_minute",
            Self::OutputTokens => "output_tokens_per_minute",
            Self::Requests => "requests_per_minute",
        }
    }

    /// Its unit, for a sentence: "needs 5,000 tokens".
    #[must_use]
    pub const fn unit(self) -> &'static str {
        match self {
            Self::Tokens => "tokens",
            Self::InputTokens => "input tokens",
            Self::OutputTokens => "output tokens",
            Self::Requests => "requests",
        }
    }
}

/// Tokens of one request, as held by a reservation or as used by a response.
///
/// `total` is not always `input + output`: a provider may bill cache reads that its input limit does not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u64, u64, u64)", into = "(u64, u64, u64)")]
pub struct Amount {
    /// What [`Dimension::Tokens`] counts.
    pub total: u64,
    /// What [`Dimension::InputTokens`] counts.
    pub input: u64,
    /// What [`Dimension::OutputTokens`] counts.
    pub output: u64,
}

impl Amount {
    /// The largest number of tokens that an amount names. A larger one is cut to it: no bucket holds that much, so it still can
    /// never fit.
    pub const MOST: u64 = Rate::MOST + 1;

    /// An amount of `input` and `output` tokens, each counted in full.
    #[must_use]
    pub fn new(input: u64, output: u64) -> Self {
        let (input, output) = (input.min(Self::MOST), output.min(Self::MOST));
        Self { total: (input + output).min(Self::MOST), input, output }
    }

    /// An amount whose total is stated apart from its parts.
    #[must_use]
    pub fn with_total(total: u64, input: u64, output: u64) -> Self {
        Self { total: total.min(Self::MOST), input: input.min(Self::MOST), output: output.min(Self::MOST) }
    }

    /// How much of it a limit on `dimension` counts. One reservation is one request.
    #[must_use]
    pub const fn of(self, dimension: Dimension) -> u64 {
        match dimension {
            Dimension::Tokens => self.total,
            Dimension::InputTokens => self.input,
            Dimension::OutputTokens => self.output,
            Dimension::Requests => 1,
        }
    }
}

impl From<(u64, u64, u64)> for Amount {
    fn from((total, input, output): (u64, u64, u64)) -> Self {
        Self::with_total(total, input, output)
    }
}

impl From<Amount> for (u64, u64, u64) {
    fn from(amount: Amount) -> Self {
        (amount.total, amount.input, amount.output)
    }
}
