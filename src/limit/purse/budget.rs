//! The purse of a budget: what an owner's session holds of a tenant's period, in the budget's unit.
//!
//! It differs from a pool's in what comes back. A settlement gives nothing back here: what a reservation did not need is freed where its
//! usage is reported. Only a reservation that is cancelled before anything was sent, at the session that debited it, is put back, and
//! then nobody may report it as anything but void.
//!
//! Towards the end of a budget a purse gets little at a time. So that nobody waits in vain for what is there, a draw asks for all that wait, as
//! far as the budget has it, and a request for which nothing would be left behind those is not made to wait ([`super::super::Purses::pay`]).

use super::super::draw::{BudgetDraw, BudgetGranted};
use super::super::reservation::ReservationId;
use super::super::time::{Moment, Span};
use super::pace::{HALF_A_SECOND, Pace, SLOTS};
use super::waiting::Waiting;
use super::{AHEAD, GAP, Haste, REPORT};

/// How long a purse that nobody asks keeps what it holds: short against a period, long against the pauses of a caller that works.
const IDLE: Span = Span::from_secs(10);

/// Which part of a budget is its last: what of it is left may be asked for request by request, and gateways report at once what they free
/// of it.
const LAST_PART: u64 = 100;

/// How many requests of the largest size are the last of a small budget.
const LAST_REQUESTS: u64 = 16;

/// Where a budget stands, as this node last heard. In the budget's unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// What nobody holds and nobody has used.
    pub units: u64,
    /// Of how much.
    pub of: u64,
}

impl Left {
    /// How much of it is its last part.
    #[must_use]
    pub const fn last(self) -> u64 {
        self.of / LAST_PART
    }
}

/// One session's purse of one budget, period and lane.
#[derive(Clone, Debug, Default)]
pub struct BudgetPurse {
    held: u64,
    returned: u64,
    /// What was returned by draws that are answered.
    answered: u64,
    seq: u64,
    flight: Option<BudgetDraw>,
    asked: Pace,
    waiting: Waiting,
    left: Left,
    used: Moment,
    drawn: Option<Moment>,
    draining: bool,
}

impl BudgetPurse {
    /// Whether `need` can be paid now.
    #[must_use]
    pub const fn covers(&self, need: u64) -> bool {
        self.held >= need
    }

    /// Takes `need` out. The caller has checked.
    pub fn debit(&mut self, now: Moment, need: u64) {
        self.held = self.held.saturating_sub(need);
        self.ask(now, need);
    }

    /// Remembers a request that could not be paid, so that the next draw asks for what it needs. The caller has seen in the agreed state
    /// that `left` has it: else a draw for each request of a tenant whose budget is used up would go through the log.
    pub fn miss(&mut self, now: Moment, id: ReservationId, need: u64, left: Left) {
        self.draining = false;
        self.left = left;
        if self.waiting.note(now, id, need) {
            self.ask(now, need);
        }
    }

    /// What other requests than `id` wait for.
    #[must_use]
    pub fn before(&self, now: Moment, id: ReservationId) -> u64 {
        self.waiting.before(now, id)
    }

    /// Puts back what a reservation held that was debited here and cancelled before anything was sent.
    pub fn put_back(&mut self, units: u64) {
        self.held = self.held.saturating_add(units);
    }

    /// Gives back what it holds with the next draw, and asks for nothing until somebody needs something: the tenant moves, or the
    /// session stops.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    /// The draw that is on its way, to be sent again as it is until it is answered.
    #[must_use]
    pub const fn flight(&self) -> Option<&BudgetDraw> {
        self.flight.as_ref()
    }

    /// Makes the next draw, if there is something to ask or to give back and none is on its way.
    pub fn poll(&mut self, now: Moment) -> Option<BudgetDraw> {
        if self.flight.is_some() || self.drawn.is_some_and(|drawn| now < drawn.plus(GAP)) {
            return None;
        }
        let (need, wants) = self.wants(now);
        let surplus = self.surplus(now);
        let due = self.draining || self.drawn.is_none_or(|drawn| now >= drawn.plus(REPORT));
        if need == 0 && wants == 0 && (surplus == 0 || !due) {
            return None;
        }
        self.waiting.fly();
        self.held -= surplus;
        self.returned = self.returned.saturating_add(surplus);
        self.seq += 1;
        self.drawn = Some(now);
        let draw = BudgetDraw { seq: self.seq, returned: self.returned, need, wants };
        self.flight = Some(draw);
        Some(draw)
    }

