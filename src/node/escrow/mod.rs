//! Escrow as this node has it: the purses of its session, from which the limiters here pay what stands behind a tenant's own limits.
//!
//! A limiter asks between its checks and its debits ([`Purser`]), under its shard's lock and within the two looks at the lease: so a purse
//! pays only for a session that may answer, and what was debited when the second look failed stays spent. One task ([`drawing`]) fills
//! the purses up again from the agreed state, reports, and resends what is not answered.
//!
//! Laws:
//! - purses are of one session; who pays names the session that it was asked as, and another one's purses pay nothing;
//! - purses are forgotten with their session and never come back: only the drawing task begins those of the next;
//! - the lock is held for one call, taken after a shard's and before no other.
//!
//! In reading order: `tariff` (what a request costs by the policy), this file (who pays), `tempo` (how often the log is written to),
//! [`drawing`] (where it comes from).
//!
//! Never here: HTTP, arithmetic of limits.

pub mod drawing;
mod tariff;
mod tempo;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use jiff::civil::Date;
use tokio::sync::{Notify, watch};
use tollgate_cluster::id::SessionId;
use tollgate_cluster::mutant;

pub use self::tariff::{BudgetStanding, Known, Tariff};
use self::tempo::Tempo;
use crate::control::Control;
use crate::control::budget::{BudgetAnswer, BudgetCommand, BudgetKey, BudgetView};
use crate::control::escrow::{Step, Stepped};
use crate::control::pool::{Feedback, LevelView, PoolCommand};
use crate::limit::{
    Account, Denial, Difference, Dimension, Haste, Lack, Left, Moment, Name, Paid, Payment, PurseOwner,
    Purser, Purses, Request, ReservationId, Span, Units, Unpaid,
};

/// The purses of this node's session.
pub struct Escrow {
    state: Mutex<State>,
    tariff: ArcSwap<Tariff>,
    known: ArcSwap<Known>,
    /// An admission waits for a grant, and the drawing task need not be told again.
    hurried: AtomicBool,
    /// Told when that is so, and whenever else the drawing task should look.
    wake: Notify,
    /// Counts up with each answer to a draw.
    answered: watch::Sender<u64>,
    counts: Counts,
}

#[derive(Default)]
struct State {
    /// Whose purses these are; none before the first session of this process is known.
    session: Option<SessionId>,
    purses: Purses<Account>,
    /// What providers have said since the last command.
    heard: BTreeMap<Name, Feedback>,
    /// Of each pool what was heeded of what is agreed on, in log time: until when its provider takes nothing, and as of when it had run out.
    heeded: BTreeMap<Name, (u64, u64)>,
    draining: bool,
}

/// What happened so far.
#[derive(Debug, Default)]
pub struct Counts {
    /// Draws that were answered.
    pub draws: AtomicU64,
    /// Draws that were refused.
    pub refused: AtomicU64,
    /// Commands that brought them, those among them that were not answered.
    pub commands: AtomicU64,
    /// Commands that were not answered.
    pub unanswered: AtomicU64,
}

/// What the purse of a pool holds here, to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PurseView {
    /// Of which pool.
    pub pool: Name,
    /// What can be spent, in units of each dimension by [`Dimension::index`]; negative is debt.
    pub held: [i64; 4],
    /// Whether the pool lately gave less than was wanted.
    pub scarce: bool,
}

/// How many answers of providers wait to be told: one for each pool of a large policy.
const HEARD_MOST: usize = 1_024;

/// Which part of its burst a pool has left when it is about to run out, and for how long nobody keeps anything of one that was for nobody.
const OUT_PART: u64 = 16;
const LENT: Span = Span::from_secs(10);

impl Default for Escrow {
    fn default() -> Self {
        Self {
            state: Mutex::default(),
            tariff: ArcSwap::from_pointee(Tariff::default()),
            known: ArcSwap::from_pointee(Known::default()),
            hurried: AtomicBool::new(false),
            wake: Notify::new(),
            answered: watch::Sender::new(0),
            counts: Counts::default(),
        }
    }
}

