//! What a reservation costs beside the buckets of its tenant: the names of budgets, and what was taken from which purse.
//!
//! The limiter only keeps it, so that whoever ends the reservation finds it: what a budget has left, and whose the purses are, is not
//! known here.

use serde::{Deserialize, Serialize};

use super::decision::Denial;
use super::limiter::Request;
use super::rules::Name;
use super::time::Moment;
use super::units::Units;

/// What a budget counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Unit {
    /// Tokens, input and output together.
    Tokens,
    /// Millionths of a US dollar.
    MicroDollars,
}

/// Whose budget it is within its tenant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Part {
    /// The whole tenant's.
    Tenant,
    /// A project's.
    Project(Name),
    /// A key's, by its label.
    Key(Name),
}

/// How long the periods of a budget are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Cycle {
    /// An hour of the zone's clock. Where an hour repeats in autumn, each of the two is a period.
    Hour,
    /// A calendar day.
    Day,
    /// A week from Monday.
    Week,
    /// A calendar month.
    Month,
}

/// The name of a period within its calendar: the instant it begins at, in seconds since 1970-01-01T00:00:00Z.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PeriodId(pub i64);

/// Which budget. Its zone is not part of the name, so that an edit of it keeps what is used.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BudgetKey {
    /// Who is billed.
    pub tenant: Name,
    /// For what part of it.
    pub part: Part,
    /// How long its periods are.
    pub cycle: Cycle,
    /// What it counts.
    pub unit: Unit,
}

impl BudgetKey {
    /// Which of its tenant's budgets it is, in a word: `month/tokens`, `project/lab/day/usd`.
    #[must_use]
    pub fn label(&self) -> String {
        let part = match &self.part {
            Part::Tenant => String::new(),
            Part::Project(name) => format!("project/{name}/"),
            Part::Key(label) => format!("key/{label}/"),
        };
        let cycle = match self.cycle {
            Cycle::Hour => "hour",
            Cycle::Day => "day",
            Cycle::Week => "week",
            Cycle::Month => "month",
        };
        let unit = match self.unit {
            Unit::Tokens => "tokens",
            Unit::MicroDollars => "usd",
        };
        format!("{part}{cycle}/{unit}")
    }
}

/// Whether a request goes to the model it asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Lane {
    /// To that.
    Regular,
    /// To a cheaper one, because the budget is used up.
    Degraded,
}

/// From what a budget's purse is drawn, and what its escrow is booked under.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Account {
    /// Of which budget.
    pub budget: BudgetKey,
    /// In which period: that of the admission.
    pub period: PeriodId,
    /// In which lane.
    pub lane: Lane,
}

/// The session whose purses paid: 128 bits that are only ever compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PurseOwner(pub u128);

/// What a reservation took from purses. It follows the reservation wherever that goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paid {
    /// Whose purses they were.
    pub by: PurseOwner,
    /// The pool of its model, from which it took its estimate. None where the model has none.
    pub pool: Option<Name>,
    /// What it took from budgets, in each budget's unit.
    pub budgets: Box<[(Account, u64)]>,
}

/// The purses that pay for what a tenant's own limits let through.
pub trait Purser {
    /// Takes all that `request` costs beside its tenant's buckets, or nothing. Nothing to take is none.
    ///
    /// # Errors
    /// Why it takes nothing.
    fn pay(&mut self, now: Moment, request: &Request<'_>) -> Result<Option<Box<Paid>>, Denial>;

    /// Takes `need` from `pool` once more: the provider counts every attempt.
    ///
    /// # Errors
    /// Why it takes nothing.
    fn pay_again(&mut self, now: Moment, pool: &Name, need: Units) -> Result<(), Denial>;

    /// A reservation is over that took `paid`: what it did not need of its pool, and what it used beyond.
    fn true_up(&mut self, now: Moment, paid: &Paid, difference: Difference);
}

/// What a reservation turned out to need, against what it held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// Held and not used.
    pub spared: Units,
    /// Used beyond what was held.
    pub exceeded: Units,
    /// Nothing was sent to a provider.
    pub cancelled: bool,
}

/// Nobody: whatever the tenant's own limits let through costs nothing else.
#[derive(Clone, Copy, Debug, Default)]
pub struct Free;

impl Purser for Free {
    fn pay(&mut self, _now: Moment, _request: &Request<'_>) -> Result<Option<Box<Paid>>, Denial> {
        Ok(None)
    }

    fn pay_again(&mut self, _now: Moment, _pool: &Name, _need: Units) -> Result<(), Denial> {
        Ok(())
    }

    fn true_up(&mut self, _now: Moment, _paid: &Paid, _difference: Difference) {}
}
