//! Instants and lengths of time on a lease clock, and how far two such clocks may drift apart.
//!
//! - A [`Moment`] means something only to the node that read it: no message carries one.
//! - What crosses nodes is a length, and each side measures it with the margin that errs to the safe side: who *holds*
//!   a right counts it [`Drift::shortened`], who waits for it to be over counts it [`Drift::lengthened`].
//!
//! With every clock's rate within a factor `1 + ρ` of true time, a holder that began no later than the waiter is done
//! first: `L/(1+ρ)` on the slowest clock is `L` of true time, and `L·(1+ρ)` on the fastest is `L` of true time too.
//! Roundings go the same way. Never here: reading a clock, floats.

use serde::{Deserialize, Serialize};

/// An instant on one node's lease clock, in nanoseconds since an arbitrary origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

/// A length of time, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Span(u64);

/// How far the rate of a lease clock may be from true time: a factor between `1/(1+ρ)` and `1+ρ`, `ρ = parts/per`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Drift {
    /// The numerator of ρ.
    pub parts: u32,
    /// The denominator of ρ; not 0.
    pub per: u32,
}

/// ρ = 0.005. A crystal is within 0.0001 and the raw monotonic clock is not slewed (`clock_gettime(2)`), so this is generous.
pub const RHO: Drift = Drift { parts: 5, per: 1000 };

impl Moment {
    /// The instant `nanos` nanoseconds after the origin.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the origin.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// How much later this is than `earlier`; zero when it is not later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }

    /// This instant moved later by `span`, stopping at the end of time.
    #[must_use]
    pub const fn plus(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl Span {
    /// A span of `nanos` nanoseconds.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// A span of `millis` milliseconds.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// Its length in nanoseconds.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The `parts`-th part of it, rounded down.
    #[must_use]
    pub const fn divided(self, parts: u64) -> Self {
        Self(self.0 / parts)
    }
}

impl Drift {
    /// `span/(1+ρ)`, rounded down: so much on any clock is at most `span` of true time.
    #[must_use]
    pub const fn shortened(self, span: Span) -> Span {
        let per = self.per as u128;
        // At most `span`, so it fits.
        Span((span.0 as u128 * per / (per + self.parts as u128)) as u64)
    }

    /// `span·(1+ρ)`, rounded up: so much on any clock is at least `span` of true time. Stops at the longest span.
    #[must_use]
    pub const fn lengthened(self, span: Span) -> Span {
        let per = self.per as u128;
        let long = (span.0 as u128 * (per + self.parts as u128)).div_ceil(per);
        if long > u64::MAX as u128 { Span(u64::MAX) } else { Span(long as u64) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn three_seconds_are_2_985_held_and_3_015_waited_for() {
        let lease = Span::from_millis(3000);
        assert_eq!(RHO.shortened(lease), Span::from_nanos(2_985_074_626));
        assert_eq!(RHO.lengthened(lease), Span::from_millis(3015));
    }

    #[test]
    fn the_end_of_time_is_not_passed() {
        assert_eq!(RHO.lengthened(Span(u64::MAX)), Span(u64::MAX));
        assert_eq!(Moment(u64::MAX).plus(Span(1)), Moment(u64::MAX));
        assert_eq!(Moment(1).since(Moment(2)), Span(0));
    }

    proptest! {
        #[test]
        fn both_roundings_err_to_the_safe_side(nanos in 0..u64::MAX / 2, parts in 0u32..1000, per in 1u32..10_000) {
            let drift = Drift { parts, per };
            let (short, long) = (drift.shortened(Span(nanos)).0, drift.lengthened(Span(nanos)).0);
            let (parts, per, nanos) = (u128::from(parts), u128::from(per), u128::from(nanos));
            prop_assert!(u128::from(short) * (per + parts) <= nanos * per);
            prop_assert!(u128::from(long) * per >= nanos * (per + parts) || long == u64::MAX);
            // And not by more than one nanosecond.
            prop_assert!((u128::from(short) + 1) * (per + parts) > nanos * per);
            prop_assert!(long == u64::MAX || (u128::from(long) - u128::from(long > 0)) * per <= nanos * (per + parts));
        }
    }
}
