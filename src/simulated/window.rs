//! The sliding minute: what was asked for in the last 60 s, and the busiest 60 s there ever were.
//!
//! Laws:
//! - The window at time `t` is `(t − 60 s, t]`, in whole milliseconds; there are no fixed buckets, so no burst hides across
//!   an edge.
//! - [`Window::busiest`] is the largest sum over any window that ends at an admission, with every correction applied. Whoever
//!   sums the billed tokens of the request rows by `admitted_ms` finds the same number.
//! - Memory is bounded: one slot a millisecond, at most [`MAX_SLOTS`] of them. A window is summed for good once all its
//!   requests are over; a request that is open for longer than the slots reach back stays in the sums as judged.
//!
//! Pure: it reads no clock, takes no lock and knows no HTTP.

use std::collections::VecDeque;

/// The length of the window, in milliseconds.
pub const WINDOW_MS: u64 = 60_000;

/// The most slots kept: one a millisecond makes ten minutes, ten times the window and longer than a request should last.
pub const MAX_SLOTS: usize = 600_000;

/// What a minute may hold. `None` is no ceiling.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ceilings {
    /// Input and output tokens in any 60 s.
    pub tokens: Option<u64>,
    /// Requests in any 60 s.
    pub requests: Option<u64>,
}

/// Which ceiling a request hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Tokens per minute.
    Tokens,
    /// Requests per minute.
    Requests,
}

/// A request that the ceilings refuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OverCeiling {
    /// The ceiling that was hit.
    pub unit: Unit,
    /// Its value per minute.
    pub limit: u64,
    /// What the minute holds already.
    pub used: u64,
    /// What the request would add.
    pub need: u64,
    /// After how many milliseconds the request would fit, were nothing else admitted; `None` when it never fits.
    pub fits_in_ms: Option<u64>,
}

/// The sliding window with its history.
#[derive(Debug)]
pub struct Window {
    ceilings: Ceilings,
    slots: VecDeque<Slot>,
    /// Index of the first slot that is still inside the window at the last reading.
    head: usize,
    /// What the slots from `head` on hold.
    tokens: u64,
    requests: u64,
    sweep: Sweep,
}

/// All requests admitted in one millisecond.
#[derive(Debug, Clone, Copy)]
struct Slot {
    at_ms: u64,
    tokens: u64,
    requests: u32,
    /// Requests whose tokens may still be corrected.
    open: u32,
}

/// Sums window after window in the order of their ends. Stops at the first one that may still change.
#[derive(Debug, Clone, Copy, Default)]
struct Sweep {
    /// First slot of the window.
    first: usize,
    /// The next slot to end a window at.
    next: usize,
    tokens: u64,
    busiest: u64,
}

impl Sweep {
    fn step(&mut self, slots: &VecDeque<Slot>) {
        let end = slots[self.next];
        self.tokens += end.tokens;
        while slots[self.first].at_ms + WINDOW_MS <= end.at_ms {
            self.tokens -= slots[self.first].tokens;
            self.first += 1;
        }
        self.next += 1;
        self.busiest = self.busiest.max(self.tokens);
    }
}

impl Window {
    /// An empty window that enforces these ceilings.
    #[must_use]
    pub fn new(ceilings: Ceilings) -> Self {
        Self { ceilings, slots: VecDeque::new(), head: 0, tokens: 0, requests: 0, sweep: Sweep::default() }
    }

    /// Judges a request of so many tokens (input and output-to-be) and, if it fits, counts it at `now_ms`.
    ///
    /// Returns the millisecond it was counted in: later than `now_ms` if an earlier call had read a later clock.
    ///
    /// # Errors
    /// The ceiling that it would go beyond, requests before tokens. Nothing is counted then.
    pub fn admit(&mut self, now_ms: u64, tokens: u64) -> Result<u64, OverCeiling> {
        let now_ms = self.advance(now_ms);
        self.check(Unit::Requests, self.ceilings.requests, self.requests, 1, now_ms)?;
        self.check(Unit::Tokens, self.ceilings.tokens, self.tokens, tokens, now_ms)?;

        match self.slots.back_mut() {
            Some(last) if last.at_ms == now_ms => {
                last.tokens += tokens;
                last.requests += 1;
                last.open += 1;
            }
            _ => self.slots.push_back(Slot { at_ms: now_ms, tokens, requests: 1, open: 1 }),
        }
        self.tokens += tokens;
        self.requests += 1;
        self.forget();
        Ok(now_ms)
    }

