//! What passes between a session's purse and the agreed level that it draws from.
//!
//! Counters in a draw are cumulative: they count from the beginning of the session, so that a lost or repeated message miscounts nothing.
//! One draw of a purse is on its way at a time; until it is answered it is sent again as it is.

use serde::{Deserialize, Serialize};

use super::amount::Dimension;
use super::bucket::Rate;
use super::units::Units;

/// What a session reports to a pool, and asks of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Draw {
    /// Its number: 1 for the first of the session, then one more each time.
    pub seq: u64,
    /// Debited by reservations and charged beyond them, since the session began.
    pub spent: Units,
    /// Granted and given back unspent, since the session began.
    pub returned: Units,
    /// Of what was spent, what reservations turned out not to need, since the session began. It never went back to the purse.
    pub refunded: Units,
    /// What it would take now.
    pub wants: Units,
    /// Its share when not all wants can be met, relative to other sessions; 0 counts as 1.
    pub weight: u32,
}

/// A pool's answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Granted {
    /// The number of the draw that it answers.
    pub seq: u64,
    /// What moved to the purse.
    pub units: Units,
    /// What was left that nobody waits for.
    pub free: Units,
}

/// What a session asks of a budget, in the budget's unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetDraw {
    /// Its number: 1 for the first of the session in this period, then one more each time.
    pub seq: u64,
    /// Granted and given back unspent, since the period or the session began.
    pub returned: u64,
    /// What requests wait for that the purse cannot pay: granted whole, or not at all.
    pub need: u64,
    /// What it would take beyond that, so as not to ask for each request.
    pub wants: u64,
}

/// A budget's answer, in the budget's unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetGranted {
    /// The number of the draw that it answers.
    pub seq: u64,
    /// What moved to the purse.
    pub units: u64,
    /// What nobody holds and nobody has used of the period.
    pub remaining: u64,
}

/// What holds of a pool now; the default limits nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// Of each dimension that is limited, what is handed out per minute and what may be claimed at once, by
    /// [`Dimension::index`].
    pub limits: [Option<Rate>; 4],
    /// Whether what reservations did not need may be sent in a later minute.
    pub refunds: bool,
}

/// How large a rate or a burst of a pool is believed to be, in units: counters of a session then last for years.
const POOL_MOST: u64 = 10_000_000_000_000;

impl Terms {
    /// These limits, each cut to what a pool can have.
    #[must_use]
    pub fn new(limits: [Option<Rate>; 4], refunds: bool) -> Self {
        let cut = |rate: Rate| Rate::new(rate.per_minute.min(POOL_MOST), rate.burst.min(POOL_MOST));
        Self { limits: limits.map(|limit| limit.map(cut)), refunds }
    }

    /// The dimensions that are limited.
    pub fn limited(&self) -> impl Iterator<Item = (Dimension, Rate)> + use<> {
        let limits = self.limits;
        Dimension::ALL.into_iter().filter_map(move |dimension| Some((dimension, limits[dimension.index()]?)))
    }

    /// Whether any dimension is.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.limits.iter().any(Option::is_some)
    }
}
