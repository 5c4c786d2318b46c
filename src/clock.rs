//! The only reader of OS time. Everything else takes `now` as an argument.
//!
//! - The **lease clock** ([`now`]) is `CLOCK_MONOTONIC_RAW + (CLOCK_BOOTTIME − CLOCK_MONOTONIC)`: NTP does not slew it and a
//!   suspend does not stop it (`clock_gettime(2)`). Buckets refill by it; `std::time::Instant` is slewed and blind to suspend.
//! - The **wall clock** ([`wall_now`]) is for what a person or a header reads, never for a decision.
//! - The **timers' clock** ([`timer_now`]) is for time-outs alone: it is the one that `tokio::time` sleeps by.

use rustix::time::{ClockId, clock_gettime};

use crate::limit::Moment;

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
