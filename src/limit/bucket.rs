//! One token bucket: integer levels, carried remainders, debt.
//!
//! Laws:
//! - over any interval `[s, t]` with no refund, what a bucket admits is at most `burst + rate·(t − s)` (`no_overspend`);
//! - refill loses nothing: the fraction of a unit that a step did not credit is carried to the next one;
//! - an idle bucket holds exactly `burst`, never a unit more;
//! - a clock that stands still or goes back credits nothing;
//! - debt (a negative level) is repaid by refill alone, and only work that was admitted makes it.

use serde::{Deserialize, Serialize};

use super::time::{MINUTE_NANOS, Moment, Span};

/// How fast a bucket refills and how much it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u64, u64)", into = "(u64, u64)")]
pub struct Rate {
    /// Units per minute.
    pub per_minute: u64,
    /// Units that a full bucket holds.
    pub burst: u64,
}

impl Rate {
    /// A rate of `per_minute` units and a capacity of `burst`, both at least 1 and at most [`Rate::MOST`].
    #[must_use]
    pub fn new(per_minute: u64, burst: u64) -> Self {
        Self { per_minute: per_minute.clamp(1, Self::MOST), burst: burst.clamp(1, Self::MOST) }
    }

    /// The largest rate or capacity: 10^15.
    pub const MOST: u64 = 1_000_000_000_000_000;

    /// How long an empty bucket takes to fill.
    #[must_use]
    pub fn filling(self) -> Span {
        Bucket::empty(Moment::default()).time_until_full(self)
    }
}

impl From<(u64, u64)> for Rate {
    fn from((per_minute, burst): (u64, u64)) -> Self {
        Self::new(per_minute, burst)
    }
}

impl From<Rate> for (u64, u64) {
    fn from(rate: Rate) -> Self {
        (rate.per_minute, rate.burst)
    }
}

/// Whether an amount fits in a bucket now, later or never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// It fits now.
    Now,
    /// It will fit after this long, if nothing else is admitted meanwhile.
    After(Span),
    /// It is larger than the bucket.
    Never,
}

/// The live state of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    level: i64,
    /// Unit-nanoseconds per minute not yet credited: always less than one unit's worth, [`MINUTE_NANOS`].
    carry: u64,
    at: Moment,
}

impl Bucket {
    /// A full bucket.
    #[must_use]
    pub fn full(rate: Rate, now: Moment) -> Self {
        Self { level: signed(rate.burst), carry: 0, at: now }
    }

    /// An empty bucket that refills from `now`.
    #[must_use]
    pub const fn empty(now: Moment) -> Self {
        Self { level: 0, carry: 0, at: now }
    }

    /// A bucket that was empty `elapsed` ago and that nobody has drawn from since.
    #[must_use]
    pub fn accrued(rate: Rate, elapsed: Span, now: Moment) -> Self {
        let mut bucket = Self::empty(now);
        bucket.credit(rate, elapsed);
        bucket
    }

    /// What it holds as of the last refill, with the fraction that is not yet a unit. With [`Bucket::restored`]: its way to
    /// another clock.
    pub(super) const fn contents(&self) -> (i64, u64) {
        (self.level, self.carry)
    }

    /// A bucket with these contents at `now`; none when no bucket of this rate can have them.
    pub(super) fn restored(rate: Rate, (level, carry): (i64, u64), now: Moment) -> Option<Self> {
        let burst = signed(rate.burst);
        let sound = carry < MINUTE_NANOS && (level < burst || (level == burst && carry == 0));
        sound.then_some(Self { level, carry, at: now })
    }

    /// The emptier of two buckets of one limit, both as of the same refill.
    pub(super) fn emptier(self, other: Self) -> Self {
        if (self.level, self.carry) <= (other.level, other.carry) { self } else { other }
    }

    /// What it holds. Negative is debt. True as of the last refill.
    #[must_use]
    pub const fn level(&self) -> i64 {
        self.level
    }

    /// Credits what has accrued since the last refill.
    pub fn refill(&mut self, rate: Rate, now: Moment) {
        let elapsed = now.since(self.at);
        if elapsed == Span::default() {
            return;
        }
        self.at = now;
        self.credit(rate, elapsed);
    }

    fn credit(&mut self, rate: Rate, elapsed: Span) {
        let elapsed = elapsed.as_nanos();
        let burst = signed(rate.burst);
        if self.level >= burst {
            self.carry = 0;
            return;
        }
        let (credit, carry) =
            match elapsed.checked_mul(rate.per_minute).and_then(|x| x.checked_add(self.carry)) {
                Some(accrued) => (u128::from(accrued / MINUTE_NANOS), accrued % MINUTE_NANOS),
                None => {
                    let accrued = u128::from(elapsed) * u128::from(rate.per_minute) + u128::from(self.carry);
                    let minute = u128::from(MINUTE_NANOS);
                    // The remainder of a division by a minute fits in 64 bits.
                    (accrued / minute, u64::try_from(accrued % minute).unwrap_or(0))
                }
            };
        let missing = u128::from(burst.abs_diff(self.level));
        if credit >= missing {
            self.level = burst;
            self.carry = 0;
        } else {
            // credit < missing ≤ i64::MAX − i64::MIN, and the sum is below burst.
            self.level = self.level.saturating_add_unsigned(u64::try_from(credit).unwrap_or(u64::MAX));
            self.carry = carry;
        }
    }

    /// Whether `need` units fit, as of the last refill. Nothing fits in debt, and a need of nothing always fits.
    #[must_use]
    pub fn fit(&self, rate: Rate, need: u64) -> Fit {
        if need == 0 || self.level >= signed(need) {
            return Fit::Now;
        }
        if need > rate.burst {
            return Fit::Never;
        }
        Fit::After(self.time_until(rate, signed(need)))
    }

    /// How long until it is full, as of the last refill.
    #[must_use]
    pub fn time_until_full(&self, rate: Rate) -> Span {
        self.time_until(rate, signed(rate.burst))
    }

    /// Takes `amount` out, into debt if need be.
    pub fn debit(&mut self, amount: u64) {
        self.level = self.level.saturating_sub_unsigned(amount);
    }

    /// Puts `amount` back, up to `burst`.
    pub fn refund(&mut self, rate: Rate, amount: u64) {
        let burst = signed(rate.burst);
        self.level = self.level.saturating_add_unsigned(amount).min(burst);
        if self.level == burst {
            // A full bucket holds `burst` and not a fraction more.
            self.carry = 0;
        }
    }

    /// Follows an edit of the limit made at `edited`: what has been used stays used, so the level moves by as much as the
    /// capacity did, and refills at the new rate from then on.
    pub fn follow(&mut self, old: Rate, new: Rate, edited: Moment) {
        self.refill(old, edited);
        self.level = self.level.saturating_add(signed(new.burst) - signed(old.burst)).min(signed(new.burst));
        if self.level == signed(new.burst) {
            self.carry = 0;
        }
    }

    fn time_until(&self, rate: Rate, target: i64) -> Span {
        if self.level >= target {
            return Span::default();
        }
        let missing =
            u128::from(target.abs_diff(self.level)) * u128::from(MINUTE_NANOS) - u128::from(self.carry);
        let nanos = missing.div_ceil(u128::from(rate.per_minute.max(1)));
        Span::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// Rates and needs are bounded far below `i64::MAX`; anything larger is held at it.
fn signed(units: u64) -> i64 {
    i64::try_from(units).unwrap_or(i64::MAX)
}