    /// From when on [`BudgetPurse::poll`] has something, as things stand at `now`, and how much haste that has. None while a draw is on its
    /// way.
    #[must_use]
    pub fn due(&self, now: Moment) -> Option<(Moment, Haste)> {
        if self.flight.is_some() {
            return None;
        }
        let after = |pause| self.drawn.map_or(Moment::default(), |drawn| drawn.plus(pause));
        if self.draining {
            return (self.held > 0).then(|| (after(GAP), Haste::Waits));
        }
        let (need, wants) = self.wants(now);
        let last = self.is_last(now);
        if need > 0 {
            return Some((after(GAP), if last { Haste::Last } else { Haste::Waits }));
        }
        if wants > 0 {
            let urgent = self.held < self.asked.over(now, HALF_A_SECOND);
            let haste = match last {
                true => Haste::Round,
                false if urgent => Haste::Waits,
                false => Haste::Calm,
            };
            return Some((after(GAP), haste));
        }
        (self.surplus(now) > 0).then(|| (after(REPORT), Haste::Calm))
    }

    /// The budget has answered the draw that is on its way. Another answer is a late copy, and changes nothing.
    pub fn granted(&mut self, granted: &BudgetGranted) {
        let Some(draw) = self.flight.filter(|draw| draw.seq == granted.seq) else { return };
        self.flight = None;
        self.answered = draw.returned;
        self.held = self.held.saturating_add(granted.units);
        self.left.units = granted.remaining;
        // Granted, or not to be had: whoever still wants it looks at what remains, and asks again.
        self.waiting.forget();
    }

    /// The budget has refused the draw that is on its way, and nothing has changed there: as if it had not been made.
    pub fn refused(&mut self, seq: u64) {
        let Some(draw) = self.flight.filter(|draw| draw.seq == seq) else { return };
        self.flight = None;
        self.waiting.forget();
        self.seq -= 1;
        self.held = self.held.saturating_add(draw.returned - self.answered);
        self.returned = self.answered;
    }

    /// Whether it holds nothing and nothing of it is on its way.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.flight.is_none() && self.held == 0
    }

    /// What can be spent, in the budget's unit.
    #[must_use]
    pub const fn held(&self) -> u64 {
        self.held
    }

    fn ask(&mut self, now: Moment, need: u64) {
        self.used = self.used.max(now);
        self.asked.note(now, need);
    }

    /// What requests wait for, and what it would take beyond.
    fn wants(&self, now: Moment) -> (u64, u64) {
        if self.draining {
            return (0, 0);
        }
        let (all, one) = self.waiting.needs(now);
        // As much as there is, so that it is granted: the needs of all are granted whole or not at all.
        let need = all.saturating_sub(self.held).min(self.left.units).max(one.saturating_sub(self.held));
        let largest = self.asked.largest(now);
        let recent = self.asked.over(now, SLOTS).saturating_mul(AHEAD);
        let target = recent.max(largest.saturating_mul(2)).max(all);
        let low = need > 0 || self.held < (target / 2).max(largest);
        // Of nothing there is no part.
        let some = need > 0 || self.left.units > 0;
        (need, if low && some { target.saturating_sub(self.held) } else { 0 })
    }

    /// Whether little is left of the budget.
    fn is_last(&self, now: Moment) -> bool {
        let few = self.asked.largest(now).saturating_mul(LAST_REQUESTS);
        self.left.units.saturating_add(self.held) < self.left.last().max(few)
    }

    fn surplus(&self, now: Moment) -> u64 {
        let idle = now >= self.used.plus(IDLE);
        if self.draining || idle { self.held } else { 0 }
    }
}
