//! The purse of a budget: what an owner's session holds of a tenant's period, in the budget's unit.
//!
//! It differs from a pool's in what comes back. A settlement gives nothing back here: what a reservation did not need is freed where its
//! usage is reported. Only a reservation that is cancelled before anything was sent, at the session that debited it, is put back, and
//! then nobody may report it as anything but void.

use super::super::draw::{BudgetDraw, BudgetGranted};
use super::super::time::{Moment, Span};
use super::pace::{Pace, SLOTS};
use super::{GAP, PATIENCE, REPORT, ROUND};

/// How long a purse that nobody asks keeps what it holds: short against a period, long against the pauses of a caller that works.
const IDLE: Span = Span::from_secs(10);

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
    /// The largest need that could not be paid, and when it was last asked for.
    lack: Option<(u64, Moment)>,
    used: Moment,
    drawn: Option<Moment>,
    looked: Moment,
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
        if self.lack.is_some_and(|(lack, _)| lack <= need) {
            self.lack = None;
        }
    }

    /// Remembers a need that could not be paid, so that the next draw asks for it. The caller has seen in the agreed state that it is
    /// there: else a draw for each request of a tenant whose budget is used up would go through the log.
    pub fn miss(&mut self, now: Moment, need: u64) {
        self.draining = false;
        self.lack = Some((self.lack(now).max(need), now));
        self.ask(now, need);
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
        self.looked = self.looked.max(now);
        if self.flight.is_some() || self.drawn.is_some_and(|drawn| now < drawn.plus(GAP)) {
            return None;
        }
        let (need, wants) = self.wants(now);
        let surplus = self.surplus(now);
        let due = self.draining || self.drawn.is_none_or(|drawn| now >= drawn.plus(REPORT));
        if need == 0 && wants == 0 && (surplus == 0 || !due) {
            return None;
        }
        self.held -= surplus;
        self.returned = self.returned.saturating_add(surplus);
        self.seq += 1;
        self.drawn = Some(now);
        let draw = BudgetDraw { seq: self.seq, returned: self.returned, need, wants };
        self.flight = Some(draw);
        Some(draw)
    }

    /// The next instant at which [`BudgetPurse::poll`] may have something. None while a draw is on its way, and when a need has to come
    /// first.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Moment> {
        if self.flight.is_some() {
            return None;
        }
        let next = self.drawn.map_or(Moment::default(), |drawn| drawn.plus(GAP));
        if self.lack.is_some() || self.wants(self.looked) != (0, 0) {
            return Some(next);
        }
        (self.held > 0).then(|| next.max(self.looked.plus(ROUND)))
    }

    /// The budget has answered the draw that is on its way. Another answer is a late copy, and changes nothing.
    pub fn granted(&mut self, granted: &BudgetGranted) {
        let Some(draw) = self.flight.filter(|draw| draw.seq == granted.seq) else { return };
        self.flight = None;
        self.answered = draw.returned;
        self.held = self.held.saturating_add(granted.units);
        // Granted, or not to be had: whoever still wants it looks at what remains, and asks again.
        self.lack = None;
    }

    /// The budget has refused the draw that is on its way, and nothing has changed there: as if it had not been made.
    pub fn refused(&mut self, seq: u64) {
        let Some(draw) = self.flight.filter(|draw| draw.seq == seq) else { return };
        self.flight = None;
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

    fn lack(&self, now: Moment) -> u64 {
        self.lack.filter(|(_, asked)| now < asked.plus(PATIENCE)).map_or(0, |(lack, _)| lack)
    }

    /// What requests wait for, and what it would take beyond.
    fn wants(&self, now: Moment) -> (u64, u64) {
        if self.draining {
            return (0, 0);
        }
        let need = self.lack(now).saturating_sub(self.held);
        let largest = self.asked.largest(now);
        let target = self.asked.over(now, SLOTS).max(largest.saturating_mul(2));
        let low = need > 0 || self.held < (target / 2).max(largest);
        (need, if low { target.saturating_sub(self.held) } else { 0 })
    }

    fn surplus(&self, now: Moment) -> u64 {
        let idle = now >= self.used.plus(IDLE);
        if self.draining || idle { self.held } else { 0 }
    }
}
