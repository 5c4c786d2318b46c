//! What owners on this node close: reservations that budgets pay for and whose gateways have not said how they ended.
//!
//! Laws:
//! - what reached its deadline is closed at once, at what it held; a report that comes later corrects it, once;
//! - what a gateway left open that is gone is closed when its session is closed, not before: until then it may come back and tell;
//! - so is what it ended here and did not report: it tells its owner first and writes it into its journal a moment later;
//! - it is told until it is answered; what is told twice is closed once, by its number;
//! - bounded: what finds no place stays in escrow, where an operator sees it.
//!
//! Never here: what a close charges.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tollgate_cluster::id::SessionId;

use super::agreement::Agreement;
use super::charge::lines_of;
use crate::control::Control;
use crate::control::budget::{BATCH_MOST, Batch, BudgetCommand, Charge, End};
use crate::limit::{Moment, Paid, ReservationId, Span};

/// The most reservations that wait, and the most ends of one gateway that are remembered.
const MOST: usize = 200_000;

/// How long an end is remembered whose gateway has yet to report it: it is written down within a moment, and its gateway fenced within some leases.
const REMEMBERED: Span = Span::from_secs(60);

/// How often it is looked whether something can be closed.
const LOOK: Duration = Duration::from_millis(250);

/// Reservations that wait to be closed.
#[derive(Debug, Default)]
pub struct Closing(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// By the session of their gateway and their number: whether that is to be closed first.
    waiting: BTreeMap<(SessionId, u64), (bool, Box<Paid>)>,
    /// What has ended here lately, by the life of its gateway, which may not have reported it.
    ended: HashMap<u64, VecDeque<(Moment, ReservationId, Box<Paid>)>>,
    dropped: u64,
}

impl Closing {
    /// `id` of `gateway` reached its deadline.
    pub(super) fn expired(&self, gateway: SessionId, id: ReservationId, paid: Box<Paid>) {
        self.add(gateway, id, paid, false);
    }

    /// `gateway` is gone, and left `id` open.
    pub(super) fn orphaned(&self, gateway: SessionId, id: ReservationId, paid: Box<Paid>) {
        self.add(gateway, id, paid, true);
    }

    /// `id` has ended here as of `now`, and its gateway may be gone before it reports that.
    pub(super) fn ended(&self, now: Moment, id: ReservationId, paid: &Paid) {
        if paid.budgets.is_empty() {
            return;
        }
        let mut state = self.lock();
        let ended = state.ended.entry(id.life()).or_default();
        while ended.len() >= MOST || ended.front().is_some_and(|(at, ..)| now.since(*at) > REMEMBERED) {
            ended.pop_front();
        }
        ended.push_back((now, id, Box::new(paid.clone())));
    }

    /// `gateway` is gone, whose ids begin with `life`.
    pub(super) fn gone(&self, life: u64, gateway: SessionId) {
        let ended = self.lock().ended.remove(&life);
        for (_, id, paid) in ended.into_iter().flatten() {
            self.orphaned(gateway, id, paid);
        }
    }

    fn add(&self, gateway: SessionId, id: ReservationId, paid: Box<Paid>, orphan: bool) {
        if paid.budgets.is_empty() {
            return;
        }
        let mut state = self.lock();
        if state.waiting.len() >= MOST {
            state.dropped += 1;
            return;
        }
        state.waiting.entry((gateway, id.number())).or_insert((orphan, paid));
    }

