//! From the bytes of a request to a typed [`Ask`]: which endpoint, which model, what is to be counted, how
//! much may come back.
//!
//! Laws:
//! - `one_canonical_path`: a path is served only if it is byte for byte one of the table in [`endpoint`];
//!   nothing is normalised.
//! - `one_reading`: a body that two JSON parsers could read differently (repeated keys, lone surrogates,
//!   numbers that overflow) is refused, so that what was counted is what the provider reads.
//! - `untouched_but_for`: a patched body differs from the original in the patched members alone, byte for
//!   byte.
//! - `bounded`: depth, members and values are bounded before they are stored; memory is a small multiple of
//!   the body.
//!
//! Never here: I/O, async, HTTP types, policy, clocks. Whether a model exists or a tenant may use it is
//! decided elsewhere, and so is how many tokens a text has ([`crate::estimate`]).

pub mod ask;
pub mod batch;
pub mod dialect;
pub mod endpoint;
pub mod forbidden;
pub mod image;
pub mod json;
pub mod kept;
pub mod named;
pub mod passed;
pub mod prompt;

pub use ask::{Ask, BadAsk, Patches, State};
pub use dialect::Dialect;
pub use endpoint::{Door, Endpoint, Found, Missing};
pub use forbidden::FieldPath;
pub use image::{Detail, Image};
pub use json::Bounds;
pub use kept::{Kept, Wish};
pub use passed::Passed;
pub use prompt::{Piece, Prompt};
