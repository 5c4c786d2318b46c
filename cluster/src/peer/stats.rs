//! What is measured of each peer. Counters only: nothing is decided by them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::id::Identity;
use crate::time::Span;

/// How many sizes of round trip are told apart: each twice the one before, the first up to 16 µs, the last without end.
pub const ROUND_TRIP_SIZES: usize = 20;

/// The upper edge of the first size, in nanoseconds.
const FIRST: u64 = 16_000;

/// What a node knows of its peers.
#[derive(Clone, Debug, Default)]
pub struct PeerStats {
    /// Each peer that was ever connected and is still remembered, by identity.
    pub peers: Vec<PeerStat>,
    /// Connections that did not come to be, dialled or taken, and those that ended for a fault: by reason.
    pub refusals: Vec<(&'static str, u64)>,
    /// Connections open now, those that only finish included.
    pub open: usize,
}

/// What a node knows of one peer.
#[derive(Clone, Debug)]
pub struct PeerStat {
    /// Who.
    pub identity: Identity,
    /// Where it says that it is.
    pub address: String,
    /// Whether a call to it would go out at once.
    pub connected: bool,
    /// Calls that wait for an answer.
    pub in_flight: usize,
    /// How many connections there were.
    pub connections: u64,
    /// Calls refused by the bound here.
    pub refused_here: u64,
    /// Calls refused by the bound there.
    pub refused_there: u64,
    /// Calls sent and given up.
    pub timed_out: u64,
    /// A moving mean over the last dozen or so calls; `None` before the first.
    pub round_trip: Option<Duration>,
    /// How many calls took how long, by size.
    pub round_trips: [u64; ROUND_TRIP_SIZES],
    /// The sum of all of them.
    pub round_trips_sum: Duration,
}

/// The upper edge of each size but the last, which has none.
#[must_use]
pub fn round_trip_edges() -> [Duration; ROUND_TRIP_SIZES - 1] {
    std::array::from_fn(|size| Duration::from_nanos(FIRST << size))
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) connections: AtomicU64,
    pub(super) refused_here: AtomicU64,
    pub(super) refused_there: AtomicU64,
    pub(super) timed_out: AtomicU64,
    pub(super) round_trips: RoundTrips,
}

#[derive(Debug, Default)]
pub(super) struct RoundTrips {
    sizes: [AtomicU64; ROUND_TRIP_SIZES],
    sum: AtomicU64,
    /// Nanoseconds, 0 before the first.
    smoothed: AtomicU64,
}

impl RoundTrips {
    pub(super) fn record(&self, span: Span) {
        let nanos = span.as_nanos();
        let size = (nanos / FIRST).checked_ilog2().map_or(0, |doublings| doublings as usize + 1);
        self.sizes[size.min(ROUND_TRIP_SIZES - 1)].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(nanos, Ordering::Relaxed);
        // Two at once may lose one of the two: it is a mean.
        let before = self.smoothed.load(Ordering::Relaxed);
        let after = if before == 0 { nanos } else { before - before / 8 + nanos / 8 };
        self.smoothed.store(after.max(1), Ordering::Relaxed);
    }
}

impl Counters {
    pub(super) fn read(
        &self,
        identity: Identity,
        address: String,
        connected: bool,
        in_flight: usize,
    ) -> PeerStat {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let smoothed = read(&self.round_trips.smoothed);
        PeerStat {
            identity,
            address,
            connected,
            in_flight,
            connections: read(&self.connections),
            refused_here: read(&self.refused_here),
            refused_there: read(&self.refused_there),
            timed_out: read(&self.timed_out),
            round_trip: (smoothed > 0).then(|| Duration::from_nanos(smoothed)),
            round_trips: std::array::from_fn(|size| read(&self.round_trips.sizes[size])),
            round_trips_sum: Duration::from_nanos(read(&self.round_trips.sum)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_trip_is_counted_by_its_size() {
        let counters = Counters::default();
        for micros in [1, 15, 16, 31, 32, 5_000, 100_000_000] {
            counters.round_trips.record(Span::from_nanos(micros * 1000));
        }
        let read = counters.read(Identity(1), String::new(), true, 0);
        assert_eq!(read.round_trips[..3], [2, 2, 1]);
        assert_eq!((read.round_trips[9], read.round_trips[ROUND_TRIP_SIZES - 1]), (1, 1));
        assert_eq!(round_trip_edges()[1], Duration::from_micros(32));
        assert!(read.round_trip.is_some());
    }
}
