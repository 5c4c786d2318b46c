//! A purse: what a session of an owner holds of a pool, spends without asking anybody, and has agreed state fill up again.
//!
//! All shards of a node draw from one purse per pool, so it stands beside their limiters, not in one.
//!
//! Laws:
//! - nothing is spent that is not held; only a response that used more than was held for it makes a debt, which the next grants repay;
//! - all or nothing: a need that cannot be paid in one dimension takes nothing in any;
//! - what was spent never comes back to the purse: what a reservation did not need is reported, and the pool decides ([`Purse::refund`]);
//! - one draw is on its way at a time, and what it gives back is no longer here; until it is answered it is sent again as it is;
//! - a purse asks for four seconds of recent use and for more when half of that is gone, so that hardly anybody waits for a grant though draws
//!   are a second apart; of a scarce pool it asks for a quarter of a second's, so that little is stranded and many can share;
//! - idle, it gives back all but a small part of the burst, which it asks for before anybody comes: so the first request finds a purse. Where the
//!   pool runs out that is given back too ([`Purse::lend`]);
//! - what it holds and cannot use it gives up: two purses that each hold half of what a large request needs would otherwise wait for each
//!   other for ever.
//!
//! The caller's duty: it spends only under a valid lease of the session that the purse belongs to, checked before and after, and forgets the
//! purse with the session. What was debited when the second check failed stays spent.

mod budget;
mod pace;
#[cfg(test)]
mod tests;
mod waiting;

use serde::{Deserialize, Serialize};

use super::amount::Dimension;
use super::draw::{Draw, Granted, Terms};
use super::time::{MINUTE_NANOS, Moment, Span};
use super::units::Units;
pub use budget::{BudgetPurse, Left};
use pace::{HALF_A_SECOND, Pace, SLOTS};

/// How long a scarce pool is divided for: who got less than it wanted asks again after this.
pub const ROUND: Span = Span::from_millis(250);

/// How soon after a draw the next may be made, while there is enough. Requests that come meanwhile share it.
pub(super) const GAP: Span = Span::from_millis(25);

/// How often at least a purse says what it has spent, if it asks for nothing.
pub(super) const REPORT: Span = Span::from_secs(1);

/// How long a request that could not be paid is remembered: whoever still wants it has asked again by then.
pub(super) const PATIENCE: Span = Span::from_secs(2);

/// How long a purse waits for a need that it cannot pay before it gives up what it has gathered.
const STUCK: Span = Span::from_secs(1);

/// How many times the use of two seconds a purse aims at.
pub(super) const AHEAD: u64 = 2;

/// The part of a pool's burst that a purse has in any case, and the part of it that it asks for ahead of what is used in half a second:
/// many purses together leave most of it to those that need it.
const FLOAT_PART: u64 = 32;
const AHEAD_PART: u64 = 4;

/// What a purse has no use for goes back from twice of what it aims at.
const SURPLUS: u64 = 2;

/// Why a pool does not pay a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Lack {
    /// The purse does not hold enough now.
    Later {
        /// What is lacking.
        dimension: Dimension,
        /// What the request needs, in units of the dimension.
        need: u64,
        /// What the purse holds; negative is debt.
        held: i64,
        /// When it can be there at the earliest.
        wait: Span,
    },
    /// It is more than the pool hands out at once.
    Never {
        /// What there can never be enough of.
        dimension: Dimension,
        /// What the request needs, in units of the dimension.
        need: u64,
        /// The most that can be claimed at once.
        capacity: u64,
    },
    /// The provider takes nothing until then.
    Paused {
        /// How long that is.
        wait: Span,
    },
}

/// How soon a draw should go, so that the log grows slowly: what has less goes along with what has more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Haste {
    /// Nobody will wait for it if it goes within a second.
    Calm,
    /// Little is left, and is divided round by round.
    Round,
    /// Somebody waits, or soon would.
    Waits,
    /// Somebody waits for the last of a budget.
    Last,
}

/// One session's purse of one pool.
#[derive(Clone, Debug)]
pub struct Purse {
    terms: Terms,
    weight: u32,
    held: [i64; 4],
    spent: Units,
    returned: Units,
    refunded: Units,
    seq: u64,
    flight: Option<Draw>,
    /// What requests asked of it, paid or not.
    asked: [Pace; 4],
    /// The largest need that could not be paid, and when it was last asked for.
    lack: Option<(Units, Moment)>,
    /// Since when nothing could be paid.
    stuck: Option<Moment>,
    /// The last grant was less than it wanted.
    scarce: bool,
    /// What the pool said was free.
    free: Units,
    /// The last draw told all that was spent and refunded.
    reported: bool,
    drawn: Option<Moment>,
    paused: Moment,
    /// Until when others need what it would keep for nobody.
    lent: Moment,
    draining: bool,
    /// What was returned by draws that are answered.
    answered: Units,
}