    /// Closes a request admitted in `admitted_ms` with `judged` tokens, of which it used `billed`, never more.
    pub fn settle(&mut self, admitted_ms: u64, judged: u64, billed: u64) {
        assert!(
            billed <= judged,
            "a request is judged by all that it can cost: judged {judged}, billed {billed}"
        );
        let Ok(index) = self.slots.binary_search_by_key(&admitted_ms, |slot| slot.at_ms) else {
            return; // Open for longer than the slots reach back: it stays in the sums as judged.
        };
        let unused = judged - billed;
        self.slots[index].tokens -= unused;
        self.slots[index].open -= 1;
        if index >= self.head {
            self.tokens -= unused;
        }
        if index < self.sweep.next {
            self.sweep.tokens -= if index >= self.sweep.first { unused } else { 0 };
        }
        self.forget();
    }

    /// Tokens and requests in the window that ends now.
    pub fn used(&mut self, now_ms: u64) -> (u64, u64) {
        self.advance(now_ms);
        (self.tokens, self.requests)
    }

    /// The most tokens that any 60 s held. Requests still open count as judged.
    #[must_use]
    pub fn busiest(&self) -> u64 {
        let mut sweep = self.sweep;
        while sweep.next < self.slots.len() {
            sweep.step(&self.slots);
        }
        sweep.busiest
    }

    fn check(
        &self,
        unit: Unit,
        ceiling: Option<u64>,
        used: u64,
        need: u64,
        now_ms: u64,
    ) -> Result<(), OverCeiling> {
        match ceiling {
            Some(limit) if used.saturating_add(need) > limit => Err(OverCeiling {
                unit,
                limit,
                used,
                need,
                fits_in_ms: self.fits_in(unit, limit, need, now_ms),
            }),
            _ => Ok(()),
        }
    }

    /// How long until enough has left the window for `need` to fit.
    fn fits_in(&self, unit: Unit, limit: u64, need: u64, now_ms: u64) -> Option<u64> {
        let room = limit.checked_sub(need)?;
        let mut used = match unit {
            Unit::Tokens => self.tokens,
            Unit::Requests => self.requests,
        };
        for slot in self.slots.range(self.head..) {
            used -= match unit {
                Unit::Tokens => slot.tokens,
                Unit::Requests => u64::from(slot.requests),
            };
            if used <= room {
                return Some(slot.at_ms + WINDOW_MS - now_ms);
            }
        }
        None
    }

    /// Moves the window's end to `now_ms`, or leaves it where it is if that is later, and returns it.
    fn advance(&mut self, now_ms: u64) -> u64 {
        let now_ms = self.slots.back().map_or(now_ms, |last| now_ms.max(last.at_ms));
        while let Some(slot) = self.slots.get(self.head)
            && slot.at_ms + WINDOW_MS <= now_ms
        {
            self.tokens -= slot.tokens;
            self.requests -= u64::from(slot.requests);
            self.head += 1;
        }
        now_ms
    }

