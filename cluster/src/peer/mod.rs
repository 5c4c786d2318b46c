//! Connections between nodes: authenticated, encrypted, one per pair, shared by all that the two have to say.
//!
//! In reading order:
//! - `frame`: messages cut into frames, and put together again, fairly and within bounds;
//! - `handshake`: how a connection begins, each side proving that it holds the cluster's secret;
//! - `link`: a connection as its callers see it; `driver`: the one task of it;
//! - `dial`: one attempt at a time per address, and a pause after one that failed;
//! - `peers`: all the connections of a node, and which of two stays;
//! - `error`: what can go wrong, in sentences; `stats`: what is measured.
//!
//! Laws:
//! - only who holds the cluster's secret is heard, and only of the same cluster, or of none yet;
//! - a call ends as exactly one of: answered, certainly not sent ([`CallError::Unreachable`]), certainly not done
//!   ([`CallError::Refused`]), or unknown ([`CallError::Unknown`]). A remote failure is never "it did not happen";
//! - a call has a deadline. A dead peer costs a quick `Unreachable`, and one attempt per pause;
//! - every queue, table and message has a bound.
//!
//! Everything goes through [`crate::outside`], chance included, so that it runs and replays in a simulated world. Never here: what a
//! message means.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

use crate::id::{ClusterId, Identity, NodeId, SessionId};

mod dial;
mod driver;
mod error;
mod frame;
mod handshake;
mod link;
mod peers;
mod stats;
#[cfg(test)]
mod tests;

pub use self::error::{Busy, CallError, ConnectError};
pub use self::frame::Bad;
pub use self::peers::{Options, Peers};
pub use self::stats::{PeerStat, PeerStats, ROUND_TRIP_SIZES, round_trip_edges};

/// The wire versions that this build speaks: the oldest and the newest.
pub const WIRE: (u16, u16) = (1, 1);

/// How many peers a node knows at once.
pub const PEERS_MAX: usize = 1024;

/// The longest address, in bytes: that of a host name and a port.
pub const ADDRESS_MAX: usize = 262;

/// What a node says of itself. What it gains later (a cluster, a number, a session) it says then: [`Peers::introduce`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The wire versions that it speaks.
    pub wire: (u16, u16),
    /// Its cluster; `None` before it has one.
    pub cluster: Option<ClusterId>,
    /// Its data folder.
    pub identity: Identity,
    /// Its number; `None` before it was admitted.
    pub node: Option<NodeId>,
    /// Its session; `None` before it has registered.
    pub session: Option<SessionId>,
    /// Where others reach it, `host:port`.
    pub address: String,
}

/// Who calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// What it last said of itself.
    pub hello: Hello,
    /// The other end of the connection: what was dialled, or from where it was.
    pub from: String,
}

/// Whom to call.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Peer {
    /// Where it is, `host:port`.
    pub address: String,
    /// Who it must be; `None` for whoever is there.
    pub identity: Option<Identity>,
}

impl Peer {
    /// Whoever is at `address`.
    #[must_use]
    pub fn at(address: impl Into<String>) -> Self {
        Self { address: address.into(), identity: None }
    }

    /// `identity`, which is at `address` if it is not connected yet.
    #[must_use]
    pub fn known(identity: Identity, address: impl Into<String>) -> Self {
        Self { address: address.into(), identity: Some(identity) }
    }
}

/// The answer to a call.
pub enum Answer {
    /// It is here. It leaves with whatever else is ready, without another task.
    Now(Vec<u8>),
    /// It comes. At most 4,096 per connection; the calls beyond are refused unseen.
    Later(BoxFuture<'static, Vec<u8>>),
}

/// Answers the calls of peers.
pub trait Serve: Send + Sync + 'static {
    /// Answers a call. Runs on the task of the connection, which does nothing else meanwhile: it must not block, and what takes more
    /// than some microseconds belongs into [`Answer::Later`].
    fn serve(self: Arc<Self>, from: &Caller, kind: u8, body: Bytes) -> Answer;
}
