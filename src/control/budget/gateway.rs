//! What is known of the reservations of one gateway's session, by their numbers.
//!
//! A number is open, closed at its estimate, or over; it only ever moves on. Numbers that are over are kept as runs: between two runs at least
//! one reservation is open, so there are never more runs than that.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tollgate_cluster::log_time::LogTime;

use super::Line;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Gateway {
    /// The first number of each run that is over, with its last. The first run begins at 0, which is no reservation's.
    over: BTreeMap<u64, u64>,
    /// Closed at their estimates: what was charged to whom.
    closed: BTreeMap<u64, Vec<(Line, u64)>>,
    fenced: Option<LogTime>,
    shut: bool,
}

/// What a number was before it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Standings {
    Open,
    Closed(Vec<(Line, u64)>),
    Over,
}

impl Standings {
    /// What a line was charged when the number was closed; none if it was not.
    pub(super) fn charged(&self, line: &Line) -> Option<u64> {
        let Self::Closed(charged) = self else { return None };
        charged.iter().find(|(of, _)| of == line).map(|(_, charged)| *charged)
    }
}

impl Default for Gateway {
    fn default() -> Self {
        Self { over: BTreeMap::from([(0, 0)]), closed: BTreeMap::new(), fenced: None, shut: false }
    }
}

impl Gateway {
    /// Ends `number`; what it was before.
    pub(super) fn end(&mut self, number: u64) -> Standings {
        if self.is_over(number) {
            return Standings::Over;
        }
        let before = self.closed.remove(&number);
        self.pass(number, number);
        before.map_or(Standings::Open, Standings::Closed)
    }

    /// Closes `number` with these charges; whether it was open.
    pub(super) fn close(&mut self, number: u64, charged: impl Iterator<Item = (Line, u64)>) -> bool {
        if self.has_ended(number) {
            return false;
        }
        if self.shut {
            // Nobody can correct it any more.
            self.pass(number, number);
        } else {
            self.closed.insert(number, charged.collect());
        }
        true
    }

    /// Ends the numbers from `first` to `last`; what those among them were charged that had been closed.
    pub(super) fn void(&mut self, first: u64, last: u64) -> Vec<(Line, u64)> {
        let mut back = Vec::new();
        while let Some((&number, _)) = self.closed.range(first..=last).next() {
            back.extend(self.closed.remove(&number).into_iter().flatten());
        }
        self.pass(first, last);
        back
    }

    /// Its session is over as of `now`.
    pub(super) fn fence(&mut self, now: LogTime) {
        self.fenced.get_or_insert(now);
    }

    /// Nothing that it reports counts any more.
    pub(super) fn shut(&mut self) {
        self.shut = true;
        for number in std::mem::take(&mut self.closed).into_keys() {
            self.pass(number, number);
        }
    }

    pub(super) const fn is_closed(&self) -> bool {
        self.shut
    }

    /// Since when it is fenced, if it is not closed.
    pub(super) const fn awaits_close(&self) -> Option<LogTime> {
        if self.shut { None } else { self.fenced }
    }

    /// When the session was fenced that is closed by now.
    pub(super) const fn closed_since(&self) -> Option<LogTime> {
        if self.shut { self.fenced } else { None }
    }

    pub(super) fn watermark(&self) -> u64 {
        self.over.first_key_value().map_or(0, |(_, last)| *last)
    }

    pub(super) fn runs(&self) -> usize {
        self.over.len() + self.closed.len()
    }

    /// Whether `number` is closed or over.
    pub(super) fn has_ended(&self, number: u64) -> bool {
        self.is_over(number) || self.closed.contains_key(&number)
    }

    fn is_over(&self, number: u64) -> bool {
        self.over.range(..=number).next_back().is_some_and(|(_, last)| number <= *last)
    }

    /// Adds a run, joined with those that it touches.
    fn pass(&mut self, first: u64, last: u64) {
        let (mut first, mut last) = (first, last);
        while let Some((&from, &to)) = self.over.range(..=last.saturating_add(1)).next_back() {
            if to.saturating_add(1) < first {
                break;
            }
            (first, last) = (first.min(from), last.max(to));
            self.over.remove(&from);
        }
        self.over.insert(first, last);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a set of numbers.
        #[test]
        fn runs_are_the_set_of_their_numbers(runs in proptest::collection::vec((1..60u64, 0..6u64), 0..30)) {
            let mut gateway = Gateway::default();
            let mut over = BTreeSet::from([0]);
            for (first, length) in runs {
                gateway.void(first, first + length);
                over.extend(first..=first + length);
                for number in 0..70 {
                    prop_assert_eq!(gateway.is_over(number), over.contains(&number), "{}", number);
                }
                let gaps = over.iter().filter(|number| !over.contains(&(*number + 1))).count();
                prop_assert_eq!(gateway.runs(), gaps);
                let watermark = (0..).find(|number| !over.contains(&(number + 1))).unwrap();
                prop_assert_eq!(gateway.watermark(), watermark);
            }
        }
    }
}
