//! Budgets: what a tenant, a project or a key may use in a calendar period, as agreed state from which the owners draw.
//!
//! A grant moves units from what **remains** to a session's **escrow**, and a reservation is paid from there: so what is settled and what is
//! still open were both taken from the budget before anything was spent. A gateway's report turns escrow into what was really used.
//!
//! Laws (properties in `budget/tests.rs`):
//! - `budget_holds`: a grant leaves `used + escrow ≤ limit`, or `≤ limit + degraded` for a cheaper model's; only a response that uses more than it
//!   reserved goes beyond, and that is charged;
//! - the books balance after every command: `granted = returned + resolved + released + escrow` and
//!   `settled + closed = resolved + overage − refunded`;
//! - `nothing_lost`, `resolved_once`: each reservation has a number of its gateway's session, and is charged once under it, however often it
//!   is reported, closed and replayed; usage that comes after a close adds the difference, once;
//! - what is freed of a budget is freed here and nowhere else: a settlement gives nothing back to a purse;
//! - a period's escrow and reports stay with that period; a calendar moves on in one entry, never back, and takes all its budgets along;
//! - the escrow of a session that is over stays, as written off, until its reservations are reported or an operator releases it;
//! - `alert_once`: the entry that makes a budget cross a soft threshold is the only one that raises its alert, under one name. It stays
//!   until somebody has said that it was delivered;
//! - an edit keeps what is used, one of the zone too.
//!
//! Whoever spends checks its lease; whoever proposes a rollover has asked a majority's wall clocks ([`super::period`]); a decision of a leader is
//! void in another term: all that is for the caller. Never here: clocks, randomness, floats, hash maps, time zones.

mod account;
mod command;
mod gateway;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tollgate_cluster::authority::Standing;
use tollgate_cluster::id::SessionId;
use tollgate_cluster::log_time::LogTime;
use tollgate_cluster::mutant;

use self::account::Account;
pub use self::account::BudgetBooks;
pub use self::command::{
    Alert, Batch, BudgetAnswer, BudgetCommand, BudgetKey, BudgetRefusal, BudgetTerms, Charge, End, Lane,
    Line, Part, Unit,
};
use self::gateway::{Gateway, Standings};
use super::period::{Calendar, Period, PeriodId};
use crate::limit::{BudgetDraw, BudgetGranted};

/// The largest limit and the largest single charge, in a budget's unit: a thousand million million.
pub const UNITS_MOST: u64 = 1_000_000_000_000_000;

/// How many ends of reservations one batch may bring: a quarter of a second at 16,000 requests a second.
pub const BATCH_MOST: usize = 4_096;

/// How many runs of numbers that are over are kept of one gateway; between each two is at least one reservation that is open.
pub const RUNS_MOST: usize = 1 << 17;

/// How many gateways' sessions are remembered that are closed. A report of one that is forgotten is refused like that of a closed one.
pub const CLOSED_MOST: usize = 1_024;

/// How many alerts wait for delivery. Beyond it the oldest is given up, and counted.
pub const ALERTS_MOST: usize = 4_096;

/// How many alerts are kept for nodes to say that follow the log late: as many as one entry can raise and more.
pub const RECENT_MOST: usize = 1_024;

/// How many periods of a budget are kept beside the current one, those with escrow before others.
pub const PAST_MOST: usize = 8;

/// How many of them are kept when nothing of them is in escrow any more: to be looked at.
pub const PAST_SHOWN: usize = 2;

/// A budget, to look at. Amounts in its unit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetView {
    /// What the policy says; nothing for one that it has dropped.
    pub terms: Option<BudgetTerms>,
    /// The period looked at.
    pub period: Period,
    /// Settled, closed, and what an operator has set.
    pub used: u64,
    /// What owners hold for reservations and purses, those of sessions that are over included.
    pub escrow: u64,
    /// Of that, what sessions hold that are over.
    pub written_off: u64,
    /// What can still be granted in the regular lane.
    pub remaining: u64,
    /// What can still be granted to the cheaper model.
    pub remaining_degraded: u64,
    /// The books of the period.
    pub books: BudgetBooks,
}