impl Purse {
    /// The empty purse of a session that has just begun.
    #[must_use]
    pub fn new(terms: Terms) -> Self {
        Self {
            terms,
            weight: 1,
            held: [0; 4],
            spent: Units::NONE,
            returned: Units::NONE,
            refunded: Units::NONE,
            seq: 0,
            flight: None,
            asked: [Pace::default(); 4],
            lack: None,
            stuck: None,
            scarce: false,
            free: Units::NONE,
            reported: true,
            drawn: None,
            paused: Moment::default(),
            lent: Moment::default(),
            draining: false,
            answered: Units::NONE,
        }
    }

    /// Whether `need` can be paid now.
    ///
    /// # Errors
    /// Why not, with the longest wait of all dimensions that lack something. [`Purse::miss`] has the purse take care of it.
    pub fn check(&self, now: Moment, need: Units) -> Result<(), Lack> {
        let never = self.terms.limited().find(|(dimension, rate)| need.of(*dimension) > rate.burst);
        if let Some((dimension, rate)) = never {
            return Err(Lack::Never { dimension, need: need.of(dimension), capacity: rate.burst });
        }
        if now < self.paused {
            return Err(Lack::Paused { wait: self.paused.since(now) });
        }
        let lacking = self.terms.limited().filter(|(dimension, _)| self.missing(*dimension, need) > 0);
        let longest = lacking
            .map(|(dimension, rate)| (self.wait(dimension, rate.per_minute, need), dimension))
            .max_by_key(|(wait, _)| *wait);
        let Some((wait, dimension)) = longest else { return Ok(()) };
        Err(Lack::Later { dimension, need: need.of(dimension), held: self.held[dimension.index()], wait })
    }

    /// Takes `need` out. The caller has checked.
    pub fn debit(&mut self, now: Moment, need: Units) {
        self.charge(need);
        self.ask(now, need);
        self.stuck = None;
        if self.lack.is_some_and(|(lack, _)| need.covers(lack)) {
            self.lack = None;
        }
    }

    /// Remembers a need that could not be paid, so that the next draw asks for it.
    pub fn miss(&mut self, now: Moment, need: Units) {
        let most = self.lack(now).most(need);
        self.lack = Some((most, now));
        self.stuck.get_or_insert(now);
        self.ask(now, need);
    }

    /// Charges what a response used beyond what was held for it, into debt if need be.
    pub fn charge(&mut self, units: Units) {
        for (dimension, _) in self.terms.limited() {
            let index = dimension.index();
            self.held[index] = self.held[index].saturating_sub_unsigned(units.0[index]);
            self.spent.0[index] = self.spent.0[index].saturating_add(units.0[index]);
        }
        self.reported = false;
    }

    /// Reports what a reservation did not need, or all that it held if nothing was sent. It does not come back to this purse.
    pub fn refund(&mut self, units: Units) {
        for (dimension, _) in self.terms.limited() {
            let index = dimension.index();
            let most = self.spent.0[index];
            self.refunded.0[index] = self.refunded.0[index].saturating_add(units.0[index]).min(most);
        }
        self.reported = false;
    }

    /// Nothing is paid until `until`: the provider refuses. An earlier instant changes nothing.
    pub fn pause(&mut self, until: Moment) {
        self.paused = self.paused.max(until);
    }

    /// The pool runs out: until `until` nothing is kept that nobody has asked for. An earlier instant changes nothing.
    pub fn lend(&mut self, until: Moment) {
        self.lent = self.lent.max(until);
    }

    /// The share of this session when not all wants can be met: the weights of its active tenants, added up.
    pub fn weigh(&mut self, weight: u32) {
        self.weight = weight;
    }

    /// Follows an edit of the pool. What it has no use for any more is given back with the next draw.
    pub const fn follow(&mut self, terms: Terms) {
        self.terms = terms;
    }

    /// From now on it asks for nothing and gives back what it holds: its session hands over and stops.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    /// The draw that is on its way, to be sent again as it is until it is answered.
    #[must_use]
    pub const fn flight(&self) -> Option<&Draw> {
        self.flight.as_ref()
    }

