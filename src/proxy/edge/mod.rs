//! What stands between a caller's socket and the HTTP library: who may connect, how long anything may take, and what a request must
//! look like on the wire.
//!
//! In reading order: [`head`] (the one accepted form of an HTTP/1 request head) and `chunks` (of a chunked body), both pure; `wire`
//! (a socket that lets nothing else through); `frames` (HTTP/2 frames that cost the sender nothing); `watch` (how long a connection
//! may leave us waiting); `pace` (the same for a request's body); `held` (the same for an answer that nobody reads); `places` (how
//! many connections, of whom); `vet` (what is left to check once a request is parsed); `tls`.
//!
//! Laws:
//! - two parsers never read one request differently: what is not in the strict form is refused, and its connection is closed;
//! - a connection holds memory, a place and a slot only while its caller does its part, and every wait for a caller has a bound;
//! - a refused head is answered in its turn, in the dialect of its route, as every other request is;
//! - nothing here reads a body's content or knows a tenant's limits.
//!
//! Never here: repairs. A head is passed on byte for byte or not at all.

pub(super) mod chunks;
pub(super) mod frames;
pub mod head;
pub(super) mod held;
pub(super) mod pace;
pub(super) mod places;
pub mod tls;
pub(super) mod vet;
pub(super) mod watch;
pub(super) mod wire;
