//! A number for each dimension: what a pool's level, a grant and a purse are made of.

use serde::{Deserialize, Serialize};

use super::amount::{Amount, Dimension};

/// Tokens, input tokens, output tokens and requests, by [`Dimension::index`]. Sums stop at the largest number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Units(pub [u64; 4]);

impl Units {
    /// Nothing of any dimension.
    pub const NONE: Self = Self([0; 4]);

    /// How much there is of `dimension`.
    #[must_use]
    pub const fn of(self, dimension: Dimension) -> u64 {
        self.0[dimension.index()]
    }

    /// The same function of each dimension.
    #[must_use]
    pub fn by(function: impl FnMut(Dimension) -> u64) -> Self {
        Self(Dimension::ALL.map(function))
    }

    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self::by(|dimension| self.of(dimension).saturating_add(other.of(dimension)))
    }

    /// What is left of it without `other`; nothing where that is more.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self::by(|dimension| self.of(dimension).saturating_sub(other.of(dimension)))
    }

    /// The larger of the two, dimension by dimension.
    #[must_use]
    pub fn most(self, other: Self) -> Self {
        Self::by(|dimension| self.of(dimension).max(other.of(dimension)))
    }

    /// Whether it is at least `other` in every dimension.
    #[must_use]
    pub fn covers(self, other: Self) -> bool {
        Dimension::ALL.into_iter().all(|dimension| self.of(dimension) >= other.of(dimension))
    }
}

impl From<Amount> for Units {
    fn from(amount: Amount) -> Self {
        Self::by(|dimension| amount.of(dimension))
    }
}