/// All budgets. A clone shares what is not changed afterwards.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budgets {
    budgets: BTreeMap<BudgetKey, Arc<Budget>>,
    calendars: BTreeMap<Calendar, Period>,
    gateways: BTreeMap<SessionId, Arc<Gateway>>,
    /// Not delivered yet, by number.
    alerts: BTreeMap<u64, Alert>,
    /// Raised lately, by number.
    recent: BTreeMap<u64, Alert>,
    alerts_raised: u64,
    alerts_lost: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Budget {
    terms: Option<BudgetTerms>,
    current: Option<Period>,
    accounts: BTreeMap<PeriodId, Account>,
}

impl Budgets {
    /// Applies one command at `now`. `standing` says of a session whether it lives.
    ///
    /// # Errors
    /// Why it changed nothing. As much a part of the log's meaning as an answer.
    pub fn apply(
        &mut self,
        now: LogTime,
        standing: impl Fn(SessionId) -> Option<Standing>,
        command: &BudgetCommand,
    ) -> Result<BudgetAnswer, BudgetRefusal> {
        match command {
            BudgetCommand::Draw { budget, period, session, lane, draw } => {
                let serving = standing(*session) == Some(Standing::Serving);
                if !serving && standing(*session) != Some(Standing::Condemned) {
                    return Err(BudgetRefusal::SessionOver);
                }
                let found = self.budgets.get_mut(budget).ok_or(BudgetRefusal::NoSuchBudget)?;
                Arc::make_mut(found)
                    .draw(*period, (*session, *lane), serving, draw)
                    .map(BudgetAnswer::Granted)
            }
            BudgetCommand::Settle(batch) => self.settle(standing(batch.gateway), batch),
            BudgetCommand::Close(batch) => self.close(standing(batch.gateway), batch),
            BudgetCommand::CloseGateway { gateway, grace } => self.close_gateway(now, *gateway, *grace),
            BudgetCommand::Roll { calendar, period } => self.roll(calendar, *period),
            BudgetCommand::SetUsed { budget, used } => self.set_used(budget, *used),
            BudgetCommand::Release { budget, period, session } => self.release(budget, *period, *session),
            BudgetCommand::Delivered { alerts } => {
                alerts.iter().for_each(|alert| drop(self.alerts.remove(alert)));
                Ok(BudgetAnswer::Done)
            }
        }
    }

    /// Puts the budgets of a new policy in force. What is used stays used.
    pub fn adopt(&mut self, terms: &BTreeMap<BudgetKey, BudgetTerms>) {
        for (key, budget) in &mut self.budgets {
            if budget.terms.as_ref() != terms.get(key) {
                Arc::make_mut(budget).terms = terms.get(key).cloned();
            }
        }
        for (key, terms) in terms {
            let budget = self.budgets.entry(key.clone()).or_default();
            if budget.terms.is_none() {
                Arc::make_mut(budget).terms = Some(terms.clone());
            }
        }
        let used: Vec<Calendar> = terms.iter().map(|(key, terms)| calendar(key, terms)).collect();
        self.calendars.retain(|calendar, _| used.contains(calendar));
        let calendars = self.calendars.clone();
        for (key, budget) in &mut self.budgets {
            let period = budget.terms.as_ref().and_then(|terms| calendars.get(&calendar(key, terms)));
            if let Some(period) = period.filter(|period| budget.enters(**period)) {
                Arc::make_mut(budget).enter(*period);
            }
        }
        let keys: Vec<BudgetKey> = terms.keys().cloned().collect();
        keys.iter().for_each(|key| self.alert(key));
    }

    /// A session is over: what it holds stays in escrow, as written off, and its own reports are welcome for a while.
    pub fn fence(&mut self, now: LogTime, session: SessionId) {
        for budget in self.budgets.values_mut() {
            if budget.accounts.values().any(|account| account.knows(session)) {
                let accounts = &mut Arc::make_mut(budget).accounts;
                accounts.values_mut().for_each(|account| account.fence(session));
            }
        }
        let gateway = self.gateways.entry(session).or_default();
        Arc::make_mut(gateway).fence(now);
    }

