//! Whom to call when: (state, now, what happened) → what is due.
//!
//! Laws: one call of an alert at a time; after the n-th that failed the next waits at least half of `2^n` seconds and at most all of them,
//! [`LONGEST`] at most; what was taken is never called again while it waits to be committed.

use std::collections::{BTreeMap, BTreeSet};

use crate::limit::{Moment, Span};

/// The most calls at once.
const AT_ONCE: usize = 8;

/// The longest wait between two calls.
const LONGEST: Span = Span::from_secs(10 * 60);

/// How long after it was said that alerts were delivered it is said again.
const AGAIN: Span = Span::from_secs(1);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Courier {
    alerts: BTreeMap<u64, State>,
    said: Option<Moment>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Due(Moment, u32),
    Calling(u32),
    Taken,
}

impl Courier {
    /// These wait for delivery, and no others.
    pub(super) fn follow(&mut self, pending: impl Iterator<Item = u64>) {
        let pending: BTreeSet<u64> = pending.collect();
        self.alerts.retain(|number, _| pending.contains(number));
        for number in pending {
            self.alerts.entry(number).or_insert(State::Due(Moment::default(), 0));
        }
    }

    /// Those to be called now, the oldest first: each is under way from here on.
    pub(super) fn due(&mut self, now: Moment) -> Vec<u64> {
        let calling = self.alerts.values().filter(|state| matches!(state, State::Calling(_))).count();
        let mut due = Vec::new();
        for (number, state) in &mut self.alerts {
            if calling + due.len() >= AT_ONCE {
                break;
            }
            if let State::Due(at, failed) = *state
                && at <= now
            {
                *state = State::Calling(failed);
                due.push(*number);
            }
        }
        due
    }

    /// The webhook has it.
    pub(super) fn taken(&mut self, number: u64) {
        if let Some(state) = self.alerts.get_mut(&number) {
            *state = State::Taken;
            self.said = None;
        }
    }

    /// It does not. `random` spreads the next calls.
    pub(super) fn not_taken(&mut self, number: u64, now: Moment, random: u32) {
        if let Some(state) = self.alerts.get_mut(&number)
            && let State::Calling(failed) = *state
        {
            let longest = Span::from_secs(1 << failed.min(16)).min(LONGEST).as_nanos();
            let spread = u128::from(random) * u128::from(longest / 2) / u128::from(u32::MAX);
            let wait = longest / 2 + u64::try_from(spread).unwrap_or(0);
            *state = State::Due(now.plus(Span::from_nanos(wait)), failed + 1);
        }
    }

    /// Those of which it is to be committed that they are delivered; again after a while, if that was lost.
    pub(super) fn uncommitted(&mut self, now: Moment) -> Vec<u64> {
        if self.said.is_some_and(|said| now < said.plus(AGAIN)) {
            return Vec::new();
        }
        let taken = self.alerts.iter().filter(|(_, state)| matches!(state, State::Taken));
        let taken: Vec<u64> = taken.map(|(number, _)| *number).collect();
        self.said = (!taken.is_empty()).then_some(now);
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn what_fails_is_called_later_and_later_and_one_call_at_a_time() {
        let mut courier = Courier::default();
        courier.follow([7].into_iter());
        let mut now = at(100);
        for failed in 0..14 {
            assert_eq!(courier.due(now), [7]);
            assert!(courier.due(now.plus(LONGEST)).is_empty(), "it is under way");
            courier.not_taken(7, now, 0);
            let least = Span::from_millis(500 << failed).min(Span::from_secs(300));
            let early = Span::from_nanos(least.as_nanos() - 1);
            assert!(courier.due(now.plus(early)).is_empty(), "after {failed} that failed before");
            now = now.plus(least);
        }
        assert_eq!(courier.due(now), [7]);
        courier.not_taken(7, now, u32::MAX);
        assert!(courier.due(now.plus(Span::from_secs(599))).is_empty());
        assert_eq!(courier.due(now.plus(LONGEST)), [7]);
    }

    #[test]
    fn what_is_taken_is_not_called_again_and_said_until_it_is_committed() {
        let mut courier = Courier::default();
        courier.follow(1..=10);
        assert_eq!(courier.due(at(1)), [1, 2, 3, 4, 5, 6, 7, 8], "so many at once");
        assert!(courier.uncommitted(at(1)).is_empty());
        courier.taken(2);
        assert_eq!(courier.due(at(1)), [9]);
        assert_eq!(courier.uncommitted(at(2)), [2]);
        assert!(courier.uncommitted(at(2)).is_empty(), "it is on its way");
        assert_eq!(courier.uncommitted(at(3)), [2], "it was lost");
        courier.follow([1, 3].into_iter());
        assert!(courier.uncommitted(at(9)).is_empty());
        courier.taken(2);
        assert!(courier.uncommitted(at(99)).is_empty(), "nobody waits for it any more");
    }
}
