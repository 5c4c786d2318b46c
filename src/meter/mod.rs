//! The meter: reads what a provider says a request used, without touching what the caller receives.
//!
//! Reading order: [`usage`] (what is known), [`whole`] (a JSON answer), [`sse`] (where events begin and end),
//! [`stream`] (a streamed answer), [`frames`] (the few events of Tollgate's own).
//!
//! # Laws
//! - `relay_untouched`: the bytes relayed are the bytes received, in order, except that the one usage chunk which the
//!   caller did not ask for is left out when told so.
//! - `split_blind`: where the network cut the bytes changes neither what is relayed in total nor what is metered.
//! - `exact_or_less`: [`Metered::Exact`] only when the provider's last word was read and nothing is missing from it;
//!   in every doubt [`Metered::AtLeast`] or [`Metered::Unknown`], for which the estimate stands.
//! - `replace_never_add`: reports of usage are running totals; a later one replaces an earlier one.
//! - `bounded`: an open stream costs a few hundred bytes, whatever the provider sends, beside the one event that the
//!   network has cut in two.
//!
//! # Never
//! No async, no I/O, no clock, no lock; no judgement on what a caller owes: that is for whoever settles.

mod anthropic;
mod array;
pub mod frames;
mod gemini;
mod lenient;
mod openai;
mod progress;
mod responses;
mod shape;
pub mod sse;
pub mod stream;
mod tally;
pub mod usage;
pub mod whole;

pub use frames::{error_event, keep_alive};
pub use responses::{Told, read_response};
pub use shape::Shape;
pub use stream::{CountTokens, StreamEnd, StreamMeter, StreamMeterOptions};
pub use usage::{Metered, Usage};
pub use whole::usage_of_body;

#[cfg(test)]
mod tests;
