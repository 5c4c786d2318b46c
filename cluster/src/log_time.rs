//! Log time: the time that the replicated log itself carries, so that applying an entry reads no clock.
//!
//! A leader stamps what it proposes with *last log time + what its lease clock measured since*, shortened by ρ, so log time
//! never runs faster than true time. It never goes back, and a stamp made in another term than its entry's counts for
//! nothing: a deposed leader's anchor may be older than what its successor's entries already said.

use serde::{Deserialize, Serialize};

use crate::id::Term;
use crate::time::{Drift, Moment, Span};

/// An instant in log time: nanoseconds that the cluster has had a leader for, as its leaders measured them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LogTime(pub u64);

/// A reading of log time and the leadership it was made in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Stamp {
    /// In which leadership.
    pub term: Term,
    /// The reading.
    pub time: LogTime,
}

/// A leader's clock of log time: made at its election, dropped with its leadership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogClock {
    term: Term,
    anchor: LogTime,
    elected: Moment,
    drift: Drift,
}

impl LogClock {
    /// The clock of the leader of `term`, whose log's last entry stands at `last` and whose lease clock now reads `now`.
    #[must_use]
    pub const fn new(term: Term, last: LogTime, now: Moment, drift: Drift) -> Self {
        Self { term, anchor: last, elected: now, drift }
    }

    /// The stamp for a command that is proposed at `now`.
    #[must_use]
    pub const fn stamp(&self, now: Moment) -> Stamp {
        let elapsed: Span = self.drift.shortened(now.since(self.elected));
        Stamp { term: self.term, time: LogTime(self.anchor.0.saturating_add(elapsed.as_nanos())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::NodeId;
    use crate::time::RHO;

    /// Rule 15: log time = anchor + (now − the anchor's clock)/(1+ρ).
    #[test]
    fn rule_15_log_time_continues_from_the_last_entry_and_runs_no_faster_than_true_time() {
        let term = Term { number: 2, leader: NodeId(0) };
        let clock = LogClock::new(term, LogTime(500), Moment::from_nanos(9_000), RHO);
        assert_eq!(clock.stamp(Moment::from_nanos(9_000)).time, LogTime(500));
        assert_eq!(clock.stamp(Moment::from_nanos(9_000 + 1_005)).time, LogTime(1_500));
        // A reading before the election is no time passed.
        assert_eq!(clock.stamp(Moment::from_nanos(0)).time, LogTime(500));
    }
}
