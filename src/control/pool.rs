//! Pools: what a provider's account can serve, as agreed state from which the owners draw.
//!
//! Of each dimension that is limited a pool has a **level**, which refills at the guard rate and is debited when it is *granted*. What
//! sessions hold is **outstanding** until they report it spent or give it back.
//!
//! Laws (properties in `pool/tests.rs`):
//! - the books balance after every command: `level + outstanding + spent + written off + lapsed = issued`;
//! - `guard_holds`: level and what sessions hold never exceed the burst by anything that this module credits, so over every interval `[s, t]`
//!   at most `burst + guard·(t − s)` is spent, plus refunds made in it. To that end a draw refills *before* it believes the report that it
//!   brings: what was outstanding meanwhile may have been spent at any instant of it, and late news only makes the pool err low;
//! - a draw counts once: its number is the session's next one, a repeat gets the stored answer, anything else changes nothing;
//! - a refund raises the level by what still fits below the burst, and by nothing where the pool gives none; it never enters a purse;
//! - the end of a session writes off what it held: nobody knows how much of it was spent, so the level does not rise. A debt that it
//!   reported stays, with the level;
//! - a pool that shrank refills nothing until what is outstanding fits; one that grew fills up by time; one that the policy drops and
//!   names again begins empty;
//! - what is scarce is divided by weighted max-min: see `divide`.
//!
//! Time is log time: it never goes back, and runs no faster than true time. Never here: clocks, randomness, floats, hash maps.

mod divide;
mod level;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod together;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tollgate_cluster::authority::Standing;
use tollgate_cluster::id::SessionId;
use tollgate_cluster::log_time::LogTime;
use tollgate_cluster::mutant;

use self::divide::Share;
use self::level::Level;
pub use self::level::PoolBooks;
use crate::limit::{Dimension, Draw, Granted, Name, Terms, Units};

/// How long a provider's word may close a pool: an hour, in nanoseconds. What a provider calls a rate comes back within minutes; a
/// longer pause is a quota or a fault, and asking once an hour finds out which.
pub const BRAKE_MOST: u64 = 3_600 * 1_000_000_000;

/// How many pools that the policy has dropped are remembered. They only keep one from beginning full again.
pub const RETIRED_MAX: usize = 1_024;

/// All pools, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pools {
    pools: BTreeMap<Name, Pool>,
    /// A pool that the policy had dropped was forgotten: one that nobody knows may be that one.
    forgot: bool,
}

/// One pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Pool {
    /// What holds; nothing while the policy does not name it.
    terms: Terms,
    levels: [Level; 4],
    accounts: BTreeMap<SessionId, Account>,
    brake: Option<Brake>,
    /// As of when it is refilled.
    at: LogTime,
    /// Draws so far: tells who was served least recently.
    draws: u64,
}

/// What a session has had of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Account {
    /// Its last draw and the answer, for a repeat of it.
    last: Draw,
    answer: Granted,
    granted: Units,
    /// What it wanted and has not got.
    hunger: Units,
    /// Of the level, what the next draw of it will collect.
    due: Units,
    /// Which of the pool's draws last gave it something.
    served: Units,
}

/// A provider's word that it will take no more than so much for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Brake {
    /// In log time.
    pub until: LogTime,
    /// What may still be granted until then, in units of each dimension.
    pub allowance: Units,
}

/// What a node has heard from a provider: a refusal, or what its headers say is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Feedback {
    /// What the provider still takes, in units of each dimension; none where it does not say. A refusal takes nothing.
    pub remaining: [Option<u64>; 4],
    /// For how long from now, in nanoseconds; at most [`BRAKE_MOST`] counts.
    pub pause: u64,
}

/// A command to the pools.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PoolCommand {
    /// A session reports and asks.
    Draw {
        /// Of which pool.
        pool: Name,
        /// Who.
        session: SessionId,
        /// What.
        draw: Draw,
    },
    /// A provider has said how much it will take.
    Feedback {
        /// Whose account.
        pool: Name,
        /// What it said.
        feedback: Feedback,
    },
}

