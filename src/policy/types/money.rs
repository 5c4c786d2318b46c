//! What may be used up in a period, and what usage costs.

use std::collections::BTreeMap;

use super::super::units::{MicroDollars, Ratio};

/// A cap on a calendar period.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Budget {
    /// How long a period is.
    pub period: Period,
    /// The IANA time zone whose calendar bounds the periods.
    pub zone: String,
    /// What a period may use.
    pub amount: BudgetAmount,
    /// Parts of the amount at which someone is told, ascending.
    pub soft_thresholds: Vec<Ratio>,
    /// What happens at the end of it.
    pub on_exhausted: OnExhausted,
}

/// The length of a budget's period.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Period {
    /// An hour.
    Hourly,
    /// A calendar day.
    Daily,
    /// A week from Monday.
    Weekly,
    /// A calendar month.
    Monthly,
}

/// What a budget counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BudgetAmount {
    /// Tokens.
    Tokens(u64),
    /// Money, at the price book's prices.
    Usd(MicroDollars),
}

/// What happens to requests when a budget is used up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OnExhausted {
    /// They are refused until the next period.
    Refuse,
    /// They are served by a cheaper model of the same dialect.
    Degrade {
        /// The cheaper model.
        to: String,
        /// How far beyond the budget the cheaper model may go, as a part of it.
        limit: Option<Ratio>,
    },
    /// They become batch class and wait.
    Queue,
}

/// Prices from a day on, until the next list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PriceList {
    /// The first day, in UTC.
    pub effective: jiff::civil::Date,
    /// Prices by model name.
    pub models: BTreeMap<String, Price>,
}

/// A model's price per million tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Price {
    /// Input that was not cached.
    pub input: MicroDollars,
    /// Input read from the provider's cache; the input price unless given.
    pub cache_read: MicroDollars,
    /// Input written to the provider's cache; the input price unless given.
    pub cache_write: MicroDollars,
    /// Output, reasoning included.
    pub output: MicroDollars,
    /// What it costs in place of these when the prompt is long, where the provider asks more then.
    pub long_context: Option<LongContext>,
}

/// A model's price per million tokens for requests with a long prompt: for all of their tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LongContext {
    /// It holds for requests of more input tokens than this, cached ones among them.
    pub above_input_tokens: u64,
    /// As [`Price::input`].
    pub input: MicroDollars,
    /// As [`Price::cache_read`].
    pub cache_read: MicroDollars,
    /// As [`Price::cache_write`].
    pub cache_write: MicroDollars,
    /// As [`Price::output`].
    pub output: MicroDollars,
}
