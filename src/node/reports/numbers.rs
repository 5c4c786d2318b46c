//! The numbers that one session of this gateway has given to its reservations, and which of them nobody pays for.
//!
//! Laws (properties below):
//! - a number is open until it has ended or turned out void, and only then is anything said of it;
//! - whatever was given out is said once as ended or once as void, and numbers that were never given out are void: so what is known of the
//!   session closes up behind its oldest open reservation.

use std::collections::{BTreeMap, BTreeSet};

use tollgate_cluster::id::SessionId;

/// See the module.
#[derive(Debug)]
pub(super) struct Numbers {
    /// Whose they are.
    pub(super) session: SessionId,
    /// The last that was given out.
    last: u64,
    /// Not over, each with whether budgets pay for it.
    open: BTreeMap<u64, bool>,
    /// Ended, and nobody has acknowledged it yet.
    ended: BTreeSet<u64>,
    /// Up to here everything is said that was neither open nor ended then.
    told: u64,
    /// Those up to there that were open then and turned out void.
    late: BTreeSet<u64>,
    /// A void number was charged at its estimate, perhaps: that is worth a report of its own.
    owing: bool,
}

impl Numbers {
    pub(super) const fn new(session: SessionId) -> Self {
        Self {
            session,
            last: 0,
            open: BTreeMap::new(),
            ended: BTreeSet::new(),
            told: 0,
            late: BTreeSet::new(),
            owing: false,
        }
    }

    /// Gives out `number`, which is higher than all before.
    pub(super) fn begin(&mut self, number: u64) {
        debug_assert!(number > self.last, "numbers grow");
        self.last = number;
        self.open.insert(number, false);
    }

    /// Begins `number` anew that was given out and let go. `false` if it is in use, or something was said of it.
    pub(super) fn begin_again(&mut self, number: u64) -> bool {
        let free = self.told < number && number <= self.last && !self.ended.contains(&number);
        free && !self.open.get(&number).copied().unwrap_or(false) && {
            self.open.insert(number, false);
            true
        }
    }

    /// Budgets pay for it.
    pub(super) fn keep(&mut self, number: u64) {
        if let Some(kept) = self.open.get_mut(&number) {
            *kept = true;
        }
    }

    /// It is void, unless budgets pay for it.
    pub(super) fn let_go(&mut self, number: u64) {
        if self.open.get(&number) == Some(&false) {
            self.void(number, false);
        }
    }

    /// A reservation has ended that costs something. `false` when it had ended before.
    pub(super) fn end(&mut self, number: u64) -> bool {
        let open = self.open.remove(&number).is_some();
        if open {
            self.ended.insert(number);
        }
        open
    }

    /// No budget pays for a reservation. `charged`: purses were debited for it.
    pub(super) fn void(&mut self, number: u64, charged: bool) {
        if self.open.remove(&number).is_some() {
            self.owing |= charged;
            if number <= self.told {
                self.late.insert(number);
            }
        }
    }

    /// What was said of these ends has been acknowledged.
    pub(super) fn acknowledged(&mut self, numbers: impl IntoIterator<Item = u64>) {
        for number in numbers {
            self.ended.remove(&number);
        }
    }

    /// Runs of numbers that nobody pays for and that nothing was said of, `most` of them; they count as said.
    pub(super) fn say_void(&mut self, most: usize) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        while let Some(number) = self.late.first().copied() {
            if let Some((_, last)) = runs.last_mut().filter(|(_, last)| *last + 1 == number) {
                *last = number;
            } else if runs.len() == most {
                return runs;
            } else {
                runs.push((number, number));
            }
            self.late.pop_first();
        }
        while self.told < self.last {
            let after = self.told + 1..;
            let open = self.open.range(after.clone()).next().map(|(number, _)| *number);
            let ended = self.ended.range(after).next().copied();
            let next = open.into_iter().chain(ended).min().unwrap_or(self.last + 1);
            if next > self.told + 1 {
                if runs.len() == most {
                    return runs;
                }
                runs.push((self.told + 1, next - 1));
            }
            self.told = next.min(self.last);
        }
        self.owing = false;
        runs
    }

    /// Whether something is to be said though nothing has ended.
    pub(super) const fn is_owing(&self) -> bool {
        self.owing
    }

    /// Whether nothing of it is open and nothing waits to be said that anybody pays for.
    pub(super) fn is_over(&self) -> bool {
        self.open.is_empty() && self.ended.is_empty() && !self.owing
    }

    /// How many reservations have not ended.
    pub(super) fn open(&self) -> usize {
        self.open.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Begin { gap: u64 },
        End(usize),
        Void(usize),
        Say(usize),
        Acknowledge,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            (0..3u64).prop_map(|gap| Step::Begin { gap }),
            (0..8usize).prop_map(Step::End),
            (0..8usize).prop_map(Step::Void),
            (1..4usize).prop_map(Step::Say),
            Just(Step::Acknowledge),
        ];
        proptest::collection::vec(step, 0..80)
    }

    proptest! {
        #[test]
        fn each_number_is_said_once_and_never_while_it_is_open(steps in steps()) {
            let mut numbers = Numbers::new(SessionId(1));
            let (mut open, mut ended, mut void) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
            let mut last = 0;
            let mut say = |numbers: &mut Numbers, open: &[u64], ended: &BTreeSet<u64>, most| {
                let runs = numbers.say_void(most);
                for &(first, last) in &runs {
                    for number in first..=last {
                        prop_assert!(void.insert(number), "{} is void twice", number);
                        prop_assert!(!open.contains(&number) && !ended.contains(&number));
                    }
                }
                prop_assert!(runs.len() <= most);
                Ok(())
            };
            for step in steps {
                match step {
                    Step::Begin { gap } => {
                        last += 1 + gap;
                        numbers.begin(last);
                        open.push(last);
                    }
                    Step::End(at) if !open.is_empty() => {
                        let number = open.remove(at % open.len());
                        prop_assert!(numbers.end(number));
                        prop_assert!(!numbers.end(number), "it ends once");
                        ended.insert(number);
                    }
                    Step::Void(at) if !open.is_empty() => {
                        numbers.void(open.remove(at % open.len()), true);
                        prop_assert!(numbers.is_owing());
                    }
                    Step::Say(most) => say(&mut numbers, &open, &ended, most)?,
                    // Only while something is said of all ends, or a later void would cover them.
                    Step::Acknowledge if numbers.told == numbers.last => numbers.acknowledged(ended.iter().copied()),
                    _ => {}
                }
                prop_assert_eq!(numbers.open(), open.len());
            }
            for number in open.drain(..) {
                numbers.void(number, false);
            }
            while numbers.told < numbers.last || !numbers.late.is_empty() {
                say(&mut numbers, &[], &ended, 3)?;
            }
            numbers.acknowledged(ended.iter().copied());
            prop_assert!(numbers.is_over());
            let all: BTreeSet<u64> = void.union(&ended).copied().collect();
            prop_assert_eq!(all, (1..=last).collect::<BTreeSet<u64>>());
        }
    }
}
