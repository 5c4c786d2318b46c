//! One budget in one period: what was granted to whom, and what became of it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use tollgate_cluster::id::SessionId;
use tollgate_cluster::mutant;

use super::super::period::Period;
use super::{BudgetRefusal, BudgetTerms, BudgetView, Lane};
use crate::limit::{BudgetDraw, BudgetGranted};

/// Which part of what remains a purse may hold beyond what requests wait for. It shrinks with what remains, down to single requests, so
/// that little is stranded where an owner dies and the last of a budget can be spent; and a hundredth of a budget still lasts for
/// a few seconds of draws.
const PURSE_PART: u64 = 16;

/// Where everything went that was granted in a period, in the budget's unit.
///
/// Laws: `granted = returned + resolved + released + escrow` and `settled + closed = resolved + overage − refunded`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetBooks {
    /// Moved to sessions.
    pub granted: u128,
    /// Given back unspent.
    pub returned: u128,
    /// Taken from escrow by reservations that ended.
    pub resolved: u128,
    /// Given back by an operator.
    pub released: u128,
    /// Charged at what was used.
    pub settled: u128,
    /// Charged at the estimate.
    pub closed: u128,
    /// Charged beyond what was in escrow.
    pub overage: u128,
    /// In escrow and not used.
    pub refunded: u128,
    /// Of what was settled and closed, what a cheaper model has used.
    pub degraded: u128,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Account {
    period: Period,
    escrow: BTreeMap<(SessionId, Lane), Escrow>,
    books: BudgetBooks,
    /// What an operator has added to what is used; negative if taken off.
    adjusted: i64,
    /// Thresholds that somebody was told of, in millionths.
    crossed: BTreeSet<u32>,
    /// The most that used and escrow, without what an operator added, were ever allowed to come to by a grant.
    peak: i128,
}

/// What one session holds in one lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Escrow {
    /// Its last draw and the answer, for a repeat of it.
    last: Option<(BudgetDraw, BudgetGranted)>,
    granted: u64,
    /// Taken by reservations that ended, or released.
    gone: u64,
    /// The session is over.
    fenced: bool,
}

impl Account {
    pub(super) const fn new(period: Period) -> Self {
        let books = BudgetBooks {
            granted: 0,
            returned: 0,
            resolved: 0,
            released: 0,
            settled: 0,
            closed: 0,
            overage: 0,
            refunded: 0,
            degraded: 0,
        };
        Self { period, escrow: BTreeMap::new(), books, adjusted: 0, crossed: BTreeSet::new(), peak: 0 }
    }

    /// Settled, closed and adjusted.
    pub(super) fn used(&self) -> u64 {
        clamped(self.charged() + i128::from(self.adjusted))
    }

    /// What sessions hold.
    pub(super) fn escrow(&self) -> u64 {
        self.escrow.values().map(Escrow::amount).sum()
    }

    pub(super) fn knows(&self, session: SessionId) -> bool {
        self.escrow.range((session, Lane::Regular)..=(session, Lane::Degraded)).next().is_some()
    }

    /// Whether `draw` is the session's last, and was answered.
    pub(super) fn answered(&self, who: (SessionId, Lane), draw: &BudgetDraw) -> bool {
        self.escrow.get(&who).and_then(|escrow| escrow.last).is_some_and(|(last, _)| last == *draw)
    }