    /// How many wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().waiting.len()
    }

    /// Whether none waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many ends are remembered whose gateways may not have reported them.
    #[must_use]
    pub fn remembered(&self) -> usize {
        self.lock().ended.values().map(VecDeque::len).sum()
    }

    /// How many found no place.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.lock().dropped
    }

    /// Reservations of one gateway that can be closed now.
    fn due(&self, control: &Control) -> Option<Batch> {
        let mut state = self.lock();
        // What a closed gateway did report after all.
        state.waiting.retain(|(gateway, number), _| {
            !(control.budgets().is_closed(*gateway) && control.budgets().has_ended(*gateway, *number))
        });
        let due = |gateway: SessionId, orphan: bool| !orphan || control.budgets().is_closed(gateway);
        let mut all =
            state.waiting.iter().filter(|((gateway, _), (orphan, _))| due(*gateway, *orphan)).peekable();
        let &(&(gateway, _), _) = all.peek()?;
        let mut batch = Batch { gateway, lines: Vec::new(), ends: Vec::new(), void: Vec::new() };
        let mut places = BTreeMap::new();
        for ((of, number), (_, paid)) in all.take(BATCH_MOST) {
            if *of != gateway {
                break;
            }
            let charges = lines_of(paid).map(|(line, reserved)| {
                let next = u32::try_from(batch.lines.len()).unwrap_or(u32::MAX);
                let line = *places.entry(line).or_insert_with_key(|line| {
                    batch.lines.push(line.clone());
                    next
                });
                Charge { line, reserved, actual: 0 }
            });
            let charges = charges.collect();
            batch.ends.push(End { number: *number, charges });
        }
        Some(batch)
    }

    fn done(&self, batch: &Batch) {
        let mut state = self.lock();
        for end in &batch.ends {
            state.waiting.remove(&(batch.gateway, end.number));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A value is put in whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Has closed what can be, until `stopping`.
pub async fn run(agreement: Arc<Agreement>, stopping: CancellationToken) {
    let mut looks = tokio::time::interval(LOOK);
    loop {
        tokio::select! {
            () = stopping.cancelled() => return,
            _ = looks.tick() => {}
        }
        let closing = agreement.node().closing();
        while let Some(batch) = closing.due(&agreement.control()) {
            match agreement.budget(BudgetCommand::Close(batch.clone())).await {
                Ok(answer) => {
                    tracing::warn!(
                        gateway = %batch.gateway, reservations = batch.ends.len(), ?answer,
                        "reservations whose gateway did not say how they ended were closed at their estimates"
                    );
                    closing.done(&batch);
                }
                Err(problem) => {
                    tracing::debug!(%problem, "reservations could not be closed; it is tried again");
                    break;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tollgate_cluster::agreed::{Agreed, At};
    use tollgate_cluster::authority::{Authority, Position};
    use tollgate_cluster::id::{ClusterId, LogIndex, NodeId, Term};
    use tollgate_cluster::log_time::LogTime;

    use super::*;
    use crate::control::Command;
    use crate::control::escrow::Step;
    use crate::control::period::PeriodId;
    use crate::limit::{Account, BudgetKey, Cycle, Lane, Part, PurseOwner, Unit};

    const T1: Term = Term { number: 1, leader: NodeId(0) };

    fn paid(units: u64) -> Box<Paid> {
        let budget =
            BudgetKey { tenant: "acme".into(), part: Part::Tenant, cycle: Cycle::Month, unit: Unit::Tokens };
        let account = Account { budget, period: PeriodId(0), lane: Lane::Regular };
        Box::new(Paid { by: PurseOwner(9), pool: None, budgets: [(account, units)].into() })
    }

    #[test]
    fn a_deadline_closes_at_once_and_a_death_when_the_gateway_is_closed() {
        let (closing, mut control) = (Closing::default(), Control::default());
        closing.orphaned(SessionId(1), ReservationId::new(1, 3), paid(30));
        closing.orphaned(SessionId(1), ReservationId::new(1, 4), paid(40));
        assert_eq!(closing.due(&control), None);
        closing.expired(SessionId(2), ReservationId::new(2, 5), paid(50));
        let batch = closing.due(&control).unwrap();
        assert_eq!((batch.gateway, batch.ends.len(), batch.ends[0].number), (SessionId(2), 1, 5));
        assert_eq!(closing.due(&control).as_ref(), Some(&batch), "until it is answered");
        closing.done(&batch);
        assert_eq!(closing.due(&control), None);
        let authority = Authority::new(ClusterId(1));
        let position = Position { index: LogIndex(0), term: T1 };
        let at = At { position, time: LogTime(0), authority: &authority };
        Agreed::fenced(&mut control, at, SessionId(1));
        assert_eq!(closing.due(&control), None, "it may come back");
        let command = BudgetCommand::CloseGateway { gateway: SessionId(1), grace: 0 };
        control.obey(&at, Command::Escrow(vec![Step::Led { term: T1, command }]));
        let batch = closing.due(&control).unwrap();
        let reserved: Vec<u64> = batch.ends.iter().map(|end| end.charges[0].reserved).collect();
        assert_eq!((batch.lines.len(), reserved), (1, vec![30, 40]));
        closing.done(&batch);
        assert!(closing.is_empty());
    }

    #[test]
    fn what_ended_here_and_was_not_reported_is_closed_with_its_gateway() {
        let (closing, mut control) = (Closing::default(), Control::default());
        let at = |seconds: u64| Moment::from_nanos(seconds * 1_000_000_000);
        for (seconds, number) in [(1, 2), (100, 3), (101, 4)] {
            closing.ended(at(seconds), ReservationId::new(1, number), &paid(30));
        }
        closing.ended(at(101), ReservationId::new(2, 9), &paid(30));
        let authority = Authority::new(ClusterId(1));
        let position = Position { index: LogIndex(0), term: T1 };
        let now = At { position, time: LogTime(0), authority: &authority };
        Agreed::fenced(&mut control, now, SessionId(1));
        closing.gone(1, SessionId(1));
        assert_eq!(closing.due(&control), None, "it may come back and report");
        // The other is reported.
        let reported = Batch { gateway: SessionId(1), lines: vec![], ends: vec![], void: vec![(4, 4)] };
        let settle = Step::Budget(BudgetCommand::Settle(reported));
        control.obey(&now, Command::Escrow(vec![settle]));
        let command = BudgetCommand::CloseGateway { gateway: SessionId(1), grace: 0 };
        control.obey(&now, Command::Escrow(vec![Step::Led { term: T1, command }]));
        let batch = closing.due(&control).unwrap();
        let numbers: Vec<u64> = batch.ends.iter().map(|end| end.number).collect();
        assert_eq!(numbers, [3], "2 was long ago, 4 is reported, and 9 is another's");
        closing.done(&batch);
        assert_eq!(closing.due(&control), None);
    }
}