    /// Where a budget stands in `period`, or in the current one.
    #[must_use]
    pub fn view(&self, key: &BudgetKey, period: Option<PeriodId>) -> Option<BudgetView> {
        let budget = self.budgets.get(key)?;
        let current = budget.current?;
        match period.filter(|period| *period != current.id) {
            Some(past) => budget.accounts.get(&past).map(|account| account.view(budget.terms.clone())),
            None => {
                let fresh = || Account::new(current);
                let account = budget.accounts.get(&current.id).cloned().unwrap_or_else(fresh);
                Some(account.view(budget.terms.clone()))
            }
        }
    }

    /// The current period of a budget that the policy names, and what can still be granted in `lane`. No period before its calendar has
    /// begun, and nothing of a budget that there is not.
    #[must_use]
    pub fn left(&self, key: &BudgetKey, lane: Lane) -> Option<(Option<Period>, u64)> {
        let budget = self.budgets.get(key)?;
        let terms = budget.terms.as_ref()?;
        let Some(period) = budget.current else { return Some((None, 0)) };
        let cap = terms.cap(lane);
        let left = budget.accounts.get(&period.id).map_or(cap, |account| account.left(cap));
        Some((Some(period), left))
    }

    /// What the policy lets `lane` of a budget use in a period; nothing of a budget that there is not.
    #[must_use]
    pub fn cap(&self, key: &BudgetKey, lane: Lane) -> u64 {
        let terms = self.budgets.get(key).and_then(|budget| budget.terms.as_ref());
        terms.map_or(0, |terms| terms.cap(lane))
    }

    /// What sessions that are over left in escrow in `period`, by session.
    #[must_use]
    pub fn written_off(&self, key: &BudgetKey, period: PeriodId) -> Vec<(SessionId, u64)> {
        let account = self.budgets.get(key).and_then(|budget| budget.accounts.get(&period));
        account.map(Account::written_off).unwrap_or_default()
    }

    /// The budgets that the policy names, each with its current period; none until its calendar has begun.
    pub fn current(&self) -> impl Iterator<Item = (&BudgetKey, Option<Period>)> {
        self.budgets
            .iter()
            .filter(|(_, budget)| budget.terms.is_some())
            .map(|(key, budget)| (key, budget.current))
    }

    /// The calendars in use, each with its current period; none until it has begun.
    #[must_use]
    pub fn calendars(&self) -> BTreeMap<Calendar, Option<Period>> {
        let used =
            self.budgets.iter().filter_map(|(key, budget)| Some(calendar(key, budget.terms.as_ref()?)));
        used.map(|calendar| (calendar.clone(), self.calendars.get(&calendar).copied())).collect()
    }

    /// Alerts that nobody has delivered yet, by number: the leader's to deliver.
    #[must_use]
    pub const fn alerts(&self) -> &BTreeMap<u64, Alert> {
        &self.alerts
    }

    /// Alerts that were raised lately, by number, delivered or not: each node's to say.
    #[must_use]
    pub const fn recent_alerts(&self) -> &BTreeMap<u64, Alert> {
        &self.recent
    }

    /// The number of the last alert that was raised.
    #[must_use]
    pub const fn alerts_raised(&self) -> u64 {
        self.alerts_raised
    }

    /// How many alerts were given up because too many waited.
    #[must_use]
    pub const fn alerts_lost(&self) -> u64 {
        self.alerts_lost
    }

    /// How many budgets, and how many sessions of gateways, something is known of.
    #[must_use]
    pub fn entries(&self) -> (usize, usize) {
        (self.budgets.len(), self.gateways.len())
    }

    /// Gateways' sessions that are fenced and not closed, with the log time of their fence: the leader closes them after the grace.
    pub fn fenced_gateways(&self) -> impl Iterator<Item = (SessionId, LogTime)> {
        self.gateways.iter().filter_map(|(session, gateway)| Some((*session, gateway.awaits_close()?)))
    }

    /// Whether a gateway's session is closed, so that owners are to close what it left open.
    #[must_use]
    pub fn is_closed(&self, gateway: SessionId) -> bool {
        self.gateways.get(&gateway).is_some_and(|gateway| gateway.is_closed())
    }

    /// Whether a gateway has said how `number` ended, or it was closed.
    #[must_use]
    pub fn has_ended(&self, gateway: SessionId, number: u64) -> bool {
        self.gateways.get(&gateway).is_some_and(|gateway| gateway.has_ended(number))
    }

