//! The providers: whom to call, how often to try, what to carry across.
//!
//! Laws:
//! - nothing is sent without a [`crate::node::Guard`] in the arguments;
//! - a caller's credentials never reach a provider, a provider's account never reaches a caller;
//! - a request is tried again only while the caller has seen nothing of an answer, and only when it is certain that nothing was sent
//!   or the provider itself refused or failed; at most three times;
//! - redirects are not followed: the list of upstreams is the policy's.

mod client;
pub mod decode;
mod exchange;
pub mod hygiene;
mod retry;

pub use client::{Upstream, Upstreams};
pub use exchange::{Failure, Outbound, send};
pub use retry::retry_after;