    /// Sums the windows that can no longer change, and drops the slots that none of the others needs.
    fn forget(&mut self) {
        // The last slot can still grow, so its window is never final.
        while self.sweep.next + 1 < self.slots.len()
            && (self.slots[self.sweep.next].open == 0 || self.slots.len() > MAX_SLOTS)
        {
            self.sweep.step(&self.slots);
            let unneeded = self.sweep.first.min(self.head);
            self.slots.drain(..unneeded);
            self.head -= unneeded;
            self.sweep.first -= unneeded;
            self.sweep.next -= unneeded;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn unlimited() -> Window {
        Window::new(Ceilings::default())
    }

    fn tokens_per_minute(limit: u64) -> Window {
        Window::new(Ceilings { tokens: Some(limit), requests: None })
    }

    #[test]
    fn a_burst_on_either_side_of_a_minute_mark_is_one_burst() {
        let mut window = tokens_per_minute(100);
        window.admit(59_900, 60).unwrap();
        let refused = window.admit(60_100, 60).unwrap_err();
        assert_eq!(
            refused,
            OverCeiling { unit: Unit::Tokens, limit: 100, used: 60, need: 60, fits_in_ms: Some(59_800) }
        );
        window.admit(60_100, 40).unwrap();
    }

    #[test]
    fn what_is_exactly_a_minute_old_has_left() {
        let mut window = tokens_per_minute(100);
        window.admit(0, 100).unwrap();
        assert!(window.admit(59_999, 1).is_err());
        window.admit(60_000, 100).unwrap();
    }

    #[test]
    fn the_wait_it_names_is_the_shortest_that_works() {
        let mut window = tokens_per_minute(100);
        for at in [0, 1_000, 2_000, 3_000] {
            window.admit(at, 25).unwrap();
        }
        let wait = window.admit(5_000, 40).unwrap_err().fits_in_ms.unwrap();
        assert_eq!(wait, 56_000, "two of the four have to leave");
        assert!(window.admit(5_000 + wait - 1, 40).is_err());
        window.admit(5_000 + wait, 40).unwrap();
    }

    #[test]
    fn a_request_beyond_the_ceiling_itself_never_fits() {
        assert_eq!(tokens_per_minute(100).admit(0, 101).unwrap_err().fits_in_ms, None);
    }

    #[test]
    fn requests_have_a_ceiling_of_their_own() {
        let mut window = Window::new(Ceilings { tokens: None, requests: Some(2) });
        window.admit(0, 1).unwrap();
        window.admit(10, 1).unwrap();
        let refused = window.admit(20, 1).unwrap_err();
        assert_eq!((refused.unit, refused.fits_in_ms), (Unit::Requests, Some(59_980)));
        window.admit(60_000, 1).unwrap();
    }

    #[test]
    fn an_aborted_request_gives_back_what_it_did_not_use() {
        let mut window = tokens_per_minute(100);
        let admitted = window.admit(0, 100).unwrap();
        assert_eq!(window.busiest(), 100);
        window.settle(admitted, 100, 30);
        assert_eq!((window.used(1), window.busiest()), ((30, 1), 30));
        window.admit(1, 70).unwrap();
        assert_eq!(window.busiest(), 100);
    }

    #[test]
    fn settled_slots_are_forgotten() {
        let mut window = unlimited();
        for at in 0..200_000 {
            let admitted = window.admit(at, 1).unwrap();
            window.settle(admitted, 1, 1);
        }
        assert!(window.slots.len() <= 60_001, "{} slots", window.slots.len());
        assert_eq!(window.busiest(), 60_000);
    }

    #[test]
    fn a_request_open_for_ever_does_not_keep_everything() {
        let mut window = unlimited();
        let stuck = window.admit(0, 7).unwrap();
        for at in 1..700_000 {
            let admitted = window.admit(at, 1).unwrap();
            window.settle(admitted, 1, 1);
        }
        assert!(window.slots.len() <= MAX_SLOTS, "{} slots", window.slots.len());
        window.settle(stuck, 7, 0);
        assert_eq!(window.busiest(), 60_006, "the stuck one stays as judged");
    }

    /// One request of a random history.
    #[derive(Debug, Clone)]
    struct Asked {
        after_ms: u64,
        judged: u64,
        unused: u64,
        settled_after: usize,
    }

    fn history() -> impl Strategy<Value = Vec<Asked>> {
        let one = (0u64..20_000, 0u64..1_000, 0u64..1_000, 0usize..12).prop_map(
            |(after_ms, judged, unused, settled_after)| Asked {
                after_ms,
                judged,
                unused: unused.min(judged),
                settled_after,
            },
        );
        prop::collection::vec(one, 0..80)
    }

    proptest! {
        /// Against the definition: for each admission, sum what was billed in the 60 s up to it.
        #[test]
        fn the_busiest_minute_is_that_of_the_definition(history in history()) {
            let mut window = unlimited();
            let mut now_ms = 0;
            let mut admitted = Vec::new();
            for (index, asked) in history.iter().enumerate() {
                now_ms += asked.after_ms;
                let at_ms = window.admit(now_ms, asked.judged).unwrap();
                admitted.push(at_ms);
                for (earlier, earlier_at) in history[..=index].iter().zip(&admitted).enumerate()
                    .filter(|(position, (asked, _))| position + asked.settled_after == index)
                    .map(|(_, pair)| pair)
                {
                    window.settle(*earlier_at, earlier.judged, earlier.judged - earlier.unused);
                }
            }
            let last = history.len();
            let billed: Vec<u64> = history.iter().enumerate()
                .map(|(index, asked)| asked.judged - if index + asked.settled_after < last { asked.unused } else { 0 })
                .collect();
            let expected = admitted.iter().map(|end| {
                admitted.iter().zip(&billed)
                    .filter(|(at, _)| **at <= *end && **at + WINDOW_MS > *end)
                    .map(|(_, tokens)| tokens)
                    .sum::<u64>()
            }).max().unwrap_or(0);
            prop_assert_eq!(window.busiest(), expected);
        }
    }
}
