//! The books of a limiter, in total tokens.
//!
//! Law, after every command: `reserved − refunded + overage = settled + closed + abandoned + open`.

use serde::{Deserialize, Serialize};

use super::decision::Resolution;

/// Running totals. All in tokens of [`super::Dimension::Tokens`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Books {
    /// Held by reservations that were admitted.
    pub reserved: u128,
    /// Given back: held and not used.
    pub refunded: u128,
    /// Charged beyond what was held.
    pub overage: u128,
    /// Ended with usage.
    pub settled: u128,
    /// Ended at the estimate.
    pub closed: u128,
    /// Ended at the estimate because the holder dropped it.
    pub abandoned: u128,
    /// Held by reservations that have not ended.
    pub open: u128,
}

impl Books {
    /// Whether the law holds.
    #[must_use]
    pub const fn balance(&self) -> bool {
        self.reserved + self.overage
            == self.refunded + self.settled + self.closed + self.abandoned + self.open
    }

    /// These books and `other`, as one.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            reserved: self.reserved + other.reserved,
            refunded: self.refunded + other.refunded,
            overage: self.overage + other.overage,
            settled: self.settled + other.settled,
            closed: self.closed + other.closed,
            abandoned: self.abandoned + other.abandoned,
            open: self.open + other.open,
        }
    }

    /// Enters a reservation of `held`.
    pub(super) fn reserve(&mut self, held: u64) {
        self.reserved += u128::from(held);
        self.open += u128::from(held);
    }

    /// Closes a reservation of `held` at its deadline.
    pub(super) fn expire(&mut self, held: u64) {
        self.open -= u128::from(held);
        self.closed += u128::from(held);
    }

    /// Ends a reservation of `held`; `late` says that it was closed at its deadline before. Returns what was refunded and the overage.
    pub(super) fn resolve(&mut self, held: u64, resolution: Resolution, late: bool) -> (u64, u64) {
        let stood = if late { &mut self.closed } else { &mut self.open };
        *stood -= u128::from(held);
        let spent = match resolution {
            Resolution::Settle(used) => {
                self.settled += u128::from(used.total);
                used.total
            }
            Resolution::Close => {
                self.closed += u128::from(held);
                held
            }
            Resolution::Abandon => {
                self.abandoned += u128::from(held);
                held
            }
            Resolution::Cancel => 0,
        };
        let (refunded, overage) = (held.saturating_sub(spent), spent.saturating_sub(held));
        self.refunded += u128::from(refunded);
        self.overage += u128::from(overage);
        (refunded, overage)
    }
}
