//! What a shard begins with whose last holder is gone with all that it knew.
//!
//! Whatever was in its buckets may have been spent a moment before, so each stands as one that was empty when this holder began
//! and refills from then: at `min(burst, rate·(now − cold start))` for a tenant that has not asked since. A limit that is newer than
//! the cold start was never spent from and keeps its own start.
//!
//! An edit after the cold start makes the sum depend on what the rate was before, which nobody remembers for a tenant without
//! state. Then a bucket counts from the edit, unless by the slowest rate it ever had it was full before.

use super::bucket::Bucket;
use super::mutant;
use super::rules::RateLimit;
use super::time::{Moment, Span};

/// When a limiter began without its predecessor's state.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cold {
    /// An instant on this node's clock.
    at: Moment,
    /// How long ago it began by then: the holder that began cold may have been another.
    age: Span,
    /// The version of the rules that was in force at `at`: later limits start as their rules say.
    version: u64,
}

impl Cold {
    pub(super) const fn new(at: Moment, age: Span, version: u64) -> Self {
        Self { at, age, version }
    }

    /// How long ago it began.
    pub(super) fn age(&self, now: Moment) -> Span {
        Span::from_nanos(self.age.as_nanos().saturating_add(now.since(self.at).as_nanos()))
    }

    /// Where the bucket of a limit stands that nobody has drawn from since, its tenant's rules having been edited last at `edited`;
    /// none for one that started later.
    pub(super) fn bucket(&self, limit: &RateLimit, edited: Moment, now: Moment) -> Option<Bucket> {
        if limit.since > self.version || mutant::is("cold_full") {
            return None;
        }
        let mut age = self.age(now);
        if mutant::is("credit_before") {
            age = Span::from_nanos(age.as_nanos().saturating_add(60_000_000_000));
        }
        // Rules in their first version were never edited, and a limit that only ever had one rate was not either.
        let unedited = edited == Moment::default() || limit.slowest == limit.rate;
        let since_edit = now.since(edited);
        if unedited || since_edit >= age {
            return Some(Bucket::accrued(limit.rate, age, now));
        }
        let until_edit = age.as_nanos() - since_edit.as_nanos();
        if until_edit >= limit.slowest.filling().as_nanos() {
            return Some(Bucket::full(limit.rate, now));
        }
        Some(Bucket::accrued(limit.rate, since_edit, now))
    }
}
