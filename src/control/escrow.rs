//! What owners' sessions draw from and report to: [`Pools`] and [`Budgets`], as parts of one state, and what is said to both in one command.
//!
//! Laws:
//! - the steps of a command are done in their order, each by itself: one that is refused changes nothing and stops no other;
//! - a decision of a leader is void in another leadership than its own ([`Step::Led`]), and what only a leader may decide is refused from
//!   anybody else;
//! - a session that is over in the log is over for every part in that very entry;
//! - a node that is its own cluster has no session in the log. It says itself which life it is in ([`Step::Live`]), and the life before
//!   ends with that; once the log has members, no such life counts any more.

use serde::{Deserialize, Serialize};
use tollgate_cluster::agreed::At;
use tollgate_cluster::authority::Standing;
use tollgate_cluster::id::{NodeId, SessionId, Term};

use super::Part;
use super::budget::{BudgetAnswer, BudgetCommand, BudgetRefusal, Budgets};
use super::policy::Settings;
use super::pool::{PoolCommand, PoolRefusal, Pools};
use crate::limit::Granted;

/// One of the things that a command says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// To the pools.
    Pool(PoolCommand),
    /// To the budgets.
    Budget(BudgetCommand),
    /// To the budgets, by a leader: what only that may say, while it leads.
    Led {
        /// The leadership that it was decided in.
        term: Term,
        /// What.
        command: BudgetCommand,
    },
    /// A node that is its own cluster begins this life.
    Live(SessionId),
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stepped {
    /// Of a step to the pools.
    Pool(Result<Granted, PoolRefusal>),
    /// Of a step to the budgets, a leader's among them.
    Budget(Result<BudgetAnswer, BudgetRefusal>),
    /// Whether that life counts: not where the log has members.
    Live(bool),
}

/// Says of a session whether it lives.
pub type Standings<'a> = &'a dyn Fn(SessionId) -> Option<Standing>;

impl Part for Pools {
    type Settings = Settings;
    type Command = PoolCommand;
    type Answer = Result<Granted, PoolRefusal>;

    fn apply(&mut self, at: &At<'_>, standings: Standings<'_>, command: PoolCommand) -> Self::Answer {
        Self::apply(self, at.time, standings, &command)
    }

    fn configure(&mut self, at: &At<'_>, settings: &Settings) {
        self.adopt(at.time, &settings.pools);
    }

    fn fenced(&mut self, at: &At<'_>, session: SessionId) {
        self.fence(at.time, session);
    }

    fn removed(&mut self, _at: &At<'_>, _node: NodeId) {}
}

impl Part for Budgets {
    type Settings = Settings;
    type Command = BudgetCommand;
    type Answer = Result<BudgetAnswer, BudgetRefusal>;

    fn apply(&mut self, at: &At<'_>, standings: Standings<'_>, command: BudgetCommand) -> Self::Answer {
        Self::apply(self, at.time, standings, &command)
    }

    fn configure(&mut self, _at: &At<'_>, settings: &Settings) {
        self.adopt(&settings.budgets);
    }

    fn fenced(&mut self, at: &At<'_>, session: SessionId) {
        self.fence(at.time, session);
    }

    fn removed(&mut self, _at: &At<'_>, _node: NodeId) {}
}
