//! What a node says of its usage ledger.

use std::sync::atomic::Ordering;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::cluster::{so_far, so_far_by};
use super::{Counters, add, counters};
use crate::ledger::Ledger;

/// The ledger's metrics, brought up to what it has counted when they are asked for.
pub struct LedgerMetrics {
    rows: Counter,
    dropped: Counters,
    removed: Counter,
    segments: Gauge,
    bytes: Gauge,
}

impl LedgerMetrics {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let r = registry;
        let removed = "Segments removed since they were too old or too many";
        Self {
            rows: add(r, "ledger_rows", "Usage rows written", Counter::default()),
            dropped: counters(r, "ledger_rows_dropped", "Usage rows that were lost, by reason"),
            removed: add(r, "ledger_segments_removed", removed, Counter::default()),
            segments: add(r, "ledger_segments", "Files of usage rows", Gauge::default()),
            bytes: add(r, "ledger_bytes", "Bytes of usage rows on disk", Gauge::default()),
        }
    }

    /// Tells what `ledger` has counted.
    pub fn tell(&self, ledger: &Ledger) {
        let counts = ledger.counts();
        so_far(&self.rows, counts.written.load(Ordering::Relaxed));
        so_far(&self.removed, counts.segments_removed.load(Ordering::Relaxed));
        so_far_by(&self.dropped, "reason", "no_room", counts.no_room.load(Ordering::Relaxed));
        so_far_by(&self.dropped, "reason", "write_failed", counts.unwritten.load(Ordering::Relaxed));
        let (segments, _, bytes) = ledger.totals();
        self.segments.set(i64::try_from(segments).unwrap_or(i64::MAX));
        self.bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }
}