/// Why a command changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum PoolRefusal {
    /// No pool has that name.
    #[error("no such pool: the policy may have dropped it")]
    NoSuchPool,
    /// The session is over, or was never registered.
    #[error("this session is over: what it held is written off")]
    SessionOver,
    /// The draw is not the session's next one.
    #[error("not the next draw: {expected} is")]
    OutOfTurn {
        /// The number that is.
        expected: u64,
    },
    /// A draw of that number was answered, and it was another.
    #[error("another draw of that number was answered: the session's counters are not to be trusted")]
    Differs,
    /// The counters go back, or give back what was not granted.
    #[error("its counters cannot be: they go back, or return more than was granted")]
    Unsound,
}

/// One dimension of a pool, to look at. In units of the dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LevelView {
    /// Which.
    pub dimension: Dimension,
    /// Handed out per minute.
    pub per_minute: u64,
    /// The most that can be claimed at once.
    pub burst: u64,
    /// What can be granted, as of the last entry; negative is debt.
    pub level: i64,
    /// What sessions hold.
    pub outstanding: u64,
    /// The books since it was first limited.
    pub books: PoolBooks,
}

/// A pool, to look at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolView {
    /// What holds.
    pub terms: Terms,
    /// Its limited dimensions.
    pub levels: Vec<LevelView>,
    /// Sessions that have drawn and are not over.
    pub sessions: usize,
    /// What a provider has said, while that holds.
    pub brake: Option<Brake>,
    /// As of when, in log time.
    pub at: LogTime,
}

impl Pools {
    /// Applies one command at `now`. `standing` says of a session whether it lives.
    ///
    /// # Errors
    /// Why it changed nothing. As much a part of the log's meaning as an answer. A [`Feedback`] is answered with an empty grant.
    pub fn apply(
        &mut self,
        now: LogTime,
        standing: impl Fn(SessionId) -> Option<Standing>,
        command: &PoolCommand,
    ) -> Result<Granted, PoolRefusal> {
        match command {
            PoolCommand::Draw { pool, session, draw } => {
                let pool = self.pools.get_mut(pool).ok_or(PoolRefusal::NoSuchPool)?;
                pool.draw(now, *session, standing(*session), draw)
            }
            PoolCommand::Feedback { pool, feedback } => {
                self.pools.get_mut(pool).ok_or(PoolRefusal::NoSuchPool)?.hear(now, feedback);
                Ok(Granted::default())
            }
        }
    }

    /// Puts the pools of a new policy in force. What is used stays used.
    pub fn adopt(&mut self, now: LogTime, terms: &BTreeMap<Name, Terms>) {
        for (name, pool) in &mut self.pools {
            pool.follow(now, terms.get(name).copied().unwrap_or_default());
        }
        for (name, terms) in terms {
            let full = !self.forgot;
            self.pools.entry(name.clone()).or_insert_with(|| Pool::new(now, *terms, full));
        }
        let retired = self.pools.iter().filter(|(_, pool)| pool.is_retired()).map(|(name, _)| name.clone());
        let retired: Vec<Name> = retired.collect();
        for name in retired.iter().take(retired.len().saturating_sub(RETIRED_MAX)) {
            self.pools.remove(name);
            self.forgot = true;
        }
    }

    /// A session is over: writes off what it held of every pool.
    pub fn fence(&mut self, now: LogTime, session: SessionId) {
        for pool in self.pools.values_mut() {
            pool.fence(now, session);
        }
    }

    /// The pools that the policy names.
    pub fn names(&self) -> impl Iterator<Item = &Name> {
        self.pools.iter().filter(|(_, pool)| pool.terms.is_limited()).map(|(name, _)| name)
    }

    /// One pool, to look at, as of the last entry that touched it.
    #[must_use]
    pub fn view(&self, name: &str) -> Option<PoolView> {
        self.pools.get(name).map(Pool::view)
    }
}

