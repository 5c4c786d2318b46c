//! Who is asking: a credential from the headers, looked up by its hash or verified by its signature, becomes a principal.
//!
//! Laws:
//! - identity comes from a verified credential and nothing else; a header that names a tenant is dropped, not read;
//! - two credentials that differ are no credential;
//! - every wrong credential gets the same answer: unknown, expired and malformed are not told apart;
//! - a key exists here only as its SHA-256; it is compared in constant time and never printed.
//!
//! Never here: I/O, clocks, limits, HTTP answers.

mod address;
mod credential;
mod jwt;
mod keys;
mod keyset;

pub use address::{caller_address, neighbourhood};
pub use credential::{CREDENTIAL_HEADERS, Credential, NoCredential, is_query_credential};
pub use jwt::Token;
pub use keys::KeyTable;
pub use keyset::KeySet;
