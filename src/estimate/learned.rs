//! How much a model really writes on a route: a quantile of what it wrote lately, for routes whose policy prefers that to the ceiling.
//!
//! Laws:
//! - a learned estimate never exceeds what the request itself allows (the caller takes the minimum);
//! - it errs high: a quantile is answered with the upper edge of its bucket, at most an eighth above the truth;
//! - nothing is learned from fewer than [`ENOUGH`] answers: until then the ceiling stands;
//! - what was learned fades: after [`FADE`] answers every count is halved, so that a route whose answers grow is followed.
//!
//! An answer that writes more than was estimated is charged as debt when it settles, as any overage is.

/// Answers below which nothing is answered: fewer say little of a 95th percentile.
pub const ENOUGH: u64 = 100;
/// Answers after which each count is halved.
pub const FADE: u64 = 10_000;

/// Buckets to each power of two.
const PARTS: u64 = 8;
const BUCKETS: usize = 33 * PARTS as usize;

/// Output lengths of one model on one route, in tokens for one choice.
#[derive(Clone, Debug)]
pub struct LearnedOutput {
    counts: Box<[u32; BUCKETS]>,
    total: u64,
}

impl LearnedOutput {
    /// Nothing learned.
    #[must_use]
    pub fn new() -> Self {
        Self { counts: Box::new([0; BUCKETS]), total: 0 }
    }

    /// Learns from an answer of `tokens` output tokens.
    pub fn observe(&mut self, tokens: u64) {
        self.counts[bucket(tokens)] += 1;
        self.total += 1;
        if self.total >= FADE {
            self.total = 0;
            for count in self.counts.iter_mut() {
                *count /= 2;
                self.total += u64::from(*count);
            }
        }
    }

    /// The least number of tokens that `percentile` of a hundred answers did not exceed; none while too little is known.
    #[must_use]
    pub fn quantile(&self, percentile: u64) -> Option<u64> {
        if self.total < ENOUGH {
            return None;
        }
        let rank = (self.total * percentile.clamp(1, 100)).div_ceil(100);
        let mut seen = 0;
        for (place, count) in self.counts.iter().enumerate() {
            seen += u64::from(*count);
            if seen >= rank {
                return Some(upper_edge(place as u64));
            }
        }
        None
    }
}

impl Default for LearnedOutput {
    fn default() -> Self {
        Self::new()
    }
}

/// Below [`PARTS`] every number has its own bucket; above, each power of two is divided into [`PARTS`].
fn bucket(tokens: u64) -> usize {
    let tokens = tokens.min(u64::from(u32::MAX));
    if tokens < PARTS {
        return tokens as usize;
    }
    let power = u64::from(tokens.ilog2());
    let shift = power - u64::from(PARTS.ilog2());
    let part = (tokens >> shift) - PARTS;
    ((shift + 1) * PARTS + part) as usize
}

/// The largest number that falls into the bucket.
fn upper_edge(place: u64) -> u64 {
    if place < PARTS {
        return place;
    }
    let (shift, part) = (place / PARTS - 1, place % PARTS);
    ((PARTS + part + 1) << shift) - 1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn nothing_is_answered_before_enough_was_seen() {
        let mut learned = LearnedOutput::new();
        for _ in 1..ENOUGH {
            learned.observe(50);
        }
        assert_eq!(learned.quantile(95), None);
        learned.observe(50);
        assert_eq!(learned.quantile(95), Some(51));
    }

    #[test]
    fn a_route_whose_answers_grow_is_followed() {
        let mut learned = LearnedOutput::new();
        for _ in 0..FADE {
            learned.observe(100);
        }
        for _ in 0..FADE {
            learned.observe(1_000);
        }
        assert!(learned.quantile(95).is_some_and(|tokens| tokens >= 1_000));
    }

    proptest! {
        #[test]
        fn a_quantile_errs_high_by_at_most_an_eighth(mut lengths in prop::collection::vec(0u64..200_000, 100..400), percentile in 1u64..=100) {
            let mut learned = LearnedOutput::new();
            for tokens in &lengths {
                learned.observe(*tokens);
            }
            lengths.sort_unstable();
            let rank = (lengths.len() * usize::try_from(percentile).unwrap()).div_ceil(100);
            let truth = lengths[rank - 1];
            let answer = learned.quantile(percentile).unwrap();
            prop_assert!(answer >= truth && answer <= truth + truth / 8, "{answer} for {truth}");
        }

        #[test]
        fn every_number_has_a_bucket_that_ends_at_or_above_it(tokens in any::<u64>()) {
            let place = bucket(tokens);
            prop_assert!(place < BUCKETS);
            prop_assert!(upper_edge(place as u64) >= tokens.min(u64::from(u32::MAX)));
        }
    }
}
