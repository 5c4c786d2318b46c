//! The callers' edge against what no honest client sends, over raw sockets: rows 1 to 38 of the list that hardened it, each with its
//! number in the test's name, so that `cargo test --test edge row_` shows the list. Rows that other stories tell are named here:
//!
//! | row | told in |
//! |---|---|
//! | 13, 14 headers that are hop-by-hop or claim an identity | here, and `identity.rs` |
//! | 16 other spellings of a path | here, and `bad_input.rs` |
//! | 23 a caller that reads nothing at all | here, and `cancellation.rs` |
//! | 26, 31, 32 bodies that are too large, too deep, too wide, or mean two things | `bad_input.rs`, and here what is about framing |
//! | 28 a caller that takes back what it asked | here, and `cancellation.rs` |
//! | 38 a policy whose pattern takes for ever | the policy has no patterns: a name is compared as it is |

#![allow(clippy::unwrap_used, reason = "an answer of another shape fails the test, as it should")]

mod support;

#[path = "edge/asked.rs"]
mod asked;
#[path = "edge/crowd.rs"]
mod crowd;
#[path = "edge/differential.rs"]
mod differential;
#[path = "edge/framing.rs"]
mod framing;
#[path = "edge/multiplexed.rs"]
mod multiplexed;
#[path = "edge/provider.rs"]
mod provider;
#[path = "edge/raw.rs"]
mod raw;
#[path = "edge/tls.rs"]
mod tls;
#[path = "edge/waiting.rs"]
mod waiting;