impl Pool {
    fn new(now: LogTime, terms: Terms, full: bool) -> Self {
        let mut pool = Self {
            terms: Terms::default(),
            levels: [Level::default(); 4],
            accounts: BTreeMap::new(),
            brake: None,
            at: now,
            draws: 0,
        };
        if !full {
            pool.levels.iter_mut().for_each(Level::begin_empty);
        }
        pool.follow(now, terms);
        pool
    }

    fn is_retired(&self) -> bool {
        !self.terms.is_limited() && self.accounts.is_empty()
    }

    fn draw(
        &mut self,
        now: LogTime,
        session: SessionId,
        standing: Option<Standing>,
        draw: &Draw,
    ) -> Result<Granted, PoolRefusal> {
        let serving = match standing {
            Some(Standing::Serving) => true,
            // It may still spend what it has, so it may still say so, and give back. More would be written off soon.
            Some(Standing::Condemned) => false,
            Some(Standing::Fenced) | None => return Err(PoolRefusal::SessionOver),
        };
        let before = self.accounts.get(&session).cloned().unwrap_or_default();
        if draw.seq == before.last.seq && draw.seq > 0 {
            return if *draw == before.last { Ok(before.answer) } else { Err(PoolRefusal::Differs) };
        }
        let expected = before.last.seq + 1;
        if draw.seq != expected {
            return Err(PoolRefusal::OutOfTurn { expected });
        }
        let limited = |dimension: Dimension| self.terms.limits[dimension.index()].is_some();
        if !before.may_report(draw, limited) {
            return Err(PoolRefusal::Unsound);
        }

        let late = mutant::is("refill_after_report");
        if !late {
            self.refill(now);
        }
        self.report(session, draw);
        if late {
            self.refill(now);
        }
        let wants = if serving { draw.wants } else { Units::NONE };
        let answer = self.collect(session, draw.seq, wants);
        self.assert_invariants();
        Ok(answer)
    }

    /// Believes what a draw reports.
    fn report(&mut self, session: SessionId, draw: &Draw) {
        let account = self.accounts.entry(session).or_default();
        let before = std::mem::replace(&mut account.last, *draw);
        let mut refunds = Units::NONE;
        for dimension in Dimension::ALL {
            let since =
                |counter: fn(&Draw) -> Units| counter(draw).of(dimension) - counter(&before).of(dimension);
            let (spent, returned) = (since(|draw| draw.spent), since(|draw| draw.returned));
            let level = &mut self.levels[dimension.index()];
            if self.terms.limits[dimension.index()].is_none() {
                // Nobody grants what nobody limits. A session that does not know yet, or any more, owes nothing for it.
                let counted = draw.spent.of(dimension).saturating_add(draw.returned.of(dimension));
                let unasked = counted.saturating_sub(account.granted.of(dimension));
                account.granted.0[dimension.index()] += unasked;
                level.issue(unasked);
                level.spend(spent);
                level.lapse_returned(returned);
                continue;
            }
            level.spend(spent);
            level.take_back(returned);
            refunds.0[dimension.index()] = since(|draw| draw.refunded);
        }
        if self.terms.refunds {
            self.refund(refunds);
        }
    }

    fn refund(&mut self, refunds: Units) {
        for (dimension, rate) in self.terms.limited() {
            let room = self.room(dimension, rate.burst);
            let credit = refunds.of(dimension).min(if mutant::is("refund_all") { u64::MAX } else { room });
            self.levels[dimension.index()].credit(credit);
        }
    }