    /// The highest number of a gateway's session below which nothing is open: its journal may forget what is under it.
    #[must_use]
    pub fn watermark(&self, gateway: SessionId) -> u64 {
        self.gateways.get(&gateway).map_or(0, |gateway| gateway.watermark())
    }

    fn settle(&mut self, standing: Option<Standing>, batch: &Batch) -> Result<BudgetAnswer, BudgetRefusal> {
        let known = self.gateways.get(&batch.gateway);
        match (standing, known) {
            // It never reported, or it is one that is forgotten.
            (Some(Standing::Fenced), None) => return Err(BudgetRefusal::GatewayClosed),
            (None, None) => return Err(BudgetRefusal::SessionOver),
            (_, Some(gateway)) if gateway.is_closed() => return Err(BudgetRefusal::GatewayClosed),
            _ => {}
        }
        self.check(batch)?;
        let gateway = Arc::make_mut(self.gateways.entry(batch.gateway).or_default());
        let mut answer = (0, 0);
        let mut touched = Vec::new();
        for end in &batch.ends {
            let before = gateway.end(end.number);
            if before == Standings::Over && !mutant::is("double_report") {
                answer.1 += 1;
                continue;
            }
            answer.0 += 1;
            for charge in &end.charges {
                let line = &batch.lines[charge.line as usize];
                let Some(account) = account(&mut self.budgets, line) else { continue };
                match before.charged(line) {
                    Some(charged) => account.correct(line.lane, charged, charge.actual),
                    None => account.settle((line.owner, line.lane), charge.reserved, charge.actual),
                }
                touched.push(line);
            }
        }
        for &(first, last) in &batch.void {
            // What was closed before it was known to be void is given back.
            for (line, charged) in gateway.void(first, last) {
                if let Some(account) = account(&mut self.budgets, &line) {
                    account.correct(line.lane, charged, 0);
                }
            }
        }
        self.assert_invariants(&batch.lines);
        touched.sort_unstable();
        touched.dedup();
        touched.into_iter().for_each(|line| self.alert(&line.budget));
        Ok(BudgetAnswer::Ended { counted: answer.0, repeated: answer.1 })
    }

    fn close(&mut self, standing: Option<Standing>, batch: &Batch) -> Result<BudgetAnswer, BudgetRefusal> {
        if !self.gateways.contains_key(&batch.gateway)
            && !matches!(standing, Some(Standing::Serving | Standing::Condemned))
        {
            // Whether it was closed before, nobody knows any more.
            return Err(BudgetRefusal::GatewayClosed);
        }
        self.check(batch)?;
        let gateway = Arc::make_mut(self.gateways.entry(batch.gateway).or_default());
        let mut answer = (0, 0);
        for end in &batch.ends {
            let charged =
                end.charges.iter().map(|charge| (batch.lines[charge.line as usize].clone(), charge.reserved));
            if !gateway.close(end.number, charged) {
                answer.1 += 1;
                continue;
            }
            answer.0 += 1;
            for charge in &end.charges {
                let line = &batch.lines[charge.line as usize];
                let Some(account) = account(&mut self.budgets, line) else { continue };
                if mutant::is("release_on_timeout") {
                    account.settle((line.owner, line.lane), charge.reserved, 0);
                } else {
                    account.close((line.owner, line.lane), charge.reserved);
                }
            }
        }
        self.assert_invariants(&batch.lines);
        batch.lines.iter().for_each(|line| self.alert(&line.budget));
        Ok(BudgetAnswer::Ended { counted: answer.0, repeated: answer.1 })
    }

