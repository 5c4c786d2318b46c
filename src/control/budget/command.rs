//! What is said to budgets and what they answer: names, commands, refusals, alerts.

use serde::{Deserialize, Serialize};
use tollgate_cluster::id::SessionId;

use super::super::period::{Calendar, Period, PeriodId};
#[cfg(doc)]
use super::UNITS_MOST;
use crate::limit::{BudgetDraw, BudgetGranted, Name};
pub use crate::limit::{BudgetKey, Lane, Part, Unit};

/// What the policy says of a budget.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetTerms {
    /// What a period may use, in the budget's unit; at most [`UNITS_MOST`] counts.
    pub limit: u64,
    /// What the cheaper model may use beyond it, in the budget's unit; 0 where the policy names none.
    pub degraded: u64,
    /// The zone whose calendar bounds the periods.
    pub zone: Name,
    /// At which parts of the limit somebody is told, in millionths, ascending.
    pub thresholds: Vec<u32>,
}

/// From which escrow a reservation was paid. It follows the reservation wherever that goes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Line {
    /// Of which budget.
    pub budget: BudgetKey,
    /// In which period: that of its admission.
    pub period: PeriodId,
    /// Of which owner's session.
    pub owner: SessionId,
    /// In which lane.
    pub lane: Lane,
}

/// What a reservation costs one budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Charge {
    /// The place of its line among those of the batch.
    pub line: u32,
    /// What was held, in the budget's unit.
    pub reserved: u64,
    /// What was used, in the budget's unit. Not looked at by a close, which charges what was held. Of a reservation that was cancelled it is 0,
    /// but only once its owner's session is over or has handed it on: until then the owner's purse has it back, and the number is void.
    pub actual: u64,
}

/// A reservation that is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// Its number among those of its gateway's session, from 1.
    pub number: u64,
    /// What it costs, each budget once.
    pub charges: Vec<Charge>,
}

/// Reservations of one gateway's session that are over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// Whose: one session of a gateway, the reporter's own or, from its journal, an earlier one.
    pub gateway: SessionId,
    /// What the charges refer to.
    pub lines: Vec<Line>,
    /// Those that cost something, or might have.
    pub ends: Vec<End>,
    /// Numbers that no budget pays for, from the first to the last of each run: denied, cancelled where they were debited, or without a budget.
    pub void: Vec<(u64, u64)>,
}

/// A command to the budgets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BudgetCommand {
    /// An owner's session gives back and asks.
    Draw {
        /// Of which budget.
        budget: BudgetKey,
        /// In which period.
        period: PeriodId,
        /// Who.
        session: SessionId,
        /// In which lane.
        lane: Lane,
        /// What.
        draw: BudgetDraw,
    },
    /// A gateway reports usage.
    Settle(Batch),
    /// An owner closes at their estimates what reached its deadline, or what a gateway that is closed left open.
    Close(Batch),
    /// The time is over in which a fenced gateway's session may report. Proposed by the leader.
    CloseGateway {
        /// Which.
        gateway: SessionId,
        /// How long that time is in log time, in nanoseconds from its fence.
        grace: u64,
    },
    /// A calendar moves on. Proposed by the leader, when a majority's wall clocks have passed the boundary.
    Roll {
        /// Which.
        calendar: Calendar,
        /// To where.
        period: Period,
    },
    /// An operator says how much of the current period is used: from now on this counts.
    SetUsed {
        /// Of which budget.
        budget: BudgetKey,
        /// So much, in the budget's unit.
        used: u64,
    },
    /// An operator gives back what a session that is over left in escrow. What is reported of it later is charged beyond the limit.
    Release {
        /// Of which budget.
        budget: BudgetKey,
        /// In which period.
        period: PeriodId,
        /// Whose.
        session: SessionId,
    },
    /// Alerts have been delivered.
    Delivered {
        /// Their numbers.
        alerts: Vec<u64>,
    },
}

impl BudgetCommand {
    /// Whether only a leader may say it, in its own leadership.
    #[must_use]
    pub const fn is_led(&self) -> bool {
        matches!(self, Self::Roll { .. } | Self::CloseGateway { .. })
    }
}

/// What a command brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BudgetAnswer {
    /// A draw's answer.
    Granted(BudgetGranted),
    /// A batch's.
    Ended {
        /// Ends that counted.
        counted: u32,
        /// Ends that had been counted before.
        repeated: u32,
    },
    /// Anything else is done.
    Done,
}

/// Why a command changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum BudgetRefusal {
    /// The policy has no such budget, or it has no period yet.
    #[error("no such budget: the policy names none, or its calendar has not begun")]
    NoSuchBudget,
    /// The period is not the current one.
    #[error("that period is not the current one: nothing more is granted in it")]
    PeriodOver {
        /// The one that is.
        current: PeriodId,
    },
    /// The session is over, or was never registered.
    #[error("this session is over")]
    SessionOver,
    /// The time for reports of this gateway's session is over: what it left open is closed at the estimates.
    #[error("this gateway's session is closed: what it left open is charged at the estimates")]
    GatewayClosed,
    /// The session is not fenced, or not for so long.
    #[error("its time is not over yet")]
    TooEarly,
    /// The draw is not the session's next one.
    #[error("not the next draw: {expected} is")]
    OutOfTurn {
        /// The number that is.
        expected: u64,
    },
    /// A draw of that number was answered, and it was another.
    #[error("another draw of that number was answered: the session's counters are not to be trusted")]
    Differs,
    /// Counters that go back, lines that are not there, amounts beyond [`UNITS_MOST`], or more than fits one batch.
    #[error("it cannot be: a counter, a line or an amount is not sound, or there is too much of it")]
    Unsound,
    /// It is a leader's to decide, and was not decided by the leader of now.
    #[error("this is the leader's to decide, and its leadership is over")]
    NotLed,
    /// The calendar is not used, or has moved on.
    #[error("the calendar is not in use, or is there already")]
    NotNext,
}

/// A soft threshold was crossed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alert {
    /// Whose.
    pub budget: BudgetKey,
    /// In which period.
    pub period: PeriodId,
    /// Which part of the limit, in millionths.
    pub threshold: u32,
    /// The limit then, in the budget's unit.
    pub limit: u64,
    /// What was used then, in the budget's unit.
    pub used: u64,
}

impl Alert {
    /// Its name: the same for whoever delivers it, however often.
    #[must_use]
    pub fn id(&self) -> String {
        let BudgetKey { tenant, part, cycle, unit } = &self.budget;
        let part = match part {
            Part::Tenant => String::new(),
            Part::Project(name) => format!("/project/{name}"),
            Part::Key(label) => format!("/key/{label}"),
        };
        format!("{tenant}{part}/{cycle:?}/{unit:?}/{}/{}", self.period.0, self.threshold)
    }
}