impl Escrow {
    /// Follows a policy: from now on its requests cost what `tariff` says.
    pub fn follow(&self, tariff: &Arc<Tariff>) {
        let mut state = self.lock();
        // First the purses, so that no request finds a pool that has none and pays nothing.
        state.purses.follow(tariff.terms());
        // What a budget hands out may be less now: what purses hold of it goes back, and is asked for anew.
        let before = self.tariff.swap(tariff.clone());
        let changed: BTreeSet<&BudgetKey> = before.changed(tariff).collect();
        if !changed.is_empty() {
            let purses = state.purses.budgets_mut();
            purses
                .filter(|(account, _)| changed.contains(&account.budget))
                .for_each(|(_, purse)| purse.drain());
        }
        drop(state);
        self.wake.notify_one();
    }

    /// Who pays for a limiter that answers as `session`.
    #[must_use]
    pub const fn hand(&self, session: SessionId) -> Hand<'_> {
        Hand { escrow: self, session }
    }

    /// What a request for this costs by the policy in force here.
    #[must_use]
    pub fn tariff(&self) -> Arc<Tariff> {
        self.tariff.load_full()
    }

    /// Counts up whenever a draw is answered: what was too little before may be enough now.
    #[must_use]
    pub fn answered(&self) -> watch::Receiver<u64> {
        self.answered.subscribe()
    }

    /// Of a caller's budgets, where the one stands that has the smallest part left.
    #[must_use]
    pub fn tightest_budget(&self, tenant: &str, project: Option<&str>, key: &str) -> Option<BudgetStanding> {
        self.tariff.load().tightest(&self.known.load(), tenant, project, key)
    }

    /// Whether one of the budgets that paid has little left.
    #[must_use]
    pub fn is_last(&self, paid: &Paid) -> bool {
        let known = self.known.load();
        paid.budgets.iter().any(|(account, _)| known.is_last(account))
    }

    /// A caller's budgets: those of its key, of its project and of its tenant, each with its current period once that has begun.
    #[must_use]
    pub fn budgets_of(
        &self,
        tenant: &str,
        project: Option<&str>,
        key: &str,
    ) -> Vec<(BudgetKey, Option<BudgetView>)> {
        self.tariff.load().views(&self.known.load(), tenant, project, key)
    }

    /// What happened so far.
    #[must_use]
    pub const fn counts(&self) -> &Counts {
        &self.counts
    }

    /// The purses of pools.
    #[must_use]
    pub fn purses(&self, now: Moment) -> Vec<PurseView> {
        let mut state = self.lock();
        let purses = state.purses.pools_mut();
        let view = |(pool, purse): (&Name, &mut crate::limit::Purse)| PurseView {
            pool: pool.clone(),
            held: purse.held(),
            scarce: purse.is_scarce(now),
        };
        purses.map(view).collect()
    }

    /// A provider has said how much it takes. Told to all with the next command; of one pool the strictest word counts.
    pub fn hear(&self, pool: &Name, feedback: Feedback) {
        let mut state = self.lock();
        if state.heard.len() >= HEARD_MOST && !state.heard.contains_key(pool) {
            return;
        }
        let all = state.heard.entry(pool.clone()).or_insert(feedback);
        for (said, more) in all.remaining.iter_mut().zip(feedback.remaining) {
            *said = [*said, more].into_iter().flatten().min();
        }
        all.pause = all.pause.max(feedback.pause);
        drop(state);
        self.wake.notify_one();
    }

    /// Gives back all that is held and asks for nothing any more: this node's session is about to end.
    pub fn drain(&self) {
        let mut state = self.lock();
        state.draining = true;
        drain(&mut state.purses);
        drop(state);
        self.wake.notify_one();
    }

    /// Gives back what is held of the budgets of tenants that leave this node.
    pub fn leave(&self, leaves: impl Fn(&str) -> bool) {
        let mut state = self.lock();
        let purses = state.purses.budgets_mut();
        purses.filter(|(account, _)| leaves(&account.budget.tenant)).for_each(|(_, purse)| purse.drain());
        drop(state);
        self.wake.notify_one();
    }

    /// Whether nothing is held and all is told.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let mut state = self.lock();
        let pools = state.purses.pools_mut().all(|(_, purse)| purse.is_empty());
        pools && state.purses.budgets_mut().all(|(_, purse)| purse.is_empty())
    }

    /// How many purses there are: one for each pool, and one for each account of a budget that was lately asked for.
    #[must_use]
    pub fn len(&self) -> usize {
        let mut state = self.lock();
        state.purses.pools_mut().count() + state.purses.budgets_mut().count()
    }

    fn hurry(&self) {
        if !self.hurried.swap(true, Ordering::AcqRel) {
            self.wake.notify_one();
        }
    }

    /// Begins the purses of `session`, if it has none here. What an earlier session held is the agreed state's to write off.
    fn begin(&self, session: SessionId) {
        let mut state = self.lock();
        if state.session == Some(session) {
            return;
        }
        if state.session.is_some() && mutant::is("purse_outlives_session") {
            state.session = Some(session);
            return;
        }
        let draining = state.draining;
        *state = State { session: Some(session), draining, ..State::default() };
        state.purses.follow(self.tariff.load().terms());
        if draining {
            drain(&mut state.purses);
        }
    }

    /// The draws that are on their way and those that are due, with what was heard from providers: the steps of one command, and whose.
    fn due(&self, now: Moment) -> Option<(SessionId, Vec<Step>)> {
        let mut state = self.lock();
        let session = state.session?;
        let mut steps = Vec::new();
        for (pool, feedback) in std::mem::take(&mut state.heard) {
            steps.push(Step::Pool(PoolCommand::Feedback { pool, feedback }));
        }
        for (pool, purse) in state.purses.pools_mut() {
            let draw = purse.flight().copied().or_else(|| purse.poll(now));
            steps
                .extend(draw.map(|draw| Step::Pool(PoolCommand::Draw { pool: pool.clone(), session, draw })));
        }
        for (account, purse) in state.purses.budgets_mut() {
            let draw = purse.flight().copied().or_else(|| purse.poll(now));
            steps.extend(draw.map(|draw| {
                let Account { budget, period, lane } = account.clone();
                Step::Budget(BudgetCommand::Draw { budget, period, session, lane, draw })
            }));
        }
        (!steps.is_empty()).then_some((session, steps))
    }

    /// When the next command should go by `tempo`, unless somebody comes to wait meanwhile, and with how much haste.
    fn next(&self, now: Moment, tempo: &Tempo) -> Option<(Moment, Haste)> {
        let mut state = self.lock();
        state.session?;
        // What is sent again has waited already.
        let again = (now, Haste::Last);
        let heard = (!state.heard.is_empty()).then_some((now, Haste::Round));
        let pools = state.purses.pools_mut();
        let pools = pools.filter_map(|(_, purse)| purse.flight().map(|_| again).or_else(|| purse.due(now)));
        let soonest = |soonest: Option<(Moment, Haste)>, (due, haste): (Moment, Haste)| {
            let next = (due.max(tempo.next(haste)), haste);
            Some(soonest.map_or(next, |soonest| soonest.min(next)))
        };
        let first = heard.into_iter().chain(pools).fold(None, soonest);
        let budgets = state.purses.budgets_mut();
        let budgets =
            budgets.filter_map(|(_, purse)| purse.flight().map(|_| again).or_else(|| purse.due(now)));
        budgets.fold(first, soonest)
    }

    /// What came of a command's steps.
    fn answer(&self, session: SessionId, steps: &[Step], answers: Vec<Stepped>) {
        let mut state = self.lock();
        if state.session != Some(session) {
            return;
        }
        for (step, answer) in steps.iter().zip(answers) {
            let refused: &dyn std::fmt::Display = match (step, &answer) {
                (Step::Pool(PoolCommand::Draw { pool, .. }), Stepped::Pool(Ok(granted))) => {
                    state.purses.pool(pool).into_iter().for_each(|purse| purse.granted(granted));
                    self.counts.draws.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                (Step::Pool(PoolCommand::Draw { pool, draw, .. }), Stepped::Pool(Err(refusal))) => {
                    state.purses.pool(pool).into_iter().for_each(|purse| purse.refused(draw.seq));
                    refusal
                }
                (
                    Step::Budget(BudgetCommand::Draw { budget, period, lane, .. }),
                    Stepped::Budget(Ok(BudgetAnswer::Granted(granted))),
                ) => {
                    let account = Account { budget: budget.clone(), period: *period, lane: *lane };
                    state.purses.budget(&account).granted(granted);
                    self.counts.draws.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                (
                    Step::Budget(BudgetCommand::Draw { budget, period, lane, draw, .. }),
                    Stepped::Budget(Err(refusal)),
                ) => {
                    let account = Account { budget: budget.clone(), period: *period, lane: *lane };
                    state.purses.budget(&account).refused(draw.seq);
                    refusal
                }
                _ => continue,
            };
            self.counts.refused.fetch_add(1, Ordering::Relaxed);
            tracing::debug!(%refused, "a draw was refused");
        }
        drop(state);
        self.answered.send_modify(|count| *count += 1);
    }

    /// A command was not answered. Draws are sent again as they were; what was heard is said again with them.
    fn unanswered(&self, steps: Vec<Step>) {
        self.counts.unanswered.fetch_add(1, Ordering::Relaxed);
        for step in steps {
            if let Step::Pool(PoolCommand::Feedback { pool, feedback }) = step {
                self.hear(&pool, feedback);
            }
        }
    }

    /// Heeds what is agreed on: where budgets stand, and which providers take nothing for a while: purses pay nothing until then.
    fn heed(&self, control: &Control, now: Moment, day: Date) {
        let known = Known { budgets: control.budgets().clone(), day };
        let mut state = self.lock();
        // What is held of a period that is over is over with it.
        state.purses.retain_budgets(|account, purse| known.is_current(account) || purse.flight().is_some());
        self.known.store(Arc::new(known));
        let State { purses, heeded, .. } = &mut *state;
        for (pool, purse) in purses.pools_mut() {
            let Some(view) = control.pools().view(pool) else { continue };
            let (paused, ran_out) = heeded.entry(pool.clone()).or_default();
            let out = |level: &LevelView| level.level < i64::try_from(level.burst / OUT_PART).unwrap_or(0);
            // The level is that of the last entry: one that nobody has touched since says nothing of now.
            if view.at.0 > *ran_out && view.levels.iter().any(out) {
                *ran_out = view.at.0;
                purse.lend(now.plus(LENT));
            }
            let Some(brake) = view.brake.filter(|brake| brake.until > view.at) else { continue };
            let closed = view.terms.limited().any(|(dimension, _)| brake.allowance.of(dimension) == 0);
            if closed && brake.until.0 > *paused {
                *paused = brake.until.0;
                purse.pause(now.plus(Span::from_nanos(brake.until.0 - view.at.0)));
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Purses check before they change anything, and nothing panics half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn drain(purses: &mut Purses<Account>) {
    purses.pools_mut().for_each(|(_, purse)| purse.drain());
    purses.budgets_mut().for_each(|(_, purse)| purse.drain());
}

/// Pays as one session.
#[derive(Clone, Copy)]
pub struct Hand<'a> {
    escrow: &'a Escrow,
    session: SessionId,
}

impl Purser for Hand<'_> {
    fn pay(&mut self, now: Moment, request: &Request<'_>) -> Result<Option<Box<Paid>>, Denial> {
        let tariff = self.escrow.tariff.load();
        let known = self.escrow.known.load();
        let pool = tariff.pool_of(request.model);
        let budgets = tariff.budgets_of(request, &known).inspect_err(|_begins| self.escrow.hurry())?;
        if pool.is_none() && budgets.is_empty() {
            return Ok(None);
        }
        let pool_need = pool.map(|pool| (pool, request.need.into()));
        let payment = Payment { id: request.id, pool: pool_need, budgets: &budgets };
        let mut state = self.escrow.lock();
        if state.session != Some(self.session) {
            // Its purses begin in a moment.
            drop(state);
            self.escrow.hurry();
            return Err(Denial::Granting(Box::new(Denial::Unavailable)));
        }
        let paid = state.purses.pay(now, &payment, |account| known.left(account));
        let scarce = |state: &mut State, pool: &Name| {
            state.purses.pool(pool).is_some_and(|purse| purse.is_scarce(now))
        };
        let (denial, waits) = match (paid, pool) {
            (Ok(()), pool) => {
                let by = PurseOwner(self.session.0);
                let paid = Paid { by, pool: pool.cloned(), budgets: budgets.into_boxed_slice() };
                return Ok(Some(Box::new(paid)));
            }
            (Err(Unpaid::Pool(lack)), Some(pool)) => {
                let waits = matches!(lack, Lack::Later { .. }) && !scarce(&mut state, pool);
                (Denial::Pool { pool: pool.clone(), lack }, waits)
            }
            // The budget has it: who waits in vain was not refused by that.
            (Err(Unpaid::BudgetWaits(_)), _) => (Denial::Unavailable, true),
            (Err(Unpaid::BudgetExhausted(place)), _) => (known.lacks(&budgets[place]), false),
            // A payment without a pool lacks nothing of it.
            (Err(Unpaid::Pool(_)), None) => return Err(Denial::Unavailable),
        };
        drop(state);
        Err(self.wait_or(denial, waits))
    }

    fn pay_again(&mut self, now: Moment, pool: &Name, need: Units) -> Result<(), Denial> {
        let mut state = self.escrow.lock();
        if state.session != Some(self.session) {
            return Err(Denial::Granting(Box::new(Denial::Unavailable)));
        }
        let payment = Payment { id: ReservationId(0), pool: Some((pool, need)), budgets: &[] };
        let Err(unpaid) = state.purses.pay(now, &payment, |_| Left::default()) else { return Ok(()) };
        let Unpaid::Pool(lack) = unpaid else { return Err(Denial::Unavailable) };
        let scarce = state.purses.pool(pool).is_some_and(|purse| purse.is_scarce(now));
        drop(state);
        let waits = matches!(lack, Lack::Later { .. }) && !scarce;
        Err(self.wait_or(Denial::Pool { pool: pool.clone(), lack }, waits))
    }

    fn true_up(&mut self, _now: Moment, paid: &Paid, difference: Difference) {
        let mut state = self.escrow.lock();
        if state.session != Some(self.session) {
            // What its purses held is written off, this among it.
            return;
        }
        if let Some(purse) = paid.pool.as_ref().and_then(|pool| state.purses.pool(pool)) {
            if difference.exceeded != Units::NONE {
                purse.charge(difference.exceeded);
            }
            if difference.spared != Units::NONE {
                purse.refund(difference.spared);
            }
        }
        if difference.cancelled && paid.by == PurseOwner(self.session.0) {
            for (account, units) in &paid.budgets {
                state.purses.budget(account).put_back(*units);
            }
        }
    }
}

impl Hand<'_> {
    fn wait_or(self, denial: Denial, waits: bool) -> Denial {
        if waits {
            self.escrow.hurry();
            return Denial::Granting(Box::new(denial));
        }
        denial
    }
}

/// A provider refuses: nothing of any dimension for so long.
#[must_use]
pub const fn refusal(pause: Span) -> Feedback {
    Feedback { remaining: [Some(0); Dimension::ALL.len()], pause: pause.as_nanos() }
}
