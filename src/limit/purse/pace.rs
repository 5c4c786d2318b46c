//! How much was asked for lately, and how much at once, in slots of a quarter of a second.

use super::super::time::{Moment, Span};
use super::ROUND;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Slot {
    sum: u64,
    largest: u64,
}

/// How many slots are remembered: two seconds of them.
pub(in super::super) const SLOTS: u64 = 8;

/// How many are half a second.
pub(in super::super) const HALF_A_SECOND: u64 = 2;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Pace {
    slots: [Slot; SLOTS as usize],
    /// The number of the latest slot that was written, counted from the origin of time.
    latest: u64,
}

impl Pace {
    /// So many units are asked for at once, at `now`.
    pub(in super::super) fn note(&mut self, now: Moment, units: u64) {
        let slot = number(now).max(self.latest);
        // Of a longer pause only the last slots matter, and all of them are empty.
        for passed in (self.latest + 1..=slot).rev().take(SLOTS as usize) {
            self.slots[(passed % SLOTS) as usize] = Slot::default();
        }
        self.latest = slot;
        let slot = &mut self.slots[(slot % SLOTS) as usize];
        slot.sum = slot.sum.saturating_add(units);
        slot.largest = slot.largest.max(units);
    }

    /// Units asked for in the `slots` slots that end with that of `now`; at most [`SLOTS`].
    pub(in super::super) fn over(&self, now: Moment, slots: u64) -> u64 {
        self.last(now, slots).fold(0, |sum, slot| sum.saturating_add(slot.sum))
    }

    /// The most units asked for at once in the last [`SLOTS`] slots.
    pub(in super::super) fn largest(&self, now: Moment) -> u64 {
        self.last(now, SLOTS).map(|slot| slot.largest).max().unwrap_or(0)
    }

    fn last(&self, now: Moment, slots: u64) -> impl Iterator<Item = &Slot> {
        let end = number(now).max(self.latest);
        let from = (end + 1).saturating_sub(slots.min(SLOTS));
        let known = (from..=end).filter(|slot| *slot <= self.latest && slot + SLOTS > self.latest);
        known.map(|slot| &self.slots[(slot % SLOTS) as usize])
    }
}

fn number(now: Moment) -> u64 {
    now.since(Moment::default()).as_nanos() / Span::as_nanos(ROUND)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against all that was ever noted.
        #[test]
        fn what_was_asked_in_the_last_slots(notes in proptest::collection::vec((0..6u64, 0..100u64), 1..40), slots in 1..=SLOTS) {
            let mut pace = Pace::default();
            let mut all: Vec<(u64, u64)> = Vec::new();
            let mut now = 0;
            for (pause, units) in notes {
                // Mostly within a few slots, now and then a long pause.
                now += if pause == 5 { 11 } else { pause };
                let moment = Moment::from_nanos(now * ROUND.as_nanos() + pause);
                pace.note(moment, units);
                all.push((now, units));
                for later in [0, 1, 3, 9] {
                    let end = now + later;
                    let expected: u64 =
                        all.iter().filter(|(slot, _)| slot + slots > end).map(|(_, units)| units).sum();
                    let moment = Moment::from_nanos(end * ROUND.as_nanos());
                    prop_assert_eq!(pace.over(moment, slots), expected, "{} slots at {}", slots, end);
                    let recent = all.iter().filter(|(slot, _)| slot + SLOTS > end);
                    prop_assert_eq!(pace.largest(moment), recent.map(|(_, units)| *units).max().unwrap_or(0));
                }
            }
        }
    }
}
