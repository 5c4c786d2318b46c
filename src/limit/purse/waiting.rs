//! Who waits for a purse: each request once, however often it asks again, so that a draw brings enough for all of them.

use std::collections::{BTreeMap, BTreeSet};

use super::super::reservation::ReservationId;
use super::super::time::Moment;
use super::PATIENCE;

/// How many are told apart. Those beyond are served by later draws.
const MOST: usize = 4_096;

#[derive(Clone, Debug, Default)]
pub(super) struct Waiting {
    /// What each needs that no draw has asked for.
    needs: BTreeMap<ReservationId, u64>,
    /// Those that the draw on its way has asked for.
    flown: BTreeSet<ReservationId>,
    sum: u64,
    largest: u64,
    last: Moment,
}

impl Waiting {
    /// A request could not be paid. Whether it had not been heard of since the last answer.
    pub(super) fn note(&mut self, now: Moment, id: ReservationId, need: u64) -> bool {
        if now >= self.last.plus(PATIENCE) {
            self.forget();
        }
        self.last = self.last.max(now);
        if self.needs.len() >= MOST || self.flown.contains(&id) || self.needs.contains_key(&id) {
            return false;
        }
        self.needs.insert(id, need);
        self.sum = self.sum.saturating_add(need);
        self.largest = self.largest.max(need);
        true
    }

    /// What all need, and what one of them needs at most.
    pub(super) fn needs(&self, now: Moment) -> (u64, u64) {
        // Whoever still wants it has asked again by then.
        if now < self.last.plus(PATIENCE) { (self.sum, self.largest) } else { (0, 0) }
    }

    /// What others than `id` need that no draw has asked for.
    pub(super) fn before(&self, now: Moment, id: ReservationId) -> u64 {
        self.needs(now).0.saturating_sub(self.needs.get(&id).copied().unwrap_or(0))
    }

    /// A draw asks for what they need.
    pub(super) fn fly(&mut self) {
        self.flown = std::mem::take(&mut self.needs).into_keys().collect();
        (self.sum, self.largest) = (0, 0);
    }

    /// The draw is answered: who did not get anything asks again.
    pub(super) fn forget(&mut self) {
        *self = Self { last: self.last, ..Self::default() };
    }
}