    /// Makes the next draw, if there is something to ask or to tell and none is on its way.
    pub fn poll(&mut self, now: Moment) -> Option<Draw> {
        if self.flight.is_some() || self.drawn.is_some_and(|drawn| now < drawn.plus(self.gap())) {
            return None;
        }
        let give_up = self.draining || self.is_stuck(now);
        let due = self.drawn.is_none_or(|drawn| now >= drawn.plus(REPORT));
        let wants = match give_up {
            true => Units::NONE,
            // Whoever reports is filled up by the way.
            false if due && !self.reported => self.lacking(now),
            false => self.wants(now),
        };
        let surplus = self.surplus(now, give_up);
        let asks = wants != Units::NONE;
        let tells = surplus != Units::NONE || !self.reported;
        if !asks && !(tells && (due || give_up)) {
            return None;
        }
        if give_up {
            self.stuck = None;
        }
        for dimension in Dimension::ALL {
            let index = dimension.index();
            self.held[index] = self.held[index].saturating_sub_unsigned(surplus.0[index]);
        }
        self.returned = self.returned.plus(surplus);
        self.seq += 1;
        self.drawn = Some(now);
        self.reported = true;
        let draw = Draw {
            seq: self.seq,
            spent: self.spent,
            returned: self.returned,
            refunded: self.refunded,
            wants,
            weight: self.weight,
        };
        self.flight = Some(draw);
        Some(draw)
    }

    /// From when on [`Purse::poll`] has something, as things stand at `now`, and how much haste that has. None while a draw is on its way.
    #[must_use]
    pub fn due(&self, now: Moment) -> Option<(Moment, Haste)> {
        if self.flight.is_some() {
            return None;
        }
        let after = |pause| self.drawn.map_or(Moment::default(), |drawn| drawn.plus(pause));
        if self.draining {
            return (!self.is_empty()).then(|| (after(self.gap()), Haste::Waits));
        }
        if self.wants(now) != Units::NONE || self.is_stuck(now) {
            let haste = match self.is_scarce(now) {
                true => Haste::Round,
                false if self.lack(now) != Units::NONE || self.is_urgent(now) => Haste::Waits,
                false => Haste::Calm,
            };
            return Some((after(self.gap()), haste));
        }
        let tells = !self.reported || self.surplus(now, false) != Units::NONE;
        tells.then(|| (after(REPORT), Haste::Calm))
    }

    /// The pool has answered the draw that is on its way. Another answer is a late copy, and changes nothing.
    pub fn granted(&mut self, granted: &Granted) {
        let Some(draw) = self.flight.filter(|draw| draw.seq == granted.seq) else { return };
        self.flight = None;
        self.answered = draw.returned;
        self.free = granted.free;
        self.scarce = !granted.units.covers(draw.wants);
        for (dimension, _) in self.terms.limited() {
            let index = dimension.index();
            self.held[index] = self.held[index].saturating_add_unsigned(granted.units.0[index]);
        }
        if self.lack.is_some_and(|(lack, _)| self.covers(lack)) {
            self.lack = None;
        }
    }

    /// The pool has refused the draw that is on its way, and nothing has changed there: as if it had not been made.
    pub fn refused(&mut self, seq: u64) {
        let Some(draw) = self.flight.filter(|draw| draw.seq == seq) else { return };
        self.flight = None;
        self.seq -= 1;
        self.reported = false;
        let before = self.answered;
        for dimension in Dimension::ALL {
            let index = dimension.index();
            self.held[index] =
                self.held[index].saturating_add_unsigned(draw.returned.0[index] - before.0[index]);
        }
        self.returned = before;
    }

    /// Whether the pool has lately given less than was wanted: to wait for the next grant may take long. What it said long ago counts for
    /// nothing.
    #[must_use]
    pub fn is_scarce(&self, now: Moment) -> bool {
        self.scarce && self.drawn.is_some_and(|drawn| now < drawn.plus(REPORT))
    }