    /// Divides what is free among all who want some, `session` with its new wants among them, and gives it its part.
    fn collect(&mut self, session: SessionId, seq: u64, wants: Units) -> Granted {
        self.draws += 1;
        let mut units = Units::NONE;
        let mut free = Units::NONE;
        for (dimension, rate) in self.terms.limited() {
            let index = dimension.index();
            if let Some(account) = self.accounts.get_mut(&session) {
                account.hunger.0[index] = wants.of(dimension).min(rate.burst);
                account.due.0[index] = account.due.0[index].min(account.hunger.0[index]);
            }
            free.0[index] = self.divide(dimension);
            let allowance = self.brake.map_or(u64::MAX, |brake| brake.allowance.of(dimension));
            let Some(account) = self.accounts.get_mut(&session) else { continue };
            let grant = account.due.0[index].min(allowance);
            units.0[index] = grant;
            account.due.0[index] -= grant;
            account.hunger.0[index] -= grant;
            account.granted.0[index] += grant;
            if grant > 0 {
                account.served.0[index] = self.draws;
            }
            self.levels[index].grant(grant);
            if let Some(brake) = &mut self.brake {
                brake.allowance.0[index] -= grant;
            }
        }
        let answer = Granted { seq, units, free };
        if let Some(account) = self.accounts.get_mut(&session) {
            account.answer = answer;
        }
        answer
    }

    /// Sets aside for each hungry session its part of what is free; what remains of it.
    fn divide(&mut self, dimension: Dimension) -> u64 {
        let index = dimension.index();
        let level = u64::try_from(self.levels[index].level()).unwrap_or(0);
        let due: u64 = self.accounts.values().map(|account| account.due.0[index]).sum();
        if due > level {
            // The level was cut below what had been set aside: divided anew.
            self.accounts.values_mut().for_each(|account| account.due.0[index] = 0);
        }
        let free = if due > level { level } else { level - due };
        let mut hungry: Vec<&mut Account> = self
            .accounts
            .values_mut()
            .filter(|account| account.hunger.0[index] > account.due.0[index])
            .collect();
        // Who has the larger weight first, then who was served least recently: that is the order in which single units go.
        hungry.sort_by_key(|account| (std::cmp::Reverse(account.last.weight), account.served.0[index]));
        let mut shares: Vec<Share> = hungry
            .iter()
            .map(|account| Share::new(account.last.weight, account.hunger.0[index] - account.due.0[index]))
            .collect();
        let left = divide::divide(free, &mut shares);
        for (account, share) in hungry.iter_mut().zip(shares) {
            account.due.0[index] += share.part();
        }
        left
    }

    fn hear(&mut self, now: LogTime, feedback: &Feedback) {
        self.refill(now);
        let until = LogTime(self.at.0.saturating_add(feedback.pause.min(BRAKE_MOST)));
        let before = self.brake;
        let allowance = Units::by(|dimension| {
            // What sessions hold may all be on its way to the provider, after what it has counted.
            let heard = feedback.remaining[dimension.index()]
                .map_or(u64::MAX, |remaining| remaining.saturating_sub(self.outstanding(dimension)));
            before.map_or(heard, |brake| brake.allowance.of(dimension).min(heard))
        });
        self.brake = Some(Brake { until: before.map_or(until, |brake| brake.until.max(until)), allowance });
        self.assert_invariants();
    }

    fn follow(&mut self, now: LogTime, terms: Terms) {
        self.refill(now);
        self.terms = terms;
        for dimension in Dimension::ALL {
            let index = dimension.index();
            match terms.limits[index] {
                Some(rate) => {
                    self.levels[index].begin(rate.burst);
                    let outstanding = self.outstanding(dimension);
                    self.levels[index].cut_to(rate.burst.saturating_sub(outstanding));
                }
                None => self.levels[index].cut_to(0),
            }
        }
        self.assert_invariants();
    }

    fn fence(&mut self, now: LogTime, session: SessionId) {
        if !self.accounts.contains_key(&session) {
            return;
        }
        self.refill(now);
        let Some(account) = self.accounts.remove(&session) else { return };
        for dimension in Dimension::ALL {
            let held = account.outstanding(dimension);
            let level = &mut self.levels[dimension.index()];
            if mutant::is("escrow_reissue") {
                level.take_back(u64::try_from(held).unwrap_or(0));
            } else {
                level.write_off(held);
            }
        }
        self.assert_invariants();
    }

