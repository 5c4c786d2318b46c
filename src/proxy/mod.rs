//! The edge for callers: HTTP in, a decision, HTTP out.
//!
//! In reading order: [`server`] (connections), [`edge`] (what they must look like and how long they may take), `pipeline` (the steps of a request, straight down the page), `answer` (what a
//! provider said becomes what a caller gets, and ends the reservation), `body` (bytes on their way to a caller), `own` (Tollgate's
//! own endpoints), `limits` (headers), `reject` (every refusal and fault as HTTP, in one place).
//!
//! Laws:
//! - nothing is counted before the caller is authenticated, and bad input costs nothing;
//! - every answer is JSON or the provider's own bytes, in the dialect of its route, with `x-tollgate-decision`;
//! - a stream's bytes are relayed untouched and at once;
//! - a caller that leaves takes its request to the provider with it.

// A `Response`, the `Ok` beside it, is as large: boxing would save no move and cost an allocation for each refusal.
#![allow(clippy::result_large_err)]

mod admit;
mod answer;
mod body;
mod counted;
pub mod edge;
mod kept;
mod limits;
mod outbound;
mod own;
mod pipeline;
mod reject;
pub mod server;
mod users;

pub use body::AnswerBody;
pub use edge::pace::Pace;
pub use edge::tls::{Tls, TlsFiles};
pub use pipeline::{Edge, EdgeOptions, Peer, RequestBody};
pub use server::{Server, ServerOptions};
