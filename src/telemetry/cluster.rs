//! What a member of a cluster tells of it: read off the member whenever somebody looks, so that nothing on the way of a request counts
//! for it.

use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::{Counters, add, counters};

/// The cluster's metrics of one node.
pub struct ClusterMetrics {
    /// Decisions made here as the owner, whoever asked.
    pub owned_decisions: Counter,
    /// What is left of this node's lease, in seconds.
    pub lease_margin: Gauge<f64, AtomicU64>,
    /// Renewals of the lease, by result (granted, failed, stalled).
    pub lease_renewals: Counters,
    /// Sessions that the log has fenced since this process started.
    pub fences: Counter,
    /// Shards that started cold here.
    pub cold_starts: Counter,
    /// Shards that came here with their state or for the first time.
    pub shard_openings: Counter,
    /// Shards that were handed over.
    pub shard_exports: Counter,
    /// Shards by stage here (serving, sealed, incomplete).
    pub shards_owned: Gauge,
    /// Shards sealed here and not yet claimed by others.
    pub shards_sealed: Gauge,
    /// Shards served here for which not everybody has announced what it holds open.
    pub shards_incomplete: Gauge,
    /// The ring's version.
    pub ring_epoch: Gauge,
    /// Entries with commands that were applied here since this process started.
    pub raft_entries: Counter,
    /// 1 while this node leads.
    pub raft_leader: Gauge,
    /// The Raft term.
    pub raft_term: Gauge,
    /// Sessions that this process has had.
    pub sessions: Counter,
    /// Times that gossip lost a peer that it had heard, seen by a leader.
    pub gossip_flaps: Counter,
    /// Gossip's datagrams by what became of them.
    pub gossip_datagrams: Counters,
    /// Connections to peers that did not come to be or ended for a fault, by reason.
    pub peer_refusals: Counters,
    /// Open connections to peers.
    pub peer_connections: Gauge,
}

impl ClusterMetrics {
    pub(super) fn new(r: &mut Registry) -> Self {
        Self {
            owned_decisions: add(
                r,
                "owned_decisions",
                "Decisions made here as the owner",
                Counter::default(),
            ),
            lease_margin: add(
                r,
                "lease_margin_seconds",
                "What is left of this node's lease",
                Gauge::default(),
            ),
            lease_renewals: counters(r, "lease_renewals", "Renewals of this node's lease by result"),
            fences: add(r, "fences", "Sessions fenced by the log", Counter::default()),
            cold_starts: add(r, "cold_starts", "Shards that started cold here", Counter::default()),
            shard_openings: add(
                r,
                "shard_openings",
                "Shards that came here with their state",
                Counter::default(),
            ),
            shard_exports: add(r, "shard_exports", "Shards handed over by this node", Counter::default()),
            shards_owned: add(r, "shards_owned", "Shards served here", Gauge::default()),
            shards_sealed: add(
                r,
                "shards_sealed",
                "Shards sealed here and not yet claimed",
                Gauge::default(),
            ),
            shards_incomplete: add(
                r,
                "shards_incomplete",
                "Shards served here before all open work is known",
                Gauge::default(),
            ),
            ring_epoch: add(r, "ring_epoch", "Version of the ring", Gauge::default()),
            raft_entries: add(
                r,
                "raft_entries",
                "Log entries with commands applied here",
                Counter::default(),
            ),
            raft_leader: add(r, "raft_leader", "1 while this node leads", Gauge::default()),
            raft_term: add(r, "raft_term", "The Raft term", Gauge::default()),
            sessions: add(r, "sessions", "Sessions that this process has had", Counter::default()),
            gossip_flaps: add(r, "gossip_flaps", "Times that gossip lost a peer", Counter::default()),
            gossip_datagrams: counters(r, "gossip_datagrams", "Gossip's datagrams by what became of them"),
            peer_refusals: counters(r, "peer_refusals", "Connections to peers that failed, by reason"),
            peer_connections: add(r, "peer_connections", "Open connections to peers", Gauge::default()),
        }
    }
}

/// Sets a counter to what was counted elsewhere so far.
pub fn so_far(counter: &Counter, count: u64) {
    counter.inner().fetch_max(count, Ordering::Relaxed);
}

/// [`so_far`] for a series with one label.
pub fn so_far_by(counters: &Counters, label: &'static str, value: &str, count: u64) {
    so_far(&counters.with(vec![(label, value.to_owned())]), count);
}
