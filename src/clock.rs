//! The only reader of OS time. Everything else takes `now` as an argument.
//!
//! - The **lease clock** ([`now`]) is `CLOCK_MONOTONIC_RAW + (CLOCK_BOOTTIME − CLOCK_MONOTONIC)`: NTP does not slew it and a
//!   suspend does not stop it (`clock_gettime(2)`). Buckets refill by it; `std::time::Instant` is slewed and blind to suspend.
//! - The **wall clock** ([`wall_now`]) is for what a person or a header reads, never for a decision.
//! - The **timers' clock** ([`timer_now`]) is for time-outs alone: it is the one that `tokio::time` sleeps by.

use rustix::time::{ClockId, clock_gettime};
use tollgate_cluster::{outside, time};

use crate::limit::Moment;

/// The clocks of this machine, as a node is given them. A simulation gives it others.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clocks;

impl outside::Clock for Clocks {
    fn now(&self) -> time::Moment {
        time::Moment::from_nanos(now().as_nanos())
    }

    fn wall_millis(&self) -> u64 {
        // Before 1970 it stands still.
        u64::try_from(wall_now().as_millisecond()).unwrap_or(0)
    }
}

/// The lease clock's reading, in nanoseconds since some instant before this boot. Never goes back.
///
/// The middle clock is read first so that a reading error can only make the sum smaller than the truth by the few
/// nanoseconds between two reads; buckets treat a reading that is not later than the last one as "no time has passed".
#[must_use]
pub fn now() -> Moment {
    let boot = nanos(ClockId::Boottime);
    let monotonic = nanos(ClockId::Monotonic);
    let raw = nanos(ClockId::MonotonicRaw);
    Moment::from_nanos(raw + boot.saturating_sub(monotonic))
}

/// The wall clock's reading.
#[must_use]
#[allow(clippy::disallowed_methods, reason = "this file is the one reader of OS time")]
pub fn wall_now() -> jiff::Timestamp {
    jiff::Timestamp::now()
}

/// The reading of the clock that timers run by, so that a deadline and the sleep that waits for it agree. A paused test moves
/// both by hand.
#[must_use]
pub fn timer_now() -> tokio::time::Instant {
    tokio::time::Instant::now()
}

/// The reading of the clock that the audit file is stamped by, in nanoseconds: `CLOCK_MONOTONIC_COARSE`, which nothing else here reads.
/// A test that bends the clocks of this process leaves it alone, so that all processes of one machine agree on it.
#[must_use]
pub fn audit_now() -> u64 {
    nanos(ClockId::MonotonicCoarse)
}

fn nanos(clock: ClockId) -> u64 {
    let reading = clock_gettime(clock);
    // A boot clock is never negative and lasts 584 years in 64 bits.
    reading.tv_sec.unsigned_abs() * 1_000_000_000 + reading.tv_nsec.unsigned_abs()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_lease_clock_moves_and_never_goes_back() {
        let mut last = super::now();
        let first = last;
        for _ in 0..100_000 {
            let next = super::now();
            // The offset BOOTTIME − MONOTONIC is read in two calls, so two readings may differ by the time between them.
            assert!(next.as_nanos() + 10_000_000 >= last.as_nanos());
            last = next;
        }
        assert!(last > first);
    }
}