    /// Whether it holds nothing and has told all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.flight.is_none() && self.reported && self.held.iter().all(|held| *held <= 0)
    }

    /// What can be spent, in units of each dimension; negative is debt.
    #[must_use]
    pub const fn held(&self) -> [i64; 4] {
        self.held
    }

    const fn gap(&self) -> Span {
        if self.scarce { ROUND } else { GAP }
    }

    fn ask(&mut self, now: Moment, need: Units) {
        for (dimension, _) in self.terms.limited() {
            self.asked[dimension.index()].note(now, need.of(dimension));
        }
    }

    fn lack(&self, now: Moment) -> Units {
        self.lack.filter(|(_, asked)| now < asked.plus(PATIENCE)).map_or(Units::NONE, |(lack, _)| lack)
    }

    fn covers(&self, need: Units) -> bool {
        self.terms.limited().all(|(dimension, _)| self.missing(dimension, need) == 0)
    }

    fn missing(&self, dimension: Dimension, need: Units) -> u64 {
        let (need, held) = (need.of(dimension), self.held[dimension.index()]);
        // Nothing fits in debt, and a need of nothing always fits.
        if need == 0 || held >= signed(need) { 0 } else { signed(need).abs_diff(held) }
    }

    /// What is missing and not free accrues at the guard rate, if nobody else asks.
    fn wait(&self, dimension: Dimension, per_minute: u64, need: Units) -> Span {
        let missing = self.missing(dimension, need).saturating_sub(self.free.of(dimension));
        let nanos = u128::from(missing) * u128::from(MINUTE_NANOS);
        let accrues = u64::try_from(nanos.div_ceil(u128::from(per_minute.max(1)))).unwrap_or(u64::MAX);
        Span::from_nanos(accrues).max(self.gap())
    }

    /// What it aims at: four seconds of recent use, of a scarce pool what a round may take; in any case what somebody waits for, and twice the
    /// largest of late requests; and of a pool that is not scarce, a little for whoever comes.
    fn target(&self, dimension: Dimension, now: Moment) -> u64 {
        let asked = &self.asked[dimension.index()];
        let burst = self.terms.limits[dimension.index()].map_or(0, |rate| rate.burst);
        // Two rounds, since the one that runs has only begun: one for its own sake, and one for what is asked until the answer comes.
        let least = asked.over(now, 2);
        let scarce = self.is_scarce(now);
        let recent = if scarce {
            least
        } else {
            // What purses hold and do not use keeps a pool from refilling.
            asked.over(now, SLOTS).saturating_mul(AHEAD).min(burst / AHEAD_PART).max(least)
        };
        let float = if scarce || now < self.lent { 0 } else { burst / FLOAT_PART };
        recent.max(asked.largest(now).saturating_mul(2)).max(self.lack(now).of(dimension)).max(float)
    }

    /// Whether it holds less than is used in half a second, or has never held anything.
    fn is_urgent(&self, now: Moment) -> bool {
        let short = |dimension: Dimension| {
            let index = dimension.index();
            self.held[index] < signed(self.asked[index].over(now, HALF_A_SECOND))
        };
        self.drawn.is_none() || self.terms.limited().any(|(dimension, _)| short(dimension))
    }

    fn is_low(&self, dimension: Dimension, now: Moment) -> bool {
        let low_water = (self.target(dimension, now) / 2).max(self.asked[dimension.index()].largest(now));
        let held = self.held[dimension.index()];
        held < 0 || held < signed(low_water) || self.missing(dimension, self.lack(now)) > 0
    }

    fn wants(&self, now: Moment) -> Units {
        let low = self.terms.limited().any(|(dimension, _)| self.is_low(dimension, now));
        if self.draining || !low { Units::NONE } else { self.lacking(now) }
    }

    /// What it takes to reach what it aims at.
    fn lacking(&self, now: Moment) -> Units {
        Units::by(|dimension| {
            let Some(rate) = self.terms.limits[dimension.index()] else { return 0 };
            let target = i128::from(self.target(dimension, now).min(rate.burst));
            let lacks = target - i128::from(self.held[dimension.index()]);
            u64::try_from(lacks.clamp(0, i128::from(rate.burst))).unwrap_or(0)
        })
    }

    fn surplus(&self, now: Moment, give_up: bool) -> Units {
        Units::by(|dimension| {
            let held = u64::try_from(self.held[dimension.index()]).unwrap_or(0);
            let Some(rate) = self.terms.limits[dimension.index()] else { return held };
            let target = self.target(dimension, now).min(rate.burst);
            let keeps = if give_up { 0 } else { target };
            // All of it, or what is far too much.
            if give_up || held > target.saturating_mul(SURPLUS) { held.saturating_sub(keeps) } else { 0 }
        })
    }

    fn is_stuck(&self, now: Moment) -> bool {
        let waits = self.stuck.is_some_and(|since| now >= since.plus(STUCK));
        waits && self.scarce && self.lack(now) != Units::NONE && self.held.iter().any(|held| *held > 0)
    }
}

fn signed(units: u64) -> i64 {
    i64::try_from(units).unwrap_or(i64::MAX)
}