    /// Whether a batch can be what it says: then everything in it is done.
    fn check(&self, batch: &Batch) -> Result<(), BudgetRefusal> {
        let runs = self.gateways.get(&batch.gateway).map_or(0, |gateway| gateway.runs());
        let few = batch.ends.len() + batch.void.len() <= BATCH_MOST
            && runs + batch.ends.len() + batch.void.len() <= RUNS_MOST;
        let charges = batch.ends.iter().flat_map(|end| &end.charges);
        let sound = charges.into_iter().all(|charge| {
            (charge.line as usize) < batch.lines.len()
                && charge.reserved <= UNITS_MOST
                && charge.actual <= UNITS_MOST
        });
        let once = batch.ends.iter().all(|end| {
            let mut lines: Vec<u32> = end.charges.iter().map(|charge| charge.line).collect();
            lines.sort_unstable();
            lines.windows(2).all(|pair| pair[0] != pair[1])
        });
        let mut lines: Vec<&Line> = batch.lines.iter().collect();
        lines.sort_unstable();
        let distinct = lines.windows(2).all(|pair| pair[0] != pair[1]);
        let numbered = batch.ends.iter().all(|end| end.number > 0)
            && batch.void.iter().all(|&(first, last)| 0 < first && first <= last && last < u64::MAX);
        if few && sound && once && distinct && numbered { Ok(()) } else { Err(BudgetRefusal::Unsound) }
    }

    fn close_gateway(
        &mut self,
        now: LogTime,
        session: SessionId,
        grace: u64,
    ) -> Result<BudgetAnswer, BudgetRefusal> {
        let gateway = self.gateways.get_mut(&session).ok_or(BudgetRefusal::TooEarly)?;
        let Some(fenced) = gateway.awaits_close() else {
            return if gateway.is_closed() { Ok(BudgetAnswer::Done) } else { Err(BudgetRefusal::TooEarly) };
        };
        if now.0 < fenced.0.saturating_add(grace) {
            return Err(BudgetRefusal::TooEarly);
        }
        Arc::make_mut(gateway).shut();
        let mut closed: Vec<(LogTime, SessionId)> = self
            .gateways
            .iter()
            .filter_map(|(session, gateway)| Some((gateway.closed_since()?, *session)))
            .collect();
        closed.sort_unstable();
        for (_, oldest) in &closed[..closed.len().saturating_sub(CLOSED_MOST)] {
            self.gateways.remove(oldest);
        }
        Ok(BudgetAnswer::Done)
    }

    fn roll(&mut self, calendar: &Calendar, period: Period) -> Result<BudgetAnswer, BudgetRefusal> {
        let used = self.calendars().contains_key(calendar);
        let onwards = self.calendars.get(calendar).is_none_or(|current| current.id < period.id);
        if !used || !onwards || period.end <= period.id.0 {
            return Err(BudgetRefusal::NotNext);
        }
        self.calendars.insert(calendar.clone(), period);
        for (key, budget) in &mut self.budgets {
            let moves = budget.terms.as_ref().is_some_and(|terms| self::calendar(key, terms) == *calendar);
            if moves && budget.enters(period) {
                Arc::make_mut(budget).enter(period);
            }
        }
        // One that the policy dropped is kept for as long as its period lasts: it might come back.
        self.budgets.retain(|_, budget| {
            budget.terms.is_some() || budget.current.is_some_and(|current| current.end > period.id.0)
        });
        Ok(BudgetAnswer::Done)
    }

    fn set_used(&mut self, key: &BudgetKey, used: u64) -> Result<BudgetAnswer, BudgetRefusal> {
        let budget = self.budgets.get_mut(key).ok_or(BudgetRefusal::NoSuchBudget)?;
        let current = budget.current.ok_or(BudgetRefusal::NoSuchBudget)?;
        if used > UNITS_MOST {
            return Err(BudgetRefusal::Unsound);
        }
        Arc::make_mut(budget).account(current).set_used(used);
        self.alert(key);
        Ok(BudgetAnswer::Done)
    }

    fn release(
        &mut self,
        key: &BudgetKey,
        period: PeriodId,
        session: SessionId,
    ) -> Result<BudgetAnswer, BudgetRefusal> {
        let budget = self.budgets.get_mut(key).ok_or(BudgetRefusal::NoSuchBudget)?;
        let account = Arc::make_mut(budget).accounts.get_mut(&period).ok_or(BudgetRefusal::NoSuchBudget)?;
        if account.release(session) { Ok(BudgetAnswer::Done) } else { Err(BudgetRefusal::TooEarly) }
    }

