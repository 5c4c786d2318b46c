//! The providers: whom to call, how often to try, what to carry across.
//!
//! Laws:
//! - nothing is sent to a provider without a [`crate::node::Guard`] in the arguments;
//! - a caller's credentials never reach a provider, a provider's account never reaches a caller;
//! - a request is tried again only while the caller has seen nothing of an answer, and only when it is certain that nothing was sent
//!   or the provider itself refused or failed; at most three times;
//! - over HTTP/1 a connection has no task of its own: it moves when the exchange that has it is polled, and closes when that is dropped
//!   before its end;
//! - redirects are not followed: the list of upstreams is the policy's.

mod client;
mod connection;
pub mod decode;
mod exchange;
mod feedback;
mod fetch;
pub mod hygiene;
mod pool;
mod retry;
#[cfg(test)]
mod tests;
pub mod webhook;

pub use client::{Upstream, Upstreams};
pub use exchange::{Failure, Outbound, send};
pub use fetch::fetch;
pub use pool::ProviderBody;
pub use retry::retry_after;
