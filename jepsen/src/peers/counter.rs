//! A token bucket in the memory of one process.

use std::collections::BTreeMap;

use crate::history::{At, Bucket};

/// A request, in what levels are counted in: nanoseconds of a minute.
const ONE: u128 = 60_000_000_000;

/// A bucket for each tenant that has asked; each begins full.
#[derive(Default)]
pub struct Counters(BTreeMap<String, (u128, At)>);

impl Counters {
    /// Whether one more request of `tenant` fits at `now`; it is counted then.
    pub fn admit(&mut self, tenant: &str, bucket: Bucket, now: At) -> bool {
        let full = u128::from(bucket.burst) * ONE;
        let (level, last) = self.0.entry(tenant.to_owned()).or_insert((full, now));
        let refilled = u128::from(now.saturating_sub(*last)) * u128::from(bucket.per_minute);
        *level = (*level + refilled).min(full);
        *last = now.max(*last);
        let fits = *level >= ONE;
        if fits {
            *level -= ONE;
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::SECOND;

    #[test]
    fn one_bucket_admits_a_burst_and_what_refills() {
        let bucket = Bucket { burst: 2, per_minute: 60 };
        let mut counters = Counters::default();
        let mut admitted = |at: At| counters.admit("a", bucket, at);
        let said =
            [0, 0, 0, SECOND / 2, SECOND, SECOND, 9 * SECOND, 9 * SECOND, 9 * SECOND].map(&mut admitted);
        assert_eq!(said, [true, true, false, false, true, false, true, true, false]);
    }
}