    /// Takes back what is returned, then grants what is needed, if `cap` allows, and some of what is wanted.
    pub(super) fn draw(
        &mut self,
        who: (SessionId, Lane),
        draw: &BudgetDraw,
        cap: u64,
    ) -> Result<BudgetGranted, BudgetRefusal> {
        let before = self.escrow.get(&who).copied().unwrap_or_default();
        let last = before.last.map_or(0, |(last, _)| last.seq);
        if let Some((last, answer)) = before.last.filter(|(last, _)| last.seq == draw.seq) {
            return if last == *draw { Ok(answer) } else { Err(BudgetRefusal::Differs) };
        }
        if draw.seq != last + 1 {
            return Err(BudgetRefusal::OutOfTurn { expected: last + 1 });
        }
        let returned = draw.returned.checked_sub(before.returned()).ok_or(BudgetRefusal::Unsound)?;
        if returned > before.amount() {
            return Err(BudgetRefusal::Unsound);
        }

        self.books.returned += u128::from(returned);
        let remaining = clamped(self.beneath(cap) + i128::from(returned));
        let granted =
            if draw.need > remaining { 0 } else { draw.need.max(draw.wants.min(remaining / PURSE_PART)) };
        let answer = BudgetGranted { seq: draw.seq, units: granted, remaining: remaining - granted };
        self.books.granted += u128::from(granted);
        let escrow = Escrow { last: Some((*draw, answer)), granted: before.granted + granted, ..before };
        self.escrow.insert(who, escrow);
        if granted > 0 {
            let allowed = i128::from(cap) - i128::from(self.adjusted);
            self.peak = self.peak.max(allowed);
            // To grant beyond it would be to overspend, whatever led here.
            assert!(self.held() <= allowed, "granted beyond the limit: {self:?}");
        }
        Ok(answer)
    }

    /// What can still be granted below `cap`.
    pub(super) fn left(&self, cap: u64) -> u64 {
        clamped(self.beneath(cap))
    }

    /// What sessions that are over left, by session.
    pub(super) fn written_off(&self) -> Vec<(SessionId, u64)> {
        let mut left: BTreeMap<SessionId, u64> = BTreeMap::new();
        for ((session, _), escrow) in self.escrow.iter().filter(|(_, escrow)| escrow.fenced) {
            *left.entry(*session).or_default() += escrow.amount();
        }
        left.into_iter().collect()
    }

    /// What can still be granted below `cap`; negative once more than that is used and held.
    fn beneath(&self, cap: u64) -> i128 {
        i128::from(cap) - i128::from(self.adjusted) - self.held()
    }

    /// A reservation ended that held `reserved` and used `actual`.
    pub(super) fn settle(&mut self, who: (SessionId, Lane), reserved: u64, actual: u64) {
        let taken = self.take(who, reserved);
        self.books.settled += u128::from(actual);
        self.differ(taken, actual);
        self.charge(who.1, actual);
    }

    /// A reservation ended that held `reserved`, and is charged that.
    pub(super) fn close(&mut self, who: (SessionId, Lane), reserved: u64) {
        let taken = self.take(who, reserved);
        self.books.closed += u128::from(reserved);
        self.differ(taken, reserved);
        self.charge(who.1, reserved);
    }

    /// One that was closed turns out to have used `actual`.
    pub(super) fn correct(&mut self, lane: Lane, charged: u64, actual: u64) {
        // Less is there only in an account that was forgotten and has begun again.
        let charged = charged.min(u64::try_from(self.books.closed).unwrap_or(charged));
        self.books.closed -= u128::from(charged);
        self.books.settled += u128::from(actual);
        self.differ(charged, actual);
        if lane == Lane::Degraded {
            self.books.degraded = self.books.degraded.saturating_sub(u128::from(charged));
        }
        self.charge(lane, actual);
    }

    fn charge(&mut self, lane: Lane, charged: u64) {
        if lane == Lane::Degraded {
            self.books.degraded += u128::from(charged);
        }
    }

    fn take(&mut self, who: (SessionId, Lane), reserved: u64) -> u64 {
        let Some(escrow) = self.escrow.get_mut(&who) else { return 0 };
        // Less is there only if it was released.
        let taken = reserved.min(escrow.amount());
        escrow.gone += taken;
        self.books.resolved += u128::from(taken);
        if escrow.fenced && escrow.amount() == 0 {
            self.escrow.remove(&who);
        }
        taken
    }

