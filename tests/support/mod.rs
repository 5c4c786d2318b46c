//! What every story about the public edge needs: real processes, a small HTTP client, keys, policies, patience.
//!
//! A story drives the built binary over loopback TCP and knows nothing of its insides; where it has to look into a node's books,
//! or to hold what no socket can hold, it starts the same node in its own process ([`inside`]). Laws:
//! - every address is port 0: tests run side by side on one machine;
//! - a started process is ended by its id when its owner goes out of scope, politely first, by force after a bound;
//! - logs go to files, never to pipes (a reader that stalls would stall the node), and are shown when the test fails;
//! - nobody sleeps in the hope that something has happened: [`eventually`] asks until a deadline.

#![allow(dead_code, unused_imports, reason = "each test binary compiles this module and uses its own part")]

pub mod client;
pub mod cluster;
pub mod http2;
pub mod inside;
pub mod keys;
pub mod policy;
pub mod process;
pub mod sample;
pub mod scripted;
pub mod tap;

pub use client::{Client, Response};
pub use cluster::{Beginning, Cluster, Peer};
pub use inside::Inside;
pub use keys::Key;
pub use policy::Policy;
pub use process::{Node, Process, Provider};
pub use scripted::Scripted;
pub use tap::{Attempt, Tap};

use std::time::Duration;

/// How long anything on loopback may take before the test calls it broken. Two busy cores start a debug binary in
/// well under a second; the rest is room for a machine that builds something else at the same time.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The pause between two questions of [`eventually`].
const ASK_AGAIN: Duration = Duration::from_millis(20);

/// Asks `question` until it answers `Ok`, and returns that answer.
///
/// # Panics
/// After [`PATIENCE`], with `what` and the last reason the question gave.
pub async fn eventually<T>(what: &str, mut question: impl AsyncFnMut() -> Result<T, String>) -> T {
    let mut last = "it was never answered".to_owned();
    let asking = async {
        loop {
            match question().await {
                Ok(answer) => return answer,
                Err(reason) => last = reason,
            }
            tokio::time::sleep(ASK_AGAIN).await;
        }
    };
    match tokio::time::timeout(PATIENCE, asking).await {
        Ok(answer) => answer,
        Err(_) => panic!("{what}: still not so after {PATIENCE:?}; last: {last}"),
    }
}
