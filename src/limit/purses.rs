//! All purses of one session, and the one place where a request is paid from several of them: all or nothing.
//!
//! A request's path ends here: after the limits of its tenant come its budgets, and then the pool of its model. The limiter has checked
//! everything else and debits when this has.

use std::collections::BTreeMap;

use super::draw::Terms;
use super::purse::{BudgetPurse, Lack, Left, Purse};
use super::reservation::ReservationId;
use super::rules::Name;
use super::time::Moment;
use super::units::Units;

/// The purses of one session. `K` names a budget with its period and lane.
#[derive(Clone, Debug)]
pub struct Purses<K> {
    pools: BTreeMap<Name, Purse>,
    budgets: BTreeMap<K, BudgetPurse>,
}

/// What a request takes.
#[derive(Clone, Copy, Debug)]
pub struct Payment<'a, K> {
    /// For whom: one that asks again is the same.
    pub id: ReservationId,
    /// From the pool of its model, if that has one.
    pub pool: Option<(&'a Name, Units)>,
    /// From each of its budgets, in the budget's unit.
    pub budgets: &'a [(K, u64)],
}

/// Why a request is not paid. Nothing was taken from anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unpaid {
    /// A budget's purse does not hold enough, but the budget has it: worth waiting for a draw. Its place among the budgets.
    BudgetWaits(usize),
    /// A budget does not have it. Its place among the budgets.
    BudgetExhausted(usize),
    /// The pool's purse does not pay.
    Pool(Lack),
}

impl<K> Default for Purses<K> {
    fn default() -> Self {
        Self { pools: BTreeMap::new(), budgets: BTreeMap::new() }
    }
}

impl<K: Ord + Clone> Purses<K> {
    /// Takes the whole payment, or nothing. `left` says where a budget stands, as this node last heard. Of a budget that has not enough for
    /// those who wait and for this one too, this one gets nothing: it would wait in vain.
    ///
    /// # Errors
    /// The first purse that does not pay, budgets before the pool. Each purse that does not is told, so that the next draws ask for it.
    pub fn pay(
        &mut self,
        now: Moment,
        payment: &Payment<'_, K>,
        left: impl Fn(&K) -> Left,
    ) -> Result<(), Unpaid> {
        let mut unpaid = None;
        for (place, (budget, need)) in payment.budgets.iter().enumerate() {
            let purse = self.budgets.get(budget);
            let held = purse.map_or(0, BudgetPurse::held);
            if held >= *need {
                continue;
            }
            let before = purse.map_or(0, |purse| purse.before(now, payment.id));
            if held.saturating_add(left(budget).units) < need.saturating_add(before) {
                return Err(Unpaid::BudgetExhausted(place));
            }
        }
        for (place, (budget, need)) in payment.budgets.iter().enumerate() {
            let purse = self.budgets.entry(budget.clone()).or_default();
            if !purse.covers(*need) {
                purse.miss(now, payment.id, *need, left(budget));
                unpaid.get_or_insert(Unpaid::BudgetWaits(place));
            }
        }
        if let Some((purse, need)) =
            payment.pool.and_then(|(pool, need)| Some((self.pools.get_mut(pool)?, need)))
            && let Err(lack) = purse.check(now, need)
        {
            if matches!(lack, Lack::Later { .. }) {
                purse.miss(now, need);
            }
            unpaid.get_or_insert(Unpaid::Pool(lack));
        }
        if let Some(unpaid) = unpaid {
            return Err(unpaid);
        }

        for (budget, need) in payment.budgets {
            if let Some(purse) = self.budgets.get_mut(budget) {
                purse.debit(now, *need);
            }
        }
        if let Some((purse, need)) =
            payment.pool.and_then(|(pool, need)| Some((self.pools.get_mut(pool)?, need)))
        {
            purse.debit(now, need);
        }
        Ok(())
    }

    /// Follows the pools of a policy: each that limits something has a purse, and one that is dropped keeps its until its last report.
    pub fn follow(&mut self, terms: &BTreeMap<Name, Terms>) {
        for (name, purse) in &mut self.pools {
            purse.follow(terms.get(name).copied().unwrap_or_default());
        }
        for (name, terms) in terms {
            self.pools.entry(name.clone()).or_insert_with(|| Purse::new(*terms));
        }
    }

    /// The purse of a pool.
    pub fn pool(&mut self, name: &str) -> Option<&mut Purse> {
        self.pools.get_mut(name)
    }

    /// The purse of a budget; an empty one if it has none yet.
    pub fn budget(&mut self, budget: &K) -> &mut BudgetPurse {
        self.budgets.entry(budget.clone()).or_default()
    }

    /// All purses of pools, to be polled.
    pub fn pools_mut(&mut self) -> impl Iterator<Item = (&Name, &mut Purse)> {
        self.pools.iter_mut()
    }

    /// All purses of budgets, to be polled.
    pub fn budgets_mut(&mut self) -> impl Iterator<Item = (&K, &mut BudgetPurse)> {
        self.budgets.iter_mut()
    }

    /// Forgets the purses of budgets of which `keep` says no. Only those of a period that is over: what they hold is over with it, while in
    /// a period that runs another purse would begin to count anew, and be refused.
    pub fn retain_budgets(&mut self, mut keep: impl FnMut(&K, &BudgetPurse) -> bool) {
        self.budgets.retain(|budget, purse| keep(budget, purse));
    }
}