    fn differ(&mut self, taken: u64, charged: u64) {
        self.books.overage += u128::from(charged.saturating_sub(taken));
        self.books.refunded += u128::from(taken.saturating_sub(charged));
    }

    pub(super) fn fence(&mut self, session: SessionId) {
        for lane in [Lane::Regular, Lane::Degraded] {
            let Some(escrow) = self.escrow.get_mut(&(session, lane)) else { continue };
            escrow.fenced = true;
            if mutant::is("escrow_reissue") {
                self.books.released += u128::from(escrow.amount());
                escrow.gone += escrow.amount();
            }
            if escrow.amount() == 0 {
                self.escrow.remove(&(session, lane));
            }
        }
    }

    /// Gives back what a session that is over left; whether there was any.
    pub(super) fn release(&mut self, session: SessionId) -> bool {
        let mut released = false;
        for lane in [Lane::Regular, Lane::Degraded] {
            if let Some(escrow) = self.escrow.get(&(session, lane)).filter(|escrow| escrow.fenced) {
                self.books.released += u128::from(escrow.amount());
                self.escrow.remove(&(session, lane));
                released = true;
            }
        }
        released
    }

    pub(super) fn set_used(&mut self, used: u64) {
        // Both are bounded far below the largest number.
        self.adjusted = i64::try_from(i128::from(used) - self.charged()).unwrap_or(0);
    }

    /// The thresholds that are crossed and nobody was told of.
    pub(super) fn crosses(&self, limit: u64, thresholds: &[u32]) -> Vec<u32> {
        let reached = |threshold: &u32| {
            u128::from(self.used()) * 1_000_000 >= u128::from(limit) * u128::from(*threshold)
        };
        let untold = thresholds.iter().filter(|threshold| !self.crossed.contains(threshold));
        untold.copied().filter(|threshold| reached(threshold)).collect()
    }

    pub(super) fn told(&mut self, crossed: &[u32]) {
        self.crossed.extend(crossed);
    }

    pub(super) fn view(&self, terms: Option<BudgetTerms>) -> BudgetView {
        let cap = |lane| terms.as_ref().map_or(0, |terms| terms.cap(lane));
        BudgetView {
            period: self.period,
            used: self.used(),
            escrow: self.escrow(),
            written_off: self.escrow.values().filter(|escrow| escrow.fenced).map(Escrow::amount).sum(),
            remaining: clamped(self.beneath(cap(Lane::Regular))),
            remaining_degraded: clamped(self.beneath(cap(Lane::Degraded))),
            books: self.books,
            terms,
        }
    }

    fn charged(&self) -> i128 {
        signed(self.books.settled) + signed(self.books.closed)
    }

    fn held(&self) -> i128 {
        self.charged() + i128::from(self.escrow())
    }

    /// Asserts what must hold between two commands, in every build: to go on with wrong books is to overspend.
    pub(super) fn assert_invariants(&self) {
        let BudgetBooks {
            granted,
            returned,
            resolved,
            released,
            settled,
            closed,
            overage,
            refunded,
            degraded,
        } = self.books;
        let escrow = u128::from(self.escrow());
        assert!(granted == returned + resolved + released + escrow, "grants do not balance: {self:?}");
        assert!(settled + closed + refunded == resolved + overage, "charges do not balance: {self:?}");
        assert!(degraded <= settled + closed, "more was degraded than charged: {self:?}");
        assert!(self.held() <= self.peak + signed(overage), "more than was allowed: {self:?}");
    }
}

impl Escrow {
    fn returned(&self) -> u64 {
        self.last.map_or(0, |(last, _)| last.returned)
    }

    fn amount(&self) -> u64 {
        self.granted - self.returned() - self.gone
    }
}

fn signed(units: u128) -> i128 {
    i128::try_from(units).unwrap_or(i128::MAX)
}

fn clamped(units: i128) -> u64 {
    u64::try_from(units.max(0)).unwrap_or(u64::MAX)
}
