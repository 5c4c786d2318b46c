//! One dimension of a pool: what can be granted now, and the books of all that ever was.

use serde::{Deserialize, Serialize};

use crate::limit::MINUTE_NANOS;

/// Where everything went that a pool ever had, in units of the dimension.
///
/// Law: `level + outstanding + spent + written_off + lapsed = issued`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolBooks {
    /// What it began with, refills, and refunds that were credited.
    pub issued: u128,
    /// Reported as spent, refunds not deducted.
    pub spent: u128,
    /// Held by sessions when they ended.
    pub written_off: u128,
    /// Dropped because the pool shrank.
    pub lapsed: u128,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Level {
    level: i64,
    /// Unit-nanoseconds per minute not yet credited: less than one unit's worth.
    carry: u64,
    /// It was limited before, so what it held then may have been spent.
    begun: bool,
    books: PoolBooks,
}

impl Level {
    pub(super) const fn level(&self) -> i64 {
        self.level
    }

    pub(super) const fn books(&self) -> PoolBooks {
        self.books
    }

    /// It may have been limited before by a pool that nobody remembers.
    pub(super) const fn begin_empty(&mut self) {
        self.begun = true;
    }

    /// It is limited from now on: full, if it never was.
    pub(super) fn begin(&mut self, burst: u64) {
        if !std::mem::replace(&mut self.begun, true) {
            self.credit(burst);
        }
    }

    pub(super) fn refill(&mut self, per_minute: u64, elapsed: u64, room: u64) {
        let accrued = u128::from(elapsed) * u128::from(per_minute) + u128::from(self.carry);
        let (credit, carry) = (accrued / u128::from(MINUTE_NANOS), accrued % u128::from(MINUTE_NANOS));
        if credit >= u128::from(room) {
            // A full one holds not a fraction more.
            self.carry = 0;
            self.credit(room);
        } else {
            // Both are smaller than what they are divided by or compared with.
            self.carry = u64::try_from(carry).unwrap_or(0);
            self.credit(u64::try_from(credit).unwrap_or(room));
        }
    }

    pub(super) fn credit(&mut self, units: u64) {
        self.issue(units);
        self.level = self.level.saturating_add_unsigned(units);
    }

    /// Counts units that never were in the level.
    pub(super) fn issue(&mut self, units: u64) {
        self.books.issued += u128::from(units);
    }

    pub(super) const fn grant(&mut self, units: u64) {
        self.level = self.level.saturating_sub_unsigned(units);
    }

    pub(super) fn spend(&mut self, units: u64) {
        self.books.spent += u128::from(units);
    }

    pub(super) const fn take_back(&mut self, units: u64) {
        self.level = self.level.saturating_add_unsigned(units);
    }

    pub(super) fn lapse_returned(&mut self, units: u64) {
        self.books.lapsed += u128::from(units);
    }

    /// A session ended that held this much; a debt stays with the level.
    pub(super) fn write_off(&mut self, held: i64) {
        match u64::try_from(held) {
            Ok(held) => self.books.written_off += u128::from(held),
            Err(_) => self.level = self.level.saturating_add(held),
        }
    }

    /// Drops what the level holds beyond `most`.
    pub(super) fn cut_to(&mut self, most: u64) {
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        if self.level > most {
            self.books.lapsed += u128::from(self.level.abs_diff(most));
            self.level = most;
            self.carry = 0;
        }
    }

    /// Whether the law of the books holds with `held` outstanding.
    pub(super) fn balances(&self, held: i128) -> bool {
        let signed = |units: u128| i128::try_from(units).unwrap_or(i128::MAX);
        let PoolBooks { issued, spent, written_off, lapsed } = self.books;
        i128::from(self.level) + held + signed(spent) + signed(written_off) + signed(lapsed) == signed(issued)
    }
}