    /// Credits what has accrued since the last time, as far as level and outstanding leave room.
    fn refill(&mut self, now: LogTime) {
        let elapsed = now.0.saturating_sub(self.at.0);
        self.at = self.at.max(now);
        self.brake = self.brake.filter(|brake| brake.until > self.at);
        for (dimension, rate) in self.terms.limited() {
            let room = self.room(dimension, rate.burst);
            self.levels[dimension.index()].refill(rate.per_minute, elapsed, room);
        }
    }

    /// What may be credited before level and outstanding reach the burst.
    fn room(&self, dimension: Dimension, burst: u64) -> u64 {
        let held =
            i128::from(self.levels[dimension.index()].level()) + i128::from(self.outstanding(dimension));
        u64::try_from(i128::from(burst) - held).unwrap_or(0)
    }

    /// What sessions hold. One in debt holds nothing: its debt leaves no more room for the others.
    fn outstanding(&self, dimension: Dimension) -> u64 {
        self.accounts.values().map(|account| u64::try_from(account.outstanding(dimension)).unwrap_or(0)).sum()
    }

    fn view(&self) -> PoolView {
        let levels = self.terms.limited().map(|(dimension, rate)| {
            let level = &self.levels[dimension.index()];
            LevelView {
                dimension,
                per_minute: rate.per_minute,
                burst: rate.burst,
                level: level.level(),
                outstanding: self.outstanding(dimension),
                books: level.books(),
            }
        });
        PoolView {
            terms: self.terms,
            levels: levels.collect(),
            sessions: self.accounts.len(),
            brake: self.brake,
            at: self.at,
        }
    }

    /// Asserts what must hold between two commands, in every build: to go on with wrong books is to overspend.
    fn assert_invariants(&self) {
        for dimension in Dimension::ALL {
            let level = &self.levels[dimension.index()];
            let held: i128 =
                self.accounts.values().map(|account| i128::from(account.outstanding(dimension))).sum();
            assert!(
                level.balances(held),
                "the books of {dimension:?} do not balance: {level:?}, held {held}"
            );
        }
    }
}

impl Account {
    /// Granted and neither spent nor returned, in units; negative is debt.
    fn outstanding(&self, dimension: Dimension) -> i64 {
        let gone = self.last.spent.of(dimension).saturating_add(self.last.returned.of(dimension));
        let signed = |units: u64| i64::try_from(units).unwrap_or(i64::MAX);
        signed(self.granted.of(dimension)) - signed(gone)
    }

    /// Whether `draw` can be this session's next: its counters only grow, and of what is limited it returns nothing that it does not hold.
    fn may_report(&self, draw: &Draw, limited: impl Fn(Dimension) -> bool) -> bool {
        let grow = draw.spent.covers(self.last.spent)
            && draw.returned.covers(self.last.returned)
            && draw.refunded.covers(self.last.refunded);
        let most = Units([COUNTER_MOST; 4]);
        let bounded =
            most.covers(draw.spent) && most.covers(draw.returned) && draw.spent.covers(draw.refunded);
        grow && bounded
            && Dimension::ALL.into_iter().all(|dimension| {
                let gone = draw.spent.of(dimension) + draw.returned.of(dimension);
                let returns = draw.returned.of(dimension) > self.last.returned.of(dimension);
                !returns || !limited(dimension) || gone <= self.granted.of(dimension)
            })
    }
}

/// The largest counter of a session that is believed, in units: ten million million tokens a minute for half a year. Beyond it sums might
/// not fit.
const COUNTER_MOST: u64 = 1 << 61;

impl Default for Account {
    fn default() -> Self {
        let last = Draw {
            seq: 0,
            spent: Units::NONE,
            returned: Units::NONE,
            refunded: Units::NONE,
            wants: Units::NONE,
            weight: 0,
        };
        Self {
            last,
            answer: Granted::default(),
            granted: Units::NONE,
            hunger: Units::NONE,
            due: Units::NONE,
            served: Units::NONE,
        }
    }
}
