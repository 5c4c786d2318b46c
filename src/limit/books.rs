//! The books of a limiter, in total tokens.
//!
//! Law, after every command: `reserved − refunded + overage = settled + closed + abandoned + open`.

/// Running totals. All in tokens of [`super::Dimension::Tokens`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
}