    /// Raises what a budget's current period has crossed and nobody was told of.
    fn alert(&mut self, key: &BudgetKey) {
        let Some(budget) = self.budgets.get_mut(key) else { return };
        let (Some(terms), Some(period)) = (&budget.terms, budget.current) else { return };
        let Some(account) = budget.accounts.get(&period.id) else { return };
        let limit = terms.cap(Lane::Regular);
        let crossed = account.crosses(limit, &terms.thresholds);
        if crossed.is_empty() {
            return;
        }
        let used = account.used();
        if !mutant::is("alert_each_time") {
            Arc::make_mut(budget).account(period).told(&crossed);
        }
        for threshold in crossed {
            let alert = Alert { budget: key.clone(), period: period.id, threshold, limit, used };
            self.alerts_raised += 1;
            self.recent.insert(self.alerts_raised, alert.clone());
            self.alerts.insert(self.alerts_raised, alert);
        }
        while self.recent.len() > RECENT_MOST {
            self.recent.pop_first();
        }
        while self.alerts.len() > ALERTS_MOST {
            self.alerts.pop_first();
            self.alerts_lost += 1;
        }
    }

    fn assert_invariants(&self, lines: &[Line]) {
        for line in lines {
            let account = self.budgets.get(&line.budget).and_then(|budget| budget.accounts.get(&line.period));
            account.into_iter().for_each(Account::assert_invariants);
        }
    }
}

impl Budget {
    fn draw(
        &mut self,
        period: PeriodId,
        who: (SessionId, Lane),
        serving: bool,
        draw: &BudgetDraw,
    ) -> Result<BudgetGranted, BudgetRefusal> {
        let current = self.current.ok_or(BudgetRefusal::NoSuchBudget)?;
        let account = match self.accounts.get_mut(&period) {
            Some(account) => account,
            None if period == current.id => self.account(current),
            None => return Err(BudgetRefusal::PeriodOver { current: current.id }),
        };
        let asks = draw.need > 0 || draw.wants > 0;
        // What is given back is taken at any time.
        if asks && period != current.id && !account.answered(who, draw) {
            return Err(BudgetRefusal::PeriodOver { current: current.id });
        }
        let cap = match &self.terms {
            Some(terms) if serving && period == current.id => terms.cap(who.1),
            _ => 0,
        };
        // The account was found or made above; the borrow ended with the terms.
        let account = self.accounts.get_mut(&period).ok_or(BudgetRefusal::NoSuchBudget)?;
        let answer = account.draw(who, draw, cap);
        account.assert_invariants();
        answer
    }

    fn account(&mut self, period: Period) -> &mut Account {
        self.accounts.entry(period.id).or_insert_with(|| Account::new(period))
    }

    /// Whether `period` is its next one. After an edit of its zone the calendar's period and its own overlap: it goes along once half of its
    /// own is over, so that no period is lost and none is had twice.
    fn enters(&self, period: Period) -> bool {
        self.current.is_none_or(|current| period.id.0 > current.id.0 + (current.end - current.id.0) / 2)
    }

    fn enter(&mut self, period: Period) {
        self.current = Some(period);
        let past: Vec<PeriodId> = self.accounts.range(..period.id).map(|(id, _)| *id).collect();
        for (age, id) in past.into_iter().rev().enumerate() {
            let empty = self.accounts.get(&id).is_some_and(|account| account.escrow() == 0);
            if age >= PAST_MOST || (empty && age >= PAST_SHOWN) {
                self.accounts.remove(&id);
            }
        }
    }
}

impl BudgetTerms {
    /// The most that may be used and held in a lane, in the budget's unit.
    #[must_use]
    pub fn cap(&self, lane: Lane) -> u64 {
        let limit = self.limit.min(UNITS_MOST);
        match lane {
            Lane::Regular => limit,
            Lane::Degraded => limit + self.degraded.min(UNITS_MOST),
        }
    }
}

fn calendar(key: &BudgetKey, terms: &BudgetTerms) -> Calendar {
    Calendar { cycle: key.cycle, zone: terms.zone.clone() }
}

/// The account of a line. One of a period that is forgotten has none, and costs nothing any more.
fn account<'b>(budgets: &'b mut BTreeMap<BudgetKey, Arc<Budget>>, line: &Line) -> Option<&'b mut Account> {
    let budget = budgets.get_mut(&line.budget)?;
    Arc::make_mut(budget).accounts.get_mut(&line.period)
}
